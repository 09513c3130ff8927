"""Rights in the registry: which tokens were granted to whom, and which links were revoked.

A token is valid without the registry. The registry stores it so that it can be listed, and revoked without having it
at hand. Revoking a link revokes every token that was derived from it, whether the registry knows it or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, insert, select

from tidings.errors import Denied, InputError
from tidings.security import (
    ANY_TYPE,
    RECORD_BYTES_MAX,
    BiscuitCapability,
    Grant,
    Identity,
    RevocationRecord,
    Right,
    check_may_revoke,
    fingerprint,
    sign_revocation,
    why_not_valid,
)
from tidings.store import tables
from tidings.store.database import Database
from tidings.store.tables import TEXT_CHARACTERS_MAX, checked_name
from tidings.store.types import type_with_id

IDS_AT_ONCE = 500  # Below SQLite's limit of parameters in one statement.


@dataclass(frozen=True, slots=True)
class Revocation:
    """A revoked link: when, by whom, and why."""

    revocation_id: str
    revoked_ms: int
    revoked_by: bytes
    reason: str
    record: bytes | None = None
    """What brokers pass on; None if it was revoked without the key at hand."""


@dataclass(frozen=True, slots=True)
class KnownGrant:
    """A token in this registry, the right that it amounts to, and which of its links are revoked."""

    token: BiscuitCapability
    right: Right
    owner_key: bytes
    added_ms: int
    revoked: frozenset[str]
    role: str | None = None
    """The role that it was issued for."""
    lasts_ms: int | None = None
    """For how long it is renewed when it ends; None if it is not."""

    @property
    def series(self) -> object:
        """What a right and its renewals have in common: everything but the dates."""
        right = self.right
        of = (right.holder, right.type_id, right.actions, right.attributes, right.constraints, right.depth)
        return *of, self.role

    def may_hold(self, now_ms: int) -> bool:
        """Whether the token can be used now or later: it is neither revoked nor expired."""
        return self.refusal(max(now_ms, self.right.not_before)) is None

    def refusal(self, now_ms: int) -> str | None:
        """Why nobody can use the token at `now_ms`, whatever the request; None if its holder can."""
        return refusal(self.token, self.right, self.revoked, now_ms)


class Grants:
    """The rights of one registry."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self,
        token: BiscuitCapability,
        *,
        by: str,
        now_ms: int,
        role: str | None = None,
        lasts_ms: int | None = None,
    ) -> bool:
        """Stores a token of a known type; False if it was stored already. Raises Denied for one without any right."""
        right, owner_key = token.right(), owner_of(token)
        with self._database.change(by, now_ms) as change:
            type_id = _type_id(change.connection, right, owner_key)
            if change.connection.scalar(select(tables.grants.c.digest).where(tables.grants.c.digest == token.digest)):
                return False
            row = _row(token, right, type_id) | {
                "owner_key": owner_key,
                "added_ms": now_ms,
                "role": role,
                "lasts_ms": lasts_ms,
            }
            change.execute(insert(tables.grants).values(row))
            change.record("grant", token.digest.hex(), **_details(right))
        return True

    def revoke(
        self,
        token: BiscuitCapability,
        *,
        by_key: bytes,
        now_ms: int,
        link: int | None = None,
        reason: str = "",
        signer: Identity | None = None,
    ) -> str:
        """Revokes one link of a token (the last, unless `link` says which), and returns its revocation id.

        The issuer of the link or of one before it may do so, and the holder. Raises Denied for others.
        Idempotent. With `signer`, the private half of `by_key`, brokers tell it to all others.
        """
        index = len(token.revocation_ids) - 1 if link is None else link
        _check_may_revoke(token.inspect(), index, by_key)
        id = token.revocation_ids[index]
        if reason:
            checked_name(reason, "a reason", TEXT_CHARACTERS_MAX)
        with self._database.change(fingerprint(by_key), now_ms) as change:
            if not revoked_among(change.connection, [id]):
                record = sign_revocation(token, index, signer, now_ms=now_ms, reason=reason) if signer else None
                change.execute(insert(tables.revocations).values(_revocation_row(id, by_key, now_ms, reason, record)))
                change.record("revoke", id, link=index, token=token.digest.hex(), reason=reason)
        return id

    def learn(self, records: Iterable[RevocationRecord], *, by: str, now_ms: int) -> None:
        """Stores revocations that brokers have passed on; the caller has verified them."""
        for one in records:
            with self._database.change(by, now_ms) as change:
                if not revoked_among(change.connection, [one.id]):
                    row = _revocation_row(one.id, one.by, now_ms, one.reason, one)
                    change.execute(insert(tables.revocations).values(row))
                    change.record("hear", one.id, link=one.link, by=fingerprint(one.by), reason=one.reason)

    def revoked(self, ids: Iterable[str]) -> frozenset[str]:
        """Those of `ids` that are revoked."""
        with self._database.read() as connection:
            return revoked_among(connection, tuple(ids))

    def revocations(self) -> list[Revocation]:
        """All revocations, oldest first."""
        order = (tables.revocations.c.revoked_ms, tables.revocations.c.revocation_id)
        with self._database.read() as connection:
            rows = connection.execute(select(tables.revocations).order_by(*order)).mappings()
            return [Revocation(**row) for row in rows]

    def all(self, *, type_id: bytes | None = None, holder: bytes | None = None) -> list[KnownGrant]:
        """Known tokens, oldest first; optionally of one type or one holder."""
        query = select(tables.grants).order_by(tables.grants.c.added_ms, tables.grants.c.digest)
        if type_id is not None:
            query = query.where(tables.grants.c.type_id == type_id)
        if holder is not None:
            query = query.where(tables.grants.c.holder == holder)
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
            return [_known(connection, row) for row in rows]

    def find(self, digest: str) -> KnownGrant:
        """The known token whose digest starts with these hex digits; raises InputError unless there is exactly one."""
        found = [known for known in self.all() if known.token.digest.hex().startswith(digest)] if digest else []
        if len(found) != 1:
            raise InputError(f"{len(found) or 'no'} known grants have a digest that starts with {digest[:64]!r}")
        return found[0]


def owner_of(token: BiscuitCapability) -> bytes:
    """The key that issued the first link."""
    issuer = token.inspect()[0].issuer
    assert issuer is not None, "a token is read against the key that started it"
    return issuer


def refusal(token: BiscuitCapability, right: Right, revoked: frozenset[str], now_ms: int) -> str | None:
    """Why nobody can use `token` at `now_ms`; None if its holder can."""
    for index, id in enumerate(token.revocation_ids):
        if id in revoked:
            return f"revoked: link {index} ({id[:16]}…) has been revoked"
    if why := why_not_valid(right.not_before, right.not_after, now_ms):
        return f"validity: the right {why}"
    return None


def revoked_among(connection: Connection, ids: Sequence[str]) -> frozenset[str]:
    found: list[str] = []
    for run in _runs(ids):
        column = tables.revocations.c.revocation_id
        found += connection.scalars(select(column).where(column.in_(run)))
    return frozenset(found)


def _runs(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), IDS_AT_ONCE):
        yield ids[start : start + IDS_AT_ONCE]


def _known(connection: Connection, row: RowMapping) -> KnownGrant:
    """A stored token, with its signatures verified again."""
    token = BiscuitCapability.from_bytes(row["token"], row["owner_key"])
    revoked = revoked_among(connection, token.revocation_ids)
    return KnownGrant(token, token.right(), row["owner_key"], row["added_ms"], revoked, row["role"], row["lasts_ms"])


def _type_id(connection: Connection, right: Right, owner_key: bytes) -> bytes | None:
    """The id of the right's type, None for membership; raises Denied if the type's owner did not issue it."""
    if right.type_id == ANY_TYPE:
        return None
    assert isinstance(right.type_id, bytes)
    signed = type_with_id(connection, right.type_id)
    if signed.owner_key != owner_key:
        raise Denied(f"issuer: {signed.name} is not {fingerprint(owner_key)}'s to give rights to")
    return right.type_id


def _check_may_revoke(chain: Sequence[Grant], index: int, key: bytes) -> None:
    if not 0 <= index < len(chain):
        raise InputError(f"the token has the links 0 to {len(chain) - 1}, not {index}")
    check_may_revoke(chain, index, key)


def _revocation_row(id: str, by: bytes, now_ms: int, reason: str, record: RevocationRecord | None) -> dict[str, object]:
    raw = record.to_bytes() if record is not None else b""
    # What is too large for others to take is not passed on.
    spread = raw if 0 < len(raw) <= RECORD_BYTES_MAX else None
    return {"revocation_id": id, "revoked_ms": now_ms, "revoked_by": by, "reason": reason, "record": spread}


def _row(token: BiscuitCapability, right: Right, type_id: bytes | None) -> dict[str, object]:
    return {
        "digest": token.digest,
        "type_id": type_id,
        "holder": right.holder,
        "not_before": right.not_before,
        "not_after": right.not_after,
        "token": token.to_bytes(),
    }


def _details(right: Right) -> dict[str, object]:
    """A right as the audit trail shows it."""
    return {
        "holder": fingerprint(right.holder),
        "type_id": right.type_id if isinstance(right.type_id, str) else right.type_id.hex(),
        "actions": sorted(right.actions),
        "attributes": None if right.attributes is None else sorted(id.hex() for id in right.attributes),
        "not_before": right.not_before,
        "not_after": right.not_after,
        "depth": right.depth,
    }
