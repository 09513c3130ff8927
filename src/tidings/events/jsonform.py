"""Records in JSON: the one form that values take in CloudEvents, in JSON lines and on the command line.

| attribute | JSON |
| --- | --- |
| bool | true, false |
| int | a number without a fraction, exact over all 64 bits |
| double | a number, or "NaN", "Infinity", "-Infinity", which JSON has no numbers for |
| string | a string |
| timestamp | an RFC 3339 string; `"@µs"` for moments outside the years 1 to 9999 |
| bytes | a string in base64 |
| decimal | a string such as "12.30"; a number is taken as its shortest digits, which are exact up to 15 |
| date, time | a string such as "2026-01-31" or "12:30:00" |
| array | an array |
| map | an object; keys that are no strings are written as they would be in one |

An attribute `a.b` is nested. Reading is strict: a key that occurs twice and a NaN without
quotes are errors, and every error is an EventError with its reason.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NoReturn

from tidings.errors import EventError
from tidings.events.schema import NESTING_MAX, EventType
from tidings.events.values import Date, Time, Timestamp, Value, ValueType, describe


def read_record(body: bytes | str) -> dict[str, Any]:
    """The JSON object that a text is; its values are not typed yet.

    >>> read_record('{"speed": 31, "position": {"lat": 51.5}}')
    {'speed': 31, 'position': {'lat': 51.5}}
    """
    record = parse_json(body)
    if not isinstance(record, dict):
        raise EventError(f'expected a JSON object such as {{"speed": 31.0}}, got {describe(record)}')
    return record


def read_values(body: bytes | str, event_type: EventType) -> dict[str, Value]:
    """The checked values of the record that a JSON text is."""
    return event_type.check(typed(read_record(body), event_type))


def parse_json(body: bytes | str) -> Any:
    """Parses strict JSON: UTF-8, every key once, no bare NaN. Raises EventError with the reason."""
    try:
        text = body.decode() if isinstance(body, bytes) else body
        return json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_no_constant)
    except RecursionError:
        raise EventError("the JSON is nested too deeply") from None
    except UnicodeDecodeError as wrong:
        raise EventError(f"expected UTF-8, got another byte at {wrong.start}") from None
    except ValueError as wrong:  # Of which JSONDecodeError is a kind; the other is a number of thousands of digits.
        raise EventError(f"not JSON: {wrong}") from None


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise EventError(f"expected every key once, got {describe(repeated)} twice")
    return table


def _no_constant(word: str) -> NoReturn:
    raise EventError(f'expected JSON, which has no {word}; a double attribute takes it as "{word}"')


def typed(data: Mapping[str, Any], event_type: EventType, prefix: str = "") -> dict[str, Any]:
    """`data` with texts converted to the types of their attributes; `Event.of` checks the rest."""
    return {key: _typed_value(prefix + key, value, event_type) for key, value in data.items()}


def _typed_value(name: str, value: Any, event_type: EventType) -> Any:
    if name not in event_type:
        # What is nested deeper than a name can be is left to the check, which refuses it.
        is_group = isinstance(value, dict) and name.count(".") < NESTING_MAX
        return typed(value, event_type, name + ".") if is_group else value
    try:
        return _from_json(event_type[name].type, value)
    except EventError as wrong:
        raise EventError(f"{event_type.name}: attribute {name!r}: {wrong}") from None


def _from_json(kind: ValueType, value: Any) -> Any:
    if kind.element is not None:
        return _items_from(kind, kind.element, value)
    return _FROM_JSON[kind.kind](value) if kind.kind in _FROM_JSON else value


def _items_from(kind: ValueType, element: ValueType, value: Any) -> Any:
    """The items converted; what is no array or object is left to the check, which refuses it."""
    if isinstance(value, list):
        return [None if item is None else _from_json(element, item) for item in value]
    if isinstance(value, dict) and kind.map_key is not None:
        return {
            _key_from(kind.map_key, key): None if item is None else _from_json(element, item)
            for key, item in value.items()
        }
    return value


def _key_from(kind: ValueType, key: str) -> Any:
    """A key, which JSON writes as a string."""
    try:
        if kind.kind in ("bool", "int", "double"):
            return _from_json(kind, json.loads(key))
        return _from_json(kind, key)
    except ValueError:
        raise EventError(f"expected a key of type {kind}, got {describe(key)}") from None


def _decimal_from(value: Any) -> Any:
    return repr(value) if isinstance(value, float) else value


def _double_from(value: Any) -> Any:
    if isinstance(value, str) and value in _ODD_DOUBLES:
        return _ODD_DOUBLES[value]
    if type(value) is not int and not isinstance(value, float):
        return value
    number = _nearest_double(value)
    if math.isinf(number):
        raise EventError('expected a number that a double holds, or "Infinity"; got a larger one')
    return number


def _nearest_double(number: float) -> float:
    try:
        return float(number)  # In JSON, unlike in Python, 1000 is how many writers put the double 1000.0.
    except OverflowError:
        return math.inf


def _timestamp_from(value: Any) -> Any:
    if isinstance(value, str):
        return Timestamp(value)
    return value


def _bytes_from(value: Any) -> Any:
    return None if value is None else from_base64(value)


_ODD_DOUBLES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_FROM_JSON = {
    "double": _double_from,
    "decimal": _decimal_from,
    "timestamp": _timestamp_from,
    "bytes": _bytes_from,
}


def from_base64(text: Any) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise EventError(f"expected bytes in base64, got {describe(text)}")


def to_record(values: Mapping[str, Value]) -> dict[str, Any]:
    """An event's values as a nested record of what JSON has."""
    data: dict[str, Any] = {}
    for name, value in values.items():
        *parents, last = name.split(".")
        inner = data
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[last] = _to_json(value)
    return data


def _to_json(value: Value) -> Any:
    match value:
        case Timestamp() | Date() | Time():
            return value.iso()
        case Decimal():
            return format(value, "f")
        case bytes():
            return base64.b64encode(value).decode()
        case float() if not math.isfinite(value):
            return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
        case tuple():
            return [None if item is None else _to_json(item) for item in value]
        case dict():
            return {_key_to(key): None if item is None else _to_json(item) for key, item in value.items()}
    return value


def _key_to(key: Value) -> str:
    written = _to_json(key)
    return written if isinstance(written, str) else json.dumps(written)
