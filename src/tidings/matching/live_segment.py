"""A segment in use: its ids, its residual conditions, and what was removed since it was built.

A removal is a stamp: `removed[number]` is 0, or the stamp of the first version of the index
that lacks the subscription. A writer only ever sets stamps of versions that no reader has
yet, so readers of older versions see what they saw before, without locks.

Boxes decide most matches alone. The kernels report the others as doubtful: a box with
residual conditions (what is not an interval), or one of several boxes of one condition. Those
are decided here, those of a batch together (`residuals`), those of one event by closures unless they are many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from tidings.events import EventType, Value, arrow_schema, arrow_values
from tidings.matching.axes import BatchLocator
from tidings.matching.box_table import Array
from tidings.matching.event_packing import EventPacker, SingleEventMatcher
from tidings.matching.grid import NO_RESIDUAL, CellBoxes
from tidings.matching.id_dictionary import IdDictionary
from tidings.matching.kernels import match as match_kernels
from tidings.matching.kernels.match_few import match_few
from tidings.matching.kernels.match_one import address_book
from tidings.matching.kernels.pairs import distinct_pairs
from tidings.matching.residuals.residuals import Residuals
from tidings.matching.residuals.words import SingleEventWords
from tidings.matching.segment import Segment

Rows: TypeAlias = pa.Table | pa.RecordBatch  # Conformed events; few of them, and only few, may be a record batch.

FIRST_STAMP = 1  # Of the first version; what is removed by then was never visible.
CACHED_BYTES_MAX = 2 << 20  # A smaller layout stays in the processor's cache, whatever the order of the events.
UNORDERED_EVENTS_MAX = 256  # Ordering fewer events than that costs more than it saves.
MATCHES_FIRST = 8  # Matches per event that memory is reserved for before any have been counted.
DOUBTFUL_PAIRS_MAX = 1 << 22  # Pairs in doubt at a time, some 200 MB while they are decided; see `LiveSegment.match`.
PIECES = 16  # If a batch has more, it is matched in so many pieces.
ROWS_AT_ONCE_MAX = 1 << 31
DOUBTS_FEW = 256  # Of so many doubtful boxes of one event, the residuals are evaluated one by one.
FEW_ROWS = 256  # Of so few rows, calls cost more than what is done in them; see `kernels.match_few`.
FEW_ROWS_WITH_WORDS = 32  # The same where words are looked for, which takes cells that `match_few` keeps to itself.
FEW_PAIRS = 1024  # Of so many doubtful pairs, the different ones are found by sorting.


class LiveSegment:
    """A segment, and what has been removed from it.

    names                  the segment's ids, and the numbers that later ones replace; see `IdDictionary.of`
    cached_bytes_max       from that size on, events go through the segment in the order of their cells
    unordered_events_max   unless they are at most so many
    doubtful_max           pairs of event and box in doubt at a time
    """

    def __init__(
        self,
        segment: Segment,
        event_type: EventType,
        names: tuple[IdDictionary, Array],
        *,
        cached_bytes_max: int = CACHED_BYTES_MAX,
        unordered_events_max: int = UNORDERED_EVENTS_MAX,
        doubtful_max: int = DOUBTFUL_PAIRS_MAX,
    ) -> None:
        self.segment = segment
        self.ids = pa.chunked_array([segment.ids], pa.string())  # Made once: a batch of one row would notice.
        self.event_type = event_type
        self.removed = np.zeros(len(segment), np.int64)
        self.removed_count = 0
        self.names, repeated = names
        self.remove(repeated, FIRST_STAMP)
        self.residuals = Residuals(segment.residuals, event_type)
        self._words = SingleEventWords(segment.words, event_type) if segment.words else None
        self._locator = BatchLocator(segment.axes, event_type)
        self._doubtful_max = doubtful_max
        self._rows_at_once = ROWS_AT_ONCE_MAX
        self._is_small = sum(array.nbytes for array in segment.layout) < cached_bytes_max
        self._unordered_events_max = unordered_events_max
        self._matches_per_event = float(MATCHES_FIRST)
        self._one = SingleEventMatcher(segment, event_type, EventPacker(event_type))
        self._few = _FewEventsMatcher(segment, self._locator)
        self._few_rows = FEW_ROWS_WITH_WORDS if segment.words else FEW_ROWS

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
        self, rows: Rows, stamp: int, first: tuple[int, int] = (0, 0), out: Array | None = None
    ) -> tuple[Array, Array]:
        """Pairs of row and owner (see `split_pairs`), in no particular order, and the kernel's counts, for conformed rows.

        first   the numbers that the first row and the first owner have in the pairs
        out     holds the pairs, from its start on, if they fit, none was doubtful and none removed
        """
        if rows.num_rows > self._rows_at_once:
            return self._match_in_pieces(rows, stamp, first)
        out = np.empty(self.expected_matches(rows.num_rows), np.uint64) if out is None else out
        start = np.uint64(first[0] << 32 | first[1])
        pairs, doubtful, totals = self._run(rows, start, out)
        if len(doubtful) > self._doubtful_max and rows.num_rows > 1:
            self._rows_at_once = max(1, rows.num_rows // PIECES)
            return self._match_in_pieces(rows, stamp, first)
        if len(doubtful):
            more = decide(*split_pairs(doubtful), as_table(rows), self.segment.boxes, self.residuals)
            pairs = np.concatenate([pairs, more + start])
        if rows.num_rows:
            self._matches_per_event = len(pairs) / rows.num_rows
        return self._without_removed(pairs, first[1], stamp), totals

    def _run(self, rows: Rows, start: np.uint64, out: Array) -> tuple[Array, Array, Array]:
        """Pairs that match, pairs in doubt (if more than are wanted, not all of either), and the kernel's counts."""
        segment, totals = self.segment, np.zeros(match_kernels.TOTALS_SIZE, np.int64)
        totals[match_kernels.DOUBTFUL_MAX] = self._doubtful_max if rows.num_rows > 1 else len(segment.boxes)
        by_axis = not self._is_small and rows.num_rows > self._unordered_events_max
        if rows.num_rows <= self._few_rows and not by_axis and self._few.match(rows, start, out, totals):
            end = totals[match_kernels.MATCHES]
            pairs, doubtful = out[:end], out[end : end + totals[match_kernels.DOUBTFUL]]
            return pairs, self._with_words(doubtful, rows, lambda: self._locator.locate(as_table(rows)), totals), totals
        totals[: match_kernels.DOUBTFUL_MAX] = 0  # What `match_few` may have counted.
        cells = self._locator.locate(as_table(rows))
        pairs, doubtful = match_kernels.match_events(cells, by_axis, segment.layout, start, out, totals)
        pairs, doubtful = pairs[: totals[match_kernels.MATCHES]], doubtful[: totals[match_kernels.DOUBTFUL]]
        return pairs, self._with_words(doubtful, rows, lambda: cells, totals), totals

    def _with_words(self, doubtful: Array, rows: Rows, cells_of: Callable[[], Array], totals: Array) -> Array:
        """The pairs in doubt, and those that are found by words; not all if they are more than are wanted."""
        segment, doubtful_max = self.segment, int(totals[match_kernels.DOUBTFUL_MAX])
        if not segment.words or len(doubtful) > doubtful_max:
            return doubtful
        return np.concatenate([doubtful, segment.words.find(rows, cells_of, segment.boxes.sides, doubtful_max)])

    def _match_in_pieces(self, rows: Rows, stamp: int, first: tuple[int, int]) -> tuple[Array, Array]:
        """The same for fewer rows at a time, so that what is in doubt stays bounded; more again once they allow it."""
        found, at = [], 0
        while at < rows.num_rows:
            here = rows.slice(at, self._rows_at_once)
            found.append(self.match(here, stamp, (first[0] + at, first[1])))
            at += here.num_rows
            self._rows_at_once = max(self._rows_at_once, min(2 * here.num_rows, ROWS_AT_ONCE_MAX))
        return np.concatenate([pairs for pairs, _ in found]), np.sum([totals for _, totals in found], 0)

    def match_one(self, packed: bytes, values: Mapping[str, Value], stamp: int) -> list[int]:
        """The owners that one event matches, ascending; it is given packed and as checked values."""
        owners, boxes = self._one.match(packed)
        if self._words is not None and len(words := self._words.words_of(values)):
            boxes += self._words.boxes(words, self._one.locate(packed), self.segment.boxes.sides)
        if boxes:
            owners += self._decided(boxes, values)
        if self.removed_count:
            owners = [owner for owner in owners if self.is_alive(owner, stamp)]
        owners.sort()
        return owners

    def _decided(self, boxes: list[int], values: Mapping[str, Value]) -> list[int]:
        """The owners that one event matches, out of doubtful boxes: many of them as columns."""
        if len(boxes) <= DOUBTS_FEW:
            return decide_one(boxes, values, self.segment.boxes, self.residuals)
        events, doubtful = np.zeros(len(boxes), np.int32), np.array(boxes, np.int32)
        pairs = decide(events, doubtful, _one_row(values, self.event_type), self.segment.boxes, self.residuals)
        return split_pairs(pairs)[1].tolist()  # type: ignore[no-any-return]

    def _without_removed(self, pairs: Array, first_owner: int, stamp: int) -> Array:
        if not self.removed_count:
            return pairs
        since = self.removed[split_pairs(pairs)[1] - first_owner]
        return pairs[(since == 0) | (since > stamp)]  # type: ignore[no-any-return]


class _FewEventsMatcher:
    """Matches batches of few rows against a segment, with one call of one kernel."""

    def __init__(self, segment: Segment, locator: BatchLocator) -> None:
        others = [locator.attribute, locator.is_text]
        self._keeps, self._locator = (segment, others), locator  # What the address book points to.
        self._book = address_book(segment.axes.arrays, segment.layout, others)
        self._address: int = self._book.ctypes.data

    def match(self, rows: Rows, start: np.uint64, out: Array, totals: Array) -> bool:
        """Writes pairs that match, then those in doubt; False if the rows cannot be read in place, or there is no room."""
        batch = self._locator.export(rows)
        if batch is None:
            return False
        try:
            return bool(match_few(self._address, batch.address, rows.num_rows, start, out, totals))
        finally:
            batch.release()


def as_table(rows: Rows) -> pa.Table:
    return rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])


def _one_row(values: Mapping[str, Value], event_type: EventType) -> pa.Table:
    """One event's checked values as a table."""
    columns = [arrow_values([values.get(a.name)], a.type) for a in event_type]
    return pa.Table.from_arrays(columns, schema=arrow_schema(event_type))


def split_pairs(pairs: Array) -> tuple[Array, Array]:
    """Pairs, the event in the upper 32 bits of each, as two arrays: events, and what each is paired with."""
    both = pairs.view(np.int32).reshape(-1, 2)
    return both[:, 1], both[:, 0]


# ── Doubtful pairs ─────────────────────────────────────────────────────────────


def decide(events: Array, boxes: Array, rows: pa.Table, all_boxes: CellBoxes, residuals: Residuals) -> Array:
    """The pairs of event and owner that match, each once, out of doubtful pairs of event and box."""
    numbers = all_boxes.residual[boxes]
    asked = np.flatnonzero(numbers != NO_RESIDUAL)
    if len(asked):
        keep = np.ones(len(events), bool)
        keep[asked] = residuals.holding(rows, events[asked], numbers[asked])
        events, boxes = events[keep], boxes[keep]
    owners = all_boxes.owner[boxes]
    if len(owners) < FEW_PAIRS:
        return np.unique((events.astype(np.uint64) << np.uint64(32)) | owners.astype(np.uint64))
    out = np.empty(len(owners) + 1, np.uint64)
    count = distinct_pairs(np.ascontiguousarray(events), owners, rows.num_rows, int(owners.max()) + 1, out)
    return out[:count]


def decide_one(
    boxes: Sequence[int], values: Mapping[str, Value], all_boxes: CellBoxes, residuals: Residuals
) -> list[int]:
    """The same for one event: the owners that match."""
    answers: dict[int, bool] = {NO_RESIDUAL: True}
    owners: dict[int, None] = {}
    for box in boxes:
        number = int(all_boxes.residual[box])
        if number not in answers:
            answers[number] = residuals.test(number)(values)
        if answers[number]:
            owners[int(all_boxes.owner[box])] = None
    return list(owners)
