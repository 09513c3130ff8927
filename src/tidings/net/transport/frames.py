"""Frames: what is said on a live link, between brokers and between a client and its broker.

A frame is four bytes of length, big-endian, and then one msgpack array whose first element says what
it is. Everything here comes from others: a length over the limit, bytes that are no frame, or a frame
that is not for this stage of the conversation end the connection with a PeerError.

    handshake   Hello, Creds, Accepted                              both ways, once
    brokers     Said, Standing                                      messages of the overlay; whether one is part of it
                Wants, Lists, Asks, Again, Confirms                 what is owed to durable subscribers (see `owed`)
                Trace → Traced                                      for whoever asks where an event went
    clients     Publish → Published                                 each request carries a ticket, and so does its answer
                Subscribe → Subscribed, Unsubscribe → Done, Query → Answer
                Notice, Acknowledge, Reject                         a subscription's stream
                Refused                                             instead of any answer
    both        Ping, Pong, Bye
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from tidings.errors import Denied, ErrorCode, FilterError, InputError, PeerError, SetupError, TidingsError
from tidings.events import Timestamp
from tidings.overlay import EventId, Peer

VERSION = 1
FRAME_BYTES_MAX = 4 << 20  # Four messages of the largest kind; batches stop filling at a quarter of it.
HELLO_BYTES_MAX = 1 << 20  # Before a peer has proven who it is; two tokens of the largest kind fit.
BATCH_BYTES = (
    1 << 18
)  # When a batch of messages or events is full: large enough to amortise, small enough to share a link.
READ_BYTES = 1 << 18
_LENGTH = struct.Struct(">I")


class Frame(msgspec.Struct, frozen=True, tag=True, tag_field="frame", array_like=True, gc=False):
    """The root of all frames. Fields may be added at the end, with a default, and never removed."""


class Hello(Frame, frozen=True):
    """Who I say I am; proven by TLS and by Creds. A client has no address."""

    versions: tuple[int, ...]
    role: str  # "broker" or "client"
    domain: str
    key: bytes
    nonce: bytes
    name: str = ""
    me: Peer | None = None
    protocol: str = ""


class Creds(Frame, frozen=True):
    """My rights, and a signature that binds them to this very connection (see `handshake`)."""

    tokens: tuple[bytes, ...]
    signature: bytes
    counter: int = 0


class Accepted(Frame, frozen=True):
    """How many of the tokens hold, and why the others do not."""

    accepted: int
    refused: tuple[str, ...] = ()


class Said(Frame, frozen=True):
    """Messages of the overlay, each as its protocol writes it."""

    messages: tuple[bytes, ...]


class Wants(Frame, frozen=True):
    """All durable subscriptions of one broker, signed by it (see `owed`); others pass it on as it is."""

    body: bytes
    key: bytes
    signature: bytes


class Versions(Frame, frozen=True):
    """Whose durable subscriptions I know, in which version; tell me newer ones."""

    known: dict[str, int]


class Listed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One event owed: its number in the stream from its origin to one broker, and its id."""

    number: int
    event: EventId
    only_for: str = ""


class Lists(Frame, frozen=True):
    """I owe you these, in this order. `first` is the lowest number you have not confirmed, as far as I know.

    Numbers belong to a journal: whoever has lost its own begins with another.
    """

    journal: bytes
    first: int
    listed: tuple[Listed, ...]


class Asks(Frame, frozen=True):
    """These numbers of yours have not come; send them yourself. Everything below `confirmed` is safe with me."""

    confirmed: int
    numbers: tuple[int, ...]


class Again(Frame, frozen=True):
    """What you asked for."""

    number: int
    packet: bytes


class Confirms(Frame, frozen=True):
    """Everything you owed me below this number is safe with me."""

    confirmed: int


class Standing(Frame, frozen=True):
    """Whether I am part of the network, so that you can come in through me."""

    is_joined: bool


class Trace(Frame, frozen=True):
    """What did you do with this event, and those to whom you sent it?"""

    ticket: int
    event: EventId
    up: bool = False
    """Also the broker you had it from, and all behind it."""
    wait_s: float = 0.0
    """So long I can wait for your answer; without time, speak for yourself."""


class SentTo(msgspec.Struct, frozen=True, gc=False):
    """To whom an event went, and which attributes went in clear beside the sealed ones."""

    to: str
    in_clear: tuple[str, ...]


class ToldTo(msgspec.Struct, frozen=True, gc=False):
    """A subscription that was told of an event."""

    client: str
    subscription: str


class Missed(msgspec.Struct, frozen=True, gc=False):
    """A subscription that was not told of an event."""

    client: str
    why: str


class HopSaid(msgspec.Struct, frozen=True, gc=False):
    """What one broker says that it did with an event."""

    broker: str
    domain: str
    type: str
    ago_s: float
    """When it had the event, before the answer was sent."""
    came_from: str
    """Empty where the event was published."""
    readable: tuple[str, ...]
    hidden: tuple[str, ...]
    sent: tuple[SentTo, ...]
    refused: str = ""
    told: tuple[ToldTo, ...] = ()
    missed: tuple[Missed, ...] = ()


class Traced(Frame, frozen=True):
    """What I did, and what those say whom I asked; nothing if I do not remember the event."""

    ticket: int
    hops: tuple[HopSaid, ...]
    took_s: float = 0.0
    """From your question to this answer, by my clock."""


class Publish(Frame, frozen=True):
    """Events to publish, in this order, each as a name that its publisher gives it, and its values.

    The same name again, from the same publisher, is the same event again: it is not published twice.
    """

    ticket: int
    type: str
    events: tuple[tuple[str, dict[str, Any]], ...]


class Published(Frame, frozen=True):
    """They are on disk, and will reach whoever wants them."""

    ticket: int
    ids: tuple[EventId, ...]


class Subscribe(Frame, frozen=True):
    """Send me events of a type for which the condition is TRUE. With a name, keep them for me while I am away."""

    ticket: int
    type: str
    condition: str
    durable: str = ""
    since_us: int = -1
    """Also those published from then on, as far as they are kept. Negative: from now on."""
    after: int = -1
    """The last position that the subscriber has dealt with, if it keeps book itself."""


class Subscribed(Frame, frozen=True):
    """The subscription is in place; its stream has this number on this connection."""

    ticket: int
    stream: int
    after: int = 0
    """The last position acknowledged; notices begin behind it."""


class Unsubscribe(Frame, frozen=True):
    """End a stream; with `forget`, a durable subscription is given up for good."""

    ticket: int
    stream: int
    forget: bool = False


class Told(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An event as a subscriber sees it: its id, its type, when its broker took it in, and what it may see of it."""

    event: EventId
    type: str
    at_us: int
    values: dict[str, Any]


class Notice(Frame, frozen=True):
    """An event for one stream. `position` is what a durable subscriber acknowledges; 0 needs none.

    `missed` says how many this stream has lost just before because its reader was too slow.
    """

    stream: int
    position: int
    told: msgspec.Raw
    missed: int = 0


class Acknowledge(Frame, frozen=True):
    """Everything up to this position is done with and never comes again."""

    stream: int
    position: int


class Reject(Frame, frozen=True):
    """The event at this position cannot be used: put it aside, with the reason, and go on."""

    ticket: int
    stream: int
    position: int
    why: str


class Query(Frame, frozen=True):
    """Tell me something about yourself: status, trace, dead letters; or drain."""

    ticket: int
    what: str
    options: dict[str, Any] = {}


class Answer(Frame, frozen=True):
    """Rows, as JSON would have them; `more` if further answers follow for this ticket."""

    ticket: int
    rows: tuple[dict[str, Any], ...] = ()


class Done(Frame, frozen=True):
    """What was asked has been done."""

    ticket: int


class Refused(Frame, frozen=True):
    """What was asked has not been done. `kind` is the class of the error, `why` its text, `code` its `ErrorCode`."""

    ticket: int
    kind: str
    why: str
    code: str = ""


class Ping(Frame, frozen=True):
    """Are you there?"""


class Pong(Frame, frozen=True):
    """I am."""


class Bye(Frame, frozen=True):
    """I close this connection, because."""

    why: str


Handshake: TypeAlias = Hello | Creds | Accepted | Refused | Bye
Always: TypeAlias = Ping | Pong | Bye
FromBroker: TypeAlias = Said | Wants | Versions | Lists | Asks | Again | Confirms | Standing | Trace | Traced | Always
FromClient: TypeAlias = Publish | Subscribe | Unsubscribe | Acknowledge | Reject | Query | Ping | Pong | Bye
ToClient: TypeAlias = Published | Subscribed | Notice | Done | Answer | Refused | Always


def _to_extension(value: object) -> object:
    if isinstance(value, Timestamp):
        return msgspec.msgpack.Ext(_TIMESTAMP_CODE, _I64.pack(value))
    raise AssertionError(f"a frame holds {value!r}, which has no bytes")


def _from_extension(code: int, data: memoryview) -> object:
    if code != _TIMESTAMP_CODE or len(data) != _I64.size:
        raise ValueError(f"unknown extension {code}")
    return Timestamp(_I64.unpack(data)[0])


_TIMESTAMP_CODE = 1  # As in the overlay's messages.
_I64 = struct.Struct(">q")
_ENCODER = msgspec.msgpack.Encoder(enc_hook=_to_extension)


_TOLD = msgspec.msgpack.Decoder(Told, ext_hook=_from_extension)


_VALUES = msgspec.msgpack.Decoder(dict[str, Any], ext_hook=_from_extension)


def encode_values(values: Mapping[str, Any]) -> bytes:
    """An event's values, for keeping."""
    return _ENCODER.encode(dict(values))


def decode_values(raw: bytes) -> dict[str, Any]:
    """What `encode_values` wrote."""
    return _VALUES.decode(raw)


def encode_told(told: Told) -> bytes:
    """The bytes of what a subscriber is told, made once for all who are told the same."""
    return _ENCODER.encode(told)


def read_told(raw: bytes | msgspec.Raw) -> Told:
    """What a subscriber is told; raises PeerError for anything else."""
    try:
        return _TOLD.decode(raw)
    except (msgspec.MsgspecError, InputError, ValueError) as wrong:
        raise PeerError(f"notice: {str(wrong)[:200]}") from None


def encoded(frame: Frame) -> bytes:
    """A frame with its length before it; ours are never over the limit."""
    body = _ENCODER.encode(frame)
    assert len(body) <= FRAME_BYTES_MAX, f"{type(frame).__name__} takes {len(body)} bytes"
    return _LENGTH.pack(len(body)) + body


class Reader:
    """Frames from a stream. `expect` says which kinds may come now."""

    def __init__(self, stream: asyncio.StreamReader) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._decoder: msgspec.msgpack.Decoder[Any] = _DECODERS["handshake"]
        self._bytes_max = HELLO_BYTES_MAX

    def expect(self, stage: str) -> None:
        """From now on frames of this stage: "broker" (from a broker), "client", or "to client"."""
        self._decoder, self._bytes_max = _DECODERS[stage], FRAME_BYTES_MAX

    async def some(self, at_most: int = 1 << 30) -> list[Frame | None]:
        """The frames that have come, waiting for one; None is the last of them where the stream has ended.

        Raises PeerError for anything that is no frame of this stage. Keeps less than one frame in hand,
        and as long as nobody calls it reads no further, so that the sender feels it.
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

    def _complete(self, at_most: int) -> list[Frame | None]:
        found: list[Frame | None] = []
        buffer, at, end = self._buffer, 0, len(self._buffer)
        while len(found) < at_most and end - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(buffer, at)
            if size > self._bytes_max:
                raise PeerError(f"frame: {size} bytes; at most {self._bytes_max} are allowed")
            if end - at - _LENGTH.size < size:
                break
            at += _LENGTH.size
            found.append(self._decoded(bytes(buffer[at : at + size])))
            at += size
        del buffer[:at]
        return found

    def _decoded(self, raw: bytes) -> Frame:
        try:
            frame: Frame = self._decoder.decode(raw)
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


def refusal(ticket: int, error: TidingsError) -> Refused:
    """An error as it travels: its class by name, so that it is the same one at the other end."""
    return Refused(ticket, _kind_of(error), str(error)[:4096], error.code.value)


def as_error(refused: Refused) -> TidingsError:
    """The error that a refusal stands for."""
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
