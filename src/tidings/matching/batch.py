"""A batch of events: cut into slices, matched by several threads, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tidings.matching.boxes import Array
from tidings.matching.parallel import Workers
from tidings.matching.part import Part, apart

BATCH = 32_768  # Events that go through the index together, so that a large one is read once for all of them.


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


def slices_of(rows: pa.Table, threads: int) -> list[pa.Table]:
    """The rows in equal slices of at most BATCH, as many for each thread as for the others; at least one."""
    rounds = -(-rows.num_rows // (BATCH * threads))
    size = max(1, -(-rows.num_rows // max(1, rounds * threads)))
    return [rows.slice(start, size) for start in range(0, max(rows.num_rows, 1), size)]


class Rooms:
    """Where each piece of work writes its matches, one behind another in one array: together, they are all matches.

    A copy into fresh memory would take a good part of the time that a second thread saves.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        ends = np.cumsum([0, *sizes]).tolist()
        self._whole = np.empty(ends[-1], np.uint64)
        self._starts = ends[:-1]
        self.each = [self._whole[start:end] for start, end in pairwise(ends)]

    def holds(self, at: int, owners: Array) -> bool:
        """Whether these, as `Part.match` gave them, lie in the room given for them."""
        return not len(owners) or (owners.ctypes.data == self.each[at].ctypes.data and owners.strides == (8,))

    def closed_up(self, counts: Sequence[int]) -> Array:
        """The pairs that each room begins with. Gaps are filled from behind, since their order is of no matter."""
        whole, end = self._whole, 0
        for start, count in zip(self._starts, counts, strict=True):
            moved = min(start - end, count)
            whole[end : end + moved] = whole[start + count - moved : start + count]
            end += count
        return whole[:end]


def collected(
    parts: list[Part], rows: list[pa.Table], found: list[tuple[Array, Array, Array]], rooms: Rooms, crew: Workers
) -> Matches:
    """All matches, events numbered across slices and subscriptions across parts.

    `found` and the rooms are by slice and, within it, by part.
    """
    ids = pa.chunked_array([part.segment.ids for part in parts], pa.string())
    if len(found) == 1:
        return Matches(found[0][0], found[0][1], ids)  # As the kernel left them: a copy would cost as much as the work.
    first_event = np.cumsum([0, *(here.num_rows for here in rows)])
    first_number = np.cumsum([0, *(len(part.segment) for part in parts)])
    firsts = [(event, number) for event in first_event[:-1].tolist() for number in first_number[:-1].tolist()]
    in_place = all(rooms.holds(at, owners) for at, (_, owners, _) in enumerate(found))
    if in_place and first_event[-1] < 1 << 31:
        return Matches(*_renumbered(rooms, [len(events) for events, _, _ in found], firsts, crew), ids)
    return Matches(*_copied(found, firsts, crew), ids)


def _renumbered(rooms: Rooms, counts: list[int], firsts: list[tuple[int, int]], crew: Workers) -> tuple[Array, Array]:
    def renumber(at: int) -> None:
        (event, number), pairs = firsts[at], rooms.each[at][: counts[at]]
        if event or number:
            np.add(pairs, np.uint64((event << 32) | number), out=pairs)

    crew.map(renumber, range(len(counts)))
    return apart(rooms.closed_up(counts))


def _copied(
    found: list[tuple[Array, Array, Array]], firsts: list[tuple[int, int]], crew: Workers
) -> tuple[Array, Array]:
    ends = np.cumsum([0, *(len(events) for events, _, _ in found)])
    events, numbers = np.empty(ends[-1], np.int64), np.empty(ends[-1], np.int32)

    def copy(at: int) -> None:
        (event, number), here = firsts[at], slice(ends[at], ends[at + 1])
        np.add(found[at][0], np.int64(event), out=events[here])
        np.add(found[at][1], np.int32(number), out=numbers[here])

    crew.map(copy, range(len(found)))
    return events, numbers
