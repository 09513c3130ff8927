"""The base class of routers on a random graph: CBDLO, TERA and Simple.

They join through the graph, their links are its view, and `settle` gives a whole network of them random views. What
they do with events and with access points is their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tidings.overlay.messages import NodeId, Peer
from tidings.overlay.random_graph.graph import RandomGraph
from tidings.overlay.router import Effect, Guarantee, M, Place, Protocol, Router, built, remembered


class GraphRouter(Router[M]):
    """A router whose lower layer is a random graph."""

    def __init__(self, graph: RandomGraph) -> None:
        self.graph = graph

    def start(self, now: float, memory: bytes = b"") -> list[Effect]:
        contacts = remembered(memory)
        return self.graph.join(contacts, now) if contacts else self.graph.start(now)

    def join(self, via: Sequence[Peer], now: float) -> list[Effect]:
        return self.graph.join(via, now)

    def links(self) -> tuple[NodeId, ...]:
        return tuple(peer.id for peer in self.graph.sampler.view())

    def memory(self) -> bytes:
        return self.graph.memory()


def graph_protocol(
    name: str,
    router: Callable[[Peer, Random, Any], GraphRouter[Any]],
    options: Callable[..., Any],
    messages: Any,
    guarantees: frozenset[Guarantee],
) -> Protocol:
    """The protocol of this router; `options` makes the router's options from those that a config file names."""

    def build(place: Place, **named: Any) -> GraphRouter[Any]:
        return built(name, lambda: router(place.me, place.rng, options(**named)))

    return Protocol(name=name, build=build, messages=messages, guarantees=guarantees, settle=settle)


def settle(routers: dict[NodeId, Router[Any]], now: float) -> None:
    """Give each router a view drawn at random, as if all had joined long ago."""
    graphs = [router.graph for router in routers.values() if isinstance(router, GraphRouter)]
    peers = [graph.me for graph in graphs]
    for graph in graphs:
        graph.draw_view(peers)
