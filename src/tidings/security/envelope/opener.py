"""Opening: a frame becomes an event again, as far as the reader's keys go.

`Opener` is one reader of one type: it gives the attributes whose keys it holds and lists the others. An
event is refused as a whole (PeerError) when anything the reader can check is wrong: a tag, the
set of attributes, an epoch out of its time, a second copy. There is no partly believed event.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable
from typing import Literal, NamedTuple, TypeAlias

from cryptography.exceptions import InvalidTag

from tidings.errors import ErrorCode, PeerError
from tidings.events import Value, ValueType, encode_value
from tidings.security.envelope.fast_path import Shapes
from tidings.security.envelope.frame import (
    FLAG_SIGNATURE,
    LAYOUTS,
    MAGIC,
    U32,
    VERSION,
    Frame,
    plain_pairs,
    read_plain_body,
    split,
)
from tidings.security.envelope.nonce import SEQ_MAX, TS_MS_MAX
from tidings.security.envelope.plaintext_cache import FOREVER, PLANS_MAX, Crypt, longest
from tidings.security.envelope.replay import ReplayWindow
from tidings.security.envelope.signing import SignatureReader, digest_of
from tidings.security.envelope.value_codec import Decoder, decoder, unpadded
from tidings.security.formats import NO_MANIFEST, manifest_of
from tidings.security.keys.keyring import KeyEpoch, Keyring
from tidings.security.signed_type import Mode, PadPolicy, SignedType

CacheTrust: TypeAlias = Literal["ignore", "trust", "verify"]
MayPublish: TypeAlias = Callable[[bytes, tuple[bytes, ...]], None]
"""Raises Denied unless the holder of this key may publish these attributes."""


class UnknownEpoch(PeerError):
    """This reader of the group lacks the epoch's key: the key is late, or somebody changed the number."""

    code = ErrorCode.EPOCH

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
    """Everything precomputed for opening events with these attributes, in these epochs."""

    __slots__ = ("attr_ids", "changes", "from_ms", "keys", "sealed", "steps", "to_ms", "unknown")

    def __init__(self, changes: int, attr_ids: tuple[bytes, ...]) -> None:
        self.changes, self.attr_ids = changes, attr_ids
        self.from_ms, self.to_ms = -FOREVER, FOREVER
        self.steps: list[tuple[int, str, Crypt, bytes, Decoder, int]] = []
        self.keys: list[KeyEpoch] = []  # One for each step.
        self.sealed: tuple[bytes, ...] = ()
        self.unknown: tuple[bytes, int] | None = None


class Opener:
    """Opens events of one type with the keys of one ring.

    `replay` is for a live reader: it accepts an event once, and while it is fresh; a reader of
    history leaves it out. With `may_publish` an event must be signed by a key that it permits.
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
            id: (a.name, decoder(a.type, PadPolicy.NONE), longest(signed_type, a.name))
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
        event of which nothing could be verified is not remembered either: without key and signature
        it cannot be distinguished from a forged one. Where the reader is in a group and lacks just
        this epoch it raises UnknownEpoch; a `relay`, which must not lose an event because a key is
        late, treats the attribute as unreadable instead.
        """
        if self._is_plain:
            opened = self._plain_at_once(frame, now_ms, wanted)
        else:
            opened = self._by_shape(frame, now_ms, wanted) if cache == "trust" else None
        if opened is not None:
            return opened
        parts = frame if isinstance(frame, Frame) else split(frame)
        if not parts.raw.startswith(self._prefix):
            raise PeerError(self._mismatch(parts))
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
        """The event of a frame with attached plaintext, if its shape is known; None if it must be read in full."""
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

    def _plain_at_once(self, frame: bytes | Frame, now_ms: int, wanted: Collection[str] | None) -> Opened | None:
        """The event of a plain frame without signature, read once from front to end; None if it must be read in full."""
        if type(frame) is not bytes or self._may_publish is not None or not frame.startswith(self._prefix):
            return None
        layout = self._layout
        try:
            *_, type_id, sender_id, ts_ms, seq, flags = layout.header.unpack_from(frame)
            if flags or seq > SEQ_MAX or ts_ms > TS_MS_MAX:
                return None
            ids, raws, end = plain_pairs(frame, layout.header_bytes, layout)
        except (struct.error, PeerError):
            return None  # Which check failed is for the full reading to say.
        if end != len(frame):
            return None
        if self._replay is not None:
            self._replay.check(type_id, sender_id, ts_ms, seq, now_ms)
        values = self._read_pairs(ids, raws, wanted)
        if self._replay is not None and values:
            self._replay.accept(type_id, sender_id, ts_ms, seq, now_ms)
        return Opened(type_id, sender_id, ts_ms, seq, values, (), None)

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
            raise PeerError("cache: holds an attribute that the event does not have", code=ErrorCode.CACHE)
        known = self._read_pairs(cached, cached.values(), wanted, complete=self._type.mode is Mode.EVENT)
        if cache == "trust" and self._type.mode is Mode.EVENT:
            return known
        if cache == "trust":
            names = [name for _, name, *_ in plan.steps if name not in known and (wanted is None or name in wanted)]
            return {**known, **(self._decrypted(parts, plan, names) if names else {})}
        true = self._decrypted(parts, plan, wanted)
        if any(name in true and not _same(true[name], value) for name, value in known.items()):
            raise PeerError("cache: contradicts the sealed event", code=ErrorCode.CACHE)
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

    def _mismatch(self, parts: Frame) -> str:
        if parts.type_id != self._type.type_id:
            return f"type: the frame is of {parts.type_id.hex()[:16]}…, not {self._type.event_type.name}"
        if parts.suite != self._type.suite:
            return f"suite: {parts.suite:#04x}; {self._type.event_type.name} uses {self._type.suite:#04x}"
        return (
            f"mode: {Mode(parts.mode).name.lower()}; {self._type.event_type.name} uses {self._type.mode.name.lower()}"
        )

    # ── Making a plan ──

    def has_fast_path(self, size: int) -> bool:
        """Whether frames of this size are first tried against a known shape; see `fast_path`."""
        return self._shapes.get(size) is not None

    def plan_for(self, parts: Frame) -> OpenPlan:
        """The plan for frames with these attributes in these epochs; raises PeerError if they cannot exist."""
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


def _same(one: Value, other: Value) -> bool:
    return encode_value(one) == encode_value(other)
