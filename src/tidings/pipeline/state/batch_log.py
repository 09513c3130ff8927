"""What was done, on disk: which subscriptions each batch goes by, and what came of it.

A batch's entry is written twice, each time as a whole or not at all. Before the work: the
version of the subscriptions, so that a batch which is run again after a crash goes by the
same ones. After it: the counts, which make the batch done. Now and then the entries that are
done become one, so that a ledger stays small however long its pipeline runs.

The checkpoint belongs to one run at a time, by locks that end with their processes, however
those end: one held by this program, one by its Spark, which may outlive it for a moment.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tidings.errors import InputError, SetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENTRIES_MAX = 1_000  # Files of single batches; beyond, the oldest half of them become one.
SPARK_ENDS_S_MAX = 30.0  # A Spark whose program was killed notices at once, and takes a moment to stop.
SPARK_ENDS_POLL_S = 0.1


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Events that came in: each delivered to somebody, wanted by nobody, or quarantined. And deliveries."""

    events: int = 0
    delivered_from: int = 0
    unmatched: int = 0
    quarantined: int = 0
    deliveries: int = 0

    def __add__(self, other: Counts) -> Counts:
        mine, theirs = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Counts(**{name: a + b for name, a, b in zip(self.__struct_fields__, mine, theirs)})

    def add_up(self) -> bool:
        return self.events == self.delivered_from + self.unmatched + self.quarantined


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One batch: the version it goes by and, once it is done, its counts."""

    version: int
    counts: Counts | None = None


class _Past(msgspec.Struct, frozen=True):
    """All batches up to and including `through`, all of them done."""

    through: int = -1
    version: int = 0
    counts: Counts = Counts()


class Ledger:
    """The entries of one pipeline. Raises SetupError where the folder cannot be written, InputError where it is in use."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = Path(checkpoint)
        self.folder = self.checkpoint / "batches"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = (self.checkpoint / "lock").open("w")
        except OSError as wrong:
            raise SetupError(f"cannot write the checkpoint {checkpoint!r}: {wrong.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"the checkpoint {checkpoint!r} is in use by another run; stop that one first") from None
        self._past = self._read_past()
        self._drop_past()
        self._spark_lock: Any = None

    def __getitem__(self, batch: int) -> Entry | None:
        if batch <= self._past.through:
            return Entry(self._past.version, Counts())
        file = self._file(batch)
        return msgspec.json.decode(file.read_bytes(), type=Entry) if file.exists() else None

    def __setitem__(self, batch: int, entry: Entry) -> None:
        write_whole(self._file(batch), msgspec.json.encode(entry))
        if entry.counts and batch - self._past.through > ENTRIES_MAX:
            self._fold(batch - ENTRIES_MAX // 2)

    def __iter__(self) -> Iterator[Entry]:
        """The entries that are still kept one by one."""
        for file in self._files():
            yield msgspec.json.decode(file.read_bytes(), type=Entry)

    def totals(self) -> Counts:
        """Over all batches that are done, in this run and earlier ones."""
        return sum((entry.counts for entry in self if entry.counts), self._past.counts)

    def lend_to(self, spark: SparkSession) -> None:
        """Lets Spark hold the checkpoint as well, and first waits for an earlier one that is still ending."""
        deadline = time.monotonic() + SPARK_ENDS_S_MAX
        while (lock := _lock_in_jvm(spark, self.checkpoint / "lock.spark")) is None:
            if time.monotonic() > deadline:
                raise InputError(f"the Spark of an earlier run still works on {str(self.checkpoint)!r}; end it first")
            time.sleep(SPARK_ENDS_POLL_S)
        self._spark_lock = lock

    def close(self) -> None:
        if self._spark_lock is not None:
            self._spark_lock.acquiredBy().close()
        self._lock.close()

    def _fold(self, through: int) -> None:
        past = self._past
        for file in self._files():
            if int(file.stem) <= through:
                entry = msgspec.json.decode(file.read_bytes(), type=Entry)
                past = _Past(int(file.stem), entry.version, past.counts + (entry.counts or Counts()))
        write_whole(self.folder / "past", msgspec.json.encode(past))
        self._past = past
        self._drop_past()

    def _read_past(self) -> _Past:
        file = self.folder / "past"
        return msgspec.json.decode(file.read_bytes(), type=_Past) if file.exists() else _Past()

    def _drop_past(self) -> None:
        for file in self.folder.glob("[0-9]*.json"):
            if int(file.stem) <= self._past.through:
                file.unlink()

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9]*.json"))

    def _file(self, batch: int) -> Path:
        return self.folder / f"{batch:09}.json"


def _lock_in_jvm(spark: SparkSession, file: Path) -> Any:
    """The lock, or None while another process has it."""
    java: Any = spark.sparkContext._jvm.java  # type: ignore[union-attr]
    channel = java.io.RandomAccessFile(str(file), "rw").getChannel()
    lock = channel.tryLock()
    if lock is None:
        channel.close()
    return lock


def write_whole(file: Path, content: bytes) -> None:
    """The file has this content afterwards, or what it had before, even if the power fails in between."""
    aside = file.with_name(f".{file.name}")
    with aside.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    aside.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
