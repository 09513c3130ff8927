"""What this node did with recent events, for whoever asks where one went and why.

Names of attributes only, never values: what is told here may be shown to an operator.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from tidings.node.local_subscriptions import LocalSubscription
from tidings.overlay import EventId, NodeId, SubscriptionId, View

SENDS_MAX = 64  # Kept of one event; a hub sends to more, and all of them alike.
TOLD_MAX = 1024  # Likewise of the subscriptions that were told.


@dataclass(frozen=True, slots=True)
class Hop:
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
    """To whom it went, and the attributes that went in clear beside the sealed ones."""
    told: tuple[tuple[SubscriptionId, str], ...]
    """The subscriptions that were told of it, and their clients."""
    copies: int
    refused: str
    """Why nobody here was told, where something was wrong with it."""

    def why(self, one: LocalSubscription) -> str:
        """Why a subscription to the event's type was told of it, or was not."""
        if any(id == one.id for id, _ in self.told):
            return f"told: {one.condition.text}"
        if self.refused:
            return self.refused
        unread = [name for name in one.asks if name in self.hidden or self.opaque]
        return f"key: this broker cannot read {', '.join(unread)}" if unread else f"not TRUE: {one.condition.text}"


class _Noted:
    """What is booked as it happens; a Hop is made of it for whoever asks."""

    __slots__ = ("at", "came_from", "copies", "refused", "sent", "told", "type", "view")

    def __init__(self, type: str, at: float, came_from: NodeId, view: View) -> None:
        self.type, self.at, self.came_from, self.view = type, at, came_from, view
        self.copies, self.refused = 1, ""
        self.sent: list[tuple[NodeId, tuple[str, ...]]] | None = None
        self.told: list[tuple[SubscriptionId, str]] | None = None


class Hops:
    """The last `at_most` events; with 0, none."""

    def __init__(self, at_most: int) -> None:
        self.at_most = at_most
        self._noted: OrderedDict[EventId, _Noted] = OrderedDict()  # A dict finds its oldest entry slowly.

    def came(self, event: EventId, type: str, at: float, came_from: NodeId, view: View) -> None:
        """An event is here; a further copy is only counted."""
        if not self.at_most:
            return
        noted = self._noted
        known = noted.get(event)
        if known is not None:
            known.copies += 1
            return
        if len(noted) >= self.at_most:
            noted.popitem(last=False)
        noted[event] = _Noted(type, at, came_from, view)

    def went(self, event: EventId, to: NodeId, shown: tuple[str, ...]) -> None:
        noted = self._noted.get(event)
        if noted is not None:
            noted.sent = noted.sent or []
            if len(noted.sent) < SENDS_MAX:
                noted.sent.append((to, shown))

    def told(self, event: EventId, subscription: SubscriptionId, client: str) -> None:
        noted = self._noted.get(event)
        if noted is not None:
            noted.told = noted.told or []
            if len(noted.told) < TOLD_MAX:
                noted.told.append((subscription, client))

    def refused(self, event: EventId, why: str) -> None:
        noted = self._noted.get(event)
        if noted is not None:
            noted.refused = why

    def view(self, event: EventId) -> View | None:
        """What this node could read of the event; not to be shown."""
        noted = self._noted.get(event)
        return noted.view if noted is not None else None

    def get(self, event: EventId) -> Hop | None:
        noted = self._noted.get(event)
        if noted is None:
            return None
        view = noted.view
        sent, told = tuple(noted.sent or ()), tuple(noted.told or ())
        return Hop(
            event,
            noted.type,
            noted.at,
            noted.came_from,
            tuple(view.values),
            view.hidden,
            view.opaque,
            sent,
            told,
            noted.copies,
            noted.refused,
        )

    def __len__(self) -> int:
        return len(self._noted)
