"""Simple: every node forwards an event to some peers of its view, up to a hop limit (a baseline of the CBDLO paper).

Simple has no topology for attributes. The paper calls it flooding, but its numbers fit neither a flood nor a walk: they
fit a node that forwards every copy it gets, first or not, to 1.73 peers on average (see docs/papers/cbdlo.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TypeAlias

from tidings.errors import InputError
from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.interest import Interest
from tidings.overlay.messages import EventId, Message, NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.random_graph.access_points import AccessPoint
from tidings.overlay.random_graph.cyclon import VIEW_SIZE
from tidings.overlay.random_graph.graph import PERIOD_S, GraphMessage, GraphOptions, RandomGraph
from tidings.overlay.random_graph.random_walk import HOPS_MAX
from tidings.overlay.random_graph.router import GraphRouter, graph_protocol
from tidings.overlay.retransmit import Requests
from tidings.overlay.router import Completed, Count, Deliver, Effect, Guarantee, Send, Token

INTERESTS_MAX = 65_536  # Of one node.


class RelayEvent(Message, frozen=True, tag="Tell"):
    """An event, and how many more hops it may take."""

    packet: Packet
    hops_left: int


SimpleMessage: TypeAlias = RelayEvent | GraphMessage


@dataclass(frozen=True, slots=True)
class SimpleOptions:
    """Options of Simple."""

    fan_out: float | None = None
    """Peers that a copy goes to: 1.73 is one, and with a probability of 0.73 a second. None is the whole view."""
    dedupe: bool = True
    """Whether a node forwards only the first copy of an event."""
    hops_max: int = HOPS_MAX
    view_size: int = VIEW_SIZE
    period_s: float = PERIOD_S

    def __post_init__(self) -> None:
        if self.fan_out is not None and self.fan_out < 1:
            raise InputError(f"expected fan_out ≥ 1, got {self.fan_out}")

    @classmethod
    def paper(cls) -> SimpleOptions:
        """The options that fit the numbers the paper prints."""
        return cls(fan_out=1.73, dedupe=False)

    @classmethod
    def robust(cls) -> SimpleOptions:
        """The defaults: a true flood."""
        return cls()

    def graph(self) -> GraphOptions:
        """The options of the random graph below; Simple needs no access points."""
        return GraphOptions(self.view_size, 0, self.hops_max, self.period_s, announces=False)


class Simple(GraphRouter[SimpleMessage]):
    """One node of Simple."""

    def __init__(self, me: Peer, rng: Random, options: SimpleOptions) -> None:
        super().__init__(
            RandomGraph(me, rng, Requests(), options.graph(), adverts=list, on_access_point=_ignore),
        )
        self.options, self._rng = options, rng
        self._interests: dict[SubscriptionId, Interest] = {}
        self._seen = SeenIds[EventId](SEEN_MAX)

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        if len(self._interests) < INTERESTS_MAX:
            self._interests[interest.id] = interest
        return [Completed("subscribe", interest.id)]

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        self._interests.pop(id, None)
        return [Completed("unsubscribe", id)]

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        return self._relay(RelayEvent(packet, self.options.hops_max))

    def receive(self, sender: NodeId, message: SimpleMessage, now: float) -> list[Effect]:
        if isinstance(message, RelayEvent):
            return self._relay(message, sender)
        return self.graph.receive(sender, message, now)

    def wake(self, token: Token, now: float) -> list[Effect]:
        return self.graph.wake(token, now)

    def peer_down(self, peer: NodeId, now: float) -> list[Effect]:
        return self.graph.peer_down(peer, now)

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            **self.graph.sampler.holdings(),
            "own interests": (len(self._interests), INTERESTS_MAX),
            "seen": (len(self._seen), SEEN_MAX),
        }

    # ── Private steps ────────────────────────────────────────────────────────

    def _relay(self, message: RelayEvent, sender: NodeId = "") -> list[Effect]:
        first = self._seen.add(message.packet.header.id)
        effects: list[Effect] = []
        if first:
            attributes = sum(len(box) for each in self._interests.values() for box in each.wanted.boxes())
            effects.append(Count("match_ops", attributes))
            if any(interest.matches(message.packet) for interest in self._interests.values()):
                effects.append(Deliver(message.packet))
        if not 0 < message.hops_left <= self.options.hops_max or (self.options.dedupe and not first):
            return effects
        relayed = RelayEvent(message.packet, message.hops_left - 1)
        return [*effects, *(Send(peer.id, relayed) for peer in self._next_peers(sender))]

    def _next_peers(self, sender: NodeId) -> list[Peer]:
        others = [peer for peer in self.graph.sampler.view() if peer.id != sender]
        fan_out = self.options.fan_out
        if fan_out is None:
            return others
        count = int(fan_out) + (self._rng.random() < fan_out % 1)
        return self._rng.sample(others, min(count, len(others)))


def _ignore(point: AccessPoint, now: float) -> list[Effect]:
    return []


# Not REACHES_ALL: with the paper's options it misses five subscribers in six.
PROTOCOL = graph_protocol("simple", Simple, SimpleOptions, SimpleMessage, frozenset({Guarantee.JOINS_LIVE}))
