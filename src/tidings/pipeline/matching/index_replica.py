"""The index as a worker uses it, and the pairs that it finds.

An index replica is a folder of flat files: the index in parts, and the id and subscriber of each subscription number that
the index returns. Numbers are rows of the table that the replica was built from. Workers map the files into
memory, so all workers of a host share one copy of the pages.

    driver    distribute_index(subscriptions)   builds the replica once and broadcasts its folder
    worker    DistributedIndex.replica()        opens it once per process
              replica.match_in_rounds(events)   → MatchedPairs, in rounds of bounded size
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from numba import njit

from tidings.events import EventType
from tidings.matching import BOXES_SCHEMA, Index, one_chunk
from tidings.pipeline.matching.index_distribution import FolderBroadcast
from tidings.pipeline.matching.parse_subscriptions import SUBSCRIPTIONS_SCHEMA, without_texts
from tidings.pipeline.tables import COMPACT_NAMES, PAIR_NAMES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]

INDEX_FOLDER, SUBSCRIBERS_FILE = "index", "subscribers.arrow"
PART_ROWS = 1 << 20  # Subscriptions that are indexed together. More parts need less memory and more time to match.
OPEN_MAX = 4  # Replicas that a worker keeps open: the current base, its delta, and their predecessors.
# The number of pairs that one round of the kernel should return: enough to be fast, and few enough
# that events which match everything do not fill a worker's memory.
PAIRS_PER_ROUND = 2_000_000
ROWS_FIRST, ROWS_MAX = 1_024, 32_768  # The index itself cuts larger batches into several rounds.


# ── Pairs ────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class MatchedPairs:
    """Pairs of event rows and subscription numbers, in no particular order, with the subscriptions' names."""

    events: Numbers
    numbers: Numbers
    ids: pa.Array
    subscribers: pa.Array

    def without(self, is_removed: Numbers) -> MatchedPairs:
        """The pairs whose subscription number is not marked as removed."""
        here = ~is_removed[self.numbers]
        return MatchedPairs(self.events[here], self.numbers[here], self.ids, self.subscribers)

    def pairs(self, event_ids: pa.Array, kept: pa.RecordBatch | None = None) -> pa.RecordBatch:
        """One row per pair, with columns of its event."""
        numbers, events = pa.array(self.numbers), pa.array(self.events)
        columns = [event_ids.take(events), self.ids.take(numbers), self.subscribers.take(numbers)]
        return _with_kept(columns, PAIR_NAMES, kept, events)

    def compact(self, event_ids: pa.Array, kept: pa.RecordBatch | None = None) -> pa.RecordBatch:
        """One row per event that matches, with the list of its subscriptions, and columns of it."""
        rows, counts, numbers = group_by_event(self.events, self.numbers)
        lists = pa.ListArray.from_arrays(pa.array(list_offsets(counts)), self.ids.take(pa.array(numbers)))
        return _with_kept([event_ids.take(pa.array(rows)), lists], COMPACT_NAMES, kept, pa.array(rows))


def _with_kept(
    columns: list[pa.Array], names: list[str], kept: pa.RecordBatch | None, rows: pa.Array
) -> pa.RecordBatch:
    if kept is None:
        return pa.RecordBatch.from_arrays(columns, names)
    taken = kept.take(rows)
    return pa.RecordBatch.from_arrays([*columns, *taken.columns], [*names, *kept.schema.names])


def group_by_event(events: Numbers, numbers: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """The rows that occur in `events`, ascending; how often each does; and their numbers, concatenated.

    >>> [array.tolist() for array in group_by_event(np.array([4, 1, 4], np.int32), np.array([7, 8, 9], np.int32))]
    [[1, 4], [1, 2], [8, 7, 9]]
    """
    counts = np.zeros(int(events.max()) + 1, np.int32)
    grouped = np.empty(len(numbers), np.int32)
    _group(events, numbers, counts, grouped)
    rows = np.flatnonzero(counts)
    return rows, counts[rows], grouped


def list_offsets(counts: Numbers) -> Numbers:
    """Arrow's offsets for consecutive lists of these lengths.

    >>> list_offsets(np.array([1, 2])).tolist()
    [0, 1, 3]
    """
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def dictionary_codes(numbers: Numbers, count: int) -> tuple[Numbers, Numbers]:
    """Numbers below `count` as codes into a dictionary of those that occur, and that dictionary, ascending.

    >>> [array.tolist() for array in dictionary_codes(np.array([7, 2, 7], np.int32), 9)]
    [[1, 0, 1], [2, 7]]
    """
    occurs = np.zeros(count, np.int32)
    occurs[numbers] = 1
    code = np.cumsum(occurs, dtype=np.int32) - 1
    return code[numbers], np.flatnonzero(occurs)


@njit(cache=True, nogil=True)
def _group(events: Any, numbers: Any, counts: Any, grouped: Any) -> None:
    """A counting sort, since row numbers of a round are small. Leaves in `counts[row]` how often the row occurs."""
    for at in range(len(events)):
        counts[events[at]] += 1
    place = np.empty(len(counts), np.int64)
    end = 0
    for row in range(len(counts)):
        place[row] = end
        end += counts[row]
    for at in range(len(events)):
        row = events[at]
        grouped[place[row]] = numbers[at]
        place[row] += 1


# ── The replica ──────────────────────────────────────────────────────────────


class RoundSizer:
    """Chooses how many rows the next round takes, so that it returns about PAIRS_PER_ROUND pairs."""

    def __init__(self, subscription_count: int, rows_max: int = ROWS_MAX) -> None:
        # The first round assumes that every event matches every subscription.
        self.rows = max(1, min(ROWS_FIRST, rows_max, PAIRS_PER_ROUND // max(subscription_count, 1)))
        self._rows_max = rows_max

    def learn(self, rows: int, pairs: int) -> None:
        """Adapts to a round of `rows` rows that returned `pairs` pairs; grows fourfold at most."""
        fitting = PAIRS_PER_ROUND * rows // max(pairs, 1)
        self.rows = max(1, min(fitting, 4 * self.rows, self._rows_max))


@dataclass(frozen=True, slots=True, eq=False)
class IndexReplica:
    """Parts of an index over `event_type`, with the ids and subscribers of its subscription numbers.

    Numbers go on from one part to the next. A part is built by itself, so that the memory for building is that of one.
    """

    parts: tuple[Index, ...]
    event_type: EventType
    ids: pa.Array
    subscribers: pa.Array
    round_sizer: RoundSizer

    @classmethod
    def of(cls, subscriptions: pa.Table, event_type: EventType, *, rows_max: int = ROWS_MAX) -> IndexReplica:
        """Built from a table of SUBSCRIPTIONS_SCHEMA in which every id is unique."""
        index = Index.from_boxes(without_texts(subscriptions).select(BOXES_SCHEMA.names), event_type)
        columns = one_chunk(subscriptions.column("id")), one_chunk(subscriptions.column("subscriber"))
        return cls((index,), event_type, *columns, RoundSizer(len(subscriptions), rows_max))

    @classmethod
    def open(cls, folder: Path) -> IndexReplica:
        parts = tuple(Index.open(part) for part in sorted(folder.glob(f"{INDEX_FOLDER}-*")))
        subscribers = pa.ipc.open_file(pa.memory_map(str(folder / SUBSCRIBERS_FILE))).read_all()
        columns = one_chunk(subscribers.column("id")), one_chunk(subscribers.column("subscriber"))
        return cls(parts, parts[0].event_type, *columns, RoundSizer(len(subscribers)))

    def save(self, folder: Path) -> None:
        for at, part in enumerate(self.parts):
            part.save(folder / _part(at))
        _save_subscribers(pa.table({"id": self.ids, "subscriber": self.subscribers}), folder)

    def match(self, rows: pa.RecordBatch) -> MatchedPairs:
        """The pairs of a batch whose columns fit the event type."""
        found, first = [], 0
        for part in self.parts:
            events, numbers, _ = part.match_numbers(rows)
            found.append((events, numbers + first if first else numbers))
            first += len(part)
        events, numbers = found[0] if len(found) == 1 else map(np.concatenate, zip(*found))
        return MatchedPairs(events, numbers, self.ids, self.subscribers)

    def match_in_rounds(self, batch: pa.RecordBatch) -> Iterator[tuple[int, MatchedPairs]]:
        """The pairs of a batch with any columns: the first row of each round, and its pairs counted from there."""
        rows = batch.select(self._names_in(batch.schema.names))
        start = 0
        while start < batch.num_rows:
            here = rows.slice(start, self.round_sizer.rows)
            found = self.match(here)
            self.round_sizer.learn(here.num_rows, len(found.events))
            yield start, found
            start += here.num_rows

    def _names_in(self, names: list[str]) -> list[str]:
        """The columns with attributes in them, those of the type's own names in the type's order."""
        flat = [attribute.name for attribute in self.event_type if attribute.name in names]
        if len(flat) == len(self.event_type.attributes):
            return flat
        nested = {attribute.name.partition(".")[0] for attribute in self.event_type} - set(flat)
        return flat + [name for name in names if name in nested]


# ── On every host ────────────────────────────────────────────────────────────


class DistributedIndex:
    """A handle to an index that has a replica on every host. Small to pickle."""

    def __init__(self, broadcast: FolderBroadcast) -> None:
        self.broadcast = broadcast

    def replica(self) -> IndexReplica:
        """This host's replica, opened once per worker process."""
        key = self.broadcast.digest
        if key not in _open:
            _open[key] = IndexReplica.open(self.broadcast.folder())
            while len(_open) > OPEN_MAX:
                _open.popitem(last=False)
        _open.move_to_end(key)
        return _open[key]


_open: OrderedDict[str, IndexReplica] = OrderedDict()


def distribute_index(spark: SparkSession, subscriptions: Iterable[pa.Table], event_type: EventType) -> DistributedIndex:
    """Builds an index in the driver, from tables of SUBSCRIPTIONS_SCHEMA, and sends it to every host."""
    folder = Path(tempfile.mkdtemp(prefix="tidings-index-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    build_index(subscriptions, event_type, folder)
    return DistributedIndex(FolderBroadcast(spark, folder))


def build_index(
    subscriptions: Iterable[pa.Table], event_type: EventType, folder: Path, *, part_rows: int = PART_ROWS
) -> None:
    """Builds and saves an index part by part, with never more in memory than one part, and the ids and subscribers."""
    names: list[pa.Table] = []
    waiting: list[pa.Table] = []
    for table in chain.from_iterable(_slices(without_texts(table), part_rows) for table in subscriptions):
        if sum(map(len, waiting)) + len(table) > part_rows:
            names.append(_build_part(waiting, event_type, folder / _part(len(names))))
            waiting = []
        waiting.append(table)
    if waiting or not names:
        names.append(_build_part(waiting, event_type, folder / _part(len(names))))
    _save_subscribers(pa.concat_tables(names), folder)


def _build_part(tables: list[pa.Table], event_type: EventType, folder: Path) -> pa.Table:
    """Returns the ids and subscribers, without what they were read with."""
    whole = pa.concat_tables([SUBSCRIPTIONS_SCHEMA.empty_table(), *tables]).cast(SUBSCRIPTIONS_SCHEMA)
    tables.clear()
    names = {name: _copied(whole.column(name)) for name in ("id", "subscriber")}
    Index.from_boxes(whole.select(BOXES_SCHEMA.names), event_type).save(folder)
    del whole
    pa.default_memory_pool().release_unused()
    return pa.table(names)


def _slices(table: pa.Table, rows: int) -> Iterator[pa.Table]:
    return (table.slice(at, rows) for at in range(0, len(table), rows))


def _copied(column: pa.ChunkedArray) -> pa.Array:
    """A column that keeps no larger buffers alive."""
    return pa.concat_arrays([pa.array([], column.type), *column.chunks])


def _save_subscribers(subscribers: pa.Table, folder: Path) -> None:
    with pa.ipc.new_file(str(folder / SUBSCRIBERS_FILE), subscribers.schema) as writer:
        writer.write_table(subscribers.combine_chunks())


def _part(at: int) -> str:
    return f"{INDEX_FOLDER}-{at:03}"
