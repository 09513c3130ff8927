"""CDM: a subscriber counts, event by event, the attributes in which one of its interests has matched.

Each attribute of an event finds its own way to the subscribers whose interest it lies in.
An interest is met when all its attributes have said so. They are kept as a set, so one
that says it twice counts once. An event of which some attribute got lost would be counted
for ever; counts therefore end after a while, and are bounded in number, the oldest first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from tidings.overlay.messages import EventId, SubscriptionId

PARTIAL_S = 30.0  # How long the attributes of one event may be apart.
PARTIAL_MAX = 100_000  # Counts kept at a node.


@dataclass(slots=True)
class _Count:
    until: float
    matched: dict[str, None] = field(default_factory=dict)


class ConjunctionCounter:
    """What has matched so far, for interests that are not met yet."""

    def __init__(self, *, partial_s: float = PARTIAL_S, at_most: int = PARTIAL_MAX) -> None:
        self.partial_s, self.at_most = partial_s, at_most
        self._counts: OrderedDict[tuple[EventId, SubscriptionId], _Count] = OrderedDict()
        self.forgotten = 0

    def __len__(self) -> int:
        return len(self._counts)

    def matched(self, event: EventId, id: SubscriptionId, name: str, needed: int, now: float) -> bool:
        """Whether, with this attribute, all that are needed have matched. Then the count is over."""
        self.expire(now)
        count = self._counts.setdefault((event, id), _Count(now + self.partial_s))
        count.matched[name] = None
        if len(count.matched) < needed:
            self._bound()
            return False
        del self._counts[event, id]
        return True

    def expire(self, now: float) -> None:
        """Forget events of which nothing more will come. Counts end in the order in which they began."""
        while self._counts:
            key = next(iter(self._counts))
            if self._counts[key].until > now:
                return
            del self._counts[key]
            self.forgotten += 1

    def _bound(self) -> None:
        if len(self._counts) > self.at_most:
            self._counts.popitem(last=False)
            self.forgotten += 1
