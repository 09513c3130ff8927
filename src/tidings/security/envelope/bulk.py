"""A column under one key: many values sealed into frames, or taken out of them, in one call.

GCM goes through OpenSSL's libcrypto in compiled loops where it is found. The plain twins below do the
same with the cipher objects that live brokers use, for the other suites, for machines without the
library, and for the tests, which hold the two against each other.
"""

from __future__ import annotations

import struct
from functools import cache
from types import ModuleType

import numpy as np
import pyarrow as pa
from cryptography.exceptions import InvalidTag

from tidings.errors import EventError
from tidings.security.envelope.column_codec import Numbers, from_parts, parts_of
from tidings.security.keys.keyring import KeyEpoch
from tidings.security.suites import TAG_BYTES

BATCH_BYTES_MAX = 2**31 - 1  # What Arrow's offsets of a binary column can say.

_GCM = (0x01, 0x02)
_SIZE = struct.Struct(">I")


class FrameWriter:
    """Frames of one shape, side by side in one buffer: first their starts, then column after column."""

    def __init__(self, starts: Numbers, columns: list[tuple[bytes, pa.BinaryArray]]) -> None:
        """`starts` has a row of bytes for each frame; `columns` are what `seal` will be given, in that order."""
        sizes = np.full(len(starts), starts.shape[1], np.int64)
        for head, plain in columns:
            sizes += len(head) + _SIZE.size + TAG_BYTES + parts_of(plain)[2]
        self._bounds = np.concatenate([[0], np.cumsum(sizes)])
        if self._bounds[-1] > BATCH_BYTES_MAX:
            raise EventError(f"a batch of {self._bounds[-1]} bytes; expected at most {BATCH_BYTES_MAX}")
        self._out = np.empty(int(self._bounds[-1]), np.uint8)
        self._at = self._bounds[:-1].copy()
        fast = _library()
        (fast.place_rows if fast else _place_plainly)(starts, self._out, self._at)

    def seal(self, key: KeyEpoch, nonces: Numbers, aad: bytes, head: bytes, plain: pa.BinaryArray) -> None:
        """A column behind what is written: `head`, size, ciphertext and tag of each row."""
        data, starts, sizes = parts_of(plain)
        bounds = np.append(starts, starts[-1:] + sizes[-1:])
        arrays = (nonces, _array(aad), data, bounds, _array(head), self._out, self._at)
        if fast := _library_for(key):
            fast.seal_rows(key.content_key("pub"), *arrays)
        else:
            _seal_plainly(key, *arrays)

    def frames(self) -> pa.BinaryArray:
        assert (self._at == self._bounds[1:]).all(), "every column was written"
        return from_parts(self._out, self._bounds)


def open_column(
    key: KeyEpoch, nonces: Numbers, aad: bytes, sealed: Numbers, starts: Numbers, sizes: Numbers
) -> tuple[pa.BinaryArray, Numbers]:
    """The plaintexts of sealed[start:start + size], and which rows are not genuine; of those nothing is shown."""
    bounds = np.concatenate([[0], np.cumsum(np.maximum(sizes - TAG_BYTES, 0))])
    out, is_wrong = np.empty(int(bounds[-1]), np.uint8), np.zeros(len(starts), bool)
    arrays = (nonces, _array(aad), sealed, starts, sizes, out, bounds, is_wrong)
    if fast := _library_for(key):
        fast.open_rows(key.content_key("pub"), *arrays)
    else:
        _open_plainly(key, *arrays)
    return from_parts(out, bounds), is_wrong


@cache
def _library() -> ModuleType | None:
    """Imported when it is first needed: Numba takes half a second, and most commands seal no tables."""
    from tidings.security.envelope import libcrypto

    return libcrypto if libcrypto.library() else None


def _library_for(key: KeyEpoch) -> ModuleType | None:
    return _library() if key.suite in _GCM else None


def _array(raw: bytes) -> Numbers:
    return np.frombuffer(raw, np.uint8)


# ── The same without the library ──


def _place_plainly(starts: Numbers, out: Numbers, at: Numbers) -> None:
    for row, start in enumerate(starts):
        out[at[row] : at[row] + len(start)] = start
    at += starts.shape[1]


def _seal_plainly(
    key: KeyEpoch,
    nonces: Numbers,
    aad: Numbers,
    plain: Numbers,
    bounds: Numbers,
    head: Numbers,
    out: Numbers,
    at: Numbers,
) -> None:
    encrypt, with_, before = key.cipher("pub").encrypt, aad.tobytes(), head.tobytes()
    for row, nonce in enumerate(nonces):
        sealed = encrypt(nonce.tobytes(), plain[bounds[row] : bounds[row + 1]].tobytes(), with_)
        written = before + _SIZE.pack(len(sealed)) + sealed
        out[at[row] : at[row] + len(written)] = _array(written)
        at[row] += len(written)


def _open_plainly(
    key: KeyEpoch,
    nonces: Numbers,
    aad: Numbers,
    sealed: Numbers,
    starts: Numbers,
    sizes: Numbers,
    out: Numbers,
    bounds: Numbers,
    is_wrong: Numbers,
) -> None:
    decrypt, with_ = key.cipher("pub").decrypt, aad.tobytes()
    out[:] = 0
    for row, nonce in enumerate(nonces):
        begin = starts[row]
        try:
            plain = decrypt(nonce.tobytes(), sealed[begin : begin + sizes[row]].tobytes(), with_)
            out[bounds[row] : bounds[row + 1]] = _array(plain)
        except (InvalidTag, ValueError):  # ValueError: shorter than any ciphertext, in some ciphers.
            is_wrong[row] = True
