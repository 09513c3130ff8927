"""Spot checks: whether the overlay brings live subscribers what is published, and the way round where it does not.

Events pass through brokers of others. One of them may take a place that events go to (a zone, a rendezvous, a
partition), acknowledge what it gets, and forward nothing. No neighbour of it can tell. So the two ends look for
themselves. Every broker advertises the types that it has live subscriptions to, beside its durable ones.

    origin      each second: some of the events of each type, chosen at random, straight to brokers that want the type
    receiver    holds them for as long as the overlay may take, then delivers what it has not brought
                two missing ones of a type → DirectRequest to their origin
    origin      for DETOUR_S: every event of that type straight, and first those of the last BACK_S, from its log
    receiver    delivers each of them that the overlay has not brought

Which events are checked, nobody can know before. Where an origin publishes fewer events of a type each second than it
checks, all are. Whoever drops a part of more than that is found by the share of it: the first missing event is
delivered from its check, the second begins the detour. A detour ends by itself, and begins again with the next
missing event.

All of this is bounded: checks by number and bytes each second, held ones by number and bytes, detours by number. An
origin sends nothing to a broker without a right to the type, and a receiver takes nothing from anybody but its origin.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from tidings.delivery.messages import DIRECT_EVENTS_MAX
from tidings.overlay import NodeId

CHECKED_MAX = 16  # Events of one type each second.
CHECK_BYTES_MAX = 128 * 1024  # Of one type each second, to one broker; at least one event.
TYPES_CHECKED_MAX = 256  # Each second.
BROKERS_CHECKED_MAX = 32  # Of one type each second; of more, some at random.
HOLD_S = 3.0  # Longer than any overlay takes with a retransmission.
HELD_MAX, HELD_BYTES_MAX = 8192, 32 * 2**20
HELD_OF_ONE_MAX = 1024  # From one origin: about a minute's worth for a broker that checks four types.
MISSED_MIN, MISSED_WITHIN_S = 2, 60.0  # A single one may have been late.
REQUEST_EVERY_S = 30.0
DETOUR_S = 300.0
BACK_S = 60.0  # What is sent again at the beginning of a detour; what was missed before is missed.
BACKLOG_MAX = 8192  # Events of it, the newest.
DETOURS_MAX = 65_536


AGAIN_S = 30.0  # Checks so young are sent again where a link comes up: they may have been lost with the last one.
RECENT_MAX, RECENT_BYTES_MAX = 4096, 8 * 2**20  # Of an origin's own checks.


class CheckedEvent(NamedTuple):
    """An event that an origin may send straight, and when it was published."""

    at: float
    raw: bytes


class SpotSample:
    """The events of one second that are checked: so many of each type, chosen at random."""

    def __init__(self, rng: Random, of_type_max: int) -> None:
        self._rng, self._of_type_max = rng, of_type_max
        self._chosen: dict[str, list[CheckedEvent]] = {}
        self._seen: dict[str, int] = {}

    def add(self, type: str, raw: bytes, now: float) -> None:
        """An event was published."""
        if not self._of_type_max or (type not in self._chosen and len(self._chosen) >= TYPES_CHECKED_MAX):
            return
        chosen = self._chosen.setdefault(type, [])
        self._seen[type] = seen = self._seen.get(type, 0) + 1
        if len(chosen) < self._of_type_max:
            chosen.append(CheckedEvent(now, raw))
        elif (at := self._rng.randrange(seen)) < self._of_type_max:
            chosen[at] = CheckedEvent(now, raw)

    def take(self) -> dict[str, list[CheckedEvent]]:
        """What was chosen since the last call."""
        chosen, self._chosen, self._seen = self._chosen, {}, {}
        return {type: within_bytes(events, CHECK_BYTES_MAX) for type, events in chosen.items()}


class RecentChecks:
    """What an origin has sent as checks in the last seconds."""

    def __init__(self) -> None:
        self._checks: deque[tuple[float, str, Sequence[CheckedEvent]]] = deque()
        self._bytes = 0

    def add(self, type: str, events: Sequence[CheckedEvent], now: float) -> None:
        self._checks.append((now, type, events))
        self._bytes += _size_of(events)
        while len(self._checks) > 1 and (
            len(self._checks) > RECENT_MAX or self._bytes > RECENT_BYTES_MAX or self._checks[0][0] < now - AGAIN_S
        ):
            self._bytes -= _size_of(self._checks.popleft()[2])

    def since(self, moment: float) -> list[tuple[str, Sequence[CheckedEvent]]]:
        """Those that were sent since a moment, by type."""
        return [(type, events) for at, type, events in self._checks if at >= moment]


def _size_of(events: Sequence[CheckedEvent]) -> int:
    return sum(len(event.raw) for event in events)


def within_bytes(events: Sequence[CheckedEvent], bytes_max: int) -> list[CheckedEvent]:
    """The first events that take at most so many bytes, at least one.

    >>> len(within_bytes([CheckedEvent(0.0, b"12"), CheckedEvent(0.0, b"34")], 3))
    1
    """
    size, kept = 0, list[CheckedEvent]()
    for event in events[:DIRECT_EVENTS_MAX]:
        size += len(event.raw)
        if kept and size > bytes_max:
            break
        kept.append(event)
    return kept


def published_at(age_s: float, now: float) -> float:
    """When an event was published that is said to be so old, within what can be sent straight.

    >>> published_at(5.0, 100.0), published_at(-1e300, 100.0), published_at(float("nan"), 100.0)
    (95.0, 100.0, 100.0)
    """
    return now - min(max(0.0, age_s), BACK_S)  # In this order: a comparison with NaN is false.


class HeldCheck(NamedTuple):
    """A check that waits for the overlay."""

    due: float
    origin: NodeId
    published_at: float
    raw: bytes


class HeldChecks:
    """The checks that a receiver holds, and what it has missed."""

    def __init__(self) -> None:
        self._of: dict[NodeId, deque[HeldCheck]] = {}
        self._bytes_of: dict[NodeId, int] = {}
        self._count = self._bytes = 0
        self._missed: dict[tuple[NodeId, str], deque[float]] = {}
        self._asked: dict[tuple[NodeId, str], float] = {}

    def hold(self, origin: NodeId, events: Sequence[tuple[float, bytes]], now: float) -> None:
        """Checks have come, each with its age. Over the limits, whoever has most of them here loses its own."""
        for age_s, raw in events:
            if len(self._of.get(origin, ())) >= HELD_OF_ONE_MAX:
                return
            self._of.setdefault(origin, deque()).append(HeldCheck(now + HOLD_S, origin, published_at(age_s, now), raw))
            self._bytes_of[origin] = self._bytes_of.get(origin, 0) + len(raw)
            self._count, self._bytes = self._count + 1, self._bytes + len(raw)
            while self._count > HELD_MAX:
                self._drop_newest(max(self._of, key=lambda each: len(self._of[each])))
            while self._bytes > HELD_BYTES_MAX:
                self._drop_newest(max(self._bytes_of, key=self._bytes_of.__getitem__))

    def due(self, now: float) -> list[HeldCheck]:
        """Those that have waited long enough."""
        found = list[HeldCheck]()
        for origin, held in list(self._of.items()):
            while held and held[0].due <= now:
                found.append(held.popleft())
                self._forget(origin, found[-1])
        return sorted(found, key=lambda check: check.due)

    def _drop_newest(self, origin: NodeId) -> None:
        self._forget(origin, self._of[origin].pop())

    def _forget(self, origin: NodeId, check: HeldCheck) -> None:
        """One that is not in its queue any more."""
        self._count, self._bytes = self._count - 1, self._bytes - len(check.raw)
        self._bytes_of[origin] -= len(check.raw)
        if not self._of[origin]:
            del self._of[origin], self._bytes_of[origin]

    def missed(self, origin: NodeId, type: str, now: float) -> bool:
        """The overlay has not brought an event: whether its origin is to be asked for a detour now."""
        missed = self._missed.setdefault((origin, type), deque(maxlen=MISSED_MIN))
        missed.append(now)
        is_broken = len(missed) == MISSED_MIN and missed[0] >= now - MISSED_WITHIN_S
        if not is_broken or now - self._asked.get((origin, type), -REQUEST_EVERY_S) < REQUEST_EVERY_S:
            return False
        self._asked[origin, type] = now
        return True

    def has_asked(self, origin: NodeId, type: str, now: float) -> bool:
        """Whether events of this type may come from their origin without having been asked for one by one."""
        return now - self._asked.get((origin, type), -2 * DETOUR_S) < DETOUR_S + REQUEST_EVERY_S

    def forget(self, now: float) -> None:
        """Drops what is long over."""
        self._missed = {key: at for key, at in self._missed.items() if at[-1] > now - MISSED_WITHIN_S}
        self._asked = {key: at for key, at in self._asked.items() if at > now - 2 * DETOUR_S}

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"checks": (self._count, HELD_MAX), "check_bytes": (self._bytes, HELD_BYTES_MAX)}


class Detours:
    """The brokers to which an origin sends every event of a type straight."""

    def __init__(self) -> None:
        self._until: dict[str, dict[NodeId, float]] = {}
        self._count = 0

    def begin(self, broker: NodeId, type: str, now: float) -> bool:
        """A broker has asked for a detour: whether it is to be sent what was published before, too."""
        brokers = self._until.get(type, {})
        if broker in brokers:
            is_again = now >= brokers[broker] - DETOUR_S + REQUEST_EVERY_S / 2  # No more often than it may ask.
        elif self._count >= DETOURS_MAX:
            return False
        else:
            self._count, is_again = self._count + 1, True
        self._until.setdefault(type, {})[broker] = now + DETOUR_S
        return is_again

    def brokers(self, type: str, now: float) -> list[NodeId]:
        """Where an event of this type goes straight."""
        brokers = self._until.get(type)
        if not brokers:
            return []
        for broker in [broker for broker, until in brokers.items() if until <= now]:
            del brokers[broker]
            self._count -= 1
        if not brokers:
            del self._until[type]
        return list(brokers)

    def __len__(self) -> int:
        return self._count
