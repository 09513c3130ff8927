"""What conditions ask of arrays and maps, over columns, with the answers of `tidings.filters.evaluate`.

All items of a column lie in one flat column, each with its parent: the number of the array or map it is in. Items
are compared there, all at once, and what was found is gathered by parent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.events import ValueType
from tidings.matching.box_table import Array
from tidings.matching.residuals.column import TEXTS, Column, truth
from tidings.matching.residuals.operators import compare


def cardinality(collections: Column) -> Column:
    """How many items each array or map has."""
    return Column(ValueType.INT, _ranges(collections).lengths, collections.valid)


def any_item(op: str, value: Column, arrays: Column) -> Column:
    """Whether `value op item` is TRUE of any item, or else NULL of any; NULL for no array."""
    if arrays.type is ValueType.NULL:
        return truth(np.zeros(1, bool), np.zeros(1, bool))
    arrays = _repeated(arrays, len(value))
    ranges, element = _ranges(arrays), arrays.type.element
    assert element is not None
    parents = ranges.parents()
    if not len(parents):
        return truth(np.zeros(len(arrays), bool), arrays.valid)
    items = Column.of_arrow(arrays.values.values.take(pa.array(ranges.places())), element)
    found = _compare_by_parent(op, value, parents, items)
    is_true = _has(parents[found.values], len(arrays))
    if found.valid is None:
        return truth(is_true, arrays.valid)
    known = is_true | ~_has(parents[~found.valid], len(arrays))
    return truth(is_true, known if arrays.valid is None else known & arrays.valid)


def item(kind: ValueType, collections: Column, at: Column) -> Column:
    """The item of each array at a position from 0, or the value of each map for a key; NULL where there is none."""
    if ValueType.NULL in (collections.type, at.type):
        return Column.constants([None], kind)
    collections = _repeated(collections, len(at))
    ranges, is_map = _ranges(collections), collections.type.map_key is not None
    places, exists = (_places_of_keys if is_map else _places_at)(collections, ranges, at)
    if at.valid is not None:
        exists = exists & at.valid
    items = collections.values.items if is_map else collections.values.values
    return Column.of_arrow(items.take(pa.array(places, mask=~exists)), kind)


class _Ranges(NamedTuple):
    """Where the items of each array or map are in the column of all items; one that is NULL has none."""

    starts: Array
    lengths: Array

    def parents(self) -> Array:
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def places(self) -> Array:
        before = np.cumsum(self.lengths) - self.lengths
        return np.repeat(self.starts - before, self.lengths) + np.arange(self.lengths.sum())


def _ranges(collections: Column) -> _Ranges:
    offsets = collections.values.offsets.to_numpy().astype(np.int64)
    lengths = np.diff(offsets)
    return _Ranges(offsets[:-1], lengths if collections.valid is None else np.where(collections.valid, lengths, 0))


def _places_at(arrays: Column, ranges: _Ranges, at: Column) -> tuple[Array, Array]:
    """The places of the items at these positions among all items, and which there are."""
    exists = (at.values >= 0) & (at.values < ranges.lengths)
    return ranges.starts + np.where(exists, at.values, 0), exists


def _places_of_keys(maps: Column, ranges: _Ranges, wanted: Column) -> tuple[Array, Array]:
    """The places of the values with these keys among all values, and which there are."""
    kind, found, exists = maps.type.map_key, np.zeros(len(maps), np.int64), np.zeros(len(maps), bool)
    parents, places = ranges.parents(), ranges.places()
    if len(parents):
        assert kind is not None
        keys = Column.of_arrow(maps.values.keys.take(pa.array(places)), kind)
        hits = _compare_by_parent("=", wanted, parents, keys).values
        found[parents[hits]], exists[parents[hits]] = places[hits], True
    return found, exists


def _compare_by_parent(op: str, values: Column, parents: Array, items: Column) -> Column:
    """Each item with the value for its parent. A text is not repeated for each item, since both may be long."""
    if len(values) > 1 and values.type in TEXTS and items.type in TEXTS:
        values, items = _ranked(op, values, items)
    return compare(op, values.take(parents), items)


def _ranked(op: str, left: Column, right: Column) -> tuple[Column, Column]:
    """Texts as ints that compare as they do."""
    coded = pa.concat_arrays([left.values, right.values]).dictionary_encode()
    ranks = coded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    if op not in ("=", "<>"):
        ranks = np.append(pc.rank(coded.dictionary).to_numpy().astype(np.int64), 0)[ranks]
    split = len(left)
    return Column(ValueType.INT, ranks[:split], left.valid), Column(ValueType.INT, ranks[split:], right.valid)


def _has(numbers: Array, count: int) -> Array:
    """Which of `count` numbers occur."""
    found = np.zeros(count, bool)
    found[numbers] = True
    return found


def _repeated(collections: Column, size: int) -> Column:
    """A constant as long as what it is asked for."""
    if len(collections) == 1 and size > 1:
        values = collections.values.take(pa.array(np.zeros(size, np.int32)))
        return Column.of_arrow(values, collections.type)
    return collections
