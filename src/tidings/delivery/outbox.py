"""The sending side: which events each broker still has to acknowledge, announced within a send window.

For each receiving broker there is one stream of numbers without gaps:

    acked ……… announced ……… next_number
      └ on the receiver's disk below    └ the next event gets this

The outbox announces at most `WINDOW` numbers beyond `acked`. It announces again from `acked` on when a link comes up and
when no acknowledgement has come for a while. Pending events are in the caller's log; a stream that has fallen behind is
read from there (`LogRead`).

The caller persists each `PendingEvent` with the event itself, and the stream's `next_number` and `acked`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from tidings.delivery.log_cursor import LogCursor, LogRead
from tidings.delivery.messages import WINDOW, Announce, Announced
from tidings.overlay import EventId, NodeId

ANNOUNCE_AT_ONCE = 512
ANNOUNCE_AGAIN_S = 5.0  # Without an acknowledgement.


class PendingEvent(NamedTuple):
    """One event that one broker has not acknowledged; `position` is its place in the log.

    `only_for` names the one durable subscription that it is for; empty: all that match.
    """

    number: int
    position: int
    event: EventId
    only_for: str


@dataclass(slots=True)
class SendStream:
    """The stream to one broker, as it is persisted: the next number, and the number below which all are acknowledged."""

    next_number: int
    acked: int
    cursor: LogCursor[PendingEvent]
    moved_at: float = 0.0  # When something was last acknowledged, or all was announced again.
    rewound_to: int = 0  # As the receiver asked last; in memory only, as it asks again.
    ancestors: tuple[tuple[bytes, int], ...] = ()

    @property
    def pending(self) -> int:
        return self.next_number - self.acked


class LogAncestor(msgspec.Struct, frozen=True, array_like=True):
    """A log whose backup this one was restored from: its id, and the next number of each of its streams then."""

    journal: bytes
    next_numbers: dict[NodeId, int]


class Outbox:
    """The streams from one broker to all others."""

    def __init__(
        self,
        journal: bytes,
        streams: Iterable[tuple[NodeId, int, int]] = (),
        *,
        ancestors: Sequence[LogAncestor] = (),
        window: int = WINDOW,
    ) -> None:
        """`journal` is the id of the log that the numbers belong to; `streams` are broker, next number and acked, from disk.

        `ancestors` are the logs that this one was restored from, the newest last.
        """
        self.journal, self._window, self._ancestors = journal, window, ancestors
        self._streams = {broker: self._stream(broker, next_number, acked) for broker, next_number, acked in streams}

    def _stream(self, broker: NodeId, next_number: int, acked: int) -> SendStream:
        ancestors = tuple((log.journal, log.next_numbers.get(broker, 1)) for log in self._ancestors)
        cursor: LogCursor[PendingEvent] = LogCursor(acked - 1, next_number - 1)
        return SendStream(next_number, acked, cursor, ancestors=ancestors)

    def add(self, broker: NodeId, position: int, event: EventId, only_for: str = "") -> PendingEvent:
        """Gives an event its number in the stream to a broker; it is announced after `committed`."""
        stream = self._streams.get(broker)
        if stream is None:
            stream = self._streams[broker] = self._stream(broker, 1, 1)
        pending = PendingEvent(stream.next_number, position, event, only_for)
        stream.next_number += 1
        return pending

    def stream(self, broker: NodeId) -> SendStream:
        """The stream to a broker that there is one to."""
        return self._streams[broker]

    def committed(self, broker: NodeId, pending: PendingEvent) -> None:
        """The event and its number are on disk: it may be announced."""
        self._streams[broker].cursor.append(pending.number, pending)

    # ── Announcing ──

    def has_unannounced(self, broker: NodeId) -> bool:
        """Whether there is something to announce to a broker, now or when the window has room."""
        stream = self._streams.get(broker)
        return stream is not None and stream.cursor.has_more

    def next_step(self, broker: NodeId) -> Announce | LogRead | None:
        """What to send to a broker next, or the read of the log it takes; None if nothing, or the window is full."""
        stream = self._streams.get(broker)
        if stream is None or not stream.cursor.has_more:
            return None
        room = min(stream.acked + self._window - stream.cursor.at - 1, ANNOUNCE_AT_ONCE)
        if room <= 0:
            return None
        taken = stream.cursor.take(room)
        return self._announce(stream, taken) if taken else stream.cursor.next_read(room)

    def supply(self, broker: NodeId, read: LogRead, rows: Sequence[PendingEvent]) -> Announce | None:
        """The announcement of what the caller has read from its log."""
        stream = self._streams[broker]
        taken = stream.cursor.supply(read, [(row.number, row) for row in rows])
        return self._announce(stream, taken) if taken else None

    def _announce(self, stream: SendStream, taken: Sequence[tuple[int, PendingEvent]]) -> Announce:
        events = tuple(Announced(number, pending.event, pending.only_for) for number, pending in taken)
        return Announce(self.journal, stream.acked, events, stream.ancestors, stream.rewound_to)

    def not_sent(self, broker: NodeId, announce: Announce) -> None:
        """The link did not take an announcement: it is the next one again."""
        self._streams[broker].cursor.seek(announce.events[0].number - 1)

    def announce_again(self, broker: NodeId, now: float) -> bool:
        """Continue with the first number that is not acknowledged: the receiver, or the link, may have lost the rest.

        False if there is no stream to this broker.
        """
        stream = self._streams.get(broker)
        if stream is None:
            return False
        stream.cursor.seek(stream.acked - 1)
        stream.moved_at = now
        return True

    def unanswered(self, now: float) -> list[NodeId]:
        """Brokers that have acknowledged nothing for a while of what was announced."""
        return [
            broker
            for broker, stream in self._streams.items()
            if stream.acked <= stream.cursor.at and now > stream.moved_at + ANNOUNCE_AGAIN_S
        ]

    # ── Acknowledgements ──

    def ack(self, broker: NodeId, below: int, now: float) -> bool:
        """A broker has everything below this number; False, and nothing changes, if that is not news or cannot be."""
        stream = self._streams.get(broker)
        if stream is None or not stream.acked < below <= stream.next_number:
            return False
        stream.acked, stream.moved_at, stream.rewound_to = below, now, 0
        return True

    def acked_from(self, broker: NodeId, journal: bytes, number: int) -> bool:
        """Whether a broker has acknowledged numbers of this log from `number` on, and says now that it has them not."""
        stream = self._streams.get(broker)
        return journal in (b"", self.journal) and stream is not None and 0 < number < stream.acked

    def rewind(self, broker: NodeId, number: int, kept: int, now: float) -> None:
        """Goes back for a broker that asked for `number`; the log has no lower one than `kept`."""
        stream = self._streams[broker]
        stream.rewound_to = number
        stream.acked = max(number, min(kept, stream.acked))
        self.announce_again(broker, now)

    def unacked(self, broker: NodeId, at_most: int) -> range:
        """The lowest numbers that a broker has not acknowledged."""
        stream = self._streams.get(broker)
        return range(stream.acked, min(stream.acked + at_most, stream.next_number)) if stream else range(0)

    def pending(self) -> dict[NodeId, int]:
        """For each broker, how many events it has not acknowledged."""
        return {broker: stream.pending for broker, stream in self._streams.items() if stream.pending}

    def pending_count(self) -> int:
        return sum(stream.pending for stream in self._streams.values())
