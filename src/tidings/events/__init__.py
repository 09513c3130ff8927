"""What is said: values and their order, event types, events, and how they come in and go out.

Nothing here knows of conditions. A record becomes an `Event` by `Event.of`, a table
becomes columns of an event type by `conform`, a CloudEvent either way by the second door,
`from tidings.events import cloudevents`: apart, so that only who needs the SDK loads it.
"""

from tidings.events.arrow import (
    ARROW_TYPES,
    HeadColumns,
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
    "HeadColumns",
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
