"""Under which two sides each box is filed, and how finely: a guess about cost, never about the answer.

A box is found through its two least likely sides, in a grid over their two axes; a grid that
would hold too few boxes to be worth a look per event gives way to a list by the less likely
side alone. How likely a side is follows from the cuts themselves (conditions tend to be
written where events are) or from a sample of events.

Costs are in nanoseconds per event, as measured by `benchmarks/engine_speed.py` on one machine;
only their ratios matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tidings.matching.box_table import Array
from tidings.matching.kernels import build as build_kernels
from tidings.matching.kernels import match as match_kernels
from tidings.matching.parallel import ALONE, Workers

PROBE_NS = 10.0  # Looking into one grid cell.
CANDIDATE_NS = 1.5  # Testing one entry of it.
HIT_NS = 6.0  # Checking the remaining sides of one whose filed sides hold.
READ_BYTES_PER_NS = 8.0
BATCH = 16_384  # Events over which reading a grid once is spread.

# How many entries a box may have on average in one grid. With 12 bytes each it bounds memory per condition.
ENTRIES_MAX = 12.0
ENTRY_BYTES = 12
FINEST_BITS = 8
LIST_SLACK = 1.3  # Candidates of a list per one that its side holds for: buckets are wider than the sides' ends.
BLUR = 0.01  # What the width of a bucket adds to the chance that a side's entry is a candidate, roughly.
ROUNDS = 4
PAIRS_MAX = 1 << 20  # Pairs of axes that are told apart while sides are chosen.
PAIR_BOXES_MIN = 16  # A pair of axes with fewer boxes is not even weighed.


@dataclass(frozen=True, slots=True)
class Plan:
    """Grids, and per box its grid and the sides filed along the grid's two axes (-1: none)."""

    grids: Array
    grid: Array
    side_a: Array
    side_b: Array


def make_plan(
    sides: build_kernels.Sides, cell_counts: Array, share_ptr: Array, share: Array, crew: Workers = ALONE
) -> Plan:
    """Files every box somewhere: under two sides, one, or, if it has none, where all events look."""
    chance = np.empty(max(len(sides.side_axis), 1), np.float32)
    crew.over(len(sides.side_axis), lambda *run: build_kernels.measure_sides(sides, share_ptr, share, *run, chance))
    first, second = _choose(sides, chance, len(cell_counts), crew)
    counts = np.append(cell_counts, 1)  # Behind the last axis stands the one that all boxes and events share.
    second = _second_if_it_pays(sides, first, second, chance, counts, crew)
    pairs = _Pairs.of(sides, first, second, counts, crew)
    return Plan(pairs.grids(), pairs.pair, pairs.side_a, pairs.side_b)


def _choose(sides: build_kernels.Sides, chance: Array, axes: int, crew: Workers) -> tuple[Array, Array]:
    """Per box the sides to file it under. Pairs that few choose cost each of them much, and lose those in the next round."""
    boxes = len(sides.side_ptr) - 1
    first, second = np.empty(boxes, np.int32), np.empty(boxes, np.int32)
    costs = np.array([CANDIDATE_NS, HIT_NS, BLUR], np.float32)
    probe = np.zeros(min((axes + 1) ** 2, PAIRS_MAX))
    for _ in range(ROUNDS):
        sizes = crew.over(boxes, partial(_choose_some, (sides, chance, axes, costs, probe), (first, second)))
        probe = PROBE_NS / np.maximum(np.sum(sizes, 0), 0.5)
    return first, second


def _choose_some(what: tuple[Any, ...], chosen: tuple[Array, Array], start: int, end: int) -> Array:
    """Chooses for a run of boxes; returns how many of them chose each pair of axes."""
    sizes = np.zeros(len(what[-1]), np.int64)
    build_kernels.choose_sides(*what, start, end, *chosen, sizes)
    return sizes


def bucket_count(cell_count: Any, shift: Any) -> Any:
    """Buckets of an axis, NULL's own included; for whole arrays of axes."""
    return ((cell_count - 1 + (1 << shift) - 1) >> shift) + 1


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The pairs of axes that boxes are to be filed under, how many boxes each has, and each box's."""

    a: Array
    b: Array
    sizes: Array
    pair: Array
    side_a: Array
    side_b: Array
    # Costs and entries by pair and level along each axis.
    cost: Array
    entries: Array
    counts: Array

    @classmethod
    def of(cls, sides: build_kernels.Sides, first: Array, second: Array, counts: Array, crew: Workers) -> _Pairs:
        side_a, side_b = _in_axis_order(sides, first, second)
        axis = np.append(sides.side_axis, np.int32(len(counts) - 1)).astype(np.int64)
        codes, pair, sizes = _distinct(axis[side_a] * len(counts) + axis[side_b], len(counts) ** 2)
        a, b = codes // len(counts), codes % len(counts)
        what, shape = (
            (sides, side_a, side_b, pair, _finest(counts)),
            (len(codes), build_kernels.LEVELS, build_kernels.LEVELS),
        )
        entries = np.sum(crew.over(len(pair), partial(_count_some, what, shape)), 0)
        return cls(a, b, sizes, pair, side_a, side_b, _costs(entries, sizes, counts, a, b), entries, counts)

    def best(self) -> Array:
        """Per pair the level, along both axes as one number, that costs least."""
        return self.cost.reshape(len(self.a), build_kernels.LEVELS**2).argmin(1)  # type: ignore[no-any-return]

    def grids(self) -> Array:
        """The best grid of each pair, as rows for the match."""
        finest, (x, y) = _finest(self.counts), np.divmod(self.best(), build_kernels.LEVELS)
        shift_a, shift_b = finest[self.a] + x, finest[self.b] + y
        rows, columns = bucket_count(self.counts[self.a], shift_a), bucket_count(self.counts[self.b], shift_b)
        columns_log = np.ceil(np.log2(columns)).astype(np.int64)
        ends = np.cumsum(rows << columns_log)
        starts = np.concatenate([[0], ends])[:-1]
        return np.stack([self.a, self.b, shift_a, shift_b, columns_log, starts, ends], 1).astype(np.int64)


def _count_some(what: tuple[Any, ...], shape: tuple[int, ...], start: int, end: int) -> Array:
    entries = np.zeros(shape, np.int64)
    build_kernels.count_entries(*what, start, end, entries)
    return entries


def _second_if_it_pays(
    sides: build_kernels.Sides, first: Array, second: Array, chance: Array, counts: Array, crew: Workers
) -> Array:
    """`second`, or -1 for the boxes of pairs whose grid would cost more than lists by the first sides."""
    second = _second_if_common(sides, first, second, len(counts))
    pairs = _Pairs.of(sides, first, second, counts, crew)
    likely = np.where(first >= 0, chance[first], 1)
    both = np.where(second >= 0, chance[second], 1) * likely
    alone = np.bincount(pairs.pair, likely, minlength=len(pairs.a)) * (CANDIDATE_NS * LIST_SLACK + HIT_NS)
    together = np.bincount(pairs.pair, both, minlength=len(pairs.a)) * HIT_NS
    cost = pairs.cost.min((1, 2), initial=np.inf)
    pays = (cost + together < alone) & (pairs.b < len(counts) - 1)
    return np.where(pays[pairs.pair], second, -1).astype(np.int32)


def _second_if_common(sides: build_kernels.Sides, first: Array, second: Array, axes: int) -> Array:
    side_a, side_b = _in_axis_order(sides, first, second)
    axis = np.append(sides.side_axis, np.int32(axes - 1)).astype(np.int64)
    _, pair, sizes = _distinct(axis[side_a] * axes + axis[side_b], axes**2)
    return np.where(sizes[pair] >= PAIR_BOXES_MIN, second, -1).astype(np.int32)


def _distinct(codes: Array, size: int) -> tuple[Array, Array, Array]:
    """The different codes, all below `size`, ascending; per item the number of its code; and how many items each has."""
    if size > PAIRS_MAX:
        found, number, sizes = np.unique(codes, return_inverse=True, return_counts=True)
        return found, number.astype(np.int32), sizes
    sizes = np.bincount(codes, minlength=size)  # Counting a million is much quicker than sorting them.
    found = np.flatnonzero(sizes)
    number = np.zeros(size, np.int32)
    number[found] = np.arange(len(found), dtype=np.int32)
    return found, number[codes], sizes[found]


def _in_axis_order(sides: build_kernels.Sides, first: Array, second: Array) -> tuple[Array, Array]:
    axis = np.append(sides.side_axis, np.int32(2**31 - 1))  # -1, no side, is behind all axes.
    swap = axis[first] > axis[second]
    return np.where(swap, second, first).astype(np.int32), np.where(swap, first, second).astype(np.int32)


def _finest(counts: Array) -> Array:
    """Per axis the shift that gives at most 2^FINEST_BITS buckets, or as many more as fields of entries need."""
    bits = np.ceil(np.log2(np.maximum(counts - 1, 1))).astype(np.int32)
    return np.clip(bits - FINEST_BITS, 0, match_kernels.FIELD_BITS).astype(np.int32)  # type: ignore[no-any-return]


def _costs(entries: Array, sizes: Array, counts: Array, a: Array, b: Array) -> Array:
    """Nanoseconds per event to look into a grid, by pair and levels; what may not be chosen costs much more."""
    level, finest = np.arange(build_kernels.LEVELS), _finest(counts)
    shift_a, shift_b = finest[a][:, None] + level, finest[b][:, None] + level
    rows, columns = bucket_count(counts[a][:, None], shift_a), bucket_count(counts[b][:, None], shift_b)
    cells = rows[:, :, None] * columns[:, None, :]
    size = entries * ENTRY_BYTES + cells * 4.0
    cost = PROBE_NS + CANDIDATE_NS * entries / cells + size / READ_BYTES_PER_NS / BATCH
    crowded = entries / sizes[:, None, None]
    too_coarse = (shift_a > match_kernels.FIELD_BITS)[:, :, None] | (shift_b > match_kernels.FIELD_BITS)[:, None, :]
    return cost + np.where(crowded > ENTRIES_MAX, 1e6 * crowded, 0) + np.where(too_coarse, 1e15, 0)  # type: ignore[no-any-return]
