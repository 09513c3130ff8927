"""One registry's database: reached by path or URL, read in snapshots, changed by one writer at a time.

    "tidings.db", "sqlite:///tidings.db"        a file, SQLite in WAL mode
    "postgresql://user:password@host/name"      a server; needs `pip install 'tidings[postgres]'`

Every change first takes the audit trail's head, which makes changes one queue on either
database: what a change has read is still true when it writes. Changes are rare (a type, a
right, a broker's start), so that a queue costs nothing that matters. A change is on disk when
`change` returns, and it has written one audit entry, or it has not happened at all.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, CursorResult, Engine, Executable, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from tidings.errors import InputError, SetupError, TidingsError
from tidings.store.audit import Head, add_entry, read_head
from tidings.store.migrations import STEPS, Step, check_not_newer, migrate, version_of

WAIT_S_MAX = 30  # For other writers: hundreds of changes fit into it, so who waits longer waits for something stuck.
CONNECT_S_MAX = 10  # A server that does not answer by then is not there.
WAL_RETRY_S = 0.02


class Change:
    """One change under way: statements, and the one audit entry that tells of them."""

    def __init__(self, connection: Connection, by: str, now_ms: int, head: Head) -> None:
        self.connection, self.by, self.now_ms = connection, by, now_ms
        self._head = head
        self._written, self._recorded = False, False

    def execute(self, statement: Executable) -> CursorResult[Any]:
        """Runs an insert, update or delete, which the change must then `record`."""
        self._written = True
        done = self.connection.execute(statement)
        assert isinstance(done, CursorResult)
        return done

    def record(self, action: str, subject: str, **details: Any) -> None:
        """Writes the audit entry; once for each change."""
        assert not self._recorded, "a change is one audit entry"
        self._recorded = True
        add_entry(self.connection, self._head, self.now_ms, self.by, action, subject, details)

    def check_recorded(self) -> None:
        assert self._written == self._recorded, "what is changed is recorded, and nothing else is"


class Database:
    """An open registry database. Safe to share between threads; a forked process opens its own."""

    def __init__(self, engine: Engine, where: str) -> None:
        self._engine, self.where = engine, where

    @classmethod
    def open(cls, address: str | Path, now_ms: int, *, create: bool = True, steps: Sequence[Step] = STEPS) -> Database:
        """Connects, and brings an older or new registry to the newest schema.

        With `create=False`, a registry that is not there is an InputError instead of a new one.
        """
        url = _url(str(address))
        where = url.render_as_string(hide_password=True) if url.host or url.query else str(url.database)
        if url.get_backend_name() == "sqlite":
            _prepare_file(url, create)
        database = cls(_engine(url), where)
        try:
            database._prepare(now_ms, create, steps)
        except BaseException:
            database.close()
            raise
        return database

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A snapshot: everything read within is of one moment."""
        with _told(self.where), self._engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def change(self, by: str, now_ms: int) -> Iterator[Change]:
        """A change by `by`, all of it or nothing; nobody else changes anything meanwhile."""
        with self._write() as connection:
            change = Change(connection, by, now_ms, read_head(connection, lock=True))
            yield change
            change.check_recorded()

    @contextmanager
    def _write(self) -> Iterator[Connection]:
        with _told(self.where), self._engine.connect() as connection:
            connection = connection.execution_options(tidings_writes=True)
            with connection.begin():
                if connection.dialect.name == "postgresql":
                    # A server may be set to answer before it has written; a sender id must not be lost.
                    connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
                    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{WAIT_S_MAX}s'")
                yield connection

    def _prepare(self, now_ms: int, create: bool, steps: Sequence[Step]) -> None:
        with self.read() as connection:
            version = version_of(connection)
        check_not_newer(version, self.where, steps)
        if version == len(steps):
            return
        if version is None and not create:
            raise InputError(f"{self.where} holds no registry yet; {_HOW_TO_MAKE_ONE}")
        with self._write() as connection:
            migrate(connection, now_ms, self.where, steps)
        if self._engine.dialect.name == "sqlite":
            self._use_wal()

    def _use_wal(self) -> None:
        """Readers and the writer stop blocking one another. The file remembers it."""
        waited_until = time.monotonic() + WAIT_S_MAX
        with _told(self.where), self._engine.connect() as connection:
            raw = connection.connection.driver_connection
            assert isinstance(raw, sqlite3.Connection)
            while True:
                try:
                    raw.execute("PRAGMA journal_mode = WAL")
                    return
                except sqlite3.OperationalError as busy:  # SQLite does not wait by itself here.
                    if "locked" not in str(busy) or time.monotonic() > waited_until:
                        return  # Without it the registry is slower for many, and as safe.
                    time.sleep(WAL_RETRY_S)


_HOW_TO_MAKE_ONE = "`tidings type declare` makes one, --registry or TIDINGS_REGISTRY names another"


# ── Addresses ────────────────────────────────────────────────────────────────


def _url(address: str) -> URL:
    if "://" not in address:
        return URL.create("sqlite", database=address)
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        # Not shown: there may be a password in it.
        raise InputError(
            "the registry's URL cannot be read; expected postgresql://user:password@host:port/name"
        ) from None
    match url.drivername:
        case "sqlite":
            return url
        case "postgresql" | "postgres" | "postgresql+psycopg":
            return url.set(drivername="postgresql+psycopg")
        case other:
            raise InputError(f"a registry is a file or a postgresql:// URL, not {other[:40]}://")


def _file_of(url: URL) -> Path:
    if not url.database or url.database == ":memory:":
        raise InputError("a registry is kept in a file: expected a path, as in tidings.db or sqlite:///tidings.db")
    return Path(url.database.removeprefix("file:"))


def _prepare_file(url: URL, create: bool) -> None:
    """Makes an empty file that only its owner may read, so that the database never lies open."""
    file = _file_of(url)
    if file.is_dir():
        raise InputError(f"{file} is a folder; expected a file, such as {file / 'tidings.db'}")
    if file.exists():
        return
    if not create:
        raise InputError(f"there is no registry {file}; {_HOW_TO_MAKE_ONE}")
    try:
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError as wrong:
        raise InputError(f"the registry {file} cannot be made: {wrong.strerror}") from None


def _engine(url: URL) -> Engine:
    try:
        if url.get_backend_name() == "sqlite":
            engine = create_engine(url, connect_args={"timeout": WAIT_S_MAX})
            event.listen(engine, "connect", _set_up_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        given: Mapping[str, Any] = url.query
        wait = {} if "connect_timeout" in given else {"connect_timeout": CONNECT_S_MAX}
        return create_engine(url, connect_args=wait, pool_pre_ping=True)
    except (ImportError, NoSuchModuleError):
        raise SetupError("PostgreSQL needs its driver: pip install 'tidings[postgres]'") from None


def _set_up_sqlite(raw: sqlite3.Connection, _: object) -> None:
    raw.isolation_level = None  # We begin transactions ourselves, below.
    raw.execute("PRAGMA foreign_keys = ON")
    raw.execute("PRAGMA synchronous = FULL")  # A commit is on disk: in WAL mode the default of some builds is less.


def _begin_sqlite(connection: Connection) -> None:
    # A writer takes its lock at once: taken later, after reading, it could fail instead of waiting.
    writes = connection.get_execution_options().get("tidings_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


# ── What goes wrong ──────────────────────────────────────────────────────────


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Failures of the database as ours, in words that say what to do. Our own mistakes pass through."""
    try:
        yield
    except DBAPIError as wrong:
        if (told := _translated(str(wrong.orig), getattr(wrong.orig, "sqlstate", None), where)) is None:
            raise
        raise told from None
    except SQLAlchemyError as wrong:
        if type(wrong).__name__ != "TimeoutError":  # The pool's: every connection is in use.
            raise
        raise SetupError(f"{where}: all connections are busy") from None


def _translated(said: str, sqlstate: str | None, where: str) -> TidingsError | None:
    for sign, kind, advice in _KNOWN_FAILURES:
        if sign in said or sign == sqlstate:
            return kind(f"{where} {advice} ({said.strip().splitlines()[0]})")
    return None


_UNREACHABLE = "cannot be reached: is the server running, and are host and port right?"
_REFUSED = "refuses this user or password: correct the registry's URL"

_KNOWN_FAILURES: tuple[tuple[str, type[TidingsError], str], ...] = (
    # What SQLite says.
    ("file is not a database", InputError, "is not a registry: it is no SQLite file; name another with --registry"),
    ("image is malformed", InputError, "is damaged: restore it from a backup"),
    ("readonly database", SetupError, "cannot be written: give yourself the right to, on the file and its folder"),
    ("unable to open database file", SetupError, "cannot be opened: see to the rights on the file and its folder"),
    ("database is locked", SetupError, f"was in use for {WAIT_S_MAX} s: another program holds it; try again"),
    ("database or disk is full", SetupError, "has no room left on its disk"),
    ("disk I/O error", SetupError, "cannot be read or written: see to its disk"),
    # What PostgreSQL says, by its codes where it gives one; a failed connection has none.
    ("password authentication failed", InputError, _REFUSED),
    ("no password supplied", InputError, _REFUSED),
    ("28P01", InputError, _REFUSED),
    ("28000", InputError, _REFUSED),
    ('FATAL:  database "', InputError, "names a database the server does not have: make it, or correct the URL"),
    ('FATAL:  role "', InputError, "names a user the server does not have: make it, or correct the URL"),
    ("42501", SetupError, "does not let this user do that: grant it the right to its tables"),
    ("55P03", SetupError, f"was in use for {WAIT_S_MAX} s: another program holds it; try again"),
    ("25006", SetupError, "cannot be written: the server is read-only"),
    ("53100", SetupError, "has no room left on its disk"),
    ("onnection refused", SetupError, _UNREACHABLE),
    ("connection timeout", SetupError, _UNREACHABLE),
    ("could not translate host name", SetupError, _UNREACHABLE),
    ("failed to resolve host", SetupError, _UNREACHABLE),
    ("connection failed", SetupError, _UNREACHABLE),
    ("connection is bad", SetupError, _UNREACHABLE),
    ("onnection", SetupError, "was lost"),
)
