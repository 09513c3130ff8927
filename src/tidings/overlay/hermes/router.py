"""One node's part in Hermes: its options, and its life from `start` to `leave`. The package says how the protocol works."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from tidings.errors import InputError
from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.hermes.messages import (
    ChildRefresh,
    EventAck,
    HermesMessage,
    InterestAck,
    InterestRequest,
    InterestWithdrawal,
    ParentLeaving,
    ParentRefresh,
    Prune,
    RendezvousHint,
    ToRendezvous,
    ToSubscribers,
)
from tidings.overlay.hermes.multicast_tree import MulticastTree, MulticastTrees, ToChild, TreeMessage
from tidings.overlay.hermes.tree_repair import REFRESH_S, TreeRepair
from tidings.overlay.interest import Interest
from tidings.overlay.messages import EventId, Message, NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.pastry.ring import PastryOptions, Ring
from tidings.overlay.prefix.messages import Heartbeat
from tidings.overlay.prefix.router import HELD_MAX, PrefixRouter, on_a_prefix_network
from tidings.overlay.prefix.search import SearchResult
from tidings.overlay.retransmit import Backoff, RetransmitQueue
from tidings.overlay.router import (
    MAP_ENTRIES_MAX,
    TREE_ENDS_MAX,
    Completed,
    Count,
    Deliver,
    Effect,
    Failed,
    MapEntry,
    Send,
    Token,
    TreeEntry,
    WakeAt,
    remembered,
)

LEAVE_S = 10.0  # How long a leaver waits for its children to find new parents.
HOPS_COUNTED = 1 << 16  # Far more than a ring of any size takes. A larger number is a lie, and not counted on.
PENDING_MAX = 65_536
TRIES_MAX = 8  # A minute, as the wait doubles: longer than most disturbances. The ring finds out sooner who is dead.
RENDEZVOUS_MAX = 4096  # Rendezvous nodes that a publisher remembers.


@dataclass(frozen=True, slots=True, kw_only=True)
class HermesOptions(PastryOptions):
    """How a network of Hermes runs; the same for all its nodes."""

    content: bool = True
    """Filter by content. Without, trees know only the type, as in Scribe."""
    covering: bool = True
    """An interest that another one covers is not announced further up."""
    shortcut: bool = True
    """An event on its way up also goes down side branches, instead of coming back from the rendezvous."""
    remember_root: bool = False
    """A publisher learns who the rendezvous is and sends its next event straight there."""
    repair: bool = True
    """Acknowledge hops and repair trees. Without, a tree is built once and left alone."""
    refresh_s: float = REFRESH_S
    """Between two refreshes to a parent. 0: none, for big networks in which nothing fails."""

    def __post_init__(self) -> None:
        PastryOptions.__post_init__(self)
        if self.refresh_s < 0:
            raise InputError(f"refresh_s: expected 0 or more, got {self.refresh_s}")

    @classmethod
    def paper(cls) -> HermesOptions:
        """As the papers' simulations have it: each message is sent once, every event passes the rendezvous."""
        return cls(shortcut=False, repair=False, refresh_s=0, leaf_count=16)

    @classmethod
    def robust(cls) -> HermesOptions:
        """For networks that lose messages and nodes: the defaults."""
        return cls()


class Hermes(PrefixRouter[HermesMessage, Ring]):
    """One node's part in all the trees."""

    def __init__(self, me: Peer, rng: Random, options: HermesOptions | None = None) -> None:
        self.options = options = options or HermesOptions()
        super().__init__(me, rng, lambda application: Ring(me, application, rng, options))
        self._stage: Literal["outside", "settling", "ready", "leaving"] = "outside"
        self.trees = MulticastTrees(self.ring.key_of, self._covers)
        self._sent_down = SeenIds[EventId](SEEN_MAX)  # Also delivered.
        self._sent_up = SeenIds[EventId](SEEN_MAX)
        self._pending = RetransmitQueue[tuple[Any, ...]](Backoff(self.options.answer_s, TRIES_MAX), at_most=PENDING_MAX)
        self._repair = TreeRepair(
            self,
            self.ring,
            self.trees,
            is_pending=lambda event_type, interest: ("want", event_type, interest) in self._pending,
            refresh_s=self.options.refresh_s,
            enabled=self.options.repair,
        )
        self._rendezvous: OrderedDict[str, NodeId] = OrderedDict()  # By type, as publishers remember them.

    # ── Joining ──────────────────────────────────────────────────────────────

    def start(self, now: float, memory: bytes = b"") -> list[Effect]:
        contacts = remembered(memory)
        if contacts:
            return self.join(contacts, now)
        return [*self.ring.start(now), *self._repair.next_refresh(now)]

    def join(self, via: Sequence[Peer], now: float) -> list[Effect]:
        self._joined = True
        return [*self.ring.join(via, now), *self._repair.next_refresh(now)]

    def on_joined(self, now: float) -> list[Effect]:
        if not self._joined:
            return self._make_ready(now)
        # Other nodes are still handing over the trees whose rendezvous this node is now.
        self._stage = "settling"
        return [WakeAt(now + 2 * self.ring.answer_s, ("settled",))]

    def _make_ready(self, now: float) -> list[Effect]:
        self._stage = "ready"
        effects: list[Effect] = [Completed("join")]
        for tree in self.trees.all():
            tree.parent = self.ring.next_hop(tree.key)
            effects += self.send_tree_messages(tree, tree.announce_all(self.me.id), now)
        return [*effects, *self._catch_up(now)]

    def is_in(self) -> bool:
        """Whether this node has joined, and so has a next hop for every tree."""
        return self._stage in ("ready", "settling")

    # ── Subscribing ──────────────────────────────────────────────────────────

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        tree = self.trees.get_or_create(interest.type)
        if tree is None or self.trees.is_full():
            return [Failed("subscribe", "this node stores the maximum number of interests already", interest.id)]
        effects: list[Effect] = []
        for other in self.trees.all():
            if other is not tree and (old := other.own.pop(interest.id, None)) is not None:
                effects += self.send_tree_messages(other, other.withdraw_unused(old.version), now)
        before = tree.own.get(interest.id)
        tree.own[interest.id] = interest
        if self.is_in():
            effects += self._announce(tree, interest, self.me.id, 0, now)
        if before is not None and before.version != interest.version:
            effects += self.send_tree_messages(tree, tree.withdraw_unused(before.version), now)
        return effects

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for tree in self.trees.all():
            if (gone := tree.own.pop(id, None)) is not None:
                effects += self.send_tree_messages(tree, tree.withdraw_unused(gone.version), now)
        return [*effects, Completed("unsubscribe", id)]

    def _announce(self, tree: MulticastTree, interest: Interest, child: NodeId, clock: int, now: float) -> list[Effect]:
        if tree.parent is None:
            tree.parent = self.ring.next_hop(tree.key)
        return self.send_tree_messages(tree, tree.announce(interest, child, clock), now)

    def send_tree_messages(self, tree: MulticastTree, messages: Sequence[TreeMessage], now: float) -> list[Effect]:
        """Send what a tree has to send, and forget the tree if nobody needs it any more."""
        effects: list[Effect] = []
        for message in messages:
            if isinstance(message, ToChild):
                effects += self._answer_child(tree, message)
            elif tree.parent is None:
                continue
            elif isinstance(message, InterestRequest):
                effects += self._send_reliably(("want", tree.type, message.interest.version), tree.parent, message, now)
            else:
                effects.append(Send(tree.parent, message))  # If it is lost, the next refresh corrects that.
        if tree.is_empty:
            self.trees.remove(tree)
        return effects

    def _answer_child(self, tree: MulticastTree, answer: ToChild) -> list[Effect]:
        if answer.child != self.me.id:
            return [Send(answer.child, answer.message)]
        id = answer.message.interest.id
        return [Completed("subscribe", id)] if id in tree.own else []

    def _covers(self, wide: Interest, narrow: Interest) -> bool:
        return not self.options.content or (self.options.covering and wide.covers(narrow))

    # ── Publishing ───────────────────────────────────────────────────────────

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        if self._stage != "ready":
            return self._publish_later(packet)
        return self._forward_up(self.me.id, ToRendezvous(packet, 0, self.me), now)

    def _forward_up(self, sender: NodeId, message: ToRendezvous, now: float) -> list[Effect]:
        packet, shortcut = message.packet, self.options.shortcut
        if not self._sent_up.add(packet.header.id):
            return []  # This also ends loops. Hops do not: whoever passes an event on could use them up.
        to = self._next_hop_up(packet.header.type)
        if to is None:
            hint = self._hint(message, sender) if self.options.remember_root else []
            return [*hint, *self._forward_down(packet, message.hops, sender if shortcut else "", now)]
        effects: list[Effect] = []
        if shortcut or self._stage == "leaving":
            effects += self._forward_down(packet, message.hops, sender, now)
        return [*effects, *self._send_up(to, ToRendezvous(packet, _next(message.hops), message.publisher), now)]

    def _next_hop_up(self, type: str) -> NodeId | None:
        tree = self.trees.get(type)
        if tree is not None and tree.parent is not None and self.ring.is_usable(tree.parent):
            return tree.parent
        rendezvous = self._rendezvous.get(type)
        if rendezvous is not None and self.ring.is_usable(rendezvous):
            return rendezvous
        key = tree.key if tree else self.trees.key_of(type)
        return self.ring.next_hop(key) or (self._successor(key) if self._stage == "leaving" else None)

    def _successor(self, key: str) -> NodeId | None:
        """The node nearest to a key once this one has left."""
        target = int(key, self.ring.base)
        return min((peer.id for peer in self.ring.leaves()), key=lambda id_: self.ring.away(id_, target), default=None)

    def _send_up(self, to: NodeId, message: ToRendezvous, now: float) -> list[Effect]:
        return self._send_reliably(("up", message.packet.header.id), to, message, now)

    def _hint(self, message: ToRendezvous, sender: NodeId) -> list[Effect]:
        """Name the rendezvous to a publisher whose event took more than one hop."""
        if message.publisher.id in (sender, self.me.id):
            return []
        return [Send(message.publisher.id, RendezvousHint(self.me, message.packet.header.type))]

    def _forward_down(self, packet: Packet, hops: int, sender: NodeId, now: float) -> list[Effect]:
        if not self._sent_down.add(packet.header.id):
            return []
        tree = self.trees.get(packet.header.type)
        if tree is None:
            return []
        is_wanted_here = any(self._matches(interest, packet) for interest in tree.own.values())
        effects: list[Effect] = [Deliver(packet)] if is_wanted_here else []
        for child in tree.interested_children(packet, self._matches):
            if child != sender:
                effects += self._send_down(child, ToSubscribers(packet, _next(hops)), now)
        return effects

    def _send_down(self, child: NodeId, message: ToSubscribers, now: float) -> list[Effect]:
        return self._send_reliably(("down", message.packet.header.id, child), child, message, now)

    def _matches(self, interest: Interest, packet: Packet) -> bool:
        return interest.matches(packet) if self.options.content else interest.type == packet.header.type

    # ── Receiving ────────────────────────────────────────────────────────────

    def receive(self, sender: NodeId, message: HermesMessage, now: float) -> list[Effect]:
        if message.__class__ is Heartbeat:
            return self.ring.receive(sender, message, now)  # Most messages are heartbeats: checked first.
        match message:
            case ToRendezvous(packet=packet) | ToSubscribers(packet=packet):
                return self._on_event(sender, message, packet, now)
            case EventAck(event=event, way=way):
                self._pending.acknowledge(("up", event) if way == "up" else ("down", event, sender), by=sender)
                return []
            case InterestRequest():
                return self._on_request(sender, message, now)
            case InterestWithdrawal():
                return self._on_withdrawal(sender, message, now)
            case InterestAck():
                return self._on_interest_ack(sender, message, now)
            case RendezvousHint(me=me, event_type=type):
                return self._on_hint(sender, me, type)
            case ChildRefresh(trees=digests):
                return self._repair.on_child_refresh(sender, digests, now)
            case ParentRefresh(again=again):
                return self._repair.on_parent_refresh(sender, again, now)
            case Prune(event_type=type):
                return self._repair.on_child_gone(sender, type, now)
            case ParentLeaving(event_type=type):
                return self._repair.on_parent_leaving(sender, type, now)
            case _:
                return self.ring.receive(sender, message, now)

    def _on_event(
        self, sender: NodeId, message: ToRendezvous | ToSubscribers, packet: Packet, now: float
    ) -> list[Effect]:
        if self._stage in ("outside", "settling"):
            # The tree may not have reached this node yet; the event would go no further.
            if len(self._held) < HELD_MAX:
                self._held.append((sender, message))
            return []
        way: Literal["up", "down"] = "up" if isinstance(message, ToRendezvous) else "down"
        effects: list[Effect] = [Send(sender, EventAck(packet.header.id, way))] if self.options.repair else []
        if isinstance(message, ToRendezvous):
            return [*effects, *self._forward_up(sender, message, now)]
        return [*effects, *self._forward_down(packet, message.hops, sender, now)]

    def _on_request(self, sender: NodeId, message: InterestRequest, now: float) -> list[Effect]:
        tree, made_room = self.trees.get_or_create(message.interest.type), list[Effect]()
        if tree is None or self.trees.is_full():
            crowding = self.trees.crowding(sender, message.interest, is_tree_missing=tree is None)
            crowded = self.trees.get(crowding.type) if crowding is not None else None
            if crowding is None or crowded is None:
                if tree is not None and tree.is_empty:
                    self.trees.remove(tree)
                return [Count("interests refused")]
            made_room = self.send_tree_messages(crowded, crowded.drop(crowding.child, crowding.interest), now)
            tree = self.trees.get_or_create(message.interest.type)
            if tree is None:
                return made_room
        if not tree.on_request(sender, message, now) or not self.is_in():
            return made_room
        return [*made_room, *self._announce(tree, message.interest, sender, message.clock, now)]

    def _on_withdrawal(self, sender: NodeId, message: InterestWithdrawal, now: float) -> list[Effect]:
        tree = self.trees.get(message.event_type)
        return self.send_tree_messages(tree, tree.on_withdrawal(sender, message), now) if tree else []

    def _on_interest_ack(self, sender: NodeId, message: InterestAck, now: float) -> list[Effect]:
        tree = self.trees.get(message.event_type)
        if tree is None or tree.parent != sender:
            return []
        self._pending.acknowledge(("want", tree.type, message.interest))
        self._repair.on_parent_alive(sender, now)
        return self.send_tree_messages(tree, tree.on_ack(message), now)

    def _on_hint(self, sender: NodeId, rendezvous: Peer, type: str) -> list[Effect]:
        """Believed of a node that is nearer to the type's key than every node known here."""
        if not self.options.remember_root or rendezvous.id != sender or not self.ring.is_node(rendezvous):
            return []
        target = int(self.trees.key_of(type), self.ring.base)
        known = [self.me.id, *(peer.id for peer in self.ring.leaves() if self.ring.is_usable(peer.id))]
        if all(self.ring.away(sender, target) <= self.ring.away(id, target) for id in known):
            self._rendezvous[type] = rendezvous.id
            if len(self._rendezvous) > RENDEZVOUS_MAX:
                self._rendezvous.popitem(last=False)
        return []

    # ── Nodes that come and go ───────────────────────────────────────────────

    def on_node_up(self, peer: Peer, now: float) -> list[Effect]:
        """The new node may be nearer to a rendezvous, or be one."""
        if self._stage != "ready":
            return []
        return self._repair.find_parents(now)

    def on_node_failed(self, peer: Peer, now: float) -> list[Effect]:
        for type in [type for type, rendezvous in self._rendezvous.items() if rendezvous == peer.id]:
            del self._rendezvous[type]
        return [*self._repair.on_node_failed(peer.id, now), *self._reroute(peer.id, now)]

    def on_node_left(self, peer: Peer, now: float) -> list[Effect]:
        return self.on_node_failed(peer, now)

    def on_search_ended(self, prefix: str, what: Peer | SearchResult, now: float) -> list[Effect]:
        return []

    def unsent(self, to: NodeId, message: HermesMessage, now: float) -> list[Effect]:
        effects = self.ring.unsent(to, message, now)
        if isinstance(message, ToRendezvous) and not self.options.repair:
            return [*effects, *self._send_up_around(to, message, now)]
        return effects

    def _send_up_around(self, to: NodeId, message: ToRendezvous, now: float) -> list[Effect]:
        """Send an event up around a node that is gone. If that was the rendezvous, the event ends where it has no tree."""
        tree = self.trees.get(message.packet.header.type)
        if tree is not None and tree.parent == to:
            tree.parent = None
        self._rendezvous.pop(message.packet.header.type, None)
        next_hop = self.ring.next_hop(self.trees.key_of(message.packet.header.type))
        if next_hop is not None:
            return self._send_up(next_hop, message, now)
        return self._forward_down(message.packet, message.hops, "", now)

    def _reroute(self, gone: NodeId, now: float) -> list[Effect]:
        """Send up another way what a node that is gone has not acknowledged. What was to go down its branch is dropped."""
        effects: list[Effect] = []
        for key in self._pending.keys_to(gone):
            pending = self._pending.acknowledge(key)
            if pending is not None and isinstance(pending.message, ToRendezvous):
                effects += self._send_up_around(gone, pending.message, now)
        return effects

    # ── Retransmission ───────────────────────────────────────────────────────

    def _send_reliably(self, key: tuple[Any, ...], to: NodeId, message: Message, now: float) -> list[Effect]:
        """Send a message until it is acknowledged; without repair, once."""
        if not self.options.repair:
            return [Send(to, message)]
        due = self._pending.add(key, to, message, now)
        return [Send(to, message), WakeAt(due, ("call", key))]

    def _retransmit(self, key: tuple[Any, ...], now: float) -> list[Effect]:
        pending = self._pending.overdue(key, now)
        if pending is None:
            return []
        if isinstance(pending.message, InterestRequest) and not self._is_current(pending.message, pending.to):
            self._pending.acknowledge(key)
            return []
        due = self._pending.retry(key, now)
        if due is not None:
            return [Send(pending.to, pending.message), WakeAt(due, ("call", key))]
        effects = self.ring.doubt(pending.to, now)
        if isinstance(pending.message, ToRendezvous):
            effects += self._send_up_around(pending.to, pending.message, now)
        return effects

    def _is_current(self, request: InterestRequest, parent: NodeId) -> bool:
        """Whether the tree still announces this to this parent."""
        tree = self.trees.get(request.interest.type)
        announced = tree.announced.get(request.interest.version) if tree and tree.parent == parent else None
        return announced is not None and announced.clock == request.clock

    def wake(self, token: Token, now: float) -> list[Effect]:
        match token:
            case ("call", tuple(key)):
                return self._retransmit(key, now)
            case ("refresh",):
                return self._repair.refresh(now)
            case ("settled",) if self._stage == "settling":
                return self._make_ready(now)
            case ("leave",) if self._stage == "leaving":
                return self._go()
        return self.ring.wake(token, now)

    # ── Leaving ──────────────────────────────────────────────────────────────

    def leave(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for id in [id for tree in self.trees.all() for id in tree.own]:
            effects += self.unsubscribe(id, now)
        self._stage = "leaving"
        effects += self.ring.leave(now)
        for tree in self.trees.all():
            effects += [Send(child, ParentLeaving(tree.type)) for child in tree.children]
        return [*effects, WakeAt(now + LEAVE_S, ("leave",)), *self.leave_if_unneeded()]

    def leave_if_unneeded(self) -> list[Effect]:
        """Leave, if this node is leaving and no child needs it any more."""
        if self._stage != "leaving" or any(tree.children for tree in self.trees.all()):
            return []
        return self._go()

    def _go(self) -> list[Effect]:
        self._stage = "outside"
        farewell = [Send(tree.parent, Prune(tree.type)) for tree in self.trees.all() if tree.parent is not None]
        return [*farewell, Completed("leave")]

    # ── Inspection ───────────────────────────────────────────────────────────

    def links(self) -> tuple[NodeId, ...]:
        """The edges of its trees."""
        return self.trees.edges()

    def map_entry(self) -> MapEntry:
        """The rendezvous trees: towards the rendezvous, and to the children that have interests below."""
        trees = self.trees.all()
        shown = tuple(
            TreeEntry(
                tree.type,
                is_root=tree.parent is None,
                up=(tree.parent,) if tree.parent is not None else (),
                down=tuple(tree.children)[:TREE_ENDS_MAX],
            )
            for tree in trees[:MAP_ENTRIES_MAX]
        )
        return MapEntry(trees=shown, left_out=len(trees) - len(shown))

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            **super().holdings(),
            **self.trees.holdings(),
            "calls": (len(self._pending), PENDING_MAX),
            "seen": (len(self._sent_down) + len(self._sent_up), 2 * SEEN_MAX),
            "roots": (len(self._rendezvous), RENDEZVOUS_MAX),
        }


def _next(hops: int) -> int:
    return min(max(hops, 0) + 1, HOPS_COUNTED)


PROTOCOL = on_a_prefix_network("hermes", Hermes, HermesOptions, HermesMessage)
