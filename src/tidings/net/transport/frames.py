"""The frames of a live link, between two brokers and between a client and its broker.

A frame is four bytes of length, big-endian, and then one msgpack array whose first element is the tag of the
frame. Everything here comes from others: a length over the limit, bytes that do not decode, or a frame
that does not belong to this stage of the connection close it with a PeerError.

    handshake   Hello, SignedTokens, Accepted                       both ways, once
    brokers     OverlayMessages, JoinStatus                         messages of the routing protocol; whether the broker has joined
                Superseded                                          to an earlier copy of a restored broker (see `copies`)
                InterestAdvertisement, InterestVersions,            reliable delivery to durable subscribers (see `delivery`)
                Announce, Nack, Retransmit, Ack, Rewind
                DirectEvents, DirectRequest                         spot checks for live subscribers, and the way round
                TraceRequest → TraceReply                           for `tidings trace`
    clients     PublishBatch → BatchPublished                       since version 3: events of one type as columns
                EventBatchDelivery                                  likewise, for the live subscriptions of a connection
                Publish → Published                                 each request carries a ticket, and so does its reply
                Subscribe → Subscribed, Unsubscribe → RequestDone, Query → Answer
                EventDelivery, Acknowledge, Reject                  the stream of a subscription
                RequestRefused                                      instead of any reply
    both        Ping, Pong, Goodbye

Some tags on the wire are older than the class names and stay (`tag="…"`).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from tidings.delivery import (
    Ack,
    Announce,
    DeliveryMessage,
    DirectEvents,
    DirectRequest,
    InterestAdvertisement,
    InterestVersions,
    Nack,
    Retransmit,
    Rewind,
)
from tidings.errors import (
    Denied,
    ErrorCode,
    FilterError,
    InputError,
    PeerError,
    RateLimited,
    SetupError,
    TidingsError,
)
from tidings.events import EventColumns, from_extension, from_message, to_extension
from tidings.net.transport.copies import ORIGINAL, CopyProof
from tidings.overlay import EventId, Peer

# What a connection speaks: the highest version that both ends have. Between a client and its broker 1 and 2 are alike;
# since 3 either may send many events as columns.
# Brokers of version 1 (0.1) do not sign what they say of themselves, which no broker accepts any more.
VERSIONS = (1, 2, 3)
IN_COLUMNS = 3
BETWEEN_BROKERS = (2,)
FRAME_BYTES_MAX = 4 << 20  # Four messages of the largest kind; batches stop filling at a quarter of it.
HELLO_BYTES_MAX = 1 << 20  # Before a peer is authenticated; two tokens of the largest kind fit.
# When a batch of messages or events is full: large enough to amortise, small enough to share a link.
BATCH_BYTES = 1 << 18
READ_BYTES = 1 << 18
_LENGTH = struct.Struct(">I")


class LinkFrame(msgspec.Struct, frozen=True, tag=True, tag_field="frame", array_like=True, gc=False):
    """The root of all frames. Fields may be added at the end, with a default, and never removed."""


class Hello(LinkFrame, frozen=True):
    """Who the sender claims to be; TLS and `SignedTokens` prove it. A client has no address."""

    versions: tuple[int, ...]
    role: str  # "broker" or "client"
    domain: str
    key: bytes
    nonce: bytes
    name: str = ""
    me: Peer | None = None
    protocol: str = ""
    copy: CopyProof = ORIGINAL


class SignedTokens(LinkFrame, frozen=True, tag="Creds"):
    """The sender's capability tokens, and a signature that binds them to this connection (see `handshake`)."""

    tokens: tuple[bytes, ...]
    signature: bytes
    counter: int = 0


class Accepted(LinkFrame, frozen=True):
    """How many of the tokens are valid, and why the others are not."""

    accepted: int
    refused: tuple[str, ...] = ()


class OverlayMessages(LinkFrame, frozen=True, tag="Said"):
    """Messages of the routing protocol, each encoded by its own codec."""

    messages: tuple[bytes, ...]


class JoinStatus(LinkFrame, frozen=True, tag="Standing"):
    """Whether the sender has joined the overlay, so that the receiver can join through it."""

    is_joined: bool


class Superseded(LinkFrame, frozen=True):
    """The receiver is an earlier copy of a broker that was restored from a backup; the proof is its own signature."""

    by: CopyProof


class RevocationSummary(LinkFrame, frozen=True):
    """A digest of each part of the revocations that the sender knows; see `security.rights.revocation`."""

    parts: tuple[bytes, ...]


class SignedRevocations(LinkFrame, frozen=True, tag="Revocations"):
    """Records that the receiver may lack, each signed by whoever revokes."""

    records: tuple[bytes, ...]


class RevocationsHeard(LinkFrame, frozen=True):
    """The ids of revocations that the sender has put in force."""

    ids: tuple[str, ...]


class Padding(LinkFrame, frozen=True):
    """Nothing: it hides how much is said on a link (see `shaping`)."""

    filler: bytes


class OnlineAnswers(LinkFrame, frozen=True):
    """Which rights with an online test hold, each list signed by whoever answers for them."""

    answers: tuple[bytes, ...]


class TraceRequest(LinkFrame, frozen=True, tag="Trace"):
    """Asks a broker what it did with an event, and what the brokers did that it forwarded the event to."""

    ticket: int
    event: EventId
    up: bool = False
    """Also ask the broker that the event came from, and all behind it."""
    wait_s: float = 0.0
    """How long the sender waits for the reply; without time, the receiver asks nobody else."""


class SentTo(msgspec.Struct, frozen=True, gc=False):
    """A broker that an event was forwarded to, and the attributes that went in clear beside the sealed ones."""

    to: str
    in_clear: tuple[str, ...]


class DeliveredTo(msgspec.Struct, frozen=True, gc=False):
    """A subscription that an event was delivered to."""

    client: str
    subscription: str


class NotDelivered(msgspec.Struct, frozen=True, gc=False):
    """A subscription that an event was not delivered to, and why."""

    client: str
    why: str


class HopReport(msgspec.Struct, frozen=True, gc=False):
    """What one broker reports that it did with an event."""

    broker: str
    domain: str
    type: str
    ago_s: float
    """How long before the reply it received the event."""
    came_from: str
    """Empty where the event was published."""
    readable: tuple[str, ...]
    hidden: tuple[str, ...]
    sent: tuple[SentTo, ...]
    refused: str = ""
    told: tuple[DeliveredTo, ...] = ()
    missed: tuple[NotDelivered, ...] = ()


class TraceReply(LinkFrame, frozen=True, tag="Traced"):
    """The reports of the sender and of the brokers it has asked; none if it does not remember the event."""

    ticket: int
    hops: tuple[HopReport, ...]
    took_s: float = 0.0
    """From the request to this reply, by the sender's clock."""


class Publish(LinkFrame, frozen=True):
    """Events to publish, in this order, each with an idempotency key chosen by its publisher, and its values.

    The broker publishes an event once, however often the same publisher sends the same key.
    """

    ticket: int
    type: str
    events: tuple[tuple[str, dict[str, Any]], ...]


class Published(LinkFrame, frozen=True):
    """The events are on disk, and will reach every matching durable subscriber."""

    ticket: int
    ids: tuple[EventId, ...]


class PublishBatch(LinkFrame, frozen=True):
    """Events of one type to publish, in this order, under one idempotency key."""

    ticket: int
    type: str
    name: str
    columns: EventColumns


class BatchPublished(LinkFrame, frozen=True):
    """The events of a batch are on disk, as in `Published`: these are their ids, all of one origin."""

    ticket: int
    origin: str
    incarnations: bytes
    """Of each event, as 8 bytes in little-endian order."""
    numbers: bytes
    """The numbers of the events, in the same form."""


class Subscribe(LinkFrame, frozen=True):
    """Requests the events of a type for which the condition is TRUE. A subscription with a name in `durable` is durable."""

    ticket: int
    type: str
    condition: str
    durable: str = ""
    since_us: int = -1
    """Also events published since then, as far as retention reaches. Negative: from now on."""
    after: int = -1
    """The last position that the subscriber has processed, if it tracks that itself."""


class Subscribed(LinkFrame, frozen=True):
    """The subscription is in place; its stream has this number on this connection."""

    ticket: int
    stream: int
    after: int = 0
    """The last position acknowledged; deliveries begin after it."""


class Unsubscribe(LinkFrame, frozen=True):
    """Ends a stream; with `forget`, the broker deletes the durable subscription."""

    ticket: int
    stream: int
    forget: bool = False


class DeliveredEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event as a subscriber sees it: its id, its type, when its broker received it, and the values it may see."""

    event: EventId
    type: str
    at_us: int
    values: dict[str, Any]


class EventDelivery(LinkFrame, frozen=True, tag="Notice"):
    """An event for one stream. A durable subscriber acknowledges its `position`; 0 needs no acknowledgement.

    `missed` is how many events this stream has just lost because its reader was too slow.
    """

    stream: int
    position: int
    event: msgspec.Raw
    """A `DeliveredEvent`, encoded."""
    missed: int = 0


class EventBatchDelivery(LinkFrame, frozen=True):
    """Events that were published together, as all their readers on this connection see them, for live subscriptions.

    Each pair of a row and a stream is one delivery; numbers are in little-endian order.
    """

    type: str
    at_us: int
    origin: str
    incarnations: bytes
    numbers: bytes
    columns: EventColumns
    rows: bytes
    """Of each delivery the row, as 4 bytes."""
    streams: bytes
    """Of each delivery the stream, likewise."""
    missed: tuple[tuple[int, int], ...] = ()
    """Streams, and how many events each has lost since its last delivery."""


class Acknowledge(LinkFrame, frozen=True):
    """The subscriber has processed everything up to this position; it is not delivered again."""

    stream: int
    position: int


class Reject(LinkFrame, frozen=True):
    """The subscriber cannot use the event at this position; the broker makes it a dead letter, with the reason."""

    ticket: int
    stream: int
    position: int
    why: str


class Query(LinkFrame, frozen=True):
    """Asks the broker for its status, a trace or dead letters, or to drain."""

    ticket: int
    what: str
    options: dict[str, Any] = {}


class Answer(LinkFrame, frozen=True):
    """The rows that answer a query, as JSON would have them."""

    ticket: int
    rows: tuple[dict[str, Any], ...] = ()


class RequestDone(LinkFrame, frozen=True, tag="Done"):
    """The request has been carried out."""

    ticket: int


class RequestRefused(LinkFrame, frozen=True, tag="Refused"):
    """The request has not been carried out. `kind` is the class of the error, `why` its text, `code` its `ErrorCode`."""

    ticket: int
    kind: str
    why: str
    code: str = ""
    retry_after_s: float = 0.0
    """When the same request can be made again, if it came too fast."""


class Ping(LinkFrame, frozen=True):
    """Asks for a `Pong`, to show that the connection is alive."""


class Pong(LinkFrame, frozen=True):
    """The reply to a `Ping`."""


class Goodbye(LinkFrame, frozen=True, tag="Bye"):
    """The sender closes this connection, and why."""

    why: str


AnyFrame: TypeAlias = LinkFrame | DeliveryMessage
Handshake: TypeAlias = Hello | SignedTokens | Accepted | RequestRefused | Goodbye
Always: TypeAlias = Ping | Pong | Goodbye
FromBroker: TypeAlias = (
    OverlayMessages
    | InterestAdvertisement
    | InterestVersions
    | Announce
    | Nack
    | Retransmit
    | Ack
    | Rewind
    | DirectEvents
    | DirectRequest
    | JoinStatus
    | Superseded
    | TraceRequest
    | TraceReply
    | RevocationSummary
    | SignedRevocations
    | RevocationsHeard
    | OnlineAnswers
    | Padding
    | Always
)
FromClient: TypeAlias = (
    Publish | PublishBatch | Subscribe | Unsubscribe | Acknowledge | Reject | Query | Ping | Pong | Goodbye
)
ToClient: TypeAlias = (
    Published
    | BatchPublished
    | Subscribed
    | EventDelivery
    | EventBatchDelivery
    | RequestDone
    | Answer
    | RequestRefused
    | Always
)


def _to_extension(value: object) -> object:
    found = to_extension(value)
    assert found is not None, f"a frame holds {value!r}, which has no bytes"
    return msgspec.msgpack.Ext(*found)


def _from_extension(code: int, data: memoryview) -> object:
    return from_extension(code, bytes(data))


ENCODER = msgspec.msgpack.Encoder(enc_hook=_to_extension)


_EVENT = msgspec.msgpack.Decoder(DeliveredEvent, ext_hook=_from_extension)


_VALUES = msgspec.msgpack.Decoder(dict[str, Any], ext_hook=_from_extension)


def encode_values(values: Mapping[str, Any]) -> bytes:
    """The bytes of an event's values, for storage."""
    return ENCODER.encode(dict(values))


def decode_values(raw: bytes) -> dict[str, Any]:
    """What `encode_values` wrote."""
    return _VALUES.decode(raw)


def encode_event(event: DeliveredEvent) -> bytes:
    """The bytes of an event, encoded once for all subscribers that see the same values."""
    return ENCODER.encode(event)


def read_event(raw: bytes | msgspec.Raw) -> DeliveredEvent:
    """The event in a `EventDelivery`; raises PeerError for anything else."""
    try:
        event = _EVENT.decode(raw)
        for name, value in event.values.items():
            if value.__class__ in (list, dict):
                event.values[name] = from_message(value)
        return event
    except (msgspec.MsgspecError, InputError, ValueError) as wrong:
        raise PeerError(f"delivery: {str(wrong)[:200]}") from None


def encoded(frame: AnyFrame) -> bytes:
    """The bytes of a frame, length first; a frame of our own is never over the limit."""
    body = ENCODER.encode(frame)
    assert len(body) <= FRAME_BYTES_MAX, f"{type(frame).__name__} takes {len(body)} bytes"
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Reads frames from a stream; `expect` sets which kinds are accepted."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._decoder: msgspec.msgpack.Decoder[Any] = _DECODERS["handshake"]
        self._bytes_max = HELLO_BYTES_MAX

    def expect(self, stage: str) -> None:
        """Accept frames of this stage from now on: "broker" (from a broker), "client", or "to client"."""
        self._decoder, self._bytes_max = _DECODERS[stage], FRAME_BYTES_MAX

    async def some(self, at_most: int = 1 << 30) -> list[AnyFrame | None]:
        """The frames that have arrived, waiting for at least one; a None at the end means that the stream has ended.

        Raises PeerError for anything that is not a frame of this stage. Buffers less than one frame and reads only
        when called, so that TCP slows the sender down.
        """
        found = self._complete(at_most)
        while not found:
            try:
                chunk = await self._stream.read(READ_BYTES)
            except (ConnectionError, OSError):
                chunk = b""
            if not chunk:
                return [None]
            self._buffer += chunk
            found = self._complete(at_most)
        return found

    def _complete(self, at_most: int) -> list[AnyFrame | None]:
        found: list[AnyFrame | None] = []
        buffer, at, end = self._buffer, 0, len(self._buffer)
        while len(found) < at_most and end - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(buffer, at)
            if size > self._bytes_max:
                raise PeerError(f"frame: {size} bytes; at most {self._bytes_max} are allowed")
            if end - at - _LENGTH.size < size:
                break
            at += _LENGTH.size
            found.append(self.decoded(bytes(buffer[at : at + size])))
            at += size
        del buffer[:at]
        return found

    def decoded(self, raw: bytes) -> AnyFrame:
        try:
            frame: AnyFrame = self._decoder.decode(raw)
        except (msgspec.MsgspecError, InputError, ValueError, RecursionError) as wrong:
            raise PeerError(f"frame: {str(wrong)[:200]}") from None
        return frame


_DECODERS: dict[str, msgspec.msgpack.Decoder[Any]] = {
    stage: msgspec.msgpack.Decoder(kinds, ext_hook=_from_extension)
    for stage, kinds in {
        "handshake": Handshake,
        "broker": FromBroker,
        "client": FromClient,
        "to client": ToClient,
    }.items()
}


def refusal(ticket: int, error: TidingsError) -> RequestRefused:
    """An error as a frame: with the name of its class, so that the other end raises the same one."""
    retry_after_s = error.retry_after_s if isinstance(error, RateLimited) else 0.0
    return RequestRefused(ticket, _kind_of(error), str(error)[:4096], error.code.value, retry_after_s)


def as_error(refused: RequestRefused) -> TidingsError:
    """The error in a refusal."""
    if refused.code == ErrorCode.RATE:
        return RateLimited(refused.why, retry_after_s=refused.retry_after_s)
    return _KINDS.get(refused.kind, PeerError)(refused.why, code=ErrorCode.named(refused.code))


_KINDS: dict[str, type[TidingsError]] = {
    "input": InputError,
    "denied": Denied,
    "setup": SetupError,
    "peer": PeerError,
}


def _kind_of(error: TidingsError) -> str:
    match error:
        case Denied():
            return "denied"
        case InputError() | FilterError():
            return "input"
        case SetupError():
            return "setup"
    return "peer"
