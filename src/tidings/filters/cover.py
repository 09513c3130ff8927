"""How two conditions relate, by their boxes. Both answers err on one side only: a wrong answer is always False."""

from __future__ import annotations

from tidings.filters.condition import Condition
from tidings.filters.intervals import Intervals
from tidings.filters.normal import Box


def covers(wide: Condition, narrow: Condition) -> bool:
    """Whether `wide` matches every event that `narrow` matches.

    Errs only one way: it may say False of a pair that does cover, never True of a pair
    that does not. A router that prunes on it can send too much, never too little.

    >>> from tidings.filters import parse
    >>> covers(parse("price > 10"), parse("price > 20 and size < 5"))
    True
    """
    return all(any(_box_covers(outer, inner) for outer in wide.boxes) for inner in narrow.boxes)


def overlaps(one: Condition, other: Condition) -> bool:
    """Whether some event matches both.

    Errs only one way: it may say False of a pair that does overlap (where residuals are
    involved), never True of a pair that does not.

    >>> from tidings.filters import parse
    >>> overlaps(parse("price > 10"), parse("price < 20")), overlaps(parse("price > 20"), parse("price < 10"))
    (True, False)
    """
    required = {a.name for side in (one, other) for a in side.event_type if a.required}
    return any(_boxes_overlap(a, b, required) for a in one.boxes for b in other.boxes)


def _box_covers(outer: Box, inner: Box) -> bool:
    inside = dict(inner.sides)
    for name, side in outer.sides:
        if name not in inside or inside[name].type is not side.type or not inside[name] <= side:
            return False
    return all(residual in inner.residuals for residual in outer.residuals)


def _boxes_overlap(one: Box, other: Box, required: set[str]) -> bool:
    if one.residuals or other.residuals:
        return False
    sides = dict(one.sides)
    for name, side in other.sides:
        if name in sides and sides[name].type is not side.type:
            return False
        sides[name] = sides[name] & side if name in sides else side
    return all(_possible(side, name in required) for name, side in sides.items())


def _possible(side: Intervals, required: bool) -> bool:
    return bool(side.pairs) or (side.null and not required)
