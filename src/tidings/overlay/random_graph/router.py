"""What cbdlo, tera and simple have in common: a router whose lower layer is a random graph.

It comes in through the graph, keeps a view of it, and meets the others by its beat. What
its access points are, and what it makes of those it hears of, is for each protocol to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from tidings.overlay.messages import Message, NodeId, Peer
from tidings.overlay.random_graph.access_points import AccessPoint, AccessTable, Policy
from tidings.overlay.random_graph.cyclon import PeerSampler
from tidings.overlay.random_graph.graph import HelloReply, RandomGraph, draw_views
from tidings.overlay.retransmit import Requests
from tidings.overlay.router import Effect, Guarantee, M, Protocol, Router, Token, builder, remembered


class GraphRouter(Router[M]):
    """One node of a protocol on a random graph."""

    def __init__(
        self,
        me: Peer,
        rng: Random,
        *,
        view_size: int,
        table_size: int,
        hops_max: int,
        period_s: float,
        policy: Policy = "balanced",
        announces: bool = False,
    ) -> None:
        self.me, self.hops_max, self._rng = me, hops_max, rng
        self.sampler = PeerSampler(me, rng, size=view_size)
        self.table = AccessTable(me, rng, size=table_size, policy=policy)
        self.requests = Requests()
        self.graph = RandomGraph(
            me,
            rng,
            self.sampler,
            self.table,
            self.requests,
            adverts=self._adverts,
            heard=self._heard,
            period_s=period_s,
            hops_max=hops_max,
            announces=announces,
        )

    def start(self, now: float, memory: bytes = b"") -> list[Effect]:
        contacts = remembered(memory)
        return self.graph.join(contacts, now) if contacts else self.graph.start(now)

    def join(self, via: Sequence[Peer], now: float) -> list[Effect]:
        return self.graph.join(via, now)

    def wake(self, token: Token, now: float) -> list[Effect]:
        match token:
            case ("beat",):
                return self._beat(now)
            case ("call", int(number), int(tries)):
                effects, lost = self.requests.overdue(number, tries, now)
                return [*effects, *(self.graph.knock(now) if lost else ())]
        return []

    def peer_down(self, peer: NodeId, now: float) -> list[Effect]:
        self.sampler.drop(peer)
        self.table.drop_peer(peer)
        return [effect for _ in self.requests.take_back(peer) for effect in self.graph.knock(now)]

    def links(self) -> tuple[NodeId, ...]:
        return tuple(peer.id for peer in self.sampler.view())

    def memory(self) -> bytes:
        return self.graph.memory()

    def _receive_of_graph(self, sender: NodeId, message: Message, now: float) -> list[Effect]:
        if isinstance(message, HelloReply):
            return self.graph.welcomed(message, now) if self.requests.answered(message.request, sender) else []
        return self.graph.receive(sender, message, now)

    # ── What a protocol may add ──────────────────────────────────────────────

    def _beat(self, now: float) -> list[Effect]:
        """What is done on schedule."""
        return self.graph.beat(now)

    def _adverts(self) -> list[AccessPoint]:
        """The access points that this node is itself."""
        return []

    def _heard(self, point: AccessPoint, now: float) -> list[Effect]:
        """Word of an access point has come by."""
        return []


def on_a_random_graph(
    name: str, router: type[GraphRouter[Any]], messages: Any, guarantees: frozenset[Guarantee]
) -> Protocol:
    """A protocol whose nodes are such routers."""
    return Protocol(name=name, build=builder(name, router), messages=messages, guarantees=guarantees, settle=settle)


def settle(routers: dict[NodeId, Router[Any]], now: float) -> None:
    """Give everybody a view drawn at random."""
    draw_views([router.graph for router in routers.values() if isinstance(router, GraphRouter)])
