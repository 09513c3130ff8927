"""Values and their order, event types, events, and their forms: records, Arrow, JSON, CloudEvents.

Nothing here knows of conditions. `Event.of` turns a record into an `Event`; `conform` turns a
table into the columns of an event type. CloudEvents have a module of their own, `from
tidings.events import cloudevents`, so that only its users load the SDK.

In reading order:

    values        the types of values, their order, and keys that sort like them
    schema        event types: attributes, checking a record
    event         one event, and its binary form
    declaration   event types as TOML or JSON files
    jsonform      events as JSON
    jsonschema    event types as JSON Schema
    arrow         event types and events as Arrow schemas and batches
    columns       events of one type as columns on a wire
    column_codec  those columns to Arrow and back, from senders that are not trusted
    cloudevents   events as CloudEvents
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidings.events.columns import BATCH_BYTES_MAX, EventColumns, check_count, is_columnar, rows_at_most
from tidings.events.declaration import from_declaration, read_file, to_declaration, write_file
from tidings.events.event import Event, decode_value, encode_value, from_extension, from_message, to_extension
from tidings.events.jsonform import read_record, read_values, to_record, typed
from tidings.events.jsonschema import json_schema
from tidings.events.schema import Attribute, EventType, Required
from tidings.events.values import (
    INT_MAX,
    INT_MIN,
    Date,
    Exact,
    Key,
    Time,
    Timestamp,
    Value,
    ValueType,
    describe,
    double_key,
    type_of,
    unscaled,
)

if TYPE_CHECKING:
    from tidings.events.arrow import (
        ARROW_TYPES,
        HeaderColumns,
        arrow_schema,
        arrow_values,
        conform,
        event_type_from,
        event_type_from_spark,
        from_batch,
        nest,
        python_values,
        row_values,
        to_batch,
        value_type_of,
    )
    from tidings.events.column_codec import (
        columns_of_rows,
        rows_of_columns,
        rows_of_records,
        values_of_columns,
        values_of_rows,
    )

__all__ = [
    "ARROW_TYPES",
    "BATCH_BYTES_MAX",
    "INT_MAX",
    "INT_MIN",
    "Attribute",
    "Date",
    "Event",
    "EventColumns",
    "EventType",
    "Exact",
    "HeaderColumns",
    "Key",
    "Required",
    "Time",
    "Timestamp",
    "Value",
    "ValueType",
    "arrow_schema",
    "arrow_values",
    "check_count",
    "columns_of_rows",
    "conform",
    "decode_value",
    "describe",
    "double_key",
    "encode_value",
    "event_type_from",
    "event_type_from_spark",
    "from_batch",
    "from_declaration",
    "from_extension",
    "from_message",
    "is_columnar",
    "json_schema",
    "nest",
    "python_values",
    "read_file",
    "read_record",
    "read_values",
    "row_values",
    "rows_at_most",
    "rows_of_columns",
    "rows_of_records",
    "to_batch",
    "to_declaration",
    "to_extension",
    "to_record",
    "type_of",
    "typed",
    "unscaled",
    "value_type_of",
    "values_of_columns",
    "values_of_rows",
    "write_file",
]

_OF_ARROW = frozenset(
    {
        "ARROW_TYPES",
        "HeaderColumns",
        "arrow_schema",
        "arrow_values",
        "conform",
        "event_type_from",
        "event_type_from_spark",
        "from_batch",
        "nest",
        "python_values",
        "row_values",
        "to_batch",
        "value_type_of",
    }
)
_OF_COLUMN_CODEC = frozenset(
    {"columns_of_rows", "rows_of_columns", "rows_of_records", "values_of_columns", "values_of_rows"}
)


def __getattr__(name: str) -> Any:
    # Arrow takes a fifth of a second to load: who has no tables need not wait for it.
    if name in _OF_ARROW:
        from tidings.events import arrow

        return getattr(arrow, name)
    if name in _OF_COLUMN_CODEC:
        from tidings.events import column_codec

        return getattr(column_codec, name)
    raise AttributeError(f"module 'tidings.events' has no attribute {name!r}")
