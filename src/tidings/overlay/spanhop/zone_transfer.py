"""Zone transfer: joins, leaves, merges, and brokers that own a zone too many.

    join      A newcomer sends a Join to a random point. The owner there, or its neighbour with the largest zone, locks
              itself, offers half of its zone, and splits when the newcomer has accepted the last part.
                  Join → Offer, Accept, for each part → Committed
    merge     A zone goes to the owner of its sibling, which then owns the zone from which the two were cut.
                  Handoff, HandoffAck, for each part
    adopt     A zone goes to a broker that owns it beside its own, and gives one of the two away later.
                  Handoff, HandoffAck, for each part

A broker with a zone to give away looks at the zone's sibling. If one broker owns that, the
two zones merge. If it was cut further, some broker in there owns one of two siblings
(FindPair follows the tree down until it meets them): that broker adopts the zone, and gives
what it had to its own sibling.

A broker takes part in one transfer at a time. Descriptor and records go part by part, and
nothing changes before the last part is accepted; until then a transfer can break off at any
message, and both brokers are as they were. From then on the giver remembers for a while that
it has committed, and the receiver that it has the zone, to answer repeated messages.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple, Protocol, TypeAlias

from tidings.overlay.dedup import SeenIds
from tidings.overlay.messages import NodeId, Peer
from tidings.overlay.router import Count, Effect, Failed, Send, Token, WakeAt
from tidings.overlay.spanhop.forwarding import HopRetransmitter
from tidings.overlay.spanhop.messages import (
    RECORDS_PER_MESSAGE,
    Accept,
    Busy,
    Committed,
    FindPair,
    Handoff,
    HandoffAck,
    HandoffRefused,
    IndexPut,
    Join,
    Offer,
    PairFound,
    Routed,
    SpanhopMessage,
    SubscriptionRecord,
    ZoneAdvertisement,
    ZoneClaim,
    ZoneDescriptor,
    in_parts,
)
from tidings.overlay.spanhop.neighbours import UNSEEN, NeighbourMonitor, records_for
from tidings.overlay.spanhop.next_hop import Point, RouteHeader
from tidings.overlay.spanhop.static_partition import JoinPolicy, Kept, keeps_upper
from tidings.overlay.spanhop.zone_ownership import RECORDS_MAX, MembershipState, OwnedZone, ZoneTable, raised
from tidings.space import Path, Space, Zone, halves, sibling, within

PART_TRIES_MAX = 5  # For one part of a transfer.
PARTS_MAX = 8 * RECORDS_MAX // RECORDS_PER_MESSAGE + 1  # Of one transfer: whoever gives more gives nonsense.
JOIN_TRIES_MAX = 40
COMMITTED_MAX = 64  # Completed transfers that are remembered, to answer a repeated message.
LOAD_MIN = 8  # Subscriptions and events below which a zone is cut in the middle.
EDGE = 16  # A cut leaves at least this part (1/16) of the zone on either side, so that skew does not end in slices.
SHED_S = 3.0  # Before a broker with two zones gives one away; the network may still be changing.
SHED_S_MAX = 30.0

Cut: TypeAlias = Literal["load", "middle"]
TransferKind: TypeAlias = Literal["offer", "merge", "adopt"]


class SplitPolicy(NamedTuple):
    """Which zone near a newcomer's point is split, where, and which half its owner keeps."""

    join: JoinPolicy = "even"
    cut: Cut = "load"
    kept: Kept = "lower"


class OwnershipChanges(Protocol):
    """What the broker does when a transfer has changed the zones it owns."""

    def zones_changed(self, now: float, more: tuple[NodeId, ...] = ()) -> list[Effect]:
        """The owned zones are others than before; `more` names brokers to inform besides the neighbours."""

    def zone_received(
        self, descriptor: ZoneDescriptor, records: Sequence[SubscriptionRecord], now: float
    ) -> list[Effect]:
        """Another broker has given a zone to this one."""

    def zone_grown(
        self, owned: OwnedZone, descriptor: ZoneDescriptor, records: Sequence[SubscriptionRecord], now: float
    ) -> list[Effect]:
        """A zone was merged into an owned one."""

    def zones_given_up(self, now: float) -> list[Effect]:
        """A leaving broker has no zone any more, or nobody to give it to."""


class ZoneIndex(Protocol):
    """The index of network coordinates, part of which moves with a zone (see `proximity`)."""

    def records_in(self, owned: OwnedZone, zone: Zone) -> tuple[IndexPut, ...]:
        """The index records of an owned zone whose points lie in a part of it."""

    def records_moved(self, records: Sequence[IndexPut]) -> list[Effect]:
        """These records are with another broker now."""


@dataclass(slots=True)
class OutgoingTransfer:
    """A zone, or half of one, on its way to another broker."""

    number: int
    to: Peer
    kind: TransferKind
    path: Path  # Of the owned zone.
    given: ZoneClaim
    descriptor: ZoneDescriptor
    parts: list[tuple[SubscriptionRecord, ...]]
    part: int = 0
    tries: int = 1

    def message(self) -> Offer | Handoff:
        """The present part, as it goes to the receiver."""
        records, last = self.parts[self.part], self.part == len(self.parts) - 1
        if self.kind == "offer":
            return Offer(self.number, self.descriptor, records, self.part, last)
        return Handoff(self.number, self.descriptor, records, self.kind == "merge", self.part, last)


@dataclass(slots=True)
class IncomingTransfer:
    """A zone on its way to this broker."""

    number: int
    giver: NodeId
    descriptor: ZoneDescriptor
    records: list[SubscriptionRecord] = field(default_factory=list)
    next_part: int = 0

    def receive(self, part: int, records: Sequence[SubscriptionRecord]) -> bool:
        """Take the part that is next; whether this part is here, now or since before."""
        if part == self.next_part < PARTS_MAX and len(self.records) + len(records) <= RECORDS_MAX:
            self.records += records
            self.next_part += 1
        return part < self.next_part


class ZoneTransfer:
    """One broker's transfers: the zone it is giving, the zone it is receiving, and the decision whom to give what."""

    def __init__(
        self,
        zones: ZoneTable,
        rng: Random,
        hops: HopRetransmitter,
        monitor: NeighbourMonitor,
        membership: MembershipState,
        index: ZoneIndex,
        changes: OwnershipChanges,
        *,
        policy: SplitPolicy,
    ) -> None:
        self._zones, self._rng, self._hops, self._monitor = zones, rng, hops, monitor
        self._membership, self._index, self._changes = membership, index, changes
        self._policy, self._answer_s = policy, hops.answer_s
        self.outgoing: OutgoingTransfer | None = None
        self.incoming: IncomingTransfer | None = None
        self.contacts: dict[NodeId, Peer] = {}
        self._number = zones.me.incarnation << 32  # Of the transfer that this broker asked for last.
        self._joins = 0
        self._seeking = 0  # The number of a FindPair without an answer.
        self._shed_s = SHED_S
        self._committed: OrderedDict[tuple[NodeId, int], tuple[SubscriptionRecord, ...]] = OrderedDict()
        self._received = SeenIds[tuple[NodeId, int]](COMMITTED_MAX)

    def receive(self, sender: NodeId, message: SpanhopMessage, now: float) -> list[Effect] | None:
        """Handle a message that belongs to a transfer; None if it does not."""
        match message:
            case Busy():
                return self._busy(message, now)
            case Offer():
                return self._receive_offer(sender, message, now)
            case Committed():
                return self._receive_commit(sender, message, now)
            case Handoff():
                return self._receive_handoff(sender, message, now)
            case Accept() | HandoffAck():
                return self._part_accepted(sender, message, now)
            case HandoffRefused():
                return self._refused(sender, message, now)
            case PairFound():
                return self._pair_found(message, now)
        return None

    def wake(self, token: Token, now: float) -> list[Effect] | None:
        """A deadline of a transfer has come; None if the token is not one."""
        match token:
            case ("join", int(number)):
                return self._join_overdue(number, now)
            case ("accept", int(number), int(part), int(tries)):
                return self._accept_again(number, part, tries, now)
            case ("give", int(number), int(part), int(tries)):
                return self._part_overdue(number, part, tries, now)
            case ("taking", str(giver), int(number), int(part)):
                return self._handoff_overdue(giver, number, part)
            case ("seek", int(number)):
                return self._seek_overdue(number, now)
            case ("shed",):
                return self._shed(now)
        return None

    def peer_gone(self, id: NodeId, now: float) -> list[Effect]:
        """Abort the transfers with a broker that has failed."""
        effects: list[Effect] = []
        if self.outgoing is not None and self.outgoing.to.id == id:
            effects += self._abort(now)
        if self.incoming is not None and self.incoming.giver == id:
            self.incoming = None
            effects += self.ask_for_zone(now) if self._membership.is_joining else []
        return effects

    def abort_if_zone_lost(self, now: float) -> list[Effect]:
        """Abort the outgoing transfer if this broker no longer owns its zone."""
        is_lost = self.outgoing is not None and self.outgoing.path not in self._zones.owned
        return self._abort(now) if is_lost else []

    def _next_number(self) -> int:
        self._number += 1
        return self._number

    # ── Joining ──────────────────────────────────────────────────────────────

    def join(self, via: Sequence[Peer], now: float) -> list[Effect]:
        """Ask for a zone through any of these contacts."""
        self.contacts.update({peer.id: peer for peer in via if peer.id != self._zones.me.id})
        self._joins = 0
        return self.ask_for_zone(now)

    def ask_for_zone(self, now: float) -> list[Effect]:
        """Try once more, at a new point, through the next contact."""
        self._joins += 1
        self.incoming = None
        if self._joins > JOIN_TRIES_MAX or not self.contacts:
            return [Failed("join", "nobody has offered a zone")]
        contact = list(self.contacts)[(self._joins - 1) % len(self.contacts)]
        number = self._next_number()
        space = self._zones.space
        point = tuple(self._rng.randrange(space.side) for _ in range(space.axes))
        wait_s = self._answer_s * min(2 + self._joins, 8)
        request = Routed(self._hops.next_number(), RouteHeader(point), Join(self._zones.me, number))
        return [Send(contact, request), WakeAt(now + wait_s, ("join", number))]

    def _join_overdue(self, number: int, now: float) -> list[Effect]:
        return self.ask_for_zone(now) if number == self._number and self._membership.is_joining else []

    def _busy(self, message: Busy, now: float) -> list[Effect]:
        """The other broker cannot give a zone now: ask again soon."""
        if message.number == self._number and self._membership.is_joining:
            self.incoming = None
            return [WakeAt(now + self._rng.uniform(0.1, 1.0) * self._answer_s, ("join", self._number))]
        return []

    def _receive_offer(self, sender: NodeId, offer: Offer, now: float) -> list[Effect]:
        """Accept a part of the zone that this newcomer is offered."""
        if not self._membership.is_joining or offer.number != self._number or not self._is_valid(offer.descriptor):
            return []
        incoming = self.incoming
        if incoming is None or incoming.giver != sender:
            incoming = self.incoming = IncomingTransfer(offer.number, sender, offer.descriptor)
        is_here = incoming.receive(offer.part, offer.records)
        answer = [Send(sender, Accept(offer.number, offer.part))] if is_here else []
        return [*answer, WakeAt(now + self._answer_s, ("accept", offer.number, offer.part, 1))]

    def _accept_again(self, number: int, part: int, tries: int, now: float) -> list[Effect]:
        """Repeat an Accept: the giver may not have received it."""
        incoming = self.incoming
        if incoming is None or incoming.number != number or incoming.next_part != part + 1:
            return []
        if not self._membership.is_joining:
            return []
        if tries > PART_TRIES_MAX + 1:
            return self.ask_for_zone(now)
        again: list[Effect] = [Send(incoming.giver, Accept(number, part))]
        return [*again, WakeAt(now + self._answer_s, ("accept", number, part, tries + 1))]

    def _receive_commit(self, sender: NodeId, message: Committed, now: float) -> list[Effect]:
        """The zone belongs to this newcomer."""
        incoming = self.incoming
        if incoming is None or (incoming.giver, incoming.number) != (sender, message.number):
            return []
        if not self._membership.is_joining:
            return []
        self.incoming = None
        return self._changes.zone_received(incoming.descriptor, [*incoming.records, *message.records], now)

    # ── Taking over a zone from another broker ───────────────────────────────

    def _receive_handoff(self, sender: NodeId, handoff: Handoff, now: float) -> list[Effect]:
        """Take a part of a zone that another broker gives away; after the last part, own it."""
        if (sender, handoff.number) in self._received:
            return [Send(sender, HandoffAck(handoff.number, handoff.part))]
        if not self._can_take(sender, handoff):
            return [Send(sender, HandoffRefused(handoff.number))]
        incoming = self.incoming
        if incoming is None or (incoming.giver, incoming.number) != (sender, handoff.number):
            incoming = self.incoming = IncomingTransfer(handoff.number, sender, handoff.descriptor)
        if not incoming.receive(handoff.part, handoff.records):
            return []
        answer = Send(sender, HandoffAck(handoff.number, handoff.part))
        if not handoff.last:
            patience_s = self._answer_s * 2 * PART_TRIES_MAX
            return [answer, WakeAt(now + patience_s, ("taking", sender, handoff.number, handoff.part))]
        self.incoming = None
        self._received.add((sender, handoff.number))
        return [answer, *self._take(handoff, incoming.records, now)]

    def _handoff_overdue(self, giver: NodeId, number: int, part: int) -> list[Effect]:
        """Forget a giver that has gone silent, so that others can be served."""
        incoming = self.incoming
        if incoming is not None and (incoming.giver, incoming.number, incoming.next_part) == (giver, number, part + 1):
            self.incoming = None
        return []

    def _can_take(self, sender: NodeId, handoff: Handoff) -> bool:
        path, incoming = handoff.descriptor.claim.path, self.incoming
        if not self._is_valid(handoff.descriptor) or not self._membership.is_ready or self.outgoing is not None:
            return False
        if incoming is not None and (incoming.giver, incoming.number) != (sender, handoff.number):
            return False
        return not handoff.merge or (bool(path) and sibling(path) in self._zones.owned)

    def _take(self, handoff: Handoff, records: list[SubscriptionRecord], now: float) -> list[Effect]:
        descriptor = handoff.descriptor
        if not handoff.merge:
            return self._changes.zone_received(descriptor, records, now)
        mine = self._zones.release(sibling(descriptor.claim.path))
        assert mine is not None
        epoch = raised(max(mine.epoch, descriptor.claim.epoch))
        owned = self._zones.acquire(mine.path[:-1], epoch, mine.ancestors)
        owned.records, owned.recent_events, owned.index = mine.records, mine.recent_events, mine.index
        return self._changes.zone_grown(owned, descriptor, records, now)

    def _is_valid(self, descriptor: ZoneDescriptor) -> bool:
        return (
            self._zones.is_zone(descriptor.claim)
            and all(map(self._zones.is_valid, descriptor.neighbours))
            and all(self._zones.space.has(entry.path) for table in descriptor.ancestors for entry in table)
        )

    # ── Giving: the newcomer's request ───────────────────────────────────────

    def receive_join(self, join: Join, destination: Point, now: float) -> list[Effect]:
        """A newcomer's request has come to the owner of its point: offer a zone, or redirect the request."""
        joiner, zones = join.joiner, self._zones
        if self.outgoing is not None and self.outgoing.to == joiner and self.outgoing.kind == "offer":
            return self._send_part()
        if self.outgoing is not None or self.incoming is not None or not self._membership.is_ready:
            return [Send(joiner.id, Busy(join.number))]
        owned = self._spare_zone() or zones.nearest(destination)
        larger = None if join.redirected or len(zones.owned) > 1 else self._larger_neighbour(owned, joiner.id)
        if self._policy.join == "even" and larger is not None:
            redirected = Join(joiner, join.number, redirected=True)
            request = Routed(self._hops.next_number(), RouteHeader(destination), redirected)
            return self._hops.send(larger, request, now)
        if len(zones.owned) == 1 and not zones.space.can_split(owned.path):
            return [Send(joiner.id, Busy(join.number))]
        return self._offer(owned, joiner, join.number, now)

    def _larger_neighbour(self, owned: OwnedZone, joiner: NodeId) -> NodeId | None:
        """The neighbour with the shallowest zone, if that is larger than this one."""
        rows = [
            (len(claim.path), id)
            for id, advert in self._zones.neighbours.items()
            for claim in advert.claims
            if id != joiner and self._monitor.is_alive(id)
        ]
        least = min(rows, default=None)
        return least[1] if least is not None and least[0] < len(owned.path) else None

    def _spare_zone(self) -> OwnedZone | None:
        """A zone that is owned beside another: it is given whole instead of being cut."""
        owned = self._zones.owned.values()
        return max(owned, key=lambda each: len(each.path)) if len(owned) > 1 else None

    def _offer(self, owned: OwnedZone, joiner: Peer, number: int, now: float) -> list[Effect]:
        if len(self._zones.owned) > 1:
            given = ZoneClaim(owned.path, raised(owned.epoch))
        else:
            cut = cut_of(owned, self._zones.space, by_load=self._policy.cut == "load")
            given_half = halves(owned.path, cut)[not keeps_upper(owned.path, self._policy.kept)]
            given = ZoneClaim(given_half, raised(owned.epoch))
        return self._give(joiner, "offer", owned, given, number, now)

    # ── Giving: part by part ─────────────────────────────────────────────────

    def _give(
        self, to: Peer, kind: TransferKind, owned: OwnedZone, given: ZoneClaim, number: int, now: float
    ) -> list[Effect]:
        """Begin to transfer an owned zone, or a part of it."""
        zone = self._zones.space.zone(given.path)
        records = [stored.record for stored in owned.records.values() if stored.touches(zone)]
        adverts = (self._zones.advertisement(), *self._zones.neighbours.values())
        descriptor = ZoneDescriptor(given, tuple(owned.ancestors), adverts, self._index.records_in(owned, zone))
        self.outgoing = OutgoingTransfer(number, to, kind, owned.path, given, descriptor, in_parts(records) or [()])
        return [*self._send_part(), self._part_due(now)]

    def _part_due(self, now: float) -> WakeAt:
        outgoing = self.outgoing
        assert outgoing is not None
        due = now + self._answer_s * outgoing.tries
        return WakeAt(due, ("give", outgoing.number, outgoing.part, outgoing.tries))

    def _send_part(self) -> list[Effect]:
        assert self.outgoing is not None
        return [Send(self.outgoing.to.id, self.outgoing.message())]

    def _part_overdue(self, number: int, part: int, tries: int, now: float) -> list[Effect]:
        outgoing = self.outgoing
        if outgoing is None or (outgoing.number, outgoing.part, outgoing.tries) != (number, part, tries):
            return []
        if outgoing.tries >= PART_TRIES_MAX:
            return self._abort(now)
        outgoing.tries += 1
        return [*self._send_part(), self._part_due(now)]

    def _abort(self, now: float) -> list[Effect]:
        """End the outgoing transfer; nothing has changed."""
        self.outgoing = None
        return [Count("exchanges broken off"), *self._try_again(now)]

    def _refused(self, sender: NodeId, message: HandoffRefused, now: float) -> list[Effect]:
        outgoing = self.outgoing
        if outgoing is None or outgoing.to.id != sender or outgoing.number != message.number:
            return []
        return self._abort(now)

    def _part_accepted(self, sender: NodeId, answer: Accept | HandoffAck, now: float) -> list[Effect]:
        """The receiver has a part: send the next, or, after the last, commit."""
        outgoing = self.outgoing
        if outgoing is None or outgoing.to.id != sender or outgoing.number != answer.number:
            return self._accepted_before(sender, answer)
        if answer.part != outgoing.part or isinstance(answer, HandoffAck) is (outgoing.kind == "offer"):
            return []
        if outgoing.part < len(outgoing.parts) - 1:
            outgoing.part, outgoing.tries = outgoing.part + 1, 1
            return [*self._send_part(), self._part_due(now)]
        self.outgoing = None
        return self._commit(outgoing, now)

    def _accepted_before(self, sender: NodeId, answer: Accept | HandoffAck) -> list[Effect]:
        if isinstance(answer, HandoffAck):
            return []
        late = self._committed.get((sender, answer.number))
        if late is not None:
            return [Send(sender, Committed(answer.number, late))]
        return [Send(sender, Busy(answer.number))]

    def _commit(self, outgoing: OutgoingTransfer, now: float) -> list[Effect]:
        """The zone belongs to the receiver; after a split, one half stays here."""
        owned = self._zones.release(outgoing.path)
        if owned is None:  # Ceded to a higher claim meanwhile: the receiver will cede it, too.
            return self._try_again(now)
        late = self._late_records(outgoing, owned)
        effects: list[Effect] = []
        if outgoing.kind == "offer":
            first, *rest = in_parts(late) or [()]
            effects += self._send_commit(outgoing, first)
            late = [record for part in rest for record in part]
        effects += records_for(outgoing.to.id, late)
        if outgoing.given.path != outgoing.path:
            self._keep_half(outgoing, owned, now)
        self._shed_s = SHED_S
        effects += self._index.records_moved(outgoing.descriptor.index)
        return [*effects, *self._changes.zones_changed(now, (outgoing.to.id,)), *self.shed_later(now)]

    def _late_records(self, outgoing: OutgoingTransfer, owned: OwnedZone) -> list[SubscriptionRecord]:
        """The records that arrived, or changed, since the parts were made."""
        zone = self._zones.space.zone(outgoing.given.path)
        sent = {record.interest.id: record.version for part in outgoing.parts for record in part}
        records = [each.record for each in owned.records.values() if each.touches(zone)]
        return [record for record in records if sent.get(record.interest.id) != record.version]

    def _send_commit(self, outgoing: OutgoingTransfer, late: tuple[SubscriptionRecord, ...]) -> list[Effect]:
        if len(self._committed) >= COMMITTED_MAX:
            self._committed.popitem(last=False)
        self._committed[outgoing.to.id, outgoing.number] = late
        return [Send(outgoing.to.id, Committed(outgoing.number, late))]

    def _keep_half(self, outgoing: OutgoingTransfer, owned: OwnedZone, now: float) -> None:
        """After a split: own the half that was not given, with the newcomer among its neighbours."""
        zones, given = self._zones, outgoing.given
        zones.neighbours.pop(outgoing.to.id, None)
        zones.neighbours[outgoing.to.id] = ZoneAdvertisement(outgoing.to, UNSEEN, (given,))
        half = zones.acquire(sibling(given.path), given.epoch, owned.ancestors)
        half.records = {id: stored for id, stored in owned.records.items() if stored.touches(half.zone)}
        half.recent_events = [point for point in owned.recent_events if point in half.zone]
        half.index = {key: record for key, record in owned.index.items() if record not in outgoing.descriptor.index}
        self._monitor.watch(outgoing.to.id, now)

    # ── Giving away a zone too many, or all ──────────────────────────────────

    def shed_later(self, now: float) -> list[Effect]:
        """A broker with more than one zone gives one away when the network has calmed down."""
        if len(self._zones.owned) < 2 or self._membership.is_leaving:
            return []
        return [WakeAt(now + self._shed_s * self._rng.uniform(1.0, 1.5), ("shed",), idle=True)]

    def _shed(self, now: float) -> list[Effect]:
        if len(self._zones.owned) < 2 or not self._membership.is_ready:
            return []
        if self.outgoing is not None or self.incoming is not None:
            return self.shed_later(now)
        return self._merge_own(now) or self._give_away(now)

    def give_up_zone(self, now: float) -> list[Effect]:
        """The next step of a broker that leaves: give away one of its zones; without any, it has left."""
        if self.outgoing is not None or (self._seeking and self._membership.is_leaving):
            return []
        if not self._zones.owned or not self._zones.neighbours:
            return self._changes.zones_given_up(now)
        return self._merge_own(now) or self._give_away(now)

    def _try_again(self, now: float) -> list[Effect]:
        """A transfer failed: try again later, after a longer wait each time."""
        self._shed_s = min(2 * self._shed_s, SHED_S_MAX)
        if self._membership.is_leaving:
            return [WakeAt(now + 2 * self._answer_s, ("leave",))]
        return self.shed_later(now)

    def _merge_own(self, now: float) -> list[Effect]:
        """Merge two owned zones that are siblings."""
        zones = self._zones
        for path in sorted(zones.owned, key=len, reverse=True):
            if path and sibling(path) in zones.owned:
                one, other = zones.release(path), zones.release(sibling(path))
                assert one is not None
                assert other is not None
                owned = zones.acquire(path[:-1], raised(max(one.epoch, other.epoch)), one.ancestors)
                owned.records, owned.index = {**one.records, **other.records}, {**one.index, **other.index}
                return [*self._changes.zones_changed(now), *self.shed_later(now)]
        return []

    def _give_away(self, now: float) -> list[Effect]:
        """Give away the deepest zone whose sibling has one owner; if there is none, find a pair of siblings."""
        deepest_first = sorted(self._zones.owned.values(), key=lambda owned: (-len(owned.path), owned.path))
        for owned in deepest_first:
            owner = self._sibling_owner(owned.path)
            if owner is not None:
                return self._hand_off(owner, "merge", owned, now)
        return self._seek_pair(deepest_first[-1], now)

    def _sibling_owner(self, path: Path) -> Peer | None:
        owner = self._zones.owner_of(sibling(path)) if path else None
        return owner if owner is not None and self._monitor.is_alive(owner.id) else None

    def _hand_off(self, to: Peer, kind: TransferKind, owned: OwnedZone, now: float) -> list[Effect]:
        number = self._next_number()
        return self._give(to, kind, owned, ZoneClaim(owned.path, raised(owned.epoch)), number, now)

    # ── Finding a pair of siblings ───────────────────────────────────────────

    def _seek_pair(self, owned: OwnedZone, now: float) -> list[Effect]:
        if not owned.path:
            return self._try_again(now)
        self._seeking = number = self._next_number()
        effects = self._follow_tree(FindPair(self._zones.me, number), owned, RouteHeader(()), now)
        return [*effects, WakeAt(now + 4 * self._answer_s, ("seek", number))]

    def _seek_overdue(self, number: int, now: float) -> list[Effect]:
        if number != self._seeking:
            return []
        self._seeking = 0
        return self._try_again(now)

    def receive_find_pair(self, question: FindPair, route: RouteHeader, now: float) -> list[Effect]:
        """Offer to take a zone if this broker can leave its own to its sibling; else pass the question on."""
        owned = self._zones.nearest(route.destination)
        is_single = len(self._zones.owned) == 1
        if is_single and self._membership.is_ready and self._sibling_owner(owned.path) is not None:
            return [Send(question.asker.id, PairFound(question.number, self._zones.me))]
        return self._follow_tree(question, owned, route, now)

    def _follow_tree(self, question: FindPair, owned: OwnedZone, route: RouteHeader, now: float) -> list[Effect]:
        """Pass a question into the sibling's zone. That zone has been cut further, so this ends."""
        if not owned.path:
            return []
        there = sibling(owned.path)
        for id, advert in self._zones.neighbours.items():
            if id != question.asker.id and self._monitor.is_alive(id) and id not in route.trace:
                for claim in advert.claims:
                    if within(claim.path, there):
                        point = self._zones.space.zone(claim.path).low
                        onward = RouteHeader(point, (*route.trace, self._zones.me.id))
                        return self._hops.send(id, Routed(self._hops.next_number(), onward, question), now)
        return []

    def _pair_found(self, answer: PairFound, now: float) -> list[Effect]:
        """Another broker can take a zone: give it the shallowest."""
        if answer.number != self._seeking or self.outgoing is not None or not self._zones.owned:
            return []
        self._seeking = 0
        owned = min(self._zones.owned.values(), key=lambda owned: (len(owned.path), owned.path))
        return self._hand_off(answer.taker, "adopt", owned, now)


# ── Where to cut ─────────────────────────────────────────────────────────────


def cut_of(owned: OwnedZone, space: Space, *, by_load: bool) -> int:
    """Where to cut a zone: by load, at the median of its subscriptions and recent events; else in the middle."""
    axis, middle = len(owned.path) % space.axes, space.middle(owned.path)
    places = [point[axis] for point in owned.recent_events]
    places += [_middle_of(stored.boxes, owned.zone, axis, middle) for stored in owned.records.values()]
    if not by_load or len(places) < LOAD_MIN:
        return middle
    low, high = owned.zone.low[axis], owned.zone.high[axis]
    margin = max(1, (high - low) // EDGE)
    return min(max(sorted(places)[len(places) // 2], low + margin), high - margin)


def _middle_of(boxes: tuple[Zone, ...], zone: Zone, axis: int, otherwise: int) -> int:
    parts = [part for box in boxes if (part := box.meet(zone)) is not None]
    return (parts[0].low[axis] + parts[0].high[axis]) // 2 if parts else otherwise
