"""Meet in zones: the plan for more subscriptions than one executor should hold.

A K-D tree, balanced by a sample of events and subscriptions, cuts the space into zones. A
subscription goes to every zone that one of its boxes touches, an event to the one it lies in,
so that each executor holds the subscriptions of its zones only and each pair is found in
exactly one place. A zone so hot that no cut divides it (many events with the same values) gets
several **seats**: its subscriptions go to all of them, its events to one each, in turn.

    events         ─ mapInArrow: seat ─┐
                                       ├─ by part, then seat, subscriptions first ─ mapInArrow: match
    subscriptions  ─ mapInArrow: seats ┘
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from tidings.events import INT_MIN, EventType, ValueType, conform
from tidings.pipeline.matching.index_replica import Holding
from tidings.pipeline.matching.match import INDEX_BOXES_MAX, match_rows, named
from tidings.pipeline.matching.parse_subscriptions import WANTED_SCHEMA, Wanted, read_payload, write_payload
from tidings.space import BalancedTree, KdTree, balance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

SAMPLE_MAX = 20_000  # Of events and of subscriptions: enough to place a few hundred cuts.
CUTS_MAX = 127  # Per axis: zones are coarse, the index within a zone is not.
ZONES_PER_PART = 2  # A part that has drawn a heavy zone gets a light one beside it.
PARTS_PER_CORE = 2
ZONES_MAX = 4_096
SEED = 7  # The sample decides who does the work, never what comes out; fixed, so that runs are alike.

PART, SEAT, PAYLOAD = "_part", "_seat", "_payload"


def meet_in_zones(asked: DataFrame, wanted: Wanted, schema: StructType, compact: bool) -> DataFrame:
    """Deliveries of `select_asked` events, as the other plan gives them."""
    spark = asked.sparkSession
    seating = plan_seats(asked, wanted, spark.sparkContext.defaultParallelism)
    placed = StructType(
        [StructField(PART, IntegerType()), StructField(SEAT, IntegerType()), StructField(PAYLOAD, BinaryType())]
    )
    events = asked.mapInArrow(_SeatEvents(seating), StructType([*placed, *asked.schema]))
    payloads = wanted.parsed.where("subscriptions > 0").select("payload")
    subscriptions = payloads.mapInArrow(_SeatSubscriptions(seating), placed)
    together = events.unionByName(subscriptions, allowMissingColumns=True)
    by_seat = together.repartitionById(seating.part_count, f.col(PART)).sortWithinPartitions(
        SEAT, f.col(PAYLOAD).isNull()
    )
    return by_seat.mapInArrow(_Meet(wanted.asked_type, compact), schema)


# ── The plan ─────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, eq=False)
class Seating:
    """Axes, tree, and for each zone its seats: from `first_seat[zone]` to `first_seat[zone + 1]`."""

    axes: tuple[ZoneAxis, ...]
    tree: KdTree
    first_seat: Array
    part_of_seat: Array
    part_count: int

    def of_events(self, rows: pa.Table) -> Array:
        """The seat of each event; those of a zone with several take turns."""
        zone = self.tree.locate(cells_of(rows, self.axes))
        seats = np.diff(self.first_seat)[zone]
        return self.first_seat[zone] + np.arange(len(zone)) % seats

    def of_subscriptions(self, wanted: pa.Table) -> Iterator[tuple[int, Array]]:
        """Each seat, and the rows of the subscriptions that go there."""
        owner, low, high = boxes_in_cells(wanted, self.axes)
        box, zone = self.tree.touch(low, high)
        pairs = np.unique(np.stack([zone, owner[box]], 1), axis=0)
        starts = np.flatnonzero(np.diff(pairs[:, 0], prepend=-1))
        for start, end in zip(starts, [*starts[1:], len(pairs)]):
            at = int(pairs[start, 0])
            for seat in range(self.first_seat[at], self.first_seat[at + 1]):
                yield seat, pairs[start:end, 1]


def plan_seats(asked: DataFrame, wanted: Wanted, cores: int) -> Seating:
    """From samples, whose size is bounded whatever the tables are."""
    events = _sample_events(asked, wanted.asked_type)
    subscriptions = _sample_subscriptions(wanted)
    axes = make_axes(events, subscriptions, wanted.asked_type)
    _, low, high = boxes_in_cells(subscriptions, axes)
    parts = PARTS_PER_CORE * cores
    zones_max = max(ZONES_PER_PART * parts, math.ceil(2 * wanted.size.boxes / INDEX_BOXES_MAX))
    counts = [axis.cell_count for axis in axes]
    balanced = balance(counts, cells_of(events, axes), low, high, zones_max=min(zones_max, ZONES_MAX))
    return seated(axes, balanced, parts)


def seated(axes: tuple[ZoneAxis, ...], balanced: BalancedTree, parts: int) -> Seating:
    """As many seats per zone as its load wants, and the seats dealt to parts, the heaviest first to the emptiest part."""
    seats = np.clip(np.ceil(balanced.share * parts - 0.5), 1, parts).astype(np.int64)
    loads = np.repeat(balanced.share / seats, seats)
    part_of_seat = np.zeros(len(loads), np.int32)
    filled = [(0.0, part) for part in range(parts)]
    for seat in np.argsort(-loads, kind="stable"):
        load, part = heapq.heappop(filled)
        part_of_seat[seat] = part
        heapq.heappush(filled, (load + float(loads[seat]), part))
    return Seating(axes, balanced.tree, np.concatenate([[0], np.cumsum(seats)]), part_of_seat, parts)


def _sample_events(asked: DataFrame, asked_type: EventType) -> pa.Table:
    count = asked.count()
    share = min(1.0, SAMPLE_MAX / max(count, 1))
    sample = (asked.sample(share, SEED) if share < 1 else asked).toArrow().combine_chunks()
    batches = sample.to_batches()
    return pa.Table.from_batches([named_and_fit(batch, asked_type) for batch in batches] or [_no_rows(asked_type)])


def _sample_subscriptions(wanted: Wanted) -> pa.Table:
    per_payload = max(1, SAMPLE_MAX * INDEX_ROWS // max(wanted.size.subscriptions, INDEX_ROWS))
    payloads = wanted.parsed.where("subscriptions > 0").select("payload")
    some = payloads.mapInArrow(_SomeOfEach(per_payload), "payload binary")
    tables = [read_payload(row.payload) for row in some.toLocalIterator()]
    return pa.concat_tables([WANTED_SCHEMA.empty_table(), *tables])


INDEX_ROWS = 16_384  # Subscriptions in one payload, at most.


class _SomeOfEach:
    """mapInArrow: payloads → a few of each one's subscriptions."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for payload in batch.column("payload").to_pylist():
                table = read_payload(payload)
                some = np.random.default_rng(SEED).permutation(table.num_rows)[: self.count]
                yield pa.RecordBatch.from_pydict({"payload": [write_payload(table.take(pa.array(some)))]})


# ── To seats, and the match ──────────────────────────────────────────────────


class _SeatEvents:
    """mapInArrow: events → the same with part and seat."""

    def __init__(self, seating: Seating) -> None:
        self.seating = seating

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        asked_type = EventType.of("Event", tuple(axis.attribute for axis in self.seating.axes))
        for batch in batches:
            rows = pa.Table.from_batches([named_and_fit(batch, asked_type)])
            seat = self.seating.of_events(rows)
            placed = [pa.array(self.seating.part_of_seat[seat]), pa.array(seat.astype(np.int32))]
            nothing = pa.nulls(batch.num_rows, pa.binary())
            yield pa.RecordBatch.from_arrays(
                [*placed, nothing, *batch.columns], [PART, SEAT, PAYLOAD, *batch.schema.names]
            )


class _SeatSubscriptions:
    """mapInArrow: payloads → for each seat they touch, the payload of those that do."""

    def __init__(self, seating: Seating) -> None:
        self.seating = seating

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for payload in batch.column("payload").to_pylist():
                yield from self._seat(read_payload(payload))

    def _seat(self, wanted: pa.Table) -> Iterator[pa.RecordBatch]:
        for seat, rows in self.seating.of_subscriptions(wanted):
            part = int(self.seating.part_of_seat[seat])
            content = write_payload(wanted.take(pa.array(rows)))
            columns = [pa.array([part], pa.int32()), pa.array([seat], pa.int32()), pa.array([content], pa.binary())]
            yield pa.RecordBatch.from_arrays(columns, [PART, SEAT, PAYLOAD])


class _Meet:
    """mapInArrow over a part, in the order of seats and subscriptions first: one seat's index at a time."""

    def __init__(self, asked_type: EventType, compact: bool) -> None:
        self.asked_type, self.compact = asked_type, compact

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        at_seat = _AtSeat(-1, self.asked_type)
        for batch in batches:
            for run in _runs(batch):
                seat = run.column(SEAT)[0].as_py()
                if seat != at_seat.seat:
                    at_seat = _AtSeat(seat, self.asked_type)
                if run.column(PAYLOAD).null_count == 0:
                    at_seat.payloads += run.column(PAYLOAD).to_pylist()
                elif at_seat.payloads:
                    yield from match_rows(run, at_seat.holding(), self.compact)


class _AtSeat:
    """The subscriptions of one seat, indexed when the first event comes."""

    def __init__(self, seat: int, asked_type: EventType) -> None:
        self.seat, self.asked_type = seat, asked_type
        self.payloads: list[bytes] = []
        self._holding: Holding | None = None

    def holding(self) -> Holding:
        if self._holding is None:
            wanted = pa.concat_tables([read_payload(payload) for payload in self.payloads])
            self._holding = Holding.of(wanted, self.asked_type)
        return self._holding


def _runs(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Stretches of rows with the same seat, subscriptions and events apart."""
    seats = batch.column(SEAT).to_numpy().astype(np.int64)
    kinds = batch.column(PAYLOAD).is_null().to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.diff(2 * seats + kinds, prepend=-1))
    for start, end in zip(starts, [*starts[1:], batch.num_rows]):
        yield batch.slice(start, end - start)


def named_and_fit(batch: pa.RecordBatch, asked_type: EventType) -> pa.RecordBatch:
    return conform(named(batch, asked_type), asked_type)


def _no_rows(asked_type: EventType) -> pa.RecordBatch:
    empty = pa.RecordBatch.from_pylist([], schema=pa.schema([]))
    return conform(empty, asked_type)


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
        """The cell behind the last one that holds a key below each of `highs`."""
        return np.searchsorted(self.cuts, highs, "left") + 2


def make_axes(events: pa.Table, wanted: pa.Table, asked_type: EventType) -> tuple[ZoneAxis, ...]:
    """Cuts where sampled events lie and where sampled subscriptions begin and end, evenly many of each between them."""
    sides = _sides(wanted)
    axes = []
    for position, attribute in enumerate(asked_type):
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


def boxes_in_cells(wanted: pa.Table, axes: tuple[ZoneAxis, ...]) -> tuple[Array, Array, Array]:
    """Per box its subscription's row, and the cells it reaches at most: from `low` to before `high` on each axis."""
    sides = _sides(wanted)
    low = np.zeros((len(sides.owner), len(axes)), np.int64)
    high = np.tile(np.array([axis.cell_count for axis in axes], np.int64), (len(sides.owner), 1))
    for position, axis in enumerate(axes):
        here = np.flatnonzero(sides.attribute == axis.attribute.name)
        low[sides.box[here], position], high[sides.box[here], position] = sides.reach(here, axis)
    return sides.owner, low, high


@dataclass(frozen=True, slots=True, eq=False)
class _Sides:
    """The sides of boxes, flat; of each the hull of its intervals, None standing for an open end."""

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


def _sides(wanted: pa.Table) -> _Sides:
    boxes = _flat(wanted.column("boxes"))
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
    """Of each list of intervals the lowest bound and the highest, None where open, and whether the list is empty."""
    offsets = lists.offsets.to_numpy()
    low, high = _bounds(lists.values.field("low")), _bounds(lists.values.field("high"))
    empty = offsets[1:] == offsets[:-1]
    none = np.array([None], object)
    low, high = np.concatenate([low, none]), np.concatenate([high, none])
    nowhere = len(low) - 1
    return low[np.where(empty, nowhere, offsets[:-1])], high[np.where(empty, nowhere, offsets[1:] - 1)], empty


def _bounds(bounds: pa.Array) -> Array:
    """As Python objects: with gaps, NumPy would make doubles of the ints, which cannot hold them."""
    return np.array([*bounds.to_pylist(), None], object)[:-1]


def _keys(column: pa.Array, kind: ValueType) -> tuple[Array, Array]:
    """The keys of the values that are there, and which rows have one."""
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    values = column.drop_null()
    match kind:
        case ValueType.STRING | ValueType.BYTES:
            coded = values.cast(pa.binary()).dictionary_encode()
            words = np.array([*coded.dictionary.to_pylist(), None], object)[:-1]
            return words[coded.indices.to_numpy()], valid
        case ValueType.DOUBLE:
            numbers = values.to_numpy()
            bits = np.where(np.isnan(numbers), np.float64("nan"), numbers).view(np.int64)
            return np.where(bits >= 0, bits, INT_MIN - bits), valid
        case ValueType.BOOL:
            return values.cast(pa.int8()).to_numpy().astype(np.int64), valid
    return values.cast(pa.int64()).to_numpy(), valid


def _as_keys(bounds: Array, kind: ValueType) -> Array:
    return bounds.astype(np.int64) if kind.has_int_keys else bounds


def _spread(keys: Array) -> Array:
    """At most CUTS_MAX of the keys, evenly many between them, each once."""
    ordered = np.sort(keys)
    if len(ordered) > CUTS_MAX:
        ordered = ordered[np.linspace(0, len(ordered) - 1, CUTS_MAX).astype(np.int64)]
    return np.unique(ordered)


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.array([], column.type), *column.chunks])
