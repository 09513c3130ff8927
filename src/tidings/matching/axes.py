"""The axes of one segment, all of them in a few flat arrays, and the cells of events on them.

`NaiveAxis` in `reference.py` says what an axis and its cells are. Here the cuts of an axis are
sorted int64 keys, and a table maps the upper bits of a key to the few cuts it can lie between.
The key of a text is the seven bytes that follow the prefix common to all cuts of the axis;
only texts with equal keys are compared in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tidings.events import EventType, ValueType
from tidings.matching.box_table import Array, one_chunk, writable
from tidings.matching.kernels import cells
from tidings.matching.kernels import match as match_kernels
from tidings.matching.kernels.columns import Exported, read_places
from tidings.matching.kernels.keys import key_column

TABLE_BITS_MAX = 20  # Four megabytes of table per axis, at most.

_INT, _DOUBLE, _TEXT, _REVERSED = cells.KIND_INT, cells.KIND_DOUBLE, cells.KIND_TEXT, cells.KIND_REVERSED


@dataclass(frozen=True, slots=True)
class Axes:
    """Row i of the arrays describes the axis of attribute `attribute[i]`; columns as `cells.AXIS_*` say.

    `keys` holds the cuts of all axes one after another, for texts their first bytes as an
    int64; `text_ptr` and `text_bytes` hold texts in full; `table` the shortcuts into the keys:
    by their upper bits for all, and for texts also by hash.
    """

    attribute: Array
    arrays: match_kernels.AxisArrays

    def __len__(self) -> int:
        return len(self.attribute)

    @property
    def codes(self) -> Array:
        """By axis its code, ascending: see `residuals.indexable`."""
        return 2 * self.attribute + (self.arrays.kind == _REVERSED)  # type: ignore[no-any-return]

    @property
    def cell_counts(self) -> Array:
        return self.arrays.rows[:, cells.AXIS_KEYS_END] - self.arrays.rows[:, cells.AXIS_KEYS] + 2  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def cuts(self, index: int) -> Any:
        """The cuts of one axis: an int64 array, or an Arrow array of bytes."""
        row = self.arrays.rows[index]
        start, end = row[cells.AXIS_KEYS], row[cells.AXIS_KEYS_END]
        if not self.is_text(index):
            return self.arrays.keys[start:end]
        first = row[cells.AXIS_TEXTS]
        offsets = self.arrays.text_ptr[first : first + end - start + 1]
        return _binary(offsets, self.arrays.text_bytes)

    def is_text(self, index: int) -> bool:
        return bool(self.arrays.kind[index] >= _TEXT)

    def points(self, index: int) -> Array:
        """Of a text axis, per cell that begins at a cut, whether it holds one text only (nearly always)."""
        row = self.arrays.rows[index]
        first, count = row[cells.AXIS_TEXTS], row[cells.AXIS_KEYS_END] - row[cells.AXIS_KEYS]
        offsets = self.arrays.text_ptr[first : first + count + 1]
        lengths = np.diff(offsets)
        ends_in_zero = self.arrays.text_bytes[offsets[1:] - 1] == 0 if count else np.zeros(0, bool)
        return np.append((lengths[1:] == lengths[:-1] + 1) & ends_in_zero[1:], [False] * min(count, 1)).astype(bool)

    def boundaries(self, index: int, bounds: Any) -> Array:
        """The cells that begin at these bounds, each of which is a cut of the axis."""
        column = _Column.of_bounds(bounds)
        out = np.empty(len(bounds), np.int32)
        self.locate_columns(_BOUND_KINDS[int(self.is_text(index))], index, [column], out.reshape(1, -1))
        return out

    def locate(self, rows: pa.Table, event_type: EventType) -> Array:
        """The cells of conformed rows, one line per axis and one of zeros behind them."""
        return BatchLocator(self, event_type).locate(rows)

    def locate_columns(self, kinds: Array, first: int, columns: Sequence[_Column], out: Array) -> None:
        """The cells of these columns on as many axes from `first` on."""
        places = np.array([column.place for column in columns], np.int64).reshape(-1, cells.COLUMN_SIZE)
        self.locate_at(kinds, first, places, out)

    def locate_at(self, kinds: Array, first: int, places: Array, out: Array) -> None:
        """The same for columns that lie at these places in memory."""
        _, rows, *arrays = self.arrays
        cells.locate_columns(kinds, rows[first : first + len(places)], *arrays, places, out)


_NUMBERS, _TEXTS, _CONVERTED = range(3)


@lru_cache(maxsize=256)  # More event types than one process is likely to mix; a miss costs only time.
def _forms(event_type: EventType) -> Array:
    """By attribute how its columns are stored: 64-bit numbers and texts are read where they are, others converted."""
    stored = dict.fromkeys((ValueType.INT, ValueType.DOUBLE, ValueType.TIMESTAMP), _NUMBERS)
    stored |= dict.fromkeys((ValueType.STRING, ValueType.BYTES), _TEXTS)
    return np.array([stored.get(a.type, _CONVERTED) for a in event_type], np.uint8)


class BatchLocator:
    """Puts batches of one event type into the cells of some axes; knows how each column is read.

    `attribute` has by axis the number of its attribute, `is_text` whether that is a text.
    """

    def __init__(self, axes: Axes, event_type: EventType) -> None:
        self._axes, self._event_type = axes, event_type
        self.attribute = axes.attribute
        self.is_text = _forms(event_type)[axes.attribute]
        self._is_read_in_place = bool(self.is_text.max(initial=0) < _CONVERTED)

    def export(self, rows: pa.Table | pa.RecordBatch) -> Exported | None:
        """The rows as one batch that kernels read where it is, if they can; the caller releases it."""
        if not self._is_read_in_place:
            return None
        batches = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
        return Exported(batches[0]) if len(batches) == 1 else None

    def locate(self, rows: pa.Table) -> Array:
        """The cells of conformed rows, one line per axis and one of zeros behind them."""
        axes = self._axes
        located = np.empty((len(axes) + 1, rows.num_rows), np.int32)
        located[-1] = 0
        here = self.export(rows)
        if here is None:
            kinds = self._event_type.attributes
            columns = [_Column.of(rows.column(a), kinds[a].type) for a in axes.attribute.tolist()]
            axes.locate_columns(axes.arrays.kind, 0, columns, located)
            return located
        try:
            places = np.empty((len(axes), cells.COLUMN_SIZE), np.int64)
            read_places(here.address, self.attribute, self.is_text, places)
            axes.locate_at(axes.arrays.kind, 0, places, located)
        finally:
            here.release()
        return located


class _Column(NamedTuple):
    """An Arrow array's buffers, not copied where possible: their addresses, and the object that keeps them alive."""

    place: tuple[int, int, int, int, int]  # As `cells.COLUMN_*` say.
    keeps: Any

    @classmethod
    def of(cls, column: pa.Array | pa.ChunkedArray, kind: ValueType) -> _Column:
        array = key_column(one_chunk(column), kind)
        valid, *buffers = array.buffers()
        start = array.offset
        bits = (valid.address, start) if valid is not None and array.null_count else (0, 0)
        if kind.has_int_keys:
            return cls((_address(buffers[0]) + 8 * start, len(array), 0, *bits), array)
        if not len(array):
            return cls((0, 0, _NO_TEXTS.ctypes.data, *bits), array)
        offsets, content = buffers
        size = content.size if content is not None else 0
        return cls((_address(content), size, offsets.address + 4 * start, *bits), array)

    @classmethod
    def of_bounds(cls, bounds: Any) -> _Column:
        if isinstance(bounds, np.ndarray):
            flat = np.ascontiguousarray(bounds)
            return cls((flat.ctypes.data, len(flat), 0, 0, 0), flat)
        return cls.of(bounds, ValueType.BYTES)


_NO_TEXTS = np.zeros(1, np.int32)
_NO_BITS = np.zeros(0, np.uint8)
# Bounds are keys already, so that doubles among them are ints; by whether they are texts.
_BOUND_KINDS = (np.array([_INT], np.int32), np.array([_TEXT], np.int32))


def _address(buffer: pa.Buffer | None) -> int:
    return 0 if buffer is None else int(buffer.address)


def _bytes_of(buffer: pa.Buffer | None) -> Array:
    return _NO_BITS if buffer is None or not buffer.size else np.frombuffer(buffer, np.uint8)


def _offsets_of(array: pa.Array) -> Array:
    if not len(array):
        return np.zeros(1, np.int32)
    return np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]


# ── Making them ──────────────────────────────────────────────────────────────


def make_axes(event_type: EventType, cuts: Mapping[int, Any]) -> Axes:
    """Axes by code, ascending, with these cuts: sorted int64 arrays, or Arrow arrays of bytes."""
    rows, kinds, keys, tables = [], [], [], []
    texts = _TextCuts()
    key_count = table_size = 0
    for code, here in cuts.items():
        kind = _kind(event_type.attributes[code >> 1].type, code & 1)
        first_text, skip, slots = len(texts), 0, np.zeros(0, np.int32)
        if kind >= _TEXT:
            skip = texts.add(here)
            here, slots = texts.keys_of(first_text, skip)
        low, shift, table = _make_table(here)
        table_end = table_size + len(table)
        bounds = (key_count, key_count + len(here), table_size, table_end, low, shift)
        rows.append([*bounds, first_text, skip, table_end, max(len(slots) - 1, 0).bit_length()])
        key_count, table_size = key_count + len(here), table_end + len(slots)
        kinds.append(kind)
        keys.append(here)
        tables += [table, slots]
    arrays = match_kernels.AxisArrays(
        kind=np.array(kinds, np.int32),
        rows=np.array(rows, np.int64).reshape(-1, cells.AXIS_SIZE),
        # Padded, because a kernel compares the next few cuts before it checks whether they exist.
        keys=np.concatenate([np.zeros(0, np.int64), *keys, np.zeros(cells.STRAIGHT, np.int64)]),
        table=np.concatenate([np.zeros(0, np.int32), *tables]),
        text_ptr=texts.offsets(),
        text_bytes=texts.content(),
    )
    return Axes(np.array([code >> 1 for code in cuts], np.int32), match_kernels.AxisArrays(*map(writable, arrays)))


def sorted_numbers(bounds: Sequence[Array]) -> Array:
    """The different ones, ascending. (`np.unique` hashes them, which takes three times as long.)"""
    together = np.sort(np.concatenate(bounds))
    return together[np.append(True, together[1:] != together[:-1])] if len(together) else together


def sorted_texts(bounds: pa.Array) -> pa.Array:
    """The different ones, in the order of their bytes."""
    return bounds.unique().sort()


def _kind(value_type: ValueType, is_reversed: int) -> int:
    if not value_type.has_int_keys:
        return _REVERSED if is_reversed else _TEXT
    return _DOUBLE if value_type is ValueType.DOUBLE else _INT


class _TextCuts:
    """The cuts of all text axes, one after another."""

    def __init__(self) -> None:
        self._offsets, self._content = [np.zeros(1, np.int64)], [np.zeros(0, np.uint8)]
        self._count, self._size = 0, 0

    def __len__(self) -> int:
        return self._count

    def add(self, cuts: pa.Array) -> int:
        """Adds the sorted cuts of one axis; returns how many bytes all of them begin with."""
        offsets, content = _offsets_of(cuts).astype(np.int64), _bytes_of(cuts.buffers()[2])
        content = content[offsets[0] : offsets[-1]]
        self._offsets.append(offsets[1:] - offsets[0] + self._size)
        self._content.append(content)
        self._count, self._size = self._count + len(cuts), self._size + len(content)
        return _shared_length(cuts[0].as_py(), cuts[-1].as_py()) if len(cuts) else 0

    def keys_of(self, first: int, skip: int) -> tuple[Array, Array]:
        """The keys of the cuts from `first` on, and the slots by which each is found."""
        keys, offsets, content = np.empty(self._count - first, np.int64), self.offsets()[first:], self.content()
        cells.text_keys(offsets, content, skip, keys)
        bits = max(1, (2 * len(keys)).bit_length())
        slots = np.full(1 << bits, -1, np.int32)
        cells.fill_text_slots(keys, offsets, content, skip, bits, slots)
        return keys, slots

    def offsets(self) -> Array:
        self._offsets = [np.concatenate(self._offsets)]
        return self._offsets[0]

    def content(self) -> Array:
        self._content = [np.concatenate(self._content)]
        return self._content[0]


def _shared_length(one: bytes, other: bytes) -> int:
    for index, (left, right) in enumerate(zip(one, other)):
        if left != right:
            return index
    return min(len(one), len(other))


def _make_table(keys: Array) -> tuple[int, int, Array]:
    """The first key of slot 0, the bits that a slot ignores, and per slot how many keys come before it.

    The slots span the middle of the keys, so that one far outlier does not push all others into one slot.
    """
    if not len(keys):
        return 0, 0, np.zeros(2, np.int32)
    low, high = int(keys[len(keys) // 100]), int(keys[-1 - len(keys) // 100])
    bits = min(TABLE_BITS_MAX, len(keys).bit_length() - 1)
    shift = max(0, (high - low).bit_length() - bits)
    slots = min(1 << bits, ((high - low) >> shift) + 2)
    table = np.empty(slots + 1, np.int32)
    cells.fill_table(keys, low, shift, table)
    return low, shift, table


def _binary(offsets: Array, content: Array) -> pa.Array:
    """Texts given by offsets into a larger array, as an Arrow array of their own."""
    own = (offsets - offsets[0]).astype(np.int32)
    data = np.ascontiguousarray(content[offsets[0] : offsets[-1]])
    return pa.Array.from_buffers(pa.binary(), len(own) - 1, [None, pa.py_buffer(own), pa.py_buffer(data)])
