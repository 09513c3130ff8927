"""The lease of a journal in PostgreSQL: which process of a broker may write, decided by one row.

    epoch, token    who holds it: a number that grows with each change of hands, and the holder's own random token
    renewed_at      by the database's clock, so that the clocks of hosts do not matter
    lease_s         how long a holder may be silent
    written         the number of the last group that was written

Each write updates this row as the last step of its own transaction, where epoch and token are the writer's. So a write
and a change of hands exclude one another: whoever takes over sees all that was written, and nothing is written
afterwards. `written` tells a holder that lost its connection during a commit whether the group is there.

Whoever waits takes only a row that nobody has locked: a locked one is being renewed, by a commit that may be slow. If its
process is frozen there, the server ends the transaction after `lease_s`. A process that is frozen earlier in a group leaves
other rows locked, and the server waits for the rest of what it was sending without a limit. So whoever has taken the lease
has the server end the connections of the last holder, which have its token in their names.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidings.errors import InputError
from tidings.net.journal_storage.interface import JournalTables, LeaseLost, LeaseStatus, first_line
from tidings.net.journal_storage.session import JournalDatabase, Session

if TYPE_CHECKING:
    import psycopg

RENEWALS = 5  # Within the time of a lease.
POLL_S = 0.2  # How often a process that waits looks.
USAGE_EVERY_S = 30.0
STANDBY_SEEN_S = 10  # Who has not looked for so long does not wait any more.

log = logging.getLogger("tidings.journal")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS lease (
    one INT PRIMARY KEY CHECK (one = 1), broker TEXT NOT NULL, version INT NOT NULL, epoch BIGINT NOT NULL, token BYTEA NOT NULL,
    holder TEXT NOT NULL, lease_s FLOAT8 NOT NULL, renewed_at TIMESTAMPTZ NOT NULL, written BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS standbys (token BYTEA PRIMARY KEY, holder TEXT NOT NULL, seen_at TIMESTAMPTZ NOT NULL);
"""
_FIRST = "INSERT INTO lease VALUES (1, %s, %s, 0, '', '', 0, '-infinity', 0) ON CONFLICT (one) DO NOTHING"
_ENDED = "SELECT token FROM lease WHERE renewed_at < clock_timestamp() - make_interval(secs => lease_s)"
_DISCONNECT = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = %s AND usename = current_user AND pid <> pg_backend_pid()
"""
_TAKE = """
UPDATE lease SET epoch = epoch + 1, token = %s, holder = %s, lease_s = %s, renewed_at = clock_timestamp()
WHERE one = (SELECT one FROM lease WHERE renewed_at < clock_timestamp() - make_interval(secs => lease_s) FOR UPDATE SKIP LOCKED)
RETURNING epoch, written
"""
_WAITING = """
INSERT INTO standbys VALUES (%s, %s, clock_timestamp())
ON CONFLICT (token) DO UPDATE SET seen_at = excluded.seen_at
"""
_STANDBYS = "SELECT holder FROM standbys WHERE seen_at > clock_timestamp() - make_interval(secs => %s) ORDER BY holder"
_RENEW = "UPDATE lease SET renewed_at = clock_timestamp() WHERE epoch = %s AND token = %s RETURNING epoch"
_RELEASE = "UPDATE lease SET renewed_at = '-infinity' WHERE epoch = %s AND token = %s"
_USAGE = """
SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::int8 FROM pg_class
WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = %s) AND relkind = 'r'
"""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that this process holds, or held."""

    broker: str
    epoch: int
    token: bytes
    holder: str
    lease_s: float

    @property
    def held(self) -> tuple[int, bytes]:
        return self.epoch, self.token

    def lost(self, now: str) -> LeaseLost:
        """Why this process must not write, with who holds the lease now."""
        return LeaseLost(
            f"superseded: the lease of {self.broker}'s journal has passed to {now or 'another process'}; this process held"
            f" epoch {self.epoch}, may write nothing more, and ends; started again, it waits for the lease"
        )


def prepare(database: JournalDatabase, session: Session, broker_id: str, tables: JournalTables) -> None:
    """Makes the schema and the lease's row where they are missing; raises InputError for another broker's journal."""
    with session.used() as connection, connection.transaction():
        # Two processes may begin at the same moment.
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (database.schema,))
        found = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (database.schema,)).fetchone()
        if found is None:
            connection.execute(f'CREATE SCHEMA "{database.schema}"'.encode())
        connection.execute(_SCHEMA)
        connection.execute(_FIRST, (broker_id, tables.version))
        owner, version = connection.execute("SELECT broker, version FROM lease").fetchone() or ("", 0)
    if owner != broker_id:
        raise InputError(
            f"journal: {database.where} belongs to another broker of this name, {owner}; name another database"
        )
    if version > tables.version:
        raise InputError(
            f"journal: {database.where} is of a newer version, {version}; this program knows {tables.version}:"
            " install the newer program again"
        )


class Candidate:
    """A process that asks for the lease, until it gets it."""

    def __init__(self, session: Session, broker: str, lease_s: float, shown: str = "") -> None:
        self._session, self._broker, self._lease_s = session, broker, lease_s
        self._token = secrets.token_bytes(16)
        self._holder = f"{socket.gethostname()}, process {os.getpid()}" + (f", {shown}" if shown else "")
        self._told_at = 0.0

    def try_to_take(self) -> tuple[Lease, int] | None:
        """The lease and the number of the last group, if nobody holds it; else None."""
        with self._session.used() as connection:
            row = None
            if (ended := connection.execute(_ENDED).fetchone()) is not None:
                row = connection.execute(_TAKE, (self._token, self._holder, self._lease_s)).fetchone()
                if row is not None and ended[0]:
                    connection.execute(_DISCONNECT, (self._session.named(ended[0]),))
            if row is None:
                self._tell(connection)
                return None
            connection.execute("DELETE FROM standbys WHERE token = %s", (self._token,))
        epoch, written = row
        return Lease(self._broker, epoch, self._token, self._holder, self._lease_s), written

    def _tell(self, connection: psycopg.Connection[Any]) -> None:
        """Has the holder's status name this process; not with each look."""
        if time.monotonic() > self._told_at + 1.0:
            self._told_at = time.monotonic()
            connection.execute(_WAITING, (self._token, self._holder))


class LeaseKeeper:
    """Renews a lease in a thread of its own, and notices when it is lost or in doubt."""

    def __init__(self, session: Session, lease: Lease, schema: str) -> None:
        self._session, self._lease, self._schema = session, lease, schema
        self._renewed_at = time.monotonic()
        self._standbys: tuple[str, ...] = ()
        self.journal_bytes = 0
        self.lost: LeaseLost | None = None
        self.on_lost: Callable[[LeaseLost], None] = _ignore
        self.on_doubt: Callable[[], None] = _do_nothing
        self._told_at = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="journal-lease", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def status(self) -> LeaseStatus:
        age_s = time.monotonic() - self._renewed_at
        return LeaseStatus(self._lease.epoch, self._lease.holder, age_s, self._lease.lease_s, self._standbys)

    def renewed(self, asked_at: float) -> None:
        """The database has confirmed the lease in an exchange that began then."""
        self._renewed_at = max(self._renewed_at, asked_at)

    def passed_on(self) -> LeaseLost:
        """The lease is lost: tells the broker, once."""
        if self.lost is None:
            self.lost = self._lease.lost(self._holder_now())
            self._closing.set()
            self.on_lost(self.lost)
        return self.lost

    def _holder_now(self) -> str:
        try:
            ((holder, epoch),) = self._session.query("SELECT holder, epoch FROM lease")
            return f"{holder} (epoch {epoch})"
        except Exception:  # noqa: BLE001 - only for the message
            return ""

    def _keep(self) -> None:
        import psycopg

        usage_at = 0.0
        while not self._closing.wait(self._lease.lease_s / RENEWALS):
            asked_at = time.monotonic()
            try:
                if not self._session.query(_RENEW, self._lease.held):
                    self.passed_on()
                    return
                self.renewed(asked_at)
                self._standbys = tuple(name for (name,) in self._session.query(_STANDBYS, (STANDBY_SEEN_S,)))
                if asked_at > usage_at:
                    usage_at = asked_at + USAGE_EVERY_S
                    ((self.journal_bytes,),) = self._session.query(_USAGE, (self._schema,))
            except (psycopg.Error, OSError) as wrong:
                if self._closing.is_set():
                    return
                self._doubt(wrong)

    def _doubt(self, wrong: Exception) -> None:
        """So long unrenewed that another process may have taken over: tells the broker, again each time as long."""
        now = time.monotonic()
        if now - max(self._renewed_at, self._told_at) > self._lease.lease_s:
            self._told_at = now
            log.error("the lease of the journal cannot be renewed", extra={"why": first_line(wrong)})
            self.on_doubt()

    def close(self, *, release: bool) -> None:
        """Gives the lease back, so that whoever waits takes over at once."""
        self._closing.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        if release and self.lost is None:
            with contextlib.suppress(Exception), self._session.used() as connection:
                connection.execute(_RELEASE, self._lease.held)


def _ignore(_: LeaseLost) -> None:
    pass


def _do_nothing() -> None:
    pass
