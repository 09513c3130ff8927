"""Ids already handled, so that nothing is handled twice."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

SEEN_MAX = 65_536  # A minute of 1,000 events a second; a copy that comes later than that was delayed, not routed.

Id = TypeVar("Id", bound=Hashable)


class SeenIds(Generic[Id]):
    """The last `at_most` different ids, oldest forgotten first.

    >>> seen = SeenIds(2)
    >>> seen.add("a"), seen.add("a"), seen.add("b"), seen.add("c"), "a" in seen
    (True, False, True, True, False)
    """

    __slots__ = ("_ids", "at_most")

    def __init__(self, at_most: int = SEEN_MAX) -> None:
        assert at_most > 0
        self.at_most = at_most
        # In order of arrival, which a set would not keep; a plain dict walks over its gaps to find the oldest.
        self._ids: OrderedDict[Id, None] = OrderedDict()

    def add(self, id: Id) -> bool:
        """Whether `id` is new; from now on it is not."""
        ids = self._ids
        if id in ids:
            return False
        ids[id] = None
        if len(ids) > self.at_most:
            ids.popitem(last=False)
        return True

    def __contains__(self, id: Id) -> bool:
        return id in self._ids

    def __len__(self) -> int:
        return len(self._ids)
