"""Zones changing hands: joins, leaves, merges, and getting rid of a zone too many.

    join      a newcomer asks at a random point; the owner there (or its neighbour with the largest zone) locks,
              offers half of its zone with all that belongs to it, and splits when the newcomer has accepted the last part
    merge     a zone goes to the holder of its sibling, which then holds what the two were cut from
    adopt     a zone goes to somebody who holds it besides its own and gets rid of one of the two later

Who has a zone to give looks at its sibling. If one broker holds that, the two merge. If it
was cut further, somebody in there holds one of two siblings (FindPair follows the tree down
until it meets them): that broker adopts, and gives what it had to its own sibling.

A broker is in one such exchange at a time. Nothing changes before the last part has been
accepted, so an exchange can break off at any message and both are as they were.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Literal

from tidings.overlay.ancestors import Point, Trip
from tidings.overlay.claims import Atlas, Held
from tidings.overlay.neighbourhood import RECORDS_AT_ONCE, UNSEEN, records_for
from tidings.overlay.router import Count, Effect, Failed, Send, WakeAt
from tidings.overlay.seen import SeenIds
from tidings.overlay.spanhop_messages import (
    Accept,
    Busy,
    Card,
    Claim,
    Committed,
    Deed,
    FindPair,
    Hand,
    Join,
    Offer,
    PairFound,
    Record,
    Refused,
    Routed,
    Took,
)
from tidings.overlay.wire import NodeId, Peer
from tidings.space import Path, Zone, halves, sibling, within

if TYPE_CHECKING:
    from tidings.overlay.spanhop import Spanhop

JOIN_TRIES_MAX = 40
GIVE_TRIES_MAX = 5  # For one part of what is given.
SHED_S = 3.0  # After a broker has come to hold two zones; the world may still be changing.
SHED_S_MAX = 30.0
LEAVE_S = 30.0  # A leaver that finds nobody to take its zone goes without.
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
    given: Claim
    deed: Deed
    parts: list[tuple[Record, ...]]
    part: int = 0
    tries: int = 1


@dataclass(slots=True)
class Taking:
    """A zone on its way here."""

    number: int
    giver: NodeId
    deed: Deed
    records: list[Record] = field(default_factory=list)
    next_part: int = 0
    tries: int = 0


class Mover:
    """One broker's exchanges."""

    def __init__(self, router: Spanhop, atlas: Atlas, chance: Random, answer_s: float) -> None:
        self._router, self.atlas, self._chance, self.answer_s = router, atlas, chance, answer_s
        self.giving: Giving | None = None
        self.taking: Taking | None = None
        self.contacts: dict[NodeId, Peer] = {}
        self._joins = 0
        self._number = atlas.me.incarnation << 32
        self._committed: OrderedDict[tuple[NodeId, int], tuple[Record, ...]] = OrderedDict()
        self._took = SeenIds[tuple[NodeId, int]](COMMITTED_MAX)
        self._seeking = 0  # The number of a FindPair that waits for an answer.
        self._shed_s = SHED_S

    # ── Coming ───────────────────────────────────────────────────────────────

    def join(self, via: Sequence[Peer], now: float) -> list[Effect]:
        """Ask for a zone through any of these."""
        self.contacts.update({peer.id: peer for peer in via if peer.id != self.atlas.me.id})
        self._joins = 0
        return self.ask_for_zone(now)

    def ask_for_zone(self, now: float) -> list[Effect]:
        """One more try, at a new point, through the next contact."""
        self._joins += 1
        self.taking = None
        if self._joins > JOIN_TRIES_MAX or not self.contacts:
            return [Failed("join", "nobody has offered a zone")]
        contact = list(self.contacts)[(self._joins - 1) % len(self.contacts)]
        self._number += 1
        space = self.atlas.space
        aim = tuple(self._chance.randrange(space.side) for _ in range(space.axes))
        join = Join(self.atlas.me, self._number)
        wait_s = self.answer_s * min(2 + self._joins, 8)
        asked = Routed(self._router.legs.number(), Trip(aim), join)
        return [Send(contact, asked), WakeAt(now + wait_s, ("join", self._number))]

    def join_overdue(self, number: int, now: float) -> list[Effect]:
        return self.ask_for_zone(now) if number == self._number and self._router.is_joining else []

    def busy(self, message: Busy, now: float) -> list[Effect]:
        """The other cannot now."""
        if message.number == self._number and self._router.is_joining:
            self.taking = None
            return [WakeAt(now + self._chance.uniform(0.1, 1.0) * self.answer_s, ("join", self._number))]
        return []

    def asked(self, join: Join, aim: Point, now: float) -> list[Effect]:
        """A newcomer's question has come to the owner of its point."""
        joiner = join.joiner
        if self.giving is not None and self.giving.to == joiner and self.giving.kind == "offer":
            return self._send_part()
        if self.giving is not None or self.taking is not None or not self._router.may_take():
            return [Send(joiner.id, Busy(join.number))]
        held = self._spare() or self.atlas.nearest(aim)
        larger = None if join.handed or len(self.atlas.held) > 1 else self._larger(held, joiner.id)
        if self._router.join_policy == "even" and larger is not None:
            number = self._router.legs.number()
            handed = Routed(number, Trip(aim), Join(joiner, join.number, handed=True))
            return self._router.legs.send(larger, handed, now)
        if len(self.atlas.held) == 1 and not self.atlas.space.can_split(held.path):
            return [Send(joiner.id, Busy(join.number))]
        return self._offer(held, joiner, join.number, now)

    def _larger(self, held: Held, joiner: NodeId) -> NodeId | None:
        """The neighbour with the shallowest zone, if that is larger than this."""
        rows = [
            (len(claim.path), id)
            for id, card in self.atlas.cards.items()
            for claim in card.claims
            if id != joiner and self._router.is_alive(id)
        ]
        least = min(rows, default=None)
        return least[1] if least is not None and least[0] < len(held.path) else None

    def _spare(self) -> Held | None:
        """A zone held besides another: given whole instead of being cut."""
        return max(self.atlas.held.values(), key=lambda held: len(held.path)) if len(self.atlas.held) > 1 else None

    def _offer(self, held: Held, joiner: Peer, number: int, now: float) -> list[Effect]:
        if len(self.atlas.held) > 1:
            given = Claim(held.path, held.epoch + 1)
        else:
            given = Claim(halves(held.path, self.cut(held))[1], held.epoch + 1)
        return self._give(joiner, "offer", held, given, number, now)

    def cut(self, held: Held) -> int:
        """Where to cut a zone so that both sides have as much to do: subscriptions and events alike."""
        space = self.atlas.space
        axis, middle = len(held.path) % space.axes, space.middle(held.path)
        places = [point[axis] for point in held.recent]
        places += [_middle(kept.boxes, held.zone, axis, middle) for kept in held.records.values()]
        if not self._router.cuts_by_load or len(places) < LOAD_MIN:
            return middle
        low, high = held.zone.low[axis], held.zone.high[axis]
        margin = max(1, (high - low) // EDGE)
        return min(max(sorted(places)[len(places) // 2], low + margin), high - margin)

    # ── Giving ───────────────────────────────────────────────────────────────

    def _give(self, to: Peer, kind: Kind, held: Held, given: Claim, number: int, now: float) -> list[Effect]:
        zone = self.atlas.space.zone(given.path)
        records = [kept.record for kept in held.records.values() if kept.touches(zone)]
        parts = [tuple(records[i : i + RECORDS_AT_ONCE]) for i in range(0, len(records), RECORDS_AT_ONCE)]
        cards = (self.atlas.card(), *self.atlas.cards.values())
        deed = Deed(given, tuple(held.ancestors), cards, self._router.index_of(held, zone))
        self.giving = Giving(number, to, kind, held.path, given, deed, parts or [()])
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
        return [Send(giving.to.id, Hand(giving.number, giving.deed, records, merge, giving.part, last))]

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
        return [Count("exchanges broken off"), *self._try_again(now)]

    def _try_again(self, now: float) -> list[Effect]:
        self._shed_s = min(2 * self._shed_s, SHED_S_MAX)
        if self._router.is_leaving:
            return [WakeAt(now + 2 * self.answer_s, ("leave",))]
        return self.shed_later(now)

    def accepted(self, sender: NodeId, answer: Accept | Took, now: float) -> list[Effect]:
        """The other has a part: the next, or, after the last, the zone is its own."""
        giving = self.giving
        if giving is None or giving.to.id != sender or giving.number != answer.number:
            return self._accepted_before(sender, answer)
        if answer.part != giving.part or isinstance(answer, Took) is (giving.kind == "offer"):
            return []
        if giving.part < len(giving.parts) - 1:
            giving.part, giving.tries = giving.part + 1, 1
            return [*self._send_part(), self._part_due(now)]
        self.giving = None
        return self._commit(giving, now)

    def _accepted_before(self, sender: NodeId, answer: Accept | Took) -> list[Effect]:
        if isinstance(answer, Took):
            return []
        late = self._committed.get((sender, answer.number))
        if late is not None:
            return [Send(sender, Committed(answer.number, late))]
        return [Send(sender, Busy(answer.number))]

    def _commit(self, giving: Giving, now: float) -> list[Effect]:
        held = self.atlas.drop(giving.path)
        if held is None:  # Lost to a higher claim meanwhile: the other will lose it too.
            return self._try_again(now)
        zone = self.atlas.space.zone(giving.given.path)
        sent = {record.interest.id: record.version for part in giving.parts for record in part}
        late = [
            kept.record
            for id, kept in held.records.items()
            if kept.touches(zone) and sent.get(id) != kept.record.version
        ]
        effects: list[Effect] = []
        if giving.kind == "offer":
            effects += self._remember(giving, tuple(late[:RECORDS_AT_ONCE]))
            late = late[RECORDS_AT_ONCE:]
        effects += records_for(giving.to.id, late)
        if giving.given.path != giving.path:
            self._keep_low(giving, held, now)
        self._shed_s = SHED_S
        effects += self._router.proximity.moved(giving.deed.index)
        return [*effects, *self._router.changed(now, (giving.to.id,)), *self.shed_later(now)]

    def _remember(self, giving: Giving, late: tuple[Record, ...]) -> list[Effect]:
        if len(self._committed) >= COMMITTED_MAX:
            self._committed.popitem(last=False)
        self._committed[giving.to.id, giving.number] = late
        return [Send(giving.to.id, Committed(giving.number, late))]

    def _keep_low(self, giving: Giving, held: Held, now: float) -> None:
        """After a split: the lower half stays, with the newcomer among its neighbours."""
        self.atlas.cards.pop(giving.to.id, None)
        self.atlas.cards[giving.to.id] = Card(giving.to, UNSEEN, (giving.given,))
        low = self.atlas.hold(sibling(giving.given.path), giving.given.epoch, held.ancestors)
        low.records = {id: kept for id, kept in held.records.items() if kept.touches(low.zone)}
        low.recent = [point for point in held.recent if point in low.zone]
        low.index = {key: record for key, record in held.index.items() if record not in giving.deed.index}
        self._router.neighbourhood.watch(giving.to.id, now)

    # ── Taking ───────────────────────────────────────────────────────────────

    def offered(self, sender: NodeId, offer: Offer, now: float) -> list[Effect]:
        """A part of what this newcomer is offered."""
        if not self._router.is_joining or offer.number != self._number or not self._fits(offer.deed):
            return []
        taking = self.taking
        if taking is None or taking.giver != sender:
            taking = self.taking = Taking(offer.number, sender, offer.deed)
        if offer.part == taking.next_part:
            taking.records += offer.records
            taking.next_part += 1
        effects: list[Effect] = (
            [Send(sender, Accept(offer.number, offer.part))] if offer.part < taking.next_part else []
        )
        return [*effects, WakeAt(now + self.answer_s, ("accept", offer.number, offer.part, 1))]

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

    def handed(self, sender: NodeId, hand: Hand, now: float) -> list[Effect]:
        """Somebody wants to be rid of a zone."""
        if (sender, hand.number) in self._took:
            return [Send(sender, Took(hand.number, hand.part))]
        if not self._can_take(sender, hand):
            return [Send(sender, Refused(hand.number))]
        taking = self.taking
        if taking is None or (taking.giver, taking.number) != (sender, hand.number):
            taking = self.taking = Taking(hand.number, sender, hand.deed)
        if hand.part == taking.next_part:
            taking.records += hand.records
            taking.next_part += 1
        if hand.part >= taking.next_part:
            return []
        answer: list[Effect] = [Send(sender, Took(hand.number, hand.part))]
        if not hand.last:
            return [
                *answer,
                WakeAt(now + self.answer_s * 2 * GIVE_TRIES_MAX, ("taking", sender, hand.number, hand.part)),
            ]
        self.taking = None
        self._took.add((sender, hand.number))
        return [*answer, *self._take_in(hand, taking.records, now)]

    def _can_take(self, sender: NodeId, hand: Hand) -> bool:
        path = hand.deed.claim.path
        if not self._fits(hand.deed) or not self._router.may_take() or self.giving is not None:
            return False
        if self.taking is not None and (self.taking.giver, self.taking.number) != (sender, hand.number):
            return False
        return not hand.merge or (bool(path) and sibling(path) in self.atlas.held)

    def _take_in(self, hand: Hand, records: list[Record], now: float) -> list[Effect]:
        deed = hand.deed
        if not hand.merge:
            return self._router.settled_in(deed, records, now)
        mine = self.atlas.drop(sibling(deed.claim.path))
        assert mine is not None
        epoch = max(mine.epoch, deed.claim.epoch) + 1
        held = self.atlas.hold(mine.path[:-1], epoch, mine.ancestors)
        held.records, held.recent, held.index = mine.records, mine.recent, mine.index
        return self._router.grown(held, deed, records, now)

    def taking_overdue(self, giver: NodeId, number: int, part: int) -> None:
        """The giver has gone silent: forget it, so that others can be served."""
        taking = self.taking
        if taking is not None and (taking.giver, taking.number, taking.next_part) == (giver, number, part + 1):
            self.taking = None

    def _fits(self, deed: Deed) -> bool:
        return (
            self.atlas.space.has(deed.claim.path)
            and all(map(self.atlas.fits, deed.cards))
            and all(self.atlas.space.has(plot.path) for table in deed.ancestors for plot in table)
        )

    # ── A zone too many ──────────────────────────────────────────────────────

    def shed_later(self, now: float) -> list[Effect]:
        """A broker with more than one zone gives one away when things have calmed down."""
        if len(self.atlas.held) < 2 or self._router.is_leaving:
            return []
        return [WakeAt(now + self._shed_s * self._chance.uniform(1.0, 1.5), ("shed",), idle=True)]

    def shed(self, now: float) -> list[Effect]:
        if len(self.atlas.held) < 2 or not self._router.may_take():
            return []
        if self.giving is not None or self.taking is not None:
            return self.shed_later(now)
        return self._merge_own(now) or self._give_away(now)

    def _merge_own(self, now: float) -> list[Effect]:
        """Two zones held here may be siblings."""
        for path in sorted(self.atlas.held, key=len, reverse=True):
            if path and sibling(path) in self.atlas.held:
                one, other = self.atlas.drop(path), self.atlas.drop(sibling(path))
                assert one is not None
                assert other is not None
                held = self.atlas.hold(path[:-1], max(one.epoch, other.epoch) + 1, one.ancestors)
                held.records, held.index = {**one.records, **other.records}, {**one.index, **other.index}
                return [*self._router.changed(now), *self.shed_later(now)]
        return []

    def _give_away(self, now: float) -> list[Effect]:
        """The deepest zone that has a sibling to merge with; if none has, somebody must be found."""
        deepest_first = sorted(self.atlas.held.values(), key=lambda held: (-len(held.path), held.path))
        for held in deepest_first:
            owner = self._sibling_owner(held.path)
            if owner is not None:
                return self._hand(owner, "merge", held, now)
        return self._seek(deepest_first[-1], now)

    def give_up_zone(self, now: float) -> list[Effect]:
        """A leaver's next step: one of its zones to somebody, or, when it has none, goodbye."""
        if self.giving is not None or (self._seeking and self._router.is_leaving):
            return []
        if not self.atlas.held or not self.atlas.cards:
            return self._router.gone(now)
        return self._merge_own(now) or self._give_away(now)

    def _sibling_owner(self, path: Path) -> Peer | None:
        owner = self.atlas.owner_of(sibling(path)) if path else None
        return owner if owner is not None and self._router.is_alive(owner.id) else None

    def _hand(self, to: Peer, kind: Kind, held: Held, now: float) -> list[Effect]:
        self._number += 1
        return self._give(to, kind, held, Claim(held.path, held.epoch + 1), self._number, now)

    def refused(self, sender: NodeId, message: Refused, now: float) -> list[Effect]:
        giving = self.giving
        if giving is None or giving.to.id != sender or giving.number != message.number:
            return []
        return self.break_off(now)

    # ── Finding a pair of siblings ───────────────────────────────────────────

    def _seek(self, held: Held, now: float) -> list[Effect]:
        if not held.path:
            return self._try_again(now)
        self._number += 1
        self._seeking = self._number
        effects = self._follow(FindPair(self.atlas.me, self._number), held, Trip(()), now)
        return [*effects, WakeAt(now + 4 * self.answer_s, ("seek", self._number))]

    def seek_overdue(self, number: int, now: float) -> list[Effect]:
        if number != self._seeking:
            return []
        self._seeking = 0
        return self._try_again(now)

    def sought(self, question: FindPair, trip: Trip, now: float) -> list[Effect]:
        """Somebody seeks a broker that can leave its zone to its sibling."""
        held = self.atlas.nearest(trip.aim)
        if len(self.atlas.held) == 1 and self._router.may_take() and self._sibling_owner(held.path) is not None:
            return [Send(question.asker.id, PairFound(question.number, self.atlas.me))]
        return self._follow(question, held, trip, now)

    def _follow(self, question: FindPair, held: Held, trip: Trip, now: float) -> list[Effect]:
        """On into the sibling's zone, which has been cut further; so this ends."""
        if not held.path:
            return []
        there = sibling(held.path)
        for id, card in self.atlas.cards.items():
            if id != question.asker.id and self._router.is_alive(id) and id not in trip.trace:
                for claim in card.claims:
                    if within(claim.path, there):
                        onward = Trip(self.atlas.space.zone(claim.path).low, (*trip.trace, self.atlas.me.id))
                        message = Routed(self._router.legs.number(), onward, question)
                        return self._router.legs.send(id, message, now)
        return []

    def found(self, answer: PairFound, now: float) -> list[Effect]:
        """Somebody can take a zone."""
        if answer.number != self._seeking or self.giving is not None or not self.atlas.held:
            return []
        self._seeking = 0
        held = min(self.atlas.held.values(), key=lambda held: (len(held.path), held.path))
        return self._hand(answer.taker, "adopt", held, now)

    def peer_gone(self, id: NodeId, now: float) -> list[Effect]:
        """Who was in an exchange with this broker is not there any more."""
        effects: list[Effect] = []
        if self.giving is not None and self.giving.to.id == id:
            effects += self.break_off(now)
        if self.taking is not None and self.taking.giver == id:
            self.taking = None
            effects += self.ask_for_zone(now) if self._router.is_joining else []
        return effects


def _middle(boxes: tuple[Zone, ...], zone: Zone, axis: int, otherwise: int) -> int:
    parts = [part for box in boxes if (part := box.meet(zone)) is not None]
    return (parts[0].low[axis] + parts[0].high[axis]) // 2 if parts else otherwise
