"""A table → the live network: each row is published once, however often its batch is written.

A broker publishes once what one client says under one name. A row's name is the value of its id
column, if there is one. Else it is made of the query, the batch, the partition and the row's own values, with a
number where a partition has equal rows: a batch that is run again gives the same names, in whichever
order its rows come. All happens in the tasks; a task that fails and is tried again repeats itself word for word.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from tidings.errors import InputError
from tidings.events import EventType, Timestamp, conform, from_declaration
from tidings.net import BlockingClient

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"  # As Spark tells its tasks.


@dataclass(frozen=True, slots=True)
class Where:
    """As whom and as what to publish; `id` is the column that names the events, or nothing."""

    client: str
    type: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Said(WriterCommitMessage):
    """How many rows of a partition are on the broker's disk."""

    events: int


class LiveStreamWriter(DataSourceStreamArrowWriter):
    """Publishes the batches of a streaming query."""

    def __init__(self, where: Where) -> None:
        self.where = where

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Said:
        task = TaskContext.get()
        assert task is not None, "Spark writes in tasks"
        parts = (task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID), task.partitionId())
        assert None not in parts, "Spark tells the tasks of a query which query and which batch"
        return publish(iterator, self.where, "\0".join(map(str, parts)))


class LiveBatchWriter(DataSourceArrowWriter):
    """Publishes a table. Without an id column, writing it twice publishes it twice."""

    def __init__(self, where: Where) -> None:
        self.where, self.run = where, secrets.token_hex(16)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Said:
        task = TaskContext.get()
        assert task is not None, "Spark writes in tasks"
        return publish(iterator, self.where, f"{self.run}\0{task.partitionId()}")


def publish(batches: Iterable[pa.RecordBatch], where: Where, within: str) -> Said:
    """Publishes rows; returns when all are on the broker's disk. `within` tells their names from those of other writes."""
    filled = (rows for rows in batches if rows.num_rows)
    first = next(filled, None)
    if first is None:
        return Said(0)  # Many partitions are empty: no reason to dial.
    with BlockingClient(where.client) as client:
        (declared,) = client.ask("type", name=where.type)
        event_type = from_declaration(declared)
        equal: Counter[bytes] = Counter()
        count = 0
        for rows in chain([first], filled):
            values = values_of(rows, event_type, where.id)
            names = _ids(rows, where) if where.id else [_name(within, _digest(each), equal) for each in values]
            count += len(client.publish_many(where.type, values, names=names))
    return Said(count)


def values_of(rows: pa.RecordBatch, event_type: EventType, id: str = "") -> list[Mapping[str, Any]]:
    """Each row as the values of an event; null is absent. Raises InputError for a column that is no attribute."""
    tops = {attribute.name.split(".")[0] for attribute in event_type}
    for name in rows.schema.names:
        if name not in tops and name not in event_type and name != id:
            raise InputError(f"{event_type.name} has no attribute {name!r} for the column of that name")
    flat = conform(rows, event_type)
    columns = [_python(flat.column(name)) for name in flat.schema.names]
    return [{name: value for name, value in zip(flat.schema.names, row) if value is not None} for row in zip(*columns)]


def _python(column: pa.Array) -> list[Any]:
    if not pa.types.is_timestamp(column.type):
        return list(column.to_pylist())
    return [None if value is None else Timestamp(value) for value in column.cast(pa.int64()).to_pylist()]


def _ids(rows: pa.RecordBatch, where: Where) -> list[str]:
    if where.id not in rows.schema.names:
        raise InputError(f"there is no column {where.id!r} to name events by; there are {', '.join(rows.schema.names)}")
    ids = rows.column(where.id).cast(pa.string()).to_pylist()
    if None in ids:
        raise InputError(f"{where.id}: expected a name for each event, got null")
    return [f"id\0{where.type}\0{id}" for id in ids]


def _digest(values: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(repr(list(values.items())).encode()).digest()


def _name(within: str, digest: bytes, equal: Counter[bytes]) -> str:
    equal[digest] += 1
    return f"row\0{within}\0{digest.hex()}\0{equal[digest]}"
