"""A condition as Spark SQL text that evaluates to the same answer, row by row.

Nothing is left to Spark's coercions: literals carry their type, mixed numbers are cast in
the open, and what has no result is NULL by `try_` functions whatever `spark.sql.ansi.enabled`
says. Nested attributes `a.b` read the field b of the struct column a.
"""

from __future__ import annotations

from tidings.events import INT_MIN, ValueType
from tidings.filters.functions import FUNCTIONS
from tidings.filters.syntax import (
    And,
    Arithmetic,
    AttributeRef,
    Call,
    Compare,
    In,
    IsNull,
    Like,
    Literal,
    Negate,
    Node,
    Not,
    Or,
)

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
            return f"({_as(left, right.type)} {op} {_as(right, left.type)})"
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
            return f"({to_spark(arg)} LIKE {_string(pattern)})"
        case Arithmetic():
            return _arithmetic(node)
        case Negate(arg, kind):
            return f"(- {to_spark(arg)})" if kind is ValueType.DOUBLE else f"try_subtract(0L, {to_spark(arg)})"
        case Call(name, args):
            return FUNCTIONS[name].spark([to_spark(arg) for arg in args], [arg.type for arg in args])


def _as(node: Node, other: ValueType) -> str:
    """The text of `node` where it meets a value of type `other`: an int beside a double becomes one."""
    if node.type is not ValueType.INT or other is not ValueType.DOUBLE:
        return to_spark(node)
    if isinstance(node, Literal):
        return _literal(Literal(float(node.value), ValueType.DOUBLE))
    return f"CAST({to_spark(node)} AS DOUBLE)"


def _in(arg: Node, items: tuple[Node, ...]) -> str:
    if all(item.type is arg.type for item in items):
        return f"({to_spark(arg)} IN ({', '.join(map(to_spark, items))}))"
    # Spark would bring all items to one type first; here each is compared on its own.
    return to_spark(Or(tuple(Compare("=", arg, item) for item in items)))


def _arithmetic(node: Arithmetic) -> str:
    left, right = _as(node.left, node.type), _as(node.right, node.type)
    if node.type is ValueType.INT and node.op == "/":
        # `div` alone would raise for the smallest int divided by -1.
        return f"IF({right} = -1L, try_subtract(0L, {left}), {left} div nullif({right}, 0L))"
    return f"{_TRY[node.op]}({left}, {right})"


def _literal(node: Literal) -> str:
    value = node.value
    match node.type:
        case ValueType.NULL:
            return "NULL"
        case ValueType.BOOL:
            return str(value).upper()
        case ValueType.INT:
            return f"{value}L" if value != INT_MIN else f"({value + 1}L - 1L)"
        case ValueType.DOUBLE:
            return f"{value!r}D"
        case ValueType.STRING:
            return _string(str(value))
        case ValueType.TIMESTAMP:
            return f"timestamp_micros({int(value)}L)"
        case ValueType.BYTES:
            return f"X'{value.hex()}'"


def _string(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\0", "\\0") + "'"
