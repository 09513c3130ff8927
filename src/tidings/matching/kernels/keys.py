"""Keys as the kernels have them: words of 64 bits, or bytes.

The keys of `tidings.events.values` are Python's. Most are ints that fit a word, and texts are their
bytes. The digits of a long decimal fit neither: they become 16 bytes, the sign bit turned over, whose
order is that of the numbers.

>>> wide_key(-1) < wide_key(0) < wide_key(256)
True
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tidings.events import ValueType
from tidings.filters import DOMAIN

_WIDE_BYTES = 16
_ZERO = 1 << 127


def wide_key(key: int) -> bytes:
    """The key of a long decimal as bytes in the same order."""
    return (key + _ZERO).to_bytes(_WIDE_BYTES, "big")


def wide_pairs(kind: ValueType, pairs: tuple[tuple[int, int], ...]) -> list[tuple[bytes, bytes | None]]:
    """Intervals of such keys, with the ends that texts have where the type itself ends."""
    start, end = DOMAIN[kind]
    return [(b"" if low == start else wide_key(low), None if high == end else wide_key(high)) for low, high in pairs]


def packed_as(kind: ValueType) -> Callable[[Any], int | bytes] | None:
    """How a value of this type becomes a word or bytes; None if it is one."""
    if kind.is_wide:
        return lambda value: wide_key(kind.key(value))  # type: ignore[arg-type]
    if kind.is_decimal or kind.has_items:
        return kind.key  # type: ignore[return-value]
    return None


def key_column(array: pa.Array, kind: ValueType) -> pa.Array:
    """A conformed column as an array of 64-bit words or of bytes. Words of doubles are still doubles."""
    match kind.kind:
        case "bool":
            return array.cast(pa.uint8()).cast(pa.int64())
        case "null":
            return array.cast(pa.int64())
        case "date":
            return array.cast(pa.int32()).cast(pa.int64())
        case "decimal":
            return _digits(array, kind)
        case "array" | "map":  # All have one key: there is something, or NULL.
            return pa.array(np.zeros(len(array), np.int64), mask=array.is_null().to_numpy(zero_copy_only=False))
    return array


def _digits(array: pa.Array, kind: ValueType) -> pa.Array:
    """From 128 bits, the lower half first, to a word or to bytes with the highest first."""
    is_null = array.is_null().to_numpy(zero_copy_only=False)
    content = array.buffers()[1]
    if content is None or not len(array):
        return pa.nulls(len(array), pa.binary() if kind.is_wide else pa.int64())
    halves = np.frombuffer(content, np.uint64, 2 * len(array), 16 * array.offset).reshape(-1, 2)
    if not kind.is_wide:
        return pa.array(np.ascontiguousarray(halves[:, 0]).view(np.int64), mask=is_null)
    turned = np.stack([halves[:, 1] ^ np.uint64(1 << 63), halves[:, 0]], axis=1).astype(">u8")
    offsets = np.arange(len(array) + 1, dtype=np.int32) * _WIDE_BYTES
    valid = pa.array(~is_null).buffers()[1] if is_null.any() else None
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(turned.tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(array), buffers)
