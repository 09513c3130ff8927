"""What an attribute can hold: its types, one Python form each, and one order.

| type | Python form | Spark | order |
| --- | --- | --- | --- |
| bool | bool | BOOLEAN | false < true |
| int | int within 64 bits | BIGINT | by value |
| double | float | DOUBLE | by value; -0.0 equals 0.0; NaN equals NaN and is above all |
| decimal(p,s) | Decimal with s digits behind the point, p in all, 38 at most | DECIMAL(p,s) | by value |
| string | str | STRING | by code point, which is the order of the UTF-8 bytes |
| timestamp | Timestamp, µs since 1970 UTC | TIMESTAMP | by time |
| date | Date, days since 1970 | DATE | by day |
| time | Time, µs since midnight | TIME | by time of day |
| bytes | bytes | BINARY | bytewise, unsigned |
| array<t> | tuple | ARRAY | none |
| map<k,v> | dict, keys of strings or ints | MAP | none |

A value that is absent and a value that is NULL are the same: None. An item of an array, or
a value in a map, is of a type without items of its own, or None.

Every value has a **key** in the same order: the value itself for strings and bytes, an int
for all others; the key of a decimal is its digits without the point. Intervals, cells and
the matching kernels live on keys, where NaN and -0.0 need no special care:

>>> ValueType.DOUBLE.key(float("nan")) > ValueType.DOUBLE.key(float("inf"))
True
>>> ValueType.DOUBLE.key(-0.0) == ValueType.DOUBLE.key(0.0) == 0
True
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, InvalidOperation
from typing import Any, ClassVar, TypeAlias
from weakref import WeakValueDictionary

from tidings.errors import EventError

INT_MIN, INT_MAX = -(2**63), 2**63 - 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = date(1970, 1, 1)
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
            raise EventError(f"expected {_EXPECTED['timestamp']}, got {describe(moment)}")
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


class Date(int):
    """A day: days since 1970-01-01, as an int that prints as a date.

    Made from an int, a date or a text such as 2026-01-31. `Date(d.iso()) == d` for every d.

    >>> Date("2026-01-31") + 0, Date(20484)
    (20484, Date('2026-01-31'))
    """

    __slots__ = ()

    def __new__(cls, day: int | str | date) -> Date:
        if isinstance(day, str):
            day = _parse_date(day)
        if isinstance(day, date) and not isinstance(day, datetime):
            day = (day - _FIRST_DAY).days
        if not isinstance(day, int) or isinstance(day, bool):
            raise EventError(f"expected {_EXPECTED['date']}, got {describe(day)}")
        if not -(2**31) <= day < 2**31:
            raise EventError(f"expected a date within 32 bits of days, got {describe(day)}")
        return super().__new__(cls, day)

    def iso(self) -> str:
        """As ISO 8601 has it, or `@days` for days outside the years 1 to 9999."""
        try:
            return (_FIRST_DAY + timedelta(days=int(self))).isoformat()
        except OverflowError:
            return f"@{int(self)}"

    def __repr__(self) -> str:
        return f"Date({self.iso()!r})"

    __str__ = iso


class Time(int):
    """A time of day: microseconds since midnight, as an int that prints as a time.

    Made from an int, a time without a zone or a text such as 12:30:00.5. Digits of a text below
    the microsecond are cut off.

    >>> Time("12:30:00") + 0, Time(45_000_500_000)
    (45000000000, Time('12:30:00.500000'))
    """

    __slots__ = ()

    def __new__(cls, moment: int | str | time) -> Time:
        if isinstance(moment, str):
            moment = _parse_time(moment)
        if isinstance(moment, time) and moment.tzinfo is None:
            seconds = (moment.hour * 60 + moment.minute) * 60 + moment.second
            moment = seconds * 1_000_000 + moment.microsecond
        if not isinstance(moment, int) or isinstance(moment, bool):
            raise EventError(f"expected {_EXPECTED['time']}, got {describe(moment)}")
        if not 0 <= moment < DAY_MICROS:
            raise EventError(f"expected a time within one day, got {describe(moment)}")
        return super().__new__(cls, moment)

    def iso(self) -> str:
        """As ISO 8601 has it."""
        return (_EPOCH + timedelta(microseconds=int(self))).time().isoformat()

    def __repr__(self) -> str:
        return f"Time({self.iso()!r})"

    __str__ = iso


class Exact(Decimal):
    """A checked decimal. A class of its own, because to msgspec a plain Decimal is a text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Decimal('{self:f}')"


Scalar: TypeAlias = bool | int | float | str | bytes | Timestamp | Date | Time | Decimal
Value: TypeAlias = Scalar | tuple[Scalar | None, ...] | dict[Scalar, Scalar | None]
Key: TypeAlias = int | str | bytes

DAY_MICROS = 86_400_000_000
PRECISION_MAX = 38  # Digits of a decimal, as Spark has them.
WORD_DIGITS = 18  # Digits that always fit 64 bits.
# What the digits of decimals are computed in: never rounded, since no result of ours needs as many.
_EXACT = Context(prec=2 * PRECISION_MAX + 8)


class ValueType:
    """A type, and NULL for what is never anything else. There is one object for each, so `is` compares them.

    >>> ValueType("array<decimal(12,2)>").element is ValueType.decimal(12, 2)
    True
    """

    __slots__ = ("__weakref__", "element", "kind", "map_key", "precision", "python", "scale", "value")

    BOOL: ClassVar[ValueType]
    INT: ClassVar[ValueType]
    DOUBLE: ClassVar[ValueType]
    STRING: ClassVar[ValueType]
    TIMESTAMP: ClassVar[ValueType]
    DATE: ClassVar[ValueType]
    TIME: ClassVar[ValueType]
    BYTES: ClassVar[ValueType]
    NULL: ClassVar[ValueType]
    PLAIN: ClassVar[tuple[ValueType, ...]]  # The types without parameters, NULL not among them.

    value: str  # Its name, as declarations and peers write it.
    kind: str  # The name without parameters.
    python: type  # The one Python class that its values have.
    precision: int  # Of decimals: digits in all, and those behind the point.
    scale: int
    element: ValueType | None  # Of arrays the items' type, of maps the values'.
    map_key: ValueType | None

    def __new__(cls, name: str) -> ValueType:
        """The type of this name; raises ValueError where there is none."""
        found = _TYPES.get(name)
        return _parse_type(name) if found is None else found

    @classmethod
    def decimal(cls, precision: int, scale: int = 0) -> ValueType:
        """Numbers of up to `precision` digits, `scale` of them behind the point."""
        if not (1 <= precision <= PRECISION_MAX and 0 <= scale <= precision):
            raise ValueError(f"expected 1 to {PRECISION_MAX} digits, not fewer than those behind the point")
        return _made(f"decimal({precision},{scale})", "decimal", Exact, precision=precision, scale=scale)

    @classmethod
    def array(cls, element: ValueType) -> ValueType:
        """Arrays whose items are of this type, or NULL."""
        _must_be_scalar(element)
        return _made(f"array<{element.value}>", "array", tuple, element=element)

    @classmethod
    def map(cls, key: ValueType, value: ValueType) -> ValueType:
        """Maps from keys to values of these types; values may be NULL."""
        _must_be_scalar(value)
        if key is not ValueType.STRING and key is not ValueType.INT:
            raise ValueError(f"expected keys of type string or int, got {key}")
        return _made(f"map<{key.value},{value.value}>", "map", dict, element=value, map_key=key)

    def __reduce__(self) -> tuple[Any, ...]:
        return ValueType, (self.value,)

    def __str__(self) -> str:
        return self.value

    def __repr__(self) -> str:
        return f"ValueType({self.value!r})"

    @property
    def is_number(self) -> bool:
        return self is ValueType.INT or self is ValueType.DOUBLE or self.kind == "decimal"

    @property
    def is_decimal(self) -> bool:
        return self.kind == "decimal"

    @property
    def has_items(self) -> bool:
        """Whether it is an array or a map: without an order, so that all its values have the same key."""
        return self.element is not None

    @property
    def has_int_keys(self) -> bool:
        """Whether keys are ints of 64 bits. Those of long decimals are ints of 128 bits."""
        return self.python is not str and self.python is not bytes and not self.is_wide

    @property
    def is_wide(self) -> bool:
        """Whether it is a decimal whose digits may need more than 64 bits."""
        return self.precision > WORD_DIGITS

    def check(self, value: object) -> Value:
        """`value` in its Python form; raises EventError unless it already is of this type.

        The only steps taken for the caller are from ints to doubles and decimals, where they lose nothing.
        """
        if type(value) is self.python and (self.kind not in _NARROWER or _NARROWER[self.kind](value)):
            return value  # type: ignore[return-value]
        return _convert(self, value)

    def holds(self, value: object) -> bool:
        """Whether `value` is one of this type as `check` returns them, looking only at its outside."""
        return type(value) is self.python and (type(value) is not Exact or value.as_tuple().exponent == -self.scale)

    def key(self, value: Value) -> Key:
        """A key that sorts as `value` does among the values of its type."""
        if self is ValueType.DOUBLE:
            return double_key(value)  # type: ignore[arg-type]
        if self.kind == "decimal":
            return unscaled(value, self.scale)  # type: ignore[arg-type]
        if self.element is not None:
            return 0
        return int(value) if self.has_int_keys else value  # type: ignore[return-value,arg-type]

    def value_at(self, key: Key) -> Value:
        """The value whose key this is."""
        if self is ValueType.DOUBLE:
            return double_at(key)  # type: ignore[arg-type]
        if self.kind == "decimal":
            return Exact(Decimal(key).scaleb(-self.scale, _EXACT))  # type: ignore[arg-type]
        return self.python() if self.element is not None else self.python(key)  # type: ignore[no-any-return]


_TYPES: WeakValueDictionary[str, ValueType] = WeakValueDictionary()


def _made(
    name: str,
    kind: str,
    python: type,
    *,
    precision: int = 0,
    scale: int = 0,
    element: ValueType | None = None,
    map_key: ValueType | None = None,
) -> ValueType:
    made = object.__new__(ValueType)
    made.value, made.kind, made.python = name, kind, python
    made.precision, made.scale, made.element, made.map_key = precision, scale, element, map_key
    return _TYPES.setdefault(name, made)


_PARAMETERS = re.compile(r"(decimal)\((\d{1,2})(?:,(\d{1,2}))?\)|(array)<([^<>]{1,40})>|(map)<([^<>]{1,80})>", re.ASCII)


def _parse_type(name: str) -> ValueType:
    """The type of a name with parameters; spaces do not matter, nor do capitals."""
    found = _PARAMETERS.fullmatch(re.sub(r"\s", "", name).lower()) if isinstance(name, str) else None
    if found is None:
        raise ValueError(f"{name!r} is not a type")
    if found[1]:
        return ValueType.decimal(int(found[2]), int(found[3] or 0))
    if found[4]:
        return ValueType.array(ValueType(found[5]))
    # The comma between key and value is the one outside of parentheses.
    parts = re.fullmatch(r"([a-z]+(?:\([0-9,]+\))?),([a-z]+(?:\([0-9,]+\))?)", found[7])
    if parts is None:
        raise ValueError(f"{name!r} is not a type")
    return ValueType.map(ValueType(parts[1]), ValueType(parts[2]))


def _must_be_scalar(item: ValueType) -> None:
    if item.element is not None:
        raise ValueError(f"expected items without items of their own, got {item}")


for _name, _python in (
    ("bool", bool), ("int", int), ("double", float), ("string", str), ("timestamp", Timestamp),
    ("date", Date), ("time", Time), ("bytes", bytes), ("null", type(None)),
):  # fmt: skip
    setattr(ValueType, _name.upper(), _made(_name, _name, _python))
ValueType.PLAIN = (
    ValueType.BOOL, ValueType.INT, ValueType.DOUBLE, ValueType.STRING, ValueType.TIMESTAMP,
    ValueType.DATE, ValueType.TIME, ValueType.BYTES,
)  # fmt: skip
_BY_PYTHON: dict[type, ValueType] = {kind.python: kind for kind in (*ValueType.PLAIN, ValueType.NULL)}

_EXPECTED = {
    "bool": "true or false",
    "int": "a whole number within 64 bits",
    "double": "a number",
    "decimal": "a decimal number",
    "string": "a text",
    "timestamp": "a timestamp (ISO 8601 text, datetime or Timestamp)",
    "date": "a date (ISO 8601 text, date or Date)",
    "time": "a time of day (ISO 8601 text, time without a zone, or Time)",
    "bytes": "bytes",
    "array": "a list of values of one type",
    "map": "a mapping",
    "null": "null",
}


def type_of(value: object) -> ValueType:
    """The type of `value`, without conversion; raises EventError where it has none.

    Of a decimal, the narrowest that holds it; of an array or a map, that of its items.
    """
    try:
        return _BY_PYTHON[type(value)]
    except KeyError:
        pass
    try:
        match value:
            case datetime():
                return ValueType.TIMESTAMP
            case date():
                return ValueType.DATE
            case time():
                return ValueType.TIME
            case Decimal() if value.is_finite():
                return _decimal_type(value)
            case list() | tuple():
                return ValueType.array(_common_type(value))
            case dict():
                return ValueType.map(_common_type(value) if value else ValueType.STRING, _common_type(value.values()))
    except ValueError as wrong:
        raise EventError(f"{wrong}; got {describe(value)}") from None
    raise EventError(f"expected a value of {', '.join(_EXPECTED.values())}; got {describe(value)}")


def _decimal_type(number: Decimal) -> ValueType:
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)  # Only what is not finite has another.
    scale = max(0, -exponent)
    return ValueType.decimal(max(1, scale, len(digits) + max(0, exponent)), scale)


def _common_type(items: Iterable[object]) -> ValueType:
    kinds = {type_of(item) for item in items if item is not None}
    if len(kinds) > 1 and all(kind.is_decimal for kind in kinds):
        scale = max(kind.scale for kind in kinds)
        return ValueType.decimal(max(kind.precision - kind.scale for kind in kinds) + scale, scale)
    if kinds == {ValueType.INT, ValueType.DOUBLE}:
        return ValueType.DOUBLE
    if len(kinds) > 1:
        raise ValueError(f"expected items of one type, got {' and '.join(sorted(map(str, kinds)))}")
    return kinds.pop() if kinds else ValueType.NULL


def unscaled(number: Decimal, scale: int) -> int:
    """The digits of a number with at most `scale` of them behind the point, as an int.

    >>> unscaled(Decimal("12.3"), 2)
    1230
    """
    return int(number.scaleb(scale, _EXACT))


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
    match wanted.kind, value:
        case "double", int() if type(value) is int and _fits_double(value):
            return float(value)
        case "timestamp", str() | datetime():
            return Timestamp(value)
        case "date", str() | date() if not isinstance(value, datetime):
            return Date(value)
        case "time", str() | time():
            return Time(value)
        case "bytes", bytearray() | memoryview():
            return bytes(value)
        case "decimal", Decimal() | str() | int() if type(value) is int or not isinstance(value, int):
            return _as_decimal(wanted, value)
        case "array", list() | tuple():
            return _as_array(wanted, value)
        case "map", Mapping():
            return _as_map(wanted, value)
    raise EventError(f"expected {_EXPECTED[wanted.kind]}, got {describe(value)}")


def _as_decimal(wanted: ValueType, value: Decimal | str | int) -> Exact:
    """Padded with zeros to the type's scale; a digit that does not fit is an error."""
    try:
        number = Decimal(value) if not isinstance(value, str) or _DECIMAL.fullmatch(value) else Decimal("NaN")
        fitting = number.quantize(Decimal(1).scaleb(-wanted.scale), context=_EXACT)
    except (InvalidOperation, ValueError):  # Too many digits; for Python to read, or for any decimal.
        number = fitting = Decimal("NaN")
    if fitting != number or len(fitting.as_tuple().digits) > wanted.precision:  # As NaN differs from itself.
        raise EventError(f"expected a number that {wanted} holds exactly, got {describe(value)}")
    return Exact(fitting if fitting else abs(fitting))  # No -0.


_DECIMAL = re.compile(r"[+-]?(\d{1,60}(\.\d{0,60})?|\.\d{1,60})([eE][+-]?\d{1,3})?", re.ASCII)


def _as_array(wanted: ValueType, items: list[Any] | tuple[Any, ...]) -> tuple[Any, ...]:
    assert wanted.element is not None
    check, found = wanted.element.check, []
    for index, item in enumerate(items):
        try:
            found.append(None if item is None else check(item))
        except EventError as wrong:
            raise EventError(f"item {index}: {wrong}") from None
    return tuple(found)


def _as_map(wanted: ValueType, entries: Mapping[Any, Any]) -> dict[Any, Any]:
    assert wanted.element is not None
    assert wanted.map_key is not None
    check, found = wanted.element.check, {}
    for key, value in entries.items():
        try:
            found[wanted.map_key.check(key)] = None if value is None else check(value)
        except EventError as wrong:
            raise EventError(f"entry {describe(key)}: {wrong}") from None
    if len(found) < len(entries):
        raise EventError(f"expected every key once, got {describe(entries)}")
    return found


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
_NARROWER: dict[str, Callable[[Any], bool]] = {
    "int": _fits_int64,
    "string": _is_unicode,
    **dict.fromkeys(("decimal", "array", "map"), lambda _: False),  # Looked at in full.
}


_UNDATED = re.compile(r"@-?[0-9]{1,19}")


def _parse_iso(text: str) -> datetime | int:
    try:
        # As `iso` writes moments that have no date.
        return int(text[1:]) if _UNDATED.fullmatch(text) else datetime.fromisoformat(text)
    except ValueError:
        got = describe(text)
        raise EventError(f"expected an ISO 8601 timestamp such as 2026-01-31T12:00:00Z, got {got}") from None


def _parse_date(text: str) -> date | int:
    try:
        return int(text[1:]) if _UNDATED.fullmatch(text) else date.fromisoformat(text)
    except ValueError:
        raise EventError(f"expected an ISO 8601 date such as 2026-01-31, got {describe(text)}") from None


def _parse_time(text: str) -> time:
    try:
        return time.fromisoformat(text)
    except ValueError:
        raise EventError(f"expected an ISO 8601 time such as 12:30:00, got {describe(text)}") from None
