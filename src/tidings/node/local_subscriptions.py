"""The subscriptions of this node's own clients: matched exactly, and shown only what each may see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tidings.errors import InputError
from tidings.events import EventType
from tidings.filters import Condition
from tidings.matching import Index
from tidings.node.credentials import Held
from tidings.node.visibility import Seen, Sight
from tidings.overlay import SubscriptionId, View

SUBSCRIPTIONS_MAX = 1_000_000  # Of one node; what the index is measured with.
SETTLED_MAX = 20_000  # Up to here, settling the index takes a tenth of a second or less.
UNSETTLED_MAX = 32  # So many new ones are asked one by one at little cost.


@dataclass(slots=True, eq=False)
class LocalSubscription:
    """One subscription of a client."""

    id: SubscriptionId
    client: str
    type: str
    condition: Condition
    sight: Sight | None = None
    """What the client may see, where the type asks for rights."""
    seen: Seen | None = None
    """What that came to when it was last looked at."""
    told_by: Held | None = None
    """The broker's own right by which the overlay was told, where that takes one."""
    stable: bool = False
    version: int = 0
    _asks: tuple[str, ...] | None = field(default=None, init=False, repr=False)

    @property
    def asks(self) -> tuple[str, ...]:
        """The attributes that the condition names; for an answer they must be readable, and the client may see them."""
        if self._asks is None:
            self._asks = self.condition.attributes
        return self._asks

    def look(self, seen: Seen) -> bool:
        """Takes up what may be seen now; False, and nothing has changed, where the condition asks for more."""
        if not seen.answers(self.asks):
            return False
        self.seen = seen
        return True

    def refusal(self, view: View) -> str:
        """Why an event is not shown, wanted or not, by the rights last looked at; empty if it is where it is wanted."""
        if unread := self.unread(view):
            return f"key: this broker cannot read {', '.join(unread)}"
        names = self.seen.names(view) if self.seen is not None else frozenset(self.asks)
        if names is None or not names.issuperset(self.asks):
            return "constraints: the event is outside what the rights are for"
        return ""

    def unread(self, view: View) -> list[str]:
        """What the condition asks for and this broker cannot tell."""
        return [name for name in self.asks if view.unknown(name)] if view.hidden or view.opaque else []


class LocalSubscriptions:
    """All of one event type."""

    def __init__(self, event_type: EventType) -> None:
        self.event_type = event_type
        self._index = Index(event_type)
        self._by_name: dict[str, LocalSubscription] = {}
        self._new = self._asked = 0

    def add(self, new: LocalSubscription) -> None:
        """Takes a subscription up, in place of the one with the same id."""
        if len(self._by_name) >= SUBSCRIPTIONS_MAX:
            raise InputError(f"this node has {SUBSCRIPTIONS_MAX} subscriptions of {self.event_type.name} already")
        self._index.add(_name(new.id), new.condition)
        self._by_name[_name(new.id)] = new
        self._new, self._asked = self._new + 1, 0

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
        """Those that want the event, as far as this broker can tell; whether they may have it is still to be asked.

        Raises EventError for values that do not fit the type.
        """
        if not self._by_name:
            return []
        if self._new > UNSETTLED_MAX:
            self._settle()
        if view.hidden or view.opaque:  # Opened by this node and so of the right types; some may be missing.
            names = self._index.match_values(view.values)
        else:
            names = self._index.match(view.values)
        if not names:
            return []
        found = [self._by_name[name] for name in names]
        return [one for one in found if not one.unread(view)] if view.hidden or view.opaque else found

    def _settle(self) -> None:
        """Settles the index once no more subscriptions seem to come: while they do, each would undo the work."""
        self._asked += 1
        if self._asked > len(self._by_name) // 100 and len(self._by_name) <= SETTLED_MAX:
            self._index.settle()
            self._new = 0


def _name(id: SubscriptionId) -> str:
    return f"{id.incarnation}/{id.seq}"
