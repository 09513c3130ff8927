"""The estate of a node: the sub-spaces it looks after, and which way from there.

    tree only      up until the subtree holds the value, then down: at most twice the tree's height
    with fingers   to whatever is known that lies nearest to the value without passing it

Either way a walk through the tree comes to no node twice: a node begins with the best of
all the sub-spaces it has.
"""

from __future__ import annotations

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

SPACES_MAX = 1 << 20  # Sub-spaces of one node, all attributes together.


@dataclass(slots=True)
class OwnedPartition:
    """A sub-space that this node looks after, and who is registered there."""

    space: PartitionState
    registered: dict[SubscriptionId, Registration] = field(default_factory=dict)


class OwnedPartitions:
    """All sub-spaces of one node."""

    def __init__(self, *, fingers: bool) -> None:
        self.fingers = fingers
        self._spaces: dict[AttributeAxis, dict[TreeId, dict[Cut, OwnedPartition]]] = {}

    def __len__(self) -> int:
        return sum(len(spaces) for trees in self._spaces.values() for spaces in trees.values())

    def axes(self) -> list[AttributeAxis]:
        return list(self._spaces)

    def trees(self, axis: AttributeAxis) -> list[TreeId]:
        """The topologies of an attribute that this node has sub-spaces of."""
        return list(self._spaces.get(axis, ()))

    def spaces(self, axis: AttributeAxis, tree: TreeId) -> dict[Cut, OwnedPartition]:
        return self._spaces.get(axis, {}).get(tree, {})

    def held(self, axis: AttributeAxis, tree: TreeId) -> list[PartitionSummary]:
        """What this node looks after in one topology, in few words."""
        return [
            PartitionSummary(low, each.space.epoch, each.space.version, len(each.registered))
            for low, each in self.spaces(axis, tree).items()
        ]

    def neighbours(self) -> Iterator[tuple[AttributeAxis, TreeId, PartitionRef]]:
        """Who looks after what lies on either side. So each owner is watched by two, whatever its place in the tree."""
        for axis, trees in self._spaces.items():
            for tree, spaces in trees.items():
                for each in spaces.values():
                    for ref in (each.space.before, each.space.after):
                        if ref is not None:
                            yield axis, tree, ref

    def place(self, said: AssignPartition) -> bool:
        """Look after a sub-space as the steward says; False where it builds on what is not known here."""
        spaces = self._spaces.setdefault(said.axis, {}).setdefault(said.tree, {})
        old, new = spaces.get(said.space.low), said.space
        if old is None or old.space.epoch < new.epoch:
            if not said.whole:
                self._tidy(said.axis, said.tree)
                return False
            spaces[new.low] = old = OwnedPartition(new)
        if (old.space.epoch, old.space.version) <= (new.epoch, new.version):  # Else it is an old word, come late.
            old.space = new
            for id in said.gone:
                old.registered.pop(id, None)
            old.registered.update((each.interest.id, each) for each in said.added)
        return True

    def vacate(self, said: RevokePartition) -> None:
        """No longer look after a sub-space, unless it was given back meanwhile."""
        self.drop(said.axis, said.tree, said.low, said.epoch)

    def drop(self, axis: AttributeAxis, tree: TreeId, low: Cut, epoch: int) -> None:
        spaces = self.spaces(axis, tree)
        if low in spaces and spaces[low].space.epoch <= epoch:
            del spaces[low]
            self._tidy(axis, tree)

    def leave(self, axis: AttributeAxis, tree: TreeId) -> None:
        """A topology is no more."""
        self._spaces.get(axis, {}).pop(tree, None)
        self._tidy(axis, tree)

    # ── Which way ────────────────────────────────────────────────────────────

    def towards(
        self, axis: AttributeAxis, tree: TreeId, place: Cut, *, surely: bool = False
    ) -> OwnedPartition | PartitionRef | None:
        """The sub-space that holds the place, if it is here; else where to go on; None if this node has nothing."""
        spaces = self.spaces(axis, tree)
        if not spaces:
            return None
        for low, each in spaces.items():
            if low <= place < each.space.high:
                return each
        return _nearest(spaces, place, surely) if self.fingers else _up_or_down(spaces, place)

    def avoid(self, peer: NodeId) -> None:
        """Somebody is not there: no short cuts by way of it. The other links are the steward's to mend."""
        for trees in self._spaces.values():
            for spaces in trees.values():
                for each in spaces.values():
                    if any(ref.owner.id == peer for ref in each.space.fingers):
                        left = tuple(ref for ref in each.space.fingers if ref.owner.id != peer)
                        each.space = msgspec.structs.replace(each.space, fingers=left)

    def _tidy(self, axis: AttributeAxis, tree: TreeId) -> None:
        trees = self._spaces.get(axis, {})
        if tree in trees and not trees[tree]:
            del trees[tree]
        if axis in self._spaces and not trees:
            del self._spaces[axis]


def _nearest(spaces: dict[Cut, OwnedPartition], place: Cut, surely: bool) -> PartitionRef | None:
    """Of all that is known the nearest on this side, or the one that must hold it."""
    below = [space for space in spaces.values() if space.space.low <= place]
    if below:
        best = max(below, key=lambda each: each.space.low).space
        ahead = [ref for ref in _known(best, surely) if best.low < ref.low <= place]
        return max(ahead, key=lambda ref: ref.low, default=best.after)
    best = min(spaces.values(), key=lambda each: each.space.low).space
    if best.before is not None and best.before.low <= place:
        return best.before
    back = [ref for ref in _known(best, surely) if place < ref.low < best.low]
    return min(back, key=lambda ref: ref.low, default=best.before)


def _up_or_down(spaces: dict[Cut, OwnedPartition], place: Cut) -> PartitionRef | None:
    """Down from the smallest subtree that holds the place; else up from the largest there is."""
    around = [each.space for each in spaces.values() if each.space.first <= place < each.space.last]
    if around:
        space = max(around, key=lambda each: (each.first, _Downwards(each.last)))
        return space.left if place < space.low else space.right
    widest = [each.space for each in spaces.values()]
    return min(widest, key=lambda each: (each.first, _Downwards(each.last))).parent


@dataclass(frozen=True, slots=True)
class _Downwards:
    """A cut that sorts the other way round."""

    cut: Cut

    def __lt__(self, other: _Downwards) -> bool:
        return other.cut < self.cut


def _known(space: PartitionState, surely: bool) -> Iterator[PartitionRef]:
    yield from (ref for ref in (space.parent, space.left, space.right, space.before, space.after) if ref is not None)
    yield from () if surely else space.fingers


def owners_of(
    refs: Iterator[tuple[AttributeAxis, TreeId, PartitionRef]], me: NodeId
) -> dict[NodeId, tuple[AttributeAxis, TreeId, PartitionRef]]:
    """Each of the nodes spoken of once, this one apart."""
    return {ref.owner.id: (axis, tree, ref) for axis, tree, ref in refs if ref.owner.id != me}
