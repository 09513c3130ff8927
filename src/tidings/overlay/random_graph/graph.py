"""The lower layer of CBDLO and TERA: everybody in one random graph, with word of access points going round in it.

    coming     Hello to a contact → Welcome with part of its view and all access points it knows; meanwhile
               Arrival walks from each of its neighbours, at whose end the newcomer takes somebody's place in a view
    a beat     Shuffle with the oldest of the view, and with one that was lost; access points ride along
    news       Announce goes to everybody once
    a search   JoinWalks, until somebody knows an access point: JoinHit

Whoever stands on the graph is told of every access point that comes by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import ClassVar, Literal, TypeAlias

import msgspec

from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.messages import Message, NodeId, Peer
from tidings.overlay.random_graph.access_points import AccessPoint, AccessTable
from tidings.overlay.random_graph.cyclon import PeerSampler, ViewEntry
from tidings.overlay.random_graph.partition import AttributeAxis
from tidings.overlay.random_graph.random_walk import WalkPath, next_step
from tidings.overlay.retransmit import Requests
from tidings.overlay.router import Completed, Effect, Send, WakeAt

PERIOD_S = 2.0  # Between two exchanges of views.
ADVERTS = 5  # Of each kind, own and heard, in one exchange.
ARRIVAL_STEPS = 5
JOIN_WALKS = 3
JOIN_TRIES = 4  # For one contact.
JOIN_ROUNDS_MAX = 8  # Through all contacts; then a node goes on alone.
CONTACTS_MAX = 16  # That a node remembers for its next life.


class Hello(Message, frozen=True):
    """I would like to come in."""

    request: int
    me: Peer


class HelloReply(Message, frozen=True, tag="Welcome"):
    """Some nodes and access points to begin with."""

    request: int
    view: tuple[ViewEntry, ...]
    points: tuple[AccessPoint, ...]


class IntroductionWalk(Message, frozen=True, tag="Arrival"):
    """Somebody has come; after some steps at random, let it take somebody's place in a view."""

    newcomer: Peer
    steps_left: int


class Swap(Message, frozen=True):
    """Somebody for your view."""

    known: ViewEntry


class Shuffle(Message, frozen=True):
    """Part of my view, and some access points; give me part of yours."""

    chatter: ClassVar[bool] = True
    view: tuple[ViewEntry, ...]
    points: tuple[AccessPoint, ...]


class ShuffleReply(Message, frozen=True, tag="Shuffled"):
    """The answer."""

    chatter: ClassVar[bool] = True
    view: tuple[ViewEntry, ...]
    points: tuple[AccessPoint, ...]


class Announce(Message, frozen=True):
    """A topology that is new, told once to everybody."""

    point: AccessPoint


class SearchWalk(Message, frozen=True, tag="JoinWalk"):
    """Somebody who wants to register, looking for the topology of an attribute."""

    axis: AttributeAxis
    peer: Peer
    path: WalkPath


class SearchHit(Message, frozen=True, tag="JoinHit"):
    """There is a topology for this attribute."""

    point: AccessPoint


GraphMessage: TypeAlias = (
    Hello | HelloReply | IntroductionWalk | Swap | Shuffle | ShuffleReply | Announce | SearchWalk | SearchHit
)


class RandomGraph:
    """One node's part in the lower layer.

    `adverts` gives the access points that this node is itself; `heard` is told of every
    access point that comes by.
    """

    def __init__(
        self,
        me: Peer,
        rng: Random,
        sampler: PeerSampler,
        table: AccessTable,
        requests: Requests,
        *,
        adverts: Callable[[], list[AccessPoint]],
        heard: Callable[[AccessPoint, float], list[Effect]],
        period_s: float,
        hops_max: int,
        announces: bool,
    ) -> None:
        self.me, self.period_s, self.hops_max, self.announces = me, period_s, hops_max, announces
        self.sampler, self.table = sampler, table
        self._requests, self._rng, self._own_adverts, self._heard = requests, rng, adverts, heard
        self.stage: Literal["outside", "ready"] = "outside"
        self._contacts: list[Peer] = []
        self._knocks = 0
        self._announced = SeenIds[tuple[AttributeAxis, NodeId, int, int]](SEEN_MAX)

    # ── Coming ───────────────────────────────────────────────────────────────

    def start(self, now: float) -> list[Effect]:
        self.stage = "ready"
        return [Completed("join"), *self._next_beat(now)]

    def join(self, via: Sequence[Peer], now: float) -> list[Effect]:
        self._contacts = [peer for peer in via if peer.id != self.me.id]
        return self.knock(now) if self._contacts else self.start(now)

    def knock(self, now: float) -> list[Effect]:
        """Ask the next contact to be let in; after some rounds without an answer, go on alone."""
        if self.stage != "outside":
            return []
        if self._knocks >= JOIN_ROUNDS_MAX * len(self._contacts):
            return self.start(now)
        contact = self._contacts[self._knocks % len(self._contacts)]
        self._knocks += 1
        return self._requests.send(contact.id, lambda n: Hello(n, self.me), ("hello", self._knocks), now, JOIN_TRIES)

    def welcomed(self, said: HelloReply, now: float) -> list[Effect]:
        if self.stage != "outside":
            return []
        self.sampler.fill(known.peer for known in reversed(said.view))
        return [*self.start(now), *self._hear(said.points, now)]

    def memory(self) -> bytes:
        """Whom to ask in the next life."""
        return msgspec.msgpack.encode(self.sampler.view()[:CONTACTS_MAX])

    # ── Talking ──────────────────────────────────────────────────────────────

    def beat(self, now: float) -> list[Effect]:
        """One exchange, and one attempt to find somebody again who was lost."""
        self.table.grow_older()
        effects = self._next_beat(now)
        proposed = self.sampler.propose()
        if proposed is not None:
            partner, view = proposed
            effects.append(Send(partner.id, Shuffle(view, self._adverts())))
        lost = self.sampler.once_lost()
        if lost is not None and (proposed is None or lost.id != proposed[0].id):
            effects.append(Send(lost.id, Shuffle((ViewEntry(self.me),), self._adverts())))
        return effects

    def announce(self, point: AccessPoint) -> list[Effect]:
        """Tell everybody of a new topology."""
        if not self.announces or not self._is_news(point):
            return []
        return [Send(peer.id, Announce(point)) for peer in self.sampler.view()]

    def search(self, axis: AttributeAxis) -> list[Effect]:
        """Send out walks for an attribute's topology, twice as long as those of events."""
        walk = SearchWalk(axis, self.me, WalkPath(2 * self.hops_max, 1, 0, (self.me,)))
        return [Send(peer.id, walk) for peer in self.sampler.sample(JOIN_WALKS)]

    def receive(self, sender: NodeId, message: Message, now: float) -> list[Effect]:
        match message:
            case Shuffle(view, points):
                answer = ShuffleReply(self.sampler.answer(view), self._adverts())
                return [Send(sender, answer), *self._hear(points, now)]
            case ShuffleReply(view, points):
                self.sampler.answered(sender, view)
                return self._hear(points, now)
            case Announce(point):
                return [*self._pass_on(sender, message), *self._hear((point,), now)]
            case SearchWalk():
                return self._on_join_walk(message)
            case SearchHit(point):
                return self._hear((point,), now)
            case Hello(request, newcomer):
                return self._on_hello(request, newcomer)
            case IntroductionWalk(newcomer, steps_left):
                return self._on_arrival(sender, newcomer, steps_left)
            case Swap(known):
                self.sampler.fill([known.peer])
        return []

    # ── Private steps ────────────────────────────────────────────────────────

    def _next_beat(self, now: float) -> list[Effect]:
        if not self.period_s:
            return []
        return [WakeAt(now + self.period_s * self._rng.uniform(0.9, 1.1), ("beat",), idle=True)]

    def _adverts(self) -> tuple[AccessPoint, ...]:
        own = self._own_adverts()
        return (*self._rng.sample(own, min(ADVERTS, len(own))), *self.table.sample(ADVERTS))

    def _hear(self, points: Sequence[AccessPoint], now: float) -> list[Effect]:
        return [effect for point in points[: 2 * self.table.size + 1] for effect in self._heard(point, now)]

    def _pass_on(self, sender: NodeId, said: Announce) -> list[Effect]:
        if not self._is_news(said.point):
            return []
        return [Send(peer.id, said) for peer in self.sampler.view() if peer.id != sender]

    def _is_news(self, point: AccessPoint) -> bool:
        return self._announced.add((point.axis, *point.tree.order))

    def _on_hello(self, request: int, newcomer: Peer) -> list[Effect]:
        known = tuple(ViewEntry(peer) for peer in self.sampler.sample(self.sampler.size - 1))
        points = (*self.table.sample(self.table.size), *self._own_adverts())
        arrivals = [
            Send(p.id, IntroductionWalk(newcomer, ARRIVAL_STEPS)) for p in self.sampler.view() if p.id != newcomer.id
        ]
        self.sampler.swap(newcomer)
        return [Send(newcomer.id, HelloReply(request, (*known, ViewEntry(self.me)), points)), *arrivals]

    def _on_arrival(self, sender: NodeId, newcomer: Peer, steps_left: int) -> list[Effect]:
        others = [peer for peer in self.sampler.view() if peer.id not in (newcomer.id, sender)]
        if 0 < steps_left <= ARRIVAL_STEPS and others:
            return [Send(self._rng.choice(others).id, IntroductionWalk(newcomer, steps_left - 1))]
        given = self.sampler.swap(newcomer)
        return [Send(newcomer.id, Swap(given))] if given is not None else []

    def _on_join_walk(self, said: SearchWalk) -> list[Effect]:
        known = [point for point in self._own_adverts() if point.axis == said.axis] or self.table.at(said.axis)
        if known and not said.path.is_jump:
            return [Send(said.peer.id, SearchHit(known[0]))]
        if said.path.is_over or said.path.hops_max > 2 * self.hops_max:
            return []
        step = next_step(said.path, self.me, self.sampler.view(), self._rng, self.hops_max)
        return [Send(step.to.id, SearchWalk(said.axis, said.peer, step.path))] if step else []


def draw_views(nodes: Sequence[RandomGraph]) -> None:
    """Give everybody a view drawn at random, as if all had joined and exchanged for long."""
    peers = [node.me for node in nodes]
    for node in nodes:
        node.sampler.fill(node._rng.sample(peers, min(node.sampler.size + 1, len(peers))))
