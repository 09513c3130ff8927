"""Greedy routing and Spanhop over a whole split tree: a million zones, hundreds of thousands of routes a second.

It takes the same steps as the protocol (`tidings.overlay`'s `next_hop`), hop for hop; the
tests compare both on the same networks. Two things make it fast. In a tree that has only
grown, all brokers below one ancestor share the table that was recorded for it, so there is
one table for each node of every k-th level and not one for each broker and level. And a
comparison of two paths, bit by bit, finds the first ancestor that does not contain a
destination.

Brokers are leaves of the tree, by number. `RoutingTables` are built once for a network; `routes`
follows any number of messages over them, also when some brokers have failed.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# Numba infers types itself.

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit

from tidings.errors import InputError
from tidings.lab.spanhop.split_tree import NEVER, Array, SplitTree, neighbours
from tidings.overlay import hops_max

BITS_MAX = 31  # Of an axis that is no circle: four squared distances add up to less than 2**64.
HERE, STUCK, LOST = 0, 1, 2
"""How a route ends: at its destination, without a live next hop, or by exceeding the limit of hops."""


class AdjacencyTable(NamedTuple):
    """Zones and their neighbours. The entries of row r are those from `begins[r]` up to before `begins[r + 1]`."""

    zone: Array
    """For each row, where its own zone begins on each axis, and then where it ends."""
    begins: Array
    box: Array
    """For each entry, the zone as it was recorded."""
    broker: Array
    """For each entry, the broker that owned that zone."""
    node: Array
    """For each entry, the node of the tree that the zone was."""


class _Space(NamedTuple):
    """`axes` has an item for each axis: its length is known when a loop is compiled, which makes it a third faster."""

    axes: tuple[int, ...]
    span: int
    wrap: bool


class _Network(NamedTuple):
    present: AdjacencyTable
    recorded: AdjacencyTable
    ancestor: Array
    path: Array
    k: int
    space: _Space


class _Ways(NamedTuple):
    order: Array
    """By target: messages to the same corner read the same tables while these are in the cache."""
    sources: Array
    targets: Array
    points: Array


@dataclass(frozen=True, slots=True, eq=False)
class RoutingTables:
    """What all brokers of a network know."""

    tree: SplitTree
    k: int
    wrap: bool
    present: AdjacencyTable
    """A row for each broker: its zone and present neighbours."""
    recorded: AdjacencyTable
    """A row for each inner node of every k-th level: its zone and the neighbours it had when it came about."""
    inner: Array
    """The nodes that these rows are about."""
    ancestor: Array
    """For each broker and level, the row of its ancestor there, or -1 from its own level on."""

    @property
    def levels(self) -> Array:
        """How many tables each broker has, the one of the whole space included."""
        return self.tree.depth[self.tree.leaf] // self.k + 1

    def network(self) -> _Network:
        """The same in the form that the compiled loops take."""
        space = _Space((0,) * self.tree.axes, 2**self.tree.bits, self.wrap)
        return _Network(self.present, self.recorded, self.ancestor, self.tree.path, self.k, space)


class Routes(NamedTuple):
    """What became of some messages."""

    hops: Array
    ended: Array
    """HERE, STUCK or LOST."""
    guarded: Array
    """Which came to a broker twice, and went on greedily."""
    traces: Array
    """The brokers each message passed, then -1; without columns unless asked for."""


def tables(tree: SplitTree, m: int, *, wrap: bool = True, present: AdjacencyTable | None = None) -> RoutingTables:
    """What brokers know if they keep the tables of each k-th ancestor, m = 2**k.

    Their present neighbours are the same for every m; if given, they are not computed again.
    """
    k = m.bit_length() - 1
    if m < 2 or m != 2**k:
        raise InputError(f"expected m to be a power of two and at least 2, got {m}")
    if not wrap and (tree.bits > BITS_MAX or tree.axes > 4):
        raise InputError(
            f"expected at most 4 axes of {BITS_MAX} bits where axes have ends, got {tree.axes} of {tree.bits}"
        )
    present = present or _table(tree, tree.leaf, np.full(len(tree), NEVER - 1, np.int32), wrap)
    inner = np.flatnonzero((tree.half != 0) & (tree.depth % k == 0) & (tree.depth > 0)).astype(np.int32)
    recorded = _table(tree, inner, _came_about(tree)[inner], wrap)
    ancestor = np.full((len(tree), max(2, int(tree.depth.max(initial=0)) // k + 1)), -1, np.int32)
    row_of = np.full(len(tree.half), -1, np.int32)
    row_of[inner] = np.arange(len(inner))
    _ancestors(tree.half, tree.first_leaf, row_of, k, ancestor)
    return RoutingTables(tree, k, wrap, present, recorded, inner, ancestor)


def routes(
    known: RoutingTables,
    sources: Array,
    points: Array,
    *,
    greedy: bool = False,
    alive: Array | None = None,
    near: Array | None = None,
    traced: bool = False,
) -> Routes:
    """Route from each source to the broker of each point. `alive` is False for failed brokers.

    `near` names, for each broker and each entry of `recorded`, the broker to prefer to the
    recorded one because it is closer by network; -1 for none.
    """
    tree, count, targets = known.tree, len(sources), known.tree.locate(points)
    room = hops_max(len(tree), tree.axes)
    hops, ended, guarded = np.zeros(count, np.int32), np.zeros(count, np.int8), np.zeros(count, np.bool_)
    traces = np.full((count, room + 1 if traced else 0), -1, np.int32)
    ways = _Ways(np.argsort(targets), sources, targets, points)
    alive = np.ones(len(tree), np.bool_) if alive is None else alive
    near = np.zeros((0, 0), np.int32) if near is None else near
    _route(known.network(), ways, greedy, alive, near, np.empty(room + 1, np.int32), hops, ended, guarded, traces)
    return Routes(hops, ended, guarded, traces)


def live_share(known: RoutingTables, alive: Array) -> float:
    """The share of pairs of live brokers that live neighbours connect: an upper bound for any routing over neighbours."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    here = np.repeat(np.arange(len(alive)), np.diff(known.present.begins))
    there = known.present.broker
    both = alive[here] & alive[there]
    links = coo_array((np.ones(int(both.sum()), np.int8), (here[both], there[both])), (len(alive), len(alive)))
    _, part = connected_components(links, directed=False)
    sizes = np.bincount(part[alive]) / int(alive.sum())
    return float((sizes**2).sum())


def routes_together(known: RoutingTables, sources: Array, points: Array) -> Array:
    """The hops of each route where brokers know the present zones of all brokers in their tables and take the nearest.

    Beyond the paper: the protocol's `together`, once acknowledgements have told where everybody is. Each hop is nearer
    than the last, so no route can loop.
    """
    targets, hops = known.tree.locate(points), np.zeros(len(sources), np.int32)
    _route_together(known.network(), _Ways(np.argsort(targets), sources, targets, points), hops)
    return hops


def _table(tree: SplitTree, nodes: Array, when: Array, wrap: bool) -> AdjacencyTable:
    begins, next_to, _ = neighbours(tree, nodes, when, wrap=wrap)
    zone = np.concatenate([tree.low[nodes], tree.last[nodes]], axis=1)
    box = np.concatenate([tree.low[next_to], tree.last[next_to]], axis=1)
    return AdjacencyTable(zone, begins, box, tree.kept_leaf[next_to], next_to)


def _came_about(tree: SplitTree) -> Array:
    """When each node was split off its parent."""
    came = np.zeros(len(tree.half), np.int32)
    inner = np.flatnonzero(tree.half)
    came[tree.half[inner]] = came[tree.half[inner] + 1] = tree.divided_at[inner]
    return came


@njit(cache=True)
def _ancestors(half, first_leaf, row_of, k, ancestor):
    """Walk the tree; write the row of each node that has one to all leaves below it."""
    waiting, depths, ends = np.empty(128, np.int32), np.empty(128, np.int64), np.empty(128, np.int64)
    waiting[0], depths[0], ends[0] = 0, 0, len(ancestor)
    count = 1
    while count:
        count -= 1
        node, depth, end = waiting[count], depths[count], ends[count]
        if row_of[node] >= 0:
            ancestor[first_leaf[node] : end, depth // k] = row_of[node]
        if half[node]:
            waiting[count], waiting[count + 1] = half[node] + 1, half[node]
            ends[count], ends[count + 1] = end, first_leaf[half[node] + 1]
            depths[count] = depths[count + 1] = depth + 1
            count += 2


@njit(cache=True)
def _distance(box, row, aim, space):
    """The squared distance from a point to the nearest cell of a zone."""
    total, axes = np.uint64(0), len(space.axes)
    for axis in range(axes):
        at, low, last = aim[axis], np.int64(box[row, axis]), np.int64(box[row, axes + axis])
        way = np.int64(0)
        if at < low:
            way = min(low - at, at + space.span - last) if space.wrap else low - at
        elif at > last:
            way = min(at - last, low + space.span - at) if space.wrap else at - last
        total += np.uint64(way) * np.uint64(way)
    return total


@njit(cache=True)
def _leading_zeros(bits):
    """Of 64 bits, how many of the highest are 0."""
    if bits == np.uint64(0):
        return 64
    count = 0
    for step in (32, 16, 8, 4, 2, 1):
        if bits >> np.uint64(64 - step) == np.uint64(0):
            count += step
            bits <<= np.uint64(step)
    return count


@njit(cache=True)
def _passed(trace, hops, broker):
    for k in range(hops):  # noqa: SIM110  Numba knows no `any` over a generator.
        if trace[k] == broker:
            return True
    return False


@njit(cache=True)
def _by_ancestors(zone, begins, box, broker, ancestor, first, here, aim, space, alive, near):
    """The next hop by recorded tables: of the largest span that has a live, nearer one. -1: none."""
    for level in range(first, ancestor.shape[1]):
        row = ancestor[here, level]
        if row < 0:
            return -1
        least, best = _distance(zone, row, aim, space), -1
        for entry in range(begins[row], begins[row + 1]):
            to = broker[entry]
            if near.shape[0] and near[here, entry] >= 0 and alive[near[here, entry]]:
                to = near[here, entry]
            if alive[to]:
                distance = _distance(box, entry, aim, space)
                if distance < least:
                    least, best = distance, to
        if best >= 0:
            return best
    return -1


@njit(cache=True)
def _by_neighbours(begins, box, broker, here, aim, space, alive, detour, trace, hops):
    """The live neighbour nearest to the destination, and its distance; on a detour, one not visited yet. -1: none."""
    least, best = np.uint64(0), -1
    for entry in range(begins[here], begins[here + 1]):
        to = broker[entry]
        if alive[to] and not (detour and _passed(trace, hops, to)):
            distance = _distance(box, entry, aim, space)
            if best < 0 or distance < least:
                least, best = distance, to
    return best, least


@njit(cache=True)
def _greedily(zone, begins, box, broker, here, aim, space, alive, detour, trace, hops):
    """The next hop by present neighbours, and whether it is a detour: it is where no live neighbour is nearer."""
    to, least = _by_neighbours(begins, box, broker, here, aim, space, alive, detour, trace, hops)
    if to < 0 or detour or least < _distance(zone, here, aim, space):
        return to, detour
    return _by_neighbours(begins, box, broker, here, aim, space, alive, True, trace, hops)[0], True


@njit(cache=True)
def _route(network, ways, greedy_only, alive, near, trace, hops, ended, guarded, traces):
    """Follow every route and write its result to the last four arrays. `trace` has space for the longest."""
    # Unpacked here: arrays taken out of a tuple at each step are reference-counted each time, at half the speed.
    present, recorded, ancestor, path, k, space = network
    zone, begins, box, broker, _ = present
    r_zone, r_begins, r_box, r_broker, _ = recorded
    order, sources, targets, points = ways
    for pair in order:
        here, target, aim = sources[pair], targets[pair], points[pair]
        count, greedy, detour, end = 0, greedy_only, False, HERE
        while here != target and end == HERE:
            if not greedy and _passed(trace, count, here):
                greedy = guarded[pair] = True
            trace[count], to = here, -1
            if not greedy:
                first = _leading_zeros(path[here] ^ path[target]) // k + 1
                to = _by_ancestors(r_zone, r_begins, r_box, r_broker, ancestor, first, here, aim, space, alive, near)
            if to < 0:
                to, detour = _greedily(zone, begins, box, broker, here, aim, space, alive, detour, trace, count + 1)
                greedy = greedy or detour
            if to < 0:
                end = STUCK
            elif count + 1 == len(trace):
                end = LOST
            else:
                here, count = to, count + 1
        hops[pair], ended[pair] = count, end
        if traces.shape[1]:
            trace[count] = here
            traces[pair, : count + 1] = trace[: count + 1]


@njit(cache=True)
def _route_together(network, ways, hops):
    present, recorded, ancestor, _, _, space = network
    zone, begins, _, broker, _ = present
    _, r_begins, _, r_broker, _ = recorded
    order, sources, targets, points = ways
    for pair in order:
        here, aim = sources[pair], points[pair]
        while here != targets[pair]:
            best, least = _nearer(zone, begins, broker, here, here, _distance(zone, here, aim, space), aim, space)
            for level in range(1, ancestor.shape[1]):
                row = ancestor[here, level]
                if row < 0:
                    break
                best, least = _nearer(zone, r_begins, r_broker, row, best, least, aim, space)
            here = best
            hops[pair] += 1


@njit(cache=True)
def _nearer(zone, begins, broker, row, best, least, aim, space):
    """The broker of a row whose present zone is nearer to the destination than the best so far, or that one."""
    for entry in range(begins[row], begins[row + 1]):
        distance = _distance(zone, broker[entry], aim, space)
        if distance < least:
            best, least = broker[entry], distance
    return best, least
