"""Envelopes: an event sealed by its publisher, opened as far as the reader's keys go.

`Sealer` is one worker of a publisher: it owns a sender id and never uses a moment twice. `Opener`
is one reader of one type: it gives the attributes whose keys it holds and lists the others. An
event is refused as a whole (PeerError) when anything the reader can check is wrong: a tag, the
set of attributes, an epoch out of its time, a second copy. There is no partly believed event.

Ciphers, associated data and the order of attributes depend only on which attributes an event has
and on their epochs. They are worked out once and kept as a plan, so that an attribute costs its
encryption and little else.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

from cryptography.exceptions import InvalidTag

from tidings.errors import EventError, PeerError
from tidings.events import Value, ValueType, encode_value
from tidings.security.frame import (
    FLAG_SIGNATURE,
    LAYOUTS,
    MAGIC,
    U16,
    U32,
    VERSION,
    Frame,
    plain_pairs,
    read_plain_body,
    split,
    with_cache,
)
from tidings.security.identity import Identity
from tidings.security.keyring import KeyEpoch, Keyring
from tidings.security.nonce import SEQ_MAX, TS_MS_MAX, Moments
from tidings.security.plaintext import Decoder, Encoder, decoder, encoder, padded, unpadded
from tidings.security.profile import NO_MANIFEST, manifest_of
from tidings.security.replay import ReplayWindow
from tidings.security.rights import AttributeSet, Right
from tidings.security.shape import Shapes
from tidings.security.signing import BATCH_MAX, SignatureReader, digest_of, sign_batch, sign_each
from tidings.security.types import Mode, PadPolicy, SignedType

PLANS_MAX = 4096  # Attribute sets in use at a time; beyond it plans are made anew, which is only slower.
COUNT_EVERY = 65_536  # Events between two looks at how much a key has sealed; far below its limit.

Signing: TypeAlias = Literal["none", "each", "batch"]
CacheTrust: TypeAlias = Literal["ignore", "trust", "verify"]
MayPublish: TypeAlias = Callable[[bytes, tuple[bytes, ...]], None]
"""Raises Denied unless the holder of this key may publish these attributes."""

Crypt: TypeAlias = Callable[[bytes, bytes, bytes], bytes]
_FOREVER = 2**63
_MOMENT = struct.Struct(">QIH")  # The end of every header: millisecond, counter, flags.
_SIZES = tuple(U32.pack(size) for size in range(1024))


class SealPlan:
    """What sealing events with one set of attributes takes, until an epoch changes."""

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
        self._moments = Moments(grace_ms=signed_type.grace_ms, per_ms=1 if paper else SEQ_MAX + 1)
        self.sender_id = sender_id
        self._flags = 0 if signing == "none" else FLAG_SIGNATURE
        self._prefix = self._layout.header.pack(
            MAGIC, VERSION, signed_type.mode, signed_type.suite, signed_type.type_id, sender_id, 0, 0, 0
        )[: -_MOMENT.size]
        self._nonce = signed_type.profile.nonce_maker
        self._plans: dict[tuple[str, ...], SealPlan] = {}

    def seal(self, values: Mapping[str, Value], now_ms: int) -> bytes:
        """One event as a frame.

        Raises NotYet where the clock or the next key has to be waited for, Denied where there is no
        key or the manager was not heard of, EventError where the values do not fit the type.
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

    def _unsigned(self, values: Mapping[str, Value], now_ms: int) -> bytes:
        ts, seq = self._moments.take(now_ms)
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
        for key in plan.keys:
            key.count(COUNT_EVERY, plan.blocks)
        plan.left, plan.blocks = COUNT_EVERY, 0

    # ── Making a plan ──

    def plan_for(self, names: tuple[str, ...], ts_ms: int, now_ms: int) -> SealPlan:
        """What sealing events of this time with these attributes takes; for who seals many at once."""
        plan = self._plans.get(names)
        if plan is None or plan.changes != self._keyring.changes or not plan.start_ms <= ts_ms < plan.end_ms:
            plan = self._plan(names, ts_ms, now_ms)
        return plan

    def _plan(self, names: tuple[str, ...], ts: int, now_ms: int) -> SealPlan:
        made = self._type
        for name in names:
            made.event_type[name]  # Raises EventError for a name the type does not have.
        if made.mode is Mode.ATTRIBUTE and not names:
            raise EventError(f"{made.event_type.name}: an event sealed by attribute needs one to be sealed by")
        ordered = sorted(names, key=made.attr_ids.__getitem__)
        gids = [made.attr_ids[name] for name in ordered] if made.mode is Mode.ATTRIBUTE else made.group_ids
        keys = tuple(self._keyring.for_sealing(gid, ts, now_ms) for gid in gids)
        plan = SealPlan(self._keyring.changes, keys, self._next_epoch(gids, ts))
        plan.count = U16.pack(len(names))
        (self._plan_attributes if made.mode is Mode.ATTRIBUTE else self._plan_whole)(plan, ordered, keys)
        if len(self._plans) >= PLANS_MAX:
            self._plans.clear()
        self._plans[names] = plan
        return plan

    def _next_epoch(self, gids: Sequence[bytes], ts: int) -> int:
        """Until when the plan holds: the next start of an epoch, or the end of the manager's last word."""
        starts = (key.start_ms for gid in gids for key in self._keyring.epochs(gid) if key.start_ms > ts)
        return min(min(starts, default=_FOREVER), self._keyring.vouched_until(gids))

    def _plan_attributes(self, plan: SealPlan, ordered: list[str], keys: tuple[KeyEpoch, ...]) -> None:
        made = self._type
        ids = tuple(made.attr_ids[name] for name in ordered)
        manifest = manifest_of(ids)
        for name, id, key in zip(ordered, ids, keys, strict=True):
            aad = made.profile.aad(made.mode, made.type_id, id, key.epoch, manifest)
            encode = encoder(made.event_type[name].type, made.pad_policy)
            head = id + U32.pack(key.epoch)
            plan.steps.append((name, encode, key.cipher("pub").encrypt, head, aad, _longest(made, name)))

    def _plan_whole(self, plan: SealPlan, ordered: list[str], keys: tuple[KeyEpoch, ...]) -> None:
        made = self._type
        for name in ordered:
            encode = encoder(made.event_type[name].type, PadPolicy.NONE)
            plan.steps.append((name, encode, _leave, made.attr_ids[name], b"", _longest(made, name)))
        if made.mode is Mode.PLAIN:
            plan.whole = (_leave, b"", b"")
            return
        (key,) = keys
        aad = made.profile.aad(made.mode, made.type_id, made.profile.no_id, key.epoch, NO_MANIFEST)
        encrypt = key.cipher("pub").encrypt
        plan.whole = (_padding(encrypt) if made.pad_policy is PadPolicy.BUCKET else encrypt, U32.pack(key.epoch), aad)


class UnknownEpoch(PeerError):
    """A reader of this group lacks this epoch's key: it is late, or somebody changed the number."""

    def __init__(self, gid: bytes, epoch: int) -> None:
        super().__init__(gid, epoch)
        self.gid, self.epoch = gid, epoch

    def __str__(self) -> str:
        return f"epoch: {self.epoch} of group {self.gid.hex()[:16]}… is not among the keys held"


class Opened(NamedTuple):
    """An event as far as one reader sees it. A tuple for speed, like Frame.

    `sealed` names the key groups whose key the reader lacks; `signer` is the publisher's key where
    signatures are asked for.
    """

    type_id: bytes
    sender_id: int
    ts_ms: int
    seq: int
    values: dict[str, Value]
    sealed: tuple[bytes, ...]
    signer: bytes | None


class OpenPlan:
    """What opening events with these attributes, in these epochs, takes."""

    __slots__ = ("attr_ids", "changes", "from_ms", "keys", "sealed", "steps", "to_ms", "unknown")

    def __init__(self, changes: int, attr_ids: tuple[bytes, ...]) -> None:
        self.changes, self.attr_ids = changes, attr_ids
        self.from_ms, self.to_ms = -_FOREVER, _FOREVER
        self.steps: list[tuple[int, str, Crypt, bytes, Decoder, int]] = []
        self.keys: list[KeyEpoch] = []  # One for each step.
        self.sealed: tuple[bytes, ...] = ()
        self.unknown: tuple[bytes, int] | None = None


class Opener:
    """Opens events of one type with the keys of one ring.

    `replay` belongs to a live reader: an event is then taken once, and while fresh; a reader of
    history leaves it out. With `may_publish` an event must be signed, and by a key it lets pass.
    """

    def __init__(
        self,
        signed_type: SignedType,
        keyring: Keyring,
        *,
        replay: ReplayWindow | None = None,
        may_publish: MayPublish | None = None,
    ) -> None:
        self._type, self._keyring, self._replay, self._may_publish = signed_type, keyring, replay, may_publish
        self._signatures = SignatureReader()
        self._layout = LAYOUTS[signed_type.suite]
        self._prefix = bytes((MAGIC, VERSION, signed_type.mode, signed_type.suite)) + signed_type.type_id
        self._nonce = signed_type.profile.nonce_maker
        self._is_plain, self._is_event = signed_type.mode is Mode.PLAIN, signed_type.mode is Mode.EVENT
        self._is_padded = signed_type.pad_policy is PadPolicy.BUCKET
        self._plans: dict[tuple[bytes, ...], OpenPlan] = {}
        self._shapes = Shapes()
        self._readers = {
            id: (a.name, decoder(a.type, PadPolicy.NONE), _longest(signed_type, a.name))
            for id, a in signed_type.attributes_by_id.items()
        }
        self._required = [a.name for a in signed_type.event_type if a.required]

    def open_(
        self,
        frame: bytes | Frame,
        now_ms: int,
        *,
        wanted: Collection[str] | None = None,
        cache: CacheTrust = "ignore",
        relay: bool = False,
    ) -> Opened:
        """The event's readable attributes, or of those only the `wanted` ones.

        Raises PeerError naming the check that failed, and remembers nothing of such an event. An
        event of which nothing could be checked is not remembered either: with no key and no
        signature there is no telling it from a forged one. Where the reader is in a group and lacks
        just this epoch it raises UnknownEpoch; a `relay`, which must not lose an event because a key
        is late, takes the attribute for unreadable instead.
        """
        if cache == "trust" and (opened := self._by_shape(frame, now_ms, wanted)) is not None:
            return opened
        parts = frame if isinstance(frame, Frame) else split(frame)
        if not parts.raw.startswith(self._prefix):
            raise PeerError(self._why_not_ours(parts))
        if self._replay is not None:
            self._replay.check(parts.type_id, parts.sender_id, parts.ts_ms, parts.seq, now_ms)
        plan = self.plan_for(parts)
        if plan.unknown is not None and not relay:
            raise UnknownEpoch(*plan.unknown)
        signer = None if self._may_publish is None else self._signer(parts, plan, self._may_publish)
        if not plan.from_ms <= parts.ts_ms < plan.to_ms:
            raise PeerError(f"epoch: published at {parts.ts_ms} ms, outside {plan.from_ms} to {plan.to_ms} ms")
        values = self._values(parts, plan, wanted, cache)
        if self._replay is not None and (values or signer):
            self._replay.accept(parts.type_id, parts.sender_id, parts.ts_ms, parts.seq, now_ms)
        return Opened(parts.type_id, parts.sender_id, parts.ts_ms, parts.seq, values, plan.sealed, signer)

    def _values(
        self, parts: Frame, plan: OpenPlan, wanted: Collection[str] | None, cache: CacheTrust
    ) -> dict[str, Value]:
        if self._is_plain:
            return self._read_pairs(parts.heads, parts.bodies, wanted)
        if cache != "ignore" and (cached := parts.cache):
            values = self._with_cached(parts, plan, wanted, cache, cached)
            if (
                cache == "trust"
                and self._may_publish is None
                and plan.unknown is None
                and len(plan.steps) == len(parts.heads)
            ):
                self._shapes.learn(parts, plan)
            return values
        return self._decrypted(parts, plan, wanted)

    def _by_shape(self, frame: bytes | Frame, now_ms: int, wanted: Collection[str] | None) -> Opened | None:
        """The event of a frame whose plaintext came along, if its shape is known; None leaves it to the long way."""
        raw = frame if type(frame) is bytes else frame.raw  # type: ignore[union-attr]
        shape = self._shapes.get(len(raw))
        if shape is None:
            return None
        fields = shape.unpack.unpack_from(raw)
        prefix, sender_id, ts_ms, seq = fields[:4]
        plan: OpenPlan = shape.plan
        if (
            prefix != shape.prefix
            or fields[4:] != shape.rest
            or seq > SEQ_MAX
            or ts_ms > TS_MS_MAX
            or not plan.from_ms <= ts_ms < plan.to_ms
            or plan.changes != self._keyring.changes
        ):
            return None
        ids, raws, end = plain_pairs(raw, shape.cache_at, self._layout)
        if end != len(raw) or not (self._is_event or tuple(ids) == plan.attr_ids):
            return None
        type_id = self._type.type_id
        if self._replay is not None:
            self._replay.check(type_id, sender_id, ts_ms, seq, now_ms)
        values = self._read_pairs(ids, raws, wanted)
        if self._replay is not None and values:
            self._replay.accept(type_id, sender_id, ts_ms, seq, now_ms)
        return Opened(type_id, sender_id, ts_ms, seq, values, plan.sealed, None)

    def _decrypted(self, parts: Frame, plan: OpenPlan, wanted: Collection[str] | None) -> dict[str, Value]:
        nonce = self._nonce(parts.sender_id, parts.ts_ms, parts.seq, parts.publisher)
        values: dict[str, Value] = {}
        bodies = parts.bodies
        try:
            if self._is_event:
                return self._decrypted_whole(nonce, bodies[0], plan, wanted)
            for index, name, decrypt, aad, decode, most in plan.steps:
                if wanted is None or name in wanted:
                    plain = decrypt(nonce, bodies[index], aad)
                    if len(plain) > most:
                        raise PeerError(f"value: {name!r} is longer than its type allows")
                    values[name] = decode(plain)
        except (InvalidTag, ValueError):  # ValueError: shorter than any ciphertext, in some ciphers.
            raise PeerError("tag: the event was altered, or sealed under another key") from None
        return values

    def _decrypted_whole(
        self, nonce: bytes, body: bytes, plan: OpenPlan, wanted: Collection[str] | None
    ) -> dict[str, Value]:
        for _, _, decrypt, aad, _, _ in plan.steps:  # One, or none where there is no key.
            plain = decrypt(nonce, body, aad)
            ids, raws = read_plain_body(unpadded(plain) if self._is_padded else plain, self._layout)
            return self._read_pairs(ids, raws, wanted)
        return {}

    def _with_cached(
        self,
        parts: Frame,
        plan: OpenPlan,
        wanted: Collection[str] | None,
        cache: CacheTrust,
        cached: dict[bytes, bytes],
    ) -> dict[str, Value]:
        if self._type.mode is Mode.ATTRIBUTE and any(id not in plan.attr_ids for id in cached):
            raise PeerError("cache: holds an attribute that the event has not")
        told = self._read_pairs(cached, cached.values(), wanted, complete=self._type.mode is Mode.EVENT)
        if cache == "trust" and self._type.mode is Mode.EVENT:
            return told
        if cache == "trust":
            names = [name for _, name, *_ in plan.steps if name not in told and (wanted is None or name in wanted)]
            return {**told, **(self._decrypted(parts, plan, names) if names else {})}
        true = self._decrypted(parts, plan, wanted)
        if any(name in true and not _same(true[name], value) for name, value in told.items()):
            raise PeerError("cache: says otherwise than the sealed event")
        return true

    def _read_pairs(
        self, ids: Iterable[bytes], raws: Iterable[bytes], wanted: Collection[str] | None, complete: bool = True
    ) -> dict[str, Value]:
        values: dict[str, Value] = {}
        readers = self._readers
        for id, raw in zip(ids, raws, strict=True):
            reader = readers.get(id)
            if reader is None:
                raise PeerError(f"attribute: {id.hex()[:16]}… is none of {self._type.event_type.name}")
            name, decode, most = reader
            if len(raw) > most:
                raise PeerError(f"value: {name!r} is longer than its type allows")
            values[name] = decode(raw)
        if complete and self._required:
            self._need_required(values)
        return values if wanted is None else {name: value for name, value in values.items() if name in wanted}

    def _need_required(self, names: Collection[str]) -> None:
        for name in self._required:
            if name not in names:
                raise PeerError(f"attribute: {name!r} is required and missing")

    def _signer(self, parts: Frame, plan: OpenPlan, may_publish: MayPublish) -> bytes:
        if not parts.flags & FLAG_SIGNATURE:
            raise PeerError("signature: the event is not signed, and this reader asks for it")
        signer = self._signatures.signer(parts.signature, digest_of(parts.signed))
        may_publish(signer, plan.attr_ids)
        return signer

    def _why_not_ours(self, parts: Frame) -> str:
        if parts.type_id != self._type.type_id:
            return f"type: the frame is of {parts.type_id.hex()[:16]}…, not {self._type.event_type.name}"
        if parts.suite != self._type.suite:
            return f"suite: {parts.suite:#04x}; {self._type.event_type.name} uses {self._type.suite:#04x}"
        return (
            f"mode: {Mode(parts.mode).name.lower()}; {self._type.event_type.name} uses {self._type.mode.name.lower()}"
        )

    # ── Making a plan ──

    def plan_for(self, parts: Frame) -> OpenPlan:
        """What opening frames with these attributes in these epochs takes; raises PeerError if there are none such."""
        plan = self._plans.get(parts.heads)
        if plan is None or plan.changes != self._keyring.changes:
            plan = self._plan(parts)
        return plan

    def _plan(self, parts: Frame) -> OpenPlan:
        if self._type.mode is Mode.ATTRIBUTE:
            plan = self._plan_attributes(parts)
        else:
            plan = OpenPlan(self._keyring.changes, tuple(self._type.attr_ids.values()))
            if self._type.mode is Mode.EVENT:
                self._plan_whole(plan, parts)
        if len(self._plans) >= PLANS_MAX:
            self._plans.clear()
        self._plans[parts.heads] = plan
        return plan

    def _plan_attributes(self, parts: Frame) -> OpenPlan:
        made, ids = self._type, parts.attr_ids
        for id in ids:
            if id not in self._readers:
                raise PeerError(f"attribute: {id.hex()[:16]}… is none of {made.event_type.name}")
        if not ids:
            raise PeerError("attribute: an event sealed by attribute has none")
        self._need_required([self._readers[id][0] for id in ids])
        plan = OpenPlan(self._keyring.changes, ids)
        manifest = manifest_of(ids)
        for index, (id, head) in enumerate(zip(ids, parts.heads, strict=True)):
            (epoch,) = U32.unpack_from(head, self._layout.id_bytes)
            name, _, most = self._readers[id]
            decode = decoder(made.attributes_by_id[id].type, made.pad_policy)
            self._plan_one(plan, index, name, id, id, epoch, manifest, decode, most)
        return plan

    def _plan_whole(self, plan: OpenPlan, parts: Frame) -> None:
        (epoch,) = U32.unpack(parts.heads[0])
        made = self._type
        nowhere = decoder(ValueType.BYTES, PadPolicy.NONE)
        self._plan_one(plan, 0, "", made.type_id, made.profile.no_id, epoch, NO_MANIFEST, nowhere, 0)

    def _plan_one(
        self,
        plan: OpenPlan,
        index: int,
        name: str,
        gid: bytes,
        id: bytes,
        epoch: int,
        manifest: bytes,
        decode: Decoder,
        most: int,
    ) -> None:
        key = self._keyring.get(gid, epoch)
        if key is None:
            plan.sealed += (gid,)
            if self._keyring.epochs(gid):
                plan.unknown = gid, epoch
            return
        start, end = self._keyring.window(key)
        plan.from_ms, plan.to_ms = max(plan.from_ms, start), min(plan.to_ms, end)
        aad = self._type.profile.aad(self._type.mode, self._type.type_id, id, epoch, manifest)
        plan.steps.append((index, name, key.cipher("pub").decrypt, aad, decode, most))
        plan.keys.append(key)


def project(signed_type: SignedType, values: Mapping[str, Value], allowed: Right | AttributeSet) -> dict[str, Value]:
    """Of `values`, those that the right is for: what may be shown to its holder."""
    ids = allowed.attributes if isinstance(allowed, Right) else allowed
    return {name: value for name, value in values.items() if ids is None or signed_type.attr_ids[name] in ids}


def cached(signed_type: SignedType, frame: Frame, values: Mapping[str, Value], allowed: AttributeSet) -> bytes:
    """The frame for one neighbour: its ciphertexts untouched, the plaintext `allowed` to that neighbour beside them.

    Whatever cache came in is left behind. An event sealed as one is cached wholly or not at all.
    """
    if signed_type.mode is Mode.EVENT and allowed is not None and not allowed.issuperset(signed_type.attr_ids.values()):
        allowed = frozenset()
    shown = project(signed_type, values, allowed) if signed_type.mode is not Mode.PLAIN else {}
    return with_cache(frame, [(signed_type.attr_ids[name], encode_value(value)) for name, value in shown.items()])


def uncached(frame: Frame) -> bytes:
    """The frame without plaintext: the only form that may be kept."""
    return with_cache(frame, [])


def _leave(nonce: bytes, data: bytes, aad: bytes) -> bytes:
    return data


def _padding(encrypt: Crypt) -> Crypt:
    return lambda nonce, data, aad: encrypt(nonce, padded(data), aad)


def _same(one: Value, other: Value) -> bool:
    return encode_value(one) == encode_value(other)


def _longest(made: SignedType, name: str) -> int:
    """The longest plaintext of this attribute: five bytes of head, and padding where there is some."""
    most = made.max_len_of(name) + 5
    return len(padded(bytes(most))) if made.pad_policy is PadPolicy.BUCKET else max(most, 9)
