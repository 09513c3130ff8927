"""The partitioned plan, "meet in zones": for more subscriptions than one executor should hold.

A K-D tree, balanced by a sample of events and subscriptions, cuts the attribute space into zones. A subscription
goes to every zone that one of its boxes touches, an event to the zone that contains it. So each executor holds
only the subscriptions of its zones, and each pair is found in exactly one place. A zone so hot that no cut divides
it (many events with the same values) gets several **buckets**: its subscriptions are copied to all of them, and
its events are spread over them.

    events         ─ mapInArrow: by bucket ──┐
                                             ├─ by partition, then bucket, subscriptions first ─ mapInArrow: match
    subscriptions  ─ mapInArrow: by bucket ──┘

Workers hand both to Spark as payloads, Arrow streams of all that one bucket gets from so many rows. So Spark shuffles
and sorts few rows, and never looks at an attribute.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as f

from tidings.events import INT_MIN, EventType, ValueType, conform
from tidings.matching import BoxColumns, key_column, one_chunk, read_table
from tidings.pipeline.matching.index_replica import IndexReplica
from tidings.pipeline.matching.match import KEPT, match_rows, named
from tidings.pipeline.matching.parse_subscriptions import (
    PAYLOAD_ROWS,
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
    from pyspark.sql.types import StructType

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

SAMPLE_MAX = 20_000  # Events, and subscriptions: enough to place a few hundred cuts.
CUTS_MAX = 127  # Per axis: zones are coarse, the index within a zone is not.
ZONES_PER_PARTITION = 2  # A partition with a heavy zone gets a light one beside it.
PARTITIONS_PER_CORE = 2
ZONES_MAX = 4_096
SEED = 7  # Fixed, so that runs are alike. The sample decides where the work is done, never the result.

# Rows that a worker divides into payloads at once: more of them make larger payloads, which cost less.
SUBSCRIPTIONS_AT_ONCE, EVENTS_AT_ONCE, BYTES_AT_ONCE = 65_536, 131_072, 64 << 20
MATCHED_AT_ONCE = 16_384  # Events of several small payloads that are matched together.

SHUFFLED = "_partition int, _bucket int, _is_event boolean, _payload binary"
PARTITION, BUCKET, IS_EVENT, PAYLOAD = "_partition", "_bucket", "_is_event", "_payload"


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
    divided = projected.mapInArrow(DivideEvents(plan), SHUFFLED)
    payloads = subscriptions.batches.where("subscriptions > 0").select("payload")
    together = divided.unionAll(payloads.mapInArrow(DivideSubscriptions(plan), SHUFFLED))
    by_bucket = together.repartitionById(plan.partition_count, f.col(PARTITION)).sortWithinPartitions(BUCKET, IS_EVENT)
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

    def of_subscriptions(self, subscriptions: pa.Table) -> tuple[Array, Array]:
        """Pairs of row and bucket that needs it, each once, by bucket."""
        owner, low, high = boxes_in_cells(subscriptions, self.axes)
        box, zone = self.tree.touch(low, high)
        count = max(subscriptions.num_rows, 1)
        pairs = np.unique(zone * count + owner[box])  # Of a subscription several boxes may touch the same zone.
        zone, row = pairs // count, pairs % count
        copies = np.diff(self.first_bucket)[zone]
        if copies.max(initial=1) == 1:
            return row, self.first_bucket[zone]
        within = np.arange(copies.sum()) - np.repeat(np.cumsum(copies) - copies, copies)
        bucket = np.repeat(self.first_bucket[zone], copies) + within
        order = np.argsort(bucket, kind="stable")
        return np.repeat(row, copies)[order], bucket[order]


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
    per_payload = max(1, SAMPLE_MAX * PAYLOAD_ROWS // max(subscriptions.stats.subscriptions, PAYLOAD_ROWS))
    payloads = subscriptions.batches.where("subscriptions > 0").select("payload")
    some = payloads.mapInArrow(_SampleEach(per_payload), "payload binary")
    tables = [read_payload(row.payload) for row in some.toLocalIterator()]
    return pa.concat_tables([SUBSCRIPTIONS_SCHEMA.empty_table(), *tables])


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


class DivideEvents:
    """mapInArrow: events → payloads of them by bucket."""

    def __init__(self, plan: BucketPlan) -> None:
        self.plan = plan

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        projected_type = EventType.of("Event", tuple(axis.attribute for axis in self.plan.axes))
        for events in _gathered((pa.Table.from_batches([batch]) for batch in batches), EVENTS_AT_ONCE):
            rows = pa.Table.from_batches([conformed(batch, projected_type) for batch in events.to_batches()])
            bucket = self.plan.of_events(rows)
            order = np.argsort(bucket.astype(np.int32), kind="stable")
            yield from _payloads(events, order, bucket[order], self.plan, is_event=True)


class DivideSubscriptions:
    """mapInArrow: payloads → payloads of the same subscriptions by bucket, some of them in several."""

    def __init__(self, plan: BucketPlan) -> None:
        self.plan = plan

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        payloads = chain.from_iterable(batch.column("payload").to_pylist() for batch in batches)
        for subscriptions in _gathered(map(read_payload, payloads), SUBSCRIPTIONS_AT_ONCE):
            row, bucket = self.plan.of_subscriptions(subscriptions)
            yield from _payloads(subscriptions, row, bucket, self.plan, is_event=False)


def _gathered(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The same rows in fewer tables: of about so many rows, or of BYTES_AT_ONCE."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(map(len, waiting)) >= rows or sum(each.nbytes for each in waiting) >= BYTES_AT_ONCE:
            yield pa.concat_tables(waiting).combine_chunks()
            waiting = []
    if sum(map(len, waiting)):
        yield pa.concat_tables(waiting).combine_chunks()


def _payloads(
    table: pa.Table, row: Array, bucket: Array, plan: BucketPlan, *, is_event: bool
) -> Iterator[pa.RecordBatch]:
    """SHUFFLED: these rows of the table for these buckets, which ascend."""
    starts = np.flatnonzero(np.diff(bucket, prepend=-1))
    ends = [*starts[1:].tolist(), len(bucket)]
    whole = table.take(pa.array(row))
    for start, end in zip(starts.tolist(), ends):
        at = int(bucket[start])
        columns = [
            pa.array([int(plan.partition_of_bucket[at])], pa.int32()),
            pa.array([at], pa.int32()),
            pa.array([is_event]),
            pa.array([write_payload(whole.slice(start, end - start))], pa.binary()),
        ]
        yield pa.RecordBatch.from_arrays(columns, [PARTITION, BUCKET, IS_EVENT, PAYLOAD])


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
                if not run.column(IS_EVENT)[0].as_py():
                    current.payloads += run.column(PAYLOAD).to_pylist()
                elif current.payloads:
                    replica, payloads = current.replica(), run.column(PAYLOAD)
                    for events in _gathered((read_payload(each.as_py()) for each in payloads), MATCHED_AT_ONCE):
                        for rows in events.to_batches():
                            yield from match_rows(rows, replica, self.compact, self.kept)


class _BucketIndex:
    """The subscriptions of one bucket, indexed when its first event arrives."""

    def __init__(self, bucket: int, projected_type: EventType) -> None:
        self.bucket, self.projected_type = bucket, projected_type
        self.payloads: list[bytes] = []
        self._replica: IndexReplica | None = None

    def replica(self) -> IndexReplica:
        if self._replica is None:
            subscriptions = pa.concat_tables([read_payload(payload) for payload in self.payloads])
            self.payloads = self.payloads[:1]  # That there are some is all that counts from here on.
            self._replica = IndexReplica.of(subscriptions, self.projected_type)
            del subscriptions
            pa.default_memory_pool().release_unused()  # Or a worker keeps what building took.
        return self._replica


def _runs(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Runs of consecutive rows with the same bucket, subscriptions and events separate."""
    buckets = batch.column(BUCKET).to_numpy().astype(np.int64)
    kinds = batch.column(IS_EVENT).to_numpy(zero_copy_only=False)
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
    columns = read_table(subscriptions, projected_type)
    axes = []
    for position, attribute in enumerate(projected_type):
        values = one_chunk(events.column(position)).drop_null()
        hulls = _Hulls.of(columns, np.flatnonzero(columns.attribute == position), attribute.type)
        ends = [_keys(column) for column in (_key_values(values, attribute.type), hulls.low, hulls.high)]
        axes.append(ZoneAxis(attribute, _spread(np.concatenate(ends))))
    return tuple(axes)


def cells_of(rows: pa.Table, axes: tuple[ZoneAxis, ...]) -> Array:
    """The cell of each row on each axis; 0 where the value is NULL."""
    cells = np.zeros((rows.num_rows, len(axes)), np.int64)
    for position, axis in enumerate(axes):
        column = one_chunk(rows.column(position))
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        cells[valid, position] = _by_key(_key_values(column.drop_null(), axis.attribute.type), axis.cells)
    return cells


def boxes_in_cells(subscriptions: pa.Table, axes: tuple[ZoneAxis, ...]) -> tuple[Array, Array, Array]:
    """For each box its subscription's row, and the cells that it may touch on each axis: `low` up to `high`."""
    columns = read_table(subscriptions, EventType.of("Event", tuple(axis.attribute for axis in axes)))
    owner = np.repeat(np.arange(len(columns)), np.diff(columns.box_ptr))
    box = np.repeat(np.arange(len(owner)), np.diff(columns.side_ptr))
    low = np.zeros((len(owner), len(axes)), np.int64)
    high = np.tile(np.array([axis.cell_count for axis in axes], np.int64), (len(owner), 1))
    for position, axis in enumerate(axes):
        here = np.flatnonzero(columns.attribute == position)
        hulls = _Hulls.of(columns, here, axis.attribute.type)
        low[box[here], position], high[box[here], position] = hulls.reach(axis, columns.null[here].astype(bool))
    return owner, low, high


@dataclass(frozen=True, slots=True, eq=False)
class _Hulls:
    """For some sides of one attribute the lowest and the highest bound: keys of those that have one, and which do."""

    low: pa.Array
    high: pa.Array
    has_low: Array
    has_high: Array
    empty: Array  # No interval at all, only NULL.

    @classmethod
    def of(cls, columns: BoxColumns, here: Array, kind: ValueType) -> _Hulls:
        if kind.has_int_keys:
            ptr, lows, highs = columns.number_ptr, columns.number_low, columns.number_high
        else:
            ptr, lows, highs = columns.text_ptr, columns.text_low, columns.text_high
        first, last = ptr[here], ptr[here + 1] - 1  # Intervals of a side ascend.
        empty = last < first
        low, high = (
            bounds.take(pa.array(np.where(empty, 0, at), mask=empty)) for bounds, at in ((lows, first), (highs, last))
        )
        has_low, has_high = (bound.is_valid().to_numpy(zero_copy_only=False) for bound in (low, high))
        return cls(low.drop_null(), high.drop_null(), has_low, has_high, empty)

    def reach(self, axis: ZoneAxis, null: Array) -> tuple[Array, Array]:
        """The cells of each side; `null` says of which ones NULL is a part."""
        low, high = np.ones(len(null), np.int64), np.full(len(null), axis.cell_count, np.int64)
        low[self.has_low] = _by_key(self.low, axis.cells)
        high[self.has_high] = _by_key(self.high, axis.behind)
        high[self.empty] = 1
        low[null | self.empty] = 0
        return low, high


def _key_values(values: pa.Array, kind: ValueType) -> pa.Array:
    """Values that are not null as keys: ints or bytes."""
    keys = key_column(values, kind)
    if not kind.has_int_keys:
        return keys.cast(pa.binary())
    if kind is not ValueType.DOUBLE:
        return keys.cast(pa.int64())
    numbers = keys.to_numpy()
    bits = numbers.view(np.int64)
    return pa.array(np.where(np.isnan(numbers), _NAN_KEY, np.where(bits >= 0, bits, INT_MIN - bits)))


_NAN_KEY = ValueType.DOUBLE.key(float("nan"))  # Right above infinity, whatever the bits of a NaN are.


def _keys(keys: pa.Array) -> Array:
    """Ints, or bytes as Python objects: NumPy's own would lose zeros at the end."""
    if pa.types.is_integer(keys.type):
        return keys.to_numpy()  # type: ignore[no-any-return]
    return np.array([*keys.to_pylist(), None], object)[:-1]


def _by_key(keys: pa.Array, function: Callable[[Array], Array]) -> Array:
    """The function's result for each key; of bytes, for each different one only once."""
    if pa.types.is_integer(keys.type):
        return function(keys.to_numpy())
    coded = keys.dictionary_encode()
    results: Array = function(_keys(coded.dictionary))[coded.indices.to_numpy()]
    return results


def _spread(keys: Array) -> Array:
    """At most CUTS_MAX distinct keys, at even quantiles."""
    ordered = np.sort(keys)
    if len(ordered) > CUTS_MAX:
        ordered = ordered[np.linspace(0, len(ordered) - 1, CUTS_MAX).astype(np.int64)]
    return np.unique(ordered)
