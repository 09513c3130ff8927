"""A table → the live network: each row is published once, however often its batch is written.

A broker publishes only one event per client and idempotency key (the `names` of `publish_many`). The key of a row is
the value of its id column, if there is one. Otherwise it consists of the query, the batch, the partition and
the row's own values, with a counter for equal rows of a partition. So a repeated batch has the same keys, in
whichever order its rows come. The tasks do all of this, and a repeated task sends the same keys again.
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

QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"  # Local properties that Spark sets for its tasks.


@dataclass(frozen=True, slots=True)
class LiveSinkOptions:
    """The client and event type to publish as; `id` is the column with the events' keys, or empty."""

    client: str
    type: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class PublishedCount(WriterCommitMessage):
    """The number of rows of a partition that the broker has on disk."""

    events: int


class LiveStreamWriter(DataSourceStreamArrowWriter):
    """Publishes the batches of a streaming query."""

    def __init__(self, options: LiveSinkOptions) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishedCount:
        task = TaskContext.get()
        assert task is not None, "Spark writes in tasks"
        parts = (task.getLocalProperty(QUERY_ID), task.getLocalProperty(BATCH_ID), task.partitionId())
        assert None not in parts, "Spark sets query and batch for the tasks of a streaming query"
        return publish(iterator, self.options, "\0".join(map(str, parts)))


class LiveBatchWriter(DataSourceArrowWriter):
    """Publishes a table. Without an id column, writing it twice publishes it twice."""

    def __init__(self, options: LiveSinkOptions) -> None:
        self.options, self.run = options, secrets.token_hex(16)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> PublishedCount:
        task = TaskContext.get()
        assert task is not None, "Spark writes in tasks"
        return publish(iterator, self.options, f"{self.run}\0{task.partitionId()}")


def publish(batches: Iterable[pa.RecordBatch], options: LiveSinkOptions, within: str) -> PublishedCount:
    """Publishes rows; returns when the broker has all of them on disk. `within` makes keys unique to this write."""
    filled = (rows for rows in batches if rows.num_rows)
    first = next(filled, None)
    if first is None:
        return PublishedCount(0)  # Many partitions are empty, and need no connection.
    with BlockingClient(options.client) as client:
        (declared,) = client.ask("type", name=options.type)
        event_type = from_declaration(declared)
        equal: Counter[bytes] = Counter()
        count = 0
        for rows in chain([first], filled):
            values = values_of(rows, event_type, options.id)
            names = _ids(rows, options) if options.id else [_key(within, _digest(each), equal) for each in values]
            count += len(client.publish_many(options.type, values, names=names))
    return PublishedCount(count)


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


def _ids(rows: pa.RecordBatch, options: LiveSinkOptions) -> list[str]:
    if options.id not in rows.schema.names:
        raise InputError(
            f"there is no column {options.id!r} to name events by; there are {', '.join(rows.schema.names)}"
        )
    ids = rows.column(options.id).cast(pa.string()).to_pylist()
    if None in ids:
        raise InputError(f"{options.id}: expected a name for each event, got null")
    return [f"id\0{options.type}\0{id}" for id in ids]


def _digest(values: Mapping[str, Any]) -> bytes:
    return hashlib.sha256(repr(list(values.items())).encode()).digest()


def _key(within: str, digest: bytes, equal: Counter[bytes]) -> str:
    equal[digest] += 1
    return f"row\0{within}\0{digest.hex()}\0{equal[digest]}"
