"""Pairs of events and subscriptions, put together by event."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numba import njit

Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def by_event(events: Numbers, numbers: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """The rows that occur in `events`, ascending, how often each does, and their numbers one after another.

    >>> [array.tolist() for array in by_event(np.array([4, 1, 4], np.int32), np.array([7, 8, 9], np.int32))]
    [[1, 4], [1, 2], [8, 7, 9]]
    """
    counts = np.zeros(int(events.max()) + 1, np.int32)
    grouped = np.empty(len(numbers), np.int32)
    _group(events, numbers, counts, grouped)
    rows = np.flatnonzero(counts)
    return rows, counts[rows], grouped


def ends_of(counts: Numbers) -> Numbers:
    """Where lists of so many items end, one after another, with a 0 before the first: Arrow's offsets.

    >>> ends_of(np.array([1, 2])).tolist()
    [0, 1, 3]
    """
    ends = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    return ends


def recoded(numbers: Numbers, count: int) -> tuple[Numbers, Numbers]:
    """Numbers below `count` as places in a list of those that occur, and that list, ascending.

    >>> [array.tolist() for array in recoded(np.array([7, 2, 7], np.int32), 9)]
    [[1, 0, 1], [2, 7]]
    """
    occurs = np.zeros(count, np.int32)
    occurs[numbers] = 1
    place = np.cumsum(occurs, dtype=np.int32) - 1
    return place[numbers], np.flatnonzero(occurs)


@njit(cache=True, nogil=True)
def _group(events: Any, numbers: Any, counts: Any, grouped: Any) -> None:
    """A counting sort: row numbers of a round are small. `counts[row]` ends as how often the row occurs."""
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
