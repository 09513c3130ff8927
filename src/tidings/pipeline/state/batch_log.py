"""The batch log: for each batch, the version of the subscriptions that it uses, and its counts.

A batch has two records, and each is created only if it is absent, so of two runs one decides and the other sees it.
Before the work `N.json` holds the version of the subscriptions, so that a batch which is repeated after a crash uses
the same version. After the work `N.done` holds the counts, which mark the batch as done. From time to time old records
are merged into one, so the log stays small however long the pipeline runs. Version 0.1 replaced `N.json` by one
that has the counts, too; it is still read.

`N.json` also identifies the batch's input: the digest of the offsets that Spark has written for it. A run that finds
another input under its batch number is not repeating that batch; a stale run began it in the meantime.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from tidings.errors import InputError
from tidings.pipeline.state.epoch import Epoch
from tidings.pipeline.storage import Storage, decoded, read_all

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENTRIES_MAX = 1_000  # Records of single batches; beyond this, the oldest half of them are merged into one.
STAGED = "staged"
FOLDER, PAST_0_1 = "batches", "batches/past"


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """Events that were read, each of them delivered, unmatched or quarantined; and the number of deliveries.

    `rejected` are subscription changes that could not be used.
    """

    events: int = 0
    delivered_from: int = 0
    unmatched: int = 0
    quarantined: int = 0
    deliveries: int = 0
    rejected: int = 0

    def __add__(self, other: Counts) -> Counts:
        mine, theirs = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Counts(**{name: a + b for name, a, b in zip(self.__struct_fields__, mine, theirs)})

    def add_up(self) -> bool:
        return self.events == self.delivered_from + self.unmatched + self.quarantined


class BatchEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One batch: the version of its subscriptions and, once it is done, its counts.

    `rejected` counts the subscription changes that were quarantined since the batch before.
    """

    version: int
    counts: Counts | None = None
    rejected: int = 0
    epoch: int = 0
    input: str = ""


class _Merged(msgspec.Struct, frozen=True):
    """All batches up to and including `through`, all of them done."""

    through: int = -1
    version: int = 0
    counts: Counts = Counts()


class BatchRecords:
    """The entries of one pipeline, by batch number, for whoever wants to look: claims nothing and writes nothing."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._merged = self._read_merged()

    def __getitem__(self, batch: int) -> BatchEntry | None:
        if batch <= self._merged.through:
            return BatchEntry(self._merged.version, Counts())
        return self._read(batch)

    def __iter__(self) -> Iterator[BatchEntry]:
        """The entries that are not merged."""
        for _, entry in self._entries(self._batches()):
            yield entry

    def totals(self) -> Counts:
        """The counts of all finished batches, of this run and earlier ones."""
        return sum((entry.counts for entry in self if entry.counts), self._merged.counts)

    def _entries(self, batches: Iterable[int]) -> Iterator[tuple[int, BatchEntry]]:
        """Of many batches, whose records are read at once."""
        wanted = list(batches)
        contents = read_all(self.storage, [name(batch) for batch in wanted for name in (_begun, _done)])
        for batch in wanted:
            entry = self._entry(batch, contents.get)
            if entry is not None:
                yield batch, entry

    def _read(self, batch: int) -> BatchEntry | None:
        return self._entry(batch, self.storage.read)

    def _entry(self, batch: int, read: Callable[[str], bytes | None]) -> BatchEntry | None:
        content = read(_begun(batch))
        if content is None:
            return None
        entry = decoded(self.storage, _begun(batch), content, BatchEntry)
        done = read(_done(batch)) if entry.counts is None else None
        return (
            msgspec.structs.replace(entry, counts=decoded(self.storage, _done(batch), done, Counts))
            if done is not None
            else entry
        )

    def _read_merged(self) -> _Merged:
        """The latest. 0.1 replaced one file; a stale run must not be able to, so now each has a name of its own."""
        names = [file.name for file in self.storage.list(FOLDER) if file.name.startswith(PAST_0_1)]
        contents = read_all(self.storage, names)
        found = [
            decoded(self.storage, name, content, _Merged) for name, content in contents.items() if content is not None
        ]
        return max(found, key=lambda merged: merged.through, default=_Merged())

    def _batches(self) -> list[int]:
        names = (file.name.removeprefix(f"{FOLDER}/") for file in self.storage.list(FOLDER))
        return sorted(int(name[:-5]) for name in names if name.endswith(".json") and name[:-5].isdigit())


class BatchLog(BatchRecords):
    """The entries of the pipeline whose checkpoint this run owns. Keeps at most about `entries_max` as single records.

    Raises SetupError if the checkpoint cannot be written, InputError if another run is using it. A checkpoint on a
    remote store needs the Spark session.
    """

    def __init__(self, checkpoint: str, spark: SparkSession | None = None, *, entries_max: int = ENTRIES_MAX) -> None:
        self.epoch = Epoch.claim(checkpoint, spark)
        super().__init__(self.epoch.storage)
        self._entries_max = entries_max
        self._delete_merged()
        self._spark_checkpoint = ""

    def begin(self, batch: int, version: int, rejected: int = 0) -> BatchEntry:
        """Records the version of a batch before the work; returns the entry of an earlier attempt, if there is one.

        Raises StaleRun, or InputError if a stale run has begun another batch of this number in the meantime.
        """
        self.epoch.check()
        entry = BatchEntry(version, rejected=rejected, epoch=self.epoch.number, input=self._input(batch))
        if self.storage.put_if_absent(_begun(batch), msgspec.json.encode(entry)):
            return entry
        self.epoch.check()
        found = self._read(batch)
        assert found is not None, "it was there just now"
        return self.same_input(batch, found)

    def same_input(self, batch: int, found: BatchEntry) -> BatchEntry:
        """The entry of an earlier attempt at this batch. Raises InputError if it had another input."""
        if found.input and found.input != self._input(batch):
            raise InputError(
                f"batch {batch} was begun with other events by an earlier run that was still going; start this one again"
            )
        return found

    def finish(self, batch: int, counts: Counts) -> None:
        """Marks a batch as done. Raises StaleRun."""
        self.epoch.check()
        self.storage.put_if_absent(_done(batch), msgspec.json.encode(counts))
        if batch - self._merged.through > self._entries_max:
            self._merge(batch - self._entries_max // 2)

    def spark_checkpoint(self) -> str:
        """The folder for Spark's own checkpoint, which no other run writes to.

        Where an earlier run staged batches (`tidings.pipeline.sources.staged_batches`), Spark calls them done when they
        are staged. It goes back to the last one that is done here; the one after that has the same offsets again.
        """
        self._spark_checkpoint = self.epoch.own_spark_checkpoint()
        if self.storage.list(STAGED):
            self._take_back(self.last_done())
            self.storage.delete(STAGED)
        return self._spark_checkpoint

    def last_done(self) -> int:
        """The last batch that is done together with all before it; -1 if there is none."""
        last = self._merged.through
        while (entry := self._read(last + 1)) is not None and entry.counts is not None:
            last += 1
        return last

    def _take_back(self, done: int) -> None:
        for part, last in (("commits", done), ("offsets", done + 1)):
            folder = f"{self._spark_folder()}/{part}"
            for file in self.storage.list(folder):
                number = file.name.removeprefix(f"{folder}/")
                if number.isdigit() and int(number) > last:
                    self.storage.delete(file.name)

    def _spark_folder(self) -> str:
        return self._spark_checkpoint.removeprefix(self.storage.root.text).strip("/")

    def close(self) -> None:
        self.epoch.close()

    def _input(self, batch: int) -> str:
        """A digest of the offsets of a batch. Spark writes them, with the moment, before the batch begins."""
        if not self._spark_checkpoint:
            return ""
        offsets = self.storage.read(f"{self._spark_folder()}/offsets/{batch}")
        return hashlib.sha256(offsets).hexdigest()[:32] if offsets is not None else ""

    def _merge(self, through: int) -> None:
        merged = self._merged
        for batch, entry in self._entries(batch for batch in self._batches() if batch <= through):
            merged = _Merged(batch, entry.version, merged.counts + (entry.counts or Counts()))
        self.storage.put_if_absent(f"{PAST_0_1}-{merged.through:09}.json", msgspec.json.encode(merged))
        self._merged = merged
        self._delete_merged()

    def _delete_merged(self) -> None:
        for file in self.storage.list(FOLDER):
            number = file.name.removeprefix(f"{FOLDER}/").partition(".")[0]
            through = number.removeprefix("past-")
            is_older = through != number and int(through) < self._merged.through
            if is_older or (number.isdigit() and int(number) <= self._merged.through):
                self.storage.delete(file.name)


def _begun(batch: int) -> str:
    return f"{FOLDER}/{batch:09}.json"


def _done(batch: int) -> str:
    return f"{FOLDER}/{batch:09}.done"
