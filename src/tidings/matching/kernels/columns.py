"""Where the columns of a batch are in memory, read from Arrow's C data interface in one call for all of them.

To ask Arrow for the buffers of 25 columns one by one takes longer than to match a small batch.
"""

# mypy: disable-error-code="call-arg, no-untyped-def, no-untyped-call"

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pyarrow as pa
from numba import carray, njit, types  # type: ignore[attr-defined]

from tidings.matching.kernels.cache import kernel
from tidings.matching.kernels.cells import pointer, readable

# The words of a `struct ArrowArray`.
_LENGTH, _NULLS, _OFFSET, _BUFFERS, _CHILDREN, _RELEASE, _WORDS = 0, 1, 2, 5, 6, 8, 10
_Struct = ctypes.c_int64 * _WORDS
_releases: dict[int, Any] = {}  # By address, the function that frees what was exported; Arrow has one for all batches.


class Exported:
    """A batch as a `struct ArrowArray`, at `address` until `release`."""

    __slots__ = ("_struct", "address")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._struct = _Struct()
        self.address = ctypes.addressof(self._struct)
        batch._export_to_c(self.address)

    def release(self) -> None:
        function = self._struct[_RELEASE]
        if function not in _releases:
            _releases[function] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)
        _releases[function](self.address)


@njit(nogil=True)
def places_of(address, attributes, is_text, out):
    """out[i] = where column attributes[i] is, as `cells.COLUMN_*` say: of 64-bit numbers, or of texts. There are rows."""
    children = carray(pointer(carray(pointer(address), _WORDS, np.int64)[_CHILDREN]), 1 << 20, np.int64)
    for i in range(len(attributes)):
        array = carray(pointer(children[attributes[i]]), _WORDS, np.int64)
        buffers = carray(pointer(array[_BUFFERS]), 3, np.int64)
        length, offset = array[_LENGTH], array[_OFFSET]
        has_bits = buffers[0] != 0 and array[_NULLS] != 0
        out[i, 3], out[i, 4] = (buffers[0], offset) if has_bits else (0, 0)
        if is_text[i]:
            ends = carray(pointer(buffers[1] + 4 * offset), length + 1, np.int32)
            out[i, 0], out[i, 1], out[i, 2] = buffers[2], ends[length], buffers[1] + 4 * offset
        else:
            out[i, 0], out[i, 1], out[i, 2] = buffers[1] + 8 * offset, length, 0


@kernel(types.void(types.int64, readable(types.int32), readable(types.uint8), types.int64[:, ::1]))
def read_places(address, attributes, is_text, out):
    """The same as a kernel."""
    places_of(address, attributes, is_text, out)
