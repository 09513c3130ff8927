"""Comparison and arithmetic of columns, with the answers of `tidings.filters.evaluate`.

Ints meet doubles as doubles; NaN equals NaN and is above everything; what has no result, by overflow or by
division by zero, is NULL.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.events import INT_MIN, ValueType
from tidings.matching.box_table import Array
from tidings.matching.residuals import decimals
from tidings.matching.residuals.column import TEXTS, Column, both_valid, truth

_NAN_KEY = np.int64(ValueType.DOUBLE.key(float("nan")))
_NUMPY = {
    "=": np.equal,
    "<>": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
_ARROW = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def compare(op: str, left: Column, right: Column) -> Column:
    """`left op right`; NULL where either is NULL."""
    if ValueType.NULL in (left.type, right.type):
        size = max(len(left), len(right))
        return truth(np.zeros(size, bool), np.zeros(size, bool))
    valid = both_valid([left, right])
    if left.type in TEXTS:
        return truth(_compare_arrow(op, left.values, right.values), valid)
    if ValueType.DOUBLE in (left.type, right.type):
        return truth(_NUMPY[op](*_comparable(left.doubles(), right.doubles())), valid)
    if left.type.is_decimal or right.type.is_decimal:
        return truth(_compare_arrow(op, *decimals.comparable(left, right)), valid)
    return truth(_NUMPY[op](left.values, right.values), valid)


def arithmetic(op: str, kind: ValueType, left: Column, right: Column) -> Column:
    """`left op right` as values of `kind`."""
    if kind.is_decimal:
        return decimals.arithmetic(op, kind, left, right)
    valid = both_valid([left, right])
    with np.errstate(all="ignore"):
        values, wrong = (_of_doubles if kind is ValueType.DOUBLE else _of_ints)(op, left, right)
    found = Column(kind, values, valid)
    return found if wrong is None or not wrong.any() else found.null_where(wrong)


def negative(kind: ValueType, column: Column) -> Column:
    """`-column`; of the smallest int, NULL."""
    if kind is ValueType.DOUBLE:
        return Column(kind, -0.0 - column.doubles(), column.valid)
    if kind.is_decimal:
        return Column(kind, pc.negate(column.values), column.valid)
    return arithmetic("-", kind, Column(kind, np.zeros(1, np.int64)), column)


def _compare_arrow(op: str, left: pa.Array, right: pa.Array) -> Any:
    """Decimals, or texts bytewise, which is the order of characters. (An array beside a single value is faster than two.)"""
    one, other = (texts[0] if len(texts) == 1 else texts for texts in (left, right))
    found = _ARROW[op](one, other)
    if isinstance(found, pa.Scalar):
        return np.array([found.as_py() is True])
    return found.fill_null(False).to_numpy(zero_copy_only=False)


def _comparable(left: Array, right: Array) -> tuple[Array, Array]:
    """Doubles as they are if none is NaN, else as keys in Spark's order."""
    if np.isnan(left).any() or np.isnan(right).any():
        return _keys(left), _keys(right)
    return left, right


def _keys(doubles: Array) -> Array:
    """As `tidings.events.double_key`."""
    bits = np.ascontiguousarray(doubles).view(np.int64)
    with np.errstate(over="ignore"):
        keys = np.where(bits >= 0, bits, np.int64(INT_MIN) - bits)
    return np.where(np.isnan(doubles), _NAN_KEY, keys)


def _of_doubles(op: str, left: Column, right: Column) -> tuple[Array, Array | None]:
    a, b = left.doubles(), right.doubles()
    match op:
        case "+":
            return a + b, None
        case "-":
            return a - b, None
        case "*":
            return a * b, None
        case "/":
            return a / b, np.broadcast_to(b == 0, np.broadcast_shapes(a.shape, b.shape))
        case _:
            return np.fmod(a, b), np.broadcast_to(b == 0, np.broadcast_shapes(a.shape, b.shape))


def _of_ints(op: str, left: Column, right: Column) -> tuple[Array, Array]:
    a, b = np.broadcast_arrays(left.values, right.values)
    match op:
        case "+":
            found = a + b
            return found, ((a ^ found) & (b ^ found)) < 0
        case "-":
            found = a - b
            return found, ((a ^ b) & (a ^ found)) < 0
        case "*":
            return _product(a, b)
        case _:
            return _quotient(a, b) if op == "/" else (_remainder(a, b), b == 0)


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    """Where it overflows, the result is off by a multiple of 2^64, and dividing it by `a` gives another number."""
    found = a * b
    divisor = np.where((a == 0) | (a == -1), 1, a)
    by_other = (a != 0) & (a != -1) & (found // divisor != b)
    return found, by_other | ((a == -1) & (b == INT_MIN))


def _quotient(a: Array, b: Array) -> tuple[Array, Array]:
    """Towards zero. By -1 it is written as a difference, because the smallest int has no quotient."""
    divisor = np.where((b == 0) | (b == -1), 1, b)
    found = a // divisor
    found += (found * divisor != a) & ((a < 0) != (divisor < 0))
    return np.where(b == -1, -a, found), (b == 0) | ((b == -1) & (a == INT_MIN))


def _remainder(a: Array, b: Array) -> Array:
    """With the sign of the left side."""
    divisor = np.where((b == 0) | (b == -1), 1, b)
    return np.fmod(a, divisor)
