"""The trust boundary: packets and interests as this node may read them, and as each neighbour may.

    inside the node   a packet has this node's own view; its envelope is the sealed event and nothing else
    on a link         the view of a sealed event is empty; the plaintext that this neighbour may have at the
                      moment of sending travels in the envelope's plaintext cache
    to the router     the view as well, unless the protocol would reveal it to other nodes (`blind`)

So stripping is no clean-up that could be forgotten: nothing leaves that was not added for this neighbour. Events of
types that are not sealed pass unchanged, at the cost of one look-up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from hashlib import sha256
from random import Random
from typing import Literal, NamedTuple, Protocol, TypeAlias

from tidings.errors import Denied, PeerError
from tidings.events import Value
from tidings.node.credentials import node_id_of
from tidings.node.filter_encoding import UNREAD, UNWANTED
from tidings.node.type_crypto import SIGNED_SENDER, TypeCrypto, check_header
from tidings.node.type_registry import CONTROL, TypeRegistry
from tidings.overlay import SEALED, EventId, Header, Interest, NodeId, OriginSeals, Packet, SeenIds, encoded
from tidings.security import (
    FLAG_CACHE,
    FLAG_SIGNATURE,
    SIGNATURE_BYTES,
    CacheTrust,
    Frame,
    SignatureReader,
    SignedType,
    cached,
    digest_of,
    split,
    uncached,
)

CacheTrustPolicy: TypeAlias = Literal["same-domain", "any-authorised", "verify"]

EVENT_BYTES_MAX = 256 * 1024  # The values of an event; sealed and with its plaintext cache it still fits a message.
ENVELOPE_BYTES_MAX = EVENT_BYTES_MAX + 256 * 1024  # Sealing each of 4096 attributes by itself takes 60 bytes more.
OPENED_MAX = 4096  # Cached opened events, so that a second copy costs no decryption.
OPENED_BYTES_MAX = 64 * 2**20
INTERESTS_MAX = 16_384  # Cached opened filters; routers send the same ones again and again.
INTEREST_BYTES_MAX = 64 * 2**20
# Events that are not sealed are numbered from 1, sealed ones by their moment (about 2**61), messages about keys from
# 2**62 on. So none of one kind, which anybody may send, has the id that another will have.
PLAIN_SEQ_MAX = 1 << 60
CONTROL_SEQ = 1 << 62
# An event that is not sealed and is signed has a digest of itself in its id: nobody can make another with that id.
MARKED = 1 << 61
SIGNATURE_BLOCK_MAX = 512  # A signature and its path in a batch.
VERIFIED = 0.01  # The fraction of plaintext caches from other organisations that is compared with the sealed event.


class Readers(Protocol):
    """What the boundary asks about neighbours (see `neighbours`)."""

    def readable(self, neighbour: NodeId, type_id: bytes, now_ms: int) -> frozenset[bytes] | None: ...

    def is_same_organisation(self, neighbour: NodeId) -> bool: ...


class ControlStatement(NamedTuple):
    """A message about keys, as its origin signs it."""

    header: Header
    raw: bytes
    seal: bytes = b""

    def statement(self) -> tuple[Header, bytes]:
        return self.header, self.raw


def control_parts(envelope: bytes) -> tuple[bytes, bytes]:
    """The seal and the message in a control packet's envelope."""
    return envelope[:SIGNATURE_BYTES], envelope[SIGNATURE_BYTES:]


class _Opened(NamedTuple):
    envelope: bytes
    packet: Packet
    frame: Frame
    changes: int
    signer: bytes = b""


class TrustBoundary:
    """One node's trust boundary."""

    def __init__(
        self,
        types: TypeRegistry,
        readers: Readers,
        trust: CacheTrustPolicy,
        rng: Random,
        *,
        blind: bool,
        seals: OriginSeals | None = None,
    ) -> None:
        """`blind`: the router sees nothing of what is sealed. `seals` verifies messages about keys.

        With `seals`, a node's id is that of its key, and signed events are verified: by readers and by relays alike.
        """
        self._seals = seals
        self._signatures = SignatureReader()
        self._types, self._readers, self._trust, self._rng, self._blind = types, readers, trust, rng, blind
        self._opened: OrderedDict[tuple[bytes, int, int, int], _Opened] = OrderedDict()
        self._opened_bytes = 0
        self._interests: OrderedDict[tuple[bytes, int], tuple[Interest, int]] = OrderedDict()
        self._interest_bytes = 0
        self._own_plain = SeenIds[EventId](OPENED_MAX)
        self._digested: tuple[Packet | None, bytes] = (None, b"")
        self.decrypted = 0

    # ── In ──

    def open_packet(self, sender: NodeId, packet: Packet, now_ms: int) -> Packet:
        """The packet with this node's view of it; raises PeerError if any check fails."""
        if len(packet.envelope) > ENVELOPE_BYTES_MAX or size_about(packet.view.values) > EVENT_BYTES_MAX:
            raise PeerError(f"size: an event has at most {EVENT_BYTES_MAX} bytes of values")
        known = self._types.get(packet.header.type)
        if known is not None and known.keys is not None:
            return self._open(known.keys, sender, packet, now_ms)
        if packet.header.type.startswith(CONTROL):
            return self._control(packet)
        if not packet.envelope:
            self._check_plain(packet)
            return packet
        if known is not None:
            raise PeerError(f"envelope: events of {known.event_type.name} have none")
        frame = split(packet.envelope)
        check_header(packet.header, frame)
        self._check_signature(packet.header, frame)
        return Packet(packet.header, SEALED, uncached(frame))

    def _check_signature(self, header: Header, frame: Frame) -> bytes:
        """Who signed the event, empty if nobody did. Raises PeerError for another signer than the event's origin.

        That the signer may publish it, its readers check.
        """
        if self._seals is None or not frame.flags & FLAG_SIGNATURE:
            return b""
        signer = self._signatures.signer(frame.signature, digest_of(frame.signed))
        if node_id_of(signer) != header.id.origin:
            raise PeerError("signature: of another broker than the event's origin")
        return signer

    def signer_of(self, packet: Packet, frame: Frame) -> bytes:
        """Who signed an event that was opened before; empty if nobody did, or if ids here are not those of keys."""
        known = self._opened.get(frame.event_id)
        if known is not None and known.signer and known.envelope == packet.envelope:
            return known.signer
        return self._check_signature(packet.header, frame)

    def _control(self, packet: Packet) -> Packet:
        """A message about keys: its origin has signed it, so that nobody can use its numbers before it does."""
        if packet.view.values or not CONTROL_SEQ <= packet.header.id.seq < 2 * CONTROL_SEQ:
            raise PeerError("head: not that of a message about keys")
        if self._seals is not None:
            seal, raw = control_parts(packet.envelope)
            self._seals.check_statement(packet.header.id.origin, ControlStatement(packet.header, raw, seal))
        return packet

    def control_of(self, packet: Packet) -> bytes:
        """The message about keys in a control packet that was opened."""
        return control_parts(packet.envelope)[1] if self._seals is not None else packet.envelope

    def is_plain(self, packet: Packet) -> bool:
        """Whether the packet may pass unchanged: it is not sealed, of no sealed type, and within limits.

        Raises PeerError for one whose id is not that of its content.
        """
        if packet.envelope or packet.header.type.startswith(CONTROL):
            return False
        known = self._types.get(packet.header.type)
        if (known is not None and known.keys is not None) or size_about(packet.view.values) > EVENT_BYTES_MAX:
            return False
        self._check_plain(packet)
        return True

    def _check_plain(self, packet: Packet) -> None:
        """Raises PeerError unless the id of an event that is not sealed fits it. Its signature is for its readers."""
        id = packet.header.id
        if not 0 <= id.seq < PLAIN_SEQ_MAX or len(packet.signature) > SIGNATURE_BLOCK_MAX:
            raise PeerError("head: not the number of an event that is not sealed")
        if (id.incarnation >= MARKED) != bool(packet.signature):
            raise PeerError("head: of a signed event, and this one is not; or the other way round")
        if packet.signature:
            self._digested = packet, plain_digest(packet.header, packet.view.values)
            if id.incarnation != mark_of(self._digested[1]):
                raise PeerError("head: of another event than this one")

    def check_origin(self, packet: Packet) -> None:
        """Raises PeerError unless the origin of an event that is not sealed has signed it."""
        if self._seals is None:
            return
        if not packet.signature:
            raise PeerError("signature: events in this network are signed; this one is not")
        if packet.header.id in self._own_plain:
            return
        known, digest = self._digested
        if known is not packet:
            digest = plain_digest(packet.header, packet.view.values)
        if node_id_of(self._signatures.signer(packet.signature, digest)) != packet.header.id.origin:
            raise PeerError("signature: of another broker than the event's origin")

    def for_router(self, packet: Packet) -> Packet:
        """The packet with as much of the view as the router may see."""
        if self._blind and packet.envelope and not packet.header.type.startswith(CONTROL):
            return Packet(packet.header, SEALED, packet.envelope)
        return packet

    def from_router(self, packet: Packet, now_ms: int) -> Packet:
        """The same packet with this node's view, which is still cached."""
        return self.open_packet("", packet, now_ms) if self._blind and packet.envelope else packet

    def interest_for_router(
        self, interest: Interest, now_ms: int, verdicts: list[PeerError | Denied | None]
    ) -> Interest:
        """The interest as the router may read it; `verdicts` gets None, or why it was refused.

        One without a right matches nothing: it must not spoil the others in the same message.
        """
        verdicts.append(None)
        try:
            opened = self.open_interest(interest, now_ms)
        except (PeerError, Denied) as refused:
            verdicts[-1] = refused
            return _replaced(interest, UNWANTED)
        return _replaced(interest, UNREAD) if self._blind and interest.envelope else opened

    def open_interest(self, interest: Interest, now_ms: int) -> Interest:
        """The interest with its filter as far as it is readable; raises PeerError or Denied for one without a right."""
        known = self._types.get(interest.type)
        if known is None or known.keys is None:
            return _replaced(interest, UNREAD) if interest.envelope else interest
        name = (sha256(interest.envelope).digest(), known.keys.keyring.changes)
        read, not_after = self._interests.get(name, (None, 0))
        if read is None or read.id != interest.id or now_ms >= not_after:
            wanted, not_after = known.keys.read_filter(interest, now_ms)
            read = self._remember_interest(name, _replaced(interest, wanted), not_after)
        return read

    def _remember_interest(self, name: tuple[bytes, int], read: Interest, not_after: int) -> Interest:
        old = self._interests.pop(name, None)
        self._interest_bytes += len(read.envelope) - (len(old[0].envelope) if old else 0)
        self._interests[name] = read, not_after
        while len(self._interests) > INTERESTS_MAX or self._interest_bytes > INTEREST_BYTES_MAX:
            _, (oldest, _) = self._interests.popitem(last=False)
            self._interest_bytes -= len(oldest.envelope)
        return read

    def forget_interests(self) -> None:
        """Rights have changed: verify every filter again when it next comes."""
        self._interests.clear()
        self._interest_bytes = 0

    def remember_own(self, keys: TypeCrypto, packet: Packet, frame: Frame) -> None:
        """This node sealed the packet itself, as this frame, and need not open it."""
        signer = keys.own_key if self._seals is not None and frame.flags & FLAG_SIGNATURE else b""
        self._remember(packet, frame, keys.keyring.changes, signer)

    def remember_own_plain(self, id: EventId) -> None:
        """This node signed the event with this id, which has a digest of it."""
        self._own_plain.add(id)

    def _open(self, keys: TypeCrypto, sender: NodeId, packet: Packet, now_ms: int) -> Packet:
        if not packet.envelope:
            raise PeerError(f"envelope: events of {keys.signed.event_type.name} are sealed; this one is not")
        frame = split(packet.envelope)
        check_header(packet.header, frame)
        bare = _bare(frame)
        known = self._opened.get(frame.event_id)
        if known is not None and known.envelope == bare.raw and known.changes == keys.keyring.changes:
            if known.packet.header == packet.header:
                return known.packet
            self._check_signature(packet.header, frame)
            return Packet(packet.header, known.packet.view, known.packet.envelope)
        if keys.need_signatures and not frame.flags & FLAG_SIGNATURE:
            raise PeerError(f"signature: events of {keys.signed.event_type.name} are signed; this one is not")
        signer = self._check_signature(packet.header, frame)
        view = keys.read(frame, now_ms, self._cache_trust(sender, keys, frame, now_ms))
        self.decrypted += 1
        opened = Packet(packet.header, view, bare.raw)
        self._remember(opened, bare, keys.keyring.changes, signer)
        return opened

    def _cache_trust(self, sender: NodeId, keys: TypeCrypto, frame: Frame, now_ms: int) -> CacheTrust:
        """How far to trust the plaintext cache that this neighbour sent."""
        if frame.cache_end == frame.body_end or not sender:
            return "ignore"
        if self._trust == "verify":
            return "verify"
        if self._readers.is_same_organisation(sender):
            return "trust"
        if self._trust == "same-domain":
            return "ignore"
        readable = self._readers.readable(sender, keys.signed.type_id, now_ms)
        if readable is not None and any(id not in readable for id in frame.cache):
            return "ignore"
        return "verify" if self._rng.random() < VERIFIED else "trust"

    def _remember(self, packet: Packet, frame: Frame, changes: int, signer: bytes) -> None:
        old = self._opened.pop(frame.event_id, None)
        self._opened_bytes += len(frame.raw) - (len(old.envelope) if old else 0)
        self._opened[frame.event_id] = _Opened(packet.envelope, packet, frame, changes, signer)
        while len(self._opened) > OPENED_MAX or self._opened_bytes > OPENED_BYTES_MAX:
            _, oldest = self._opened.popitem(last=False)
            self._opened_bytes -= len(oldest.envelope)

    # ── Out ──

    def packet_for(self, to: NodeId, packet: Packet, now_ms: int) -> tuple[Packet, tuple[str, ...]]:
        """The packet as this neighbour may have it now, and the attributes that go in clear beside the sealed ones."""
        if not packet.envelope or packet.header.type.startswith(CONTROL):
            return packet, ()
        known = self._types.get(packet.header.type)
        if known is None or known.keys is None or not packet.view.values:
            return Packet(packet.header, SEALED, packet.envelope), ()
        signed = known.keys.signed
        readable = self._readers.readable(to, signed.type_id, now_ms)
        raw = cached(signed, self.frame_of(packet), packet.view.values, readable)
        clear = _in_clear(signed, packet, readable) if len(raw) > len(packet.envelope) else ()
        return Packet(packet.header, SEALED, raw), clear

    def interest_for_link(self, interest: Interest) -> Interest:
        """The interest as anybody may read it: of a sealed type, only its envelope."""
        known = self._types.get(interest.type)
        if interest.envelope or (known is not None and known.keys is not None):
            return _replaced(interest, UNREAD)
        return interest

    def frame_of(self, packet: Packet) -> Frame:
        """A sealed packet's frame, without a plaintext cache."""
        _, sender_id, moment = packet.header.id
        name = (bytes.fromhex(packet.header.type), sender_id & SIGNED_SENDER - 1, moment >> 20, moment & (1 << 20) - 1)
        known = self._opened.get(name)
        return known.frame if known is not None and known.envelope == packet.envelope else split(packet.envelope)

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            "opened": (len(self._opened), OPENED_MAX),
            "opened_bytes": (self._opened_bytes, OPENED_BYTES_MAX),
            "filters": (len(self._interests), INTERESTS_MAX),
            "filter_bytes": (self._interest_bytes, INTEREST_BYTES_MAX),
        }


def _bare(frame: Frame) -> Frame:
    """The frame without its plaintext cache, not parsed a second time."""
    if frame.cache_end == frame.body_end:
        return frame
    return frame._replace(raw=uncached(frame), flags=frame.flags & ~FLAG_CACHE, cache_end=frame.body_end)


def plain_digest(header: Header, values: Mapping[str, Value]) -> bytes:
    """What the origin of an event that is not sealed signs: all of it but the digest in its id."""
    return sha256(b"tidings/plain/1\0" + encoded((header.type, header.id.origin, header.id.seq, values))).digest()


def plain_digests(type: str, origin: NodeId, first_seq: int, events: Iterable[Mapping[str, Value]]) -> list[bytes]:
    """The same for events of one type that are numbered without gaps."""
    return [
        sha256(b"tidings/plain/1\0" + encoded((type, origin, seq, values))).digest()
        for seq, values in enumerate(events, first_seq)
    ]


def mark_of(digest: bytes) -> int:
    """What stands in an event's id for its content."""
    return MARKED | int.from_bytes(digest[:8], "big") >> 3


def size_about(values: Mapping[str, Value]) -> int:
    """About how many bytes values take: strings and bytes their length, arrays and maps their items, all else eight."""
    return _size_about(values.values())


def _size_about(values: Collection[Value | None]) -> int:
    size = 8 * len(values)
    for value in values:
        if value.__class__ is str:
            size += len(value) if value.isascii() else len(value.encode(errors="surrogatepass"))
        elif value.__class__ is bytes:
            size += len(value)
        elif isinstance(value, tuple):
            size += _size_about(value)
        elif isinstance(value, dict):
            size += _size_about(value.keys()) + _size_about(value.values())
    return size


def _replaced(interest: Interest, wanted: object) -> Interest:
    return Interest(interest.id, interest.type, wanted, interest.envelope)  # type: ignore[arg-type]


def _in_clear(signed: SignedType, packet: Packet, readable: frozenset[bytes] | None) -> tuple[str, ...]:
    return tuple(name for name in packet.view.values if readable is None or signed.attr_ids[name] in readable)
