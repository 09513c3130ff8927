"""Hypothesis strategies for what is said: values, event types, records and events, odd ones included."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import strategies as st

from tidings.events import INT_MAX, INT_MIN, Attribute, Date, Event, EventType, Time, Timestamp, Value, ValueType

NARROW, WIDE = ValueType.decimal(9, 2), ValueType.decimal(38, 10)
VALUE_TYPES = [
    *ValueType.PLAIN,
    NARROW,
    WIDE,
    *(ValueType(name) for name in ("array<string>", "array<double>", "array<decimal(9,2)>", "array<date>")),
    *(ValueType(name) for name in ("map<string,double>", "map<int,string>")),
]

_ODD_INTS = [0, 1, -1, INT_MIN, INT_MIN + 1, INT_MAX, INT_MAX - 1, 2**53, 2**53 + 1, -(2**53) - 1]
_ODD_DOUBLES = [math.nan, -math.nan, 0.0, -0.0, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 2.0**53, 2.0**63]
_ODD_STRINGS = [
    "",
    "\0",
    "a\0b",
    "𝄞",
    "\uffff",
    "é",
    "e\u0301",
    "'",
    '"',
    "\\",
    "%",
    "_",
    "\n",
    " a ",
    "İ",
    "ß",
    "\x7f",
]
_ODD_BYTES = [b"", b"\0", b"\xff", b"\xc3\x28", b"\x80"]
# Before 1970, the ends of Python's calendar and of 64 bits, either side of a day and of a daylight-saving hour.
_ODD_MOMENTS = [
    *(INT_MIN, INT_MAX, 0, -1, 1),
    *(int(Timestamp(text)) for text in ("0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "1969-12-31T23:59:59Z")),
    *(int(Timestamp(text)) for text in ("2026-03-29T01:00:00Z", "2024-02-29T00:00:00Z", "2026-01-01T00:00:00.5Z")),
]

ints = st.sampled_from(_ODD_INTS) | st.integers(-4, 4) | st.integers(INT_MIN, INT_MAX)
doubles = st.sampled_from(_ODD_DOUBLES) | st.integers(-4, 4).map(float) | st.floats()
texts = st.sampled_from(_ODD_STRINGS) | st.text("abA", max_size=3) | st.text(max_size=8)
byte_strings = st.sampled_from(_ODD_BYTES) | st.binary(max_size=8)
timestamps = (st.sampled_from(_ODD_MOMENTS) | st.integers(INT_MIN, INT_MAX)).map(Timestamp)
dated_timestamps = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999).map(Timestamp)  # Years 1 to 9999.


def _decimals(kind: ValueType) -> st.SearchStrategy[Any]:
    most = 10**kind.precision - 1
    odd = [0, 1, -1, 10**kind.scale, most, -most, 2**63, -(2**64) - 1]
    fitting = [key for key in odd if abs(key) <= most]
    return (st.sampled_from(fitting) | st.integers(-500, 500) | st.integers(-most, most)).map(kind.value_at)


_VALUES: dict[ValueType, st.SearchStrategy[Any]] = {
    NARROW: _decimals(NARROW),
    WIDE: _decimals(WIDE),
    ValueType.DATE: (st.sampled_from([0, 1, -1, -719162, 2932896, 2**31 - 1]) | st.integers(-(2**31), 2**31 - 1)).map(
        Date
    ),
    ValueType.TIME: (st.sampled_from([0, 1, 86_399_999_999]) | st.integers(0, 86_399_999_999)).map(Time),
    ValueType.BOOL: st.booleans(),
    ValueType.INT: ints,
    ValueType.DOUBLE: doubles,
    ValueType.STRING: texts,
    ValueType.TIMESTAMP: timestamps,
    ValueType.BYTES: byte_strings,
}


def values(value_type: ValueType | None = None) -> st.SearchStrategy[Value]:
    """Values of one type, or of any."""
    if value_type is None:
        return st.one_of(*map(values, VALUE_TYPES))
    if value_type.element is None:
        return _VALUES[value_type]
    items: st.SearchStrategy[Any] = st.none() | values(value_type.element)
    if value_type.map_key is None:
        return st.lists(items, max_size=3).map(tuple)
    keys: st.SearchStrategy[Any] = values(value_type.map_key)
    return st.dictionaries(keys, items, max_size=3)


_parts = st.sampled_from(["a", "b", "c", "type", "required", "Plate", "größe", "𝄞", "two words", "x-1"])
_parents = st.sampled_from(["", "", "a.", "b.", "a.b."])  # Few, so that groups have several members.
names = st.builds(str.__add__, _parents, _parts)


def _without_clashes(found: list[str]) -> list[str]:
    """Leaves out names that are the parent of another one."""
    return [n for n in found if not any(other.startswith(n + ".") for other in found)]


@st.composite
def event_types(draw: st.DrawFn, *, attributes_min: int = 1, attributes_max: int = 6) -> EventType:
    """Event types with flat and nested attributes, some required."""
    found = draw(st.lists(names, min_size=attributes_min, max_size=attributes_max, unique=True).map(_without_clashes))
    kinds = st.sampled_from(VALUE_TYPES)
    attributes = tuple(Attribute(name, draw(kinds), draw(st.booleans())) for name in found)
    return EventType.of(draw(st.sampled_from(["Numberplate", "Quake", "Größe"])), attributes)


def records(event_type: EventType) -> st.SearchStrategy[dict[str, Value | None]]:
    """Flat records that fit the event type; optional attributes are often absent or None."""
    return st.fixed_dictionaries(
        {a.name: values(a.type) for a in event_type if a.required},
        optional={a.name: st.none() | values(a.type) for a in event_type if not a.required},
    )


@st.composite
def events(
    draw: st.DrawFn,
    of: st.SearchStrategy[EventType] | None = None,
    times: st.SearchStrategy[Timestamp] = timestamps,
) -> Event:
    """Events of any type, or of the given ones."""
    _, event = draw(typed_events(of, times))
    return event


@st.composite
def typed_events(
    draw: st.DrawFn,
    of: st.SearchStrategy[EventType] | None = None,
    times: st.SearchStrategy[Timestamp] = timestamps,
) -> tuple[EventType, Event]:
    """An event type and an event of it."""
    event_type = draw(of or event_types())
    named = texts.filter(bool)
    event = Event.of(event_type, draw(records(event_type)), id=draw(named), source=draw(named), time=draw(times))
    return event_type, event
