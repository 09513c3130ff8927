"""How two conditions relate, by their boxes. Both answers err on one side only: a wrong answer is always False.

Most conditions have a few boxes, and each pair of them is compared. For many boxes the pairs worth comparing are
looked up: a box of one condition is asked for by the outermost bounds of its sides, and sets of boxes are the bits of
ints. What is compared then is counted, and beyond STEPS_MAX the answer is False.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import or_
from typing import Any, Final

from tidings.filters.condition import Condition
from tidings.filters.intervals import Intervals
from tidings.filters.normal import Box
from tidings.filters.syntax import Node

PAIRS_MIN: Final = 64  # Of boxes; fewer are compared at once.
STEPS_MAX: Final = 32_768  # Intervals and residuals that are compared for one answer: some ten milliseconds.


def covers(wide: Condition, narrow: Condition, *, steps_max: int = STEPS_MAX) -> bool:
    """Whether `wide` matches every event that `narrow` matches.

    Errs only one way: it may say False of a pair that does cover, never True of a pair
    that does not. A router that prunes on it can send too much, never too little.

    >>> from tidings.filters import parse
    >>> covers(parse("price > 10"), parse("price > 20 and size < 5"))
    True
    """
    outer, steps = _Boxes(wide.boxes, len(narrow.boxes)), _Steps(steps_max)
    residuals = _Residuals()
    return all(any(_box_covers(box, inner, residuals, steps) for box in outer.around(inner)) for inner in narrow.boxes)


def overlaps(one: Condition, other: Condition, *, steps_max: int = STEPS_MAX) -> bool:
    """Whether some event matches both.

    Errs only one way: it may say False of a pair that does overlap (where residuals are
    involved), never True of a pair that does not.

    >>> from tidings.filters import parse
    >>> overlaps(parse("price > 10"), parse("price < 20")), overlaps(parse("price > 20"), parse("price < 10"))
    (True, False)
    """
    required = {a.name for side in (one, other) for a in side.event_type if a.required}
    plain, others = ([box for box in side.boxes if not box.residuals] for side in (one, other))
    boxes, steps = _Boxes(plain, len(others)), _Steps(steps_max)
    return any(_boxes_overlap(a, b, required, steps) for b in others for a in boxes.near(b))


class _Steps:
    """What is left of the comparisons that one answer may take."""

    def __init__(self, left: int) -> None:
        self._left = left

    def may_take(self, count: int) -> bool:
        self._left -= count
        return self._left >= 0


class _Residuals:
    """The residuals of boxes as sets of numbers: each tree is hashed once, not whenever two boxes are compared."""

    def __init__(self) -> None:
        self._numbers: dict[Node, int] = {}
        self._by_box: dict[int, frozenset[int]] = {}

    def of(self, box: Box) -> frozenset[int]:
        found = self._by_box.get(id(box))
        if found is None:
            numbers = self._numbers
            found = frozenset([numbers.setdefault(node, len(numbers)) for node in box.residuals])
            self._by_box[id(box)] = found
        return found


class _Boxes:
    """Boxes of one condition, to be asked `asked` times for those that may hold or touch another box."""

    def __init__(self, boxes: Sequence[Box], asked: int) -> None:
        self._boxes = boxes
        self._bounds = _bounds_of(boxes) if len(boxes) * asked > PAIRS_MIN else None

    def around(self, inner: Box) -> Iterator[Box]:
        """Those that may cover this one, all that do among them."""
        if self._bounds is None:
            return iter(self._boxes)
        mask, inside = self._all(), dict(inner.sides)
        for name, bounds in self._bounds.items():
            side = inside.get(name)
            mask &= bounds.free if side is None else bounds.holding(side)
            if not mask:
                break
        return self._marked(mask)

    def near(self, other: Box) -> Iterator[Box]:
        """Those that may overlap this one, all that do among them."""
        if self._bounds is None:
            return iter(self._boxes)
        mask = self._all()
        for name, side in other.sides:
            if name in self._bounds and not side.null:
                mask &= self._bounds[name].touching(side)
        return self._marked(mask)

    def _all(self) -> int:
        return (1 << len(self._boxes)) - 1

    def _marked(self, mask: int) -> Iterator[Box]:
        while mask:
            lowest = mask & -mask
            yield self._boxes[lowest.bit_length() - 1]
            mask ^= lowest


class _Bounds:
    """Where the sides of many boxes begin and end on one attribute. Sets of boxes are the bits of ints."""

    def __init__(self, sides: list[tuple[int, Intervals]], boxes_count: int) -> None:
        everything = (1 << boxes_count) - 1
        self.type = sides[0][1].type
        self.free = everything & ~sum([1 << at for at, _ in sides])  # Boxes that leave the attribute open.
        self._null = self.free | sum([1 << at for at, side in sides if side.null])
        full = [(at, side.pairs) for at, side in sides if side.pairs]
        self._lows, self._low_masks = _ordered([(pairs[0][0], at) for at, pairs in full])
        ended = [(pairs[-1][1], at) for at, pairs in full if pairs[-1][1] is not None]
        self._highs, self._high_masks = _ordered(ended)
        self._full = sum([1 << at for at, _ in full])

    def holding(self, side: Intervals) -> int:
        """Boxes whose side may include this one."""
        if side.type is not self.type or not side.pairs:
            return -1
        low, high = side.pairs[0][0], side.pairs[-1][1]
        begins = self._low_masks[bisect_right(self._lows, low)]
        too_short = self._high_masks[-1 if high is None else bisect_left(self._highs, high)]
        return self.free | (begins & ~too_short)

    def touching(self, side: Intervals) -> int:
        """Boxes whose side may have a value in common with this one, or NULL."""
        if side.type is not self.type or not side.pairs:
            return -1
        low, high = side.pairs[0][0], side.pairs[-1][1]
        begins = self._low_masks[-1 if high is None else bisect_left(self._lows, high)]
        too_early = self._high_masks[bisect_right(self._highs, low)]
        return self._null | (begins & ~too_early)


def _bounds_of(boxes: Sequence[Box]) -> dict[str, _Bounds]:
    by_name: dict[str, list[tuple[int, Intervals]]] = {}
    for at, box in enumerate(boxes):
        for name, side in box.sides:
            by_name.setdefault(name, []).append((at, side))
    return {name: _Bounds(sides, len(boxes)) for name, sides in by_name.items()}


def _ordered(ends: list[tuple[Any, int]]) -> tuple[list[Any], list[int]]:
    """Keys in ascending order, and at each place the boxes of all keys before it."""
    ends.sort()
    return [key for key, _ in ends], list(accumulate((1 << at for _, at in ends), or_, initial=0))


def _box_covers(outer: Box, inner: Box, residuals: _Residuals, steps: _Steps) -> bool:
    inside = dict(inner.sides)
    for name, side in outer.sides:
        if name not in inside or inside[name].type is not side.type:
            return False
        if not steps.may_take(len(side.pairs) + len(inside[name].pairs)) or not inside[name] <= side:
            return False
    if not outer.residuals:
        return True
    few = steps.may_take(len(outer.residuals) + len(inner.residuals))
    return few and residuals.of(outer) <= residuals.of(inner)


def _boxes_overlap(one: Box, other: Box, required: set[str], steps: _Steps) -> bool:
    sides = dict(one.sides)
    for name, side in other.sides:
        if name in sides and sides[name].type is not side.type:
            return False
        if name in sides and not steps.may_take(len(sides[name].pairs) + len(side.pairs)):
            return False
        sides[name] = sides[name] & side if name in sides else side
    return all(_possible(side, name in required) for name, side in sides.items())


def _possible(side: Intervals, required: bool) -> bool:
    return bool(side.pairs) or (side.null and not required)
