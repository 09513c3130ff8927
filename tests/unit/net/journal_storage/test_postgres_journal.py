"""A journal in PostgreSQL: it holds what one in a file would, and only the holder of its lease writes to it."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.postgres_server import PostgresServer
from tidings.delivery.outbox import PendingEvent
from tidings.errors import InputError
from tidings.net.broker.journal import TABLES, DurableSubscription, Journal
from tidings.net.journal_storage.interface import JournalTables, LeaseLost, Statements
from tidings.net.journal_storage.postgres import PostgresStorage, wait_for_lease
from tidings.net.journal_storage.session import JournalDatabase, secret
from tidings.overlay import EventId

NUMBERS = itertools.count(1)
LEASE_S = 1.0
SOON_S = 60.0  # For what comes at once, unless the machine is busy.
OTHER_TABLES = ("lease", "standbys")


def event(number: int) -> EventId:
    return EventId("me", 0, number)


@pytest.fixture
def database(postgres: PostgresServer) -> JournalDatabase:
    return JournalDatabase.of(postgres.url(), f"b{next(NUMBERS)}")


async def leased(
    database: JournalDatabase, tables: JournalTables = TABLES, lease_s: float = LEASE_S
) -> PostgresStorage:
    async with asyncio.timeout(SOON_S):
        return await wait_for_lease(database, ("b", "id"), lease_s, tables, lambda why: None)


def kill_connections(postgres: PostgresServer, database: JournalDatabase) -> None:
    """Of all processes of the broker; there must be some."""
    ours = f"FROM pg_stat_activity WHERE starts_with(application_name, '{database.schema} ')"
    assert rows(postgres, database, f"SELECT pg_terminate_backend(pid) {ours}")


def rows(postgres: PostgresServer, database: JournalDatabase, query: str) -> list[Any]:
    import psycopg

    with psycopg.connect(postgres.url(), options=f"-csearch_path={database.schema}") as connection:
        return connection.execute(query.encode()).fetchall()


def test_all_that_can_be_noted_is_there_in_the_next_life(database: JournalDatabase) -> None:
    async def first_life() -> tuple[bytes, int]:
        journal = Journal(await leased(database))
        kept = DurableSubscription("d", b"owner", "na\0me \1", "T", "TRUE", 0, b"")
        gone = DurableSubscription("gone", b"owner", "gone", "T", "TRUE", 0, b"")
        journal.note_durable(kept)
        journal.note_durable(gone)
        for number in range(1, 200):  # More than fit into one statement.
            position = journal.note_event(event(number), "T", number, str(number).encode(), b"raw%d" % number)
            journal.note_pending("b", PendingEvent(number, position, event(number), ""))
            journal.note_queued(kept, b"body%d" % number)
        journal.note_stream("b", 200, 1)
        journal.note_received("o", b"j", 9)
        journal.note_interest("o", 3, b"wants")
        journal.note_seal("d", 7, 8)
        journal.note_seal("d", 7, 8)
        journal.note_seen("T", 7, 8)
        journal.note_dead(kept, 5, "event", "T", "why\0", b"dead")
        journal.note_dead(kept, 6, "event", "T", "why", b"dead")
        journal.note_revived(2)
        journal.note_meta("m", b"value")
        await journal.committed()
        journal.note_acknowledged(kept, 100)
        journal.note_acked("b", 50)
        journal.note_taken_out(kept, 150)
        journal.note_forgotten(gone)
        await journal.committed()
        journal.close()
        return journal.id, journal.incarnation

    async def second_life() -> tuple[bytes, int]:
        journal = Journal(await leased(database))
        (kept,) = journal.durables()
        assert (kept.name, kept.next_position, kept.acknowledged) == ("na\0me \1", 200, 100)
        queued = [row.position for row in await journal.queued("d", 0)]
        assert queued == [position for position in range(101, 200) if position != 150]
        assert await journal.queue_sizes() == {"d": 98}
        assert [each.number for each in await journal.pending("b", 1)] == list(range(50, 200))
        assert await journal.pending_packets("b", [49, 50, 51]) == [(50, b"raw50"), (51, b"raw51")]
        assert await journal.kept_from("b", 10, 60) == 50
        assert await journal.pending_too_long(before_us=53) == [("b", 52)]
        assert (journal.streams(), journal.received()) == ([("b", 200, 1)], [("o", b"j", 9)])
        assert journal.interests() == [("o", 3, b"wants")]
        assert journal.seals(10) == ([("d", 7, 8)], -1)
        assert journal.has_seal("d", 7, 8)
        assert journal.seen("T") == {7: 8}
        assert [letter.why for letter in await journal.dead_letters(b"owner")] == ["why\0"]
        assert journal.meta("m") == b"value"
        assert list(journal.repeats.items())[:2] == [(b"1", event(1)), (b"2", event(2))]
        assert [each.position for each in await journal.events_since(10, "T", 5, 13)] == [10, 11, 12]
        await journal.forget_old(keep_max=10, before_us=0, dead_max=0)
        assert [each.position for each in await journal.events_since(0, "T", 0, 1000)] == list(range(50, 200))
        assert await journal.dead_letters() == []
        journal.close()
        return journal.id, journal.incarnation

    id, life = asyncio.run(first_life())
    assert asyncio.run(second_life()) == (id, life + 1)


def test_every_table_of_the_journal_has_the_same_columns_in_both_databases(
    postgres: PostgresServer, database: JournalDatabase
) -> None:
    import sqlite3

    asyncio.run(leased(database)).close()
    found = rows(
        postgres,
        database,
        "SELECT table_name, column_name FROM information_schema.columns"
        f" WHERE table_schema = '{database.schema}' ORDER BY table_name, ordinal_position",
    )
    file = sqlite3.connect(":memory:")
    file.executescript(TABLES.first + TABLES.later)
    names = [name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    there = [(name, column) for name in names for _, column, *_ in file.execute(f"PRAGMA table_info({name})")]
    assert [row for row in found if row[0] not in OTHER_TABLES] == there


def test_who_waits_takes_over_what_was_written_and_nothing_is_written_by_who_was_there_before(
    postgres: PostgresServer, database: JournalDatabase
) -> None:
    async def scenario() -> None:
        before = Journal(await leased(database))
        before.note_event(event(1), "T", 0, b"1", b"")
        await before.committed()
        waiting = asyncio.create_task(leased(database))
        keeper = keeper_of(before)
        await until(lambda: keeper.status().standbys)
        freeze(before)
        after = Journal(await waiting)
        assert await positions(after) == [1]
        after.note_event(event(2), "T", 0, b"2", b"")
        await after.committed()
        lost = asyncio.get_running_loop().create_future()
        keeper.on_lost = lambda why: loop_set(lost, why)
        before.note_event(event(3), "T", 0, b"3", b"")  # At the same position as the other's.
        never = asyncio.create_task(before.committed())
        told = await asyncio.wait_for(lost, SOON_S)
        assert isinstance(told, LeaseLost)
        assert "has passed to" in str(told)
        assert not never.done()
        never.cancel()
        before.close()
        assert await positions(after) == [1, 2]
        after.close()

    asyncio.run(scenario())
    assert rows(postgres, database, "SELECT epoch FROM lease") == [(2,)]


def test_who_is_frozen_right_before_a_commit_does_not_keep_the_lease(
    postgres: PostgresServer, database: JournalDatabase
) -> None:
    frozen, thawed = threading.Event(), threading.Event()

    def stand_still() -> None:
        frozen.set()
        thawed.wait(SOON_S)

    async def scenario() -> None:
        before = Journal(storage := await leased(database))
        storage._watchdog.close()  # It stands still with the rest of the process.
        storage._writer.progresses = stand_still  # type: ignore[method-assign]
        before.note_event(event(1), "T", 0, b"1", b"")
        never = asyncio.create_task(before.committed())
        await asyncio.to_thread(frozen.wait, SOON_S)
        freeze(before)
        after = Journal(await leased(database))
        assert await positions(after) == []
        thawed.set()
        await until(lambda: before.lost is not None)
        never.cancel()
        assert await positions(after) == []
        before.close()
        after.close()

    asyncio.run(scenario())
    assert rows(postgres, database, "SELECT epoch FROM lease") == [(2,)]


def test_a_group_whose_commit_was_not_answered_is_written_once(
    postgres: PostgresServer, database: JournalDatabase
) -> None:
    async def scenario() -> None:
        storage = await leased(database)
        journal = Journal(storage)
        answers = LosesAnswers(storage)
        journal.note_event(event(1), "T", 0, b"1", b"")
        await journal.committed()
        answers.lose_next()
        journal.note_event(event(2), "T", 0, b"2", b"")
        async with asyncio.timeout(SOON_S):
            await journal.committed()
        assert answers.lost == 1
        assert await positions(journal) == [1, 2]
        journal.note_event(event(3), "T", 0, b"3", b"")
        await journal.committed()
        assert await positions(journal) == [1, 2, 3]
        journal.close()

    asyncio.run(scenario())


def test_when_all_connections_break_what_was_noted_is_written_once_they_are_back(
    postgres: PostgresServer, database: JournalDatabase
) -> None:
    async def scenario() -> None:
        journal = Journal(await leased(database))
        for number in range(1, 6):
            kill_connections(postgres, database)
            journal.note_event(event(number), "T", 0, str(number).encode(), b"")
            async with asyncio.timeout(SOON_S):
                await journal.committed()
        assert await positions(journal) == [1, 2, 3, 4, 5]
        assert not journal.is_stuck
        journal.close()

    asyncio.run(scenario())


def test_a_lease_that_was_given_back_is_taken_at_once_and_one_that_is_held_is_not(database: JournalDatabase) -> None:
    async def scenario() -> None:
        whys: list[str] = []
        first = await leased(database, lease_s=300.0)
        second = asyncio.create_task(wait_for_lease(database, ("b", "id"), 300.0, TABLES, whys.append))
        await until(lambda: whys)
        assert not second.done()
        assert whys == ["another process holds the lease"]
        first.close()
        (await asyncio.wait_for(second, SOON_S)).close()

    asyncio.run(scenario())


def test_a_database_that_has_lost_what_was_acknowledged_ends_the_broker(
    postgres: PostgresServer, database: JournalDatabase
) -> None:
    async def scenario() -> None:
        journal = Journal(await leased(database))
        for number in (1, 2):
            journal.note_event(event(number), "T", 0, str(number).encode(), b"")
            await journal.committed()
        postgres.run_sql(postgres.url(), f'UPDATE "{database.schema}".lease SET written = written - 1')
        journal.note_event(event(3), "T", 0, b"3", b"")
        never = asyncio.create_task(journal.committed())
        await until(lambda: journal.lost)
        assert "acknowledged events may be lost" in str(journal.lost)
        never.cancel()
        journal.close()

    asyncio.run(scenario())


def test_the_journal_of_another_broker_of_this_name_is_refused(database: JournalDatabase) -> None:
    async def scenario() -> None:
        (await leased(database)).close()
        with pytest.raises(InputError, match="belongs to another broker"):
            await wait_for_lease(database, ("b", "another id"), LEASE_S, TABLES, lambda why: None)
        newer = JournalTables(TABLES.version - 1, TABLES.first, TABLES.later)
        with pytest.raises(InputError, match="newer version"):
            await wait_for_lease(database, ("b", "id"), LEASE_S, newer, lambda why: None)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("url", "broker", "why"),
    [
        ("mysql://host/db", "b", "expected postgresql://"),
        ("postgresql://u:very-secret@[::1/db", "b", "cannot be read"),
        ("postgresql://host/db", 'b"; DROP SCHEMA public', "names a schema"),
    ],
)
def test_what_is_no_journal_is_refused_without_showing_a_password(url: str, broker: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as refused:
        JournalDatabase.of(url, broker)
    assert "very-secret" not in str(refused.value)


def test_a_password_comes_from_a_file_or_a_variable_and_is_never_shown(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text("very secret\n")
    monkeypatch.setenv("JOURNAL_PASSWORD", "very secret")
    for reference in (f"file:{tmp_path / 'password'}", "env:JOURNAL_PASSWORD"):
        database = JournalDatabase.of("postgresql://me@one:5433,two/db", "b-1", reference)
        assert "very secret" in database.conninfo
        assert database.where == "postgresql://one:5433,two:5432/db (tidings_b-1)" or "one:5433" in database.where
        assert "secret" not in database.where
    with pytest.raises(InputError, match="not the password itself"):
        secret("very secret", "journal_password")


# ── How it is done ──


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(SOON_S):
        while not holds():  # noqa: ASYNC110 - what holds changes in another thread or process
            await asyncio.sleep(0.05)


async def positions(journal: Journal) -> list[int]:
    return [each.position for each in await journal.events_since(0, "T", 0, 1000)]


def keeper_of(journal: Journal) -> Any:
    assert isinstance(journal.storage, PostgresStorage)
    return journal.storage.keeper


def freeze(journal: Journal) -> None:
    """From now on its lease is not renewed, as if the process stood still."""
    keeper_of(journal).close(release=False)


def loop_set(future: asyncio.Future[Any], value: object) -> None:
    future.get_loop().call_soon_threadsafe(future.set_result, value)


class LosesAnswers:
    """Between a storage and its server: a commit reaches the server, and its answer does not come back."""

    def __init__(self, storage: PostgresStorage) -> None:
        self._storage, self._next, self.lost = storage, False, 0
        self._transact: Any = storage._transact
        storage._transact = self._losing  # type: ignore[method-assign, assignment]

    def lose_next(self) -> None:
        self._next = True

    def _losing(self, *arguments: Any) -> Any:
        done = self._transact(*arguments)
        if self._next:
            self._next = False
            self.lost += 1
            raise OSError("the answer was lost")
        return done


def test_names_of_tables_are_read_from_their_statements() -> None:
    from tidings.net.journal_storage.dialect import Dialect

    speaks = Dialect(TABLES.first, TABLES.later)
    said: Sequence[str] = [
        speaks.statement("INSERT OR REPLACE INTO meta VALUES (?, ?)"),
        speaks.statement("INSERT OR REPLACE INTO seen VALUES (?, ?, ?)"),
        speaks.statement("UPDATE durables SET acknowledged = max(acknowledged, ?) WHERE id = ?"),
    ]
    assert said == [
        "INSERT INTO meta VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
        "INSERT INTO seen VALUES (%s, %s, %s) ON CONFLICT (type, sender) DO UPDATE SET moment = excluded.moment",
        "UPDATE durables SET acknowledged = greatest(acknowledged, %s) WHERE id = %s",
    ]


def test_who_stands_still_within_a_group_does_not_keep_its_rows_from_who_takes_over(database: JournalDatabase) -> None:
    def half_a_group(to: Statements) -> None:
        to.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", ("m", b"before"))
        sent.set()
        goes_on.wait(SOON_S)

    sent, goes_on = threading.Event(), threading.Event()

    async def scenario() -> None:
        before = await leased(database)
        before.keeper.close(release=False)
        writing = asyncio.create_task(asyncio.to_thread(before.write, half_a_group, is_group=True))
        await until(sent.is_set)
        after = Journal(await leased(database))
        after.note_meta("m", b"after")
        async with asyncio.timeout(SOON_S):
            await after.committed()
        goes_on.set()
        with pytest.raises(LeaseLost):
            await writing
        assert after.meta("m") == b"after"
        before.close()
        after.close()

    asyncio.run(scenario())
