"""An event type as JSON Schema (draft 7): which records `jsonform` writes for its events, and reads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tidings.events.schema import EventType
from tidings.events.values import INT_MAX, INT_MIN, ValueType

_ODD_DOUBLES = ["NaN", "Infinity", "-Infinity"]
_PLAIN: dict[str, dict[str, Any]] = {
    "bool": {"type": "boolean"},
    "int": {"type": "integer", "minimum": INT_MIN, "maximum": INT_MAX},
    "double": {"anyOf": [{"type": "number"}, {"enum": _ODD_DOUBLES}]},
    "string": {"type": "string"},
    "timestamp": {"type": "string", "format": "date-time"},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "description": "Hours, minutes and seconds, without an offset."},
    "bytes": {"type": "string", "contentEncoding": "base64"},
}


def json_schema(event_type: EventType, names: Collection[str] | None = None) -> dict[str, Any]:
    """The schema of an event's record; with `names`, of one that has no other attributes than these.

    >>> plate = EventType("Plate", plate="string", speed="int")
    >>> json_schema(plate, ["plate"])["properties"]
    {'plate': {'anyOf': [{'type': 'string'}, {'type': 'null'}]}}
    """
    root = _group()
    for attribute in event_type:
        if names is not None and attribute.name not in names:
            continue
        *parents, last = attribute.name.split(".")
        inner = root
        for parent in parents:
            if attribute.required and parent not in inner.setdefault("required", []):
                inner["required"].append(parent)
            inner = inner["properties"].setdefault(parent, _group())
        inner["properties"][last] = _value(attribute.type) if attribute.required else _or_null(_value(attribute.type))
        if attribute.required:
            inner.setdefault("required", []).append(last)
    return root


def _group() -> dict[str, Any]:
    return {"type": "object", "properties": {}, "additionalProperties": False}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def _value(type: ValueType) -> dict[str, Any]:
    if type.element is not None:
        items = _or_null(_value(type.element))
        return {"type": "object", "additionalProperties": items} if type.map_key else {"type": "array", "items": items}
    if type.is_decimal:
        return {
            "type": "string",
            "pattern": r"^-?[0-9]+(\.[0-9]+)?$",
            "description": f"A number of up to {type.precision} digits, {type.scale} of them behind the point.",
        }
    return dict(_PLAIN[type.kind])
