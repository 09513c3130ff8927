"""An event type as AsyncAPI 3.0: what can be published and received, with all attributes or those that a right shows."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from tidings.errors import Denied
from tidings.events import json_schema

if TYPE_CHECKING:
    from tidings.security import Right, SignedType

CONTENT_TYPE = "application/cloudevents+json"
_ACTIONS = {"publish": "send", "subscribe": "receive"}  # Of a right, and what AsyncAPI calls them.


def asyncapi(signed: SignedType, right: Right | None) -> dict[str, Any]:
    """The description; with a right, only what its holder may do, and see. Raises Denied for a right to something else."""
    if right is not None and right.type_id != signed.type_id:
        raise Denied(f"type: the right is not for {signed.name}")
    allowed = [action for action in _ACTIONS if right is None or action in right.actions]
    if not allowed:
        raise Denied(f"action: the right is neither to publish nor to subscribe to {signed.event_type.name}")
    name = signed.event_type.name
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": name,
            "version": str(signed.version),
            "description": _description(signed, right),
        },
        "defaultContentType": CONTENT_TYPE,
        "channels": {
            "events": {
                "address": name,
                "title": f"Events of type {name}",
                "messages": {"event": {"$ref": "#/components/messages/event"}},
            }
        },
        "operations": {
            action: {
                "action": _ACTIONS[action],
                "channel": {"$ref": "#/channels/events"},
                "messages": [{"$ref": "#/channels/events/messages/event"}],
            }
            for action in allowed
        },
        "components": {
            "messages": {
                "event": {
                    "name": name,
                    "contentType": CONTENT_TYPE,
                    "payload": _cloud_event(signed, _readable(signed, right)),
                }
            }
        },
    }


def _readable(signed: SignedType, right: Right | None) -> Collection[str] | None:
    if right is None or right.attributes is None:
        return None
    return [attribute.name for id, attribute in signed.attributes_by_id.items() if id in right.attributes]


def _description(signed: SignedType, right: Right | None) -> str:
    about = f"The event type {signed.name}, as its owner signed it."
    if right is None:
        return about
    whose = " With the attributes that one right shows"
    return f"{about}{whose}, where {' and '.join(right.constraints)}." if right.constraints else f"{about}{whose}."


def _cloud_event(signed: SignedType, names: Collection[str] | None) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "specversion": {"const": "1.0"},
            "id": {"type": "string", "minLength": 1},
            "source": {"type": "string", "minLength": 1},
            "type": {"const": signed.event_type.name},
            "time": {"type": "string", "format": "date-time"},
            "datacontenttype": {"const": "application/json"},
            "data": json_schema(signed.event_type, names),
        },
        "required": ["specversion", "id", "source", "type"],
    }
