"""Simple: every node passes an event on to some of its view, until it has taken enough hops (a baseline of CBDLO).

No topology at all. The paper calls it flooding, but its numbers fit neither a flood nor
a walk: they fit a node that passes every copy it gets, first or not, to 1.73 others on
average (see docs/papers/cbdlo.md).

    fan_out=1.73   to one, and with a chance of 0.73 to another; None: to the whole view
    dedupe=False   every copy is passed on; True: only the first
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from tidings.errors import InputError
from tidings.overlay.access import AccessTable
from tidings.overlay.courier import Courier
from tidings.overlay.crawl import HOPS_MAX
from tidings.overlay.interest import Interest
from tidings.overlay.random_graph import PERIOD_S, GraphMessage, RandomGraph, Welcome, draw_views, remembered
from tidings.overlay.router import (
    Completed,
    Count,
    Deliver,
    Effect,
    Place,
    Promise,
    Protocol,
    Router,
    Send,
    Token,
    built,
)
from tidings.overlay.sampling import VIEW_SIZE, PeerSampler
from tidings.overlay.seen import SEEN_MAX, SeenIds
from tidings.overlay.wire import EventId, Message, NodeId, Parcel, Peer, SubscriptionId

OWN_MAX = 65_536


class Tell(Message, frozen=True):
    """An event, and how many more hops it may take."""

    parcel: Parcel
    hops_left: int


class Simple(Router[Tell | GraphMessage]):
    """One node's part in Simple."""

    def __init__(
        self,
        me: Peer,
        chance: Random,
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
        self.me, self.fan_out, self.dedupe, self.hops_max, self._chance = me, fan_out, dedupe, hops_max, chance
        self.sampler = PeerSampler(me, chance, size=view_size)
        self.courier = Courier()
        self.graph = RandomGraph(
            me,
            chance,
            self.sampler,
            AccessTable(me, chance, size=0),
            self.courier,
            adverts=list,
            heard=lambda point, now: [],
            period_s=period_s,
            hops_max=hops_max,
            announces=False,
        )
        self.own: dict[SubscriptionId, Interest] = {}
        self._seen = SeenIds[EventId](SEEN_MAX)

    @classmethod
    def build(cls, place: Place, **options: Any) -> Simple:
        """A node that stands where `place` says."""
        return built("simple", cls, place.me, place.chance, **options)

    def start(self, now: float, memory: bytes = b"") -> list[Effect]:
        contacts = remembered(memory)
        return self.graph.join(contacts, now) if contacts else self.graph.start(now)

    def join(self, via: Sequence[Peer], now: float) -> list[Effect]:
        return self.graph.join(via, now)

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        if len(self.own) < OWN_MAX:
            self.own[interest.id] = interest
        return [Completed("subscribe", interest.id)]

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        self.own.pop(id, None)
        return [Completed("unsubscribe", id)]

    def publish(self, parcel: Parcel, now: float) -> list[Effect]:
        return self._tell(Tell(parcel, self.hops_max))

    def receive(self, sender: NodeId, message: Tell | GraphMessage, now: float) -> list[Effect]:
        match message:
            case Tell():
                return self._tell(message, sender)
            case Welcome(call):
                return self.graph.welcomed(message, now) if self.courier.answered(call, sender) else []
        return self.graph.receive(sender, message, now)

    def wake(self, token: Token, now: float) -> list[Effect]:
        match token:
            case ("beat",):
                return self.graph.beat(now)
            case ("call", int(number), int(tries)):
                effects, lost = self.courier.overdue(number, tries, now)
                return [*effects, *(self.graph.knock(now) if lost else ())]
        return []

    def peer_down(self, peer: NodeId, now: float) -> list[Effect]:
        self.sampler.drop(peer)
        return [effect for _ in self.courier.give_up(peer) for effect in self.graph.knock(now)]

    def links(self) -> tuple[NodeId, ...]:
        return tuple(peer.id for peer in self.sampler.view())

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            **self.sampler.holdings(),
            "own interests": (len(self.own), OWN_MAX),
            "seen": (len(self._seen), SEEN_MAX),
        }

    def memory(self) -> bytes:
        return self.graph.memory()

    # ── Private steps ────────────────────────────────────────────────────────

    def _tell(self, said: Tell, sender: NodeId = "") -> list[Effect]:
        first = self._seen.add(said.parcel.head.id)
        effects: list[Effect] = []
        if first:
            attributes = sum(len(box) for each in self.own.values() for box in each.wanted.boxes())
            effects.append(Count("match_ops", attributes))
            if any(interest.matches(said.parcel) for interest in self.own.values()):
                effects.append(Deliver(said.parcel))
        if not 0 < said.hops_left <= self.hops_max or (self.dedupe and not first):
            return effects
        onward = Tell(said.parcel, said.hops_left - 1)
        return [*effects, *(Send(peer.id, onward) for peer in self._drawn(sender))]

    def _drawn(self, sender: NodeId) -> list[Peer]:
        others = [peer for peer in self.sampler.view() if peer.id != sender]
        if self.fan_out is None:
            return others
        count = int(self.fan_out) + (self._chance.random() < self.fan_out % 1)
        return self._chance.sample(others, min(count, len(others)))


def settle(routers: dict[NodeId, Router[Any]], now: float) -> None:
    """Give everybody a view drawn at random."""
    draw_views([router.graph for router in routers.values() if isinstance(router, Simple)])


PROTOCOL = Protocol(
    name="simple",
    build=Simple.build,
    messages=Tell | GraphMessage,
    promises=frozenset({Promise.JOINS_LIVE}),  # Not REACHES_ALL: as published it misses five subscribers in six.
    settle=settle,
)
