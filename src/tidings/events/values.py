"""What an attribute can hold: six types, one Python form each, and one order.

| type | Python form | Spark | order |
| --- | --- | --- | --- |
| bool | bool | BOOLEAN | false < true |
| int | int within 64 bits | BIGINT | by value |
| double | float | DOUBLE | by value; -0.0 equals 0.0; NaN equals NaN and is above all |
| string | str | STRING | by code point, which is the order of the UTF-8 bytes |
| timestamp | Timestamp, µs since 1970 UTC | TIMESTAMP | by time |
| bytes | bytes | BINARY | bytewise, unsigned |

A value that is absent and a value that is NULL are the same: None.

Every value has a **key** in the same order: an int for the first three and timestamps,
the value itself for strings and bytes. Intervals, cells and the matching kernels live on
keys, where NaN and -0.0 need no special care:

>>> ValueType.DOUBLE.key(float("nan")) > ValueType.DOUBLE.key(float("inf"))
True
>>> ValueType.DOUBLE.key(-0.0) == ValueType.DOUBLE.key(0.0) == 0
True
"""

from __future__ import annotations

import enum
import re
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from tidings.errors import EventError

INT_MIN, INT_MAX = -(2**63), 2**63 - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Timestamp(int):
    """A moment: microseconds since 1970-01-01 UTC, as an int that prints as a date.

    Made from an int, a datetime or an ISO 8601 text, the last two UTC unless they say
    otherwise. Digits of a text below the microsecond are cut off. `Timestamp(t.iso()) == t`
    for every t.

    >>> Timestamp("2026-01-01T00:00:00Z") + 0
    1767225600000000
    >>> Timestamp(1767225600000000)
    Timestamp('2026-01-01T00:00:00Z')
    """

    __slots__ = ()

    def __new__(cls, moment: int | str | datetime) -> Timestamp:
        if isinstance(moment, str):
            moment = _parse_iso(moment)
        if isinstance(moment, datetime):
            aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            moment = (aware - _EPOCH) // _MICROSECOND
        if not isinstance(moment, int) or isinstance(moment, bool):
            raise EventError(f"expected {_EXPECTED[ValueType.TIMESTAMP]}, got {describe(moment)}")
        if not INT_MIN <= moment <= INT_MAX:
            raise EventError(f"expected a timestamp within 64 bits of microseconds, got {describe(moment)}")
        return super().__new__(cls, moment)

    def iso(self) -> str:
        """ISO 8601 with a Z, or `@µs` for moments outside the years 1 to 9999."""
        try:
            moment = _EPOCH + timedelta(microseconds=int(self))
        except OverflowError:
            return f"@{int(self)}"
        return moment.replace(tzinfo=None).isoformat() + "Z"

    def __repr__(self) -> str:
        return f"Timestamp({self.iso()!r})"

    __str__ = iso


Value: TypeAlias = bool | int | float | str | bytes | Timestamp
Key: TypeAlias = int | str | bytes


class ValueType(enum.Enum):
    """The six types, and NULL for what is never anything else."""

    BOOL = "bool"
    INT = "int"
    DOUBLE = "double"
    STRING = "string"
    TIMESTAMP = "timestamp"
    BYTES = "bytes"
    NULL = "null"

    def __str__(self) -> str:
        return self.value

    # Members are singletons, so identity is equality; the default hash would cost a call into Python
    # on every look-up.
    __hash__ = object.__hash__

    @property
    def is_number(self) -> bool:
        return self is ValueType.INT or self is ValueType.DOUBLE

    @property
    def has_int_keys(self) -> bool:
        return self is not ValueType.STRING and self is not ValueType.BYTES

    @property
    def python(self) -> type:
        """The one Python class that values of this type have."""
        return _PYTHON[self]

    def check(self, value: object) -> Value:
        """`value` in its Python form; raises EventError unless it already is of this type.

        The only step taken for the caller is int to double, where it loses nothing.
        """
        if type(value) is _PYTHON[self] and (self not in _NARROWER or _NARROWER[self](value)):
            return value  # type: ignore[return-value]
        return _convert(self, value)

    def key(self, value: Value) -> Key:
        """A key that sorts as `value` does among the values of its type."""
        if self is ValueType.DOUBLE:
            return double_key(value)  # type: ignore[arg-type]
        return int(value) if self.has_int_keys else value  # type: ignore[return-value]

    def value_at(self, key: Key) -> Value:
        """The value whose key this is."""
        if self is ValueType.DOUBLE:
            return double_at(key)  # type: ignore[arg-type]
        return self.python(key)  # type: ignore[no-any-return]


_PYTHON: dict[ValueType, type] = {
    ValueType.BOOL: bool,
    ValueType.INT: int,
    ValueType.DOUBLE: float,
    ValueType.STRING: str,
    ValueType.TIMESTAMP: Timestamp,
    ValueType.BYTES: bytes,
    ValueType.NULL: type(None),
}
_BY_PYTHON = {python: value_type for value_type, python in _PYTHON.items()}

_EXPECTED = {
    ValueType.BOOL: "true or false",
    ValueType.INT: "a whole number within 64 bits",
    ValueType.DOUBLE: "a number",
    ValueType.STRING: "a text",
    ValueType.TIMESTAMP: "a timestamp (ISO 8601 text, datetime or Timestamp)",
    ValueType.BYTES: "bytes",
    ValueType.NULL: "null",
}


def type_of(value: object) -> ValueType:
    """The type of `value`, without conversion; raises EventError where it has none."""
    if isinstance(value, datetime):
        return ValueType.TIMESTAMP
    try:
        return _BY_PYTHON[type(value)]
    except KeyError:
        raise EventError(f"expected a value of {', '.join(_EXPECTED.values())}; got {describe(value)}") from None


def describe(value: object) -> str:
    """How an error message names a value: its kind and, cut short, itself. Never raises, whatever `value` is."""
    kind = _BY_PYTHON.get(type(value))
    return f"{kind or type(value).__name__} {_shown(value)}"


SHOWN_LENGTH_MAX = 60  # Characters of a value that an error message repeats.


def _shown(value: object) -> str:
    if isinstance(value, int) and value.bit_length() > 256:
        return f"of {value.bit_length()} bits"  # Python refuses to print the longest ones.
    if isinstance(value, str | bytes | bytearray) and len(value) > SHOWN_LENGTH_MAX:
        return f"{value[: SHOWN_LENGTH_MAX - 3]!r}…"
    try:
        shown = repr(value)
    except Exception:  # noqa: BLE001  A stranger's __repr__ must not hide the error being described.
        return "that cannot be shown"
    return shown if len(shown) <= SHOWN_LENGTH_MAX else shown[: SHOWN_LENGTH_MAX - 1] + "…"


def double_key(number: float) -> int:
    """An int64 in the order of Spark's doubles: -inf … -0.0 = 0.0 … inf < NaN."""
    if number != number:
        return _NAN_KEY
    (bits,) = _INT64.unpack(_DOUBLE.pack(number))
    return int(bits if bits >= 0 else INT_MIN - bits)  # Negative doubles count downwards; -0.0 lands on 0.0.


def double_at(key: int) -> float:
    """The double with this key."""
    bits = key if key >= 0 else INT_MIN - key
    return float(_DOUBLE.unpack(_INT64.pack(bits))[0])


_INT64, _DOUBLE = struct.Struct("<q"), struct.Struct("<d")
_NAN_KEY = 0x7FF0000000000001  # Right above infinity, so that no key between the two names nothing.


def _convert(wanted: ValueType, value: object) -> Value:
    match wanted, value:
        case ValueType.DOUBLE, int() if type(value) is int and _fits_double(value):
            return float(value)
        case ValueType.TIMESTAMP, str() | datetime():
            return Timestamp(value)
        case ValueType.BYTES, bytearray() | memoryview():
            return bytes(value)
    raise EventError(f"expected {_EXPECTED[wanted]}, got {describe(value)}")


def _fits_int64(number: int) -> bool:
    return INT_MIN <= number <= INT_MAX


def _fits_double(number: int) -> bool:
    try:
        return int(float(number)) == number
    except OverflowError:
        return False


def _is_unicode(text: str) -> bool:
    """Whether UTF-8 can carry this: no halves of surrogate pairs."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# Types that do not hold all that their Python class does.
_NARROWER: dict[ValueType, Callable[[Any], bool]] = {ValueType.INT: _fits_int64, ValueType.STRING: _is_unicode}


_UNDATED = re.compile(r"@-?[0-9]{1,19}")


def _parse_iso(text: str) -> datetime | int:
    try:
        # As `iso` writes moments that have no date.
        return int(text[1:]) if _UNDATED.fullmatch(text) else datetime.fromisoformat(text)
    except ValueError:
        got = describe(text)
        raise EventError(f"expected an ISO 8601 timestamp such as 2026-01-31T12:00:00Z, got {got}") from None
