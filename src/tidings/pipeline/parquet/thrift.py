"""Thrift's compact protocol, as far as Parquet's footers and page headers speak it.

A struct is a dict from field numbers to fields, so that what another program wrote can be read,
changed in one place and written again, whatever else it says.

>>> decode(encode({1: i32(-3), 4: text("list")}))[4].value
b'list'
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias


class Kind(enum.IntEnum):
    """Of a value, as the protocol numbers them; Parquet's metadata has no others."""

    TRUE, FALSE, BYTE, I16, I32, I64 = range(1, 7)
    BINARY, LIST = 8, 9
    STRUCT = 12


class Field(NamedTuple):
    """A value: nothing for TRUE and FALSE, an int, bytes, `Items` or a `Struct`."""

    kind: Kind
    value: Any


class Items(NamedTuple):
    """A list: values of one kind."""

    kind: Kind
    values: Sequence[Any]


Struct: TypeAlias = dict[int, Field]

# Between the numbers of fields that follow one another, in the short form, which is all that Parquet needs.
STEP_MAX = 15


def i32(number: int) -> Field:
    return Field(Kind.I32, number)


def i64(number: int) -> Field:
    return Field(Kind.I64, number)


def text(word: str) -> Field:
    return Field(Kind.BINARY, word.encode())


def struct(fields: Struct) -> Field:
    return Field(Kind.STRUCT, fields)


def items(kind: Kind, values: Sequence[Any]) -> Field:
    return Field(Kind.LIST, Items(kind, values))


def varint(number: int) -> bytes:
    """Seven bits at a time, the lowest first.

    >>> varint(300).hex()
    'ac02'
    """
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def encode(fields: Struct) -> bytes:
    out, last = bytearray(), 0
    for number, (kind, value) in sorted(fields.items()):
        assert 0 < number - last <= STEP_MAX, f"field {number} after {last}"
        out.append((number - last) << 4 | kind)
        out += _encoded(kind, value)
        last = number
    return bytes([*out, 0])


def decode(data: bytes) -> Struct:
    """What `encode` wrote, or somebody else. Raises ValueError for a kind that Parquet's metadata does not have."""
    return _Reader(data).struct()


def _encoded(kind: Kind, value: Any) -> bytes:
    match kind:
        case Kind.TRUE | Kind.FALSE:
            return b""
        case Kind.BYTE:
            return bytes([value & 0xFF])
        case Kind.BINARY:
            return b"".join([varint(len(value)), value])
        case Kind.LIST:
            size = len(value.values)
            head = bytes([size << 4 | value.kind]) if size < 0xF else bytes([0xF0 | value.kind]) + varint(size)
            return head + b"".join(_encoded(value.kind, each) for each in value.values)
        case Kind.STRUCT:
            return encode(value)
    return varint(value << 1 ^ value >> 63)  # Signs go last, so that small numbers are short on both sides of zero.


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def struct(self) -> Struct:
        fields: Struct = {}
        number = 0
        while head := self._byte():
            kind = Kind(head & 0xF)
            number = number + (head >> 4) if head >> 4 else self._signed()
            fields[number] = Field(kind, self._value(kind))
        return fields

    def _value(self, kind: Kind) -> Any:
        match kind:
            case Kind.TRUE | Kind.FALSE:
                return None
            case Kind.BYTE:
                return self._byte()
            case Kind.BINARY:
                size = self._varint()
                self.at += size
                return self.data[self.at - size : self.at]
            case Kind.LIST:
                head = self._byte()
                size, inner = head >> 4 if head >> 4 < 0xF else self._varint(), Kind(head & 0xF)
                return Items(inner, [self._value(inner) for _ in range(size)])
            case Kind.STRUCT:
                return self.struct()
        return self._signed()

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _varint(self) -> int:
        number = shift = 0
        while (byte := self._byte()) > 0x7F:
            number |= (byte & 0x7F) << shift
            shift += 7
        return number | byte << shift

    def _signed(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)
