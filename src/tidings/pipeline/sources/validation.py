"""Validation of records, a batch at a time: typed columns, and each broken record with the reason.

Arrow parses and checks whole batches. A batch that fails is halved until a single record fails, so a broken record
costs a few more parses of ever smaller halves, and valid records cost nothing extra. There are no implicit
conversions: a number where a string is declared is a broken record, as in `EventType.check`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from tidings.errors import EventError
from tidings.events import (
    Attribute,
    EventType,
    Value,
    ValueType,
    arrow_schema,
    arrow_values,
    conform,
    read_record,
    typed,
)

REASON_LENGTH_MAX = 500

Rows: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]
Convert: TypeAlias = Callable[[pa.Array | pa.RecordBatch], pa.Table]


@dataclass(frozen=True, slots=True)
class Validated:
    """A validated batch: `good` holds the rows `kept`, `broken` the row and reason of each of the others."""

    good: pa.Table
    kept: Rows
    broken: tuple[tuple[int, str], ...]


def validate_lines(lines: pa.Array, event_type: EventType) -> Validated:
    """JSON documents, one per value, → columns of the event type."""
    return _validate(lines, lambda part: conform(_read_json(part, event_type), event_type), event_type)


def validate_rows(batch: pa.RecordBatch, event_type: EventType) -> Validated:
    """Rows of any table → columns of the event type."""
    return _validate(batch, lambda part: pa.Table.from_batches([conform(part, event_type)]), event_type)


def original_of(batch: pa.RecordBatch, row: int) -> bytes:
    """A row as JSON, to be stored in the quarantine."""
    return json.dumps(batch.slice(row, 1).to_pylist()[0], default=str, ensure_ascii=False).encode()


def _validate(records: pa.Array | pa.RecordBatch, convert: Convert, event_type: EventType) -> Validated:
    tables: list[pa.Table] = [arrow_schema(event_type).empty_table()]
    kept: list[Rows] = [np.zeros(0, np.int64)]
    broken: list[tuple[int, str]] = []
    waiting = [(0, len(records))] if len(records) else []
    while waiting:
        start, length = waiting.pop()
        try:
            tables.append(convert(records.slice(start, length)))
            kept.append(np.arange(start, start + length))
        except (EventError, pa.ArrowInvalid) as wrong:
            if length == 1:
                broken.append((start, _reason(wrong)))
            else:
                half = length // 2
                waiting += [(start + half, length - half), (start, half)]
    return Validated(pa.concat_tables(tables), np.concatenate(kept), tuple(broken))


def _reason(wrong: Exception) -> str:
    return str(wrong).removesuffix(" in row 0").removesuffix(".")[:REASON_LENGTH_MAX]


def _read_json(lines: pa.Array, event_type: EventType) -> pa.Table:
    """Raises unless every line is exactly one JSON object with values of the declared types."""
    _check_objects(lines)
    if any(a.type.map_key or a.type.element in _AS_TEXTS for a in event_type):
        return _read_one_by_one(lines, event_type)
    as_written = _as_written(event_type)
    text = b"\n".join(lines.to_pylist())
    table = pa.json.read_json(
        pa.BufferReader(text),
        pa.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
        pa.json.ParseOptions(
            explicit_schema=arrow_schema(as_written, nested=True),
            newlines_in_values=True,
            unexpected_field_behavior="ignore",
        ),
    )
    # Every line has at least one object, so with as many objects as lines each has exactly one.
    if table.num_rows != len(lines):
        raise EventError(f"expected one JSON object, got {table.num_rows}")
    has_texts = any(a.type in _AS_TEXTS for a in event_type)
    return _texts_read(conform(table, as_written), event_type) if has_texts else table


# Values that Arrow's reader does not know in JSON, where they are strings.
_AS_TEXTS = (ValueType.BYTES, ValueType.DATE, ValueType.TIME)


def _read_one_by_one(lines: pa.Array, event_type: EventType) -> pa.Table:
    """In Python, because Arrow's reader knows no maps, and within arrays no dates, times and bytes."""
    optional = EventType.of(event_type.name, tuple(Attribute(a.name, a.type) for a in event_type))
    records = [_known(read_record(line), optional) for line in lines.to_pylist()]
    values = [optional.check(typed(record, optional)) for record in records]
    columns = [arrow_values([given.get(a.name) for given in values], a.type) for a in optional]
    return pa.Table.from_arrays(columns, schema=arrow_schema(optional))


def _known(record: Mapping[str, Any], event_type: EventType, prefix: str = "") -> dict[str, Any]:
    """The record without what the event type does not know, as Arrow's reader leaves it out."""
    heads = {
        a.name[: len(prefix)] + a.name[len(prefix) :].split(".")[0] for a in event_type if a.name.startswith(prefix)
    }
    found = {}
    for key, value in record.items():
        name = prefix + key
        if name in event_type:
            found[key] = value
        elif name in heads and isinstance(value, dict):
            found[key] = _known(value, event_type, name + ".")
    return found


def _as_written(event_type: EventType) -> EventType:
    """The type as JSON has it: bytes, dates and times are strings. Nothing is required: `conform` checks that later."""
    kinds = dict.fromkeys(_AS_TEXTS, ValueType.STRING)
    return EventType.of(event_type.name, tuple(Attribute(a.name, kinds.get(a.type, a.type)) for a in event_type))


def _texts_read(table: pa.Table, event_type: EventType) -> pa.Table:
    for at, attribute in enumerate(event_type):
        if attribute.type in _AS_TEXTS:
            table = table.set_column(at, attribute.name, _from_texts(table.column(at), attribute))
    return table


def _from_texts(texts: pa.ChunkedArray, attribute: Attribute) -> pa.Array | pa.ChunkedArray:
    if attribute.type is ValueType.BYTES:  # Arrow cannot decode base64.
        return pa.array([_from_base64(text, attribute.name) for text in texts.to_pylist()], pa.binary())
    try:
        return _from_usual_texts(texts, attribute.type)
    except pa.ArrowInvalid:  # Something that Arrow does not read, such as a date after the year 9999, or nobody.
        return arrow_values([_checked(text, attribute) for text in texts.to_pylist()], attribute.type)


def _from_usual_texts(texts: pa.ChunkedArray, kind: ValueType) -> pa.ChunkedArray:
    if kind is ValueType.DATE:
        return texts.cast(pa.date32())
    # Times Arrow reads only behind a date.
    moments = pc.binary_join_element_wise("1970-01-01", texts, "T").cast(pa.timestamp("us"))
    return moments.cast(pa.int64()).cast(pa.time64("us"))


def _checked(text: str | None, attribute: Attribute) -> Value | None:
    try:
        return None if text is None else attribute.type.check(text)
    except EventError as wrong:
        raise EventError(f"attribute {attribute.name!r}: {wrong}") from None


def _from_base64(text: str | None, name: str) -> bytes | None:
    if text is None:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise EventError(f"attribute {name!r}: expected bytes in base64, got {text[:40]!r}") from None


def _check_objects(lines: pa.Array) -> None:
    """Arrow's reader gets only what looks like objects: it hangs on a bare `null`."""
    if lines.null_count:
        raise EventError("expected a JSON object, got nothing")
    trimmed = pc.ascii_trim_whitespace(_as_latin(lines))
    looks_right = pc.and_(pc.starts_with(trimmed, "{"), pc.ends_with(trimmed, "}"))
    if not pc.all(looks_right, min_count=0).as_py():
        raise EventError("expected a JSON object {…}, got something else, or an incomplete one")


def _as_latin(lines: pa.Array) -> pa.StringArray:
    """The same bytes as text, unchecked; the caller searches them for ASCII only."""
    validity, offsets, content = lines.cast(pa.binary()).buffers()
    return pa.StringArray.from_buffers(len(lines), offsets, content, validity, lines.null_count, lines.offset)
