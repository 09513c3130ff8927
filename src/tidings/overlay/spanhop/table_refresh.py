"""Refreshing distant state: the tables of ancestors, and whether another broker claims an owned zone.

The table of an ancestor is a snapshot. Now and then a broker looks up one entry of it: who
owns that zone now? The broker that answers replaces the one recorded, which becomes an
alternate. And now and then the broker has a distant one send an `OwnershipProbe` to a zone it
owns. If the probe arrives at another broker, two own the zone, and the claims decide (see
`zone_ownership`).
"""

from __future__ import annotations

from random import Random

from tidings.overlay.messages import NodeId
from tidings.overlay.router import Effect, Send
from tidings.overlay.spanhop.forwarding import Forwarder
from tidings.overlay.spanhop.messages import DomainAnswer, DomainQuery, OwnershipProbe, RoutedDatagram, TableEntry
from tidings.overlay.spanhop.neighbours import NeighbourMonitor
from tidings.overlay.spanhop.next_hop import RouteHeader
from tidings.overlay.spanhop.zone_ownership import OwnedZone, ZoneTable
from tidings.space import Path


class TableRefresher:
    """Keeps one broker's tables of ancestors up to date."""

    def __init__(self, zones: ZoneTable, rng: Random, forwarder: Forwarder, monitor: NeighbourMonitor) -> None:
        self._zones, self._rng, self._forwarder, self._monitor = zones, rng, forwarder, monitor

    def refresh_one(self, now: float) -> list[Effect]:
        """Look up the owner of one entry, chosen at random."""
        entries = self._entries()
        return self._look_up(*self._rng.choice(entries), now) if entries else []

    def look_up(self, span: Path, peer: NodeId, now: float) -> list[Effect]:
        """Look up the owner of an entry whose recorded broker has said that it is not there."""
        wrong = [row for row in self._entries() if row[2].path == span and row[2].peer.id == peer]
        return self._look_up(*wrong[0], now) if wrong else []

    def answered(self, sender: NodeId, answer: DomainAnswer) -> None:
        """Record the broker that answers; the one recorded before becomes an alternate."""
        if answer.owner.id != sender:
            return
        for owned in self._zones.owned.values():
            owned.ancestors = [tuple(self._renewed(entry, answer) for entry in table) for table in owned.ancestors]
        self._zones.invalidate_routes()

    def probe_ownership(self) -> list[Effect]:
        """Have a distant broker send a probe to an owned zone.

        Neighbours would not reveal a second owner: after a network partition each of the two
        may know only brokers that know only it.
        """
        owned_zones = list(self._zones.owned.values())
        recorded = [entry.peer.id for _, _, entry in self._entries()]
        homes = [stored.record.home.id for owned in owned_zones for stored in owned.records.values()]
        known = dict.fromkeys([*recorded, *homes, *self._monitor.former_neighbours()])
        distant = [id for id in known if id != self._zones.me.id]
        if not distant or not owned_zones:
            return []
        route = RouteHeader(self._rng.choice(owned_zones).zone.low)
        probe = RoutedDatagram(route, OwnershipProbe(self._zones.advertisement()))
        return [Send(self._rng.choice(distant), probe)]

    def _entries(self) -> list[tuple[OwnedZone, int, TableEntry]]:
        return [
            (owned, level, entry)
            for owned in self._zones.owned.values()
            for level, table in enumerate(owned.ancestors)
            for entry in table
        ]

    def _look_up(self, owned: OwnedZone, level: int, entry: TableEntry, now: float) -> list[Effect]:
        space = self._zones.space
        there, ancestor = space.zone(entry.path), space.zone(owned.path[: level * self._zones.k])
        if self._zones.touching(there) is not None:
            return []
        destination = there.facing(ancestor, self._zones.around)
        query = DomainQuery(self._zones.me, entry.path)
        return self._forwarder.send_to(query, destination, now, reliable=False)

    def _renewed(self, entry: TableEntry, answer: DomainAnswer) -> TableEntry:
        if entry.path != answer.path or entry.peer.id == answer.owner.id:
            return entry
        self._zones.add_alternate(entry.path, entry.peer.id)
        return TableEntry(answer.owner, entry.path)
