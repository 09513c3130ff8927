"""Decimals in columns: compared and computed with all their digits, by Arrow, with the answers of `tidings.filters`.

An int beside a decimal counts as one. Results whose last digits would have to be rounded have no columns.
"""

from __future__ import annotations

from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tidings.events import ValueType
from tidings.matching.residuals.column import Column, both_valid

DIGITS_MAX: Final = 76  # Of Arrow's widest decimals.
_SHORT_MAX: Final = 38  # Of those in 128 bits, as columns have them.
_INTS: Final = ValueType.decimal(19)
_EXACT: Final = Context(prec=DIGITS_MAX)
_OPERATIONS: Final = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}


def comparable(left: Column, right: Column) -> tuple[pa.Array, pa.Array]:
    """Two columns, one of decimals and the other of decimals or ints, as decimals of one type that holds both."""
    one, other = _beside_decimals(left.type), _beside_decimals(right.type)
    scale = max(one.scale, other.scale)
    common = _arrow_type(_whole(one, other) + scale, scale)
    return left.as_arrow().cast(common), right.as_arrow().cast(common)


def is_exact(op: str, kind: ValueType, left: ValueType, right: ValueType) -> bool:
    """Whether `left op right` is a value of `kind` without rounding, unless it has no place there."""
    precision, scale = _digits(op, _beside_decimals(left), _beside_decimals(right))
    return scale == kind.scale and precision <= DIGITS_MAX


def arithmetic(op: str, kind: ValueType, left: Column, right: Column) -> Column:
    """`left op right` as decimals of `kind`, where that is exact; NULL where the result has no place."""
    if ValueType.NULL in (left.type, right.type):
        return Column.constants([None], kind)
    found = _OPERATIONS[op](*_operands(left, right))
    if found.type.precision > kind.precision:
        most = pa.scalar(Decimal(10**kind.precision - 1).scaleb(-kind.scale, _EXACT), found.type)
        found = pc.if_else(pc.less_equal(pc.abs(found), most), found, pa.scalar(None, found.type))
    fitting = Column.of_arrow(found.cast(pa.decimal128(kind.precision, kind.scale)), kind)
    return Column(kind, fitting.values, both_valid([fitting, left, right]))


def _operands(left: Column, right: Column) -> list[Any]:
    """As wide decimals; a constant beside a column as a single value."""
    size, found = max(len(left), len(right)), []
    for column in (left, right):
        kind = _beside_decimals(column.type)
        wide = column.as_arrow().cast(pa.decimal256(kind.precision, kind.scale))
        found.append(wide[0] if len(wide) == 1 and size > 1 else wide)
    return found


def _digits(op: str, left: ValueType, right: ValueType) -> tuple[int, int]:
    """How many digits `left op right` may have in all, and behind the point."""
    if op == "*":
        return left.precision + right.precision + 1, left.scale + right.scale
    scale = max(left.scale, right.scale)
    return _whole(left, right) + scale + 1, scale


def _whole(left: ValueType, right: ValueType) -> int:
    """The digits before the point that both have place in."""
    return max(left.precision - left.scale, right.precision - right.scale)


def _beside_decimals(kind: ValueType) -> ValueType:
    return kind if kind.is_decimal else _INTS


def _arrow_type(precision: int, scale: int) -> pa.DataType:
    return (pa.decimal128 if precision <= _SHORT_MAX else pa.decimal256)(precision, scale)
