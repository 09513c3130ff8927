"""Gossip: every node forwards each new packet to some of its neighbours, drawn at random each time.

Gossip is cheaper than flooding but only probabilistic: in some runs some subscribers miss an event.

    chance=0.9   to each neighbour but the sender, with this probability
    fan_out=3    to so many neighbours but the sender, drawn at random
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from tidings.errors import InputError
from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.messages import EventId, Message, NodeId, Packet, Peer
from tidings.overlay.router import Deliver, Effect, Guarantee, Place, Protocol, Router, Send, built

NEIGHBOURS_MAX = 4096  # Four times the largest hub in the lab.


class GossipEvent(Message, frozen=True, tag="Rumour"):
    """A packet. It needs no hop count, because each node forwards it at most once."""

    packet: Packet


class Gossip(Router[GossipEvent]):
    """One node of a gossip overlay."""

    def __init__(
        self, neighbours: Sequence[NodeId], rng: random.Random, *, chance: float = 0.9, fan_out: int | None = None
    ) -> None:
        if not 0.0 <= chance <= 1.0:
            raise InputError(f"expected a chance between 0 and 1, got {chance}")
        if fan_out is not None and fan_out < 1:
            raise InputError(f"expected a fan-out of at least 1, got {fan_out}")
        self.neighbours = tuple(neighbours)
        self.chance, self.fan_out, self._rng = chance, fan_out, rng
        self._seen = SeenIds[EventId](SEEN_MAX)

    @classmethod
    def build(cls, place: Place, **options: Any) -> Gossip:
        """The router of the node at `place`."""
        return built("gossip", cls, [peer.id for peer in place.neighbours], place.rng, **options)

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        return self._forward(GossipEvent(packet), sender=None)

    def receive(self, sender: NodeId, message: GossipEvent, now: float) -> list[Effect]:
        return self._forward(message, sender)

    def peer_up(self, peer: Peer, now: float) -> list[Effect]:
        if peer.id not in self.neighbours and len(self.neighbours) < NEIGHBOURS_MAX:
            self.neighbours += (peer.id,)
        return []

    def links(self) -> tuple[NodeId, ...]:
        return self.neighbours

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"seen": (len(self._seen), self._seen.at_most), "neighbours": (len(self.neighbours), NEIGHBOURS_MAX)}

    def _forward(self, message: GossipEvent, sender: NodeId | None) -> list[Effect]:
        if not self._seen.add(message.packet.header.id):
            return []
        return [Deliver(message.packet), *(Send(peer, message) for peer in self._drawn(sender))]

    def _drawn(self, sender: NodeId | None) -> list[NodeId]:
        others = [peer for peer in self.neighbours if peer != sender]
        if self.fan_out is not None:
            return self._rng.sample(others, min(self.fan_out, len(others)))
        return [peer for peer in others if self._rng.random() < self.chance]


PROTOCOL = Protocol(
    name="gossip",
    build=Gossip.build,
    messages=GossipEvent,
    guarantees=frozenset({Guarantee.JOINS_BY_LINKS}),  # Not REACHES_ALL: the lab measures how many it reaches.
    on_graph=True,
    content_in_packets_only=True,
)
