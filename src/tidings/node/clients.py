"""A node's own clients: what they have shown, and whether they may do what they ask for.

A broker acts for its clients, so whatever a client asks for needs two rights, the client's and the
broker's own. Answers are kept until a right begins or ends: an event costs a look-up, not a chain of
signatures.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidings.errors import Denied
from tidings.filters import Condition
from tidings.node.credentials import Credentials, Held, Truth
from tidings.node.local import LocalSubscription, constraints_of
from tidings.security import BiscuitCapability, Request, SignedType

CLIENTS_MAX = 65_536  # Attached at once; also the answers that are kept.


class _Reading(NamedTuple):
    """Who may see what of the attributes that a condition asks for, and until when that is known."""

    theirs: Held
    mine: Held
    shown: frozenset[str] | None
    constraints: tuple[Condition, ...]
    until: int
    changes: int


class Clients:
    """All clients of one node, and its own rights beside theirs."""

    def __init__(self, mine: Credentials, truth: Truth) -> None:
        self._mine, self._truth = mine, truth
        self._attached: dict[str, Credentials] = {}
        self._may: dict[tuple[str, bytes, tuple[str, ...]], tuple[int, int]] = {}
        self._may_read: dict[tuple[str, bytes, tuple[str, ...]], _Reading] = {}

    def attach(self, client: str, key: bytes, tokens: Iterable[BiscuitCapability]) -> None:
        """A client is here; raises Denied for a token that is not its own, or one client too many."""
        if len(self._attached) >= CLIENTS_MAX and client not in self._attached:
            raise Denied(f"client: more than {CLIENTS_MAX} at once")
        credentials = Credentials(key, self._truth)
        for token in tokens:
            credentials.add(token)
        self._attached[client] = credentials
        self.forget()

    def detach(self, client: str) -> None:
        self._attached.pop(client, None)
        self.forget()

    def forget(self) -> None:
        """Rights have changed: ask anew."""
        self._may.clear()
        self._may_read.clear()

    def __len__(self) -> int:
        return len(self._attached)

    def check_publisher(self, client: str, signed: SignedType, names: tuple[str, ...], now_ms: int) -> None:
        """Returns if client and broker may publish these attributes; raises Denied naming the check that failed."""
        until, changes = self._may.get((client, signed.type_id, names), (0, -1))
        if now_ms < until and changes == self._truth.changes:
            return
        _check_valid(signed, now_ms)
        ids = frozenset(signed.attr_ids[name] for name in names) or frozenset(signed.attr_ids.values())
        request = Request(signed.type_id, "publish", ids)
        until = _until(signed, *(each.right_for(request, now_ms) for each in (self._credentials(client), self._mine)))
        if len(self._may) >= CLIENTS_MAX:
            self._may.clear()
        self._may[client, signed.type_id, names] = (until, self._truth.changes)

    def check_subscriber(self, one: LocalSubscription, signed: SignedType, now_ms: int) -> Held:
        """Books in the subscription what its client may see, and gives the broker's own right to it; raises Denied."""
        asked = (one.client, signed.type_id, one.condition.attributes)
        reading = self._may_read.get(asked)
        if reading is None or now_ms >= reading.until or reading.changes != self._truth.changes:
            reading = self._work_out(one, signed, now_ms)
            if len(self._may_read) >= CLIENTS_MAX:
                self._may_read.clear()
            self._may_read[asked] = reading
        one.held, one.shown, one.constraints = reading.theirs, reading.shown, reading.constraints
        return reading.mine

    def _work_out(self, one: LocalSubscription, signed: SignedType, now_ms: int) -> _Reading:
        _check_valid(signed, now_ms)
        theirs = self._right_to_read(self._credentials(one.client), one.condition, signed, now_ms)
        mine = self.own_right(one.condition, signed, now_ms)
        readable = {name: id for name, id in signed.attr_ids.items() if mine.right.covers((id,))}
        shown = frozenset(name for name, id in readable.items() if theirs.right.covers((id,)))
        return _Reading(
            theirs,
            mine,
            None if len(shown) == len(signed.attr_ids) else shown,
            constraints_of(theirs, signed.event_type, readable),
            _until(signed, theirs, mine),
            self._truth.changes,
        )

    def own_right(self, wanted: Condition, signed: SignedType, now_ms: int) -> Held:
        """The broker's own right to what a condition asks for; raises Denied."""
        return self._right_to_read(self._mine, wanted, signed, now_ms)

    def longest_right(self, signed: SignedType, now_ms: int) -> Held:
        """Of the broker's own rights to subscribe that hold now, whatever they are for, the one that ends last; raises Denied."""
        rights = [held for held in self._mine.of(signed.type_id) if self._lets_read(held, now_ms)]
        if not rights:
            raise Denied(f"right: this broker has none to subscribe to {signed.event_type.name}")
        return max(rights, key=lambda held: held.right.not_after)

    def _right_to_read(self, credentials: Credentials, wanted: Condition, signed: SignedType, now_ms: int) -> Held:
        if named := frozenset(signed.attr_ids[name] for name in wanted.attributes):
            return credentials.right_for(Request(signed.type_id, "subscribe", named), now_ms)
        for held in credentials.of(signed.type_id):  # It asks for no attribute, so a right to any will do.
            if self._lets_read(held, now_ms):
                return held
        every = frozenset(signed.attr_ids.values())
        return credentials.right_for(Request(signed.type_id, "subscribe", every), now_ms)

    def _lets_read(self, held: Held, now_ms: int) -> bool:
        return "subscribe" in held.right.actions and held.refusal(self._truth, now_ms) is None

    def _credentials(self, client: str) -> Credentials:
        credentials = self._attached.get(client)
        if credentials is None:
            raise Denied(f"client: {client!r} is not attached")
        return credentials


def _until(signed: SignedType, *rights: Held) -> int:
    """How long what follows from these rights may be kept: an online test grows old from one moment to the next."""
    if any(held.right.online for held in rights):
        return 0
    return min(signed.not_after, *(held.right.not_after for held in rights))


def _check_valid(signed: SignedType, now_ms: int) -> None:
    if not signed.not_before <= now_ms < signed.not_after:
        raise Denied(f"validity: {signed.event_type.name} holds from {signed.not_before} to {signed.not_after} ms")
