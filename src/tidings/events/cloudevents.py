"""CloudEvents 1.0 in JSON, in and out: structured, binary and batched mode, through the CloudEvents SDK.

An event's id, source, type and time are the context attributes of the same names; its
values are `data`, in the JSON form of `jsonform`. An attribute that the event type does not
know is an error, as is everything that is no strict JSON; every error is an EventError. `subject`,
`dataschema` and extension attributes are allowed and dropped; what conditions should see
belongs into `data`. An event without a time is an error unless the reader names a time to
give it.

Writing needs no event type, reading does: one, or several by name for a mixed stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from cloudevents.core.base import BaseCloudEvent, EventFactory
from cloudevents.core.bindings import http
from cloudevents.core.exceptions import BaseCloudEventException, CloudEventValidationError
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from tidings.errors import EventError, did_you_mean
from tidings.events.event import Event
from tidings.events.jsonform import from_base64, parse_json, to_record, typed
from tidings.events.schema import EventType
from tidings.events.values import Timestamp, describe

STRUCTURED = "application/cloudevents+json"
BATCHED = "application/cloudevents-batch+json"

BODY_BYTES_MAX = 16 * 2**20  # CloudEvents asks everyone to carry 64 KiB; a batch may hold a few hundred such.

EventTypes: TypeAlias = EventType | Mapping[str, EventType]


# ── In ───────────────────────────────────────────────────────────────────────


def from_structured(body: bytes | str, types: EventTypes, *, time_if_missing: Timestamp | None = None) -> Event:
    """The event that a structured CloudEvent carries, checked against its type."""
    factory = _Factory(time_if_missing)
    try:
        return _event(_FORMAT.read(factory, _bounded(body)), types)
    except BaseCloudEventException as wrong:
        raise _refused(wrong) from None


def from_binary(
    headers: Mapping[str, str], body: bytes, types: EventTypes, *, time_if_missing: Timestamp | None = None
) -> Event:
    """The event of a binary-mode HTTP message: context attributes in `ce-` headers, the values as the body."""
    message = http.HTTPMessage(_distinct(headers), _as_bytes(_bounded(body)))
    try:
        return _event(http.from_binary(message, _FORMAT, _Factory(time_if_missing)), types)
    except BaseCloudEventException as wrong:
        raise _refused(wrong) from None
    except (ValueError, OverflowError) as wrong:  # The SDK reads `ce-time` and lets its parser's errors out.
        raise EventError(f"not a CloudEvent: header 'ce-time': {wrong}") from None


def from_batched(body: bytes | str, types: EventTypes, *, time_if_missing: Timestamp | None = None) -> list[Event]:
    """The events of a batch, a JSON array of structured CloudEvents; one that is wrong fails the batch."""
    batch = parse_json(_bounded(body))
    if not isinstance(batch, list):
        raise EventError(f"not a batch of CloudEvents: expected a JSON array, got {describe(batch)}")
    factory = _Factory(time_if_missing)
    return [_batched_event(number, found, types, factory) for number, found in enumerate(batch)]


# ── Out ──────────────────────────────────────────────────────────────────────


def to_structured(event: Event) -> bytes:
    """The event as one JSON object, to be sent with content type STRUCTURED."""
    return _bounded_out(_FORMAT.write(_cloud_event(event)))


def to_binary(event: Event) -> tuple[dict[str, str], bytes]:
    """The event as HTTP headers and body."""
    message = http.to_binary(_cloud_event(event), _FORMAT)
    return message.headers, _bounded_out(message.body)


def to_batched(events: Iterable[Event]) -> bytes:
    """The events as a JSON array, to be sent with content type BATCHED."""
    return _bounded_out(b"[" + b",".join(to_structured(event) for event in events) + b"]")


# ── Reading, step by step ────────────────────────────────────────────────────


class _StrictJson(JSONFormat):
    """The SDK's JSON format, reading only what means one thing."""

    def read(self, event_factory: EventFactory | None, data: str | bytes) -> BaseCloudEvent:
        assert event_factory is not None
        return _from_object(parse_json(data), event_factory)

    def read_data(self, body: bytes, datacontenttype: str | None) -> Any:
        _check_content_type(datacontenttype)
        return parse_json(body) if body else None


_FORMAT = _StrictJson()


class _Factory:
    """Makes the SDK's event, after seeing to it that the SDK need not invent an id or read the clock."""

    def __init__(self, time_if_missing: Timestamp | None) -> None:
        self.time_if_missing = time_if_missing

    def __call__(self, attributes: dict[str, Any], data: Any) -> CloudEvent:
        for name in ("specversion", "id", "source", "type"):
            if name not in attributes:
                raise EventError(f"not a CloudEvent: {name!r} is required and missing")
        if "time" not in attributes:
            if self.time_if_missing is None:
                raise EventError("the CloudEvent has no 'time', which an event needs")
            attributes["time"] = _datetime(self.time_if_missing)
        _check_content_type(attributes.get("datacontenttype"))
        return CloudEvent(attributes, data)


def _from_object(found: Any, factory: EventFactory) -> BaseCloudEvent:
    if not isinstance(found, dict):
        raise EventError(f"not a CloudEvent: expected a JSON object, got {describe(found)}")
    attributes = {name: value for name, value in found.items() if name not in ("data", "data_base64")}
    attributes = {name: value for name, value in attributes.items() if value is not None}  # Null is as absent.
    if "time" in attributes:
        attributes["time"] = _parsed_time(attributes["time"])
    return factory(attributes, _data_of(found))


def _data_of(found: Mapping[str, Any]) -> Any:
    encoded = found.get("data_base64")
    if encoded is None:
        return found.get("data")
    if found.get("data") is not None:
        raise EventError("not a CloudEvent: expected 'data' or 'data_base64', got both")
    return parse_json(from_base64(encoded))


def _batched_event(number: int, found: Any, types: EventTypes, factory: EventFactory) -> Event:
    try:
        return _event(_from_object(found, factory), types)
    except BaseCloudEventException as wrong:
        raise EventError(f"event {number} of the batch: {_refused(wrong)}") from None
    except EventError as wrong:
        raise EventError(f"event {number} of the batch: {wrong}") from None


def _event(cloud_event: BaseCloudEvent, types: EventTypes) -> Event:
    event_type = _type_named(cloud_event.get_type(), types)
    time, data = cloud_event.get_time(), cloud_event.get_data()
    assert time is not None
    if not isinstance(data, dict | None):
        raise EventError(f"{event_type.name}: expected data to be a JSON object, got {describe(data)}")
    record = typed(data or {}, event_type)
    return Event.of(event_type, record, id=cloud_event.get_id(), source=cloud_event.get_source(), time=Timestamp(time))


def _type_named(name: str, types: EventTypes) -> EventType:
    known = {types.name: types} if isinstance(types, EventType) else types
    if name in known:
        return known[name]
    hint = did_you_mean(name[:255], known)
    raise EventError(
        f"expected an event of {' or '.join(list(known)[:12])}, got {describe(name)}{hint and '; ' + hint}"
    )


def _parsed_time(text: Any) -> datetime:
    try:
        if isinstance(text, str):
            return datetime.fromisoformat(text.upper())  # RFC 3339 allows a small t and z, Python does not.
    except ValueError:
        pass
    raise EventError(f"not a CloudEvent: expected 'time' in RFC 3339, got {describe(text)}")


def _check_content_type(content_type: object) -> None:
    if content_type is not None and not (
        isinstance(content_type, str) and JSONFormat.JSON_CONTENT_TYPE_PATTERN.match(content_type)
    ):
        raise EventError(f"expected data of content type application/json, got {describe(content_type)}")


def _distinct(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers by their names in lower case, since HTTP ignores the case of names."""
    distinct: dict[str, str] = {}
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise EventError(f"expected headers to be texts, got {describe(name)}: {describe(value)}")
        if name.lower() in distinct:
            raise EventError(f"expected header {name.lower()!r} once, got it twice")
        distinct[name.lower()] = value
    return distinct


def _bounded(body: bytes | str) -> bytes | str:
    if not isinstance(body, bytes | str):
        raise EventError(f"expected the body as bytes, got {describe(body)}")
    if len(body) > BODY_BYTES_MAX:
        raise EventError(f"expected a body of at most {BODY_BYTES_MAX} bytes, got {len(body)}")
    return body


def _as_bytes(body: bytes | str) -> bytes:
    return body.encode(errors="surrogatepass") if isinstance(body, str) else body


def _refused(wrong: BaseCloudEventException) -> EventError:
    if isinstance(wrong, CloudEventValidationError):
        reasons = "; ".join(str(errors[0]) for errors in list(wrong.errors.values())[:4])
        return EventError(f"not a CloudEvent: {reasons[:500]}")
    return EventError(f"not a CloudEvent: {str(wrong)[:500]}")


# ── Writing, step by step ────────────────────────────────────────────────────


def _cloud_event(event: Event) -> CloudEvent:
    attributes = {
        "specversion": "1.0",
        "id": event.id,
        "source": event.source,
        "type": event.type,
        "time": _datetime(event.time),
        "datacontenttype": "application/json",
    }
    return CloudEvent(attributes, to_record(event.values))


def _datetime(moment: Timestamp) -> datetime:
    try:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=int(moment))
    except OverflowError:
        raise EventError(f"expected a time in the years 1 to 9999, which CloudEvents can write; got {moment}") from None


def _bounded_out(body: bytes) -> bytes:
    if len(body) > BODY_BYTES_MAX:
        raise EventError(f"the event takes {len(body)} bytes as JSON; at most {BODY_BYTES_MAX} are sent")
    return body
