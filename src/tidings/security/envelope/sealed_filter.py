"""Sealed subscriptions: filters that a broker reads as far as its keys go.

A filter is an OR of clauses, a clause an AND of conditions on single attributes. All that a
clause says of one attribute is one plaintext, opaque here, and every clause takes a moment of its
own: two conditions on one attribute never share key and nonce. Clauses are sealed with the keys
for subscriptions, so none of them opens as an event.

    header     as an event's, mode + 0x10, flags 2 signature, 4 digest; in the paper's profile with the signer's key
    then       subscription id 16 · version 4 · lease ms 4 · clause count 2
    event      per clause: epoch 4 · length 4 · ciphertext             clause i: the header's seq + i
    attribute  per clause: seq 4 · count 2 · count × (attribute id · epoch · length · ciphertext)
    then       digest of the capability 32, signature block

A broker that cannot open an attribute's part takes it for true: it forwards too much, never too little.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cryptography.exceptions import InvalidTag

from tidings.errors import InputError, PeerError
from tidings.security.envelope.frame import (
    FILTER,
    FLAG_DIGEST,
    FLAG_SIGNATURE,
    LAYOUTS,
    MAGIC,
    U16,
    U32,
    U32_PAIR,
    VERSION,
    FrameLayout,
    layout_of,
    sealed_pairs,
)
from tidings.security.envelope.nonce import SEQ_MAX, TS_MS_MAX, NonceClock
from tidings.security.envelope.signing import SignatureReader, digest_of, sign_each
from tidings.security.formats import NO_MANIFEST, manifest_of
from tidings.security.identity import Identity
from tidings.security.keys.keyring import KeyEpoch, Keyring
from tidings.security.signed_type import Mode, SignedType

CLAUSES_MAX = 1024  # What one subscription may cost every broker on its way.
SUB_ID_BYTES = 16
DIGEST_BYTES = 32
_SUB = struct.Struct(">16sIIH")
_SEQ_COUNT = struct.Struct(">I")
_TIED = struct.Struct(">16sIH")

Clause: TypeAlias = Mapping[bytes, bytes]
"""What a clause says of each attribute, by attribute id; in event mode one part under the type's id."""

MaySubscribe: TypeAlias = Callable[[bytes, bytes, tuple[bytes, ...]], None]
"""Raises Denied unless this key, with the capability of this digest, may subscribe to these attributes."""


@dataclass(frozen=True, slots=True)
class SealedSubscription:
    """A sealed subscription as one broker sees it; in each clause, None stands for a part that it cannot read."""

    type_id: bytes
    sub_id: bytes
    version: int
    lease_ms: int
    clauses: tuple[Mapping[bytes, bytes | None], ...]
    signer: bytes | None
    capability_digest: bytes | None
    sealed_ms: int

    def check_lease(self, now_ms: int) -> None:
        """Raises PeerError once the lease has ended. A lease of 0 lasts as long as the right that came with it."""
        if self.lease_ms and now_ms >= self.sealed_ms + self.lease_ms:
            raise PeerError(f"lease: of {self.lease_ms} ms since {self.sealed_ms} ms, and it is {now_ms} ms")


class FilterSealer:
    """Seals the subscriptions of one subscriber's broker, under its own sender id."""

    def __init__(
        self, signed_type: SignedType, keyring: Keyring, sender_id: int, *, signer: Identity | None = None
    ) -> None:
        self._type, self._keyring, self._signer, self.sender_id = signed_type, keyring, signer, sender_id
        if signed_type.profile.is_paper and signer is None:
            raise InputError(
                "a sealed filter in the paper's profile has its subscriber's key in the nonce: it needs a signer"
            )
        self._subscriber = signer.public_key if signer is not None and signed_type.profile.is_paper else b""
        self._moments = NonceClock(grace_ms=signed_type.grace_ms)

    def seal(
        self,
        clauses: Sequence[Clause],
        *,
        sub_id: bytes,
        version: int,
        lease_ms: int,
        now_ms: int,
        capability_digest: bytes = b"",
    ) -> bytes:
        """One subscription as a frame; each renewal takes the next version, and so fresh nonces."""
        if not 1 <= len(clauses) <= CLAUSES_MAX or len(sub_id) != SUB_ID_BYTES:
            raise InputError(f"expected 1 to {CLAUSES_MAX} clauses and an id of {SUB_ID_BYTES} bytes")
        if len(capability_digest) not in (0, DIGEST_BYTES):
            raise InputError(f"expected a digest of {DIGEST_BYTES} bytes")
        ts, seq = self._moments.take(now_ms, run=len(clauses))
        flags = (FLAG_SIGNATURE if self._signer else 0) | (FLAG_DIGEST if capability_digest else 0)
        made = self._type
        parts = [
            LAYOUTS[made.suite].header.pack(
                MAGIC, VERSION, made.mode | FILTER, made.suite, made.type_id, self.sender_id, ts, seq, flags
            ),
            self._subscriber,
            _SUB.pack(sub_id, version, lease_ms, len(clauses)),
        ]
        for index, clause in enumerate(clauses):
            parts.append(self._clause(clause, _TIED.pack(sub_id, version, index), ts, seq + index, now_ms))
        frame = b"".join((*parts, capability_digest))
        return frame + sign_each(self._signer, digest_of(frame)) if self._signer else frame

    def _clause(self, clause: Clause, tied: bytes, ts: int, seq: int, now_ms: int) -> bytes:
        nonce = self._type.profile.filter_nonce(self.sender_id, ts, seq, self._subscriber)
        ids = tuple(sorted(clause))
        if any(id not in self._type.group_ids for id in ids):
            raise InputError("a clause names an attribute that is no key group of its type")
        manifest = manifest_of(ids) if self._type.mode is Mode.ATTRIBUTE else NO_MANIFEST
        parts = [self._part(id, clause[id], manifest, tied, nonce, ts, now_ms) for id in ids]
        if self._type.mode is Mode.ATTRIBUTE:
            return b"".join((_SEQ_COUNT.pack(seq), U16.pack(len(ids)), *parts))
        if len(parts) != 1:
            raise InputError("a clause of a type sealed as one is one part, under the type's id")
        return parts[0][self._type.profile.id_bytes :]

    def _part(self, id: bytes, plain: bytes, manifest: bytes, tied: bytes, nonce: bytes, ts: int, now_ms: int) -> bytes:
        key = self._keyring.for_sealing(id, ts, now_ms)
        sealed = key.cipher("sub").encrypt(nonce, plain, _aad(self._type, id, key.epoch, manifest) + tied)
        key.count(1, len(sealed) >> 4)
        return b"".join((id, U32_PAIR.pack(key.epoch, len(sealed)), sealed))


class FilterOpener:
    """Opens subscriptions as far as its keys go. With `may_subscribe`, only signed ones that it permits."""

    def __init__(self, signed_type: SignedType, keyring: Keyring, *, may_subscribe: MaySubscribe | None = None) -> None:
        self._type, self._keyring, self._may_subscribe = signed_type, keyring, may_subscribe
        self._signatures = SignatureReader()

    def open_(self, raw: bytes) -> SealedSubscription:
        """The subscription; raises PeerError naming what is wrong, or what `may_subscribe` raises."""
        try:
            return self._open(raw)
        except struct.error:
            raise PeerError("frame: cut short") from None

    def _open(self, raw: bytes) -> SealedSubscription:
        layout, made = layout_of(raw), self._type
        prefix = bytes((MAGIC, VERSION, made.mode | FILTER, made.suite)) + made.type_id
        if not raw.startswith(prefix):
            raise PeerError(f"type: not a sealed subscription to {made.event_type.name}")
        *_, sender_id, ts, seq, flags = layout.header.unpack_from(raw)
        subscriber = raw[layout.header.size : layout.header_bytes]
        sub_id, version, lease_ms, count = _SUB.unpack_from(raw, layout.header_bytes)
        if seq + count - 1 > SEQ_MAX or ts > TS_MS_MAX or flags & ~(FLAG_SIGNATURE | FLAG_DIGEST):
            raise PeerError("header: time, counter or flags out of range")
        if not 1 <= count <= CLAUSES_MAX:
            raise PeerError(f"frame: {count} clauses; expected 1 to {CLAUSES_MAX}")
        at = layout.header_bytes + _SUB.size
        opened: list[Mapping[bytes, bytes | None]] = []
        for index in range(count):
            nonce = made.profile.filter_nonce(sender_id, ts, seq + index, subscriber)
            ids, epochs, bodies, at = self._read_clause(raw, at, layout, seq + index)
            opened.append(self._open_clause(ids, epochs, bodies, _TIED.pack(sub_id, version, index), nonce, ts))
        signer, digest = self._authorship(raw, at, flags, opened)
        if signer is not None and subscriber not in (b"", signer):
            raise PeerError("signature: of another key than the one in the subscription")
        return SealedSubscription(made.type_id, sub_id, version, lease_ms, tuple(opened), signer, digest, ts)

    def _read_clause(
        self, raw: bytes, at: int, layout: FrameLayout, seq: int
    ) -> tuple[tuple[bytes, ...], list[int], list[bytes], int]:
        if self._type.mode is not Mode.ATTRIBUTE:
            epoch, size = U32_PAIR.unpack_from(raw, at)
            return (self._type.type_id,), [epoch], [raw[at + 8 : at + 8 + size]], at + 8 + size
        if _SEQ_COUNT.unpack_from(raw, at)[0] != seq:
            raise PeerError("frame: a clause out of its turn")
        heads, bodies, end = sealed_pairs(raw, at + 4, layout)
        ids = tuple(head[: layout.id_bytes] for head in heads)
        if list(ids) != sorted(dict.fromkeys(ids)) or any(id not in self._type.group_ids for id in ids):
            raise PeerError("attribute: out of order, repeated, or none of the type")
        return ids, [U32.unpack_from(head, layout.id_bytes)[0] for head in heads], bodies, end

    def _open_clause(
        self, ids: tuple[bytes, ...], epochs: list[int], bodies: list[bytes], tied: bytes, nonce: bytes, ts: int
    ) -> dict[bytes, bytes | None]:
        manifest = manifest_of(ids) if self._type.mode is Mode.ATTRIBUTE else NO_MANIFEST
        clause: dict[bytes, bytes | None] = {}
        for id, epoch, body in zip(ids, epochs, bodies, strict=True):
            key = self._keyring.get(id, epoch)
            aad = _aad(self._type, id, epoch, manifest) + tied
            clause[id] = None if key is None else self._open_part(key, nonce, body, aad, ts)
        return clause

    def _open_part(self, key: KeyEpoch, nonce: bytes, body: bytes, aad: bytes, ts: int) -> bytes:
        start, end = self._keyring.window(key)
        if not start <= ts < end:
            raise PeerError(f"epoch: sealed at {ts} ms, outside {start} to {end} ms")
        try:
            return key.cipher("sub").decrypt(nonce, body, aad)
        except (InvalidTag, ValueError):
            raise PeerError("tag: the subscription was altered, or sealed under another key") from None

    def _authorship(
        self, raw: bytes, at: int, flags: int, opened: list[Mapping[bytes, bytes | None]]
    ) -> tuple[bytes | None, bytes | None]:
        end = at + (DIGEST_BYTES if flags & FLAG_DIGEST else 0)
        if end > len(raw) or (end < len(raw)) != bool(flags & FLAG_SIGNATURE):
            raise PeerError("frame: cut short, or more than its header says")
        digest = raw[at:end] or None
        if self._may_subscribe is None:
            return None, digest
        if not flags & FLAG_SIGNATURE:
            raise PeerError("signature: the subscription is not signed, and this broker asks for it")
        signer = self._signatures.signer(raw[end:], digest_of(raw[:end]))
        self._may_subscribe(signer, digest or b"", tuple(sorted({id for clause in opened for id in clause})))
        return signer, digest


def _aad(made: SignedType, id: bytes, epoch: int, manifest: bytes) -> bytes:
    attr_id = id if made.mode is Mode.ATTRIBUTE else made.profile.no_id
    return made.profile.aad(made.mode | FILTER, made.type_id, attr_id, epoch, manifest)
