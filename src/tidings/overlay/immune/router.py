"""Immune: nodes with few links listen, a small connected core of well-linked ones forwards.

On a scale-free graph most nodes have few links and some have many. Those with at most
`delta` links are *immune*: they never forward, and elect one neighbour in the *core* as
their *upper*, which forwards to them as one of its *lowers*. Members of the core that
nobody elected become immune too, if the core holds together without them. What is spread
reaches everyone in about one copy each; flooding takes about five.

    role      sends what it gets first to
    immune    nobody; what it publishes itself, to its upper
    core      its lowers, and the core by `forward`:
              core_flood   all core neighbours but the sender
              core_elim    … except those that the sender reaches itself
              core_tree    its links of a tree that spans the core
    unsure    all neighbours, and whoever gets it does the same: a flood, until things are clear again

How the roles come about (`backbone.guarded` is the same thing seen from above; roles are taken
in `immune_neighbour`, the core is kept in `immune_core`):

    Hello        everyone to all neighbours, each heartbeat: links, role, upper, root
    Promote      an immune node without a core neighbour makes its best neighbour join the core
    Elect        an immune node to the best of its core neighbours; ElectOk or ElectNo comes back
    Beacon       from the best-ranked node of the core through the core: who hears none is cut off
    Repair       a flood from a piece of the core to find a better-ranked one; RepairPath comes
                 back the way it went, and Bridge promotes the nodes in between
    DemoteAsk    a core node without lowers asks the core within two hops to stay as it is while it
                 looks whether they hold together without it; worst rank goes first

Every step keeps the core connected and everyone next to it, so a new *epoch* (links have
changed, the ranks are taken anew) only opens the questions again. Steps that wait for a
lost message run out and are taken again; giving up always means staying in the core.

Events are spread to everyone (`traverse`) or follow reverse pointers (`advertise`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from tidings.overlay.dedup import SeenIds
from tidings.overlay.immune import global_construction
from tidings.overlay.immune.core_maintenance import REPAIR_AFTER, CoreMember
from tidings.overlay.immune.messages import (
    Advertise,
    AdvertList,
    AdvertRequest,
    Beacon,
    Bridge,
    BroadcastAck,
    BroadcastMessage,
    CorePromotion,
    DemoteAsk,
    DemoteDeny,
    DemoteEnd,
    DemoteGrant,
    Elect,
    ElectNo,
    ElectOk,
    EventBroadcast,
    Foreign,
    Hello,
    ImmuneMessage,
    LeaveNotice,
    Release,
    RenewAdvert,
    Repair,
    RepairPath,
    RoleChange,
    key_of,
)
from tidings.overlay.immune.neighbour_state import NEIGHBOURS_MAX, ImmuneOptions
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
from tidings.overlay.interest import Interest
from tidings.overlay.messages import EventId, NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.retransmit import Backoff, RetransmitQueue
from tidings.overlay.router import (
    WHATEVER_HAPPENS,
    Completed,
    Count,
    Deliver,
    Effect,
    Guarantee,
    Place,
    Protocol,
    Send,
    Token,
    WakeAt,
    built,
)

RESENDS_MAX = 6  # With the wait doubling: half a minute at the usual heartbeat.
UNACKED_MAX = 65_536  # Copies on their way; one pushed out is not sent again.


class Immune(CoreMember):
    """One node of the network: its role, its neighbours as it knows them, and what it forwards to whom."""

    def __init__(self, place: Place, options: ImmuneOptions | None = None) -> None:
        super().__init__(place, options)
        self._seen = SeenIds[str]()
        self._seen_safe = SeenIds[str]()
        self._delivered = SeenIds[EventId]()
        self._unacked = RetransmitQueue[tuple[str, NodeId]](Backoff(self._beat / 2, RESENDS_MAX), at_most=UNACKED_MAX)
        self.paths = ReversePaths(self.id, self.me.incarnation, wait_s=self._beat, settle_s=5 * self._beat)
        self._renewals = 0

    @classmethod
    def build(cls, place: Place, **options: Any) -> Immune:
        """A node that stands where `place` says."""
        return cls(place, built("immune", ImmuneOptions, **options))

    # ── Coming and going ───────────────────────────────────────────────────────

    def start(self, now: float, memory: bytes = b"") -> list[Effect]:
        self._begun = self._beacon_at = self._changed_at = self._epoch_at = now
        for peer in self.near:
            self._alive.watch(peer, now)
        effects: list[Effect] = [Completed("join")]
        if self.options.heartbeat_s:
            effects.append(WakeAt(now + self._rng.uniform(0, self._beat), "tick", idle=True))
        if self.decided:
            return effects
        effects += [Send(peer, RoleChange(self._status(), asking=True)) for peer in self.wires]
        return [*effects, WakeAt(now + 3 * self._beat, "greeted"), *self._decide_if_all_greeted(now)]

    def leave(self, now: float) -> list[Effect]:
        self.leaving = True
        if not self.core or not self.near:
            return self._go()
        self._shaky_until = math.inf  # From now on this node only floods.
        return self._tell_all()

    def peer_up(self, peer: Peer, now: float) -> list[Effect]:
        if len(self.wires) >= NEIGHBOURS_MAX:
            return []
        self.wires[peer.id] = None
        return [Send(peer.id, RoleChange(self._status(), asking=True))]

    def peer_down(self, peer: NodeId, now: float) -> list[Effect]:
        self.paths.hang_up(peer)
        return self._lose(peer, now)

    # ── Publish and subscribe ──────────────────────────────────────────────────

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        self._delivered.add(packet.header.id)
        effects: list[Effect] = [Deliver(packet)]
        if self.options.mode == "advertise":
            advert = self.paths.advert_for(packet, now)
            if advert is not None:
                effects += self._spread(Advertise(advert), None, now)
            elif self.paths.settled(packet, now) and not self._unsure(now):
                return effects + self.paths.down(packet, self.paths.ours_for(packet), None, now)
        return effects + self._spread(EventBroadcast(packet), None, now)

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
        self._alive.heard(sender, now)
        match message:
            case EventBroadcast() | Advertise() | RenewAdvert():
                return self._on_spread(sender, message, now)
            case BroadcastAck(key):
                self._unacked.acknowledge((key, sender))
                return []
            case Hello(status):
                return self._on_status(sender, status, now)
            case RoleChange(status, asking):
                answer: list[Effect] = [Send(sender, RoleChange(self._status()))] if asking else []
                return answer + self._on_status(sender, status, now)
        if sender not in self.near and not isinstance(message, Forward | Forwarded):
            return []  # A stranger, or one whose greeting was lost; it will greet again.
        if isinstance(
            message,
            AdvertSubscribe | AdvertConfirm | AdvertUnsubscribe | Forward | Forwarded | AdvertRequest | AdvertList,
        ):
            return self._on_pointed(sender, message, now)
        return self._on_structure(sender, message, now)

    def _on_structure(self, sender: NodeId, message: Any, now: float) -> list[Effect]:
        match message:
            case Elect() | ElectOk() | ElectNo() | Release() | CorePromotion() | LeaveNotice():
                return self._on_election(sender, message, now)
            case Beacon():
                return self._on_beacon(sender, message, now)
            case Foreign():
                return self._repair(now) if self.core else []
            case Repair():
                return self._on_repair(sender, message, now)
            case RepairPath(round, path):
                return self._on_repair_path(round, path)
            case Bridge(path):
                return self._on_bridge(path, now)
            case DemoteAsk():
                return self._on_ask(sender, message, now)
            case DemoteGrant():
                return self._on_grant(sender, message, now)
            case DemoteDeny(candidate, round):
                return self._on_deny(candidate, round)
            case DemoteEnd(candidate, relayed):
                return self._on_end(sender, candidate, relayed)
        return []

    def wake(self, token: Token, now: float) -> list[Effect]:
        match token:
            case "tick":
                return self._tick(now)
            case "greeted":
                return self._decide(now)
            case ("asked", round):
                return self._stop_asking() if self._ask and self._ask.round == round else []
            case ("resend", str(key), str(to)):
                return self._resend(key, to, now)
            case ("pointers", (str(kind), what, str(to))):
                return self.paths.call_again((kind, what, to), now)
        return []

    def links(self) -> tuple[NodeId, ...]:
        if not self.core:
            return (self.upper,) if self.upper else ()
        return (*self.lowers, *self._core_near())

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            "wires": (len(self.wires), NEIGHBOURS_MAX),
            "lowers": (len(self.lowers), NEIGHBOURS_MAX),
            "seen": (len(self._seen), self._seen.at_most),
            "unacked": (len(self._unacked), UNACKED_MAX),
            "relays": (len(self._relays), NEIGHBOURS_MAX),
            "promises": (len(self._promises), NEIGHBOURS_MAX),
            **self.paths.holdings(),
        }

    # ── Spreading to everyone ──────────────────────────────────────────────────

    def _on_spread(self, sender: NodeId, message: BroadcastMessage, now: float) -> list[Effect]:
        effects: list[Effect] = [Send(sender, BroadcastAck(key_of(message)))] if self.options.acks else []
        new = key_of(message) not in self._seen
        onward = self._spread(message, sender, now)
        match message:
            case EventBroadcast(packet):
                effects += [Deliver(packet)] if self._delivered.add(packet.header.id) else []
            case Advertise(advert) if new:
                effects += self.paths.learn(advert, sender, now)
            case RenewAdvert(advert) if new and self.paths.ours(advert.id):
                effects += self._renew_own(advert, now)
        return effects + onward

    def _spread(self, message: BroadcastMessage, sender: NodeId | None, now: float) -> list[Effect]:
        """Pass on what is new here. What was passed on by role comes once more if others are unsure: to all."""
        key, safe = key_of(message), message.safe or self._unsure(now)
        if not self._seen.add(key) and not (safe and key not in self._seen_safe):
            return []
        if not safe:
            return self._send_all(message, self._onward(sender), now)
        self._seen_safe.add(key)
        onward = message if message.safe else msgspec.structs.replace(message, safe=True)
        # To all links, also those that seem dead: that one does is often why this node is unsure.
        return self._send_all(onward, [peer for peer in self.wires if peer != sender], now)

    def _onward(self, sender: NodeId | None) -> list[NodeId]:
        """Whom this node's role says to send to."""
        if not self.core:
            return [self.upper] if sender is None and self.upper else []
        lowers = [peer for peer in self.lowers if peer != sender]
        return lowers + [peer for peer in self._core_onward(sender) if peer not in self.lowers]

    def _core_onward(self, sender: NodeId | None) -> list[NodeId]:
        others = [peer for peer in self._core_near() if peer != sender]
        if self.options.forward == "core_tree":
            return [peer for peer in others if peer == self.parent or peer in self._children]
        status = self.near.get(sender) if sender else None
        if self.options.forward == "core_elim" and status and status.core and status.epoch == self.epoch:
            return [peer for peer in others if peer not in status.core_neighbours]
        return others

    def _unsure(self, now: float) -> bool:
        if self.options.demotion == "literal" and self.decided:
            return False
        return not self.decided or now < self._shaky_until or not (self.core or self.upper)

    def _send_all(self, message: BroadcastMessage, to: list[NodeId], now: float) -> list[Effect]:
        if not self.options.acks:
            return [Send(peer, message) for peer in to]
        effects: list[Effect] = []
        for peer in to:
            due = self._unacked.add((key_of(message), peer), peer, message, now)
            effects += [Send(peer, message), WakeAt(due, ("resend", key_of(message), peer))]
        return effects

    def _resend(self, key: str, to: NodeId, now: float) -> list[Effect]:
        waiting = self._unacked.overdue((key, to), now)
        if waiting is None:
            return []
        due = self._unacked.retry((key, to), now)
        if due is None:
            return [Count("gave up")]
        return [Send(to, waiting.message), WakeAt(due, ("resend", key, to))]

    # ── Each heartbeat ─────────────────────────────────────────────────────────

    def _tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = [WakeAt(now + self._beat, "tick", idle=True)]
        for peer in self._alive.silent(now):
            effects += self._lose(peer, now)
        self._children = {child: until for child, until in self._children.items() if until >= now}
        self._promises = {candidate: until for candidate, until in self._promises.items() if until >= now}
        if not self.decided:
            return effects + [Send(peer, RoleChange(self._status(), asking=True)) for peer in self.wires]
        effects += self._look_after_core(now)
        effects += self._look_after_pointers(now)
        if self.leaving and self.core:
            effects += self._go_if_replaced(now)
        hello = Hello(self._status())
        return effects + [Send(peer, hello) for peer in self.wires]

    def _look_after_core(self, now: float) -> list[Effect]:
        keeping = self._stand(now) + self._keep_root(now)
        return keeping + self._look_for_others(now) + self._consider_leaving_core(now)

    def _look_after_pointers(self, now: float) -> list[Effect]:
        fading = self.paths.fade(now) + self._compare_adverts()
        return fading + self._ask_to_renew(self.paths.broken(now), now)

    def _on_lost(self, peer: NodeId, now: float) -> list[Effect]:
        """What it had not taken is flooded, for it may have been the way to others."""
        effects: list[Effect] = []
        for key in self._unacked.keys_to(peer):
            waiting = self._unacked.acknowledge(key)
            if waiting is not None and self._seen_safe.add(key[0]):
                again = msgspec.structs.replace(waiting.message, safe=True)
                effects += self._send_all(again, [other for other in self.wires if other != peer], now)
        self.paths.lost(peer, now)
        return effects + self._ask_to_renew(self.paths.broken(now), now)

    # ── Leaving the network ────────────────────────────────────────────────────

    def _go_if_replaced(self, now: float) -> list[Effect]:
        """A leaver of the core goes when no neighbour needs it: all have another way, to one and the same root."""
        others = [s for s in self.near.values() if not s.leaving]
        roots = {status.root for status in others}
        served = all(status.core or (status.upper and status.upper != self.id) for status in others)
        return self._go() if served and len(roots) <= 1 and now > self._changed_at + REPAIR_AFTER * self._beat else []

    def _go(self) -> list[Effect]:
        return [*(Send(peer, LeaveNotice()) for peer in self.near), Completed("leave")]

    # ── Pointers ───────────────────────────────────────────────────────────────

    def _on_pointed(self, sender: NodeId, message: Any, now: float) -> list[Effect]:
        match message:
            case Forward(packet, advert):
                return [Send(sender, Forwarded(packet.header.id)), *self._on_forward(packet, advert, sender, now)]
            case AdvertRequest():
                known = self.paths.known()
                return [Send(sender, AdvertList(known))] if known else []
            case AdvertList(adverts):
                return [effect for advert in adverts for effect in self._on_news_of(advert, sender, now)]
        return self.paths.receive(sender, message, now)

    def _on_forward(self, packet: Packet, advert: Advert, sender: NodeId, now: float) -> list[Effect]:
        """Deliver and pass down. If the tree was laid anew since the event set out, nobody is sure who wants it: to all."""
        if not self._delivered.add(packet.header.id):
            return []
        if self.paths.advert(advert.id) == advert:
            return [Deliver(packet), *self.paths.down(packet, advert, sender, now)]
        return [Deliver(packet), *self._spread(EventBroadcast(packet, safe=True), None, now)]

    def _on_news_of(self, advert: Advert, sender: NodeId, now: float) -> list[Effect]:
        """A neighbour knew of an advert. If it is new here, it is new to others behind this node as well."""
        learned = self.paths.learn(advert, sender, now)
        return learned + self._spread(Advertise(advert, safe=True), sender, now)

    def _on_met(self, peer: NodeId, now: float) -> list[Effect]:
        """Perhaps this link joins what was split: ask for adverts, and once more for trees that broke."""
        if self.options.mode != "advertise":
            return []
        return [Send(peer, AdvertRequest()), *self._ask_to_renew(self.paths.broken(now, at_once=True), now)]

    def _known_adverts(self) -> int:
        return self.paths.fingerprint()

    def _compare_adverts(self) -> list[Effect]:
        """Ask one neighbour, another each time, for what it knows, if it does not know just the same."""
        if self.options.mode != "advertise" or not self.near:
            return []
        peer = self._rng.choice(list(self.near))
        return [Send(peer, AdvertRequest())] if self.near[peer].adverts != self.paths.fingerprint() else []

    def _ask_to_renew(self, broken: list[Advert], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for advert in broken:
            self._renewals += 1
            effects += self._spread(RenewAdvert(advert, self.id, self._renewals, safe=True), None, now)
        return effects

    def _renew_own(self, advert: Advert, now: float) -> list[Effect]:
        known = self.paths.advert(advert.id)
        if known is None or advert.seq != known.seq:
            return []  # One new tree serves all who noticed that the old one is broken.
        return self._spread(Advertise(self.paths.renew(advert.id, now), safe=True), None, now)


def roles_of(routers: Sequence[Immune]) -> global_construction.Roles:
    """The roles that these nodes have now."""
    core = tuple(node.id for node in routers if node.core)
    upper = {node.id: node.upper or None for node in routers if not node.core}
    return global_construction.Roles(core, upper, tuple(node.id for node in routers if node.core and not node.lowers))


PROTOCOL = Protocol(
    name="immune",
    build=Immune.build,
    messages=ImmuneMessage,
    guarantees=WHATEVER_HAPPENS | {Guarantee.JOINS_BY_LINKS, Guarantee.LEAVES_CLEANLY},
    on_graph=True,
    content_in_packets_only=True,
    settle=settle,
)
