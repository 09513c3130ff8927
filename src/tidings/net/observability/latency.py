"""What a broker measures while it works: counts, latencies, and the age of what waits in queues.

One step of work costs one increment here, however many events it was for. Prometheus reads the rest when it asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from dataclasses import dataclass, field

BUCKETS_S = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0,
)  # fmt: skip
MARK_S = 0.005  # Arrivals closer together than this share a mark.
MARKS_MAX = 1024  # For one queue. With more, every other one goes: what waits so long needs no milliseconds.


class LatencyHistogram:
    """How often something took how long, in the buckets of Prometheus."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float, times: int = 1) -> None:
        """Counts `times` events that took so long."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += times
        self.sum_s += seconds * times

    def cumulative(self) -> list[tuple[str, float]]:
        """For each bucket its upper bound and how many took at most so long.

        >>> took = LatencyHistogram()
        >>> took.observe(0.002, 3)
        >>> took.cumulative()[1:3]
        [('0.001', 0), ('0.0025', 3)]
        """
        total, out = 0, list[tuple[str, float]]()
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), self.counts, strict=True):
            total += count
            out.append((bound, total))
        return out


class QueueAges:
    """When the events of one queue came in, as marks: from this position on, at this time."""

    __slots__ = ("_marks", "_restored_below")

    def __init__(self) -> None:
        self._marks: deque[tuple[int, float]] = deque()
        self._restored_below = 0

    def __len__(self) -> int:
        """How many marks are kept: at most MARKS_MAX, however long the queue is."""
        return len(self._marks)

    def restore(self, position: int, at_s: float, below: int) -> None:
        """The oldest event of a queue read from disk. The times of those after it, below a position, are not known."""
        self._marks.appendleft((position, at_s))
        self._restored_below = below

    def arrived(self, position: int, now_s: float) -> None:
        """An event has been appended."""
        marks = self._marks
        if marks and now_s - marks[-1][1] < MARK_S:
            return
        marks.append((position, now_s))
        if len(marks) > MARKS_MAX:
            self._marks = deque(mark for number, mark in enumerate(marks) if number % 2 == 0)

    def acknowledged(self, before: int, up_to: int, now_s: float, took: LatencyHistogram) -> None:
        """Events after `before` and up to `up_to` have been acknowledged: counts how long they took."""
        marks, at = self._marks, before + 1
        while marks and at <= up_to:
            self._drop_before(at)
            end = min(marks[1][0] - 1 if len(marks) > 1 else up_to, up_to)
            if at >= self._restored_below:
                took.observe(max(0.0, now_s - marks[0][1]), end - at + 1)
            at = end + 1

    def oldest_s(self, acknowledged: int, next_position: int, now_s: float) -> float:
        """The age of the oldest event that waits; 0 if none does."""
        if acknowledged + 1 >= next_position or not self._marks:
            return 0.0
        self._drop_before(acknowledged + 1)
        return max(0.0, now_s - self._marks[0][1])

    def _drop_before(self, position: int) -> None:
        marks = self._marks
        while len(marks) > 1 and marks[1][0] <= position:
            marks.popleft()


@dataclass(frozen=True, slots=True)
class Meters:
    """Everything one broker counts and times."""

    counts: Counter[str] = field(default_factory=Counter)
    publish: LatencyHistogram = field(default_factory=LatencyHistogram)
    """From a request until its events are on disk."""
    route: LatencyHistogram = field(default_factory=LatencyHistogram)
    """From reading overlay messages until everything that follows from them is queued."""
    delivery: LatencyHistogram = field(default_factory=LatencyHistogram)
    """From an event's arrival in a durable queue until its subscriber acknowledges it."""
