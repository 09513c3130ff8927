"""Subscriptions on their way into the space: cut along the split tree, stored where they touch a zone, told to their homes.

A broker sows its own (see `planting` for what it knows of them) and passes on those of
others. Each zone that a box touches gets exactly one piece, and needs to know no path but its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tidings.overlay.interest import Interest
from tidings.overlay.messages import SubscriptionId
from tidings.overlay.router import Completed, Effect, Failed, Send, WakeAt
from tidings.overlay.spanhop.forwarding import is_box
from tidings.overlay.spanhop.keeping import Keeper
from tidings.overlay.spanhop.messages import Plant, Record, Stored
from tidings.overlay.spanhop.next_hop import Trip
from tidings.overlay.spanhop.planting import AGAIN_MAX, OWN_MAX, Own, Planter
from tidings.overlay.spanhop.zone_ownership import Held
from tidings.space import siblings

if TYPE_CHECKING:
    from tidings.overlay.spanhop.router import Spanhop


class Sower:
    """One broker's part in planting subscriptions, its own and others'."""

    def __init__(self, router: Spanhop, planter: Planter, keeper: Keeper) -> None:
        self._router, self._atlas, self._planter, self._keeper = router, router.atlas, planter, keeper

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        """Plant a new wish, and take back what an earlier one under its id reached beyond it."""
        if len(self._planter.own) >= OWN_MAX:
            return [Failed("subscribe", "too many subscriptions at one broker", interest.id)]
        before = self._planter.own.get(interest.id)
        old = list(before.boxes) if before and not before.gone else []
        own = self._planter.begin(interest, self._router.axes.wanted(interest.wanted))
        if self._router.stage != "ready":
            return []
        effects: list[Effect] = []
        for box in own.boxes:
            old = [rest for part in old for rest in part.without(box)]
        for part in old:
            gone = msgspec.structs.replace(self._record(own), version=own.version - 1, gone=True)
            effects += self.sow(Plant(gone, part, told=False), now)
        return [*effects, *self._plant_missing(own, now)]

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        """Plant that a wish is no more, wherever it is kept."""
        own = self._planter.end(id)
        if own is None:
            return [Completed("unsubscribe", id)]
        return self._plant_missing(own, now) if self._atlas.held else self._finish(own)

    def plant_all_missing(self, now: float) -> list[Effect]:
        """Plant what was wanted before there was anywhere to plant it."""
        owns = [own for own in self._planter.own.values() if own.missing]
        return [effect for own in owns for effect in self._plant_missing(own, now)]

    def sow_again(self, now: float) -> list[Effect]:
        """On schedule, all that is wanted: whoever has lost it has it again."""
        effects: list[Effect] = []
        for own in self._planter.own.values():
            record = self._record(own)
            for box in own.boxes if not own.gone and not own.missing else ():
                effects += self.sow(Plant(record, box, told=False), now, whispers=True)
        return effects

    def plant_again(self, id: SubscriptionId, version: int, tries: int, now: float) -> list[Effect]:
        """Parts of a box have not answered for a while."""
        own = self._planter.own.get(id)
        if own is None or (own.version, own.tries) != (version, tries) or not own.missing:
            return []
        if own.tries > AGAIN_MAX:
            asked, own.asked = own.asked or "subscribe", None
            return [Failed(asked, "parts of its box do not answer", id)]
        return self._plant_missing(own, now) if self._atlas.held else [self._later(own, now)]

    def stored(self, answer: Stored) -> list[Effect]:
        """A zone has taken in its part of a subscription of this broker's."""
        if not is_box(self._atlas.space, answer.part):
            return []
        own = self._planter.stored(answer.id, answer.version, answer.part)
        return self._finish(own) if own is not None else []

    def sow(self, plant: Plant, now: float, *, trip: Trip | None = None, whispers: bool = False) -> list[Effect]:
        """Store a subscription where its piece touches a zone held here, and send on the rest, cut along the tree."""
        held, way = self._atlas.holder(plant.piece), self._router.way
        if held is None:
            return way.send_on(plant, trip or way.trip(plant.piece, None), now, whispers=whispers)
        effects = self._store(held, plant, now)
        for path in siblings(held.path):
            part = plant.piece.meet(self._atlas.space.zone(path))
            if part is not None:
                rest = Plant(plant.record, part, plant.told)
                effects += self.sow(rest, now, trip=way.trip(part, held), whispers=whispers)
        return effects

    def _record(self, own: Own) -> Record:
        point = next(iter(self._atlas.held.values())).zone.low if self._atlas.held else (0,) * self._atlas.space.axes
        return Record(own.interest, self._atlas.me, point, own.version, own.gone)

    def _plant_missing(self, own: Own, now: float) -> list[Effect]:
        """Plant all that is missing; parts that lie here are stored at once."""
        own.tries += 1
        record = self._record(own)
        effects: list[Effect] = []
        for part in list(own.missing):
            effects += self.sow(Plant(record, part), now)
        if not own.missing:  # It asked for nothing at all, or everything was here.
            return [*effects, *self._finish(own)]
        wait_s = self._router.legs.answer_s * min(2 + own.tries, 10)
        again = ("plant", own.interest.id, own.version, own.tries)
        return [*effects, WakeAt(now + wait_s, again)]

    def _later(self, own: Own, now: float) -> Effect:
        own.tries += 1
        return WakeAt(now + 2 * self._router.legs.answer_s, ("plant", own.interest.id, own.version, own.tries))

    def _finish(self, own: Own) -> list[Effect]:
        asked = self._planter.finish(own)
        return [Completed(asked, own.interest.id)] if asked is not None else []

    def _store(self, held: Held, plant: Plant, now: float) -> list[Effect]:
        """Keep a record in a zone, and tell its home."""
        record = plant.record
        part = plant.piece.meet(held.zone)
        assert part is not None
        effects = self._keeper.copy(held, record) if self._keeper.keep(held, record, now) else []
        if not plant.told:
            return effects
        stored = Stored(record.interest.id, record.version, part)
        if record.home.id == self._atlas.me.id:
            return [*effects, *self.stored(stored)]
        return [*effects, Send(record.home.id, stored)]
