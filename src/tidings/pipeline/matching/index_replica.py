"""What a worker matches with: an index, and for each number that it answers the subscription and who made it.

A holding is a folder of flat files. Whoever opens it maps them and shares their pages with
all others on the host. Numbers are the rows of the table it was written from.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from tidings.events import EventType
from tidings.matching import BOXES_SCHEMA, Index
from tidings.pipeline.matching.grouping import Numbers, by_event, ends_of
from tidings.pipeline.matching.index_distribution import Shipment
from tidings.pipeline.matching.parse_subscriptions import WANTED_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INDEX_FOLDER, PEOPLE_FILE = "index", "subscribers.arrow"
OPEN_MAX = 4  # Holdings that a worker keeps open: the one in force, its changes, and their predecessors.
# Pairs that one round of the kernel should give: enough to be fast, few enough that events
# which match everything do not fill a worker's memory.
PAIRS_PER_ROUND = 2_000_000
ROWS_FIRST, ROWS_MAX = 1_024, 32_768  # More than these the index itself cuts into several rounds.


@dataclass(frozen=True, slots=True)
class Found:
    """Pairs of event rows and subscription numbers, in no particular order, with the names of the latter."""

    events: Numbers
    numbers: Numbers
    ids: pa.Array
    subscribers: pa.Array

    def without(self, is_gone: Numbers) -> Found:
        """Leaves out the subscriptions that are gone."""
        here = ~is_gone[self.numbers]
        return Found(self.events[here], self.numbers[here], self.ids, self.subscribers)

    def pairs(self, event_ids: pa.Array) -> pa.RecordBatch:
        """A row per pair."""
        numbers = pa.array(self.numbers)
        columns = [event_ids.take(pa.array(self.events)), self.ids.take(numbers), self.subscribers.take(numbers)]
        return pa.RecordBatch.from_arrays(columns, PAIR_NAMES)

    def compact(self, event_ids: pa.Array) -> pa.RecordBatch:
        """A row per event that somebody wants, with the list of subscriptions."""
        rows, counts, numbers = by_event(self.events, self.numbers)
        lists = pa.ListArray.from_arrays(pa.array(ends_of(counts)), self.ids.take(pa.array(numbers)))
        return pa.RecordBatch.from_arrays([event_ids.take(pa.array(rows)), lists], COMPACT_NAMES)


COMPACT_NAMES, PAIR_NAMES = ["event_id", "subscription_ids"], ["event_id", "subscription_id", "subscriber"]


class Pace:
    """How many rows the next round takes: so many that it gives about PAIRS_PER_ROUND, growing with care."""

    def __init__(self, subscription_count: int) -> None:
        # As if every event matched everything, until there is something to go by.
        self.rows = max(1, min(ROWS_FIRST, PAIRS_PER_ROUND // max(subscription_count, 1)))

    def learn(self, rows: int, pairs: int) -> None:
        """That so many rows gave so many pairs."""
        fitting = PAIRS_PER_ROUND * rows // max(pairs, 1)
        self.rows = max(1, min(fitting, 4 * self.rows, ROWS_MAX))


@dataclass(frozen=True, slots=True, eq=False)
class Holding:
    """An index over `event_type`, and the ids and subscribers of its numbers."""

    index: Index
    event_type: EventType
    ids: pa.Array
    subscribers: pa.Array
    pace: Pace

    @classmethod
    def of(cls, wanted: pa.Table, event_type: EventType) -> Holding:
        """From a table of WANTED_SCHEMA, no id of which stands twice."""
        index = Index.from_boxes(wanted.select(BOXES_SCHEMA.names), event_type)
        return cls(index, event_type, _one_chunk(wanted, "id"), _one_chunk(wanted, "subscriber"), Pace(len(wanted)))

    @classmethod
    def open(cls, folder: Path) -> Holding:
        index = Index.open(folder / INDEX_FOLDER)
        people = pa.ipc.open_file(pa.memory_map(str(folder / PEOPLE_FILE))).read_all()
        columns = _one_chunk(people, "id"), _one_chunk(people, "subscriber")
        return cls(index, index.event_type, *columns, Pace(len(people)))

    def save(self, folder: Path) -> None:
        self.index.save(folder / INDEX_FOLDER)
        people = pa.table({"id": self.ids, "subscriber": self.subscribers})
        with pa.ipc.new_file(str(folder / PEOPLE_FILE), people.schema) as writer:
            writer.write_table(people)

    def match(self, rows: pa.RecordBatch) -> Found:
        """The pairs of a batch whose columns fit the event type."""
        events, numbers, _ = self.index.match_numbers(rows)
        return Found(events, numbers, self.ids, self.subscribers)

    def match_in_rounds(self, batch: pa.RecordBatch) -> Iterator[tuple[int, Found]]:
        """The same for a batch of any columns: where each round starts, and what it found counted from there."""
        rows = batch.select([a.name for a in self.event_type if a.name in batch.schema.names])
        start = 0
        while start < batch.num_rows:
            here = rows.slice(start, self.pace.rows)
            found = self.match(here)
            self.pace.learn(here.num_rows, len(found.events))
            yield start, found
            start += here.num_rows


class Shipped:
    """A holding on every host; a small thing to pickle."""

    def __init__(self, shipment: Shipment) -> None:
        self.shipment = shipment

    def holding(self) -> Holding:
        """Opened once per worker process, and mapped, so that workers share its pages."""
        key = self.shipment.digest
        if key not in _open:
            _open[key] = Holding.open(self.shipment.folder())
            while len(_open) > OPEN_MAX:
                _open.popitem(last=False)
        _open.move_to_end(key)
        return _open[key]


_open: OrderedDict[str, Holding] = OrderedDict()


def ship(spark: SparkSession, wanted: Iterable[pa.Table], event_type: EventType) -> Shipped:
    """Builds a holding once, in the driver, from tables of WANTED_SCHEMA, and sends it to every host."""
    whole = pa.concat_tables([WANTED_SCHEMA.empty_table(), *wanted]).cast(WANTED_SCHEMA)
    folder = Path(tempfile.mkdtemp(prefix="tidings-index-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Holding.of(whole, event_type).save(folder)
    return Shipped(Shipment(spark, folder))


def _one_chunk(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.array([], column.type), *column.chunks])
