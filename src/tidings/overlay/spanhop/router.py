"""Spanhop: the space of all events is cut into zones, one broker each, and events go to the zone they fall in.

Each attribute is an axis. An event is a point and goes to the broker whose zone contains it;
a subscription is a box and is planted in every zone it touches; the broker of a zone
matches, and notifies. Nothing is matched on the way. Zones are the leaves of a K-D tree: a
newcomer gets half of somebody's zone. Plain greedy routing from zone to zone takes
d/4 · N^(1/d) hops; with the tables of a zone's ancestors (see `ancestors`) it is half of log2 N.

    publish     → Carry to the zone of the event          → match there → Notify each home
    subscribe   → Plant in each zone of the box, by pieces → Stored, from each, to the home
    join        → Routed to a random point → Offer, Accept, Committed: half a zone (see `moving`)
    a death     → neighbours find out, one takes the zone over with its copy of the records (see `neighbourhood`)

    profile "paper"    every message is sent once; only what bounces is sent another way
    profile "robust"   each hop is acknowledged, records are copied to a neighbour and refreshed by their homes

The coordinates of an event, and the boxes of a condition, are read by every broker on the
way: an attribute that must stay secret is not to be an axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Literal, TypeAlias

import msgspec

from tidings.errors import InputError
from tidings.overlay.dedup import SEEN_MAX
from tidings.overlay.interest import Interest
from tidings.overlay.messages import NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.router import (
    WHATEVER_HAPPENS,
    Completed,
    Count,
    Effect,
    Promise,
    Protocol,
    Router,
    Token,
    WakeAt,
    builder,
    remembered,
)
from tidings.overlay.spanhop.carrying import WAITING_MAX, Carrier
from tidings.overlay.spanhop.forwarding import Mode, Wayfinder
from tidings.overlay.spanhop.giving import Giver
from tidings.overlay.spanhop.keeping import SubscriptionStore
from tidings.overlay.spanhop.legs import LEGS_MAX, Legs
from tidings.overlay.spanhop.messages import (
    AdvertisementRequest,
    AdvertisementUpdate,
    DomainAnswer,
    Heartbeat,
    HopAck,
    IndexPut,
    MulticastNotification,
    Notification,
    Records,
    ReplicaUpdate,
    Routed,
    RoutedDatagram,
    RoutedEvent,
    SpanhopMessage,
    Stored,
    SubscriptionRecord,
    WrongDomain,
    ZoneAdvertisement,
    ZoneDescriptor,
)
from tidings.overlay.spanhop.neighbours import NeighbourMonitor
from tidings.overlay.spanhop.notification import Notifier
from tidings.overlay.spanhop.planting import OWN_MAX, HomeSubscriptions
from tidings.overlay.spanhop.precomputed import settle
from tidings.overlay.spanhop.proximity import INDEX_MAX, Proximity, ProximityMethod
from tidings.overlay.spanhop.quantisation import Bounds, Quantiser
from tidings.overlay.spanhop.static_partition import JoinPolicy
from tidings.overlay.spanhop.subscription_placement import SubscriptionPlacement
from tidings.overlay.spanhop.table_refresh import TableRefresher
from tidings.overlay.spanhop.taking import Taker
from tidings.overlay.spanhop.zone_ownership import OwnedZone, ZoneTable
from tidings.overlay.spanhop.zone_transfer import LEAVE_S, Mover
from tidings.space import Path, Space, Zone

AXES: dict[str, Bounds] = {"x": (0, 1000), "y": (0, 1000)}  # The space of made-up events.
AXES_MAX = 16
M_MAX = 1 << 16
HEARTBEAT_S = 2.0
ANSWER_S = 1.0  # For one hop; a busy broker takes a tenth of a second over each of several messages.
REFRESH_S = 15.0  # How often homes plant their subscriptions again.
UPKEEP_S = 10.0  # How often one entry of an ancestor's table is looked up again.
CONTACTS_MAX = 32

Stage: TypeAlias = Literal["outside", "joining", "ready", "leaving"]


class Spanhop(Router[SpanhopMessage]):
    """One broker's part in Spanhop."""

    def __init__(
        self,
        me: Peer,
        rng: Random,
        *,
        axes: Mapping[str, Bounds] = AXES,
        m: int = 4,
        wrap: bool = True,
        mode: Mode = "spanhop",
        join_policy: JoinPolicy = "even",
        profile: Literal["robust", "paper"] = "robust",
        notify: Literal["unicast", "multicast"] = "unicast",
        cut: Literal["load", "middle"] = "load",
        layout: Literal["grown", "balanced"] = "grown",
        proximity: ProximityMethod = "none",
        landmarks: Sequence[NodeId] = (),
        heartbeat_s: float = HEARTBEAT_S,
        answer_s: float = ANSWER_S,
        refresh_s: float = REFRESH_S,
        upkeep_s: float = UPKEEP_S,
    ) -> None:
        """`heartbeat_s=0`, `refresh_s=0` and `upkeep_s=0` do without routine talk, for big worlds in which nobody dies."""
        _check_options(axes, m)
        _check_choices(mode, join_policy, profile, notify, cut, layout, proximity)
        if proximity == "gnp" and len(landmarks) < len(axes) + 1:
            raise InputError(f"expected at least {len(axes) + 1} landmarks for {len(axes)} axes, got {len(landmarks)}")
        space = Space(len(axes))
        self.me, self._rng = me, rng
        self.axes = Quantiser.of(axes, space)
        self.k, self.mode, self.join_policy, self.layout = m.bit_length() - 1, mode, join_policy, layout
        self.is_robust, self.cuts_by_load = profile == "robust", cut == "load"
        self.refresh_s, self.upkeep_s = refresh_s, upkeep_s
        self.zones = ZoneTable(me, space, k=self.k, around=space.side if wrap else None)
        self.legs = Legs(answer_s=answer_s, first=me.incarnation << 32, keeps=self.is_robust)
        self.neighbourhood = NeighbourMonitor(self, self.zones, rng, heartbeat_s)
        self.way = Wayfinder(self.zones, self.legs, mode=mode, alive=self.neighbourhood.is_alive)
        self.carrier = Carrier(self)
        self.giver = Giver(self, self.zones, answer_s)
        self.taker = Taker(self, self.zones, rng, answer_s)
        self.mover = Mover(self, self.zones, rng, answer_s)
        self.planter = HomeSubscriptions()
        self.keeper = SubscriptionStore(self.zones, self.axes, copies=self.is_robust)
        self.notifier = Notifier(self, self.legs, multicast=notify == "multicast")
        self.sower = SubscriptionPlacement(self, self.planter, self.keeper)
        self.upkeep = TableRefresher(self, self.zones, rng)
        self.proximity = Proximity(self, rng, proximity, landmarks)
        self.stage: Stage = "outside"
        self._leave_by = 0.0

    @property
    def is_joining(self) -> bool:
        return self.stage == "joining"

    @property
    def is_leaving(self) -> bool:
        return self.stage == "leaving"

    def may_take(self) -> bool:
        """Whether this broker can be given a zone, or give a part of its own."""
        return self.stage == "ready"

    # ── Coming ───────────────────────────────────────────────────────────────

    def start(self, now: float, memory: bytes = b"") -> list[Effect]:
        contacts = remembered(memory)
        if contacts:
            return self.join(contacts, now)
        if not self.zones.owned:
            self.zones.hold((), 0)
        self.neighbourhood.meet(list(self.zones.cards.values()), now)
        return [*self._routines(now), *self._make_ready(now)]

    def join(self, via: Sequence[Peer], now: float) -> list[Effect]:
        if not via:
            return self.start(now)
        self.stage = "joining"
        return [*self._routines(now), *self.taker.join(via, now)]

    def _routines(self, now: float) -> list[Effect]:
        """The talk that goes on for ever, each broker at its own beat."""
        every = (("beat", self.neighbourhood.heartbeat_s), ("refresh", self.refresh_s), ("upkeep", self.upkeep_s))
        beats = [WakeAt(now + self._rng.random() * s, (what,), idle=True) for what, s in every if s]
        return [*beats, *self.proximity.start(now)]

    def _make_ready(self, now: float) -> list[Effect]:
        self.stage = "ready"
        effects: list[Effect] = [Completed("join")]
        effects += self.sower.plant_all_missing(now)
        return [*effects, *self.carrier.catch_up(now)]

    # ── Wanting and publishing ───────────────────────────────────────────────

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        return self.sower.subscribe(interest, now)

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        return self.sower.unsubscribe(id, now)

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        return self.carrier.publish(packet, now)

    # ── Being told ───────────────────────────────────────────────────────────

    def receive(self, sender: NodeId, message: SpanhopMessage, now: float) -> list[Effect]:
        self.neighbourhood.heard(sender, now)
        match message:
            case Heartbeat():
                return self.neighbourhood.heartbeat(sender, message, now)
            case RoutedEvent() | Routed():
                return self.carrier.receive(sender, message, now)
            case RoutedDatagram():
                return self.carrier.overhear(message, now)
            case HopAck(number=number):
                self.legs.got(number, sender)
                return self.check_leaving(now)
            case Notification(number=number, packet=packet):
                return [*self.carrier.answer(sender, number), *self.notifier.deliver(packet)]
            case MulticastNotification(number=number, packet=packet, targets=targets, trace=trace):
                told = self.notifier.tell(packet, targets, trace, now) if self.carrier.is_new(sender, number) else []
                return [*self.carrier.answer(sender, number), *told]
            case Stored():
                return [*self.sower.stored(message), *self.check_leaving(now)]
            case AdvertisementUpdate():
                return self.neighbourhood.hear(sender, message, now)
            case AdvertisementRequest():
                return self.neighbourhood.show(sender)
            case _:
                return self._receive_rarer(sender, message, now)

    def _receive_rarer(self, sender: NodeId, message: SpanhopMessage, now: float) -> list[Effect]:
        moved = self.mover.receive(sender, message, now)
        if moved is not None:
            return moved
        match message:
            case ReplicaUpdate(records=records):
                self.keeper.keep_copies(records, now)
            case Records(records=records):
                self.keeper.take(records, now)
            case WrongDomain(span=span):
                return self._wrong_domain(sender, span, now)
            case DomainAnswer():
                self.upkeep.answered(sender, message)
            case _:
                return self.proximity.receive(sender, message, now)
        return []

    # ── What did not get through ─────────────────────────────────────────────

    def unsent(self, to: NodeId, message: SpanhopMessage, now: float) -> list[Effect]:
        effects = self.peer_down(to, now)
        if not self.is_robust and isinstance(message, RoutedEvent | Routed | Notification | MulticastNotification):
            leg = self.legs.bounced(to, message)
            effects += self.carrier.another_way(leg, now) if leg is not None else []
        return effects

    def peer_down(self, peer: NodeId, now: float) -> list[Effect]:
        effects = self.neighbourhood.died(peer, now)
        for leg in self.legs.to_peer(peer):
            effects += self.carrier.another_way(leg, now)
        return [*effects, *self.mover.peer_gone(peer, now)]

    # ── Zones that change hands ──────────────────────────────────────────────

    def changed(self, now: float, more: tuple[NodeId, ...] = ()) -> list[Effect]:
        """What is held here has changed: say so."""
        self.zones.version += 1
        self.zones.refresh()
        effects = self.neighbourhood.announce(more)
        self.neighbourhood.tidy()
        giving = self.giver.giving
        if giving is not None and giving.path not in self.zones.owned:
            effects += self.giver.break_off(now)
        if self.stage == "ready" and not self.zones.owned:  # Without any zone a broker begins anew.
            self.stage = "joining"
            near = [card.peer for card in self.zones.cards.values()]
            return [*effects, *self.taker.join([*near, *self.neighbourhood.met.values()], now)]
        return [*effects, *self.keeper.copy_anew(), *self.proximity.publish(now), *self.proximity.select(now)]

    def deposed(self, now: float) -> list[Effect]:
        """Others have a higher claim to what was held here."""
        effects = [Count("zones lost"), *self.changed(now), *self.mover.shed_later(now)]
        return [*effects, *self.gone(now)] if self.is_leaving and not self.zones.owned else effects

    def adopt(self, paths: Sequence[Path], epoch: int, near: Sequence[ZoneAdvertisement], now: float) -> list[Effect]:
        """Take zones that nobody holds, with what is known of them."""
        self.neighbourhood.meet(near, now)
        for path in paths:
            self.keeper.fill(self.zones.hold(path, epoch), now)
        effects = [Count("zones taken over", len(paths)), *self.changed(now), *self.neighbourhood.review(now)]
        return [*effects, *self.mover.shed_later(now)]

    def settled_in(self, deed: ZoneDescriptor, records: Sequence[SubscriptionRecord], now: float) -> list[Effect]:
        """A zone was given to this broker."""
        self.neighbourhood.meet(deed.cards, now)
        owned = self.zones.hold(deed.claim.path, deed.claim.epoch, deed.ancestors)
        effects = self.grown(owned, deed, records, now)
        if self.is_joining:  # Unless somebody turned out to have a higher claim to all of it.
            effects += self._make_ready(now) if self.zones.owned else self.taker.ask_for_zone(now)
        return [*effects, *self.mover.shed_later(now)]

    def grown(
        self, owned: OwnedZone, deed: ZoneDescriptor, records: Sequence[SubscriptionRecord], now: float
    ) -> list[Effect]:
        """A zone held here has become larger, or is new."""
        self.neighbourhood.meet(deed.cards, now)
        owned.index.update({(put.path, put.peer.id): put for put in deed.index[:INDEX_MAX]})
        for record in records:
            self.keeper.keep(owned, record, now)
        return [*self.changed(now), *self.neighbourhood.review(now)]

    def index_of(self, owned: OwnedZone, zone: Zone) -> tuple[IndexPut, ...]:
        """The records of brokers' network coordinates whose points lie in a part of a zone held here."""
        near = self.proximity
        if not near.low:  # Nobody has told the bounds: there is no telling where a record belongs.
            return ()
        return tuple(put for put in owned.index.values() if near.point(put.at, put.path) in zone)

    # ── Routines ─────────────────────────────────────────────────────────────

    def wake(self, token: Token, now: float) -> list[Effect]:
        match token:
            case ("leg", int(number), int(tries)):
                return self._overdue(number, tries, now)
            case ("plant", SubscriptionId() as id, int(version), int(tries)):
                return self.sower.plant_again(id, version, tries, now)
            case ("beat",):
                return [*self.neighbourhood.beat(now), self._again("beat", self.neighbourhood.heartbeat_s, now)]
            case ("refresh",):
                return [*self._refresh(now), self._again("refresh", self.refresh_s, now)]
            case ("upkeep",):
                routine = [*self.upkeep.look_up_one(now), *self.upkeep.patrol()]
                return [*routine, self._again("upkeep", self.upkeep_s, now)]
            case ("orphan", tuple() as path, int(epoch)):
                return self.neighbourhood.take(path, epoch, now)
            case ("leave",) | ("leave", "at last"):
                return self._keep_leaving(now)
        moved = self.mover.wake(token, now)
        return moved if moved is not None else self.proximity.wake(token, now)

    def _again(self, what: str, every_s: float, now: float) -> Effect:
        return WakeAt(now + every_s, (what,), idle=True)

    def _overdue(self, number: int, tries: int, now: float) -> list[Effect]:
        effects, leg = self.legs.overdue(number, tries, now)
        if leg is None:
            return effects
        if leg.to:
            self.neighbourhood.suspect(leg.to, now)
        return [*effects, *self.carrier.another_way(leg, now)]

    def _refresh(self, now: float) -> list[Effect]:
        """Plant own subscriptions again, forget what others no longer plant, copy what is kept."""
        self.neighbourhood.tick(now)
        self.keeper.expire(now)
        effects: list[Effect] = []
        if not self.zones.owned:
            return effects
        effects += self.sower.sow_again(now)
        effects += self.keeper.copy_again()
        return [*effects, *self.proximity.publish(now, again=True), *self.proximity.select_again(now)]

    # ── Keeping the tables of ancestors fresh ────────────────────────────────

    def _wrong_domain(self, sender: NodeId, span: Path, now: float) -> list[Effect]:
        """Somebody is not where a table says. It is passed over, and the entry looked up again."""
        effects: list[Effect] = []
        if not span or sender not in self.zones.cards:
            self.neighbourhood.suspect(sender, now)
            for leg in self.legs.to_peer(sender):
                effects += self.carrier.another_way(leg, now)
        return [*effects, *self.upkeep.look_up(span, sender, now)]

    # ── Going ────────────────────────────────────────────────────────────────

    def leave(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for id in list(self.planter.own):
            effects += self.unsubscribe(id, now)
        if not self.zones.owned:
            self.stage = "outside"
            return [*effects, Completed("leave")]
        self.stage, self._leave_by = "leaving", now + LEAVE_S
        effects += self.proximity.withdraw(now)
        return [*effects, WakeAt(self._leave_by, ("leave", "at last")), *self.check_leaving(now)]

    def check_leaving(self, now: float) -> list[Effect]:
        """When nothing of its own is on the way any more, a leaver gives away its zones."""
        if not self.is_leaving or self.planter.own or len(self.legs):
            return []
        return self.mover.give_up_zone(now)

    def _keep_leaving(self, now: float) -> list[Effect]:
        if not self.is_leaving:
            return []
        if now >= self._leave_by:
            return self.gone(now)
        return self.mover.give_up_zone(now)

    def gone(self, now: float) -> list[Effect]:
        """Goodbye. If nobody has taken what is held here it is left as a death would leave it: others find out."""
        self.stage = "outside"
        if self.zones.owned:
            return [Completed("leave")]
        self.zones.version += 1
        return [*self.neighbourhood.announce(), Completed("leave")]

    # ── Being looked at ──────────────────────────────────────────────────────

    def links(self) -> tuple[NodeId, ...]:
        recorded = (p.peer.id for owned in self.zones.owned.values() for table in owned.ancestors for p in table)
        return tuple(dict.fromkeys(id for id in (*self.zones.cards, *recorded) if id != self.me.id))

    def memory(self) -> bytes:
        near = [card.peer for card in self.zones.cards.values()]
        known = [*near, *self.neighbourhood.met.values(), *self.taker.contacts.values()]
        return msgspec.msgpack.encode(list(dict.fromkeys(known))[:CONTACTS_MAX])

    def holdings(self) -> dict[str, tuple[int, int]]:
        seen = len(self.notifier.delivered) + len(self.notifier.matched) + len(self.carrier.numbers)
        return {
            **self.zones.holdings(),
            **self.keeper.holdings(),
            "own": (len(self.planter.own), OWN_MAX),
            "legs": (len(self.legs), LEGS_MAX),
            **self.neighbourhood.holdings(),
            "seen": (seen, 3 * SEEN_MAX),
            "waiting": (len(self.carrier.waiting), WAITING_MAX),
            **self.proximity.holdings(),
        }


def _check_options(axes: Mapping[str, Bounds], m: int) -> None:
    if not 1 <= len(axes) <= AXES_MAX:
        raise InputError(f"expected 1 to {AXES_MAX} axes, got {len(axes)}")
    if not 2 <= m <= M_MAX or m & (m - 1):
        raise InputError(f"expected m to be a power of two from 2 to {M_MAX}, got {m}")


CHOICES = (
    ("spanhop", "greedy"),
    ("even", "point"),
    ("robust", "paper"),
    ("unicast", "multicast"),
    ("load", "middle"),
    ("grown", "balanced"),
    ("none", "gnp", "vivaldi"),
)


def _check_choices(*given: str) -> None:
    for each, known in zip(given, CHOICES, strict=True):
        if each not in known:
            raise InputError(f"expected one of {', '.join(known)}, got {each!r}")


PROTOCOL = Protocol(
    name="spanhop",
    build=builder("spanhop", Spanhop),
    messages=SpanhopMessage,
    promises=WHATEVER_HAPPENS | {Promise.JOINS_LIVE, Promise.LEAVES_CLEANLY, Promise.PRUNES},
    settle=settle,
)
