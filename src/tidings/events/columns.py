"""Events of one type as columns on a wire: the buffers of Arrow arrays, and nothing that has to be believed.

A column is a name, the kind of its values, and up to three buffers: which rows have a value (a bit each; empty if all
have), where each text begins (strings and bytes only), and the values. Attributes that no row has are left out.

Arrow's own stream format is not used: it carries a schema, dictionaries, compressed buffers and nested types, and each
of them is something that a hostile sender can use. Here the receiver knows the type, so every length follows from the
number of rows, and is compared before anything is made of it (`column_codec`). Only flat kinds can be columns.
"""

from __future__ import annotations

import msgspec

from tidings.errors import EventError
from tidings.events.schema import EventType
from tidings.events.values import ValueType

BATCH_ROWS_MAX = 4096
# Rows times attributes of the type: an attribute without a column becomes one of nulls, which a sender need not send.
BATCH_CELLS_MAX = 1 << 18
BATCH_BYTES_MAX = 1 << 20
OFFSET_BYTES = 4
WIDTHS = {ValueType.INT: 8, ValueType.DOUBLE: 8, ValueType.TIMESTAMP: 8, ValueType.DATE: 4}
SIZED = (ValueType.STRING, ValueType.BYTES)
FLAT_KINDS = {str(kind): kind for kind in (ValueType.BOOL, *WIDTHS, *SIZED)}


class EventColumn(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One attribute of all rows."""

    name: str
    kind: str
    """As a type declares it: `string`, `int` … A receiver that has another type by this name must not read an int as a time."""
    validity: bytes
    offsets: bytes
    values: bytes


class EventColumns(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Events of one type as columns."""

    rows: int
    columns: tuple[EventColumn, ...]


def is_columnar(event_type: EventType) -> bool:
    """Whether events of this type can be sent as columns: all attributes are flat, and there are not too many."""
    return 0 < len(event_type.attributes) <= BATCH_CELLS_MAX and all(str(a.type) in FLAT_KINDS for a in event_type)


def rows_at_most(event_type: EventType) -> int:
    """How many events of a type fit into one batch."""
    return max(1, min(BATCH_ROWS_MAX, BATCH_CELLS_MAX // max(len(event_type.attributes), 1)))


def check_count(sent: EventColumns, event_type: EventType) -> None:
    """Raises EventError for more rows than a batch may have, or none: quick, for what is counted before it is read."""
    if not is_columnar(event_type):
        raise EventError(f"{event_type.name}: events of this type are not sent as columns")
    if not 1 <= sent.rows <= rows_at_most(event_type):
        raise EventError(f"{event_type.name}: expected 1 to {rows_at_most(event_type)} rows, got {sent.rows}")
    size = sum(len(each.validity) + len(each.offsets) + len(each.values) for each in sent.columns)
    if size > BATCH_BYTES_MAX:
        raise EventError(f"{event_type.name}: expected at most {BATCH_BYTES_MAX} bytes in a batch, got {size}")
