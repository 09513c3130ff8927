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
from tidings.overlay.spanhop.keeping import SubscriptionStore
from tidings.overlay.spanhop.messages import PlaceSubscription, Stored, SubscriptionRecord
from tidings.overlay.spanhop.next_hop import RouteHeader
from tidings.overlay.spanhop.planting import AGAIN_MAX, OWN_MAX, HomeSubscription, HomeSubscriptions
from tidings.overlay.spanhop.zone_ownership import OwnedZone
from tidings.space import siblings

if TYPE_CHECKING:
    from tidings.overlay.spanhop.router import Spanhop


class SubscriptionPlacement:
    """One broker's part in planting subscriptions, its own and others'."""

    def __init__(self, router: Spanhop, planter: HomeSubscriptions, keeper: SubscriptionStore) -> None:
        self._router, self._zones, self._planter, self._keeper = router, router.zones, planter, keeper

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
            effects += self.sow(PlaceSubscription(gone, part, told=False), now)
        return [*effects, *self._plant_missing(own, now)]

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        """Plant that a wish is no more, wherever it is kept."""
        own = self._planter.end(id)
        if own is None:
            return [Completed("unsubscribe", id)]
        return self._plant_missing(own, now) if self._zones.owned else self._finish(own)

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
                effects += self.sow(PlaceSubscription(record, box, told=False), now, whispers=True)
        return effects

    def plant_again(self, id: SubscriptionId, version: int, tries: int, now: float) -> list[Effect]:
        """Parts of a box have not answered for a while."""
        own = self._planter.own.get(id)
        if own is None or (own.version, own.tries) != (version, tries) or not own.missing:
            return []
        if own.tries > AGAIN_MAX:
            asked, own.asked = own.asked or "subscribe", None
            return [Failed(asked, "parts of its box do not answer", id)]
        return self._plant_missing(own, now) if self._zones.owned else [self._later(own, now)]

    def stored(self, answer: Stored) -> list[Effect]:
        """A zone has taken in its part of a subscription of this broker's."""
        if not is_box(self._zones.space, answer.part):
            return []
        own = self._planter.stored(answer.id, answer.version, answer.part)
        return self._finish(own) if own is not None else []

    def sow(
        self, plant: PlaceSubscription, now: float, *, route: RouteHeader | None = None, whispers: bool = False
    ) -> list[Effect]:
        """Store a subscription where its piece touches a zone held here, and send on the rest, cut along the tree."""
        owned, way = self._zones.holder(plant.piece), self._router.way
        if owned is None:
            return way.send_on(plant, route or way.route(plant.piece, None), now, whispers=whispers)
        effects = self._store(owned, plant, now)
        for path in siblings(owned.path):
            part = plant.piece.meet(self._zones.space.zone(path))
            if part is not None:
                rest = PlaceSubscription(plant.record, part, plant.told)
                effects += self.sow(rest, now, route=way.route(part, owned), whispers=whispers)
        return effects

    def _record(self, own: HomeSubscription) -> SubscriptionRecord:
        point = next(iter(self._zones.owned.values())).zone.low if self._zones.owned else (0,) * self._zones.space.axes
        return SubscriptionRecord(own.interest, self._zones.me, point, own.version, own.gone)

    def _plant_missing(self, own: HomeSubscription, now: float) -> list[Effect]:
        """Plant all that is missing; parts that lie here are stored at once."""
        own.tries += 1
        record = self._record(own)
        effects: list[Effect] = []
        for part in list(own.missing):
            effects += self.sow(PlaceSubscription(record, part), now)
        if not own.missing:  # It asked for nothing at all, or everything was here.
            return [*effects, *self._finish(own)]
        wait_s = self._router.legs.answer_s * min(2 + own.tries, 10)
        again = ("plant", own.interest.id, own.version, own.tries)
        return [*effects, WakeAt(now + wait_s, again)]

    def _later(self, own: HomeSubscription, now: float) -> Effect:
        own.tries += 1
        return WakeAt(now + 2 * self._router.legs.answer_s, ("plant", own.interest.id, own.version, own.tries))

    def _finish(self, own: HomeSubscription) -> list[Effect]:
        asked = self._planter.finish(own)
        return [Completed(asked, own.interest.id)] if asked is not None else []

    def _store(self, owned: OwnedZone, plant: PlaceSubscription, now: float) -> list[Effect]:
        """Keep a record in a zone, and tell its home."""
        record = plant.record
        part = plant.piece.meet(owned.zone)
        assert part is not None
        effects = self._keeper.copy(owned, record) if self._keeper.keep(owned, record, now) else []
        if not plant.told:
            return effects
        stored = Stored(record.interest.id, record.version, part)
        if record.home.id == self._zones.me.id:
            return [*effects, *self.stored(stored)]
        return [*effects, Send(record.home.id, stored)]
