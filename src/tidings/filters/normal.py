"""The normal form: a condition as a union of boxes.

A box has one set of intervals per attribute it constrains, and residual conditions for what
is not an interval (suffixes, arithmetic, two attributes). A condition is TRUE of an event
exactly if some box holds its values and all residuals of that box are TRUE.

NULL needs no third value here. The tree is descended with the question "where is this TRUE?",
and each NOT turns it into "where is this FALSE?": `NOT (a < 5)` asks where `a < 5` is FALSE,
which is `a >= 5` and excludes NULL by itself.

An AND of ORs multiplies. What would make more than BOXES_MAX boxes, or take more than STEPS_MAX
steps, is not multiplied out: it stays as a residual, in a box that holds all of it. So every
condition has a normal form, exact, in time that is bounded by the length of its text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from msgspec import Struct

from tidings.events import Value, ValueType
from tidings.filters.evaluate import evaluate
from tidings.filters.intervals import (
    Intervals,
    any_of,
    anything,
    comparing,
    hull_of,
    join_all,
    meet_all,
    nothing_but_null,
    with_prefix,
)
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
    children,
    format_tree,
    like_parts,
)

BOXES_MAX: Final = 1024  # What one condition may cost the index; an OR of 1,000 different things is a data join.
FACTORS_MAX: Final = 64  # Of one AND; it is not worth the time to choose among more which to multiply out.
STEPS_MAX: Final = 32_768  # To put boxes together, beyond one look at each word: ten milliseconds.


FEW_TERMS: Final = 4  # An OR of so many is looked at for what most short ORs are.


class TooManyBoxes(Exception):
    """More than BOXES_MAX boxes, or more than STEPS_MAX steps."""


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
_SEVERAL: Final[list[Part]] = [_EVERYTHING, _EVERYTHING]  # Of a factor that is not taken apart.
NEGATED = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
_IS = {truth: comparing("=", ValueType.BOOL, truth) for truth in (True, False)}
MIRRORED = {"=": "=", "<>": "<>", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


def boxes_of(node: Node, *, boxes_max: int = BOXES_MAX, steps_max: int = STEPS_MAX) -> tuple[Box, ...]:
    """The boxes of a condition, at most `boxes_max`; none if it can never be TRUE."""
    return as_boxes(_Normaliser(boxes_max, steps_max).parts_of(node, True))


def as_boxes(parts: list[Part]) -> tuple[Box, ...]:
    """The finished boxes."""
    return tuple([Box(tuple(sorted(sides.items())), residuals) for sides, residuals in parts])


def parts_of(node: Node, wanted: bool) -> list[Part]:
    """Where `node` is TRUE if `wanted`, else where it is FALSE."""
    return _Normaliser(BOXES_MAX, STEPS_MAX).parts_of(node, wanted)


class _Normaliser:
    """One tree on its way to boxes, and the steps that are left for it.

    Whatever comes straight from a word of the text is free. Parts that are looked at again, because they are
    nested or multiplied, take steps: one for each side, interval and node of a residual.
    """

    def __init__(self, boxes_max: int, steps: int) -> None:
        self._boxes_max = boxes_max
        self._steps = steps
        self._sizes: dict[int, tuple[int, Node]] = {}  # By id; the node is kept, so that no other gets the same.

    def parts_of(self, node: Node, wanted: bool) -> list[Part]:
        kind = type(node)
        if kind is Compare:
            return _compare(node, wanted)  # type: ignore[arg-type]
        if kind is And or kind is Or:
            args: tuple[Node, ...] = node.args  # type: ignore[union-attr]
            if (kind is And) is wanted:
                return self._product(node, args, self._factors(args, wanted), wanted)
            return self._union(node, args, self._terms(args, wanted), wanted)
        if kind is Not:
            return self.parts_of(node.arg, not wanted)  # type: ignore[union-attr]
        return _other(node, wanted)

    def _factors(self, args: tuple[Node, ...], wanted: bool) -> list[list[Part]]:
        """The parts of each; where those of several parts are too many to choose among, no more are taken apart."""
        if len(args) <= FACTORS_MAX:
            return [self.parts_of(arg, wanted) for arg in args]
        factors, several = [], 0
        for arg in args:
            is_whole = several > FACTORS_MAX and type(arg) in _INNER and _is_inner(arg)
            factors.append(_SEVERAL if is_whole else self.parts_of(arg, wanted))
            several += len(factors[-1]) > 1
        return factors

    def _terms(self, args: tuple[Node, ...], wanted: bool) -> list[list[Part]]:
        """The same for an OR. Beyond the boxes allowed, terms are taken apart for the box around them all, as long as
        that says something: a term with residuals throughout stays one itself.
        """
        if len(args) <= FACTORS_MAX:
            return [self.parts_of(arg, wanted) for arg in args]
        terms, boxes, is_whole = list[list[Part]](), 0, False
        for arg in args:
            is_inner = type(arg) in _INNER and _is_inner(arg)
            terms.append([({}, (_wanted(arg, wanted),))] if is_whole and is_inner else self.parts_of(arg, wanted))
            boxes += len(terms[-1])
            is_whole |= is_inner and boxes > self._boxes_max and all(residuals for _, residuals in terms[-1])
        return terms

    def _product(self, node: Node, args: tuple[Node, ...], factors: list[list[Part]], wanted: bool) -> list[Part]:
        """Boxes that lie in one part of every factor. A factor that would make too many stays a residual."""
        if [] in factors:
            return []
        single = [at for at, factor in enumerate(factors) if len(factor) == 1]
        if len(single) == len(args) and not _nested(args, factors):
            return _meet([factor[0] for factor in factors])
        if len(args) - len(single) > FACTORS_MAX:
            rest = type(node)(tuple([arg for arg, factor in zip(args, factors) if len(factor) > 1]))  # type: ignore[call-arg, arg-type]
            found = self._product(node, tuple([args[at] for at in single]), [factors[at] for at in single], wanted)
            return [(sides, (*residuals, _wanted(rest, wanted))) for sides, residuals in found]
        return self._multiplied(node, args, factors, wanted)

    def _multiplied(self, node: Node, args: tuple[Node, ...], factors: list[list[Part]], wanted: bool) -> list[Part]:
        chosen = self._chosen(args, factors)
        single = [
            factor[0] if len(factor) == 1 else self._kept_whole(factor, _wanted(arg, wanted))
            for arg, factor, multiplied in zip(args, factors, chosen)
            if not multiplied
        ]
        if not self._may_take_all(self._weight(factor[0]) for factor in _nested(args, factors)):
            return [({name: side for sides, _ in single for name, side in sides.items()}, (_wanted(node, wanted),))]
        found = _meet(single)
        for factor, multiplied in zip(factors, chosen):
            if multiplied:
                found = [both for left in found for right in factor for both in _meet([left, right])]
        return found

    def _chosen(self, args: tuple[Node, ...], factors: list[list[Part]]) -> list[bool]:
        """Which factors of several parts are multiplied out: all, or the small ones for as long as it pays."""
        chosen = [False] * len(factors)
        several = sorted((len(factor), at) for at, factor in enumerate(factors) if len(factor) > 1)
        if not several:
            return chosen
        boxes, weight = 1, sum([self._weight(factor[0]) for factor in factors if len(factor) == 1])
        if math.prod([count for count, _ in several]) > self._boxes_max:
            weight += sum([self._size(args[at]) for _, at in several])  # Every box repeats what stays a residual.
        for count, at in several:
            weight = count * weight + boxes * sum(map(self._weight, factors[at]))
            boxes *= count
            if boxes > self._boxes_max or not self._may_take(weight):
                break
            chosen[at] = True
        return chosen

    def _union(self, node: Node, args: tuple[Node, ...], terms: list[list[Part]], wanted: bool) -> list[Part]:
        """All the parts, as few as possible. Terms beyond the boxes allowed stay a residual together, in the last box."""
        if len(terms) <= min(FEW_TERMS, self._boxes_max) and (few := _side_by_side(terms)):
            return few
        if not self._may_take_all(self._touched(term) for term in _nested(args, terms)):
            return [self._kept_whole([part for term in terms for part in term], _wanted(node, wanted))]
        union = _Union()
        boxes_max = self._boxes_max - (sum(map(len, terms)) > self._boxes_max)
        rest = [at for at, term in enumerate(terms) if not union.add(term, boxes_max)]
        found = union.parts()
        if rest and found != [_EVERYTHING]:
            nodes = tuple([args[at] for at in rest])
            whole = nodes[0] if len(nodes) == 1 else type(node)(nodes)  # type: ignore[call-arg, arg-type]
            found.append(self._kept_whole([part for at in rest for part in terms[at]], _wanted(whole, wanted)))
        return found

    def _kept_whole(self, parts: list[Part], residual: Node) -> Part:
        """One box around all parts, with the condition that they come from as its residual."""
        names = list(min(parts, key=lambda part: len(part[0]))[0])
        for sides, _ in parts:
            names = [name for name in names if name in sides]
        around: dict[str, Intervals] = {}
        for name in names:
            sides_there = [sides[name] for sides, _ in parts]
            exact = self._may_take(sum([len(side.pairs) for side in sides_there]))
            around[name] = join_all(sides_there) if exact else hull_of(sides_there)
        return around, (residual,)

    def _may_take(self, steps: int) -> bool:
        """Takes the steps, if so many are left."""
        if steps > self._steps:
            return False
        self._steps -= steps
        return True

    def _may_take_all(self, counts: Iterator[int]) -> bool:
        """The same for the sum of these, which are counted only as far as steps are left."""
        total = 0
        for count in counts:
            total += count
            if total > self._steps:
                return False
        return self._may_take(total)

    def _weight(self, part: Part) -> int:
        """What a copy of this part costs: in boxes, and in a table of boxes."""
        sides, residuals = part
        intervals = sum([len(side.pairs) for side in sides.values()])
        return 1 + len(sides) + intervals + sum([self._size(node) for node in residuals])

    def _touched(self, parts: list[Part]) -> int:
        """What a union does with these parts: those with one side are joined, the others only passed on."""
        joined = sum([len(side.pairs) for sides, _ in parts if len(sides) == 1 for side in sides.values()])
        return len(parts) + joined + sum([self._size(node) for _, residuals in parts for node in residuals])

    def _size(self, node: Node) -> int:
        """About an eighth of the length of its text. Counted once, however often a residual is looked at."""
        kind = type(node)
        if kind is Literal:
            return 1 + len(node.value) // 8 if isinstance(node.value, str | bytes) else 1  # type: ignore[union-attr]
        if kind is AttributeRef:
            return 1
        if kind is Compare:
            return 1 + self._size(node.left) + self._size(node.right)  # type: ignore[union-attr]
        known = self._sizes.get(id(node))
        if known is None:
            own = 1 + len(node.pattern) // 8 if isinstance(node, Like) else 1
            known = self._sizes[id(node)] = (own + sum([self._size(child) for child in children(node)]), node)
        return known[0]


def _side_by_side(terms: list[list[Part]]) -> list[Part]:
    """The parts, if each term is one side of another attribute, so that nothing joins; otherwise none."""
    if any(len(term) != 1 or len(term[0][0]) != 1 for term in terms):
        return []
    return [term[0] for term in terms] if len({_key(term[0])[0] for term in terms}) == len(terms) else []


class _Union:
    """Parts of which any may hold. Parts of one side that differ in nothing else become one."""

    def __init__(self) -> None:
        self._found: list[Part] = []
        self._joined: dict[tuple[str, tuple[Node, ...]], tuple[int, list[Intervals]]] = {}
        self._is_everything = False

    def add(self, parts: list[Part], boxes_max: int = BOXES_MAX) -> bool:
        """Adds all of these parts, unless there would be more than `boxes_max` then; returns whether it did."""
        if len(parts) == 1 and len(parts[0][0]) == 1 and self._join(parts[0]):
            return True  # What long ORs are made of.
        if len(self._found) + len(parts) > boxes_max and len(self._found) + self._count_new(parts) > boxes_max:
            return False
        for part in parts:
            if len(part[0]) != 1:
                self._is_everything |= part == _EVERYTHING
                self._found.append(part)
            elif not self._join(part):
                self._joined[_key(part)] = (len(self._found), list(part[0].values()))
                self._found.append(part)
        return True

    def _join(self, part: Part) -> bool:
        """Puts a part of one side to those that differ in nothing else; returns whether there are any."""
        known = self._joined.get(_key(part))
        if known:
            known[1].extend(part[0].values())
        return known is not None

    def _count_new(self, parts: list[Part]) -> int:
        return sum([len(part[0]) != 1 or _key(part) not in self._joined for part in parts])

    def parts(self) -> list[Part]:
        if self._is_everything:
            return [_EVERYTHING]
        for (name, residuals), (at, sides) in self._joined.items():
            if len(sides) > 1:
                self._found[at] = ({name: join_all(sides)}, residuals)
        return self._found


def _key(part: Part) -> tuple[str, tuple[Node, ...]]:
    return next(iter(part[0])), part[1]


def product(factors: list[list[Part]]) -> list[Part]:
    """Boxes that lie in one part of every factor. Raises TooManyBoxes."""
    found = _meet([factor[0] for factor in factors if len(factor) == 1])
    for factor in factors:  # Factors of one part first: they keep the product small.
        if len(factor) != 1:
            if len(found) * len(factor) > BOXES_MAX:
                raise TooManyBoxes
            found = [both for left in found for right in factor for both in _meet([left, right])]
    return found


def union(terms: list[list[Part]]) -> list[Part]:
    """All the parts, those that differ in one attribute only joined into one. Raises TooManyBoxes."""
    found = _Union()
    for term in terms:
        if not found.add(term):
            raise TooManyBoxes
    return found.parts()


def _meet(parts: list[Part]) -> list[Part]:
    """The one box that lies in all of these, or none."""
    if len(parts) == 1:
        return parts
    met: dict[str, list[Intervals]] = {}
    sides: dict[str, Intervals] = {}
    residuals: list[Node] = []
    for more, others in parts:
        for name, side in more.items():
            if name not in sides:
                sides[name] = side
            elif name in met:
                met[name].append(side)
            else:
                met[name] = [sides[name], side]
        if others:
            residuals += others
    for name, several in met.items():
        sides[name] = both = several[0] & several[1] if len(several) == 2 else meet_all(several)
        if not both:
            return []
    return [(sides, tuple(dict.fromkeys(residuals)) if len(residuals) > 1 else tuple(residuals))]


def _has_attribute(node: Node) -> bool:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        kind = type(node)
        if kind is AttributeRef:
            return True
        if kind is not Literal:
            waiting += children(node)[::-1]
    return False


def _wanted(node: Node, wanted: bool) -> Node:
    """A condition that is TRUE where this one is TRUE if `wanted`, else where it is FALSE."""
    return node if wanted else Not(node)


def _nested(args: tuple[Node, ...], parts: list[list[Part]]) -> list[list[Part]]:
    """The parts that were put together from others already, so that to do it again takes steps."""
    return [parts[at] for at, arg in enumerate(args) if type(arg) in _INNER and _is_inner(arg)]


def _is_inner(node: Node) -> bool:
    while type(node) is Not:
        node = node.arg
    return isinstance(node, And | Or)


_INNER: Final = frozenset([And, Or, Not])


def _other(node: Node, wanted: bool) -> list[Part]:
    match node:
        case Literal(value):
            return [_EVERYTHING] if value is wanted else []
        case AttributeRef(name, ValueType.BOOL):
            return [_side(name, _IS[wanted])]
        case In(AttributeRef(name, kind), items) if all(isinstance(item, Literal) for item in items):
            return _in(name, kind, [item.value for item in items], wanted)  # type: ignore[union-attr]
        case Like(AttributeRef(name, ValueType.STRING), pattern):
            return _like(node, name, pattern, wanted)
        case IsNull(AttributeRef(name, kind)) if kind is not ValueType.NULL:
            return [_side(name, nothing_but_null(kind) if wanted else anything(kind))]
    return _residual(node, wanted)


def _residual(node: Node, wanted: bool) -> list[Part]:
    if _has_attribute(node):
        return [({}, (_wanted(node, wanted),))]
    return [_EVERYTHING] if evaluate(node, {}) is wanted else []


def _compare(node: Compare, wanted: bool) -> list[Part]:
    op, left, right = node.op, node.left, node.right
    if type(left) is not AttributeRef:
        op, left, right = MIRRORED[op], right, left
    if type(left) is not AttributeRef or left.type is ValueType.NULL:
        return _residual(node, wanted)
    if type(right) is Literal:
        value = right.value
    elif _has_attribute(right):
        return _residual(node, wanted)
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
