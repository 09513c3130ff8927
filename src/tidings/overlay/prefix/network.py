"""A prefix network: one node's place among identifiers, kept up to date by messages. The package says how.

What Pastry and Tapestry share: liveness and suspicion, searches, joining and leaving. What
is told to whom, and how a newcomer becomes known, each decides for itself.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from tidings.errors import InputError
from tidings.overlay.failure_detector import MISSES_MAX
from tidings.overlay.messages import Message, NodeId, Peer
from tidings.overlay.prefix.messages import Heartbeat, LookupReply, LookupRequest, NodeLeaving, Ping, Pong, RingMessage
from tidings.overlay.prefix.routing_state import ALTERNATES, PrefixState, settle_states
from tidings.overlay.prefix.search import NodeSearch, SearchResult
from tidings.overlay.retransmit import Backoff, RetransmitQueue
from tidings.overlay.router import Effect, Failed, Send, Token, WakeAt

HEARTBEAT_S = 1.0
ANSWER_S = 0.5  # More than a round trip round the world; doubles with every try.
TRIES_MAX = 4  # With one message in five lost, a live node is given up once in sixty times, and then found again.
PROBE_S = 60.0  # In this time every entry of the routing table is probed once.
DEAD_PROBE_TICKS = 4  # Heartbeats between two probes of a dead node.
DEAD_QUIET_S = 5.0  # How long to ignore hearsay about a node just declared dead: until other nodes have noticed, too.
DEAD_MAX = 1024  # Dead nodes that are probed now and then, for they may be back after a split.
JOIN_TRIES_MAX = 5  # With pauses that double, a newcomer tries for some two minutes.
JOIN_PAUSE_S = 4.0
PINGS_MAX = 1024
LOOKUPS_MAX = 256
ASKS_MAX = LOOKUPS_MAX * 16
HEARSAY_MAX = 512  # Peers taken from one message; ours name fewer than 200.


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixOptions:
    """How a prefix network runs; the same for all its nodes."""

    base: int = 16
    """Digits of an identifier are in this base."""
    alternates: int = ALTERNATES
    """Nodes kept in each cell of the routing table."""
    heartbeat_s: float = HEARTBEAT_S
    """Between two heartbeats to a neighbour. 0: none, so that a failure is noticed only when a message gets no answer."""
    answer_s: float = ANSWER_S
    """How long to wait for the first answer; each retry doubles it."""

    def __post_init__(self) -> None:
        if self.heartbeat_s < 0 or self.answer_s <= 0:
            raise InputError(
                f"expected heartbeat_s from 0 and answer_s above 0, got {self.heartbeat_s} and {self.answer_s}"
            )


class NetworkApplication(Protocol):
    """A protocol that runs on a prefix network, and the upcalls it gets from there."""

    def on_joined(self, now: float) -> list[Effect]:
        """This node has joined: those who must know it do."""

    def on_node_up(self, peer: Peer, now: float) -> list[Effect]:
        """A node is new here, or answers again after it was declared dead."""

    def on_node_failed(self, peer: Peer, now: float) -> list[Effect]:
        """A node did not answer; it counts as dead until it sends something."""

    def on_node_left(self, peer: Peer, now: float) -> list[Effect]:
        """A node announced that it leaves."""

    def on_search_ended(self, prefix: str, what: Peer | SearchResult, now: float) -> list[Effect]:
        """A search begun with `seek`, or one that the network made for itself, has ended."""


class PrefixNetwork(PrefixState):
    """One node's routing state, kept up to date by messages.

    A peer that does not answer is *doubted* (suspected): it keeps its place but gets no
    messages, until it answers a ping or counts as dead. It is a mixin: the network that
    derives from it brings the state (`PrefixState`) and says what is abstract here.
    """

    def _run(self, application: NetworkApplication, rng: random.Random, options: PrefixOptions) -> None:
        """Set up what keeps the state up to date; the state itself is there already."""
        self.heartbeat_s, self.answer_s = options.heartbeat_s, options.answer_s
        self.is_in = False
        self.has_failed = False  # To join, after all tries.
        self._is_introducing = False  # A newcomer that waits for answers to its pings.
        self._contacts: tuple[Peer, ...] = ()
        self._joins_tried = 0
        self._application, self._rng = application, rng
        self._dead: OrderedDict[NodeId, tuple[Peer, float]] = OrderedDict()
        self._probed: dict[NodeId, float] = {}
        self._pings = RetransmitQueue[NodeId](Backoff(self.answer_s, TRIES_MAX), at_most=PINGS_MAX)
        self._lookups: dict[str, NodeSearch] = {}
        self._asks = RetransmitQueue[tuple[str, NodeId]](Backoff(self.answer_s, TRIES_MAX), at_most=ASKS_MAX)
        self._ticks, self._tick_at = 0, 0.0

    # ── What differs from network to network ─────────────────────────────────

    @abstractmethod
    def _search(self, name: str, *, is_join: bool) -> NodeSearch:
        """A new search for a range, or for a newcomer's neighbours."""

    @abstractmethod
    def _hints(self, to: NodeId) -> tuple[Peer, ...]:
        """The nodes of which to tell another that asks whether this one lives."""

    @abstractmethod
    def _on_placed(self, peer: Peer, now: float) -> None:
        """A peer has a place here that it did not have, or is back from the dead."""

    @abstractmethod
    def _on_displaced(self, peer: Peer, now: float) -> list[Effect]:
        """A peer is gone: drop it."""

    @abstractmethod
    def _refill(self, cell: str, now: float) -> list[Effect]:
        """A cell has lost a node: search for another, if need be."""

    @abstractmethod
    def _to_introduce_to(self, heard: Sequence[Peer]) -> Iterable[Peer]:
        """Those that a newcomer pings, of all that it has heard of in its search."""

    @abstractmethod
    def _keep_up(self, now: float) -> list[Effect]:
        """What happens on every tick: heartbeats to neighbours, and suspicion of silent ones."""

    @abstractmethod
    def _arrive(self, now: float) -> list[Effect]:
        """All that a newcomer has pinged have answered or count as dead: become known to those who must know it."""

    # ── Joining and leaving ───────────────────────────────────────────────────

    def start(self, now: float) -> list[Effect]:
        """Begin with the state there is: alone, or as `settle` has filled it."""
        self.is_in = True
        for peer in self.known():
            self._on_placed(peer, now)
        return [*self._next_tick(now), *self._application.on_joined(now)]

    def join(self, via: Iterable[Peer], now: float) -> list[Effect]:
        """Come in through any of these; `on_joined` or Failed follows."""
        self._contacts = tuple(peer for peer in via if self.is_node(peer))[:HEARSAY_MAX]
        self._joins_tried = 0
        return self._try_to_join(now) if self._contacts else self.start(now)

    def _try_to_join(self, now: float) -> list[Effect]:
        self._joins_tried += 1
        self._lookups[self.me.id] = lookup = self._search(self.me.id, is_join=True)
        lookup.hear([*self._contacts, *self.known()])
        return self._press_on(lookup, now)

    def _fail_to_join(self, why: str, now: float) -> list[Effect]:
        if self._joins_tried < JOIN_TRIES_MAX:
            return [WakeAt(now + JOIN_PAUSE_S * 2 ** (self._joins_tried - 1), ("ring", "join"))]
        self.has_failed = True
        return [Failed("join", why)]

    def leave(self, now: float) -> list[Effect]:
        """Announce to every known node that this one leaves."""
        self.is_in = False
        return [Send(id, NodeLeaving(self.me)) for id in self._to_tell_of_leaving()]

    def _to_tell_of_leaving(self) -> Iterable[NodeId]:
        return (peer.id for peer in self.known())

    def memory(self) -> bytes:
        """The contacts for a restart."""
        return msgspec.msgpack.encode(self._contacts_later())

    def _contacts_later(self) -> list[Peer]:
        return self.primaries()

    # ── Receiving ────────────────────────────────────────────────────────────

    def receive(self, sender: NodeId, message: Message, now: float) -> list[Effect]:
        """Handle a message of the network; one of another network is ignored."""
        if not isinstance(message, RingMessage) or message.me.id != sender or not self.is_node(message.me):
            return []
        return [*self._take(sender, message, now), *self._finish_join(now)]

    def _take(self, sender: NodeId, message: RingMessage, now: float) -> list[Effect]:
        match message:
            case Heartbeat(me=peer, leaves=leaves, answer=answer):
                reply = self._answer_heartbeat(sender, message) if answer and self.is_in else []
                return [*reply, *self._heard(peer, now), *self._hear_of(leaves, now)]
            case Ping(me=peer):
                return [Send(sender, Pong(self.me, self._hints(sender))), *self._heard(peer, now)]
            case Pong(me=peer, leaves=leaves):
                return [*self._heard(peer, now), *self._hear_of(leaves, now)]
            case LookupRequest(key=key, rows=rows):
                return [Send(sender, LookupReply(self.me, key, self.nearer(key, rows=rows)))] if self.is_id(key) else []
            case LookupReply(me=peer, key=key, peers=peers):
                return self._answered(peer, key, peers, now)
            case NodeLeaving(me=peer):
                return [*self._remove(peer, now), *self._application.on_node_left(peer, now)]

    def _answer_heartbeat(self, sender: NodeId, heartbeat: Heartbeat) -> list[Effect]:
        return [Send(sender, Heartbeat(self.me, self._hints(sender)))]

    def wake(self, token: Token, now: float) -> list[Effect]:
        """A wake of this ring; its tokens begin with "ring"."""
        match token:
            case ("ring", "tick"):
                return self._tick(now)
            case ("ring", "join"):
                return [] if self.is_in or self._is_introducing else self._try_to_join(now)
            case ("ring", "ping", str(id)):
                return self._ping_again(id, now)
            case ("ring", "ask", str(name), str(id)):
                return self._ask_again(name, id, now)
        return []

    def unsent(self, to: NodeId, message: Message | None, now: float) -> list[Effect]:
        """The driver cannot reach `to`: any message raises suspicion, a ping that bounces is certain."""
        if isinstance(message, LookupRequest):
            return self._ask_failed(message.key, to, True, now)
        if isinstance(message, Ping):
            return self._give_up(to, now) if to in self.doubted else []
        if isinstance(message, Heartbeat) and not self.knows(to):
            return []  # A probe of a dead node, which is still dead.
        return self.doubt(to, now)

    # ── Suspicion and search ────────────────────────────────────────────────────────

    def doubt(self, id: NodeId, now: float) -> list[Effect]:
        """Suspect a node that did not answer: ping it; `on_node_up` or `on_node_failed` may follow."""
        return [] if id in self.doubted else self._ping(self.knows(id) or Peer(id), now)

    def check(self, peer: Peer, now: float) -> list[Effect]:
        """Ping a node that has no place here; `on_node_up` or `on_node_failed` may follow."""
        if not self.is_node(peer) or self.knows(peer.id) or peer.id in self.doubted:
            return []
        return self._ping(peer, now)

    def probe(self, id: NodeId, now: float) -> list[Effect]:
        """Ask a node that has a place here whether it lives; it keeps its place, and its messages, meanwhile."""
        if id in self._probed or id in self.doubted:
            return []
        self._probed[id] = now
        return [Send(id, Heartbeat(self.me, answer=True))]

    def is_being_asked(self, id: NodeId) -> bool:
        """Whether an answer of this node is awaited."""
        return id in self._probed or id in self.doubted

    def seek(self, prefix: str, now: float) -> list[Effect]:
        """Search for any live node in a range; `on_search_ended` follows, perhaps at once."""
        if prefix in self._lookups:
            return []
        if len(self._lookups) >= LOOKUPS_MAX:
            return self._application.on_search_ended(prefix, SearchResult.UNREACHED, now)
        self._lookups[prefix] = lookup = self._search(prefix, is_join=False)
        lookup.hear([self.me, *self.known()])
        lookup.answered(self.me.id)
        return self._press_on(lookup, now)

    def is_dead(self, id: NodeId) -> bool:
        """Whether this node counts as dead and has sent nothing since."""
        return id in self._dead

    def is_usable(self, id: NodeId) -> bool:
        """Whether this node is neither suspected nor dead."""
        return id not in self.doubted and id not in self._dead

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            **super().holdings(),
            "dead": (len(self._dead), DEAD_MAX),
            "pings": (len(self.doubted), PINGS_MAX),
            "lookups": (len(self._lookups), LOOKUPS_MAX),
            "asks": (len(self._asks), ASKS_MAX),
        }

    # ── Liveness ─────────────────────────────────────────────────────────────

    def _next_tick(self, now: float) -> list[Effect]:
        self._tick_at = now + self.heartbeat_s
        return [WakeAt(self._tick_at, ("ring", "tick"), idle=True)] if self.heartbeat_s else []

    def _tick(self, now: float) -> list[Effect]:
        if not self.is_in or now < self._tick_at:
            return []  # Joining or leaving, or a tick from before that.
        self._ticks += 1
        return [*self._keep_up(now), *self._probe_table(now), *self._probe_dead(), *self._next_tick(now)]

    def _probe_table(self, now: float) -> list[Effect]:
        """Probe a share of the table on every tick, so that each entry is probed once in PROBE_S."""
        effects: list[Effect] = []
        for id in [id for id, asked in self._probed.items() if asked < now - MISSES_MAX * self.heartbeat_s]:
            del self._probed[id]
            effects += self.doubt(id, now)
        every = max(1, round(PROBE_S / self.heartbeat_s))
        for peer in self.entries()[self._ticks % every :: every]:
            self._probed.setdefault(peer.id, now)
            effects.append(Send(peer.id, Heartbeat(self.me, answer=True)))
        return effects

    def _probe_dead(self) -> list[Effect]:
        """Nobody announces that a split has healed, so now and then probe a dead node."""
        if not self._dead or self._ticks % DEAD_PROBE_TICKS:
            return []
        to = self._rng.choice(tuple(self._dead))
        return [Send(to, self._dead_probe(to))]

    def _dead_probe(self, to: NodeId) -> Heartbeat:
        return Heartbeat(self.me, answer=True)

    def _heard(self, peer: Peer, now: float) -> list[Effect]:
        """A message from the peer itself: it takes its place."""
        self._probed.pop(peer.id, None)
        if self.doubted.pop(peer.id, None):
            self._pings.acknowledge(peer.id)
        dead = self._dead.get(peer.id)
        if dead is not None and dead[0].incarnation > peer.incarnation:
            return []  # A late message of an earlier incarnation.
        self._dead.pop(peer.id, None)
        is_new = self.insert(peer)
        if is_new or dead:
            self._on_placed(peer, now)
        return self._application.on_node_up(peer, now) if is_new or dead else []

    def _hear_of(self, peers: Sequence[Peer], now: float) -> list[Effect]:
        """Hearsay: ping those peers that would get a place here."""
        effects: list[Effect] = []
        for peer in peers[:HEARSAY_MAX]:
            if peer.id in self.doubted or not self.is_node(peer):
                continue
            if self.would_fit(peer) and not self._just_died(peer, now):
                effects += self._ping(peer, now)
        return effects

    def _just_died(self, peer: Peer, now: float) -> bool:
        known = self._dead.get(peer.id)
        return known is not None and known[0].incarnation >= peer.incarnation and now < known[1] + DEAD_QUIET_S

    def _ping(self, peer: Peer, now: float) -> list[Effect]:
        if len(self.doubted) >= PINGS_MAX:
            return []
        self.doubted[peer.id] = peer
        due = self._pings.add(peer.id, peer.id, Ping(self.me), now)
        return [Send(peer.id, Ping(self.me)), WakeAt(due, ("ring", "ping", peer.id))]

    def _ping_again(self, id: NodeId, now: float) -> list[Effect]:
        waiting = self._pings.overdue(id, now)
        if waiting is None:
            return []
        due = self._pings.retry(id, now)
        if due is None:
            return self._give_up(id, now)
        return [Send(id, waiting.message), WakeAt(due, ("ring", "ping", id))]

    def _give_up(self, id: NodeId, now: float) -> list[Effect]:
        """From now on the node counts as dead."""
        peer = self.doubted.pop(id)
        self._pings.acknowledge(id)
        self._dead.pop(id, None)
        self._dead[id] = (peer, now)
        if len(self._dead) > DEAD_MAX:
            self._dead.popitem(last=False)
        return [*self._remove(peer, now), *self._application.on_node_failed(peer, now), *self._finish_join(now)]

    def _remove(self, peer: Peer, now: float) -> list[Effect]:
        """Remove a node and look for others to take its place."""
        had_place, cell = self.knows(peer.id) is not None, self.cell(peer.id)
        self._probed.pop(peer.id, None)
        effects = self._on_displaced(peer, now)
        return [*effects, *self._refill(cell, now)] if had_place else effects

    # ── Lookups ──────────────────────────────────────────────────────────────

    def _press_on(self, lookup: NodeSearch, now: float) -> list[Effect]:
        """Ask the next nodes, or end the lookup."""
        outcome = lookup.outcome()
        if outcome is not None:
            return self._ended(lookup, outcome, now)
        effects: list[Effect] = []
        question = LookupRequest(self.me, self._lowest(lookup.name), rows=lookup.is_join)
        for id in lookup.to_ask():
            due = self._asks.add((lookup.name, id), id, question, now)
            effects += [Send(id, question), WakeAt(due, ("ring", "ask", lookup.name, id))]
        return effects

    def _ended(self, lookup: NodeSearch, outcome: Peer | SearchResult, now: float) -> list[Effect]:
        del self._lookups[lookup.name]
        for id in lookup.waiting():
            self._asks.acknowledge((lookup.name, id))
        if lookup.is_join:
            return self._introduce_myself(lookup, now)
        if outcome is SearchResult.EMPTY:
            self.note_empty(lookup.name, now)
        return self._application.on_search_ended(lookup.name, outcome, now)

    def _answered(self, peer: Peer, key: str, peers: Sequence[Peer], now: float) -> list[Effect]:
        effects = self._heard(peer, now) if self.is_in else []
        for name in [name for name in self._lookups if key == self._lowest(name)]:
            if self._asks.acknowledge((name, peer.id)) is not None:
                lookup = self._lookups[name]
                lookup.answered(peer.id)
                lookup.hear(other for other in peers[:HEARSAY_MAX] if self.is_node(other))
                effects += self._press_on(lookup, now)
        return effects

    def _ask_again(self, name: str, id: NodeId, now: float) -> list[Effect]:
        waiting = self._asks.overdue((name, id), now)
        if waiting is None:
            return []
        due = self._asks.retry((name, id), now)
        if due is None:
            return self._ask_failed(self._lowest(name), id, False, now)
        return [Send(id, waiting.message), WakeAt(due, ("ring", "ask", name, id))]

    def _ask_failed(self, key: str, id: NodeId, certain: bool, now: float) -> list[Effect]:
        effects = self.doubt(id, now) if self.is_in else []
        for name in [name for name in self._lookups if key == self._lowest(name)]:
            self._asks.acknowledge((name, id))
            self._lookups[name].failed(id, certain)
            effects += self._press_on(self._lookups[name], now)
        return effects

    def _lowest(self, prefix: str) -> str:
        return prefix.ljust(self.length, self.digits[0])

    def _introduce_myself(self, lookup: NodeSearch, now: float) -> list[Effect]:
        """The lookup of this node's own id has found the nodes it must know: ping them, so that they know it, too."""
        if not lookup.anybody_answered():
            return self._fail_to_join("none of the contacts answered", now)
        self._is_introducing = True
        return [effect for peer in self._to_introduce_to(lookup.peers()) for effect in self._ping(peer, now)]

    def _finish_join(self, now: float) -> list[Effect]:
        """A newcomer has joined when all nodes that it pinged have answered or count as dead."""
        if not self._is_introducing or self.doubted:
            return []
        self._is_introducing = False
        if not self.nearest():
            return self._fail_to_join("all contacts went away", now)
        return self._arrive(now)

    def _joined(self, now: float) -> list[Effect]:
        self.is_in = True
        return [*self._next_tick(now), *self._application.on_joined(now)]


def settle(networks: Sequence[PrefixNetwork], now: float) -> None:
    """Give these nodes, the whole network, the state they would have if all had joined long ago."""
    if networks:
        settle_states(networks, networks[0]._rng)
