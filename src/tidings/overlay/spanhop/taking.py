"""Getting a zone: a newcomer that asks for one, and whoever is handed one that another wants to be rid of.

    newcomer    Join to a random point, through any contact → Offer, part by part, each accepted → Committed
    taker       Hand, part by part, each acknowledged with Took; merged with its sibling, or held besides its own

Nothing is held before the last part has come; who gives is told of in `giving`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from tidings.overlay.dedup import SeenIds
from tidings.overlay.messages import NodeId, Peer
from tidings.overlay.router import Effect, Failed, Send, WakeAt
from tidings.overlay.spanhop.giving import COMMITTED_MAX, GIVE_TRIES_MAX
from tidings.overlay.spanhop.messages import (
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
    ZoneDescriptor,
)
from tidings.overlay.spanhop.next_hop import RouteHeader
from tidings.overlay.spanhop.zone_ownership import ZoneTable
from tidings.space import sibling

if TYPE_CHECKING:
    from tidings.overlay.spanhop.router import Spanhop

JOIN_TRIES_MAX = 40


@dataclass(slots=True)
class Taking:
    """A zone on its way here."""

    number: int
    giver: NodeId
    deed: ZoneDescriptor
    records: list[SubscriptionRecord] = field(default_factory=list)
    next_part: int = 0

    def take(self, part: int, records: Sequence[SubscriptionRecord]) -> bool:
        """Take the part that is next; whether this one is here, now or since before."""
        if part == self.next_part:
            self.records += records
            self.next_part += 1
        return part < self.next_part


class Taker:
    """What one broker is being given."""

    def __init__(self, router: Spanhop, zones: ZoneTable, rng: Random, answer_s: float) -> None:
        self._router, self.zones, self._rng, self.answer_s = router, zones, rng, answer_s
        self.taking: Taking | None = None
        self.contacts: dict[NodeId, Peer] = {}
        self.number = zones.me.incarnation << 32  # Of the exchange this broker asked for last.
        self._joins = 0
        self._took = SeenIds[tuple[NodeId, int]](COMMITTED_MAX)

    def next_number(self) -> int:
        """A number that no other exchange of this broker's has."""
        self.number += 1
        return self.number

    # ── Coming ───────────────────────────────────────────────────────────────

    def join(self, via: Sequence[Peer], now: float) -> list[Effect]:
        """Ask for a zone through any of these."""
        self.contacts.update({peer.id: peer for peer in via if peer.id != self.zones.me.id})
        self._joins = 0
        return self.ask_for_zone(now)

    def ask_for_zone(self, now: float) -> list[Effect]:
        """One more try, at a new point, through the next contact."""
        self._joins += 1
        self.taking = None
        if self._joins > JOIN_TRIES_MAX or not self.contacts:
            return [Failed("join", "nobody has offered a zone")]
        contact = list(self.contacts)[(self._joins - 1) % len(self.contacts)]
        number = self.next_number()
        space = self.zones.space
        destination = tuple(self._rng.randrange(space.side) for _ in range(space.axes))
        join = Join(self.zones.me, number)
        wait_s = self.answer_s * min(2 + self._joins, 8)
        asked = Routed(self._router.legs.number(), RouteHeader(destination), join)
        return [Send(contact, asked), WakeAt(now + wait_s, ("join", number))]

    def join_overdue(self, number: int, now: float) -> list[Effect]:
        return self.ask_for_zone(now) if number == self.number and self._router.is_joining else []

    def busy(self, message: Busy, now: float) -> list[Effect]:
        """The other cannot now."""
        if message.number == self.number and self._router.is_joining:
            self.taking = None
            return [WakeAt(now + self._rng.uniform(0.1, 1.0) * self.answer_s, ("join", self.number))]
        return []

    # ── Taking ───────────────────────────────────────────────────────────────

    def offered(self, sender: NodeId, offer: Offer, now: float) -> list[Effect]:
        """A part of what this newcomer is offered."""
        if not self._router.is_joining or offer.number != self.number or not self._fits(offer.deed):
            return []
        taking = self.taking
        if taking is None or taking.giver != sender:
            taking = self.taking = Taking(offer.number, sender, offer.deed)
        is_here = taking.take(offer.part, offer.records)
        answer = [Send(sender, Accept(offer.number, offer.part))] if is_here else []
        return [*answer, WakeAt(now + self.answer_s, ("accept", offer.number, offer.part, 1))]

    def accept_again(self, number: int, part: int, tries: int, now: float) -> list[Effect]:
        """The giver may not have heard that the part was accepted."""
        taking = self.taking
        if taking is None or taking.number != number or taking.next_part != part + 1 or not self._router.is_joining:
            return []
        if tries > GIVE_TRIES_MAX + 1:
            return self.ask_for_zone(now)
        again: list[Effect] = [Send(taking.giver, Accept(number, part))]
        return [*again, WakeAt(now + self.answer_s, ("accept", number, part, tries + 1))]

    def committed(self, sender: NodeId, message: Committed, now: float) -> list[Effect]:
        """The zone is this newcomer's."""
        taking = self.taking
        if taking is None or (taking.giver, taking.number) != (sender, message.number) or not self._router.is_joining:
            return []
        self.taking = None
        return self._router.settled_in(taking.deed, [*taking.records, *message.records], now)

    def handed(self, sender: NodeId, hand: Handoff, now: float) -> list[Effect]:
        """Somebody wants to be rid of a zone."""
        if (sender, hand.number) in self._took:
            return [Send(sender, HandoffAck(hand.number, hand.part))]
        if not self._can_take(sender, hand):
            return [Send(sender, HandoffRefused(hand.number))]
        taking = self.taking
        if taking is None or (taking.giver, taking.number) != (sender, hand.number):
            taking = self.taking = Taking(hand.number, sender, hand.deed)
        if not taking.take(hand.part, hand.records):
            return []
        answer = Send(sender, HandoffAck(hand.number, hand.part))
        if not hand.last:
            patience_s = self.answer_s * 2 * GIVE_TRIES_MAX
            return [answer, WakeAt(now + patience_s, ("taking", sender, hand.number, hand.part))]
        self.taking = None
        self._took.add((sender, hand.number))
        return [answer, *self._take_in(hand, taking.records, now)]

    def taking_overdue(self, giver: NodeId, number: int, part: int) -> list[Effect]:
        """The giver has gone silent: forget it, so that others can be served."""
        taking = self.taking
        if taking is not None and (taking.giver, taking.number, taking.next_part) == (giver, number, part + 1):
            self.taking = None
        return []

    def peer_gone(self, id: NodeId, now: float) -> list[Effect]:
        """Who was giving this broker something is not there any more."""
        if self.taking is None or self.taking.giver != id:
            return []
        self.taking = None
        return self.ask_for_zone(now) if self._router.is_joining else []

    def _can_take(self, sender: NodeId, hand: Handoff) -> bool:
        path = hand.deed.claim.path
        if not self._fits(hand.deed) or not self._router.may_take() or self._router.giver.giving is not None:
            return False
        if self.taking is not None and (self.taking.giver, self.taking.number) != (sender, hand.number):
            return False
        return not hand.merge or (bool(path) and sibling(path) in self.zones.owned)

    def _take_in(self, hand: Handoff, records: list[SubscriptionRecord], now: float) -> list[Effect]:
        deed = hand.deed
        if not hand.merge:
            return self._router.settled_in(deed, records, now)
        mine = self.zones.drop(sibling(deed.claim.path))
        assert mine is not None
        epoch = max(mine.epoch, deed.claim.epoch) + 1
        owned = self.zones.hold(mine.path[:-1], epoch, mine.ancestors)
        owned.records, owned.recent, owned.index = mine.records, mine.recent, mine.index
        return self._router.grown(owned, deed, records, now)

    def _fits(self, deed: ZoneDescriptor) -> bool:
        return (
            self.zones.space.has(deed.claim.path)
            and all(map(self.zones.fits, deed.cards))
            and all(self.zones.space.has(entry.path) for table in deed.ancestors for entry in table)
        )
