"""Gossip: every node passes each new packet to some of its neighbours, drawn anew each time.

Cheaper than flooding and without its certainty: a run in which somebody misses an event
is not a fault but a matter of chance.

    chance=0.9   each neighbour but the sender, with this chance
    fan_out=3    so many neighbours but the sender, drawn at random
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
    """A packet. It needs no hop count: each node passes it on at most once."""

    packet: Packet


class Gossip(Router[GossipEvent]):
    """One node's part in spreading rumours."""

    def __init__(
        self, neighbours: Sequence[NodeId], luck: random.Random, *, chance: float = 0.9, fan_out: int | None = None
    ) -> None:
        if not 0.0 <= chance <= 1.0:
            raise InputError(f"expected a chance between 0 and 1, got {chance}")
        if fan_out is not None and fan_out < 1:
            raise InputError(f"expected a fan-out of at least 1, got {fan_out}")
        self.neighbours = tuple(neighbours)
        self.chance, self.fan_out, self._rng = chance, fan_out, luck
        self._seen = SeenIds[EventId](SEEN_MAX)

    @classmethod
    def build(cls, place: Place, **options: Any) -> Gossip:
        """A node that stands where `place` says."""
        return built("gossip", cls, [peer.id for peer in place.neighbours], place.rng, **options)

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        return self._pass_on(GossipEvent(packet), sender=None)

    def receive(self, sender: NodeId, message: GossipEvent, now: float) -> list[Effect]:
        return self._pass_on(message, sender)

    def peer_up(self, peer: Peer, now: float) -> list[Effect]:
        if peer.id not in self.neighbours and len(self.neighbours) < NEIGHBOURS_MAX:
            self.neighbours += (peer.id,)
        return []

    def links(self) -> tuple[NodeId, ...]:
        return self.neighbours

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"seen": (len(self._seen), self._seen.at_most), "neighbours": (len(self.neighbours), NEIGHBOURS_MAX)}

    def _pass_on(self, rumour: GossipEvent, sender: NodeId | None) -> list[Effect]:
        if not self._seen.add(rumour.packet.header.id):
            return []
        return [Deliver(rumour.packet), *(Send(peer, rumour) for peer in self._drawn(sender))]

    def _drawn(self, sender: NodeId | None) -> list[NodeId]:
        others = [peer for peer in self.neighbours if peer != sender]
        if self.fan_out is not None:
            return self._rng.sample(others, min(self.fan_out, len(others)))
        return [peer for peer in others if self._rng.random() < self.chance]


PROTOCOL = Protocol(
    name="gossip",
    build=Gossip.build,
    messages=GossipEvent,
    guarantees=frozenset({Guarantee.JOINS_BY_LINKS}),  # Not REACHES_ALL: that is the point of measuring it.
    on_graph=True,
    content_in_packets_only=True,
)
