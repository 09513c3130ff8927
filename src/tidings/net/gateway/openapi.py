"""What the gateway answers, as data: the server finds its operations here, and serves the same table as OpenAPI 3.1.

A path, a method or a query parameter that is not in the table is refused before anybody is asked for a certificate, so
the description cannot leave out what the code does. Schemas of bodies say what `events.cloudevents` and
`subscriptions_api` check; a test has schemathesis compare the two on a running gateway.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tidings.errors import did_you_mean
from tidings.events import INT_MAX
from tidings.net.broker.durable_queues import NAME_MAX
from tidings.net.gateway.http import BODY_BYTES_MAX, BadRequest, Request

WAIT_S_MAX: Final = 86_400  # Of a stream that ends by itself; one that does not name it has no end.
JSON, STRUCTURED, BATCHED, STREAM = (
    "application/json",
    "application/cloudevents+json",
    "application/cloudevents-batch+json",
    "text/event-stream",
)
POSITION: Final = {"type": "string", "pattern": "^[0-9]{1,18}$", "description": "The number of an event in a queue."}
_ID = re.compile(r"/subscriptions/([^/]+)")


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path."""

    name: str
    method: str
    path: str
    summary: str
    answers: Mapping[int, tuple[str, str, Mapping[str, Any]]]  # By status: what it says, content type, schema.
    query: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    required: tuple[str, ...] = ()  # Of the query parameters.
    headers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    bodies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # By content type.
    refusals: tuple[int, ...] = ()  # Beyond those that any operation with an identity has.
    is_public: bool = False

    @property
    def statuses(self) -> tuple[int, ...]:
        """All that it answers with; 413 and 415 only where it reads a body."""
        known = () if self.is_public else (400, 401, 403, 503)
        return (*self.answers, *known, *((413, 415) if self.bodies else ()), *self.refusals)


def operation_for(request: Request) -> Operation:
    """The operation that a request names; raises BadRequest for one that is not in the table."""
    path = "/subscriptions/{id}" if _ID.fullmatch(request.path) else request.path
    here = {each.method: each for each in OPERATIONS if each.path == path}
    if not here:
        raise BadRequest(404, "there is no such path; GET /openapi.json describes those there are")
    if request.method not in here:
        raise BadRequest(405, f"{path} has {', '.join(here)}; GET /openapi.json describes them")
    found = here[request.method]
    for name in request.query:
        if name not in found.query:
            hint = did_you_mean(name[:100], found.query)
            raise BadRequest(400, f"{found.name} has no parameter {name[:100]!r}{hint and '; ' + hint}")
    missing = [name for name in found.required if not request.query.get(name)]
    if missing:
        raise BadRequest(400, f"{found.name} needs the parameter {missing[0]}")
    return found


def methods_of(request: Request) -> str:
    """For the header `Allow`: the methods of a path, or those of the whole gateway."""
    path = "/subscriptions/{id}" if _ID.fullmatch(request.path) else request.path
    here = [each.method for each in OPERATIONS if each.path == path]
    return ", ".join([*(here or dict.fromkeys(each.method for each in OPERATIONS)), "OPTIONS"])


def subscription_in(request: Request) -> str:
    """The id in the path of an operation on one subscription."""
    found = _ID.fullmatch(request.path)
    return found[1] if found else ""


# ── Schemas ──


def _object(properties: Mapping[str, Any], required: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(required), **more}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT: dict[str, Any] = {"type": "string"}
_NAME: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": NAME_MAX}
_VALUES = _object({}, minProperties=1, additionalProperties={"type": "string", "minLength": 1})
_FILTERS: dict[str, Any] = {"type": "array", "items": _ref("Filter"), "minItems": 1}
_DIALECTS: dict[str, Any] = {
    "exact": _VALUES,
    "prefix": _VALUES,
    "suffix": _VALUES,
    "all": _FILTERS,
    "any": _FILTERS,
    "not": _ref("Filter"),
    "tidings": {"type": "string", "description": "A condition in SQL, as in `GET /events?where=…`."},
}
_ASKED = {
    "id": {"type": "string", "description": "Ignored when a subscription is created; otherwise that of the path."},
    "types": {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1, "maxItems": 1},
    "filters": {"type": "array", "items": _ref("Filter")},
    "config": _object({"name": _NAME}, additionalProperties=False),
    "protocol": {"enum": ["SSE", "HTTP"], "description": "Read at the gateway, or sent to a webhook."},
    "sink": {
        "type": "string",
        "pattern": r"^(/events(\?.*)?|https?://.+)$",
        "description": "Where to read it: `/events`, or what the gateway answered; or the address of a webhook.",
    },
}
_SCHEMAS: dict[str, Any] = {
    "CloudEvent": _object(
        {
            "specversion": {"const": "1.0"},
            "id": {"type": "string", "minLength": 1},
            "source": {"type": "string", "minLength": 1},
            "type": {"type": "string", "minLength": 1, "description": "The name of an event type of this broker."},
            "time": {"type": "string", "format": "date-time"},
            "data": {"type": "object", "description": "The event's attributes, as its type declares them."},
        },
        ("specversion", "id", "source", "type"),
        description="CloudEvents 1.0 in JSON. The gateway drops `subject`, `dataschema` and extensions.",
    ),
    "Published": _object({"ids": {"type": "array", "items": _TEXT}}, ("ids",)),
    "Acknowledged": _object({"acknowledged": {"type": "integer", "minimum": 0, "maximum": INT_MAX}}, ("acknowledged",)),
    "Filter": {
        "type": "object",
        "properties": _DIALECTS,
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
        "description": "One dialect and its expression. Names are those of the event's attributes, and `type`.",
    },
    "SubscriptionRequest": _object(_ASKED, ("types", "protocol"), additionalProperties=False),
    "Subscription": _object(_ASKED, ("id", "types", "filters", "config", "protocol", "sink")),
    "Refusal": _object(
        {"error": _TEXT, "code": {"type": "string", "description": "For programs."}, "why": _TEXT},
        ("error", "code", "why"),
    ),
}

# ── The table ──

_SUBSCRIPTION = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[^/]+$"}}
_ONE = ("The subscription.", JSON, _ref("Subscription"))
_CE_HEADERS = {
    f"ce-{name}": {**_TEXT, "description": "Of a CloudEvent in binary mode, whose body is its data."}
    for name in ("specversion", "id", "source", "type", "time")
}

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "publishEvents",
        "POST",
        "/events",
        "Publish one CloudEvent, or a batch",
        {201: ("On disk; the events' ids.", JSON, _ref("Published"))},
        headers=_CE_HEADERS,
        bodies={
            STRUCTURED: _ref("CloudEvent"),
            BATCHED: {"type": "array", "items": _ref("CloudEvent")},
            JSON: {"type": "object", "description": "The data of an event in binary mode."},
        },
        refusals=(429,),
    ),
    Operation(
        "streamEvents",
        "GET",
        "/events",
        "Read events as they come, each a CloudEvent",
        {200: ("Server-sent events. `event: missed` counts those dropped, `event: refused` ends.", STREAM, _TEXT)},
        query={
            "type": {**_TEXT, "minLength": 1},
            "where": {"type": "string", "default": "TRUE", "description": "A condition in SQL."},
            "durable": {**_NAME, "description": "The name of a durable subscription; made if there is none."},
            "wait_s": {"type": "integer", "minimum": 0, "maximum": WAIT_S_MAX, "description": "End after so long."},
        },
        required=("type",),
        refusals=(409,),
        headers={
            "Last-Event-ID": {
                "type": "string",
                "pattern": "^[0-9]{0,18}$",
                "description": "Acknowledges a durable subscription up to this position, and goes on after it.",
            }
        },
    ),
    Operation(
        "acknowledge",
        "POST",
        "/acknowledge",
        "Acknowledge the events of a durable subscription up to a position",
        {202: ("The position that holds.", JSON, _ref("Acknowledged"))},
        query={"durable": _NAME, "position": POSITION},
        required=("durable", "position"),
        refusals=(404, 413),
    ),
    Operation(
        "querySubscriptions",
        "GET",
        "/subscriptions",
        "List your durable subscriptions",
        {200: ("All of yours at this broker.", JSON, {"type": "array", "items": _ref("Subscription")})},
    ),
    Operation(
        "createSubscription",
        "POST",
        "/subscriptions",
        "Create a durable subscription",
        {201: ("Made; `sink` is where to read it.", JSON, _ref("Subscription"))},
        bodies={JSON: _ref("SubscriptionRequest")},
        refusals=(409,),
    ),
    Operation(
        "retrieveSubscription",
        "GET",
        "/subscriptions/{id}",
        "Show one of your subscriptions",
        {200: _ONE},
        refusals=(404,),
    ),
    Operation(
        "updateSubscription",
        "PUT",
        "/subscriptions/{id}",
        "Replace one of your subscriptions; what waits in its queue is dropped",
        {200: _ONE},
        bodies={JSON: _ref("SubscriptionRequest")},
        refusals=(404,),
    ),
    Operation(
        "deleteSubscription",
        "DELETE",
        "/subscriptions/{id}",
        "Delete one of your subscriptions and its queue",
        {200: _ONE},
        refusals=(404,),
    ),
    Operation(
        "describe",
        "GET",
        "/openapi.json",
        "This description",
        {200: ("OpenAPI 3.1.", JSON, {"type": "object"})},
        is_public=True,
    ),
    Operation(
        "page",
        "GET",
        "/",
        "A page to try it",
        {200: ("A page.", "text/html; charset=utf-8", _TEXT)},
        is_public=True,
    ),
    Operation(
        "pageScript",
        "GET",
        "/page.mjs",
        "The script of that page",
        {200: ("JavaScript.", "text/javascript", _TEXT)},
        is_public=True,
    ),
    Operation(
        "browserModule",
        "GET",
        "/tidings.mjs",
        "The module that pages of your own use",
        {200: ("JavaScript.", "text/javascript", _TEXT)},
        is_public=True,
    ),
)

_REFUSALS = {
    400: "The request is wrong.",
    401: "The client is not known.",
    403: "The client has no right to do this.",
    404: "There is no such thing of yours.",
    409: "The name is taken, or the events go to a webhook.",
    413: f"The body has more than {BODY_BYTES_MAX} bytes.",
    415: "The content type is none of those that are listed.",
    429: "Too fast; `Retry-After` says in how many seconds to come again.",
    503: "It may work later.",
}


# ── The document ──


def openapi(version: str) -> dict[str, Any]:
    """The whole description, for one version of the program."""
    paths: dict[str, dict[str, Any]] = {}
    for each in OPERATIONS:
        here = paths.setdefault(each.path, {"parameters": [_SUBSCRIPTION]} if "{id}" in each.path else {})
        here[each.method.lower()] = _described(each)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidings gateway",
            "version": version,
            "description": "CloudEvents over HTTP for clients of the broker's own organisation.",
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {"schemas": _SCHEMAS, "securitySchemes": _SECURITY},
    }


_SECURITY: dict[str, Any] = {
    "certificate": {"type": "mutualTLS", "description": "A certificate of the broker's organisation."},
    "proof": {"type": "apiKey", "in": "header", "name": "DPoP", "description": "RFC 9449, with `x5c`; see the docs."},
    "rights": {"type": "http", "scheme": "bearer", "description": "Tokens, with commas between them."},
}

# Who has shown no rights is known all the same, and may at least manage what is already theirs.
_IDENTITIES: list[dict[str, list[str]]] = [
    {"certificate": [], "rights": []},
    {"certificate": []},
    {"proof": [], "rights": []},
    {"proof": []},
]


def _described(operation: Operation) -> dict[str, Any]:
    given: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "security": [] if operation.is_public else _IDENTITIES,
        "responses": {str(status): _response(operation, status) for status in dict.fromkeys(operation.statuses)},
    }
    parameters = [
        {"name": name, "in": "query", "required": name in operation.required, "schema": schema}
        for name, schema in operation.query.items()
    ] + [{"name": name, "in": "header", "schema": schema} for name, schema in operation.headers.items()]
    if parameters:
        given["parameters"] = parameters
    if operation.bodies:
        content = {kind: {"schema": schema} for kind, schema in operation.bodies.items()}
        given["requestBody"] = {"required": True, "content": content}
    return given


def _response(operation: Operation, status: int) -> dict[str, Any]:
    if status not in operation.answers:
        return {"description": _REFUSALS[status], "content": {JSON: {"schema": _ref("Refusal")}}}
    description, kind, schema = operation.answers[status]
    return {"description": description, "content": {kind: {"schema": schema}}}
