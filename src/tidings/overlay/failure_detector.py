"""Who is still there, and what still waits for an answer. Both only keep book: the router sends and wakes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tidings.overlay.messages import NodeId

MISSES_MAX = 3  # Heartbeats in a row that may fail to come; fewer takes a busy node for a dead one.


class Liveness:
    """When each watched peer was last heard, and which have been silent for too long.

    >>> peers = Liveness(heartbeat_s=1.0)
    >>> peers.watch("a", now=0.0); peers.watch("b", now=0.0); peers.heard("b", now=2.5)
    >>> peers.silent(now=3.5)
    ['a']
    """

    def __init__(self, heartbeat_s: float, misses_max: int = MISSES_MAX) -> None:
        self.heartbeat_s, self.misses_max = heartbeat_s, misses_max
        self._last_heard: dict[NodeId, float] = {}

    def watch(self, peer: NodeId, now: float) -> None:
        """Begin to expect heartbeats; a peer that is watched already keeps its time."""
        self._last_heard.setdefault(peer, now)

    def heard(self, peer: NodeId, now: float) -> None:
        """A sign of life. Of a peer that is not watched it says nothing."""
        if peer in self._last_heard:
            self._last_heard[peer] = now

    def forget(self, peer: NodeId) -> None:
        """No longer expect anything."""
        self._last_heard.pop(peer, None)

    def silent(self, now: float) -> list[NodeId]:
        """Those not heard for `misses_max` heartbeats, in the order they were first watched."""
        deadline = now - self.heartbeat_s * self.misses_max
        return [peer for peer, last in self._last_heard.items() if last < deadline]

    def watched(self) -> tuple[NodeId, ...]:
        return tuple(self._last_heard)

    def __contains__(self, peer: NodeId) -> bool:
        return peer in self._last_heard

    def __len__(self) -> int:
        return len(self._last_heard)


K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class Waiting:
    """One message that has not been answered."""

    to: NodeId
    message: Any
    tries: int
    due: float


class Unanswered(Generic[K]):
    """Messages that want an answer, how often each was tried, and when to try again.

    The wait doubles with every try: `wait_s`, twice that, and so on, `tries_max` times.

    >>> calls = Unanswered(wait_s=1.0, tries_max=2, at_most=10)
    >>> calls.add("join", "a", "hello", now=0.0)
    1.0
    >>> calls.again("join", now=1.0), calls.again("join", now=3.0), "join" in calls
    (3.0, None, False)
    """

    def __init__(self, *, wait_s: float, tries_max: int, at_most: int) -> None:
        self.wait_s, self.tries_max, self.at_most = wait_s, tries_max, at_most
        self._waiting: OrderedDict[K, Waiting] = OrderedDict()

    def add(self, key: K, to: NodeId, message: Any, now: float) -> float:
        """Note a first try; returns when it is due. When full, the oldest is given up."""
        self._waiting.pop(key, None)
        if len(self._waiting) >= self.at_most:
            self._waiting.popitem(last=False)
        self._waiting[key] = Waiting(to, message, 1, now + self.wait_s)
        return now + self.wait_s

    def overdue(self, key: K, now: float) -> Waiting | None:
        """What waits under this key and should have been answered by now; None if it was, or was tried again since."""
        waiting = self._waiting.get(key)
        return waiting if waiting is not None and waiting.due <= now else None

    def again(self, key: K, now: float) -> float | None:
        """Note one more try; returns when that is due, or None if there were enough and it is given up."""
        waiting = self._waiting[key]
        if waiting.tries >= self.tries_max:
            del self._waiting[key]
            return None
        waiting.tries += 1
        waiting.due = now + self.wait_s * 2 ** (waiting.tries - 1)
        return waiting.due

    def answered(self, key: K) -> Waiting | None:
        """Note the answer; returns what it answers, or None if nothing waited for it."""
        return self._waiting.pop(key, None)

    def get(self, key: K) -> Waiting | None:
        return self._waiting.get(key)

    def to_peer(self, peer: NodeId) -> list[K]:
        """The keys that wait for this peer, oldest first."""
        return [key for key, waiting in self._waiting.items() if waiting.to == peer]

    def __contains__(self, key: K) -> bool:
        return key in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)
