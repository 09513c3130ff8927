"""What a client may see of the events of one type: all its rights together, and beside them all its broker's.

Rights add up, event by event. A right counts for the events that meet every one of its own conditions, and of
such an event its holder may see what any right is for that counts. A client sees what both it and its broker may
see. A condition is answered for events of which both may see every attribute that it names: whether an event
comes must not tell what may not be seen.

    which rights hold        worked out when one begins, ends or is revoked, not for each event
    which of them count      asked of each event, and only where rights with conditions show more than those without

A right whose conditions cannot be checked, because they do not fit the type or are on what this broker may not
read, counts for no event.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import reduce
from operator import or_
from typing import NamedTuple

from tidings.errors import Denied
from tidings.events import Value
from tidings.filters import Condition
from tidings.node.credentials import Credentials, Held, Truth, window
from tidings.overlay import View
from tidings.security import AccessRequest, Right, SignedType

NAMED_MAX = 5  # Attributes that a refusal names.
_OWN = " (this broker's own right)"


class Part(NamedTuple):
    """What one right with conditions is for, and the conditions that an event must meet for it to count."""

    shows: frozenset[str]
    conditions: tuple[Condition, ...]
    asks: tuple[str, ...]
    """The attributes that the conditions are on."""

    def counts_for(self, view: View) -> bool:
        """Whether the event meets them all; no, where this broker cannot tell."""
        if (view.hidden or view.opaque) and any(view.unknown(name) for name in self.asks):
            return False
        return all(condition.matches(view.values) for condition in self.conditions)


class Reach(NamedTuple):
    """What the rights of one key come to that hold at one time."""

    always: frozenset[str] | None
    """What those without conditions are for; None where there is none."""
    parts: tuple[Part, ...]
    """Those with conditions that show something more."""

    def of(self, view: View) -> frozenset[str] | None:
        """What may be seen of one event; None if no right counts for it."""
        found = self.always
        for part in self.parts:
            if part.counts_for(view):
                found = part.shows if found is None else found | part.shows
        return found

    def ever(self) -> frozenset[str] | None:
        """What may be seen of any event at all; None if no right holds."""
        return _together(self.always, (part.shows for part in self.parts))

    def within(self, readable: frozenset[str]) -> Reach:
        """What is left where only conditions on these attributes can be checked."""
        if all(readable.issuperset(part.asks) for part in self.parts):
            return self
        return Reach(self.always, tuple(part for part in self.parts if readable.issuperset(part.asks)))


class Seen:
    """What one client may see at one time; compared by being the same."""

    __slots__ = ("_count", "_mine", "_theirs", "ever", "is_all", "mine", "theirs")

    def __init__(self, theirs: Reach, mine: Reach, every: frozenset[str]) -> None:
        """From the rights of the client and of the broker; `every` attribute of the type."""
        self._theirs, self._mine, self._count = theirs, mine, len(every)
        readable = mine.ever() or frozenset()
        self.theirs, self.mine = theirs.within(readable), mine.within(readable)
        self.ever = _both(self.theirs.ever(), self.mine.ever())
        self.is_all = self.theirs.always == self.mine.always == every

    def is_from(self, theirs: Reach, mine: Reach) -> bool:
        return self._theirs is theirs and self._mine is mine

    def answers(self, names: Collection[str]) -> bool:
        """Whether a condition on these attributes may be asked: whether each may be seen, of some events."""
        return self.ever is not None and self.ever.issuperset(names)

    def names(self, view: View) -> frozenset[str] | None:
        """What may be seen of one event; None if that there is one may not be known."""
        return _both(self.theirs.of(view), self.mine.of(view))

    def part(self, view: View) -> tuple[frozenset[str] | None, dict[str, Value]]:
        """The same, and the values."""
        names = self.names(view)
        if names is None:
            return None, {}
        if len(names) == self._count:
            return names, view.values
        return names, {name: value for name, value in view.values.items() if name in names}


class Rights:
    """All rights of one key to read the events of one type."""

    # A broker has one of these for each of tens of thousands of clients.
    __slots__ = ("_changes", "_parts", "_reach", "credentials", "signed", "since", "truth", "until")

    def __init__(self, credentials: Credentials, truth: Truth, signed: SignedType) -> None:
        self.credentials, self.truth, self.signed = credentials, truth, signed
        self.since, self.until, self._changes = 0, 0, -1
        self._reach = Reach(None, ())
        self._parts: dict[bytes, Part | str] = {}

    def at(self, now_ms: int) -> Reach:
        """What they come to now, for all of `since` up to `until`: the same object until that changes."""
        changes = self.truth.changes + self.credentials.changes  # Both only grow, so none can make up for the other.
        if changes != self._changes or not self.since <= now_ms < self.until:
            reach = self._work_out(now_ms)
            self._reach = self._reach if reach == self._reach else reach
            self._changes = changes
        return self._reach

    def holding(self, now_ms: int) -> list[Held]:
        """Those that hold now, in the order they were shown."""
        return [held for held in self._to_read() if held.refusal(self.truth, now_ms) is None]

    def refusal(self, missing: Collection[str], now_ms: int) -> str:
        """Why these attributes may not be seen now; without any, why nothing may be."""
        names = list(missing or self.signed.attr_ids)
        ids = {self.signed.attr_ids[name] for name in names}
        near = [held for held in self._to_read() if held.right.attributes is None or ids & held.right.attributes]
        for held in near:
            if why := held.refusal(self.truth, now_ms) or self._unfit(held):
                return why
        if self.holding(now_ms):
            return f"attributes: not for {', '.join(names[:NAMED_MAX])}"
        try:
            self.credentials.right_for(AccessRequest(self.signed.type_id, "subscribe", frozenset(ids)), now_ms)
        except Denied as refused:
            return str(refused)
        raise AssertionError("a right that holds was not found among those that do")

    def _to_read(self) -> list[Held]:
        return [held for held in self.credentials.of(self.signed.type_id) if "subscribe" in held.right.actions]

    def _unfit(self, held: Held) -> str:
        part = self._part(held) if held.right.constraints else ""
        return part if isinstance(part, str) else ""

    def _work_out(self, now_ms: int) -> Reach:
        shown = self._to_read()
        self.since, self.until = window((held.right for held in shown), self.truth, now_ms)
        self._parts = {held.raw: self._parts[held.raw] for held in shown if held.raw in self._parts}
        holding = self.holding(now_ms)
        always = _together(None, (self._names(held.right) for held in holding if not held.right.constraints))
        parts = [self._part(held) for held in holding if held.right.constraints]
        fit = (part for part in parts if isinstance(part, Part))
        return Reach(always, tuple(part for part in fit if always is None or not part.shows <= always))

    def _part(self, held: Held) -> Part | str:
        """A right with conditions, or why nobody can check them. Conditions are read once for each right."""
        if held.raw not in self._parts:
            try:
                conditions = held.right.conditions(self.signed.event_type)
            except Denied as refused:
                self._parts[held.raw] = str(refused)
            else:
                asks = dict.fromkeys(name for condition in conditions for name in condition.attributes)
                self._parts[held.raw] = Part(self._names(held.right), conditions, tuple(asks))
        return self._parts[held.raw]

    def _names(self, right: Right) -> frozenset[str]:
        return frozenset(name for name, id in self.signed.attr_ids.items() if right.covers((id,)))


class Sight:
    """What one client may see of one type for as long as it has a subscription, whatever happens to rights."""

    __slots__ = (
        "_changes",
        "_every",
        "_mine",
        "_my_tokens",
        "_seen",
        "_since",
        "_their_tokens",
        "_theirs",
        "_truth",
        "_until",
    )

    def __init__(self, theirs: Rights, mine: Rights) -> None:
        self._theirs, self._mine, self._truth = theirs, mine, mine.truth
        self._their_tokens, self._my_tokens = theirs.credentials, mine.credentials
        self._every = frozenset(mine.signed.attr_ids)
        self._since, self._until, self._changes = 0, 0, -1
        self._seen = Seen(Reach(None, ()), Reach(None, ()), self._every)

    def at(self, now_ms: int) -> Seen:
        """What may be seen now: the same object until that changes."""
        changes = self._truth.changes + self._their_tokens.changes + self._my_tokens.changes
        if changes == self._changes and self._since <= now_ms < self._until:
            return self._seen
        theirs, mine = self._theirs.at(now_ms), self._mine.at(now_ms)
        if not self._seen.is_from(theirs, mine):
            self._seen = Seen(theirs, mine, self._every)
        self._since = max(self._theirs.since, self._mine.since)
        self._until = min(self._theirs.until, self._mine.until)
        self._changes = changes
        return self._seen

    def refusal(self, names: Collection[str], now_ms: int) -> str:
        """Why a condition on these attributes is not answered now; empty if it is."""
        seen = self.at(now_ms)
        readable = self._mine.at(now_ms).ever() or frozenset()
        for rights, reach, whose in ((self._theirs, seen.theirs, ""), (self._mine, seen.mine, _OWN)):
            ever = reach.ever()
            missing = [name for name in names if ever is None or name not in ever]
            if missing or ever is None:
                return (_unreadable(rights.at(now_ms), missing, readable) or rights.refusal(missing, now_ms)) + whose
        return ""


def _unreadable(reach: Reach, missing: Collection[str], readable: frozenset[str]) -> str:
    """Which conditions cannot be checked, where one of these attributes could be seen otherwise."""
    for part in reach.parts:
        unread = [name for name in part.asks if name not in readable]
        if unread and (not missing or not part.shows.isdisjoint(missing)):
            return f"constraints: on {', '.join(unread)}, which this broker may not read"
    return ""


def _together(first: frozenset[str] | None, others: Iterable[frozenset[str]]) -> frozenset[str] | None:
    found = list(others)
    return reduce(or_, found, first or frozenset()) if found else first


def _both(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return None
    return one if one <= other else one & other
