"""A K-D tree: the space divided into zones, each leaf one zone, with fast searches over arrays.

    locate   a point  → the one zone it lies in
    touch    a box    → every zone that shares a point with it
    split    a zone   → two
    merge    two zones that were split from one → that one
    balance  so many zones, of nearly equal load

A tree is a frozen value; each change returns a new one. Many points and boxes descend at once,
a level at a time, as arrays: `cells[i, a]` is point i's cell on axis a, and box i covers
cells from `low[i, a]` up to but not including `high[i, a]`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from tidings.space.zone import Zone

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

LEAF = -1
CUTS_TRIED_MAX = 15  # Per axis and split: finer ones move the load by less than the sample resolves.
EVENT_COST = 50.0  # The fixed cost of an event, in boxes that it would be compared with.


@dataclass(frozen=True, slots=True, eq=False)
class KdTree:
    """Node 0 is the root. Node n cuts `axis[n]` at cell `at[n]`, below it lies `left[n]`, from it on `right[n]`.

    A leaf has `axis` LEAF and its zone's number in `left`.
    """

    cell_counts: tuple[int, ...]
    axis: Array
    at: Array
    left: Array
    right: Array

    @classmethod
    def whole(cls, cell_counts: Sequence[int]) -> KdTree:
        """One zone: everything."""
        one = np.zeros(1, np.int64)
        return cls(tuple(cell_counts), one + LEAF, one, one, one)

    def __len__(self) -> int:
        """How many zones there are."""
        return int(np.count_nonzero(self.axis == LEAF))

    def locate(self, cells: Array) -> Array:
        """The zone of each point."""
        node = np.zeros(len(cells), np.int64)
        while len(inner := np.flatnonzero(self.axis[node] != LEAF)):
            here = node[inner]
            below = cells[inner, self.axis[here]] < self.at[here]
            node[inner] = np.where(below, self.left[here], self.right[here])
        return self.left[node]

    def touch(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Pairs of box and zone that share a point, each once, by box and then zone."""
        box, node = np.arange(len(low)), np.zeros(len(low), np.int64)
        boxes, zones = [], []
        while len(box):
            is_leaf = self.axis[node] == LEAF
            boxes.append(box[is_leaf])
            zones.append(self.left[node[is_leaf]])
            box, node = box[~is_leaf], node[~is_leaf]
            goes_left = low[box, self.axis[node]] < self.at[node]
            goes_right = high[box, self.axis[node]] > self.at[node]
            below, above = self.left[node[goes_left]], self.right[node[goes_right]]
            box, node = np.concatenate([box[goes_left], box[goes_right]]), np.concatenate([below, above])
        return _ordered(boxes, zones)

    def zones(self) -> list[Zone]:
        """Every zone, by number."""
        found = dict(self._walk(0, Zone.whole(self.cell_counts)))
        return [found[number] for number in range(len(self))]

    def _walk(self, node: int, zone: Zone) -> Iterator[tuple[int, Zone]]:
        if self.axis[node] == LEAF:
            yield int(self.left[node]), zone
            return
        below, above = zone.split(int(self.axis[node]), int(self.at[node]))
        yield from self._walk(int(self.left[node]), below)
        yield from self._walk(int(self.right[node]), above)

    def split(self, zone: int, axis: int, at: int) -> KdTree:
        """The zone cut in two: the lower part keeps its number, the upper one gets the next free number."""
        node, count, free = self._leaf(zone), len(self.axis), len(self)
        kinds, ats = _changed(self.axis, node, axis, [LEAF, LEAF]), _changed(self.at, node, at, [0, 0])
        left = _changed(self.left, node, count, [zone, free])
        right = _changed(self.right, node, count + 1, [0, 0])
        return KdTree(self.cell_counts, kinds, ats, left, right)

    def merge(self, zone: int) -> KdTree:
        """Undoes the split that made `zone` and its neighbour, both of them leaves; the lower one's number stays.

        The last zone takes the number that falls free, so that numbers stay without gaps.
        """
        parent = self._parent(self._leaf(zone))
        lower, upper = int(self.left[parent]), int(self.right[parent])
        assert self.axis[lower] == self.axis[upper] == LEAF, f"zone {zone} has no undivided neighbour to merge with"
        gone, last = int(self.left[upper]), len(self) - 1
        axis, left = self.axis.copy(), self.left.copy()
        axis[parent], left[parent] = LEAF, left[lower]
        left[(axis == LEAF) & (left == last)] = gone
        return _without(replace(self, axis=axis, left=left), [lower, upper])

    def _leaf(self, zone: int) -> int:
        return int(np.flatnonzero((self.axis == LEAF) & (self.left == zone))[0])

    def _parent(self, node: int) -> int:
        inner = self.axis != LEAF
        found = np.flatnonzero(inner & ((self.left == node) | (self.right == node)))
        assert len(found) == 1, "the whole space has no neighbour to merge with"
        return int(found[0])


@dataclass(frozen=True, slots=True, eq=False)
class BalancedTree:
    """A tree, and the share of the whole load that each of its zones bears."""

    tree: KdTree
    share: Array


def balance(cell_counts: Sequence[int], points: Array, low: Array, high: Array, *, zones_max: int) -> BalancedTree:
    """At most `zones_max` zones of nearly equal load, as a sample of points and boxes shows it.

    The load of a zone is its points, each compared with the boxes that touch the zone. The
    most loaded zone is split first, where it lowers its load most, until there are enough; a
    zone whose points all lie in one cell cannot be split and keeps its load.
    """
    growth = _Growth(KdTree.whole(cell_counts), points, low, high)
    while len(growth.tree) < zones_max and growth.split_the_heaviest():
        pass
    loads = growth.loads()
    return BalancedTree(growth.tree, loads / max(loads.sum(), 1.0))


class _Growth:
    """A tree in the making, and what of the sample lies in each zone."""

    def __init__(self, tree: KdTree, points: Array, low: Array, high: Array) -> None:
        self.tree = tree
        self._points, self._low, self._high = points, low, high
        self._within: dict[int, tuple[Array, Array]] = {0: (np.arange(len(points)), np.arange(len(low)))}
        self._heap = [(-self._load(0), 0)]

    def split_the_heaviest(self) -> bool:
        """False where nothing is left that a split would help."""
        while self._heap:
            _, zone = heapq.heappop(self._heap)
            cut = self._best_cut(zone)
            if cut is not None:
                self._split(zone, *cut)
                return True
        return False

    def loads(self) -> Array:
        return np.array([self._load(zone) for zone in range(len(self.tree))])

    def _load(self, zone: int) -> float:
        points, boxes = self._within[zone]
        return _load(len(points), len(boxes))

    def _split(self, zone: int, axis: int, at: int) -> None:
        points, boxes = self._within[zone]
        below = self._points[points, axis] < at
        free = len(self.tree)
        self.tree = self.tree.split(zone, axis, at)
        self._within[zone] = points[below], boxes[self._low[boxes, axis] < at]
        self._within[free] = points[~below], boxes[self._high[boxes, axis] > at]
        for part in (zone, free):
            heapq.heappush(self._heap, (-self._load(part), part))

    def _best_cut(self, zone: int) -> tuple[int, int] | None:
        points, boxes = self._within[zone]
        tried = [
            (self._cost(points, boxes, axis, at), axis, at)
            for axis in range(len(self.tree.cell_counts))
            for at in _cuts(self._points[points, axis])
        ]
        return min(tried)[1:] if tried else None

    def _cost(self, points: Array, boxes: Array, axis: int, at: int) -> float:
        """The heavier part's load, and a little for the boxes that both parts then hold."""
        below = int(np.count_nonzero(self._points[points, axis] < at))
        left = int(np.count_nonzero(self._low[boxes, axis] < at))
        right = int(np.count_nonzero(self._high[boxes, axis] > at))
        return max(_load(below, left), _load(len(points) - below, right)) + (left + right - len(boxes))


def _load(points: int, boxes: int) -> float:
    return points * (EVENT_COST + boxes)


def _cuts(cells: Array) -> list[int]:
    """Cells to cut at, so that some points lie on either side: each, or evenly many points between them."""
    distinct = np.unique(cells)[1:]
    if len(distinct) > CUTS_TRIED_MAX:
        wanted = np.quantile(cells, np.linspace(0, 1, CUTS_TRIED_MAX + 2)[1:-1], method="nearest")
        distinct = np.unique(np.maximum(wanted, distinct[0]))
    return [int(cell) for cell in distinct]


def _ordered(boxes: list[Array], zones: list[Array]) -> tuple[Array, Array]:
    if not boxes:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    box, zone = np.concatenate(boxes), np.concatenate(zones)
    order = np.lexsort((zone, box))
    return box[order], zone[order]


def _changed(column: Array, node: int, content: int, more: list[int]) -> Array:
    new = np.append(column, more)
    new[node] = content
    return new


def _without(tree: KdTree, nodes: list[int]) -> KdTree:
    keep = np.ones(len(tree.axis), bool)
    keep[nodes] = False
    new_number = np.cumsum(keep) - 1
    inner = tree.axis != LEAF
    left, right = np.where(inner, new_number[tree.left], tree.left), np.where(inner, new_number[tree.right], 0)
    return KdTree(tree.cell_counts, tree.axis[keep], tree.at[keep], left[keep], right[keep])
