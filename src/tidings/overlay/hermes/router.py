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

from collections import OrderedDict
from collections.abc import Sequence
from random import Random
from typing import Any, Literal

from tidings.errors import InputError
from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.hermes.grove import Grove
from tidings.overlay.hermes.messages import Down, Fresh, Heard, HermesMessage, Orphan, Prune, Refresh, Root, Up
from tidings.overlay.hermes.multicast_tree import Risen, Saying, ToChild, Tree, Unwant, Want
from tidings.overlay.hermes.tree_repair import REFRESH_S, Gardener
from tidings.overlay.interest import Interest
from tidings.overlay.messages import EventId, Message, NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.pastry.lookup import Found
from tidings.overlay.pastry.messages import Heartbeat
from tidings.overlay.pastry.ring import ANSWER_S, HEARTBEAT_S
from tidings.overlay.pastry.router import HELD_MAX, RingRouter, on_a_ring
from tidings.overlay.pastry.routing_table import ALTERNATES, LEAF_COUNT
from tidings.overlay.retransmit import Backoff, RetransmitQueue
from tidings.overlay.router import Completed, Count, Deliver, Effect, Failed, Send, Token, WakeAt, remembered

LEAVE_S = 10.0  # How long a leaver waits for its children to find new parents.
HOPS_MAX = 64  # Far more than a ring of any size takes; a message that needs more is going round.
CALLS_MAX = 65_536
CALL_TRIES_MAX = 8  # A minute, the pauses doubling: longer than most storms. The ring tells sooner who is dead.
ROOTS_MAX = 4096  # Rendezvous nodes that a publisher remembers.


class Hermes(RingRouter[HermesMessage]):
    """One node's part in all the trees."""

    def __init__(
        self,
        me: Peer,
        rng: Random,
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
        self.remember_root, self.repair = remember_root, repair
        if refresh_s < 0:
            raise InputError(f"refresh_s: expected 0 or more, got {refresh_s}")
        super().__init__(
            me,
            rng,
            base=base,
            leaf_count=leaf_count,
            alternates=alternates,
            heartbeat_s=heartbeat_s,
            answer_s=answer_s,
        )
        self._stage: Literal["outside", "settling", "ready", "leaving"] = "outside"
        self.grove = Grove(self.ring, self._covers)
        self._seen = SeenIds[EventId](SEEN_MAX)  # Delivered and sent down.
        self._risen = SeenIds[EventId](SEEN_MAX)  # Sent up.
        self._calls = RetransmitQueue[tuple[Any, ...]](Backoff(answer_s, CALL_TRIES_MAX), at_most=CALLS_MAX)
        self._gardener = Gardener(self, self.grove, self._calls, refresh_s)
        self._roots: OrderedDict[str, NodeId] = OrderedDict()

    # ── Coming ───────────────────────────────────────────────────────────────

    def start(self, now: float, memory: bytes = b"") -> list[Effect]:
        contacts = remembered(memory)
        if contacts:
            return self.join(contacts, now)
        return [*self.ring.start(now), *self._gardener.next_refresh(now)]

    def join(self, via: Sequence[Peer], now: float) -> list[Effect]:
        self._joined = True
        return [*self.ring.join(via, now), *self._gardener.next_refresh(now)]

    def entered(self, now: float) -> list[Effect]:
        if not self._joined:
            return self._make_ready(now)
        # Trees that this node is now the rendezvous of are still being handed over.
        self._stage = "settling"
        return [WakeAt(now + 2 * self.ring.answer_s, ("settled",))]

    def _make_ready(self, now: float) -> list[Effect]:
        self._stage = "ready"
        effects: list[Effect] = [Completed("join")]
        for tree in self.grove.trees():
            tree.parent = self.ring.next_hop(tree.key)
            effects += self.say(tree, tree.raise_all(self.me.id), now)
        return [*effects, *self._catch_up(now)]

    def is_in(self) -> bool:
        """Whether this node has its place, and so a way up for every tree."""
        return self._stage in ("ready", "settling")

    # ── Wanting ──────────────────────────────────────────────────────────────

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        tree = self.grove.plant(interest.type)
        if tree is None or self.grove.is_full():
            return [Failed("subscribe", "this node knows as many interests as it may", interest.id)]
        effects: list[Effect] = []
        for other in self.grove.trees():
            if other is not tree and interest.id in other.own:
                del other.own[interest.id]
                effects += self.say(other, other.let_go(interest.id), now)
        tree.own[interest.id] = interest
        return [*effects, *(self._raise(tree, interest, self.me.id, 0, now) if self.is_in() else [])]

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for tree in self.grove.trees():
            if tree.own.pop(id, None):
                effects += self.say(tree, tree.let_go(id), now)
        return [*effects, Completed("unsubscribe", id)]

    def _raise(self, tree: Tree, interest: Interest, child: NodeId, clock: int, now: float) -> list[Effect]:
        if tree.parent is None:
            tree.parent = self.ring.next_hop(tree.key)
        return self.say(tree, tree.raise_(interest, child, clock), now)

    def say(self, tree: Tree, sayings: Sequence[Saying], now: float) -> list[Effect]:
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
            self.grove.fell(tree)
        return effects

    def _tell_child(self, tree: Tree, saying: ToChild) -> list[Effect]:
        if saying.child != self.me.id:
            return [Send(saying.child, saying.message)]
        return [Completed("subscribe", saying.message.id)] if saying.message.id in tree.own else []

    def _covers(self, wide: Interest, narrow: Interest) -> bool:
        return not self.content or (self.covering and wide.covers(narrow))

    # ── Publishing ───────────────────────────────────────────────────────────

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        if self._stage != "ready":
            return self._publish_later(packet)
        return self._go_up(self.me.id, Up(packet, 0, self.me), now)

    def _go_up(self, sender: NodeId, message: Up, now: float) -> list[Effect]:
        packet = message.packet
        if not self._risen.add(packet.header.id) or message.hops >= HOPS_MAX:
            return []
        to = self._way_up(packet.header.type)
        if to is None:
            welcome = self._welcome(message, sender) if self.remember_root else []
            return [*welcome, *self._go_down(packet, message.hops, sender if self.shortcut else "", now)]
        effects: list[Effect] = []
        if self.shortcut or self._stage == "leaving":
            effects += self._go_down(packet, message.hops, sender, now)
        return [*effects, *self._send_up(to, Up(packet, message.hops + 1, message.publisher), now)]

    def _way_up(self, type: str) -> NodeId | None:
        tree = self.grove.get(type)
        if tree is not None and tree.parent is not None and self.ring.is_usable(tree.parent):
            return tree.parent
        remembered_root = self._roots.get(type)
        if remembered_root is not None and self.ring.is_usable(remembered_root):
            return remembered_root
        key = tree.key if tree else self.grove.key_of(type)
        return self.ring.next_hop(key) or (self._heir(key) if self._stage == "leaving" else None)

    def _heir(self, key: str) -> NodeId | None:
        """Who is nearest to a key when this node is gone."""
        target = int(key, self.ring.base)
        return min((peer.id for peer in self.ring.leaves()), key=lambda id_: self.ring.away(id_, target), default=None)

    def _send_up(self, to: NodeId, message: Up, now: float) -> list[Effect]:
        return self._call(("up", message.packet.header.id), to, message, now)

    def _welcome(self, message: Up, sender: NodeId) -> list[Effect]:
        """Tell a publisher whose event took more than one hop where the rendezvous is."""
        if message.publisher.id in (sender, self.me.id):
            return []
        return [Send(message.publisher.id, Root(self.me, message.packet.header.type))]

    def _go_down(self, packet: Packet, hops: int, sender: NodeId, now: float) -> list[Effect]:
        if not self._seen.add(packet.header.id):
            return []
        tree = self.grove.get(packet.header.type)
        if tree is None:
            return []
        wanted_here = any(self._matches(interest, packet) for interest in tree.own.values())
        effects: list[Effect] = [Deliver(packet)] if wanted_here else []
        for child in tree.wants(packet, self._matches):
            if child != sender:
                effects += self._send_down(child, Down(packet, hops + 1), now)
        return effects

    def _send_down(self, child: NodeId, message: Down, now: float) -> list[Effect]:
        return self._call(("down", message.packet.header.id, child), child, message, now)

    def _matches(self, interest: Interest, packet: Packet) -> bool:
        return interest.matches(packet) if self.content else interest.type == packet.header.type

    # ── Being told ───────────────────────────────────────────────────────────

    def receive(self, sender: NodeId, message: HermesMessage, now: float) -> list[Effect]:
        if message.__class__ is Heartbeat:
            return self.ring.receive(sender, message, now)  # Most of all messages: asked first.
        match message:
            case Up(packet=packet) | Down(packet=packet):
                return self._receive_event(sender, message, packet, now)
            case Heard(event=event, way=way):
                self._calls.acknowledge(("up", event) if way == "up" else ("down", event, sender))
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
                return self._gardener.answer(sender, trees, now)
            case Fresh(again=again):
                return self._gardener.say_again(sender, again, now)
            case Prune(event_type=type):
                return self._gardener.lose_child(sender, type, now)
            case Orphan(event_type=type):
                return self._gardener.lose_parent(sender, type, now)
            case _:
                return self.ring.receive(sender, message, now)

    def _receive_event(self, sender: NodeId, message: Up | Down, packet: Packet, now: float) -> list[Effect]:
        if self._stage in ("outside", "settling"):
            # The tree may not have reached this node yet; the event would go no further.
            if len(self._held) < HELD_MAX:
                self._held.append((sender, message))
            return []
        way: Literal["up", "down"] = "up" if isinstance(message, Up) else "down"
        effects: list[Effect] = [Send(sender, Heard(packet.header.id, way))] if self.repair else []
        if isinstance(message, Up):
            return [*effects, *self._go_up(sender, message, now)]
        return [*effects, *(self._go_down(packet, message.hops, sender, now) if message.hops < HOPS_MAX else [])]

    def _take_want(self, sender: NodeId, message: Want, now: float) -> list[Effect]:
        tree = self.grove.plant(message.interest.type)
        if tree is None or self.grove.is_full():
            return [Count("interests refused")]
        if not tree.hear_want(sender, message, now) or not self.is_in():
            return []
        return self._raise(tree, message.interest, sender, message.clock, now)

    def _take_unwant(self, sender: NodeId, message: Unwant, now: float) -> list[Effect]:
        tree = self.grove.get(message.event_type)
        return self.say(tree, tree.hear_unwant(sender, message), now) if tree else []

    def _take_risen(self, sender: NodeId, message: Risen, now: float) -> list[Effect]:
        tree = self.grove.get(message.event_type)
        if tree is None or tree.parent != sender:
            return []
        self._calls.acknowledge(("want", tree.type, message.id))
        self._gardener.heard(sender, now)
        return self.say(tree, tree.hear_risen(message), now)

    def _remember(self, sender: NodeId, root: Peer, type: str) -> list[Effect]:
        if root.id == sender and self.ring.is_node(root):
            self._roots[type] = root.id
            if len(self._roots) > ROOTS_MAX:
                self._roots.popitem(last=False)
        return []

    # ── Who comes and goes ───────────────────────────────────────────────────

    def came(self, peer: Peer, now: float) -> list[Effect]:
        """Somebody new may be nearer to a rendezvous, or be one."""
        if self._stage != "ready":
            return []
        return self._gardener.look_up_again(now)

    def died(self, peer: Peer, now: float) -> list[Effect]:
        for type in [type for type, root in self._roots.items() if root == peer.id]:
            del self._roots[type]
        return [*self._gardener.died(peer.id, now), *self._reroute(peer.id, now)]

    def left(self, peer: Peer, now: float) -> list[Effect]:
        return self.died(peer, now)

    def found(self, prefix: str, what: Peer | Found, now: float) -> list[Effect]:
        return []

    def unsent(self, to: NodeId, message: HermesMessage, now: float) -> list[Effect]:
        effects = self.ring.unsent(to, message, now)
        if isinstance(message, Up) and not self.repair:
            return [*effects, *self._try_another_way(to, message, now)]
        return effects

    def _try_another_way(self, to: NodeId, message: Up, now: float) -> list[Effect]:
        """An event on its way up goes round whoever is gone; if the rendezvous is gone it ends where it has no tree."""
        tree = self.grove.get(message.packet.header.type)
        if tree is not None and tree.parent == to:
            tree.parent = None
        self._roots.pop(message.packet.header.type, None)
        way = self.ring.next_hop(self.grove.key_of(message.packet.header.type))
        if way is not None:
            return self._send_up(way, message, now)
        return self._go_down(message.packet, message.hops, "", now)

    def _reroute(self, gone: NodeId, now: float) -> list[Effect]:
        """What waited for a node that is gone: events go another way up; what was to go down its branch is lost to it."""
        effects: list[Effect] = []
        for key in self._calls.keys_to(gone):
            waiting = self._calls.acknowledge(key)
            if waiting is not None and isinstance(waiting.message, Up):
                effects += self._try_another_way(gone, waiting.message, now)
        return effects

    # ── Asking again ─────────────────────────────────────────────────────────

    def _call(self, key: tuple[Any, ...], to: NodeId, message: Message, now: float) -> list[Effect]:
        """Send what has to be answered; where nothing is repaired, once."""
        if not self.repair:
            return [Send(to, message)]
        due = self._calls.add(key, to, message, now)
        return [Send(to, message), WakeAt(due, ("call", key))]

    def _call_again(self, key: tuple[Any, ...], now: float) -> list[Effect]:
        waiting = self._calls.overdue(key, now)
        if waiting is None:
            return []
        if isinstance(waiting.message, Want) and not self._is_meant(waiting.message, waiting.to):
            self._calls.acknowledge(key)
            return []
        due = self._calls.retry(key, now)
        if due is not None:
            return [Send(waiting.to, waiting.message), WakeAt(due, ("call", key))]
        effects = self.ring.doubt(waiting.to, now)
        if isinstance(waiting.message, Up):
            effects += self._try_another_way(waiting.to, waiting.message, now)
        return effects

    def _is_meant(self, want: Want, parent: NodeId) -> bool:
        """Whether the tree still wants this said to this parent."""
        tree = self.grove.get(want.interest.type)
        held = tree.announced.get(want.interest.id) if tree and tree.parent == parent else None
        return held is not None and held.clock == want.clock

    def wake(self, token: Token, now: float) -> list[Effect]:
        match token:
            case ("call", tuple(key)):
                return self._call_again(key, now)
            case ("refresh",):
                return self._gardener.refresh(now)
            case ("settled",) if self._stage == "settling":
                return self._make_ready(now)
            case ("leave",) if self._stage == "leaving":
                return self._go()
        return self.ring.wake(token, now)

    # ── Leaving ──────────────────────────────────────────────────────────────

    def leave(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for id in [id for tree in self.grove.trees() for id in tree.own]:
            effects += self.unsubscribe(id, now)
        self._stage = "leaving"
        effects += self.ring.leave(now)
        for tree in self.grove.trees():
            effects += [Send(child, Orphan(tree.type)) for child in tree.below]
        return [*effects, WakeAt(now + LEAVE_S, ("leave",)), *self.check_leaving()]

    def check_leaving(self) -> list[Effect]:
        if self._stage != "leaving" or any(tree.below for tree in self.grove.trees()):
            return []
        return self._go()

    def _go(self) -> list[Effect]:
        self._stage = "outside"
        farewell = [Send(tree.parent, Prune(tree.type)) for tree in self.grove.trees() if tree.parent is not None]
        return [*farewell, Completed("leave")]

    # ── Being looked at ──────────────────────────────────────────────────────

    def links(self) -> tuple[NodeId, ...]:
        """The edges of its trees."""
        return self.grove.edges()

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            **super().holdings(),
            **self.grove.holdings(),
            "calls": (len(self._calls), CALLS_MAX),
            "seen": (len(self._seen) + len(self._risen), 2 * SEEN_MAX),
            "roots": (len(self._roots), ROOTS_MAX),
        }


PROTOCOL = on_a_ring("hermes", Hermes, HermesMessage)
