"""Room in a full table, at the cost of whoever has most in it.

Tables of what others say are bounded. If the first to come had all places, one member could fill a table with records of
its own, and nobody's subscription would be let in any more. So a full table drops one of the origin that has most, for
one of an origin that has fewer; the origin with most is refused. A member that fills a table pushes out its own.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

from tidings.overlay.interest import WEIGHT_MAX, Interest
from tidings.overlay.messages import NodeId, SubscriptionId

# Interests of one origin in a type that an event is compared with, by weight: a live broker has 65 at most.
COMPARED_MAX = 1024
COUNTED_FOR = 4096  # Decisions from one count of a table: what leaves it otherwise makes the count less exact.

K = TypeVar("K", bound=Hashable)


def with_too_many(interests: Collection[tuple[NodeId, Interest]], at_most: int = COMPARED_MAX) -> frozenset[NodeId]:
    """Those whose interests are too much to compare an event with."""
    if len(interests) * WEIGHT_MAX <= at_most:
        return frozenset()
    weights: Counter[NodeId] = Counter()
    for whose, interest in interests:
        weights[whose] += interest.weight
    return frozenset(whose for whose, weight in weights.items() if weight > at_most)


def are_too_many(interests: Collection[Interest], at_most: int) -> bool:
    """Whether these are too much to compare an event with."""
    return len(interests) * WEIGHT_MAX > at_most and sum(each.weight for each in interests) > at_most


class CrowdedTable(Generic[K]):
    """Who gives way in one table.

    >>> table = {("a", 1): "", ("a", 2): "", ("b", 1): ""}
    >>> crowded = CrowdedTable(lambda key: key[0])
    >>> crowded.one_less_for(("c", 1), table), crowded.one_less_for(("a", 3), table)
    (('a', 2), None)
    """

    def __init__(self, origin_of: Callable[[K], Hashable]) -> None:
        self._origin_of = origin_of
        self._counts: Counter[Hashable] = Counter()
        self._most: Hashable = None
        self._of_most: list[K] = []
        self._left = 0

    def one_less_for(self, new: K, held: Collection[K]) -> K | None:
        """Which key a full table is to drop for a new one; None if the new one's origin has most there, or as many."""
        if self._left <= 0:
            self._count(held)
        self._left -= 1
        origin = self._origin_of(new)
        if self._counts[origin] + 1 >= self._counts[self._most]:
            return None
        while self._of_most:
            victim = self._of_most.pop()
            if victim in held:
                self._counts[self._most] -= 1
                self._counts[origin] += 1
                if not self._of_most or self._counts[self._most] < max(self._counts.values()):
                    self._left = 0
                return victim
        self._left = 0
        return None

    def _count(self, held: Collection[K]) -> None:
        self._counts = Counter(map(self._origin_of, held))
        self._most = max(self._counts, key=self._counts.__getitem__, default=None)
        self._of_most = [key for key in held if self._origin_of(key) == self._most]
        self._left = COUNTED_FOR


class Graves:
    """Withdrawn subscriptions, each with the number of its withdrawal: what was said before that counts no more.

    One too many costs the origin with most of them its oldest.

    >>> graves = Graves(2)
    >>> for seq in (1, 2, 3):
    ...     graves.add(SubscriptionId("a", 0, seq), 7)
    >>> graves.add(SubscriptionId("b", 0, 1), 7)
    >>> graves.get(SubscriptionId("a", 0, 2)), graves.get(SubscriptionId("a", 0, 3)), len(graves)
    (0, 7, 2)
    """

    def __init__(self, at_most: int) -> None:
        self._at_most, self._count = at_most, 0
        self._of: dict[NodeId, OrderedDict[SubscriptionId, int]] = {}

    def __len__(self) -> int:
        return self._count

    def __contains__(self, id: SubscriptionId) -> bool:
        return id in self._of.get(id.origin, ())

    def get(self, id: SubscriptionId, default: int = 0) -> int:
        """The number of the withdrawal; `default` if none is known."""
        theirs = self._of.get(id.origin)
        return default if theirs is None else theirs.get(id, default)

    def add(self, id: SubscriptionId, number: int) -> None:
        theirs = self._of.setdefault(id.origin, OrderedDict())
        self._count += id not in theirs
        theirs[id] = max(number, theirs.get(id, number))
        if self._count > self._at_most:
            origin = max(self._of, key=lambda each: len(self._of[each]))
            self._of[origin].popitem(last=False)
            self._count -= 1
            if not self._of[origin]:
                del self._of[origin]
