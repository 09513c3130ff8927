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
from tidings.overlay.spanhop.messages import DomainAnswer, DomainQuery, Patrol, Plot, Whisper
from tidings.overlay.spanhop.next_hop import Trip
from tidings.overlay.spanhop.zone_ownership import Atlas, Held
from tidings.space import Path

if TYPE_CHECKING:
    from tidings.overlay.spanhop.router import Spanhop


class Upkeep:
    """One broker's far knowledge."""

    def __init__(self, router: Spanhop, atlas: Atlas, rng: Random) -> None:
        self._router, self._atlas, self._rng = router, atlas, rng

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
        for held in self._atlas.held.values():
            held.ancestors = [tuple(self._renewed(plot, answer) for plot in table) for table in held.ancestors]
        self._atlas.refresh()

    def patrol(self) -> list[Effect]:
        """Have somebody far away send word to a zone held here.

        Neighbours would not tell of a second holder: after a split each of the two may know
        only those who know only it.
        """
        zones = list(self._atlas.held.values())
        recorded = [plot.peer.id for _, _, plot in self._entries()]
        homes = [kept.record.home.id for held in zones for kept in held.records.values()]
        near = self._router.neighbourhood
        known = dict.fromkeys([*recorded, *homes, *near.lost, *near.met])
        far = [id for id in known if id != self._atlas.me.id]
        if not far or not zones:
            return []
        patrol = Whisper(Trip(self._rng.choice(zones).zone.low), Patrol(self._atlas.card()))
        return [Send(self._rng.choice(far), patrol)]

    def _entries(self) -> list[tuple[Held, int, Plot]]:
        return [
            (held, level, plot)
            for held in self._atlas.held.values()
            for level, table in enumerate(held.ancestors)
            for plot in table
        ]

    def _look_up(self, held: Held, level: int, plot: Plot, now: float) -> list[Effect]:
        space = self._atlas.space
        there, ancestor = space.zone(plot.path), space.zone(held.path[: level * self._atlas.k])
        if self._atlas.holder(there) is not None:
            return []
        aim = there.facing(ancestor, self._atlas.around)
        return self._router.carrier.send_to(DomainQuery(self._atlas.me, plot.path), aim, now, whispers=True)

    def _renewed(self, plot: Plot, answer: DomainAnswer) -> Plot:
        if plot.path != answer.path or plot.peer.id == answer.owner.id:
            return plot
        self._atlas.stand_in(plot.path, plot.peer.id)
        return Plot(answer.owner, plot.path)
