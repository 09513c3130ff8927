"""The live network → a streaming table: a durable subscription, read batch by batch.

The checkpoint holds positions of the subscription. A batch is what lies between two of them, and the
broker keeps it until the next batch is asked for, which Spark does once this one is in its commit log:
only then is it acknowledged. Until then the same range gives the same rows, as often as it is asked for.

    latestOffset(start)     all up to start is done: acknowledge it; hold what comes next, up to the limit
    partitions(start, end)  the rows held; after a restart, fetched again
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from tidings.errors import InputError, PeerError
from tidings.events import Timestamp
from tidings.net import BlockingClient, Received

EVENTS_PER_BATCH_MAX = 2048  # A broker sends no further ahead of what is acknowledged.
ANSWER_S_MAX = 60.0  # For an event that the broker says it has: long enough for it to be killed and started again.


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to read, and as whom."""

    client: str
    type: str
    subscription: str
    condition: str = "TRUE"
    since: Timestamp | None = None
    events_per_batch: int = EVENTS_PER_BATCH_MAX
    id: str = "event_id"


class Reading:
    """A durable subscription, read and not acknowledged except by `go_to`."""

    def __init__(self, wanted: Wanted) -> None:
        """Connects, and makes the subscription if there is none."""
        self._wanted = wanted
        self._client = BlockingClient(wanted.client)
        self._subscribe(-1)
        self._after, _ = self._reach()
        self._held: list[Received] = []

    @property
    def after(self) -> int:
        """The last position that is done with."""
        return self._after

    @property
    def end(self) -> int:
        """The last position there is at this moment."""
        return self._reach()[1]

    def go_to(self, position: int) -> None:
        """Everything up to `position` is done with. Raises InputError where the broker has another idea of it."""
        if position == self._after:
            return
        name, (acknowledged, end) = self._wanted.subscription, self._reach()
        if position < acknowledged:
            raise InputError(
                f"the checkpoint has {name!r} at position {position}, and at its broker all up to {acknowledged} is"
                " acknowledged: somebody else reads it, or the checkpoint is an old one"
            )
        if position > end:
            raise InputError(
                f"the checkpoint has {name!r} at position {position}, and its broker at {end}: the subscription was"
                " given up and made again; begin with a new checkpoint"
            )
        self._subscription.close()
        self._subscribe(position)
        self._after, self._held = position, []

    def read(self, count: int, last: int) -> list[Received]:
        """The first `count` events that are not done with, or those up to position `last`; the same ones again and again."""
        while len(self._held) < count and (self._held[-1].position if self._held else self._after) < last:
            self._held.append(self._next())
        return [event for event in self._held[:count] if event.position <= last]

    def close(self) -> None:
        self._client.close()

    def _subscribe(self, after: int) -> None:
        wanted = self._wanted
        self._subscription = self._client.subscribe(  # Held: what is done with, Spark says.
            wanted.type, wanted.condition, durable=wanted.subscription, since=wanted.since, after=after, hold=True
        )

    def _next(self) -> Received:
        event = self._subscription.next(ANSWER_S_MAX)
        if event is None:
            raise PeerError(
                f"the broker has more of {self._wanted.subscription!r} and sent none in {ANSWER_S_MAX:.0f} s:"
                " does somebody else read it, too?"
            )
        return event

    def _reach(self) -> tuple[int, int]:
        """The last position acknowledged, and the last there is; if some were rejected, one that is a little lower."""
        (found,) = (row for row in self._client.ask("durables") if row["name"] == self._wanted.subscription)
        return found["acknowledged"], found["acknowledged"] + found["waiting"]


class Rows(InputPartition):
    """Rows on their way to a worker."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        super().__init__(rows)


class LiveReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A durable subscription as Spark reads it. Connects when it is first asked for something."""

    def __init__(self, wanted: Wanted, schema: StructType) -> None:
        self.wanted, self.schema = wanted, schema
        self._opened: Reading | None = None
        self._target: int | None = None  # Where a query that takes what is there ends.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"position": self._reading.after}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self.wanted.events_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._reading.end

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        # Here and not in `commit`, which comes after the next batch is found: with the broker's window full
        # of events that are done with, none would be.
        reading = self._reading
        reading.go_to(start["position"])
        last = reading.end if self._target is None else self._target
        events = reading.read(self._count(limit), last)
        return {"position": events[-1].position if events else start["position"]}

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"position": self._reading.end}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        self._reading.go_to(start["position"])
        events = self._reading.read(EVENTS_PER_BATCH_MAX, end["position"])
        return [Rows(table_of(events, self.schema, self.wanted.id))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield partition.value

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()

    @property
    def _reading(self) -> Reading:
        if self._opened is None:
            self._opened = Reading(self.wanted)
        return self._opened

    def _count(self, limit: ReadLimit) -> int:
        match limit:
            case ReadMaxRows(max_rows=count):
                return min(count, EVENTS_PER_BATCH_MAX)
            case ReadAllAvailable():
                return EVENTS_PER_BATCH_MAX
        return self.wanted.events_per_batch


def table_of(events: Sequence[Received], schema: StructType, id: str) -> pa.RecordBatch:
    """Events as rows of the columns asked for; what an event does not have, or we may not see, is null."""
    target = to_arrow_schema(schema, timezone="UTC")
    columns = [
        pa.array([event.id if field.name == id else event.values.get(field.name) for event in events], field.type)
        for field in target
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)
