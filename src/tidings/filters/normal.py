"""The normal form: a condition as a union of boxes.

A box has one set of intervals per attribute it constrains, and residual conditions for what
is not an interval (suffixes, arithmetic, two attributes). A condition is TRUE of an event
exactly if some box holds its values and all residuals of that box are TRUE.

NULL needs no third value here. The tree is descended with the question "where is this TRUE?",
and each NOT turns it into "where is this FALSE?": `NOT (a < 5)` asks where `a < 5` is FALSE,
which is `a >= 5` and excludes NULL by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from msgspec import Struct

from tidings.events import Value, ValueType
from tidings.filters.evaluate import evaluate
from tidings.filters.intervals import Intervals, any_of, anything, comparing, nothing_but_null, with_prefix
from tidings.filters.syntax import (
    And,
    AttributeRef,
    Compare,
    In,
    IsNull,
    Like,
    Literal,
    Node,
    Not,
    Or,
    attributes_of,
    format_tree,
    like_parts,
)

BOXES_MAX: Final = 1024  # What one condition may cost the index; an OR of 1,000 different things is a data join.


class TooManyBoxes(Exception):
    """The product of the ORs exceeds BOXES_MAX."""


class Box(Struct, frozen=True, gc=False):
    """Sides in the order of their names, none of them empty, and residuals in the order written."""

    sides: tuple[tuple[str, Intervals], ...]
    residuals: tuple[Node, ...] = ()

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Whether the event lies in the box and the residuals are TRUE of it."""
        return all(values.get(name) in side for name, side in self.sides) and all(
            evaluate(residual, values) is True for residual in self.residuals
        )

    def __str__(self) -> str:
        sides = [f"{name} ∈ {side}" for name, side in self.sides]
        return " and ".join([*sides, *(f"«{format_tree(residual)}»" for residual in self.residuals)]) or "everything"


# A box under construction: intervals by attribute, and residuals. No side is empty.
Part: TypeAlias = tuple[dict[str, Intervals], tuple[Node, ...]]

_EVERYTHING: Final[Part] = ({}, ())
NEGATED = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
MIRRORED = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


def boxes_of(node: Node) -> tuple[Box, ...]:
    """The boxes of a condition; none if it can never be TRUE. Raises TooManyBoxes."""
    return as_boxes(parts_of(node, True))


def as_boxes(parts: list[Part]) -> tuple[Box, ...]:
    """The finished boxes."""
    return tuple([Box(tuple(sorted(sides.items())), residuals) for sides, residuals in parts])


def parts_of(node: Node, wanted: bool) -> list[Part]:
    """Where `node` is TRUE if `wanted`, else where it is FALSE."""
    kind = type(node)
    if kind is And or kind is Or:
        parts = [parts_of(arg, wanted) for arg in node.args]  # type: ignore[union-attr]
        return product(parts) if (kind is And) is wanted else union(parts)
    if kind is Compare:
        return _compare(node, wanted)  # type: ignore[arg-type]
    if kind is Not:
        return parts_of(node.arg, not wanted)  # type: ignore[union-attr]
    return _other(node, wanted)


def _other(node: Node, wanted: bool) -> list[Part]:
    match node:
        case Literal(value):
            return [_EVERYTHING] if value is wanted else []
        case AttributeRef(name, ValueType.BOOL):
            return [_side(name, comparing("=", ValueType.BOOL, wanted))]
        case In(AttributeRef(name, kind), items) if all(isinstance(item, Literal) for item in items):
            return _in(name, kind, [item.value for item in items], wanted)  # type: ignore[union-attr]
        case Like(AttributeRef(name, ValueType.STRING), pattern):
            return _like(node, name, pattern, wanted)
        case IsNull(AttributeRef(name, kind)) if kind is not ValueType.NULL:
            return [_side(name, nothing_but_null(kind) if wanted else anything(kind))]
    if not attributes_of(node):
        return [_EVERYTHING] if evaluate(node, {}) is wanted else []
    return [({}, (node if wanted else Not(node),))]


def _compare(node: Compare, wanted: bool) -> list[Part]:
    op, left, right = node.op, node.left, node.right
    if type(left) is not AttributeRef:
        op, left, right = MIRRORED[op], right, left
    if type(left) is not AttributeRef or left.type is ValueType.NULL:
        return _other(node, wanted)
    if type(right) is Literal:
        value = right.value
    elif attributes_of(right):
        return _other(node, wanted)
    else:
        value = evaluate(right, {})
    if value is None:
        return []
    side = comparing(op if wanted else NEGATED[op], left.type, value)
    return [({left.name: side}, ())] if side.pairs else []


def _in(name: str, kind: ValueType, values: list[Any], wanted: bool) -> list[Part]:
    if kind is ValueType.NULL or (not wanted and None in values):
        return []  # Never FALSE where one of the items is unknown.
    equal = any_of(kind, [value for value in values if value is not None])
    side = equal if wanted else equal.others()
    return [_side(name, side)] if side else []


def _like(node: Like, name: str, pattern: str, wanted: bool) -> list[Part]:
    """Exact texts and prefixes are intervals; any other pattern still has a prefix to go by."""
    prefix, *rest = like_parts(pattern)
    if not rest:
        return [_side(name, comparing("=" if wanted else "<>", ValueType.STRING, prefix))]
    if rest == ["%", ""]:
        side = with_prefix(prefix) if wanted else with_prefix(prefix).others()
        return [_side(name, side)] if side else []
    if wanted:
        return [({name: with_prefix(prefix)}, (node,))]
    return [({name: anything(ValueType.STRING)}, (Not(node),))]


def _side(name: str, side: Intervals) -> Part:
    return {name: side}, ()


def product(factors: list[list[Part]]) -> list[Part]:
    """Boxes that lie in one part of every factor."""
    single = [factor[0] for factor in factors if len(factor) == 1]
    found = _meet(single)  # Factors of one part first: they keep the product small.
    for factor in factors:
        if len(factor) != 1:
            if len(found) * len(factor) > BOXES_MAX:
                raise TooManyBoxes
            found = [both for left in found for right in factor for both in _meet([left, right])]
    return found


def _meet(parts: list[Part]) -> list[Part]:
    """The one box that lies in all of these, or none."""
    sides: dict[str, Intervals] = {}
    residuals: tuple[Node, ...] = ()
    for more, others in parts:
        for name, side in more.items():
            if name in sides:
                side = sides[name] & side
                if not side:
                    return []
            sides[name] = side
        if others:
            residuals += tuple(new for new in others if new not in residuals)
    return [(sides, residuals)]


def union(terms: list[list[Part]]) -> list[Part]:
    """All the parts, those that differ in one attribute only joined into one."""
    found: list[Part] = []
    single: dict[tuple[str, tuple[Node, ...]], int] = {}
    for sides, residuals in (part for term in terms for part in term):
        if not sides and not residuals:
            return [_EVERYTHING]
        key = (next(iter(sides)), residuals) if len(sides) == 1 else None
        if key in single:
            name = key[0]
            found[single[key]] = ({name: found[single[key]][0][name] | sides[name]}, residuals)
            continue
        if key:
            single[key] = len(found)
        found.append((sides, residuals))
    if len(found) > BOXES_MAX:
        raise TooManyBoxes
    return found
