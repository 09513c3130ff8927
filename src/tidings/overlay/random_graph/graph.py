"""One node's part in the random graph: how it joins, what it exchanges, and how it finds an attribute's topology.

    join             Hello to a contact → HelloReply with part of its view and all its access points. Meanwhile an
                     IntroductionWalk starts at each neighbour of the contact; at its end the newcomer enters a view
    once a period    Shuffle with the oldest peer of the view, and with one that was lost; access points are piggybacked
    announce         Announce floods a new topology to all nodes, once
    search           SearchWalks, until one finds a node with an access point, which answers SearchHit

The graph reports every access point that it learns of to the protocol above it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar, TypeAlias

import msgspec

from tidings.errors import InputError
from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.messages import Message, NodeId, Peer
from tidings.overlay.random_graph.access_points import TABLE_SIZE, AccessPoint, AccessTable, Policy, hashed_rank
from tidings.overlay.random_graph.cyclon import VIEW_SIZE, PeerSampler, ViewEntry
from tidings.overlay.random_graph.partition import AttributeAxis
from tidings.overlay.random_graph.random_walk import HOPS_MAX, Guide, WalkPath, next_step
from tidings.overlay.retransmit import Requests
from tidings.overlay.router import Completed, Effect, Send, Token, WakeAt

PERIOD_S = 2.0  # Between two exchanges of views.
ADVERTS = 5  # Access points in one exchange: so many of its own, and so many from its table.
INTRODUCTION_STEPS = 5
SEARCH_WALKS = 3
HELLO_TRIES = 4  # For one contact.
JOIN_ROUNDS_MAX = 8  # Through all contacts; then a node starts alone.
CONTACTS_MAX = 16  # Peers that a node remembers for a restart.


# ── Messages ───────────────────────────────────────────────────────────────────


class Hello(Message, frozen=True):
    """A node asks to join."""

    request: int
    me: Peer


class HelloReply(Message, frozen=True, tag="Welcome"):
    """Peers and access points for a newcomer to begin with."""

    request: int
    view: tuple[ViewEntry, ...]
    points: tuple[AccessPoint, ...]


class IntroductionWalk(Message, frozen=True, tag="Arrival"):
    """A random walk at whose end a newcomer takes the place of another peer in a view."""

    newcomer: Peer
    steps_left: int


class Swap(Message, frozen=True):
    """The peer that a newcomer replaced in a view, for the newcomer's own view."""

    entry: ViewEntry


class Shuffle(Message, frozen=True):
    """Part of the sender's view and some access points; the receiver answers with its own."""

    chatter: ClassVar[bool] = True
    view: tuple[ViewEntry, ...]
    points: tuple[AccessPoint, ...]


class ShuffleReply(Message, frozen=True, tag="Shuffled"):
    """The answer to a Shuffle."""

    chatter: ClassVar[bool] = True
    view: tuple[ViewEntry, ...]
    points: tuple[AccessPoint, ...]


class AccessPointAnnouncement(Message, frozen=True, tag="Announce"):
    """A new topology, flooded once to all nodes."""

    point: AccessPoint


class SearchWalk(Message, frozen=True, tag="JoinWalk"):
    """A random walk for the topology of an attribute, on behalf of `peer`."""

    axis: AttributeAxis
    peer: Peer
    path: WalkPath


class SearchHit(Message, frozen=True, tag="JoinHit"):
    """An access point that a SearchWalk has found."""

    point: AccessPoint


GraphMessage: TypeAlias = (
    Hello
    | HelloReply
    | IntroductionWalk
    | Swap
    | Shuffle
    | ShuffleReply
    | AccessPointAnnouncement
    | SearchWalk
    | SearchHit
)


# ── The node ───────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """Options of the random graph. The sizes and the hop limit are the paper's."""

    view_size: int = VIEW_SIZE
    """Peers in a node's view."""
    table_size: int = TABLE_SIZE
    """Entries in a node's table of access points."""
    hops_max: int = HOPS_MAX
    """Hops of a random walk; a search takes up to twice as many."""
    period_s: float = PERIOD_S
    """Seconds between two exchanges; 0 turns them off, for simulations of a network at rest."""
    policy: Policy = "hashed"
    """What a full table keeps."""
    announces: bool = True
    """Whether a new topology is announced to all nodes, besides the piggybacked access points."""

    def __post_init__(self) -> None:
        if self.hops_max < 1 or self.period_s < 0:
            raise InputError(f"expected hops_max ≥ 1 and period_s ≥ 0, got {self.hops_max}, {self.period_s}")

    @classmethod
    def paper(cls) -> GraphOptions:
        """As published: tables follow popularity, and a topology is found by gossip alone."""
        return cls(policy="naive", announces=False)

    @classmethod
    def robust(cls) -> GraphOptions:
        """The defaults."""
        return cls()


class RandomGraph:
    """One node of the random graph.

    `adverts` returns the access points that this node is itself. `on_access_point` takes each access point that the
    node learns of.
    """

    def __init__(
        self,
        me: Peer,
        rng: Random,
        requests: Requests,
        options: GraphOptions,
        *,
        adverts: Callable[[], list[AccessPoint]],
        on_access_point: Callable[[AccessPoint, float], list[Effect]],
    ) -> None:
        self.me, self.options = me, options
        self.sampler = PeerSampler(me, rng, size=options.view_size)
        self.table = AccessTable(me, rng, size=options.table_size, policy=options.policy)
        self.is_ready = False
        """Whether the node has joined the network."""
        self._requests, self._rng, self._own_adverts, self._on_access_point = requests, rng, adverts, on_access_point
        self._contacts: list[Peer] = []
        self._hellos = 0
        self._announced = SeenIds[tuple[AttributeAxis, NodeId, int, int]](SEEN_MAX)

    # ── Joining ──────────────────────────────────────────────────────────────

    def start(self, now: float) -> list[Effect]:
        self.is_ready = True
        return [Completed("join"), *self._next_exchange(now)]

    def join(self, via: Sequence[Peer], now: float) -> list[Effect]:
        self._contacts = [peer for peer in via if peer.id != self.me.id]
        return self.try_next_contact(now) if self._contacts else self.start(now)

    def try_next_contact(self, now: float) -> list[Effect]:
        """Send Hello to the next contact. After JOIN_ROUNDS_MAX rounds without an answer the node starts alone."""
        if self.is_ready:
            return []
        if self._hellos >= JOIN_ROUNDS_MAX * len(self._contacts):
            return self.start(now)
        contact = self._contacts[self._hellos % len(self._contacts)]
        self._hellos += 1
        return self._requests.send(contact.id, lambda n: Hello(n, self.me), ("hello", self._hellos), now, HELLO_TRIES)

    def joined(self, reply: HelloReply, now: float) -> list[Effect]:
        """A contact has answered: start with what it sent."""
        if self.is_ready:
            return []
        self.sampler.fill(entry.peer for entry in reversed(reply.view))
        return [*self.start(now), *self._report(reply.points, now)]

    def draw_view(self, peers: Sequence[Peer]) -> None:
        """Fill the view from all peers of a network, as if this node had joined long ago."""
        self.sampler.fill(self._rng.sample(peers, min(self.sampler.size + 1, len(peers))))

    def memory(self) -> bytes:
        """The peers to contact after a restart."""
        return msgspec.msgpack.encode(self.sampler.view()[:CONTACTS_MAX])

    # ── Events of the driver ─────────────────────────────────────────────────

    def wake(self, token: Token, now: float) -> list[Effect]:
        """For protocols that make no requests of their own: the next exchange, or a Hello without an answer."""
        match token:
            case ("beat",):
                return self.exchange(now)
            case ("call", int(number), int(tries)):
                effects, unanswered = self._requests.overdue(number, tries, now)
                return [*effects, *(self.try_next_contact(now) if unanswered else ())]
        return []

    def peer_down(self, peer: NodeId, now: float) -> list[Effect]:
        """For protocols that make no requests of their own: forget the peer; if it was the contact, try the next."""
        self.drop(peer)
        return [effect for _ in self._requests.take_back(peer) for effect in self.try_next_contact(now)]

    def drop(self, peer: NodeId) -> None:
        """Remove a peer from the view and from the table."""
        self.sampler.drop(peer)
        self.table.drop_peer(peer)

    def receive(self, sender: NodeId, message: Message, now: float) -> list[Effect]:
        match message:
            case Shuffle(view, points):
                answer = ShuffleReply(self.sampler.answer(view), self._adverts())
                return [Send(sender, answer), *self._report(points, now)]
            case ShuffleReply(view, points):
                self.sampler.answered(sender, view)
                return self._report(points, now)
            case AccessPointAnnouncement(point):
                return [*self._forward(sender, message), *self._report((point,), now)]
            case SearchWalk():
                return self._on_search_walk(message)
            case SearchHit(point):
                return self._report((point,), now)
            case Hello(request, newcomer):
                return self._on_hello(request, newcomer)
            case HelloReply(request):
                return self.joined(message, now) if self._requests.answered(request, sender) else []
            case IntroductionWalk(newcomer, steps_left):
                return self._on_introduction_walk(sender, newcomer, steps_left)
            case Swap(entry):
                self.sampler.fill([entry.peer])
        return []

    # ── Exchange, announcement, search ───────────────────────────────────────

    def exchange(self, now: float) -> list[Effect]:
        """Once a period: shuffle with the oldest peer, and with a peer that was lost."""
        self.table.increase_ages()
        effects = self._next_exchange(now)
        proposed = self.sampler.propose()
        if proposed is not None:
            partner, view = proposed
            effects.append(Send(partner.id, Shuffle(view, self._adverts())))
        lost = self.sampler.random_lost()
        if lost is not None and (proposed is None or lost.id != proposed[0].id):
            effects.append(Send(lost.id, Shuffle((ViewEntry(self.me),), self._adverts())))
        return effects

    def announce(self, point: AccessPoint) -> list[Effect]:
        """Flood a new topology to all nodes, unless the options turn announcements off."""
        if not self.options.announces or not self._is_new(point):
            return []
        return [Send(peer.id, AccessPointAnnouncement(point)) for peer in self.sampler.view()]

    def search(self, axis: AttributeAxis) -> list[Effect]:
        """Start walks for an attribute's topology, twice as long as those of events."""
        walk = SearchWalk(axis, self.me, WalkPath(2 * self.options.hops_max, 1, 0, (self.me,)))
        return [Send(peer.id, walk) for peer in self.first_steps(axis, SEARCH_WALKS)]

    def first_steps(self, axis: AttributeAxis, count: int, attempt: int = 1) -> list[Peer]:
        """Where to start walks: random peers; a guided attempt asks first whose table is likeliest to have the axis."""
        drawn, guide = self.sampler.sample(count), self.guide(axis, attempt)
        if guide is None or not drawn:
            return drawn
        best = min(self.sampler.view(), key=guide)
        return [best, *[peer for peer in drawn if peer.id != best.id][: count - 1]]

    def guide(self, axis: AttributeAxis, attempt: int = 1) -> Guide | None:
        """How to choose the next step of a walk; None for at random, as in every second attempt.

        A node that has chosen its id so that it is asked first must not be the only one that is asked.
        """
        if self.options.policy != "hashed" or attempt % 2 == 0:
            return None
        return lambda peer: hashed_rank(peer.id, axis)

    # ── Private steps ────────────────────────────────────────────────────────

    def _next_exchange(self, now: float) -> list[Effect]:
        period_s = self.options.period_s
        if not period_s:
            return []
        return [WakeAt(now + period_s * self._rng.uniform(0.9, 1.1), ("beat",), idle=True)]

    def _adverts(self) -> tuple[AccessPoint, ...]:
        own = self._own_adverts()
        return (*self._rng.sample(own, min(ADVERTS, len(own))), *self.table.sample(ADVERTS))

    def _report(self, points: Sequence[AccessPoint], now: float) -> list[Effect]:
        return [effect for point in points[: 2 * self.table.size + 1] for effect in self._on_access_point(point, now)]

    def _forward(self, sender: NodeId, announce: AccessPointAnnouncement) -> list[Effect]:
        if not self._is_new(announce.point):
            return []
        return [Send(peer.id, announce) for peer in self.sampler.view() if peer.id != sender]

    def _is_new(self, point: AccessPoint) -> bool:
        return self._announced.add((point.axis, *point.tree.order))

    def _on_hello(self, request: int, newcomer: Peer) -> list[Effect]:
        entries = tuple(ViewEntry(peer) for peer in self.sampler.sample(self.sampler.size - 1))
        points = (*self.table.sample(self.table.size), *self._own_adverts())
        walk = IntroductionWalk(newcomer, INTRODUCTION_STEPS)
        walks = [Send(peer.id, walk) for peer in self.sampler.view() if peer.id != newcomer.id]
        self.sampler.swap(newcomer)
        return [Send(newcomer.id, HelloReply(request, (*entries, ViewEntry(self.me)), points)), *walks]

    def _on_introduction_walk(self, sender: NodeId, newcomer: Peer, steps_left: int) -> list[Effect]:
        others = [peer for peer in self.sampler.view() if peer.id not in (newcomer.id, sender)]
        if 0 < steps_left <= INTRODUCTION_STEPS and others:
            return [Send(self._rng.choice(others).id, IntroductionWalk(newcomer, steps_left - 1))]
        replaced = self.sampler.swap(newcomer)
        return [Send(newcomer.id, Swap(replaced))] if replaced is not None else []

    def _on_search_walk(self, walk: SearchWalk) -> list[Effect]:
        known = [point for point in self._own_adverts() if point.axis == walk.axis] or self.table.at(walk.axis)
        if known and not walk.path.is_jump:
            return [Send(walk.peer.id, SearchHit(known[0]))]
        hops_max = self.options.hops_max
        if walk.path.is_over or walk.path.hops_max > 2 * hops_max:
            return []
        step = next_step(walk.path, self.me, self.sampler.view(), self._rng, hops_max, self.guide(walk.axis))
        return [Send(step.to.id, SearchWalk(walk.axis, walk.peer, step.path))] if step else []
