"""What happened in a world, in order: to be counted, compared, shown and judged.

Every row is a moment, what happened, at which node and, where there is one, with which
peer, which message and about which event or subscription. Two runs are the same run
exactly if their digests are equal.

Beside the rows a trace keeps what the checks read: publications, subscriptions with their
times, notifications, and when the world was disturbed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tidings.overlay import EventId, Interest, NodeId, Packet, SubscriptionId

About: TypeAlias = EventId | SubscriptionId | None


class Row(NamedTuple):
    """One thing that happened."""

    at: float
    kind: str  # send, lose, miss, publish, deliver, notify, subscribe, completed, crash, split, …
    node: NodeId
    peer: NodeId  # Empty where there is none.
    what: str  # The message's class, or a few words.
    about: About
    size: int  # Bytes of a message, else 0.

    def __str__(self) -> str:
        parts = [f"{self.at:10.4f}", self.node, self.kind]
        parts += [f"→ {self.peer}"] if self.peer else []
        parts += [self.what] if self.what else []
        parts += [":".join(map(str, self.about))] if self.about else []
        return "  ".join(parts)


@dataclass(slots=True)
class Publication:
    """An event, when it was published, and where."""

    at: float
    node: NodeId
    packet: Packet


@dataclass(slots=True)
class SubscriptionEntry:
    """A subscription: when it was made, known everywhere, withdrawn, and gone."""

    interest: Interest
    node: NodeId
    asked_at: float
    completed_at: float | None = None
    dropped_at: float | None = None
    gone_at: float | None = None


@dataclass(frozen=True, slots=True)
class NotificationRecord:
    """An event was delivered to a subscription."""

    at: float
    event: EventId
    subscription: SubscriptionId


@dataclass(slots=True)
class SimulationTrace:
    """All that happened. Rows are kept only if `recording`; counts and records always."""

    recording: bool = True
    rerun: str = ""
    """The command that makes the same world again, if it was made from a plan."""
    rows: list[tuple[float, str, str, str, str, About, int]] = field(default_factory=list)
    sent: dict[str, list[int]] = field(default_factory=dict)
    """For each kind of message how many were sent and their bytes."""
    counted: Counter[str] = field(default_factory=Counter)
    """What routers counted, and what became of messages: lost, missed, repeated."""
    publications: dict[EventId, Publication] = field(default_factory=dict)
    subscriptions: dict[SubscriptionId, SubscriptionEntry] = field(default_factory=dict)
    notices: list[NotificationRecord] = field(default_factory=list)
    deliveries: Counter[tuple[EventId, NodeId]] = field(default_factory=Counter)
    absences: dict[NodeId, list[list[float]]] = field(default_factory=dict)
    """For each node that was ever down, from when to when; infinity if for good."""
    disturbances: list[list[float]] = field(default_factory=list)
    """From when to when something was wrong with the world as a whole."""

    def note(self, at: float, kind: str, node: NodeId, peer: NodeId = "", what: str = "", about: About = None) -> None:
        """Add a row about anything but a message."""
        if self.recording:
            self.rows.append((at, kind, node, peer, what, about, 0))

    def __iter__(self) -> Iterator[Row]:
        return (Row._make(row) for row in self.rows)

    def messages(self, *names: str) -> int:
        """How many messages were sent, of these kinds or of all."""
        return sum(count for name, (count, _) in self.sent.items() if not names or name in names)

    def bytes(self, *names: str) -> int:
        """How many bytes these messages took."""
        return sum(size for name, (_, size) in self.sent.items() if not names or name in names)

    def about(self, event: EventId) -> list[Row]:
        """Everything that happened to one event."""
        return [row for row in self if row.about == event]

    def digest(self) -> str:
        """A fingerprint of every row and count: equal for equal runs, whichever machine they ran on."""
        made = hashlib.blake2b(digest_size=16)
        for row in self.rows:
            made.update(repr(tuple(map(_plain, row))).encode())
        made.update(repr((sorted(self.sent.items()), sorted(self.counted.items()), len(self.notices))).encode())
        return made.hexdigest()

    def timeline(self, *, event: EventId | None = None, node: NodeId | None = None, rows_max: int = 200) -> str:
        """The rows as text, one a line, about one event or one node if asked."""
        chosen = [row for row in self if event in (None, row.about) and node in (None, row.node, row.peer)]
        left_off = [f"… and {len(chosen) - rows_max} more"] if len(chosen) > rows_max else []
        return "\n".join([*map(str, chosen[:rows_max]), *left_off])


class CheckFailed(AssertionError):
    """A run broke a rule of every run. The message ends with the command that repeats it."""

    def __init__(self, what: str, trace: SimulationTrace) -> None:
        super().__init__(what + (f"\nto see it again:\n  {trace.rerun}" if trace.rerun else ""))


def _plain(part: object) -> object:
    return tuple(part) if isinstance(part, tuple) else part
