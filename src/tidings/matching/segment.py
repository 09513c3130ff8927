"""A segment: an immutable index of some subscriptions, made of flat arrays.

`build` makes one from columns of boxes, `compaction.merge` from other segments. Owners, the
subscriptions that boxes belong to, are numbered from 0 in the order in which they were added.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import InputError
from tidings.events import EventType, ValueType
from tidings.filters import DOMAIN
from tidings.matching.axes import Axes, make_axes, sorted_numbers, sorted_texts
from tidings.matching.box_table import Array, BoxColumns, writable
from tidings.matching.grid import NO_RESIDUAL, CellBoxes, ResidualSets, lay_out
from tidings.matching.kernels import build as build_kernels
from tidings.matching.kernels import match as match_kernels
from tidings.matching.kernels.threads import ALONE, Workers
from tidings.matching.residuals.indexable import with_reversed_sides
from tidings.matching.residuals.words import NO_WORDS, WordIndex


@dataclass(frozen=True, eq=False)
class Segment:
    """Subscriptions by number: `ids` and `texts`; their boxes, and the axes, layout and words to find them by.

    `residuals` holds the different sets of residuals that boxes have, each as texts.
    """

    ids: pa.Array
    texts: pa.Array
    axes: Axes
    boxes: CellBoxes
    layout: match_kernels.GridLayout
    residuals: ResidualSets
    words: WordIndex = NO_WORDS

    def __len__(self) -> int:
        return len(self.ids)


def build(
    columns: BoxColumns, event_type: EventType, sample: pa.Table | None = None, workers: Workers = ALONE
) -> Segment:
    """A segment of these subscriptions; `sample`, conformed events, shows which sides are selective."""
    columns = with_reversed_sides(columns, event_type)
    numbers, texts = _Bounds.of_numbers(columns, event_type), _Bounds.of_texts(columns)
    used = np.flatnonzero(np.bincount(columns.attribute)).tolist()
    cuts = workers.map(lambda code: _cuts(code, numbers, texts, event_type), used)
    axes = make_axes(event_type, dict(zip(used, cuts)))
    sides = _in_cells(columns, axes, numbers, texts, workers)
    residual, residuals = _residual_sets(columns)
    owner = np.repeat(np.arange(len(columns), dtype=np.int32), np.diff(columns.box_ptr))
    boxes = CellBoxes(owner, residual, sides)
    layout, words = lay_out(boxes, axes, residuals, event_type, sample, workers)
    return Segment(columns.ids, columns.texts, axes, boxes, layout, residuals, words)


# ── From keys to cells ───────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class _Bounds:
    """The bounds of all intervals of one kind, numbers or texts, and which of them are open ends.

    `order` lists the intervals by axis code, those of code c at `code_ptr[c]:code_ptr[c + 1]`.
    """

    low: Any
    high: Any
    open_low: Array
    open_high: Array
    order: Array
    code_ptr: Array

    @classmethod
    def of_numbers(cls, columns: BoxColumns, event_type: EventType) -> _Bounds:
        code = np.repeat(columns.attribute, np.diff(columns.number_ptr))
        first, last = _domains(event_type)
        low, high = _filled(columns.number_low), _filled(columns.number_high)
        open_low = _nulls(columns.number_low) | (low <= first[code >> 1])
        open_high = _nulls(columns.number_high) | (high > last[code >> 1])
        return cls(low, high, open_low, open_high, *_by_code(code))

    @classmethod
    def of_texts(cls, columns: BoxColumns) -> _Bounds:
        code = np.repeat(columns.attribute, np.diff(columns.text_ptr))
        low, high = columns.text_low.fill_null(b""), columns.text_high.fill_null(b"")
        open_low = pc.equal(pc.binary_length(low), 0).to_numpy(zero_copy_only=False).astype(bool)
        return cls(low, high, open_low, _nulls(columns.text_high), *_by_code(code))

    def of(self, code: int) -> Array:
        """The intervals on an axis."""
        if code + 1 >= len(self.code_ptr):
            return self.order[:0]
        return self.order[self.code_ptr[code] : self.code_ptr[code + 1]]

    def cells(self, axes: Axes, workers: Workers, *, text: bool) -> tuple[Array, Array]:
        """The first cell of every interval, and the one behind the last."""
        low, high = np.ones(len(self.low), np.int32), np.empty(len(self.low), np.int32)
        cell_counts, codes = axes.cell_counts, axes.codes

        def write(index: int) -> None:
            here = self.of(int(codes[index]))
            high[here] = cell_counts[index]
            below, above = here[~self.open_low[here]], here[~self.open_high[here]]
            low[below] = axes.boundaries(index, _taken(self.low, below))
            high[above] = axes.boundaries(index, _taken(self.high, above))

        workers.map(write, [index for index in range(len(axes)) if axes.is_text(index) == text])
        return low, high


def _cuts(code: int, numbers: _Bounds, texts: _Bounds, event_type: EventType) -> Any:
    if event_type.attributes[code >> 1].type.has_int_keys:
        here = numbers.of(code)
        low, high = here[~numbers.open_low[here]], here[~numbers.open_high[here]]
        return sorted_numbers([numbers.low[low], numbers.high[high]])
    here = texts.of(code)
    low, high = here[~texts.open_low[here]], here[~texts.open_high[here]]
    return sorted_texts(pa.concat_arrays([_taken(texts.low, low), _taken(texts.high, high)]))


def _in_cells(
    columns: BoxColumns, axes: Axes, numbers: _Bounds, texts: _Bounds, workers: Workers
) -> build_kernels.Sides:
    number_cells, text_cells = numbers.cells(axes, workers, text=False), texts.cells(axes, workers, text=True)
    what = (columns.null, columns.number_ptr, *number_cells, columns.text_ptr, *text_cells)
    ptr, none = np.empty(len(columns.attribute) + 1, np.int32), np.zeros(0, np.int32)
    if (wrong := build_kernels.join_pieces(*what, True, ptr, none, none)) >= 0:
        box = int(np.searchsorted(columns.side_ptr, wrong, "right")) - 1
        row = int(np.searchsorted(columns.box_ptr, box, "right")) - 1
        raise InputError(f"expected intervals that ascend and do not touch, got others in row {row} of the boxes")
    low, high = np.empty(ptr[-1], np.int32), np.empty(ptr[-1], np.int32)
    build_kernels.join_pieces(*what, False, ptr, low, high)
    axis_of = np.zeros(int(axes.codes.max(initial=0)) + 1, np.int32)
    axis_of[axes.codes] = np.arange(len(axes))
    arrays = (columns.side_ptr.astype(np.int32), axis_of[columns.attribute], ptr, low, high)
    return build_kernels.Sides(*map(writable, arrays))


def _residual_sets(columns: BoxColumns) -> tuple[Array, ResidualSets]:
    """Per box the number of its set of residuals, and the sets."""
    residual = np.full(len(columns.side_ptr) - 1, NO_RESIDUAL, np.int32)
    numbers: dict[tuple[str, ...], int] = {}
    texts = columns.residuals.to_pylist()
    for box in np.flatnonzero(np.diff(columns.residual_ptr)).tolist():
        wanted = tuple(texts[columns.residual_ptr[box] : columns.residual_ptr[box + 1]])
        residual[box] = numbers.setdefault(wanted, len(numbers))
    return residual, tuple(numbers)


def _by_code(code: Array) -> tuple[Array, Array]:
    order = np.argsort(code.astype(np.int16), kind="stable")  # At most twice as many as the 4,096 of an event type.
    return order, np.concatenate([[0], np.cumsum(np.bincount(code))])


def _domains(event_type: EventType) -> tuple[Array, Array]:
    """The first and the last key of each attribute, where keys are ints."""
    ends = [DOMAIN[a.type] if a.type.has_int_keys and a.type is not ValueType.NULL else (0, 1) for a in event_type]
    return np.array([low for low, _ in ends], np.int64), np.array([high - 1 for _, high in ends], np.int64)  # type: ignore[operator]


def _filled(numbers: pa.Array) -> Array:
    return numbers.fill_null(0).to_numpy()  # type: ignore[no-any-return]


def _nulls(array: pa.Array) -> Array:
    return array.is_null().to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _taken(bounds: Any, here: Array) -> Any:
    return bounds[here] if isinstance(bounds, np.ndarray) else bounds.take(pa.array(here))
