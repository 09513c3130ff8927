"""Who holds which zone, when brokers come, go and disagree.

A broker tells its neighbours the zones it holds, each with an epoch: its *card*. Every
change of hands raises the epoch: a split, a merge, a zone taken over from somebody who
died. Wherever two claims overlap the higher one counts, and who has the lower one gives up
that part and keeps the rest. So at each point of the space the highest claim ever made
stands until its holder dies: nobody need agree with anybody, not even after a network was
split and both halves took over each other's zones.

    orphan     a zone whose holder has died or no longer claims it, and that nobody else claims
    rank       the order in which its neighbours may take it: the sibling first, then small zones, then small ids
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

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

CARDS_MAX = 1024  # Neighbours; a zone with more is far larger than theirs and about to be split.
CLAIMS_MAX = 64  # Zones of one broker; more than a few only in the minute after a disaster.
ALTERNATES_MAX = 3  # Brokers that may stand in for one in an ancestor's table.
STAND_INS_MAX = 1024  # Entries that have some.
RECENT_MAX = 256  # Events whose places are remembered, to know where the load is.
RECORDS_MAX = 65_536  # Subscriptions in one zone.
FAR = 1e6  # Seconds: no network coordinate is as large.


@dataclass(slots=True)
class StoredSubscription:
    """A subscription in a zone, the boxes it covers as far as this broker can read it, and until when it is kept."""

    record: SubscriptionRecord
    boxes: tuple[Zone, ...]
    until: float

    def touches(self, zone: Zone) -> bool:
        return any(box.touches(zone) for box in self.boxes)


@dataclass(slots=True)
class OwnedZone:
    """One zone that a broker holds, with what belongs to it."""

    path: Path
    zone: Zone
    epoch: int
    ancestors: list[NeighbourTable] = field(default_factory=lambda: [()])
    records: dict[SubscriptionId, StoredSubscription] = field(default_factory=dict)
    recent: list[tuple[int, ...]] = field(default_factory=list)
    index: dict[tuple[Path, NodeId], IndexPut] = field(default_factory=dict)  # Where brokers are by network.

    @property
    def claim(self) -> ZoneClaim:
        return ZoneClaim(self.path, self.epoch)

    def note(self, point: tuple[int, ...]) -> None:
        """An event happened here."""
        self.recent.append(point)
        if len(self.recent) > RECENT_MAX:
            del self.recent[: RECENT_MAX // 2]


class ZoneTable:
    """The cards of the brokers around, and the zones held here. Only keeps book: the router sends and wakes."""

    def __init__(self, me: Peer, space: Space, *, k: int, around: int | None) -> None:
        self.me, self.space, self.k, self.around = me, space, k, around
        self.owned: dict[Path, OwnedZone] = {}
        self.cards: dict[NodeId, ZoneAdvertisement] = {}
        self.nearby: dict[
            NodeId, tuple[ZoneAdvertisement, ...]
        ] = {}  # Whom each neighbour named as its own neighbours.
        self.version = 0
        self.at: Coordinates = ()  # This broker's network coordinates, as its card tells them.
        self._standings: dict[Path, RoutingState] = {}
        self._stand_ins: OrderedDict[Path, tuple[NodeId, ...]] = OrderedDict()
        self._near: dict[Path, NodeId] = {}

    # ── What is held here ────────────────────────────────────────────────────

    def card(self) -> ZoneAdvertisement:
        """What this broker says of itself."""
        return ZoneAdvertisement(self.me, self.version, tuple(owned.claim for owned in self.owned.values()), self.at)

    def hold(self, path: Path, epoch: int, ancestors: Iterable[NeighbourTable] | None = None) -> OwnedZone:
        """Begin to hold a zone. Tables of ancestors that are not given are made from what is known here."""
        owned = OwnedZone(path, self.space.zone(path), epoch)
        self.owned[path] = owned
        owned.ancestors = self._completed(path, list(ancestors) if ancestors is not None else self._borrowed(path))
        self.refresh()
        return owned

    def drop(self, path: Path) -> OwnedZone | None:
        self.refresh()
        return self.owned.pop(path, None)

    def refresh(self) -> None:
        """Something has changed that ways depend on."""
        self._standings.clear()

    def holder(self, zone: Zone) -> OwnedZone | None:
        """The first zone held here that touches another."""
        return next((owned for owned in self.owned.values() if owned.zone.touches(zone)), None)

    def nearest(self, point: tuple[int, ...]) -> OwnedZone:
        """The zone held here that is nearest to a point."""
        if len(self.owned) == 1:
            return next(iter(self.owned.values()))
        return min(self.owned.values(), key=lambda owned: (owned.zone.distance(point, self.around), owned.path))

    def _completed(self, path: Path, ancestors: list[NeighbourTable]) -> list[NeighbourTable]:
        """As many tables as the path has levels: those too many go, those missing are recorded as things are now."""
        levels = len(path) // self.k + 1
        missing = range(len(ancestors), levels)
        return [*ancestors[:levels], *(self.record(path[: level * self.k]) if level else () for level in missing)]

    def _borrowed(self, path: Path) -> list[NeighbourTable]:
        """The tables of ancestors that the path shares with a zone held here."""
        best: list[NeighbourTable] = [()]
        for owned in self.owned.values():
            shared = next(
                (j for j, (a, b) in enumerate(zip(owned.path, path)) if a != b), min(len(owned.path), len(path))
            )
            if shared // self.k + 1 > len(best):
                best = owned.ancestors[: shared // self.k + 1]
        return list(best)

    def record(self, path: Path) -> NeighbourTable:
        """Who is next to the zone of a path now, as far as is known here."""
        zone = self.space.zone(path)
        return tuple(
            TableEntry(card.peer, claim.path)
            for card in self.cards.values()
            for claim in card.claims
            if zone.borders(self.space.zone(claim.path), self.around) is not None
        )

    # ── Who is around ────────────────────────────────────────────────────────

    def learn(self, card: ZoneAdvertisement) -> ZoneAdvertisement | None:
        """Take a card unless it is old; returns the card it replaces, or itself if there was none, or None if old."""
        known = self.cards.get(card.peer.id)
        if card.peer.id == self.me.id or (known is None and len(self.cards) >= CARDS_MAX):
            return None
        if known is not None and _age(card) <= _age(known):
            return None
        if known is None and not self.concerns(card):
            return None
        self.cards[card.peer.id] = card
        self.refresh()
        return known or card

    def put(self, card: ZoneAdvertisement) -> None:
        """Take a card, unless it is old, whether or not it concerns anything held here."""
        known = self.cards.get(card.peer.id)
        if (known is None and len(self.cards) < CARDS_MAX) or (known is not None and _age(card) > _age(known)):
            self.cards[card.peer.id] = card
            self.refresh()

    def forget(self, id: NodeId) -> ZoneAdvertisement | None:
        self.refresh()
        self.nearby.pop(id, None)
        return self.cards.pop(id, None)

    def prune(self) -> None:
        """Forget those that are no longer next to anything held here."""
        if self.owned:
            for id in [id for id, card in self.cards.items() if not self.concerns(card)]:
                self.forget(id)

    def fits(self, card: ZoneAdvertisement) -> bool:
        """Whether a card from a stranger names zones of this space, and a place in as many dimensions or none."""
        is_place = not card.at or (len(card.at) == self.space.axes and all(abs(x) < FAR for x in card.at))
        return is_place and len(card.claims) <= CLAIMS_MAX and all(self.space.has(claim.path) for claim in card.claims)

    def concerns(self, card: ZoneAdvertisement) -> bool:
        """Whether somebody's zones border on, or overlap, those held here. Before there are any, everybody's do."""
        return not self.owned or any(
            self.adjoins(claim.path, owned.path) for claim in card.claims for owned in self.owned.values()
        )

    def adjoins(self, one: Path, other: Path) -> bool:
        a, b = self.space.zone(one), self.space.zone(other)
        return a.borders(b, self.around) is not None or a.touches(b)

    def owner_of(self, path: Path) -> Peer | None:
        """Who holds exactly this zone."""
        for card in self.cards.values():
            if any(claim.path == path for claim in card.claims):
                return card.peer
        return None

    def overlapping(self, path: Path) -> Iterator[tuple[NodeId, ZoneClaim]]:
        """Claims, here or elsewhere, that touch a zone."""
        zone = self.space.zone(path)
        for card in (self.card(), *self.cards.values()):
            for claim in card.claims:
                if self.space.zone(claim.path).touches(zone):
                    yield card.peer.id, claim

    def routing_state(self, owned: OwnedZone) -> RoutingState:
        """A zone held here, as choosing a way takes it."""
        known = self._standings.get(owned.path)
        if known is None:
            known = self._standings[owned.path] = self._stand(owned)
        return known

    def _stand(self, owned: OwnedZone) -> RoutingState:
        zone = self.space.zone
        neighbours = [
            RoutingEntry(id, zone(claim.path), cost=self._cost(card))
            for id, card in self.cards.items()
            for claim in card.claims
            if owned.zone.borders(zone(claim.path), self.around) is not None
        ]
        ancestors = [
            Ancestor(zone(owned.path[: level * self.k]), tuple(map(self._known, table)))
            for level, table in enumerate(owned.ancestors)
        ]
        return RoutingState(self.me.id, owned.zone, len(owned.path), neighbours, ancestors, self.around)

    def move_to(self, at: Coordinates) -> None:
        """These are this broker's network coordinates; neighbours hear of them with the next heartbeat."""
        self.at = at
        self.version += 1
        self.refresh()

    def _cost(self, card: ZoneAdvertisement) -> float:
        """How far a neighbour is by network: those whose place is not known come last, unless nobody's is."""
        if not self.at:
            return 0.0
        return distance(self.at, card.at) if card.at else math.inf

    def _known(self, entry: TableEntry) -> RoutingEntry:
        others = self._stand_ins.get(entry.path, ())
        return RoutingEntry(entry.peer.id, self.space.zone(entry.path), self._near.get(entry.path), others)

    def set_near(self, path: Path, id: NodeId | None) -> None:
        """Who, of those in a recorded zone, is nearest by network; None if nobody is known to be."""
        if id is None:
            self._near.pop(path, None)
        elif path in self._near or len(self._near) < STAND_INS_MAX:
            self._near[path] = id
        self.refresh()

    def stand_in(self, path: Path, id: NodeId) -> None:
        """Somebody who was in a zone may stand in for whoever is recorded there now."""
        if path not in self._stand_ins and len(self._stand_ins) >= STAND_INS_MAX:
            self._stand_ins.popitem(last=False)
        others = [other for other in self._stand_ins.get(path, ()) if other != id]
        self._stand_ins[path] = (id, *others)[:ALTERNATES_MAX]

    # ── Disagreements and orphans ────────────────────────────────────────────

    def defeats(self, card: ZoneAdvertisement) -> list[tuple[OwnedZone, ZoneClaim]]:
        """What is held here and somebody else has a higher claim to."""
        zone = self.space.zone
        return [
            (owned, claim)
            for owned in self.owned.values()
            for claim in card.claims
            if outranks(claim, card.peer.id, owned.claim, self.me.id) and zone(claim.path).touches(owned.zone)
        ]

    def contests(self, card: ZoneAdvertisement) -> bool:
        """Whether somebody claims what this broker has the higher claim to."""
        zone = self.space.zone
        return any(
            zone(claim.path).touches(owned.zone) and outranks(owned.claim, self.me.id, claim, card.peer.id)
            for owned in self.owned.values()
            for claim in card.claims
        )

    def concede(self, owned: OwnedZone, claim: ZoneClaim) -> list[OwnedZone]:
        """Give up what a higher claim covers; returns what is left, which may be several smaller zones."""
        self.drop(owned.path)
        left = []
        for path in uncovered(owned.path, [claim.path]):
            if not self.space.zone(path).touches(self.space.zone(claim.path)):
                part = self.hold(path, owned.epoch, owned.ancestors)
                part.records = {id: kept for id, kept in owned.records.items() if kept.touches(part.zone)}
                left.append(part)
        return left

    def orphaned(self, path: Path) -> list[Path]:
        """The parts of a zone that nobody known here claims."""
        return uncovered(path, [claim.path for _, claim in self.overlapping(path)])

    def rank(self, path: Path, near: Iterable[ZoneAdvertisement], dead: Iterable[NodeId]) -> int:
        """How many of those around a zone come before this broker when it is to be taken over."""
        gone = {*dead, self.me.id}
        rows = [self._bid(path, card) for card in {c.peer.id: c for c in near}.values() if card.peer.id not in gone]
        mine = self._bid(path, self.card())
        return sum(row is not None and mine is not None and row < mine for row in rows)

    def _bid(self, path: Path, card: ZoneAdvertisement) -> tuple[bool, int, NodeId] | None:
        beside = [claim.path for claim in card.claims if self.adjoins(claim.path, path)]
        if not beside:
            return None
        is_sibling = bool(path) and sibling(path) in beside
        return not is_sibling, -max(map(len, beside)), card.peer.id

    def holdings(self) -> dict[str, tuple[int, int]]:
        zones = len(self.owned)
        return {
            "zones": (zones, CLAIMS_MAX),
            "neighbours": (len(self.cards), CARDS_MAX),
            "records": (sum(len(owned.records) for owned in self.owned.values()), max(zones, 1) * RECORDS_MAX),
        }


def outranks(one: ZoneClaim, one_id: NodeId, other: ZoneClaim, other_id: NodeId) -> bool:
    """Whether the first of two claims counts where they overlap: the later one, else that of the smaller id."""
    return one.epoch > other.epoch or (one.epoch == other.epoch and one_id < other_id)


def uncovered(path: Path, claims: list[Path]) -> list[Path]:
    """What of a zone none of these claims covers, as paths.

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


def _age(card: ZoneAdvertisement) -> tuple[int, int]:
    return card.peer.incarnation, card.version
