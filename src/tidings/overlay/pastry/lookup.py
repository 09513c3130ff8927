"""Iterative lookup: one node asks others, step by step, which nodes are nearest to a point on the circle.

A `Lookup` records which nodes there are to ask and what each answered; `ring` sends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto

from tidings.overlay.messages import NodeId, Peer
from tidings.overlay.pastry.routing_table import PastryState

AT_ONCE = 2  # Nodes asked at the same time in one lookup: one on each side of the key.


class SearchResult(Enum):
    """How a search of a range ended that found no node."""

    EMPTY = auto()  # Both neighbours of the range have said that it is empty.
    UNREACHED = auto()  # A node may be in it, but did not answer.


class _State(Enum):
    HEARD_OF = auto()
    ASKED = auto()
    ANSWERED = auto()
    SILENT = auto()
    REFUSED = auto()


@dataclass(slots=True)
class Lookup:
    """The search for the node next to a point on the circle, or for any node in the range that begins there.

    It closes in from both sides: the nearest so far on each side is asked for nearer ones,
    until both have answered. Then no unknown node can be in between, for each knows its
    leaves.
    """

    name: str
    target: int
    circle: PastryState
    is_join: bool
    _peers: dict[NodeId, Peer] = field(default_factory=dict)
    _states: dict[NodeId, _State] = field(default_factory=dict)
    _places: dict[NodeId, int] = field(default_factory=dict)  # Clockwise from the target.

    def hear(self, peers: Iterable[Peer]) -> None:
        for peer in peers:
            if peer.id not in self._states:
                self._peers[peer.id], self._states[peer.id] = peer, _State.HEARD_OF
                self._places[peer.id] = (int(peer.id, self.circle.base) - self.target) % self.circle.size

    def answered(self, id: NodeId) -> None:
        self._states[id] = _State.ANSWERED

    def failed(self, id: NodeId, certain: bool) -> None:
        if self._states.get(id) is _State.ASKED:
            self._states[id] = _State.REFUSED if certain else _State.SILENT

    def waiting(self) -> list[NodeId]:
        return [id for id, state in self._states.items() if state is _State.ASKED]

    def peers(self) -> list[Peer]:
        """Nodes that have not failed to answer."""
        return [self._peers[id] for id in self._alive()]

    def anybody_answered(self) -> bool:
        return _State.ANSWERED in self._states.values()

    def to_ask(self) -> list[NodeId]:
        """The nearest on each side, if not asked yet, marked as asked."""
        free = max(0, AT_ONCE - len(self.waiting()))
        asked = [id for id in self._edges() if self._states[id] is _State.HEARD_OF][:free]
        self._states.update((id, _State.ASKED) for id in asked)
        return asked

    def outcome(self) -> Peer | SearchResult | None:
        """The result, or None while there is a node to ask or to wait for."""
        if not self.is_join:
            for id, state in self._states.items():
                if state is _State.ANSWERED and id.startswith(self.name):
                    return self._peers[id]
        if any(self._states[id] is not _State.ANSWERED for id in self._edges()):
            return None
        doubtful = any(s is _State.SILENT and id.startswith(self.name) for id, s in self._states.items())
        return SearchResult.UNREACHED if doubtful else SearchResult.EMPTY

    def _edges(self) -> list[NodeId]:
        alive = self._alive()
        if not alive:
            return []
        first, last = min(alive, key=self._places.__getitem__), max(alive, key=self._places.__getitem__)
        return [first] if first == last else [first, last]

    def _alive(self) -> list[NodeId]:
        return [id for id, state in self._states.items() if state not in (_State.SILENT, _State.REFUSED)]
