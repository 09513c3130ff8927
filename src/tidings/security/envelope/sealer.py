"""Sealing: from an event to a frame that only holders of a right can open.

`Sealer` is one worker of a publisher: it owns a sender id and never uses a moment twice.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from tidings.errors import EventError
from tidings.events import Value
from tidings.security.envelope.frame import FLAG_SIGNATURE, LAYOUTS, MAGIC, U16, U32, VERSION
from tidings.security.envelope.nonce import SEQ_MAX, NonceClock
from tidings.security.envelope.plaintext_cache import FOREVER, PLANS_MAX, Crypt, longest
from tidings.security.envelope.signing import BATCH_MAX, digest_of, sign_batch, sign_each
from tidings.security.envelope.value_codec import Encoder, encoder, padded
from tidings.security.formats import NO_MANIFEST, manifest_of
from tidings.security.identity import Identity
from tidings.security.keys.keyring import KeyEpoch, Keyring
from tidings.security.signed_type import Mode, PadPolicy, SignedType

COUNT_EVERY = 65_536  # Events between two updates of a key's counters; far below its limit.

Signing: TypeAlias = Literal["none", "each", "batch"]
_MOMENT = struct.Struct(">QIH")  # The end of every header: millisecond, counter, flags.
_SIZES = tuple(U32.pack(size) for size in range(1024))


class SealPlan:
    """Everything precomputed for sealing events with one set of attributes, until an epoch changes."""

    __slots__ = ("blocks", "changes", "count", "end_ms", "keys", "left", "start_ms", "steps", "whole")

    def __init__(self, changes: int, keys: tuple[KeyEpoch, ...], end_ms: int) -> None:
        self.changes, self.keys = changes, keys
        self.start_ms = max((key.start_ms for key in keys), default=0)
        self.end_ms = end_ms
        self.left, self.blocks = COUNT_EVERY, 0
        self.count = b""
        self.steps: list[tuple[str, Encoder, Crypt, bytes, bytes, int]] = []
        self.whole: tuple[Crypt, bytes, bytes] | None = None


class Sealer:
    """Seals events of one type for one sender id, which belongs to nobody else and to no earlier start.

    `seal` takes values already checked against the event type and returns the frame. Not for
    sharing between threads.
    """

    def __init__(
        self,
        signed_type: SignedType,
        keyring: Keyring,
        sender_id: int,
        *,
        signer: Identity | None = None,
        signing: Signing = "none",
        publisher_key: bytes = b"",
    ) -> None:
        assert (signing == "none") or signer is not None, "signing needs a signer"
        self._type, self._keyring, self._signer, self._signing = signed_type, keyring, signer, signing
        self._layout = LAYOUTS[signed_type.suite]
        paper = signed_type.profile.is_paper
        self._publisher = (publisher_key or (signer.public_key if signer else b"")) if paper else b""
        assert len(self._publisher) == self._layout.header_bytes - self._layout.header.size, "the paper needs a key"
        self._moments = NonceClock(grace_ms=signed_type.grace_ms, per_ms=1 if paper else SEQ_MAX + 1)
        self.sender_id = sender_id
        self._flags = 0 if signing == "none" else FLAG_SIGNATURE
        self._prefix = self._layout.header.pack(
            MAGIC, VERSION, signed_type.mode, signed_type.suite, signed_type.type_id, sender_id, 0, 0, 0
        )[: -_MOMENT.size]
        self._nonce = signed_type.profile.nonce_maker
        self._plans: dict[tuple[str, ...], SealPlan] = {}

    def seal(self, values: Mapping[str, Value], now_ms: int) -> bytes:
        """One event as a frame.

        Raises NotYet where the caller must wait for the clock or the next key, Denied where there is
        no key or no recent beacon of the manager, EventError where the values do not fit the type.
        """
        frame = self._unsigned(values, now_ms)
        if self._signer is None or self._signing == "none":
            return frame
        if self._signing == "each":
            return frame + sign_each(self._signer, digest_of(frame))
        return frame + sign_batch(self._signer, [digest_of(frame)])[0]

    def seal_batch(self, events: Sequence[Mapping[str, Value]], now_ms: int) -> list[bytes]:
        """Many events; with `signing="batch"` every 256 of them share one signature."""
        if self._signer is None or self._signing != "batch":
            return [self.seal(values, now_ms) for values in events]
        sealed: list[bytes] = []
        for start in range(0, len(events), BATCH_MAX):
            frames = [self._unsigned(values, now_ms) for values in events[start : start + BATCH_MAX]]
            blocks = sign_batch(self._signer, [digest_of(frame) for frame in frames])
            sealed += [frame + block for frame, block in zip(frames, blocks, strict=True)]
        return sealed

    @property
    def flags(self) -> int:
        """What every header of this sealer says besides its moment."""
        return self._flags

    def take_run(self, now_ms: int, count: int) -> tuple[int, int]:
        """The first of `count` moments that follow one another in one millisecond; raises NotYet as `seal` does."""
        return self._moments.take(now_ms, count)

    def seal_run(self, events: Sequence[Mapping[str, Value]], now_ms: int) -> tuple[int, int, list[bytes]]:
        """Events at moments that follow one another, the first of which is given, without signatures."""
        ts, seq = self.take_run(now_ms, len(events))
        return ts, seq, [self._at(values, ts, seq + row, now_ms) for row, values in enumerate(events)]

    def _unsigned(self, values: Mapping[str, Value], now_ms: int) -> bytes:
        return self._at(values, *self._moments.take(now_ms), now_ms)

    def _at(self, values: Mapping[str, Value], ts: int, seq: int, now_ms: int) -> bytes:
        plan = self.plan_for(tuple(values), ts, now_ms)
        header = self._prefix + _MOMENT.pack(ts, seq, self._flags) + self._publisher
        nonce = self._nonce(self.sender_id, ts, seq, self._publisher)
        frame = (
            self._attributes(plan, values, header, nonce)
            if plan.whole is None
            else self._whole(plan, plan.whole, values, header, nonce)
        )
        plan.blocks += len(frame) >> 4
        plan.left -= 1
        if not plan.left:
            self._settle(plan)
        return frame

    def _attributes(self, plan: SealPlan, values: Mapping[str, Value], header: bytes, nonce: bytes) -> bytes:
        parts = [header, plan.count]
        for name, encode, encrypt, head, aad, most in plan.steps:
            plain = encode(values[name])
            if len(plain) > most:
                raise EventError(f"{self._type.event_type.name}: attribute {name!r} is longer than its type allows")
            sealed = encrypt(nonce, plain, aad)
            size = len(sealed)
            parts += (head, _SIZES[size] if size < 1024 else U32.pack(size), sealed)
        return b"".join(parts)

    def _whole(
        self,
        plan: SealPlan,
        whole: tuple[Crypt, bytes, bytes],
        values: Mapping[str, Value],
        header: bytes,
        nonce: bytes,
    ) -> bytes:
        parts = [plan.count]
        for name, encode, _, head, _, most in plan.steps:
            plain = encode(values[name])
            if len(plain) > most:
                raise EventError(f"{self._type.event_type.name}: attribute {name!r} is longer than its type allows")
            parts += (head, plain)
        encrypt, epoch, aad = whole
        sealed = encrypt(nonce, b"".join(parts), aad)
        return b"".join((header, epoch, U32.pack(len(sealed)) if epoch else b"", sealed))

    def _settle(self, plan: SealPlan) -> None:
        sealed, blocks = COUNT_EVERY - plan.left, plan.blocks
        plan.left, plan.blocks = COUNT_EVERY, 0
        for key in plan.keys:
            key.count(sealed, blocks)

    # ── Making a plan ──

    def plan_for(self, names: tuple[str, ...], ts_ms: int, now_ms: int) -> SealPlan:
        """The plan for events of this time with these attributes; also for `BatchSealer`."""
        plan = self._plans.get(names)
        if plan is None or plan.changes != self._keyring.changes or not plan.start_ms <= ts_ms < plan.end_ms:
            if plan is not None:
                self._settle(plan)  # What it has sealed counts, however soon it is replaced.
            plan = self._plan(names, ts_ms, now_ms)
        return plan

    def _plan(self, names: tuple[str, ...], ts: int, now_ms: int) -> SealPlan:
        made = self._type
        for name in names:
            made.event_type[name]  # Raises EventError for a name the type does not have.
        if made.mode is Mode.ATTRIBUTE and not names:
            raise EventError(f"{made.event_type.name}: an event that is encrypted by attribute needs at least one")
        ordered = sorted(names, key=made.attr_ids.__getitem__)
        gids = [made.attr_ids[name] for name in ordered] if made.mode is Mode.ATTRIBUTE else made.group_ids
        keys = tuple(self._keyring.for_sealing(gid, ts, now_ms) for gid in gids)
        plan = SealPlan(self._keyring.changes, keys, self._next_epoch(gids, ts))
        plan.count = U16.pack(len(names))
        (self._plan_attributes if made.mode is Mode.ATTRIBUTE else self._plan_whole)(plan, ordered, keys)
        if len(self._plans) >= PLANS_MAX:
            for old in self._plans.values():
                self._settle(old)
            self._plans.clear()
        self._plans[names] = plan
        return plan

    def _next_epoch(self, gids: Sequence[bytes], ts: int) -> int:
        """Until when the plan is valid: the next start of an epoch, or the end of the manager's last beacon."""
        starts = (key.start_ms for gid in gids for key in self._keyring.epochs(gid) if key.start_ms > ts)
        return min(min(starts, default=FOREVER), self._keyring.vouched_until(gids))

    def _plan_attributes(self, plan: SealPlan, ordered: list[str], keys: tuple[KeyEpoch, ...]) -> None:
        made = self._type
        ids = tuple(made.attr_ids[name] for name in ordered)
        manifest = manifest_of(ids)
        for name, id, key in zip(ordered, ids, keys, strict=True):
            aad = made.profile.aad(made.mode, made.type_id, id, key.epoch, manifest)
            encode = encoder(made.event_type[name].type, made.pad_policy)
            head = id + U32.pack(key.epoch)
            plan.steps.append((name, encode, key.cipher("pub").encrypt, head, aad, longest(made, name)))

    def _plan_whole(self, plan: SealPlan, ordered: list[str], keys: tuple[KeyEpoch, ...]) -> None:
        made = self._type
        for name in ordered:
            encode = encoder(made.event_type[name].type, PadPolicy.NONE)
            plan.steps.append((name, encode, _leave, made.attr_ids[name], b"", longest(made, name)))
        if made.mode is Mode.PLAIN:
            plan.whole = (_leave, b"", b"")
            return
        (key,) = keys
        aad = made.profile.aad(made.mode, made.type_id, made.profile.no_id, key.epoch, NO_MANIFEST)
        encrypt = key.cipher("pub").encrypt
        plan.whole = (_padding(encrypt) if made.pad_policy is PadPolicy.BUCKET else encrypt, U32.pack(key.epoch), aad)


def _leave(nonce: bytes, data: bytes, aad: bytes) -> bytes:
    return data


def _padding(encrypt: Crypt) -> Crypt:
    return lambda nonce, data, aad: encrypt(nonce, padded(data), aad)
