"""Giving a zone: half of one to a newcomer, or a whole one to somebody who can take it.

The deed and the records go part by part. The zone changes hands when the last part has
been accepted; until then an exchange can break off at any message and both are as they
were. Where a zone is cut depends on where the load is.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tidings.overlay.messages import NodeId, Peer
from tidings.overlay.router import Count, Effect, Send, WakeAt
from tidings.overlay.spanhop.messages import (
    RECORDS_AT_ONCE,
    Accept,
    Busy,
    Committed,
    Handoff,
    HandoffAck,
    HandoffRefused,
    Join,
    Offer,
    Routed,
    SubscriptionRecord,
    ZoneAdvertisement,
    ZoneClaim,
    ZoneDescriptor,
    in_parts,
)
from tidings.overlay.spanhop.neighbours import UNSEEN, records_for
from tidings.overlay.spanhop.next_hop import Point, RouteHeader
from tidings.overlay.spanhop.zone_ownership import OwnedZone, ZoneTable
from tidings.space import Path, Zone, halves, sibling

if TYPE_CHECKING:
    from tidings.overlay.spanhop.router import Spanhop

GIVE_TRIES_MAX = 5  # For one part of what is given.
COMMITTED_MAX = 64  # Exchanges remembered after they were done, to answer a repeated question.
LOAD_MIN = 8  # Subscriptions and events below which a zone is cut in the middle.
EDGE = 16  # A cut leaves at least this part (1/16) of the zone on either side: skew must not end in slices.

Kind = Literal["offer", "merge", "adopt"]


@dataclass(slots=True)
class Giving:
    """A zone, or half of one, on its way to somebody."""

    number: int
    to: Peer
    kind: Kind
    path: Path  # Of the zone held here.
    given: ZoneClaim
    deed: ZoneDescriptor
    parts: list[tuple[SubscriptionRecord, ...]]
    part: int = 0
    tries: int = 1


class Giver:
    """What one broker is giving away."""

    def __init__(self, router: Spanhop, zones: ZoneTable, answer_s: float) -> None:
        self._router, self.zones, self.answer_s = router, zones, answer_s
        self.giving: Giving | None = None
        self._committed: OrderedDict[tuple[NodeId, int], tuple[SubscriptionRecord, ...]] = OrderedDict()

    # ── Being asked ──────────────────────────────────────────────────────────

    def asked(self, join: Join, destination: Point, now: float) -> list[Effect]:
        """A newcomer's question has come to the owner of its point."""
        joiner = join.joiner
        if self.giving is not None and self.giving.to == joiner and self.giving.kind == "offer":
            return self._send_part()
        if self.giving is not None or self._router.taker.taking is not None or not self._router.may_take():
            return [Send(joiner.id, Busy(join.number))]
        owned = self._spare() or self.zones.nearest(destination)
        larger = None if join.handed or len(self.zones.owned) > 1 else self._larger(owned, joiner.id)
        if self._router.join_policy == "even" and larger is not None:
            number = self._router.legs.number()
            handed = Routed(number, RouteHeader(destination), Join(joiner, join.number, handed=True))
            return self._router.legs.send(larger, handed, now)
        if len(self.zones.owned) == 1 and not self.zones.space.can_split(owned.path):
            return [Send(joiner.id, Busy(join.number))]
        return self._offer(owned, joiner, join.number, now)

    def _larger(self, owned: OwnedZone, joiner: NodeId) -> NodeId | None:
        """The neighbour with the shallowest zone, if that is larger than this."""
        rows = [
            (len(claim.path), id)
            for id, card in self.zones.cards.items()
            for claim in card.claims
            if id != joiner and self._router.neighbourhood.is_alive(id)
        ]
        least = min(rows, default=None)
        return least[1] if least is not None and least[0] < len(owned.path) else None

    def _spare(self) -> OwnedZone | None:
        """A zone held besides another: given whole instead of being cut."""
        return max(self.zones.owned.values(), key=lambda owned: len(owned.path)) if len(self.zones.owned) > 1 else None

    def _offer(self, owned: OwnedZone, joiner: Peer, number: int, now: float) -> list[Effect]:
        if len(self.zones.owned) > 1:
            given = ZoneClaim(owned.path, owned.epoch + 1)
        else:
            given = ZoneClaim(halves(owned.path, self.cut(owned))[1], owned.epoch + 1)
        return self.give(joiner, "offer", owned, given, number, now)

    def cut(self, owned: OwnedZone) -> int:
        """Where to cut a zone so that both sides have as much to do: subscriptions and events alike."""
        space = self.zones.space
        axis, middle = len(owned.path) % space.axes, space.middle(owned.path)
        places = [point[axis] for point in owned.recent]
        places += [_middle(kept.boxes, owned.zone, axis, middle) for kept in owned.records.values()]
        if not self._router.cuts_by_load or len(places) < LOAD_MIN:
            return middle
        low, high = owned.zone.low[axis], owned.zone.high[axis]
        margin = max(1, (high - low) // EDGE)
        return min(max(sorted(places)[len(places) // 2], low + margin), high - margin)

    # ── Giving ───────────────────────────────────────────────────────────────

    def give(self, to: Peer, kind: Kind, owned: OwnedZone, given: ZoneClaim, number: int, now: float) -> list[Effect]:
        """Begin an exchange: a zone held here, or a part of it, is on its way to somebody."""
        zone = self.zones.space.zone(given.path)
        records = [kept.record for kept in owned.records.values() if kept.touches(zone)]
        cards = (self.zones.card(), *self.zones.cards.values())
        deed = ZoneDescriptor(given, tuple(owned.ancestors), cards, self._router.index_of(owned, zone))
        self.giving = Giving(number, to, kind, owned.path, given, deed, in_parts(records) or [()])
        return [*self._send_part(), self._part_due(now)]

    def _part_due(self, now: float) -> WakeAt:
        giving = self.giving
        assert giving is not None
        return WakeAt(now + self.answer_s * giving.tries, ("give", giving.number, giving.part, giving.tries))

    def _send_part(self) -> list[Effect]:
        giving = self.giving
        assert giving is not None
        records, last = giving.parts[giving.part], giving.part == len(giving.parts) - 1
        if giving.kind == "offer":
            return [Send(giving.to.id, Offer(giving.number, giving.deed, records, giving.part, last))]
        merge = giving.kind == "merge"
        return [Send(giving.to.id, Handoff(giving.number, giving.deed, records, merge, giving.part, last))]

    def part_overdue(self, number: int, part: int, tries: int, now: float) -> list[Effect]:
        giving = self.giving
        if giving is None or (giving.number, giving.part, giving.tries) != (number, part, tries):
            return []
        if giving.tries >= GIVE_TRIES_MAX:
            return self.break_off(now)
        giving.tries += 1
        return [*self._send_part(), self._part_due(now)]

    def break_off(self, now: float) -> list[Effect]:
        """Nothing has changed hands and nothing will."""
        self.giving = None
        return [Count("exchanges broken off"), *self._router.mover.try_again(now)]

    def refused(self, sender: NodeId, message: HandoffRefused, now: float) -> list[Effect]:
        giving = self.giving
        if giving is None or giving.to.id != sender or giving.number != message.number:
            return []
        return self.break_off(now)

    def accepted(self, sender: NodeId, answer: Accept | HandoffAck, now: float) -> list[Effect]:
        """The other has a part: the next, or, after the last, the zone is its own."""
        giving = self.giving
        if giving is None or giving.to.id != sender or giving.number != answer.number:
            return self._accepted_before(sender, answer)
        if answer.part != giving.part or isinstance(answer, HandoffAck) is (giving.kind == "offer"):
            return []
        if giving.part < len(giving.parts) - 1:
            giving.part, giving.tries = giving.part + 1, 1
            return [*self._send_part(), self._part_due(now)]
        self.giving = None
        return self._commit(giving, now)

    def peer_gone(self, id: NodeId, now: float) -> list[Effect]:
        """Who was to be given something is not there any more."""
        return self.break_off(now) if self.giving is not None and self.giving.to.id == id else []

    def _accepted_before(self, sender: NodeId, answer: Accept | HandoffAck) -> list[Effect]:
        if isinstance(answer, HandoffAck):
            return []
        late = self._committed.get((sender, answer.number))
        if late is not None:
            return [Send(sender, Committed(answer.number, late))]
        return [Send(sender, Busy(answer.number))]

    def _commit(self, giving: Giving, now: float) -> list[Effect]:
        owned = self.zones.drop(giving.path)
        if owned is None:  # Lost to a higher claim meanwhile: the other will lose it too.
            return self._router.mover.try_again(now)
        late = self._late(giving, owned)
        effects: list[Effect] = []
        if giving.kind == "offer":
            effects += self._remember(giving, tuple(late[:RECORDS_AT_ONCE]))
            late = late[RECORDS_AT_ONCE:]
        effects += records_for(giving.to.id, late)
        if giving.given.path != giving.path:
            self._keep_low(giving, owned, now)
        self._router.mover.calm_down()
        effects += self._router.proximity.moved(giving.deed.index)
        return [*effects, *self._router.changed(now, (giving.to.id,)), *self._router.mover.shed_later(now)]

    def _late(self, giving: Giving, owned: OwnedZone) -> list[SubscriptionRecord]:
        """What has come, or changed, since the parts were sent."""
        zone = self.zones.space.zone(giving.given.path)
        sent = {record.interest.id: record.version for part in giving.parts for record in part}
        kept = [each.record for each in owned.records.values() if each.touches(zone)]
        return [record for record in kept if sent.get(record.interest.id) != record.version]

    def _remember(self, giving: Giving, late: tuple[SubscriptionRecord, ...]) -> list[Effect]:
        if len(self._committed) >= COMMITTED_MAX:
            self._committed.popitem(last=False)
        self._committed[giving.to.id, giving.number] = late
        return [Send(giving.to.id, Committed(giving.number, late))]

    def _keep_low(self, giving: Giving, owned: OwnedZone, now: float) -> None:
        """After a split: the lower half stays, with the newcomer among its neighbours."""
        self.zones.cards.pop(giving.to.id, None)
        self.zones.cards[giving.to.id] = ZoneAdvertisement(giving.to, UNSEEN, (giving.given,))
        low = self.zones.hold(sibling(giving.given.path), giving.given.epoch, owned.ancestors)
        low.records = {id: kept for id, kept in owned.records.items() if kept.touches(low.zone)}
        low.recent = [point for point in owned.recent if point in low.zone]
        low.index = {key: record for key, record in owned.index.items() if record not in giving.deed.index}
        self._router.neighbourhood.watch(giving.to.id, now)


def _middle(boxes: tuple[Zone, ...], zone: Zone, axis: int, otherwise: int) -> int:
    parts = [part for box in boxes if (part := box.meet(zone)) is not None]
    return (parts[0].low[axis] + parts[0].high[axis]) // 2 if parts else otherwise
