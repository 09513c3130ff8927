"""One event at a time: its values packed into bytes once, for every segment of an index.

Single events are matched far more often than batches, and then most of the time is spent in
Python. So values are fetched, checked and packed by whole rows; only an unusual event is
packed value by value.

    presence          one bit per place, in as many words of 64 bits as it takes
    numbers           a word for each attribute with int keys; a double as its bits
    lengths           a word for each text: how many bytes it has
    texts             their bytes, one after another

Decimals, arrays and maps stand as their keys (see `kernels.keys`), and only in events that are packed value by value.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from tidings.events import EventType, Value, ValueType
from tidings.matching.box_table import Array
from tidings.matching.kernels import match_one
from tidings.matching.kernels.keys import packed_as
from tidings.matching.segment import Segment

MATCHES_FIRST = 1022  # Matches of one event that memory is reserved for, until an event has more.
SHAPES_MAX = 256  # Remembered shapes: which attributes an event has, in which order. Others are packed value by value.


class _Shape(NamedTuple):
    """How events with exactly these attributes, in this order, are packed; absent ones become zeros."""

    values_of: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    number_count: int
    kinds: tuple[type, ...]
    pack: Callable[..., bytes]  # From the numbers and the lengths of the texts.


class EventPacker:
    """Packs events of one type. The place of an attribute is its number among numbers, then texts."""

    def __init__(self, event_type: EventType, *, shapes_max: int = SHAPES_MAX) -> None:
        self._shapes_max = shapes_max
        numbers = [a for a in event_type if a.type.has_int_keys]
        texts = [a for a in event_type if not a.type.has_int_keys]
        self.place = {a.name: place for place, a in enumerate([*numbers, *texts])}
        self._names = tuple(self.place)
        self._converted = [(at, to_key) for at, a in enumerate((*numbers, *texts)) if (to_key := packed_as(a.type))]
        self._attributes, self._required = (*numbers, *texts), frozenset(a.name for a in event_type if a.required)
        self._shapes: dict[tuple[str, ...], _Shape | None] = {}
        self._all_present = _presence([True] * len(self.place))
        presence, self._number_count = len(self._all_present), len(numbers)
        self.counts = (presence, len(numbers), presence + len(self.place))
        kinds = "".join(_FORMATS.get(a.type, "q") for a in numbers)
        self._pack = struct.Struct(f"{presence}Q{kinds}{len(texts)}q").pack

    def plain(self, record: Mapping[str, Any]) -> bytes | None:
        """The record packed, if a glance shows that it fits the type; otherwise None."""
        if type(record) is not dict:
            return None
        names = tuple(record)
        shape = self._shapes.get(names) or self._new_shape(names)
        if shape is None:
            return None
        values_of, number_count, kinds, pack = shape
        values = values_of(record)
        if tuple(map(type, values)) != kinds:
            return None
        texts = values[number_count:]
        try:
            joined = "".join(texts)
            head = pack(*values[:number_count], *map(len, texts))
        except (TypeError, struct.error):  # Bytes among the texts, an int beyond 64 bits.
            return None
        return head + joined.encode() if joined.isascii() else None

    def _new_shape(self, names: tuple[str, ...]) -> _Shape | None:
        """How events with these attributes are packed; None where one is unknown or missing, or shapes are too many."""
        if names in self._shapes or len(self._shapes) >= self._shapes_max:
            return None
        there = frozenset(names)
        fits = there <= self.place.keys() and there >= self._required
        fits = fits and not any(self._names[at] in there for at, _ in self._converted)
        shape = self._shapes[names] = self._shape(there) if fits else None
        return shape

    def _shape(self, there: frozenset[str]) -> _Shape:
        numbers = [a for a in self._attributes if a.type.has_int_keys and a.name in there]
        texts = [a for a in self._attributes if not a.type.has_int_keys and a.name in there]
        kinds = "".join((_FORMATS.get(a.type, "q") if a.name in there else "8x") for a in self._attributes)
        presence = _presence([a.name in there for a in self._attributes])
        return _Shape(
            _getter([*numbers, *texts]),
            len(numbers),
            tuple(a.type.python for a in (*numbers, *texts)),
            partial(struct.Struct(f"{len(presence)}Q{kinds}").pack, *presence),
        )

    def pack(self, values: Mapping[str, Value]) -> bytes:
        """Checked values packed; what is absent may be left out."""
        content: list[Any] = list(map(values.get, self._names))
        for at, to_key in self._converted:
            if content[at] is not None:
                content[at] = to_key(content[at])
        present = self._all_present
        if None in content:
            present = _presence([value is not None for value in content])
            content = [0 if value is None else value for value in content]
        texts = [_encoded(text) for text in content[self._number_count :]]
        return self._pack(*present, *content[: self._number_count], *map(len, texts)) + b"".join(texts)


class SingleEventMatcher:
    """Matches packed events against a segment."""

    def __init__(self, segment: Segment, event_type: EventType, packer: EventPacker) -> None:
        attributes = [event_type.attributes[index] for index in segment.axes.attribute.tolist()]
        places = np.array([packer.place[a.name] for a in attributes], np.int64)
        self._keeps = (segment, places)  # What the address book points to.
        self._book = match_one.address_book(segment.axes.arrays, segment.layout, [places], packer.counts)
        self._address: int = self._book.ctypes.data
        self._axis_count = len(segment.axes)
        self._work_bytes = match_one.work_bytes(len(segment.axes), len(segment.layout.grids))
        self._matches_max = MATCHES_FIRST
        self._free: list[_Scratch] = []  # As many as there have been readers at the same time.
        self._kernel: Callable[..., int] | None = None

    def match(self, packed: bytes) -> tuple[list[int], list[int]]:
        """The owners that match, and the boxes that are doubtful."""
        try:
            scratch = self._free.pop()
        except IndexError:
            scratch = _Scratch(self._matches_max, self._work_bytes)
        kernel = self._kernel or self._ready()
        found = kernel(self._address, packed, scratch.address, scratch.size)
        if found > scratch.size:  # Too many, or some are doubtful, which are counted above 32 bits.
            return self._with_doubts(found, packed, scratch)
        owners = scratch.view[:found].tolist()
        self._free.append(scratch)
        return owners, []

    def locate(self, packed: bytes) -> Array:
        """The cell of an event on each axis, and one more of no meaning."""
        cells = np.empty((1, self._axis_count + 1), np.int32)
        match_one.locate_one(self._address, packed, cells)
        return cells

    def _ready(self) -> Callable[..., int]:
        """The kernel, loaded or compiled when the first event comes."""
        self._kernel = match_one.match_one.ready()
        return self._kernel

    def _with_doubts(self, found: int, packed: bytes, scratch: _Scratch) -> tuple[list[int], list[int]]:
        count, doubts = found & 0xFFFF_FFFF, found >> 32
        if count + doubts > scratch.size:
            self._matches_max = 2 * (count + doubts)
            self._free.clear()
            return self.match(packed)
        owners, boxes = scratch.view[:count].tolist(), scratch.view[count : count + doubts].tolist()
        self._free.append(scratch)
        return owners, boxes


class _Scratch:
    """The memory of one reader's call: where a kernel writes what it finds, and where it works."""

    __slots__ = ("_array", "address", "size", "view")

    def __init__(self, size: int, work_bytes: int) -> None:
        self.size = size
        self._array = np.empty(size + 1 + work_bytes // 4, np.int32)
        self.view: memoryview = self._array.data
        self.address: int = self._array.ctypes.data


_FORMATS = {ValueType.DOUBLE: "d"}


def _getter(attributes: Sequence[Any]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    names = [a.name for a in attributes]
    if len(names) > 1:
        return itemgetter(*names)
    return lambda record: tuple(record[name] for name in names)


def _presence(present: Sequence[bool]) -> tuple[int, ...]:
    """Bit i of all words together says whether the i-th is there."""
    bits = sum(1 << place for place, is_present in enumerate(present) if is_present)
    words = max(1, -(-len(present) // 64))
    return tuple((bits >> (64 * word)) & (2**64 - 1) for word in range(words))


def _encoded(text: Any) -> bytes:
    return text.encode() if type(text) is str else text or b""
