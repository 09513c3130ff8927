"""Residual conditions that an index can file after all: texts with a given end are an interval of texts read backwards.

A text attribute has a second axis, on which its bytes are in reverse order. `LIKE '%end'` is an interval there, and
no residual any more; of another pattern with a plain end the interval is a first test. On an axis of its own kind every
attribute has a number, its *axis code*: twice its place in the event type, and one more for the axis that reads backwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidings.events import EventType, ValueType
from tidings.filters import like_segments, quote_name
from tidings.matching.box_table import Array, BoxColumns

# As `format_tree` writes it; a quoted text has its quotes and backslashes doubled.
_LIKE = re.compile(r"(NOT )?(.+) LIKE '((?:[^']|'')*)'", re.DOTALL)


class LikeCondition(NamedTuple):
    """A condition `[NOT] attribute LIKE pattern`; the attribute by its place in the event type."""

    attribute: int
    pattern: str
    is_negated: bool


class _Ends(NamedTuple):
    """The texts with some end, as intervals of bytes in reverse order; `is_all` if that is all the condition says."""

    attribute: int
    intervals: tuple[tuple[bytes, bytes | None], ...]
    is_all: bool


def text_names(event_type: EventType) -> dict[str, int]:
    """The string attributes as conditions write them, and their places."""
    return {quote_name(a.name): place for place, a in enumerate(event_type) if a.type is ValueType.STRING}


def read_like(text: str, names: Mapping[str, int]) -> LikeCondition | None:
    """The parts of a residual's text, if it compares one of these attributes with a pattern and does nothing else.

    >>> read_like("NOT plate LIKE '%''7'", {"plate": 3})
    LikeCondition(attribute=3, pattern="%'7", is_negated=True)
    """
    found = _LIKE.fullmatch(text)
    if found is None or found[2] not in names:
        return None
    return LikeCondition(names[found[2]], found[3].replace("''", "'").replace("\\\\", "\\"), found[1] is not None)


def with_reversed_sides(columns: BoxColumns, event_type: EventType) -> BoxColumns:
    """The same boxes by axis code, with sides on reversed axes in place of residuals, or beside them."""
    coded = columns.residuals.dictionary_encode()
    names = text_names(event_type)
    ends = [_ends(read_like(text, names)) for text in coded.dictionary.to_pylist()]
    plain = replace(columns, attribute=2 * columns.attribute)
    if not any(ends):
        return plain
    kind = coded.indices.to_numpy()
    here, box = _first_by_axis(columns, ends, kind)
    sides = [end for end in map(ends.__getitem__, kind[here].tolist()) if end]
    is_said = np.zeros(len(kind), bool)
    is_said[here] = [end.is_all for end in sides]
    return _without(_joined(plain, sides, box), is_said)


def _ends(condition: LikeCondition | None) -> _Ends | None:
    if condition is None:
        return None
    first, *middle = like_segments(condition.pattern)
    last = middle[-1] if middle else first
    if not middle or not last.runs or last.runs[-1][0] + len(last.runs[-1][1]) != last.length:
        return None
    is_all = len(middle) == 1 and not first.length and last.is_plain
    low = last.runs[-1][1].encode()[::-1]
    high = low[:-1] + bytes([low[-1] + 1])  # No byte of UTF-8 is the last one.
    if condition.is_negated:
        return _Ends(condition.attribute, ((b"", low), (high, None)), True) if is_all else None
    return _Ends(condition.attribute, ((low, high),), is_all)


def _first_by_axis(columns: BoxColumns, ends: list[_Ends | None], kind: Array) -> tuple[Array, Array]:
    """The residuals that become sides, the first of each box and attribute, in the order of boxes; and their boxes."""
    attribute = np.array([end.attribute if end else -1 for end in ends], np.int64)[kind]
    box = np.repeat(np.arange(len(columns.residual_ptr) - 1), np.diff(columns.residual_ptr))
    able = np.flatnonzero(attribute >= 0)
    _, first = np.unique(box[able] * (attribute.max() + 1) + attribute[able], return_index=True)
    here = np.sort(able[first])
    return here, box[here]


def _joined(columns: BoxColumns, sides: list[_Ends], box: Array) -> BoxColumns:
    """The columns with a further side for each of these boxes, behind those that it has."""
    count = len(columns.side_ptr) - 1
    boxes = np.concatenate([np.repeat(np.arange(count), np.diff(columns.side_ptr)), box])
    order = np.argsort(boxes, kind="stable")
    sizes = np.array([len(side.intervals) for side in sides], np.int64)
    text_sizes = np.concatenate([np.diff(columns.text_ptr), sizes])
    starts = np.cumsum(text_sizes) - text_sizes
    text_ptr = _summed(text_sizes[order])
    texts = np.repeat(starts[order] - text_ptr[:-1], text_sizes[order]) + np.arange(text_ptr[-1])
    codes = np.array([2 * side.attribute + 1 for side in sides], np.int32)
    return replace(
        columns,
        side_ptr=_summed(np.bincount(boxes, minlength=count)),
        attribute=np.concatenate([columns.attribute, codes])[order].astype(np.int32),
        null=np.concatenate([columns.null, np.zeros(len(sides), np.uint8)])[order],
        number_ptr=_summed(np.concatenate([np.diff(columns.number_ptr), np.zeros(len(sides), np.int64)])[order]),
        text_ptr=text_ptr,
        text_low=_with_bounds(columns.text_low, sides, 0).take(pa.array(texts)),
        text_high=_with_bounds(columns.text_high, sides, 1).take(pa.array(texts)),
    )


def _with_bounds(bounds: pa.Array, sides: list[_Ends], which: int) -> pa.Array:
    more: list[Any] = [interval[which] for side in sides for interval in side.intervals]
    return pa.concat_arrays([bounds, pa.array(more, pa.binary())])


def _without(columns: BoxColumns, is_said: Array) -> BoxColumns:
    """The columns without the residuals that sides say."""
    before = _summed(~is_said)
    return replace(
        columns,
        residual_ptr=before[columns.residual_ptr],
        residuals=columns.residuals.filter(pa.array(~is_said)),
    )


def _summed(counts: Array) -> Array:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
