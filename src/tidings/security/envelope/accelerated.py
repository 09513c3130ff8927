"""A column under one key: many values sealed into frames, or opened, in one call.

A call into `cryptography` costs three times what its cipher does for a value of thirty bytes. A
table has millions of values under a few keys, so compiled loops hand its columns to OpenSSL's
libcrypto without Python in between. The plain twins at the end do the same with the cipher objects
that live brokers use: for suites other than AES-GCM, for machines without the library, and for the
tests, which hold the two against each other.

Numba takes half a second to import, and most commands seal no tables. So `batch` imports this
module when it first needs it.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-overload"
# Numba infers types itself; the tests check the compiled loops against their plain twins.

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa
from cryptography.exceptions import InvalidTag
from numba import njit, types

from tidings.errors import EventError, SetupError
from tidings.security.envelope.column_codec import Numbers, from_parts, parts_of
from tidings.security.keys.keyring import KeyEpoch
from tidings.security.suites import TAG_BYTES

BATCH_BYTES_MAX = 2**31 - 1  # The offsets of an Arrow binary column reach no further.
LIBRARIES = ("libcrypto.so.3", "libcrypto.3.dylib", "libcrypto.so.1.1")  # Mostly the one that Python's own `ssl` uses.
NONCE_BYTES = 12

_GET_TAG, _SET_TAG = 0x10, 0x11
_CIPHERS = {32: "EVP_aes_256_gcm", 16: "EVP_aes_128_gcm"}  # By the length of the key.
_PREFIX = "tidings_"  # Keeps these names apart from any other libcrypto in this process.
_ADDRESS, _INT = types.intp, types.intc
_GCM = (0x01, 0x02)
_SIZE = struct.Struct(">I")


def has_library() -> bool:
    """Whether OpenSSL's libcrypto was found."""
    return _library() is not None


def prepare() -> bool:
    """Makes what seals ready, for servers that must not stop to compile; whether that could be done."""
    if not has_library():
        return False
    try:
        _compiled(_place), _compiled(_seal)
    except Exception:  # noqa: BLE001 - Numba has many reasons, above all no folder that it may write to.
        return False
    return True


class FrameWriter:
    """Frames of one shape, side by side in one buffer: first their starts, then column after column.

    starts        a row of bytes for each frame
    columns       head and plaintext of each column that `seal` will be given, in that order
    bytes_max     a larger batch is refused before anything is written
    use_library   whether OpenSSL's libcrypto may be used, where it is found
    """

    def __init__(
        self,
        starts: Numbers,
        columns: list[tuple[bytes, pa.BinaryArray]],
        *,
        bytes_max: int = BATCH_BYTES_MAX,
        use_library: bool = True,
    ) -> None:
        sizes = np.full(len(starts), starts.shape[1], np.int64)
        for head, plain in columns:
            sizes += len(head) + _SIZE.size + TAG_BYTES + parts_of(plain)[2]
        self._bounds = np.concatenate([[0], np.cumsum(sizes)])
        if self._bounds[-1] > bytes_max:
            raise EventError(f"a batch of {self._bounds[-1]} bytes; expected at most {bytes_max}")
        self._out = np.empty(int(self._bounds[-1]), np.uint8)
        self._at = self._bounds[:-1].copy()
        self._use_library = use_library and has_library()
        (_compiled(_place) if self._use_library else _place_plainly)(starts, self._out, self._at)

    def seal(self, key: KeyEpoch, nonces: Numbers, aad: bytes, head: bytes, plain: pa.BinaryArray) -> None:
        """Appends a column: `head`, size, ciphertext and tag of each row."""
        data, starts, sizes = parts_of(plain)
        bounds = np.append(starts, starts[-1:] + sizes[-1:])
        arrays = (nonces, _array(aad), data, bounds, _array(head), self._out, self._at)
        if self._use_library and key.suite in _GCM:
            _seal_compiled(key.content_key("pub"), *arrays)
        else:
            _seal_plainly(key, *arrays)

    def frames(self) -> pa.BinaryArray:
        assert (self._at == self._bounds[1:]).all(), "every column was written"
        return from_parts(self._out, self._bounds)


def open_column(
    key: KeyEpoch,
    nonces: Numbers,
    aad: bytes,
    sealed: Numbers,
    starts: Numbers,
    sizes: Numbers,
    *,
    use_library: bool = True,
) -> tuple[pa.BinaryArray, Numbers]:
    """The plaintexts of sealed[start:start + size], and which rows are not genuine; those are left as zeros."""
    bounds = np.concatenate([[0], np.cumsum(np.maximum(sizes - TAG_BYTES, 0))])
    out, is_wrong = np.empty(int(bounds[-1]), np.uint8), np.zeros(len(starts), bool)
    arrays = (nonces, _array(aad), sealed, starts, sizes, out, bounds, is_wrong)
    if use_library and has_library() and key.suite in _GCM:
        _open_compiled(key.content_key("pub"), *arrays)
    else:
        _open_plainly(key, *arrays)
    return from_parts(out, bounds), is_wrong


def _array(raw: bytes) -> Numbers:
    return np.frombuffer(raw, np.uint8)


# ── With OpenSSL's libcrypto ─────────────────────────────────────────────────


def _function(name: str, *arguments: types.Type) -> types.ExternalFunction:
    return types.ExternalFunction(_PREFIX + name, _INT(*arguments))


_encrypt_init = _function("EVP_EncryptInit_ex", *[_ADDRESS] * 5)
_encrypt_update = _function("EVP_EncryptUpdate", *[_ADDRESS] * 4, _INT)
_encrypt_final = _function("EVP_EncryptFinal_ex", *[_ADDRESS] * 3)
_decrypt_init = _function("EVP_DecryptInit_ex", *[_ADDRESS] * 5)
_decrypt_update = _function("EVP_DecryptUpdate", *[_ADDRESS] * 4, _INT)
_decrypt_final = _function("EVP_DecryptFinal_ex", *[_ADDRESS] * 3)
_control = _function("EVP_CIPHER_CTX_ctrl", _ADDRESS, _INT, _INT, _ADDRESS)
_CALLED = (
    *("EVP_EncryptInit_ex", "EVP_EncryptUpdate", "EVP_EncryptFinal_ex"),
    *("EVP_DecryptInit_ex", "EVP_DecryptUpdate", "EVP_DecryptFinal_ex", "EVP_CIPHER_CTX_ctrl"),
)

_READ = types.Array(types.uint8, 1, "C", readonly=True)
_ROWS = types.Array(types.uint8, 2, "C", readonly=True)
_PLACES = types.Array(types.int64, 1, "C", readonly=True)


def _place(starts, out, at):
    """Copies each row of `starts` to its place in `out`; `at` moves behind it."""
    width = starts.shape[1]
    for row in range(len(at)):
        begin = at[row]
        for index in range(width):
            out[begin + index] = starts[row, index]
        at[row] = begin + width


def _seal(context, nonces, aad, plain, bounds, head, out, at):
    """Writes `head`, size, ciphertext and tag of each row to its place in `out`; `at` moves behind it.

    Row i is plain[bounds[i]:bounds[i + 1]]. False if OpenSSL refused anything.
    """
    length = np.zeros(1, np.int32)
    length_at, aad_at, aad_size = length.ctypes.data, aad.ctypes.data, np.int32(len(aad))
    nonces_at, plain_at, out_at = nonces.ctypes.data, plain.ctypes.data, out.ctypes.data
    all_well = True
    for row in range(len(at)):
        size, begin = bounds[row + 1] - bounds[row], at[row]
        for index in range(len(head)):
            out[begin + index] = head[index]
        begin += len(head)
        whole = size + TAG_BYTES
        for index in range(4):
            out[begin + index] = np.uint8(whole >> (24 - 8 * index) & 255)
        begin += 4
        well = _encrypt_init(context, 0, 0, 0, nonces_at + NONCE_BYTES * row) == 1
        well &= _encrypt_update(context, 0, length_at, aad_at, aad_size) == 1
        well &= _encrypt_update(context, out_at + begin, length_at, plain_at + bounds[row], np.int32(size)) == 1
        well &= _encrypt_final(context, out_at + begin + size, length_at) == 1
        well &= _control(context, _GET_TAG, TAG_BYTES, out_at + begin + size) == 1
        all_well &= well
        at[row] = begin + whole
    return all_well


def _open(context, nonces, aad, sealed, starts, sizes, out, bounds, is_wrong):
    """Writes the plaintext of sealed[starts[i]:][:sizes[i]] to out[bounds[i]:bounds[i + 1]], for each row.

    A row whose tag does not hold, or that has none, is marked in `is_wrong`, and zeros are written for it.
    """
    length = np.zeros(1, np.int32)
    length_at, aad_at, aad_size = length.ctypes.data, aad.ctypes.data, np.int32(len(aad))
    nonces_at, sealed_at, out_at = nonces.ctypes.data, sealed.ctypes.data, out.ctypes.data
    for row in range(len(starts)):
        size, begin = sizes[row] - TAG_BYTES, starts[row]
        well = size >= 0
        if well:
            well &= _decrypt_init(context, 0, 0, 0, nonces_at + NONCE_BYTES * row) == 1
            well &= _decrypt_update(context, 0, length_at, aad_at, aad_size) == 1
            well &= _decrypt_update(context, out_at + bounds[row], length_at, sealed_at + begin, np.int32(size)) == 1
            well &= _control(context, _SET_TAG, TAG_BYTES, sealed_at + begin + size) == 1
            well &= _decrypt_final(context, out_at + bounds[row] + size, length_at) == 1
        if not well:
            is_wrong[row] = True
            for index in range(bounds[row], bounds[row + 1]):
                out[index] = 0


_BYTES, _NUMBERS, _MARKS = types.uint8[::1], types.int64[::1], types.boolean[::1]
_SIGNATURES: dict[Callable[..., Any], Any] = {
    _place: types.void(_ROWS, _BYTES, _NUMBERS),
    _seal: types.boolean(_ADDRESS, _ROWS, _READ, _READ, _PLACES, _READ, _BYTES, _NUMBERS),
    _open: types.void(_ADDRESS, _ROWS, _READ, _READ, _PLACES, _PLACES, _BYTES, _PLACES, _MARKS),
}


@cache
def _library() -> ctypes.CDLL | None:
    """OpenSSL's libcrypto with all functions that are called here, or None where it is not found."""
    for name in LIBRARIES:
        try:
            found = ctypes.CDLL(name)
            for called in _CALLED:
                llvm.add_symbol(_PREFIX + called, ctypes.cast(getattr(found, called), ctypes.c_void_p).value)
            _declare(found)
        except (OSError, AttributeError):
            continue
        return found
    return None


def _declare(found: ctypes.CDLL) -> None:
    found.EVP_CIPHER_CTX_new.restype = ctypes.c_void_p
    found.EVP_CIPHER_CTX_free.argtypes, found.EVP_CIPHER_CTX_free.restype = [ctypes.c_void_p], None
    for init in (found.EVP_EncryptInit_ex, found.EVP_DecryptInit_ex):
        init.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    for cipher in _CIPHERS.values():
        getattr(found, cipher).restype = ctypes.c_void_p


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The loop as machine code, compiled when it is first used or loaded from the cache on disk."""
    assert _library() is not None, "the loops call the library"
    return njit(_SIGNATURES[function], cache=True, nogil=True)(function)  # type: ignore[no-any-return]


@contextmanager
def _context(key: bytes, *, seals: bool) -> Iterator[int]:
    """A cipher under this key, for one call: OpenSSL wipes it at the end, and no two threads share it."""
    found = _library()
    assert found is not None
    context = found.EVP_CIPHER_CTX_new()
    try:
        init = found.EVP_EncryptInit_ex if seals else found.EVP_DecryptInit_ex
        if not context or init(context, getattr(found, _CIPHERS[len(key)])(), None, key, None) != 1:
            raise SetupError("OpenSSL's libcrypto has no AES-GCM")
        yield context
    finally:
        found.EVP_CIPHER_CTX_free(context)


def _seal_compiled(key: bytes, *arrays: Any) -> None:
    with _context(key, seals=True) as context:
        if not _compiled(_seal)(context, *arrays):
            raise SetupError("OpenSSL's libcrypto refused to encrypt")


def _open_compiled(key: bytes, *arrays: Any) -> None:
    with _context(key, seals=False) as context:
        _compiled(_open)(context, *arrays)


# ── The plain twins ──────────────────────────────────────────────────────────


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
