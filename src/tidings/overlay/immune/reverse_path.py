"""Reverse-path forwarding: adverts are broadcast, subscriptions travel back along their paths, events follow.

A node that begins to publish events of a type *advertises* it. Every node that the advert
reaches keeps a pointer to the neighbour it first came from, so the pointers of one advert
form a tree with the publisher at its root. An interest travels along them to the
publisher, and every node on the way remembers the link it came from; an interest that one
sent before covers stops. Events then follow a tree, so they reach each interested node once.

    publish, first of a type   → advertise, and broadcast the event
    publish, advert settled    → Forward down the tree where an interest matches
    subscribe                  → AdvertSubscribe up the tree of each advert; AdvertConfirm comes back from the root
    unsubscribe                → AdvertSubscribe what the interest covered; once confirmed, AdvertUnsubscribe

While an advert is young, or its tree had to be laid anew because a link broke, events are
broadcast: too much for a while, never too little. The router broadcasts, sends and keeps
the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias
from zlib import crc32

import msgspec

from tidings.overlay.crowding import are_too_many
from tidings.overlay.dedup import SeenIds
from tidings.overlay.interest import Interest
from tidings.overlay.messages import EventId, Message, NodeId, OriginRecord, Packet, SubscriptionId
from tidings.overlay.retransmit import Backoff, RetransmitQueue
from tidings.overlay.router import Completed, Count, Effect, Send, WakeAt

ADVERTS_MAX = 10_000  # Publishers times types; beyond that a node knows of no more and hears all events instead.
INTERESTS_MAX = 1_000_000  # Over all adverts and links.
# Interests behind one link that an event is compared with; beyond it all go there. A live broker has 65 of a type.
COMPARED_BEHIND_MAX = 4096
LOST = ""  # A pointer to nowhere.
FADE = 6  # In times to settle: as long as it takes a broken tree to be asked for again and laid anew.
TRIES_MAX = 8  # The wait doubles, so a link has four minutes to come back.


class AdvertId(msgspec.Struct, frozen=True, array_like=True):
    """Who publishes what: a node, in one of its lives, and a type."""

    origin: NodeId
    incarnation: int
    type: str


class Advert(OriginRecord, frozen=True, array_like=True):
    """An announcement; a higher `seq` lays a new tree and makes the old one void."""

    id: AdvertId
    seq: int
    seal: bytes = b""

    def speaker(self) -> NodeId:
        return self.id.origin

    def statement(self) -> tuple[Any, ...]:
        return self.id, self.seq


class AdvertSubscribe(Message, frozen=True, tag="Sub"):
    """The sender has this interest in the advert's events, its own or that of a node behind it."""

    advert: Advert
    interest: Interest


class AdvertConfirm(Message, frozen=True, tag="Confirm"):
    """The publisher knows of this interest."""

    advert: Advert
    id: SubscriptionId


class AdvertUnsubscribe(Message, frozen=True, tag="Unsub"):
    """The sender withdraws this interest."""

    advert: Advert
    id: SubscriptionId


class Forward(Message, frozen=True):
    """An event on its way down the tree of its publisher's advert."""

    packet: Packet
    advert: Advert


class Forwarded(Message, frozen=True):
    """I have received the event."""

    id: EventId


PathMessage: TypeAlias = AdvertSubscribe | AdvertConfirm | AdvertUnsubscribe | Forward | Forwarded


@dataclass(slots=True)
class AdvertTree:
    """What one node knows of one advert."""

    advert: Advert
    pointer: NodeId | None  # None at the publisher, LOST where the tree is broken.
    since: float
    asked_again: int = 0  # How often a new tree was asked for, since this one broke.
    ask_at: float = 0.0
    wanted: dict[NodeId, dict[SubscriptionId, Interest]] = field(default_factory=dict)
    fading: dict[NodeId, float] = field(default_factory=dict)  # Neighbours that seem gone, and until when they count.
    sent: dict[SubscriptionId, Interest] = field(default_factory=dict)
    confirmed: dict[SubscriptionId, None] = field(default_factory=dict)
    waiting: dict[SubscriptionId, list[tuple[NodeId, SubscriptionId]]] = field(default_factory=dict)
    """For an interest that was sent up: who is to be told, and of which interest, when it is confirmed."""
    retiring: dict[SubscriptionId, dict[SubscriptionId, None]] = field(default_factory=dict)
    """Interests to take back as soon as those that replace them are confirmed."""


class ReversePaths:
    """One node's reverse paths, and the interests sent along them."""

    def __init__(self, me: NodeId, incarnation: int, *, wait_s: float, settle_s: float) -> None:
        self.me, self.incarnation, self.settle_s = me, incarnation, settle_s
        self.trees: dict[AdvertId, AdvertTree] = {}
        self._own: dict[SubscriptionId, Interest] = {}
        self._laid = 0  # Trees laid or lost so far: whether the fingerprint is still right.
        self._fingerprint: tuple[tuple[int, int], int] = ((-1, 0), 0)
        # By tree and link, in case a Sub comes late: what one neighbour no longer wants, another may.
        self._gone = SeenIds[tuple[Advert, NodeId, SubscriptionId]]()
        self._calls = RetransmitQueue[tuple[str, object, NodeId]](Backoff(wait_s, TRIES_MAX))
        self._asked: dict[SubscriptionId, dict[AdvertId, None]] = {}
        """For each own interest not completed yet, the adverts that have not confirmed it."""

    # ── Queries and changes by the router ───────────────────────────────────────

    def new_advert(self, packet: Packet, now: float) -> Advert | None:
        """A new advert to be spread before this packet of ours, or None if there is one already."""
        id = AdvertId(self.me, self.incarnation, packet.header.type)
        return None if id in self.trees else self.renew(id, now)

    def renew(self, id: AdvertId, now: float) -> Advert:
        """An advert of ours that lays a new tree."""
        old = self.trees.get(id)
        advert = Advert(id, old.advert.seq + 1 if old else 1)
        self.trees[id] = AdvertTree(advert, None, now)
        self._laid += 1
        return advert

    def is_own(self, id: AdvertId) -> bool:
        """Whether this is an advert of this node in its present life."""
        return (id.origin, id.incarnation) == (self.me, self.incarnation)

    def is_settled(self, packet: Packet, now: float) -> bool:
        """Whether the tree for this packet of ours has had the time to be laid."""
        tree = self.trees.get(AdvertId(self.me, self.incarnation, packet.header.type))
        return tree is not None and now >= tree.since + self.settle_s

    def learn(self, advert: Advert, sender: NodeId, now: float) -> list[Effect]:
        """A new advert: lay the path back to its sender, and send our interests along it."""
        known = self.trees.get(advert.id)
        if self.is_own(advert.id) or (known and known.advert.seq >= advert.seq):
            return []
        if known is None and len(self.trees) >= ADVERTS_MAX:
            return [Count("advert refused")]
        for older in [id for id in self.trees if _earlier_life(id, advert.id)]:
            del self.trees[older]
        tree = self.trees[advert.id] = AdvertTree(advert, sender, now)
        self._laid += 1
        effects: list[Effect] = []
        for interest in self._own.values():
            if interest.type == advert.id.type:
                effects += self._send_up(tree, interest, (self.me, interest.id), now)
        return effects

    def advert(self, id: AdvertId) -> Advert | None:
        """The newest advert of this id that we know."""
        tree = self.trees.get(id)
        return tree.advert if tree else None

    def known(self) -> tuple[Advert, ...]:
        """All adverts, for a newcomer."""
        return tuple(tree.advert for tree in self.trees.values() if tree.pointer != LOST)

    def fingerprint(self) -> int:
        """The same for nodes that know the same adverts."""
        size = len(self.trees)
        if self._fingerprint[0] != (size, self._laid):
            parts = sorted(f"{a.id.origin}/{a.id.incarnation}/{a.id.type}/{a.seq}" for a in self.known())
            self._fingerprint = ((size, self._laid), crc32("\n".join(parts).encode()))
        return self._fingerprint[1]

    def on_neighbour_lost(self, peer: NodeId, now: float) -> None:
        """A neighbour seems to be gone. Its interests are kept for a while, for it may be alive."""
        for tree in self.trees.values():
            if peer in tree.wanted:
                tree.fading.setdefault(peer, now + FADE * self.settle_s)
            if tree.pointer == peer:  # For good: what was sent there is not known to have arrived.
                tree.pointer, tree.ask_at = LOST, now
                self._laid += 1

    def give_up_on(self, peer: NodeId) -> None:
        """A neighbour is known to be down: stop sending to it."""
        for key in self._calls.keys_to(peer):
            self._calls.acknowledge(key)

    def expire(self, now: float) -> list[Effect]:
        """Withdraw the interests of neighbours that did not come back."""
        effects: list[Effect] = []
        for tree in self.trees.values():
            for peer in [peer for peer, until in tree.fading.items() if until <= now]:
                del tree.fading[peer]
                for id in tree.wanted.pop(peer, {}):
                    effects += self._take_back(tree, id, now)
        return effects

    def broken(self, now: float, *, at_once: bool = False) -> list[Advert]:
        """The adverts whose tree broke and whose publisher should be asked for a new one, now or again.

        Asked ever more rarely; a publisher that never answers is forgotten.
        """
        broken = [tree for tree in self.trees.values() if tree.pointer == LOST and (at_once or tree.ask_at <= now)]
        for tree in broken:
            tree.asked_again += 1
            tree.ask_at = now + self.settle_s * 2**tree.asked_again
            if tree.asked_again > TRIES_MAX:
                del self.trees[tree.advert.id]
        return [tree.advert for tree in broken]

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        """Completed when every known publisher of the type has confirmed it."""
        self._own[interest.id] = interest
        trees = [t for t in self.trees.values() if t.advert.id.type == interest.type and t.pointer is not None]
        self._asked[interest.id] = {tree.advert.id: None for tree in trees}
        effects: list[Effect] = []
        for tree in trees:
            effects += self._send_up(tree, interest, (self.me, interest.id), now)
        return effects + self._completed_if_all(interest.id)

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        """Completed at once: what still comes is not delivered. The publishers learn of it later."""
        gone = self._own.pop(id, None)
        self._asked.pop(id, None)
        effects: list[Effect] = []
        if gone:
            for tree in self.trees.values():
                effects += self._take_back(tree, id, now)
        return [*effects, Completed("unsubscribe", id)]

    def down(self, packet: Packet, advert: Advert, sender: NodeId | None, now: float) -> list[Effect]:
        """Send a packet to every neighbour with a matching interest behind it."""
        tree = self.trees.get(advert.id)
        if tree is None:
            return []
        effects: list[Effect] = []
        for peer, interests in tree.wanted.items():
            if peer == sender:
                continue
            behind = interests.values()
            if are_too_many(behind, COMPARED_BEHIND_MAX) or any(each.matches(packet) for each in behind):
                effects += self._call(("event", packet.header.id, peer), peer, Forward(packet, advert), now)
        return effects

    def own_advert(self, packet: Packet) -> Advert:
        """The advert that covers a packet of this node."""
        return self.trees[AdvertId(self.me, self.incarnation, packet.header.type)].advert

    def receive(self, sender: NodeId, message: PathMessage, now: float) -> list[Effect]:
        """Handle a message. (The router handles Forward, for it knows what it has seen.)"""
        match message:
            case AdvertSubscribe(advert, interest):
                return self._on_sub(sender, advert, interest, now)
            case AdvertConfirm(advert, id):
                return self._on_confirm(sender, advert, id, now)
            case AdvertUnsubscribe(advert, id):
                return self._on_unsub(sender, advert, id, now)
            case Forwarded(id):
                self._calls.acknowledge(("event", id, sender))
                return []
            case Forward():
                return []

    def retransmit(self, key: tuple[str, object, NodeId], now: float) -> list[Effect]:
        """The wake of an unanswered message."""
        waiting = self._calls.get(key)
        if waiting is None:
            return []
        due = self._calls.retry(key, now)
        if due is None:
            return [Count("gave up"), *self._without_answer(waiting.message)]
        return [Send(waiting.to, waiting.message), WakeAt(due, ("pointers", key))]

    def holdings(self) -> dict[str, tuple[int, int]]:
        """What is kept, and at most how much."""
        interests = sum(len(each) for tree in self.trees.values() for each in tree.wanted.values())
        return {
            "adverts": (len(self.trees), ADVERTS_MAX),
            "interests": (interests, INTERESTS_MAX),
            "unanswered": (len(self._calls), self._calls.at_most),
        }

    def _without_answer(self, message: Message) -> list[Effect]:
        """A publisher that cannot be reached publishes nothing for us: a subscription need not wait for it."""
        if not isinstance(message, AdvertSubscribe):
            return []
        for adverts in self._asked.values():
            adverts.pop(message.advert.id, None)
        return [effect for id in list(self._asked) for effect in self._completed_if_all(id)]

    # ── Steps ──────────────────────────────────────────────────────────────────

    def _on_sub(self, sender: NodeId, advert: Advert, interest: Interest, now: float) -> list[Effect]:
        tree = self.trees.get(advert.id)
        if tree is None or tree.advert.seq != advert.seq or tree.pointer == sender:
            return []
        if (advert, sender, interest.id) in self._gone:
            return []  # Taken back before it came.
        tree.wanted.setdefault(sender, {})[interest.id] = interest
        tree.fading.pop(sender, None)
        if tree.pointer is None:
            return [Send(sender, AdvertConfirm(advert, interest.id))]
        return self._send_up(tree, interest, (sender, interest.id), now)

    def _send_up(
        self, tree: AdvertTree, interest: Interest, answer: tuple[NodeId, SubscriptionId], now: float
    ) -> list[Effect]:
        """Send an interest towards the publisher, unless one that covers it has been sent."""
        if tree.pointer is None:
            return self._tell(tree, answer, now)
        cover = self._cover(tree, interest)
        if cover is not None and cover in tree.confirmed:
            return self._tell(tree, answer, now)
        if tree.pointer == LOST:
            return []  # The next tree asks for everything anew.
        effects: list[Effect] = []
        if cover is None:
            cover = interest.id
            tree.sent[cover] = interest
            key = ("sub", (tree.advert, cover), tree.pointer)
            effects = self._call(key, tree.pointer, AdvertSubscribe(tree.advert, interest), now)
        waiters = tree.waiting.setdefault(cover, [])
        if answer not in waiters:
            waiters.append(answer)
        return effects

    def _cover(self, tree: AdvertTree, interest: Interest) -> SubscriptionId | None:
        if interest.id in tree.sent:
            return interest.id
        live = (id for id in tree.sent if id not in tree.retiring)
        return next((id for id in live if tree.sent[id].covers(interest)), None)

    def _on_confirm(self, sender: NodeId, advert: Advert, id: SubscriptionId, now: float) -> list[Effect]:
        self._calls.acknowledge(("sub", (advert, id), sender))
        tree = self.trees.get(advert.id)
        if tree is None or tree.advert != advert or sender != tree.pointer or id not in tree.sent:
            return []
        tree.confirmed[id] = None
        effects: list[Effect] = []
        for answer in tree.waiting.pop(id, []):
            effects += self._tell(tree, answer, now)
        for retiring, replacements in list(tree.retiring.items()):
            replacements.pop(id, None)
            effects += self._retire_if_replaced(tree, retiring)
        return effects

    def _tell(self, tree: AdvertTree, answer: tuple[NodeId, SubscriptionId], now: float) -> list[Effect]:
        who, id = answer
        if who != self.me:
            return [Send(who, AdvertConfirm(tree.advert, id))]
        self._asked.get(id, {}).pop(tree.advert.id, None)
        return self._completed_if_all(id)

    def _completed_if_all(self, id: SubscriptionId) -> list[Effect]:
        if id in self._asked and not self._asked[id]:
            del self._asked[id]
            return [Completed("subscribe", id)]
        return []

    def _on_unsub(self, sender: NodeId, advert: Advert, id: SubscriptionId, now: float) -> list[Effect]:
        self._gone.add((advert, sender, id))
        tree = self.trees.get(advert.id)
        if tree is None or tree.advert != advert or tree.wanted.get(sender, {}).pop(id, None) is None:
            return []
        return self._take_back(tree, id, now)

    def _take_back(self, tree: AdvertTree, id: SubscriptionId, now: float) -> list[Effect]:
        """Withdraw an interest at the publisher, once that knows the interests that it covered."""
        tree.waiting.pop(id, None)
        if id not in tree.sent or not tree.pointer or id in tree.retiring:
            return []
        tree.retiring[id] = {}
        effects: list[Effect] = []
        for owner, interest in self._all_wanted(tree):
            if self._cover(tree, interest) is None:
                effects += self._send_up(tree, interest, (owner, interest.id), now)
                tree.retiring[id][interest.id] = None
        return effects + self._retire_if_replaced(tree, id)

    def _retire_if_replaced(self, tree: AdvertTree, id: SubscriptionId) -> list[Effect]:
        if tree.retiring.get(id) or not tree.pointer or id not in tree.retiring:
            return []
        del tree.retiring[id], tree.sent[id]
        self._calls.acknowledge(("sub", (tree.advert, id), tree.pointer))
        tree.confirmed.pop(id, None)
        return [Send(tree.pointer, AdvertUnsubscribe(tree.advert, id))]

    def _all_wanted(self, tree: AdvertTree) -> list[tuple[NodeId, Interest]]:
        own = [(self.me, each) for each in self._own.values() if each.type == tree.advert.id.type]
        return own + [(peer, each) for peer, interests in tree.wanted.items() for each in interests.values()]

    def _call(self, key: tuple[str, object, NodeId], to: NodeId, message: Message, now: float) -> list[Effect]:
        due = self._calls.add(key, to, message, now)
        return [Send(to, message), WakeAt(due, ("pointers", key))]


def _earlier_life(one: AdvertId, other: AdvertId) -> bool:
    return (one.origin, one.type) == (other.origin, other.type) and one.incarnation < other.incarnation
