"""Simple: every node passes an event on to some of its view, until it has taken enough hops (a baseline of CBDLO).

No topology at all. The paper calls it flooding, but its numbers fit neither a flood nor
a walk: they fit a node that passes every copy it gets, first or not, to 1.73 others on
average (see docs/papers/cbdlo.md).

    fan_out=1.73   to one, and with a chance of 0.73 to another; None: to the whole view
    dedupe=False   every copy is passed on; True: only the first
"""

from __future__ import annotations

from random import Random

from tidings.errors import InputError
from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.interest import Interest
from tidings.overlay.messages import EventId, Message, NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.random_graph.cyclon import VIEW_SIZE
from tidings.overlay.random_graph.graph import PERIOD_S, GraphMessage
from tidings.overlay.random_graph.random_walk import HOPS_MAX
from tidings.overlay.random_graph.router import GraphRouter, on_a_random_graph
from tidings.overlay.router import Completed, Count, Deliver, Effect, Guarantee, Send

OWN_MAX = 65_536


class RelayEvent(Message, frozen=True, tag="Tell"):
    """An event, and how many more hops it may take."""

    packet: Packet
    hops_left: int


class Simple(GraphRouter[RelayEvent | GraphMessage]):
    """One node's part in Simple."""

    def __init__(
        self,
        me: Peer,
        rng: Random,
        *,
        fan_out: float | None = None,
        dedupe: bool = True,
        hops_max: int = HOPS_MAX,
        view_size: int = VIEW_SIZE,
        period_s: float = PERIOD_S,
    ) -> None:
        if (fan_out is not None and fan_out < 1) or hops_max < 1 or period_s < 0:
            raise InputError(
                f"expected fan_out ≥ 1, hops_max ≥ 1 and period_s ≥ 0, got {fan_out}, {hops_max}, {period_s}"
            )
        super().__init__(me, rng, view_size=view_size, table_size=0, hops_max=hops_max, period_s=period_s)
        self.fan_out, self.dedupe = fan_out, dedupe
        self.own: dict[SubscriptionId, Interest] = {}
        self._seen = SeenIds[EventId](SEEN_MAX)

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        if len(self.own) < OWN_MAX:
            self.own[interest.id] = interest
        return [Completed("subscribe", interest.id)]

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        self.own.pop(id, None)
        return [Completed("unsubscribe", id)]

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        return self._tell(RelayEvent(packet, self.hops_max))

    def receive(self, sender: NodeId, message: RelayEvent | GraphMessage, now: float) -> list[Effect]:
        if isinstance(message, RelayEvent):
            return self._tell(message, sender)
        return self._receive_of_graph(sender, message, now)

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            **self.sampler.holdings(),
            "own interests": (len(self.own), OWN_MAX),
            "seen": (len(self._seen), SEEN_MAX),
        }

    # ── Private steps ────────────────────────────────────────────────────────

    def _tell(self, said: RelayEvent, sender: NodeId = "") -> list[Effect]:
        first = self._seen.add(said.packet.header.id)
        effects: list[Effect] = []
        if first:
            attributes = sum(len(box) for each in self.own.values() for box in each.wanted.boxes())
            effects.append(Count("match_ops", attributes))
            if any(interest.matches(said.packet) for interest in self.own.values()):
                effects.append(Deliver(said.packet))
        if not 0 < said.hops_left <= self.hops_max or (self.dedupe and not first):
            return effects
        next_step = RelayEvent(said.packet, said.hops_left - 1)
        return [*effects, *(Send(peer.id, next_step) for peer in self._drawn(sender))]

    def _drawn(self, sender: NodeId) -> list[Peer]:
        others = [peer for peer in self.sampler.view() if peer.id != sender]
        if self.fan_out is None:
            return others
        count = int(self.fan_out) + (self._rng.random() < self.fan_out % 1)
        return self._rng.sample(others, min(count, len(others)))


# Not REACHES_ALL: as published it misses five subscribers in six.
PROTOCOL = on_a_random_graph("simple", Simple, RelayEvent | GraphMessage, frozenset({Guarantee.JOINS_LIVE}))
