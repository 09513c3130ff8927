"""A path: the cuts that lead from the whole space to one zone, root first.

Splits take the axes in turn: the cut at depth j is on axis `j mod d`. So a step consists of the
position of the cut and the side taken, and a path determines everything about a zone: where it
lies, which zones it was cut from, and what lies on the other side of each cut.

    >>> space = Space(2, 3)  # Two axes of 2**3 cells.
    >>> path = ((4, 0), (4, 1))  # The lower half of axis 0, of that the upper half of axis 1.
    >>> space.zone(path), space.zone(sibling(path))
    (Zone(low=(0, 4), high=(4, 8)), Zone(low=(0, 0), high=(4, 4)))
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from tidings.space.zone import Zone

Step: TypeAlias = tuple[int, int]  # Where it cuts, and the side: 0 below the cut, 1 from it on.
Path: TypeAlias = tuple[Step, ...]

BITS = 32  # Of a coordinate: finer than any load can split, and a square of it still fits in 64 bits.
ZONES_KEPT_MAX = 65_536  # Cached zones of paths; one more clears the cache.
PATH_LENGTH_MAX = 4096  # Far more cuts than a zone can have; a longer path from the network is refused.


@dataclass(frozen=True, slots=True)
class Space:
    """`axes` axes of `2**bits` cells each."""

    axes: int
    bits: int = BITS
    _zones: dict[Path, Zone] = field(default_factory=dict, compare=False, repr=False)

    @property
    def side(self) -> int:
        """How many cells each axis has."""
        return 1 << self.bits

    @property
    def whole(self) -> Zone:
        return Zone.whole((self.side,) * self.axes)

    def zone(self, path: Path) -> Zone:
        """Where a path leads. It must be a path of this space: see `has`."""
        known = self._zones.get(path)
        if known is None:
            known = self._cut(path)
            if len(self._zones) >= ZONES_KEPT_MAX:
                self._zones.clear()
            self._zones[path] = known
        return known

    def has(self, path: Path) -> bool:
        """Whether a path, which may come from an untrusted peer, is valid: every step cuts its zone in two."""
        if path in self._zones:
            return True
        if len(path) > PATH_LENGTH_MAX or not all(side in (0, 1) for _, side in path):
            return False
        low, high = [0] * self.axes, [self.side] * self.axes
        for depth, (cut, side) in enumerate(path):
            axis = depth % self.axes
            if not low[axis] < cut < high[axis]:
                return False
            (low if side else high)[axis] = cut
        return True

    def _cut(self, path: Path) -> Zone:
        low, high = [0] * self.axes, [self.side] * self.axes
        for depth, (cut, side) in enumerate(path):
            (low if side else high)[depth % self.axes] = cut
        return Zone(tuple(low), tuple(high))

    def can_split(self, path: Path) -> bool:
        """Whether the zone can be cut once more."""
        zone, axis = self.zone(path), len(path) % self.axes
        return zone.high[axis] - zone.low[axis] > 1

    def middle(self, path: Path) -> int:
        """Where the next cut halves the zone."""
        zone, axis = self.zone(path), len(path) % self.axes
        return (zone.low[axis] + zone.high[axis]) // 2


def sibling(path: Path) -> Path:
    """The other side of the last cut."""
    cut, side = path[-1]
    return (*path[:-1], (cut, 1 - side))


def siblings(path: Path) -> Iterator[Path]:
    """The other side of every cut, outermost first. Together with the path's own zone they tile the space."""
    for depth in range(len(path)):
        yield sibling(path[: depth + 1])


def within(inner: Path, outer: Path) -> bool:
    """Whether the first leads into the zone of the second, or is the same."""
    return inner[: len(outer)] == outer


def halves(path: Path, cut: int) -> tuple[Path, Path]:
    """The paths below a new cut and above it."""
    return (*path, (cut, 0)), (*path, (cut, 1))
