"""The end of a queue that lives on disk: what is new is handed on from memory, what is old is fetched.

A reader that keeps up never touches the disk. One that falls behind, or comes back after a while,
is served from the disk until it has caught up. Either way it sees every number once and in order, and
at most `fresh_max` entries are held in memory for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

FRESH_MAX = 4096

_T = TypeVar("_T")
Fetch: TypeAlias = Callable[[int, int], Awaitable[Sequence[tuple[int, _T]]]]
"""Entries after a number, at most so many, from the disk."""


class Tail(Generic[_T]):
    """One reader's place in one numbered queue."""

    __slots__ = ("_fetch", "_fresh", "_fresh_max", "at", "end")

    def __init__(self, at: int, end: int, fetch: Fetch[_T], *, fresh_max: int = FRESH_MAX) -> None:
        """`at` is the last number taken already, `end` the last there is."""
        self.at, self.end = at, end
        self._fetch, self._fresh_max = fetch, fresh_max
        self._fresh: deque[tuple[int, _T]] = deque()

    def add(self, number: int, entry: _T) -> None:
        """A new entry is on disk; one that was counted in `end` already is fetched from there."""
        if number <= self.end:
            return
        last = self._fresh[-1][0] if self._fresh else self.at
        if last == self.end and len(self._fresh) < self._fresh_max:
            self._fresh.append((number, entry))
        self.end = number

    def back_to(self, number: int) -> None:
        """Take again what comes after `number`."""
        self.at = number
        self._fresh.clear()

    @property
    def has_more(self) -> bool:
        return self.at < self.end

    async def take(self, at_most: int) -> Sequence[tuple[int, _T]]:
        """The next entries, none if there are none; whoever calls it does so from one task at a time."""
        if not self.has_more or at_most <= 0:
            return []
        if self._fresh:
            taken = [self._fresh.popleft() for _ in range(min(at_most, len(self._fresh)))]
        else:
            end = self.end
            taken = list(await self._fetch(self.at, at_most))
            if not taken:
                self.at = max(self.at, end)  # Somebody has emptied the queue.
                return []
        self.at = taken[-1][0]
        return taken
