"""Hermes: one tree for each event type, rooted where the type's name falls on the ring (Scribe, Hermes).

The node nearest to the hash of a type is its *rendezvous*. An interest travels towards it
and every node on the way remembers from which side it came, so the ways of all
subscribers make a tree. An event goes up to the rendezvous and from there down every
branch below which somebody may want it.

    subscribe    Want up, hop by hop; Risen comes back once it is known as far as it has to be
    publish      Up, hop by hop, to the rendezvous; Down from there
    every so often   Refresh to the parent; what it has lost is sent again

An interest that another one covers stops there: nobody further up need know of it. With
`content=False` trees know only the type, as in Scribe. With `shortcut`, an event on its
way up goes down side branches at once instead of coming back from the rendezvous; with
`remember_root` a publisher learns who the rendezvous is and skips the way.

A parent that falls silent is replaced by the next hop of the moment. With `repair=False`
nothing is repaired and nothing acknowledged: a tree built once and then left alone, the
line that IRBR is drawn against.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from random import Random
from typing import Any, Literal

from tidings.errors import InputError
from tidings.overlay import ring as rings
from tidings.overlay.hermes_messages import Down, Fresh, Heard, HermesMessage, Orphan, Prune, Refresh, Root, Up
from tidings.overlay.interest import Interest
from tidings.overlay.liveness import Unanswered
from tidings.overlay.places import ALTERNATES, LEAF_COUNT
from tidings.overlay.ring import ANSWER_S, HEARTBEAT_S, PROMISES, Found, Heartbeat, Ring, name_node, remembered
from tidings.overlay.router import (
    Completed,
    Count,
    Deliver,
    Effect,
    Failed,
    Place,
    Protocol,
    Router,
    Send,
    Token,
    WakeAt,
    built,
)
from tidings.overlay.seen import SEEN_MAX, SeenIds
from tidings.overlay.trees import Risen, Saying, ToChild, Tree, Unwant, Want, digest
from tidings.overlay.wire import EventId, Message, NodeId, Parcel, Peer, SubscriptionId

REFRESH_S = 5.0  # A parent silent for two of these is doubted; a child silent for CHILD_MISSES of them is dropped.
CHILD_MISSES = 6
LEAVE_S = 10.0  # How long a leaver waits for its children to find new parents.
HOPS_MAX = 64  # Far more than a ring of any size takes; a message that needs more is going round.
TREES_MAX = 65_536
INTERESTS_MAX = 1 << 20  # On one node, of its own and from below. One too many is refused and counted.
CALLS_MAX = 65_536
CALL_TRIES_MAX = 8  # A minute, the pauses doubling: longer than most storms. The ring tells sooner who is dead.
HELD_MAX = 16_384  # Messages kept by a node that is not in yet.
ROOTS_MAX = 4096  # Rendezvous nodes that a publisher remembers.
REFRESHED_AT_ONCE = 512  # Trees in one Refresh.


class Hermes(Router[HermesMessage]):
    """One node's part in all the trees."""

    def __init__(
        self,
        me: Peer,
        chance: Random,
        *,
        content: bool = True,
        covering: bool = True,
        shortcut: bool = True,
        remember_root: bool = False,
        repair: bool = True,
        base: int = 16,
        leaf_count: int = LEAF_COUNT,
        alternates: int = ALTERNATES,
        heartbeat_s: float = HEARTBEAT_S,
        answer_s: float = ANSWER_S,
        refresh_s: float = REFRESH_S,
    ) -> None:
        """`heartbeat_s=0` and `refresh_s=0` do without routine talk, for big worlds in which nothing happens by itself."""
        self.content, self.covering, self.shortcut = content, covering, shortcut
        self.remember_root, self.repair, self.refresh_s = remember_root, repair, refresh_s
        if refresh_s < 0:
            raise InputError(f"refresh_s: expected 0 or more, got {refresh_s}")
        self.me = me
        self.ring = Ring(
            me,
            self,
            chance,
            base=base,
            leaf_count=leaf_count,
            alternates=alternates,
            heartbeat_s=heartbeat_s,
            answer_s=answer_s,
        )
        self._stage: Literal["outside", "settling", "ready", "leaving"] = "outside"
        self._joined = False
        self._trees: dict[str, Tree] = {}
        self._room = 0  # At least so many interests more may be taken before they must be counted again.
        self._clock = 0
        self._seen = SeenIds[EventId](SEEN_MAX)  # Delivered and sent down.
        self._risen = SeenIds[EventId](SEEN_MAX)  # Sent up.
        self._calls = Unanswered[tuple[Any, ...]](wait_s=answer_s, tries_max=CALL_TRIES_MAX, at_most=CALLS_MAX)
        self._parents: dict[NodeId, float] = {}  # When each was last heard.
        self._roots: OrderedDict[str, NodeId] = OrderedDict()
        self._held: list[tuple[NodeId, Up | Down]] = []
        self._unpublished: list[Parcel] = []

    @classmethod
    def build(cls, place: Place, **options: Any) -> Hermes:
        """A node that stands where `place` says."""
        return built("hermes", cls, place.me, place.chance, **options)

    # ── Coming ───────────────────────────────────────────────────────────────

    def start(self, now: float, memory: bytes = b"") -> list[Effect]:
        contacts = remembered(memory)
        if contacts:
            return self.join(contacts, now)
        return [*self.ring.start(now), *self._next_refresh(now)]

    def join(self, via: Sequence[Peer], now: float) -> list[Effect]:
        self._joined = True
        return [*self.ring.join(via, now), *self._next_refresh(now)]

    def entered(self, now: float) -> list[Effect]:
        if not self._joined:
            return self._make_ready(now)
        # Trees that this node is now the rendezvous of are still being handed over.
        self._stage = "settling"
        return [WakeAt(now + 2 * self.ring.answer_s, ("settled",))]

    def _make_ready(self, now: float) -> list[Effect]:
        self._stage = "ready"
        effects: list[Effect] = [Completed("join")]
        for tree in list(self._trees.values()):
            tree.parent = self.ring.next_hop(tree.key)
            effects += self._say(tree, tree.raise_all(self.me.id), now)
        held, self._held = self._held, []
        for sender, message in held:
            effects += self.receive(sender, message, now)
        waiting, self._unpublished = self._unpublished, []
        for parcel in waiting:
            effects += self.publish(parcel, now)
        return effects

    # ── Wanting ──────────────────────────────────────────────────────────────

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        tree = self._tree(interest.type)
        if tree is None or self._is_full():
            return [Failed("subscribe", "this node knows as many interests as it may", interest.id)]
        effects: list[Effect] = []
        for other in list(self._trees.values()):
            if other is not tree and interest.id in other.own:
                del other.own[interest.id]
                effects += self._say(other, other.let_go(interest.id), now)
        tree.own[interest.id] = interest
        return [*effects, *(self._raise(tree, interest, self.me.id, 0, now) if self._is_in() else [])]

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for tree in list(self._trees.values()):
            if tree.own.pop(id, None):
                effects += self._say(tree, tree.let_go(id), now)
        return [*effects, Completed("unsubscribe", id)]

    def _raise(self, tree: Tree, interest: Interest, child: NodeId, clock: int, now: float) -> list[Effect]:
        if tree.parent is None:
            tree.parent = self.ring.next_hop(tree.key)
        return self._say(tree, tree.raise_(interest, child, clock), now)

    def _say(self, tree: Tree, sayings: Sequence[Saying], now: float) -> list[Effect]:
        """Carry out what a tree wants said."""
        effects: list[Effect] = []
        for saying in sayings:
            if isinstance(saying, ToChild):
                effects += self._tell_child(tree, saying)
            elif tree.parent is None:
                continue
            elif isinstance(saying, Want):
                effects += self._call(("want", tree.type, saying.interest.id), tree.parent, saying, now)
            else:
                effects.append(Send(tree.parent, saying))  # If it is lost, the next Refresh tells.
        if tree.is_bare:
            self._trees.pop(tree.type, None)
        return effects

    def _tell_child(self, tree: Tree, saying: ToChild) -> list[Effect]:
        if saying.child != self.me.id:
            return [Send(saying.child, saying.message)]
        return [Completed("subscribe", saying.message.id)] if saying.message.id in tree.own else []

    def _covers(self, wide: Interest, narrow: Interest) -> bool:
        return not self.content or (self.covering and wide.covers(narrow))

    # ── Publishing ───────────────────────────────────────────────────────────

    def publish(self, parcel: Parcel, now: float) -> list[Effect]:
        if self._stage != "ready":
            if len(self._unpublished) >= HELD_MAX:
                return [Failed("publish", "too many events wait for this node to be ready", parcel.head.id)]
            self._unpublished.append(parcel)
            return []
        return self._go_up(self.me.id, Up(parcel, 0, self.me), now)

    def _go_up(self, sender: NodeId, message: Up, now: float) -> list[Effect]:
        parcel = message.parcel
        if not self._risen.add(parcel.head.id) or message.hops >= HOPS_MAX:
            return []
        to = self._way_up(parcel.head.type)
        if to is None:
            welcome = self._welcome(message, sender) if self.remember_root else []
            return [*welcome, *self._go_down(parcel, message.hops, sender if self.shortcut else "", now)]
        effects: list[Effect] = []
        if self.shortcut or self._stage == "leaving":
            effects += self._go_down(parcel, message.hops, sender, now)
        return [*effects, *self._send_up(to, Up(parcel, message.hops + 1, message.publisher), now)]

    def _way_up(self, type: str) -> NodeId | None:
        tree = self._trees.get(type)
        if tree is not None and tree.parent is not None and self._is_usable(tree.parent):
            return tree.parent
        remembered_root = self._roots.get(type)
        if remembered_root is not None and self._is_usable(remembered_root):
            return remembered_root
        key = tree.key if tree else self._key_of(type)
        return self.ring.next_hop(key) or (self._heir(key) if self._stage == "leaving" else None)

    def _heir(self, key: str) -> NodeId | None:
        """Who is nearest to a key when this node is gone."""
        target = int(key, self.ring.base)
        return min((peer.id for peer in self.ring.leaves()), key=lambda id_: self.ring.away(id_, target), default=None)

    def _send_up(self, to: NodeId, message: Up, now: float) -> list[Effect]:
        if not self.repair:
            return [Send(to, message)]
        return self._call(("up", message.parcel.head.id), to, message, now)

    def _welcome(self, message: Up, sender: NodeId) -> list[Effect]:
        """Tell a publisher whose event took more than one hop where the rendezvous is."""
        if message.publisher.id in (sender, self.me.id):
            return []
        return [Send(message.publisher.id, Root(self.me, message.parcel.head.type))]

    def _go_down(self, parcel: Parcel, hops: int, sender: NodeId, now: float) -> list[Effect]:
        if not self._seen.add(parcel.head.id):
            return []
        tree = self._trees.get(parcel.head.type)
        if tree is None:
            return []
        wanted_here = any(self._matches(interest, parcel) for interest in tree.own.values())
        effects: list[Effect] = [Deliver(parcel)] if wanted_here else []
        for child in tree.wants(parcel, self._matches):
            if child != sender:
                effects += self._send_down(child, Down(parcel, hops + 1), now)
        return effects

    def _send_down(self, child: NodeId, message: Down, now: float) -> list[Effect]:
        if not self.repair:
            return [Send(child, message)]
        return self._call(("down", message.parcel.head.id, child), child, message, now)

    def _matches(self, interest: Interest, parcel: Parcel) -> bool:
        return interest.matches(parcel) if self.content else interest.type == parcel.head.type

    # ── Being told ───────────────────────────────────────────────────────────

    def receive(self, sender: NodeId, message: HermesMessage, now: float) -> list[Effect]:
        if message.__class__ is Heartbeat:
            return self.ring.receive(sender, message, now)  # Most of all messages: asked first.
        match message:
            case Up(parcel=parcel) | Down(parcel=parcel):
                return self._receive_event(sender, message, parcel, now)
            case Heard(event=event, way=way):
                self._calls.answered(("up", event) if way == "up" else ("down", event, sender))
                return []
            case Want():
                return self._take_want(sender, message, now)
            case Unwant():
                return self._take_unwant(sender, message, now)
            case Risen():
                return self._take_risen(sender, message, now)
            case Root(me=me, event_type=type):
                return self._remember(sender, me, type)
            case Refresh(trees=trees):
                return self._take_refresh(sender, trees, now)
            case Fresh(again=again):
                return self._take_fresh(sender, again, now)
            case Prune(event_type=type):
                return self._lose_child(sender, type, now)
            case Orphan(event_type=type):
                return self._lose_parent(sender, type, now)
            case _:
                return self.ring.receive(sender, message, now)

    def _receive_event(self, sender: NodeId, message: Up | Down, parcel: Parcel, now: float) -> list[Effect]:
        if self._stage in ("outside", "settling"):
            # The tree may not have reached this node yet; the event would go no further.
            if len(self._held) < HELD_MAX:
                self._held.append((sender, message))
            return []
        way: Literal["up", "down"] = "up" if isinstance(message, Up) else "down"
        effects: list[Effect] = [Send(sender, Heard(parcel.head.id, way))] if self.repair else []
        if isinstance(message, Up):
            return [*effects, *self._go_up(sender, message, now)]
        return [*effects, *(self._go_down(parcel, message.hops, sender, now) if message.hops < HOPS_MAX else [])]

    def _take_want(self, sender: NodeId, message: Want, now: float) -> list[Effect]:
        tree = self._tree(message.interest.type)
        if tree is None or self._is_full():
            return [Count("interests refused")]
        if not tree.hear_want(sender, message, now) or not self._is_in():
            return []
        return self._raise(tree, message.interest, sender, message.clock, now)

    def _take_unwant(self, sender: NodeId, message: Unwant, now: float) -> list[Effect]:
        tree = self._trees.get(message.event_type)
        return self._say(tree, tree.hear_unwant(sender, message), now) if tree else []

    def _take_risen(self, sender: NodeId, message: Risen, now: float) -> list[Effect]:
        tree = self._trees.get(message.event_type)
        if tree is None or tree.parent != sender:
            return []
        self._calls.answered(("want", tree.type, message.id))
        self._parents[sender] = now
        return self._say(tree, tree.hear_risen(message), now)

    def _remember(self, sender: NodeId, root: Peer, type: str) -> list[Effect]:
        if root.id == sender and self.ring.is_node(root):
            self._roots[type] = root.id
            if len(self._roots) > ROOTS_MAX:
                self._roots.popitem(last=False)
        return []

    # ── Keeping trees whole ──────────────────────────────────────────────────

    def _find_parent(self, tree: Tree, now: float) -> list[Effect]:
        """The way to the rendezvous may have changed: move there and tell it everything."""
        new = self.ring.next_hop(tree.key)
        if new == tree.parent or not self._is_in() or not self.repair:
            return self._say(tree, tree.missing(), now)
        old = tree.parent
        effects = self._say(tree, tree.move(new), now)
        if old is not None and self._is_usable(old):
            effects.append(Send(old, Prune(tree.type)))
        return effects

    def _lose_child(self, child: NodeId, type: str, now: float) -> list[Effect]:
        tree = self._trees.get(type)
        effects = self._say(tree, tree.lose_child(child), now) if tree else []
        return [*effects, *self._check_leaving()]

    def _lose_parent(self, parent: NodeId, type: str, now: float) -> list[Effect]:
        peer = self.ring.knows(parent)
        if peer is not None:
            self.ring.drop(parent)
        tree = self._trees.get(type)
        return self._find_parent(tree, now) if tree is not None and tree.parent == parent else []

    def _next_refresh(self, now: float) -> list[Effect]:
        return [WakeAt(now + self.refresh_s, ("refresh",), idle=True)] if self.refresh_s and self.repair else []

    def _refresh(self, now: float) -> list[Effect]:
        """Check every tree's way up, tell parents what they should have, and drop children long unheard."""
        if not self._is_in():
            return self._next_refresh(now)
        effects: list[Effect] = []
        by_parent: dict[NodeId, list[tuple[str, int]]] = {}
        for tree in list(self._trees.values()):
            effects += [*self._drop_silent(tree, now), *self._find_parent(tree, now), *self._want_again(tree, now)]
            if tree.parent is not None and tree.announced:
                by_parent.setdefault(tree.parent, []).append((tree.type, digest(tree.announced)))
        self._parents = {id: self._parents.get(id, now) for id in by_parent}
        for parent, trees in by_parent.items():
            for start in range(0, len(trees), REFRESHED_AT_ONCE):
                effects.append(Send(parent, Refresh(tuple(trees[start : start + REFRESHED_AT_ONCE]))))
            if self._parents[parent] < now - 2 * self.refresh_s:
                effects += self.ring.doubt(parent, now)
        return [*effects, *self._next_refresh(now)]

    def _drop_silent(self, tree: Tree, now: float) -> list[Effect]:
        deadline = now - CHILD_MISSES * self.refresh_s
        silent = [child for child, at in tree.refreshed.items() if at < deadline]
        return [effect for child in silent for effect in self._lose_child(child, tree.type, now)]

    def _want_again(self, tree: Tree, now: float) -> list[Effect]:
        """What was given up unanswered is asked again, for the parent is there."""
        given_up = [want for want in tree.unanswered() if ("want", tree.type, want.interest.id) not in self._calls]
        return self._say(tree, given_up, now)

    def _take_refresh(self, sender: NodeId, trees: Sequence[tuple[str, int]], now: float) -> list[Effect]:
        again = []
        for type, expected in trees:
            tree = self._trees.get(type)
            held = tree.below.get(sender, {}) if tree else {}
            if tree is not None and held:
                tree.refreshed[sender] = now
            if digest(held) != expected:
                again.append(type)
        return [Send(sender, Fresh(tuple(again)))]

    def _take_fresh(self, sender: NodeId, again: Sequence[str], now: float) -> list[Effect]:
        self._parents[sender] = now
        effects: list[Effect] = []
        for tree in [self._trees[type] for type in again if type in self._trees]:
            if tree.parent == sender:
                # Pruned first, so that nothing stays there that this node no longer has.
                effects += [Send(sender, Prune(tree.type)), *self._say(tree, tree.say_all_again(), now)]
        return effects

    def came(self, peer: Peer, now: float) -> list[Effect]:
        """Somebody new may be nearer to a rendezvous, or be one."""
        if self._stage != "ready":
            return []
        return [effect for tree in list(self._trees.values()) for effect in self._find_parent(tree, now)]

    def died(self, peer: Peer, now: float) -> list[Effect]:
        self._parents.pop(peer.id, None)
        for type in [type for type, root in self._roots.items() if root == peer.id]:
            del self._roots[type]
        effects: list[Effect] = []
        for tree in list(self._trees.values()) if self.repair else []:
            if peer.id in tree.below:
                effects += self._lose_child(peer.id, tree.type, now)
            if tree.parent == peer.id:
                effects += self._find_parent(tree, now)
        return [*effects, *self._reroute(peer.id, now)]

    def left(self, peer: Peer, now: float) -> list[Effect]:
        return self.died(peer, now)

    def found(self, prefix: str, what: Peer | Found, now: float) -> list[Effect]:
        return []

    def unsent(self, to: NodeId, message: HermesMessage, now: float) -> list[Effect]:
        effects = self.ring.unsent(to, message, now)
        if isinstance(message, Up) and not self.repair:
            return [*effects, *self._try_another_way(to, message, now)]
        return effects

    def peer_down(self, peer: NodeId, now: float) -> list[Effect]:
        return self.ring.unsent(peer, None, now) if self.ring.knows(peer) else []

    def _try_another_way(self, to: NodeId, message: Up, now: float) -> list[Effect]:
        """An event on its way up goes round whoever is gone; if the rendezvous is gone it ends where it has no tree."""
        tree = self._trees.get(message.parcel.head.type)
        if tree is not None and tree.parent == to:
            tree.parent = None
        self._roots.pop(message.parcel.head.type, None)
        way = self.ring.next_hop(self._key_of(message.parcel.head.type))
        if way is not None:
            return self._send_up(way, message, now)
        return self._go_down(message.parcel, message.hops, "", now)

    def _reroute(self, gone: NodeId, now: float) -> list[Effect]:
        """What waited for a node that is gone: events go another way up; what was to go down its branch is lost to it."""
        effects: list[Effect] = []
        for key in self._calls.to_peer(gone):
            waiting = self._calls.answered(key)
            if waiting is not None and isinstance(waiting.message, Up):
                effects += self._try_another_way(gone, waiting.message, now)
        return effects

    # ── Asking again ─────────────────────────────────────────────────────────

    def _call(self, key: tuple[Any, ...], to: NodeId, message: Message, now: float) -> list[Effect]:
        if not self.repair:
            return [Send(to, message)]
        due = self._calls.add(key, to, message, now)
        return [Send(to, message), WakeAt(due, ("call", key))]

    def _call_again(self, key: tuple[Any, ...], now: float) -> list[Effect]:
        waiting = self._calls.get(key)
        if waiting is None or now < waiting.due:
            return []
        if isinstance(waiting.message, Want) and not self._is_meant(waiting.message, waiting.to):
            self._calls.answered(key)
            return []
        due = self._calls.again(key, now)
        if due is not None:
            return [Send(waiting.to, waiting.message), WakeAt(due, ("call", key))]
        effects = self.ring.doubt(waiting.to, now)
        if isinstance(waiting.message, Up):
            effects += self._try_another_way(waiting.to, waiting.message, now)
        return effects

    def _is_meant(self, want: Want, parent: NodeId) -> bool:
        """Whether the tree still wants this said to this parent."""
        tree = self._trees.get(want.interest.type)
        held = tree.announced.get(want.interest.id) if tree and tree.parent == parent else None
        return held is not None and held.clock == want.clock

    def wake(self, token: Token, now: float) -> list[Effect]:
        match token:
            case ("call", tuple(key)):
                return self._call_again(key, now)
            case ("refresh",):
                return self._refresh(now)
            case ("settled",) if self._stage == "settling":
                return self._make_ready(now)
            case ("leave",) if self._stage == "leaving":
                return self._go()
        return self.ring.wake(token, now)

    # ── Leaving ──────────────────────────────────────────────────────────────

    def leave(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for id in [id for tree in self._trees.values() for id in tree.own]:
            effects += self.unsubscribe(id, now)
        self._stage = "leaving"
        effects += self.ring.leave(now)
        for tree in self._trees.values():
            effects += [Send(child, Orphan(tree.type)) for child in tree.below]
        return [*effects, WakeAt(now + LEAVE_S, ("leave",)), *self._check_leaving()]

    def _check_leaving(self) -> list[Effect]:
        if self._stage != "leaving" or any(tree.below for tree in self._trees.values()):
            return []
        return self._go()

    def _go(self) -> list[Effect]:
        self._stage = "outside"
        farewell = [Send(tree.parent, Prune(tree.type)) for tree in self._trees.values() if tree.parent is not None]
        return [*farewell, Completed("leave")]

    # ── Being looked at ──────────────────────────────────────────────────────

    def links(self) -> tuple[NodeId, ...]:
        """The edges of its trees."""
        ends: dict[NodeId, None] = {}
        for tree in self._trees.values():
            ends.update(dict.fromkeys([*([tree.parent] if tree.parent else []), *tree.below]))
        return tuple(ends)

    def memory(self) -> bytes:
        return self.ring.memory()

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            **self.ring.holdings(),
            "trees": (len(self._trees), TREES_MAX),
            "interests": (sum(map(len, self._trees.values())), INTERESTS_MAX + 1),
            "calls": (len(self._calls), CALLS_MAX),
            "seen": (len(self._seen) + len(self._risen), 2 * SEEN_MAX),
            "roots": (len(self._roots), ROOTS_MAX),
            "held": (len(self._held) + len(self._unpublished), 2 * HELD_MAX),
        }

    # ── Small questions ──────────────────────────────────────────────────────

    def _is_in(self) -> bool:
        return self._stage in ("ready", "settling")

    def _is_usable(self, id: NodeId) -> bool:
        return id not in self.ring.doubted and not self.ring.is_dead(id)

    def _tree(self, type: str) -> Tree | None:
        tree = self._trees.get(type)
        if tree is None and len(self._trees) < TREES_MAX:
            tree = self._trees[type] = Tree(type, self._key_of(type), self._covers, self._tick)
        return tree

    def _key_of(self, type: str) -> str:
        return self.ring.key_of(hashlib.sha256(type.encode()).digest())

    def _is_full(self) -> bool:
        """Asked before each interest that is taken; so they need counting only when the room there was is used up."""
        if self._room <= 0:
            self._room = INTERESTS_MAX - sum(map(len, self._trees.values()))
        self._room -= 1
        return self._room < 0

    def _tick(self) -> int:
        self._clock += 1
        return self._clock


def settle(routers: dict[NodeId, Router[Any]], now: float) -> None:
    """Everybody has joined long ago, and nobody wants anything yet."""
    rings.settle([router.ring for router in routers.values() if isinstance(router, Hermes)], now)


PROTOCOL = Protocol(
    name="hermes",
    build=Hermes.build,
    messages=HermesMessage,
    promises=PROMISES,
    settle=settle,
    name_node=name_node,
)
