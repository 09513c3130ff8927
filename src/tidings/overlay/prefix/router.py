"""What Hermes and IRBR have in common: a router that runs on a prefix network.

It joins and leaves with the network. What arrives before it is ready waits here: with half of
its tables it would prune what other nodes need.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Generic, TypeVar

from tidings.overlay.messages import NodeId, Packet, Peer
from tidings.overlay.prefix import network as networks
from tidings.overlay.prefix.network import NetworkApplication, PrefixNetwork, PrefixOptions
from tidings.overlay.router import (
    WHATEVER_HAPPENS,
    Effect,
    Failed,
    Guarantee,
    M,
    Protocol,
    Router,
    builder,
)

N = TypeVar("N", bound=PrefixNetwork)

HELD_MAX = 16_384  # Messages, and as many own events, kept by a node that is not ready yet.


class PrefixRouter(Router[M], NetworkApplication, Generic[M, N]):
    """One node of such a protocol: a `Router` to whoever runs it, a `NetworkApplication` to its network."""

    def __init__(self, me: Peer, rng: Random, build: Callable[[NetworkApplication], N]) -> None:
        """`build` makes this node's part of the network, whose application the router is."""
        self.me, self._rng = me, rng
        self.ring: N = build(self)
        self._joined = False  # Whether this node joined a network that existed.
        self._held: list[tuple[NodeId, M]] = []
        self._unpublished: list[Packet] = []

    def peer_down(self, peer: NodeId, now: float) -> list[Effect]:
        return self.ring.unsent(peer, None, now) if self.ring.knows(peer) else []

    def peer_up(self, peer: Peer, now: float) -> list[Effect]:
        """Two rings that met nowhere become one: a linked member that has no place here may be of another ring."""
        return self.ring.check(peer, now) if self.ring.is_in else []

    def memory(self) -> bytes:
        return self.ring.memory()

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {**self.ring.holdings(), "held": (len(self._held) + len(self._unpublished), 2 * HELD_MAX)}

    def _publish_later(self, packet: Packet) -> list[Effect]:
        if len(self._unpublished) >= HELD_MAX:
            return [Failed("publish", "too many events wait for this node to be ready", packet.header.id)]
        self._unpublished.append(packet)
        return []

    def _catch_up(self, now: float) -> list[Effect]:
        """This node has become ready: handle what has been waiting for that."""
        effects: list[Effect] = []
        held, self._held = self._held, []
        for sender, message in held:
            effects += self.receive(sender, message, now)
        waiting, self._unpublished = self._unpublished, []
        for packet in waiting:
            effects += self.publish(packet, now)
        return effects


def on_a_prefix_network(
    name: str,
    router: Callable[..., PrefixRouter[Any, Any]],
    options_class: type[PrefixOptions],
    messages: Any,
    live_options: Mapping[str, Any] | None = None,
    options_telling_apart: Mapping[str, Any] | None = None,
) -> Protocol:
    """A protocol whose nodes are such routers. All that run on such a network give the same guarantees."""
    return Protocol(
        name=name,
        build=builder(name, router, options_class),
        messages=messages,
        guarantees=WHATEVER_HAPPENS | {Guarantee.JOINS_LIVE, Guarantee.LEAVES_CLEANLY, Guarantee.PRUNES},
        settle=settle,
        name_node=name_node,
        content_in_packets_only=True,
        live_options=live_options or {},
        options_telling_apart=options_telling_apart or {},
    )


def settle(routers: dict[NodeId, Router[Any]], now: float) -> None:
    """All nodes have joined long ago, and none has subscribed yet."""
    networks.settle([router.ring for router in routers.values() if isinstance(router, PrefixRouter)], now)


def name_node(index: int, rng: Random) -> NodeId:
    """A random identifier of 128 bits."""
    return f"{rng.getrandbits(128):032x}"
