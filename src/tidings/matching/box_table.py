"""Normalised conditions as columns: the form in which many of them are exchanged and indexed.

`boxes_table` writes conditions as an Arrow table of `BOXES_SCHEMA`, one row each. So many
workers can parse and normalise in parallel, and one can index their tables
(`Index.from_boxes`) without parsing anything again:

| column | |
| --- | --- |
| id | the subscription's |
| condition | its text, which `explain` shows |
| boxes | none, one or several; the condition is TRUE exactly if a box holds the event |
| boxes.sides | per attribute the intervals of keys, and whether NULL belongs to them |
| boxes.residuals | texts of conditions that must be TRUE as well |

Keys are those of `tidings.events.values`: ints, or the bytes of a text in UTF-8; the digits of a
decimal of more than 18 are 16 bytes (see `kernels.keys`). An interval
runs from `low` up to but not including `high`; null means the end of the domain.
Intervals of a side ascend and do not touch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from itertools import chain, compress, islice
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from tidings.errors import InputError
from tidings.events import INT_MAX, EventType
from tidings.filters import Condition, Intervals, format_tree
from tidings.matching.kernels.keys import wide_pairs

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

BLOCK_CONDITIONS = 8192  # Conditions that become columns together.


def writable(array: Array) -> Array:
    """The array, contiguous and not marked read-only: kernels that take tuples are compiled for such arrays only.

    They do not write to them.
    """
    flat = np.ascontiguousarray(array)
    return flat if flat.flags.writeable else flat.copy()


def _list(item: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", item, nullable=False))


def _pair(key: pa.DataType) -> pa.DataType:
    return pa.struct([pa.field("low", key), pa.field("high", key)])


_SIDE = pa.struct(
    [
        pa.field("attribute", pa.string(), nullable=False),
        pa.field("null", pa.bool_(), nullable=False),
        pa.field("numbers", _list(_pair(pa.int64())), nullable=False),
        pa.field("texts", _list(_pair(pa.binary())), nullable=False),
    ]
)
_BOX = pa.struct(
    [
        pa.field("sides", _list(_SIDE), nullable=False),
        pa.field("residuals", _list(pa.string()), nullable=False),
    ]
)
BOXES_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("condition", pa.string(), nullable=False),
        pa.field("boxes", _list(_BOX), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class BoxColumns:
    """The same, flat: `xs_ptr[i]:xs_ptr[i + 1]` are the xs of the i-th thing one level above."""

    ids: pa.Array
    texts: pa.Array
    box_ptr: Array  # boxes by subscription
    side_ptr: Array  # sides by box
    attribute: Array  # by side: position in the event type
    null: Array  # by side: whether NULL belongs
    number_ptr: Array  # intervals by side
    number_low: pa.Array
    number_high: pa.Array
    text_ptr: Array
    text_low: pa.Array
    text_high: pa.Array
    residual_ptr: Array  # residual texts by box
    residuals: pa.Array

    def __len__(self) -> int:
        return len(self.ids)


def boxes_table(
    items: Iterable[tuple[str, Condition]], event_type: EventType, *, block_conditions: int = BLOCK_CONDITIONS
) -> pa.Table:
    """Conditions over `event_type`, by id, as a table of BOXES_SCHEMA."""
    return table_of(columns_of(items, event_type, block_conditions), event_type)


def table_of(c: BoxColumns, event_type: EventType) -> pa.Table:
    """Columns as a table of BOXES_SCHEMA."""
    names = pa.array([a.name for a in event_type], pa.string())
    numbers = _listed(c.number_ptr, _struct(low=c.number_low, high=c.number_high))
    texts = _listed(c.text_ptr, _struct(low=c.text_low, high=c.text_high))
    attribute = names.take(pa.array(c.attribute))
    sides = _struct(attribute=attribute, null=pa.array(c.null.astype(bool)), numbers=numbers, texts=texts)
    boxes = _struct(sides=_listed(c.side_ptr, sides), residuals=_listed(c.residual_ptr, c.residuals))
    columns = [c.ids, c.texts, _listed(c.box_ptr, boxes)]
    return pa.Table.from_arrays(columns, BOXES_SCHEMA.names).cast(BOXES_SCHEMA)


def columns_of(
    items: Iterable[tuple[str, Condition]], event_type: EventType, block_conditions: int = BLOCK_CONDITIONS
) -> BoxColumns:
    """Conditions as columns. Made a block at a time, so that a million parsed conditions need not fit into memory."""
    rest, blocks = iter(items), list[BoxColumns]()
    while (block := list(islice(rest, block_conditions))) or not blocks:
        blocks.append(_columns_of_block(block, event_type))
    return join_columns(blocks)


def _columns_of_block(items: Sequence[tuple[str, Condition]], event_type: EventType) -> BoxColumns:
    """One block, level by level: each level is one pass in C over the one above, twice as fast as loops in Python."""
    conditions = [condition for _, condition in items]
    boxes_of = [condition.boxes for condition in conditions]
    boxes = list(chain.from_iterable(boxes_of))
    trees_of = [box.residuals for box in boxes]
    sides_of = [box.sides for box in boxes]
    return BoxColumns(
        ids=pa.array([id for id, _ in items], pa.string()),
        texts=pa.array([condition.text for condition in conditions], pa.string()),
        box_ptr=_pointers(boxes_of),
        side_ptr=_pointers(sides_of),
        **_side_columns(list(chain.from_iterable(sides_of)), event_type),
        residual_ptr=_pointers(trees_of),
        residuals=pa.array(map(format_tree, chain.from_iterable(trees_of)), pa.string()),
    )


def _side_columns(sides: Sequence[tuple[str, Intervals]], event_type: EventType) -> dict[str, Any]:
    """The columns of sides and their intervals, by name."""
    position = {a.name: index for index, a in enumerate(event_type)}
    attribute = np.array([position[name] for name, _ in sides], np.int32)
    pairs: list[Any] = [side.pairs for _, side in sides]
    if any(a.type.is_wide for a in event_type):
        pairs = [wide_pairs(side.type, side.pairs) if side.type.is_wide else side.pairs for _, side in sides]
    counts = np.fromiter(map(len, pairs), np.int64, len(pairs))
    is_number = np.array([a.type.has_int_keys for a in event_type], bool)[attribute]
    numbers, texts = (_keys(compress(pairs, here.tolist())) for here in (is_number, ~is_number))
    return {
        "attribute": attribute,
        "null": np.array([side.null for _, side in sides], np.uint8),
        "number_ptr": _summed(np.where(is_number, counts, 0)),
        "number_low": pa.array(numbers[::2], pa.int64()),
        "number_high": pa.array([high if high != _BEYOND_INTS else None for high in numbers[1::2]], pa.int64()),
        "text_ptr": _summed(np.where(is_number, 0, counts)),
        "text_low": pa.array(texts[::2], pa.binary()),
        "text_high": pa.array(texts[1::2], pa.binary()),
    }


def _keys(pairs: Iterable[Any]) -> list[Any]:
    """Lows and highs in turn, of intervals that are given by side."""
    return list(chain.from_iterable(chain.from_iterable(pairs)))


def join_columns(blocks: Sequence[BoxColumns]) -> BoxColumns:
    """The columns of several blocks, one after another."""
    if len(blocks) == 1:
        return blocks[0]
    joined: dict[str, Any] = {}
    for field in fields(BoxColumns):
        columns = [getattr(block, field.name) for block in blocks]
        if field.name.endswith("_ptr"):
            joined[field.name] = _summed(np.concatenate([np.diff(column) for column in columns]))
        else:
            joined[field.name] = (pa.concat_arrays if isinstance(columns[0], pa.Array) else np.concatenate)(columns)
    return BoxColumns(**joined)


def take_columns(columns: BoxColumns, rows: Array) -> BoxColumns:
    """The subscriptions with these numbers, in this order."""
    box_ptr, boxes = _taken(columns.box_ptr, rows)
    side_ptr, sides = _taken(columns.side_ptr, boxes)
    residual_ptr, residuals = _taken(columns.residual_ptr, boxes)
    number_ptr, numbers = _taken(columns.number_ptr, sides)
    text_ptr, texts = _taken(columns.text_ptr, sides)
    return BoxColumns(
        ids=columns.ids.take(pa.array(rows)),
        texts=columns.texts.take(pa.array(rows)),
        box_ptr=box_ptr,
        side_ptr=side_ptr,
        attribute=columns.attribute[sides],
        null=columns.null[sides],
        number_ptr=number_ptr,
        number_low=columns.number_low.take(pa.array(numbers)),
        number_high=columns.number_high.take(pa.array(numbers)),
        text_ptr=text_ptr,
        text_low=columns.text_low.take(pa.array(texts)),
        text_high=columns.text_high.take(pa.array(texts)),
        residual_ptr=residual_ptr,
        residuals=columns.residuals.take(pa.array(residuals)),
    )


def _taken(ptr: Array, rows: Array) -> tuple[Array, Array]:
    """Pointers for these rows only, and the numbers of the things that they point to."""
    counts = np.diff(ptr)[rows]
    taken = _summed(counts)
    return taken, np.repeat(ptr[:-1][rows] - taken[:-1], counts) + np.arange(taken[-1])


def read_table(table: pa.Table, event_type: EventType) -> BoxColumns:
    """The columns of a table of BOXES_SCHEMA; raises InputError where it is not one."""
    rows = _conformed(table)
    box_ptr, boxes = _unlisted(rows.column("boxes"))
    sides_list, residuals_list = boxes.flatten()
    side_ptr, sides = _unlisted(sides_list)
    residual_ptr, residuals = _unlisted(residuals_list)
    names, null, numbers_list, texts_list = sides.flatten()
    number_ptr, numbers = _unlisted(numbers_list)
    text_ptr, texts = _unlisted(texts_list)
    number_low, number_high = numbers.flatten()
    text_low, text_high = texts.flatten()
    attribute = _positions(names, event_type)
    _check_kinds(attribute, number_ptr, text_ptr, event_type)
    return BoxColumns(
        ids=one_chunk(rows.column("id")),
        texts=one_chunk(rows.column("condition")),
        box_ptr=box_ptr,
        side_ptr=side_ptr,
        attribute=attribute,
        null=null.cast(pa.uint8()).to_numpy(zero_copy_only=False),
        number_ptr=number_ptr,
        number_low=number_low,
        number_high=number_high,
        text_ptr=text_ptr,
        text_low=text_low,
        text_high=text_high,
        residual_ptr=residual_ptr,
        residuals=residuals,
    )


_BEYOND_INTS = INT_MAX + 1  # Where the domain of ints ends; no int64 holds it.


def _pointers(lists: Sequence[Sequence[Any]]) -> Array:
    return _summed(np.fromiter(map(len, lists), np.int64, len(lists)))


def _summed(counts: Array) -> Array:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _listed(ptr: Array, items: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(ptr.astype(np.int32)), items)


def _struct(**fields: pa.Array) -> pa.StructArray:
    return pa.StructArray.from_arrays(list(fields.values()), list(fields))


def _conformed(table: pa.Table) -> pa.Table:
    if not isinstance(table, pa.Table | pa.RecordBatch):
        raise InputError(f"expected an Arrow table of boxes, got {type(table).__name__}")
    rows = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    try:
        return rows.select(BOXES_SCHEMA.names).cast(BOXES_SCHEMA).combine_chunks()
    except (KeyError, ValueError, TypeError) as wrong:
        raise InputError(f"expected the columns of BOXES_SCHEMA: {wrong}") from None


def _unlisted(lists: pa.Array | pa.ChunkedArray) -> tuple[Array, pa.Array]:
    """A column of lists as pointers from 0 and the items they point to."""
    column = one_chunk(lists)
    if column.null_count:
        raise InputError("expected no null lists in a table of boxes")
    offsets = column.offsets.to_numpy().astype(np.int64)
    items = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    if pa.types.is_struct(items.type) and items.null_count:
        raise InputError("expected no null items in a table of boxes")
    return offsets - offsets[0], items


def one_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array, copied only if it is not one already."""
    if isinstance(column, pa.Array):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def _positions(names: pa.Array, event_type: EventType) -> Array:
    coded = names.dictionary_encode()
    known = {a.name: index for index, a in enumerate(event_type)}
    places = []
    for name in coded.dictionary.to_pylist():
        if name not in known:
            event_type[name]  # Raises an error with the unknown attribute and the nearest known one.
        places.append(known[name])
    return np.array(places, np.int32)[coded.indices.to_numpy()] if places else np.zeros(0, np.int32)


def _check_kinds(attribute: Array, number_ptr: Array, text_ptr: Array, event_type: EventType) -> None:
    is_text = np.array([not a.type.has_int_keys for a in event_type], bool)[attribute]
    if np.any(np.diff(number_ptr)[is_text]) or np.any(np.diff(text_ptr)[~is_text]):
        raise InputError("a table of boxes has numbers for a text, or texts for a number")
