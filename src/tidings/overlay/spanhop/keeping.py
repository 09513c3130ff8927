"""What a broker keeps for others: subscriptions of its zones, copies of a neighbour's, and what was taken back.

Of two records about one subscription the later version counts, whatever order they come in;
one that was taken back is remembered by its version, so an old word about it changes nothing.
Each zone's records are copied to one neighbour, the one that would take the zone over.
Whatever is not planted again for a while is forgotten: its home is gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from tidings.overlay.messages import NodeId, SubscriptionId
from tidings.overlay.router import Effect, Send
from tidings.overlay.spanhop.messages import ReplicaRefresh, ReplicaUpdate, SubscriptionRecord, in_parts
from tidings.overlay.spanhop.quantisation import Quantiser
from tidings.overlay.spanhop.zone_ownership import RECORDS_MAX, OwnedZone, StoredSubscription, ZoneTable
from tidings.space import Path, sibling

LEASE_S = 120.0  # How long a zone keeps a subscription that nobody plants again.
COPIES_MAX = 65_536  # Records kept for neighbours.
GRAVES_MAX = 65_536  # Subscriptions taken back, remembered in case an old word about them comes late.


class SubscriptionStore:
    """The records of one broker."""

    def __init__(self, zones: ZoneTable, axes: Quantiser, *, copies: bool) -> None:
        self._zones, self._axes, self._has_copies = zones, axes, copies
        self.copies: dict[SubscriptionId, StoredSubscription] = {}
        self.graves: OrderedDict[SubscriptionId, int] = OrderedDict()
        self._copied_to: dict[Path, NodeId] = {}

    def keep(self, owned: OwnedZone, record: SubscriptionRecord, now: float) -> bool:
        """Keep a record in a zone unless a later one is known; whether it was news."""
        id = record.interest.id
        known = owned.records.get(id)
        if max(known.record.version if known else 0, self.graves.get(id, 0)) > record.version:
            return False
        if record.gone:
            self._bury(id, record.version)
            return owned.records.pop(id, None) is not None
        if self.graves.get(id) == record.version or (known is None and len(owned.records) >= RECORDS_MAX):
            return False
        owned.records[id] = self._kept(record, now)
        return known is None or known.record.version < record.version

    def take(self, records: Iterable[SubscriptionRecord], now: float) -> None:
        """Keep records in whichever zones held here they touch."""
        for record in records:
            kept = self._kept(record, now)
            for owned in self._zones.owned.values():
                if kept.touches(owned.zone):
                    self.keep(owned, record, now)

    def expire(self, now: float) -> None:
        """Forget what nobody plants any more."""
        for owned in self._zones.owned.values():
            for id in [id for id, kept in owned.records.items() if kept.until < now]:
                del owned.records[id]
        for id in [id for id, kept in self.copies.items() if kept.until < now]:
            del self.copies[id]

    # ── Copies ───────────────────────────────────────────────────────────────

    def copy(self, owned: OwnedZone, record: SubscriptionRecord) -> list[Effect]:
        """A copy of one record to whoever keeps copies for this zone."""
        to = self._copier(owned)
        return [Send(to, ReplicaUpdate(owned.path, (record,)))] if to is not None else []

    def copy_anew(self) -> list[Effect]:
        """Whoever has become the keeper of a copy gets all of it."""
        effects: list[Effect] = []
        self._copied_to = {path: to for path, to in self._copied_to.items() if path in self._zones.owned}
        for owned in self._zones.owned.values():
            to = self._copier(owned)
            if to is not None and self._copied_to.get(owned.path) != to:
                self._copied_to[owned.path] = to
                effects += [Send(to, ReplicaUpdate(owned.path, part)) for part in _parts(owned)]
        return effects

    def copy_again(self) -> list[Effect]:
        """All copies once more, on schedule."""
        effects: list[Effect] = []
        for owned in self._zones.owned.values():
            to = self._copier(owned)
            effects += [Send(to, ReplicaRefresh(owned.path, part)) for part in _parts(owned)] if to is not None else []
        return effects

    def keep_copies(self, records: Iterable[SubscriptionRecord], now: float) -> None:
        """Keep what a neighbour's zone keeps, for the case that it dies."""
        for record in records:
            id = record.interest.id
            if record.gone or self.graves.get(id, 0) >= record.version:
                self._bury(id, record.version)
            elif id in self.copies or len(self.copies) < COPIES_MAX:
                self.copies[id] = self._kept(record, now)

    def fill(self, owned: OwnedZone, now: float) -> None:
        """Give a zone taken over from a neighbour what was copied of it."""
        for kept in list(self.copies.values()):
            if kept.touches(owned.zone):
                self.keep(owned, kept.record, now)

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"copies": (len(self.copies), COPIES_MAX), "graves": (len(self.graves), GRAVES_MAX)}

    def _copier(self, owned: OwnedZone) -> NodeId | None:
        """Who keeps a copy: the sibling's holder, or the neighbour with the smallest id."""
        if not self._has_copies:
            return None
        owner = self._zones.owner_of(sibling(owned.path)) if owned.path else None
        return owner.id if owner is not None else min(self._zones.cards, default=None)

    def _kept(self, record: SubscriptionRecord, now: float) -> StoredSubscription:
        return StoredSubscription(record, self._axes.wanted(record.interest.wanted), now + LEASE_S)

    def _bury(self, id: SubscriptionId, version: int) -> None:
        if id not in self.graves and len(self.graves) >= GRAVES_MAX:
            self.graves.popitem(last=False)
        self.graves[id] = max(version, self.graves.get(id, 0))
        self.copies.pop(id, None)


def _parts(owned: OwnedZone) -> list[tuple[SubscriptionRecord, ...]]:
    return in_parts([kept.record for kept in owned.records.values()])
