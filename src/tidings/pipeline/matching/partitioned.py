"""The partitioned plan, "meet in zones": for more subscriptions than one executor should hold.

A K-D tree, balanced by a sample of events and subscriptions, cuts the attribute space into zones. A subscription
goes to every zone that one of its boxes touches, an event to the zone that contains it. So each executor holds
only the subscriptions of its zones, and each pair is found in exactly one place. A zone so hot that no cut divides
it (many events with the same values) gets several **buckets**: its subscriptions are copied to all of them, and
its events are spread over them.

    events         ─ mapInArrow: bucket ──┐
                                          ├─ by partition, then bucket, subscriptions first ─ mapInArrow: match
    subscriptions  ─ mapInArrow: buckets ─┘
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from tidings.events import INT_MIN, EventType, ValueType, conform
from tidings.matching import key_column
from tidings.pipeline.matching.index_replica import IndexReplica
from tidings.pipeline.matching.match import KEPT, match_rows, named
from tidings.pipeline.matching.parse_subscriptions import (
    SUBSCRIPTIONS_SCHEMA,
    SubscriptionStats,
    read_payload,
    write_payload,
)
from tidings.pipeline.matching.sizing import index_limit, zone_partitions
from tidings.pipeline.session import described
from tidings.space import BalancedTree, KdTree, balance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

SAMPLE_MAX = 20_000  # Events, and subscriptions: enough to place a few hundred cuts.
CUTS_MAX = 127  # Per axis: zones are coarse, the index within a zone is not.
ZONES_PER_PARTITION = 2  # A partition with a heavy zone gets a light one beside it.
PARTITIONS_PER_CORE = 2
ZONES_MAX = 4_096
SEED = 7  # Fixed, so that runs are alike. The sample decides where the work is done, never the result.

PARTITION, BUCKET, PAYLOAD = "_partition", "_bucket", "_payload"


class SubscriptionPayloads(Protocol):
    """What the plan needs of subscriptions: `ParsedSubscriptions`, or a version of a stream's."""

    @property
    def stats(self) -> SubscriptionStats: ...

    @property
    def projected_type(self) -> EventType: ...

    @property
    def batches(self) -> DataFrame:
        """Rows with the columns subscriptions and payload."""


def match_in_zones(
    projected: DataFrame,
    subscriptions: SubscriptionPayloads,
    schema: StructType,
    compact: bool,
    kept: Sequence[str] = (),
) -> DataFrame:
    """The deliveries of events from `project_events`, equal to those of the other plan."""
    placing = projected.drop(*(f"{KEPT}{at}" for at in range(len(kept))))
    plan = plan_buckets(placing, subscriptions)
    placed = StructType(
        [StructField(PARTITION, IntegerType()), StructField(BUCKET, IntegerType()), StructField(PAYLOAD, BinaryType())]
    )
    events = projected.mapInArrow(_AssignEvents(plan), StructType([*placed, *projected.schema]))
    payloads = subscriptions.batches.where("subscriptions > 0").select("payload")
    copies = payloads.mapInArrow(_AssignSubscriptions(plan), placed)
    together = events.unionByName(copies, allowMissingColumns=True)
    by_bucket = together.repartitionById(plan.partition_count, f.col(PARTITION)).sortWithinPartitions(
        BUCKET, f.col(PAYLOAD).isNull()
    )
    return by_bucket.mapInArrow(_MatchBuckets(subscriptions.projected_type, compact, kept), schema)


# ── The plan ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class BucketPlan:
    """Axes, tree, and the buckets of each zone: `first_bucket[zone]` up to `first_bucket[zone + 1]`."""

    axes: tuple[ZoneAxis, ...]
    tree: KdTree
    first_bucket: Array
    partition_of_bucket: Array
    partition_count: int

    def of_events(self, rows: pa.Table) -> Array:
        """The bucket of each event; a zone with several buckets uses them in turn."""
        zone = self.tree.locate(cells_of(rows, self.axes))
        buckets = np.diff(self.first_bucket)[zone]
        return self.first_bucket[zone] + np.arange(len(zone)) % buckets

    def of_subscriptions(self, subscriptions: pa.Table) -> Iterator[tuple[int, Array]]:
        """Each bucket, and the rows of the subscriptions that it needs."""
        owner, low, high = boxes_in_cells(subscriptions, self.axes)
        box, zone = self.tree.touch(low, high)
        pairs = np.unique(np.stack([zone, owner[box]], 1), axis=0)
        starts = np.flatnonzero(np.diff(pairs[:, 0], prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(pairs)]):
            at = int(pairs[start, 0])
            for bucket in range(self.first_bucket[at], self.first_bucket[at + 1]):
                yield bucket, pairs[start:end, 1]


def plan_buckets(projected: DataFrame, subscriptions: SubscriptionPayloads) -> BucketPlan:
    """Plans by samples, whose size is bounded however large the tables are."""
    with described(projected.sparkSession, "sample events and subscriptions to plan zones"):
        event_count = projected.count()
        events = _sample_events(projected, event_count, subscriptions.projected_type)
        sample = _sample_subscriptions(subscriptions)
    axes = make_axes(events, sample, subscriptions.projected_type)
    _, low, high = boxes_in_cells(sample, axes)
    boxes = subscriptions.stats.boxes
    partitions = zone_partitions(projected.sparkSession, boxes, event_count, PARTITIONS_PER_CORE)
    zones_max = max(ZONES_PER_PARTITION * partitions, math.ceil(2 * boxes / index_limit(projected.sparkSession).boxes))
    counts = [axis.cell_count for axis in axes]
    balanced = balance(counts, cells_of(events, axes), low, high, zones_max=min(zones_max, ZONES_MAX))
    return assign_buckets(axes, balanced, partitions)


def assign_buckets(axes: tuple[ZoneAxis, ...], balanced: BalancedTree, partitions: int) -> BucketPlan:
    """Gives each zone buckets by its load, and each bucket a partition: the heaviest first, to the least loaded one."""
    buckets = np.clip(np.ceil(balanced.share * partitions - 0.5), 1, partitions).astype(np.int64)
    loads = np.repeat(balanced.share / buckets, buckets)
    partition_of_bucket = np.zeros(len(loads), np.int32)
    loaded = [(0.0, partition) for partition in range(partitions)]
    for bucket in np.argsort(-loads, kind="stable"):
        load, partition = heapq.heappop(loaded)
        partition_of_bucket[bucket] = partition
        heapq.heappush(loaded, (load + float(loads[bucket]), partition))
    return BucketPlan(axes, balanced.tree, np.concatenate([[0], np.cumsum(buckets)]), partition_of_bucket, partitions)


def _sample_events(projected: DataFrame, count: int, projected_type: EventType) -> pa.Table:
    share = min(1.0, SAMPLE_MAX / max(count, 1))
    sample = (projected.sample(share, SEED) if share < 1 else projected).toArrow().combine_chunks()
    batches = sample.to_batches()
    return pa.Table.from_batches([conformed(batch, projected_type) for batch in batches] or [_no_rows(projected_type)])


def _sample_subscriptions(subscriptions: SubscriptionPayloads) -> pa.Table:
    per_payload = max(1, SAMPLE_MAX * INDEX_ROWS // max(subscriptions.stats.subscriptions, INDEX_ROWS))
    payloads = subscriptions.batches.where("subscriptions > 0").select("payload")
    some = payloads.mapInArrow(_SampleEach(per_payload), "payload binary")
    tables = [read_payload(row.payload) for row in some.toLocalIterator()]
    return pa.concat_tables([SUBSCRIPTIONS_SCHEMA.empty_table(), *tables])


INDEX_ROWS = 16_384  # Subscriptions in one payload, at most.


class _SampleEach:
    """mapInArrow: payloads → a sample of the subscriptions of each."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for payload in batch.column("payload").to_pylist():
                table = read_payload(payload)
                some = np.random.default_rng(SEED).permutation(table.num_rows)[: self.count]
                yield pa.RecordBatch.from_pydict({"payload": [write_payload(table.take(pa.array(some)))]})


# ── Shuffle into buckets, and match ──────────────────────────────────────────


class _AssignEvents:
    """mapInArrow: events → the same with partition and bucket."""

    def __init__(self, plan: BucketPlan) -> None:
        self.plan = plan

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        projected_type = EventType.of("Event", tuple(axis.attribute for axis in self.plan.axes))
        for batch in batches:
            rows = pa.Table.from_batches([conformed(batch, projected_type)])
            bucket = self.plan.of_events(rows)
            placed = [pa.array(self.plan.partition_of_bucket[bucket]), pa.array(bucket.astype(np.int32))]
            nothing = pa.nulls(batch.num_rows, pa.binary())
            yield pa.RecordBatch.from_arrays(
                [*placed, nothing, *batch.columns], [PARTITION, BUCKET, PAYLOAD, *batch.schema.names]
            )


class _AssignSubscriptions:
    """mapInArrow: payloads → for each bucket, a payload of the subscriptions that it needs."""

    def __init__(self, plan: BucketPlan) -> None:
        self.plan = plan

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for payload in batch.column("payload").to_pylist():
                yield from self._assigned(read_payload(payload))

    def _assigned(self, subscriptions: pa.Table) -> Iterator[pa.RecordBatch]:
        for bucket, rows in self.plan.of_subscriptions(subscriptions):
            partition = int(self.plan.partition_of_bucket[bucket])
            content = write_payload(subscriptions.take(pa.array(rows)))
            columns = [
                pa.array([partition], pa.int32()),
                pa.array([bucket], pa.int32()),
                pa.array([content], pa.binary()),
            ]
            yield pa.RecordBatch.from_arrays(columns, [PARTITION, BUCKET, PAYLOAD])


class _MatchBuckets:
    """mapInArrow over a partition sorted by bucket, subscriptions first: holds the index of one bucket at a time."""

    def __init__(self, projected_type: EventType, compact: bool, kept: Sequence[str]) -> None:
        self.projected_type, self.compact, self.kept = projected_type, compact, kept

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        current = _BucketIndex(-1, self.projected_type)
        for batch in batches:
            for run in _runs(batch):
                bucket = run.column(BUCKET)[0].as_py()
                if bucket != current.bucket:
                    current = _BucketIndex(bucket, self.projected_type)
                if run.column(PAYLOAD).null_count == 0:
                    current.payloads += run.column(PAYLOAD).to_pylist()
                elif current.payloads:
                    yield from match_rows(run, current.replica(), self.compact, self.kept)


class _BucketIndex:
    """The subscriptions of one bucket, indexed when its first event arrives."""

    def __init__(self, bucket: int, projected_type: EventType) -> None:
        self.bucket, self.projected_type = bucket, projected_type
        self.payloads: list[bytes] = []
        self._replica: IndexReplica | None = None

    def replica(self) -> IndexReplica:
        if self._replica is None:
            subscriptions = pa.concat_tables([read_payload(payload) for payload in self.payloads])
            self._replica = IndexReplica.of(subscriptions, self.projected_type)
        return self._replica


def _runs(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Runs of consecutive rows with the same bucket, subscriptions and events separate."""
    buckets = batch.column(BUCKET).to_numpy().astype(np.int64)
    kinds = batch.column(PAYLOAD).is_null().to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.diff(2 * buckets + kinds, prepend=-1))
    for start, end in zip(starts, [*starts[1:], batch.num_rows]):
        yield batch.slice(start, end - start)


def conformed(batch: pa.RecordBatch, projected_type: EventType) -> pa.RecordBatch:
    return conform(named(batch, projected_type), projected_type)


def _no_rows(projected_type: EventType) -> pa.RecordBatch:
    empty = pa.RecordBatch.from_pylist([], schema=pa.schema([]))
    return conform(empty, projected_type)


# ── Axes of zones ────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class ZoneAxis:
    """An attribute and its cuts: sorted keys, ints or bytes, as in `NaiveAxis` of `tidings.matching` but coarse and for columns."""

    attribute: Any
    cuts: Array

    @property
    def cell_count(self) -> int:
        return len(self.cuts) + 2

    def cells(self, keys: Array) -> Array:
        return np.searchsorted(self.cuts, keys, "right") + 1

    def behind(self, highs: Array) -> Array:
        """The cell after the last one that holds a key below each of `highs`."""
        return np.searchsorted(self.cuts, highs, "left") + 2


def make_axes(events: pa.Table, subscriptions: pa.Table, projected_type: EventType) -> tuple[ZoneAxis, ...]:
    """Cuts at quantiles of the sampled events' values and the sampled subscriptions' bounds."""
    sides = _sides(subscriptions)
    axes = []
    for position, attribute in enumerate(projected_type):
        keys, _ = _keys(events.column(position).combine_chunks(), attribute.type)
        low, high = sides.bounds(attribute.name, attribute.type)
        axes.append(ZoneAxis(attribute, _spread(np.concatenate([keys, low, high]))))
    return tuple(axes)


def cells_of(rows: pa.Table, axes: tuple[ZoneAxis, ...]) -> Array:
    """The cell of each row on each axis; 0 where the value is NULL."""
    cells = np.zeros((rows.num_rows, len(axes)), np.int64)
    for position, axis in enumerate(axes):
        column = rows.column(position).combine_chunks()
        array = (
            column if isinstance(column, pa.Array) else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
        )
        keys, valid = _keys(array, axis.attribute.type)
        cells[valid, position] = axis.cells(keys)
    return cells


def boxes_in_cells(subscriptions: pa.Table, axes: tuple[ZoneAxis, ...]) -> tuple[Array, Array, Array]:
    """For each box its subscription's row, and the cells that it may touch on each axis: `low` up to `high`."""
    sides = _sides(subscriptions)
    low = np.zeros((len(sides.owner), len(axes)), np.int64)
    high = np.tile(np.array([axis.cell_count for axis in axes], np.int64), (len(sides.owner), 1))
    for position, axis in enumerate(axes):
        here = np.flatnonzero(sides.attribute == axis.attribute.name)
        low[sides.box[here], position], high[sides.box[here], position] = sides.reach(here, axis)
    return sides.owner, low, high


@dataclass(frozen=True, slots=True, eq=False)
class _Sides:
    """The sides of all boxes, flat: for each the hull of its intervals, with None for an open end."""

    owner: Array  # by box: the subscription's row
    box: Array  # by side
    attribute: Array
    null: Array
    low: Array
    high: Array
    empty: Array  # by side: no interval at all, only NULL

    def bounds(self, name: str, kind: ValueType) -> tuple[Array, Array]:
        here = self.attribute == name
        low, high = self.low[here], self.high[here]
        return _as_keys(low[low != None], kind), _as_keys(high[high != None], kind)  # noqa: E711

    def reach(self, here: Array, axis: ZoneAxis) -> tuple[Array, Array]:
        low, high = np.ones(len(here), np.int64), np.full(len(here), axis.cell_count, np.int64)
        has_low, has_high = self.low[here] != None, self.high[here] != None  # noqa: E711
        low[has_low] = axis.cells(_as_keys(self.low[here][has_low], axis.attribute.type))
        high[has_high] = axis.behind(_as_keys(self.high[here][has_high], axis.attribute.type))
        high[self.empty[here]] = 1
        low[self.null[here] | self.empty[here]] = 0
        return low, high


def _sides(subscriptions: pa.Table) -> _Sides:
    boxes = _flat(subscriptions.column("boxes"))
    owner = pc.list_parent_indices(boxes).to_numpy()
    sides_of_box = boxes.flatten().field("sides")
    sides = sides_of_box.flatten()
    numbers, texts = sides.field("numbers"), sides.field("texts")
    (low_n, high_n, none_n), (low_t, high_t, none_t) = _hull(numbers), _hull(texts)
    return _Sides(
        owner=owner,
        box=pc.list_parent_indices(sides_of_box).to_numpy(),
        attribute=np.array(sides.field("attribute").to_pylist(), object),
        null=sides.field("null").to_numpy(zero_copy_only=False).astype(bool),
        low=np.where(none_n, low_t, low_n),
        high=np.where(none_n, high_t, high_n),
        empty=none_n & none_t,
    )


def _hull(lists: pa.ListArray) -> tuple[Array, Array, Array]:
    """For each list of intervals the lowest and highest bound, None where open, and whether the list is empty."""
    offsets = lists.offsets.to_numpy()
    low, high = _bounds(lists.values.field("low")), _bounds(lists.values.field("high"))
    empty = offsets[1:] == offsets[:-1]
    none = np.array([None], object)
    low, high = np.concatenate([low, none]), np.concatenate([high, none])
    nowhere = len(low) - 1
    return low[np.where(empty, nowhere, offsets[:-1])], high[np.where(empty, nowhere, offsets[1:] - 1)], empty


def _bounds(bounds: pa.Array) -> Array:
    """As Python objects: with nulls, NumPy would convert the integers to doubles, which cannot hold them all."""
    return np.array([*bounds.to_pylist(), None], object)[:-1]


def _keys(column: pa.Array, kind: ValueType) -> tuple[Array, Array]:
    """The keys of the values that are not null, and which rows have one."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    values = key_column(column.drop_null(), kind)
    if not kind.has_int_keys:
        coded = values.cast(pa.binary()).dictionary_encode()
        words = np.array([*coded.dictionary.to_pylist(), None], object)[:-1]
        return words[coded.indices.to_numpy()], valid
    if kind is ValueType.DOUBLE:
        numbers = values.to_numpy()
        bits = np.where(np.isnan(numbers), np.float64("nan"), numbers).view(np.int64)
        return np.where(bits >= 0, bits, INT_MIN - bits), valid
    return values.cast(pa.int64()).to_numpy(), valid


def _as_keys(bounds: Array, kind: ValueType) -> Array:
    return bounds.astype(np.int64) if kind.has_int_keys else bounds


def _spread(keys: Array) -> Array:
    """At most CUTS_MAX distinct keys, at even quantiles."""
    ordered = np.sort(keys)
    if len(ordered) > CUTS_MAX:
        ordered = ordered[np.linspace(0, len(ordered) - 1, CUTS_MAX).astype(np.int64)]
    return np.unique(ordered)


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.array([], column.type), *column.chunks])
