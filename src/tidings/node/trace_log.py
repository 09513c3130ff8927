"""The trace log: what this node did with recent events, to answer where an event went and why.

It records attribute names only, never values: an operator may see all of it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tidings.node.effects import BatchDelivery, EventBatch
from tidings.node.type_registry import CONTROL
from tidings.overlay import EventId, NodeId, Packet, SubscriptionId, View

if TYPE_CHECKING:
    from tidings.node.local_delivery import LocalSubscription

SENDS_MAX = 64  # Recorded of one event; a hub sends to more, all alike.
DELIVERED_MAX = 1024  # Recorded deliveries of one event.


@dataclass(frozen=True, slots=True)
class TraceHop:
    """One event at one node."""

    event: EventId
    type: str
    at: float
    came_from: NodeId
    """Empty where it was published here."""
    readable: tuple[str, ...]
    hidden: tuple[str, ...]
    opaque: bool
    """Whether even the names of the attributes are sealed to this node."""
    sent: tuple[tuple[NodeId, tuple[str, ...]], ...]
    """The neighbours it went to, and the attributes that went in clear beside the sealed ones."""
    delivered: tuple[tuple[SubscriptionId, str], ...]
    """The subscriptions it was delivered to, and their clients."""
    copies: int
    refused: str
    """Why it was delivered to nobody here; empty if nothing was wrong with it."""

    def why(self, one: LocalSubscription) -> str:
        """Why the event was delivered to a subscription to its type, or why not."""
        if any(id == one.id for id, _ in self.delivered):
            return f"delivered: {one.condition.text}"
        if self.refused:
            return self.refused
        unread = [name for name in one.attributes if name in self.hidden or self.opaque]
        return f"key: this broker cannot read {', '.join(unread)}" if unread else f"not TRUE: {one.condition.text}"


class TraceObserver(Protocol):
    """Hears of what the trace log records, as it happens; the driver makes spans of it."""

    def arrived(self, event: EventId, type: str, came_from: NodeId) -> None: ...

    def sent(self, event: EventId, to: NodeId) -> None: ...

    def delivered(self, event: EventId, type: str, subscription: SubscriptionId, client: str) -> None: ...


class _Entry:
    """What is recorded as it happens; a TraceHop is made from it on request."""

    __slots__ = ("at", "came_from", "copies", "delivered", "is_accepted", "refused", "sent", "type", "view")

    def __init__(self, type: str, at: float, came_from: NodeId, view: View) -> None:
        self.type, self.at, self.came_from, self.view = type, at, came_from, view
        self.copies, self.refused, self.is_accepted = 1, "", False
        self.sent: list[tuple[NodeId, tuple[str, ...]]] | None = None
        self.delivered: list[tuple[SubscriptionId, str]] | None = None


class _BatchEntry:
    """Events that were published here together; what is told of one is made on request."""

    __slots__ = ("at", "batch", "deliveries")

    def __init__(self, batch: EventBatch, at: float, deliveries: Sequence[BatchDelivery]) -> None:
        self.batch, self.at, self.deliveries = batch, at, deliveries

    def delivered(self, row: int) -> list[tuple[SubscriptionId, str]]:
        found: list[tuple[SubscriptionId, str]] = []
        for each in self.deliveries:
            begin, end = bisect_left(each.rows, row), bisect_right(each.rows, row)
            found += ((subscription, each.client) for subscription in each.subscriptions[begin:end])
        return found[:DELIVERED_MAX]


class TraceLog:
    """The last `at_most` events; with 0, none."""

    def __init__(self, at_most: int) -> None:
        self.at_most = at_most
        self.observer: TraceObserver | None = None
        self._entries: OrderedDict[EventId, _Entry] = OrderedDict()  # A dict finds its oldest entry slowly.
        self._batches: deque[_BatchEntry] = deque()
        self._batched = 0  # Events in them.

    def arrived(self, packet: Packet, came_from: NodeId, at: float) -> None:
        """An event has arrived, or was published here (`came_from` is empty); further copies are only counted."""
        header = packet.header
        if not self.at_most or header.type.startswith(CONTROL):
            return
        entries = self._entries
        known = entries.get(header.id)
        if known is not None:
            known.copies += 1
            return
        if len(entries) + self._batched >= self.at_most:
            self._forget_oldest()
        entries[header.id] = _Entry(header.type, at, came_from, packet.view)
        if self.observer is not None:
            self.observer.arrived(header.id, header.type, came_from)

    def published(self, batch: EventBatch, deliveries: Sequence[BatchDelivery], at: float) -> None:
        """Events were published here together, and delivered."""
        if not self.at_most:
            return
        self._batches.append(_BatchEntry(batch, at, deliveries))
        self._batched += len(batch)
        while len(self._entries) + self._batched > self.at_most and len(self._entries) + len(self._batches) > 1:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        oldest = next(iter(self._entries.values()), None)
        if self._batches and (oldest is None or self._batches[0].at <= oldest.at):
            self._batched -= len(self._batches.popleft().batch)
        else:
            self._entries.popitem(last=False)

    def delivered_straight(self, packet: Packet, at: float, deliveries: Sequence[tuple[SubscriptionId, str]]) -> None:
        """An event was delivered that came straight from its origin; if it is news here, that is where it came from."""
        if deliveries and packet.header.id not in self._entries:
            self.arrived(packet, packet.header.id.origin, at)
            self.accepted(packet.header.id)
            for subscription, client in deliveries:
                self.delivered(packet.header.id, subscription, client)

    def sent(self, event: EventId, to: NodeId, in_clear: tuple[str, ...]) -> None:
        entry = self._entries.get(event)
        if entry is not None:
            entry.sent = entry.sent or []
            if len(entry.sent) < SENDS_MAX:
                entry.sent.append((to, in_clear))
                if self.observer is not None:
                    self.observer.sent(event, to)

    def delivered(self, event: EventId, subscription: SubscriptionId, client: str) -> None:
        entry = self._entries.get(event)
        if entry is not None:
            entry.delivered = entry.delivered or []
            if len(entry.delivered) < DELIVERED_MAX:
                entry.delivered.append((subscription, client))
                if self.observer is not None:
                    self.observer.delivered(event, entry.type, subscription, client)

    def accepted(self, event: EventId) -> None:
        """An event proved genuine and new; what is wrong with further copies says nothing about it."""
        entry = self._entries.get(event)
        if entry is not None:
            entry.is_accepted, entry.refused = True, ""

    def refused(self, event: EventId, why: str) -> None:
        entry = self._entries.get(event)
        if entry is not None and not entry.is_accepted:
            entry.refused = why

    def view(self, event: EventId) -> View | None:
        """What this node could read of the event; it must not leave the node."""
        entry = self._entries.get(event)
        if entry is not None:
            return entry.view
        found = self._in_batch(event)
        return View(dict(found[0].batch.values[found[1]])) if found is not None else None

    def get(self, event: EventId) -> TraceHop | None:
        entry = self._entries.get(event)
        if entry is None:
            return self._get_of_batch(event)
        view = entry.view
        sent, delivered = tuple(entry.sent or ()), tuple(entry.delivered or ())
        return TraceHop(
            event,
            entry.type,
            entry.at,
            entry.came_from,
            tuple(view.values),
            view.hidden,
            view.opaque,
            sent,
            delivered,
            entry.copies,
            entry.refused,
        )

    def _in_batch(self, event: EventId) -> tuple[_BatchEntry, int] | None:
        for entry in self._batches:
            if (row := entry.batch.ids.row_of(event)) >= 0:
                return entry, row
        return None

    def _get_of_batch(self, event: EventId) -> TraceHop | None:
        found = self._in_batch(event)
        if found is None:
            return None
        entry, row = found
        readable, delivered = tuple(entry.batch.values[row]), tuple(entry.delivered(row))
        return TraceHop(event, entry.batch.type, entry.at, "", readable, (), False, (), delivered, 1, "")

    def __len__(self) -> int:
        return len(self._entries) + self._batched
