"""Local delivery: the subscriptions of this node's clients, and the events that match them.

An event of a sealed type must be fresh, new, and opened with every key that this node should have; where signatures
are required, a broker with the right to publish must have signed it. An event whose key or publisher's right is still
missing waits, for as long as an event may be late. Then the index finds the subscriptions whose condition is TRUE,
and each client gets the attributes that it may see (see `client_authorization`).
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidings.errors import ErrorCode, EventError, InputError, PeerError
from tidings.events import EventType, Value
from tidings.filters import Condition
from tidings.matching import Index
from tidings.node.client_authorization import Visibility, VisibleAttributes
from tidings.node.credentials import HeldToken
from tidings.node.effects import BatchDelivery, Delivery, Ended, EventBatch, NodeEffect
from tidings.node.trace_log import TraceLog
from tidings.node.trust_boundary import TrustBoundary
from tidings.node.type_crypto import TypeCrypto, UnknownPublisher, sealed_by
from tidings.node.type_registry import RegisteredType, TypeRegistry
from tidings.overlay import Count, EventId, NodeId, Packet, SubscriptionId, View
from tidings.security import Frame, UnknownEpoch

SUBSCRIPTIONS_MAX = 1_000_000  # Of one type at one node; the size that the index is measured with.
SETTLED_MAX = 20_000  # Up to here, compacting the index takes a tenth of a second or less.
UNSETTLED_MAX = 32  # So many uncompacted ones cost little to match one by one.
WAITING_MAX = 4096  # Events that wait for a key; beyond this the oldest are dropped.
DELIVERED_MAX = 131_072  # Open events that were delivered, remembered by their id: half a minute of 4,000 a second.
WAITS_FOR_KEY, WAITS_FOR_PUBLISHER = Count("waiting_for_key"), Count("waiting_for_publisher")
_WAITS = (WAITS_FOR_KEY, WAITS_FOR_PUBLISHER)


@dataclass(slots=True, eq=False)
class LocalSubscription:
    """One subscription of a client of this node."""

    id: SubscriptionId
    client: str
    type: str
    condition: Condition
    visibility: Visibility | None = None
    """What the client may see; None for an open type."""
    visible: VisibleAttributes | None = None
    """What `visibility` gave when it was last asked."""
    advertised_under: HeldToken | None = None
    """The broker's own right under which it advertised the interest; None for a type that is not sealed."""
    in_place: bool = False
    """Whether the overlay has confirmed it."""
    version: int = 0
    """How often it was sealed."""
    since: float = -math.inf
    """When it was made: an event that comes straight from its origin, and was published before, is not for it."""
    _attributes: tuple[str, ...] | None = field(default=None, init=False, repr=False)

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes that the condition names: the broker must be able to read them, and the client to see them."""
        if self._attributes is None:
            self._attributes = self.condition.attributes
        return self._attributes

    def still_permitted(self, now_ms: int) -> bool:
        """Whether the client may still name these attributes; refreshes `visible`."""
        if self.visibility is None:
            return True
        visible = self.visibility.at(now_ms)
        if visible is not self.visible:
            if not visible.permits(self.attributes):
                return False
            self.visible = visible
        return True

    def end(self, now_ms: int) -> Ended:
        """The effect that ends it, because the client may no longer see what the condition names."""
        assert self.visibility is not None
        return Ended(self.id, self.client, self.visibility.refusal(self.attributes, now_ms))

    def refusal(self, view: View) -> str:
        """Why rights or keys keep this event from the client, whether it matches or not; empty if they do not."""
        if unread := self.unread(view):
            return f"key: this broker cannot read {', '.join(unread)}"
        names = self.visible.names(view) if self.visible is not None else frozenset(self.attributes)
        if names is None or not names.issuperset(self.attributes):
            return "constraints: the event is outside what the rights are for"
        return ""

    def unread(self, view: View) -> list[str]:
        """The attributes of the condition that this broker cannot read."""
        return [name for name in self.attributes if view.unknown(name)] if view.hidden or view.opaque else []


class LocalSubscriptions:
    """All local subscriptions of one event type, in an index."""

    def __init__(self, event_type: EventType) -> None:
        self.event_type = event_type
        self._index = Index(event_type)
        self._by_name: dict[str, LocalSubscription] = {}
        self._new = self._matched = 0

    def add(self, new: LocalSubscription) -> None:
        """Add a subscription; it replaces one with the same id."""
        if len(self._by_name) >= SUBSCRIPTIONS_MAX:
            raise InputError(f"this node has {SUBSCRIPTIONS_MAX} subscriptions of {self.event_type.name} already")
        self._index.add(_name(new.id), new.condition)
        self._by_name[_name(new.id)] = new
        self._new, self._matched = self._new + 1, 0

    def remove(self, id: SubscriptionId) -> LocalSubscription | None:
        gone = self._by_name.pop(_name(id), None)
        if gone is not None:
            self._index.remove(_name(id))
        return gone

    def get(self, id: SubscriptionId) -> LocalSubscription | None:
        return self._by_name.get(_name(id))

    def all(self) -> Iterable[LocalSubscription]:
        return tuple(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def match(self, view: View) -> list[LocalSubscription]:
        """The subscriptions whose condition is TRUE; whether their clients may see the event is not checked here.

        Raises EventError for values that do not fit the type.
        """
        if not self._by_name:
            return []
        if self._new > UNSETTLED_MAX:
            self._settle()
        if view.hidden or view.opaque:  # Opened by this node, so the types are right; some may be missing.
            names = self._index.match_values(view.values)
        else:
            names = self._index.match(view.values)
        if not names:
            return []
        found = [self._by_name[name] for name in names]
        return [one for one in found if not one.unread(view)] if view.hidden or view.opaque else found

    def match_rows(self, rows: pa.RecordBatch) -> list[tuple[int, LocalSubscription]]:
        """The same for each row of conformed events, in the order of rows."""
        if not self._by_name:
            return []
        if self._new > UNSETTLED_MAX:
            self._settle()
        found = self._index.match_numbers(rows)
        order = np.argsort(found.events, kind="stable")
        numbers, codes = np.unique(found.numbers[order], return_inverse=True)
        ones = [self._by_name[name] for name in found.ids.take(pa.array(numbers)).to_pylist()]
        return [(row, ones[code]) for row, code in zip(found.events[order].tolist(), codes.tolist())]

    def _settle(self) -> None:
        """Compact the index once subscriptions stop coming: until then each new one would undo the work."""
        self._matched += 1
        if self._matched > len(self._by_name) // 100 and len(self._by_name) <= SETTLED_MAX:
            self._index.settle()
            self._new = 0


# ── Delivery ──


class _Waiting(NamedTuple):
    until_ms: int
    packet: Packet
    came_from: NodeId


class DeliveredIds:
    """The last open events that were delivered here, whichever way they came."""

    def __init__(self, at_most: int = DELIVERED_MAX) -> None:
        self._at: OrderedDict[EventId, float] = OrderedDict()
        self._at_most, self._forgotten_to = at_most, -math.inf

    def add(self, id: EventId, now: float) -> None:
        self._at[id] = now
        if len(self._at) > self._at_most:
            _, self._forgotten_to = self._at.popitem(last=False)

    def may_hold(self, id: EventId, published_at: float) -> bool:
        """Whether an event published at a moment was delivered, or so long ago that it may have been forgotten."""
        return id in self._at or published_at <= self._forgotten_to

    def __len__(self) -> int:
        return len(self._at)


class LocalDelivery:
    """Delivers events to the clients of one node."""

    def __init__(
        self, types: TypeRegistry, boundary: TrustBoundary, trace: TraceLog, *, need_signatures: bool = False
    ) -> None:
        """`need_signatures`: also of events that are not sealed, unless their type does without."""
        self._types, self._boundary, self._trace, self._need_signatures = types, boundary, trace, need_signatures
        self._waiting: deque[_Waiting] = deque(maxlen=WAITING_MAX)
        self._delivered = DeliveredIds()
        self._now = 0.0

    def deliver(
        self, packet: Packet, now_ms: int, came_from: NodeId, now: float, published_at: float = math.inf
    ) -> list[NodeEffect]:
        """Deliveries of an event; Ended for each matching subscription whose right has expired, for the node to drop.

        Each event is delivered once, whichever way it comes first. `published_at` is when an event was published that
        its origin has sent straight: it is for the subscriptions that were there then.
        """
        self._now = now
        known, id = self._types.get(packet.header.type), packet.header.id
        if known is None or not len(known.local):
            return []
        if known.keys is None:
            if self._delivered.may_hold(id, published_at):
                return []
        elif (refused := self._refusal(known.keys, packet, now_ms, came_from)) is not None:
            return [refused]
        done = self._matches(known, packet, now_ms, came_from, published_at)
        if known.keys is None and any(each.__class__ is Delivery for each in done):
            self._delivered.add(id, now)
        return done

    def deliver_batch(
        self, known: RegisteredType, batch: EventBatch, now_ms: int
    ) -> tuple[list[BatchDelivery], list[Ended]]:
        """Deliveries of events that were published here, of a type that is not sealed; by client and by what it may see."""
        ended: dict[SubscriptionId, Ended | None] = {}
        groups: dict[tuple[str, frozenset[str] | None], tuple[list[int], list[SubscriptionId]]] = {}
        projections: dict[tuple[VisibleAttributes, int], frozenset[str] | None] = {}
        for row, one in known.local.match_rows(batch.rows):
            names = None
            if one.visibility is not None:
                if one.id not in ended:
                    ended[one.id] = None if one.still_permitted(now_ms) else one.end(now_ms)
                if ended[one.id] is not None:
                    continue
                visible = one.visible
                assert visible is not None
                if not visible.is_all:
                    key = visible, row if visible.depends_on_values else -1
                    if key not in projections:
                        projections[key] = visible.names(View(batch.values[row]))
                    names = projections[key]
                    if names is None or not names.issuperset(one.attributes):
                        continue
            group = groups.get((one.client, names))
            if group is None:
                group = groups[one.client, names] = ([], [])
            group[0].append(row)
            group[1].append(one.id)
        deliveries = [BatchDelivery(client, batch, names, *pairs) for (client, names), pairs in groups.items()]
        return deliveries, [each for each in ended.values() if each is not None]

    def deliver_stored(self, packet: Packet, now_ms: int) -> list[NodeEffect]:
        """Deliveries of an event that is due, whether or not it was seen before and however old it is.

        Raises UnknownEpoch or UnknownPublisher if a key or a right has not come yet, PeerError if the event is not
        genuine.
        """
        known = self._types.get(packet.header.type)
        if known is None:
            return []
        if known.keys is not None:
            known.keys.check_joined(packet.view)
            self._check_genuine(known.keys, packet, self._boundary.frame_of(packet), now_ms)
        return self._matches(known, packet, now_ms, "")

    def retry(self, now_ms: int) -> list[NodeEffect]:
        """Keys have come, or time has passed: try the waiting events again."""
        if not self._waiting:
            return []
        waiting, self._waiting = self._waiting, deque(maxlen=WAITING_MAX)
        done: list[NodeEffect] = []
        for one in waiting:
            if one.until_ms <= now_ms:
                done.append(Count("undelivered_key"))
                continue
            try:
                opened = self._boundary.open_packet("", one.packet, now_ms)
            except PeerError as refused:
                done.append(self._undelivered(one.packet, str(refused), refused.code))
            else:
                again = self.deliver(opened, now_ms, one.came_from, self._now)
                done += [each for each in again if each not in _WAITS]
        return done

    def __len__(self) -> int:
        """How many events wait for a key."""
        return len(self._waiting)

    def _refusal(self, keys: TypeCrypto, packet: Packet, now_ms: int, came_from: NodeId) -> Count | None:
        frame = self._boundary.frame_of(packet)
        moment = (frame.type_id, sealed_by(packet.header.id), frame.ts_ms, frame.seq, now_ms)
        try:
            self._check_genuine(keys, packet, frame, now_ms)
            keys.replay.check(*moment)
            if packet.view.values:  # An event that cannot be read is not authenticated.
                keys.replay.accept(*moment)
                self._trace.accepted(packet.header.id)
        except (UnknownEpoch, UnknownPublisher) as missing:
            late_ms = keys.signed.grace_ms + keys.keyring.delay_ms
            self._waiting.append(_Waiting(frame.ts_ms + late_ms, packet, came_from))
            return WAITS_FOR_KEY if isinstance(missing, UnknownEpoch) else WAITS_FOR_PUBLISHER
        except PeerError as refused:
            return self._undelivered(packet, str(refused), refused.code)
        return None

    def _check_genuine(self, keys: TypeCrypto, packet: Packet, frame: Frame, now_ms: int) -> None:
        if packet.view.hidden or packet.view.opaque:
            keys.check_keys(frame, now_ms)
        if keys.need_signatures:
            keys.check_publisher(frame, now_ms, self._boundary.signer_of(packet, frame))

    def _matches(
        self,
        known: RegisteredType,
        packet: Packet,
        now_ms: int,
        came_from: NodeId,
        published_at: float = math.inf,
    ) -> list[NodeEffect]:
        try:
            found = known.local.match(packet.view)
        except EventError as wrong:
            return [self._undelivered(packet, f"event: {wrong}", wrong.code)]
        if found and known.keys is None and self._need_signatures and not known.is_unsigned:
            try:
                self._boundary.check_origin(packet)
            except PeerError as forged:
                return [self._undelivered(packet, str(forged), forged.code)]
        done: list[NodeEffect] = []
        id, view, name = packet.header.id, packet.view, known.event_type.name
        projections: dict[VisibleAttributes, tuple[frozenset[str] | None, dict[str, Value]]] = {}
        for one in found:
            if one.since > published_at:
                continue
            shown = view.values
            if one.visibility is not None:
                if not one.still_permitted(now_ms):
                    done.append(one.end(now_ms))
                    continue
                visible = one.visible
                assert visible is not None
                if not visible.is_all:
                    if visible not in projections:  # Shared by the subscriptions of one client.
                        projections[visible] = visible.project(view)
                    names, shown = projections[visible]
                    if names is None or not names.issuperset(one.attributes):
                        continue
            self._trace.delivered(id, one.id, one.client)
            done.append(Delivery(one.id, one.client, id, name, shown, came_from))
        return done

    def _undelivered(self, packet: Packet, why: str, code: ErrorCode) -> Count:
        self._trace.refused(packet.header.id, why)
        return Count(f"undelivered_{code}")


def _name(id: SubscriptionId) -> str:
    return f"{id.incarnation}/{id.seq}"
