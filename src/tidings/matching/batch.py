"""A batch of events: cut into slices, matched by several threads, and put together again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from tidings.matching.boxes import Array
from tidings.matching.part import Part

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


Mapped: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]


@contextmanager
def workers(threads: int) -> Iterator[Mapped]:
    """A function like `map`, with so many threads behind it."""
    if threads <= 1:
        yield lambda function, items: [function(item) for item in items]
        return
    with ThreadPoolExecutor(threads) as pool:
        yield lambda function, items: list(pool.map(function, items))


def collected(parts: list[Part], rows: list[pa.Table], work: list[Any], found: list[Any], mapped: Mapped) -> Matches:
    """All matches, events numbered across slices and subscriptions across parts."""
    ids = pa.chunked_array([part.segment.ids for part in parts], pa.string())
    if len(found) == 1:
        return Matches(found[0][0], found[0][1], ids)  # As the kernel left them: a copy would cost as much as the work.
    first_event = np.cumsum([0, *(here.num_rows for here in rows)])
    first_number = np.cumsum([0, *(len(part.segment) for part in parts)])
    ends = np.cumsum([0, *(len(event) for event, _, _ in found)])
    events, numbers = np.empty(ends[-1], np.int64), np.empty(ends[-1], np.int32)

    def copy(at: int) -> None:
        (part, number), here = work[at], slice(ends[at], ends[at + 1])
        np.add(found[at][0], first_event[number], out=events[here])
        np.add(found[at][1], np.int32(first_number[part]), out=numbers[here])

    mapped(copy, range(len(work)))
    return Matches(events, numbers, ids)
