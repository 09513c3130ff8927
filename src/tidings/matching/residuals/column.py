"""A column of values with NULLs, and SQL's three-valued logic over columns.

| type | values |
| --- | --- |
| bool | bools, false where NULL |
| int, timestamp, date, time | int64 |
| double | float64 |
| decimal, string, bytes, array, map | an Arrow array |

A column of length one stands for a constant, of any length that is asked for. Where a value is NULL, the
array holds anything, except that a bool is false: so the values of a truth say where it is TRUE.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.events import ARROW_TYPES, Value, ValueType
from tidings.matching.box_table import Array, one_chunk

TEXTS = (ValueType.STRING, ValueType.BYTES)
DOUBLE_DIGITS = 15  # Of a number that every double holds exactly, as it does the powers of ten up to there.
_DTYPES = {ValueType.BOOL: np.bool_, ValueType.DOUBLE: np.float64}


def is_in_arrow(kind: ValueType) -> bool:
    """Whether the values of columns of this type are an Arrow array."""
    return kind in TEXTS or kind.is_decimal or kind.has_items


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """Values of one type; `valid` says which of them are not NULL, and None that all are not."""

    type: ValueType
    values: Any
    valid: Array | None = None

    def __post_init__(self) -> None:
        """Makes values and `valid` as long as each other, if one of them came from a constant."""
        if self.valid is None or len(self.valid) == len(self.values):
            return
        if len(self.valid) == 1:
            object.__setattr__(self, "valid", np.broadcast_to(self.valid, len(self.values)))
        elif is_in_arrow(self.type):
            object.__setattr__(self, "values", self.values.take(pa.array(np.zeros(len(self.valid), np.int32))))
        else:
            object.__setattr__(self, "values", np.broadcast_to(self.values, len(self.valid)))

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def of_arrow(cls, array: pa.Array | pa.ChunkedArray, kind: ValueType) -> Column:
        """A column of a conformed table."""
        flat = one_chunk(array)
        valid = None if not flat.null_count else flat.is_valid().to_numpy(zero_copy_only=False)
        if is_in_arrow(kind):
            return cls(kind, flat, valid)
        if kind is ValueType.NULL:
            return cls(kind, np.zeros(len(flat), np.int64), np.zeros(len(flat), bool))
        if kind is ValueType.DATE:
            flat = flat.cast(pa.int32())
        if flat.type != (plain := pa.bool_() if kind is ValueType.BOOL else _plain_type(kind)):
            flat = flat.cast(plain)
        filled = flat.fill_null(False if kind is ValueType.BOOL else 0) if valid is not None else flat
        return cls(kind, filled.to_numpy(zero_copy_only=False), valid)

    @classmethod
    def constants(cls, values: list[Value | None], kind: ValueType) -> Column:
        """Python values as a column."""
        if is_in_arrow(kind) or kind is ValueType.NULL:
            return cls.of_arrow(pa.array(values, ARROW_TYPES[kind]), kind)
        valid = np.array([value is not None for value in values], bool)
        content: Array = np.array([0 if value is None else value for value in values], _DTYPES.get(kind, np.int64))
        return cls(kind, content, None if valid.all() else valid)

    def take(self, places: Array) -> Column:
        """The values at these places; a constant stays one."""
        if len(self) == 1:
            return self
        values = self.values.take(pa.array(places)) if is_in_arrow(self.type) else self.values[places]
        return Column(self.type, values, None if self.valid is None else self.valid[places])

    @property
    def nbytes(self) -> int:
        return int(self.values.nbytes) + (0 if self.valid is None else self.valid.nbytes)

    def null_where(self, places: Array) -> Column:
        """The same with NULLs at these places, given as bools, too."""
        return Column(self.type, self.values, ~places if self.valid is None else self.valid & ~places)

    def is_null(self) -> Array:
        return np.zeros(len(self), bool) if self.valid is None else ~self.valid

    def as_arrow(self) -> pa.Array:
        return self.values if is_in_arrow(self.type) else pa.array(self.values)

    def doubles(self) -> Array:
        if self.type.is_decimal:
            return _doubles_of(self.values)
        return self.values.astype(np.float64) if self.type is not ValueType.DOUBLE else self.values  # type: ignore[no-any-return]


def truth(values: Any, valid: Array | None = None) -> Column:
    """A column of truths; what it holds where it is not valid does not matter."""
    flat = np.asarray(values, bool)
    return Column(ValueType.BOOL, flat if valid is None else flat & valid, valid)


def both_valid(columns: list[Column]) -> Array | None:
    """Where none of the columns is NULL; None if nowhere is one."""
    found: Array | None = None
    for column in columns:
        if column.valid is not None:
            found = column.valid if found is None else found & column.valid
    return found


def all_of(columns: Iterable[Column]) -> Column:
    """AND: FALSE if one is FALSE, or else NULL if one is NULL. Takes one column after another, and keeps none."""
    rest = iter(columns)
    first = next(rest)
    values, valid = first.values, first.valid
    for column in rest:
        if valid is not None or column.valid is not None:
            mine = np.True_ if valid is None else valid
            other = np.True_ if column.valid is None else column.valid
            valid = (mine & other) | (mine & ~values) | (other & ~column.values)
        values = values & column.values
    return Column(ValueType.BOOL, values, valid)


def negation(column: Column) -> Column:
    if column.type is ValueType.NULL:
        return truth(np.zeros(len(column), bool), column.valid)
    return truth(~column.values, column.valid)


def any_of(columns: Iterable[Column]) -> Column:
    """OR: TRUE if one is TRUE, or else NULL if one is NULL."""
    return negation(all_of(map(negation, columns)))


def texts_at(content: pa.Buffer | bytes | Array, ptr: Array, kind: ValueType, valid: Array | None = None) -> Column:
    """Texts given by pointers into bytes, as a column."""
    bits = None if valid is None else pc.cast(pa.array(valid), pa.bool_()).buffers()[1]
    buffers = [bits, pa.py_buffer(ptr.astype(np.int32)), pa.py_buffer(content)]
    return Column.of_arrow(pa.Array.from_buffers(ARROW_TYPES[kind], len(ptr) - 1, buffers), kind)


def text_buffers(array: pa.Array) -> tuple[Array, Array]:
    """The offsets and the bytes of an Arrow array of texts; a NULL is an empty text or any other."""
    if not len(array):
        return np.zeros(1, np.int32), np.zeros(0, np.uint8)
    _, offsets, content = array.buffers()
    here = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    return here, np.frombuffer(content, np.uint8) if content is not None and content.size else np.zeros(0, np.uint8)


def _doubles_of(decimals: pa.Array) -> Array:
    """The nearest doubles. (Arrow's own cast is off by the last bit here and there.)"""
    if decimals.type.precision > DOUBLE_DIGITS or not len(decimals):
        return decimals.cast(pa.string()).cast(pa.float64()).fill_null(0.0).to_numpy()  # type: ignore[no-any-return]
    words: Array = np.frombuffer(decimals.buffers()[1], np.int64)
    start, end = decimals.offset, decimals.offset + len(decimals)
    return words[2 * start : 2 * end : 2] / 10.0**decimals.type.scale  # type: ignore[no-any-return]


def _plain_type(kind: ValueType) -> pa.DataType:
    return pa.float64() if kind is ValueType.DOUBLE else pa.int64()
