"""Frames: the bytes of one event on the wire, split into their parts without decrypting anything.

    header     magic 0x50 · version 1 · mode · suite · type id 32 · sender id 4 · ms 8 · seq 4 · flags 2
    event      epoch 4 · length 4 · ciphertext and tag
    attribute  count 2 · count × (attribute id 32 · epoch 4 · length 4 · ciphertext and tag), in id order
    plain      count 2 · count × (attribute id 32 · value)
    cache      count 2 · count × (attribute id 32 · value)                if flag 1
    signature  see signing.py                                              if flag 2

All numbers are big-endian. In the paper's profile ids have 20 bytes and the publisher's key, which
its nonce needs, follows the header. Whatever bytes come in, `split` returns a Frame or raises
PeerError, and holds no more memory than the frame itself.
"""

from __future__ import annotations

import itertools
import struct
from typing import NamedTuple

from tidings.errors import PeerError
from tidings.security.envelope.nonce import SEQ_MAX, TS_MS_MAX
from tidings.security.envelope.value_codec import value_size
from tidings.security.formats import MODERN, PAPER, Profile, profile_of
from tidings.security.signed_type import Mode
from tidings.security.suites import SUITES, suite_of

MAGIC, VERSION = 0x50, 1
FLAG_CACHE, FLAG_SIGNATURE, FLAG_DIGEST = 1, 2, 4
FILTER = 0x10  # Set in the mode of a sealed subscription.
FRAME_BYTES_MAX = 2**24  # Sixteen megabytes: more is a file, not an event.
PUBLISHER_BYTES = 32
U16, U32, U32_PAIR = struct.Struct(">H"), struct.Struct(">I"), struct.Struct(">II")


_PLAIN, _EVENT, _ATTRIBUTE = (int(mode) for mode in Mode)  # Comparing with an enum's members costs four times as much.


class FrameLayout:
    """Where things are in the frames of one profile."""

    __slots__ = ("flags_at", "head_bytes", "header", "header_bytes", "id_bytes", "profile")

    def __init__(self, profile: Profile) -> None:
        self.profile, self.id_bytes = profile, profile.id_bytes
        self.header = struct.Struct(f">BBBB{profile.id_bytes}sIQIH")
        self.flags_at = self.header.size - 2
        self.header_bytes = self.header.size + (PUBLISHER_BYTES if profile.is_paper else 0)
        self.head_bytes = profile.id_bytes + 4  # An attribute's id and epoch: what chooses its key.


LAYOUTS = {suite: FrameLayout(PAPER if profile_of(suite).is_paper else MODERN) for suite in SUITES}


class Frame(NamedTuple):
    """A frame in parts. A tuple and not a dataclass: making one is on the path of every event.

    `heads` and `bodies` go together: attribute id and epoch, ciphertext and tag (or the plain value).
    `body_end` is where the publisher's part ends and the part that a relay may add begins: `cached_pairs`,
    the ids and values of the plaintext that it attached, if it did.
    """

    raw: bytes
    layout: FrameLayout
    mode: int
    suite: int
    type_id: bytes
    sender_id: int
    ts_ms: int
    seq: int
    flags: int
    publisher: bytes
    heads: tuple[bytes, ...]
    bodies: list[bytes]
    body_end: int
    cache_end: int
    cached_pairs: tuple[list[bytes], list[bytes]] | None

    def __repr__(self) -> str:
        """Shows no content: a frame may carry plaintext for the next hop, which must not end up in a log."""
        return f"Frame({self.type_id.hex()[:16]}…, {self.sender_id}/{self.ts_ms}/{self.seq}, {len(self.raw)} bytes)"

    @property
    def event_id(self) -> tuple[bytes, int, int, int]:
        """Unique for the life of the type."""
        return self.type_id, self.sender_id, self.ts_ms, self.seq

    @property
    def attr_ids(self) -> tuple[bytes, ...]:
        """Which attributes there are, as far as the frame shows; raises PeerError unless in order, each once."""
        ids = tuple(head[: self.layout.id_bytes] for head in self.heads)
        if any(one >= other for one, other in itertools.pairwise(ids)):
            raise PeerError("frame: attributes out of order or repeated")
        return ids

    @property
    def signature(self) -> bytes:
        return self.raw[self.cache_end :]

    @property
    def signed(self) -> bytes:
        """What a signature covers: header and ciphertexts, with the relays' cache flag off."""
        return _with_flags(self.raw[: self.body_end], self.layout, self.flags & ~FLAG_CACHE)

    @property
    def cache(self) -> dict[bytes, bytes]:
        """The plaintext that a relay attached, by attribute id. Only that relay vouches for it."""
        return dict(zip(*self.cached_pairs, strict=True)) if self.cached_pairs else {}


_make_frame = Frame._make


def split(raw: bytes) -> Frame:
    """An event's frame in parts; raises PeerError naming what is wrong with it."""
    try:
        return _split(raw)
    except struct.error:
        raise PeerError("frame: cut short") from None


def _split(raw: bytes) -> Frame:
    layout = layout_of(raw)
    _, _, mode, suite, type_id, sender_id, ts_ms, seq, flags = layout.header.unpack_from(raw)
    if seq > SEQ_MAX or ts_ms > TS_MS_MAX or flags > 3:
        raise PeerError("header: time, counter or flags out of range")
    at = layout.header_bytes
    publisher = raw[layout.header.size : at]
    if mode == _ATTRIBUTE:
        heads, bodies, at = sealed_pairs(raw, at, layout)
    elif mode == _EVENT:
        (size,) = U32.unpack_from(raw, at + 4)
        heads, bodies, at = (raw[at : at + 4],), [raw[at + 8 : at + 8 + size]], at + 8 + size
    elif mode == _PLAIN:
        ids, bodies, at = plain_pairs(raw, at, layout)
        heads = tuple(ids)
    else:
        raise PeerError(f"header: {mode} is no mode of an event")
    cached_pairs, cache_end = None, at
    if flags & FLAG_CACHE:
        ids, values, cache_end = plain_pairs(raw, at, layout)
        cached_pairs = ids, values
    if cache_end > len(raw) or (cache_end < len(raw)) != bool(flags & FLAG_SIGNATURE):
        raise PeerError("frame: cut short, or more than its header says")
    return _make_frame(
        (
            raw,
            layout,
            mode,
            suite,
            type_id,
            sender_id,
            ts_ms,
            seq,
            flags,
            publisher,
            heads,
            bodies,
            at,
            cache_end,
            cached_pairs,
        )
    )


def layout_of(raw: bytes) -> FrameLayout:
    """The layout a frame announces; raises PeerError if it announces none."""
    if len(raw) > FRAME_BYTES_MAX:
        raise PeerError(f"frame: {len(raw)} bytes; at most {FRAME_BYTES_MAX} are allowed")
    if len(raw) < 4 or raw[0] != MAGIC:
        raise PeerError("header: not a Tidings frame")
    if raw[1] != VERSION:
        raise PeerError(f"version: {raw[1]} is unknown; expected {VERSION}")
    return LAYOUTS.get(raw[3]) or LAYOUTS[suite_of(raw[3]).id]


def sealed_pairs(raw: bytes, at: int, layout: FrameLayout) -> tuple[tuple[bytes, ...], list[bytes], int]:
    """Heads and bodies of sealed attributes, and where they end. Never more of them than fit in the frame."""
    (count,) = U16.unpack_from(raw, at)
    at += 2
    step = layout.head_bytes
    if count * (step + 4) > len(raw) - at:
        raise PeerError("frame: cut short")
    heads, bodies, size_at = [], [], U32.unpack_from
    for _ in range(count):
        mid = at + step
        start = mid + 4
        end = start + size_at(raw, mid)[0]
        heads.append(raw[at:mid])
        bodies.append(raw[start:end])
        at = end
    return tuple(heads), bodies, at


def plain_pairs(raw: bytes, at: int, layout: FrameLayout) -> tuple[list[bytes], list[bytes], int]:
    """Ids and encoded values, and where they end; in the order of the ids, each once."""
    (count,) = U16.unpack_from(raw, at)
    at += 2
    step, last = layout.id_bytes, b""
    if count * (step + 2) > len(raw) - at:
        raise PeerError("frame: cut short")
    ids, values = [], []
    for _ in range(count):
        mid = at + step
        id = raw[at:mid]
        if id <= last:
            raise PeerError("frame: attributes out of order or repeated")
        at = mid + value_size(raw, mid)
        ids.append(id)
        values.append(raw[mid:at])
        last = id
    return ids, values, at


def plain_body(pairs: list[tuple[bytes, bytes]]) -> bytes:
    """Attribute ids and values, as the body of a plain event, a cache or an event-mode plaintext."""
    return U16.pack(len(pairs)) + b"".join(part for pair in pairs for part in pair)


def read_plain_body(raw: bytes, layout: FrameLayout) -> tuple[list[bytes], list[bytes]]:
    """The ids and values that `plain_body` wrote; raises PeerError for anything else."""
    try:
        ids, values, end = plain_pairs(raw, 0, layout)
    except struct.error:
        raise PeerError("frame: cut short") from None
    if end != len(raw):
        raise PeerError("frame: more than its count says")
    return ids, values


def with_cache(frame: Frame, pairs: list[tuple[bytes, bytes]]) -> bytes:
    """The frame with this cache instead of the one it had; no pairs, no cache. Ciphertexts stay untouched."""
    flags = frame.flags & ~FLAG_CACHE | (FLAG_CACHE if pairs else 0)
    body = _with_flags(frame.raw[: frame.body_end], frame.layout, flags)
    return b"".join((body, plain_body(sorted(pairs)) if pairs else b"", frame.signature))


def _with_flags(raw: bytes, layout: FrameLayout, flags: int) -> bytes:
    return b"".join((raw[: layout.flags_at], U16.pack(flags), raw[layout.flags_at + 2 :]))
