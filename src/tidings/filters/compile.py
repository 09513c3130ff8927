"""A condition as a closure: `matches(values)`, for one event at a time.

Built from the boxes, so it tests only what TRUE requires: each side becomes one small function
of the attribute's value; the intervals already account for NULL, NaN and mixed numbers. Doubles
are compared as doubles, not as keys, because values arrive as doubles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tidings.events import Value, ValueType
from tidings.filters.evaluate import COMPARE, arithmetic, compare, evaluate
from tidings.filters.functions import call
from tidings.filters.intervals import DOMAIN, Intervals, next_key
from tidings.filters.like import like
from tidings.filters.normal import Box
from tidings.filters.syntax import Arithmetic, AttributeRef, Call, Compare, IsNull, Like, Literal, Node, Not

Test: TypeAlias = Callable[[Mapping[str, Value]], bool]
_Value: TypeAlias = Callable[[Mapping[str, Value]], Any]
_Lookup: TypeAlias = Callable[[Mapping[str, Any]], bool]  # A Test that assumes a value of the right type.

_NAN_KEY = ValueType.DOUBLE.key(math.nan)

POINTS_MIN = 4  # From so many single values on, a set is looked up instead of intervals.


def compile_boxes(boxes: tuple[Box, ...]) -> Test:
    """A closure: whether an event lies in any of the boxes and the residuals of that box are TRUE."""
    return _any([_all([*(_side(*side) for side in box.sides), *map(_residual, box.residuals)]) for box in boxes])


def _side(name: str, side: Intervals) -> Test:
    if not side.pairs:
        return lambda values: values.get(name) is None
    if side.null:
        inside = _side(name, Intervals(side.type, side.pairs))
        return lambda values: values.get(name) is None or inside(values)
    if side.type is ValueType.DOUBLE:
        return _double_side(name, side)
    if len(side.pairs) == 1:
        return _interval(name, side.type, *side.pairs[0])
    return _many(name, side)


def _interval(name: str, kind: ValueType, low: Any, high: Any) -> Test:
    start, end = DOMAIN[kind]
    if low == start and high == end:
        return lambda values: values.get(name) is not None
    is_point, has_low, has_high = next_key(low) == high, low != start, high != end
    if kind.is_decimal:  # Compared as decimals, which values arrive as.
        low, high = kind.value_at(low), kind.value_at(high)
    if is_point:
        return lambda values: values.get(name) == low
    if not has_high:
        return lambda values: (value := values.get(name)) is not None and value >= low
    if not has_low:
        return lambda values: (value := values.get(name)) is not None and value < high
    return lambda values: (value := values.get(name)) is not None and low <= value < high


def _double_side(name: str, side: Intervals) -> _Lookup:
    """Closed bounds in doubles; NaN, which compares false with everything, is tested separately."""
    nan = side.has_key(_NAN_KEY)
    bounds = [_closed(low, high) for low, high in side.pairs]
    if len(bounds) == 1 and not nan:
        ((low, high),) = bounds
        if low == high:
            return lambda values: values.get(name) == low
        return lambda values: (value := values.get(name)) is not None and low <= value <= high
    if len(bounds) == 1 and bounds[0][1] == math.inf:
        low = bounds[0][0]
        return lambda values: (value := values.get(name)) is not None and (value >= low or value != value)
    has = side.__contains__
    return lambda values: (value := values.get(name)) is not None and has(value)


def _closed(low: int, high: int) -> tuple[float, float]:
    last = ValueType.DOUBLE.value_at(high - 1)
    return ValueType.DOUBLE.value_at(low), math.inf if last != last else last  # type: ignore[return-value]


def _many(name: str, side: Intervals) -> Test:
    if len(side.pairs) >= POINTS_MIN and all(next_key(low) == high for low, high in side.pairs):
        points = frozenset(side.type.value_at(low) if side.type.is_decimal else low for low, _ in side.pairs)
        return lambda values: values.get(name) in points
    has = side.__contains__
    return lambda values: (value := values.get(name)) is not None and has(value)


def _residual(node: Node) -> Test:
    value = _value(node)
    return lambda values: value(values) is True


def _value(node: Node) -> _Value:
    """The value of a tree as a closure: what `evaluate` gives, with the kinds of its nodes looked at once."""
    match node:
        case Literal(constant):
            return lambda values: constant
        case AttributeRef(name):
            return lambda values: values.get(name)
        case Compare(op, left, right):
            return _compare(op, left, right)
        case Like(arg, pattern):
            text_of = _value(arg)
            return lambda values: None if (text := text_of(values)) is None else like(pattern, text)
        case Not(arg):
            truth = _value(arg)
            return lambda values: None if (outcome := truth(values)) is None else not outcome
        case IsNull(arg):
            value = _value(arg)
            return lambda values: value(values) is None
        case Arithmetic(op, left, right, kind):
            one, other = _value(left), _value(right)
            return lambda values: arithmetic(op, kind, one(values), other(values))
        case Call(name, args):
            parts = [_value(arg) for arg in args]
            return lambda values: call(name, [part(values) for part in parts])
        case _:
            return lambda values: evaluate(node, values)


def _compare(op: str, left: Node, right: Node) -> _Value:
    one, other = _value(left), _value(right)
    if ValueType.DOUBLE in (left.type, right.type):
        return lambda values: compare(op, one(values), other(values))
    holds = COMPARE[op]
    return lambda values: None if (a := one(values)) is None or (b := other(values)) is None else holds(a, b)


def _all(tests: list[Test]) -> Test:
    match tests:
        case []:
            return lambda values: True
        case [only]:
            return only
        case [first, second]:
            return lambda values: first(values) and second(values)
        case [first, second, third]:
            return lambda values: first(values) and second(values) and third(values)
        case _:
            return lambda values: all(test(values) for test in tests)


def _any(tests: list[Test]) -> Test:
    match tests:
        case []:
            return lambda values: False
        case [only]:
            return only
        case [first, second]:
            return lambda values: first(values) or second(values)
        case _:
            return lambda values: any(test(values) for test in tests)
