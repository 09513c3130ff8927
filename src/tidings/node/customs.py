"""The border: what comes in over a link is opened as far as keys go, what goes out is stripped to what the other may see.

Inside a node a packet has this node's own view, and its envelope never has plaintext beside the
sealed event. On a link the view of a sealed event is empty; the plaintext that this neighbour may
have, at the moment of sending, stands in the envelope's cache. So stripping is not a clean-up that
could be forgotten: nothing goes out that was not put in for this neighbour.

Events of types without protection pass as they are, at the cost of a look-up.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from hashlib import sha256
from random import Random
from typing import Literal, NamedTuple, TypeAlias

from tidings.errors import PeerError
from tidings.events import Value
from tidings.node.filter_encoding import UNREAD
from tidings.node.key_distribution import CONTROL
from tidings.node.neighbours import Neighbourhood
from tidings.node.type_crypto import TypeKeys, check_header
from tidings.node.type_registry import Catalogue
from tidings.overlay import SEALED, Interest, NodeId, Packet
from tidings.security import FLAG_CACHE, CacheTrust, Frame, SignedType, cached, split, uncached

CacheTrustPolicy: TypeAlias = Literal["same-domain", "any-authorised", "verify"]

EVENT_BYTES_MAX = 256 * 1024  # The values of an event; sealed and with plaintext beside it, still within a message.
ENVELOPE_BYTES_MAX = EVENT_BYTES_MAX + 256 * 1024  # 4096 attributes take 60 bytes each to be sealed by themselves.
OPENED_MAX = 4096  # Events kept opened, so that a second copy costs no decryption.
OPENED_BYTES_MAX = 64 * 2**20
INTERESTS_MAX = 16_384  # Filters kept opened; what a router keeps tells all of them again and again.
INTEREST_BYTES_MAX = 64 * 2**20
COMPARED = 0.01  # Of caches from other organisations, how many are compared with what is sealed.


class _Opened(NamedTuple):
    envelope: bytes
    packet: Packet
    frame: Frame
    changes: int


class Customs:
    """One node's border."""

    def __init__(self, types: Catalogue, near: Neighbourhood, trust: CacheTrustPolicy, rng: Random) -> None:
        self._types, self._near, self._trust, self._rng = types, near, trust, rng
        self._opened: OrderedDict[tuple[bytes, int, int, int], _Opened] = OrderedDict()
        self._opened_bytes = 0
        self._interests: OrderedDict[tuple[bytes, int], tuple[Interest, int]] = OrderedDict()
        self._interest_bytes = 0
        self.decrypted = 0

    # ── In ──

    def take_packet(self, sender: NodeId, packet: Packet, now_ms: int) -> Packet:
        """The packet with this node's view of it; raises PeerError if anything that can be checked is wrong."""
        if len(packet.envelope) > ENVELOPE_BYTES_MAX or size_about(packet.view.values) > EVENT_BYTES_MAX:
            raise PeerError(f"size: an event has at most {EVENT_BYTES_MAX} bytes of values")
        known = self._types.get(packet.header.type)
        if known is not None and known.keys is not None:
            return self._open(known.keys, sender, packet, now_ms)
        if not packet.envelope or packet.header.type.startswith(CONTROL):
            return packet
        if known is not None:
            raise PeerError(f"envelope: events of {known.event_type.name} have none")
        frame = split(packet.envelope)
        check_header(packet.header, frame)
        return Packet(packet.header, SEALED, uncached(frame))

    def take_interest(self, interest: Interest, now_ms: int) -> Interest:
        """The interest with this node's reading of it; raises PeerError or Denied for one without a right."""
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
        """Rights have changed: every filter is judged anew when it next comes."""
        self._interests.clear()
        self._interest_bytes = 0

    def own(self, keys: TypeKeys, packet: Packet, frame: Frame) -> None:
        """This node sealed the packet itself, as this frame, and need not open it."""
        self._remember(packet, frame, keys.keyring.changes)

    def _open(self, keys: TypeKeys, sender: NodeId, packet: Packet, now_ms: int) -> Packet:
        if not packet.envelope:
            raise PeerError(f"envelope: events of {keys.signed.event_type.name} are sealed; this one is not")
        frame = split(packet.envelope)
        check_header(packet.header, frame)
        bare = _bare(frame)
        known = self._opened.get(frame.event_id)
        if known is not None and known.envelope == bare.raw and known.changes == keys.keyring.changes:
            return known.packet if known.packet.header == packet.header else _with_head(known.packet, packet)
        view = keys.read(frame, now_ms, self._believes(sender, keys, frame, now_ms))
        self.decrypted += 1
        opened = Packet(packet.header, view, bare.raw)
        self._remember(opened, bare, keys.keyring.changes)
        return opened

    def _believes(self, sender: NodeId, keys: TypeKeys, frame: Frame, now_ms: int) -> CacheTrust:
        """What the plaintext that this neighbour sent along is worth."""
        if frame.cache_end == frame.body_end or not sender:
            return "ignore"
        if self._trust == "verify":
            return "verify"
        if self._near.is_colleague(sender):
            return "trust"
        if self._trust == "same-domain":
            return "ignore"
        readable = self._near.readable(sender, keys.signed.type_id, now_ms)
        if readable is not None and any(id not in readable for id in frame.cache):
            return "ignore"
        return "verify" if self._rng.random() < COMPARED else "trust"

    def _remember(self, packet: Packet, frame: Frame, changes: int) -> None:
        old = self._opened.pop(frame.event_id, None)
        self._opened_bytes += len(frame.raw) - (len(old.envelope) if old else 0)
        self._opened[frame.event_id] = _Opened(packet.envelope, packet, frame, changes)
        while len(self._opened) > OPENED_MAX or self._opened_bytes > OPENED_BYTES_MAX:
            _, oldest = self._opened.popitem(last=False)
            self._opened_bytes -= len(oldest.envelope)

    # ── Out ──

    def give_packet(
        self, to: NodeId, packet: Packet, now_ms: int, tell: Callable[[Packet, tuple[str, ...]], None]
    ) -> Packet:
        """The packet as this neighbour may have it now; `tell` hears which attributes went in clear."""
        if not packet.envelope or packet.header.type.startswith(CONTROL):
            tell(packet, ())
            return packet
        known = self._types.get(packet.header.type)
        if known is None or known.keys is None or not packet.view.values:
            tell(packet, ())
            return Packet(packet.header, SEALED, packet.envelope)
        signed = known.keys.signed
        readable = self._near.readable(to, signed.type_id, now_ms)
        raw = cached(signed, self._frame_of(packet), packet.view.values, readable)
        tell(packet, _shown(signed, packet, readable) if len(raw) > len(packet.envelope) else ())
        return Packet(packet.header, SEALED, raw)

    def give_interest(self, interest: Interest) -> Interest:
        """The interest as it may be read by anybody: of a sealed type, only its envelope."""
        known = self._types.get(interest.type)
        if interest.envelope or (known is not None and known.keys is not None):
            return _replaced(interest, UNREAD)
        return interest

    def _frame_of(self, packet: Packet) -> Frame:
        _, sender_id, moment = packet.header.id
        name = (bytes.fromhex(packet.header.type), sender_id, moment >> 20, moment & (1 << 20) - 1)
        known = self._opened.get(name)
        return known.frame if known is not None and known.envelope == packet.envelope else split(packet.envelope)

    def frame_of(self, packet: Packet) -> Frame:
        """A sealed packet's frame, without plaintext."""
        return self._frame_of(packet)

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            "opened": (len(self._opened), OPENED_MAX),
            "opened_bytes": (self._opened_bytes, OPENED_BYTES_MAX),
            "filters": (len(self._interests), INTERESTS_MAX),
            "filter_bytes": (self._interest_bytes, INTEREST_BYTES_MAX),
        }


def _bare(frame: Frame) -> Frame:
    """The frame without plaintext, not taken apart a second time."""
    if frame.cache_end == frame.body_end:
        return frame
    return frame._replace(raw=uncached(frame), flags=frame.flags & ~FLAG_CACHE, cache_end=frame.body_end)


def size_about(values: Mapping[str, Value]) -> int:
    """How many bytes values take: texts and bytes as long as they are, all else eight."""
    size = 8 * len(values)
    for value in values.values():
        if value.__class__ is str:
            size += len(value) if value.isascii() else len(value.encode(errors="surrogatepass"))
        elif value.__class__ is bytes:
            size += len(value)
    return size


def _replaced(interest: Interest, wanted: object) -> Interest:
    return Interest(interest.id, interest.type, wanted, interest.envelope)  # type: ignore[arg-type]


def _with_head(known: Packet, packet: Packet) -> Packet:
    return Packet(packet.header, known.view, known.envelope)


def _shown(signed: SignedType, packet: Packet, readable: frozenset[bytes] | None) -> tuple[str, ...]:
    return tuple(name for name in packet.view.values if readable is None or signed.attr_ids[name] in readable)
