"""Whole columns as plaintext and back: what `value_codec` does for one value, for many at once.

The bytes are the same. `plaintexts` takes a column without nulls that fits its type; `values` returns
which rows it could read, and leaves it to the caller to say what is wrong with the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import PeerError
from tidings.events import ARROW_TYPES, Value, ValueType, arrow_values, encode_value, python_values
from tidings.security.envelope.value_codec import decoder
from tidings.security.signed_type import PadPolicy

Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_KINDS = {
    ValueType.BOOL: 1,
    ValueType.INT: 2,
    ValueType.STRING: 3,
    ValueType.DOUBLE: 4,
    ValueType.BYTES: 5,
    ValueType.TIMESTAMP: 6,
    ValueType.DATE: 8,
    ValueType.TIME: 9,
}
_SIZED = (ValueType.STRING, ValueType.BYTES)
_HEAD = np.dtype([("kind", "u1"), ("size", ">u4")])
_FAR = 2**31 - 1  # Arrow 26 miscounts a slice that is given no end.
_FIXED = {
    ValueType.BOOL: np.dtype([("kind", "u1"), ("value", "u1")]),
    ValueType.INT: np.dtype([("kind", "u1"), ("value", ">i8")]),
    ValueType.DOUBLE: np.dtype([("kind", "u1"), ("value", ">f8")]),
    **dict.fromkeys(
        (ValueType.TIMESTAMP, ValueType.DATE, ValueType.TIME), np.dtype([("kind", "u1"), ("value", ">i8")])
    ),
}
_DECIMAL = np.dtype([("kind", "u1"), ("scale", "u1"), ("high", ">u8"), ("low", ">u8")])
_DECIMAL_KIND = 7


def plaintexts(column: pa.Array, value_type: ValueType) -> pa.BinaryArray:
    """Each value as `encode_value` writes it."""
    if value_type.has_items:  # One by one: an item is as a value of its own.
        return binary([encode_value(value) for value in python_values(column, value_type)])
    if value_type.is_decimal:
        return _decimal_plaintexts(column, value_type)
    if value_type in _SIZED:
        raw = column.cast(pa.binary())
        heads = np.empty(len(raw), _HEAD)
        heads["kind"], heads["size"] = _KINDS[value_type], pc.binary_length(raw).to_numpy()
        return joined([rows_of(heads), raw])
    written = np.empty(len(column), _FIXED[value_type])
    written["kind"], written["value"] = _KINDS[value_type], _fixed_values(column, value_type)
    return rows_of(written)


def _fixed_values(column: pa.Array, value_type: ValueType) -> Numbers:
    if value_type is ValueType.DATE:
        column = column.cast(pa.int32())
    elif value_type in (ValueType.TIMESTAMP, ValueType.TIME):
        column = column.cast(pa.int64())
    numbers: Numbers = column.to_numpy(zero_copy_only=False)
    if value_type is not ValueType.DOUBLE:
        return numbers
    # All NaNs are one and -0.0 is 0.0, as `encode_value` has it.
    return np.where(np.isnan(numbers), np.nan, numbers + 0.0)


def values(raw: pa.BinaryArray, value_type: ValueType) -> tuple[pa.Array, Numbers]:
    """The column that these plaintexts are, and which rows are not of this type (those are null or anything)."""
    if value_type.has_items:
        return _one_by_one(raw, value_type)
    if value_type.is_decimal:
        return _decimals(raw, value_type)
    return _sized(raw, value_type) if value_type in _SIZED else _fixed(raw, value_type)


def _decimal_plaintexts(column: pa.Array, value_type: ValueType) -> pa.BinaryArray:
    written = np.empty(len(column), _DECIMAL)
    halves = np.frombuffer(column.buffers()[1], "<u8", 2 * len(column), 16 * column.offset).reshape(-1, 2)
    written["kind"], written["scale"] = _DECIMAL_KIND, value_type.scale
    written["high"], written["low"] = halves[:, 1], halves[:, 0]
    return rows_of(written)


def _decimals(raw: pa.BinaryArray, value_type: ValueType) -> tuple[pa.Array, Numbers]:
    data, starts, sizes = parts_of(raw)
    is_wrong = sizes != _DECIMAL.itemsize
    read = gathered(data, np.where(is_wrong, 0, starts), _DECIMAL.itemsize).view(_DECIMAL)[:, 0]
    is_wrong |= (read["kind"] != _DECIMAL_KIND) | (read["scale"] != value_type.scale)
    halves = np.where(is_wrong[:, None], np.uint64(0), np.stack([read["low"], read["high"]], axis=1)).astype("<u8")
    column = pa.Array.from_buffers(ARROW_TYPES[value_type], len(raw), [None, pa.py_buffer(halves.tobytes())])
    try:
        column.validate(full=True)  # No more digits than the type has.
    except pa.ArrowInvalid:
        return _one_by_one(raw, value_type)
    return column, is_wrong


def _one_by_one(raw: pa.BinaryArray, value_type: ValueType) -> tuple[pa.Array, Numbers]:
    decode = decoder(value_type, PadPolicy.NONE)
    found: list[Value | None] = []
    is_wrong = np.zeros(len(raw), bool)
    for row, plain in enumerate(pieces_of(raw)):
        try:
            found.append(decode(plain))
        except PeerError:
            is_wrong[row] = True
            found.append(None)
    return arrow_values(found, value_type), is_wrong


def _sized(raw: pa.BinaryArray, value_type: ValueType) -> tuple[pa.Array, Numbers]:
    data, starts, sizes = parts_of(raw)
    is_wrong = sizes < _HEAD.itemsize
    heads = gathered(data, np.where(is_wrong, 0, starts), _HEAD.itemsize).view(_HEAD)[:, 0]
    is_wrong |= (heads["kind"] != _KINDS[value_type]) | (heads["size"] != sizes - _HEAD.itemsize)
    bare = pc.binary_slice(raw, _HEAD.itemsize, _FAR)
    if value_type is ValueType.BYTES:
        return bare, is_wrong
    try:
        return bare.cast(pa.string()), is_wrong
    except pa.ArrowInvalid:  # Some value is not UTF-8; the slow path finds out which.
        is_wrong |= np.array([not _is_text(text) for text in bare.to_pylist()], bool)
        return pc.if_else(pa.array(is_wrong), None, bare).cast(pa.string()), is_wrong


def _fixed(raw: pa.BinaryArray, value_type: ValueType) -> tuple[pa.Array, Numbers]:
    shape = _FIXED[value_type]
    data, starts, sizes = parts_of(raw)
    is_wrong = sizes != shape.itemsize
    read = gathered(data, np.where(is_wrong, 0, starts), shape.itemsize).view(shape)[:, 0]
    is_wrong |= read["kind"] != _KINDS[value_type]
    found = read["value"]
    if value_type is ValueType.BOOL:
        is_wrong |= found > 1
        return pa.array(found == 1), is_wrong
    native = found.astype(found.dtype.newbyteorder("="))
    if value_type in _WITHIN:
        low, high = _WITHIN[value_type]
        is_wrong |= (native < low) | (native > high)
        native = np.where(is_wrong, 0, native)
    if value_type is ValueType.DATE:
        return pa.array(native.astype(np.int32)).cast(pa.date32()), is_wrong
    return pa.array(native).cast(ARROW_TYPES[value_type]), is_wrong


_WITHIN = {ValueType.DATE: (-(2**31), 2**31 - 1), ValueType.TIME: (0, 86_399_999_999)}


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


# ── Binary columns ──


def binary(pieces: Sequence[bytes]) -> pa.BinaryArray:
    return pa.array(pieces, pa.binary())


def pieces_of(column: pa.BinaryArray) -> list[bytes]:
    """A binary column's values as bytes, several times faster than `to_pylist`."""
    offsets = offsets_of(column)
    whole = column.buffers()[2].to_pybytes() if len(column) and column.buffers()[2] else b""
    bounds = offsets.tolist()
    return [whole[start:end] for start, end in pairwise(bounds)]


def from_parts(data: Numbers, bounds: Numbers) -> pa.BinaryArray:
    """The binary column whose row i is data[bounds[i]:bounds[i + 1]]. The data is not copied."""
    buffers = [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(bounds) - 1, buffers)


def offsets_of(column: pa.BinaryArray) -> Numbers:
    """Where each value starts in the column's data, and where the last one ends."""
    if not len(column):
        return np.zeros(1, np.int64)
    offsets = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, column.offset * 4)
    return offsets.astype(np.int64)


def parts_of(column: pa.BinaryArray) -> tuple[Numbers, Numbers, Numbers]:
    """The column's data, each value's start and each value's size."""
    offsets = offsets_of(column)
    held = column.buffers()[2] if len(column) else None
    data = np.frombuffer(held, np.uint8) if held is not None else np.zeros(0, np.uint8)
    return data, offsets[:-1], np.diff(offsets)


def gathered(data: Numbers, starts: Numbers, width: int) -> Numbers:
    """`width` bytes from each start, a row each; zeros from the end of the data on."""
    if len(starts) and int(starts.max()) + width > len(data):
        data = np.concatenate([data, np.zeros(int(starts.max()) + width - len(data), np.uint8)])
    if not len(starts):
        return np.zeros((0, width), np.uint8)
    return np.lib.stride_tricks.sliding_window_view(data, width)[starts]


def rows_of(written: Numbers) -> pa.BinaryArray:
    """An array of fixed-size records as a binary column."""
    width, count = written.dtype.itemsize, len(written)
    if written.ndim == 2:
        width *= written.shape[1]
    offsets = np.arange(count + 1, dtype=np.int32) * width
    raw = pa.py_buffer(np.ascontiguousarray(written).tobytes())
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), raw])


def joined(columns: Sequence[pa.Array | pa.Scalar]) -> pa.BinaryArray:
    """Row by row, one after another."""
    return pc.binary_join_element_wise(*columns, pa.scalar(b"", pa.binary()))
