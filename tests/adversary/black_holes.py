"""A member that takes the places that events go to, and lets everything of others vanish that passes through it.

It acknowledges what it gets, answers as the protocol says, and forwards nothing. In `spanhop` it claims all of the
space, in `cbdlo` it founds topologies, which win if its id is the smallest. In `hermes` it can choose its key until it
is the rendezvous of a type. Where the key matters, the test looks for a network that has such a one (`is_in_place`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

from tidings.net import Broker
from tidings.overlay import Effect, NodeId, Packet, Peer, Send, rewritten
from tidings.overlay.cbdlo.messages import AssignPartition
from tidings.overlay.cbdlo.router import Cbdlo
from tidings.overlay.hermes.router import Hermes
from tidings.overlay.random_graph.access_points import AccessPoint
from tidings.overlay.random_graph.partition import AttributeAxis
from tidings.overlay.spanhop.router import Spanhop

FIRST = 1 << 40  # An epoch that no honest claim has.


class BlackHole:
    """What becomes of a broker of the test's own process."""

    def __init__(self, broker: Broker) -> None:
        self._broker, self.swallowed = broker, 0

    def open(self) -> None:
        """From now on, nothing of others leaves it."""
        router = self._broker.node.router
        for name in ("receive", "wake", "unsent", "peer_down", "peer_up"):
            setattr(router, name, self._without_events(getattr(router, name)))
        self.claim()

    def claim(self) -> None:
        """Takes what can be taken by claiming it."""
        router, loop = self._broker.node.router, asyncio.get_running_loop()
        if isinstance(router, Spanhop):
            for path in list(router.zones.owned):
                router.zones.release(path)
            router.zones.acquire((), FIRST)
            said = router.zones_changed(loop.time(), tuple(self._broker.links.open))
            self._broker.carry_out([each for each in said if isinstance(each, Send)])
        if isinstance(router, Cbdlo):
            for axis in self._axes():
                founded = router.upper.coordinators.found(axis, loop.time())
                said = router.graph.announce(AccessPoint(axis, self._broker.me, founded.tree))
                self._broker.carry_out([each for each in said if isinstance(each, Send)])

    def _axes(self) -> list[AttributeAxis]:
        types = self._broker.node.types.all()
        return [AttributeAxis(known.name, each.name) for known in types for each in known.event_type.attributes]

    def _without_events(self, act: Any) -> Any:
        def acted(*asked: Any) -> Sequence[Effect]:
            return [each for each in act(*asked) if not self._is_of_others(each)]

        return acted

    def _is_of_others(self, effect: Effect) -> bool:
        if not isinstance(effect, Send):
            return False
        if isinstance(effect.message, AssignPartition):  # As a coordinator, it gives nothing away.
            return True
        found: list[Packet] = []

        def note(packet: Packet) -> Packet:
            found.append(packet)
            return packet

        rewritten(effect.message, note, Packet)
        is_of_others = any(packet.header.id.origin != self._broker.me.id for packet in found)
        self.swallowed += is_of_others
        return is_of_others


def is_in_place(overlay: str, who: NodeId, ids: Sequence[NodeId], type: str) -> bool:
    """Whether a broker among these has a key that serves it best."""
    match overlay:
        case "hermes":
            return rendezvous_of(type, ids) == who
        case "cbdlo":
            return who == min(ids)
        case _:
            return True


def rendezvous_of(type: str, ids: Sequence[NodeId]) -> NodeId:
    """Which of these brokers is where the events of a type go in `hermes`."""
    router = Hermes(Peer(ids[0]), Random(0))
    target = int(router.trees.key_of(type), router.ring.base)
    return min(ids, key=lambda each: router.ring.away(each, target))
