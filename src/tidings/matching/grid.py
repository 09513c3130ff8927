"""How boxes lie in memory so that a batch of events meets them in order.

A **grid** divides two axes into buckets; each of its cells lists **entries**: the boxes whose
two filed sides touch the cell. An entry is one word of 64 bits, the exact part of both sides
within the cell, and the number of a **record**. There is one record per box, 32 bytes that
hold two more sides and the owner; the few boxes that have yet more to say do so among the
**extras**. Records lie in the order in which the grids reach them.

    event ──cell──▶ starts ──▶ words ──(both filed sides hold)──▶ record ──(two more)──▶ match
                                                                     └──(more to say)──▶ extras
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tidings.matching.box_table import Array, writable
from tidings.matching.kernels import build as build_kernels
from tidings.matching.kernels import match as match_kernels
from tidings.matching.parallel import ALONE, Workers
from tidings.matching.plan import Plan, make_plan

NO_RESIDUAL = -1


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


def lay_out(
    boxes: CellBoxes, cell_counts: Array, share_ptr: Array, share: Array, crew: Workers = ALONE
) -> match_kernels.Layout:
    """The arrays that `kernels.match_events` reads, for these boxes over axes with so many cells."""
    plan = make_plan(boxes.sides, cell_counts, share_ptr, share, crew)
    order = _visiting_order(boxes.sides, plan)
    cell_total = int(plan.grids[-1, match_kernels.GRID_END]) if len(plan.grids) else 0
    starts, words, entries = _file(boxes.sides, plan, order, cell_total, crew)
    records, extras = _records(boxes, plan, order, len(cell_counts), crew)
    first_grid = np.searchsorted(plan.grids[:, match_kernels.GRID_A], np.arange(len(cell_counts) + 2))
    pieces = (boxes.sides.piece_low, boxes.sides.piece_high)
    arrays = (plan.grids, first_grid.astype(np.int64), starts, words, entries, records, extras, *pieces)
    return match_kernels.Layout(*map(writable, arrays))


def _visiting_order(sides: build_kernels.Sides, plan: Plan) -> Array:
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
    sides: build_kernels.Sides, plan: Plan, order: Array, cell_total: int, crew: Workers
) -> tuple[Array, Array, Array]:
    what, runs = (sides, plan.side_a, plan.side_b, plan.grid, plan.grids), _runs_of_grids(plan, crew.run_count)
    counts = np.zeros(cell_total + 1, np.int64)
    crew.map(lambda run: build_kernels.count_cells(*what, order[run[0] : run[1]], counts), runs)
    ends = np.cumsum(counts)
    starts, size = ends.astype(np.int32), int(ends[-1])
    words, entries = (
        np.empty(size + match_kernels.UNROLLED, np.uint64),
        np.empty(size + match_kernels.UNROLLED, np.int32),
    )
    # Behind the last entry some that never hold, because kernels test a few without looking at the number.
    words[size:], entries[size:] = 2**64 - 1, 0
    crew.map(lambda run: build_kernels.file_entries(*what, order[run[0] : run[1]], run[0], ends, words, entries), runs)
    return starts, words, entries


def _runs_of_grids(plan: Plan, run_count: int) -> list[tuple[int, int]]:
    """The boxes in visiting order as at most so many runs, none of which shares a grid with another."""
    ends = np.cumsum(np.bincount(plan.grid, minlength=len(plan.grids)))
    wanted = [len(plan.grid) * run // run_count for run in range(1, run_count + 1)]
    cuts = np.unique(np.concatenate([[0], ends[np.searchsorted(ends, wanted)]])).tolist() if len(ends) else []
    return list(pairwise(cuts))


def _records(boxes: CellBoxes, plan: Plan, order: Array, no_axis: int, crew: Workers) -> tuple[Array, Array]:
    records, none = np.empty((len(order), match_kernels.RECORD_SIZE), np.int32), np.zeros(0, np.int32)
    what = (boxes.sides, plan.side_a, plan.side_b, boxes.owner, boxes.doubtful())

    def write(start: int, end: int, used: int, extras: Array) -> int:
        return build_kernels.write_records(*what, order[start:end], no_axis, used, records[start:end], extras)  # type: ignore[no-any-return]

    runs = crew.over(len(order), lambda start, end: (start, end, write(start, end, 0, none)))
    used = np.cumsum([1, *(size for _, _, size in runs)]).tolist()
    extras = np.zeros(used[-1], np.int32)
    crew.map(lambda at: write(runs[at][0], runs[at][1], used[at], extras), range(len(runs)))
    return records, extras
