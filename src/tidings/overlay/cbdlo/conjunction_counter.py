"""CDM as published: a subscriber counts, for each event, the attributes in which an interest has matched.

Each attribute of an event reaches the subscribers whose interest it matches by a path of its own. The subscriber
accepts the event when all attributes of the interest have matched. It stores them as a set, so that an attribute that
arrives twice counts once. If an attribute of an event is lost, the count never completes; so counts expire, and their
number is bounded: the oldest is evicted first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from tidings.overlay.messages import EventId, SubscriptionId

PARTIAL_S = 30.0  # The longest time between the first and the last attribute of one event.
PARTIAL_MAX = 100_000  # Counts of one node.


@dataclass(slots=True)
class _Count:
    expires_at: float
    matched: dict[str, None] = field(default_factory=dict)


class ConjunctionCounter:
    """The attributes that have matched so far, for interests that have not matched completely."""

    def __init__(self, *, partial_s: float = PARTIAL_S, at_most: int = PARTIAL_MAX) -> None:
        self.partial_s, self.at_most = partial_s, at_most
        self._counts: OrderedDict[tuple[EventId, SubscriptionId], _Count] = OrderedDict()
        self.dropped = 0
        """Counts that expired or were evicted."""

    def __len__(self) -> int:
        return len(self._counts)

    def matched(self, event: EventId, id: SubscriptionId, name: str, needed: int, now: float) -> bool:
        """Whether, with this attribute, all that are needed have matched. The count then ends."""
        self.expire(now)
        count = self._counts.setdefault((event, id), _Count(now + self.partial_s))
        count.matched[name] = None
        if len(count.matched) < needed:
            self._evict()
            return False
        del self._counts[event, id]
        return True

    def expire(self, now: float) -> None:
        """Drop expired counts. They expire in the order in which they began."""
        while self._counts:
            key = next(iter(self._counts))
            if self._counts[key].expires_at > now:
                return
            del self._counts[key]
            self.dropped += 1

    def _evict(self) -> None:
        if len(self._counts) > self.at_most:
            self._counts.popitem(last=False)
            self.dropped += 1
