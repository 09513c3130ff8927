"""CloudEvents: what goes out others can read, what comes in is read strictly or refused with a reason."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import pytest

from tests.given import Plate, Quake, a_quake, a_sighting
from tidings.errors import EventError
from tidings.events import Event, EventType, Timestamp, cloudevents
from tidings.events.cloudevents import BODY_BYTES_MAX

_QUAKE: dict[str, Any] = {
    "specversion": "1.0",
    "id": "quake-1",
    "source": "seismograph",
    "type": "Quake",
    "time": "1970-01-01T00:00:00Z",
    "data": {"magnitude": 6.1, "depth": 10},
}
_HEADERS = {
    "ce-specversion": "1.0",
    "ce-id": "quake-1",
    "ce-source": "seismograph",
    "ce-type": "Quake",
    "ce-time": "1970-01-01T00:00:00Z",
    "Content-Type": "application/json; charset=utf-8",
}
_BODY = b'{"magnitude": 6.1, "depth": 10}'


def _structured(**change: Any) -> bytes:
    return json.dumps({name: value for name, value in (_QUAKE | change).items() if value is not ...}).encode()


# ── Out ──


def test_a_structured_event_is_one_json_object_with_nested_data() -> None:
    assert json.loads(cloudevents.to_structured(a_sighting)) == {
        "specversion": "1.0",
        "id": "sighting-1",
        "source": "cam-7",
        "type": "Numberplate",
        "time": "2026-01-01T08:00:01Z",
        "datacontenttype": "application/json",
        "data": {
            "plate": "AB12CDE",
            "area": "EC2",
            "speed": 31.0,
            "lanes": 3,
            "stolen": False,
            "seen_at": "2026-01-01T08:00:00Z",
            "photo": "/9g=",
            "position": {"lat": 51.5, "lon": -0.1},
        },
    }


def test_a_binary_event_has_its_head_in_headers_that_need_no_trust() -> None:
    odd = Event.of(Quake, {"magnitude": 1.0}, id="a\r\nb: c % é", source="s", time=0)
    headers, body = cloudevents.to_binary(odd)
    assert headers["ce-id"] == "a%0D%0Ab:%20c%20%25%20%C3%A9"
    assert headers["content-type"] == "application/json"
    assert json.loads(body) == {"magnitude": 1.0}
    assert cloudevents.from_binary(headers, body, Quake) == odd


def test_a_time_that_rfc_3339_cannot_say_is_refused_on_the_way_out() -> None:
    late = Event.of(Quake, {"magnitude": 1.0}, id="1", source="s", time=2**63 - 1)
    for write in (cloudevents.to_structured, cloudevents.to_binary):
        with pytest.raises(EventError, match="expected a time in the years 1 to 9999"):
            write(late)


def test_an_event_too_large_to_be_read_back_is_not_written() -> None:
    large = Event.of(EventType("T", a=str), {"a": "x" * BODY_BYTES_MAX}, id="1", source="s", time=0)
    with pytest.raises(EventError, match=f"at most {BODY_BYTES_MAX}"):
        cloudevents.to_structured(large)


# ── In ──


def test_every_mode_reads_the_same_event() -> None:
    assert cloudevents.from_structured(_structured(), Quake) == a_quake
    assert cloudevents.from_structured(_structured().decode(), Quake) == a_quake
    assert cloudevents.from_binary(_HEADERS, _BODY, Quake) == a_quake
    assert cloudevents.from_batched(b"[" + _structured() + b"," + _structured() + b"]", Quake) == [a_quake, a_quake]


def test_a_mixed_stream_is_read_with_several_types() -> None:
    both = cloudevents.to_batched([a_quake, a_sighting])
    assert cloudevents.from_batched(both, {"Quake": Quake, "Numberplate": Plate}) == [a_quake, a_sighting]


def test_what_an_event_has_no_place_for_is_dropped() -> None:
    body = _structured(
        subject="x", dataschema="y", traceparent="00-1", comexampleflag=True, datacontenttype="text/json"
    )
    assert cloudevents.from_structured(body, Quake) == a_quake


def test_data_may_be_absent_flat_or_in_base64() -> None:
    beat = EventType("Quake", {"a.b": int})
    for change in ({"data": ...}, {"data": None}):
        assert cloudevents.from_structured(_structured(**change), beat).values == {}
    assert cloudevents.from_structured(_structured(data={"a.b": 1}), beat).values == {"a.b": 1}
    encoded = base64.b64encode(b'{"a": {"b": 1}}').decode()
    assert cloudevents.from_structured(_structured(data=..., data_base64=encoded), beat).values == {"a.b": 1}
    assert cloudevents.from_binary(_HEADERS, b"", beat).values == {}


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("1970-01-01t00:00:01z", 1_000_000),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T00:00:00.123456789Z", 123_456),
    ],
)
def test_the_time_is_read_as_rfc_3339_in_every_mode(text: str, micros: int) -> None:
    assert cloudevents.from_structured(_structured(time=text), Quake).time == micros
    if text.isupper():  # The SDK reads the header itself and takes large letters only.
        assert cloudevents.from_binary(_HEADERS | {"ce-time": text}, _BODY, Quake).time == micros


def test_an_event_without_a_time_gets_the_one_the_reader_names_or_none() -> None:
    without = _structured(time=...)
    assert cloudevents.from_structured(without, Quake, time_if_missing=Timestamp(7)).time == 7
    with pytest.raises(EventError, match="has no 'time'"):
        cloudevents.from_structured(without, Quake)
    headers = {name: value for name, value in _HEADERS.items() if name != "ce-time"}
    assert cloudevents.from_binary(headers, _BODY, Quake, time_if_missing=Timestamp(7)).time == 7
    with pytest.raises(EventError, match="has no 'time'"):
        cloudevents.from_binary(headers, _BODY, Quake)


@pytest.mark.parametrize(
    ("declared", "found", "value"),
    [
        (float, 31, 31.0),
        (float, 1152921504606847000, 2.0**60),  # As JavaScript writes 2^60.
        (float, "-Infinity", -math.inf),
        (int, 9007199254740993, 9007199254740993),
        (int, -(2**63), -(2**63)),
        (Timestamp, "@9223372036854775807", Timestamp(2**63 - 1)),
        (bytes, "", b""),
        (str, "NaN", "NaN"),
    ],
)
def test_json_values_are_read_as_the_event_type_says(declared: object, found: object, value: object) -> None:
    read = cloudevents.from_structured(_structured(data={"x": found}), EventType("Quake", x=declared)).values["x"]
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize(
    ("declared", "found", "says"),
    [
        (int, "1.0", "expected a whole number within 64 bits, got double"),
        (int, '"1"', "expected a whole number"),
        (int, "9223372036854775808", "expected a whole number within 64 bits"),
        (int, "true", "expected a whole number"),
        (float, "1e400", "expected a number that a double holds"),
        (float, "1" + "0" * 400, "expected a number that a double holds"),
        (float, '"nan"', "expected a number, got string 'nan'"),
        (float, "true", "expected a number, got bool True"),
        (str, '"\\ud800"', "expected a text"),
        (str, "[]", "expected a text, got list"),
        (str, "{}", "expected a text, got dict"),
        (Timestamp, "0", "expected a timestamp"),
        (Timestamp, '"noon"', "expected an ISO 8601"),
        (bytes, '"a"', "expected bytes in base64"),
        (bytes, '"é"', "expected bytes in base64"),
        (bytes, "[1]", "expected bytes in base64, got list"),
        (bool, "1", "expected true or false"),
    ],
)
def test_json_values_of_another_kind_are_refused_by_name(declared: object, found: str, says: str) -> None:
    body = _structured(data={"x": "HERE"}).replace(b'"HERE"', found.encode())
    with pytest.raises(EventError, match=f"Quake: attribute 'x': {says}"):
        cloudevents.from_structured(body, EventType("Quake", x=declared))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"specversion": "0.3"}, "'specversion' must be '1.0'"),
        ({"specversion": "1.1"}, "'specversion' must be '1.0'"),
        ({"specversion": ...}, "'specversion' is required and missing"),
        ({"id": ...}, "'id' is required and missing"),
        ({"id": None}, "'id' is required and missing"),
        ({"id": ""}, "'id' must not be None or empty"),
        ({"id": 5}, "'id' must be a"),
        ({"id": "\ud800"}, "the event's id: expected a text"),
        ({"source": []}, "'source' must not be"),
        ({"type": {"a": 1}}, "'type' must be a"),
        ({"type": "Quack"}, "expected an event of Quake, got string 'Quack'; did you mean 'Quake'"),
        ({"time": 5}, "expected 'time' in RFC 3339, got int 5"),
        ({"time": "noon"}, "expected 'time' in RFC 3339"),
        ({"time": "2026-01-01T00:00:00"}, "must be timezone aware"),
        ({"datacontenttype": "application/xml"}, "expected data of content type application/json"),
        ({"datacontenttype": 5}, "expected data of content type application/json"),
        ({"data": "text"}, "expected data to be a JSON object, got string"),
        ({"data": [1]}, "expected data to be a JSON object, got list"),
        ({"data": {"magnitud": 5.0}}, "no attribute 'magnitud'; did you mean 'magnitude'"),
        ({"data": {}}, "'magnitude' is required and missing"),
        ({"data_base64": "e30="}, "expected 'data' or 'data_base64', got both"),
        ({"data": ..., "data_base64": "!"}, "expected bytes in base64"),
        ({"data": ..., "data_base64": "/w=="}, "expected UTF-8"),
        ({"Not-An-Extension": "x"}, "lowercase letters and numbers"),
    ],
)
def test_a_malformed_structured_event_is_refused_with_its_reason(change: dict[str, Any], says: str) -> None:
    with pytest.raises(EventError, match=says):
        cloudevents.from_structured(_structured(**change), Quake)
    with pytest.raises(EventError, match=f"event 1 of the batch: .*{says}"):
        cloudevents.from_batched(b"[" + _structured() + b"," + _structured(**change) + b"]", Quake)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"\xff", "expected UTF-8"),
        (b"{", "not JSON"),
        (b"null", "expected a JSON object, got null"),
        (b"[]", "expected a JSON object, got list"),
        (b"NaN", 'a double attribute takes it as "NaN"'),
        (b'{"id": "1", "id": "2"}', "expected every key once, got string 'id' twice"),
        (b'{"data": {"a": 1, "a": 1}}', "expected every key once, got string 'a' twice"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"9" * 5000, "not JSON"),
        (b" " * (BODY_BYTES_MAX + 1), f"at most {BODY_BYTES_MAX} bytes"),
        (5, "expected the body as bytes, got int 5"),
    ],
    ids=lambda part: str(part)[:30],
)
def test_a_body_that_is_no_json_object_is_refused_with_its_reason(body: Any, says: str) -> None:
    with pytest.raises(EventError, match=says):
        cloudevents.from_structured(body, Quake)


@pytest.mark.parametrize("depth", [16, 17, 50, 400])
def test_data_nested_too_deeply_for_an_event_is_refused(depth: int) -> None:
    body = _structured(data="HERE").replace(b'"HERE"', b'{"a":' * depth + b"1" + b"}" * depth)
    with pytest.raises(EventError, match=r"nested more than 16 levels|no attribute"):
        cloudevents.from_structured(body, Quake)


@pytest.mark.parametrize(
    ("headers", "body", "says"),
    [
        ({"ce-time": "noon"}, _BODY, "header 'ce-time'"),
        ({"ce-time": "2026-01-01T00:00:00"}, _BODY, "timezone aware"),
        ({"CE-ID": "2"}, _BODY, "expected header 'ce-id' once"),
        ({"ce-id": ""}, _BODY, "'id' must not be None or empty"),
        ({"ce-specversion": "0.3"}, _BODY, "'specversion' must be '1.0'"),
        ({"ce-x": 5}, _BODY, "expected headers to be texts"),
        ({"Content-Type": "text/plain"}, _BODY, "content type application/json, got string 'text/plain'"),
        ({}, b"{", "not JSON"),
        ({}, b"\xff", "expected UTF-8"),
        ({}, b"[]", "expected data to be a JSON object"),
        ({}, b"5", "expected data to be a JSON object"),
    ],
)
def test_a_malformed_binary_event_is_refused_with_its_reason(headers: dict[str, Any], body: bytes, says: str) -> None:
    with pytest.raises(EventError, match=says):
        cloudevents.from_binary(_HEADERS | headers, body, Quake)
    with pytest.raises(EventError, match="'specversion' is required and missing"):
        cloudevents.from_binary({}, _BODY, Quake)


def test_what_is_no_batch_is_refused() -> None:
    with pytest.raises(EventError, match="expected a JSON array, got dict"):
        cloudevents.from_batched(_structured(), Quake)
    assert cloudevents.from_batched(cloudevents.to_batched([]), Quake) == []
