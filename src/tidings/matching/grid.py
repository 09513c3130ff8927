"""How boxes are filed: under which two sides each, how finely, and how they lie in memory.

A **grid** divides two axes into buckets. Each of its cells lists **entries**: the boxes whose
two filed sides touch the cell. An entry is one word of 64 bits, the exact part of both sides
within the cell, and the number of a **record**. There is one record per box, 32 bytes that
hold two more sides and the owner. The few boxes with more sides than that keep them in the
**extras**. Records lie in the order in which the grids reach them, so that a batch of events
reads memory forwards.

    event ──cell──▶ starts ──▶ words ──(both filed sides hold)──▶ record ──(two more)──▶ match
                                                                     └──(more sides)───▶ extras

Three steps lead there, in the order of this file:

    selectivity   estimates how many events fall into each cell
    plan          files each box under its two most selective sides; a grid with too few boxes
                  to be worth a look per event gives way to a list by the more selective side
    layout        writes grids, entries and records as the flat arrays that the kernels read

The first two are estimates: they decide speed, never the answer. Costs are in nanoseconds per
event, as `benchmarks/engine_speed.py` measured them on one machine; only their ratios matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tidings.events import EventType
from tidings.matching.axes import Axes
from tidings.matching.box_table import Array, writable
from tidings.matching.kernels import build as build_kernels
from tidings.matching.kernels import match as match_kernels
from tidings.matching.kernels.threads import ALONE, Workers
from tidings.matching.residuals.words import WordIndex, file_under_words

NO_RESIDUAL = -1

ResidualSets: TypeAlias = tuple[tuple[str, ...], ...]

NULL_SHARE = 0.02  # Events that lack an attribute some condition names, as long as no sample shows how many.
GAP_WEIGHT = 0.1  # Of a text between two that conditions mention, relative to one that they mention.
SAMPLE_WEIGHT = 0.9  # How much a sample counts; the rest is for cells that it happens not to touch.

PROBE_NS = 5.0  # Looking into one grid cell.
CANDIDATE_NS = 2.0  # Testing one entry of it.
HIT_NS = 8.0  # Checking the remaining sides of one whose filed sides hold.
READ_BYTES_PER_NS = 8.0
READ_ONCE_EVENTS = 16_384  # Events that share the cost of reading a grid once.

# How many entries a box may have on average in one grid. With 12 bytes each it bounds memory per condition.
ENTRIES_MAX = 12.0
ENTRY_BYTES = 12
FINEST_BITS = 9
LIST_SLACK = 1.3  # Candidates of a list per one whose side holds: buckets are wider than the sides' ends.
BLUR = 0.01  # What the width of a bucket adds to the chance that a side's entry is a candidate, roughly.
ROUNDS = 4
PAIRS_MAX = 1 << 20  # Pairs of axes that are counted one by one while sides are chosen.
PAIR_BOXES_MIN = 16  # A pair of axes with fewer boxes is not even weighed.


@dataclass(frozen=True, slots=True)
class CellBoxes:
    """Boxes in cells: whose each is, which set of residuals it has (or NO_RESIDUAL), and its sides."""

    owner: Array
    residual: Array
    sides: build_kernels.Sides

    def __len__(self) -> int:
        return len(self.owner)

    def doubtful(self) -> Array:
        """Per box whether it cannot decide alone: it has residuals, or its owner has other boxes."""
        siblings = np.bincount(self.owner, minlength=1)[self.owner] > 1 if len(self) else np.zeros(0, bool)
        return (siblings | (self.residual != NO_RESIDUAL)).astype(np.int32)  # type: ignore[no-any-return]


# ── Selectivity ────────────────────────────────────────────────────────────────


def cell_shares(axes: Axes, event_type: EventType, sample: pa.Table | None = None) -> tuple[Array, Array]:
    """Where each axis starts in the second array, and there, per cell, the part of events in cells below it.

    Without a sample each cell is as likely as any other, since conditions tend to be written
    where events are. Texts that are asked for by name are likelier than those in between.
    """
    located = axes.locate(sample, event_type) if sample is not None and sample.num_rows else None
    each = [np.zeros(0, np.float32)]
    for index, cells in enumerate(axes.cell_counts.tolist()):
        weight = _guess(axes, index, cells)
        if located is not None:
            seen = np.bincount(located[index], minlength=cells) / located.shape[1]
            weight = SAMPLE_WEIGHT * seen + (1 - SAMPLE_WEIGHT) * weight
        each.append(np.concatenate([[0], np.cumsum(weight)]).astype(np.float32))
    ends = np.cumsum([len(share) for share in each])
    return ends[:-1].astype(np.int64), np.concatenate(each)


def _guess(axes: Axes, index: int, cells: int) -> Array:
    weight = np.ones(cells)
    if axes.is_text(index):
        weight[2:][~axes.points(index)] = GAP_WEIGHT
        weight[1] = GAP_WEIGHT
    weight[0] = 0
    weight *= (1 - NULL_SHARE) / weight.sum()
    weight[0] = NULL_SHARE
    return weight


# ── Plan ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class FilingPlan:
    """Grids, and per box its grid and the sides filed along the grid's two axes (-1: none).

    `likely` is how likely an event is to have both.
    """

    grids: Array
    grid: Array
    side_a: Array
    side_b: Array
    likely: Array


def make_plan(
    sides: build_kernels.Sides, cell_counts: Array, share_ptr: Array, share: Array, workers: Workers = ALONE
) -> FilingPlan:
    """Files every box somewhere: under two sides, one, or, if it has none, where all events look."""
    chance = np.empty(max(len(sides.side_axis), 1), np.float32)
    workers.over(len(sides.side_axis), lambda *run: build_kernels.measure_sides(sides, share_ptr, share, *run, chance))
    first, second = _choose(sides, chance, len(cell_counts), workers)
    counts = np.append(cell_counts, 1)  # The last axis is one with a single cell, which all boxes and events share.
    second = _second_if_it_pays(sides, first, second, chance, counts, workers)
    pairs = _Pairs.of(sides, first, second, counts, workers)
    likely = np.where(first >= 0, chance[first], 1) * np.where(second >= 0, chance[second], 1)
    return FilingPlan(pairs.grids(), pairs.pair, pairs.side_a, pairs.side_b, likely)


def _choose(sides: build_kernels.Sides, chance: Array, axes: int, workers: Workers) -> tuple[Array, Array]:
    """Per box the sides to file it under. A pair of axes that few boxes choose costs each of them more in the next round."""
    boxes = len(sides.side_ptr) - 1
    first, second = np.empty(boxes, np.int32), np.empty(boxes, np.int32)
    costs = np.array([CANDIDATE_NS, HIT_NS, BLUR], np.float32)
    probe = np.zeros(min((axes + 1) ** 2, PAIRS_MAX))
    for _ in range(ROUNDS):
        sizes = workers.over(boxes, partial(_choose_some, (sides, chance, axes, costs, probe), (first, second)))
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
    def of(cls, sides: build_kernels.Sides, first: Array, second: Array, counts: Array, workers: Workers) -> _Pairs:
        side_a, side_b = _in_axis_order(sides, first, second)
        axis = np.append(sides.side_axis, np.int32(len(counts) - 1)).astype(np.int64)
        codes, pair, sizes = _distinct(axis[side_a] * len(counts) + axis[side_b], len(counts) ** 2)
        a, b = codes // len(counts), codes % len(counts)
        what, shape = (
            (sides, side_a, side_b, pair, _finest(counts)),
            (len(codes), build_kernels.LEVELS, build_kernels.LEVELS),
        )
        entries = np.sum(workers.over(len(pair), partial(_count_some, what, shape)), 0)
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
    sides: build_kernels.Sides, first: Array, second: Array, chance: Array, counts: Array, workers: Workers
) -> Array:
    """`second`, or -1 for the boxes of pairs whose grid would cost more than lists by the first sides."""
    second = _second_if_common(sides, first, second, len(counts))
    pairs = _Pairs.of(sides, first, second, counts, workers)
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
    cost = PROBE_NS + CANDIDATE_NS * entries / cells + size / READ_BYTES_PER_NS / READ_ONCE_EVENTS
    crowded = entries / sizes[:, None, None]
    too_coarse = (shift_a > match_kernels.FIELD_BITS)[:, :, None] | (shift_b > match_kernels.FIELD_BITS)[:, None, :]
    return cost + np.where(crowded > ENTRIES_MAX, 1e6 * crowded, 0) + np.where(too_coarse, 1e15, 0)  # type: ignore[no-any-return]


# ── Layout ─────────────────────────────────────────────────────────────────────


def lay_out(
    boxes: CellBoxes,
    axes: Axes,
    residuals: ResidualSets,
    event_type: EventType,
    sample: pa.Table | None = None,
    workers: Workers = ALONE,
) -> tuple[match_kernels.GridLayout, WordIndex]:
    """The arrays that `kernels.match` reads, for these boxes on these axes; and those boxes that are filed under words.

    `sample`, conformed events, tells which cells are likely; see `cell_shares`.
    """
    cell_counts = axes.cell_counts
    plan = make_plan(boxes.sides, cell_counts, *cell_shares(axes, event_type, sample), workers)
    by_word, is_elsewhere = file_under_words(residuals, boxes.residual, plan.likely, event_type)
    order = _visiting_order(boxes.sides, plan)
    order = order[~is_elsewhere[order]] if by_word else order
    cell_total = int(plan.grids[-1, match_kernels.GRID_END]) if len(plan.grids) else 0
    starts, words, entries = _file(boxes.sides, plan, order, cell_total, workers)
    records, extras = _records(boxes, plan, order, len(cell_counts), workers)
    first_grid = np.searchsorted(plan.grids[:, match_kernels.GRID_A], np.arange(len(cell_counts) + 2))
    pieces = (boxes.sides.piece_low, boxes.sides.piece_high)
    arrays = (plan.grids, first_grid.astype(np.int64), starts, words, entries, records, extras, *pieces)
    return match_kernels.GridLayout(*map(writable, arrays)), by_word


def _visiting_order(sides: build_kernels.Sides, plan: FilingPlan) -> Array:
    """Boxes by grid, then by the first bucket along its two axes."""
    if not len(plan.grid):
        return np.zeros(0, np.int32)
    row = _first_bucket(sides, plan.side_a, plan.grids[plan.grid, match_kernels.GRID_SHIFT_A])
    column = _first_bucket(sides, plan.side_b, plan.grids[plan.grid, match_kernels.GRID_SHIFT_B])
    place = (plan.grid.astype(np.int64) << 32) | (row << 16) | column
    return np.argsort(place, kind="stable").astype(np.int32)


def _first_bucket(sides: build_kernels.Sides, side: Array, shift: Array) -> Array:
    low = np.append(sides.piece_low, np.int32(0))[np.append(sides.piece_ptr[:-1], len(sides.piece_low))[side]]
    return (low.astype(np.int64) + (1 << shift) - 1) >> shift  # type: ignore[no-any-return]


def _file(
    sides: build_kernels.Sides, plan: FilingPlan, order: Array, cell_total: int, workers: Workers
) -> tuple[Array, Array, Array]:
    what, runs = (
        (sides, plan.side_a, plan.side_b, plan.grid, plan.grids),
        _runs_of_grids(plan, order, workers.run_count),
    )
    counts = np.zeros(cell_total + 1, np.int64)
    workers.map(lambda run: build_kernels.count_cells(*what, order[run[0] : run[1]], counts), runs)
    ends = np.cumsum(counts)
    starts, size = ends.astype(np.int32), int(ends[-1])
    words, entries = (
        np.empty(size + match_kernels.UNROLLED, np.uint64),
        np.empty(size + match_kernels.UNROLLED, np.int32),
    )
    # Some entries that never hold follow the last one, because kernels test a few without looking at the number.
    words[size:], entries[size:] = 2**64 - 1, 0
    workers.map(
        lambda run: build_kernels.file_entries(*what, order[run[0] : run[1]], run[0], ends, words, entries), runs
    )
    return starts, words, entries


def _runs_of_grids(plan: FilingPlan, order: Array, run_count: int) -> list[tuple[int, int]]:
    """The boxes in visiting order as at most so many runs, none of which shares a grid with another."""
    ends = np.cumsum(np.bincount(plan.grid[order], minlength=len(plan.grids)))
    wanted = [len(order) * run // run_count for run in range(1, run_count + 1)]
    cuts = np.unique(np.concatenate([[0], ends[np.searchsorted(ends, wanted)]])).tolist() if len(ends) else []
    return list(pairwise(cuts))


def _records(boxes: CellBoxes, plan: FilingPlan, order: Array, no_axis: int, workers: Workers) -> tuple[Array, Array]:
    records, none = np.empty((len(order), match_kernels.RECORD_SIZE), np.int32), np.zeros(0, np.int32)
    what = (boxes.sides, plan.side_a, plan.side_b, boxes.owner, boxes.doubtful())

    def write(start: int, end: int, used: int, extras: Array) -> int:
        return build_kernels.write_records(*what, order[start:end], no_axis, used, records[start:end], extras)  # type: ignore[no-any-return]

    runs = workers.over(len(order), lambda start, end: (start, end, write(start, end, 0, none)))
    used = np.cumsum([1, *(size for _, _, size in runs)]).tolist()
    extras = np.zeros(used[-1], np.int32)
    workers.map(lambda at: write(runs[at][0], runs[at][1], used[at], extras), range(len(runs)))
    return records, extras
