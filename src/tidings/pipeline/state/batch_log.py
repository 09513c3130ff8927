"""The batch log: for each batch, the version of the subscriptions that it uses, and its counts.

A batch's entry is written twice, each time atomically. Before the work it holds the version of the subscriptions, so
that a batch which is repeated after a crash uses the same version. After the work it also holds the counts, which
mark the batch as done. From time to time old entries are merged into one, so the log stays small however long the
pipeline runs.

One run at a time owns the checkpoint, by file locks that the operating system releases when a process ends: one
lock of this process, and one of its Spark, which may outlive it for a moment.
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

ENTRIES_MAX = 1_000  # Files of single batches; beyond this, the oldest half of them are merged into one.
SPARK_ENDS_S_MAX = 30.0  # A Spark whose driver program was killed notices at once, and takes a moment to stop.
SPARK_ENDS_POLL_S = 0.1


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Events that were read, each of them delivered, unmatched or quarantined; and the number of deliveries."""

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


class BatchEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One batch: the version of its subscriptions and, once it is done, its counts."""

    version: int
    counts: Counts | None = None


class _Merged(msgspec.Struct, frozen=True):
    """All batches up to and including `through`, all of them done."""

    through: int = -1
    version: int = 0
    counts: Counts = Counts()


class BatchLog:
    """The entries of one pipeline, by batch number. Keeps at most about `entries_max` of them as single files.

    Raises SetupError if the folder cannot be written, InputError if another run is using it.
    """

    def __init__(self, checkpoint: str, *, entries_max: int = ENTRIES_MAX) -> None:
        self.checkpoint = Path(checkpoint)
        self._entries_max = entries_max
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
        self._merged = self._read_merged()
        self._delete_merged()
        self._spark_lock: Any = None

    def __getitem__(self, batch: int) -> BatchEntry | None:
        if batch <= self._merged.through:
            return BatchEntry(self._merged.version, Counts())
        file = self._file(batch)
        return msgspec.json.decode(file.read_bytes(), type=BatchEntry) if file.exists() else None

    def __setitem__(self, batch: int, entry: BatchEntry) -> None:
        write_atomically(self._file(batch), msgspec.json.encode(entry))
        if entry.counts and batch - self._merged.through > self._entries_max:
            self._merge(batch - self._entries_max // 2)

    def __iter__(self) -> Iterator[BatchEntry]:
        """The entries that are not merged."""
        for file in self._files():
            yield msgspec.json.decode(file.read_bytes(), type=BatchEntry)

    def totals(self) -> Counts:
        """The counts of all finished batches, of this run and earlier ones."""
        return sum((entry.counts for entry in self if entry.counts), self._merged.counts)

    def lock_for_spark(self, spark: SparkSession) -> None:
        """Locks the checkpoint for Spark's process as well; waits for the Spark of an earlier run to end."""
        deadline = time.monotonic() + SPARK_ENDS_S_MAX
        while (lock := _lock_in_jvm(spark, self.checkpoint / "lock.spark")) is None:
            if time.monotonic() > deadline:
                raise InputError(f"the Spark of an earlier run is still using {str(self.checkpoint)!r}; end it first")
            time.sleep(SPARK_ENDS_POLL_S)
        self._spark_lock = lock

    def close(self) -> None:
        if self._spark_lock is not None:
            self._spark_lock.acquiredBy().close()
        self._lock.close()

    def _merge(self, through: int) -> None:
        merged = self._merged
        for file in self._files():
            if int(file.stem) <= through:
                entry = msgspec.json.decode(file.read_bytes(), type=BatchEntry)
                merged = _Merged(int(file.stem), entry.version, merged.counts + (entry.counts or Counts()))
        write_atomically(self.folder / "past", msgspec.json.encode(merged))
        self._merged = merged
        self._delete_merged()

    def _read_merged(self) -> _Merged:
        file = self.folder / "past"
        return msgspec.json.decode(file.read_bytes(), type=_Merged) if file.exists() else _Merged()

    def _delete_merged(self) -> None:
        for file in self.folder.glob("[0-9]*.json"):
            if int(file.stem) <= self._merged.through:
                file.unlink()

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9]*.json"))

    def _file(self, batch: int) -> Path:
        return self.folder / f"{batch:09}.json"


def _lock_in_jvm(spark: SparkSession, file: Path) -> Any:
    """The lock, or None while another process holds it."""
    java: Any = spark.sparkContext._jvm.java  # type: ignore[union-attr]
    channel = java.io.RandomAccessFile(str(file), "rw").getChannel()
    lock = channel.tryLock()
    if lock is None:
        channel.close()
    return lock


def write_atomically(file: Path, content: bytes) -> None:
    """Replaces a file's content. After a crash or a power failure the file has the new content, or the old one."""
    temporary = file.with_name(f".{file.name}")
    with temporary.open("wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
