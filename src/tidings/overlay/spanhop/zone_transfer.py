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
What the one does is in `giving`, what the other does in `taking`; who gives what to whom is
decided here.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tidings.overlay.messages import NodeId, Peer
from tidings.overlay.router import Effect, Send, Token, WakeAt
from tidings.overlay.spanhop.giving import Kind
from tidings.overlay.spanhop.messages import (
    Accept,
    Busy,
    Committed,
    FindPair,
    Handoff,
    HandoffAck,
    HandoffRefused,
    Offer,
    PairFound,
    Routed,
    SpanhopMessage,
    ZoneClaim,
)
from tidings.overlay.spanhop.next_hop import RouteHeader
from tidings.overlay.spanhop.zone_ownership import OwnedZone, ZoneTable
from tidings.space import Path, sibling, within

if TYPE_CHECKING:
    from tidings.overlay.spanhop.router import Spanhop

SHED_S = 3.0  # After a broker has come to hold two zones; the world may still be changing.
SHED_S_MAX = 30.0
LEAVE_S = 30.0  # A leaver that finds nobody to take its zone goes without.


class Mover:
    """Which zones one broker gives away, and to whom."""

    def __init__(self, router: Spanhop, zones: ZoneTable, rng: Random, answer_s: float) -> None:
        self._router, self.zones, self._rng, self.answer_s = router, zones, rng, answer_s
        self._seeking = 0  # The number of a FindPair that waits for an answer.
        self._shed_s = SHED_S

    def receive(self, sender: NodeId, message: SpanhopMessage, now: float) -> list[Effect] | None:
        """Take a message that belongs to an exchange; None if it does not."""
        match message:
            case Busy():
                return self._router.taker.busy(message, now)
            case Offer():
                return self._router.taker.offered(sender, message, now)
            case Committed():
                return self._router.taker.committed(sender, message, now)
            case Handoff():
                return self._router.taker.handed(sender, message, now)
            case Accept() | HandoffAck():
                return [*self._router.giver.accepted(sender, message, now), *self._router.check_leaving(now)]
            case HandoffRefused():
                return self._router.giver.refused(sender, message, now)
            case PairFound():
                return self.found(message, now)
        return None

    def wake(self, token: Token, now: float) -> list[Effect] | None:
        """A moment that an exchange has waited for; None if it is for somebody else."""
        match token:
            case ("join", int(number)):
                return self._router.taker.join_overdue(number, now)
            case ("accept", int(number), int(part), int(tries)):
                return self._router.taker.accept_again(number, part, tries, now)
            case ("give", int(number), int(part), int(tries)):
                return self._router.giver.part_overdue(number, part, tries, now)
            case ("taking", str(giver), int(number), int(part)):
                return self._router.taker.taking_overdue(giver, number, part)
            case ("seek", int(number)):
                return self.seek_overdue(number, now)
            case ("shed",):
                return self.shed(now)
        return None

    def peer_gone(self, id: NodeId, now: float) -> list[Effect]:
        """Who was in an exchange with this broker is not there any more."""
        return [*self._router.giver.peer_gone(id, now), *self._router.taker.peer_gone(id, now)]

    def calm_down(self) -> None:
        """An exchange has come to a good end: the next one need not wait long."""
        self._shed_s = SHED_S

    # ── A zone too many ──────────────────────────────────────────────────────

    def shed_later(self, now: float) -> list[Effect]:
        """A broker with more than one zone gives one away when things have calmed down."""
        if len(self.zones.owned) < 2 or self._router.is_leaving:
            return []
        return [WakeAt(now + self._shed_s * self._rng.uniform(1.0, 1.5), ("shed",), idle=True)]

    def shed(self, now: float) -> list[Effect]:
        if len(self.zones.owned) < 2 or not self._router.may_take():
            return []
        if self._router.giver.giving is not None or self._router.taker.taking is not None:
            return self.shed_later(now)
        return self._merge_own(now) or self._give_away(now)

    def give_up_zone(self, now: float) -> list[Effect]:
        """A leaver's next step: one of its zones to somebody, or, when it has none, goodbye."""
        if self._router.giver.giving is not None or (self._seeking and self._router.is_leaving):
            return []
        if not self.zones.owned or not self.zones.cards:
            return self._router.gone(now)
        return self._merge_own(now) or self._give_away(now)

    def try_again(self, now: float) -> list[Effect]:
        """An exchange came to nothing: again later, and each time with more patience."""
        self._shed_s = min(2 * self._shed_s, SHED_S_MAX)
        if self._router.is_leaving:
            return [WakeAt(now + 2 * self.answer_s, ("leave",))]
        return self.shed_later(now)

    def _merge_own(self, now: float) -> list[Effect]:
        """Two zones held here may be siblings."""
        for path in sorted(self.zones.owned, key=len, reverse=True):
            if path and sibling(path) in self.zones.owned:
                one, other = self.zones.drop(path), self.zones.drop(sibling(path))
                assert one is not None
                assert other is not None
                owned = self.zones.hold(path[:-1], max(one.epoch, other.epoch) + 1, one.ancestors)
                owned.records, owned.index = {**one.records, **other.records}, {**one.index, **other.index}
                return [*self._router.changed(now), *self.shed_later(now)]
        return []

    def _give_away(self, now: float) -> list[Effect]:
        """The deepest zone that has a sibling to merge with; if none has, somebody must be found."""
        deepest_first = sorted(self.zones.owned.values(), key=lambda owned: (-len(owned.path), owned.path))
        for owned in deepest_first:
            owner = self._sibling_owner(owned.path)
            if owner is not None:
                return self._hand(owner, "merge", owned, now)
        return self._seek(deepest_first[-1], now)

    def _sibling_owner(self, path: Path) -> Peer | None:
        owner = self.zones.owner_of(sibling(path)) if path else None
        return owner if owner is not None and self._router.neighbourhood.is_alive(owner.id) else None

    def _hand(self, to: Peer, kind: Kind, owned: OwnedZone, now: float) -> list[Effect]:
        number = self._router.taker.next_number()
        return self._router.giver.give(to, kind, owned, ZoneClaim(owned.path, owned.epoch + 1), number, now)

    # ── Finding a pair of siblings ───────────────────────────────────────────

    def _seek(self, owned: OwnedZone, now: float) -> list[Effect]:
        if not owned.path:
            return self.try_again(now)
        self._seeking = number = self._router.taker.next_number()
        effects = self._follow(FindPair(self.zones.me, number), owned, RouteHeader(()), now)
        return [*effects, WakeAt(now + 4 * self.answer_s, ("seek", number))]

    def seek_overdue(self, number: int, now: float) -> list[Effect]:
        if number != self._seeking:
            return []
        self._seeking = 0
        return self.try_again(now)

    def sought(self, question: FindPair, route: RouteHeader, now: float) -> list[Effect]:
        """Somebody seeks a broker that can leave its zone to its sibling."""
        owned = self.zones.nearest(route.destination)
        if len(self.zones.owned) == 1 and self._router.may_take() and self._sibling_owner(owned.path) is not None:
            return [Send(question.asker.id, PairFound(question.number, self.zones.me))]
        return self._follow(question, owned, route, now)

    def _follow(self, question: FindPair, owned: OwnedZone, route: RouteHeader, now: float) -> list[Effect]:
        """On into the sibling's zone, which has been cut further; so this ends."""
        if not owned.path:
            return []
        there = sibling(owned.path)
        for id, card in self.zones.cards.items():
            if id != question.asker.id and self._router.neighbourhood.is_alive(id) and id not in route.trace:
                for claim in card.claims:
                    if within(claim.path, there):
                        onward = RouteHeader(self.zones.space.zone(claim.path).low, (*route.trace, self.zones.me.id))
                        message = Routed(self._router.legs.number(), onward, question)
                        return self._router.legs.send(id, message, now)
        return []

    def found(self, answer: PairFound, now: float) -> list[Effect]:
        """Somebody can take a zone."""
        if answer.number != self._seeking or self._router.giver.giving is not None or not self.zones.owned:
            return []
        self._seeking = 0
        owned = min(self.zones.owned.values(), key=lambda owned: (len(owned.path), owned.path))
        return self._hand(answer.taker, "adopt", owned, now)
