"""A node's own clients: what they have shown, and whether they may do what they ask for.

A broker acts for its clients, so whatever a client asks for needs two rights, the client's and the
broker's own. Rights to read add up, on both sides (see `sight`); what is published rests on one of each. Answers
are kept until a right begins or ends: an event costs a look-up, not a chain of signatures.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidings.errors import Denied
from tidings.filters import Condition
from tidings.node.credentials import Credentials, Held, Truth
from tidings.node.local_subscriptions import LocalSubscription
from tidings.node.visibility import Rights, Sight
from tidings.security import AccessRequest, BiscuitCapability, Mode, SignedType

CLIENTS_MAX = 65_536  # Attached at once; also the answers that are kept.


class Clients:
    """All clients of one node, and its own rights beside theirs."""

    def __init__(self, mine: Credentials, truth: Truth) -> None:
        self._mine, self._truth = mine, truth
        self._attached: dict[str, Credentials] = {}
        self._may: dict[tuple[str, bytes, tuple[str, ...]], tuple[int, int]] = {}
        self._own: dict[bytes, Rights] = {}
        self._sights: dict[str, dict[bytes, Sight]] = {}

    def attach(self, client: str, key: bytes, tokens: Iterable[BiscuitCapability]) -> None:
        """A client is here; raises Denied for a token that is not its own, or one client too many.

        Of a client that was here, what it subscribed to goes on under the rights that it had shown before.
        """
        if len(self._attached) >= CLIENTS_MAX and client not in self._attached:
            raise Denied(f"client: more than {CLIENTS_MAX} at once")
        credentials = Credentials(key, self._truth)
        for token in tokens:
            credentials.add(token)
        self._attached[client] = credentials
        self._sights.pop(client, None)
        self.forget()

    def detach(self, client: str) -> None:
        self._attached.pop(client, None)
        self._sights.pop(client, None)
        self.forget()

    def forget(self) -> None:
        """Rights to publish have changed: ask anew."""
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
        request = AccessRequest(signed.type_id, "publish", ids)
        until = _until(signed, *(each.right_for(request, now_ms) for each in (self._credentials(client), self._mine)))
        if len(self._may) >= CLIENTS_MAX:
            self._may.clear()
        self._may[client, signed.type_id, names] = (until, self._truth.changes)

    def check_subscriber(self, one: LocalSubscription, signed: SignedType, now_ms: int) -> None:
        """Books in the subscription what its client may see; raises Denied where the condition asks for more."""
        _check_valid(signed, now_ms)
        sight = self._sight_of(one.client, signed)
        if not one.look(sight.at(now_ms)):
            raise Denied(sight.refusal(one.asks, now_ms))
        one.sight = sight
        self._sights.setdefault(one.client, {})[signed.type_id] = sight

    def _sight_of(self, client: str, signed: SignedType) -> Sight:
        known = self._sights.get(client, {}).get(signed.type_id)
        return known or Sight(Rights(self._credentials(client), self._truth, signed), self._own_rights(signed))

    def _own_rights(self, signed: SignedType) -> Rights:
        return self._own.setdefault(signed.type_id, Rights(self._mine, self._truth, signed))

    def right_to_tell(self, wanted: Condition, signed: SignedType, now_ms: int) -> Held:
        """Of the broker's own rights to subscribe the one that the overlay is told of a condition by; raises Denied.

        Others are shown one right only: the one that is for most of what the condition asks for, and of those that
        are for as much the one that ends last. An event that is sealed as one is asked for as a whole.
        """
        names = signed.attr_ids if signed.mode is Mode.EVENT else wanted.attributes
        ids = [signed.attr_ids[name] for name in names]

        def worth(held: Held) -> tuple[int, int]:
            return sum(held.right.covers((id,)) for id in ids), held.right.not_after

        rights = self._own_rights(signed).holding(now_ms)
        if not rights:
            raise Denied(f"right: this broker has none to subscribe to {signed.event_type.name}")
        return max(rights, key=worth)

    def still_holds(self, held: Held, now_ms: int) -> bool:
        """Whether a right of the broker's own has neither ended nor been given up."""
        mine = any(each.raw == held.raw for each in self._mine.of(held.right.type_id))
        return mine and held.refusal(self._truth, now_ms) is None

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
