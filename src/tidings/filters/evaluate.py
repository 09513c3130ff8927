"""What a condition means: the plain evaluator, in SQL's three-valued logic. This is the definition.

Everything else that answers for a condition (the closure, the boxes, Spark SQL, the index)
is tested against `evaluate`. TRUE, FALSE and NULL are True, False and None; attributes that
are absent are None as well.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from tidings.events import INT_MAX, INT_MIN, Value, ValueType
from tidings.filters import decimals
from tidings.filters.functions import call
from tidings.filters.like import like
from tidings.filters.syntax import (
    And,
    AnyItem,
    Arithmetic,
    AttributeRef,
    Call,
    Compare,
    In,
    IsNull,
    Item,
    Like,
    Literal,
    Negate,
    Node,
    Not,
    Or,
)

COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def evaluate(node: Node, values: Mapping[str, Value]) -> Any:
    """The value of a tree for an event: True, False or None for a condition."""
    match node:
        case Literal(value):
            return value
        case AttributeRef(name):
            return values.get(name)
        case Compare(op, left, right):
            return compare(op, evaluate(left, values), evaluate(right, values))
        case And(args):
            return _all(evaluate(arg, values) for arg in args)
        case Or(args):
            return _negate(_all(_negate(evaluate(arg, values)) for arg in args))
        case Not(arg):
            return _negate(evaluate(arg, values))
        case IsNull(arg):
            return evaluate(arg, values) is None
        case In(arg, items):
            value = evaluate(arg, values)
            return _negate(_all(compare("<>", value, evaluate(item, values)) for item in items))
        case Like(arg, pattern):
            text = evaluate(arg, values)
            return None if text is None else like(pattern, text)
        case Arithmetic(op, left, right, kind):
            return arithmetic(op, kind, evaluate(left, values), evaluate(right, values))
        case Negate(arg, kind):
            return arithmetic("-", kind, -0.0 if kind is ValueType.DOUBLE else 0, evaluate(arg, values))
        case Call(name, args):
            return call(name, [evaluate(arg, values) for arg in args])
        case Item(of, at):
            return item(evaluate(of, values), evaluate(at, values))
        case AnyItem(op, arg, array):
            items, value = evaluate(array, values), evaluate(arg, values)
            return None if items is None else any_item(op, value, items)


def decided_by(node: Node, values: Mapping[str, Value]) -> list[Node]:
    """The smallest parts of a condition that alone give it the value it has for this event.

    >>> from tidings.filters import parse
    >>> [str(part) for part in parse("a > 1 AND b > 2 AND c > 3").decided_by({"a": 2.0, "b": 1.0})]
    ['b > 2']
    """
    outcome = evaluate(node, values)
    match node:
        case Not(arg) if not isinstance(arg, IsNull):
            return decided_by(arg, values)
        case And(args) | Or(args):
            same = [arg for arg in args if evaluate(arg, values) is outcome]
            # One FALSE decides an AND, one TRUE an OR; otherwise it took all that agree.
            alone = outcome is isinstance(node, Or)
            return [part for arg in (same[:1] if alone else same) for part in decided_by(arg, values)]
        case _:
            return [node]


def compare(op: str, left: Any, right: Any) -> bool | None:
    """Spark's comparison: NULL with anything is NULL, NaN equals NaN and is above all, ints meet doubles as doubles."""
    if left is None or right is None:
        return None
    if isinstance(left, float) or isinstance(right, float):
        left, right = _order_double(float(left)), _order_double(float(right))
    return COMPARE[op](left, right)


def item(items: Any, at: Any) -> Any:
    """The item of an array at a position from 0, or the value of a map for a key; NULL where there is none."""
    if items is None or at is None:
        return None
    if isinstance(items, tuple):
        return items[at] if 0 <= at < len(items) else None
    if at != at:  # NaN, which is a key like any other to Spark, and none to a dict.
        return next((value for key, value in items.items() if key != key), None)
    return items.get(at)


def any_item(op: str, value: Any, items: Any) -> bool | None:
    """Whether a comparison with any of the items is TRUE; NULL if none is and some are NULL."""
    return _negate(_all(_negate(compare(op, value, item)) for item in items))


def arithmetic(op: str, kind: ValueType, left: Any, right: Any) -> int | float | Decimal | None:
    """`left op right` as a value of `kind`; NULL where there is none: overflow, or division by zero."""
    if left is None or right is None or (op in "/%" and right == 0):
        return None
    if kind.is_decimal:
        return decimals.result(op, kind, left, right)
    return _of_doubles(op, float(left), float(right)) if kind is ValueType.DOUBLE else _of_ints(op, left, right)


def _order_double(number: float) -> tuple[bool, float]:
    return (True, 0.0) if number != number else (False, number)


def _of_ints(op: str, left: int, right: int) -> int | None:
    match op:
        case "+":
            number = left + right
        case "-":
            number = left - right
        case "*":
            number = left * right
        case _:
            # Towards zero, with the remainder's sign that of the left side, as in Java.
            number = abs(left) // abs(right) if op == "/" else abs(left) % abs(right)
            negative = (left < 0) != (right < 0) if op == "/" else left < 0
            number = -number if negative else number
    return number if INT_MIN <= number <= INT_MAX else None


def _of_doubles(op: str, left: float, right: float) -> float:
    match op:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left / right
        case _:
            return math.fmod(left, right) if math.isfinite(left) and right == right else math.nan


def _all(outcomes: Any) -> bool | None:
    unknown = False
    for outcome in outcomes:
        if outcome is False:
            return False
        unknown |= outcome is None
    return None if unknown else True


def _negate(outcome: bool | None) -> bool | None:
    return None if outcome is None else not outcome
