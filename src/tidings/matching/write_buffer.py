"""The write buffer: the latest additions, which are not in a segment of the index yet.

A single event is matched with most of them through a small segment built for that, and with
the few that came since one by one. So changes and single events may alternate, and neither
waits for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from tidings.events import Value
from tidings.filters import Condition
from tidings.matching.live_segment import FIRST_STAMP, LiveSegment

# The small segment is rebuilt once the additions since are more than this fraction of it: so an addition costs the
# same at any size.
SCANNED_SHARE = 32

PartOf: TypeAlias = Callable[[Iterable[tuple[str, Condition]]], LiveSegment]


class WriteBuffer:
    """Additions in the order in which they came. One thread at a time changes them; readers know how many they may see.

    Kept in parallel lists: with an object per addition, Python's garbage collector would go
    through all conditions every few thousand changes.
    """

    __slots__ = ("_conditions", "_ids", "_places", "_prefix", "_removed")

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._conditions: list[Condition] = []
        self._removed: list[int] = []  # 0, or the stamp from which on it is removed.
        self._places: dict[str, int] = {}  # Of an id, the last.
        self._prefix: tuple[int, LiveSegment | None] = (
            0,
            None,
        )  # The first so many as a segment, removed ones included.

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, id: str, condition: Condition) -> None:
        """Adds one; an earlier one with the same id is removed already."""
        self._places[id] = len(self._ids)
        self._conditions.append(condition)
        self._removed.append(0)
        self._ids.append(id)

    def remove(self, id: str, stamp: int) -> bool:
        """Marks one as removed from `stamp` on; returns whether it was there."""
        place = self._places.get(id)
        if place is None or self._removed[place]:
            return False
        self._removed[place] = stamp
        return True

    def find(self, id: str, stamp: int) -> Condition | None:
        """The condition of an id that is there at `stamp`, or was added since."""
        place = self._places.get(id)
        return None if place is None or 0 < self._removed[place] <= stamp else self._conditions[place]

    def alive(self, count: int, stamp: int) -> list[tuple[str, Condition]]:
        """Those of the first `count` that are there at `stamp`."""
        removed = self._removed
        return [self._at(place) for place in range(count) if not 0 < removed[place] <= stamp]

    def match(
        self, packed: bytes, values: Mapping[str, Value], count: int, stamp: int, part_of: PartOf, scanned_max: int
    ) -> list[str]:
        """The ids of those that an event matches, out of the first `count` and at `stamp`.

        At most `scanned_max` of them, or a small share, are evaluated one by one.
        """
        made, part = self._prefix_of(count, part_of, scanned_max)
        ids, conditions, removed = self._ids, self._conditions, self._removed
        found = part.match_one(packed, values, FIRST_STAMP) if part is not None else []
        found += [place for place in range(made, count) if conditions[place].matches(values)]
        return [ids[place] for place in found if not 0 < removed[place] <= stamp]

    def _prefix_of(self, count: int, part_of: PartOf, scanned_max: int) -> tuple[int, LiveSegment | None]:
        prefix = self._prefix
        if prefix[0] > count:  # Made by a reader of a later version.
            prefix = (0, None)
        if count - prefix[0] > max(scanned_max, prefix[0] // SCANNED_SHARE):
            self._prefix = prefix = (count, part_of(self._at(place) for place in range(count)))
        return prefix

    def _at(self, place: int) -> tuple[str, Condition]:
        return self._ids[place], self._conditions[place]
