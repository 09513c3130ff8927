"""The index: which of a million conditions does this event match?

Built like a log-structured merge tree: a large segment that seldom changes, a few smaller
ones, and a write buffer with the latest additions. A writer publishes each change as a new
version, which readers pick up with their next call: a match in progress goes on with the
version it began with. A thread of the index compacts small segments into larger ones.

Ids come back in the order in which the subscriptions were added; replacing one moves it to
the end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from tidings.errors import EventError, InputError
from tidings.events import INT_MAX, INT_MIN, EventType, Value, ValueType, conform, describe
from tidings.filters import Condition, parse
from tidings.matching.batch import BATCH_ROWS, SMALL_ROWS, Matches, match_all, match_in_order
from tidings.matching.box_table import Array, BoxColumns, columns_of, join_columns, read_table
from tidings.matching.bulk import BLOCK_TEXTS, parse_texts, read_texts
from tidings.matching.compaction import merge, to_compact
from tidings.matching.diagnostics import Effort, Explanation, Stats, explain, stats_of
from tidings.matching.event_packing import SHAPES_MAX, EventPacker
from tidings.matching.id_dictionary import IdDictionary, hashed
from tidings.matching.kernels.match import CANDIDATES, HITS
from tidings.matching.kernels.threads import core_count, start_workers
from tidings.matching.live_segment import (
    CACHED_BYTES_MAX,
    DOUBTFUL_PAIRS_MAX,
    FIRST_STAMP,
    UNORDERED_EVENTS_MAX,
    LiveSegment,
    Rows,
    as_table,
)
from tidings.matching.segment import Segment, build
from tidings.matching.write_buffer import WriteBuffer

SAMPLE_MAX = 4096  # Events of a sample that are kept; more would not change the plan.
THREADS_MAX = 64
BUILD_THREADS_MAX = 8  # More would only wait for memory.

Subscription: TypeAlias = tuple[str, str | Condition]


@dataclass(frozen=True, slots=True)
class IndexTuning:
    """The sizes at which an index changes its ways. They decide how fast it is, never what it answers."""

    pending_max: int = 4096  # Additions in the write buffer; then they become a segment.
    scanned_max: int = 32  # Additions that a single event is tested with one by one, before they become a segment.
    single_thread_build_max: int = 32_768  # A smaller segment is built before other threads have started.
    build_threads: int | None = None  # For a larger segment; None stands for one per core, at most BUILD_THREADS_MAX.
    batch_rows: int = BATCH_ROWS
    cached_bytes_max: int = CACHED_BYTES_MAX
    unordered_events_max: int = UNORDERED_EVENTS_MAX
    shapes_max: int = SHAPES_MAX
    doubtful_max: int = DOUBTFUL_PAIRS_MAX


DEFAULT_TUNING = IndexTuning()


class _Version(NamedTuple):
    """What one reader sees: segments, the first `pending_count` additions of the write buffer, and the stamp."""

    parts: tuple[LiveSegment, ...]
    pending: WriteBuffer
    pending_count: int
    stamp: int
    size: int

    def alive_pending(self) -> list[tuple[str, Condition]]:
        return self.pending.alive(self.pending_count, self.stamp)


class Index:
    """Subscriptions of one event type, by id.

    >>> Plate = EventType("Plate", area=str, speed=float)
    >>> index = Index(Plate)
    >>> index.add("ccs-1", "area IN ('WC1', 'EC2') AND speed > 20")
    >>> index.match({"area": "EC2", "speed": 31.0})
    ['ccs-1']

    All methods may be called from several threads at once. `sample`, a table of typical events,
    makes matching faster where events are distributed differently from what conditions suggest.
    """

    def __init__(
        self,
        event_type: EventType,
        *,
        sample: pa.Table | pa.RecordBatch | None = None,
        tuning: IndexTuning = DEFAULT_TUNING,
    ) -> None:
        self.event_type = event_type
        self._tuning = tuning
        # The type object of the last condition: comparing two types takes longer than adding a condition.
        self._equal_type = event_type
        self._python_types = {a.name: a.type.python for a in event_type if a.type in ValueType.PLAIN}
        self._required = [a.name for a in event_type if a.required]
        self._packer = EventPacker(event_type, shapes_max=tuning.shapes_max)
        self._sample = self._conformed_sample(sample)
        self._writing = threading.RLock()
        self._version = _Version((), WriteBuffer(), 0, FIRST_STAMP, 0)
        self._compactor: threading.Thread | None = None
        self._latest: tuple[int, LiveSegment] | None = None

    # ── Changes ──────────────────────────────────────────────────────────────

    def add(self, id: str, condition: str | Condition) -> None:
        """Adds a subscription, in place of the one with the same id if there is one. Raises FilterError."""
        parsed = self._parsed(condition)
        if type(id) is not str:
            id = _checked_id(id)
        with self._writing:
            parts, pending, count, stamp, size = self._version
            removed = self._remove(id, stamp + 1)
            pending.add(id, parsed)
            self._version = _Version(parts, pending, count + 1, stamp + 1, size + 1 - removed)
            if count + 1 >= self._tuning.pending_max:
                self._seal()

    def add_all(self, items: Iterable[Subscription] | pa.Table | pa.RecordBatch) -> None:
        """Adds many at once: pairs of id and condition, a table of BOXES_SCHEMA, or one with the texts of conditions.

        All of them, or none if one raises. A table has the columns `id` and `condition`; where it has `boxes`, too,
        they are taken as they are.
        """
        if isinstance(items, pa.Table | pa.RecordBatch):
            has_boxes = "boxes" in items.schema.names or "condition" not in items.schema.names
            self._add_columns((read_table if has_boxes else read_texts)(items, self.event_type))
            return
        pairs = iter(items)
        few = list(islice(pairs, self._tuning.pending_max))
        if len(few) == self._tuning.pending_max:
            self._add_columns(self._columns_of(chain(few, pairs)))
            return
        parsed = [self._parsed_pair(pair) for pair in few]
        with self._writing:
            for id, condition in parsed:
                self.add(id, condition)

    def remove(self, id: str) -> None:
        """Removes a subscription; raises KeyError if there is none with this id."""
        with self._writing:
            stamp = self._version.stamp + 1
            if not self._remove(id, stamp):
                raise KeyError(id)
            self._publish(stamp, -1)

    def settle(self) -> None:
        """Compacts everything into one segment, after which matching is fastest. Returns when that is done."""
        self._join_compactor()
        with self._writing:
            self._seal(compact=False)
            version = self._version
            if len(version.parts) > 1 or any(part.removed_count for part in version.parts):
                self._swap(version.parts, self._merged(version.parts, version.stamp), version.stamp)

    @classmethod
    def from_boxes(
        cls,
        table: pa.Table,
        event_type: EventType,
        *,
        sample: pa.Table | pa.RecordBatch | None = None,
        tuning: IndexTuning = DEFAULT_TUNING,
    ) -> Index:
        """An index of normalised conditions; see `boxes_table`."""
        index = cls(event_type, sample=sample, tuning=tuning)
        index.add_all(table)
        return index

    # ── Questions ────────────────────────────────────────────────────────────

    def match(self, record: Mapping[str, Any]) -> list[str]:
        """The ids of the subscriptions that one event matches. Raises EventError where it does not fit its type."""
        packed = self._packer.plain(record)
        return self.match_values(self._checked(record)) if packed is None else self._match_packed(packed, record)

    def match_values(self, values: Mapping[str, Value]) -> list[str]:
        """The same for values that were checked already (`EventType.check`, `Event.values`)."""
        return self._match_packed(self._packer.pack(values), values)

    def match_batch(self, events: pa.Table | pa.RecordBatch, *, threads: int = 1) -> pa.Table:
        """An Arrow table (event: row number, subscription: id), ordered by both; each id is stored once (dictionary)."""
        return match_in_order(*self._asked(events, threads))

    def match_numbers(self, events: pa.Table | pa.RecordBatch, *, threads: int = 1) -> Matches:
        """The same with numbers instead of ids, in no particular order: for a hundred million matches."""
        return match_all(*self._asked(events, threads))

    def explain(self, record: Mapping[str, Any], id: str) -> Explanation:
        """Whether the event matches this subscription and, if not, which part of its condition was not TRUE."""
        return explain(id, self.condition(id), self.event_type.check(record))

    def condition(self, id: str) -> Condition:
        """The condition of a subscription; raises KeyError if there is none with this id."""
        version = self._version
        found = version.pending.find(id, version.stamp)
        if found is not None:
            return found
        for part in reversed(version.parts):
            number = part.names.find(hashed(id))
            if number >= 0 and part.is_alive(number, version.stamp):
                return parse(part.segment.texts[number].as_py(), self.event_type)
        raise KeyError(id)

    def __contains__(self, id: str) -> bool:
        version = self._version
        if version.pending.find(id, version.stamp) is not None:
            return True
        found = ((part, part.names.find(hashed(id))) for part in version.parts)
        return any(number >= 0 and part.is_alive(number, version.stamp) for part, number in found)

    def __len__(self) -> int:
        return self._version.size

    def __iter__(self) -> Iterator[str]:
        """The ids, in the order in which they were added."""
        version = self._version
        for part in version.parts:
            yield from part.segment.ids.take(pa.array(part.alive(version.stamp))).to_pylist()
        yield from (id for id, _ in version.alive_pending())

    def stats(self) -> Stats:
        """Sizes, memory, and under which attributes conditions are filed."""
        version = self._version
        return stats_of(version.parts, version.pending_count, len(self), self.event_type)

    def effort(self, events: pa.Table | pa.RecordBatch) -> Effort:
        """How many entries a match of these events examines; matches them to find out."""
        version = self._version
        rows = conform(_as_table(events), self.event_type)
        parts = [*version.parts, *self._pending_part(version)]
        found = [part.match(rows, version.stamp) for part in parts]
        candidates, hits = (sum(int(totals[at]) for _, totals in found) for at in (CANDIDATES, HITS))
        return Effort(candidates, hits, sum(len(pairs) for pairs, _ in found))

    # ── Files ────────────────────────────────────────────────────────────────

    def save(self, path: str | Path) -> None:
        """Writes the index as a folder that `Index.open` maps into memory. The folder must not exist, or be an index."""
        from tidings.matching.storage import save

        self.settle()
        with self._writing:
            part = (self._version.parts or (self._part(columns_of([], self.event_type)),))[0]
            assert not part.removed_count, "an index is settled before it is saved"
            save(Path(path), part.segment, part.names, self.event_type)

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = False) -> Index:
        """A saved index, mapped into memory: processes that open the same files share their pages.

        Checks sizes and headers always, and all content with `verify`. Raises IndexFileError.
        Changes stay in memory until they are saved.
        """
        from tidings.matching.storage import open_segment

        segment, names, event_type = open_segment(Path(path), verify=verify)
        index = cls(event_type)
        part = index._live(segment, (names, np.zeros(0, np.int64)))
        index._version = _Version((part,), WriteBuffer(), 0, FIRST_STAMP, len(segment))
        return index

    # ── Steps ────────────────────────────────────────────────────────────────

    def _asked(self, events: pa.Table | pa.RecordBatch, threads: int) -> tuple[list[LiveSegment], Rows, int, int, int]:
        """What `match_all` takes."""
        version = self._version
        rows = conform(_as_rows(events), self.event_type)
        parts = [*version.parts, *self._pending_part(version)]
        return parts, rows, version.stamp, min(max(threads, 1), THREADS_MAX), self._tuning.batch_rows

    def _columns_of(self, pairs: Iterator[Subscription]) -> BoxColumns:
        """Many pairs as columns, a block at a time, so that a million parsed conditions need not fit into memory."""
        blocks: list[BoxColumns] = []
        while block := list(islice(pairs, BLOCK_TEXTS)):
            ids, conditions = zip(*block)
            try:
                parsed = parse_texts(pa.array(ids, pa.string()), self._checked_conditions(conditions), self.event_type)
            except (pa.ArrowException, TypeError, UnicodeEncodeError, InputError):
                parsed = None
            if parsed is None or parsed.wrong:
                blocks.append(columns_of(map(self._parsed_pair, block), self.event_type))  # Raises for the first one.
            else:
                blocks.append(parsed.columns)
        return join_columns(blocks)

    def _checked_conditions(self, conditions: Sequence[str | Condition]) -> Sequence[str | Condition]:
        if set(map(type, conditions)) == {str}:
            return conditions
        return [condition if type(condition) is str else self._parsed(condition) for condition in conditions]

    def _parsed_pair(self, pair: Subscription) -> tuple[str, Condition]:
        return _checked_id(pair[0]), self._parsed(pair[1])

    def _parsed(self, condition: str | Condition) -> Condition:
        if isinstance(condition, str):
            return parse(condition, self.event_type)
        if not isinstance(condition, Condition):
            raise InputError(f"expected a condition, got {describe(condition)}")
        if condition.event_type is self._equal_type:
            return condition
        if condition.event_type != self.event_type:
            return parse(condition.text, self.event_type)
        self._equal_type = condition.event_type
        return condition

    def _checked(self, record: Mapping[str, Any]) -> Mapping[str, Value]:
        """The record itself if a glance shows that it fits its type; otherwise what `EventType.check` makes of it."""
        kinds = self._python_types
        if type(record) is dict:
            for name, value in record.items():
                kind = type(value)
                if kinds.get(name) is not kind or (
                    not value.isascii() if kind is str else kind is int and not INT_MIN <= value <= INT_MAX
                ):
                    break
            else:
                if all(name in record for name in self._required):
                    return record
        return self.event_type.check(record)

    def _conformed_sample(self, sample: pa.Table | pa.RecordBatch | None) -> pa.Table | None:
        return None if sample is None else conform(_as_table(sample).slice(0, SAMPLE_MAX), self.event_type)

    def _publish(self, stamp: int, growth: int, parts: tuple[LiveSegment, ...] | None = None) -> None:
        old = self._version
        parts = old.parts if parts is None else parts
        self._version = _Version(parts, old.pending, old.pending_count, stamp, old.size + growth)

    def _remove(self, id: str, stamp: int) -> int:
        """Marks the subscription with this id as removed from `stamp` on; returns how many there were, 0 or 1."""
        if self._version.pending.remove(id, stamp):
            return 1
        name = hashed(id)
        for part in reversed(self._version.parts):  # The latest subscriptions are removed first, more often than not.
            number = part.names.find(name)
            if number >= 0 and part.remove_one(number, stamp):
                return 1
        return 0

    def _add_columns(self, columns: BoxColumns) -> None:
        part = self._part(columns)
        with self._writing:
            self._seal(compact=False)
            stamp = self._version.stamp + 1
            gone = 0
            for old in self._version.parts:
                numbers = old.names.find_all(columns.ids)
                gone += old.remove(np.unique(numbers[numbers >= 0]), stamp)
            self._publish(stamp, len(columns) - part.removed_count - gone, (*self._version.parts, part))
            self._compact()

    def _part(self, columns: BoxColumns) -> LiveSegment:
        threads = 1
        if len(columns) >= self._tuning.single_thread_build_max:
            threads = self._tuning.build_threads or min(core_count(), BUILD_THREADS_MAX)
        with start_workers(threads) as workers:
            names = workers.begin(lambda: IdDictionary.of(columns.ids))
            segment = build(columns, self.event_type, self._sample, workers)
            return self._live(segment, names())

    def _live(self, segment: Segment, names: tuple[IdDictionary, Array]) -> LiveSegment:
        tuning = self._tuning
        return LiveSegment(
            segment,
            self.event_type,
            names,
            cached_bytes_max=tuning.cached_bytes_max,
            unordered_events_max=tuning.unordered_events_max,
            doubtful_max=tuning.doubtful_max,
        )

    def _seal(self, *, compact: bool = True) -> None:
        """Turns the write buffer into a segment. Readers of older versions keep their buffer."""
        version = self._version
        if not version.pending_count:
            return
        alive = version.alive_pending()
        parts = version.parts
        if alive:
            parts = (*parts, self._part_of(alive))
        self._version = _Version(parts, WriteBuffer(), 0, version.stamp, version.size)
        if compact:
            self._compact()

    def _part_of(self, items: Iterable[tuple[str, Condition]]) -> LiveSegment:
        return self._part(columns_of(items, self.event_type))

    def _pending_part(self, version: _Version) -> list[LiveSegment]:
        """The write buffer as a segment for a batch, built once per version."""
        if not version.pending_count:
            return []
        alive = version.alive_pending()
        if not alive:
            return []
        latest = self._latest
        if latest is None or latest[0] != version.stamp:
            latest = (version.stamp, self._part_of(alive))
            self._latest = latest
        return [latest[1]]

    def _match_packed(self, packed: bytes, values: Mapping[str, Value]) -> list[str]:
        version = self._version
        found: list[str] = []
        for part in version.parts:
            found += part.names.at(part.match_one(packed, values, version.stamp))
        if version.pending_count:
            what = (version.pending_count, version.stamp, self._part_of, self._tuning.scanned_max)
            found += version.pending.match(packed, values, *what)
        return found

    # ── Compaction ───────────────────────────────────────────────────────────

    def _compact(self) -> None:
        """Starts the thread that compacts segments, if there is something to compact and it does not run."""
        if self._compactor is None and to_compact(self._version.parts):
            self._compactor = threading.Thread(target=self._compact_all, name="tidings-compaction", daemon=True)
            self._compactor.start()

    def _compact_all(self) -> None:
        while True:
            with self._writing:
                version = self._version
                parts = to_compact(version.parts)
                if not parts:
                    self._compactor = None
                    return
            merged = self._merged(parts, version.stamp)
            with self._writing:
                self._swap(parts, merged, version.stamp)

    def _merged(self, parts: tuple[LiveSegment, ...], stamp: int) -> tuple[LiveSegment, list[Array]]:
        """One segment of what is alive at `stamp`, and by old segment the numbers that went into it."""
        alive = [part.alive(stamp) for part in parts]
        segment = merge([part.segment for part in parts], alive, self.event_type, self._sample)
        return self._live(segment, IdDictionary.of(segment.ids)), alive

    def _swap(self, old: tuple[LiveSegment, ...], merged: tuple[LiveSegment, list[Array]], stamp: int) -> None:
        """Puts the merged segment in place of the old ones, with the removals made while it was built."""
        new, alive = merged
        first = 0
        for part, numbers in zip(old, alive):
            since = part.removed[numbers]
            late = np.flatnonzero(since > stamp)
            new.removed[first + late] = since[late]
            new.removed_count += len(late)
            first += len(numbers)
        at = self._version.parts.index(old[0])
        parts = self._version.parts
        self._publish(self._version.stamp, 0, (*parts[:at], *([new] if first else []), *parts[at + len(old) :]))

    def _join_compactor(self) -> None:
        compactor = self._compactor
        if compactor is not None:
            compactor.join()


def _as_table(events: pa.Table | pa.RecordBatch) -> pa.Table:
    return as_table(_as_rows(events))


def _as_rows(events: pa.Table | pa.RecordBatch) -> Rows:
    """Few rows as a record batch, which takes a third of the time to look at; more as a table."""
    if not isinstance(events, pa.Table | pa.RecordBatch):
        raise EventError(f"expected an Arrow table or record batch of events, got {describe(events)}")
    if events.num_rows > SMALL_ROWS:
        return as_table(events)
    batches = events.to_batches() if isinstance(events, pa.Table) else [events]
    return batches[0] if len(batches) == 1 else events


def _checked_id(id: str) -> str:
    if not isinstance(id, str):
        raise InputError(f"expected a subscription's id as a text, got {describe(id)}")
    return id
