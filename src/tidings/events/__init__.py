"""Values and their order, event types, events, and their forms: records, Arrow, JSON, CloudEvents.

Nothing here knows of conditions. `Event.of` turns a record into an `Event`; `conform` turns a
table into the columns of an event type. CloudEvents have a module of their own, `from
tidings.events import cloudevents`, so that only its users load the SDK.

In reading order:

    values        the types of values, their order, and keys that sort like them
    schema        event types: attributes, checking a record, evolution
    event         one event, and its binary form
    declaration   event types as TOML or JSON files
    jsonform      events as JSON
    arrow         event types and events as Arrow schemas and batches
    cloudevents   events as CloudEvents
"""

from tidings.events.arrow import (
    ARROW_TYPES,
    HeaderColumns,
    arrow_schema,
    conform,
    event_type_from,
    event_type_from_spark,
    from_batch,
    nest,
    row_values,
    to_batch,
    value_type_of,
)
from tidings.events.declaration import from_declaration, read_file, to_declaration, write_file
from tidings.events.event import Event, decode_value, encode_value
from tidings.events.jsonform import read_record, read_values, to_record, typed
from tidings.events.schema import Attribute, EventType, Required
from tidings.events.values import INT_MAX, INT_MIN, Key, Timestamp, Value, ValueType, describe, double_key, type_of

__all__ = [
    "ARROW_TYPES",
    "INT_MAX",
    "INT_MIN",
    "Attribute",
    "Event",
    "EventType",
    "HeaderColumns",
    "Key",
    "Required",
    "Timestamp",
    "Value",
    "ValueType",
    "arrow_schema",
    "conform",
    "decode_value",
    "describe",
    "double_key",
    "encode_value",
    "event_type_from",
    "event_type_from_spark",
    "from_batch",
    "from_declaration",
    "nest",
    "read_file",
    "read_record",
    "read_values",
    "row_values",
    "to_batch",
    "to_declaration",
    "to_record",
    "type_of",
    "typed",
    "value_type_of",
    "write_file",
]
