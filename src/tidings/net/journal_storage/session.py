"""Connections to a journal's database: made when they are needed, and made again after any failure.

A connection on which anything went wrong is closed: the server rolls back what was not committed. While the network
is cut nothing goes wrong by itself, so a `Watchdog` breaks connections on which the same thing has taken too long.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tidings.errors import InputError, SetupError

if TYPE_CHECKING:
    import psycopg

    from tidings.net.journal_storage.interface import Rows

CONNECT_S_MAX = 3  # To one server; libpq takes nothing below 2.
ANSWER_S_MAX = 5.0  # A server that has not answered by then is away, or waits for its standby.
LOCK_S_MAX = 4.0  # For what an earlier connection of this broker has left locked.
WATCH_EVERY_S = 0.5
SCHEMES = ("postgresql://", "postgres://")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,47}")


@dataclass(frozen=True, slots=True)
class JournalDatabase:
    """Where a journal is: a database, and in it a schema of the broker's own."""

    conninfo: str
    schema: str
    where: str
    """For operators: without a password."""

    @classmethod
    def of(cls, url: str, broker: str, password: str = "") -> JournalDatabase:
        """The journal of a broker at a `postgresql://` URL; `password` is a reference to one, see `secret`.

        Raises InputError for what is no such URL, and SetupError without the driver.
        """
        if not url.startswith(SCHEMES):
            raise InputError("journal: expected postgresql://user@host:port/database; without it, it is in the folder")
        if not _NAME.fullmatch(broker):
            raise InputError(
                f"journal: {broker[:80]!r} names a schema of the database, so it may have 48 letters, digits, _ . and -"
            )
        psycopg = _driver()
        try:
            given = psycopg.conninfo.conninfo_to_dict(url)
        except psycopg.ProgrammingError:  # Its text repeats the URL.
            raise InputError("journal: the URL cannot be read; expected postgresql://user@host:port/database") from None
        if password:
            given["password"] = secret(password, "journal_password")
        settings = {
            "target_session_attrs": "read-write",
            "connect_timeout": CONNECT_S_MAX,
            "keepalives_idle": 2,
            "keepalives_interval": 1,
            "keepalives_count": 3,
            "tcp_user_timeout": round(1000 * ANSWER_S_MAX),
            "application_name": f"tidings {broker}",
        }
        conninfo = psycopg.conninfo.make_conninfo("", **{**settings, **given})
        return cls(conninfo, f"tidings_{broker}", _shown(given, f"tidings_{broker}"))

    @property
    def registry(self) -> str:
        """The URL of the registry, where the broker names no other: in the same schema."""
        psycopg = _driver()
        given = psycopg.conninfo.conninfo_to_dict(self.conninfo)
        user, password = str(given.pop("user", "")), str(given.pop("password", ""))
        hosts, ports = str(given.pop("host", "")).split(","), str(given.pop("port", "")).split(",")
        ports = ports * len(hosts) if len(ports) == 1 else ports
        given["options"] = f'{given.get("options", "")} -csearch_path="{self.schema}"'.strip()
        who = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
        database = quote(str(given.pop("dbname", "")), safe="")
        options = [(name, str(value)) for name, value in given.items()]
        options += [("host", f"{host}:{port}" if port else host) for host, port in zip(hosts, ports) if host]
        asked = "&".join(f"{name}={quote(value, safe='')}" for name, value in options)
        return f"postgresql+psycopg://{who}{'@' if who else ''}/{database}?{asked}"

    def with_password(self, registry: str) -> str:
        """The URL of a registry in the same database, with the journal's password where it has none of its own."""
        password = str(_driver().conninfo.conninfo_to_dict(self.conninfo).get("password") or "")
        scheme, _, rest = registry.partition("://")
        who, at, place = rest.partition("@")
        if not password or not at or ":" in who or "/" in who:
            return registry
        return f"{scheme}://{who}:{quote(password, safe='')}@{place}"


def secret(reference: str, where: str) -> str:
    """What a reference names: `env:VARIABLE` or `file:PATH`, whose last line break does not count."""
    kind, _, name = reference.partition(":")
    try:
        match kind:
            case "env":
                return os.environ[name]
            case "file":
                return Path(name).read_text(encoding="utf-8").rstrip("\r\n")
    except KeyError:
        raise InputError(f"{where}: there is no variable {name[:80]} in the environment") from None
    except (OSError, ValueError) as wrong:
        raise SetupError(f"{where}: cannot read {name[:200]}: {getattr(wrong, 'strerror', wrong)}") from None
    raise InputError(f"{where}: expected env:VARIABLE or file:PATH, not the password itself")


def _driver() -> Any:
    try:
        import psycopg
        import psycopg.conninfo
    except ImportError:
        raise SetupError("PostgreSQL needs its driver: pip install 'tidings[postgres]'") from None
    return psycopg


def _shown(given: dict[str, Any], schema: str) -> str:
    hosts, ports = str(given.get("host", "localhost")).split(","), str(given.get("port", "5432")).split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    at = ",".join(f"{host}:{port}" for host, port in zip(hosts, ports))
    return f"postgresql://{at}/{given.get('dbname', '')} ({schema})"


class Session:
    """One connection to the database; used by one thread at a time, the others wait."""

    def __init__(self, database: JournalDatabase, idle_in_transaction_s: float, token: bytes = b"") -> None:
        """The server ends a transaction in which nothing has happened for so long: that of a frozen process.

        `token` is the lease's, by which whoever takes over finds this connection.
        """
        self._database, self._idle_s, self._token = database, idle_in_transaction_s, token
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[Any] | None = None
        self._answer_by = 0.0

    @contextlib.contextmanager
    def used(self) -> Iterator[psycopg.Connection[Any]]:
        """The connection, for one exchange with the server; after a failure it is closed."""
        with self._lock:
            connection = self._connection
            if connection is None or connection.closed:
                connection = self._connection = self._connect()
            self._answer_by = time.monotonic() + ANSWER_S_MAX
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            finally:
                self._answer_by = 0.0

    def named(self, token: bytes) -> str:
        """What the server calls the connections of who has this token."""
        return f"{self._database.schema[:46]} {token.hex()[:16]}"  # 63 bytes at most.

    def query(self, query: str, arguments: Sequence[Any] = ()) -> list[Any]:
        """What a query finds, or what a statement returns."""
        with self.used() as connection:
            return connection.execute(query.encode(), arguments).fetchall()

    def break_if_stuck(self) -> None:
        """Ends an exchange that takes too long, on behalf of the thread that waits for it."""
        connection, answer_by = self._connection, self._answer_by
        if connection is None or not 0.0 < answer_by < time.monotonic():
            return
        with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as broken:
            broken.shutdown(socket.SHUT_RDWR)

    def progresses(self) -> None:
        """There is more to do in this exchange, and it has got on."""
        self._answer_by = time.monotonic() + ANSWER_S_MAX

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _connect(self) -> psycopg.Connection[Any]:
        import psycopg
        from psycopg.types.numeric import Int8Dumper

        # Whatever fails is raised, too, and logged by whoever tries again.
        logging.getLogger("psycopg").setLevel(logging.CRITICAL)
        connection = psycopg.connect(self._database.conninfo, autocommit=True, prepare_threshold=2)
        try:
            connection.prepared_max = 512  # Inserts of each number of rows among them.
            # One type for all numbers, or each mixture of small and large ones would be prepared by itself.
            connection.adapters.register_dumper(int, Int8Dumper)
            _carry_any_text(connection)
            self._answer_by = time.monotonic() + ANSWER_S_MAX
            settings = {
                "application_name": self.named(self._token),
                "search_path": f'"{self._database.schema}"',
                "idle_in_transaction_session_timeout": f"{round(1000 * self._idle_s)}ms",
                "lock_timeout": f"{round(1000 * LOCK_S_MAX)}ms",
            }
            for name, value in settings.items():
                connection.execute("SELECT set_config(%s, %s, false)", (name, value))
            # A server may be configured to answer before it has written; what waits for its standby stays as it is.
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', false)"
                " WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')"
            )
        except BaseException:
            connection.close()
            raise
        return connection


def _carry_any_text(connection: psycopg.Connection[Any]) -> None:
    """PostgreSQL's texts cannot hold the character 0, and those of clients and other brokers may: it is escaped."""
    from psycopg.adapt import Buffer, Dumper, Loader

    class TextDumper(Dumper):
        oid = 25

        def dump(self, obj: str) -> bytes:
            raw = obj.encode()
            return raw if b"\x00" not in raw and b"\x01" not in raw else _escaped(raw)

    class TextLoader(Loader):
        def load(self, data: Buffer) -> str:
            raw = bytes(data)
            return (raw if b"\x01" not in raw else _unescaped(raw)).decode()

    connection.adapters.register_dumper(str, TextDumper)
    connection.adapters.register_loader("text", TextLoader)


def _escaped(raw: bytes) -> bytes:
    return raw.replace(b"\x01", b"\x01\x01").replace(b"\x00", b"\x01\x02")


def _unescaped(raw: bytes) -> bytes:
    return re.sub(b"\x01(.)", lambda found: b"\x01" if found[1] == b"\x01" else b"\x00", raw, flags=re.DOTALL)


class Translated:
    """A transaction's statements, put into PostgreSQL's words."""

    def __init__(self, connection: psycopg.Connection[Any], speaks: Callable[[str], str]) -> None:
        self._connection, self._speaks = connection, speaks

    def execute(self, statement: str, arguments: Sequence[Any] = (), /) -> Rows:
        return self._connection.execute(self._speaks(statement).encode(), arguments)

    def executemany(self, statement: str, rows: Any, /) -> object:
        with self._connection.cursor() as cursor:
            cursor.executemany(self._speaks(statement).encode(), list(rows))
        return None


class Watchdog:
    """Looks after sessions in a thread of its own."""

    def __init__(self, sessions: Sequence[Session]) -> None:
        self._sessions, self._closing = sessions, threading.Event()
        self._thread = threading.Thread(target=self._watch, name="journal-watch", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._closing.wait(WATCH_EVERY_S):
            for session in self._sessions:
                session.break_if_stuck()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
