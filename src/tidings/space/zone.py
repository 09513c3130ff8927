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
