"""Iterative lookup: one node asks others, step by step, which nodes are nearest to a point on the circle."""

from __future__ import annotations

from tidings.overlay.messages import NodeId
from tidings.overlay.pastry.routing_table import PastryState
from tidings.overlay.prefix.search import NodeSearch


class Lookup(NodeSearch):
    """The search for the node next to a point on the circle, or for any node in the range that begins there.

    It closes in from both sides: the nearest so far on each side is asked for nearer ones,
    until both have answered. Then no unknown node can be in between, for each knows its
    leaves.
    """

    def __init__(self, name: str, target: int, circle: PastryState, *, is_join: bool) -> None:
        super().__init__(name, is_join=is_join)
        self.target, self.circle = target, circle
        self._places: dict[NodeId, int] = {}  # Clockwise from the target.

    def _place(self, id: NodeId) -> None:
        self._places[id] = (int(id, self.circle.base) - self.target) % self.circle.size

    def _needed(self) -> list[NodeId]:
        alive = self._alive()
        if not alive:
            return []
        first, last = min(alive, key=self._places.__getitem__), max(alive, key=self._places.__getitem__)
        return [first] if first == last else [first, last]
