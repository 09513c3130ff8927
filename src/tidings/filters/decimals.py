"""Arithmetic of decimals, as Spark has it: how many digits a result has, and what becomes of those that do not fit.

`+`, `-` and `*` of decimals, or of a decimal and an int, are decimals wide enough for the exact result. Only where that
would take more than 38 digits, the last ones behind the point are rounded, half away from zero; a result that has no
place even so is NULL. `/` and `%` are left out: Spark rounds their results twice, which nobody means.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

from tidings.events import Exact, ValueType, type_of
from tidings.filters.syntax import Literal, Node

DIGITS_MAX = 38
FRACTION_MIN = 6  # Digits behind the point that a rounded result keeps at least.
LONG_DIGITS = 20  # What Spark takes a 64-bit int for.

_EXACT = Context(prec=2 * DIGITS_MAX + 8)
_ROUNDED = Context(prec=DIGITS_MAX, rounding=ROUND_HALF_UP)
_FITTING = Context(prec=2 * DIGITS_MAX + 8, rounding=ROUND_HALF_UP)


def as_decimal(node: Node) -> ValueType:
    """The decimal type that an operand counts as beside a decimal."""
    if node.type is not ValueType.INT:
        return node.type
    if isinstance(node, Literal) and node.value is not None:
        return ValueType.decimal(len(str(abs(node.value))))
    return ValueType.decimal(LONG_DIGITS)


def result_type(op: str, left: ValueType, right: ValueType) -> ValueType:
    """The type of `left op right` for two decimals and + - *."""
    if op == "*":
        return _bounded(left.precision + right.precision + 1, left.scale + right.scale)
    scale = max(left.scale, right.scale)
    return _bounded(max(left.precision - left.scale, right.precision - right.scale) + scale + 1, scale)


def result(op: str, kind: ValueType, left: Any, right: Any) -> Exact | None:
    """`left op right` as a value of `kind`; None where it has no place."""
    left, right = Decimal(left), Decimal(right)
    if op == "*":
        exact = _ROUNDED.multiply(left, right)
    else:
        exact = _EXACT.add(left, right) if op == "+" else _EXACT.subtract(left, right)
    try:
        fitting = exact.quantize(Decimal(1).scaleb(-kind.scale), context=_FITTING)
    except InvalidOperation:
        return None
    return Exact(fitting) if len(fitting.as_tuple().digits) <= kind.precision else None


def have_common_type(left: ValueType, right: ValueType) -> bool:
    """Whether 38 digits hold the values of both types, so that Spark compares them exactly."""
    whole = max(left.precision - left.scale, right.precision - right.scale)
    return whole + max(left.scale, right.scale) <= DIGITS_MAX


def decimal_literal(number: Decimal) -> Literal:
    """The constant, without an exponent. Raises EventError for more than 38 digits."""
    kind = type_of(number)
    if number and -number.as_tuple().exponent == kind.scale:  # type: ignore[operator]  # Only NaN has a text there.
        return Literal(Exact(number), kind)
    return Literal(kind.check(number), kind)


def _bounded(precision: int, scale: int) -> ValueType:
    if precision <= DIGITS_MAX:
        return ValueType.decimal(precision, scale)
    whole = precision - scale
    return ValueType.decimal(DIGITS_MAX, max(DIGITS_MAX - whole, min(scale, FRACTION_MIN)))
