"""The syntax tree of a condition, and its canonical text.

Few kinds of node, because everything with two spellings is one of them: BETWEEN is two
comparisons, EXISTS is IS NOT NULL, XOR is `<>` between truths, NOT IN is NOT of IN, and IS DISTINCT FROM
is comparisons and IS NULL.
`format_tree` writes the one text that parses back to the same tree.

Nodes are msgspec structs rather than dataclasses: a million conditions are some ten
million nodes, and a struct is made in a tenth of the time. Trees have no cycles, so the
garbage collector need not walk them either.
"""

from __future__ import annotations

import re
from typing import Any, Final, TypeAlias

from msgspec import Struct

from tidings.events import Value, ValueType

BOOL: Final = ValueType.BOOL


class Literal(Struct, frozen=True, gc=False):
    """A constant; NULL is the literal None of type NULL."""

    value: Any  # A Value of type `type`, or None.
    type: ValueType


class AttributeRef(Struct, frozen=True, gc=False):
    """The value of one attribute of the event, NULL where it is absent."""

    name: str
    type: ValueType


class Compare(Struct, frozen=True, gc=False):
    """`= <> < <= > >=` between two values of one type, or two numbers."""

    op: str
    left: Node
    right: Node
    type: ValueType = BOOL


class In(Struct, frozen=True, gc=False):
    """Whether `arg` equals any of the items: TRUE, or else NULL if any comparison is, or else FALSE."""

    arg: Node
    items: tuple[Node, ...]
    type: ValueType = BOOL


class Like(Struct, frozen=True, gc=False):
    r"""`arg LIKE pattern`: % any run, _ any one character, \\ takes the next one as it is."""

    arg: Node
    pattern: str
    type: ValueType = BOOL


class IsNull(Struct, frozen=True, gc=False):
    """Whether the argument is NULL: never NULL itself."""

    arg: Node
    type: ValueType = BOOL


class Not(Struct, frozen=True, gc=False):
    """TRUE for FALSE, FALSE for TRUE, NULL for NULL."""

    arg: Node
    type: ValueType = BOOL


class And(Struct, frozen=True, gc=False):
    """All of two or more; no And directly inside another."""

    args: tuple[Node, ...]
    type: ValueType = BOOL


class Or(Struct, frozen=True, gc=False):
    """Any of two or more; no Or directly inside another."""

    args: tuple[Node, ...]
    type: ValueType = BOOL


class Arithmetic(Struct, frozen=True, gc=False):
    """`+ - * / %`, in 64 bits if both sides are ints, else in doubles. What has no result is NULL."""

    op: str
    left: Node
    right: Node
    type: ValueType


class Negate(Struct, frozen=True, gc=False):
    """`-arg` of what is no literal; NULL for the smallest int, which has no opposite."""

    arg: Node
    type: ValueType


class Call(Struct, frozen=True, gc=False):
    """A function of `functions.FUNCTIONS`, by its name in capitals."""

    name: str
    args: tuple[Node, ...]
    type: ValueType


class Item(Struct, frozen=True, gc=False):
    """`of[at]`: an array's item, counted from 0, or a map's value for a key. NULL where there is none."""

    of: Node
    at: Node
    type: ValueType


class AnyItem(Struct, frozen=True, gc=False):
    """`arg op ANY(array)`: TRUE if it is of some item, or else NULL if it is of any, or else FALSE."""

    op: str
    arg: Node
    array: Node
    type: ValueType = BOOL


Node: TypeAlias = (
    Literal | AttributeRef | Compare | In | Like | IsNull | Not | And | Or | Arithmetic | Negate | Call | Item | AnyItem
)

NULL: Final = Literal(None, ValueType.NULL)

RESERVED: Final = frozenset(
    ["AND", "OR", "XOR", "NOT", "IN", "LIKE", "BETWEEN", "IS", "NULL", "TRUE", "FALSE", "EXISTS"]
)

_PLAIN_NAME = re.compile(r"[^\W\d]\w*")

# How tightly each kind binds; a node is put in parentheses inside one that binds as tightly or more.
_OR, _AND, _NOT, _COMPARE, _ADD, _MULTIPLY, _UNARY, _ATOM = range(1, 9)
_ARITHMETIC_BINDS = {"+": _ADD, "-": _ADD, "*": _MULTIPLY, "/": _MULTIPLY, "%": _MULTIPLY}


def format_tree(node: Node) -> str:
    """The canonical text of a tree: parsing it gives the same tree.

    >>> from tidings.filters import parse
    >>> format_tree(parse("not  price between 1 and 2").tree)
    'NOT (price >= 1 AND price <= 2)'
    """
    return _format(node)[0]


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below this one, from left to right."""
    match node:
        case Compare() | Arithmetic():
            return (node.left, node.right)
        case In():
            return (node.arg, *node.items)
        case And() | Or() | Call():
            return node.args
        case Like() | IsNull() | Not() | Negate():
            return (node.arg,)
        case Item():
            return (node.of, node.at)
        case AnyItem():
            return (node.arg, node.array)
        case _:
            return ()


def distinct(compared: Compare) -> Node:
    """A comparison by `<>` or `=` that is never NULL, because NULL differs from every value and not from NULL.

    >>> from tidings.filters import parse
    >>> str(parse("a IS DISTINCT FROM 5")), str(parse("a IS NOT DISTINCT FROM NULL"))
    ('a IS NULL OR a <> 5', 'a IS NULL')
    """
    left, right, differs = compared.left, compared.right, compared.op == "<>"
    if NULL in (left, right):
        absent = IsNull(right if left == NULL else left)
        return Not(absent) if differs else absent
    match [IsNull(side) for side in (left, right) if not isinstance(side, Literal)]:
        case [one, other]:
            both = And((Not(one), Not(other), compared))
            either = And((one, Not(other))), And((Not(one), other))
            return Or((*either, both)) if differs else Or((And((one, other)), both))
        case [one]:
            return Or((one, compared)) if differs else And((Not(one), compared))
    return compared


def attributes_of(node: Node) -> dict[str, ValueType]:
    """The attributes a tree mentions, in the order of first mention."""
    found: dict[str, ValueType] = {}
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, AttributeRef):
            found.setdefault(node.name, node.type)
        elif not isinstance(node, Literal):
            waiting += children(node)[::-1]
    return found


def quote_name(name: str) -> str:
    """An attribute's name as a condition writes it: in backticks where it would read as something else."""
    return ".".join(_quote_part(part) for part in name.split("."))


def quote_string(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def like_parts(pattern: str) -> tuple[str, ...]:
    r"""A pattern as runs of plain text between wildcards, which stand as themselves: `a\%%` is ('a%', '%').

    Plain runs and wildcards alternate; an empty run between two wildcards is kept, so even positions are
    always plain text and odd ones wildcards.
    """
    parts = _WILDCARD.split(pattern) if "\\" not in pattern else _split_escaped(pattern)
    return tuple(parts)


_WILDCARD = re.compile("([%_])")
_ESCAPED = re.compile(r"\\([\\%_])|([%_])|[^\\%_]+|\\")


def _split_escaped(pattern: str) -> list[str]:
    parts: list[str] = []
    plain: list[str] = []
    for found in _ESCAPED.finditer(pattern):
        if found[2]:
            parts += ["".join(plain), found[2]]
            plain = []
        else:
            plain.append(found[1] or found[0])
    return [*parts, "".join(plain)]


def like_pattern(parts: tuple[str, ...]) -> str:
    """The canonical pattern with these parts."""
    return "".join([part if index % 2 or not part else _escaped(part) for index, part in enumerate(parts)])


def _escaped(plain: str) -> str:
    return re.sub(r"([\\%_])", r"\\\1", plain)


def _format(node: Node) -> tuple[str, int]:
    match node:
        case Literal():
            return _literal(node)
        case AttributeRef(name):
            return quote_name(name), _ATOM
        case Compare(op, left, right):
            return f"{_inside(left, _COMPARE)} {op} {_inside(right, _COMPARE)}", _COMPARE
        case In(arg, items):
            return f"{_inside(arg, _COMPARE)} IN ({', '.join(map(format_tree, items))})", _COMPARE
        case Like(arg, pattern):
            return f"{_inside(arg, _COMPARE)} LIKE {quote_string(pattern)}", _COMPARE
        case IsNull(arg):
            return f"{_inside(arg, _COMPARE)} IS NULL", _COMPARE
        case Not(IsNull(arg)):
            return f"{_inside(arg, _COMPARE)} IS NOT NULL", _COMPARE
        case Not(arg):
            return f"NOT {_inside(arg, _NOT)}", _NOT
        case And(args):
            return " AND ".join(_inside(arg, _AND) for arg in args), _AND
        case Or(args):
            return " OR ".join(_inside(arg, _OR) for arg in args), _OR
        case Arithmetic(op, left, right):
            binds = _ARITHMETIC_BINDS[op]
            return f"{_inside(left, binds - 1)} {op} {_inside(right, binds)}", binds
        case Negate(arg):
            return f"-{_inside(arg, _UNARY)}", _UNARY
        case Call(name, args):
            return f"{name}({', '.join(map(format_tree, args))})", _ATOM
        case Item(of, at):
            return f"{_inside(of, _UNARY)}[{format_tree(at)}]", _ATOM
        case AnyItem(op, arg, array):
            return f"{_inside(arg, _COMPARE)} {op} ANY({format_tree(array)})", _COMPARE


def _inside(node: Node, binds: int) -> str:
    text, own = _format(node)
    return text if own > binds else f"({text})"


def format_value(value: Value | None, kind: ValueType) -> str:
    """A constant as conditions write it.

    >>> from decimal import Decimal
    >>> format_value(Decimal("9.90"), ValueType.decimal(5, 2))
    '9.90BD'
    """
    match kind.kind:
        case "null":
            return "NULL"
        case "bool":
            return str(value).upper()
        case "string":
            return quote_string(str(value))
        case "timestamp" | "date" | "time":
            return f"{kind.kind.upper()} '{value!s}'"
        case "bytes":
            assert isinstance(value, bytes)
            return f"X'{value.hex()}'"
        case "decimal":
            return f"{value:f}BD"
    return repr(value)


def _literal(node: Literal) -> tuple[str, int]:
    text = format_value(node.value, node.type)
    # A negative number binds like the minus it begins with.
    return text, _UNARY if text.startswith("-") else _ATOM


def _quote_part(part: str) -> str:
    plain = _PLAIN_NAME.fullmatch(part) and part.upper() not in RESERVED
    return part if plain else f"`{part}`"
