"""Revocations that travel: a signed record that anybody can check, and the table of those that a broker knows.

A record holds the revoked token itself, so that whoever gets it sees that the signer issued or held the revoked link or
one before it. Records of the same link are the same revocation. The table is bounded: a revocation counts for whom the
type's owner gave the right in question, or for the owner itself if it revokes, so that nobody fills the share of
another. Owners choose whom they give rights, so all of those together have a bound, too. A record is dropped when the
revoked right would have ended by itself.

Two tables are compared by a digest of each of 256 parts; only the parts that differ are sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple, TypeAlias

import msgspec

from tidings.errors import Denied, PeerError
from tidings.security.identity import Identity, fingerprint, verify_signature
from tidings.security.rights.biscuit import BiscuitCapability
from tidings.security.rights.reduction import Grant

RECORD_BYTES_MAX = 16 * 1024  # A token with four hundred attributes, or a dozen delegations.
REASON_MAX = 500
SHARE_MAX = 4096  # Revocations that count for one key and have not ended.
HOLDERS_MAX = 16_384  # … for all together to whom one owner has given rights.
UNKNOWN_MAX = 4096  # Of types that are not known here: passed on for others, all together.
PLACE_MS_MIN = 24 * 3_600_000  # A place is taken for so long at least: what is heard is kept on disk for ever.
ABOUT_BYTES = (
    2048  # Of a record in a full share: rights take a kilobyte or two, and the largest record eight times that.
)
PARTS = 256
_LABEL = b"ps/revoke/1\0"


class RevocationRecord(msgspec.Struct, frozen=True, array_like=True):
    """One link of a token is revoked, says `by`."""

    id: str
    token: bytes
    owner_key: bytes
    link: int
    by: bytes
    at_ms: int
    reason: str = ""
    signature: bytes = b""

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    def signed_bytes(self) -> bytes:
        return _LABEL + msgspec.msgpack.encode(msgspec.structs.replace(self, signature=b""))


_DECODER = msgspec.msgpack.Decoder(RevocationRecord)


@dataclass(frozen=True, slots=True)
class VerifiedRevocation:
    """A record whose token and signature have been checked."""

    record: RevocationRecord
    raw: bytes
    counts_for: bytes
    ends_ms: int
    """When the revoked link ends by itself."""

    @property
    def id(self) -> str:
        return self.record.id


def sign_revocation(
    token: BiscuitCapability, link: int, signer: Identity, *, now_ms: int, reason: str = ""
) -> RevocationRecord:
    """The record that revokes a link of a token; raises Denied unless the signer may do that."""
    chain = token.inspect()
    check_may_revoke(chain, link, signer.public_key)
    bare = RevocationRecord(
        token.revocation_ids[link],
        token.to_bytes(),
        chain[0].issuer or b"",
        link,
        signer.public_key,
        now_ms,
        reason[:REASON_MAX],
    )
    return msgspec.structs.replace(bare, signature=signer.sign(bare.signed_bytes()))


def check_may_revoke(chain: Collection[Grant], link: int, key: bytes) -> None:
    """Returns if the key issued or holds the link or one before it; raises Denied otherwise."""
    concerned = {hand for each in list(chain)[: link + 1] for hand in (each.issuer, each.holder)}
    if not 0 <= link < len(chain) or key not in concerned:
        raise Denied(f"issuer: {fingerprint(key)} neither issued nor holds link {link}")


def read_revocation(raw: bytes) -> RevocationRecord:
    """A record, of which nothing has been checked yet; raises PeerError for anything else."""
    if len(raw) > RECORD_BYTES_MAX:
        raise PeerError(f"revocation: {len(raw)} bytes; at most {RECORD_BYTES_MAX} are allowed")
    try:
        return _DECODER.decode(raw)
    except msgspec.DecodeError as wrong:
        raise PeerError(f"revocation: {str(wrong)[:200]}") from None


def verify_revocation(raw: bytes) -> VerifiedRevocation:
    """A received record; raises PeerError unless its token is genuine and its signer may revoke the link."""
    record = read_revocation(raw)
    try:
        token = BiscuitCapability.from_bytes(record.token, record.owner_key)
        token.right()  # Raises for a delegation by somebody else than the holder.
        chain = token.inspect()
        check_may_revoke(chain, record.link, record.by)
    except Denied as refused:
        raise PeerError(f"revocation: {refused}") from None
    if token.revocation_ids[record.link] != record.id or len(record.reason) > REASON_MAX:
        raise PeerError("revocation: of another link than it says")
    verify_signature(record.by, record.signature, record.signed_bytes(), "the revocation")
    counts_for = record.owner_key if record.by == record.owner_key else chain[0].holder or b""
    ends_ms = min(each.not_after for each in chain[: record.link + 1])
    return VerifiedRevocation(record, raw, counts_for, ends_ms)


_Share: TypeAlias = tuple[str, bytes]
"""Whose part of a table: of an owner, of one holder, of all holders of an owner, or of types that are not known."""


class _Place(NamedTuple):
    """What a record takes up, and until when at least."""

    shares: tuple[_Share, ...]
    size: int
    until_ms: int


def _shares(found: VerifiedRevocation, owners: Collection[bytes]) -> dict[_Share, int]:
    """What a revocation takes a place of, and how many places there are."""
    owner = found.record.owner_key
    if owner not in owners:
        return {("unknown", b""): UNKNOWN_MAX}
    if found.counts_for == owner:
        return {("owner", owner): SHARE_MAX}
    return {("holder", found.counts_for): SHARE_MAX, ("holders", owner): HOLDERS_MAX}


class RevocationTable:
    """The revocations that one broker knows and passes on."""

    def __init__(self) -> None:
        self._known: dict[str, VerifiedRevocation] = {}
        self._counted: Counter[_Share] = Counter()
        self._bytes: Counter[_Share] = Counter()
        self._places: dict[str, _Place] = {}
        self._resting: list[_Place] = []  # Of records that have ended, and came a short while ago.
        self._digests = [bytes(32)] * PARTS
        self._parts: list[dict[str, None]] = [{} for _ in range(PARTS)]

    def __len__(self) -> int:
        return len(self._known)

    def get(self, id: str) -> VerifiedRevocation | None:
        return self._known.get(id)

    def take(self, raw: bytes, owners: Collection[bytes], now_ms: int) -> VerifiedRevocation | None:
        """A revocation that is news here; None if it is known, has ended, or there is no room for more of its kind.

        Raises PeerError for one that is not genuine. `owners` are those of the types that are known here.
        """
        if read_revocation(raw).id in self._known:
            return None
        found = verify_revocation(raw)
        if found.ends_ms <= now_ms:
            return None
        shares = _shares(found, owners)
        if not all(self._has_room(share, most, len(raw)) for share, most in shares.items()):
            return None
        self._known[found.id] = found
        self._places[found.id] = _Place(tuple(shares), len(raw), now_ms + PLACE_MS_MIN)
        for share in shares:
            self._counted[share] += 1
            self._bytes[share] += len(raw)
        self._parts[_part(found.id)][found.id] = None
        self._mix(found.id)
        return found

    def drop_ended(self, now_ms: int) -> None:
        """Forgets revocations of rights that have ended by themselves."""
        for id in [one.id for one in self._known.values() if one.ends_ms <= now_ms]:
            del self._known[id], self._parts[_part(id)][id]
            self._resting.append(self._places.pop(id))
            self._mix(id)
        for place in self._resting:
            if place.until_ms <= now_ms:
                self._counted.subtract(place.shares)
                self._bytes.subtract(dict.fromkeys(place.shares, place.size))
        self._resting = [place for place in self._resting if place.until_ms > now_ms]
        self._counted, self._bytes = +self._counted, +self._bytes  # Without those that are 0.

    def summary(self) -> tuple[bytes, ...]:
        """What another table is compared with."""
        return tuple(digest[:8] for digest in self._digests)

    def lacking(self, summary: tuple[bytes, ...]) -> list[VerifiedRevocation]:
        """What the sender of a summary may lack; raises PeerError for anything that is no summary."""
        if len(summary) != PARTS:
            raise PeerError(f"revocation: a summary of {len(summary)} parts; expected {PARTS}")
        differ = (part for part, theirs in enumerate(summary) if theirs != self._digests[part][:8])
        return [self._known[id] for part in differ for id in self._parts[part]]

    def _has_room(self, share: _Share, most: int, size: int) -> bool:
        return self._counted[share] < most and self._bytes[share] + size <= most * ABOUT_BYTES

    def _mix(self, id: str) -> None:
        """Adds an id to the digest of its part, or takes it out again: the order does not matter."""
        part, added = _part(id), sha256(id.encode()).digest()
        self._digests[part] = bytes(a ^ b for a, b in zip(self._digests[part], added, strict=True))


def in_batches(records: Iterable[VerifiedRevocation], bytes_max: int) -> Iterable[tuple[bytes, ...]]:
    """Records in frames of at most so many bytes."""
    batch: list[bytes] = []
    size = 0
    for one in records:
        if batch and size + len(one.raw) > bytes_max:
            yield tuple(batch)
            batch, size = [], 0
        batch.append(one.raw)
        size += len(one.raw)
    if batch:
        yield tuple(batch)


def _part(id: str) -> int:
    return sha256(id.encode()).digest()[0]
