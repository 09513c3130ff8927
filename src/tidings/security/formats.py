"""The two profiles of identifiers, nonces and associated data: `modern`, the default, and `paper`, for its figures.

| | modern | paper |
| --- | --- | --- |
| identifiers | SHA-256, 32 bytes, the type's name inside an attribute's | SHA-1, 20 bytes, the bare name |
| cipher | AES-256-GCM (or 0x02, 0x11, 0x12) | AES-128-EAX |
| nonce | sender id, millisecond, counter: 12 bytes | millisecond, publisher's key: 40 bytes |
| nonce of a filter's clause | the same | the same, sender id, counter: 48 bytes |
| associated data | mode, type, attribute, epoch, manifest | type |
| key tree | LKH | OFT |

The suite byte of a frame says which one it is in.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha1, sha256
from typing import TypeAlias

from tidings.security.suites import EAX

_pack_nonce = struct.Struct(">IQ").pack
_COUNT = struct.Struct(">H")
_SENDER_SEQ = struct.Struct(">II")


NonceMaker: TypeAlias = Callable[[int, int, int, bytes], bytes]
"""From sender id, millisecond, counter and the publisher's key."""


def _modern_nonce(sender_id: int, ts_ms: int, seq: int, publisher: bytes) -> bytes:
    return _pack_nonce(sender_id, ts_ms << 20 | seq)


def _paper_nonce(sender_id: int, ts_ms: int, seq: int, publisher: bytes) -> bytes:
    return ts_ms.to_bytes(8, "big") + publisher


@dataclass(frozen=True, slots=True)
class Profile:
    """How identifiers, nonces and associated data are written."""

    name: str
    id_bytes: int
    suite: int
    key_tree: str

    @property
    def is_paper(self) -> bool:
        return self.suite == EAX

    def type_id(self, name: str) -> bytes:
        """The id of a type on the wire.

        >>> MODERN.type_id("pito.police.uk/Numberplate@1").hex()[:16]
        '57876ee7d3d16075'
        """
        return _sha1(name) if self.is_paper else sha256(b"ps/type\0" + name.encode()).digest()

    def attr_id(self, type_name: str, attribute: str) -> bytes:
        """The id of an attribute on the wire. In the paper's profile two types share the id of a shared name."""
        if self.is_paper:
            return _sha1(attribute)
        return sha256(b"ps/attr\0" + type_name.encode() + b"\0" + attribute.encode()).digest()

    @property
    def no_id(self) -> bytes:
        """Takes the place of an attribute's id where a whole event is meant."""
        return bytes(self.id_bytes)

    def nonce(self, sender_id: int, ts_ms: int, seq: int, publisher: bytes) -> bytes:
        return self.nonce_maker(sender_id, ts_ms, seq, publisher)

    @property
    def nonce_maker(self) -> NonceMaker:
        """The function that makes nonces in this profile; callers fetch it once, not for each event."""
        return _paper_nonce if self.is_paper else _modern_nonce

    def filter_nonce(self, sender_id: int, ts_ms: int, seq: int, publisher: bytes) -> bytes:
        """Of one clause of a sealed filter. EAX takes nonces of any length: to the paper's, what tells clauses apart."""
        nonce = self.nonce_maker(sender_id, ts_ms, seq, publisher)
        return nonce + _SENDER_SEQ.pack(sender_id, seq) if self.is_paper else nonce

    def aad(self, mode: int, type_id: bytes, attr_id: bytes, epoch: int, manifest: bytes) -> bytes:
        if self.is_paper:
            return type_id
        return b"".join((b"PS1", bytes((mode,)), type_id, attr_id, epoch.to_bytes(4, "big"), manifest))


def manifest_of(attr_ids: tuple[bytes, ...]) -> bytes:
    """A digest of which attributes an event has: a reader of any of them detects that one was dropped or added."""
    return sha256(b"ps/man/1\0" + _COUNT.pack(len(attr_ids)) + b"".join(attr_ids)).digest()


NO_MANIFEST = bytes(32)  # A whole-event ciphertext contains the list of its attributes.


def _sha1(text: str) -> bytes:
    return sha1(text.encode(), usedforsecurity=False).digest()


MODERN = Profile("modern", id_bytes=32, suite=0x01, key_tree="lkh")
PAPER = Profile("paper", id_bytes=20, suite=EAX, key_tree="oft")
PROFILES = {profile.name: profile for profile in (MODERN, PAPER)}


def profile_of(suite: int) -> Profile:
    """The profile whose frames carry this suite."""
    return PAPER if suite == EAX else MODERN
