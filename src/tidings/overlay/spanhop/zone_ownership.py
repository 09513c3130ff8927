"""Which broker owns which zone, while brokers join, leave, fail and disagree.

A broker advertises the zones it owns to its neighbours, each with an epoch. Every change of
owner raises the epoch: a split, a merge, the takeover of a failed broker's zone. Where two
claims overlap the higher one wins, and the broker with the lower one gives up that part and
keeps the rest. So at each point of the space the highest claim ever made is valid until its
owner fails. No agreement protocol is needed, not even after a network was partitioned and
both halves took over each other's zones.

    orphaned zone    its owner has failed, or no longer claims it, and nobody else claims it
    takeover rank    the order in which neighbours may take it: the sibling first, then small zones, then small ids
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tidings.overlay.crowding import CrowdedTable
from tidings.overlay.messages import NodeId, Peer, SubscriptionId
from tidings.overlay.spanhop.messages import (
    IndexPut,
    NeighbourTable,
    SubscriptionRecord,
    TableEntry,
    ZoneAdvertisement,
    ZoneClaim,
)
from tidings.overlay.spanhop.network_coordinates import Coordinates, distance
from tidings.overlay.spanhop.next_hop import Ancestor, RoutingEntry, RoutingState
from tidings.space import Path, Space, Zone, halves, sibling, within

NEIGHBOURS_MAX = 1024  # A zone with more neighbours is far larger than theirs and about to be split.
CLAIMS_MAX = 64  # Zones of one broker; more than a few only in the minute after many failures at once.
ALTERNATES_MAX = 3  # Alternates for one entry of an ancestor's table.
ALTERED_ENTRIES_MAX = 1024  # Entries with alternates, a broker nearer by network, or a known present zone.
RECENT_MAX = 256  # Events whose points a zone remembers, to know where its load is.
RECORDS_MAX = 65_536  # Subscriptions in one zone.
EPOCH_MAX = 1 << 61  # Honest epochs count changes of owner. A claim beyond it could not be outbid, nor be written.
FAR = 1e6  # Seconds: no network coordinate is as large.

Stage: TypeAlias = Literal["outside", "joining", "ready", "leaving"]


@dataclass(slots=True)
class StoredSubscription:
    """A subscription in a zone, the boxes it covers as far as this broker can read it, and when its lease ends."""

    record: SubscriptionRecord
    boxes: tuple[Zone, ...]
    expires_at: float

    def touches(self, zone: Zone) -> bool:
        return any(box.touches(zone) for box in self.boxes)


@dataclass(slots=True)
class OwnedZone:
    """One zone that a broker owns, and the zone's state."""

    path: Path
    zone: Zone
    epoch: int
    ancestors: list[NeighbourTable] = field(default_factory=lambda: [()])
    records: dict[SubscriptionId, StoredSubscription] = field(default_factory=dict)
    recent_events: list[tuple[int, ...]] = field(default_factory=list)
    index: dict[tuple[Path, NodeId], IndexPut] = field(default_factory=dict)  # Network coordinates of brokers (MGNP).
    crowded: CrowdedTable[SubscriptionId] = field(default_factory=lambda: CrowdedTable(lambda key: key.origin))

    @property
    def claim(self) -> ZoneClaim:
        return ZoneClaim(self.path, self.epoch)

    def record_event(self, point: tuple[int, ...]) -> None:
        """Remember where an event was matched."""
        self.recent_events.append(point)
        if len(self.recent_events) > RECENT_MAX:
            del self.recent_events[: RECENT_MAX // 2]


class MembershipState:
    """Whether this broker is part of the network. The router changes the stage; its parts only ask."""

    __slots__ = ("stage",)

    def __init__(self) -> None:
        self.stage: Stage = "outside"

    @property
    def is_joining(self) -> bool:
        return self.stage == "joining"

    @property
    def is_ready(self) -> bool:
        """Whether this broker may be given a zone, or give away a part of its own."""
        return self.stage == "ready"

    @property
    def is_leaving(self) -> bool:
        return self.stage == "leaving"


class ZoneTable:
    """The zones that this broker owns, and the advertisements of its neighbours. Pure state: it sends nothing."""

    def __init__(self, me: Peer, space: Space, *, k: int, around: int | None) -> None:
        self.me, self.space, self.k, self.around = me, space, k, around
        self.owned: dict[Path, OwnedZone] = {}
        self.neighbours: dict[NodeId, ZoneAdvertisement] = {}
        self.neighbours_of: dict[NodeId, tuple[ZoneAdvertisement, ...]] = {}  # As each neighbour names its own.
        self.version = 0
        self.at: Coordinates = ()  # This broker's network coordinates, as it advertises them.
        self._routing_states: dict[Path, RoutingState] = {}
        self._alternates: OrderedDict[Path, tuple[NodeId, ...]] = OrderedDict()
        self.preferred: dict[Path, NodeId] = {}  # For recorded zones, the broker that is nearest by network.
        self._present: OrderedDict[NodeId, tuple[Path, ...]] = OrderedDict()  # What recorded brokers own now.

    # ── Owned zones ──────────────────────────────────────────────────────────

    def advertisement(self) -> ZoneAdvertisement:
        """This broker's own advertisement."""
        return ZoneAdvertisement(self.me, self.version, tuple(owned.claim for owned in self.owned.values()), self.at)

    def own_paths(self) -> tuple[Path, ...]:
        """The paths of the owned zones."""
        return tuple(self.owned)

    def acquire(self, path: Path, epoch: int, ancestors: Iterable[NeighbourTable] | None = None) -> OwnedZone:
        """Own a zone from now on. Tables of ancestors that are not given are built from what is known here."""
        owned = OwnedZone(path, self.space.zone(path), epoch)
        self.owned[path] = owned
        owned.ancestors = self._completed(path, list(ancestors) if ancestors is not None else self._borrowed(path))
        self.invalidate_routes()
        return owned

    def release(self, path: Path) -> OwnedZone | None:
        """Own a zone no longer."""
        self.invalidate_routes()
        return self.owned.pop(path, None)

    def invalidate_routes(self) -> None:
        """Forget cached routing states: something they depend on has changed."""
        self._routing_states.clear()

    def touching(self, zone: Zone) -> OwnedZone | None:
        """The first owned zone that touches another zone."""
        return next((owned for owned in self.owned.values() if owned.zone.touches(zone)), None)

    def nearest(self, point: tuple[int, ...]) -> OwnedZone:
        """The owned zone that is nearest to a point."""
        if len(self.owned) == 1:
            return next(iter(self.owned.values()))
        return min(self.owned.values(), key=lambda owned: (owned.zone.distance(point, self.around), owned.path))

    def _completed(self, path: Path, ancestors: list[NeighbourTable]) -> list[NeighbourTable]:
        """As many tables as the path has levels: without surplus ones, and with a new snapshot for each missing one."""
        levels = len(path) // self.k + 1
        missing = range(len(ancestors), levels)
        return [*ancestors[:levels], *(self.snapshot(path[: level * self.k]) if level else () for level in missing)]

    def _borrowed(self, path: Path) -> list[NeighbourTable]:
        """The tables of ancestors that the path shares with an owned zone."""
        best: list[NeighbourTable] = [()]
        for owned in self.owned.values():
            shared = next(
                (j for j, (a, b) in enumerate(zip(owned.path, path)) if a != b), min(len(owned.path), len(path))
            )
            if shared // self.k + 1 > len(best):
                best = owned.ancestors[: shared // self.k + 1]
        return list(best)

    def snapshot(self, path: Path) -> NeighbourTable:
        """The present neighbours of the zone of a path, as far as this broker knows them."""
        zone = self.space.zone(path)
        return tuple(
            TableEntry(advert.peer, claim.path)
            for advert in self.neighbours.values()
            for claim in advert.claims
            if zone.borders(self.space.zone(claim.path), self.around) is not None
        )

    # ── Neighbours ───────────────────────────────────────────────────────────

    def learn(self, advert: ZoneAdvertisement) -> ZoneAdvertisement | None:
        """Take an advertisement. Returns the one before, or itself if there was none; None if it is not taken."""
        known = self.neighbours.get(advert.peer.id)
        if advert.peer.id == self.me.id or (known is None and len(self.neighbours) >= NEIGHBOURS_MAX):
            return None
        if known is not None and _age(advert) <= _age(known):
            return None
        if known is None and not self.concerns(advert):
            return None
        self.neighbours[advert.peer.id] = advert
        self.invalidate_routes()
        return known or advert

    def put(self, advert: ZoneAdvertisement) -> None:
        """Take an advertisement unless it is old, even of a broker that is no neighbour."""
        known = self.neighbours.get(advert.peer.id)
        if (known is None and len(self.neighbours) < NEIGHBOURS_MAX) or (
            known is not None and _age(advert) > _age(known)
        ):
            self.neighbours[advert.peer.id] = advert
            self.invalidate_routes()

    def forget(self, id: NodeId) -> ZoneAdvertisement | None:
        """Drop what is known of a broker."""
        self.invalidate_routes()
        self.neighbours_of.pop(id, None)
        return self.neighbours.pop(id, None)

    def prune(self) -> None:
        """Forget brokers that are no longer neighbours."""
        if self.owned:
            for id in [id for id, advert in self.neighbours.items() if not self.concerns(advert)]:
                self.forget(id)

    def is_valid(self, advert: ZoneAdvertisement) -> bool:
        """Whether an advertisement names zones of this space, and coordinates of as many axes or none."""
        has_coordinates = not advert.at or (len(advert.at) == self.space.axes and all(abs(x) < FAR for x in advert.at))
        return has_coordinates and len(advert.claims) <= CLAIMS_MAX and all(map(self.is_zone, advert.claims))

    def is_zone(self, claim: ZoneClaim) -> bool:
        """Whether a claim is to a zone of this space, with an epoch that can be raised."""
        return 0 <= claim.epoch <= EPOCH_MAX and self.space.has(claim.path)

    def concerns(self, advert: ZoneAdvertisement) -> bool:
        """Whether a broker's zones border on, or overlap, the owned ones. Before there are any, all brokers' do."""
        return not self.owned or any(
            self.adjoins(claim.path, owned.path) for claim in advert.claims for owned in self.owned.values()
        )

    def adjoins(self, one: Path, other: Path) -> bool:
        """Whether two zones share a face or overlap."""
        a, b = self.space.zone(one), self.space.zone(other)
        return a.borders(b, self.around) is not None or a.touches(b)

    def owner_of(self, path: Path) -> Peer | None:
        """The neighbour that owns exactly this zone."""
        for advert in self.neighbours.values():
            if any(claim.path == path for claim in advert.claims):
                return advert.peer
        return None

    def overlapping(self, path: Path) -> Iterator[tuple[NodeId, ZoneClaim]]:
        """Claims of this broker and its neighbours that touch a zone."""
        zone = self.space.zone(path)
        for advert in (self.advertisement(), *self.neighbours.values()):
            for claim in advert.claims:
                if self.space.zone(claim.path).touches(zone):
                    yield advert.peer.id, claim

    def routing_state(self, owned: OwnedZone) -> RoutingState:
        """An owned zone as `next_hop` takes it."""
        known = self._routing_states.get(owned.path)
        if known is None:
            known = self._routing_states[owned.path] = self._make_routing_state(owned)
        return known

    def _make_routing_state(self, owned: OwnedZone) -> RoutingState:
        zone = self.space.zone
        neighbours = [
            RoutingEntry(id, zone(claim.path), cost=self._cost(advert))
            for id, advert in self.neighbours.items()
            for claim in advert.claims
            if owned.zone.borders(zone(claim.path), self.around) is not None
        ]
        ancestors = [
            Ancestor(zone(owned.path[: level * self.k]), tuple(map(self._routing_entry, table)))
            for level, table in enumerate(owned.ancestors)
        ]
        return RoutingState(self.me.id, owned.zone, len(owned.path), neighbours, ancestors, self.around)

    def set_coordinates(self, at: Coordinates) -> None:
        """Advertise these network coordinates; neighbours learn of them with the next heartbeat."""
        self.at = at
        self.version += 1
        self.invalidate_routes()

    def _cost(self, advert: ZoneAdvertisement) -> float:
        """The estimated delay to a neighbour: without coordinates it comes last, unless this broker has none either."""
        if not self.at:
            return 0.0
        return distance(self.at, advert.at) if advert.at else math.inf

    def _routing_entry(self, entry: TableEntry) -> RoutingEntry:
        others = self._alternates.get(entry.path, ())
        zone, near = self.space.zone, self.preferred.get(entry.path)
        present = tuple(map(zone, self._present.get(entry.peer.id, ())))
        return RoutingEntry(entry.peer.id, zone(entry.path), near, others, present=present)

    def record_present(self, id: NodeId, paths: Sequence[Path]) -> None:
        """Note which zones a broker in the tables of ancestors owns now, by its own word."""
        if len(paths) > CLAIMS_MAX or not all(map(self.space.has, paths)) or self._present.get(id) == tuple(paths):
            return
        if id not in self._present and len(self._present) >= ALTERED_ENTRIES_MAX:
            self._present.popitem(last=False)
        self._present[id] = tuple(paths)
        self.invalidate_routes()

    def set_near(self, path: Path, id: NodeId | None) -> None:
        """Prefer this broker for a recorded zone, as the nearest by network; None: nobody is known to be."""
        if id is None:
            self.preferred.pop(path, None)
        elif path in self.preferred or len(self.preferred) < ALTERED_ENTRIES_MAX:
            self.preferred[path] = id
        self.invalidate_routes()

    def add_alternate(self, path: Path, id: NodeId) -> None:
        """Keep a broker that was recorded for a zone as an alternate for the one recorded now."""
        if path not in self._alternates and len(self._alternates) >= ALTERED_ENTRIES_MAX:
            self._alternates.popitem(last=False)
        others = [other for other in self._alternates.get(path, ()) if other != id]
        self._alternates[path] = (id, *others)[:ALTERNATES_MAX]

    # ── Conflicting claims and orphaned zones ────────────────────────────────

    def higher_claims(self, advert: ZoneAdvertisement) -> list[tuple[OwnedZone, ZoneClaim]]:
        """Owned zones to which another broker has a higher claim, with that claim."""
        zone = self.space.zone
        return [
            (owned, claim)
            for owned in self.owned.values()
            for claim in advert.claims
            if outranks(claim, advert.peer.id, owned.claim, self.me.id) and zone(claim.path).touches(owned.zone)
        ]

    def has_lower_claim(self, advert: ZoneAdvertisement) -> bool:
        """Whether another broker claims something to which this one has the higher claim."""
        zone = self.space.zone
        return any(
            zone(claim.path).touches(owned.zone) and outranks(owned.claim, self.me.id, claim, advert.peer.id)
            for owned in self.owned.values()
            for claim in advert.claims
        )

    def cede(self, owned: OwnedZone, claim: ZoneClaim) -> list[OwnedZone]:
        """Give up what a higher claim covers; returns what remains, which may be several smaller zones."""
        self.release(owned.path)
        left = []
        for path in uncovered(owned.path, [claim.path]):
            if not self.space.zone(path).touches(self.space.zone(claim.path)):
                part = self.acquire(path, owned.epoch, owned.ancestors)
                part.records = {id: stored for id, stored in owned.records.items() if stored.touches(part.zone)}
                left.append(part)
        return left

    def unclaimed(self, path: Path) -> list[Path]:
        """The parts of a zone that neither this broker nor a neighbour claims."""
        return uncovered(path, [claim.path for _, claim in self.overlapping(path)])

    def takeover_rank(self, path: Path, near: Iterable[ZoneAdvertisement], dead: Iterable[NodeId]) -> int:
        """How many of the brokers around an orphaned zone come before this one in taking it over."""
        gone = {*dead, self.me.id}
        rows = [
            self._bid(path, advert) for advert in {c.peer.id: c for c in near}.values() if advert.peer.id not in gone
        ]
        mine = self._bid(path, self.advertisement())
        return sum(row is not None and mine is not None and row < mine for row in rows)

    def _bid(self, path: Path, advert: ZoneAdvertisement) -> tuple[bool, int, NodeId] | None:
        beside = [claim.path for claim in advert.claims if self.adjoins(claim.path, path)]
        if not beside:
            return None
        is_sibling = bool(path) and sibling(path) in beside
        return not is_sibling, -max(map(len, beside)), advert.peer.id

    def links(self) -> tuple[NodeId, ...]:
        """The brokers that this one may send to: its neighbours and those in the tables of its ancestors."""
        recorded = (e.peer.id for owned in self.owned.values() for table in owned.ancestors for e in table)
        return tuple(dict.fromkeys(id for id in (*self.neighbours, *recorded) if id != self.me.id))

    def holdings(self) -> dict[str, tuple[int, int]]:
        zones = len(self.owned)
        return {
            "zones": (zones, CLAIMS_MAX),
            "neighbours": (len(self.neighbours), NEIGHBOURS_MAX),
            "records": (sum(len(owned.records) for owned in self.owned.values()), max(zones, 1) * RECORDS_MAX),
        }


def raised(epoch: int) -> int:
    """The epoch of the next owner.

    >>> raised(3), raised(EPOCH_MAX) == EPOCH_MAX
    (4, True)
    """
    return min(epoch + 1, EPOCH_MAX)


def outranks(one: ZoneClaim, one_id: NodeId, other: ZoneClaim, other_id: NodeId) -> bool:
    """Whether the first of two claims wins where they overlap: the later one, else that of the smaller id."""
    return one.epoch > other.epoch or (one.epoch == other.epoch and one_id < other_id)


def uncovered(path: Path, claims: list[Path]) -> list[Path]:
    """The parts of a zone that none of these claims covers, as paths.

    >>> uncovered((), [((4, 0), (2, 1))])
    [((4, 0), (2, 0)), ((4, 1),)]
    """
    inside = [claim for claim in claims if within(claim, path) or within(path, claim)]
    if any(within(path, claim) for claim in inside):
        return []
    if not inside:
        return [path]
    low, high = halves(path, inside[0][len(path)][0])
    return [*uncovered(low, inside), *uncovered(high, inside)]


def _age(advert: ZoneAdvertisement) -> tuple[int, int]:
    return advert.peer.incarnation, advert.version
