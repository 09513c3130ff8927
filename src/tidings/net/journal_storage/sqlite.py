"""The journal in a file of its own, which one process at a time has open.

Why SQLite, measured: docs/decisions/0086-the-journal-is-sqlite.md.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

from tidings.errors import InputError, SetupError
from tidings.net.journal_storage.interface import JournalTables, LeaseStatus, Statements

STATEMENTS_MAX = 256  # Kept compiled: those for every number of rows among them.
_T = TypeVar("_T")


class SqliteStorage:
    """A journal's file, locked until it is closed."""

    refusals: tuple[type[Exception], ...] = (sqlite3.Error,)
    unreachable: tuple[type[Exception], ...] = ()

    def __init__(self, file: Path, tables: JournalTables) -> None:
        self.file, self.where = file, str(file)
        self._lock = lock_journal(file)
        self.writer = _open(file, tables)
        self._reader = _open(file, tables)

    def write(self, work: Callable[[Statements], _T], *, is_group: bool = False) -> _T | None:
        """See `JournalStorage`; the caller waits for the disk."""
        with _transaction(self.writer):
            return work(self.writer)

    def read(self, query: str, arguments: Sequence[Any]) -> list[Any]:
        return self._reader.execute(query, arguments).fetchall()

    read_now = read

    def usage(self) -> Mapping[str, int]:
        """How much of the disk the journal takes, and how much is free; nothing where the system does not say."""
        try:
            taken = sum(each.stat().st_size for each in self.file.parent.glob(f"{self.file.name}*"))
            return {"journal_bytes": taken, "disk_free_bytes": shutil.disk_usage(self.file.parent).free}
        except OSError:
            return {}

    def lease(self) -> LeaseStatus | None:
        return None  # The file's lock is the lease.

    def close(self, *, lost: bool = False) -> None:
        self.writer.close()
        self._reader.close()
        self._lock.close()


def lock_journal(file: Path) -> IO[str]:
    """A file that keeps other brokers away from this journal until it is closed, by whatever ends this process."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.parent.chmod(0o700)
        file.with_suffix(".lock").touch(mode=0o600)
        lock = file.with_suffix(".lock").open("a+", encoding="ascii", errors="replace")
    except OSError as wrong:
        raise SetupError(f"cannot use {file} as a journal: {advice(wrong)}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.read(32).strip()
        lock.close()
        raise SetupError(
            f"{file.parent} is in use by another broker{f', process {holder}' if holder else ''}; "
            "stop that one, or give this one a folder of its own with --data"
        ) from None
    with contextlib.suppress(OSError):  # On a full disk the lock holds, too; only nobody learns by whom.
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
    return lock


def is_locked(file: Path) -> bool:
    """Whether a broker is running on this journal, on this machine."""
    place = file.with_suffix(".lock")
    if not place.exists():
        return False
    with place.open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def advice(wrong: Exception) -> str:
    """What an operator reads where the disk or SQLite refuses, with what helps."""
    said = str(wrong) if not isinstance(wrong, OSError) else wrong.strerror or str(wrong)
    for word, helps in (
        ("full", "free some space, or name another folder with --data"),
        ("No space", "free some space, or name another folder with --data"),
        ("ermission", "its folder must belong to the user that runs the broker"),
        ("readonly", "its folder must be writable for the user that runs the broker"),
        ("not a database", "it is another file, or damaged; name another folder with --data, or restore a backup"),
        ("malformed", "it is damaged; restore a backup, or begin with an empty folder"),
        ("locked", "another program has it open"),
    ):
        if word in said:
            return f"{said}; {helps}"
    return said


def _open(file: Path, tables: JournalTables) -> sqlite3.Connection:
    try:
        file.touch(mode=0o600)  # SQLite gives its other files the same rights.
        file.chmod(0o600)
        connection = sqlite3.connect(
            file, isolation_level=None, check_same_thread=False, cached_statements=STATEMENTS_MAX
        )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")  # On disk means on disk.
        connection.execute("PRAGMA wal_autocheckpoint = 4000")
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version == 0:
            connection.executescript(f"BEGIN; {tables.first} PRAGMA user_version = {tables.version}; COMMIT")
        connection.executescript(tables.later)
    except (sqlite3.DatabaseError, OSError) as wrong:
        raise SetupError(f"cannot use {file} as a journal: {advice(wrong)}") from None
    if version > tables.version:
        raise InputError(
            f"{file} is a journal of a newer version, {version}; this program knows {tables.version}: "
            "install the newer program again, or name another folder with --data"
        )
    return connection


class _transaction:  # noqa: N801 - reads as a statement
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, error: object, at: object) -> None:
        try:
            if kind is None:
                self._connection.execute("COMMIT")
        finally:
            if self._connection.in_transaction:  # A refused commit leaves the transaction open.
                self._connection.execute("ROLLBACK")
