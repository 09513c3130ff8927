"""Versions of the subscriptions: a log of changes, and the index of each version.

A change, whichever source it comes from (`tidings.pipeline.sources.subscription_changes`), is one of

    {"id": "s1", "subscriber": "police", "filter": "speed > 40"}      adds or replaces s1
    {"id": "s1", "removed": true}                                     removes it

Each set of changes makes a new version. Spark parses it, the driver writes it to the checkpoint, and only then does
it take effect. So after a restart the versions are the same, whatever has happened to the source. A change that
cannot be used is quarantined and has no effect: the subscription with that id stays as it was.

The index of a version consists of a **base**, which is rebuilt rarely, and a small **delta** of what has changed
since, as in a log-structured merge tree. Base numbers that were replaced or removed are filtered from its matches.
Whenever a base is built, the versions up to it are folded into one snapshot file, so the checkpoint grows with
the subscriptions and not with their history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import functions as f

from tidings.errors import SetupError
from tidings.events import Attribute, EventType
from tidings.pipeline.matching.index_replica import DistributedIndex, MatchedPairs, Numbers, distribute_index
from tidings.pipeline.matching.parse_subscriptions import (
    SUBSCRIPTIONS_SCHEMA,
    SubscriptionStats,
    coalesce_to_cores,
    of_type,
    parse_subscriptions,
    read_payload,
    without_texts,
    write_payload,
)
from tidings.pipeline.session import is_connect
from tidings.pipeline.sources.files import ORIGINAL, REASON
from tidings.pipeline.sources.subscription_changes import ChangeSet, ChangeSource
from tidings.pipeline.state.epoch import Epoch
from tidings.pipeline.storage import Storage, decoded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Each version rebuilds the delta, which costs in proportion to the delta; a new base costs in proportion to all
# subscriptions. The base is therefore rebuilt when the delta has this many changes, or this share of the base.
CHANGED_MIN, CHANGED_SHARE = 4_096, 0.25
VERSIONS_MAX = 256  # Versions after a base, and so files of changes in the checkpoint.

CHANGES_SCHEMA = (
    "payload binary, removed array<string>, "
    "rejected array<struct<id: string, subscriber: string, filter: string, reason: string, original: binary>>"
)
_REJECTED = pa.struct(
    [(name, pa.string()) for name in ("id", "subscriber", "filter", "reason")] + [("original", pa.binary())]
)
_CHANGES = pa.schema([("payload", pa.binary()), ("removed", pa.list_(pa.string())), ("rejected", pa.list_(_REJECTED))])

_T = TypeVar("_T")

Quarantine = Callable[["DataFrame", int], int]
"""Stores the rejected changes of a version, and returns how many there are."""

FOLDER = "subscriptions"
PAYLOAD_ROWS = 16_384  # Subscriptions in one payload of the plan with zones.


@dataclass(frozen=True, slots=True)
class VersionIndex:
    """The distributed index of one version: the base, the numbers removed from it, and the delta."""

    version: int
    count: int
    base: DistributedIndex
    removed: Numbers
    delta: DistributedIndex | None

    def match_in_rounds(self, batch: pa.RecordBatch) -> Iterator[tuple[int, MatchedPairs]]:
        """Like `IndexReplica.match_in_rounds`. An event's pairs may come in two rounds, but each pair comes once."""
        base = self.base.replica()
        is_removed = np.zeros(len(base.ids), bool)
        is_removed[self.removed] = True
        for start, found in base.match_in_rounds(batch):
            yield start, found.without(is_removed) if len(self.removed) else found
        if self.delta is not None:
            yield from self.delta.replica().match_in_rounds(batch)


@dataclass(frozen=True, slots=True)
class VersionZones:
    """A version with more boxes than one index should have: its subscriptions as payloads, for the plan with zones.

    Has what that plan asks of `ParsedSubscriptions`.
    """

    version: int
    count: int
    stats: SubscriptionStats
    projected_type: EventType
    batches: DataFrame


class SubscriptionVersions:
    """The versions of a pipeline's subscriptions, stored in the checkpoint.

    A base index serves at most `versions_max` later versions before the next one is built. A version of more than
    `boxes_max` boxes gets no index: see `VersionZones`.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: ChangeSource,
        epoch: Epoch,
        event_type: EventType,
        *,
        versions_max: int = VERSIONS_MAX,
        boxes_max: int | None = None,
    ) -> None:
        self._boxes_max = boxes_max
        self.spark, self.source, self.named_type, self.epoch = spark, source, event_type, epoch
        self._versions_max = versions_max
        # Whether an attribute is required does not matter to a condition, and events have been validated before.
        self.event_type = EventType.of(event_type.name, tuple(Attribute(a.name, a.type) for a in event_type))
        self.log = VersionLog(epoch.storage)
        self._base: tuple[int, DistributedIndex] | None = None
        self._current: VersionIndex | VersionZones | None = None

    def scan(self, quarantine: Quarantine) -> int:
        """Polls the source, makes a version of each set of changes, and returns the latest version.

        Raises StaleRun if another run owns the checkpoint now.
        """
        self.epoch.check()
        while not self._polled(quarantine):
            self.epoch.check()
            self.log = VersionLog(self.epoch.storage)  # An earlier run has made a version before it noticed this one.
        return self.log.tip

    def _polled(self, quarantine: Quarantine) -> bool:
        """Whether all changes of the source are in the log now; False if another run made the next version."""
        changes = self.source.poll(self.log.marks, self._current_subscriptions)
        return all(self._append(each, quarantine) for each in changes)

    def rejected_between(self, since: int, version: int) -> int:
        """How many changes the versions after `since` up to `version` rejected."""
        return sum(
            self.log.version(number).rejected for number in range(max(since, self.log.folded_at) + 1, version + 1)
        )

    def at(self, version: int) -> VersionIndex | VersionZones:
        """The index of this version; builds only a delta to the last base if little has changed."""
        if self._current is None or self._current.version != version:
            if isinstance(self._current, VersionZones):
                self._current.batches.unpersist()
            self._current = self._built(version)
        return self._current

    def subscriptions_at(self, version: int) -> pa.Table:
        """All subscriptions of this version, as a table of SUBSCRIPTIONS_SCHEMA."""
        return self.log.changed(0, version)[0]

    def _current_subscriptions(self) -> pa.Table:
        return self.subscriptions_at(self.log.tip).select(["id", "subscriber", "condition"])

    def _append(self, changes: ChangeSet, quarantine: Quarantine) -> bool:
        rows = coalesce_to_cores(of_type(changes.rows, self.named_type))
        parsed = rows.mapInArrow(_ParseChanges(self.named_type), CHANGES_SCHEMA).persist(StorageLevel.DISK_ONLY)
        try:
            rejected = quarantine(parsed.select(f.inline("rejected")), self.log.tip + 1)
            # The driver collects the changes since the last version, compressed, and writes them to the log.
            found = list(one_row_per_task(parsed.select("payload", "removed")).toLocalIterator())
        finally:
            parsed.unpersist()
        added = pa.concat_tables([SUBSCRIPTIONS_SCHEMA.empty_table(), *(read_payload(row.payload) for row in found)])
        removed = [id for row in found for id in row.removed]
        return self.log.append(Version(changes.mark, write_payload(added), removed, rejected, self.epoch.number))

    def _built(self, version: int) -> VersionIndex | VersionZones:
        if self._base is None or version - self._base[0] > self._versions_max:
            return self._rebased(version)
        since, base = self._base
        changed, ids = self.log.changed(since, version)
        replica = base.replica()
        if len(ids) > max(CHANGED_MIN, CHANGED_SHARE * len(replica.ids)):
            return self._rebased(version)
        removed = np.flatnonzero(pc.is_in(replica.ids, value_set=ids).to_numpy(zero_copy_only=False))
        delta = distribute_index(self.spark, [changed], self.event_type) if changed.num_rows else None
        return VersionIndex(version, len(replica.ids) - len(removed) + changed.num_rows, base, removed, delta)

    def _rebased(self, version: int) -> VersionIndex | VersionZones:
        subscriptions = self.subscriptions_at(version)
        boxes = pc.sum(pc.list_value_length(subscriptions.column("boxes"))).as_py() or 0
        if self._boxes_max is not None and boxes > self._boxes_max:
            return self._zones(version, subscriptions, boxes)
        base = distribute_index(self.spark, [subscriptions], self.event_type)
        if self._base is not None:
            self._base[1].broadcast.unpersist()
        self._base = (version, base)
        # Earlier versions are not needed again: later batches use later versions, and a repeated batch its own.
        self.epoch.check()
        self.log.fold(version, subscriptions, self.source.still_needed)
        return VersionIndex(version, subscriptions.num_rows, base, np.zeros(0, np.int64), None)

    def _zones(self, version: int, subscriptions: pa.Table, boxes: int) -> VersionZones:
        """Without an index, also no base for later versions: each of them comes here again."""
        self._forget_base()
        parts = (subscriptions.slice(at, PAYLOAD_ROWS) for at in range(0, subscriptions.num_rows, PAYLOAD_ROWS))
        rows = [(part.num_rows, write_payload(without_texts(part))) for part in parts]
        batches = self._in_tasks(rows).persist(StorageLevel.DISK_ONLY)
        names = tuple(attribute.name for attribute in self.event_type)
        stats = SubscriptionStats(subscriptions.num_rows, boxes, sum(len(payload) for _, payload in rows), 0, names)
        self.epoch.check()
        self.log.fold(version, subscriptions, self.source.still_needed)
        return VersionZones(version, subscriptions.num_rows, stats, self.event_type, batches)

    def _in_tasks(self, rows: list[tuple[int, bytes]]) -> DataFrame:
        """A table with a task for each row: Spark refuses tasks that carry more than some hundred megabytes."""
        if is_connect(self.spark):
            counts, payloads = zip(*rows)
            table = pa.table({"subscriptions": pa.array(counts), "payload": pa.array(payloads, pa.binary())})
            return self.spark.createDataFrame(table).repartition(len(rows))
        apart = self.spark.sparkContext.parallelize(rows, len(rows))
        return self.spark.createDataFrame(apart, "subscriptions long, payload binary")

    def _forget_base(self) -> None:
        if self._base is not None:
            self._base[1].broadcast.unpersist()
        self._base = None


class Version(msgspec.Struct, frozen=True):
    """One version: the source's mark after it, what it adds and removes, and how many changes it rejects."""

    mark: str
    payload: bytes
    removed: list[str]
    rejected: int = 0
    epoch: int = 0


class Snapshot(msgspec.Struct, frozen=True):
    """All versions up to one, folded: the marks that are still needed, and the subscriptions."""

    marks: list[str]
    payload: bytes


class VersionLog:
    """Versions in storage: `N.folded` is the snapshot after N versions, `N.changes` holds the changes of version N.

    Every file is created once, if it is absent, and a snapshot is there before the files that it replaces are deleted.
    So a crash leaves too many files, never too few. What the last snapshot but one needs stays as well: a listing
    that lags may not show the last one.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        numbers = self._numbers()
        self.folded_at = max(numbers[".folded"], default=0)
        self._delete_before(sorted([0, *numbers[".folded"]])[-2:][0])
        self.tip = max([self.folded_at, *numbers[".changes"]])
        while storage.read(_changes(self.tip + 1)) is not None:  # A listing may lag; numbers are consecutive.
            self.tip += 1
        self.marks = [*self.snapshot().marks, *(self.version(n).mark for n in range(self.folded_at + 1, self.tip + 1))]

    def append(self, version: Version) -> bool:
        """Appends a version; returns False if another run has appended one."""
        if not self.storage.put_if_absent(_changes(self.tip + 1), msgspec.msgpack.encode(version)):
            return False
        self.tip += 1
        self.marks.append(version.mark)
        return True

    def changed(self, since: int, version: int) -> tuple[pa.Table, pa.Array]:
        """The subscriptions that versions after `since` added and did not remove, and every id that they mention."""
        assert since == 0 or since >= self.folded_at, "folded versions are read only as a whole"
        added: list[pa.Table] = [SUBSCRIPTIONS_SCHEMA.empty_table()]
        seen = pa.array([], pa.string())
        for number in range(version, max(since, self.folded_at), -1):  # Backwards: the latest change of an id wins.
            entry = self.version(number)
            rows = read_payload(entry.payload)
            added.append(_not_in(rows, seen))
            seen = pa.concat_arrays([seen, pa.array(entry.removed, pa.string()), *rows.column("id").chunks]).unique()
        if since < self.folded_at:
            added.append(_not_in(read_payload(self.snapshot().payload), seen))
        return pa.concat_tables(added), seen

    def fold(self, version: int, subscriptions: pa.Table, still_needed: Callable[[list[str]], list[str]]) -> None:
        """Folds everything up to this version into one snapshot."""
        if version == self.folded_at:
            return
        later = self.tip - version
        kept = still_needed(self.marks[: len(self.marks) - later])
        snapshot = Snapshot(kept, write_payload(subscriptions))
        self.storage.put_if_absent(_folded(version), msgspec.msgpack.encode(snapshot))
        self.marks = kept + self.marks[len(self.marks) - later :]
        self._delete_before(self.folded_at)
        self.folded_at = version

    def snapshot(self) -> Snapshot:
        """The latest snapshot; an empty one before the first fold."""
        if self.folded_at == 0:
            return Snapshot([], write_payload(SUBSCRIPTIONS_SCHEMA.empty_table()))
        return self._decoded(_folded(self.folded_at), Snapshot)

    def version(self, number: int) -> Version:
        return self._decoded(_changes(number), Version)

    def _delete_before(self, folded_at: int) -> None:
        """Deletes what the snapshot at `folded_at` and the versions after it do without."""
        for ending, numbers in self._numbers().items():
            for number in numbers:
                if number < folded_at or (number == folded_at and ending == ".changes"):
                    self.storage.delete(f"{FOLDER}/{number:09}{ending}")

    def _numbers(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {".folded": [], ".changes": []}
        for file in self.storage.list(FOLDER):
            number, _, ending = file.name.removeprefix(f"{FOLDER}/").partition(".")
            if number.isdigit() and f".{ending}" in found:
                found[f".{ending}"].append(int(number))
        return found

    def _decoded(self, name: str, kind: type[_T]) -> _T:
        content = self.storage.read(name)
        if content is None:
            raise SetupError(
                f"{self.storage.root.below(name)} is gone: another run deleted it, or the store's listing lags; start again"
            )
        return decoded(self.storage, name, content, kind, packed=True)


def _changes(number: int) -> str:
    return f"{FOLDER}/{number:09}.changes"


def _folded(number: int) -> str:
    return f"{FOLDER}/{number:09}.folded"


def _not_in(rows: pa.Table, ids: pa.Array) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows.column("id"), value_set=ids)))


def one_row_per_task(rows: DataFrame) -> DataFrame:
    """The same rows, about one in a task: Spark's driver holds several copies of what one task returns."""
    return rows.repartition(max(1, rows.count()))


class _ParseChanges:
    """mapInArrow: changes → good subscriptions as one payload, ids to remove, and rejected changes."""

    def __init__(self, event_type: EventType) -> None:
        self.event_type = event_type

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pylist([self._parse(batch.to_pylist())], schema=_CHANGES)

    def _parse(self, rows: list[dict[str, object]]) -> dict[str, object]:
        whole = [row for row in rows if row[REASON] is None]
        kept = [row for row in whole if not row["removed"]]
        table, _, rejected = parse_subscriptions(
            ((row["id"], row["subscriber"], row["filter"], False) for row in kept),  # type: ignore[misc]
            self.event_type,
        )
        originals = {row["id"]: row[ORIGINAL] for row in kept}
        broken = [{"reason": row[REASON], "original": row[ORIGINAL]} for row in rows if row[REASON] is not None]
        invalid = [{**row, "reason": row["error"], "original": originals[row["id"]]} for row in rejected]
        return {
            "payload": write_payload(table),
            "removed": [row["id"] for row in whole if row["removed"] and row["id"]],
            "rejected": broken + invalid,
        }
