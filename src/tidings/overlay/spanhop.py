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
from typing import Any, Literal, TypeAlias

import msgspec

from tidings.errors import InputError
from tidings.overlay.ancestors import Point, Trip
from tidings.overlay.claims import CARDS_MAX, CLAIMS_MAX, RECORDS_MAX, Atlas, Held
from tidings.overlay.interest import Interest
from tidings.overlay.keeping import COPIES_MAX, GRAVES_MAX, Keeper
from tidings.overlay.legs import LEGS_MAX, Leg, Legs
from tidings.overlay.mgnp import INDEX_MAX, PINGS_MAX, WATCHES_MAX, How, Proximity
from tidings.overlay.moving import LEAVE_S, Mover
from tidings.overlay.neighbourhood import ORPHANS_MAX, SUSPECTS_MAX, Neighbourhood
from tidings.overlay.notifying import Notifier
from tidings.overlay.planting import OWN_MAX, Planter
from tidings.overlay.quantise import Axes, Bounds
from tidings.overlay.router import (
    Completed,
    Count,
    Effect,
    Failed,
    Place,
    Promise,
    Protocol,
    Router,
    Send,
    Token,
    WakeAt,
    built,
)
from tidings.overlay.seen import SEEN_MAX, SeenIds
from tidings.overlay.sowing import Sower
from tidings.overlay.spanhop_messages import (
    Accept,
    Ask,
    Busy,
    Card,
    Cargo,
    Carry,
    Committed,
    Copies,
    Deed,
    DomainAnswer,
    DomainQuery,
    FindPair,
    Got,
    Hand,
    Heartbeat,
    IndexPut,
    Join,
    NearQuery,
    Notify,
    Offer,
    PairFound,
    Patrol,
    Plant,
    Record,
    Records,
    Refused,
    Routed,
    SpanhopMessage,
    Stored,
    Tell,
    Took,
    Update,
    Whisper,
    WrongDomain,
)
from tidings.overlay.spanhop_settled import settle
from tidings.overlay.tiling import JoinPolicy
from tidings.overlay.upkeep import Upkeep
from tidings.overlay.wayfinding import Mode, Wayfinder, makes_sense
from tidings.overlay.wire import NodeId, Parcel, Peer, SubscriptionId
from tidings.space import Path, Space, Zone, siblings, within

AXES: dict[str, Bounds] = {"x": (0, 1000), "y": (0, 1000)}  # The space of made-up events.
AXES_MAX = 16
M_MAX = 1 << 16
HEARTBEAT_S = 2.0
ANSWER_S = 1.0  # For one hop; a busy broker takes a tenth of a second over each of several messages.
REFRESH_S = 15.0  # How often homes plant their subscriptions again.
UPKEEP_S = 10.0  # How often one entry of an ancestor's table is looked up again.
WAITING_MAX = 16_384  # Events and messages kept by a broker that has no zone yet.
CONTACTS_MAX = 32

Stage: TypeAlias = Literal["outside", "joining", "ready", "leaving"]


class Spanhop(Router[SpanhopMessage]):
    """One broker's part in Spanhop."""

    def __init__(
        self,
        me: Peer,
        chance: Random,
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
        proximity: How = "none",
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
        self.me, self._chance = me, chance
        self.axes = Axes.of(axes, space)
        self.k, self.mode, self.join_policy, self.layout = m.bit_length() - 1, mode, join_policy, layout
        self.is_robust, self.cuts_by_load = profile == "robust", cut == "load"
        self.refresh_s, self.upkeep_s = refresh_s, upkeep_s
        self.atlas = Atlas(me, space, k=self.k, around=space.side if wrap else None)
        self.legs = Legs(answer_s=answer_s, first=me.incarnation << 32, keeps=self.is_robust)
        self.way = Wayfinder(self.atlas, self.legs, mode=mode, alive=self.is_alive)
        self.neighbourhood = Neighbourhood(self, self.atlas, chance, heartbeat_s)
        self.mover = Mover(self, self.atlas, chance, answer_s)
        self.planter = Planter()
        self.keeper = Keeper(self.atlas, self.axes, copies=self.is_robust)
        self.notifier = Notifier(self, self.legs, multicast=notify == "multicast")
        self.sower = Sower(self, self.planter, self.keeper)
        self.upkeep = Upkeep(self, self.atlas, chance)
        self.proximity = Proximity(self, chance, proximity, landmarks)
        self.stage: Stage = "outside"
        self._leave_by = 0.0
        self._numbers = SeenIds[tuple[NodeId, int]](SEEN_MAX)
        self._waiting: list[Parcel | Carry | Routed] = []

    @classmethod
    def build(cls, place: Place, **options: Any) -> Spanhop:
        """A broker that stands where `place` says."""
        return built("spanhop", cls, place.me, place.chance, **options)

    @property
    def is_joining(self) -> bool:
        return self.stage == "joining"

    @property
    def is_leaving(self) -> bool:
        return self.stage == "leaving"

    def may_take(self) -> bool:
        """Whether this broker can be given a zone, or give a part of its own."""
        return self.stage == "ready"

    def is_alive(self, id: NodeId) -> bool:
        return id not in self.neighbourhood.suspects

    # ── Coming ───────────────────────────────────────────────────────────────

    def start(self, now: float, memory: bytes = b"") -> list[Effect]:
        contacts = remembered(memory)
        if contacts:
            return self.join(contacts, now)
        if not self.atlas.held:
            self.atlas.hold((), 0)
        self.neighbourhood.meet(list(self.atlas.cards.values()), now)
        return [*self._routines(now), *self._make_ready(now)]

    def join(self, via: Sequence[Peer], now: float) -> list[Effect]:
        if not via:
            return self.start(now)
        self.stage = "joining"
        return [*self._routines(now), *self.mover.join(via, now)]

    def _routines(self, now: float) -> list[Effect]:
        """The talk that goes on for ever, each broker at its own beat."""
        every = (("beat", self.neighbourhood.heartbeat_s), ("refresh", self.refresh_s), ("upkeep", self.upkeep_s))
        beats = [WakeAt(now + self._chance.random() * s, (what,), idle=True) for what, s in every if s]
        return [*beats, *self.proximity.start(now)]

    def _make_ready(self, now: float) -> list[Effect]:
        self.stage = "ready"
        effects: list[Effect] = [Completed("join")]
        effects += self.sower.plant_all_missing(now)
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            effects += self.publish(message, now) if isinstance(message, Parcel) else self._travel(message, now)
        return effects

    # ── Wanting ──────────────────────────────────────────────────────────────

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        return self.sower.subscribe(interest, now)

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        return self.sower.unsubscribe(id, now)

    # ── Publishing ───────────────────────────────────────────────────────────

    def publish(self, parcel: Parcel, now: float) -> list[Effect]:
        if not self.atlas.held:
            if len(self._waiting) >= WAITING_MAX:
                return [Failed("publish", "too many events wait for this broker to have a zone", parcel.head.id)]
            self._waiting.append(parcel)
            return []
        return self._spread(parcel, self.axes.event(parcel.view), now)

    def _spread(self, parcel: Parcel, piece: Zone, now: float, trip: Trip | None = None) -> list[Effect]:
        """Match an event where its piece touches a zone held here, and send on the rest, cut along the tree."""
        held = self.atlas.holder(piece)
        if held is None:
            trip = trip or self.way.trip(piece, None)
            return self.way.go(Carry(0, trip, parcel, piece), now)
        effects = self.notifier.match(held, parcel, piece, now)
        for path in siblings(held.path) if piece.meet(held.zone) != piece else ():
            part = piece.meet(self.atlas.space.zone(path))
            if part is not None:
                effects += self._spread(parcel, part, now, self.way.trip(part, held))
        return effects

    # ── On the way ───────────────────────────────────────────────────────────

    def way_to(self, trip: Trip) -> NodeId | None:
        """Who is next on the way to a point; None where this is the place, or there is no way."""
        return self.way.next(trip)

    def _travel(self, message: Carry | Routed | Whisper, now: float, rounds: int = 0) -> list[Effect]:
        """A message that has come here: it is at its aim, or one hop nearer."""
        if not self.atlas.held:
            return [Count("lost their way")]
        if isinstance(message, Carry):
            if self.atlas.holder(message.piece) is not None:
                return self._spread(message.parcel, message.piece, now)
            return self.way.go(message, now, rounds)
        cargo, whispers = message.cargo, isinstance(message, Whisper)
        if isinstance(cargo, Plant):
            if self.atlas.holder(cargo.piece) is not None:
                return self.sower.sow(cargo, now, whispers=whispers)
        elif self._is_here(cargo, message.trip):
            return self._arrived(cargo, message.trip, now)
        return self.way.go(message, now, rounds)

    def _is_here(self, cargo: Cargo, trip: Trip) -> bool:
        is_handed = isinstance(cargo, Join) and cargo.handed
        return is_handed or any(trip.aim in held.zone for held in self.atlas.held.values())

    def _arrived(self, cargo: Cargo, trip: Trip, now: float) -> list[Effect]:
        match cargo:
            case Join():
                return self.mover.asked(cargo, trip.aim, now)
            case FindPair():
                return self.mover.sought(cargo, trip, now)
            case DomainQuery(asker=asker, path=path):
                return [Send(asker.id, DomainAnswer(path, self.me))] if asker.id != self.me.id else []
            case Patrol(card=card):
                return self.neighbourhood.learn(card, now) if card.peer.id != self.me.id else []
            case IndexPut():
                return self.proximity.keep(self.atlas.nearest(trip.aim), cargo, now)
            case NearQuery():
                return self.proximity.query(self.atlas.nearest(trip.aim), cargo, now)
        return []

    def send_to(self, cargo: Cargo, point: Point, now: float, *, whispers: bool = False) -> list[Effect]:
        """Have something arrive at whoever holds a point, this broker included."""
        trip = Trip(point)
        if not self.atlas.held:
            return []
        return self._travel(Whisper(trip, cargo) if whispers else Routed(0, trip, cargo), now)

    # ── Being told ───────────────────────────────────────────────────────────

    def receive(self, sender: NodeId, message: SpanhopMessage, now: float) -> list[Effect]:
        self.neighbourhood.heard(sender, now)
        match message:
            case Heartbeat():
                return self.neighbourhood.heartbeat(sender, message, now)
            case Carry() | Routed():
                return self._receive_travelling(sender, message, now)
            case Whisper(trip=trip, cargo=cargo):
                return self._travel(message, now) if self.atlas.held and makes_sense(self.atlas, trip, cargo) else []
            case Got(number=number):
                self.legs.got(number, sender)
                return self._check_leaving(now)
            case Notify(number=number, parcel=parcel):
                return [*self._answer(sender, number), *self.notifier.deliver(parcel)]
            case Tell(number=number, parcel=parcel, targets=targets, trace=trace):
                is_new = self._numbers.add((sender, number))
                told = self.notifier.tell(parcel, targets, trace, now) if is_new else []
                return [*self._answer(sender, number), *told]
            case Stored():
                return [*self.sower.stored(message), *self._check_leaving(now)]
            case Update():
                return self.neighbourhood.hear(sender, message, now)
            case Ask():
                return self.neighbourhood.show(sender)
            case _:
                return self._receive_rarer(sender, message, now)

    def _receive_rarer(self, sender: NodeId, message: SpanhopMessage, now: float) -> list[Effect]:
        match message:
            case Busy():
                return self.mover.busy(message, now)
            case Offer():
                return self.mover.offered(sender, message, now)
            case Committed():
                return self.mover.committed(sender, message, now)
            case Hand():
                return self.mover.handed(sender, message, now)
            case Accept() | Took():
                return [*self.mover.accepted(sender, message, now), *self._check_leaving(now)]
            case Refused():
                return self.mover.refused(sender, message, now)
            case PairFound():
                return self.mover.found(message, now)
            case Copies(records=records):
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

    def _answer(self, sender: NodeId, number: int) -> list[Effect]:
        return [Send(sender, Got(number))] if self.is_robust else []

    def _receive_travelling(self, sender: NodeId, message: Carry | Routed, now: float) -> list[Effect]:
        what = message.piece if isinstance(message, Carry) else message.cargo
        if not makes_sense(self.atlas, message.trip, what):
            return []
        if not self.atlas.held:
            return self._receive_without_zone(sender, message)
        effects = self._answer(sender, message.number)
        if not self._numbers.add((sender, message.number)):
            return effects
        span = message.span
        if span is not None and not any(within(path, span) or within(span, path) for path in self.atlas.held):
            effects.append(Send(sender, WrongDomain(span)))
        return [*effects, *self._travel(message, now)]

    def _receive_without_zone(self, sender: NodeId, message: Carry | Routed) -> list[Effect]:
        """A zone is on its way here, and this with it; or there is none, and others have to do it."""
        if self.mover.taking is None or len(self._waiting) >= WAITING_MAX:
            return [Send(sender, WrongDomain(message.span or ()))]
        if self._numbers.add((sender, message.number)):
            self._waiting.append(message)
        return self._answer(sender, message.number)

    # ── What did not get through ─────────────────────────────────────────────

    def unsent(self, to: NodeId, message: SpanhopMessage, now: float) -> list[Effect]:
        effects = self.peer_down(to, now)
        if not self.is_robust and isinstance(message, Carry | Routed | Notify | Tell):
            leg = self.legs.bounced(to, message)
            effects += self._another_way(leg, now) if leg is not None else []
        return effects

    def peer_down(self, peer: NodeId, now: float) -> list[Effect]:
        effects = self.neighbourhood.died(peer, now)
        for leg in self.legs.to_peer(peer):
            effects += self._another_way(leg, now)
        return [*effects, *self.mover.peer_gone(peer, now)]

    def _another_way(self, leg: Leg, now: float) -> list[Effect]:
        """A hop has not answered, or a message was held for a while."""
        message = leg.message
        match message:
            case Carry() | Routed():
                if not self.atlas.held:
                    return self.way.hold(message, now, leg.rounds + 1)
                return self._retrace(message, now, leg.rounds + 1)
            case Notify(parcel=parcel, wanted=wanted) if leg.rounds == 0:
                return self.notifier.round_about(parcel, leg.to, wanted, now)
            case Tell(parcel=parcel, targets=targets, trace=trace) if leg.rounds < 2:
                return self.notifier.tell(parcel, targets, trace[:-1], now, leg.rounds + 1)
        return [Count("given up")]

    def _retrace(self, message: Carry | Routed, now: float, rounds: int) -> list[Effect]:
        """Choose again, as if the message had just come here."""
        trip = message.trip
        if trip.trace and trip.trace[-1] == self.me.id:
            trip = Trip(trip.aim, trip.trace[:-1], trip.greedy, trip.detour)
        return self._travel(msgspec.structs.replace(message, trip=trip, span=None), now, rounds)

    # ── Zones that change hands ──────────────────────────────────────────────

    def changed(self, now: float, more: tuple[NodeId, ...] = ()) -> list[Effect]:
        """What is held here has changed: say so."""
        self.atlas.version += 1
        self.atlas.refresh()
        effects = self.neighbourhood.announce(more)
        self.neighbourhood.tidy()
        giving = self.mover.giving
        if giving is not None and giving.path not in self.atlas.held:
            effects += self.mover.break_off(now)
        if self.stage == "ready" and not self.atlas.held:  # Without any zone a broker begins anew.
            self.stage = "joining"
            near = [card.peer for card in self.atlas.cards.values()]
            return [*effects, *self.mover.join([*near, *self.neighbourhood.met.values()], now)]
        return [*effects, *self.keeper.copy_anew(), *self.proximity.publish(now), *self.proximity.select(now)]

    def deposed(self, now: float) -> list[Effect]:
        """Others have a higher claim to what was held here."""
        effects = [Count("zones lost"), *self.changed(now), *self.mover.shed_later(now)]
        return [*effects, *self.gone(now)] if self.is_leaving and not self.atlas.held else effects

    def adopt(self, paths: Sequence[Path], epoch: int, near: Sequence[Card], now: float) -> list[Effect]:
        """Take zones that nobody holds, with what is known of them."""
        self.neighbourhood.meet(near, now)
        for path in paths:
            self.keeper.fill(self.atlas.hold(path, epoch), now)
        effects = [Count("zones taken over", len(paths)), *self.changed(now), *self.neighbourhood.review(now)]
        return [*effects, *self.mover.shed_later(now)]

    def settled_in(self, deed: Deed, records: Sequence[Record], now: float) -> list[Effect]:
        """A zone was given to this broker."""
        self.neighbourhood.meet(deed.cards, now)
        held = self.atlas.hold(deed.claim.path, deed.claim.epoch, deed.ancestors)
        effects = self.grown(held, deed, records, now)
        if self.is_joining:  # Unless somebody turned out to have a higher claim to all of it.
            effects += self._make_ready(now) if self.atlas.held else self.mover.ask_for_zone(now)
        return [*effects, *self.mover.shed_later(now)]

    def grown(self, held: Held, deed: Deed, records: Sequence[Record], now: float) -> list[Effect]:
        """A zone held here has become larger, or is new."""
        self.neighbourhood.meet(deed.cards, now)
        held.index.update({(put.path, put.peer.id): put for put in deed.index[:INDEX_MAX]})
        for record in records:
            self.keeper.keep(held, record, now)
        return [*self.changed(now), *self.neighbourhood.review(now)]

    def index_of(self, held: Held, zone: Zone) -> tuple[IndexPut, ...]:
        """The records of brokers' network coordinates whose points lie in a part of a zone held here."""
        near = self.proximity
        if not near.low:  # Nobody has told the bounds: there is no telling where a record belongs.
            return ()
        return tuple(put for put in held.index.values() if near.point(put.at, put.path) in zone)

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
        return self._wake_mover(token, now)

    def _wake_mover(self, token: Token, now: float) -> list[Effect]:
        match token:
            case ("join", int(number)):
                return self.mover.join_overdue(number, now)
            case ("accept", int(number), int(part), int(tries)):
                return self.mover.accept_again(number, part, tries, now)
            case ("give", int(number), int(part), int(tries)):
                return self.mover.part_overdue(number, part, tries, now)
            case ("taking", str(giver), int(number), int(part)):
                self.mover.taking_overdue(giver, number, part)
            case ("seek", int(number)):
                return self.mover.seek_overdue(number, now)
            case ("shed",):
                return self.mover.shed(now)
        return self.proximity.wake(token, now)

    def _again(self, what: str, every_s: float, now: float) -> Effect:
        return WakeAt(now + every_s, (what,), idle=True)

    def _overdue(self, number: int, tries: int, now: float) -> list[Effect]:
        effects, leg = self.legs.overdue(number, tries, now)
        if leg is None:
            return effects
        if leg.to:
            self.neighbourhood.suspect(leg.to, now)
        return [*effects, *self._another_way(leg, now)]

    def _refresh(self, now: float) -> list[Effect]:
        """Plant own subscriptions again, forget what others no longer plant, copy what is kept."""
        self.neighbourhood.tick(now)
        self.keeper.expire(now)
        effects: list[Effect] = []
        if not self.atlas.held:
            return effects
        effects += self.sower.sow_again(now)
        effects += self.keeper.copy_again()
        return [*effects, *self.proximity.publish(now, again=True), *self.proximity.select_again(now)]

    # ── Keeping the tables of ancestors fresh ────────────────────────────────

    def _wrong_domain(self, sender: NodeId, span: Path, now: float) -> list[Effect]:
        """Somebody is not where a table says. It is passed over, and the entry looked up again."""
        effects: list[Effect] = []
        if not span or sender not in self.atlas.cards:
            self.neighbourhood.suspect(sender, now)
            for leg in self.legs.to_peer(sender):
                effects += self._another_way(leg, now)
        return [*effects, *self.upkeep.look_up(span, sender, now)]

    # ── Going ────────────────────────────────────────────────────────────────

    def leave(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for id in list(self.planter.own):
            effects += self.unsubscribe(id, now)
        if not self.atlas.held:
            self.stage = "outside"
            return [*effects, Completed("leave")]
        self.stage, self._leave_by = "leaving", now + LEAVE_S
        effects += self.proximity.withdraw(now)
        return [*effects, WakeAt(self._leave_by, ("leave", "at last")), *self._check_leaving(now)]

    def _check_leaving(self, now: float) -> list[Effect]:
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
        if self.atlas.held:
            return [Completed("leave")]
        self.atlas.version += 1
        return [*self.neighbourhood.announce(), Completed("leave")]

    # ── Being looked at ──────────────────────────────────────────────────────

    def _seen_count(self) -> int:
        return len(self.notifier.delivered) + len(self.notifier.matched) + len(self._numbers)

    def links(self) -> tuple[NodeId, ...]:
        recorded = (p.peer.id for held in self.atlas.held.values() for table in held.ancestors for p in table)
        return tuple(dict.fromkeys(id for id in (*self.atlas.cards, *recorded) if id != self.me.id))

    def memory(self) -> bytes:
        near = [card.peer for card in self.atlas.cards.values()]
        known = [*near, *self.neighbourhood.met.values(), *self.mover.contacts.values()]
        return msgspec.msgpack.encode(list(dict.fromkeys(known))[:CONTACTS_MAX])

    def holdings(self) -> dict[str, tuple[int, int]]:
        zones = len(self.atlas.held)
        return {
            "zones": (zones, CLAIMS_MAX),
            "neighbours": (len(self.atlas.cards), CARDS_MAX),
            "records": (sum(len(held.records) for held in self.atlas.held.values()), max(zones, 1) * RECORDS_MAX),
            "copies": (len(self.keeper.copies), COPIES_MAX),
            "graves": (len(self.keeper.graves), GRAVES_MAX),
            "own": (len(self.planter.own), OWN_MAX),
            "legs": (len(self.legs), LEGS_MAX),
            "orphans": (len(self.neighbourhood.orphans), ORPHANS_MAX),
            "suspects": (len(self.neighbourhood.suspects), SUSPECTS_MAX),
            "seen": (self._seen_count(), 3 * SEEN_MAX),
            "waiting": (len(self._waiting), WAITING_MAX),
            "index": (sum(len(held.index) for held in self.atlas.held.values()), 2 * max(zones, 1) * INDEX_MAX),
            "watches": (len(self.proximity.watches), WATCHES_MAX),
            "pings": (len(self.proximity._sent), PINGS_MAX),
        }


def remembered(memory: bytes) -> list[Peer]:
    """The peers that a former life knew; none if that cannot be read."""
    try:
        return msgspec.msgpack.decode(memory, type=list[Peer]) if memory else []
    except msgspec.MsgspecError:
        return []


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
    build=Spanhop.build,
    messages=SpanhopMessage,
    promises=frozenset(
        {
            Promise.REACHES_ALL,
            Promise.SURVIVES_LOSS,
            Promise.SURVIVES_CRASHES,
            Promise.SURVIVES_SPLIT,
            Promise.JOINS_LIVE,
            Promise.LEAVES_CLEANLY,
            Promise.PRUNES,
        }
    ),
    settle=settle,
)
