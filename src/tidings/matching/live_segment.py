"""A segment in use: its ids, its residual conditions, and what was removed since it was built.

A removal is a stamp: `removed[number]` is 0, or the stamp of the first version of the index
that lacks the subscription. A writer only ever sets stamps of versions that no reader has
yet, so readers of older versions see what they saw before, without locks.

Boxes decide most matches alone. The kernels report the others as doubtful: a box with
residual conditions (what is not an interval), or one of several boxes of one condition. Those
are decided here, in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from tidings.events import EventType, Value, row_values
from tidings.filters import Condition, parse
from tidings.matching.box_table import Array
from tidings.matching.event_packing import EventPacker, SingleEventMatcher
from tidings.matching.grid import NO_RESIDUAL, CellBoxes
from tidings.matching.id_dictionary import IdDictionary
from tidings.matching.kernels import match as match_kernels
from tidings.matching.segment import Segment

FIRST_STAMP = 1  # Of the first version; what is removed by then was never visible.
CACHED_BYTES_MAX = 2 << 20  # A smaller layout stays in the processor's cache, whatever the order of the events.
UNORDERED_EVENTS_MAX = 256  # Ordering fewer events than that costs more than it saves.
MATCHES_FIRST = 8  # Matches per event that memory is reserved for before any have been counted.

Test: TypeAlias = Callable[[Mapping[str, Value]], bool]


class LiveSegment:
    """A segment, and what has been removed from it.

    names                  the segment's ids, and the numbers that later ones replace; see `IdDictionary.of`
    cached_bytes_max       from that size on, events go through the segment in the order of their cells
    unordered_events_max   unless they are at most so many
    """

    def __init__(
        self,
        segment: Segment,
        event_type: EventType,
        names: tuple[IdDictionary, Array],
        *,
        cached_bytes_max: int = CACHED_BYTES_MAX,
        unordered_events_max: int = UNORDERED_EVENTS_MAX,
    ) -> None:
        self.segment = segment
        self.event_type = event_type
        self.removed = np.zeros(len(segment), np.int64)
        self.removed_count = 0
        self.names, repeated = names
        self.remove(repeated, FIRST_STAMP)
        self.residuals = Residuals(segment.residuals, event_type)
        self._is_small = sum(array.nbytes for array in segment.layout) < cached_bytes_max
        self._unordered_events_max = unordered_events_max
        self._matches_per_event = float(MATCHES_FIRST)
        self._one = SingleEventMatcher(segment, event_type, EventPacker(event_type))

    def remove(self, numbers: Array, stamp: int) -> int:
        """Marks subscriptions as removed from `stamp` on; returns how many were still there."""
        fresh = numbers[self.removed[numbers] == 0]
        self.removed[fresh] = stamp
        self.removed_count += len(fresh)
        return len(fresh)

    def remove_one(self, number: int, stamp: int) -> bool:
        """The same for one; returns whether it was still there."""
        if self.removed[number]:
            return False
        self.removed[number] = stamp
        self.removed_count += 1
        return True

    def alive(self, stamp: int) -> Array:
        """The numbers that are there at `stamp`."""
        return np.flatnonzero((self.removed == 0) | (self.removed > stamp))

    def is_alive(self, number: int, stamp: int) -> bool:
        return not 0 < self.removed[number] <= stamp

    def expected_matches(self, row_count: int) -> int:
        """A likely upper bound for the matches of so many events; the more events, the tighter."""
        return int(row_count * self._matches_per_event * (1 + 4 / max(row_count, 1) ** 0.5)) + 1024

    def match(
        self, rows: pa.Table, stamp: int, first: tuple[int, int] = (0, 0), out: Array | None = None
    ) -> tuple[Array, Array]:
        """Pairs of row and owner (see `split_pairs`), in no particular order, and the kernel's counts, for conformed rows.

        first   the numbers that the first row and the first owner have in the pairs
        out     holds the pairs, from its start on, if they fit, none was doubtful and none removed
        """
        cells = self.segment.axes.locate(rows, self.event_type)
        out = np.empty(self.expected_matches(rows.num_rows), np.uint64) if out is None else out
        totals, start = np.zeros(4, np.int64), np.uint64(first[0] << 32 | first[1])
        by_axis = not self._is_small and rows.num_rows > self._unordered_events_max
        pairs, doubtful = match_kernels.match_events(cells, by_axis, self.segment.layout, start, out, totals)
        pairs = pairs[: totals[0]]
        if totals[1]:
            doubts = split_pairs(doubtful[: totals[1]])
            more = decide(*doubts, rows, self.segment.boxes, self.residuals, self.event_type)
            pairs = np.concatenate([pairs, more + start])
        if rows.num_rows:
            self._matches_per_event = len(pairs) / rows.num_rows
        return self._without_removed(pairs, first[1], stamp), totals

    def match_one(self, packed: bytes, values: Mapping[str, Value], stamp: int) -> list[int]:
        """The owners that one event matches, ascending; it is given packed and as checked values."""
        owners, boxes = self._one.match(packed)
        if boxes:
            owners += decide_one(boxes, values, self.segment.boxes, self.residuals)
        if self.removed_count:
            owners = [owner for owner in owners if self.is_alive(owner, stamp)]
        owners.sort()
        return owners

    def _without_removed(self, pairs: Array, first_owner: int, stamp: int) -> Array:
        if not self.removed_count:
            return pairs
        since = self.removed[split_pairs(pairs)[1] - first_owner]
        return pairs[(since == 0) | (since > stamp)]  # type: ignore[no-any-return]


def split_pairs(pairs: Array) -> tuple[Array, Array]:
    """Pairs, the event in the upper 32 bits of each, as two arrays: events, and what each is paired with."""
    both = pairs.view(np.int32).reshape(-1, 2)
    return both[:, 1], both[:, 0]


# ── Residual conditions ────────────────────────────────────────────────────────


class Residuals:
    """The sets of residual conditions of a segment, each compiled when it is first needed.

    Boxes with the same residuals share one set, so each set is evaluated once per event.
    """

    def __init__(self, texts: Sequence[tuple[str, ...]], event_type: EventType) -> None:
        self.texts = texts
        self._event_type = event_type
        self._tests: dict[int, tuple[Test, tuple[str, ...]]] = {}

    def test(self, number: int) -> tuple[Test, tuple[str, ...]]:
        """A closure over an event's values, and the attributes that it looks at."""
        if number not in self._tests:
            self._tests[number] = self._compile(self.texts[number])
        return self._tests[number]

    def _compile(self, texts: tuple[str, ...]) -> tuple[Test, tuple[str, ...]]:
        parsed = [parse(text, self._event_type) for text in texts]
        names = tuple(dict.fromkeys(name for condition in parsed for name in condition.attributes))
        return _all(parsed), names


def decide(
    events: Array, boxes: Array, rows: pa.Table, all_boxes: CellBoxes, residuals: Residuals, event_type: EventType
) -> Array:
    """The pairs of event and owner that match, each once, out of doubtful pairs of event and box."""
    keep = np.ones(len(events), bool)
    numbers = all_boxes.residual[boxes]
    for number in np.unique(numbers[numbers != NO_RESIDUAL]).tolist():
        here = np.flatnonzero(numbers == number)
        test, names = residuals.test(number)
        asked, place = np.unique(events[here], return_inverse=True)
        answers = [test(values) for values in row_values(rows, asked.tolist(), event_type, names)]
        keep[here] = np.array(answers, bool)[place]
    return np.unique((events[keep].astype(np.uint64) << np.uint64(32)) | all_boxes.owner[boxes[keep]].astype(np.uint64))


def decide_one(
    boxes: Sequence[int], values: Mapping[str, Value], all_boxes: CellBoxes, residuals: Residuals
) -> list[int]:
    """The same for one event: the owners that match."""
    answers: dict[int, bool] = {NO_RESIDUAL: True}
    owners: dict[int, None] = {}
    for box in boxes:
        number = int(all_boxes.residual[box])
        if number not in answers:
            answers[number] = residuals.test(number)[0](values)
        if answers[number]:
            owners[int(all_boxes.owner[box])] = None
    return list(owners)


def _all(conditions: Sequence[Condition]) -> Test:
    tests = [condition.matches for condition in conditions]
    if len(tests) == 1:
        return tests[0]
    return lambda values: all(test(values) for test in tests)
