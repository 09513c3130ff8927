"""The functions of conditions over columns, with the answers of `tidings.filters.functions`.

`COLUMN_FUNCTIONS` has one for each name. Each is given columns, constants among them, and gives a column; where an argument
is NULL, its result does not matter, except for a function that is total. A function without one is called value
by value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.events import INT_MAX, INT_MIN, ValueType
from tidings.filters import FUNCTIONS, INT_LENGTH_MAX, WHITESPACE
from tidings.matching.box_table import Array
from tidings.matching.kernels import texts as kernels
from tidings.matching.residuals.column import Column, both_valid, is_in_arrow, text_buffers, texts_at, truth
from tidings.matching.residuals.items import any_item, cardinality

_BOOL, _INT, _DOUBLE, _STRING = ValueType.BOOL, ValueType.INT, ValueType.DOUBLE, ValueType.STRING

ColumnFunction: TypeAlias = Callable[[Sequence[Column]], Column]


def call(name: str, kind: ValueType, args: list[Column]) -> Column:
    """The function with this name, which gives values of `kind`, of these columns, which are as long as one another or constants."""
    is_null = any(arg.type is ValueType.NULL for arg in args)
    if is_null and not FUNCTIONS[name].total:
        return Column.constants([None], kind)
    if is_null or name not in COLUMN_FUNCTIONS:
        return _value_by_value(name, kind, args)
    found = COLUMN_FUNCTIONS[name](args)
    valid = None if FUNCTIONS[name].total else both_valid([found, *args])
    return Column(found.type, found.values, found.valid) if FUNCTIONS[name].total else _with_valid(found, valid)


def _with_valid(column: Column, valid: Array | None) -> Column:
    if column.type is _BOOL:
        return truth(column.values, valid)
    return Column(column.type, column.values, valid)


def _value_by_value(name: str, kind: ValueType, args: list[Column]) -> Column:
    function, size = FUNCTIONS[name], max((len(arg) for arg in args), default=1)
    rows = zip(*(_python_values(arg, size) for arg in args)) if args else [()]
    found = [function.call(*row) if function.total or None not in row else None for row in rows]
    return Column.constants(found, kind)


def _python_values(column: Column, size: int) -> list[Any]:
    values = column.values.to_pylist() if is_in_arrow(column.type) else column.values.tolist()
    nulls = column.is_null().tolist()
    held = [None if null else column.type.python(value) for value, null in zip(values, nulls)]
    return held * size if len(held) == 1 else held


# ── Of texts ─────────────────────────────────────────────────────────────────


def _length(args: Sequence[Column]) -> Column:
    return Column(_INT, pc.utf8_length(args[0].values).fill_null(0).cast(pa.int64()).to_numpy())


def _in_case(of_ascii: Callable[[pa.Array], pa.Array], of_text: Callable[[str], str]) -> ColumnFunction:
    """ASCII by Arrow; other texts, a few as a rule, by Python, whose case mapping is Unicode's full one, as Spark's is."""

    def convert(args: Sequence[Column]) -> Column:
        texts = args[0].values
        plain = pc.string_is_ascii(texts).fill_null(True)
        found = of_ascii(texts)
        if not pc.all(plain).as_py():
            others = list(map(of_text, texts.filter(pc.invert(plain)).to_pylist()))
            found = pc.replace_with_mask(found, pc.invert(plain), pa.array(others, pa.string()))
        return Column.of_arrow(found, _STRING)

    return convert


def _trim(args: Sequence[Column]) -> Column:
    return Column.of_arrow(pc.utf8_trim(args[0].values, WHITESPACE), _STRING)


def _left(args: Sequence[Column]) -> Column:
    texts, (count,) = _aligned(args)
    return _sliced(texts, np.zeros_like(count), count, count < 0)


def _right(args: Sequence[Column]) -> Column:
    texts, (count,) = _aligned(args)
    return _sliced(texts, np.maximum(_character_counts(texts) - np.maximum(count, 0), 0), count, count < 0)


def _substring(args: Sequence[Column]) -> Column:
    texts, (position, *rest) = _aligned(args)
    count, length = rest[0] if rest else np.full(len(position), INT_MAX), _character_counts(texts)
    outside = (position > length) | (position < -length) | (count < 0)
    start = np.where(position > 0, position - 1, length + position)
    nothing = position == 0
    start, count = np.where(nothing | outside, 0, start), np.where(nothing | outside, 0, count)
    return _sliced(texts, start, count, outside & ~nothing)


def _concat(args: Sequence[Column]) -> Column:
    return _concat_ws([Column.constants([""], _STRING), *args])


def _concat_ws(args: Sequence[Column]) -> Column:
    separator, *parts = args
    if not parts:
        return Column.of_arrow(pc.utf8_slice_codeunits(separator.values, 0, 0), _STRING)
    size = max(map(len, args))
    joined = pc.binary_join_element_wise(*(_scalar_or_array(column, size) for column in (*parts, separator)))
    return Column.of_arrow(
        pa.array([joined.as_py()], pa.string()) if isinstance(joined, pa.Scalar) else joined, _STRING
    )


def _scalar_or_array(column: Column, size: int) -> Any:
    return column.values[0] if len(column) == 1 and size > 1 else column.values


def _aligned(args: Sequence[Column]) -> tuple[pa.Array, list[Array]]:
    """A text and numbers, all of the same length."""
    size = max(map(len, args))
    texts = args[0].values.take(pa.array(np.zeros(size, np.int32))) if len(args[0]) < size else args[0].values
    return texts, [np.ascontiguousarray(np.broadcast_to(arg.values, size)) for arg in args[1:]]


def _character_counts(texts: pa.Array) -> Array:
    return pc.utf8_length(texts).fill_null(0).cast(pa.int64()).to_numpy()  # type: ignore[no-any-return]


def _sliced(texts: pa.Array, skipped: Array, counts: Array, wrong: Array) -> Column:
    """So many characters of each text behind the skipped ones; NULL where it is wrong."""
    offsets, content = text_buffers(texts)
    starts, ends = np.empty(len(texts), np.int32), np.empty(len(texts), np.int32)
    kernels.slice_texts(offsets, content, skipped.astype(np.int64), counts.astype(np.int64), starts, ends)
    ptr = np.concatenate([[0], np.cumsum(ends - starts, dtype=np.int64)])
    out = np.empty(int(ptr[-1]), np.uint8)
    kernels.copy_slices(content, starts, ptr, out)
    return texts_at(out, ptr, _STRING, ~wrong if wrong.any() else None)


# ── Of arrays and maps ───────────────────────────────────────────────────────


def _cardinality(args: Sequence[Column]) -> Column:
    return cardinality(args[0])


def _array_contains(args: Sequence[Column]) -> Column:
    array, wanted = args
    return any_item("=", wanted, array)


# ── Of numbers, and casts ────────────────────────────────────────────────────


def _abs(args: Sequence[Column]) -> Column:
    (column,) = args
    if column.type.is_decimal:
        return Column(column.type, pc.abs(column.values), column.valid)
    found = Column(column.type, np.abs(column.values), column.valid)
    return found if column.type is _DOUBLE else found.null_where(column.values == INT_MIN)


def _to_int(args: Sequence[Column]) -> Column:
    (column,) = args
    if column.type is _STRING:
        numbers, is_number = np.empty(len(column), np.int64), np.empty(len(column), np.uint8)
        kernels.parse_ints(*text_buffers(column.values), INT_LENGTH_MAX, numbers, is_number)
        return Column(_INT, numbers, is_number.astype(bool))
    if column.type is _DOUBLE:
        fits = (column.values >= -(2.0**63)) & (column.values < 2.0**63)
        return Column(_INT, np.where(fits, column.values, 0).astype(np.int64), fits)
    return Column(_INT, column.values.astype(np.int64))


def _to_bool(args: Sequence[Column]) -> Column:
    (column,) = args
    if column.type is _STRING:
        # No other character than an ASCII letter has one of these letters as its lower case.
        lower = pc.ascii_lower(column.values)
        is_true, is_false = (pc.equal(lower, word).fill_null(False) for word in ("true", "false"))
        known = pc.or_(is_true, is_false).to_numpy(zero_copy_only=False)
        return truth(is_true.to_numpy(zero_copy_only=False), known)
    return truth(column.values != 0)


def _to_string(args: Sequence[Column]) -> Column:
    (column,) = args
    return Column.of_arrow(
        column.values if column.type is _STRING else pa.array(column.values).cast(pa.string()), _STRING
    )


def _is(cast: ColumnFunction) -> ColumnFunction:
    def convert(args: Sequence[Column]) -> Column:
        found = cast(args)
        return truth(np.logical_not(found.is_null() | args[0].is_null()))

    return convert


COLUMN_FUNCTIONS: dict[str, ColumnFunction] = {
    "LENGTH": _length,
    "CONCAT": _concat,
    "CONCAT_WS": _concat_ws,
    "LOWER": _in_case(pc.ascii_lower, str.lower),
    "UPPER": _in_case(pc.ascii_upper, str.upper),
    "TRIM": _trim,
    "LEFT": _left,
    "RIGHT": _right,
    "SUBSTRING": _substring,
    "ABS": _abs,
    "ARRAY_CONTAINS": _array_contains,
    "CARDINALITY": _cardinality,
    "INT": _to_int,
    "BOOL": _to_bool,
    "STRING": _to_string,
    "IS_INT": _is(_to_int),
    "IS_BOOL": _is(_to_bool),
}
