"""Searches: one node asks others, step by step, for nodes near a key or for any node in a range.

How a search closes in, and when nobody can be in a range, differs from network to network; so
each has a `NodeSearch` of its own. It records who is to be asked and what each answered;
the network sends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from enum import Enum, auto

from tidings.overlay.messages import NodeId, Peer

AT_ONCE = 2  # Nodes asked at the same time in one search.


class SearchResult(Enum):
    """How a search of a range ended that found no node."""

    EMPTY = auto()  # All who would know a node in it have answered, and none does.
    UNREACHED = auto()  # A node may be in it, but did not answer.


class AskState(Enum):
    """How far a search is with one node."""

    HEARD_OF = auto()
    ASKED = auto()
    ANSWERED = auto()
    SILENT = auto()
    REFUSED = auto()


class NodeSearch(ABC):
    """The search for the nodes at a key, or for any node in the range that begins there."""

    def __init__(self, name: str, *, is_join: bool) -> None:
        """`name` is the prefix of the range, or, of a newcomer, its own id."""
        self.name, self.is_join = name, is_join
        self._peers: dict[NodeId, Peer] = {}
        self._states: dict[NodeId, AskState] = {}

    def hear(self, peers: Iterable[Peer]) -> None:
        for peer in peers:
            if peer.id not in self._states:
                self._peers[peer.id], self._states[peer.id] = peer, AskState.HEARD_OF
                self._place(peer.id)

    def answered(self, id: NodeId) -> None:
        self._states[id] = AskState.ANSWERED

    def failed(self, id: NodeId, certain: bool) -> None:
        if self._states.get(id) is AskState.ASKED:
            self._states[id] = AskState.REFUSED if certain else AskState.SILENT

    def waiting(self) -> list[NodeId]:
        return [id for id, state in self._states.items() if state is AskState.ASKED]

    def peers(self) -> list[Peer]:
        """Nodes that have not failed to answer."""
        return [self._peers[id] for id in self._alive()]

    def anybody_answered(self) -> bool:
        return AskState.ANSWERED in self._states.values()

    def to_ask(self) -> list[NodeId]:
        """Those whose answer is needed, if not asked yet, marked as asked."""
        free = max(0, AT_ONCE - len(self.waiting()))
        asked = [id for id in self._needed() if self._states[id] is AskState.HEARD_OF][:free]
        self._states.update((id, AskState.ASKED) for id in asked)
        return asked

    def outcome(self) -> Peer | SearchResult | None:
        """The result, or None while there is a node to ask or to wait for."""
        if not self.is_join:
            for id, state in self._states.items():
                if state is AskState.ANSWERED and id.startswith(self.name):
                    return self._peers[id]
        if any(self._states[id] is not AskState.ANSWERED for id in self._needed()):
            return None
        doubtful = any(s is AskState.SILENT and id.startswith(self.name) for id, s in self._states.items())
        return SearchResult.UNREACHED if doubtful else SearchResult.EMPTY

    @abstractmethod
    def _needed(self) -> list[NodeId]:
        """Of those that may be alive, the ones that would know a node in the range."""

    @abstractmethod
    def _place(self, id: NodeId) -> None:
        """A node has been heard of for the first time: note how near it is."""

    def _alive(self) -> list[NodeId]:
        gone = (AskState.SILENT, AskState.REFUSED)
        return [id for id, state in self._states.items() if state not in gone]
