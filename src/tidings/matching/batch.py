"""A batch of events: cut into slices, which several threads match, and whose matches are joined again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidings.errors import EventError
from tidings.matching.box_table import Array
from tidings.matching.kernels.threads import start_workers
from tidings.matching.live_segment import LiveSegment, split_pairs

BATCH_ROWS = 32_768  # Events that go through the index together, so that a large index is read once for all of them.
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
    """Some rows to match with one segment, and the numbers of the first row and of the segment's first owner."""

    part: LiveSegment
    rows: pa.Table
    first: tuple[int, int]


def match_all(
    parts: Sequence[LiveSegment], rows: pa.Table, stamp: int, threads: int, batch_rows: int = BATCH_ROWS
) -> Matches:
    """All matches of conformed rows, in no particular order; subscriptions are numbered across the segments."""
    tasks = _tasks(parts, rows, threads, batch_rows)
    buffers = OutputBuffers([task.part.expected_matches(task.rows.num_rows) for task in tasks])

    def match(at: int) -> Array:
        part, here, first = tasks[at]
        return buffers.place(at, part.match(here, stamp, first, buffers.each[at])[0])

    with start_workers(min(threads, len(tasks))) as workers:
        found = workers.map(match, range(len(tasks)))
    ids = pa.chunked_array([part.segment.ids for part in parts], pa.string())
    return Matches(*split_pairs(buffers.joined(found)), ids)


def _tasks(parts: Sequence[LiveSegment], rows: pa.Table, threads: int, batch_rows: int) -> list[_Task]:
    if rows.num_rows > ROWS_MAX:
        raise EventError(f"expected at most {ROWS_MAX:,} events at once, got {rows.num_rows:,}")
    numbers = np.cumsum([0, *(len(part.segment) for part in parts)]).tolist()
    size = _slice_size(rows.num_rows, threads, batch_rows)
    slices = [(start, rows.slice(start, size)) for start in range(0, max(rows.num_rows, 1), size)]
    return [_Task(part, here, (event, number)) for event, here in slices for part, number in zip(parts, numbers)]


def _slice_size(row_count: int, threads: int, batch_rows: int) -> int:
    """Rows of equal slices of at most `batch_rows`, as many for each thread as for the others."""
    rounds = -(-row_count // (batch_rows * threads))
    return max(1, -(-row_count // max(1, rounds * threads)))


class OutputBuffers:
    """The buffers that tasks write their matches to, one behind another in one array.

    Joining them is then a matter of closing the gaps. A copy into fresh memory would take a good
    part of the time that a second thread saves.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        ends = np.cumsum([0, *sizes]).tolist()
        self._whole = np.empty(ends[-1], np.uint64)
        self._starts = ends[:-1]
        self.each = [self._whole[start:end] for start, end in pairwise(ends)]

    def place(self, at: int, pairs: Array) -> Array:
        """The same pairs, at the start of task `at`'s buffer unless they are too many for it."""
        buffer = self.each[at]
        if len(pairs) > len(buffer):
            return pairs
        if len(pairs) and pairs.ctypes.data != buffer.ctypes.data:
            buffer[: len(pairs)] = pairs
        return buffer[: len(pairs)]

    def joined(self, found: Sequence[Array]) -> Array:
        """All pairs, given as `place` returned them, in no particular order."""
        if len(found) == 1:
            return found[0]
        if all(len(pairs) <= len(buffer) for pairs, buffer in zip(found, self.each, strict=True)):
            return self._closed_up([len(pairs) for pairs in found])
        return np.concatenate(found)

    def _closed_up(self, counts: Sequence[int]) -> Array:
        """The pairs that each buffer begins with. Gaps are filled from behind, since order does not matter."""
        whole, end = self._whole, 0
        for start, count in zip(self._starts, counts, strict=True):
            moved = min(start - end, count)
            whole[end : end + moved] = whole[start + count - moved : start + count]
            end += count
        return whole[:end]
