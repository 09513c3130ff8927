"""The subscriptions of this node's own clients: matched exactly, and shown only what each may see."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tidings.errors import Denied, EventError, InputError
from tidings.events import EventType, Value
from tidings.filters import Condition
from tidings.matching import Index
from tidings.node.credentials import Held
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
    held: Held | None = None
    """The client's right, where the type asks for one."""
    shown: frozenset[str] | None = None
    """The attributes that both the client and this broker may see; None for all."""
    constraints: tuple[Condition, ...] = ()
    stable: bool = False
    version: int = 0

    @property
    def asks(self) -> tuple[str, ...]:
        """The attributes that must be readable for an answer."""
        named = (name for condition in (self.condition, *self.constraints) for name in condition.attributes)
        return tuple(dict.fromkeys(named))

    def shows(self, values: dict[str, Value]) -> dict[str, Value]:
        """Of `values`, what the client may see."""
        if self.shown is None:
            return values
        return {name: value for name, value in values.items() if name in self.shown}

    def refusal(self, view: View) -> str:
        """Why a matching event is not shown all the same; empty if it is."""
        unread = [name for name in self.asks if view.unknown(name)] if view.hidden or view.opaque else []
        if unread:
            return f"key: this broker cannot read {', '.join(unread)}"
        if not all(condition.matches(view.values) for condition in self.constraints):
            return "constraints: the event is outside what the right is for"
        return ""


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
        """Those that want the event and may have it, as far as this broker can tell.

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
        return [one for one in found if not one.refusal(view)] if _needs_asking(found, view) else found

    def _settle(self) -> None:
        """Settles the index once no more subscriptions seem to come: while they do, each would undo the work."""
        self._asked += 1
        if self._asked > len(self._by_name) // 100 and len(self._by_name) <= SETTLED_MAX:
            self._index.settle()
            self._new = 0

    def why(self, id: SubscriptionId, view: View) -> str:
        """Why the event matches a subscription, or does not."""
        one = self._by_name.get(_name(id))
        if one is None:
            return "subscription: not of this node"
        if refusal := one.refusal(view):
            return refusal
        try:
            explained = self._index.explain(dict(view.values), _name(id))
        except EventError as wrong:
            return f"event: does not fit its type: {wrong}"
        return str(explained)


def _needs_asking(found: list[LocalSubscription], view: View) -> bool:
    return bool(view.hidden) or view.opaque or any(one.constraints for one in found)


def _name(id: SubscriptionId) -> str:
    return f"{id.incarnation}/{id.seq}"


def constraints_of(held: Held, event_type: EventType, readable: Mapping[str, object]) -> tuple[Condition, ...]:
    """The value constraints of a right; raises Denied where one is on an attribute that this broker cannot read."""
    found = held.right.conditions(event_type)
    for condition in found:
        if unread := [name for name in condition.attributes if name not in readable]:
            raise Denied(f"constraints: on {', '.join(unread)}, which this broker may not read")
    return found
