"""A segment in use: with its names, its residuals ready to be asked, and what has been removed since it was made.

Removals are stamps: `removed[number]` is 0, or the stamp of the version from which on the
subscription is gone. Stamps are only ever written for versions that no reader has yet, so
readers of older ones see what they saw before, without locks.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from tidings.events import EventType, Value
from tidings.matching.box_table import Array
from tidings.matching.event_packing import OneEvent, Packer
from tidings.matching.id_dictionary import Names
from tidings.matching.kernels import match as match_kernels
from tidings.matching.residuals import Residuals, decide, decide_one
from tidings.matching.segment import Segment

FIRST_STAMP = 1  # Of the first version; what is gone by then was never seen.
SMALL_BYTES = 2 << 20  # A layout of that size stays in the cache, whatever the order of the events.
FEW_EVENTS = 256  # Ordering fewer events than that costs more than it saves.
MATCHES_FIRST = 8  # Per event, the room that is made for matches before any have been counted.


class Part:
    """One segment of an index."""

    def __init__(self, segment: Segment, event_type: EventType, names: tuple[Names, Array]) -> None:
        """`names` are those of the segment, and the numbers that later ones replace; see `Names.of`."""
        self.segment = segment
        self.event_type = event_type
        self.removed = np.zeros(len(segment), np.int64)
        self.removed_count = 0
        self.names, repeated = names
        self.remove(repeated, FIRST_STAMP)
        self.residuals = Residuals(segment.residuals, event_type)
        self._is_small = sum(array.nbytes for array in segment.layout) < SMALL_BYTES
        self._matches_per_event = float(MATCHES_FIRST)
        self._one = OneEvent(segment, event_type, Packer(event_type))

    def remove(self, numbers: Array, stamp: int) -> int:
        """Marks subscriptions as gone from `stamp` on; returns how many were still there."""
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

    def room(self, row_count: int) -> int:
        """How many matches so many events are likely to have, at most; the more events, the surer."""
        return int(row_count * self._matches_per_event * (1 + 4 / max(row_count, 1) ** 0.5)) + 1024

    def match(
        self, rows: pa.Table, stamp: int, first: tuple[int, int] = (0, 0), room: Array | None = None
    ) -> tuple[Array, Array]:
        """Pairs of row and owner (see `apart`), in no particular order, and the kernel's counts, for conformed rows.

        first   the numbers that the first row and the first owner have in the pairs
        room    where the pairs are, from its start on, if they fit and nothing was to be decided or left out
        """
        cells = self.segment.axes.locate(rows, self.event_type)
        room = np.empty(self.room(rows.num_rows), np.uint64) if room is None else room
        totals, start = np.zeros(4, np.int64), np.uint64(first[0] << 32 | first[1])
        by_axis = not self._is_small and rows.num_rows > FEW_EVENTS
        pairs, doubtful = match_kernels.match_events(cells, by_axis, self.segment.layout, start, room, totals)
        pairs = pairs[: totals[0]]
        if totals[1]:
            doubts = apart(doubtful[: totals[1]])
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
        since = self.removed[apart(pairs)[1] - first_owner]
        return pairs[(since == 0) | (since > stamp)]  # type: ignore[no-any-return]


def apart(pairs: Array) -> tuple[Array, Array]:
    """Pairs, the event in the upper 32 bits of each, as events and what stands beside them."""
    both = pairs.view(np.int32).reshape(-1, 2)
    return both[:, 1], both[:, 0]
