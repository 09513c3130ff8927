"""Some rows of a conformed table as plain values, for what has to be asked one event at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from tidings.events import EventType, Timestamp, Value, ValueType


def row_values(
    rows: pa.Table, wanted: Sequence[int], event_type: EventType, names: Sequence[str] | None = None
) -> list[dict[str, Value]]:
    """The values of the wanted rows, of the named attributes only if any are named; absent ones left out."""
    numbers = pa.array(wanted, pa.int64())
    columns = [
        (a.name, _values(rows.column(position).take(numbers), a.type))
        for position, a in enumerate(event_type)
        if names is None or a.name in names
    ]
    return [{name: content[i] for name, content in columns if content[i] is not None} for i in range(len(wanted))]


def _values(column: Any, kind: ValueType) -> list[Any]:
    if kind is not ValueType.TIMESTAMP:
        return column.to_pylist()  # type: ignore[no-any-return]
    moments = column.cast(pa.int64()).to_pylist()  # As integers: Python's dates end at the year 9999.
    return [None if moment is None else Timestamp(moment) for moment in moments]
