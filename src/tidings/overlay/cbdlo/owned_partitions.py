"""The partitions that a node owns, and the next hop from there to the partition that contains a value.

    tree links only   up until the subtree contains the value, then down: at most twice the height of the tree
    with fingers      to the known partition that is nearest to the value and does not pass it

Either way an event never visits a node twice: a node starts from the best of all partitions it owns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from tidings.overlay.cbdlo.attribute_tree import Registration
from tidings.overlay.cbdlo.messages import (
    AssignPartition,
    PartitionRef,
    PartitionState,
    PartitionSummary,
    RevokePartition,
)
from tidings.overlay.messages import NodeId, SubscriptionId
from tidings.overlay.random_graph.access_points import TreeId
from tidings.overlay.random_graph.partition import AttributeAxis, Cut

PARTITIONS_MAX = 1 << 20  # Of one node, all attributes together.
STORED_MAX = 1 << 21  # Partitions of one node and interests in them; an interest stands in each partition it covers.
STORED_FOR_ONE_MAX = 1 << 20  # … of the topologies of one coordinator, which may have made them up.


@dataclass(slots=True)
class OwnedPartition:
    """A partition that this node owns, and the interests registered there."""

    state: PartitionState
    registered: dict[SubscriptionId, Registration] = field(default_factory=dict)


class OwnedPartitions:
    """All partitions of one node."""

    def __init__(self, *, fingers: bool) -> None:
        self.fingers = fingers
        self._stored: Counter[NodeId] = Counter()  # By coordinator: partitions, and interests in them.
        self._partitions: dict[AttributeAxis, dict[TreeId, dict[Cut, OwnedPartition]]] = {}

    def __len__(self) -> int:
        return sum(len(owned) for trees in self._partitions.values() for owned in trees.values())

    def axes(self) -> list[AttributeAxis]:
        return list(self._partitions)

    def trees(self, axis: AttributeAxis) -> list[TreeId]:
        """The topologies of an attribute in which this node owns partitions."""
        return list(self._partitions.get(axis, ()))

    def places(self) -> list[tuple[AttributeAxis, list[PartitionState]]]:
        """For each topology with partitions of this node, their states."""
        return [
            (axis, [each.state for each in owned.values()])
            for axis, trees in self._partitions.items()
            for owned in trees.values()
        ]

    def partitions(self, axis: AttributeAxis, tree: TreeId) -> dict[Cut, OwnedPartition]:
        return self._partitions.get(axis, {}).get(tree, {})

    def summary(self, axis: AttributeAxis, tree: TreeId) -> list[PartitionSummary]:
        """What this node owns in one topology, for the coordinator to compare."""
        return [
            PartitionSummary(low, each.state.epoch, each.state.version, len(each.registered))
            for low, each in self.partitions(axis, tree).items()
        ]

    def neighbours(self) -> Iterator[tuple[AttributeAxis, TreeId, PartitionRef]]:
        """The partitions on either side of those owned. So each owner is monitored by two others."""
        for axis, trees in self._partitions.items():
            for tree, owned in trees.items():
                for each in owned.values():
                    for ref in (each.state.before, each.state.after):
                        if ref is not None:
                            yield axis, tree, ref

    def has_room_for(self, message: AssignPartition) -> bool:
        """Whether a coordinator may assign this as well: what it has this node store is bounded, known or made up."""
        mine, more = self._stored[message.tree.coordinator.id], len(message.added) + 1
        return (
            len(self) < PARTITIONS_MAX
            and self._stored.total() + more <= STORED_MAX
            and mine + more <= STORED_FOR_ONE_MAX
        )

    def assign(self, message: AssignPartition) -> bool:
        """Take a partition, or a change to one; False if the change builds on a version that this node lacks."""
        owned = self._partitions.setdefault(message.axis, {}).setdefault(message.tree, {})
        old, new = owned.get(message.state.low), message.state
        before = _size(old)
        if old is None or old.state.epoch < new.epoch:
            if not message.whole:
                self._tidy(message.axis, message.tree)
                return False
            owned[new.low] = old = OwnedPartition(new)
        if (old.state.epoch, old.state.version) <= (new.epoch, new.version):  # Else it is an old message, delayed.
            old.state = new
            for id in message.gone:
                old.registered.pop(id, None)
            old.registered.update((each.interest.id, each) for each in message.added)
        self._stored[message.tree.coordinator.id] += _size(old) - before
        return True

    def revoke(self, message: RevokePartition) -> None:
        """Give up a partition, unless it was assigned again in a later epoch."""
        owned = self.partitions(message.axis, message.tree)
        if message.low in owned and owned[message.low].state.epoch <= message.epoch:
            self._stored[message.tree.coordinator.id] -= _size(owned.pop(message.low))
            self._tidy(message.axis, message.tree)

    def leave(self, axis: AttributeAxis, tree: TreeId) -> None:
        """Give up all partitions of a topology that has ended."""
        gone = self._partitions.get(axis, {}).pop(tree, {})
        self._stored[tree.coordinator.id] -= sum(map(_size, gone.values()))
        self._tidy(axis, tree)

    # ── The next hop ─────────────────────────────────────────────────────────

    def route(
        self, axis: AttributeAxis, tree: TreeId, position: Cut, *, fingers: bool = True
    ) -> OwnedPartition | PartitionRef | None:
        """The partition that contains the position if this node owns it, else the next hop; None if it owns nothing.

        Fingers may be stale. Without them only the links are used that the coordinator keeps up to date.
        """
        owned = self.partitions(axis, tree)
        if not owned:
            return None
        for low, each in owned.items():
            if low <= position < each.state.high:
                return each
        return _nearest(owned, position, fingers) if self.fingers else _up_or_down(owned, position)

    def drop_fingers(self, peer: NodeId) -> None:
        """A peer does not answer: take no shortcuts through it. The coordinator repairs the other links."""
        for trees in self._partitions.values():
            for owned in trees.values():
                for each in owned.values():
                    if any(ref.owner.id == peer for ref in each.state.fingers):
                        left = tuple(ref for ref in each.state.fingers if ref.owner.id != peer)
                        each.state = msgspec.structs.replace(each.state, fingers=left)

    def _tidy(self, axis: AttributeAxis, tree: TreeId) -> None:
        trees = self._partitions.get(axis, {})
        if tree in trees and not trees[tree]:
            del trees[tree]
        if axis in self._partitions and not trees:
            del self._partitions[axis]


def _size(partition: OwnedPartition | None) -> int:
    return 1 + len(partition.registered) if partition is not None else 0


def _nearest(owned: dict[Cut, OwnedPartition], position: Cut, fingers: bool) -> PartitionRef | None:
    """The known partition nearest to the position on this side, or the one that must contain it."""
    below = [each for each in owned.values() if each.state.low <= position]
    if below:
        best = max(below, key=lambda each: each.state.low).state
        ahead = [ref for ref in _links(best, fingers) if best.low < ref.low <= position]
        return max(ahead, key=lambda ref: ref.low, default=best.after)
    best = min(owned.values(), key=lambda each: each.state.low).state
    if best.before is not None and best.before.low <= position:
        return best.before
    back = [ref for ref in _links(best, fingers) if position < ref.low < best.low]
    return min(back, key=lambda ref: ref.low, default=best.before)


def _up_or_down(owned: dict[Cut, OwnedPartition], position: Cut) -> PartitionRef | None:
    """Down from the smallest subtree that contains the position; if none does, up from the largest subtree."""
    containing = [each.state for each in owned.values() if each.state.first <= position < each.state.last]
    if containing:
        best = max(containing, key=lambda each: (each.first, _Descending(each.last)))
        return best.left if position < best.low else best.right
    states = [each.state for each in owned.values()]
    return min(states, key=lambda each: (each.first, _Descending(each.last))).parent


@dataclass(frozen=True, slots=True)
class _Descending:
    """A cut that sorts in descending order."""

    cut: Cut

    def __lt__(self, other: _Descending) -> bool:
        return other.cut < self.cut


def _links(state: PartitionState, fingers: bool) -> Iterator[PartitionRef]:
    yield from (ref for ref in (state.parent, state.left, state.right, state.before, state.after) if ref is not None)
    yield from state.fingers if fingers else ()
