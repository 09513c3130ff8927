"""Spanhop's router: one broker's part in the protocol, its options, and how its parts work together.

The package's docstring explains how the protocol works. The router holds no logic of its own
beyond the order of things: it hands each message and each deadline to the part that it
concerns, and when the owned zones change it brings all parts up to date.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType
from typing import Any, Literal, get_args

import msgspec

from tidings.errors import InputError
from tidings.overlay.dedup import SEEN_MAX
from tidings.overlay.interest import Interest
from tidings.overlay.messages import NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.retransmit import Pending
from tidings.overlay.router import (
    MAP_ENTRIES_MAX,
    WHATEVER_HAPPENS,
    Completed,
    Count,
    Effect,
    Guarantee,
    MapEntry,
    Protocol,
    Router,
    Send,
    Token,
    WakeAt,
    builder,
    remembered,
)
from tidings.overlay.spanhop.forwarding import UNACKNOWLEDGED_MAX, WAITING_MAX, Forwarder, HopRetransmitter, Mode
from tidings.overlay.spanhop.messages import (
    Accept,
    AdvertisementRequest,
    AdvertisementUpdate,
    DomainAnswer,
    DomainQuery,
    FindPair,
    HandoffAck,
    Heartbeat,
    HopAck,
    IndexPut,
    Join,
    LocatedDomainAnswer,
    LocatedHopAck,
    MulticastNotification,
    NearQuery,
    Notification,
    OwnershipProbe,
    Payload,
    PlaceSubscription,
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
from tidings.overlay.spanhop.next_hop import RouteHeader
from tidings.overlay.spanhop.notification import Notifier
from tidings.overlay.spanhop.precomputed import settle
from tidings.overlay.spanhop.proximity import INDEX_MAX, Proximity, ProximityMethod
from tidings.overlay.spanhop.quantisation import Bounds, Quantiser
from tidings.overlay.spanhop.static_partition import JoinPolicy, Kept
from tidings.overlay.spanhop.subscription_placement import (
    HOME_MAX,
    HomeSubscriptions,
    SubscriptionPlacement,
    SubscriptionStore,
)
from tidings.overlay.spanhop.table_refresh import TableRefresher
from tidings.overlay.spanhop.zone_ownership import MembershipState, OwnedZone, Stage, ZoneTable
from tidings.overlay.spanhop.zone_transfer import Cut, SplitPolicy, ZoneTransfer
from tidings.space import Path, Space, Zone

AXES: Mapping[str, Bounds] = MappingProxyType({"x": (0, 1000), "y": (0, 1000)})  # The space of synthetic events.
AXES_MAX = 16
M_MAX = 1 << 16
LEAVE_S = 30.0  # A leaving broker that finds nobody to take its zone goes without.
CONTACTS_MAX = 32  # Brokers through which a restarted one may join again.

# ── Options ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanhopOptions:
    """All options of Spanhop. Raises InputError for values that cannot be.

    >>> SpanhopOptions.robust().profile, SpanhopOptions.paper(m=4).join_policy
    ('robust', 'point')
    """

    axes: Mapping[str, Bounds] = field(default_factory=lambda: AXES)
    """Attribute → the two values between which its cells are spread evenly, in order."""
    m: int = 4
    """Brokers of a routing domain, a power of two: a table of ancestors for every log2 m cuts."""
    wrap: bool = True
    """Whether axes are circles for adjacency and distance. For events they never are."""
    mode: Mode = "spanhop"
    """`spanhop` takes the first table of ancestors that helps, `together` the broker of all tables whose present zone is
    nearest, as far as its zone is known here; `greedy` does without the tables."""
    join_policy: JoinPolicy = "even"
    """`even` splits the largest zone near a newcomer's point, `point` the one that contains it."""
    profile: Literal["robust", "paper"] = "robust"
    """`robust`: hops are acknowledged, records replicated. `paper`: every message is sent once, and only one that
    bounces is sent another way."""
    notify: Literal["unicast", "multicast"] = "unicast"
    """Whether home brokers are notified directly, or along the space with shared copies."""
    cut: Cut = "load"
    """`load` cuts a zone where its subscriptions and recent events are halved, `middle` in the middle."""
    kept: Literal["auto", "lower", "either"] = "auto"
    """Which half of its zone a broker keeps at a split: `lower` always, or `either`, as its path has it, so that a
    zone that others have recorded is not entered at its low corner. `auto` is `either` where that saves hops: with
    `m` beyond 2 to the number of axes, one table at a time."""
    layout: Literal["grown", "balanced"] = "grown"
    """How a precomputed network is partitioned: by joins at random points, or into zones of one size."""
    proximity: ProximityMethod = "none"
    """Where network coordinates come from: `gnp` measures delays to `landmarks`, `vivaldi` to any broker."""
    landmarks: Sequence[NodeId] = ()
    """For `gnp`: at least one more broker than there are axes; the same ones, in the same order, on all brokers."""
    index_records: int = 1
    """Records of network coordinates that a zone keeps for each level; 0 for all. With one, no broker stores more than it
    has levels, about log_m N; routes take some 7 to 16 % longer than with all."""
    heartbeat_s: float = 2.0
    """How often neighbours get a heartbeat; 0 for never, in large simulations without failures."""
    answer_s: float = 1.0
    """How long to wait for an acknowledgement of one hop; a busy broker takes a tenth of a second for each message."""
    refresh_s: float = 15.0
    """How often home brokers place their subscriptions again, and zones refresh their replicas; 0 for never."""
    upkeep_s: float = 10.0
    """How often one entry in the table of an ancestor is looked up again; 0 for never."""

    @classmethod
    def robust(cls, **changes: Any) -> SpanhopOptions:
        """As live networks run it: the defaults."""
        return cls(**changes)

    @classmethod
    def paper(cls, **changes: Any) -> SpanhopOptions:
        """As published: m near e^d for two axes, joins at a random point, messages sent once, nothing refreshed."""
        published: dict[str, Any] = {
            "m": 8,
            "join_policy": "point",
            "kept": "lower",
            "profile": "paper",
            "refresh_s": 0.0,
            "upkeep_s": 0.0,
        }
        return cls(**{**published, **changes})

    def __post_init__(self) -> None:
        if not 1 <= len(self.axes) <= AXES_MAX:
            raise InputError(f"expected 1 to {AXES_MAX} axes, got {len(self.axes)}")
        if not 2 <= self.m <= M_MAX or self.m & (self.m - 1):
            raise InputError(f"expected m to be a power of two from 2 to {M_MAX}, got {self.m}")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise InputError(f"expected one of {', '.join(choices)}, got {getattr(self, name)!r}")
        if self.index_records < 0:
            raise InputError(f"expected index_records of 0 or more, got {self.index_records}")
        least = len(self.axes) + 1
        if self.proximity == "gnp" and len(self.landmarks) < least:
            raise InputError(
                f"expected at least {least} landmarks for {len(self.axes)} axes, got {len(self.landmarks)}"
            )

    @property
    def k(self) -> int:
        """Cuts between two tables of ancestors."""
        return self.m.bit_length() - 1

    @property
    def half_kept(self) -> Kept:
        """Which half of its zone a broker keeps."""
        if self.kept != "auto":
            return self.kept
        return "either" if self.mode == "spanhop" and self.k > len(self.axes) else "lower"

    @property
    def is_robust(self) -> bool:
        return self.profile == "robust"


CHOICES: dict[str, tuple[str, ...]] = {
    "mode": get_args(Mode),
    "join_policy": ("even", "point"),
    "profile": ("robust", "paper"),
    "notify": ("unicast", "multicast"),
    "cut": get_args(Cut),
    "kept": ("auto", "lower", "either"),
    "layout": ("grown", "balanced"),
    "proximity": get_args(ProximityMethod),
}


class Spanhop(Router[SpanhopMessage]):
    """One broker's part in Spanhop."""

    def __init__(self, me: Peer, rng: Random, options: SpanhopOptions | None = None) -> None:
        self.options = options = options or SpanhopOptions()
        space = Space(len(options.axes))
        self.me, self.rng = me, rng
        self.membership = MembershipState()
        self.quantiser = Quantiser.of(options.axes, space)
        self.zones = ZoneTable(me, space, k=options.k, around=space.side if options.wrap else None)
        self.hops = HopRetransmitter(answer_s=options.answer_s, first=me.incarnation << 32, reliable=options.is_robust)
        self.monitor = NeighbourMonitor(self.zones, rng, self.membership, self, heartbeat_s=options.heartbeat_s)
        self.forwarder = Forwarder(
            self.zones, self.hops, self.quantiser, self, mode=options.mode, alive=self.monitor.is_alive
        )
        self.home = HomeSubscriptions()
        self.store = SubscriptionStore(self.zones, self.quantiser, replicates=options.is_robust)
        self.placement = SubscriptionPlacement(
            self.zones,
            self.quantiser,
            self.home,
            self.store,
            self.forwarder,
            self.membership,
            answer_s=options.answer_s,
        )
        self.notifier = Notifier(
            self.zones, self.hops, self.forwarder, self.home, multicast=options.notify == "multicast"
        )
        self.proximity = Proximity(
            self.zones, rng, self.forwarder, options.proximity, options.landmarks, index_records=options.index_records
        )
        self.refresher = TableRefresher(self.zones, rng, self.forwarder, self.monitor)
        self.transfer = ZoneTransfer(
            self.zones,
            rng,
            self.hops,
            self.monitor,
            self.membership,
            self.proximity,
            self,
            policy=SplitPolicy(options.join_policy, options.cut, options.half_kept),
        )
        self._leave_by = 0.0

    @property
    def stage(self) -> Stage:
        """Whether this broker is outside, joining, ready or leaving."""
        return self.membership.stage

    # ── Start and join ───────────────────────────────────────────────────────

    def start(self, now: float, memory: bytes = b"") -> list[Effect]:
        contacts = remembered(memory)
        if contacts:
            return self.join(contacts, now)
        if not self.zones.owned:
            self.zones.acquire((), 0)
        self.monitor.meet(list(self.zones.neighbours.values()), now)
        return [*self._start_timers(now), *self._make_ready(now)]

    def join(self, via: Sequence[Peer], now: float) -> list[Effect]:
        if not via:
            return self.start(now)
        self.membership.stage = "joining"
        return [*self._start_timers(now), *self.transfer.join(via, now)]

    def _start_timers(self, now: float) -> list[Effect]:
        """Periodic work, at a random phase for each broker."""
        options = self.options
        periods = (("beat", options.heartbeat_s), ("refresh", options.refresh_s), ("upkeep", options.upkeep_s))
        wakes = [WakeAt(now + self.rng.random() * s, (what,), idle=True) for what, s in periods if s]
        return [*wakes, *self.proximity.start(now)]

    def _make_ready(self, now: float) -> list[Effect]:
        self.membership.stage = "ready"
        effects: list[Effect] = [Completed("join")]
        effects += self.placement.place_all_missing(now)
        return [*effects, *self.forwarder.send_queued(now)]

    # ── Subscribe and publish ────────────────────────────────────────────────

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        return self.placement.subscribe(interest, now)

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        return self.placement.unsubscribe(id, now)

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        return self.forwarder.publish(packet, now)

    # ── Receive ──────────────────────────────────────────────────────────────

    def receive(self, sender: NodeId, message: SpanhopMessage, now: float) -> list[Effect]:
        self.monitor.heard(sender, now)
        match message:
            case Heartbeat():
                return self.monitor.receive_heartbeat(sender, message)
            case RoutedEvent() | Routed():
                return self.forwarder.receive(sender, message, now)
            case RoutedDatagram():
                return self.forwarder.receive_datagram(message, now)
            case HopAck(number=number):
                self.hops.acknowledge(number, sender)
                return self._check_leaving(now)
            case LocatedHopAck(number=number, zones=zones):
                self.hops.acknowledge(number, sender)
                self.zones.record_present(sender, zones)
                return self._check_leaving(now)
            case Notification(number=number, packet=packet):
                return [*self.forwarder.acknowledgement(sender, number), *self.notifier.deliver(packet)]
            case MulticastNotification():
                return self._receive_multicast(sender, message, now)
            case Stored():
                return [*self.placement.stored(message), *self._check_leaving(now)]
            case AdvertisementUpdate():
                return self.monitor.receive_update(sender, message, now)
            case AdvertisementRequest():
                return self.monitor.advertise_to(sender)
            case _:
                return self._receive_rarer(sender, message, now)

    def _receive_multicast(self, sender: NodeId, message: MulticastNotification, now: float) -> list[Effect]:
        onward: list[Effect] = []
        if self.forwarder.is_new(sender, message.number):
            onward = self.notifier.multicast(message.packet, message.targets, message.trace, now)
        return [*self.forwarder.acknowledgement(sender, message.number), *onward]

    def _receive_rarer(self, sender: NodeId, message: SpanhopMessage, now: float) -> list[Effect]:
        transferred = self.transfer.receive(sender, message, now)
        if transferred is not None:
            is_answer = isinstance(message, Accept | HandoffAck)
            return [*transferred, *self._check_leaving(now)] if is_answer else transferred
        match message:
            case ReplicaUpdate(records=records):
                self.store.store_replicas(records, now)
            case Records(records=records):
                self.store.store_where_touching(records, now)
            case WrongDomain(span=span):
                return self._wrong_domain(sender, span, now)
            case DomainAnswer():
                self.refresher.answered(sender, message)
            case LocatedDomainAnswer(path=path, owner=owner, zones=zones):
                self.refresher.answered(sender, DomainAnswer(path, owner))
                self.zones.record_present(sender, zones)
            case _:
                return self.proximity.receive(sender, message, now)
        return []

    def _wrong_domain(self, sender: NodeId, span: Path, now: float) -> list[Effect]:
        """A broker is not where a table says: avoid it, and look the entry up again."""
        effects: list[Effect] = []
        if not span or sender not in self.zones.neighbours:
            self.monitor.suspect(sender, now)
            for pending in self.hops.take_back(sender):
                effects += self._reroute(pending, now)
        return [*effects, *self.refresher.look_up(span, sender, now)]

    # ── What arrives in an owned zone (forwarding.ZoneHandler) ───────────────

    def match_event(self, owned: OwnedZone, packet: Packet, piece: Zone, now: float) -> list[Effect]:
        return self.notifier.match(owned, packet, piece, now)

    def place_subscription(self, request: PlaceSubscription, now: float, *, reliable: bool) -> list[Effect]:
        return self.placement.place(request, now, reliable=reliable)

    def receive_payload(self, payload: Payload, route: RouteHeader, now: float) -> list[Effect]:
        match payload:
            case Join():
                return self.transfer.receive_join(payload, route.destination, now)
            case FindPair():
                return self.transfer.receive_find_pair(payload, route, now)
            case DomainQuery(asker=asker, path=path):
                return [Send(asker.id, self._domain_answer(path))] if asker.id != self.me.id else []
            case OwnershipProbe(advert=advert):
                return self.monitor.learn(advert, now) if advert.peer.id != self.me.id else []
            case IndexPut():
                return self.proximity.store(self.zones.nearest(route.destination), payload)
            case NearQuery():
                return self.proximity.query(self.zones.nearest(route.destination), payload, now)
        return []

    def _domain_answer(self, path: Path) -> DomainAnswer | LocatedDomainAnswer:
        if self.options.mode == "together":
            return LocatedDomainAnswer(path, self.me, self.zones.own_paths())
        return DomainAnswer(path, self.me)

    def is_receiving_zone(self) -> bool:
        return self.transfer.incoming is not None

    # ── Failed sends ─────────────────────────────────────────────────────────

    def unsent(self, to: NodeId, message: SpanhopMessage, now: float) -> list[Effect]:
        effects = self.peer_down(to, now)
        numbered = RoutedEvent | Routed | Notification | MulticastNotification
        if not self.options.is_robust and isinstance(message, numbered):
            pending = self.hops.bounced(to, message)
            effects += self._reroute(pending, now) if pending is not None else []
        return effects

    def peer_down(self, peer: NodeId, now: float) -> list[Effect]:
        effects = self.monitor.failed(peer, now)
        for pending in self.hops.take_back(peer):
            effects += self._reroute(pending, now)
        return [*effects, *self.transfer.peer_gone(peer, now)]

    def _reroute(self, failed: Pending[int], now: float) -> list[Effect]:
        """A hop has failed, or the wait of a held message is over: find another way."""
        if isinstance(failed.message, RoutedEvent | Routed):
            return self.forwarder.reroute(failed.message, now, failed.about + 1)
        return self.notifier.reroute(failed, now)

    # ── Changes of ownership (zone_transfer.OwnershipChanges, neighbours.ZoneTakeover) ──

    def zones_changed(self, now: float, more: tuple[NodeId, ...] = ()) -> list[Effect]:
        self.zones.version += 1
        self.zones.invalidate_routes()
        effects = self.monitor.advertise(more)
        self.monitor.prune()
        effects += self.transfer.abort_if_zone_lost(now)
        if self.membership.is_ready and not self.zones.owned:  # Without any zone a broker joins again.
            self.membership.stage = "joining"
            near = [advert.peer for advert in self.zones.neighbours.values()]
            return [*effects, *self.transfer.join([*near, *self.monitor.met.values()], now)]
        replicated = self.store.replicate_to_new_holders()
        return [*effects, *replicated, *self.proximity.publish(now), *self.proximity.select(now)]

    def zone_received(
        self, descriptor: ZoneDescriptor, records: Sequence[SubscriptionRecord], now: float
    ) -> list[Effect]:
        self.monitor.meet(descriptor.neighbours, now)
        owned = self.zones.acquire(descriptor.claim.path, descriptor.claim.epoch, descriptor.ancestors)
        effects = self.zone_grown(owned, descriptor, records, now)
        if self.membership.is_joining:  # Unless a higher claim to all of the zone has turned up.
            effects += self._make_ready(now) if self.zones.owned else self.transfer.ask_for_zone(now)
        return [*effects, *self.transfer.shed_later(now)]

    def zone_grown(
        self, owned: OwnedZone, descriptor: ZoneDescriptor, records: Sequence[SubscriptionRecord], now: float
    ) -> list[Effect]:
        self.monitor.meet(descriptor.neighbours, now)
        owned.index.update({(put.path, put.peer.id): put for put in descriptor.index[:INDEX_MAX]})
        for record in records:
            self.store.store(owned, record, now)
        return [*self.zones_changed(now), *self.monitor.resolve_all_claims(now)]

    def zones_ceded(self, now: float) -> list[Effect]:
        effects = [Count("zones lost"), *self.zones_changed(now), *self.transfer.shed_later(now)]
        has_left = self.membership.is_leaving and not self.zones.owned
        return [*effects, *self.zones_given_up(now)] if has_left else effects

    def take_over(
        self, paths: Sequence[Path], epoch: int, near: Sequence[ZoneAdvertisement], now: float
    ) -> list[Effect]:
        self.monitor.meet(near, now)
        for path in paths:
            self.store.restore(self.zones.acquire(path, epoch), now)
        effects = [Count("zones taken over", len(paths)), *self.zones_changed(now)]
        return [*effects, *self.monitor.resolve_all_claims(now), *self.transfer.shed_later(now)]

    # ── Wake ─────────────────────────────────────────────────────────────────

    def wake(self, token: Token, now: float) -> list[Effect]:
        match token:
            case ("leg", int(number), int(tries)):
                return self._overdue(number, tries, now)
            case ("plant", SubscriptionId() as id, int(version), int(tries)):
                return self.placement.retry(id, version, tries, now)
            case ("beat",):
                return [*self.monitor.beat(now), _again("beat", self.options.heartbeat_s, now)]
            case ("refresh",):
                return [*self._refresh(now), _again("refresh", self.options.refresh_s, now)]
            case ("upkeep",):
                effects = [*self.refresher.refresh_one(now), *self.refresher.probe_ownership()]
                return [*effects, _again("upkeep", self.options.upkeep_s, now)]
            case ("orphan", tuple() as path, int(epoch)):
                return self.monitor.take_orphan(path, epoch, now)
            case ("leave",) | ("leave", "at last"):
                return self._keep_leaving(now)
        transferred = self.transfer.wake(token, now)
        return transferred if transferred is not None else self.proximity.wake(token, now)

    def _overdue(self, number: int, tries: int, now: float) -> list[Effect]:
        effects, failed = self.hops.overdue(number, tries, now)
        if failed is None:
            return effects
        if failed.to:
            self.monitor.suspect(failed.to, now)
        return [*effects, *self._reroute(failed, now)]

    def _refresh(self, now: float) -> list[Effect]:
        """Refresh soft state: own subscriptions, replicas and index records; forget what others do not refresh."""
        self.monitor.expire_suspicions(now)
        self.store.expire(now)
        if not self.zones.owned:
            return []
        effects = [*self.placement.refresh(now), *self.store.refresh_replicas()]
        return [*effects, *self.proximity.publish(now, again=True), *self.proximity.select_again(now)]

    # ── Leave ────────────────────────────────────────────────────────────────

    def leave(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for id in list(self.home.own):
            effects += self.unsubscribe(id, now)
        if not self.zones.owned:
            self.membership.stage = "outside"
            return [*effects, Completed("leave")]
        self.membership.stage, self._leave_by = "leaving", now + LEAVE_S
        effects += self.proximity.withdraw(now)
        return [*effects, WakeAt(self._leave_by, ("leave", "at last")), *self._check_leaving(now)]

    def _check_leaving(self, now: float) -> list[Effect]:
        """A leaving broker gives away its zones as soon as none of its own messages is pending."""
        if not self.membership.is_leaving or self.home.own or len(self.hops):
            return []
        return self.transfer.give_up_zone(now)

    def _keep_leaving(self, now: float) -> list[Effect]:
        if not self.membership.is_leaving:
            return []
        if now >= self._leave_by:
            return self.zones_given_up(now)
        return self.transfer.give_up_zone(now)

    def zones_given_up(self, now: float) -> list[Effect]:
        """This broker has left. A zone that nobody has taken is left as after a failure: neighbours take it over."""
        self.membership.stage = "outside"
        if self.zones.owned:
            return [Completed("leave")]
        self.zones.version += 1
        return [*self.monitor.advertise(), Completed("leave")]

    # ── Inspection ───────────────────────────────────────────────────────────

    def links(self) -> tuple[NodeId, ...]:
        return self.zones.links()

    def memory(self) -> bytes:
        near = [advert.peer for advert in self.zones.neighbours.values()]
        known = [*near, *self.monitor.met.values(), *self.transfer.contacts.values()]
        return msgspec.msgpack.encode(list(dict.fromkeys(known))[:CONTACTS_MAX])

    def map_entry(self) -> MapEntry:
        """The zones that this broker owns, as shares of each axis."""
        side = self.zones.space.side
        owned = [self.zones.space.zone(path) for path in self.zones.own_paths()]
        shown = tuple(
            tuple((low / side, high / side) for low, high in zip(zone.low, zone.high))
            for zone in owned[:MAP_ENTRIES_MAX]
        )
        return MapEntry(zones=shown, axes=tuple(self.options.axes), left_out=len(owned) - len(shown))

    def status(self) -> dict[str, Any]:
        proximity = self.proximity.status()
        return {"proximity": proximity} if proximity else {}

    def holdings(self) -> dict[str, tuple[int, int]]:
        seen = len(self.notifier.delivered) + len(self.notifier.matched) + len(self.forwarder.numbers)
        return {
            **self.zones.holdings(),
            **self.store.holdings(),
            "own": (len(self.home.own), HOME_MAX),
            "legs": (len(self.hops), UNACKNOWLEDGED_MAX),
            **self.monitor.holdings(),
            "seen": (seen, 3 * SEEN_MAX),
            "waiting": (len(self.forwarder.waiting), WAITING_MAX),
            **self.proximity.holdings(),
        }


def _again(what: str, every_s: float, now: float) -> Effect:
    return WakeAt(now + every_s, (what,), idle=True)


def _make(me: Peer, rng: Random, **options: Any) -> Spanhop:
    return Spanhop(me, rng, SpanhopOptions(**options))


PROTOCOL = Protocol(
    name="spanhop",
    build=builder("spanhop", _make),
    messages=SpanhopMessage,
    guarantees=WHATEVER_HAPPENS | {Guarantee.JOINS_LIVE, Guarantee.LEAVES_CLEANLY, Guarantee.PRUNES},
    settle=settle,
    options_naming_nodes=("landmarks",),
)
