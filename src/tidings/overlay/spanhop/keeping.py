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
from tidings.overlay.spanhop.messages import Copies, Recopied, Record, in_parts
from tidings.overlay.spanhop.quantisation import Axes
from tidings.overlay.spanhop.zone_ownership import RECORDS_MAX, Atlas, Held, Kept
from tidings.space import Path, sibling

LEASE_S = 120.0  # How long a zone keeps a subscription that nobody plants again.
COPIES_MAX = 65_536  # Records kept for neighbours.
GRAVES_MAX = 65_536  # Subscriptions taken back, remembered in case an old word about them comes late.


class Keeper:
    """The records of one broker."""

    def __init__(self, atlas: Atlas, axes: Axes, *, copies: bool) -> None:
        self._atlas, self._axes, self._has_copies = atlas, axes, copies
        self.copies: dict[SubscriptionId, Kept] = {}
        self.graves: OrderedDict[SubscriptionId, int] = OrderedDict()
        self._copied_to: dict[Path, NodeId] = {}

    def keep(self, held: Held, record: Record, now: float) -> bool:
        """Keep a record in a zone unless a later one is known; whether it was news."""
        id = record.interest.id
        known = held.records.get(id)
        if max(known.record.version if known else 0, self.graves.get(id, 0)) > record.version:
            return False
        if record.gone:
            self._bury(id, record.version)
            return held.records.pop(id, None) is not None
        if self.graves.get(id) == record.version or (known is None and len(held.records) >= RECORDS_MAX):
            return False
        held.records[id] = self._kept(record, now)
        return known is None or known.record.version < record.version

    def take(self, records: Iterable[Record], now: float) -> None:
        """Keep records in whichever zones held here they touch."""
        for record in records:
            kept = self._kept(record, now)
            for held in self._atlas.held.values():
                if kept.touches(held.zone):
                    self.keep(held, record, now)

    def expire(self, now: float) -> None:
        """Forget what nobody plants any more."""
        for held in self._atlas.held.values():
            for id in [id for id, kept in held.records.items() if kept.until < now]:
                del held.records[id]
        for id in [id for id, kept in self.copies.items() if kept.until < now]:
            del self.copies[id]

    # ── Copies ───────────────────────────────────────────────────────────────

    def copy(self, held: Held, record: Record) -> list[Effect]:
        """A copy of one record to whoever keeps copies for this zone."""
        to = self._copier(held)
        return [Send(to, Copies(held.path, (record,)))] if to is not None else []

    def copy_anew(self) -> list[Effect]:
        """Whoever has become the keeper of a copy gets all of it."""
        effects: list[Effect] = []
        self._copied_to = {path: to for path, to in self._copied_to.items() if path in self._atlas.held}
        for held in self._atlas.held.values():
            to = self._copier(held)
            if to is not None and self._copied_to.get(held.path) != to:
                self._copied_to[held.path] = to
                effects += [Send(to, Copies(held.path, part)) for part in _parts(held)]
        return effects

    def copy_again(self) -> list[Effect]:
        """All copies once more, on schedule."""
        effects: list[Effect] = []
        for held in self._atlas.held.values():
            to = self._copier(held)
            effects += [Send(to, Recopied(held.path, part)) for part in _parts(held)] if to is not None else []
        return effects

    def keep_copies(self, records: Iterable[Record], now: float) -> None:
        """Keep what a neighbour's zone keeps, for the case that it dies."""
        for record in records:
            id = record.interest.id
            if record.gone or self.graves.get(id, 0) >= record.version:
                self._bury(id, record.version)
            elif id in self.copies or len(self.copies) < COPIES_MAX:
                self.copies[id] = self._kept(record, now)

    def fill(self, held: Held, now: float) -> None:
        """Give a zone taken over from a neighbour what was copied of it."""
        for kept in list(self.copies.values()):
            if kept.touches(held.zone):
                self.keep(held, kept.record, now)

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"copies": (len(self.copies), COPIES_MAX), "graves": (len(self.graves), GRAVES_MAX)}

    def _copier(self, held: Held) -> NodeId | None:
        """Who keeps a copy: the sibling's holder, or the neighbour with the smallest id."""
        if not self._has_copies:
            return None
        owner = self._atlas.owner_of(sibling(held.path)) if held.path else None
        return owner.id if owner is not None else min(self._atlas.cards, default=None)

    def _kept(self, record: Record, now: float) -> Kept:
        return Kept(record, self._axes.wanted(record.interest.wanted), now + LEASE_S)

    def _bury(self, id: SubscriptionId, version: int) -> None:
        if id not in self.graves and len(self.graves) >= GRAVES_MAX:
            self.graves.popitem(last=False)
        self.graves[id] = max(version, self.graves.get(id, 0))
        self.copies.pop(id, None)


def _parts(held: Held) -> list[tuple[Record, ...]]:
    return in_parts([kept.record for kept in held.records.values()])
