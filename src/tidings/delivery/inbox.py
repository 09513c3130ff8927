"""The receiving side: a receive window for each origin, in-order release, acknowledgements and negative ones.

An event can arrive in two ways. The overlay usually brings it first; the inbox holds it until its origin announces its
number. If the overlay does not bring an announced event in time, the inbox requests it from the origin (`Nack`), which
answers with `Retransmit`. Numbers are released in order. The caller writes what is released to disk, together with the
next number, and reports that with `persisted`; only then does `ack` cover it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from tidings.delivery.messages import WINDOW, Ack, Announce, Nack, Rewind
from tidings.errors import PeerError
from tidings.overlay import EventId, NodeId

EARLY_MAX = 65_536  # Events that arrived before their announcement; one that is evicted is retransmitted.
NACK_AFTER_S = 0.5  # How long the overlay may take after the announcement before the origin is asked.
NACK_AGAIN_S = 2.0
NACKED_AT_ONCE = 256  # Requested from one origin at a time: enough to keep its disk and the link busy.
NUMBER_MAX = (1 << 62) - 1  # Of an event in a stream: more than a journal can count, and less than it can hold.
JOURNAL_ID_BYTES_MAX = 64
UNREADABLE_S_MAX = 60.0  # How long to wait for an event's key once the key manager has answered.

Deliveries: TypeAlias = list[tuple[str, bytes]]
"""For each durable subscription that an event matched, by id: the event as this subscription sees it."""


@dataclass(slots=True)
class _Expected:
    """One event that is announced and not released."""

    event: EventId
    only_for: str
    nack_at: float


@dataclass(slots=True)
class _ReceiveStream:
    """The stream from one origin."""

    journal: bytes
    next_number: int
    persisted: int  # Everything below is on disk here; only that is ever acknowledged.
    expected: dict[int, _Expected] = field(default_factory=dict)
    arrived: dict[int, Deliveries] = field(default_factory=dict)
    nacked: dict[int, None] = field(default_factory=dict)  # Requested, and on their way.
    has_more_overdue: bool = False  # Than could be requested.


class Inbox:
    """The streams from all other brokers to one."""

    def __init__(
        self,
        received: Iterable[tuple[NodeId, bytes, int]] = (),
        *,
        restored: bool = False,
        early_max: int = EARLY_MAX,
    ) -> None:
        """`received` is, from disk, each origin's journal and the next number expected of it.

        With `restored`, that was restored from a backup: of origins that are not in it, everything is missing.
        """
        self._restored = restored
        self._streams = {origin: _ReceiveStream(bytes(journal), number, number) for origin, journal, number in received}
        self._early: OrderedDict[EventId, Deliveries] = OrderedDict()
        self._early_max = early_max

    # ── Arrivals ──

    def receive_from_overlay(self, event: EventId, delivery: tuple[str, bytes]) -> None:
        """The overlay has brought an event that matches one more durable subscription."""
        deliveries = self._early.get(event)
        if deliveries is not None:
            deliveries.append(delivery)
            return
        if len(self._early) >= self._early_max:
            self._early.popitem(last=False)
        self._early[event] = [delivery]

    def receive_announce(self, origin: NodeId, announce: Announce, now: float) -> Rewind | None:
        """An origin announces what it will deliver; raises PeerError if that includes another origin's events.

        Returns what to answer if the announcement begins too late: this broker's record is older than what it has
        acknowledged. What the origin no longer keeps is lost, and the stream goes on after it.
        """
        if any(entry.event.origin != origin for entry in announce.events):
            raise PeerError("announce: a broker announces events that were published there, and no others")
        _check_numbers(announce)
        first, stream = announce.first, self._streams.get(origin)
        if stream is None or stream.journal != announce.journal:
            stream = self._streams[origin] = self._continued(stream, announce)
        if first > stream.next_number:
            if announce.rewound_to != stream.next_number:
                return Rewind(announce.journal, stream.next_number)
            stream.next_number = stream.persisted = first
        end = stream.next_number + 2 * WINDOW
        for entry in announce.events:
            if stream.next_number <= entry.number < end:
                patience_s = 0.0 if entry.only_for else NACK_AFTER_S  # The overlay does not bring old events.
                stream.expected.setdefault(entry.number, _Expected(entry.event, entry.only_for, now + patience_s))
        return None

    def _continued(self, known: _ReceiveStream | None, announce: Announce) -> _ReceiveStream:
        """The stream of a journal that is new here, which may continue one that is known."""
        for journal, below in announce.ancestors if known is not None else ():
            if known is not None and journal == known.journal:
                next_number = max(announce.first, min(known.next_number, below))
                return _ReceiveStream(announce.journal, next_number, min(known.persisted, next_number))
        first = 1 if self._restored else announce.first
        return _ReceiveStream(announce.journal, first, first)

    def receive_retransmit(self, origin: NodeId, number: int, deliveries: Deliveries) -> None:
        """The origin has retransmitted an announced event; `deliveries` is what it matched."""
        stream = self._streams.get(origin)
        if stream is not None and number in stream.expected:
            stream.arrived[number] = deliveries
            stream.nacked.pop(number, None)

    # ── Release ──

    def release(self, origin: NodeId) -> Iterator[tuple[EventId, Deliveries]]:
        """The events that are next in order and here; each counts as received once it is handed out."""
        stream = self._streams.get(origin)
        while stream is not None and (expected := stream.expected.get(stream.next_number)) is not None:
            deliveries = self._deliveries(stream, expected)
            if deliveries is None:
                return
            del stream.expected[stream.next_number]
            stream.next_number += 1
            yield expected.event, [each for each in deliveries if expected.only_for in ("", each[0])]

    def _deliveries(self, stream: _ReceiveStream, expected: _Expected) -> Deliveries | None:
        retransmitted = stream.arrived.pop(stream.next_number, None)
        if retransmitted is not None:
            self._early.pop(expected.event, None)
            return retransmitted
        if expected.only_for:
            return None  # The overlay's copy may have been matched before this subscription existed.
        return self._early.pop(expected.event, None)

    def position(self, origin: NodeId) -> tuple[bytes, int]:
        """The journal whose numbers an origin's are, and the next number; to be persisted with what was released."""
        stream = self._streams.get(origin)
        return (stream.journal, stream.next_number) if stream else (b"", 1)

    def persisted(self, origin: NodeId, journal: bytes, below: int) -> None:
        """What was released below this number, of that journal, is on disk."""
        stream = self._streams.get(origin)
        if stream is not None and stream.journal == journal:
            stream.persisted = max(stream.persisted, below)

    def ack(self, origin: NodeId) -> Ack:
        """The acknowledgement of everything that is on disk; the origin drops it then."""
        stream = self._streams.get(origin)
        return Ack(stream.persisted if stream else 1)

    def rewind(self, origin: NodeId) -> Rewind | None:
        """Tells an origin that has just been linked how far this broker's record goes: it may be a restored one."""
        stream = self._streams.get(origin)
        if stream is None:
            return Rewind(b"", 1) if self._restored else None
        return Rewind(stream.journal, stream.persisted)

    # ── Missing events ──

    def nack(self, origin: NodeId, now: float) -> Nack | None:
        """A request for the lowest numbers that are overdue, if any; they are requested again later.

        Only so many are on their way at a time; `can_nack` tells when more can be requested.
        """
        stream = self._streams.get(origin)
        if stream is None:
            return None
        late = sorted(n for n, due in stream.expected.items() if due.nack_at <= now and self._is_missing(stream, n))
        stream.nacked = {number: None for number in stream.nacked if self._is_coming(stream, number, now)}
        chosen = late[: NACKED_AT_ONCE - len(stream.nacked)]
        for number in chosen:
            stream.expected[number].nack_at = now + NACK_AGAIN_S
            stream.nacked[number] = None
        stream.has_more_overdue = len(chosen) < len(late)
        return Nack(stream.persisted, tuple(chosen)) if chosen else None

    def can_nack(self, origin: NodeId) -> bool:
        """Whether more is overdue than could be requested, and more can be requested now."""
        stream = self._streams.get(origin)
        return stream is not None and stream.has_more_overdue and len(stream.nacked) <= NACKED_AT_ONCE // 2

    def _is_coming(self, stream: _ReceiveStream, number: int, now: float) -> bool:
        expected = stream.expected.get(number)
        return expected is not None and expected.nack_at > now and self._is_missing(stream, number)

    def _is_missing(self, stream: _ReceiveStream, number: int) -> bool:
        expected = stream.expected[number]
        return number not in stream.arrived and (bool(expected.only_for) or expected.event not in self._early)

    # ── Inspection ──

    def expects(self, origin: NodeId, number: int) -> bool:
        """Whether a retransmission of this number is still needed."""
        stream = self._streams.get(origin)
        return stream is not None and number in stream.expected and number not in stream.arrived

    def event_at(self, origin: NodeId, number: int) -> EventId | None:
        """The event that an origin has announced under a number."""
        expected = self._expected(origin, number)
        return expected.event if expected else None

    def only_for(self, origin: NodeId, number: int) -> str:
        """The one durable subscription that an announced event is for; empty if it is for all that match."""
        expected = self._expected(origin, number)
        return expected.only_for if expected else ""

    def _expected(self, origin: NodeId, number: int) -> _Expected | None:
        stream = self._streams.get(origin)
        return stream.expected.get(number) if stream else None

    def origins(self) -> list[NodeId]:
        """The origins that have announced something that is not released."""
        return [origin for origin, stream in self._streams.items() if stream.expected]

    def holdings(self) -> dict[str, tuple[int, int]]:
        """How many events are in memory, and how many may be."""
        waiting = sum(len(stream.expected) for stream in self._streams.values())
        return {
            "early": (len(self._early), self._early_max),
            "listed": (waiting, 2 * WINDOW * max(1, len(self._streams))),
        }


def _check_numbers(announce: Announce) -> None:
    """Raises PeerError for a stream that this broker could not keep: its next number must fit into the journal."""
    numbers = (announce.first, *(entry.number for entry in announce.events))
    if len(announce.journal) > JOURNAL_ID_BYTES_MAX or not all(0 < number <= NUMBER_MAX for number in numbers):
        raise PeerError("announce: a number, or the id of a journal, is out of bounds")


class KeyDeadlines:
    """How long to wait for the keys of received events that cannot be opened.

    The wait begins when the key manager has answered: before that all keys are missing, not this event's.
    """

    def __init__(self, unreadable_s_max: float = UNREADABLE_S_MAX) -> None:
        self.unreadable_s_max = unreadable_s_max
        self._since: dict[tuple[NodeId, int], float] = {}

    def has_expired(self, origin: NodeId, number: int, now: float, *, keys_are_requested: bool) -> bool:
        """Whether an event that cannot be opened now is given up; it is forgotten here then."""
        since = self._since.setdefault((origin, number), now)
        if keys_are_requested:
            self._since[origin, number] = now
            return False
        if now - since < self.unreadable_s_max:
            return False
        del self._since[origin, number]
        return True

    def opened(self, origin: NodeId, number: int) -> None:
        """The event could be opened."""
        self._since.pop((origin, number), None)
