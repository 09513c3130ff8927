"""What this node says: a client's values, checked and sealed, under an id that no other event has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidings.errors import EventError
from tidings.node.client_authorization import Clients
from tidings.node.customs import ENVELOPE_BYTES_MAX, EVENT_BYTES_MAX, Customs, size_about
from tidings.node.type_crypto import event_id_of
from tidings.node.type_registry import Known
from tidings.overlay import EventId, Header, Packet, Peer, View
from tidings.security import split


class Saying:
    """One node's events, from values to packets."""

    def __init__(self, me: Peer, clients: Clients, customs: Customs) -> None:
        self._me, self._clients, self._customs = me, clients, customs
        self._said = 0

    def packet_of(self, client: str, known: Known, values: Mapping[str, Any], now_ms: int) -> Packet:
        """A client's event; raises Denied, NotYet or EventError as `Node.publish` does."""
        checked = known.event_type.check(values)
        if known.signed is not None:
            self._clients.check_publisher(client, known.signed, tuple(checked), now_ms)
        if (size := size_about(checked)) > EVENT_BYTES_MAX:
            raise EventError(f"{known.event_type.name}: {size} bytes; an event has at most {EVENT_BYTES_MAX}")
        if known.keys is None:
            return Packet(Header(self._new_id(), known.name), View(checked))
        envelope = known.keys.seal(checked, now_ms)
        if len(envelope) > ENVELOPE_BYTES_MAX:
            raise EventError(f"{known.event_type.name}: {len(envelope)} bytes sealed; at most {ENVELOPE_BYTES_MAX}")
        frame = split(envelope)
        packet = Packet(Header(event_id_of(self._me.id, frame), known.name), View(checked), envelope)
        self._customs.own(known.keys, packet, frame)
        return packet

    def word(self, control: str, raw: bytes) -> Packet:
        """A word about keys, for whoever listens to `control`."""
        return Packet(Header(self._new_id(), control), View({}), raw)

    def _new_id(self) -> EventId:
        self._said += 1
        return EventId(self._me.id, self._me.incarnation, self._said)
