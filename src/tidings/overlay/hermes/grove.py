"""All the trees in which one node of Hermes has a place, by type.

There is room for so many trees and interests and no more: a peer that announces without
end is refused, not obeyed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from tidings.overlay.hermes.multicast_tree import Tree
from tidings.overlay.interest import Interest
from tidings.overlay.messages import NodeId
from tidings.overlay.pastry.ring import Ring

TREES_MAX = 65_536
INTERESTS_MAX = 1 << 20  # On one node, of its own and from below. One too many is refused and counted.


class Grove:
    """One node's trees. All share one clock, so that of two words about an interest the later is known."""

    def __init__(self, ring: Ring, covers: Callable[[Interest, Interest], bool]) -> None:
        self._ring, self._covers = ring, covers
        self._by_type: dict[str, Tree] = {}
        self._room = 0  # At least so many interests more may be taken before they must be counted again.
        self._clock = 0

    def trees(self) -> list[Tree]:
        """Those there are now; trees may be planted and felled while they are walked through."""
        return list(self._by_type.values())

    def get(self, type: str) -> Tree | None:
        return self._by_type.get(type)

    def plant(self, type: str) -> Tree | None:
        """The tree of a type, a new one if there is none; None if there is no room for it."""
        tree = self._by_type.get(type)
        if tree is None and len(self._by_type) < TREES_MAX:
            tree = self._by_type[type] = Tree(type, self.key_of(type), self._covers, self._tick)
        return tree

    def fell(self, tree: Tree) -> None:
        """This node has no place in a tree any more."""
        self._by_type.pop(tree.type, None)

    def key_of(self, type: str) -> str:
        """Where the rendezvous of a type is on the circle."""
        return self._ring.key_of(hashlib.sha256(type.encode()).digest())

    def is_full(self) -> bool:
        """Asked before each interest that is taken; so they need counting only when the room there was is used up."""
        if self._room <= 0:
            self._room = INTERESTS_MAX - self._interest_count()
        self._room -= 1
        return self._room < 0

    def edges(self) -> tuple[NodeId, ...]:
        """Parents and children, each once."""
        ends: dict[NodeId, None] = {}
        for tree in self._by_type.values():
            ends.update(dict.fromkeys([*([tree.parent] if tree.parent else []), *tree.below]))
        return tuple(ends)

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            "trees": (len(self._by_type), TREES_MAX),
            "interests": (self._interest_count(), INTERESTS_MAX + 1),
        }

    def _interest_count(self) -> int:
        return sum(map(len, self._by_type.values()))

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
