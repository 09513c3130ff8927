"""A node's own clients: what they have shown, and whether they may do what they ask for.

A broker acts for its clients, so whatever a client asks for needs two rights, the client's and the
broker's own. Answers are kept until a right begins or ends: an event costs a look-up, not a chain of
signatures.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidings.errors import Denied
from tidings.filters import Condition
from tidings.node.credentials import Credentials, Held, Truth
from tidings.node.local import LocalSubscription, constraints_of
from tidings.security import BiscuitCapability, Request, SignedType

CLIENTS_MAX = 65_536  # Attached at once.


class Clients:
    """All clients of one node, and its own rights beside theirs."""

    def __init__(self, mine: Credentials, truth: Truth) -> None:
        self._mine, self._truth = mine, truth
        self._attached: dict[str, Credentials] = {}
        self._may: dict[tuple[str, bytes, tuple[str, ...]], tuple[int, int]] = {}

    def attach(self, client: str, key: bytes, tokens: Iterable[BiscuitCapability]) -> None:
        """A client is here; raises Denied for a token that is not its own, or one client too many."""
        if len(self._attached) >= CLIENTS_MAX and client not in self._attached:
            raise Denied(f"client: more than {CLIENTS_MAX} at once")
        credentials = Credentials(key, self._truth)
        for token in tokens:
            credentials.add(token)
        self._attached[client] = credentials
        self._may.clear()

    def detach(self, client: str) -> None:
        self._attached.pop(client, None)
        self._may.clear()

    def forget(self) -> None:
        """Rights have changed: ask anew."""
        self._may.clear()

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
        rights = [each.right_for(request, now_ms).right for each in (self._credentials(client), self._mine)]
        ends = [right.not_after for right in rights]
        until = 0 if any(right.online for right in rights) else min(*ends, signed.not_after)
        if len(self._may) >= CLIENTS_MAX:
            self._may.clear()
        self._may[client, signed.type_id, names] = (until, self._truth.changes)

    def check_subscriber(self, one: LocalSubscription, signed: SignedType, now_ms: int) -> Held:
        """Books in the subscription what its client may see, and gives the broker's own right to it; raises Denied."""
        _check_valid(signed, now_ms)
        theirs = self._right_to_read(self._credentials(one.client), one.condition, signed, now_ms)
        mine = self.own_right(one.condition, signed, now_ms)
        readable = {name: id for name, id in signed.attr_ids.items() if mine.right.covers((id,))}
        shown = frozenset(name for name, id in readable.items() if theirs.right.covers((id,)))
        one.held, one.shown = theirs, None if len(shown) == len(signed.attr_ids) else shown
        one.constraints = constraints_of(theirs, signed.event_type, readable)
        return mine

    def own_right(self, wanted: Condition, signed: SignedType, now_ms: int) -> Held:
        """The broker's own right to what a condition asks for; raises Denied."""
        return self._right_to_read(self._mine, wanted, signed, now_ms)

    def _right_to_read(self, credentials: Credentials, wanted: Condition, signed: SignedType, now_ms: int) -> Held:
        if named := frozenset(signed.attr_ids[name] for name in wanted.attributes):
            return credentials.right_for(Request(signed.type_id, "subscribe", named), now_ms)
        for held in credentials.of(signed.type_id):  # It asks for no attribute, so a right to any will do.
            if "subscribe" in held.right.actions and held.refusal(self._truth, now_ms) is None:
                return held
        every = frozenset(signed.attr_ids.values())
        return credentials.right_for(Request(signed.type_id, "subscribe", every), now_ms)

    def _credentials(self, client: str) -> Credentials:
        credentials = self._attached.get(client)
        if credentials is None:
            raise Denied(f"client: {client!r} is not attached")
        return credentials


def _check_valid(signed: SignedType, now_ms: int) -> None:
    if not signed.not_before <= now_ms < signed.not_after:
        raise Denied(f"validity: {signed.event_type.name} holds from {signed.not_before} to {signed.not_after} ms")
