"""A registry's database: opened by path or URL, read in snapshots, changed by one writer at a time.

    "tidings.db", "sqlite:///tidings.db"        a file, SQLite in WAL mode
    "postgresql://user:password@host/name"      a server; needs `pip install 'tidings[postgres]'`

Every change first locks the head of the audit trail, which serialises changes on either database: what a change has
read is still true when it writes. Changes are rare (a type, a right, a broker's start), so that costs little. When
`change` returns, the change is on disk with one audit entry; otherwise it has not happened at all.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, CursorResult, Engine, Executable, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from tidings.errors import InputError, SetupError, TidingsError
from tidings.store.audit import AuditHead, add_entry, read_audit_head
from tidings.store.migrations import STEPS, MigrationStep, check_not_newer, migrate, version_of

WAIT_S_MAX = 30.0  # For other writers, each of which takes milliseconds: whoever holds the lock longer is stuck.
IDLE_S_MAX = 10  # Within a change; it has nothing to wait for but the server.
CONNECT_S_MAX = 10  # A server that does not answer by then is down.
WAL_RETRY_S = 0.02

# What goes wrong is raised, Ctrl-C while a connection closes, too; without a handler its stack trace would be printed.
logging.getLogger("sqlalchemy").addHandler(logging.NullHandler())


Guard = Callable[[Connection], None]


class Change:
    """A change in progress: statements, and the one audit entry that describes them."""

    def __init__(self, connection: Connection, by: str, now_ms: int, head: AuditHead) -> None:
        self.connection, self.by, self.now_ms = connection, by, now_ms
        self._head = head
        self._written, self._recorded = False, False

    def execute(self, statement: Executable) -> CursorResult[Any]:
        """Executes an insert, update or delete, which the change must then `record`."""
        self._written = True
        done = self.connection.execute(statement)
        assert isinstance(done, CursorResult)
        return done

    def record(self, action: str, subject: str, **details: Any) -> None:
        """Writes the audit entry, once for each change."""
        assert not self._recorded, "a change has one audit entry"
        self._recorded = True
        add_entry(self.connection, self._head, self.now_ms, self.by, action, subject, details)

    def check_recorded(self) -> None:
        assert self._written == self._recorded, "what is changed is recorded, and nothing else is"


class Database:
    """An open registry database. Safe to share between threads; a forked process opens its own."""

    def __init__(self, engine: Engine, where: str, wait_s_max: float = WAIT_S_MAX, guard: Guard | None = None) -> None:
        """`guard` is called within each transaction that may write, before its commit; what it raises undoes it."""
        self._engine, self.where, self._wait_s_max, self._guard = engine, where, wait_s_max, guard

    @classmethod
    def open(
        cls,
        address: str | Path,
        now_ms: int,
        *,
        create: bool = True,
        steps: Sequence[MigrationStep] = STEPS,
        wait_s_max: float = WAIT_S_MAX,
        guard: Guard | None = None,
    ) -> Database:
        """Connects, and migrates an older or new registry to the newest schema.

        With `create=False`, raises InputError for a registry that does not exist. A change waits at most
        `wait_s_max` for other writers.
        """
        url = _url(str(address))
        where = url.render_as_string(hide_password=True) if url.host or url.query else str(url.database)
        if url.get_backend_name() == "sqlite":
            _prepare_file(url, create)
        database = cls(_engine(url, wait_s_max), where, wait_s_max, guard)
        try:
            database._check_guard()
            database._prepare(now_ms, create, steps)
        except BaseException:
            database.close()
            raise
        return database

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A snapshot: everything read in it is from one moment."""
        with _translated_errors(self.where, self._wait_s_max), self._engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                yield connection

    @contextmanager
    def change(self, by: str, now_ms: int) -> Iterator[Change]:
        """An atomic change by `by`; no other change happens meanwhile."""
        with self.transaction() as connection:
            change = Change(connection, by, now_ms, read_audit_head(connection, lock=True))
            yield change
            change.check_recorded()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction that may write, without an audit entry: for migrations. For all else there is `change`."""
        with _translated_errors(self.where, self._wait_s_max), self._engine.connect() as connection:
            connection = connection.execution_options(tidings_writes=True)
            with connection.begin():
                if connection.dialect.name == "postgresql":
                    # A server may be configured to answer before it has written; a sender id must not be lost.
                    connection.exec_driver_sql("SET LOCAL synchronous_commit = on")
                    # Of a process that is frozen, all others would wait for ever.
                    connection.exec_driver_sql(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_S_MAX}s'")
                    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{round(1000 * self._wait_s_max)}ms'")
                yield connection
                if self._guard is not None:
                    self._guard(connection)

    def _check_guard(self) -> None:
        """Raises what the guard does, while nothing has been written yet."""
        if self._guard is not None:
            with self.transaction():
                pass

    def _prepare(self, now_ms: int, create: bool, steps: Sequence[MigrationStep]) -> None:
        with self.read() as connection:
            version = version_of(connection)
        check_not_newer(version, self.where, steps)
        if version == len(steps):
            return
        if version is None and not create:
            raise InputError(f"{self.where} holds no registry yet; {_HOW_TO_CREATE_ONE}")
        with self.transaction() as connection:
            migrate(connection, now_ms, self.where, steps)
        if self._engine.dialect.name == "sqlite":
            self._use_wal()

    def _use_wal(self) -> None:
        """Sets WAL mode, in which readers and the writer do not block one another. The file stores the setting."""
        deadline = time.monotonic() + self._wait_s_max
        with _translated_errors(self.where, self._wait_s_max), self._engine.connect() as connection:
            raw = connection.connection.driver_connection
            assert isinstance(raw, sqlite3.Connection)
            while True:
                try:
                    raw.execute("PRAGMA journal_mode = WAL")
                    return
                except sqlite3.OperationalError as busy:  # SQLite's own timeout does not apply here.
                    if "locked" not in str(busy) or time.monotonic() > deadline:
                        return  # Without WAL the registry is slower under concurrency, but as safe.
                    time.sleep(WAL_RETRY_S)


_HOW_TO_CREATE_ONE = "`tidings type declare` creates one, --registry or TIDINGS_REGISTRY names another"


# ── Addresses ────────────────────────────────────────────────────────────────


def _url(address: str) -> URL:
    if "://" not in address:
        return URL.create("sqlite", database=address)
    try:
        url = make_url(_with_hosts_apart(address))
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


def _with_hosts_apart(address: str) -> str:
    """`postgresql://one:5432,two:5432/name`, as libpq has it, in SQLAlchemy's form: each host is an option."""
    scheme, _, rest = address.partition("://")
    place, slash, path = rest.partition("/")
    who, at, hosts = place.rpartition("@")
    if "," not in hosts or not scheme.startswith("postgres"):
        return address
    name, _, options = path.partition("?")
    asked = [*([options] if options else []), *(f"host={quote(host, safe=':[]')}" for host in hosts.split(","))]
    return f"{scheme}://{who}{at}{slash}{name}?{'&'.join(asked)}"


def _file_of(url: URL) -> Path:
    if not url.database or url.database == ":memory:":
        raise InputError("expected the path of a file, as in tidings.db or sqlite:///tidings.db")
    return Path(url.database.removeprefix("file:"))


def _prepare_file(url: URL, create: bool) -> None:
    """Creates an empty file that only its owner can read, so that the database is never readable by others."""
    file = _file_of(url)
    if file.is_dir():
        raise InputError(f"{file} is a folder; expected a file, such as {file / 'tidings.db'}")
    if file.exists():
        return
    if not create:
        raise InputError(f"there is no registry {file}; {_HOW_TO_CREATE_ONE}")
    try:
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))
    except OSError as wrong:
        raise InputError(f"cannot create the registry {file}: {wrong.strerror}") from None


def _engine(url: URL, wait_s_max: float) -> Engine:
    try:
        if url.get_backend_name() == "sqlite":
            engine = create_engine(url, connect_args={"timeout": wait_s_max})
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
    raw.execute("PRAGMA synchronous = FULL")  # A commit is on disk; in WAL mode some builds default to less.


def _begin_sqlite(connection: Connection) -> None:
    # A writer locks at once: if it locked only after reading, it could fail instead of waiting.
    writes = connection.get_execution_options().get("tidings_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


# ── Errors ───────────────────────────────────────────────────────────────────


@contextmanager
def _translated_errors(where: str, wait_s_max: float) -> Iterator[None]:
    """Turns failures of the database into our errors, which say what to do. Bugs of ours pass through."""
    try:
        yield
    except DBAPIError as wrong:
        error = _translated(str(wrong.orig), getattr(wrong.orig, "sqlstate", None), where, wait_s_max)
        if error is None:
            raise
        raise error from None
    except SQLAlchemyError as wrong:
        if type(wrong).__name__ != "TimeoutError":  # The pool's: every connection is in use.
            raise
        raise SetupError(f"{where}: all connections are busy") from None


def _translated(text: str, sqlstate: str | None, where: str, wait_s_max: float) -> TidingsError | None:
    for sign, kind, advice in _KNOWN_FAILURES:
        if sign in text or sign == sqlstate:
            return kind(f"{where} {advice.format(wait_s=wait_s_max)} ({text.strip().splitlines()[0]})")
    return None


_UNREACHABLE = "cannot be reached: is the server running, and are host and port right?"
_REFUSED = "rejects this user or password: correct the registry's URL"

_KNOWN_FAILURES: tuple[tuple[str, type[TidingsError], str], ...] = (
    # SQLite's messages.
    ("file is not a database", InputError, "is not a registry: it is no SQLite file; name another with --registry"),
    ("image is malformed", InputError, "is damaged: restore it from a backup"),
    ("readonly database", SetupError, "is read-only: change the permissions of the file and its folder"),
    ("unable to open database file", SetupError, "cannot be opened: check the permissions of the file and its folder"),
    ("database is locked", SetupError, "was locked for {wait_s:g} s by another program; try again"),
    ("database or disk is full", SetupError, "cannot be written: the disk is full"),
    ("disk I/O error", SetupError, "cannot be read or written: check its disk"),
    # PostgreSQL's codes, or messages where there is no code, as for a failed connection.
    ("password authentication failed", InputError, _REFUSED),
    ("no password supplied", InputError, _REFUSED),
    ("28P01", InputError, _REFUSED),
    ("28000", InputError, _REFUSED),
    ('FATAL:  database "', InputError, "names a database that does not exist: create it, or correct the URL"),
    ('FATAL:  role "', InputError, "names a user that does not exist: create it, or correct the URL"),
    ("42501", SetupError, "does not permit this user to do that: grant it access to the tables"),
    ("55P03", SetupError, "was locked for {wait_s:g} s by another program; try again"),
    ("25006", SetupError, "cannot be written: the server is read-only"),
    ("53100", SetupError, "cannot be written: the disk is full"),
    ("onnection refused", SetupError, _UNREACHABLE),
    ("connection timeout", SetupError, _UNREACHABLE),
    ("could not translate host name", SetupError, _UNREACHABLE),
    ("failed to resolve host", SetupError, _UNREACHABLE),
    ("connection failed", SetupError, _UNREACHABLE),
    ("connection is bad", SetupError, _UNREACHABLE),
    ("onnection", SetupError, "was lost"),
)
