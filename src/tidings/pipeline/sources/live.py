"""The live network → a streaming table: a durable subscription, read batch by batch.

The checkpoint holds positions of the subscription, and a batch is the range between two of them. The broker keeps the
events of a batch until Spark asks for the next one, which it does once this batch is in its commit log. Only
then are they acknowledged. Until then the same range returns the same rows, as often as Spark asks.

    latestOffset(start)     acknowledges all up to start, which is done; buffers the next events, up to the limit
    partitions(start, end)  the buffered rows; after a restart, fetched again
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tidings.errors import InputError, PeerError
from tidings.events import Timestamp
from tidings.net import BlockingClient, Received
from tidings.pipeline.arrow_types import to_arrow_schema
from tidings.pipeline.sources.read_limits import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

EVENTS_PER_BATCH_MAX = 2048  # The broker's window of unacknowledged events.
ANSWER_S_MAX = 60.0  # For an event that the broker has: long enough for the broker to be killed and restarted.


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSourceOptions:
    """The client to read as, and the durable subscription to read."""

    client: str
    type: str
    subscription: str
    condition: str = "TRUE"
    since: Timestamp | None = None
    events_per_batch: int = EVENTS_PER_BATCH_MAX
    id: str = "event_id"


class DurableReader:
    """A durable subscription; only `acknowledge` acknowledges events."""

    def __init__(self, options: LiveSourceOptions) -> None:
        """Connects, and creates the subscription if there is none."""
        self._options = options
        self._client = BlockingClient(options.client)
        self._subscribe(-1)
        self._after, _ = self._positions()
        self._buffer: list[Received] = []

    @property
    def after(self) -> int:
        """The last position that is acknowledged."""
        return self._after

    @property
    def end(self) -> int:
        """The last position that the broker has now."""
        return self._positions()[1]

    def acknowledge(self, position: int) -> None:
        """Acknowledges everything up to `position`. Raises InputError if that contradicts the broker's position."""
        if position == self._after:
            return
        name, (acknowledged, end) = self._options.subscription, self._positions()
        if position < acknowledged:
            raise InputError(
                f"the checkpoint has {name!r} at position {position}, but its broker has {acknowledged} as"
                " acknowledged: another client reads the subscription, or the checkpoint is an old one"
            )
        if position > end:
            raise InputError(
                f"the checkpoint has {name!r} at position {position}, but its broker ends at {end}: the subscription"
                " was deleted and created again; begin with a new checkpoint"
            )
        self._subscription.close()
        self._subscribe(position)
        self._after, self._buffer = position, []

    def read(self, count: int, last: int) -> list[Received]:
        """The first `count` unacknowledged events, up to position `last`; the same ones at every call."""
        while len(self._buffer) < count and (self._buffer[-1].position if self._buffer else self._after) < last:
            self._buffer.append(self._next())
        return [event for event in self._buffer[:count] if event.position <= last]

    def close(self) -> None:
        self._client.close()

    def _subscribe(self, after: int) -> None:
        options = self._options
        self._subscription = self._client.subscribe(  # With `hold`, since Spark decides what is acknowledged.
            options.type, options.condition, durable=options.subscription, since=options.since, after=after, hold=True
        )

    def _next(self) -> Received:
        event = self._subscription.next(ANSWER_S_MAX)
        if event is None:
            raise PeerError(
                f"the broker has more events of {self._options.subscription!r} but sent none in {ANSWER_S_MAX:.0f} s:"
                " does another client read the subscription?"
            )
        return event

    def _positions(self) -> tuple[int, int]:
        """The last acknowledged position and the last position; lower by the rejected events, if there were any."""
        (found,) = (row for row in self._client.ask("durables") if row["name"] == self._options.subscription)
        return found["acknowledged"], found["acknowledged"] + found["waiting"]


class RowsPartition(InputPartition):
    """Rows for a worker."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        super().__init__(rows)


class LiveReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A durable subscription as a Spark stream reader. Connects at first use."""

    def __init__(self, options: LiveSourceOptions, schema: StructType) -> None:
        self.options, self.schema = options, schema
        self._opened: DurableReader | None = None
        self._target: int | None = None  # The last position of a query with trigger(availableNow=True).

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"position": self._reader.after}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.options.events_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._reader.end

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        # Acknowledged here and not in `commit`, which Spark calls only after it has found the next batch. With the
        # broker's window full of unacknowledged events it would find none.
        reader = self._reader
        reader.acknowledge(start["position"])
        last = reader.end if self._target is None else self._target
        events = reader.read(self._count(limit), last)
        return {"position": events[-1].position if events else start["position"]}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"position": self._reader.end}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        self._reader.acknowledge(start["position"])
        events = self._reader.read(EVENTS_PER_BATCH_MAX, end["position"])
        return [RowsPartition(table_of(events, self.schema, self.options.id))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield partition.value

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()

    @property
    def _reader(self) -> DurableReader:
        if self._opened is None:
            self._opened = DurableReader(self.options)
        return self._opened

    def _count(self, limit: ReadLimit) -> int:
        match limit:
            case ReadMaxRows(max_rows=count):
                return min(count, EVENTS_PER_BATCH_MAX)
            case ReadAllAvailable():
                return EVENTS_PER_BATCH_MAX
        return self.options.events_per_batch


def table_of(events: Sequence[Received], schema: StructType, id: str) -> pa.RecordBatch:
    """Events as rows of this schema; attributes that an event lacks, or that we may not read, are null."""
    target = to_arrow_schema(schema)
    columns = [
        pa.array([event.id if field.name == id else event.values.get(field.name) for event in events], field.type)
        for field in target
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)
