"""One event: who published it, when, and values that fit its type.

An event has one form in bytes, `canonical`, made of the forms of its values, and both are
read back strictly: what `decode_value` and `Event.from_canonical` accept is exactly what
`encode_value` and `canonical` write, so no two byte strings mean the same thing.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tidings.errors import EventError
from tidings.events.schema import ATTRIBUTES_MAX, EventType
from tidings.events.values import Timestamp, Value, ValueType, describe, type_of


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """A frozen event. `source` and `id` together name it; `values` holds what is present, flat.

    Made with `Event.of`, which checks the record against the type:

    >>> Plate = EventType("Plate", plate=str, speed=float)
    >>> seen = Event.of(Plate, {"plate": "AB12CDE", "speed": 31.0}, id="1", source="cam-7", time="2026-01-01T08:00:00Z")
    >>> seen.values["speed"], seen.time
    (31.0, Timestamp('2026-01-01T08:00:00Z'))

    Two events are equal when their canonical bytes are: NaN equals NaN, -0.0 equals 0.0,
    and 1 is not 1.0.
    """

    id: str
    source: str
    type: str
    time: Timestamp
    values: Mapping[str, Value]

    @classmethod
    def of(
        cls, event_type: EventType, record: Mapping[str, Any], *, id: str, source: str, time: Timestamp | int | str
    ) -> Event:
        """A checked event; raises EventError naming the attribute that does not fit."""
        name = event_type.name
        _check_header(name, id, source)
        try:
            moment = Timestamp(time)
        except EventError as wrong:
            raise EventError(f"{name}: the event's time: {wrong}") from None
        return cls(id, source, name, moment, MappingProxyType(event_type.check(record)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Event) and self.id == other.id and self.canonical() == other.canonical()

    def __hash__(self) -> int:
        return hash((self.source, self.id))

    def __reduce__(self) -> tuple[Any, ...]:
        return _thaw, (self.id, self.source, self.type, self.time, dict(self.values))

    def canonical(self) -> bytes:
        """The bytes a signature covers: equal for equal events, different for different ones.

        Every part is preceded by its length, attributes stand in the order of their names'
        bytes, and each value is written as `encode_value` does.
        """
        header = [_text(self.id), _text(self.source), _text(self.type), _I64.pack(self.time)]
        body = [_text(name) + encode_value(self.values[name]) for name in sorted(self.values)]
        return b"".join([_MAGIC, *header, _U32.pack(len(body)), *body])

    @classmethod
    def from_canonical(cls, raw: bytes) -> Event:
        """The event whose canonical bytes these are; raises EventError for any others.

        The values are complete but not yet checked against an event type: a reader of untrusted
        bytes passes `event.values` to `EventType.check`.
        """
        reader = _Reader(raw)
        reader.expect(_MAGIC)
        id, source, name, time = reader.text(), reader.text(), reader.text(), Timestamp(reader.int64())
        _check_header(name, id, source)
        values = _read_values(reader)
        reader.end()
        return cls(id, source, name, time, MappingProxyType(values))


def encode_value(value: Value) -> bytes:
    """One type byte, then the body, big-endian: a value as signatures and sealed events carry it.

    01 bool · 02 int64 · 03 length and UTF-8 · 04 double · 05 length and bytes · 06 timestamp in µs.
    All NaNs are one and -0.0 is 0.0, as they are to conditions.

    >>> encode_value("AB12CDE").hex()
    '030000000741423132434445'
    """
    kind = type_of(value)
    checked: Any = kind.check(value)
    match kind:
        case ValueType.BOOL:
            return b"\x01\x01" if checked else b"\x01\x00"
        case ValueType.INT:
            return b"\x02" + _I64.pack(checked)
        case ValueType.STRING:
            return b"\x03" + _text(checked)
        case ValueType.DOUBLE:
            return b"\x04" + _double(checked)
        case ValueType.BYTES:
            return b"\x05" + _sized(checked)
        case ValueType.TIMESTAMP:
            return b"\x06" + _I64.pack(checked)
    raise EventError(f"no bytes for {describe(value)}")


def decode_value(raw: bytes) -> Value:
    """The value that `encode_value` writes as `raw`; raises EventError for bytes it never writes.

    Takes no more memory than `raw` is long, whatever lengths `raw` claims.

    >>> decode_value(bytes.fromhex("030000000741423132434445"))
    'AB12CDE'
    """
    reader = _Reader(raw)
    value = _read_value(reader)
    reader.end()
    return value


_MAGIC = b"tidings/event/1\0"
_U32, _I64, _F64 = struct.Struct(">I"), struct.Struct(">q"), struct.Struct(">d")
_QUIET_NAN = bytes.fromhex("7ff8000000000000")
LENGTH_MAX = 2**32 - 1  # What the four length bytes before a text or bytes can say.


def _double(number: float) -> bytes:
    return _QUIET_NAN if number != number else _F64.pack(number + 0.0)


def _text(text: str) -> bytes:
    return _sized(text.encode())


def _sized(raw: bytes) -> bytes:
    if len(raw) > LENGTH_MAX:
        raise EventError(f"expected at most {LENGTH_MAX} bytes in one value, got {len(raw)}")
    return _U32.pack(len(raw)) + raw


class _Reader:
    """Walks over bytes from outside; every step checks that what it needs is there."""

    __slots__ = ("at", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw, self.at = bytes(raw), 0

    def take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self.raw):
            raise EventError(f"cut short: expected {size} bytes at byte {self.at}, {len(self.raw) - self.at} are left")
        taken, self.at = self.raw[self.at : end], end
        return taken

    def expect(self, wanted: bytes) -> None:
        if (got := self.take(len(wanted))) != wanted:
            raise EventError(f"expected an event that begins with {wanted!r}, got {got!r}")

    def end(self) -> None:
        if self.at != len(self.raw):
            raise EventError(f"expected the end at byte {self.at}, {len(self.raw) - self.at} more bytes follow")

    def uint32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def int64(self) -> int:
        return int(_I64.unpack(self.take(8))[0])

    def sized(self) -> bytes:
        return self.take(self.uint32())

    def text(self) -> str:
        start = self.at
        try:
            return self.sized().decode()
        except UnicodeDecodeError:
            raise EventError(f"the text at byte {start} is not UTF-8") from None


def _read_value(reader: _Reader) -> Value:
    match reader.take(1)[0]:
        case 1:
            return _read_bool(reader)
        case 2:
            return reader.int64()
        case 3:
            return reader.text()
        case 4:
            return _read_double(reader)
        case 5:
            return reader.sized()
        case 6:
            return Timestamp(reader.int64())
        case other:
            raise EventError(f"expected a type byte from 1 to 6 at byte {reader.at - 1}, got {other}")


def _read_bool(reader: _Reader) -> bool:
    (byte,) = reader.take(1)
    if byte > 1:
        raise EventError(f"expected 0 or 1 for a bool at byte {reader.at - 1}, got {byte}")
    return byte == 1


def _read_double(reader: _Reader) -> float:
    raw = reader.take(8)
    (number,) = _F64.unpack(raw)
    if _double(number) != raw:
        raise EventError(f"expected the one form of NaN and of zero at byte {reader.at - 8}, got {raw.hex()}")
    return float(number)


def _read_values(reader: _Reader) -> dict[str, Value]:
    count = reader.uint32()
    if count > ATTRIBUTES_MAX:
        raise EventError(f"expected at most {ATTRIBUTES_MAX} attributes, got {count}")
    values: dict[str, Value] = {}
    last = ""
    for _ in range(count):
        name = reader.text()
        if values and name <= last:
            raise EventError(f"expected attributes in the order of their names, got {name!r} after {last!r}")
        values[name], last = _read_value(reader), name
    return values


def _check_header(type_name: str, id: str, source: str) -> None:
    for what, text in (("id", id), ("source", source)):
        try:
            if not ValueType.STRING.check(text):
                raise EventError("expected a text that is not empty, got ''")
        except EventError as wrong:
            raise EventError(f"{type_name}: the event's {what}: {wrong}") from None


def _thaw(id: str, source: str, type: str, time: Timestamp, values: dict[str, Value]) -> Event:
    return Event(id, source, type, time, MappingProxyType(values))
