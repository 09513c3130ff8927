"""Outbound: a client's values become a packet, and messages become frames for each neighbour.

    values  → `packet_of`: checked against type, rights and limits, sealed, under a new event id
    packet  → `encode_stored`: the bytes that the driver writes to disk
    message → `frame_for`: sealed, with the plaintext that this neighbour may have at that moment

A stored event stays sealed, without plaintext; one of a type that is not sealed is stored as it is. The driver
publishes it again after a restart, or sends it to a broker whose durable subscriber was away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from tidings.errors import Denied, EventError, InputError, PeerError
from tidings.events import EventColumns, Value, columns_of_rows, values_of_columns, values_of_rows
from tidings.node.effects import BatchIds, EventBatch, StoredBatch
from tidings.node.inbound import is_one_packet
from tidings.node.trace_log import TraceLog
from tidings.node.trust_boundary import (
    CONTROL_SEQ,
    ENVELOPE_BYTES_MAX,
    EVENT_BYTES_MAX,
    SIGNATURE_BLOCK_MAX,
    ControlStatement,
    TrustBoundary,
    mark_of,
    plain_digest,
    plain_digests,
    size_about,
)
from tidings.node.type_crypto import TypeCrypto, event_id_of
from tidings.node.type_registry import RegisteredType
from tidings.overlay import (
    SEALED,
    Codec,
    EventId,
    Header,
    Interest,
    Message,
    NodeId,
    OriginSeals,
    Packet,
    Peer,
    View,
    rewritten,
)
from tidings.security import Identity, SignedType, signatures_of, split

if TYPE_CHECKING:
    import pyarrow as pa

COUNT_BITS, INCARNATIONS = 40, 1 << 20  # Of a signed event's number: a million restarts with a trillion events each.
FILTERS_BYTES_MAX = 768 * 1024  # In one message, which has a megabyte for everything.


class PublisherCheck(Protocol):
    """Who may publish (see `client_authorization`)."""

    def check_publisher(self, client: str, signed: SignedType, names: tuple[str, ...], now_ms: int) -> None: ...


class Outbound:
    """What one node sends: events of its own, and every message as frames."""

    def __init__(
        self,
        me: Peer,
        codec: Codec[Any],
        clients: PublisherCheck,
        boundary: TrustBoundary,
        trace: TraceLog,
        seals: OriginSeals | None,
        signer: Identity | None = None,
    ) -> None:
        """`seals` signs messages about keys, `signer` events that are not sealed."""
        self._seals, self._signer = seals, signer
        self._me, self._codec, self._clients, self._boundary, self._trace = me, codec, clients, boundary, trace
        self._published = 0
        self._framed: tuple[Message | None, bytes] = (None, b"")

    # ── Events of this node ──

    def packets_of(
        self, client: str, known: RegisteredType, events: Sequence[Mapping[str, Any]], now_ms: int
    ) -> list[Packet]:
        """A client's events as packets; raises Denied, NotYet or EventError as `Node.publish` does."""
        checked = [self._checked(client, known, values, now_ms) for values in events]
        if known.keys is None:
            return self._plain(known, checked)
        envelopes = known.keys.seal_many(checked, now_ms)
        return [self._sealed(known, known.keys, *sealed) for sealed in zip(checked, envelopes, strict=True)]

    def _plain(self, known: RegisteredType, events: Sequence[dict[str, Value]]) -> list[Packet]:
        if self._signer is None or known.is_unsigned:
            return [Packet(Header(self._new_id(), known.name), View(values)) for values in events]
        headers = [Header(self._new_signed_id(), known.name) for _ in events]
        digests = [plain_digest(header, values) for header, values in zip(headers, events, strict=True)]
        blocks = signatures_of(self._signer, digests)
        packets = []
        for header, values, digest, block in zip(headers, events, digests, blocks, strict=True):
            id = EventId(self._me.id, mark_of(digest), header.id.seq)
            self._boundary.remember_own_plain(id)
            packets.append(Packet(Header(id, known.name), View(values), b"", block))
        return packets

    def batch_of(self, client: str, known: RegisteredType, rows: pa.RecordBatch, now_ms: int) -> EventBatch:
        """A client's events, each with the id that `packets_of` would give it; raises likewise."""
        values = values_of_rows(rows)
        if known.signed is not None:
            for names in dict.fromkeys(map(tuple, values)):
                self._clients.check_publisher(client, known.signed, names, now_ms)
        # An event may count for a little more than its part of the buffers: every value for at least eight bytes.
        if (
            rows.nbytes + 8 * rows.num_columns > EVENT_BYTES_MAX
            and (size := max(map(size_about, values))) > EVENT_BYTES_MAX
        ):
            raise EventError(f"{known.event_type.name}: {size} bytes; an event has at most {EVENT_BYTES_MAX}")
        if known.keys is not None:
            return self._sealed_batch(known, known.keys, rows, values, now_ms)
        first = self._published + 1
        self._published += len(values)
        if self._signer is None or known.is_unsigned:
            incarnations = [self._me.incarnation] * len(values)
        else:
            first |= self._me.incarnation % INCARNATIONS << COUNT_BITS
            digests = plain_digests(known.name, self._me.id, first, values)
            incarnations = [mark_of(digest) for digest in digests]
        ids = BatchIds.of(self._me.id, incarnations, first)
        return EventBatch(known.name, known.event_type.name, ids, rows, values)

    def _sealed_batch(
        self, known: RegisteredType, keys: TypeCrypto, rows: pa.RecordBatch, values: list[dict[str, Value]], now_ms: int
    ) -> EventBatch:
        sealed = keys.seal_rows(rows, values, now_ms)
        if (size := max(map(len, sealed.frames)) + SIGNATURE_BLOCK_MAX) > ENVELOPE_BYTES_MAX:
            raise EventError(f"{known.event_type.name}: {size} bytes sealed; at most {ENVELOPE_BYTES_MAX}")
        ids = BatchIds.of(self._me.id, [sealed.sender] * len(values), sealed.first_seq)
        return EventBatch(known.name, known.event_type.name, ids, rows, values, sealed.frames)

    def packets_in(self, known: RegisteredType, batch: StoredBatch) -> list[Packet]:
        """The events of a batch that this node published, as packets that any node takes."""
        if known.keys is not None:
            return [
                Packet(Header(id, batch.type), SEALED, envelope)
                for id, envelope in zip(batch.ids, known.keys.sign_rows(batch.frames), strict=True)
            ]
        values = values_of_columns(batch.columns)
        headers = [Header(id, batch.type) for id in batch.ids]
        if self._signer is None or known.is_unsigned:
            return [Packet(header, View(each)) for header, each in zip(headers, values, strict=True)]
        digests = plain_digests(batch.type, batch.ids.origin, batch.ids.first_seq, values)
        blocks = signatures_of(self._signer, digests)
        return [
            Packet(header, View(each), b"", block) for header, each, block in zip(headers, values, blocks, strict=True)
        ]

    def _checked(self, client: str, known: RegisteredType, values: Mapping[str, Any], now_ms: int) -> dict[str, Value]:
        checked = known.event_type.check(values)
        if known.signed is not None:
            self._clients.check_publisher(client, known.signed, tuple(checked), now_ms)
        if (size := size_about(checked)) > EVENT_BYTES_MAX:
            raise EventError(f"{known.event_type.name}: {size} bytes; an event has at most {EVENT_BYTES_MAX}")
        return checked

    def _sealed(self, known: RegisteredType, keys: TypeCrypto, checked: dict[str, Value], envelope: bytes) -> Packet:
        if len(envelope) > ENVELOPE_BYTES_MAX:
            raise EventError(f"{known.event_type.name}: {len(envelope)} bytes sealed; at most {ENVELOPE_BYTES_MAX}")
        frame = split(envelope)
        packet = Packet(Header(event_id_of(self._me.id, frame), known.name), View(checked), envelope)
        self._boundary.remember_own(keys, packet, frame)
        return packet

    def control_packet(self, control: str, raw: bytes) -> Packet:
        """A message about keys, for the subscribers of `control`."""
        self._published += 1
        header = Header(EventId(self._me.id, self._me.incarnation, CONTROL_SEQ + self._published), control)
        return Packet(
            header, View({}), self._seals.seal_of(ControlStatement(header, raw)) + raw if self._seals else raw
        )

    def _new_id(self) -> EventId:
        self._published += 1
        return EventId(self._me.id, self._me.incarnation, self._published)

    def _new_signed_id(self) -> EventId:
        """With the incarnation in the number: in its place is a digest of the event."""
        self._published += 1
        return EventId(self._me.id, 0, self._me.incarnation % INCARNATIONS << COUNT_BITS | self._published)

    # ── Frames ──

    def frame_for(self, to: NodeId, message: Message, now_ms: int) -> bytes:
        """A message's bytes for this neighbour; raises Denied for more filters than fit."""
        if message is self._framed[0]:
            if (packet := getattr(message, "packet", None)) is not None:
                self._trace.sent(packet.header.id, to, ())
            return self._framed[1]
        one = is_one_packet(message.__class__)
        stripped = self._one_packet_for(to, message, now_ms) if one else self._message_for(to, message, now_ms)
        raw = self._codec.encode(stripped)
        # A message that is unchanged for this neighbour is the same for all: nothing in it is sealed.
        self._framed = (message, raw) if stripped is message else (None, b"")
        return raw

    def _message_for(self, to: NodeId, message: Message, now_ms: int) -> Message:
        filters_bytes = 0

        def change(part: Packet | Interest) -> Packet | Interest:
            nonlocal filters_bytes
            if isinstance(part, Interest):
                filters_bytes += len(part.envelope)
                return self._boundary.interest_for_link(part)
            return self._packet_for(to, part, now_ms)

        stripped = rewritten(message, change, Packet, Interest)
        if filters_bytes > FILTERS_BYTES_MAX:
            raise Denied(f"size: {filters_bytes} bytes of filters in one message; at most {FILTERS_BYTES_MAX}")
        return stripped

    def _one_packet_for(self, to: NodeId, message: Any, now_ms: int) -> Any:
        stripped = self._packet_for(to, message.packet, now_ms)
        return message if stripped is message.packet else msgspec.structs.replace(message, packet=stripped)

    def _packet_for(self, to: NodeId, packet: Packet, now_ms: int) -> Packet:
        stripped, in_clear = self._boundary.packet_for(to, packet, now_ms)
        self._trace.sent(packet.header.id, to, in_clear)
        return stripped


# ── Stored events ──


class StoredEvent(Message, frozen=True, tag="_KeptEvent"):
    """A packet as it is written to disk."""

    packet: Packet


_STORED: Codec[StoredEvent] = Codec(StoredEvent)


def encode_stored(packet: Packet) -> bytes:
    """The bytes of an event to write to disk."""
    bare = Packet(packet.header, SEALED, packet.envelope) if packet.envelope else packet
    return _STORED.encode(StoredEvent(bare))


_STORED_BATCH = msgspec.msgpack.Decoder(StoredBatch)


def encode_stored_batch(batch: EventBatch) -> bytes:
    """The bytes of a batch to write to disk; without plaintext where it is sealed."""
    columns = EventColumns(len(batch), ()) if batch.frames else columns_of_rows(batch.rows)
    return msgspec.msgpack.encode(StoredBatch(batch.type, batch.ids, columns, batch.frames))


def decode_stored_batch(raw: bytes) -> StoredBatch:
    """The batch that `encode_stored_batch` wrote; raises InputError for anything else."""
    try:
        return _STORED_BATCH.decode(raw)
    except msgspec.MsgspecError as wrong:
        raise InputError(f"not a stored batch: {wrong}") from None


def decode_stored(raw: bytes) -> Packet:
    """The packet that `encode_stored` wrote; raises InputError for anything else."""
    try:
        return _STORED.decode(raw).packet
    except PeerError as wrong:
        raise InputError(f"not a stored event: {wrong}") from None


def stored_values(raw: bytes) -> Mapping[str, Value] | None:
    """The values of a stored event; None if it is sealed. Raises InputError as `decode_stored` does."""
    view = decode_stored(raw).view
    return None if view.opaque or view.hidden else view.values
