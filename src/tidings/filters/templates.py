"""A short cut for large sets: conditions that differ only in their constants are checked once.

A million subscriptions have a few hundred *shapes*: the words of the text with every constant
replaced by its type. Parsing, and the check of types, depend on nothing else. So the first
condition of a shape is parsed in full, and if it is an AND of comparisons of attributes with
constants, it leaves a template behind that turns the constants of the next one straight into
a box. Whatever is not of that kind, or looks odd in any way, takes the long way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias

from tidings.events import EventType, ValueType
from tidings.filters.intervals import Intervals, any_of, comparing, with_prefix
from tidings.filters.normal import MIRRORED, Box
from tidings.filters.parse import NUMBER, WORD
from tidings.filters.syntax import And, Attribute, Compare, In, Like, Literal, Node

WORDS_MAX: Final = 64  # Longer conditions are lists; they have a shape of their own and spend their time elsewhere.
SHAPES_MAX: Final = 4096  # Per event type. Beyond that, conditions of new shapes are parsed one by one.

Shape: TypeAlias = tuple[str, ...]
Template: TypeAlias = list[tuple[str, Callable[..., Intervals], slice]]

_DIGITS = frozenset("0123456789")


class _Odd(Exception):
    """This condition has to be parsed."""


def boxes_by_template(text: str, event_type: EventType) -> tuple[Box, ...] | None:
    """The boxes of a condition whose shape is known; None if it has to be parsed."""
    try:
        shape, constants = _shape_of(text)
        template = _templates_of(event_type).get(shape)
        return None if template is None else _apply(template, constants)
    except _Odd:
        return None


def learn_template(text: str, event_type: EventType, tree: Node) -> None:
    """Remember what the parser made of the first condition of a shape, if that is simple enough."""
    known = _templates_of(event_type)
    try:
        shape, constants = _shape_of(text)
    except _Odd:
        return
    if shape not in known and len(known) < SHAPES_MAX:
        known[shape] = _template_of(tree, constants)


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


def _apply(template: Template, constants: list[Any]) -> tuple[Box, ...]:
    """One box, or none if the condition can never be TRUE."""
    sides: dict[str, Intervals] = {}
    for name, make, slots in template:
        side = make(*constants[slots])
        if name in sides:
            side = sides[name] & side
        if not side.pairs:
            return ()
        sides[name] = side
    return (Box(tuple(sorted(sides.items()))),)


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


def _template_of(tree: Node, constants: list[Any]) -> Template | None:
    """How each comparison becomes intervals, if all are simple and use the constants in their order."""
    template: Template = []
    used: list[Any] = []
    for node in tree.args if isinstance(tree, And) else (tree,):
        simple = _simple(node)
        if simple is None:
            return None
        name, make, values = simple
        template.append((name, make, slice(len(used), len(used) + len(values))))
        used += values
    in_order = [(type(value), value) for value in used] == [(type(value), value) for value in constants]
    return template if in_order else None


def _simple(node: Node) -> tuple[str, Callable[..., Intervals], list[Any]] | None:
    match node:
        case Compare(op, Attribute(name, kind), Literal(value)) if value is not None:
            return name, partial(comparing, op, kind), [value]
        case Compare(op, Literal(value), Attribute(name, kind)) if value is not None:
            return name, partial(comparing, MIRRORED[op], kind), [value]
        case In(Attribute(name, kind), items) if all(isinstance(item, Literal) for item in items):
            return name, lambda *values: any_of(kind, values), [item.value for item in items]  # type: ignore[union-attr]
        case Like(Attribute(name), pattern):
            return name, _like, [pattern]
    return None


def _like(pattern: str) -> Intervals:
    prefix = pattern.rstrip("%")
    if "%" in prefix or "_" in prefix or "\\" in prefix:
        raise _Odd  # Not only a prefix: it has a residual.
    return with_prefix(prefix) if prefix != pattern else comparing("=", ValueType.STRING, pattern)
