"""Monitoring neighbours: heartbeats, advertisements, failures, and the takeover of orphaned zones.

A heartbeat names the versions of both brokers' advertisements, so that the next one makes up
for a lost update. A neighbour that is silent for several heartbeats, or to which the driver
cannot deliver a message, counts as failed. Its zones are orphaned, and the brokers around
take them over in order of rank, each after waiting for the one before it. A takeover raises
the epoch, so an owner that was only cut off gives way when it returns (see `zone_ownership`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

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
from tidings.overlay.spanhop.zone_ownership import MembershipState, ZoneTable, raised
from tidings.space import Path

MISSES_MAX = 6  # Heartbeats: with a fifth of all messages lost, one false alarm in a hundred thousand.
GRACE_S = 1.0  # Before a takeover: the advertisement of the zone's new owner may still be on its way.
RANK_S = 2.0  # How long each broker waits for the one before it in rank.
SUSPECT_S = 20.0  # How long a broker that did not acknowledge gets nothing that others can do as well.
SUSPECTS_MAX = 1024
LOST_MAX = 64  # Failed neighbours that get a heartbeat now and then, in case they are back.
MET_MAX = 64  # Former neighbours, the latest.
ORPHANS_MAX = 1024
UNSEEN = -1  # The version of an advertisement made for a broker that was given a zone and has not advertised it yet.


class ZoneTakeover(Protocol):
    """What the monitor has its broker do about zones."""

    def zones_ceded(self, now: float) -> list[Effect]:
        """Another broker's higher claim has taken owned zones, or parts of them."""

    def take_over(
        self, paths: Sequence[Path], epoch: int, near: Sequence[ZoneAdvertisement], now: float
    ) -> list[Effect]:
        """Own zones that are orphaned."""


@dataclass(slots=True)
class OrphanedZone:
    """A zone without an owner, and the brokers around it."""

    epoch: int
    near: tuple[ZoneAdvertisement, ...]


class NeighbourMonitor:
    """What one broker knows of the state of its neighbours."""

    def __init__(
        self, zones: ZoneTable, rng: Random, membership: MembershipState, takeover: ZoneTakeover, *, heartbeat_s: float
    ) -> None:
        self._zones, self._rng, self._membership, self._takeover = zones, rng, membership, takeover
        self.heartbeat_s = heartbeat_s
        self.alive = FailureDetector(heartbeat_s, MISSES_MAX)
        self.suspects: OrderedDict[NodeId, float] = OrderedDict()
        self.lost: dict[NodeId, Peer] = {}
        self.met: OrderedDict[NodeId, Peer] = OrderedDict()
        self.orphans: dict[Path, OrphanedZone] = {}

    # ── Sending ──────────────────────────────────────────────────────────────

    def beat(self, now: float) -> list[Effect]:
        """Send heartbeats to all neighbours and one failed broker, gossip to one neighbour; find silent ones."""
        effects: list[Effect] = [Send(id, self._heartbeat(id)) for id in self._zones.neighbours]
        if self.lost:
            id = self._rng.choice(list(self.lost))
            effects.append(Send(id, self._heartbeat(id)))
        if self._zones.neighbours:
            effects.append(
                Send(self._rng.choice(list(self._zones.neighbours)), AdvertisementGossip(*self._advertisements()))
            )
        for id in self.alive.silent(now):
            effects += self.failed(id, now)
        return effects

    def _heartbeat(self, id: NodeId) -> Heartbeat:
        advert = self._zones.neighbours.get(id)
        return Heartbeat(self._zones.me.incarnation, self._zones.version, advert.version if advert else -1)

    def receive_heartbeat(self, sender: NodeId, beat: Heartbeat) -> list[Effect]:
        """Ask for an advertisement that is newer than the known one, and send this broker's where that is newer."""
        advert = self._zones.neighbours.get(sender)
        effects: list[Effect] = []
        if advert is None or (advert.peer.incarnation, advert.version) < (beat.incarnation, beat.version):
            effects.append(Send(sender, AdvertisementRequest()))
        if beat.known_version != self._zones.version:
            effects.append(Send(sender, AdvertisementGossip(*self._advertisements())))
        return effects

    def advertise_to(self, to: NodeId) -> list[Effect]:
        """Send this broker's advertisement to one broker."""
        return [Send(to, AdvertisementUpdate(*self._advertisements()))]

    def advertise(self, more: tuple[NodeId, ...] = ()) -> list[Effect]:
        """Send this broker's advertisement to all neighbours, and to some other brokers."""
        update = AdvertisementUpdate(*self._advertisements())
        return [Send(id, update) for id in dict.fromkeys([*self._zones.neighbours, *more]) if id != self._zones.me.id]

    def _advertisements(self) -> tuple[ZoneAdvertisement, tuple[ZoneAdvertisement, ...]]:
        return self._zones.advertisement(), tuple(self._zones.neighbours.values())

    # ── Receiving ────────────────────────────────────────────────────────────

    def heard(self, id: NodeId, now: float) -> None:
        """Any message shows that its sender is alive."""
        self.alive.heard(id, now)
        self.suspects.pop(id, None)

    def receive_update(self, sender: NodeId, update: AdvertisementUpdate, now: float) -> list[Effect]:
        """A broker advertises its zones, and passes on the advertisements of its neighbours."""
        if update.advert.peer.id != sender or not all(map(self._zones.is_valid, (update.advert, *update.neighbours))):
            return []
        self.lost.pop(sender, None)
        effects = self.learn(update.advert, now)
        if sender in self._zones.neighbours:
            self._zones.neighbours_of[sender] = update.neighbours
        for advert in update.neighbours:
            if advert.peer.id == self._zones.me.id:
                effects += self.advertise_to(sender) if advert.version < self._zones.version else []
            elif not self._is_failed(advert):
                effects += self.learn(advert, now)
        return effects

    def learn(self, advert: ZoneAdvertisement, now: float) -> list[Effect]:
        """Take an advertisement, and act on what it means for the owned zones."""
        before = self._zones.learn(advert)
        if before is None:
            return []
        self.alive.watch(advert.peer.id, now)
        self._remember(advert.peer)
        effects: list[Effect] = [] if before is not advert else self.advertise_to(advert.peer.id)
        effects += self._resolve_claims(advert, now)
        if _lost_without_transfer(before, advert):
            claimed = {claim.path for claim in advert.claims}
            for claim in before.claims:
                if claim.path not in claimed:
                    effects += self._orphan(claim, tuple(self._zones.neighbours.values()), now)
        if self._zones.owned and not self._zones.concerns(advert):
            self._forget(advert.peer.id)
        return effects

    def meet(self, adverts: Iterable[ZoneAdvertisement], now: float) -> None:
        """Take the advertisements of the brokers around a zone that this broker is about to own."""
        for advert in adverts:
            if advert.peer.id != self._zones.me.id and not self._is_failed(advert) and self.is_alive(advert.peer.id):
                self._zones.put(advert)
                self._remember(advert.peer)
                self.watch(advert.peer.id, now)

    def resolve_all_claims(self, now: float) -> list[Effect]:
        """Resolve the conflicts between this broker's claims and its neighbours'."""
        return [
            effect for advert in list(self._zones.neighbours.values()) for effect in self._resolve_claims(advert, now)
        ]

    def prune(self) -> None:
        """Forget brokers that are no longer neighbours."""
        self._zones.prune()
        for id in self.alive.watched():
            if id not in self._zones.neighbours:
                self.alive.forget(id)

    def watch(self, id: NodeId, now: float) -> None:
        """Expect heartbeats from now on, whatever came before."""
        self.alive.forget(id)
        self.alive.watch(id, now)

    def _resolve_claims(self, advert: ZoneAdvertisement, now: float) -> list[Effect]:
        """Cede what the other has the higher claim to; advertise to it where this broker has the higher one."""
        effects: list[Effect] = []
        has_ceded = False
        while higher := self._zones.higher_claims(advert):
            owned, claim = higher[0]
            effects += records_for(advert.peer.id, [stored.record for stored in owned.records.values()])
            self._zones.cede(owned, claim)
            has_ceded = True
        if has_ceded:
            return [*effects, *self._takeover.zones_ceded(now)]
        return self.advertise_to(advert.peer.id) if self._zones.has_lower_claim(advert) else []

    def _remember(self, peer: Peer) -> None:
        """A former neighbour can serve as a contact later, when no neighbour is left."""
        self.met.pop(peer.id, None)
        if len(self.met) >= MET_MAX:
            self.met.popitem(last=False)
        self.met[peer.id] = peer

    # ── Failures and orphaned zones ──────────────────────────────────────────

    def is_alive(self, id: NodeId) -> bool:
        """Whether a broker is not suspected to have failed."""
        return id not in self.suspects

    def suspect(self, id: NodeId, now: float) -> None:
        """A broker did not acknowledge: prefer others for a while."""
        if len(self.suspects) >= SUSPECTS_MAX:
            self.suspects.popitem(last=False)
        self.suspects[id] = now + SUSPECT_S

    def failed(self, id: NodeId, now: float) -> list[Effect]:
        """A broker has failed: if it is a neighbour, its zones are orphaned."""
        self.suspect(id, now)
        near = self._zones.neighbours_of.get(id, ())
        advert = self._forget(id)
        if advert is None:
            return []
        if len(self.lost) < LOST_MAX:
            self.lost[id] = advert.peer
        near = (*near, *self._zones.neighbours.values())
        return [effect for claim in advert.claims for effect in self._orphan(claim, near, now)]

    def _forget(self, id: NodeId) -> ZoneAdvertisement | None:
        self.alive.forget(id)
        return self._zones.forget(id)

    def _orphan(self, claim: ZoneClaim, near: tuple[ZoneAdvertisement, ...], now: float) -> list[Effect]:
        """A zone may have lost its owner. If it adjoins an owned zone, wait for this broker's turn to take it over."""
        beside = any(self._zones.adjoins(claim.path, path) for path in self._zones.owned)
        if not beside or len(self.orphans) >= ORPHANS_MAX:
            return []
        known = self.orphans.get(claim.path)
        if known is not None and known.epoch >= claim.epoch:
            return []
        self.orphans[claim.path] = OrphanedZone(claim.epoch, near)
        rank = self._zones.takeover_rank(claim.path, near, self.suspects)
        return [WakeAt(now + GRACE_S + rank * RANK_S, ("orphan", claim.path, claim.epoch))]

    def take_orphan(self, path: Path, epoch: int, now: float) -> list[Effect]:
        """This broker's turn: take over those parts of a zone that are still orphaned."""
        orphan = self.orphans.get(path)
        if orphan is None or orphan.epoch != epoch:
            return []
        del self.orphans[path]
        parts = self._zones.unclaimed(path)
        if not parts or not self._membership.is_ready:
            return []
        return self._takeover.take_over(parts, raised(epoch), orphan.near, now)

    def expire_suspicions(self, now: float) -> None:
        """Give suspected brokers another chance after a while."""
        for id in [id for id, until in self.suspects.items() if until < now]:
            del self.suspects[id]

    def former_neighbours(self) -> list[NodeId]:
        """Neighbours that failed, and brokers that were neighbours once."""
        return [*self.lost, *self.met]

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"orphans": (len(self.orphans), ORPHANS_MAX), "suspects": (len(self.suspects), SUSPECTS_MAX)}

    def _is_failed(self, advert: ZoneAdvertisement) -> bool:
        """Whether an advertisement that was passed on is of a broker that has failed meanwhile."""
        lost = self.lost.get(advert.peer.id)
        return lost is not None and advert.peer.incarnation <= lost.incarnation


def _lost_without_transfer(before: ZoneAdvertisement, advert: ZoneAdvertisement) -> bool:
    """Whether a broker lost a zone without transferring it: it has restarted, or never took the zone.

    A broker that claims less than before in the same incarnation has transferred or ceded the rest.
    """
    return advert.peer.incarnation > before.peer.incarnation or before.version == UNSEEN


def records_for(to: NodeId, records: list[SubscriptionRecord]) -> list[Effect]:
    """Send records to the broker that owns their zone now."""
    return [Send(to, Records(part)) for part in in_parts(records)]
