"""Flooding: every node forwards each new packet to all its neighbours.

Flooding reaches every subscriber at the highest cost in messages, which makes it the baseline for all other
protocols. A node remembers the ids it has seen, so a cycle in the overlay ends a flood instead of feeding it. No limit
of hops does: whoever passes a copy on could use it up, and with it end the flood for the nodes behind.

    publish            → Deliver here, Send to every neighbour
    receive, first     → Deliver here, Send to every neighbour but the sender
    receive, again     → nothing

On a connected graph of N nodes and E links a flood takes exactly 2E - (N - 1) messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.messages import EventId, Message, NodeId, Packet, Peer
from tidings.overlay.router import Deliver, Effect, Guarantee, Place, Protocol, Router, Send, built

HOPS_COUNTED = 1 << 16  # More than any overlay is wide. A larger number is a lie, and not counted on.
NEIGHBOURS_MAX = 4096  # Four times the largest hub in the lab.


class Flood(Message, frozen=True):
    """A packet, and how many hops it has taken, as far as those on the way say."""

    packet: Packet
    hops: int = 0


class Flooding(Router[Flood]):
    """One node of a flooding overlay."""

    def __init__(self, neighbours: Sequence[NodeId], *, seen_max: int = SEEN_MAX) -> None:
        self.neighbours = tuple(neighbours)
        # Bounded: an id that is evicted too early costs one repeated flood, not the node's memory.
        self._seen = SeenIds[EventId](seen_max)

    @classmethod
    def build(cls, place: Place, **options: Any) -> Flooding:
        """The router of the node at `place`."""
        return built("flooding", cls, [peer.id for peer in place.neighbours], **options)

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        return self._forward(Flood(packet), sender=None)

    def stays_here(self, type: str) -> bool:
        return not self.neighbours

    def receive(self, sender: NodeId, message: Flood, now: float) -> list[Effect]:
        return self._forward(message, sender)

    def peer_up(self, peer: Peer, now: float) -> list[Effect]:
        if peer.id not in self.neighbours and len(self.neighbours) < NEIGHBOURS_MAX:
            self.neighbours += (peer.id,)
        return []

    def links(self) -> tuple[NodeId, ...]:
        return self.neighbours

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"seen": (len(self._seen), self._seen.at_most), "neighbours": (len(self.neighbours), NEIGHBOURS_MAX)}

    def _forward(self, flood: Flood, sender: NodeId | None) -> list[Effect]:
        if not self._seen.add(flood.packet.header.id):
            return []
        onward = Flood(flood.packet, min(flood.hops + 1, HOPS_COUNTED))
        return [Deliver(flood.packet), *(Send(peer, onward) for peer in self.neighbours if peer != sender)]


PROTOCOL = Protocol(
    name="flooding",
    build=Flooding.build,
    messages=Flood,
    guarantees=frozenset({Guarantee.REACHES_ALL, Guarantee.JOINS_BY_LINKS}),
    on_graph=True,
    content_in_packets_only=True,
)
