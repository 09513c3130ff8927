"""Inbound: frames from neighbours, decoded and opened for the router.

A message carries packets and interests wherever its protocol has put them. `Inbound` finds them, has the trust
boundary open each as far as this node's keys allow, and notes the arrival of events in the trace log. Most traffic
is one packet with a few numbers about its route; those messages take a shorter path, thousands of times a second.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from tidings.errors import Denied, PeerError
from tidings.node.trace_log import TraceLog
from tidings.node.trust_boundary import TrustBoundary
from tidings.overlay import Interest, NodeId, Packet, Peer, peers_in, rewritten

INTRODUCED_MAX = 4096  # Peers named by messages that the driver has not fetched yet.


class Inbound:
    """What one node makes of messages that come in."""

    def __init__(self, boundary: TrustBoundary, trace: TraceLog) -> None:
        self._boundary, self._trace = boundary, trace
        self._introduced: dict[NodeId, Peer] = {}

    def open(self, sender: NodeId, message: Any, now: float, now_ms: int) -> Any:
        """The message as the router may read it; raises PeerError or Denied if any check fails."""
        if is_one_packet(message.__class__):
            return self._open_one_packet(sender, message, now, now_ms)
        if len(self._introduced) < INTRODUCED_MAX:
            self._introduced.update((peer.id, peer) for peer in peers_in(message))
        verdicts: list[PeerError | Denied | None] = []

        def change(part: Packet | Interest) -> Packet | Interest:
            if isinstance(part, Interest):
                return self._boundary.interest_for_router(part, now_ms, verdicts)
            opened = self._boundary.open_packet(sender, part, now_ms)
            self._trace.arrived(opened, sender, now)
            return self._boundary.for_router(opened)

        opened = rewritten(message, change, Packet, Interest)
        if len(verdicts) == 1 and verdicts[0] is not None:
            raise verdicts[0]
        return opened

    def _open_one_packet(self, sender: NodeId, message: Any, now: float, now_ms: int) -> Any:
        packet = message.packet
        if self._boundary.is_plain(packet):
            self._trace.arrived(packet, sender, now)
            return message
        opened = self._boundary.open_packet(sender, packet, now_ms)
        self._trace.arrived(opened, sender, now)
        return msgspec.structs.replace(message, packet=self._boundary.for_router(opened))

    def introduced(self) -> list[Peer]:
        """The peers that messages have named since the last call."""
        peers, self._introduced = list(self._introduced.values()), {}
        return peers

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"introduced": (len(self._introduced), 2 * INTRODUCED_MAX)}


@lru_cache(maxsize=256)
def is_one_packet(message: type) -> bool:
    """Whether messages of this class are one packet with numbers or strings about its route."""
    fields = {field.name: field.type for field in msgspec.structs.fields(message)}
    return fields.pop("packet", None) is Packet and all(kind in (int, float, str, bool) for kind in fields.values())
