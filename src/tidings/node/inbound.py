"""Messages on their way through a node: opened when they come, and made for each neighbour when they leave.

What a message carries, packets and interests, is found wherever its protocol has put it. Coming in it is opened as
far as this node's keys go and shown to the router; going out it is sealed, with the plaintext beside it that
this neighbour may have at that moment (see `customs`). Most of what a broker carries is one packet and a
few numbers about its way: that is dealt with apart, since it is dealt with a thousand times a second.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from tidings.errors import Denied, PeerError
from tidings.node.customs import EVENT_BYTES_MAX, Customs, size_about
from tidings.node.filter_encoding import UNREAD, UNWANTED
from tidings.node.key_distribution import CONTROL
from tidings.node.trace_log import Hops
from tidings.node.type_registry import Catalogue
from tidings.overlay import SEALED, Codec, Interest, Message, NodeId, Packet, Peer, peers_in, rewritten

INTRODUCED_MAX = 4096  # Peers that messages named and the driver has not asked for yet.
FILTERS_BYTES_MAX = 768 * 1024  # In one message, which has a megabyte for all it says.


class Passing:
    """What one node makes of messages."""

    def __init__(self, codec: Codec[Any], types: Catalogue, customs: Customs, hops: Hops, *, blind: bool) -> None:
        """`blind`: the router is shown nothing of what is sealed."""
        self._codec, self._types, self._customs, self._hops, self._blind = codec, types, customs, hops, blind
        self._introduced: dict[NodeId, Peer] = {}
        self._framed: tuple[Message | None, bytes] = (None, b"")

    # ── In ──

    def opened(self, sender: NodeId, message: Any, now: float, now_ms: int) -> Any:
        """A message as the router may read it; raises PeerError or Denied if anything that can be checked is wrong."""
        if _is_one_packet(message.__class__):
            return self._opened_packet(sender, message, now, now_ms)
        if len(self._introduced) < INTRODUCED_MAX:
            self._introduced.update((peer.id, peer) for peer in peers_in(message))
        interests: list[PeerError | Denied | None] = []

        def change(part: Packet | Interest) -> Packet | Interest:
            if isinstance(part, Interest):
                return self.take_interest(part, now_ms, interests)
            opened = self._customs.take_packet(sender, part, now_ms)
            self.came(opened, sender, now)
            return self.for_router(opened)

        opened = rewritten(message, change, Packet, Interest)
        if len(interests) == 1 and interests[0] is not None:
            raise interests[0]
        return opened

    def _opened_packet(self, sender: NodeId, message: Any, now: float, now_ms: int) -> Any:
        packet = message.packet
        if self._is_plain(packet):
            self.came(packet, sender, now)
            return message
        opened = self._customs.take_packet(sender, packet, now_ms)
        self.came(opened, sender, now)
        return msgspec.structs.replace(message, packet=self.for_router(opened))

    def _is_plain(self, packet: Packet) -> bool:
        if packet.envelope:
            return False
        known = self._types.get(packet.header.type)
        return (known is None or known.keys is None) and size_about(packet.view.values) <= EVENT_BYTES_MAX

    def take_interest(self, part: Interest, now_ms: int, judged: list[PeerError | Denied | None]) -> Interest:
        """An interest as it is read here. One without a right wants nothing: it must not spoil those beside it."""
        try:
            judged.append(None)
            taken = self._customs.take_interest(part, now_ms)
            return Interest(part.id, part.type, UNREAD, part.envelope) if self._blind and part.envelope else taken
        except (PeerError, Denied) as refused:
            judged[-1] = refused
            return Interest(part.id, part.type, UNWANTED, part.envelope)

    def for_router(self, packet: Packet) -> Packet:
        """What the router may read of a packet: all that this node may, unless it would tell others of it."""
        if self._blind and packet.envelope and not packet.header.type.startswith(CONTROL):
            return Packet(packet.header, SEALED, packet.envelope)
        return packet

    def came(self, packet: Packet, sender: NodeId, now: float) -> None:
        """Notes that an event is here, for whoever asks later."""
        if not packet.header.type.startswith(CONTROL):
            self._hops.came(packet.header.id, packet.header.type, now, sender, packet.view)

    def introduced(self) -> list[Peer]:
        """The peers that messages have named since this was last asked."""
        peers, self._introduced = list(self._introduced.values()), {}
        return peers

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"introduced": (len(self._introduced), 2 * INTRODUCED_MAX)}

    # ── Out ──

    def frame_for(self, to: NodeId, message: Message, now_ms: int) -> bytes:
        """A message's bytes for a neighbour that has proven itself; raises Denied for more filters than fit."""
        if message is self._framed[0]:
            if (packet := getattr(message, "packet", None)) is not None:
                self._hops.went(packet.header.id, to, ())
            return self._framed[1]
        one = _is_one_packet(message.__class__)
        given = self._given_packet(to, message, now_ms) if one else self._given(to, message, now_ms)
        raw = self._codec.encode(given)
        # What was the same for this neighbour is the same for all: nothing in it is sealed.
        self._framed = (message, raw) if given is message else (None, b"")
        return raw

    def _given(self, to: NodeId, message: Message, now_ms: int) -> Message:
        filters_bytes = 0

        def change(part: Packet | Interest) -> Packet | Interest:
            nonlocal filters_bytes
            if isinstance(part, Interest):
                filters_bytes += len(part.envelope)
                return self._customs.give_interest(part)
            return self._give(to, part, now_ms)

        given = rewritten(message, change, Packet, Interest)
        if filters_bytes > FILTERS_BYTES_MAX:
            raise Denied(f"size: {filters_bytes} bytes of filters in one message; at most {FILTERS_BYTES_MAX}")
        return given

    def _given_packet(self, to: NodeId, message: Any, now_ms: int) -> Any:
        given = self._give(to, message.packet, now_ms)
        return message if given is message.packet else msgspec.structs.replace(message, packet=given)

    def _give(self, to: NodeId, packet: Packet, now_ms: int) -> Packet:
        went = self._hops.went
        return self._customs.give_packet(to, packet, now_ms, lambda sent, shown: went(sent.header.id, to, shown))


@lru_cache(maxsize=256)
def _is_one_packet(message: type) -> bool:
    """Whether messages of this class are a packet and numbers or texts about its way."""
    fields = {field.name: field.type for field in msgspec.structs.fields(message)}
    return fields.pop("packet", None) is Packet and all(kind in (int, float, str, bool) for kind in fields.values())
