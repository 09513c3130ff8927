"""Looking after the neighbours: heartbeats, cards, deaths, and zones that nobody holds any more.

Heartbeats say which version of whose card is known, so a lost word is made good by the next
beat. Who does not answer for long enough, or bounces a message, is dead; the zones it held
are orphans, and those around take them over in order of rank, each waiting for the one
before it. A zone is taken with a higher epoch, so a holder that was only cut off gives way
when it is heard of again (see `claims`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from tidings.overlay.failure_detector import FailureDetector
from tidings.overlay.messages import NodeId, Peer
from tidings.overlay.router import Effect, Send, WakeAt
from tidings.overlay.spanhop.messages import (
    AdvertisementGossip,
    AdvertisementRequest,
    AdvertisementUpdate,
    Heartbeat,
    Records,
    SubscriptionRecord,
    ZoneAdvertisement,
    ZoneClaim,
    in_parts,
)
from tidings.overlay.spanhop.zone_ownership import ZoneTable
from tidings.space import Path

if TYPE_CHECKING:
    from tidings.overlay.spanhop.router import Spanhop

MISSES_MAX = 6  # Heartbeats: with a fifth of all messages lost, one false death in a hundred thousand.
GRACE_S = 1.0  # Before an orphan is taken: its new holder's card may still be on its way.
RANK_S = 2.0  # How long each waits for the one before it in rank.
SUSPECT_S = 20.0  # How long a broker that did not answer is not sent anything that others can do as well.
SUSPECTS_MAX = 1024
LOST_MAX = 64  # Dead neighbours that are asked now and then whether they are back.
MET_MAX = 64  # Brokers that were near once, the latest.
ORPHANS_MAX = 1024
UNSEEN = -1  # The version of a card that its holder has not shown itself: it was given a zone and has not spoken yet.


@dataclass(slots=True)
class OrphanedZone:
    """A zone without a holder, and who was around it."""

    epoch: int
    near: tuple[ZoneAdvertisement, ...]


class NeighbourMonitor:
    """What one broker knows of the life and death of those around it."""

    def __init__(self, router: Spanhop, zones: ZoneTable, rng: Random, heartbeat_s: float) -> None:
        self._router, self.zones, self._rng = router, zones, rng
        self.heartbeat_s = heartbeat_s
        self.alive = FailureDetector(heartbeat_s, MISSES_MAX)
        self.suspects: OrderedDict[NodeId, float] = OrderedDict()
        self.lost: dict[NodeId, Peer] = {}
        self.met: OrderedDict[NodeId, Peer] = OrderedDict()
        self.orphans: dict[Path, OrphanedZone] = {}

    # ── Talk ─────────────────────────────────────────────────────────────────

    def beat(self, now: float) -> list[Effect]:
        """A heartbeat to everybody near, a rumour to one of them, a word to one of the lost."""
        effects: list[Effect] = [Send(id, self._heartbeat(id)) for id in self.zones.cards]
        if self.lost:
            id = self._rng.choice(list(self.lost))
            effects.append(Send(id, self._heartbeat(id)))
        if self.zones.cards:
            effects.append(Send(self._rng.choice(list(self.zones.cards)), AdvertisementGossip(*self._news())))
        for id in self.alive.silent(now):
            effects += self.died(id, now)
        return effects

    def _heartbeat(self, id: NodeId) -> Heartbeat:
        card = self.zones.cards.get(id)
        return Heartbeat(self.zones.me.incarnation, self.zones.version, card.version if card else -1)

    def heartbeat(self, sender: NodeId, beat: Heartbeat, now: float) -> list[Effect]:
        card = self.zones.cards.get(sender)
        effects: list[Effect] = []
        if card is None or (card.peer.incarnation, card.version) < (beat.incarnation, beat.version):
            effects.append(Send(sender, AdvertisementRequest()))
        if beat.yours != self.zones.version:
            effects.append(Send(sender, AdvertisementGossip(*self._news())))
        return effects

    def show(self, to: NodeId) -> list[Effect]:
        return [Send(to, AdvertisementUpdate(*self._news()))]

    def announce(self, more: tuple[NodeId, ...] = ()) -> list[Effect]:
        """Tell everybody near, and some others, what is held here now."""
        news = AdvertisementUpdate(*self._news())
        return [Send(id, news) for id in dict.fromkeys([*self.zones.cards, *more]) if id != self.zones.me.id]

    def _news(self) -> tuple[ZoneAdvertisement, tuple[ZoneAdvertisement, ...]]:
        return self.zones.card(), tuple(self.zones.cards.values())

    # ── Hearing ──────────────────────────────────────────────────────────────

    def heard(self, id: NodeId, now: float) -> None:
        """Any word is a sign of life."""
        self.alive.heard(id, now)
        self.suspects.pop(id, None)

    def hear(self, sender: NodeId, update: AdvertisementUpdate, now: float) -> list[Effect]:
        """Somebody tells what it holds and who is around it."""
        if update.card.peer.id != sender or not all(map(self.zones.fits, (update.card, *update.around))):
            return []
        self.lost.pop(sender, None)
        effects = self.learn(update.card, now)
        if sender in self.zones.cards:
            self.zones.nearby[sender] = update.around
        for card in update.around:
            if card.peer.id == self.zones.me.id:
                effects += self.show(sender) if card.version < self.zones.version else []
            elif not self._is_dead(card):
                effects += self.learn(card, now)
        return effects

    def learn(self, card: ZoneAdvertisement, now: float) -> list[Effect]:
        """Take a card, and act on what it means for the zones held here."""
        before = self.zones.learn(card)
        if before is None:
            return []
        self.alive.watch(card.peer.id, now)
        self._remember(card.peer)
        effects: list[Effect] = [] if before is not card else self.show(card.peer.id)
        effects += self._settle_claims(card, now)
        if _has_forgotten(before, card):
            kept = {claim.path for claim in card.claims}
            for claim in before.claims:
                if claim.path not in kept:
                    effects += self._orphan(claim, tuple(self.zones.cards.values()), now)
        if self.zones.owned and not self.zones.concerns(card):
            self._forget(card.peer.id)
        return effects

    def meet(self, cards: Iterable[ZoneAdvertisement], now: float) -> None:
        """Take in the cards of those around a zone that is about to be held here."""
        for card in cards:
            if card.peer.id != self.zones.me.id and not self._is_dead(card) and self.is_alive(card.peer.id):
                self.zones.put(card)
                self._remember(card.peer)
                self.watch(card.peer.id, now)

    def review(self, now: float) -> list[Effect]:
        """Settle what those around and this broker both claim."""
        return [effect for card in list(self.zones.cards.values()) for effect in self._settle_claims(card, now)]

    def tidy(self) -> None:
        """Forget those who are no longer near."""
        self.zones.prune()
        for id in self.alive.watched():
            if id not in self.zones.cards:
                self.alive.forget(id)

    def watch(self, id: NodeId, now: float) -> None:
        """Begin to expect heartbeats, whatever was heard before."""
        self.alive.forget(id)
        self.alive.watch(id, now)

    def _settle_claims(self, card: ZoneAdvertisement, now: float) -> list[Effect]:
        """Give up what the other has the higher claim to; tell it where it is the other way round."""
        effects: list[Effect] = []
        has_lost = False
        while defeats := self.zones.defeats(card):
            owned, claim = defeats[0]
            effects += records_for(card.peer.id, [kept.record for kept in owned.records.values()])
            self.zones.concede(owned, claim)
            has_lost = True
        if has_lost:
            return [*effects, *self._router.deposed(now)]
        return self.show(card.peer.id) if self.zones.contests(card) else []

    def _remember(self, peer: Peer) -> None:
        """Whoever was near once can be asked the way later, when nobody near is left."""
        self.met.pop(peer.id, None)
        if len(self.met) >= MET_MAX:
            self.met.popitem(last=False)
        self.met[peer.id] = peer

    # ── Deaths and orphans ───────────────────────────────────────────────────

    def is_alive(self, id: NodeId) -> bool:
        """Whether there is no reason to think otherwise."""
        return id not in self.suspects

    def suspect(self, id: NodeId, now: float) -> None:
        """It did not answer. For a while others are asked instead."""
        if len(self.suspects) >= SUSPECTS_MAX:
            self.suspects.popitem(last=False)
        self.suspects[id] = now + SUSPECT_S

    def died(self, id: NodeId, now: float) -> list[Effect]:
        """A neighbour is gone: its zones are orphans."""
        self.suspect(id, now)
        near = self.zones.nearby.get(id, ())
        card = self._forget(id)
        if card is None:
            return []
        if len(self.lost) < LOST_MAX:
            self.lost[id] = card.peer
        near = (*near, *self.zones.cards.values())
        return [effect for claim in card.claims for effect in self._orphan(claim, near, now)]

    def _forget(self, id: NodeId) -> ZoneAdvertisement | None:
        self.alive.forget(id)
        return self.zones.forget(id)

    def _orphan(self, claim: ZoneClaim, near: tuple[ZoneAdvertisement, ...], now: float) -> list[Effect]:
        """Nobody may hold this any more. If it is next to a zone held here, wait for this broker's turn."""
        beside = any(self.zones.adjoins(claim.path, path) for path in self.zones.owned)
        if not beside or len(self.orphans) >= ORPHANS_MAX:
            return []
        known = self.orphans.get(claim.path)
        if known is not None and known.epoch >= claim.epoch:
            return []
        self.orphans[claim.path] = OrphanedZone(claim.epoch, near)
        rank = self.zones.rank(claim.path, near, self.suspects)
        return [WakeAt(now + GRACE_S + rank * RANK_S, ("orphan", claim.path, claim.epoch))]

    def take(self, path: Path, epoch: int, now: float) -> list[Effect]:
        """This broker's turn to take an orphan, as far as it still is one."""
        orphan = self.orphans.get(path)
        if orphan is None or orphan.epoch != epoch:
            return []
        del self.orphans[path]
        parts = self.zones.orphaned(path)
        if not parts or not self._router.may_take():
            return []
        return self._router.adopt(parts, epoch + 1, orphan.near, now)

    def tick(self, now: float) -> None:
        """Forget old suspicions."""
        for id in [id for id, until in self.suspects.items() if until < now]:
            del self.suspects[id]

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"orphans": (len(self.orphans), ORPHANS_MAX), "suspects": (len(self.suspects), SUSPECTS_MAX)}

    def _is_dead(self, card: ZoneAdvertisement) -> bool:
        """Whether hearsay speaks of somebody who has died meanwhile."""
        lost = self.lost.get(card.peer.id)
        return lost is not None and card.peer.incarnation <= lost.incarnation


def _has_forgotten(before: ZoneAdvertisement, card: ZoneAdvertisement) -> bool:
    """Whether somebody no longer holds a zone without having given it to anybody: it has a new life, or never took it.

    Who claims less than before in the same life has given the rest to somebody, or to a higher claim.
    """
    return card.peer.incarnation > before.peer.incarnation or before.version == UNSEEN


def records_for(to: NodeId, records: list[SubscriptionRecord]) -> list[Effect]:
    """Subscriptions for somebody who holds their zone now."""
    return [Send(to, Records(part)) for part in in_parts(records)]
