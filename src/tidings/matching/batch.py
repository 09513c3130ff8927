"""A batch of events: cut into slices, matched by several threads, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidings.errors import EventError
from tidings.matching.box_table import Array
from tidings.matching.live_segment import Part, apart
from tidings.matching.parallel import workers

BATCH = 32_768  # Events that go through the index together, so that a large one is read once for all of them.
ROWS_MAX = 2**31 - 1  # Of one table: row numbers have 32 bits.


class Matches(NamedTuple):
    """Row numbers of events and, beside each, the number of a subscription: `ids[number]` is its id."""

    events: Array
    numbers: Array
    ids: pa.ChunkedArray

    def to_table(self) -> pa.Table:
        """The same with ids, ordered by event and then as the subscriptions were added."""
        order = np.lexsort((self.numbers, self.events))
        ids = self.ids.take(pa.array(self.numbers[order])).combine_chunks()
        return pa.table({"event": self.events[order].astype(np.int64), "subscription": ids})


class _Task(NamedTuple):
    """Some rows to match with one part, and the numbers that the first row and the part's first owner have."""

    part: Part
    rows: pa.Table
    first: tuple[int, int]


def match_all(parts: Sequence[Part], rows: pa.Table, stamp: int, threads: int) -> Matches:
    """All matches of conformed rows, in no particular order; subscriptions are numbered across the parts."""
    tasks = _tasks(parts, rows, threads)
    rooms = Rooms([task.part.room(task.rows.num_rows) for task in tasks])

    def match(at: int) -> Array:
        part, here, first = tasks[at]
        return rooms.moved_in(at, part.match(here, stamp, first, rooms.each[at])[0])

    with workers(min(threads, len(tasks))) as crew:
        found = crew.map(match, range(len(tasks)))
    ids = pa.chunked_array([part.segment.ids for part in parts], pa.string())
    return Matches(*apart(rooms.together(found)), ids)


def _tasks(parts: Sequence[Part], rows: pa.Table, threads: int) -> list[_Task]:
    if rows.num_rows > ROWS_MAX:
        raise EventError(f"expected at most {ROWS_MAX:,} events at once, got {rows.num_rows:,}")
    numbers = np.cumsum([0, *(len(part.segment) for part in parts)]).tolist()
    size = _slice_size(rows.num_rows, threads)
    slices = [(start, rows.slice(start, size)) for start in range(0, max(rows.num_rows, 1), size)]
    return [_Task(part, here, (event, number)) for event, here in slices for part, number in zip(parts, numbers)]


def _slice_size(row_count: int, threads: int) -> int:
    """Rows of equal slices of at most BATCH, as many for each thread as for the others."""
    rounds = -(-row_count // (BATCH * threads))
    return max(1, -(-row_count // max(1, rounds * threads)))


class Rooms:
    """Where each task writes its matches, one behind another in one array: together, they are all matches.

    A copy into fresh memory would take a good part of the time that a second thread saves.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        ends = np.cumsum([0, *sizes]).tolist()
        self._whole = np.empty(ends[-1], np.uint64)
        self._starts = ends[:-1]
        self.each = [self._whole[start:end] for start, end in pairwise(ends)]

    def moved_in(self, at: int, pairs: Array) -> Array:
        """The same pairs, at the start of the room given for them unless they are too many for it."""
        room = self.each[at]
        if len(pairs) > len(room):
            return pairs
        if len(pairs) and pairs.ctypes.data != room.ctypes.data:
            room[: len(pairs)] = pairs
        return room[: len(pairs)]

    def together(self, found: Sequence[Array]) -> Array:
        """All pairs, given as `moved_in` gave them, in no particular order."""
        if len(found) == 1:
            return found[0]
        if all(len(pairs) <= len(room) for pairs, room in zip(found, self.each, strict=True)):
            return self._closed_up([len(pairs) for pairs in found])
        return np.concatenate(found)

    def _closed_up(self, counts: Sequence[int]) -> Array:
        """The pairs that each room begins with. Gaps are filled from behind, since their order is of no matter."""
        whole, end = self._whole, 0
        for start, count in zip(self._starts, counts, strict=True):
            moved = min(start - end, count)
            whole[end : end + moved] = whole[start + count - moved : start + count]
            end += count
        return whole[:end]
