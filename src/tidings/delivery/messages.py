"""The messages of reliable delivery.

The tag of each message on the wire is older than its class name and stays.
"""

from __future__ import annotations

import msgspec

from tidings.overlay import EventId

DIRECT_EVENTS_MAX = 1024  # In one frame.
WINDOW = 4096  # Numbers announced and not acknowledged, per broker: bounds what the receiver holds in memory.


class DeliveryMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The root of the messages. Fields may be added at the end, with a default, and never removed."""


class InterestAdvertisement(DeliveryMessage, frozen=True, tag="Wants", tag_field="frame"):
    """All durable subscriptions of one broker, signed by it (see `durable_interest`); others forward it unchanged."""

    body: bytes
    key: bytes
    signature: bytes
    rights: tuple[tuple[bytes, bytes], ...] = ()
    """The broker's membership (with an empty type id) and its rights to the types it wants: type ids and tokens."""


class InterestVersions(DeliveryMessage, frozen=True, tag="Versions", tag_field="frame"):
    """The version of each broker's advertisement that the sender has; the receiver answers with newer ones."""

    known: dict[str, int]


class Announced(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One event in an `Announce`: its number in the stream from its origin to the receiver, and its id.

    `only_for` names the one durable subscription that the event is for; empty: all that match.
    """

    number: int
    event: EventId
    only_for: str = ""


class Announce(DeliveryMessage, frozen=True, tag="Lists", tag_field="frame"):
    """The origin will deliver these events, in this order. `first` is the lowest number not acknowledged, as far as it knows.

    Numbers belong to a journal: an origin that has lost its journal starts a new stream with another id.
    """

    journal: bytes
    first: int
    events: tuple[Announced, ...]
    ancestors: tuple[tuple[bytes, int], ...] = ()
    """If the journal was restored from a backup: the journals it continues, each up to a number of this stream.

    Below that number both have the same events."""
    rewound_to: int = 0
    """The number in the last `Rewind` that this announcement answers; 0 if there was none."""


class Nack(DeliveryMessage, frozen=True, tag="Asks", tag_field="frame"):
    """These announced numbers have not arrived; retransmit them. Everything below `acked` is on the receiver's disk."""

    acked: int
    numbers: tuple[int, ...]


class Retransmit(DeliveryMessage, frozen=True, tag="Again", tag_field="frame"):
    """An event from the origin's log, for a number in a `Nack`."""

    number: int
    packet: bytes


class Ack(DeliveryMessage, frozen=True, tag="Confirms", tag_field="frame"):
    """Everything below this number is on the receiver's disk."""

    acked: int


class Rewind(DeliveryMessage, frozen=True, tag="Rewind", tag_field="frame"):
    """The sender was restored from a backup: it has nothing from this number on, whatever it acknowledged before.

    The origin announces what it still keeps of that.
    """

    journal: bytes
    """Empty if the sender knows of no journal of the origin's."""
    number: int


class DirectEvents(DeliveryMessage, frozen=True, tag="Direct", tag_field="frame"):
    """Events of the sender's own, straight from it: each with its age in seconds, and as it is stored.

    With `check`, they are to be held until the overlay has had its time (see `spot_checks`).
    """

    events: tuple[tuple[float, bytes], ...]
    check: bool = False


class DirectRequest(DeliveryMessage, frozen=True, tag="AsksDirect", tag_field="frame"):
    """The overlay does not bring the sender the receiver's events of this type: send them straight for a while."""

    type: str
