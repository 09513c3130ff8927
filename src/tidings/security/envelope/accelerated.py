"""AES-GCM of many values in one call: OpenSSL's own functions, called from a compiled loop.

A call into `cryptography` costs three times what its cipher does for a value of thirty bytes. A
table has millions of them under a few keys, so its columns go to OpenSSL's libcrypto without Python
in between. Where the library is not found, `bulk` does the same with `cryptography`, value by value.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, call-overload"
# Numba infers types itself; what the loops do is checked against their plain twins in `bulk`.

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import numpy as np
from numba import njit, types

from tidings.errors import SetupError

LIBRARIES = ("libcrypto.so.3", "libcrypto.3.dylib", "libcrypto.so.1.1")  # Whichever Python's own `ssl` uses, mostly.
TAG_BYTES, NONCE_BYTES = 16, 12

_GET_TAG, _SET_TAG = 0x10, 0x11
_CIPHERS = {32: "EVP_aes_256_gcm", 16: "EVP_aes_128_gcm"}  # By the length of the key.
_PREFIX = "tidings_"  # So that no other libcrypto in this process is meant by these names.
_ADDRESS, _INT = types.intp, types.intc


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
def library() -> ctypes.CDLL | None:
    """OpenSSL's libcrypto with all that is called here, or None where there is no such library."""
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
    """The loop as machine code, compiled when it is first used or taken from the cache on disk."""
    assert library() is not None, "the loops call the library"
    return njit(_SIGNATURES[function], cache=True, nogil=True)(function)  # type: ignore[no-any-return]


@contextmanager
def _context(key: bytes, *, seals: bool) -> Iterator[int]:
    """A cipher under this key, for one call: OpenSSL wipes it at the end, and no two threads share it."""
    found = library()
    assert found is not None
    context = found.EVP_CIPHER_CTX_new()
    try:
        init = found.EVP_EncryptInit_ex if seals else found.EVP_DecryptInit_ex
        if not context or init(context, getattr(found, _CIPHERS[len(key)])(), None, key, None) != 1:
            raise SetupError("OpenSSL's libcrypto has no AES-GCM")
        yield context
    finally:
        found.EVP_CIPHER_CTX_free(context)


def place_rows(*arrays: Any) -> None:
    """See `_place`."""
    _compiled(_place)(*arrays)


def seal_rows(key: bytes, *arrays: Any) -> None:
    """See `_seal`."""
    with _context(key, seals=True) as context:
        if not _compiled(_seal)(context, *arrays):
            raise SetupError("OpenSSL's libcrypto refused to encrypt")


def open_rows(key: bytes, *arrays: Any) -> None:
    """See `_open`."""
    with _context(key, seals=False) as context:
        _compiled(_open)(context, *arrays)
