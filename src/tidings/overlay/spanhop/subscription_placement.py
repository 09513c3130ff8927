"""Subscription placement: each zone that a subscription's boxes touch stores a record of it.

    home      the broker of the subscriber. It sends each box into the space, and knows which parts are stored
    piece     a part of a box on its way. It is split along the K-D tree, so that each zone gets exactly one piece
              and a broker need not know any path but its own
    Stored    a zone tells the home which part of the box it has stored

The home keeps the parts that are still *missing* and after a while sends those again. When
nothing is missing the subscription is complete, whichever brokers failed meanwhile. To
unsubscribe, the home places a tombstone in the same way.

Records are soft state. The home places them again periodically; a zone forgets a record
whose lease has run out. Of two records of one subscription the later version wins, in
whatever order they arrive, and the zone remembers the versions of deleted ones for that. A
zone replicates its records to the neighbour that would take the zone over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from tidings.overlay.crowding import CrowdedTable, Graves
from tidings.overlay.interest import Interest
from tidings.overlay.messages import NodeId, SubscriptionId
from tidings.overlay.router import Asked, Completed, Effect, Failed, Send, WakeAt
from tidings.overlay.spanhop.forwarding import Forwarder, is_box
from tidings.overlay.spanhop.messages import (
    PlaceSubscription,
    ReplicaRefresh,
    ReplicaUpdate,
    Stored,
    SubscriptionRecord,
    in_parts,
)
from tidings.overlay.spanhop.next_hop import RouteHeader
from tidings.overlay.spanhop.quantisation import Quantiser
from tidings.overlay.spanhop.zone_ownership import (
    RECORDS_MAX,
    MembershipState,
    OwnedZone,
    StoredSubscription,
    ZoneTable,
)
from tidings.space import Path, Zone, sibling, siblings

HOME_MAX = 65_536  # Subscriptions of one home.
RETRIES_MAX = 12  # Times that missing parts are sent again, with growing waits: some two minutes.
MISSING_MAX = 4096  # Parts of one subscription; with more than that its boxes are sent as a whole again.
LEASE_S = 120.0  # How long a zone keeps a record that its home does not place again.
REPLICAS_MAX = 65_536  # Records kept for neighbours.
TOMBSTONES_MAX = 65_536  # Deleted subscriptions, remembered in case an old record of them arrives late.


# ── The home's side ──────────────────────────────────────────────────────────


@dataclass(slots=True)
class HomeSubscription:
    """One subscription of this broker. `asked` is what the subscriber waits for, None when that is done."""

    interest: Interest
    boxes: tuple[Zone, ...]
    version: int
    missing: list[Zone]
    asked: Asked | None = "subscribe"
    deleted: bool = False
    tries: int = 0


class HomeSubscriptions:
    """The subscriptions of which this broker is the home. Pure state: it sends nothing."""

    def __init__(self) -> None:
        self.own: dict[SubscriptionId, HomeSubscription] = {}

    def add(self, interest: Interest, boxes: tuple[Zone, ...]) -> HomeSubscription:
        """Add a subscription, or replace the interest of one."""
        before = self.own.get(interest.id)
        own = HomeSubscription(interest, boxes, before.version + 2 if before else 1, list(boxes))
        self.own[interest.id] = own
        return own

    def delete(self, id: SubscriptionId) -> HomeSubscription | None:
        """Begin to delete a subscription; None if there is nothing to do."""
        own = self.own.get(id)
        if own is None or own.deleted:
            return None
        own.deleted, own.asked, own.missing = True, "unsubscribe", list(own.boxes)
        own.version, own.tries = own.version + 1, 0
        return own

    def stored(self, id: SubscriptionId, version: int, part: Zone) -> HomeSubscription | None:
        """A part is stored; returns the subscription if that was the last one missing."""
        own = self.own.get(id)
        if own is None or own.version != version or not own.missing:
            return None
        own.missing = [rest for zone in own.missing for rest in zone.without(part)]
        if len(own.missing) > MISSING_MAX:
            own.missing = list(own.boxes)
        return None if own.missing else own

    def finish(self, own: HomeSubscription) -> Asked | None:
        """Nothing is missing: returns what the subscriber waited for, and forgets a deleted subscription."""
        asked, own.asked = own.asked, None
        if own.deleted:
            self.own.pop(own.interest.id, None)
        return asked


# ── The zone's side ──────────────────────────────────────────────────────────


class SubscriptionStore:
    """The records that a broker keeps: those of its zones, replicas of a neighbour's, and tombstones."""

    def __init__(self, zones: ZoneTable, quantiser: Quantiser, *, replicates: bool) -> None:
        self._zones, self._quantiser, self._replicates = zones, quantiser, replicates
        self.replicas: dict[SubscriptionId, StoredSubscription] = {}
        self.tombstones = Graves(TOMBSTONES_MAX)
        self._replicated_to: dict[Path, NodeId] = {}
        self._crowded = CrowdedTable[SubscriptionId](lambda key: key.origin)

    def store(self, owned: OwnedZone, record: SubscriptionRecord, now: float) -> bool:
        """Store a record in a zone unless a later one is known; whether it changed anything."""
        id = record.interest.id
        known = owned.records.get(id)
        if max(known.record.version if known else 0, self.tombstones.get(id, 0)) > record.version:
            return False
        if record.deleted:
            self._add_tombstone(id, record.version)
            return owned.records.pop(id, None) is not None
        if self.tombstones.get(id) == record.version or (known is None and not self._has_room(owned, id)):
            return False
        owned.records[id] = self._leased(record, now)
        return known is None or known.record.version < record.version

    def _has_room(self, owned: OwnedZone, id: SubscriptionId) -> bool:
        """Whether a zone has a place for one more record; a full one drops one of the home that has most there."""
        if len(owned.records) < RECORDS_MAX:
            return True
        crowding = owned.crowded.one_less_for(id, owned.records)
        if crowding is not None:
            del owned.records[crowding]
        return crowding is not None

    def store_where_touching(self, records: Iterable[SubscriptionRecord], now: float) -> None:
        """Store records in all owned zones that they touch."""
        for record in records:
            stored = self._leased(record, now)
            for owned in self._zones.owned.values():
                if stored.touches(owned.zone):
                    self.store(owned, record, now)

    def expire(self, now: float) -> None:
        """Forget records and replicas whose lease has run out."""
        for owned in self._zones.owned.values():
            for id in [id for id, stored in owned.records.items() if stored.expires_at < now]:
                del owned.records[id]
        for id in [id for id, stored in self.replicas.items() if stored.expires_at < now]:
            del self.replicas[id]

    def replicate(self, owned: OwnedZone, record: SubscriptionRecord) -> list[Effect]:
        """Send one record to the broker that keeps the replica of its zone."""
        to = self._replica_holder(owned)
        return [Send(to, ReplicaUpdate(owned.path, (record,)))] if to is not None else []

    def replicate_to_new_holders(self) -> list[Effect]:
        """Send all records of a zone if another broker keeps its replica now."""
        effects: list[Effect] = []
        self._replicated_to = {path: to for path, to in self._replicated_to.items() if path in self._zones.owned}
        for owned in self._zones.owned.values():
            to = self._replica_holder(owned)
            if to is not None and self._replicated_to.get(owned.path) != to:
                self._replicated_to[owned.path] = to
                effects += [Send(to, ReplicaUpdate(owned.path, part)) for part in _parts(owned)]
        return effects

    def refresh_replicas(self) -> list[Effect]:
        """Send all records to the brokers that keep replicas, periodically."""
        effects: list[Effect] = []
        for owned in self._zones.owned.values():
            to = self._replica_holder(owned)
            effects += [Send(to, ReplicaRefresh(owned.path, part)) for part in _parts(owned)] if to is not None else []
        return effects

    def store_replicas(self, records: Iterable[SubscriptionRecord], now: float) -> None:
        """Keep the records of a neighbour's zone in case the neighbour fails."""
        for record in records:
            id = record.interest.id
            if record.deleted or self.tombstones.get(id, 0) >= record.version:
                self._add_tombstone(id, record.version)
            elif id in self.replicas or self._has_room_for_replica(id):
                self.replicas[id] = self._leased(record, now)

    def _has_room_for_replica(self, id: SubscriptionId) -> bool:
        if len(self.replicas) < REPLICAS_MAX:
            return True
        crowding = self._crowded.one_less_for(id, self.replicas)
        if crowding is not None:
            del self.replicas[crowding]
        return crowding is not None

    def restore(self, owned: OwnedZone, now: float) -> None:
        """Fill a zone that was taken over from a failed neighbour from its replica."""
        for stored in list(self.replicas.values()):
            if stored.touches(owned.zone):
                self.store(owned, stored.record, now)

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"copies": (len(self.replicas), REPLICAS_MAX), "graves": (len(self.tombstones), TOMBSTONES_MAX)}

    def _replica_holder(self, owned: OwnedZone) -> NodeId | None:
        """The broker that keeps the replica: the sibling's owner, else the neighbour with the smallest id."""
        if not self._replicates:
            return None
        owner = self._zones.owner_of(sibling(owned.path)) if owned.path else None
        return owner.id if owner is not None else min(self._zones.neighbours, default=None)

    def _leased(self, record: SubscriptionRecord, now: float) -> StoredSubscription:
        return StoredSubscription(record, self._quantiser.wanted(record.interest.wanted), now + LEASE_S)

    def _add_tombstone(self, id: SubscriptionId, version: int) -> None:
        self.tombstones.add(id, version)
        self.replicas.pop(id, None)


def _parts(owned: OwnedZone) -> list[tuple[SubscriptionRecord, ...]]:
    return in_parts([stored.record for stored in owned.records.values()])


# ── On the way ───────────────────────────────────────────────────────────────


class SubscriptionPlacement:
    """One broker's part in placing subscriptions: as a home, as the owner of a zone, and as a relay."""

    def __init__(
        self,
        zones: ZoneTable,
        quantiser: Quantiser,
        home: HomeSubscriptions,
        store: SubscriptionStore,
        forwarder: Forwarder,
        membership: MembershipState,
        *,
        answer_s: float,
    ) -> None:
        self._zones, self._quantiser, self._home, self._store = zones, quantiser, home, store
        self._forwarder, self._membership, self._answer_s = forwarder, membership, answer_s

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        """Place a subscription; if it replaces one, delete that where only the old boxes reach."""
        if len(self._home.own) >= HOME_MAX:
            return [Failed("subscribe", "too many subscriptions at one broker", interest.id)]
        before = self._home.own.get(interest.id)
        old = list(before.boxes) if before and not before.deleted else []
        own = self._home.add(interest, self._quantiser.wanted(interest.wanted))
        if not self._membership.is_ready:
            return []
        effects: list[Effect] = []
        for box in own.boxes:
            old = [rest for part in old for rest in part.without(box)]
        for part in old:
            tombstone = msgspec.structs.replace(self._record(own), version=own.version - 1, deleted=True)
            effects += self.place(PlaceSubscription(tombstone, part, acknowledge=False), now)
        return [*effects, *self._place_missing(own, now)]

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        """Place a tombstone wherever the subscription is stored."""
        own = self._home.delete(id)
        if own is None:
            return [Completed("unsubscribe", id)]
        return self._place_missing(own, now) if self._zones.owned else self._finish(own)

    def place_all_missing(self, now: float) -> list[Effect]:
        """Place the subscriptions that were made before this broker had joined."""
        owns = [own for own in self._home.own.values() if own.missing]
        return [effect for own in owns for effect in self._place_missing(own, now)]

    def refresh(self, now: float) -> list[Effect]:
        """Place all complete subscriptions again, periodically, for zones that have lost their records."""
        effects: list[Effect] = []
        for own in self._home.own.values():
            record = self._record(own)
            for box in own.boxes if not own.deleted and not own.missing else ():
                effects += self.place(PlaceSubscription(record, box, acknowledge=False), now, reliable=False)
        return effects

    def retry(self, id: SubscriptionId, version: int, tries: int, now: float) -> list[Effect]:
        """Parts of a box have not been stored for a while: send them again."""
        own = self._home.own.get(id)
        if own is None or (own.version, own.tries) != (version, tries) or not own.missing:
            return []
        if own.tries > RETRIES_MAX:
            asked, own.asked = own.asked or "subscribe", None
            return [Failed(asked, "parts of its box do not answer", id)]
        return self._place_missing(own, now) if self._zones.owned else [self._retry_later(own, now)]

    def stored(self, answer: Stored) -> list[Effect]:
        """A zone has stored its part of one of this broker's subscriptions."""
        if not is_box(self._zones.space, answer.part):
            return []
        own = self._home.stored(answer.id, answer.version, answer.part)
        return self._finish(own) if own is not None else []

    def place(
        self, request: PlaceSubscription, now: float, *, route: RouteHeader | None = None, reliable: bool = True
    ) -> list[Effect]:
        """Store a record in an owned zone that its piece touches, and forward the rest, split along the tree."""
        owned, forwarder = self._zones.touching(request.piece), self._forwarder
        if owned is None:
            onward = route or forwarder.route_to(request.piece, None)
            return forwarder.send_on(request, onward, now, reliable=reliable)
        effects = self._store_here(owned, request, now)
        for path in siblings(owned.path):
            part = request.piece.meet(self._zones.space.zone(path))
            if part is not None:
                rest = PlaceSubscription(request.record, part, request.acknowledge)
                effects += self.place(rest, now, route=forwarder.route_to(part, owned), reliable=reliable)
        return effects

    def _record(self, own: HomeSubscription) -> SubscriptionRecord:
        point = next(iter(self._zones.owned.values())).zone.low if self._zones.owned else (0,) * self._zones.space.axes
        return SubscriptionRecord(own.interest, self._zones.me, point, own.version, own.deleted)

    def _place_missing(self, own: HomeSubscription, now: float) -> list[Effect]:
        """Place all that is missing; what lies in an owned zone is stored at once."""
        own.tries += 1
        record = self._record(own)
        effects: list[Effect] = []
        for part in list(own.missing):
            effects += self.place(PlaceSubscription(record, part), now)
        if not own.missing:  # The interest has no boxes, or all of them lie here.
            return [*effects, *self._finish(own)]
        wait_s = self._answer_s * min(2 + own.tries, 10)
        return [*effects, WakeAt(now + wait_s, ("plant", own.interest.id, own.version, own.tries))]

    def _retry_later(self, own: HomeSubscription, now: float) -> Effect:
        own.tries += 1
        return WakeAt(now + 2 * self._answer_s, ("plant", own.interest.id, own.version, own.tries))

    def _finish(self, own: HomeSubscription) -> list[Effect]:
        asked = self._home.finish(own)
        return [Completed(asked, own.interest.id)] if asked is not None else []

    def _store_here(self, owned: OwnedZone, request: PlaceSubscription, now: float) -> list[Effect]:
        """Store a record in a zone, replicate it, and acknowledge it to its home."""
        record = request.record
        part = request.piece.meet(owned.zone)
        assert part is not None
        effects = self._store.replicate(owned, record) if self._store.store(owned, record, now) else []
        if not request.acknowledge:
            return effects
        stored = Stored(record.interest.id, record.version, part)
        if record.home.id == self._zones.me.id:
            return [*effects, *self.stored(stored)]
        return [*effects, Send(record.home.id, stored)]
