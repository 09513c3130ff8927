"""Subscriptions: conditions, each with the right to it.

The registry stores a subscription only if its holder signed it and has a right to every attribute that the condition
mentions: otherwise deliveries would reveal values that the holder may not read. Both are checked again whenever
subscriptions are read for use, since a right may have expired meanwhile. The owner of a type needs no right to it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, RowMapping, delete, insert, select

from tidings.errors import Denied, InputError, PeerError
from tidings.filters import parse
from tidings.security import (
    AccessRequest,
    BiscuitCapability,
    Identity,
    Right,
    SignedType,
    fingerprint,
    verify_signature,
)
from tidings.store import tables
from tidings.store.database import Database
from tidings.store.grants import revoked_among
from tidings.store.tables import checked_name
from tidings.store.types import type_with_id


@dataclass(frozen=True, slots=True)
class KeptSubscription:
    """A subscription as its holder signed it. `token` is empty where the holder owns the type."""

    id: str
    type_id: bytes
    subscriber: str
    condition: str
    holder: bytes
    token: bytes
    signature: bytes = b""

    @classmethod
    def make(
        cls, holder: Identity, signed_type: SignedType, condition: str, *, id: str, subscriber: str, token: bytes = b""
    ) -> KeptSubscription:
        """A subscription that is checked against the type, in canonical form, and signed by its holder.

        Raises FilterError if the condition does not fit the type.
        """
        canonical = str(parse(condition, signed_type.event_type))
        bare = cls(id, signed_type.type_id, subscriber, canonical, holder.public_key, token)
        return replace(bare, signature=holder.sign(bare.signed_bytes()))

    def signed_bytes(self) -> bytes:
        """What the holder signs: all but the token, which may be replaced by a renewed one."""
        content = [self.id, self.type_id.hex(), self.subscriber, self.condition]
        return b"tidings/subscription/1\0" + json.dumps(content, separators=(",", ":")).encode()

    def verify(self, signed_type: SignedType, revoked: frozenset[str], now_ms: int) -> Right | None:
        """The right of its holder; None for the owner, who may read everything.

        Raises PeerError if the holder did not sign this, Denied if it has no right to it at `now_ms`.
        """
        verify_signature(self.holder, self.signature, self.signed_bytes(), f"subscription {self.id!r}")
        if self.holder == signed_type.owner_key:
            return None
        if not self.token:
            raise Denied(f"token: {fingerprint(self.holder)} is not the owner of the type, and presents no right to it")
        token = BiscuitCapability.from_bytes(self.token, signed_type.owner_key)
        right = token.right()
        request = AccessRequest(self.type_id, "subscribe", _mentioned(self.condition, signed_type, right))
        token.verify(request, now_ms=now_ms, proven_key=self.holder, revoked=revoked)
        return right


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """A subscription with the right of its holder (None is everything), or the reason why it is refused."""

    subscription: KeptSubscription
    right: Right | None = None
    refused: str | None = None


class Subscriptions:
    """The subscriptions of one registry."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, wanted: KeptSubscription, *, now_ms: int) -> bool:
        """Stores a subscription; False if it was stored already. Its holder may replace it under the same id.

        Raises InputError for a type or condition that does not fit, PeerError or Denied for a missing right.
        """
        checked_name(wanted.id, "a subscription's id")
        checked_name(wanted.subscriber, "a subscriber")
        with self._database.change(fingerprint(wanted.holder), now_ms) as change:
            _check(change.connection, wanted, now_ms)
            before = _kept(change.connection, wanted.id)
            if before == wanted:
                return False
            if before is not None:
                _check_holder(before, wanted.holder)
                change.execute(delete(tables.subscriptions).where(tables.subscriptions.c.id == wanted.id))
            change.execute(insert(tables.subscriptions).values(**_row(wanted), added_ms=now_ms))
            action = "add subscription" if before is None else "replace subscription"
            change.record(action, wanted.id, **_details(wanted))
        return True

    def remove(self, id: str, *, by_key: bytes, now_ms: int) -> None:
        """Removes a subscription. Its holder may do so, and the owner of its type; raises Denied for others."""
        checked_name(id, "a subscription's id")
        with self._database.change(fingerprint(by_key), now_ms) as change:
            kept = _kept(change.connection, id)
            if kept is None:
                raise InputError(f"the registry has no subscription {id[:100]!r}")
            if by_key != type_with_id(change.connection, kept.type_id).owner_key:
                _check_holder(kept, by_key)
            change.execute(delete(tables.subscriptions).where(tables.subscriptions.c.id == id))
            change.record("remove subscription", id, **_details(kept))

    def all(self, *, type_id: bytes | None = None) -> list[KeptSubscription]:
        """Every subscription, by id, whether its right is still valid or not."""
        with self._database.read() as connection:
            return _all(connection, type_id)

    def with_status(self, *, now_ms: int, type_id: bytes | None = None) -> list[SubscriptionStatus]:
        """Every subscription with the right of its holder at `now_ms`, or the reason why it is refused."""
        types: dict[bytes, SignedType] = {}
        statuses = []
        with self._database.read() as connection:
            for kept in _all(connection, type_id):
                if kept.type_id not in types:
                    types[kept.type_id] = type_with_id(connection, kept.type_id)
                statuses.append(_status(connection, kept, types[kept.type_id], now_ms))
        return statuses


def _check(connection: Connection, wanted: KeptSubscription, now_ms: int) -> None:
    signed_type = type_with_id(connection, wanted.type_id)
    signed_type.verify(now_ms)
    canonical = str(parse(wanted.condition, signed_type.event_type))
    if canonical != wanted.condition:
        raise InputError(f"expected the condition in its canonical form, {canonical[:200]!r}")
    if "\0" in canonical:
        raise InputError("expected a condition without NUL characters, which not every database can store")
    wanted.verify(signed_type, _revoked(connection, wanted, signed_type), now_ms)


def _status(connection: Connection, kept: KeptSubscription, signed_type: SignedType, now_ms: int) -> SubscriptionStatus:
    try:
        revoked = _revoked(connection, kept, signed_type)
        return SubscriptionStatus(kept, right=kept.verify(signed_type, revoked, now_ms))
    except (Denied, PeerError) as refused:
        return SubscriptionStatus(kept, refused=str(refused))


def _revoked(connection: Connection, kept: KeptSubscription, signed_type: SignedType) -> frozenset[str]:
    if not kept.token:
        return frozenset()
    token = BiscuitCapability.from_bytes(kept.token, signed_type.owner_key)
    return revoked_among(connection, token.revocation_ids)


def _mentioned(condition: str, signed_type: SignedType, right: Right) -> frozenset[bytes]:
    """The attributes that a condition mentions; if it mentions none, any that the right covers."""
    mentioned = parse(condition, signed_type.event_type).attributes
    if mentioned:
        return frozenset(signed_type.attr_id(name) for name in mentioned)
    granted: Sequence[bytes] = (
        tuple(signed_type.attr_ids.values()) if right.attributes is None else (*right.attributes,)
    )
    return frozenset((min(granted),))


def _all(connection: Connection, type_id: bytes | None) -> list[KeptSubscription]:
    query = select(tables.subscriptions).order_by(tables.subscriptions.c.id)
    if type_id is not None:
        query = query.where(tables.subscriptions.c.type_id == type_id)
    return [_from_row(row) for row in connection.execute(query).mappings()]


def _kept(connection: Connection, id: str) -> KeptSubscription | None:
    query = select(tables.subscriptions).where(tables.subscriptions.c.id == id)
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else _from_row(row)


def _row(kept: KeptSubscription) -> dict[str, object]:
    return {name: getattr(kept, name) for name in KeptSubscription.__slots__}


def _from_row(row: RowMapping) -> KeptSubscription:
    return KeptSubscription(**{name: value for name, value in row.items() if name != "added_ms"})


def _check_holder(kept: KeptSubscription, key: bytes) -> None:
    if key != kept.holder:
        raise Denied(f"holder: subscription {kept.id!r} is {fingerprint(kept.holder)}'s, not {fingerprint(key)}'s")


def _details(kept: KeptSubscription) -> dict[str, object]:
    return {"type_id": kept.type_id.hex(), "subscriber": kept.subscriber, "condition": kept.condition}
