"""A reader's position in a numbered log on disk: new entries are served from memory, old ones are read from the log.

A reader that keeps up never touches the disk. One that falls behind, or comes back after a while,
reads the log until it has caught up. Either way it sees every number once and in order, and
at most `fresh_max` entries are held in memory for it.

    while cursor.has_more:
        if not (entries := cursor.take(100)):
            read = cursor.next_read(100)                  the caller reads the log: entries after `read.after`
            entries = cursor.supply(read, rows)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

FRESH_MAX = 4096

_T = TypeVar("_T")


class LogRead(NamedTuple):
    """A read of the log that a cursor needs: at most so many entries after a number."""

    after: int
    at_most: int
    end: int
    """The last number when the read was requested."""


class LogCursor(Generic[_T]):
    """One reader's position in one numbered log."""

    __slots__ = ("_fresh", "_fresh_max", "at", "end")

    def __init__(self, at: int, end: int, *, fresh_max: int = FRESH_MAX) -> None:
        """`at` is the last number that was taken, `end` the last in the log."""
        self.at, self.end = at, end
        self._fresh_max = fresh_max
        self._fresh: deque[tuple[int, _T]] = deque()

    def append(self, number: int, entry: _T) -> None:
        """A new entry is in the log; one that `end` already covers is read from there."""
        if number <= self.end:
            return
        last = self._fresh[-1][0] if self._fresh else self.at
        if last == self.end and len(self._fresh) < self._fresh_max:
            self._fresh.append((number, entry))
        self.end = number

    def seek(self, number: int) -> None:
        """Continue after `number`."""
        self.at = number
        self._fresh.clear()

    @property
    def has_more(self) -> bool:
        return self.at < self.end

    def take(self, at_most: int) -> Sequence[tuple[int, _T]]:
        """The next entries, from memory; none where the log must be read (see `next_read`)."""
        taken = [self._fresh.popleft() for _ in range(min(at_most, len(self._fresh)))]
        if taken:
            self.at = taken[-1][0]
        return taken

    def next_read(self, at_most: int) -> LogRead:
        """The read that brings the next entries; its result goes to `supply`."""
        return LogRead(self.at, at_most, self.end)

    def supply(self, read: LogRead, entries: Sequence[tuple[int, _T]]) -> Sequence[tuple[int, _T]]:
        """The entries of a read, now taken; none if the cursor has moved since the read was requested."""
        if self.at != read.after:
            return []
        if not entries:
            self.at = max(self.at, read.end)  # The log was truncated.
            return []
        self.at = entries[-1][0]
        return entries
