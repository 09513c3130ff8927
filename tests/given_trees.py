"""Attribute trees of CBDLO made for tests, and the laws that hold for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import log2

from tidings.overlay import Interest, Peer, Ranges, SubscriptionId
from tidings.overlay.cbdlo.attribute_tree import AttributeTree, PartitionNode, Registration
from tidings.overlay.cbdlo.messages import AssignPartition, PartitionRef, PartitionState
from tidings.overlay.cbdlo.owned_partitions import OwnedPartition, OwnedPartitions
from tidings.overlay.random_graph.access_points import TreeId
from tidings.overlay.random_graph.partition import BOTTOM, TOP, AttributeAxis, Cut, intervals_of

SPACE_AXIS = AttributeAxis("Event", "x")
TREE = TreeId(Peer("founder"), 1)


def wish(number: int, low: int, high: int, owner: str = "") -> Interest:
    """The interest of node n<number> in x from low to high, both included."""
    return Interest(SubscriptionId(owner or f"n{number}", 0, number), "Event", Ranges.of(x=(low, high)))


def a_tree(ranges: Sequence[tuple[int, int]], *, owners: int = 1 << 30) -> AttributeTree:
    """A tree in which the k-th node, or one of so many owners, wants the k-th range."""
    tree = AttributeTree(Peer("founder"))
    for number, (low, high) in enumerate(ranges):
        interest = wish(number, low, high, f"n{number % owners}")
        tree.register(Registration(Peer(interest.id.origin), interest), intervals_of(interest, SPACE_AXIS))
    return tree


def registered(tree: AttributeTree) -> list[list[int]]:
    """For each partition in order, the numbers of the interests that cover it."""
    return [[id.seq for id in each.registered] for each in tree]


def check_tree(tree: AttributeTree) -> None:
    """CBDLO-INV-S1 to CBDLO-INV-S5 and CBDLO-INV-09."""
    in_order = list(tree)
    assert in_order[0].low == BOTTOM
    assert in_order[-1].high == TOP
    for one, other in pairwise(in_order):
        assert one.high == other.low, "CBDLO-INV-S1: partitions are disjoint and leave no gap"
        assert one.after is other
        assert other.before is one, "CBDLO-INV-S2"
    assert tree.root.parent is None
    assert _checked(tree.root) == in_order, "CBDLO-INV-S2: the tree is in order"
    assert tree.root.height <= 1.44 * log2(len(tree) + 2), "CBDLO-INV-09"
    interval_count = _check_registered(tree, in_order)
    assert len(tree) <= 2 * interval_count + 1, "CBDLO-INV-S5"


def _checked(each: PartitionNode | None) -> list[PartitionNode]:
    """A subtree in order, with its balance and its range checked (CBDLO-INV-S3)."""
    if each is None:
        return []
    left, right = _checked(each.left), _checked(each.right)
    heights = [child.height if child else 0 for child in (each.left, each.right)]
    assert abs(heights[0] - heights[1]) <= 1
    assert each.height == 1 + max(heights)
    assert all(child.parent is each for child in (each.left, each.right) if child)
    below = [*left, each, *right]
    assert (each.first, each.last) == (below[0].low, below[-1].high)
    return below


def _check_registered(tree: AttributeTree, in_order: list[PartitionNode]) -> int:
    """Interests are registered in exactly the partitions they cover (CBDLO-INV-S4); returns the number of intervals."""
    interval_count = 0
    for registration in tree.registrations():
        intervals = intervals_of(registration.interest, SPACE_AXIS)
        interval_count += len(intervals)
        for each in in_order:
            covered = any(low <= each.low and each.high <= high for low, high in intervals)
            cut = any(each.low < end < each.high for interval in intervals for end in interval)
            assert not cut, "no interval is cut by a predicate"
            assert covered == (registration.interest.id in each.registered)
    return interval_count


def routes_between(tree: AttributeTree, *, fingers: bool) -> Iterator[tuple[bool, int]]:
    """From every owner to every partition, by what owners know: whether it was reached, and in how many steps."""
    owners = owned_by(tree, fingers=fingers)
    for start in owners:
        for goal in tree:
            yield _route(owners, start, goal.low)


def owned_by(tree: AttributeTree, *, fingers: bool) -> dict[str, OwnedPartitions]:
    """The partitions of each owner, as the coordinator would assign them."""
    owners: dict[str, OwnedPartitions] = {}
    for each in tree:
        parent, left, right = _ref(each.parent), _ref(each.left), _ref(each.right)
        before, after = _ref(each.before), _ref(each.after)
        known = tuple(PartitionRef(finger.low, finger.owner) for finger in tree.fingers(each)) if fingers else ()
        state = PartitionState(
            each.low, each.high, each.first, each.last, 1, 1, parent, left, right, before, after, known
        )
        owned = owners.setdefault(each.owner.id, OwnedPartitions(fingers=fingers))
        assert owned.assign(AssignPartition(1, SPACE_AXIS, TREE, state, True, tuple(each.registered.values()), ()))
    return owners


def _ref(each: PartitionNode | None) -> PartitionRef | None:
    return PartitionRef(each.low, each.owner) if each else None


def _route(owners: dict[str, OwnedPartitions], start: str, position: Cut) -> tuple[bool, int]:
    here, steps, visited = start, 0, {start}
    while True:
        way = owners[here].route(SPACE_AXIS, TREE, position)
        if isinstance(way, OwnedPartition):
            return way.state.low <= position < way.state.high, steps
        if way is None or (way.owner.id in visited):
            return False, steps
        here, steps = way.owner.id, steps + 1
        visited.add(here)
