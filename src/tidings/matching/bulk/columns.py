"""Texts of conditions, by the hundred thousand, into columns of boxes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from tidings.errors import FilterError, InputError
from tidings.events import EventType, ValueType
from tidings.filters import Condition, attributes_of, parse, plain_names, quote_name
from tidings.matching.box_table import Array, BoxColumns, columns_of, join_columns, one_chunk, take_columns
from tidings.matching.bulk import scan as scanner

BLOCK_TEXTS = 16_384  # Texts that become columns together: a few megabytes of buffers.

_KINDS = {
    ValueType.BOOL: scanner.BOOL,
    ValueType.INT: scanner.INT,
    ValueType.DOUBLE: scanner.DOUBLE,
    ValueType.STRING: scanner.STRING,
    ValueType.TIMESTAMP: scanner.TIMESTAMP,
}


@dataclass(frozen=True, slots=True)
class ParsedTexts:
    """What became of many texts: the columns of those that can be used, which ones they are, and the others' errors."""

    columns: BoxColumns
    good: Array  # The rows of `columns` by their place among the texts, ascending.
    wrong: dict[int, FilterError]  # By place, in ascending order.
    attributes: frozenset[str]  # Those that a match depends on.
    parsed_count: int  # Texts that the parser took, the wrong ones among them.


def parse_texts(ids: pa.Array, texts: Sequence[str | Condition] | pa.Array, event_type: EventType) -> ParsedTexts:
    """Conditions over `event_type` as columns: the same boxes and errors as `parse` gives, one after another.

    A condition that is parsed already is taken as it is.
    """
    blocks = [
        _block(ids.slice(at, BLOCK_TEXTS), texts[at : at + BLOCK_TEXTS], event_type)
        for at in range(0, max(len(ids), 1), BLOCK_TEXTS)
    ]
    firsts = [index * BLOCK_TEXTS for index in range(len(blocks))]
    return ParsedTexts(
        join_columns([block.columns for block in blocks]),
        np.concatenate([block.good + first for block, first in zip(blocks, firsts)]),
        {first + row: error for block, first in zip(blocks, firsts) for row, error in block.wrong.items()},
        frozenset().union(*(block.attributes for block in blocks)),
        sum(block.parsed_count for block in blocks),
    )


def read_texts(table: pa.Table | pa.RecordBatch, event_type: EventType) -> BoxColumns:
    """The columns of a table of `id` and `condition`; raises the first error in it."""
    rows = pa.Table.from_batches([table]) if isinstance(table, pa.RecordBatch) else table
    try:
        ids, texts = (one_chunk(rows.column(name).cast(pa.string())) for name in ("id", "condition"))
    except (KeyError, ValueError, TypeError) as wrong:
        raise InputError(f"expected the columns id and condition, both texts: {wrong}") from None
    if ids.null_count or texts.null_count:
        raise InputError("expected an id and a condition in every row")
    parsed = parse_texts(ids, texts, event_type)
    for error in parsed.wrong.values():
        raise error
    return parsed.columns


def _block(ids: pa.Array, texts: Sequence[str | Condition] | pa.Array, event_type: EventType) -> ParsedTexts:
    column = texts if isinstance(texts, pa.Array) else _text_column(texts)
    columns, plain = _scanned(ids, column, event_type)
    odd = np.flatnonzero(~plain)
    names = [a.name for a in event_type]
    attributes = frozenset(names[at] for at in np.unique(columns.attribute).tolist())
    if not len(odd):
        return ParsedTexts(columns, np.arange(len(ids)), {}, attributes, 0)
    given = column if isinstance(texts, pa.Array) else texts
    parsed, wrong = _parsed({int(row): given[int(row)] for row in odd}, event_type)
    more = columns_of([(ids[row].as_py(), condition) for row, condition in parsed.items()], event_type)
    rows = np.concatenate([np.flatnonzero(plain), np.fromiter(parsed, np.int64, len(parsed))])
    order = np.argsort(rows)
    joined = take_columns(join_columns([columns, more]), order)
    return ParsedTexts(joined, rows[order], wrong, attributes | _mentioned(parsed.values(), event_type), len(odd))


def _mentioned(conditions: Iterable[Condition], event_type: EventType) -> frozenset[str]:
    """The attributes in conditions. Stops when it has found all: most sets mention them early."""
    names: set[str] = set()
    for condition in conditions:
        if len(names) == len(event_type.attributes):
            break
        names.update(name for box in condition.boxes for name, _ in box.sides)
        names.update(name for box in condition.boxes for node in box.residuals for name in attributes_of(node))
    return frozenset(names)


def _text_column(texts: Sequence[str | Condition]) -> pa.Array:
    """The texts as a column; empty, which is never plain, for what the parser has to look at or has looked at."""
    plain = [text if type(text) is str and len(text) <= scanner.BYTES_MAX else "" for text in texts]
    try:
        return pa.array(plain, pa.string())
    except (pa.ArrowException, UnicodeEncodeError):
        return pa.array([text if text.isascii() else "" for text in plain], pa.string())


def _parsed(
    texts: Mapping[int, str | Condition | pa.StringScalar], event_type: EventType
) -> tuple[dict[int, Condition], dict[int, FilterError]]:
    good: dict[int, Condition] = {}
    wrong: dict[int, FilterError] = {}
    for row, text in texts.items():
        if isinstance(text, Condition):
            good[row] = text
            continue
        try:
            good[row] = parse(text if isinstance(text, str) else text.as_py(), event_type)
        except FilterError as error:
            wrong[row] = error
    return good, wrong


def _scanned(ids: pa.Array, texts: pa.Array, event_type: EventType) -> tuple[BoxColumns, Array]:
    """The columns of the plain texts, and by text whether it is one."""
    offsets, content = _buffers(texts)
    lengths = np.diff(offsets)
    out, filled = _buffers_for(len(texts), int(lengths[lengths <= scanner.BYTES_MAX].sum())), np.zeros(8, np.int64)
    scanner.scan(offsets, content, _names_of(event_type), out, filled)
    n = scanner.Filled(*filled.tolist())
    plain = out.outcome[: len(texts)] == scanner.PLAIN
    kept = pa.array(plain)
    columns = BoxColumns(
        ids=ids.filter(kept),
        texts=texts.filter(kept),
        box_ptr=_summed(out.boxes[: len(texts)][plain]),
        side_ptr=_summed(out.sides[: n.boxes]),
        attribute=out.attribute[: n.sides].copy(),
        null=out.null[: n.sides].copy(),
        number_ptr=_summed(out.numbers[: n.sides]),
        number_low=pa.array(out.number_low[: n.numbers]),
        number_high=pa.array(out.number_high[: n.numbers], mask=out.number_open[: n.numbers].astype(bool)),
        text_ptr=_summed(out.texts[: n.sides]),
        text_low=_binary(out.low_ends, out.low, n.texts, n.low_bytes),
        text_high=_binary(out.high_ends, out.high, n.texts, n.high_bytes, out.high_open),
        residual_ptr=_summed(out.residuals[: n.boxes]),
        residuals=_binary(out.residual_ends, out.residual, n.residuals, n.residual_bytes).cast(pa.string()),
    )
    return columns, plain


def _buffers_for(count: int, size: int) -> scanner.BoxBuffers:
    """Buffers that so many texts of so many bytes cannot fill: a side takes three bytes of text, an interval two."""
    sides = size // 3 + count + 1
    pieces = size + 2 * count + 2
    long = 3 * size + 16 * count + 16
    return scanner.BoxBuffers(
        outcome=np.zeros(count, np.uint8),
        boxes=np.zeros(count, np.uint8),
        sides=np.empty(count, np.int32),
        residuals=np.empty(count, np.int32),
        attribute=np.empty(sides, np.int32),
        null=np.empty(sides, np.uint8),
        numbers=np.empty(sides, np.int32),
        texts=np.empty(sides, np.int32),
        number_low=np.empty(pieces, np.int64),
        number_high=np.empty(pieces, np.int64),
        number_open=np.empty(pieces, np.uint8),
        low_ends=np.empty(pieces, np.int32),
        low=np.empty(long, np.uint8),
        high_ends=np.empty(pieces, np.int32),
        high=np.empty(long, np.uint8),
        high_open=np.empty(pieces, np.uint8),
        residual_ends=np.empty(sides, np.int32),
        residual=np.empty(long, np.uint8),
    )


@lru_cache(maxsize=256)  # As many event types as the parser keeps names of.
def _names_of(event_type: EventType) -> scanner.Names:
    """What a scanner knows of an event type: the names that stand for one attribute and nothing else."""
    known = plain_names(event_type)
    names = [a.name.encode() for a in event_type]
    quoted = [quote_name(a.name).encode() for a in event_type]
    kinds = [_KINDS.get(a.type, 0) if a.name in known and a.name.isascii() else 0 for a in event_type]
    slots = np.full(1 << max(3, (2 * len(names)).bit_length()), -1, np.int32)
    for number, name in enumerate(names):
        if kinds[number]:
            slot = scanner.name_hash.py_func(name, 0, len(name)) & (len(slots) - 1)
            while slots[slot] >= 0:
                slot = (slot + 1) & (len(slots) - 1)
            slots[slot] = number
    rank = np.empty(len(names), np.int32)
    rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    flat = [_flat(names), _flat(quoted)]
    return scanner.Names(slots, *flat[0], *flat[1], np.array(kinds, np.uint8), rank)


def _flat(texts: Sequence[bytes]) -> tuple[Array, Array]:
    ends = np.cumsum([0, *map(len, texts)]).astype(np.int32)
    return ends, np.frombuffer(b"".join(texts) or b" ", np.uint8).copy()


def _buffers(texts: pa.Array) -> tuple[Array, Array]:
    """Offsets and bytes of a column of texts."""
    if texts.type != pa.string():
        texts = texts.cast(pa.string())
    _, offsets, content = texts.buffers()
    here = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return here, np.frombuffer(content, np.uint8) if content is not None and content.size else np.zeros(1, np.uint8)


def _summed(counts: Array) -> Array:
    ptr = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ptr[1:])
    return ptr


def _binary(ends: Array, content: Array, count: int, size: int, is_null: Array | None = None) -> pa.Array:
    """Texts that end at these places of the content."""
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = ends[:count]
    valid = None
    if is_null is not None:
        valid = pa.array(is_null[:count] == 0).buffers()[1]
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(content[:size].copy())]
    return pa.Array.from_buffers(pa.binary(), count, buffers)
