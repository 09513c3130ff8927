"""Events: checked when made, frozen, equal by their canonical bytes, read back strictly."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from tests.given import Plate, Quake, a_quake, a_record, a_sighting
from tidings.errors import EventError
from tidings.events import Event, EventType, Timestamp, decode_value, encode_value

_HEAD: dict[str, Any] = {"id": "1", "source": "s", "time": 0}


def test_an_event_holds_what_the_record_said() -> None:
    assert a_sighting.type == "Numberplate"
    assert a_sighting.time == Timestamp("2026-01-01T08:00:01Z")
    assert a_sighting.values["position.lat"] == 51.5


def test_an_event_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        a_quake.id = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        a_quake.values["depth"] = 3  # type: ignore[index]


def test_an_event_survives_pickling_and_copying() -> None:
    assert pickle.loads(pickle.dumps(a_sighting)) == a_sighting == copy.deepcopy(a_sighting)


@pytest.mark.parametrize(
    ("head", "says"),
    [
        ({"id": ""}, "the event's id: expected a text that is not empty"),
        ({"id": 5}, "the event's id: expected a text, got int 5"),
        ({"id": "\ud800"}, "the event's id: expected a text"),
        ({"source": None}, "the event's source: expected a text"),
        ({"time": "noon"}, "the event's time: expected an ISO 8601"),
        ({"time": 1.5}, "the event's time: expected a timestamp"),
    ],
)
def test_an_event_with_a_wrong_head_is_refused(head: dict[str, Any], says: str) -> None:
    with pytest.raises(EventError, match=f"Numberplate: {says}"):
        Event.of(Plate, a_record, **(_HEAD | head))


def _quake(magnitude: float, **head: Any) -> Event:
    return Event.of(Quake, {"magnitude": magnitude}, **(_HEAD | head))


def test_events_with_nan_inside_are_equal_and_so_are_both_zeros() -> None:
    nan = float("nan")
    assert _quake(nan) == _quake(-nan)
    assert _quake(0.0) == _quake(-0.0)
    assert hash(_quake(nan)) == hash(_quake(-nan))


def test_events_differ_in_each_part_and_in_the_type_of_a_value() -> None:
    assert _quake(1.0) != _quake(1.0, id="2")
    assert _quake(1.0) != _quake(1.0, source="t")
    assert _quake(1.0) != _quake(1.0, time=1)
    assert _quake(1.0) != _quake(2.0)
    assert _quake(1.0) != "quake"
    assert replace(_quake(1.0), values={"a": 1}) != replace(_quake(1.0), values={"a": True})
    assert replace(_quake(1.0), values={"a": 1}) != replace(_quake(1.0), values={"a": 1.0})


def test_canonical_bytes_do_not_depend_on_the_order_of_the_record() -> None:
    turned = dict(reversed(a_record.items()))
    again = Event.of(Plate, turned, id=a_sighting.id, source=a_sighting.source, time=a_sighting.time)
    assert again.canonical() == a_sighting.canonical()


def test_canonical_bytes_are_these_forever() -> None:
    """A signature made today must verify tomorrow; change the magic if this must change."""
    assert a_quake.canonical().hex() == (
        "746964696e67732f6576656e742f3100"  # tidings/event/1, 0
        "00000007" + b"quake-1".hex() + "0000000b" + b"seismograph".hex() + "00000005" + b"Quake".hex() + "00" * 8
        + "00000002"
        "00000005" + b"depth".hex() + "02000000000000000a"
        "00000009" + b"magnitude".hex() + "044018666666666666"
    )  # fmt: skip


@pytest.mark.parametrize("value", [None, [[1]], 2**63, "\ud800", 1j])
def test_what_is_no_value_has_no_bytes(value: Any) -> None:
    with pytest.raises(EventError):
        encode_value(value)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ("", "cut short"),
        ("00", "type byte"),
        ("0c", "type byte"),
        ("07", "cut short"),
        ("0727" + "00" * 16, "scale"),
        ("0700" + "7f" + "ff" * 15, "digits"),
        ("090000001420000000", "within one day"),
        ("0a00000002" + "0a00", "type byte"),
        ("0a0000000402000301", "cut short"),
        ("0a0000000401000300", "one type"),
        ("0b0000000e" + "0300000001620003000000016100", "order"),
        ("0102", "expected 0 or 1"),
        ("01", "cut short"),
        ("0200", "cut short"),
        ("03ffffffff41", "cut short"),
        ("0300000001ff", "not UTF-8"),
        ("0300000003eda080", "not UTF-8"),
        ("048000000000000000", "one form of NaN and of zero"),
        ("047ff8000000000001", "one form of NaN and of zero"),
        ("04fff8000000000000", "one form of NaN and of zero"),
        ("010100", "1 more bytes follow"),
    ],
)
def test_bytes_that_no_value_has_are_refused(raw: str, says: str) -> None:
    with pytest.raises(EventError, match=says):
        decode_value(bytes.fromhex(raw))


def _event_bytes(*attributes: bytes, count: int | None = None) -> bytes:
    head = b"".join(encode_value(text)[1:] for text in ("1", "s", "T"))
    number = (len(attributes) if count is None else count).to_bytes(4, "big")
    return b"tidings/event/1\0" + head + bytes(8) + number + b"".join(attributes)


_A, _B = b"\0\0\0\1a\1\1", b"\0\0\0\1b\1\1"


def test_canonical_bytes_are_read_back_only_in_their_one_order() -> None:
    assert Event.from_canonical(_event_bytes(_A, _B)).values == {"a": True, "b": True}
    for wrong in (_event_bytes(_B, _A), _event_bytes(_A, _A)):
        with pytest.raises(EventError, match="in the order of their names"):
            Event.from_canonical(wrong)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "cut short"),
        (b"tidings/event/2\0", "begins with"),
        (_event_bytes(_A, count=2**32 - 1), "at most 4096 attributes"),
        (_event_bytes(_A, count=2), "cut short"),
        (_event_bytes(_A) + b"\0", "1 more bytes follow"),
    ],
)
def test_bytes_that_no_event_has_are_refused(raw: bytes, says: str) -> None:
    with pytest.raises(EventError, match=says):
        Event.from_canonical(raw)


def test_an_event_of_a_type_without_attributes_is_an_event() -> None:
    bare = Event.of(EventType("Heartbeat"), {}, id="1", source="s", time=0)
    assert Event.from_canonical(bare.canonical()) == bare
