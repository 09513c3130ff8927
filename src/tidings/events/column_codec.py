"""Columns to rows and back: every length that a sender claims is compared with what is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import EventError
from tidings.events.arrow import ARROW_TYPES, arrow_schema, arrow_values, python_values
from tidings.events.columns import (
    BATCH_CELLS_MAX,
    BATCH_ROWS_MAX,
    FLAT_KINDS,
    OFFSET_BYTES,
    SIZED,
    WIDTHS,
    EventColumn,
    EventColumns,
    check_count,
)
from tidings.events.schema import Attribute, EventType
from tidings.events.values import Value, ValueType

_KIND_OF = {ARROW_TYPES[kind]: kind for kind in FLAT_KINDS.values()}

# ── Out ──


def rows_of_records(records: Sequence[Mapping[str, Any]], event_type: EventType) -> pa.RecordBatch | None:
    """Records as rows; None unless each value plainly is of its attribute's type, so that `EventType.check` would take it as it is."""
    columns, found = [], 0
    for attribute in event_type:
        content = [record.get(attribute.name) for record in records]
        missing = content.count(None)
        if not {attribute.type.python, type(None)}.issuperset(map(type, content)) or (attribute.required and missing):
            return None
        found += len(content) - missing
        try:
            columns.append(arrow_values(content, attribute.type))
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            return None
    if found != sum(map(len, records)):  # Names that the type does not know, nested values, or explicit nulls.
        return None
    return pa.RecordBatch.from_arrays(columns, schema=arrow_schema(event_type))


def columns_of_rows(rows: pa.RecordBatch, names: frozenset[str] | None = None) -> EventColumns:
    """Rows of `arrow_schema`, checked by whoever made them, for a wire; with `names`, only these attributes."""
    columns = []
    for field, array in zip(rows.schema, rows.columns):
        if array.null_count < len(array) and (names is None or field.name in names):
            columns.append(_column_of(field.name, array))
    return EventColumns(rows.num_rows, tuple(columns))


def _column_of(name: str, array: pa.Array) -> EventColumn:
    if array.offset:
        array = pc.take(array, pa.array(range(len(array)), pa.int32()))
    count, kind = len(array), _KIND_OF[array.type]
    validity, *rest = array.buffers()
    marks = _part(validity, (count + 7) // 8) if array.null_count else b""
    if kind in SIZED:
        offsets = _part(rest[0], OFFSET_BYTES * (count + 1))
        end = int.from_bytes(offsets[-OFFSET_BYTES:], "little")
        return EventColumn(name, str(kind), marks, offsets, _part(rest[1], end))
    return EventColumn(name, str(kind), marks, b"", _part(rest[0], _values_bytes(kind, count)))


def _part(buffer: pa.Buffer | None, size: int) -> bytes:
    if buffer is None or not size:
        return b""
    return bytes(buffer.slice(0, size))


# ── In ──


def rows_of_columns(sent: EventColumns, event_type: EventType) -> pa.RecordBatch:
    """The rows that somebody sent, as `conform` would return them: every row is one that `EventType.check` takes.

    Raises EventError for anything else, before it takes more memory than a small multiple of what was sent.
    """
    check_count(sent, event_type)
    found: dict[str, pa.Array] = {}
    for column in sent.columns:
        if column.name not in event_type:
            raise EventError(f"{event_type.name} has no attribute {column.name[:60]!r}")
        if column.name in found:
            raise EventError(f"{event_type.name}: attribute {column.name!r}: expected one column, got several")
        attribute = event_type[column.name]
        if column.kind != str(attribute.type):
            raise EventError(
                f"{event_type.name}: attribute {column.name!r}: expected {attribute.type}, got {column.kind[:60]!r}"
            )
        found[column.name] = _array_of(column, sent.rows)
    arrays = [_present(found.get(a.name), a, sent.rows, event_type.name) for a in event_type]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(event_type))


def values_of_columns(sent: EventColumns) -> list[dict[str, Value]]:
    """The values of each row, for a receiver that does not know the type. Raises EventError as `rows_of_columns` does."""
    if not 0 <= sent.rows <= BATCH_ROWS_MAX or len(sent.columns) * sent.rows > BATCH_CELLS_MAX:
        raise EventError(f"expected at most {BATCH_ROWS_MAX} rows of a batch, got {sent.rows}")
    names = [column.name for column in sent.columns]
    if len(set(names)) != len(names):
        raise EventError("expected one column of each name, got several")
    arrays = [_array_of(column, sent.rows) for column in sent.columns]
    return _values(names, arrays, sent.rows)


def values_of_rows(rows: pa.RecordBatch) -> list[dict[str, Value]]:
    """The values of each row; absent ones are left out."""
    there = [(name, array) for name, array in zip(rows.schema.names, rows.columns) if array.null_count < len(array)]
    return _values([name for name, _ in there], [array for _, array in there], rows.num_rows)


def _values(names: Sequence[str], arrays: Sequence[pa.Array], count: int) -> list[dict[str, Value]]:
    if not arrays:
        return [{} for _ in range(count)]
    lists = [python_values(array, _KIND_OF[array.type]) for array in arrays]
    if not any(array.null_count for array in arrays):
        return [dict(zip(names, row)) for row in zip(*lists)]
    return [{name: value for name, value in zip(names, row) if value is not None} for row in zip(*lists)]


def _present(array: pa.Array | None, attribute: Attribute, count: int, owner: str) -> pa.Array:
    missing = count if array is None else array.null_count
    if attribute.required and missing:
        raise EventError(f"{owner}: attribute {attribute.name!r} is required and missing")
    return pa.nulls(count, ARROW_TYPES[attribute.type]) if array is None else array


def _array_of(column: EventColumn, count: int) -> pa.Array:
    kind = FLAT_KINDS.get(column.kind)
    if kind is None:
        raise EventError(f"attribute {column.name[:60]!r}: expected a flat kind of values, got {column.kind[:60]!r}")
    _check_bytes(column.name, "marks of rows", column.validity, (count + 7) // 8 if column.validity else 0)
    _check_bytes(column.name, "offsets", column.offsets, OFFSET_BYTES * (count + 1) if kind in SIZED else 0)
    if kind in SIZED:
        begins, ends = (int.from_bytes(part, "little") for part in (column.offsets[:4], column.offsets[-4:]))
        if begins != 0:
            raise EventError(f"attribute {column.name[:60]!r}: expected the first text at byte 0, got {begins}")
        _check_bytes(column.name, "values", column.values, ends)
    else:
        _check_bytes(column.name, "values", column.values, _values_bytes(kind, count))
    validity = pa.py_buffer(column.validity) if column.validity else None
    offsets = [pa.py_buffer(column.offsets)] if kind in SIZED else []
    array = pa.Array.from_buffers(ARROW_TYPES[kind], count, [validity, *offsets, pa.py_buffer(column.values)])
    try:
        array.validate(full=True)  # Offsets that only grow, and UTF-8.
    except (pa.ArrowException, ValueError) as wrong:
        raise EventError(f"attribute {column.name[:60]!r}: {str(wrong).splitlines()[0][:200]}") from None
    return array


def _check_bytes(name: str, what: str, raw: bytes, expected: int) -> None:
    if len(raw) != expected:
        raise EventError(f"attribute {name[:60]!r}: expected {expected} bytes of {what}, got {len(raw)}")


def _values_bytes(kind: ValueType, count: int) -> int:
    return (count + 7) // 8 if kind is ValueType.BOOL else WIDTHS[kind] * count
