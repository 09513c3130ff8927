"""What crosses a link: messages, and the three things they carry.

    Peer      who a node is and where it is reached
    Packet    an event on its way: a header all may read, a view of what this node may read, the sealed envelope
    Interest  a subscription on its way: likewise (see `interest`)

A message is a frozen msgspec struct derived from `Message`; its class name is its tag on
the wire. A protocol lists its messages as a union and a `Codec` turns them into bytes and
back. Bytes come from others, so decoding raises PeerError for whatever is not exactly one
of the protocol's messages within the limits.

Two things happen to a message between a router and its link, and both find what they
need wherever a protocol has put it: `rewritten` replaces packets and interests (the node
gives each neighbour only the plaintext it may have) and `peers_in` lists the peers a
message introduces (the live driver keeps their addresses).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec

from tidings.errors import ErrorCode, InputError, PeerError
from tidings.events import from_extension, to_extension
from tidings.filters import View

FRAME_BYTES_MAX = 1 << 20  # A message; the largest events we carry are under 256 KiB.
PART_BYTES = 1 << 18  # Of a list of records, in one message: a condition may have 32 kB, and its seals come on top.

NodeId: TypeAlias = str
T = TypeVar("T")


class EventId(NamedTuple):
    """Identifies an event: the node that published it, that node's incarnation, and a sequence number."""

    origin: NodeId
    incarnation: int
    seq: int


class SubscriptionId(NamedTuple):
    """Identifies a subscription the same way: its node, that node's incarnation, and a sequence number."""

    origin: NodeId
    incarnation: int
    seq: int


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """The root of all messages. Fields may be added at the end, with a default, and never removed.

    `chatter` marks what is sent on schedule whether or not anything happens, such as
    heartbeats: a world with nothing else on its links is quiet.
    """

    chatter: ClassVar[bool] = False


class OriginRecord(msgspec.Struct, frozen=True, array_like=True):
    """Something that a node says about itself and that others pass on.

    Its last field is `seal`, the signature of the node it speaks about: empty in a router's own records, made when they
    are sent, checked before a router sees those of others, and carried along (see `origin_seals`).
    """

    def speaker(self) -> NodeId:
        """The only node that may say this."""
        raise NotImplementedError

    def statement(self) -> tuple[Any, ...]:
        """What the seal covers: all that no other node may change."""
        raise NotImplementedError


class Peer(OriginRecord, frozen=True, array_like=True):
    """A node's identity and address. Each restart without state has a higher incarnation."""

    id: NodeId
    address: str = ""
    incarnation: int = 0
    seal: bytes = b""

    def speaker(self) -> NodeId:
        return self.id

    def statement(self) -> tuple[Any, ...]:
        return self.id, self.address, self.incarnation


class Header(msgspec.Struct, frozen=True, array_like=True):
    """What every relay may read of an event."""

    id: EventId
    type: str


SEALED = View({}, opaque=True)  # What a node without keys sees of an event sealed as a whole.


class Packet(msgspec.Struct, frozen=True, array_like=True):
    """An event on its way. Routers read the header and the view, and never touch the envelope.

    The view is this node's own and changes from hop to hop; header and envelope do not. An event that is not sealed
    may have a signature of its origin; a sealed one has it in its envelope.
    """

    header: Header
    view: View
    envelope: bytes = b""
    signature: bytes = b""


M = TypeVar("M", bound=Message)


class Codec(Generic[M]):
    """Bytes for the messages of one protocol, and messages for bytes."""

    def __init__(self, messages: Any, *, bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(messages, ext_hook=_from_extension)

    def encode(self, message: M) -> bytes:
        """The message's bytes; raises PeerError for a message over the limit: what others have said is in it, too."""
        raw = _ENCODER.encode(message)
        if len(raw) > self.bytes_max:
            name = type(message).__name__
            raise PeerError(f"{name} takes {len(raw)} bytes; at most {self.bytes_max} fit", code=ErrorCode.MESSAGE)
        return raw

    def decode(self, raw: bytes) -> M:
        """The message in `raw`; raises PeerError for anything else."""
        if len(raw) > self.bytes_max:
            why = f"expected a message of at most {self.bytes_max} bytes, got {len(raw)}"
            raise PeerError(why, code=ErrorCode.MESSAGE)
        try:
            return self._decoder.decode(raw)
        except (msgspec.MsgspecError, InputError, ValueError, RecursionError) as wrong:
            raise PeerError(f"expected a message of this protocol: {wrong}", code=ErrorCode.MESSAGE) from None


def in_messages(records: Sequence[T], at_most: int) -> list[tuple[T, ...]]:
    """Records in parts, one for each message: so many at most, and no more than `PART_BYTES` unless it is one."""
    parts: list[tuple[T, ...]] = []
    first = size = 0
    for at, record in enumerate(records):
        more = len(_ENCODER.encode(record))
        if at > first and (at - first >= at_most or size + more > PART_BYTES):
            parts.append(tuple(records[first:at]))
            first, size = at, 0
        size += more
    return [*parts, tuple(records[first:])] if first < len(records) else parts


def size_of(message: Message) -> int:
    """How many bytes the message takes on a link, before framing."""
    return len(_ENCODER.encode(message))


class _MessageNames(dict[type, str]):
    def __missing__(self, kind: type[msgspec.Struct]) -> str:
        self[kind] = name = str(kind.__struct_config__.tag or kind.__name__)
        return name


MESSAGE_NAMES = _MessageNames()  # Bounded by the number of message classes.
"""A message's name in traces and statistics, by its class: its tag on the wire, which outlives the name of its class."""


def rewritten(message: M, change: Callable[[Any], Any], *kinds: type) -> M:
    """`message` with each struct of the given kinds, wherever it stands, replaced by `change` of it.

    What holds none of them is passed through as it is, at the cost of one look-up.
    """
    wanted = frozenset(kinds)
    return _rewrite(message, change, wanted) if _may_hold(type(message), wanted) else message


def peers_in(message: Message) -> list[Peer]:
    """The peers a message introduces, in the order it names them."""
    return list(_peers(message)) if _may_hold(type(message), frozenset({Peer})) else []


def _to_extension(value: object) -> object:
    found = to_extension(value)
    assert found is not None, f"a message holds {value!r}, which has no bytes"
    return msgspec.msgpack.Ext(*found)


def _from_extension(code: int, data: memoryview) -> object:
    return from_extension(code, bytes(data))


def encoded(value: Any) -> bytes:
    """The bytes of a part of a message."""
    return _ENCODER.encode(value)


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_to_extension)


def _rewrite(part: Any, change: Callable[[Any], Any], kinds: frozenset[type]) -> Any:
    if type(part) in kinds:
        return change(part)
    if isinstance(part, msgspec.Struct):
        fields = [(name, getattr(part, name)) for name in part.__struct_fields__]
        fresh = {name: new for name, old in fields if (new := _rewrite(old, change, kinds)) is not old}
        return msgspec.structs.replace(part, **fresh) if fresh else part
    if type(part) in (tuple, list):
        return type(part)(_rewrite(each, change, kinds) for each in part)
    if type(part) is dict:
        return {key: _rewrite(each, change, kinds) for key, each in part.items()}
    return part


def _peers(part: Any) -> Iterator[Peer]:
    if type(part) is Peer:
        yield part
    elif isinstance(part, msgspec.Struct):
        for name in part.__struct_fields__:
            yield from _peers(getattr(part, name))
    elif isinstance(part, tuple | list):
        for each in part:
            yield from _peers(each)
    elif type(part) is dict:
        for each in part.values():
            yield from _peers(each)


def holds_records(message: type) -> bool:
    """Whether messages of this class can have an OriginRecord in them."""
    return _may_hold(message, _RECORDS)


_RECORDS = frozenset({OriginRecord})
_MAY_HOLD: dict[tuple[type, frozenset[type]], bool] = {}  # Bounded by the number of message classes.


def _may_hold(message: type, kinds: frozenset[type]) -> bool:
    """Whether messages of this class can have one of `kinds` in them, judged once from the declared types."""
    known = _MAY_HOLD.get((message, kinds))
    if known is None:
        known = _MAY_HOLD[message, kinds] = any(
            _mentions(t, kinds) for t in _declared(msgspec.inspect.type_info(message))
        )
    return known


def _mentions(declared: msgspec.inspect.Type, kinds: frozenset[type]) -> bool:
    return isinstance(declared, msgspec.inspect.StructType) and issubclass(declared.cls, tuple(kinds))


def _declared(root: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    """Every type that is part of a declaration, however deep, each struct once."""
    waiting, done = [root], set[type]()
    while waiting:
        declared = waiting.pop()
        yield declared
        match declared:
            case msgspec.inspect.StructType(cls=cls, fields=fields) if cls not in done:
                done.add(cls)
                waiting += [field.type for field in fields]
            case msgspec.inspect.UnionType(types=types) | msgspec.inspect.TupleType(item_types=types):
                waiting += types
            case msgspec.inspect.VarTupleType(item_type=each) | msgspec.inspect.ListType(item_type=each):
                waiting.append(each)
            case msgspec.inspect.DictType(value_type=each):
                waiting.append(each)
