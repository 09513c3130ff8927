"""The journal in a PostgreSQL database, in a schema of the broker's own, written by whoever holds its lease.

A group is one transaction. Its statements go without waiting for answers (pipeline mode). The last one updates the row of
the lease, if epoch, token and the number of the group before are as expected, and the commit goes only when that update has
hit its row. A group whose commit was not answered is looked for by its number before it is written again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from tidings.errors import InputError, SetupError
from tidings.net.journal_storage.dialect import Dialect, postgres_tables
from tidings.net.journal_storage.interface import JournalTables, LeaseLost, LeaseStatus, Statements, first_line
from tidings.net.journal_storage.lease import POLL_S, Candidate, Lease, LeaseKeeper, prepare
from tidings.net.journal_storage.session import JournalDatabase, Session, Translated, Watchdog

if TYPE_CHECKING:
    import psycopg

READ_NOW_S_MAX = 10.0  # How long the event loop waits for a database that is away, in the rare reads that cannot wait.
READ_AGAIN_S = 0.2
_T = TypeVar("_T")
log = logging.getLogger("tidings.journal")

_GROUP = (
    "UPDATE lease SET written = written + 1, renewed_at = clock_timestamp()"
    " WHERE epoch = %s AND token = %s AND written = %s RETURNING 1"
)
_OTHER = "UPDATE lease SET renewed_at = clock_timestamp() WHERE epoch = %s AND token = %s RETURNING 1"


class PostgresStorage:
    """A journal in PostgreSQL, while this process holds its lease. Made by `wait_for_lease`."""

    def __init__(
        self,
        database: JournalDatabase,
        lease: Lease,
        written: int,
        tables: JournalTables,
    ) -> None:
        import psycopg

        self.database, self.where = database, database.where
        self.refusals: tuple[type[Exception], ...] = (psycopg.Error, OSError)
        self.unreachable = self.refusals
        self._lease, self._written, self._in_doubt = lease, written, False
        self._speaks = Dialect(tables.first, tables.later)
        self._writer, self._reader, self._renewer, self._other = (
            Session(database, idle_in_transaction_s=lease.lease_s, token=lease.token) for _ in range(4)
        )
        self.keeper = LeaseKeeper(self._renewer, lease, database.schema)
        self._watchdog = Watchdog((self._writer, self._reader, self._renewer, self._other))
        self.keeper.start()

    def make_tables(self, tables: JournalTables) -> None:
        """Makes those that are missing."""

        def make(connection: psycopg.Connection[Any]) -> None:
            for statement in postgres_tables(tables.first + tables.later).split(";")[:-1]:
                connection.execute(statement.encode())

        self._transact(self._other, _OTHER, self._lease.held, make)

    # ── As `JournalStorage` ──

    def write(self, work: Callable[[Statements], _T], *, is_group: bool = False) -> _T | None:
        def translated(connection: psycopg.Connection[Any]) -> _T:
            return work(Translated(connection, self._speaks.statement))

        if not is_group:
            return self._transact(self._writer, _OTHER, self._lease.held, translated)
        if self._in_doubt and self._is_written_after_all():
            return None
        self._in_doubt = True
        done = self._transact(self._writer, _GROUP, (*self._lease.held, self._written), translated)
        self._in_doubt = False
        self._written += 1
        return done

    def write_now(self, work: Callable[[Statements], _T]) -> _T:
        """As `write`, for a thread that is not the journal's: on a connection of its own."""

        def translated(connection: psycopg.Connection[Any]) -> _T:
            return work(Translated(connection, self._speaks.statement))

        try:
            return self._transact(self._other, _OTHER, self._lease.held, translated)
        except self.refusals as wrong:
            raise SetupError(f"{self.where} cannot be written: {first_line(wrong)}") from None

    def read(self, query: str, arguments: Sequence[Any]) -> list[Any]:
        return self._reader.query(self._speaks.statement(query), arguments)

    def read_now(self, query: str, arguments: Sequence[Any]) -> list[Any]:
        until = time.monotonic() + READ_NOW_S_MAX
        while True:
            try:
                return self._other.query(self._speaks.statement(query), arguments)
            except self.refusals as wrong:
                if time.monotonic() > until:
                    raise SetupError(f"{self.where} cannot be read: {first_line(wrong)}") from None
                time.sleep(READ_AGAIN_S)

    def usage(self) -> Mapping[str, int]:
        return {"journal_bytes": self.keeper.journal_bytes}

    def lease(self) -> LeaseStatus | None:
        return self.keeper.status()

    def close(self, *, lost: bool = False) -> None:
        self.keeper.close(release=not lost)
        self._watchdog.close()
        for session in (self._writer, self._reader, self._renewer, self._other):
            session.close()

    # ── The lease ──

    def check_lease(self, connection: Any) -> None:
        """For a transaction elsewhere in the same database, through SQLAlchemy: raises LeaseLost unless it is held.

        As the last statement before the commit: the lease's row stays locked until then.
        """
        held = f'SELECT 1 FROM "{self.database.schema}".lease WHERE epoch = %s AND token = %s FOR SHARE'  # noqa: S608 - the schema's name is checked
        import psycopg

        try:
            is_held = connection.exec_driver_sql(held, self._lease.held).first() is not None
        except Exception as wrong:
            if isinstance(getattr(wrong, "orig", None), psycopg.errors.UndefinedTable):
                raise LeaseElsewhere from None
            raise
        if not is_held:
            raise self.keeper.passed_on()

    def _transact(
        self,
        session: Session,
        fence: str,
        fence_arguments: tuple[Any, ...],
        work: Callable[[psycopg.Connection[Any]], _T],
    ) -> _T:
        if self.keeper.lost is not None:
            raise self.keeper.lost
        try:
            with session.used() as connection:
                with connection.pipeline() as pipeline:
                    connection.execute("BEGIN")
                    done = work(connection)
                    # Last, so that the row is locked only for a moment: a long transaction must not hold up renewals.
                    found = connection.execute(fence.encode(), fence_arguments)
                    # From here on the server knows that nothing is on its way, and ends the transaction of a process
                    # that is frozen now. Without this it would wait for more, and the row stay locked, without a limit.
                    pipeline.sync()
                    if found.fetchone() is None:
                        raise _NotHeld
                    session.progresses()
                    connection.execute("COMMIT")
                return done
        except _NotHeld:
            raise self._why_not_held() from None
        except self.refusals:
            # Another holder may have written the same rows: then that is the reason.
            with contextlib.suppress(*self.refusals):
                self._check_still_held()
            raise

    def _check_still_held(self) -> None:
        query = "SELECT 1 FROM lease WHERE epoch = %s AND token = %s"
        try:
            found = self._other.query(query, self._lease.held)
        except self.refusals:  # Whoever has taken over has ended this connection, too; the next one may get through.
            found = self._other.query(query, self._lease.held)
        if not found:
            raise self.keeper.passed_on()

    def _why_not_held(self) -> Exception:
        """The lease's row is not as expected."""
        try:
            self._check_still_held()
        except self.refusals as wrong:
            return wrong
        except LeaseLost as lost:
            return lost
        ((written,),) = self._other.query("SELECT written FROM lease")
        return self._behind(written)

    def _is_written_after_all(self) -> bool:
        """Whether the group whose commit was not answered is there. Waits for a commit that is still under way."""
        rows = self._writer.query(
            "UPDATE lease SET renewed_at = clock_timestamp() WHERE epoch = %s AND token = %s RETURNING written",
            self._lease.held,
        )
        if not rows:
            raise self.keeper.passed_on()
        ((written,),) = rows
        if written not in (self._written, self._written + 1):
            raise self._behind(written)
        if written == self._written + 1:
            self._in_doubt = False
            self._written = written
            return True
        return False

    def _behind(self, written: int) -> LeaseLost:
        lost = LeaseLost(
            f"superseded: {self.where} has {written:,} groups of the journal and had {self._written:,}: it was restored, or a"
            " standby was promoted that was not synchronous; acknowledged events may be lost; this process ends"
        )
        if self.keeper.lost is None:
            self.keeper.lost = lost
            self.keeper.on_lost(lost)
        return lost


class LeaseElsewhere(Exception):
    """A transaction is in another database than the lease."""


class _NotHeld(Exception):
    """The lease's row is not as expected; the transaction is given up."""


async def wait_for_lease(
    database: JournalDatabase,
    broker: tuple[str, str],
    lease_s: float,
    tables: JournalTables,
    waiting: Callable[[str], None],
    shown: str = "",
) -> PostgresStorage:
    """The journal of a broker, given by name and id, as soon as no other process holds its lease.

    Calls `waiting` with the reason whenever that changes: another process has it, or the database is away. Raises
    InputError where waiting would not help. `shown` tells operators where this process would listen.
    """
    import psycopg

    if lease_s < 1.0:
        raise InputError(
            f"limits: lease_s is at least 1, got {lease_s:g}: a busy process renews it some times a second"
        )
    name, id = broker
    session = Session(database, idle_in_transaction_s=lease_s)
    watchdog = Watchdog((session,))
    candidate, is_prepared, why_before = Candidate(session, name, lease_s, shown), False, ""
    found: tuple[Lease, int] | None = None
    try:
        while found is None:
            why = "another process holds the lease"
            try:
                if not is_prepared:
                    await asyncio.to_thread(prepare, database, session, id, tables)
                    is_prepared = True
                found = await asyncio.to_thread(candidate.try_to_take)
            except (psycopg.Error, OSError) as wrong:
                why = first_line(wrong)
            if found is None:
                if why != why_before:
                    waiting(why)
                    why_before = why
                await asyncio.sleep(POLL_S)
    finally:
        session.close()
        watchdog.close()
    lease, written = found
    storage = PostgresStorage(database, lease, written, tables)
    try:
        await asyncio.to_thread(storage.make_tables, tables)
    except BaseException as wrong:
        storage.close()
        if isinstance(wrong, storage.refusals):
            raise SetupError(f"{storage.where} cannot be written: {first_line(wrong)}") from None
        raise
    log.info("this process holds the lease", extra={"journal": storage.where, "epoch": lease.epoch})
    return storage
