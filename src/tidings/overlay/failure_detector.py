"""Failure detection by heartbeats: which peers have been silent for too long. The router sends and wakes."""

from __future__ import annotations

from tidings.overlay.messages import NodeId

MISSES_MAX = 3  # Heartbeats in a row that may be missed; with fewer, a busy node looks dead.


class FailureDetector:
    """When each watched peer last sent something, and which have been silent for too long.

    >>> peers = FailureDetector(heartbeat_s=1.0)
    >>> peers.watch("a", now=0.0); peers.watch("b", now=0.0); peers.heard("b", now=2.5)
    >>> peers.silent(now=3.5)
    ['a']
    """

    def __init__(self, heartbeat_s: float, misses_max: int = MISSES_MAX) -> None:
        self.heartbeat_s, self.misses_max = heartbeat_s, misses_max
        self._last_heard: dict[NodeId, float] = {}

    def watch(self, peer: NodeId, now: float) -> None:
        """Begin to expect heartbeats; a peer that is watched already keeps its time."""
        self._last_heard.setdefault(peer, now)

    def heard(self, peer: NodeId, now: float) -> None:
        """A watched peer has sent something; of other peers nothing is kept."""
        if peer in self._last_heard:
            self._last_heard[peer] = now

    def forget(self, peer: NodeId) -> None:
        """No longer expect anything."""
        self._last_heard.pop(peer, None)

    def silent(self, now: float) -> list[NodeId]:
        """Peers that sent nothing for `misses_max` heartbeats, in the order they were first watched."""
        deadline = now - self.heartbeat_s * self.misses_max
        return [peer for peer, last in self._last_heard.items() if last < deadline]

    def watched(self) -> tuple[NodeId, ...]:
        return tuple(self._last_heard)

    def __contains__(self, peer: NodeId) -> bool:
        return peer in self._last_heard

    def __len__(self) -> int:
        return len(self._last_heard)
