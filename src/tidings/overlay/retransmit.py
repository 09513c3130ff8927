"""Retransmission: messages that are sent again, with exponential backoff, until they are acknowledged.

`RetransmitQueue` holds what has been sent and not acknowledged, under keys of the caller's choice. It only keeps
the books: it says when the next try is due, and the router sends and wakes. `Requests` is the form that most
protocols want: it numbers each request, sends it, and asks to be woken when the answer is overdue.

    send → pending → acknowledged                   done
                   → overdue, tries left            sent again, the wait doubles
                   → overdue, no tries left         given up; the caller looks for another way
                   → its peer is gone               taken back, likewise

The receiver may get the same message more than once and must treat it as one.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tidings.overlay.messages import Message, NodeId
from tidings.overlay.router import Effect, Send, WakeAt

WAIT_S = 0.5  # Five times the slowest round trip of the simulated networks.
WAIT_S_MAX = 4.0
TRIES_MAX = 12  # Some 40 seconds. With one message in five lost, both ways, all fail once in 200,000 requests.
PENDING_MAX = 65_536  # One too many pushes out the oldest.

K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait for an acknowledgement, and how often to try.

    >>> [Backoff(0.5, tries_max=4, wait_s_max=3.0).wait_s(tries) for tries in (1, 2, 3, 4)]
    [0.5, 1.0, 2.0, 3.0]
    """

    first_s: float
    tries_max: int
    wait_s_max: float = math.inf

    def wait_s(self, tries: int) -> float:
        """How long to wait after this many tries."""
        return min(self.wait_s_max, self.first_s * 2.0 ** (tries - 1))


@dataclass(slots=True)
class Pending(Generic[K]):
    """One message that has not been acknowledged."""

    key: K
    to: NodeId
    message: Any
    due: float
    """When the acknowledgement should have come."""
    tries_max: int
    about: Any = None
    """What the sender wants to know again when it is acknowledged or given up."""
    tries: int = 1


class RetransmitQueue(Generic[K]):
    """Messages that want an acknowledgement, how often each was tried, and when to try again.

    >>> queue = RetransmitQueue(Backoff(1.0, tries_max=2))
    >>> queue.add("join", "a", "hello", now=0.0)
    1.0
    >>> queue.retry("join", now=1.0), queue.retry("join", now=3.0), "join" in queue
    (3.0, None, False)
    """

    def __init__(self, backoff: Backoff, *, at_most: int = PENDING_MAX) -> None:
        self.backoff, self.at_most = backoff, at_most
        self._pending: OrderedDict[K, Pending[K]] = OrderedDict()

    def add(
        self, key: K, to: NodeId, message: Any, now: float, *, about: Any = None, tries_max: int | None = None
    ) -> float:
        """Note a first try; returns when it is due. When full, the oldest is given up."""
        self._pending.pop(key, None)
        if len(self._pending) >= self.at_most:
            self._pending.popitem(last=False)
        due = now + self.backoff.wait_s(1)
        self._pending[key] = Pending(key, to, message, due, tries_max or self.backoff.tries_max, about)
        return due

    def overdue(self, key: K, now: float) -> Pending[K] | None:
        """What should have been acknowledged by now; None if it was, or was tried again since."""
        pending = self._pending.get(key)
        return pending if pending is not None and pending.due <= now else None

    def retry(self, key: K, now: float) -> float | None:
        """Note one more try; returns when that is due, or None if there were enough and it is given up."""
        pending = self._pending[key]
        if pending.tries >= pending.tries_max:
            del self._pending[key]
            return None
        pending.tries += 1
        pending.due = now + self.backoff.wait_s(pending.tries)
        return pending.due

    def acknowledge(self, key: K, by: NodeId | None = None) -> Pending[K] | None:
        """What this acknowledges; None if nothing is pending, or it was sent to another than `by`."""
        pending = self._pending.get(key)
        if pending is None or (by is not None and pending.to != by):
            return None
        return self._pending.pop(key)

    def get(self, key: K) -> Pending[K] | None:
        return self._pending.get(key)

    def keys_to(self, peer: NodeId) -> list[K]:
        """The keys of what was sent to this peer, oldest first."""
        return [key for key, pending in self._pending.items() if pending.to == peer]

    def take_back(self, to: NodeId) -> list[Pending[K]]:
        """Everything that was sent to a peer that is gone; it is pending no more."""
        return [self._pending.pop(key) for key in self.keys_to(to)]

    def cancel(self, is_meant: Callable[[Any], bool]) -> None:
        """Stop sending what this picks out, by what it is `about`."""
        for key in [key for key, pending in self._pending.items() if is_meant(pending.about)]:
            del self._pending[key]

    def about(self) -> list[Any]:
        """What everything pending is about."""
        return [pending.about for pending in self._pending.values()]

    def __contains__(self, key: K) -> bool:
        return key in self._pending

    def __len__(self) -> int:
        return len(self._pending)


class Requests:
    """The open requests of one node. Each has a number, which the answer repeats."""

    def __init__(self, *, at_most: int = PENDING_MAX) -> None:
        self._queue = RetransmitQueue[int](Backoff(WAIT_S, TRIES_MAX, WAIT_S_MAX), at_most=at_most)
        self._made = 0

    @property
    def at_most(self) -> int:
        """How many may be open; one more pushes out the oldest."""
        return self._queue.at_most

    def __len__(self) -> int:
        return len(self._queue)

    def send(
        self,
        to: NodeId,
        make: Callable[[int], Message],
        about: Hashable,
        now: float,
        tries_max: int = TRIES_MAX,
    ) -> list[Effect]:
        """Send what `make` makes of the request's number, and again until it is answered."""
        self._made += 1
        message = make(self._made)
        due = self._queue.add(self._made, to, message, now, about=about, tries_max=tries_max)
        return [Send(to, message), self._wake(self._made, 1, due)]

    def answered(self, number: int, by: NodeId) -> Pending[int] | None:
        """The request that this answers; None if none is open, or it was put to somebody else."""
        return self._queue.acknowledge(number, by)

    def overdue(self, number: int, tries: int, now: float) -> tuple[list[Effect], Pending[int] | None]:
        """What to send again; or the request, if it was tried often enough and is given up."""
        pending = self._queue.get(number)
        if pending is None or pending.tries != tries:
            return [], None
        due = self._queue.retry(number, now)
        if due is None:
            return [], pending
        return [Send(pending.to, pending.message), self._wake(number, pending.tries, due)], None

    def take_back(self, to: NodeId) -> list[Pending[int]]:
        """All requests to a node that is gone; they are open no more."""
        return self._queue.take_back(to)

    def cancel(self, is_meant: Callable[[Any], bool]) -> None:
        """Stop sending what this picks out, by what the requests are about."""
        self._queue.cancel(is_meant)

    def about(self) -> list[Any]:
        """What the open requests are about."""
        return self._queue.about()

    @staticmethod
    def _wake(number: int, tries: int, due: float) -> WakeAt:
        return WakeAt(due, ("call", number, tries))
