"""Keeping far knowledge true: the tables of ancestors, and that nobody else holds one's zone.

A table of an ancestor is a record of old times. Now and then one entry is looked up: who is
in that zone now? Whoever answers takes the entry, who stood there may stand in. And now and
then a *patrol* is sent from somewhere far to a zone held here: if it ends at another broker,
two hold the zone, and the claims decide (see `claims`).
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from tidings.overlay.messages import NodeId
from tidings.overlay.router import Effect, Send
from tidings.overlay.spanhop.messages import DomainAnswer, DomainQuery, OwnershipProbe, RoutedDatagram, TableEntry
from tidings.overlay.spanhop.next_hop import RouteHeader
from tidings.overlay.spanhop.zone_ownership import OwnedZone, ZoneTable
from tidings.space import Path

if TYPE_CHECKING:
    from tidings.overlay.spanhop.router import Spanhop


class TableRefresher:
    """One broker's far knowledge."""

    def __init__(self, router: Spanhop, zones: ZoneTable, rng: Random) -> None:
        self._router, self._zones, self._rng = router, zones, rng

    def look_up_one(self, now: float) -> list[Effect]:
        """Ask who is in the zone of one entry, chosen by chance."""
        entries = self._entries()
        return self._look_up(*self._rng.choice(entries), now) if entries else []

    def look_up(self, span: Path, peer: NodeId, now: float) -> list[Effect]:
        """Ask who is in the zone of an entry, now that the broker recorded there has said that it is not."""
        wrong = [row for row in self._entries() if row[2].path == span and row[2].peer.id == peer]
        return self._look_up(*wrong[0], now) if wrong else []

    def answered(self, sender: NodeId, answer: DomainAnswer) -> None:
        """The one who answers stands in the tables from now on; who stood there may stand in."""
        if answer.owner.id != sender:
            return
        for owned in self._zones.owned.values():
            owned.ancestors = [tuple(self._renewed(entry, answer) for entry in table) for table in owned.ancestors]
        self._zones.refresh()

    def patrol(self) -> list[Effect]:
        """Have somebody far away send word to a zone held here.

        Neighbours would not tell of a second holder: after a split each of the two may know
        only those who know only it.
        """
        zones = list(self._zones.owned.values())
        recorded = [entry.peer.id for _, _, entry in self._entries()]
        homes = [kept.record.home.id for owned in zones for kept in owned.records.values()]
        near = self._router.neighbourhood
        known = dict.fromkeys([*recorded, *homes, *near.lost, *near.met])
        far = [id for id in known if id != self._zones.me.id]
        if not far or not zones:
            return []
        patrol = RoutedDatagram(RouteHeader(self._rng.choice(zones).zone.low), OwnershipProbe(self._zones.card()))
        return [Send(self._rng.choice(far), patrol)]

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
        if self._zones.holder(there) is not None:
            return []
        destination = there.facing(ancestor, self._zones.around)
        return self._router.carrier.send_to(DomainQuery(self._zones.me, entry.path), destination, now, whispers=True)

    def _renewed(self, entry: TableEntry, answer: DomainAnswer) -> TableEntry:
        if entry.path != answer.path or entry.peer.id == answer.owner.id:
            return entry
        self._zones.stand_in(entry.path, entry.peer.id)
        return TableEntry(answer.owner, entry.path)
