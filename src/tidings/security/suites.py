"""The ciphers an event type may choose, by the number its frames carry.

| id | cipher | nonce | Spark's `aes_encrypt` | for |
| --- | --- | --- | --- | --- |
| 0x01 | AES-256-GCM | 12 | yes | the default |
| 0x02 | AES-128-GCM | 12 | yes | smaller keys |
| 0x10 | AES-128-EAX | any | no | reproducing the paper |
| 0x11 | AES-256-GCM-SIV | 12 | no | live only; forgives a repeated nonce |
| 0x12 | AES-256-OCB3 | 12 | no | live only |

A cipher object costs more to build than to use: build one per content key and keep it.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.ciphers import Cipher as BlockCipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, AESGCMSIV, AESOCB3
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC, CTR, ECB

from tidings.errors import PeerError, SetupError

TAG_BYTES = 16
EAX_TAG_BYTES_MIN = 4  # Shorter tags are guessed in minutes; the paper leaves the length to the type.


class Cipher(Protocol):
    """Authenticated encryption under one key. `decrypt` raises `InvalidTag` and nothing else."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes, /) -> bytes: ...

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes, /) -> bytes: ...


class Eax:
    """AES in EAX mode (Bellare, Rogaway, Wagner 2004), made of OMAC and CTR: any nonce length, any tag length.

    Attributes are a few blocks long, and there the library's CMAC and CTR objects cost ten times what their AES does.
    So one AES context in CBC mode is kept for all OMACs (what it chains from is taken out of the first block), and one
    in ECB mode for short texts. The OMAC of a header, the same for all events of a shape, is kept too.
    Not for several threads at once.
    """

    __slots__ = ("_aes", "_block", "_chain", "_chained", "_empty", "_headers", "_masks", "_start", "_tag_bytes")

    def __init__(self, key: bytes, tag_bytes: int = TAG_BYTES) -> None:
        self._aes, self._tag_bytes = AES(key), tag_bytes
        ecb = ECB()  # noqa: S305  What it encrypts are counters, which makes it CTR.
        self._block = BlockCipher(self._aes, ecb).encryptor().update
        self._chain = BlockCipher(self._aes, CBC(bytes(16))).encryptor().update
        self._chained = 0  # The last block that came out of the chain.
        whole = _doubled(_number(self._block(bytes(16))))
        self._masks = whole, _doubled(whole)
        # OMAC begins with a block that names its role: nonce, header or message.
        self._start = [_number(self._block(role.to_bytes(16))) for role in range(3)]
        self._empty = [_number(self._block((role ^ whole).to_bytes(16))) for role in range(3)]
        self._headers: dict[bytes, int] = {}

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes, /) -> bytes:
        start = self._omac(0, nonce)
        body = self._stream(start, data)
        return body + self._tag(start, associated_data, body)

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes, /) -> bytes:
        cut = len(data) - self._tag_bytes
        if cut < 0:
            raise InvalidTag
        body, start = bytes(data[:cut]), self._omac(0, nonce)
        if not hmac.compare_digest(self._tag(start, associated_data, body), bytes(data[cut:])):
            raise InvalidTag
        return self._stream(start, body)

    def _stream(self, start: int, data: bytes) -> bytes:
        size = len(data)
        if size > EAX_SHORT:
            return BlockCipher(self._aes, CTR(start.to_bytes(16))).encryptor().update(data)
        counters = b"".join([(start + at & _BLOCK).to_bytes(16) for at in range((size + 15) >> 4)])
        return (_number(self._block(counters)[:size]) ^ _number(data)).to_bytes(size)

    def _tag(self, start: int, header: bytes, body: bytes) -> bytes:
        known = self._headers.get(header)
        if known is None:
            if len(self._headers) >= EAX_HEADERS_MAX:
                self._headers.clear()
            known = self._headers[bytes(header)] = self._omac(1, header)
        return (start ^ known ^ self._omac(2, body)).to_bytes(16)[: self._tag_bytes]

    def _omac(self, role: int, data: bytes) -> int:
        if not data:
            return self._empty[role]
        tail = len(data) & 15
        if tail:
            data += _PADDING[tail]
        size = len(data)
        first = (self._start[role] ^ self._chained) << (8 * size - 128)
        text = _number(data) ^ first ^ self._masks[tail > 0]
        self._chained = made = _number(self._chain(text.to_bytes(size))[-16:])
        return made


EAX_SHORT = 512  # Bytes; beyond it a CTR object is faster than a counter for each block.
EAX_HEADERS_MAX = 256  # Headers whose OMAC is kept; beyond it all are forgotten, which is only slower.
_BLOCK = (1 << 128) - 1
_PADDING = [b"\x80" + bytes(15 - size) for size in range(16)]
_number = int.from_bytes  # The highest byte first.


def _doubled(value: int) -> int:
    """Times x in GF(2^128)."""
    return (value << 1 & _BLOCK) ^ (0x87 if value >> 127 else 0)


@dataclass(frozen=True, slots=True)
class Suite:
    """One row of the table above."""

    id: int
    name: str
    key_bytes: int
    in_spark: bool
    _make: Callable[[bytes, int], Cipher]

    def cipher(self, key: bytes, tag_bytes: int = TAG_BYTES) -> Cipher:
        """A cipher under the first `key_bytes` of `key`; raises SetupError where this machine's OpenSSL lacks it."""
        try:
            return self._make(key[: self.key_bytes], tag_bytes)
        except UnsupportedAlgorithm:
            raise SetupError(
                f"this OpenSSL has no {self.name}; install cryptography with OpenSSL 3.2 or later"
            ) from None


SUITES: dict[int, Suite] = {
    suite.id: suite
    for suite in (
        Suite(0x01, "AES-256-GCM", 32, True, lambda key, _: AESGCM(key)),
        Suite(0x02, "AES-128-GCM", 16, True, lambda key, _: AESGCM(key)),
        Suite(0x10, "AES-128-EAX", 16, False, Eax),
        Suite(0x11, "AES-256-GCM-SIV", 32, False, lambda key, _: AESGCMSIV(key)),
        Suite(0x12, "AES-256-OCB3", 32, False, lambda key, _: AESOCB3(key)),
    )
}
EAX = 0x10


def suite_of(id: int) -> Suite:
    """The suite with this number; raises PeerError if there is none."""
    try:
        return SUITES[id]
    except KeyError:
        known = ", ".join(f"{known:#04x}" for known in SUITES)
        raise PeerError(f"suite: {id:#04x} is unknown; expected one of {known}") from None


def expand(key: bytes, info: bytes) -> bytes:
    """HKDF-Expand with SHA-256, 32 bytes: one block, so one HMAC."""
    return hmac.digest(key, info + b"\x01", "sha256")


def extract(salt: bytes, material: bytes) -> bytes:
    """HKDF-Extract with SHA-256."""
    return hmac.digest(salt, material, "sha256")
