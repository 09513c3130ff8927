"""Flooding: every node passes each new packet to all its neighbours.

Never misses a subscriber and never saves a message, which makes it the line every
other protocol is drawn against. A node remembers the ids it has seen, so a circle in
the overlay ends a flood instead of feeding it.

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

HOPS_MAX = 32  # Twice the widest overlay in the lab; a flood that needs more has gone astray.
NEIGHBOURS_MAX = 4096  # Four times the largest hub in the lab.


class Flood(Message, frozen=True):
    """A packet and how many more hops it may take."""

    packet: Packet
    hops_left: int


class Flooding(Router[Flood]):
    """One node's part in the flood."""

    def __init__(self, neighbours: Sequence[NodeId], *, seen_max: int = SEEN_MAX, hops_max: int = HOPS_MAX) -> None:
        self.neighbours = tuple(neighbours)
        self.hops_max = hops_max
        # Bounded: an id pushed out early costs one repeated flood, not a node's memory.
        self._seen = SeenIds[EventId](seen_max)

    @classmethod
    def build(cls, place: Place, **options: Any) -> Flooding:
        """A node that stands where `place` says. A graph wider than HOPS_MAX, such as a long ring, needs more hops."""
        return built("flooding", cls, [peer.id for peer in place.neighbours], **options)

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        return self._pass_on(Flood(packet, self.hops_max), sender=None)

    def receive(self, sender: NodeId, message: Flood, now: float) -> list[Effect]:
        return self._pass_on(message, sender)

    def peer_up(self, peer: Peer, now: float) -> list[Effect]:
        if peer.id not in self.neighbours and len(self.neighbours) < NEIGHBOURS_MAX:
            self.neighbours += (peer.id,)
        return []

    def links(self) -> tuple[NodeId, ...]:
        return self.neighbours

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"seen": (len(self._seen), self._seen.at_most), "neighbours": (len(self.neighbours), NEIGHBOURS_MAX)}

    def _pass_on(self, flood: Flood, sender: NodeId | None) -> list[Effect]:
        if not self._seen.add(flood.packet.header.id):
            return []
        effects: list[Effect] = [Deliver(flood.packet)]
        if flood.hops_left > 0:
            onward = Flood(flood.packet, flood.hops_left - 1)
            effects += [Send(peer, onward) for peer in self.neighbours if peer != sender]
        return effects


PROTOCOL = Protocol(
    name="flooding",
    build=Flooding.build,
    messages=Flood,
    guarantees=frozenset({Guarantee.REACHES_ALL, Guarantee.JOINS_BY_LINKS}),
    on_graph=True,
    content_in_packets_only=True,
)
