"""MGNP for a whole network: the broker of each region that a look-up finds to be closest by network.

The distance between two brokers' coordinates estimates the delay between them (GNP). For each
of its ancestors a broker indexes its coordinates in that ancestor's zone, at the point to
which they scale. To find the closest broker of a region, a broker looks at the point to which
its own coordinates scale there: in the zone of that point, and if nobody is indexed in it, in
the zones around, ring by ring.

One look-up finds a close broker, not always the closest. `nearest` finds the same broker as
the protocol would, for all brokers at once.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# Numba infers types itself.

from __future__ import annotations

import numpy as np
from numba import njit

from tidings.lab.spanhop.routing import RoutingTables
from tidings.lab.spanhop.split_tree import Array, SplitTree

RINGS_MAX = 3  # Rings of zones around the first that a look-up visits.
_INSIDE = 1 - 2**-30  # The largest coordinate is indexed inside a zone, not at its end.


def nearest(known: RoutingTables, coordinates: Array, *, at_most: int = 0, order: Array | None = None) -> Array:
    """For each broker and entry of the recorded tables, the close broker that a look-up finds; -1 for none.

    Only for regions that are a zone of their own level, as all are in a balanced tree: brokers
    are indexed for those. As many axes as coordinates. With `at_most` a zone keeps so many
    records for a level: of the brokers that come first in `order`.
    """
    tree = known.tree
    taken = np.arange(len(tree)) if order is None else order
    found = np.full((len(tree), len(known.recorded.node)), -1, np.int32)
    scaled = _scaled(coordinates)
    ends = _leaf_ends(tree)
    _nearest(
        tree.low, tree.last, tree.half, tree.depth, tree.first_leaf, ends, known.inner, known.recorded.begins,
        known.recorded.node, known.present.begins, known.present.broker, scaled, coordinates, found,
        np.argsort(taken), at_most or len(tree),
    )  # fmt: skip
    return found


def index_records(known: RoutingTables, coordinates: Array, *, at_most: int = 0) -> Array:
    """How many records of coordinates each broker stores: for every ancestor, each broker below it has put one.

    With `at_most` a zone keeps so many for a level.
    """
    tree, scaled = known.tree, _scaled(coordinates)
    counts: Array = np.zeros(len(tree), np.int64)
    for row in known.ancestor.T:
        below = np.flatnonzero(row >= 0)
        nodes = known.inner[row[below]]
        low, last = tree.low[nodes].astype(np.int64), tree.last[nodes].astype(np.int64)
        points = low + (scaled[below] * (last - low + 1)).astype(np.int64)
        stored = np.bincount(tree.locate(points), minlength=len(tree))
        counts += np.minimum(stored, at_most) if at_most else stored
    return counts


def _scaled(coordinates: Array) -> Array:
    """Coordinates scaled to the range from 0 to just below 1, on each axis."""
    low, high = coordinates.min(axis=0), coordinates.max(axis=0)
    shares: Array = np.minimum((coordinates - low) / np.maximum(high - low, 1e-12), _INSIDE)
    return shares


def _leaf_ends(tree: SplitTree) -> Array:
    """For each node, the number after its last leaf."""
    ends = tree.first_leaf + 1
    for depth in range(int(tree.depth.max(initial=0)) - 1, -1, -1):
        nodes = np.flatnonzero((tree.depth == depth) & (tree.half != 0))
        ends[nodes] = ends[tree.half[nodes] + 1]
    return ends


@njit(cache=True)
def _nearest(
    low, last, half, depth, first_leaf, ends, inner, begins, region, next_from, next_to, scaled, coordinates, found,
    place, at_most,
):  # fmt: skip
    brokers = len(coordinates)
    room = np.empty(brokers, np.int64)
    seen_for, seen = np.full(brokers, -1, np.int64), 0
    frontier = np.empty(brokers, np.int32)
    first, following = np.empty(brokers, np.int32), np.empty(brokers, np.int32)
    for row in range(len(inner)):
        domain = inner[row]
        for entry in range(begins[row], begins[row + 1]):
            node = region[entry]
            if depth[node] != depth[domain]:
                continue
            begin, end = first_leaf[node], ends[node]
            _index_all(low, last, half, first_leaf, node, begin, end, scaled, first, following, place, at_most, room)
            for asker in range(first_leaf[domain], ends[domain]):
                at = _indexed_at(low, last, half, first_leaf, node, scaled[asker])
                found[asker, entry] = _look_up(
                    at, begin, end, asker, coordinates, first, following, next_from, next_to, seen_for, seen, frontier
                )
                seen += 1


@njit(cache=True)
def _index_all(low, last, half, first_leaf, node, begin, end, scaled, first, following, place, at_most, room):
    """Index the brokers of a region: for each zone, a linked list of those indexed there, as many as it keeps."""
    first[begin:end], room[begin:end] = -1, at_most
    for next_one in np.argsort(place[begin:end]):
        broker = begin + next_one
        at = _indexed_at(low, last, half, first_leaf, node, scaled[broker])
        if room[at]:
            following[broker], first[at] = first[at], broker
            room[at] -= 1


@njit(cache=True)
def _indexed_at(low, last, half, first_leaf, node, share):
    """The leaf, below a node, of the point that divides the node's zone as `share` says."""
    axes, here = low.shape[1], node
    while half[here]:
        below = half[here]
        for axis in range(axes):
            if last[below, axis] != last[here, axis]:
                size = np.float64(last[node, axis]) - np.float64(low[node, axis]) + 1.0
                point = np.int64(low[node, axis]) + np.int64(np.floor(share[axis] * size))
                here = below + (1 if point > last[below, axis] else 0)
                break
    return first_leaf[here]


@njit(cache=True)
def _look_up(
    at, begin, end, asker, coordinates, first, following, next_from, next_to, seen_for, mark, frontier
):  # fmt: skip
    """The closest of the brokers indexed in a zone, or in the first ring around it that has any."""
    frontier[0], start, stop = at, 0, 1
    seen_for[at] = mark
    for _ in range(RINGS_MAX + 1):
        best, least, grown = -1, np.inf, stop
        for place in range(start, stop):
            broker = first[frontier[place]]
            while broker >= 0:
                away = 0.0
                for axis in range(coordinates.shape[1]):
                    away += (coordinates[broker, axis] - coordinates[asker, axis]) ** 2
                if away < least:
                    best, least = broker, away
                broker = following[broker]
            for entry in range(next_from[frontier[place]], next_from[frontier[place] + 1]):
                other = next_to[entry]
                if begin <= other < end and seen_for[other] != mark:
                    seen_for[other], frontier[grown] = mark, other
                    grown += 1
        if best >= 0:
            return best
        start, stop = stop, grown
    return -1
