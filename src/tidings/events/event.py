"""One event: who published it, when, and values that fit its type.

An event has one form in bytes, `canonical`, made of the forms of its values, and both are
read back strictly: what `decode_value` and `Event.from_canonical` accept is exactly what
`encode_value` and `canonical` write, so no two byte strings mean the same thing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from types import MappingProxyType
from typing import Any

from tidings.errors import EventError
from tidings.events.schema import ATTRIBUTES_MAX, EventType
from tidings.events.values import (
    PRECISION_MAX,
    Date,
    Exact,
    Time,
    Timestamp,
    Value,
    ValueType,
    describe,
    type_of,
    unscaled,
)


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

    01 bool · 02 int64 · 03 length and UTF-8 · 04 double · 05 length and bytes · 06 timestamp in µs ·
    07 decimal: a byte of scale, its digits as int128 · 08 date in days, int64 · 09 time in µs ·
    0a array: length, items · 0b map: length, keys and values in the order of the keys' bytes. An item
    that is NULL is 00. All NaNs are one and -0.0 is 0.0, as they are to conditions.

    >>> encode_value("AB12CDE").hex()
    '030000000741423132434445'
    """
    checked: Any = value if type(value) in _CHECKED else type_of(value).check(value)
    match checked:
        case bool():
            return b"\x01\x01" if checked else b"\x01\x00"
        case Timestamp():
            return b"\x06" + _I64.pack(checked)
        case Date():
            return b"\x08" + _I64.pack(checked)
        case Time():
            return b"\x09" + _I64.pack(checked)
        case int():
            return b"\x02" + _I64.pack(checked)
        case str():
            return b"\x03" + _text(checked)
        case float():
            return b"\x04" + _double(checked)
        case bytes():
            return b"\x05" + _sized(checked)
        case Decimal():
            return b"\x07" + decimal_bytes(checked)
        case tuple():
            return b"\x0a" + _sized(b"".join(map(_item, checked)))
        case dict():
            entries = sorted((encode_value(key), _item(item)) for key, item in checked.items())
            return b"\x0b" + _sized(b"".join(key + item for key, item in entries))
    raise EventError(f"no bytes for {describe(value)}")


_CHECKED = frozenset([bool, float, bytes, Timestamp, Date, Time])


def _item(value: Value | None) -> bytes:
    return b"\x00" if value is None else encode_value(value)


def decimal_bytes(number: Decimal) -> bytes:
    """A byte of scale, and the digits in 16."""
    scale = type_of(number).scale
    return bytes([scale]) + unscaled(number, scale).to_bytes(16, "big", signed=True)


def decimal_from(raw: bytes) -> Exact:
    """The number with these bytes; raises EventError for others."""
    digits = int.from_bytes(raw[1:], "big", signed=True)
    if len(raw) != DECIMAL_BYTES or raw[0] > PRECISION_MAX or abs(digits) >= 10**PRECISION_MAX:
        raise EventError(f"expected the scale and the digits of a decimal, got {raw[:20].hex()}")
    return Exact(Decimal(digits).scaleb(-raw[0], Context(prec=PRECISION_MAX)))


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


DECIMAL_BYTES = 17
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


def _read_value(reader: _Reader, may_have_items: bool = True) -> Value:
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
        case 7:
            return decimal_from(reader.take(DECIMAL_BYTES))
        case 8:
            return Date(reader.int64())
        case 9:
            return Time(reader.int64())
        case 10 if may_have_items:
            return tuple(_read_items(_Reader(reader.sized())))
        case 11 if may_have_items:
            return _read_map(_Reader(reader.sized()))
        case other:
            raise EventError(f"expected a type byte from 1 to 11 at byte {reader.at - 1}, got {other}")


def _read_items(reader: _Reader) -> Iterator[Any]:
    kinds = set()
    while reader.at < len(reader.raw):
        kinds.add(reader.raw[reader.at])
        if len(kinds - {0}) > 1:
            raise EventError(f"expected items of one type, got type bytes {sorted(kinds - {0})}")
        yield _read_item(reader)


def _read_item(reader: _Reader) -> Any:
    if reader.raw[reader.at : reader.at + 1] == b"\x00":
        return reader.take(1) and None
    return _read_value(reader, may_have_items=False)


def _read_map(reader: _Reader) -> dict[Any, Any]:
    entries: dict[Any, Any] = {}
    last = b""
    while reader.at < len(reader.raw):
        start = reader.at
        key = _read_value(reader, may_have_items=False)
        if (here := reader.raw[start : reader.at]) <= last:
            raise EventError("expected the entries of a map in the order of their keys")
        entries[key], last = _read_item(reader), here
    return entries


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


def to_extension(value: object) -> tuple[int, bytes] | None:
    """The msgpack extension that a message carries a value as; None where msgpack has its type."""
    match value:
        case Timestamp() | Date() | Time():
            return _MOMENTS[type(value)], _I64.pack(value)
        case Exact():
            return _DECIMAL, decimal_bytes(value)
    return None


def from_extension(code: int, data: bytes) -> Value:
    """The value that travelled as an extension; raises ValueError or EventError for any other."""
    if code == _DECIMAL:
        return decimal_from(data)
    if code not in _BY_CODE or len(data) != _I64.size:
        raise ValueError(f"unknown extension {code}")
    return _BY_CODE[code](_I64.unpack(data)[0])


def from_message(value: Any) -> Any:
    """A value as it stood in a message, which knows lists but no tuples. Raises EventError where it is none."""
    if value.__class__ is list:
        value = tuple(value)
    if value.__class__ in _SCALARS:
        return value
    items = value if value.__class__ is tuple else value.values() if value.__class__ is dict else (value,)
    keys = value if value.__class__ is dict else ()
    if not (all(item.__class__ in _ITEMS for item in items) and all(key.__class__ in (str, int) for key in keys)):
        raise EventError(f"expected a value, got {describe(value)}")
    return value


_MOMENTS: dict[type, int] = {Timestamp: 1, Date: 3, Time: 4}
_BY_CODE: dict[int, Callable[[int], Value]] = {1: Timestamp, 3: Date, 4: Time}
_DECIMAL = 2
_SCALARS = frozenset({bool, int, float, str, bytes, Timestamp, Date, Time, Exact})
_ITEMS = _SCALARS | {type(None)}


def _check_header(type_name: str, id: str, source: str) -> None:
    for what, text in (("id", id), ("source", source)):
        try:
            if not ValueType.STRING.check(text):
                raise EventError("expected a text that is not empty, got ''")
        except EventError as wrong:
            raise EventError(f"{type_name}: the event's {what}: {wrong}") from None


def _thaw(id: str, source: str, type: str, time: Timestamp, values: dict[str, Value]) -> Event:
    return Event(id, source, type, time, MappingProxyType(values))
