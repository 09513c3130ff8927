"""Events as they are written down, to be said again after a restart or told to somebody who was away.

A sealed event is kept sealed, without plaintext beside it; one of a type without protection as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidings.errors import InputError, PeerError
from tidings.events import Value
from tidings.overlay import SEALED, Codec, Message, Packet


class KeptEvent(Message, frozen=True, tag="_KeptEvent"):
    """A packet as it is written down."""

    packet: Packet


_CODEC: Codec[KeptEvent] = Codec(KeptEvent)


def kept(packet: Packet) -> bytes:
    """The bytes to write down."""
    bare = Packet(packet.header, SEALED, packet.envelope) if packet.envelope else packet
    return _CODEC.encode(KeptEvent(bare))


def read_kept(raw: bytes) -> Packet:
    """The packet that `kept` wrote; raises InputError for anything else."""
    try:
        return _CODEC.decode(raw).packet
    except PeerError as wrong:
        raise InputError(f"not an event that was kept: {wrong}") from None


def kept_values(raw: bytes) -> Mapping[str, Value] | None:
    """The values of a kept event that anybody may read; None for a sealed one. Raises InputError as `read_kept` does."""
    view = read_kept(raw).view
    return None if view.opaque or view.hidden else view.values
