"""The index: which of a million conditions does this event match?

A large part that seldom changes, a few smaller ones, and the latest changes beside them. A
change is published as a new version, which readers pick up with their next call: a match in
progress goes on with the version it began with. Small parts are folded into larger ones by a
thread of their own.

Ids come back in the order in which the subscriptions were added; replacing one moves it to
the end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from tidings.errors import EventError, InputError
from tidings.events import INT_MAX, INT_MIN, EventType, Value, conform, describe
from tidings.filters import Condition, parse
from tidings.matching.batch import Matches, match_all
from tidings.matching.box_table import Array, BoxColumns, columns_of, read_table
from tidings.matching.compaction import merge
from tidings.matching.event_packing import Packer
from tidings.matching.explain import Explanation, explain
from tidings.matching.id_dictionary import Names, hashed
from tidings.matching.kernels.match import CANDIDATES, HITS
from tidings.matching.live_segment import FIRST_STAMP, Part
from tidings.matching.parallel import core_count, workers
from tidings.matching.segment import build
from tidings.matching.stats import Effort, Stats, stats_of
from tidings.matching.write_buffer import Pending

PENDING_MAX = 4096  # Latest additions that are kept as they came; then they become a part.
ASKED_ONE_BY_ONE_MAX = 32  # So many of them are asked one by one for a single event, rather than made a part of.
FOLD_RATIO = 2  # A part is folded into an older one that is at most so many times larger.
SAMPLE_MAX = 4096  # Events of a sample that are kept; more would not change the plan.
THREADS_MAX = 64
BUILT_ALONE_MAX = 32_768  # Fewer subscriptions than that become a part before other threads have started.
BUILD_THREADS_MAX = 8  # More would only wait for memory.

Subscription: TypeAlias = tuple[str, str | Condition]


class _Version(NamedTuple):
    """What one reader sees: parts, the first `pending_count` of the pending additions, and the stamp."""

    parts: tuple[Part, ...]
    pending: Pending
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

    def __init__(self, event_type: EventType, *, sample: pa.Table | pa.RecordBatch | None = None) -> None:
        self.event_type = event_type
        # The one that conditions came with last: to compare two types takes longer than to add a condition.
        self._equal_type = event_type
        self._python_types = {a.name: a.type.python for a in event_type}
        self._required = [a.name for a in event_type if a.required]
        self._packer = Packer(event_type)
        self._sample = self._conformed_sample(sample)
        self._writing = threading.RLock()
        self._version = _Version((), Pending(), 0, FIRST_STAMP, 0)
        self._folder: threading.Thread | None = None
        self._latest: tuple[int, Part] | None = None

    # ── Changes ──────────────────────────────────────────────────────────────

    def add(self, id: str, condition: str | Condition) -> None:
        """Adds a subscription, in place of the one with the same id if there is one. Raises FilterError."""
        parsed = self._parsed(condition)
        if type(id) is not str:
            id = _checked_id(id)
        with self._writing:
            parts, pending, count, stamp, size = self._version
            gone = self._remove(id, stamp + 1)
            pending.add(id, parsed)
            self._version = _Version(parts, pending, count + 1, stamp + 1, size + 1 - gone)
            if count + 1 >= PENDING_MAX:
                self._seal()

    def add_all(self, items: Iterable[Subscription] | pa.Table | pa.RecordBatch) -> None:
        """Adds many at once: pairs of id and condition, or a table of BOXES_SCHEMA. All of them, or none if one raises."""
        if isinstance(items, pa.Table | pa.RecordBatch):
            self._add_columns(read_table(items, self.event_type))
            return
        parsed = ((_checked_id(id), self._parsed(condition)) for id, condition in items)
        few = list(islice(parsed, PENDING_MAX))
        if len(few) == PENDING_MAX:
            self._add_columns(columns_of(chain(few, parsed), self.event_type))
            return
        with self._writing:
            for id, condition in few:
                self.add(id, condition)

    def remove(self, id: str) -> None:
        """Removes a subscription; raises KeyError if there is none with this id."""
        with self._writing:
            stamp = self._version.stamp + 1
            if not self._remove(id, stamp):
                raise KeyError(id)
            self._publish(stamp, -1)

    def settle(self) -> None:
        """Folds everything into one part, after which matching is fastest. Returns when that is done."""
        self._join_folder()
        with self._writing:
            self._seal(fold=False)
            version = self._version
            if len(version.parts) > 1 or any(part.removed_count for part in version.parts):
                self._swap(version.parts, self._merged(version.parts, version.stamp), version.stamp)

    @classmethod
    def from_boxes(
        cls, table: pa.Table, event_type: EventType, *, sample: pa.Table | pa.RecordBatch | None = None
    ) -> Index:
        """An index of normalised conditions; see `boxes_table`."""
        index = cls(event_type, sample=sample)
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
        """An Arrow table (event: row number, subscription: id), ordered by both."""
        return self.match_numbers(events, threads=threads).to_table()

    def match_numbers(self, events: pa.Table | pa.RecordBatch, *, threads: int = 1) -> Matches:
        """The same without turning numbers into ids, in no particular order: for a hundred million matches."""
        threads = min(max(threads, 1), THREADS_MAX)
        version = self._version
        parts = [*version.parts, *self._pending_part(version)]
        return match_all(parts, conform(_as_table(events), self.event_type), version.stamp, threads)

    def explain(self, record: Mapping[str, Any], id: str) -> Explanation:
        """Whether the event matches this subscription and, if not, what of its condition was not TRUE."""
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
        """How much is looked at to match these events; they are matched for it."""
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
            parts = self._version.parts or (self._part(columns_of([], self.event_type)),)
            save(Path(path), parts[0], self.event_type)

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = False) -> Index:
        """A saved index, read from its files as they are asked for and shared with other processes that do the same.

        Sizes and headers are checked always, all content with `verify`. Raises IndexFileError.
        Changes stay in memory until they are saved.
        """
        from tidings.matching.storage import open_part

        part, event_type = open_part(Path(path), verify=verify)
        index = cls(event_type)
        index._version = _Version((part,), Pending(), 0, FIRST_STAMP, len(part.segment))
        return index

    # ── Steps ────────────────────────────────────────────────────────────────

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
        """The record itself where it is plain to see that it fits; otherwise what `EventType.check` makes of it."""
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

    def _publish(self, stamp: int, growth: int, parts: tuple[Part, ...] | None = None) -> None:
        old = self._version
        parts = old.parts if parts is None else parts
        self._version = _Version(parts, old.pending, old.pending_count, stamp, old.size + growth)

    def _remove(self, id: str, stamp: int) -> int:
        """Marks the subscription with this id as gone from `stamp` on; returns how many there were, 0 or 1."""
        if self._version.pending.remove(id, stamp):
            return 1
        name = hashed(id)
        for part in reversed(self._version.parts):  # What came last goes first, more often than not.
            number = part.names.find(name)
            if number >= 0 and part.remove_one(number, stamp):
                return 1
        return 0

    def _add_columns(self, columns: BoxColumns) -> None:
        part = self._part(columns)
        with self._writing:
            self._seal(fold=False)
            stamp = self._version.stamp + 1
            gone = 0
            for old in self._version.parts:
                numbers = old.names.find_all(columns.ids)
                gone += old.remove(np.unique(numbers[numbers >= 0]), stamp)
            self._publish(stamp, len(columns) - part.removed_count - gone, (*self._version.parts, part))
            self._fold()

    def _part(self, columns: BoxColumns) -> Part:
        threads = 1 if len(columns) < BUILT_ALONE_MAX else min(core_count(), BUILD_THREADS_MAX)
        with workers(threads) as crew:
            names = crew.begin(lambda: Names.of(columns.ids))
            segment = build(columns, self.event_type, self._sample, crew)
            return Part(segment, self.event_type, names())

    def _seal(self, *, fold: bool = True) -> None:
        """Makes the pending additions a part. Readers of older versions keep their list."""
        version = self._version
        if not version.pending_count:
            return
        alive = version.alive_pending()
        parts = version.parts
        if alive:
            parts = (*parts, self._part_of(alive))
        self._version = _Version(parts, Pending(), 0, version.stamp, version.size)
        if fold:
            self._fold()

    def _part_of(self, items: Iterable[tuple[str, Condition]]) -> Part:
        return self._part(columns_of(items, self.event_type))

    def _pending_part(self, version: _Version) -> list[Part]:
        """The pending additions as a part for a batch, made once per version."""
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
            what = (version.pending_count, version.stamp, self._part_of, ASKED_ONE_BY_ONE_MAX)
            found += version.pending.match(packed, values, *what)
        return found

    # ── Folding ──────────────────────────────────────────────────────────────

    def _fold(self) -> None:
        """Starts the thread that folds parts, if there is something to fold and it does not run."""
        if self._folder is None and _foldable(self._version.parts):
            self._folder = threading.Thread(target=self._fold_all, name="tidings-fold", daemon=True)
            self._folder.start()

    def _fold_all(self) -> None:
        while True:
            with self._writing:
                version = self._version
                parts = _foldable(version.parts)
                if not parts:
                    self._folder = None
                    return
            merged = self._merged(parts, version.stamp)
            with self._writing:
                self._swap(parts, merged, version.stamp)

    def _merged(self, parts: tuple[Part, ...], stamp: int) -> tuple[Part, list[Array]]:
        """One part of what is alive at `stamp`, and by old part the numbers that went into it."""
        alive = [part.alive(stamp) for part in parts]
        segment = merge([part.segment for part in parts], alive, self.event_type, self._sample)
        return Part(segment, self.event_type, Names.of(segment.ids)), alive

    def _swap(self, old: tuple[Part, ...], merged: tuple[Part, list[Array]], stamp: int) -> None:
        """Puts the merged part in place of the old ones, with what was removed while it was made."""
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

    def _join_folder(self) -> None:
        folder = self._folder
        if folder is not None:
            folder.join()


def _foldable(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The newest parts that ought to be one, each not much larger than those after it together; or none."""
    size, start = 0, len(parts)
    while start > 0 and (size == 0 or _size(parts[start - 1]) <= FOLD_RATIO * size):
        start -= 1
        size += _size(parts[start])
    chosen = parts[start:]
    if len(chosen) > 1:
        return chosen
    # A part of which half is gone is worth making anew.
    return next(((part,) for part in parts if part.removed_count * 2 > len(part.segment)), ())


def _size(part: Part) -> int:
    return len(part.segment) - part.removed_count


def _as_table(events: pa.Table | pa.RecordBatch) -> pa.Table:
    if isinstance(events, pa.Table):
        return events
    if not isinstance(events, pa.RecordBatch):
        raise EventError(f"expected an Arrow table or record batch of events, got {describe(events)}")
    return pa.Table.from_batches([events])


def _checked_id(id: str) -> str:
    if not isinstance(id, str):
        raise InputError(f"expected a subscription's id as a text, got {describe(id)}")
    return id
