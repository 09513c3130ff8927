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

import numpy as np

from tidings.matching import filing, kernels
from tidings.matching.boxes import Array, writable
from tidings.matching.plan import Plan, make_plan

NO_RESIDUAL = -1


@dataclass(frozen=True, slots=True)
class CellBoxes:
    """Boxes in cells: whose each is, which set of residuals it has (or NO_RESIDUAL), and its sides."""

    owner: Array
    residual: Array
    sides: filing.Sides

    def __len__(self) -> int:
        return len(self.owner)

    def doubtful(self) -> Array:
        """Per box whether it cannot decide alone: it has residuals, or its owner has other boxes."""
        siblings = np.bincount(self.owner, minlength=1)[self.owner] > 1 if len(self) else np.zeros(0, bool)
        return (siblings | (self.residual != NO_RESIDUAL)).astype(np.int32)  # type: ignore[no-any-return]


def lay_out(boxes: CellBoxes, cell_counts: Array, share_ptr: Array, share: Array) -> kernels.Layout:
    """The arrays that `kernels.match_events` reads, for these boxes over axes with so many cells."""
    plan = make_plan(boxes.sides, cell_counts, share_ptr, share)
    order = _visiting_order(boxes.sides, plan)
    cell_total = int(plan.grids[-1, kernels.GRID_END]) if len(plan.grids) else 0
    starts, words, entries = _file(boxes.sides, plan, order, cell_total)
    records, extras = _records(boxes, plan, order, len(cell_counts))
    first_grid = np.searchsorted(plan.grids[:, kernels.GRID_A], np.arange(len(cell_counts) + 2))
    pieces = (boxes.sides.piece_low, boxes.sides.piece_high)
    arrays = (plan.grids, first_grid.astype(np.int64), starts, words, entries, records, extras, *pieces)
    return kernels.Layout(*map(writable, arrays))


def _visiting_order(sides: filing.Sides, plan: Plan) -> Array:
    """Boxes by grid, then by the first bucket along its two axes."""
    if not len(plan.grid):
        return np.zeros(0, np.int32)
    row = _first_bucket(sides, plan.side_a, plan.grids[plan.grid, kernels.GRID_SHIFT_A])
    column = _first_bucket(sides, plan.side_b, plan.grids[plan.grid, kernels.GRID_SHIFT_B])
    place = (plan.grid.astype(np.int64) << 32) | (row << 16) | column
    return np.argsort(place, kind="stable").astype(np.int32)


def _first_bucket(sides: filing.Sides, side: Array, shift: Array) -> Array:
    low = np.append(sides.piece_low, np.int32(0))[np.append(sides.piece_ptr[:-1], len(sides.piece_low))[side]]
    return (low.astype(np.int64) + (1 << shift) - 1) >> shift  # type: ignore[no-any-return]


def _file(sides: filing.Sides, plan: Plan, order: Array, cell_total: int) -> tuple[Array, Array, Array]:
    counts = np.zeros(cell_total + 1, np.int64)
    filing.count_cells(sides, plan.side_a, plan.side_b, plan.grid, plan.grids, order, counts)
    ends = np.cumsum(counts)
    starts = ends.astype(np.int32)
    # Behind the last entry some that never hold, because kernels test a few without looking at the number.
    words = np.full(int(ends[-1]) + kernels.UNROLLED, 2**64 - 1, np.uint64)
    entries = np.zeros(len(words), np.int32)
    filing.file_entries(sides, plan.side_a, plan.side_b, plan.grid, plan.grids, order, ends, words, entries)
    return starts, words, entries


def _records(boxes: CellBoxes, plan: Plan, order: Array, no_axis: int) -> tuple[Array, Array]:
    records, none = np.empty((len(order), kernels.RECORD_SIZE), np.int32), np.zeros(0, np.int32)
    what = (boxes.sides, plan.side_a, plan.side_b, boxes.owner, boxes.doubtful(), order, no_axis, records)
    extras = np.zeros(max(filing.write_records(*what, none), 1), np.int32)
    filing.write_records(*what, extras)
    return records, extras
