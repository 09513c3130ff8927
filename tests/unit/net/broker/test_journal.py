"""The journal on a real disk: what was committed is there in the next life, and nothing is told before."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from tidings.delivery.outbox import PendingEvent
from tidings.errors import InputError, SetupError
from tidings.net.broker.journal import DurableSubscription, Journal, JournaledEvent
from tidings.net.journal_storage.sqlite import SqliteStorage
from tidings.node import BatchIds
from tidings.overlay import EventId


def event(number: int) -> EventId:
    return EventId("me", 0, number)


def storage(journal: Journal) -> SqliteStorage:
    assert isinstance(journal.storage, SqliteStorage)
    return journal.storage


def a_durable() -> DurableSubscription:
    return DurableSubscription("d", b"owner", "name", "T", "TRUE", 0, b"")


def test_a_life_begins_with_a_number_that_no_earlier_one_had(tmp_path: Path) -> None:
    lives = []
    for _ in range(3):
        journal = Journal(tmp_path / "j.db")
        lives.append((journal.id, journal.incarnation))
        journal.close()
    assert lives == [(lives[0][0], 0), (lives[0][0], 1), (lives[0][0], 2)]


def test_only_its_owner_can_read_a_journal_and_its_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    journal = Journal(tmp_path / "data" / "j.db")
    try:
        found = [tmp_path / "data", *(tmp_path / "data").iterdir()]
        assert len(found) > 2  # The write-ahead log, too.
        assert all(file.stat().st_mode & 0o077 == 0 for file in found)
    finally:
        journal.close()


def test_a_batch_has_a_position_for_each_event_and_goes_as_a_whole_when_it_is_old(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "j.db")
        first = journal.note_batch(BatchIds.of("me", [7, 8, 9], 5), "T", 10, b"one", b"raw one")
        alone = journal.note_event(event(8), "T", 20, b"key", b"raw")
        second = journal.note_batch(BatchIds.of("me", [1, 2], 9), "T", 30, b"two", b"raw two")
        assert (first.position, first.last, alone, second.position, second.last) == (1, 3, 4, 5, 6)
        # Owed by itself, an event of a batch is there for its broker, and in no history twice.
        journal.note_of_batch(JournaledEvent(2, EventId("me", 8, 6), "T", 10, b"packet", is_of_batch=True))
        journal.note_pending("b", PendingEvent(1, 2, EventId("me", 8, 6), ""))
        journal.note_stream("b", 2, 1)
        assert await journal.pending_packets("b", [1]) == [(1, b"packet")]
        assert [each.position for each in await journal.events_since(0, "T", 0, 100)] == [4]
        assert await journal.batches_since(0, "T", 0, 100) == [first, second]
        assert await journal.batches_since(11, "T", 0, 100) == await journal.batches_since(0, "T", 1, 100) == [second]
        await journal.forget_old(0, 100, 0)  # All are old, and one of the first batch is owed.
        assert await journal.batches_since(0, "T", 0, 100) == [first, second]
        journal.note_stream("b", 2, 2)
        await journal.forget_old(2, 0, 0)
        assert await journal.batches_since(0, "T", 0, 100) == [second]
        journal.close()

    asyncio.run(scenario())
    again = Journal(tmp_path / "j.db")
    assert again.next_event == 7
    assert again.repeated_batches.get(b"one") is None
    assert list(again.repeated_batches.get(b"two") or ()) == [EventId("me", 1, 9), EventId("me", 2, 10)]
    again.close()


def test_a_batch_that_is_young_enough_stays_where_no_other_event_is(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "j.db")
        journal.note_event(event(1), "T", 10, b"key", b"raw")
        young = journal.note_batch(BatchIds.of("me", [7, 8], 5), "T", 1_000, b"one", b"raw one")
        await journal.forget_old(100, 500, 0)
        assert await journal.batches_since(0, "T", 0, 100) == [young]
        assert await journal.events_since(0, "T", 0, 100) == []
        journal.close()

    asyncio.run(scenario())


def test_what_was_committed_is_there_after_a_restart(tmp_path: Path) -> None:
    async def first_life() -> None:
        journal, durable = Journal(tmp_path / "j.db"), a_durable()
        journal.note_durable(durable)
        position = journal.note_event(event(1), "T", 5, b"key", b"raw")
        journal.note_pending("b", PendingEvent(1, position, event(1), ""))
        journal.note_stream("b", 2, 1)
        journal.note_received("o", b"j", 9)
        for body in (b"one", b"two", b"three"):
            journal.note_queued(durable, body)
        await journal.committed()
        journal.note_acknowledged(durable, 1)
        await journal.committed()
        journal.close()

    async def second_life() -> None:
        journal = Journal(tmp_path / "j.db")
        (durable,) = journal.durables()
        assert (durable.next_position, durable.acknowledged) == (4, 1)
        assert [row.body for row in await journal.queued("d", 0)] == [b"two", b"three"]
        assert await journal.pending_packets("b", [1, 2]) == [(1, b"raw")]
        assert (journal.streams(), journal.received()) == ([("b", 2, 1)], [("o", b"j", 9)])
        assert journal.repeats == {b"key": event(1)}
        journal.close()

    asyncio.run(first_life())
    asyncio.run(second_life())


def test_those_who_wait_at_the_same_time_share_one_group(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "j.db")

        async def publish(number: int) -> None:
            journal.note_event(event(number), "T", 0, str(number).encode(), b"")
            await journal.committed()

        await asyncio.gather(*(publish(number) for number in range(100)))
        assert journal.committed_groups <= 2
        assert len(await journal.events_since(0, "T", 0, 1000)) == 100
        journal.close()

    asyncio.run(scenario())


def test_while_the_disk_refuses_nobody_is_told_that_it_is_written(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "j.db")
        other = sqlite3.connect(tmp_path / "j.db", isolation_level=None, timeout=0)
        storage(journal).writer.execute("PRAGMA busy_timeout = 0")
        other.execute("BEGIN IMMEDIATE")  # As a full disk does, it makes every write fail.
        journal.note_event(event(1), "T", 0, b"key", b"")
        written = asyncio.create_task(journal.committed())
        while not journal.is_stuck:  # noqa: ASYNC110 - a plain flag, looked at once a turn
            await asyncio.sleep(0)
        assert not written.done()
        other.execute("ROLLBACK")
        await written
        assert not journal.is_stuck
        assert len(await journal.events_since(0, "T", 0, 10)) == 1
        other.close()
        journal.close()

    asyncio.run(scenario())


def test_a_commit_that_is_refused_is_tried_again_with_all_that_was_to_be_written(tmp_path: Path) -> None:
    def no_commit(action: int, what: str | None, *_: str | None) -> int:
        return sqlite3.SQLITE_DENY if (action, what) == (sqlite3.SQLITE_TRANSACTION, "COMMIT") else sqlite3.SQLITE_OK

    async def scenario() -> None:
        journal = Journal(tmp_path / "j.db")
        storage(journal).writer.set_authorizer(no_commit)
        journal.note_event(event(1), "T", 0, b"key", b"")
        written = asyncio.create_task(journal.committed())
        while not journal.is_stuck:  # noqa: ASYNC110 - a plain flag, looked at once a turn
            await asyncio.sleep(0)
        storage(journal).writer.set_authorizer(None)
        async with asyncio.timeout(60):
            await written
        assert len(await journal.events_since(0, "T", 0, 10)) == 1
        journal.close()

    asyncio.run(scenario())


def test_what_is_old_goes_the_next_time_if_the_disk_refuses_now(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "j.db")
        journal.note_event(event(1), "T", 0, b"key", b"")
        await journal.committed()
        other = sqlite3.connect(tmp_path / "j.db", isolation_level=None, timeout=0)
        storage(journal).writer.execute("PRAGMA busy_timeout = 0")
        other.execute("BEGIN IMMEDIATE")  # As a full disk does, it makes every write fail.
        await journal.forget_old(keep_max=0, before_us=0, dead_max=10)
        assert len(await journal.events_since(0, "T", 0, 10)) == 1
        other.execute("ROLLBACK")
        await journal.forget_old(keep_max=0, before_us=0, dead_max=10)
        assert await journal.events_since(0, "T", 0, 10) == []
        other.close()
        journal.close()

    asyncio.run(scenario())


def test_old_events_go_but_not_those_that_are_owed(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "j.db")
        for number in range(1, 11):
            journal.note_event(event(number), "T", number, str(number).encode(), b"")
        journal.note_pending("b", PendingEvent(1, 7, event(7), ""))
        journal.note_stream("b", 2, 1)
        await journal.forget_old(keep_max=2, before_us=0, dead_max=10)
        assert [kept.position for kept in await journal.events_since(0, "T", 0, 100)] == [7, 8, 9, 10]
        journal.close()

    asyncio.run(scenario())


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database" * 100)
    with pytest.raises(SetupError, match="cannot use"):
        Journal(tmp_path / "text.db")
    newer = sqlite3.connect(tmp_path / "newer.db")
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(InputError, match="newer version"):
        Journal(tmp_path / "newer.db")


def test_what_is_owed_for_too_long_is_found_by_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        journal = Journal(tmp_path / "j.db")
        for number in (1, 2, 3):
            position = journal.note_event(event(number), "T", 10 * number, str(number).encode(), b"")
            journal.note_pending("b", PendingEvent(number, position, event(number), ""))
            journal.note_stream("b", number + 1, 2)
        assert await journal.pending_too_long(before_us=15) == []  # The first one is acknowledged.
        assert await journal.pending_too_long(before_us=25) == [("b", 2)]
        journal.close()

    asyncio.run(scenario())
