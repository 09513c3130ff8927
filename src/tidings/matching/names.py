"""Subscription ids by number, and numbers by id, in flat arrays that can be mapped from a file."""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

import numpy as np
import pyarrow as pa

from tidings.matching import kernels
from tidings.matching.boxes import Array

REMEMBERED_MAX = 65_536  # Ids kept as Python texts for single matches; they are the ones asked for again.


class Names:
    """Ids of a segment; where one stands twice, the later number counts."""

    def __init__(self, ids: pa.Array, slots: Array) -> None:
        self.ids, self.slots = ids, slots
        self._remembered: dict[int, str] = {}
        # A single name is found by plain Python, which is quicker than the call of a kernel.
        self._slots = slots.data
        self._offsets, self._content = (buffer.data for buffer in _buffers(ids))

    @classmethod
    def of(cls, ids: pa.Array) -> tuple[Names, Array]:
        """The names, and the numbers of ids that a later equal one replaces."""
        slots = np.full(1 << max(3, (2 * len(ids)).bit_length()), -1, np.int32)
        repeated = np.zeros(len(ids), np.uint8)
        kernels.fill_slots(*_buffers(ids), slots, repeated)
        return cls(ids, slots), np.flatnonzero(repeated)

    @property
    def nbytes(self) -> int:
        return int(self.slots.nbytes + self.ids.nbytes)

    def find(self, id: str) -> int:
        """The number of this id, or -1."""
        raw = id.encode()
        mask = len(self._slots) - 1
        slot = crc32(raw) & mask
        while (number := self._slots[slot]) >= 0:
            if self._content[self._offsets[number] : self._offsets[number + 1]] == raw:
                return number
            slot = (slot + 1) & mask
        return -1

    def find_all(self, ids: pa.Array) -> Array:
        """The number of each id, or -1."""
        out = np.empty(len(ids), np.int32)
        kernels.find_names(self.slots, *_buffers(self.ids), *_buffers(ids), out)
        return out

    def at(self, numbers: Iterable[int]) -> list[str]:
        """The ids with these numbers."""
        known = self._remembered
        try:
            return [known[number] for number in numbers]
        except KeyError:
            return self._look_up(list(numbers))

    def _look_up(self, numbers: list[int]) -> list[str]:
        found: list[str] = self.ids.take(pa.array(numbers, pa.int32())).to_pylist()
        if len(self._remembered) > REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered.update(zip(numbers, found))
        return found


def _buffers(ids: pa.Array) -> tuple[Array, Array]:
    if not len(ids):
        return np.zeros(1, np.int32), np.zeros(0, np.uint8)
    _, offsets, content = ids.buffers()
    here = np.frombuffer(offsets, np.int32)[ids.offset : ids.offset + len(ids) + 1]
    return here, np.frombuffer(content, np.uint8) if content is not None and content.size else np.zeros(0, np.uint8)
