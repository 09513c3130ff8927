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
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.cmac import CMAC

from tidings.errors import PeerError, SetupError

TAG_BYTES = 16
EAX_TAG_BYTES_MIN = 4  # Shorter tags are guessed in minutes; the paper leaves the length to the type.


class Cipher(Protocol):
    """Authenticated encryption under one key. `decrypt` raises `InvalidTag` and nothing else."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes, /) -> bytes: ...

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes, /) -> bytes: ...


class Eax:
    """AES in EAX mode (Bellare, Rogaway, Wagner 2004), made of CMAC and CTR: any nonce length, any tag length."""

    __slots__ = ("_aes", "_header", "_message", "_nonce", "_tag_bytes")

    def __init__(self, key: bytes, tag_bytes: int = TAG_BYTES) -> None:
        self._aes, self._tag_bytes = AES(key), tag_bytes
        # One CMAC started per role; copying a started one is four times cheaper than starting anew.
        self._nonce, self._header, self._message = (self._started(role) for role in range(3))

    def _started(self, role: int) -> CMAC:
        mac = CMAC(self._aes)
        mac.update(role.to_bytes(16, "big"))
        return mac

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes, /) -> bytes:
        start = _finish(self._nonce, nonce)
        body = self._stream(start, data)
        return body + self._tag(start, associated_data, body)

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes, /) -> bytes:
        cut = len(data) - self._tag_bytes
        if cut < 0:
            raise InvalidTag
        body, start = bytes(data[:cut]), _finish(self._nonce, nonce)
        if not hmac.compare_digest(self._tag(start, associated_data, body), bytes(data[cut:])):
            raise InvalidTag
        return self._stream(start, body)

    def _stream(self, start: bytes, data: bytes) -> bytes:
        return BlockCipher(self._aes, CTR(start)).encryptor().update(data)

    def _tag(self, start: bytes, header: bytes, body: bytes) -> bytes:
        parts = (start, _finish(self._header, header), _finish(self._message, body))
        mixed = 0
        for part in parts:
            mixed ^= int.from_bytes(part, "big")
        return mixed.to_bytes(16, "big")[: self._tag_bytes]


def _finish(started: CMAC, data: bytes) -> bytes:
    mac = started.copy()
    mac.update(data)
    return mac.finalize()


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
