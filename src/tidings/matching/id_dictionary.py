"""Subscription ids by number, and numbers by id, in flat arrays that can be mapped from a file."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
from numba import njit, types

from tidings.matching.box_table import Array
from tidings.matching.kernels.cache import kernel
from tidings.matching.kernels.cells import is_same, readable

_NUMBERS, _BYTES = readable(types.int32), readable(types.uint8)

READ_ONE_BY_ONE_MAX = 32  # Up to so many ids, plain Python is faster than a call of Arrow.
REMEMBERED_MAX = 131_072  # Ids kept as Python texts for single matches, some 20 MB: those that match, match again.


def _crc_table() -> Any:
    """By byte what it adds to a CRC-32; the one that `zlib.crc32` computes, which finds single names faster than a kernel."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0xEDB88320), table >> 1)
    return table.astype(np.uint32)


_CRC_TABLE = _crc_table()


@njit(inline="always")
def _crc32(content, start, end):
    value = np.uint32(0xFFFFFFFF)
    for i in range(start, end):
        value = _CRC_TABLE[(value ^ np.uint32(content[i])) & np.uint32(0xFF)] ^ (value >> np.uint32(8))
    return np.uint64(value ^ np.uint32(0xFFFFFFFF))


@njit(inline="always")
def _slot_of(slots, offsets, content, text, start, end):
    """The slot that holds the name text[start:end], or the free one where it belongs."""
    mask = np.uint64(len(slots) - 1)
    slot = _crc32(text, start, end) & mask
    while slots[slot] >= 0:
        number = slots[slot]
        if is_same(text, start, end, content, np.int64(offsets[number]), np.int64(offsets[number + 1])):
            break
        slot = (slot + np.uint64(1)) & mask
    return slot


@kernel(types.void(_NUMBERS, _BYTES, types.int32[::1], types.uint8[::1]))
def fill_slots(offsets, content, slots, is_repeated):
    """Enters all names into `slots` (a power of two of them, all -1); of equal names the last one stays."""
    for number in range(len(offsets) - 1):
        slot = _slot_of(slots, offsets, content, content, np.int64(offsets[number]), np.int64(offsets[number + 1]))
        if slots[slot] >= 0:
            is_repeated[slots[slot]] = 1
        slots[slot] = number


@kernel(types.void(_NUMBERS, _NUMBERS, _BYTES, _NUMBERS, _BYTES, types.int32[::1]))
def find_names(slots, offsets, content, wanted_offsets, wanted, out):
    """out[i] = the number of the i-th wanted name, or -1."""
    for i in range(len(out)):
        slot = _slot_of(slots, offsets, content, wanted, np.int64(wanted_offsets[i]), np.int64(wanted_offsets[i + 1]))
        out[i] = slots[slot]


def hashed(id: str) -> tuple[bytes, int]:
    """An id with its hash, computed once for the dictionaries of all segments."""
    raw = id.encode()
    return raw, crc32(raw)


class IdDictionary:
    """Ids of a segment; of equal ids the later number counts."""

    def __init__(
        self,
        ids: pa.Array,
        slots: Array,
        *,
        remembered_max: int = REMEMBERED_MAX,
        read_one_by_one_max: int = READ_ONE_BY_ONE_MAX,
    ) -> None:
        self.ids, self.slots = ids, slots
        self._remembered_max, self._read_one_by_one_max = remembered_max, read_one_by_one_max
        self._remembered: dict[int, str] = {}
        # A single name is found by plain Python, which is quicker than the call of a kernel.
        self._slots = slots.data
        self._offsets, self._content = (buffer.data for buffer in _buffers(ids))

    @classmethod
    def of(cls, ids: pa.Array, **limits: int) -> tuple[IdDictionary, Array]:
        """The names, and the numbers of ids that a later equal one replaces."""
        slots = np.full(1 << max(3, (2 * len(ids)).bit_length()), -1, np.int32)
        repeated = np.zeros(len(ids), np.uint8)
        fill_slots(*_buffers(ids), slots, repeated)
        return cls(ids, slots, **limits), np.flatnonzero(repeated)

    @property
    def nbytes(self) -> int:
        return int(self.slots.nbytes + self.ids.nbytes)

    def find(self, name: tuple[bytes, int]) -> int:
        """The number of an id, given as `hashed` gives it; or -1."""
        raw, slot = name
        slots, offsets, mask = self._slots, self._offsets, len(self._slots) - 1
        slot &= mask
        while (number := slots[slot]) >= 0:
            if self._content[offsets[number] : offsets[number + 1]] == raw:
                return number
            slot = (slot + 1) & mask
        return -1

    def find_all(self, ids: pa.Array) -> Array:
        """The number of each id, or -1."""
        out = np.empty(len(ids), np.int32)
        find_names(self.slots, *_buffers(self.ids), *_buffers(ids), out)
        return out

    def at(self, numbers: Sequence[int]) -> list[str]:
        """The ids with these numbers."""
        try:
            return list(map(self._remembered.__getitem__, numbers))
        except KeyError:
            return self._look_up(numbers)

    def _look_up(self, numbers: Sequence[int]) -> list[str]:
        known = self._remembered
        if len(known) > self._remembered_max:
            known = self._remembered = {}  # Not emptied: another thread may be reading it.
        missing = [number for number in numbers if number not in known]
        few = len(missing) <= self._read_one_by_one_max
        found = map(self._name, missing) if few else self.ids.take(pa.array(missing, pa.int32())).to_pylist()
        known.update(zip(missing, found))
        return [known[number] for number in numbers]

    def _name(self, number: int) -> str:
        return str(self._content[self._offsets[number] : self._offsets[number + 1]], "utf-8")


def _buffers(ids: pa.Array) -> tuple[Array, Array]:
    if not len(ids):
        return np.zeros(1, np.int32), np.zeros(0, np.uint8)
    _, offsets, content = ids.buffers()
    here = np.frombuffer(offsets, np.int32)[ids.offset : ids.offset + len(ids) + 1]
    return here, np.frombuffer(content, np.uint8) if content is not None and content.size else np.zeros(0, np.uint8)
