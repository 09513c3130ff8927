"""Templates for large sets: conditions that differ only in their constants are parsed and checked once.

A million subscriptions have a few hundred *shapes*: the words of the text with every constant
replaced by its type. Parsing and type checking depend on nothing else. So the first condition
of a shape is parsed in full. If it compares attributes with constants only, it becomes a
template, which turns the constants of the next condition of that shape directly into boxes.
All other conditions, and those that are unusual in any way, are parsed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, TypeAlias

from tidings.errors import EventError
from tidings.events import Date, EventType, Exact, Time, Timestamp, ValueType
from tidings.filters.intervals import Intervals, any_of, comparing, with_prefix
from tidings.filters.normal import MIRRORED, NEGATED, Box, Part, TooManyBoxes, as_boxes, parts_of, product, union
from tidings.filters.parse import NUMBER, WORD
from tidings.filters.syntax import And, AttributeRef, Compare, In, IsNull, Like, Literal, Node, Not, Or

WORDS_MAX: Final = 64  # Longer conditions are mostly lists, each with its own shape, and spend their time elsewhere.
SHAPES_MAX: Final = 4096  # Per event type. Beyond that, conditions of new shapes are parsed one by one.

Shape: TypeAlias = tuple[str, ...]
Template: TypeAlias = Callable[[list[Any]], list[Part]]  # From the constants, in order, to the parts of boxes.

_DIGITS = frozenset("0123456789")
_EXACT_LENGTH = 16  # Characters of a double that are at most 15 digits and a point.
_INT, _SHORT, _LONG = "1", "1.0", "1.00"  # What stands for a number in a shape; one with an exponent is long, too.


class _Odd(Exception):
    """This condition has to be parsed."""


def boxes_by_template(text: str, event_type: EventType) -> tuple[Box, ...] | None:
    """The boxes of a condition whose shape is known; None if it has to be parsed."""
    try:
        shape, constants = _shape_of(text)
        template = _templates_of(event_type).get(shape)
        return None if template is None else as_boxes(template(constants))
    except (_Odd, TooManyBoxes):
        return None


def learn_template(text: str, event_type: EventType, tree: Node) -> None:
    """Keeps a template of the first condition of a shape, if it is simple enough."""
    known = _templates_of(event_type)
    try:
        shape, constants = _shape_of(text)
    except _Odd:
        return
    if shape not in known and len(known) < SHAPES_MAX:
        known[shape] = _Builder(constants, _LONG not in shape).template(tree)


@lru_cache(maxsize=256)  # As many event types as the parser keeps names of.
def _templates_of(event_type: EventType) -> dict[Shape, Template | None]:
    """The templates known so far for conditions over this event type; None for shapes that have none."""
    return {}


def _shape_of(text: str) -> tuple[Shape, list[Any]]:
    """The shape of a condition and its constants in order. Raises _Odd for what is long or unusual."""
    words = WORD.findall(text)
    if not 0 < len(words) <= WORDS_MAX:
        raise _Odd
    shape: list[str] = []
    constants: list[Any] = []
    for word in words:
        if word[0] == "'":
            constants.append(_plain_text(word))
            shape.append("'")
        elif word[0] in _DIGITS:
            number = _plain_number(word)
            constants.append(number)
            shape.append(_kind_of(word, number))
        elif word == "-":
            raise _Odd  # Whose sign it is, the parser knows; and -0 equals 0.
        else:
            shape.append(word)
    return tuple(shape), constants


def _plain_text(word: str) -> str:
    text = word[1:-1]
    if len(word) < 2 or word[-1] != "'" or "\\" in text or "'" in text:
        raise _Odd
    return text


def _plain_number(word: str) -> int | float:
    if word.isdecimal() and word.isascii() and len(word) <= 18:
        return int(word)
    if word.isdecimal() or not NUMBER.fullmatch(word) or math.isinf(number := float(word)):
        raise _Odd
    return number


def _kind_of(word: str, number: float) -> str:
    if type(number) is int:
        return _INT
    return _SHORT if len(word) <= _EXACT_LENGTH and "e" not in word.lower() else _LONG


class _Builder:
    """Makes the template of one tree, while it checks that the tree uses the constants of the text in order.

    `has_exact`: whether every number tells the digits that it was written with, as decimals need them.
    """

    def __init__(self, constants: list[Any], has_exact: bool) -> None:
        self._constants, self._has_exact = constants, has_exact
        self._used = 0

    def template(self, tree: Node) -> Template | None:
        try:
            made = self._build(tree, True)
        except _Odd:
            return None
        return made if self._used == len(self._constants) else None

    def _build(self, node: Node, wanted: bool) -> Template:
        """The template for where `node` is TRUE if `wanted`, else for where it is FALSE; as `parts_of`."""
        match node:
            case And(args) | Or(args):
                below = [self._build(arg, wanted) for arg in args]
                combine = product if isinstance(node, And) is wanted else union
                return lambda constants: combine([part(constants) for part in below])
            case Not(arg):
                return self._build(arg, not wanted)
            case AttributeRef() | IsNull(AttributeRef()) | Compare(_, AttributeRef(), Literal(bool())):
                fixed = parts_of(node, wanted)
                return lambda constants: fixed
            case Compare(op, AttributeRef(name, kind), Literal(value)):
                return self._compare(op if wanted else NEGATED[op], name, kind, value)
            case Compare(op, Literal(value), AttributeRef(name, kind)):
                return self._compare(MIRRORED[op if wanted else NEGATED[op]], name, kind, value)
            case In(AttributeRef(name, kind), items):
                return self._in(name, kind, items, wanted)
            case Like(AttributeRef(name), pattern) if wanted:
                at = self._take(pattern)
                return lambda constants: _part(name, _like(constants[at]))
        raise _Odd

    def _compare(self, op: str, name: str, kind: ValueType, value: Any) -> Template:
        if kind.is_decimal and type(value) is float:
            raise _Odd  # Another number of this shape may have few enough digits to be compared exactly.
        at, read = self._take(value), _READ.get(type(value))
        if read:
            return lambda constants: _part(name, comparing(op, kind, read(constants[at])))
        return lambda constants: _part(name, comparing(op, kind, constants[at]))

    def _in(self, name: str, kind: ValueType, items: tuple[Node, ...], wanted: bool) -> Template:
        first = self._used
        for item in items:
            if not isinstance(item, Literal) or type(item.value) in _READ or kind.is_decimal:
                raise _Odd
            self._take(item.value)
        end = self._used
        if wanted:
            return lambda constants: _part(name, any_of(kind, constants[first:end]))
        return lambda constants: _part(name, any_of(kind, constants[first:end]).others())

    def _take(self, value: Any) -> int:
        """The position of the next constant, which must be the one that the tree has here."""
        at = self._used
        self._used += 1
        if at >= len(self._constants):
            raise _Odd
        constant, read = self._constants[at], _READ.get(type(value))
        if read:
            if type(value) is Exact and not self._has_exact:
                raise _Odd
            constant = read(constant)
        if type(constant) is not type(value) or constant != value:
            raise _Odd
        return at


def _part(name: str, side: Intervals) -> list[Part]:
    return [({name: side}, ())] if side.pairs else []


def _reader(kind: type) -> Callable[[Any], Any]:
    def read(text: Any) -> Any:
        try:
            return kind(text)
        except (EventError, ValueError, OverflowError):
            raise _Odd from None

    return read


def _exact(number: Any) -> Exact:
    """The decimal that a double was written as, in at most 15 digits: these survive the way there and back."""
    if type(number) is not float:
        raise _Odd
    return Exact(repr(number))


# How constants are read that are more than texts and numbers.
_READ: Final[dict[type, Callable[[Any], Any]]] = {
    **{kind: _reader(kind) for kind in (Timestamp, Date, Time)},
    Exact: _exact,
}


def _like(pattern: str) -> Intervals:
    prefix = pattern.rstrip("%")
    if "%" in prefix or "_" in prefix:
        raise _Odd  # Not only a prefix: it has a residual.
    return with_prefix(prefix) if prefix != pattern else comparing("=", ValueType.STRING, pattern)
