"""What clients may do: publish, subscribe, and see of each event what their rights show.

A broker acts for its clients, so every request needs two rights: the client's and the broker's own. To publish, one
token on each side must cover the event. To read, the tokens of one key add up, event by event:

- An unconditional right always applies; a conditional one applies to the events that meet all its conditions.
- The holder sees the attributes of every right that applies. A client sees what both it and its broker may see.
- A subscription may name only attributes that both may see: otherwise the delivery itself would leak their values.
- A right whose conditions cannot be checked, because they do not fit the type or name attributes that this broker may
  not read, applies to no event.

Which tokens hold is computed when one begins, expires or is revoked, not for each event. Which conditional rights apply
is asked for each event, and only if they show more than the unconditional ones. Decisions are cached until a right
begins or ends, so a plain event costs one look-up and no signature check.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from functools import reduce
from operator import or_
from typing import NamedTuple

from tidings.errors import Denied
from tidings.events import Value
from tidings.filters import Condition
from tidings.node.credentials import Credentials, HeldToken, RevocationState, validity_window
from tidings.overlay import View
from tidings.security import AccessRequest, BiscuitCapability, Mode, Right, SignedType, why_not_valid

CLIENTS_MAX = 65_536  # Attached at once; also the bound of cached decisions.
NAMED_MAX = 5  # Attributes that a refusal names.
_OWN = " (this broker's own right)"


class ClientAuthorization:
    """Decides what the clients of one node may publish and subscribe to."""

    def __init__(self, mine: Credentials, state: RevocationState) -> None:
        self._mine, self._state = mine, state
        self._attached: dict[str, Credentials] = {}
        self._may: dict[tuple[str, bytes, tuple[str, ...]], tuple[int, int]] = {}
        self._own: dict[bytes, ReadRights] = {}
        self._visibility: dict[str, dict[bytes, Visibility]] = {}

    def attach(self, client: str, key: bytes, tokens: Iterable[BiscuitCapability]) -> None:
        """Register a client. Raises Denied for a token of another key, or beyond CLIENTS_MAX.

        If the client was attached before, its old subscriptions continue under the tokens presented then.
        """
        if len(self._attached) >= CLIENTS_MAX and client not in self._attached:
            raise Denied(f"client: more than {CLIENTS_MAX} at once")
        credentials = Credentials(key, self._state)
        for token in tokens:
            credentials.add(token)
        self._attached[client] = credentials
        self._visibility.pop(client, None)
        self.forget()

    def detach(self, client: str) -> None:
        self._attached.pop(client, None)
        self._visibility.pop(client, None)
        self.forget()

    def forget(self) -> None:
        """Drop the cached decisions: rights to publish have changed."""
        self._may.clear()

    def __len__(self) -> int:
        return len(self._attached)

    def check_publisher(self, client: str, signed: SignedType, names: tuple[str, ...], now_ms: int) -> None:
        """Return if both client and broker may publish these attributes; raise Denied with the failed check otherwise."""
        until, changes = self._may.get((client, signed.type_id, names), (0, -1))
        if now_ms < until and changes == self._state.changes:
            return
        _check_valid(signed, now_ms)
        ids = frozenset(signed.attr_ids[name] for name in names) or frozenset(signed.attr_ids.values())
        request = AccessRequest(signed.type_id, "publish", ids)
        until = _until(signed, *(each.right_for(request, now_ms) for each in (self._credentials(client), self._mine)))
        if len(self._may) >= CLIENTS_MAX:
            self._may.clear()
        self._may[client, signed.type_id, names] = (until, self._state.changes)

    def visibility_for(self, client: str, names: tuple[str, ...], signed: SignedType, now_ms: int) -> Visibility:
        """What the client may see of the type; raises Denied where a subscription may not name these attributes."""
        _check_valid(signed, now_ms)
        known = self._visibility.get(client, {}).get(signed.type_id)
        found = known or Visibility(
            ReadRights(self._credentials(client), self._state, signed), self._own_rights(signed)
        )
        if not found.at(now_ms).permits(names):
            raise Denied(found.refusal(names, now_ms))
        self._visibility.setdefault(client, {})[signed.type_id] = found
        return found

    def _own_rights(self, signed: SignedType) -> ReadRights:
        return self._own.setdefault(signed.type_id, ReadRights(self._mine, self._state, signed))

    def right_to_advertise(self, wanted: Condition, signed: SignedType, now_ms: int) -> HeldToken:
        """The broker's own right under which it advertises this interest to the overlay; raises Denied without one.

        An advertisement carries one token only: the one that covers most attributes of the condition and, among
        equals, expires last. A type sealed in event mode needs every attribute.
        """
        names = signed.attr_ids if signed.mode is Mode.EVENT else wanted.attributes
        ids = [signed.attr_ids[name] for name in names]

        def worth(held: HeldToken) -> tuple[int, int]:
            return sum(held.right.covers((id,)) for id in ids), held.right.not_after

        rights = self._own_rights(signed).holding(now_ms)
        if not rights:
            raise Denied(f"right: this broker has none to subscribe to {signed.event_type.name}")
        return max(rights, key=worth)

    def still_holds(self, held: HeldToken, now_ms: int) -> bool:
        """Whether a right of the broker's own is neither expired, revoked nor withdrawn."""
        mine = any(each.raw == held.raw for each in self._mine.of(held.right.type_id))
        return mine and held.refusal(self._state, now_ms) is None

    def _credentials(self, client: str) -> Credentials:
        credentials = self._attached.get(client)
        if credentials is None:
            raise Denied(f"client: {client!r} is not attached")
        return credentials


# ── Visibility ──


class ConditionalRight(NamedTuple):
    """A right with conditions: the attributes that it shows, of the events that meet every condition."""

    shows: frozenset[str]
    conditions: tuple[Condition, ...]
    attributes: tuple[str, ...]
    """The attributes that the conditions name."""

    def applies_to(self, view: View) -> bool:
        """Whether the event meets every condition; False where this broker cannot tell."""
        if (view.hidden or view.opaque) and any(view.unknown(name) for name in self.attributes):
            return False
        return all(condition.matches(view.values) for condition in self.conditions)


class EffectiveRights(NamedTuple):
    """The rights of one key that hold at one time, combined."""

    always: frozenset[str] | None
    """The attributes that unconditional rights show; None without such a right."""
    parts: tuple[ConditionalRight, ...]
    """The conditional rights that show more than that."""

    def of(self, view: View) -> frozenset[str] | None:
        """The attributes visible of one event; None if no right applies to it."""
        found = self.always
        for part in self.parts:
            if part.applies_to(view):
                found = part.shows if found is None else found | part.shows
        return found

    def ever(self) -> frozenset[str] | None:
        """The attributes visible of at least some events; None if no right holds."""
        return _union(self.always, (part.shows for part in self.parts))

    def within(self, readable: frozenset[str]) -> EffectiveRights:
        """The rights that remain if only conditions on these attributes can be checked."""
        if all(readable.issuperset(part.attributes) for part in self.parts):
            return self
        return EffectiveRights(self.always, tuple(part for part in self.parts if readable.issuperset(part.attributes)))


class VisibleAttributes:
    """What one client may see at one time; compared by identity."""

    __slots__ = ("_count", "_mine", "_theirs", "depends_on_values", "ever", "is_all", "mine", "theirs")

    def __init__(self, theirs: EffectiveRights, mine: EffectiveRights, every: frozenset[str]) -> None:
        """`theirs` are the client's rights, `mine` the broker's; `every` has all attributes of the type."""
        self._theirs, self._mine, self._count = theirs, mine, len(every)
        readable = mine.ever() or frozenset()
        self.theirs, self.mine = theirs.within(readable), mine.within(readable)
        self.ever = _intersection(self.theirs.ever(), self.mine.ever())
        self.is_all = self.theirs.always == self.mine.always == every
        self.depends_on_values = bool(self.theirs.parts or self.mine.parts)

    def is_from(self, theirs: EffectiveRights, mine: EffectiveRights) -> bool:
        return self._theirs is theirs and self._mine is mine

    def permits(self, names: Collection[str]) -> bool:
        """Whether a subscription may name these attributes: each is visible of some events."""
        return self.ever is not None and self.ever.issuperset(names)

    def names(self, view: View) -> frozenset[str] | None:
        """The attributes visible of one event; None if even its existence must stay hidden."""
        return _intersection(self.theirs.of(view), self.mine.of(view))

    def project(self, view: View) -> tuple[frozenset[str] | None, dict[str, Value]]:
        """The visible attributes of one event, and their values."""
        names = self.names(view)
        if names is None:
            return None, {}
        if len(names) == self._count:
            return names, view.values
        return names, {name: value for name, value in view.values.items() if name in names}


class ReadRights:
    """The rights of one key to subscribe to one type."""

    # A broker has one of these for each of tens of thousands of clients.
    __slots__ = ("_changes", "_parts", "_reach", "credentials", "signed", "since", "state", "until")

    def __init__(self, credentials: Credentials, state: RevocationState, signed: SignedType) -> None:
        self.credentials, self.state, self.signed = credentials, state, signed
        self.since, self.until, self._changes = 0, 0, -1
        self._reach = EffectiveRights(None, ())
        self._parts: dict[bytes, ConditionalRight | str] = {}

    def at(self, now_ms: int) -> EffectiveRights:
        """The effective rights now, valid from `since` until before `until`; the same object until they change."""
        changes = self.state.changes + self.credentials.changes  # Both only grow, so the sum changes with either.
        if changes != self._changes or not self.since <= now_ms < self.until:
            reach = self._compute(now_ms)
            self._reach = self._reach if reach == self._reach else reach
            self._changes = changes
        return self._reach

    def holding(self, now_ms: int) -> list[HeldToken]:
        """The tokens that hold now, in the order of presentation."""
        return [held for held in self._to_subscribe() if held.refusal(self.state, now_ms) is None]

    def refusal(self, missing: Collection[str], now_ms: int) -> str:
        """Why these attributes are not visible now; with an empty collection, why nothing is."""
        names = list(missing or self.signed.attr_ids)
        ids = {self.signed.attr_ids[name] for name in names}
        near = [held for held in self._to_subscribe() if held.right.attributes is None or ids & held.right.attributes]
        for held in near:
            if why := held.refusal(self.state, now_ms) or self._unfit(held):
                return why
        if self.holding(now_ms):
            return f"attributes: no right to {', '.join(names[:NAMED_MAX])}"
        try:
            self.credentials.right_for(AccessRequest(self.signed.type_id, "subscribe", frozenset(ids)), now_ms)
        except Denied as refused:
            return str(refused)
        raise AssertionError("no right holds, and yet one was found")

    def _to_subscribe(self) -> list[HeldToken]:
        return [held for held in self.credentials.of(self.signed.type_id) if "subscribe" in held.right.actions]

    def _unfit(self, held: HeldToken) -> str:
        part = self._part(held) if held.right.constraints else ""
        return part if isinstance(part, str) else ""

    def _compute(self, now_ms: int) -> EffectiveRights:
        shown = self._to_subscribe()
        self.since, self.until = validity_window((held.right for held in shown), self.state, now_ms)
        self._parts = {held.raw: self._parts[held.raw] for held in shown if held.raw in self._parts}
        holding = self.holding(now_ms)
        always = _union(None, (self._names(held.right) for held in holding if not held.right.constraints))
        parts = [self._part(held) for held in holding if held.right.constraints]
        fit = (part for part in parts if isinstance(part, ConditionalRight))
        return EffectiveRights(always, tuple(part for part in fit if always is None or not part.shows <= always))

    def _part(self, held: HeldToken) -> ConditionalRight | str:
        """A conditional right, or why its conditions cannot be checked. Conditions are parsed once per token."""
        if held.raw not in self._parts:
            try:
                conditions = held.right.conditions(self.signed.event_type)
            except Denied as refused:
                self._parts[held.raw] = str(refused)
            else:
                attributes = dict.fromkeys(name for condition in conditions for name in condition.attributes)
                self._parts[held.raw] = ConditionalRight(self._names(held.right), conditions, tuple(attributes))
        return self._parts[held.raw]

    def _names(self, right: Right) -> frozenset[str]:
        return frozenset(name for name, id in self.signed.attr_ids.items() if right.covers((id,)))


class Visibility:
    """What one client may see of one type, kept up to date while rights change."""

    __slots__ = (
        "_changes",
        "_every",
        "_mine",
        "_my_tokens",
        "_since",
        "_state",
        "_their_tokens",
        "_theirs",
        "_until",
        "_visible",
    )

    def __init__(self, theirs: ReadRights, mine: ReadRights) -> None:
        self._theirs, self._mine, self._state = theirs, mine, mine.state
        self._their_tokens, self._my_tokens = theirs.credentials, mine.credentials
        self._every = frozenset(mine.signed.attr_ids)
        self._since, self._until, self._changes = 0, 0, -1
        self._visible = VisibleAttributes(EffectiveRights(None, ()), EffectiveRights(None, ()), self._every)

    def at(self, now_ms: int) -> VisibleAttributes:
        """What is visible now; the same object until it changes."""
        changes = self._state.changes + self._their_tokens.changes + self._my_tokens.changes
        if changes == self._changes and self._since <= now_ms < self._until:
            return self._visible
        theirs, mine = self._theirs.at(now_ms), self._mine.at(now_ms)
        if not self._visible.is_from(theirs, mine):
            self._visible = VisibleAttributes(theirs, mine, self._every)
        self._since = max(self._theirs.since, self._mine.since)
        self._until = min(self._theirs.until, self._mine.until)
        self._changes = changes
        return self._visible

    def refusal(self, names: Collection[str], now_ms: int) -> str:
        """Why a subscription may not name these attributes now; empty if it may."""
        visible = self.at(now_ms)
        readable = self._mine.at(now_ms).ever() or frozenset()
        for rights, reach, whose in ((self._theirs, visible.theirs, ""), (self._mine, visible.mine, _OWN)):
            ever = reach.ever()
            missing = [name for name in names if ever is None or name not in ever]
            if missing or ever is None:
                return (_unreadable(rights.at(now_ms), missing, readable) or rights.refusal(missing, now_ms)) + whose
        return ""


def _unreadable(reach: EffectiveRights, missing: Collection[str], readable: frozenset[str]) -> str:
    """Which conditions of a right to these attributes this broker cannot check; empty if it can check all."""
    for part in reach.parts:
        unread = [name for name in part.attributes if name not in readable]
        if unread and (not missing or not part.shows.isdisjoint(missing)):
            return f"constraints: on {', '.join(unread)}, which this broker may not read"
    return ""


def _union(first: frozenset[str] | None, others: Iterable[frozenset[str]]) -> frozenset[str] | None:
    found = list(others)
    return reduce(or_, found, first or frozenset()) if found else first


def _intersection(one: frozenset[str] | None, other: frozenset[str] | None) -> frozenset[str] | None:
    if one is None or other is None:
        return None
    return one if one <= other else one & other


def _until(signed: SignedType, *rights: HeldToken) -> int:
    """Until when a decision may be cached; not at all if a right has an online test, which ages all the time."""
    if any(held.right.online for held in rights):
        return 0
    return min(signed.not_after, *(held.right.not_after for held in rights))


def _check_valid(signed: SignedType, now_ms: int) -> None:
    if why := why_not_valid(signed.not_before, signed.not_after, now_ms):
        raise Denied(f"validity: event type {signed.event_type.name} {why}")
