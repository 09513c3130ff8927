"""Compaction: which segments of an index become one, and how.

The merged segment holds the subscriptions that are still there, on axes with only the cuts
that they still need. Nothing is parsed again: the cells of the old axes are renumbered on
the new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from tidings.events import EventType
from tidings.matching.axes import Axes, make_axes, sorted_numbers, sorted_texts
from tidings.matching.box_table import Array, writable
from tidings.matching.grid import NO_RESIDUAL, CellBoxes, lay_out
from tidings.matching.kernels import build as build_kernels
from tidings.matching.segment import Segment

RATIO = 2  # A segment is merged into an older one that is at most so many times larger.


class Shrinking(Protocol):
    """A segment some of whose subscriptions have been removed."""

    @property
    def segment(self) -> Segment: ...

    @property
    def removed_count(self) -> int: ...


S = TypeVar("S", bound=Shrinking)


def to_compact(parts: tuple[S, ...]) -> tuple[S, ...]:
    """The newest segments that ought to be one, each not much larger than those after it together; or none."""
    size, start = 0, len(parts)
    while start > 0 and (size == 0 or _size(parts[start - 1]) <= RATIO * size):
        start -= 1
        size += _size(parts[start])
    chosen = parts[start:]
    if len(chosen) > 1:
        return chosen
    # A segment that has lost half of its subscriptions is worth rebuilding.
    return next(((part,) for part in parts if part.removed_count * 2 > len(part.segment)), ())


def _size(part: Shrinking) -> int:
    return len(part.segment) - part.removed_count


def merge(
    segments: Sequence[Segment], alive: Sequence[Array], event_type: EventType, sample: pa.Table | None = None
) -> Segment:
    """One segment of the subscriptions with these numbers, in the order of the segments and numbers."""
    parts = [_Kept.of(segment, here) for segment, here in zip(segments, alive, strict=True)]
    used = sorted({code for part in parts for code in part.cuts})
    axes = make_axes(event_type, {c: _joined([part.cuts[c] for part in parts if c in part.cuts]) for c in used})
    owners = np.cumsum([0, *(len(here) for here in alive)])
    residuals: dict[tuple[str, ...], int] = {}
    boxes = CellBoxes(
        np.concatenate([part.owner + first for part, first in zip(parts, owners)]).astype(np.int32),
        np.concatenate([part.renumber_residuals(residuals) for part in parts]),
        _joined_sides([part.on(axes) for part in parts]),
    )
    layout, words = lay_out(boxes, axes, tuple(residuals), event_type, sample)
    ids, texts = (_taken([getattr(s, what) for s in segments], alive) for what in ("ids", "texts"))
    return Segment(ids, texts, axes, boxes, layout, tuple(residuals), words)


@dataclass(frozen=True, eq=False)
class _Kept:
    """The boxes of one segment that stay, still in its own cells, and by axis code the cuts they need."""

    segment: Segment
    owner: Array
    residual: Array
    sides: build_kernels.Sides
    cuts: dict[int, Any]

    @classmethod
    def of(cls, segment: Segment, alive: Array) -> _Kept:
        number = np.full(len(segment), -1, np.int32)
        number[alive] = np.arange(len(alive), dtype=np.int32)
        boxes = np.flatnonzero(number[segment.boxes.owner] >= 0).astype(np.int32)
        sides = _selected(segment.boxes.sides, boxes)
        owner, residual = number[segment.boxes.owner[boxes]], segment.boxes.residual[boxes]
        return cls(segment, owner, residual, sides, _needed_cuts(segment.axes, sides))

    def renumber_residuals(self, residuals: dict[tuple[str, ...], int]) -> Array:
        """The boxes' residual sets by their numbers in `residuals`, which grows by those it lacks."""
        number = np.full(len(self.segment.residuals) + 1, NO_RESIDUAL, np.int32)
        for old in np.unique(self.residual[self.residual != NO_RESIDUAL]).tolist():
            number[old] = residuals.setdefault(self.segment.residuals[old], len(residuals))
        return number[self.residual]

    def on(self, axes: Axes) -> build_kernels.Sides:
        """The sides in the cells of other axes, which have all the cuts that are needed."""
        old = self.segment.axes
        codes = axes.codes.tolist()
        index_of = np.array([codes.index(code) if code in codes else 0 for code in old.codes.tolist()], np.int32)
        boundary = [_renumbered(old, axes, index, codes) for index in range(len(old))]
        first = np.cumsum([0, *(len(part) for part in boundary)])
        table = np.concatenate([np.zeros(0, np.int32), *boundary])
        low, high = np.empty_like(self.sides.piece_low), np.empty_like(self.sides.piece_high)
        # A kernel, as those have no GIL: `np.repeat` would keep readers waiting.
        build_kernels.renumber(self.sides, first, table, low, high)
        axis = index_of[self.sides.side_axis] if len(old) else self.sides.side_axis
        return self.sides._replace(side_axis=axis, piece_low=low, piece_high=high)


def _selected(sides: build_kernels.Sides, boxes: Array) -> build_kernels.Sides:
    none = np.zeros(0, np.int32)
    side_count, piece_count = np.zeros(1, np.int32), np.zeros(1, np.int32)
    build_kernels.select_boxes(sides, boxes, True, side_count, none, piece_count, none, none)
    sizes = (len(boxes) + 1, side_count[0], side_count[0] + 1, piece_count[0], piece_count[0])
    arrays = [np.empty(size, np.int32) for size in sizes]
    build_kernels.select_boxes(sides, boxes, False, *arrays)
    return build_kernels.Sides(*map(writable, arrays))


def _needed_cuts(axes: Axes, sides: build_kernels.Sides) -> dict[int, Any]:
    """By axis code the cuts that are a bound of some side."""
    first = np.concatenate([[0], np.cumsum(axes.cell_counts + 1)])
    marks = np.zeros(int(first[-1]), np.uint8)
    build_kernels.mark_bounds(sides, first, marks)
    is_bound = marks.astype(bool)
    used, codes = np.flatnonzero(np.bincount(sides.side_axis)).tolist(), axes.codes
    return {int(codes[i]): _those(axes.cuts(i), is_bound[first[i] + 2 : first[i + 1] - 1]) for i in used}


def _those(cuts: Any, wanted: Array) -> Any:
    return cuts[wanted] if isinstance(cuts, np.ndarray) else cuts.filter(pa.array(wanted))


def _joined(cuts: list[Any]) -> Any:
    if isinstance(cuts[0], np.ndarray):
        return sorted_numbers(cuts)
    return sorted_texts(pa.concat_arrays(cuts))


def _renumbered(old: Axes, new: Axes, index: int, codes: list[int]) -> Array:
    """By boundary between cells of an old axis (NULL, start, cuts, end) the same one's number on the new axis."""
    code = int(old.codes[index])
    if code not in codes:
        return np.zeros(int(old.cell_counts[index]) + 1, np.int32)
    at = codes.index(code)
    cuts = new.boundaries(at, old.cuts(index))
    return np.concatenate([[0, 1], cuts, [new.cell_counts[at]]]).astype(np.int32)


def _joined_sides(parts: list[build_kernels.Sides]) -> build_kernels.Sides:
    side_first = np.cumsum([0, *(len(part.side_axis) for part in parts)])
    piece_first = np.cumsum([0, *(len(part.piece_low) for part in parts)])
    arrays = (
        np.concatenate([[0], *(part.side_ptr[1:] + first for part, first in zip(parts, side_first))]),
        np.concatenate([part.side_axis for part in parts]),
        np.concatenate([[0], *(part.piece_ptr[1:] + first for part, first in zip(parts, piece_first))]),
        np.concatenate([part.piece_low for part in parts]),
        np.concatenate([part.piece_high for part in parts]),
    )
    return build_kernels.Sides(*(writable(array.astype(np.int32)) for array in arrays))


def _taken(arrays: list[pa.Array], alive: Sequence[Array]) -> pa.Array:
    taken = [a if len(a) == len(here) else a.take(pa.array(here)) for a, here in zip(arrays, alive)]
    return taken[0] if len(taken) == 1 else pa.concat_arrays(taken)
