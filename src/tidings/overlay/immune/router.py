"""One node's part in immune routing: its life from `start` to `leave`, and how it forwards. The package says how the
protocol works."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from tidings.overlay.dedup import SeenIds
from tidings.overlay.immune import global_construction
from tidings.overlay.immune.core_maintenance import REPAIR_AFTER, CoreMaintenance
from tidings.overlay.immune.messages import (
    Advertise,
    AdvertList,
    AdvertRequest,
    BroadcastAck,
    BroadcastMessage,
    CorePromotion,
    DelayAnswer,
    DelayProbe,
    Elect,
    ElectNo,
    ElectOk,
    EventBroadcast,
    Hello,
    ImmuneMessage,
    LeaveNotice,
    Release,
    RenewAdvert,
    RoleChange,
    key_of,
)
from tidings.overlay.immune.neighbour_state import NEIGHBOURS_MAX, ImmuneOptions, NeighbourState
from tidings.overlay.immune.precomputed import settle
from tidings.overlay.immune.reverse_path import (
    Advert,
    AdvertConfirm,
    AdvertSubscribe,
    AdvertUnsubscribe,
    Forward,
    Forwarded,
    ReversePaths,
)
from tidings.overlay.immune.role_election import RoleElection
from tidings.overlay.interest import Interest
from tidings.overlay.messages import EventId, NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.retransmit import Backoff, RetransmitQueue
from tidings.overlay.router import (
    TREE_ENDS_MAX,
    WHATEVER_HAPPENS,
    Completed,
    Count,
    Deliver,
    Effect,
    Guarantee,
    MapEntry,
    Place,
    Protocol,
    Router,
    Send,
    Token,
    TreeEntry,
    WakeAt,
    built,
)

RESENDS_MAX = 6  # With the wait doubling: half a minute at the usual heartbeat.
UNACKED_MAX = 65_536  # Copies on their way; one pushed out is not sent again.


class Immune(Router[ImmuneMessage]):
    """One node of the network: its neighbours and role (`state`), and what it forwards to whom."""

    def __init__(self, place: Place, options: ImmuneOptions | None = None) -> None:
        self.me, self.id, self._rng = place.me, place.me.id, place.rng
        self.options = options or ImmuneOptions()
        self.state = NeighbourState(place.me, tuple(peer.id for peer in place.neighbours), self.options, place.rng)
        self._roles = RoleElection(self.state, self)
        self._core = CoreMaintenance(self.state, self._roles)
        self._beat_s = self.state.beat_s
        self._seen = SeenIds[str]()
        self._seen_safe = SeenIds[str]()
        self._delivered = SeenIds[EventId]()
        self._unacked = RetransmitQueue[tuple[str, NodeId]](Backoff(self._beat_s / 2, RESENDS_MAX), at_most=UNACKED_MAX)
        self.paths = ReversePaths(self.id, self.me.incarnation, wait_s=self._beat_s, settle_s=5 * self._beat_s)
        self._renewals = 0

    @classmethod
    def build(cls, place: Place, **options: Any) -> Immune:
        """A node at this place; raises InputError for an option there is not."""
        return cls(place, built("immune", ImmuneOptions, **options))

    # ── Joining and leaving ────────────────────────────────────────────────────

    def start(self, now: float, memory: bytes = b"") -> list[Effect]:
        state = self.state
        state.start_clocks(now)
        for peer in state.neighbours:
            state.alive.watch(peer, now)
        effects: list[Effect] = [Completed("join")]
        if self.options.heartbeat_s:
            effects.append(WakeAt(now + self._rng.uniform(0, self._beat_s), "tick", idle=True))
        if state.decided:
            return effects
        effects += [Send(peer, RoleChange(self._roles.status(), asking=True)) for peer in state.links]
        return [*effects, WakeAt(now + 3 * self._beat_s, "greeted"), *self._roles.decide_if_all_greeted(now)]

    def leave(self, now: float) -> list[Effect]:
        self.state.leaving = True
        if not self.state.in_core or not self.state.neighbours:
            return self._go()
        self.state.unstable_until = math.inf  # From now on this node only floods.
        return self._roles.announce_role()

    def peer_up(self, peer: Peer, now: float) -> list[Effect]:
        if len(self.state.links) >= NEIGHBOURS_MAX:
            return []
        self.state.heard_of(peer.id)
        return [Send(peer.id, RoleChange(self._roles.status(), asking=True))]

    def peer_down(self, peer: NodeId, now: float) -> list[Effect]:
        self.paths.give_up_on(peer)
        return self._roles.lose(peer, now)

    # ── Publish and subscribe ──────────────────────────────────────────────────

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        self._delivered.add(packet.header.id)
        effects: list[Effect] = [Deliver(packet)]
        if self.options.mode == "advertise":
            advert = self.paths.new_advert(packet, now)
            if advert is not None:
                effects += self._broadcast(Advertise(advert), None, now)
            elif self.paths.is_settled(packet, now) and not self.state.is_unstable(now):
                return effects + self.paths.down(packet, self.paths.own_advert(packet), None, now)
        return effects + self._broadcast(EventBroadcast(packet), None, now)

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        if self.options.mode == "advertise":
            return self.paths.subscribe(interest, now)
        return [Completed("subscribe", interest.id)]

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        if self.options.mode == "advertise":
            return self.paths.unsubscribe(id, now)
        return [Completed("unsubscribe", id)]

    # ── Messages ───────────────────────────────────────────────────────────────

    def receive(self, sender: NodeId, message: ImmuneMessage, now: float) -> list[Effect]:
        self.state.alive.heard(sender, now)
        match message:
            case EventBroadcast() | Advertise() | RenewAdvert():
                return self._on_broadcast(sender, message, now)
            case BroadcastAck(key):
                self._unacked.acknowledge((key, sender))
                return []
            case Hello(status):
                return self._roles.on_status(sender, status, now)
            case RoleChange(status, asking):
                answer: list[Effect] = [Send(sender, RoleChange(self._roles.status()))] if asking else []
                return answer + self._roles.on_status(sender, status, now)
        if sender not in self.state.neighbours and not isinstance(message, Forward | Forwarded):
            return []  # A stranger, or one whose greeting was lost; it will greet again.
        match message:
            case DelayProbe(number):
                return [Send(sender, DelayAnswer(number))]
            case DelayAnswer(number):
                if self.state.delays:
                    self.state.delays.answered(sender, number, now)
                return []
        if isinstance(
            message,
            AdvertSubscribe | AdvertConfirm | AdvertUnsubscribe | Forward | Forwarded | AdvertRequest | AdvertList,
        ):
            return self._on_path_message(sender, message, now)
        if isinstance(message, Elect | ElectOk | ElectNo | Release | CorePromotion | LeaveNotice):
            return self._roles.receive(sender, message, now)
        return self._core.receive(sender, message, now)

    def wake(self, token: Token, now: float) -> list[Effect]:
        match token:
            case "tick":
                return self._tick(now)
            case "greeted":
                return self._roles.decide(now)
            case ("asked", int(round)):
                return self._core.on_ask_timeout(round)
            case ("resend", str(key), str(to)):
                return self._retransmit(key, to, now)
            case ("pointers", (str(kind), what, str(to))):
                return self.paths.retransmit((kind, what, to), now)
        return []

    def links(self) -> tuple[NodeId, ...]:
        if not self.state.in_core:
            return (self.state.upper,) if self.state.upper else ()
        return (*self.state.lowers, *self.state.core_neighbours())

    def map_entry(self) -> MapEntry:
        """The core and its followers; a core node hangs below its parent on the tree of beacons."""
        state = self.state
        if not state.decided:
            return MapEntry("undecided")
        if not state.in_core:
            return MapEntry("follower", trees=(TreeEntry(up=(state.upper,) if state.upper else ()),))
        up = (state.root.parent,) if state.root.parent else ()
        down = (*state.children, *state.lowers)
        return MapEntry("core", trees=(TreeEntry(is_root=not up, up=up, down=down[:TREE_ENDS_MAX]),))

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            "wires": (len(self.state.links), NEIGHBOURS_MAX),
            "lowers": (len(self.state.lowers), NEIGHBOURS_MAX),
            "seen": (len(self._seen), self._seen.at_most),
            "delays": (self.state.delays.count() if self.state.delays else 0, NEIGHBOURS_MAX),
            "unacked": (len(self._unacked), UNACKED_MAX),
            **self._core.holdings(),
            **self.paths.holdings(),
        }

    # ── Broadcast ──────────────────────────────────────────────────────────────

    def _on_broadcast(self, sender: NodeId, message: BroadcastMessage, now: float) -> list[Effect]:
        effects: list[Effect] = [Send(sender, BroadcastAck(key_of(message)))] if self.options.acks else []
        is_new = key_of(message) not in self._seen
        onward = self._broadcast(message, sender, now)
        match message:
            case EventBroadcast(packet):
                effects += [Deliver(packet)] if self._delivered.add(packet.header.id) else []
            case Advertise(advert) if is_new:
                effects += self.paths.learn(advert, sender, now)
            case RenewAdvert(advert) if is_new and self.paths.is_own(advert.id):
                effects += self._renew_own(advert, now)
        return effects + onward

    def _broadcast(self, message: BroadcastMessage, sender: NodeId | None, now: float) -> list[Effect]:
        """Forward what is new here. What was forwarded by role goes out once more, to all, if other nodes are unstable."""
        key, safe = key_of(message), message.safe or self.state.is_unstable(now)
        if not self._seen.add(key) and not (safe and key not in self._seen_safe):
            return []
        if not safe:
            return self._send_all(message, self._next_hops(sender), now)
        self._seen_safe.add(key)
        onward = message if message.safe else msgspec.structs.replace(message, safe=True)
        # On all links, also those that seem dead: that one does is often why this node is unstable.
        return self._send_all(onward, [peer for peer in self.state.links if peer != sender], now)

    def _next_hops(self, sender: NodeId | None) -> list[NodeId]:
        """The neighbours that this node's role makes it forward to."""
        state = self.state
        if not state.in_core:
            return [state.upper] if sender is None and state.upper else []
        lowers = [peer for peer in state.lowers if peer != sender]
        return lowers + [peer for peer in self._core_next_hops(sender) if peer not in state.lowers]

    def _core_next_hops(self, sender: NodeId | None) -> list[NodeId]:
        state = self.state
        others = [peer for peer in state.core_neighbours() if peer != sender]
        if self.options.forward == "core_tree":
            return [peer for peer in others if peer == state.root.parent or peer in state.children]
        status = state.neighbours.get(sender) if sender else None
        if self.options.forward == "core_elim" and status and status.core and status.epoch == state.epoch:
            return [peer for peer in others if peer not in status.core_neighbours]
        return others

    def _send_all(self, message: BroadcastMessage, to: list[NodeId], now: float) -> list[Effect]:
        if not self.options.acks:
            return [Send(peer, message) for peer in to]
        effects: list[Effect] = []
        for peer in to:
            due = self._unacked.add((key_of(message), peer), peer, message, now)
            effects += [Send(peer, message), WakeAt(due, ("resend", key_of(message), peer))]
        return effects

    def _retransmit(self, key: str, to: NodeId, now: float) -> list[Effect]:
        pending = self._unacked.overdue((key, to), now)
        if pending is None:
            return []
        due = self._unacked.retry((key, to), now)
        if due is None:
            return [Count("gave up")]
        return [Send(to, pending.message), WakeAt(due, ("resend", key, to))]

    # ── Each heartbeat ─────────────────────────────────────────────────────────

    def _tick(self, now: float) -> list[Effect]:
        state = self.state
        effects: list[Effect] = [WakeAt(now + self._beat_s, "tick", idle=True)]
        for peer in state.alive.silent(now):
            effects += self._roles.lose(peer, now)
        state.forget_silent_links(now)
        state.children = {child: until for child, until in state.children.items() if until >= now}
        self._core.expire(now)
        if not state.decided:
            return effects + [Send(peer, RoleChange(self._roles.status(), asking=True)) for peer in state.links]
        effects += self._roles.ensure_role(now) + self._core.tick(now) + self._roles.move_nearer(now)
        effects += state.delays.probe(state.neighbours, now) if state.delays else []
        effects += self._maintain_paths(now)
        if state.leaving and state.in_core:
            effects += self._go_if_replaced(now)
        hello = Hello(self._roles.status())
        return effects + [Send(peer, hello) for peer in state.links]

    def _maintain_paths(self, now: float) -> list[Effect]:
        expired = self.paths.expire(now) + self._compare_adverts()
        return expired + self._request_renewals(self.paths.broken(now), now)

    # ── Neighbours that come and go ────────────────────────────────────────────

    def on_neighbour_met(self, peer: NodeId, now: float) -> list[Effect]:
        """This link may join what was split: ask for adverts, and once more for trees that broke."""
        if self.options.mode != "advertise":
            return []
        return [Send(peer, AdvertRequest()), *self._request_renewals(self.paths.broken(now, at_once=True), now)]

    def on_neighbour_lost(self, peer: NodeId, now: float) -> list[Effect]:
        """Flood what the lost neighbour had not acknowledged, for it may have been the path to other nodes."""
        effects: list[Effect] = []
        for key in self._unacked.keys_to(peer):
            pending = self._unacked.acknowledge(key)
            if pending is not None and self._seen_safe.add(key[0]):
                again = msgspec.structs.replace(pending.message, safe=True)
                effects += self._send_all(again, [other for other in self.state.links if other != peer], now)
        self.paths.on_neighbour_lost(peer, now)
        return effects + self._request_renewals(self.paths.broken(now), now)

    def adverts_fingerprint(self) -> int:
        return self.paths.fingerprint()

    def _go_if_replaced(self, now: float) -> list[Effect]:
        """A leaver of the core goes when no neighbour needs it: all have another path, to one and the same root."""
        state = self.state
        others = [s for s in state.neighbours.values() if not s.leaving]
        roots = {status.root for status in others}
        is_served = all(status.core or (status.upper and status.upper != self.id) for status in others)
        is_late = now > state.changed_at + REPAIR_AFTER * self._beat_s
        return self._go() if is_served and len(roots) <= 1 and is_late else []

    def _go(self) -> list[Effect]:
        return [*(Send(peer, LeaveNotice()) for peer in self.state.neighbours), Completed("leave")]

    # ── Reverse paths ────────────────────────────────────────────────────────────

    def _on_path_message(self, sender: NodeId, message: Any, now: float) -> list[Effect]:
        match message:
            case Forward(packet, advert):
                return [Send(sender, Forwarded(packet.header.id)), *self._on_forward(packet, advert, sender, now)]
            case AdvertRequest():
                known = self.paths.known()
                return [Send(sender, AdvertList(known))] if known else []
            case AdvertList(adverts):
                return [effect for advert in adverts for effect in self._on_advert(advert, sender, now)]
        return self.paths.receive(sender, message, now)

    def _on_forward(self, packet: Packet, advert: Advert, sender: NodeId, now: float) -> list[Effect]:
        """Deliver and pass down. If the tree was laid anew since the event set out, nobody is sure who wants it: to all."""
        if not self._delivered.add(packet.header.id):
            return []
        if self.paths.advert(advert.id) == advert:
            return [Deliver(packet), *self.paths.down(packet, advert, sender, now)]
        return [Deliver(packet), *self._broadcast(EventBroadcast(packet, safe=True), None, now)]

    def _on_advert(self, advert: Advert, sender: NodeId, now: float) -> list[Effect]:
        """A neighbour knew of an advert. If it is new here, it is new to others behind this node as well."""
        learned = self.paths.learn(advert, sender, now)
        return learned + self._broadcast(Advertise(advert, safe=True), sender, now)

    def _compare_adverts(self) -> list[Effect]:
        """Ask one neighbour, another each time, for what it knows, if it does not know just the same."""
        neighbours = self.state.neighbours
        if self.options.mode != "advertise" or not neighbours:
            return []
        peer = self._rng.choice(list(neighbours))
        return [Send(peer, AdvertRequest())] if neighbours[peer].adverts != self.paths.fingerprint() else []

    def _request_renewals(self, broken: list[Advert], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for advert in broken:
            self._renewals += 1
            effects += self._broadcast(RenewAdvert(advert, self.id, self._renewals, safe=True), None, now)
        return effects

    def _renew_own(self, advert: Advert, now: float) -> list[Effect]:
        known = self.paths.advert(advert.id)
        if known is None or advert.seq != known.seq:
            return []  # One new tree serves all who noticed that the old one is broken.
        return self._broadcast(Advertise(self.paths.renew(advert.id, now), safe=True), None, now)


def roles_of(routers: Sequence[Immune]) -> global_construction.Roles:
    """The roles that these nodes have now."""
    core = tuple(node.id for node in routers if node.state.in_core)
    upper = {node.id: node.state.upper or None for node in routers if not node.state.in_core}
    return global_construction.Roles(
        core, upper, tuple(node.id for node in routers if node.state.in_core and not node.state.lowers)
    )


PROTOCOL = Protocol(
    name="immune",
    build=Immune.build,
    messages=ImmuneMessage,
    guarantees=WHATEVER_HAPPENS | {Guarantee.JOINS_BY_LINKS, Guarantee.LEAVES_CLEANLY},
    on_graph=True,
    content_in_packets_only=True,
    settle=settle,
)
