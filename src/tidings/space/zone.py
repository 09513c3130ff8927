"""A zone: a box of the space, given by one range of cells per axis.

Zones come from splitting: the whole space in two along one axis, each half again, and so on.
So any two either do not touch or one lies within the other, and the leaves of a split tree
tile the space.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Zone:
    """The points whose cell on axis i is at least `low[i]` and below `high[i]`.

    >>> left, right = Zone.whole([4, 3]).split(0, 2)
    >>> (1, 2) in left, (1, 2) in right
    (True, False)
    """

    low: tuple[int, ...]
    high: tuple[int, ...]

    @classmethod
    def whole(cls, cell_counts: Sequence[int]) -> Zone:
        """All of a space with so many cells along each axis."""
        return cls((0,) * len(cell_counts), tuple(cell_counts))

    def __contains__(self, point: Sequence[int]) -> bool:
        return all(low <= cell < high for low, cell, high in zip(self.low, point, self.high, strict=True))

    def touches(self, other: Zone) -> bool:
        """Whether some point lies in both."""
        sides = zip(self.low, self.high, other.low, other.high, strict=True)
        return all(max(low, other_low) < min(high, other_high) for low, high, other_low, other_high in sides)

    def split(self, axis: int, at: int) -> tuple[Zone, Zone]:
        """The part below cell `at` of an axis, and the rest; both must have some cells."""
        assert self.low[axis] < at < self.high[axis], f"cannot split {self} on axis {axis} at {at}"
        return (
            Zone(self.low, (*self.high[:axis], at, *self.high[axis + 1 :])),
            Zone((*self.low[:axis], at, *self.low[axis + 1 :]), self.high),
        )

    @property
    def size(self) -> int:
        """How many points of the space it holds."""
        size = 1
        for low, high in zip(self.low, self.high):
            size *= high - low
        return size

    def meet(self, other: Zone) -> Zone | None:
        """What lies in both, if anything does.

        >>> Zone((0, 0), (3, 3)).meet(Zone((2, 1), (5, 5)))
        Zone(low=(2, 1), high=(3, 3))
        """
        low = tuple(map(max, self.low, other.low))
        high = tuple(map(min, self.high, other.high))
        return Zone(low, high) if all(a < b for a, b in zip(low, high)) else None

    def without(self, other: Zone) -> list[Zone]:
        """What lies here and not in `other`, as zones that do not touch, at most two for each axis."""
        if not self.touches(other):
            return [self]
        parts, rest = [], self
        for axis in range(len(self.low)):
            if rest.low[axis] < other.low[axis]:
                below, rest = rest.split(axis, other.low[axis])
                parts.append(below)
            if other.high[axis] < rest.high[axis]:
                rest, above = rest.split(axis, other.high[axis])
                parts.append(above)
        return parts

    def distance(self, point: Sequence[int], around: int | None = None) -> int:
        """The square of the way from `point` to the nearest point in here; 0 within.

        With `around` every axis is a circle of so many cells, and the shorter way counts.

        >>> Zone((0, 0), (2, 2)).distance((9, 1)), Zone((0, 0), (2, 2)).distance((9, 1), around=10)
        (64, 1)
        """
        total = 0
        for low, high, at in zip(self.low, self.high, point, strict=True):
            if not low <= at < high:
                way = low - at if at < low else at - high + 1
                if around is not None:
                    way = min(way, around - (high - 1 - at if at < low else at - low))
                total += way * way
        return total

    def nearest(self, point: Sequence[int], around: int | None = None) -> tuple[int, ...]:
        """The point in here that is nearest to `point`; where two are, the lower one."""
        sides = zip(self.low, self.high, point, strict=True)
        return tuple(_nearest(low, high, at, around) for low, high, at in sides)

    def facing(self, other: Zone, around: int | None = None) -> tuple[int, ...]:
        """The point in here that is nearest to another zone.

        >>> Zone((0, 0), (2, 9)).facing(Zone((5, 3), (9, 4)))
        (1, 3)
        """
        axes = range(len(self.low))
        return tuple(_facing(self.low[a], self.high[a], other.low[a], other.high[a], around) for a in axes)

    def borders(self, other: Zone, around: int | None = None) -> int | None:
        """The axis along which the two lie side by side with a face in common; None if they do not.

        >>> Zone((0, 0), (2, 2)).borders(Zone((2, 1), (4, 4))), Zone((0, 0), (2, 2)).borders(Zone((2, 2), (4, 4)))
        (0, None)
        """
        facing = None
        for axis in range(len(self.low)):
            low, high, other_low, other_high = self.low[axis], self.high[axis], other.low[axis], other.high[axis]
            if low < other_high and other_low < high:
                continue
            if facing is not None or not (
                high == other_low or other_high == low or _meet_round(low, high, other_low, other_high, around)
            ):
                return None
            facing = axis
        return facing


def _nearest(low: int, high: int, at: int, around: int | None) -> int:
    if low <= at < high:
        return at
    ends = (low, high - 1)
    return min(ends, key=lambda end: _way(end, at, around))


def _facing(low: int, high: int, other_low: int, other_high: int, around: int | None) -> int:
    if max(low, other_low) < min(high, other_high):
        return max(low, other_low)
    ends = [(_way(mine, theirs, around), mine) for mine in (low, high - 1) for theirs in (other_low, other_high - 1)]
    return min(ends)[1]


def _way(a: int, b: int, around: int | None) -> int:
    way = abs(a - b)
    return way if around is None else min(way, around - way)


def _meet_round(low: int, high: int, other_low: int, other_high: int, around: int | None) -> bool:
    """Whether one ends where the axis does and the other begins where it begins."""
    return around is not None and ((high == around and other_low == 0) or (other_high == around and low == 0))
