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
from tidings.events import EventType, Timestamp, ValueType
from tidings.filters.intervals import Intervals, any_of, comparing, with_prefix
from tidings.filters.normal import MIRRORED, NEGATED, Box, Part, TooManyBoxes, as_boxes, parts_of, product, union
from tidings.filters.parse import NUMBER, WORD
from tidings.filters.syntax import And, AttributeRef, Compare, In, IsNull, Like, Literal, Node, Not, Or

WORDS_MAX: Final = (
    64  # Longer conditions are mostly lists, each with a shape of its own, and spend their time elsewhere.
)
SHAPES_MAX: Final = 4096  # Per event type. Beyond that, conditions of new shapes are parsed one by one.

Shape: TypeAlias = tuple[str, ...]
Template: TypeAlias = Callable[[list[Any]], list[Part]]  # From the constants, in order, to the parts of boxes.

_DIGITS = frozenset("0123456789")


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
        known[shape] = _Builder(constants).template(tree)


@lru_cache(maxsize=256)  # As many event types as the parser keeps names of.
def _templates_of(event_type: EventType) -> dict[Shape, Template | None]:
    """The templates known so far for conditions over this event type; None for shapes that have none."""
    return {}


def _shape_of(text: str) -> tuple[Shape, list[Any]]:
    """The shape of a condition and its constants in order. Raises _Odd for what is long or unusual."""
    words = WORD.findall(text)
    if len(words) > WORDS_MAX:
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
            shape.append("1" if type(number) is int else "1.0")
        else:
            shape.append(word)
    return tuple(shape), constants


def _plain_text(word: str) -> str:
    text = word[1:-1]
    if len(word) < 2 or "\\" in text or "'" in text:
        raise _Odd
    return text


def _plain_number(word: str) -> int | float:
    if word.isdecimal() and word.isascii() and len(word) <= 18:
        return int(word)
    if word.isdecimal() or not NUMBER.fullmatch(word) or math.isinf(number := float(word)):
        raise _Odd
    return number


class _Builder:
    """Makes the template of one tree, while it checks that the tree uses the constants of the text in order."""

    def __init__(self, constants: list[Any]) -> None:
        self._constants = constants
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
        at = self._take(value)
        if kind is ValueType.TIMESTAMP:
            return lambda constants: _part(name, comparing(op, kind, _moment(constants[at])))
        return lambda constants: _part(name, comparing(op, kind, constants[at]))

    def _in(self, name: str, kind: ValueType, items: tuple[Node, ...], wanted: bool) -> Template:
        first = self._used
        for item in items:
            if not isinstance(item, Literal) or isinstance(item.value, Timestamp):
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
        constant = _moment(self._constants[at]) if isinstance(value, Timestamp) else self._constants[at]
        if type(constant) is not type(value) or constant != value:
            raise _Odd
        return at


def _part(name: str, side: Intervals) -> list[Part]:
    return [({name: side}, ())] if side.pairs else []


def _moment(text: Any) -> Timestamp:
    try:
        return Timestamp(text)
    except (EventError, ValueError, OverflowError):
        raise _Odd from None


def _like(pattern: str) -> Intervals:
    prefix = pattern.rstrip("%")
    if "%" in prefix or "_" in prefix:
        raise _Odd  # Not only a prefix: it has a residual.
    return with_prefix(prefix) if prefix != pattern else comparing("=", ValueType.STRING, pattern)
