"""A condition as Spark SQL text that evaluates to the same answer, row by row.

Nothing is left to Spark's coercions: literals carry their type, mixed numbers are cast in
the open, and what has no result is NULL by `try_` functions whatever `spark.sql.ansi.enabled`
says. Nested attributes `a.b` read the field b of the struct column a.

Spark runs LIKE as a regular expression that tries every way to share a text among several `%`.
A pattern where that matters is written as one that never goes back (see `_like`).
"""

from __future__ import annotations

import re
from fractions import Fraction
from math import floor

from tidings.events import INT_MIN, Exact, ValueType
from tidings.filters.functions import FUNCTIONS, spark_comparison
from tidings.filters.like import LikeSegment, like_segments
from tidings.filters.normal import MIRRORED
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
    format_value,
)

_SPECIAL = re.compile(r"[\\^$.|?*+()\[\]{}]")  # What Java's regular expressions read as other than itself.
_TRY = {"+": "try_add", "-": "try_subtract", "*": "try_multiply", "/": "try_divide", "%": "try_mod"}


def to_spark(node: Node) -> str:
    """The Spark SQL expression for a tree.

    >>> from tidings.filters import parse
    >>> parse("price > 10 AND city LIKE 'R%'").to_spark()
    "((`price` > 10.0D) AND (`city` LIKE 'R%'))"
    """
    match node:
        case Literal():
            return _literal(node)
        case AttributeRef(name):
            return ".".join(f"`{part}`" for part in name.split("."))
        case Compare(op, left, right):
            return _compare(op, left, right)
        case And(args):
            return f"({' AND '.join(map(to_spark, args))})"
        case Or(args):
            return f"({' OR '.join(map(to_spark, args))})"
        case Not(arg):
            return f"(NOT {to_spark(arg)})"
        case IsNull(arg):
            return f"({to_spark(arg)} IS NULL)"
        case In(arg, items):
            return _in(arg, items)
        case Like(arg, pattern):
            return _like(to_spark(arg), pattern)
        case Arithmetic():
            return _arithmetic(node)
        case Negate(arg, kind):
            return f"try_subtract(0L, {to_spark(arg)})" if kind is ValueType.INT else f"(- {to_spark(arg)})"
        case Call(name, args):
            return FUNCTIONS[name].spark([to_spark(arg) for arg in args], [arg.type for arg in args])
        case Item(of, at):
            return _item(to_spark(of), to_spark(at), of.type)
        case AnyItem(op, arg, array):
            element = array.type.element or ValueType.NULL
            each = spark_comparison(op, to_spark(arg), arg.type, "_item", element)
            return f"exists({to_spark(array)}, _item -> {each})"


def _item(of: str, at: str, kind: ValueType) -> str:
    if kind.map_key is not None:
        return f"try_element_at({of}, {at})"
    # Positions are 32-bit ints to Spark.
    return f"IF({at} BETWEEN 0L AND 2147483647L, get({of}, CAST({at} AS INT)), NULL)"


def _compare(op: str, left: Node, right: Node) -> str:
    if left.type.is_decimal and isinstance(right, Literal) and type(right.value) in (int, Exact):
        return _with_number(op, to_spark(left), left.type, right.value)
    if right.type.is_decimal and isinstance(left, Literal) and type(left.value) in (int, Exact):
        return _with_number(MIRRORED[op], to_spark(right), right.type, left.value)
    if ValueType.INT in (left.type, right.type) and (left.type.is_decimal or right.type.is_decimal):
        return spark_comparison(op, to_spark(left), left.type, to_spark(right), right.type)
    return f"({_as(left, right.type)} {op} {_as(right, left.type)})"


def _with_number(op: str, text: str, kind: ValueType, number: int | Exact) -> str:
    """A decimal compared with a constant, which Spark would round to the digits that are left beside the decimal's."""
    exact = Fraction(number) * 10**kind.scale
    below = floor(exact)
    if below == exact and abs(below) < 10**kind.precision:
        return f"({text} {op} {_literal(Literal(kind.value_at(below), kind))})"
    if op in ("=", "<>"):
        return f"({text} {'<>' if op == '=' else '='} {text})"  # None equals it: FALSE, or NULL.
    if abs(below) < 10**kind.precision:  # Between two of the decimal's values.
        return f"({text} {'<=' if op[0] == '<' else '>'} {_literal(Literal(kind.value_at(below), kind))})"
    return f"({text} {'=' if (op[0] == '<') == (number > 0) else '<>'} {text})"


def _as(node: Node, other: ValueType) -> str:
    """The text of `node` where it meets a value of type `other`: numbers beside a double become one."""
    if not node.type.is_number or node.type is ValueType.DOUBLE or other is not ValueType.DOUBLE:
        return to_spark(node)
    if isinstance(node, Literal) and node.value is not None:
        return _literal(Literal(float(node.value), ValueType.DOUBLE))
    return f"CAST({to_spark(node)} AS DOUBLE)"


def _in(arg: Node, items: tuple[Node, ...]) -> str:
    if all(item.type is arg.type for item in items):
        return f"({to_spark(arg)} IN ({', '.join(map(to_spark, items))}))"
    # Spark would bring all items to one type first; here each is compared on its own.
    return to_spark(Or(tuple(Compare("=", arg, item) for item in items)))


def _like(text: str, pattern: str) -> str:
    """LIKE, or an expression in linear time: each segment between two `%` is taken where it first fits, for good."""
    first, *middle = like_segments(pattern)
    last = middle.pop() if middle else first
    inner = [segment for segment in middle if segment.length]
    if not inner or (len(inner) == 1 and not first.length and not last.length):
        return f"({text} LIKE {_string(pattern)})"
    parts = ["(?s)\\A", _segment(first), *(f"(?>.*?{_segment(segment)})" for segment in inner)]
    parts += [".*", _segment(last), "\\z"] if last.length else []
    return f"({text} RLIKE {_string(''.join(parts))})"


def _segment(segment: LikeSegment) -> str:
    """A segment in Java's regular expressions."""
    found, at = [], 0
    for offset, run in segment.runs:
        found += ["." * (offset - at), _SPECIAL.sub(r"\\\g<0>", run)]
        at = offset + len(run)
    return "".join([*found, "." * (segment.length - at)])


def _arithmetic(node: Arithmetic) -> str:
    if node.type.is_decimal:
        return f"{_TRY[node.op]}({_as_decimal(node.left)}, {_as_decimal(node.right)})"
    left, right = _as(node.left, node.type), _as(node.right, node.type)
    if node.type is ValueType.INT and node.op == "/":
        # `div` alone would raise for the smallest int divided by -1.
        return f"IF({right} = -1L, try_subtract(0L, {left}), {left} div nullif({right}, 0L))"
    return f"{_TRY[node.op]}({left}, {right})"


def _as_decimal(node: Node) -> str:
    """An operand beside a decimal, with as many digits as `decimals.as_decimal` gives it."""
    if node.type is not ValueType.INT:
        return to_spark(node)
    if isinstance(node, Literal) and node.value is not None:
        return f"{node.value}BD"
    return f"CAST({to_spark(node)} AS DECIMAL(20,0))"


def _literal(node: Literal) -> str:
    value = node.value
    match node.type.kind:
        case "null":
            return "NULL"
        case "int":
            return f"{value}L" if value != INT_MIN else f"({value + 1}L - 1L)"
        case "double":
            return f"{value!r}D"
        case "string":
            return _string(str(value))
        case "timestamp":
            return f"timestamp_micros({int(value)}L)"
        case "date" if value.iso()[0] == "@":  # Beyond the years that have four digits.
            return f"date_from_unix_date({int(value)})"
    return format_value(value, node.type)


def _string(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0") + "'"
