"""The split tree of a space, as arrays: how zones were cut, and which were adjacent at any time.

A tree begins as one zone, the whole space. Each split cuts a leaf in the middle, along the
next axis in turn; the old owner keeps one half, a newcomer gets the other. A node
records when it was split. So a walk down the tree that stops at nodes not yet split at a
moment sees the zones of that moment, which is what the protocol's snapshots of neighbour
tables contain. A million zones fit into memory.

    node      any zone that ever existed; node 0 is the whole space, the halves of a node have consecutive numbers
    leaf      a present zone; leaves are numbered from left to right, which keeps neighbours close in memory
    owner     a broker; in a balanced tree numbered as its leaf, else by the order in which brokers joined

The loops are compiled; tests check that they agree with the protocol's own geometry.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# Numba infers types itself.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numba import njit

from tidings.errors import InputError
from tidings.overlay import Kept

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

NEVER = np.iinfo(np.int32).max  # When a leaf is split.
DEPTH_MAX = 64  # A path has one bit for each split.
AXES_MAX = 16  # With 31 bits each, the squared distances add up to no more than 64 bits.
NEIGHBOURS_MAX = 4096  # Of one zone. Random joins give a few dozen at most.


@dataclass(frozen=True, slots=True, eq=False)
class SplitTree:
    """Every zone that ever existed. Row n is node n; zones extend from `low` to `last`, inclusive, on each axis."""

    bits: int
    """A coordinate is one of 2**bits."""
    low: Array
    last: Array
    half: Array
    """The low half of a node; the high one has the next number. 0 for a leaf."""
    divided_at: Array
    depth: Array
    owner: Array
    """The broker that owned the whole node while it was one zone."""
    first_leaf: Array
    """The number of the leftmost leaf below."""
    kept_leaf: Array
    """The number of the leaf that the node's owner has now."""
    leaf: Array
    """The node of each leaf."""
    path: Array
    """The path of each leaf from the root: a bit for each split, the first one highest, 1 for the high half."""

    @property
    def axes(self) -> int:
        return int(self.low.shape[1])

    def __len__(self) -> int:
        return len(self.leaf)

    def locate(self, points: Array) -> Array:
        """The leaf of each point."""
        found = np.zeros(len(points), np.int64)
        _locate(self.last, self.half, self.first_leaf, self.axes, points, found)
        return found

    def points_in(self, leaves: Array, rng: np.random.Generator) -> Array:
        """A random point of each of these leaves."""
        nodes = self.leaf[leaves]
        return rng.integers(self.low[nodes].astype(np.int64), self.last[nodes], endpoint=True)


def balanced(axes: int, levels: int, *, bits: int = 32, kept: Kept = "lower") -> SplitTree:
    """2**levels zones of one size. A whole level is split at once: its tables show the complete level."""
    _check(axes, bits, 2**levels)
    count = 2 ** (levels + 1) - 1
    low, last = np.zeros((count, axes), np.uint32), np.full((count, axes), 2**bits - 1, np.uint32)
    depth = np.zeros(count, np.int32)
    for level in range(levels):
        old = np.arange(2**level - 1, 2 ** (level + 1) - 1)
        depth[2 * old + 1] = depth[2 * old + 2] = level + 1
        _halve(low, last, old, 2 * old + 1, level % axes)
    inner = np.arange(count) < 2**levels - 1
    half = np.where(inner, 2 * np.arange(count) + 1, 0).astype(np.int32)
    return _finished(bits, low, last, half, np.where(inner, depth + 1, NEVER).astype(np.int32), depth, None, kept)


def joined(
    axes: int, points: Array, *, even: bool, bits: int = 32, wrap: bool = True, kept: Kept = "lower"
) -> SplitTree:
    """Brokers join one by one, each at a point, and split its zone: one zone more than there are points.

    With `even`, the zone's owner redirects a newcomer, once, to the neighbour of least depth
    if that is less than its own.
    """
    _check(axes, bits, len(points) + 1)
    count = 2 * len(points) + 1
    low, last = np.zeros((count, axes), np.uint32), np.full((count, axes), 2**bits - 1, np.uint32)
    half, divided_at = np.zeros(count, np.int32), np.full(count, NEVER, np.int32)
    depth, owner = np.zeros(count, np.int32), np.zeros(count, np.int32)
    code = np.ones(count, np.uint64)
    _join(low, last, half, divided_at, depth, owner, code, points, 2**bits, even, wrap, kept == "either")
    return _finished(bits, low, last, half, divided_at, depth, owner, kept)


def neighbours(tree: SplitTree, nodes: Array, when: Array, *, wrap: bool) -> tuple[Array, Array, Array]:
    """The neighbours of nodes, each at its own moment: where a node's entries begin, their nodes, the axis they touch on.

    The first array has one item for each node, and one more for the end of the last. Entries
    are sorted by axis and then by owner, the order in which routing prefers equals.
    """
    begins = np.zeros(len(nodes) + 1, np.int64)
    shape = (tree.low, tree.last, tree.half, tree.divided_at)
    none = np.zeros(0, np.int32)
    _neighbours(*shape, 2**tree.bits, wrap, tree.owner, nodes, when, begins, none, none)
    total = int(begins[-1])
    next_to, axis = np.zeros(total, np.int32), np.zeros(total, np.int32)
    _neighbours(*shape, 2**tree.bits, wrap, tree.owner, nodes, when, begins, next_to, axis)
    return begins, next_to, axis


def _check(axes: int, bits: int, zones: int) -> None:
    if not 1 <= axes <= (AXES_MAX if bits < 32 else 4) or not 1 <= bits <= 32:
        raise InputError(f"expected 1 to {AXES_MAX} axes of 1 to 31 bits, or up to 4 of 32, got {axes} of {bits}")
    if not 1 <= zones <= 2**24:
        raise InputError(f"expected 1 to {2**24} zones, got {zones}")


def _halve(low: Array, last: Array, old: Array, half: Array, axis: int) -> None:
    for side in (0, 1):
        low[half + side], last[half + side] = low[old], last[old]
    middle = (low[old, axis].astype(np.int64) + last[old, axis]) // 2
    last[half, axis], low[half + 1, axis] = middle, middle + 1


def _finished(
    bits: int, low: Array, last: Array, half: Array, divided_at: Array, depth: Array, owner: Array | None, kept: Kept
) -> SplitTree:
    if depth.max(initial=0) > DEPTH_MAX:
        raise InputError(f"expected zones at most {DEPTH_MAX} divisions deep, got {depth.max()}")
    first_leaf = np.zeros(len(half), np.int32)
    leaf, path = np.zeros((len(half) + 1) // 2, np.int32), np.zeros((len(half) + 1) // 2, np.uint64)
    _number(half, first_leaf, leaf, path)
    kept_leaf = first_leaf.copy()
    if kept == "either":
        _follow_owners(half, depth, first_leaf, path, kept_leaf)
    owner = kept_leaf if owner is None else owner
    return SplitTree(bits, low, last, half, divided_at, depth, owner, first_leaf, kept_leaf, leaf, path)


@njit(cache=True)
def _keeps_upper(code):
    """As the protocol's `keeps_upper` with `either`, by the number of a path's shape."""
    code = (code ^ (code >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    code = (code ^ (code >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (code ^ (code >> np.uint64(31))) & np.uint64(1)


@njit(cache=True)
def _follow_owners(half, depth, first_leaf, path, kept_leaf):
    """For each node the leaf of its owner: from the last node to the first, as halves have higher numbers."""
    one = np.uint64(1)
    for node in range(len(half) - 1, -1, -1):
        if half[node]:
            deep = depth[node]
            shape = path[first_leaf[node]] >> np.uint64(64 - deep) if deep else np.uint64(0)
            code = (one << np.uint64(deep)) | shape
            kept_leaf[node] = kept_leaf[half[node] + np.int64(_keeps_upper(code))]
        else:
            kept_leaf[node] = first_leaf[node]


@njit(cache=True)
def _join(low, last, half, divided_at, depth, owner, code, points, span, even, wrap, either):
    axes = low.shape[1]
    near, axis_of = np.empty(NEIGHBOURS_MAX, np.int32), np.empty(NEIGHBOURS_MAX, np.int32)
    free = 1
    for number in range(len(points)):
        node = _leaf_of(last, half, axes, points[number])
        if even:
            chosen = node
            for k in range(_touching(low, last, half, divided_at, span, wrap, node, number, near, axis_of)):
                other = near[k]
                if depth[other] < depth[chosen] or (
                    depth[other] == depth[chosen] < depth[node] and owner[other] < owner[chosen]
                ):
                    chosen = other
            node = chosen
        axis = depth[node] % axes
        middle = (np.int64(low[node, axis]) + np.int64(last[node, axis])) // 2
        for side in range(2):
            low[free + side] = low[node]
            last[free + side] = last[node]
            depth[free + side] = depth[node] + 1
        last[free, axis], low[free + 1, axis] = middle, middle + 1
        upper = np.int64(_keeps_upper(code[node])) if either else 0
        owner[free + upper], owner[free + 1 - upper] = owner[node], number + 1
        code[free] = code[node] << np.uint64(1)
        code[free + 1] = code[free] | np.uint64(1)
        half[node], divided_at[node] = free, number + 1
        free += 2


@njit(cache=True)
def _leaf_of(last, half, axes, point):
    node, axis = 0, 0
    while half[node]:
        node = half[node] + (1 if point[axis] > last[half[node], axis] else 0)
        axis = axis + 1 if axis + 1 < axes else 0
    return node


@njit(cache=True)
def _locate(last, half, first_leaf, axes, points, found):
    for number in range(len(points)):
        found[number] = first_leaf[_leaf_of(last, half, axes, points[number])]


@njit(cache=True)
def _number(half, first_leaf, leaf, path):
    """Leaves from left to right, and for each node its leftmost one."""
    waiting, paths, depths = np.empty(128, np.int32), np.empty(128, np.uint64), np.empty(128, np.int64)
    waiting[0], paths[0], depths[0] = 0, 0, 0
    count, leaves = 1, 0
    while count:
        count -= 1
        node, way, deep = waiting[count], paths[count], depths[count]
        first_leaf[node] = leaves
        if half[node]:
            waiting[count], paths[count] = half[node] + 1, way | (np.uint64(1) << np.uint64(63 - deep))
            waiting[count + 1], paths[count + 1] = half[node], way
            depths[count] = depths[count + 1] = deep + 1
            count += 2
        else:
            leaf[leaves], path[leaves] = node, way
            leaves += 1


@njit(cache=True)
def _touching(low, last, half, divided_at, span, wrap, node, when, near, axis_of):
    """The nodes that shared a face with `node` at a moment, into `near`, and on which axis; returns how many."""
    axes, found = low.shape[1], 0
    waiting = np.empty(256, np.int32)
    for axis in range(axes):
        begun = found
        for side in range(2):
            at = np.int64(low[node, axis]) - 1 if side == 0 else np.int64(last[node, axis]) + 1
            if at < 0 or at == span:
                if not wrap:
                    continue
                at = (at + span) % span
            if low[node, axis] <= at <= last[node, axis]:
                continue  # It spans the whole axis and would be its own neighbour.
            waiting[0], count = 0, 1
            while count:
                count -= 1
                other = waiting[count]
                if divided_at[other] <= when:
                    for each in range(2):
                        if _meets(low, last, half[other] + each, node, axis, at):
                            waiting[count] = half[other] + each
                            count += 1
                elif not _among(near, begun, found, other):  # Both ends of a zone may touch the same other one.
                    near[found], axis_of[found] = other, axis
                    found += 1
    return found


@njit(cache=True)
def _meets(low, last, other, node, axis, at):
    """Whether `other` contains `at` on an axis and overlaps with `node` on all others."""
    for each in range(low.shape[1]):
        if each == axis:
            if not low[other, each] <= at <= last[other, each]:
                return False
        elif low[other, each] > last[node, each] or last[other, each] < low[node, each]:
            return False
    return True


@njit(cache=True)
def _among(near, begin, end, wanted):
    for k in range(begin, end):  # noqa: SIM110  Numba knows no `any` over a generator.
        if near[k] == wanted:
            return True
    return False


@njit(cache=True)
def _neighbours(low, last, half, divided_at, span, wrap, owner, nodes, when, begins, next_to, axis):
    """Called twice: with empty output arrays, to count into `begins`; then with full ones, to write."""
    near, axis_of = np.empty(NEIGHBOURS_MAX, np.int32), np.empty(NEIGHBOURS_MAX, np.int32)
    for row in range(len(nodes)):
        found = _touching(low, last, half, divided_at, span, wrap, nodes[row], when[row], near, axis_of)
        if len(next_to) == 0:
            begins[row + 1] = begins[row] + found
            continue
        for k in range(found):  # By insertion: they are few.
            place = begins[row] + k
            while place > begins[row] and (axis[place - 1], owner[next_to[place - 1]]) > (axis_of[k], owner[near[k]]):
                next_to[place], axis[place] = next_to[place - 1], axis[place - 1]
                place -= 1
            next_to[place], axis[place] = near[k], axis_of[k]
