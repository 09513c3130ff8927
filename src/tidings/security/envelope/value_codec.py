"""Values as bytes and back, fast: what is inside a sealed attribute.

The bytes are those of `tidings.events.encode_value`; here each declared type has its own
encoder and decoder, because one event may need twenty-five of them. A decoder takes exactly
the bytes its type writes and raises PeerError for any other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from tidings.errors import EventError, PeerError
from tidings.events import Timestamp, Value, ValueType, decode_value, encode_value
from tidings.security.signed_type import PadPolicy

Encoder: TypeAlias = Callable[[Value], bytes]
Decoder: TypeAlias = Callable[[bytes], Value]

_U32, _I64, _F64 = struct.Struct(">I"), struct.Struct(">q"), struct.Struct(">d")
_SHORT = 256
# The first five bytes of short texts: looking one up is cheaper than packing it.
_TEXT_HEADS = tuple(b"\x03" + _U32.pack(size) for size in range(_SHORT))
_BUCKETS = (16, 32, 64, 128)
_BUCKET = 256


def encoder(value_type: ValueType, pad: PadPolicy) -> Encoder:
    """The function that turns values of this type into plaintext."""
    plain = _encode_text if value_type is ValueType.STRING else encode_value
    if pad is PadPolicy.NONE:
        return plain  # type: ignore[return-value]
    return lambda value: padded(plain(value))  # type: ignore[arg-type]


def decoder(value_type: ValueType, pad: PadPolicy) -> Decoder:
    """The function that turns plaintext back into a value of this type, or raises PeerError."""
    plain = _DECODERS.get(value_type) or _decoder(value_type)
    if pad is PadPolicy.NONE:
        return plain
    return lambda raw: plain(unpadded(raw))


def padded(raw: bytes) -> bytes:
    """`raw`, a mark and zeros, up to the next of 16, 32, 64, 128, 256 or a multiple of 256 bytes."""
    size = len(raw) + 1
    room = next((bucket for bucket in _BUCKETS if size <= bucket), -(-size // _BUCKET) * _BUCKET)
    return raw + b"\x80" + bytes(room - size)


def unpadded(raw: bytes) -> bytes:
    """The inverse of `padded`; raises PeerError for bytes that it never writes."""
    bare = raw.rstrip(b"\0")
    if not bare.endswith(b"\x80") or padded(bare[:-1]) != raw:
        raise PeerError("padding: not as it is written")
    return bare[:-1]


def value_size(raw: bytes | memoryview, at: int) -> int:
    """How many bytes the value that starts at `at` takes; raises PeerError if it is cut short or of no type."""
    try:
        size = _SIZES[raw[at]] or 5 + _U32.unpack_from(raw, at + 1)[0]
    except KeyError:
        raise PeerError(f"value: {raw[at]} is no type") from None
    except (IndexError, struct.error):
        raise PeerError("value: cut short") from None
    if at + size > len(raw):
        raise PeerError("value: cut short")
    return size


# By type; 0 where the length is written in front.
_SIZES = {1: 2, 2: 9, 3: 0, 4: 9, 5: 0, 6: 9, 7: 18, 8: 9, 9: 9, 10: 0, 11: 0}


def _encode_text(text: str) -> bytes:
    try:
        raw = text.encode()
    except (AttributeError, UnicodeEncodeError):
        raise EventError(f"expected a text, got {type(text).__name__}") from None
    size = len(raw)
    return (_TEXT_HEADS[size] if size < _SHORT else b"\x03" + _U32.pack(size)) + raw


def _decode_text(raw: bytes) -> str:
    size = len(raw) - 5
    if size >= 0 and raw[:5] == (_TEXT_HEADS[size] if size < _SHORT else b"\x03" + _U32.pack(size)):
        try:
            return raw[5:].decode()
        except UnicodeDecodeError:
            pass
    raise PeerError("value: expected a text")


def _decode_bytes(raw: bytes) -> bytes:
    if len(raw) < 5 or raw[:5] != b"\x05" + _U32.pack(len(raw) - 5):
        raise PeerError("value: expected bytes")
    return raw[5:]


def _decode_bool(raw: bytes) -> bool:
    if raw not in (b"\x01\x00", b"\x01\x01"):
        raise PeerError("value: expected true or false")
    return raw == b"\x01\x01"


def _decode_int(raw: bytes) -> int:
    return int(_I64.unpack(_fixed(raw, 2, "a whole number"))[0])


def _decode_double(raw: bytes) -> float:
    return float(_F64.unpack(_fixed(raw, 4, "a double"))[0])


def _decode_timestamp(raw: bytes) -> Timestamp:
    return Timestamp(_I64.unpack(_fixed(raw, 6, "a timestamp"))[0])


def _fixed(raw: bytes, kind: int, what: str) -> bytes:
    if len(raw) != 9 or raw[0] != kind:
        raise PeerError(f"value: expected {what}")
    return raw[1:]


def _decoder(value_type: ValueType) -> Decoder:
    """Of a type whose values need a closer look: decimals, dates, times, arrays and maps."""

    def decode(raw: bytes) -> Value:
        try:
            value = decode_value(raw)
            if value_type.holds(value) and _items_are_held(value_type, value):
                return value_type.check(value)
        except EventError:
            pass
        raise PeerError(f"value: expected {value_type}")

    return decode


def _items_are_held(value_type: ValueType, value: Any) -> bool:
    """Whether keys and items need no cast: a list of texts is no list of dates, though `check` would make it one."""
    if value_type.element is None:
        return True
    items = value if value_type.map_key is None else value.values()
    keys = () if value_type.map_key is None else value
    holds, holds_key = value_type.element.holds, (value_type.map_key or value_type).holds
    return all(item is None or holds(item) for item in items) and all(map(holds_key, keys))


_DECODERS: dict[ValueType, Decoder] = {
    ValueType.BOOL: _decode_bool,
    ValueType.INT: _decode_int,
    ValueType.DOUBLE: _decode_double,
    ValueType.STRING: _decode_text,
    ValueType.BYTES: _decode_bytes,
    ValueType.TIMESTAMP: _decode_timestamp,
}
