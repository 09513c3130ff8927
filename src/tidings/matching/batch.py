"""A batch of events: cut into slices, which several threads match, and whose matches are joined again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidings.errors import EventError
from tidings.matching.box_table import Array, one_chunk
from tidings.matching.kernels import pairs as pair_kernels
from tidings.matching.kernels.threads import ALONE, Workers, start_workers
from tidings.matching.live_segment import LiveSegment, Rows, split_pairs

BATCH_ROWS = 32_768  # Events that go through the index together, so that a large index is read once for all of them.
SMALL_ROWS = 256  # Fewer are not worth a second thread, nor the work of cutting them into slices.
FEW_NUMBERS = 16  # With fewer matches than a 16th of the subscriptions, sorting them is quicker than a table of all.
ROWS_MAX = 2**31 - 1  # Of one table: row numbers have 32 bits.


class Matches(NamedTuple):
    """Row numbers of events and, beside each, the number of a subscription: `ids[number]` is its id."""

    events: Array
    numbers: Array
    ids: pa.ChunkedArray

    def to_table(self) -> pa.Table:
        """The same with ids, ordered by event and then as the subscriptions were added."""
        pairs = (self.events.astype(np.uint64) << np.uint64(32)) | self.numbers.astype(np.uint64)
        event_count = int(self.events.max(initial=0)) + 1
        return _table([_Slice(0, event_count, pairs)], self.ids, ALONE)


class _Task(NamedTuple):
    """Some rows to match with one segment, and the numbers of the first row and of the segment's first owner."""

    part: LiveSegment
    rows: Rows
    first: tuple[int, int]


def match_all(
    parts: Sequence[LiveSegment], rows: Rows, stamp: int, threads: int, batch_rows: int = BATCH_ROWS
) -> Matches:
    """All matches of conformed rows, in no particular order; subscriptions are numbered across the segments."""
    if _is_small(parts, rows, batch_rows):
        return Matches(*split_pairs(parts[0].match(rows, stamp)[0]), parts[0].ids)
    tasks = _tasks(parts, rows, threads, batch_rows)
    buffers = OutputBuffers([task.part.expected_matches(task.rows.num_rows) for task in tasks])

    def match(at: int) -> Array:
        part, here, first = tasks[at]
        return buffers.place(at, part.match(here, stamp, first, buffers.each[at])[0])

    with start_workers(min(threads, len(tasks))) as workers:
        found = workers.map(match, range(len(tasks)))
    return Matches(*split_pairs(buffers.joined(found)), _ids(parts))


def match_in_order(
    parts: Sequence[LiveSegment], rows: Rows, stamp: int, threads: int, batch_rows: int = BATCH_ROWS
) -> pa.Table:
    """The same as a table (event, subscription), ordered by both; each slice is ordered by the thread that matched it."""
    if _is_small(parts, rows, batch_rows):
        return match_all(parts, rows, stamp, threads, batch_rows).to_table()
    tasks = _tasks(parts, rows, threads, batch_rows)
    slices = [tasks[at : at + len(parts)] for at in range(0, len(tasks), len(parts))] if parts else []

    def match(each: Sequence[_Task]) -> _Slice:
        found = [part.match(here, stamp, first)[0] for part, here, first in each]
        return _Slice(each[0].first[0], each[0].rows.num_rows, found[0] if len(found) == 1 else np.concatenate(found))

    with start_workers(min(threads, len(slices))) as workers:
        return _table(workers.map(match, slices), _ids(parts), workers)


class _Slice(NamedTuple):
    """The first of some events, how many, and their pairs."""

    first: int
    size: int
    pairs: Array


def _table(slices: Sequence[_Slice], ids: pa.ChunkedArray, workers: Workers) -> pa.Table:
    ends = np.cumsum([0, *(len(each.pairs) for each in slices)]).tolist()
    events, numbers = np.empty(ends[-1], np.int64), np.empty(ends[-1], np.int32)

    def sort(at: int) -> None:
        here, (first, size, pairs) = slice(ends[at], ends[at + 1]), slices[at]
        pair_kernels.sort_pairs(pairs, first, size, len(ids), np.empty_like(pairs), events[here], numbers[here])

    workers.map(sort, range(len(slices)))
    return pa.table({"event": events, "subscription": _by_dictionary(numbers, ids)})


def _by_dictionary(numbers: Array, ids: pa.ChunkedArray) -> pa.DictionaryArray:
    """The ids with these numbers, each stored once. Takes the array of numbers for its own."""
    if len(numbers) * FEW_NUMBERS < len(ids):
        occurring, codes = np.unique(numbers, return_inverse=True)
        return pa.DictionaryArray.from_arrays(codes.astype(np.int32), _taken(ids, occurring))
    occurring = np.empty(min(len(ids), len(numbers)), np.int32)
    count = pair_kernels.encode(numbers, np.zeros(len(ids), np.int32), occurring)
    return pa.DictionaryArray.from_arrays(numbers, _taken(ids, occurring[:count]))


def _taken(ids: pa.ChunkedArray, numbers: Array) -> pa.Array:
    return ids.combine_chunks() if len(numbers) == len(ids) else one_chunk(ids.take(pa.array(numbers)))


def _ids(parts: Sequence[LiveSegment]) -> pa.ChunkedArray:
    if len(parts) == 1:
        return parts[0].ids
    return pa.chunked_array([part.segment.ids for part in parts], pa.string())


def _is_small(parts: Sequence[LiveSegment], rows: Rows, batch_rows: int) -> bool:
    return len(parts) == 1 and rows.num_rows <= SMALL_ROWS and rows.num_rows <= batch_rows


def _tasks(parts: Sequence[LiveSegment], rows: Rows, threads: int, batch_rows: int) -> list[_Task]:
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
