"""One event at a time: packed, and matched with segments and with the write buffer."""

from __future__ import annotations

import pytest

from tidings.errors import EventError
from tidings.events import EventType, Required, Timestamp, Value
from tidings.matching import Index, IndexTuning, NaiveIndex
from tidings.matching.event_packing import EventPacker

ALL = EventType("All", flag=bool, count=int, speed=float, area=str, seen_at=Timestamp, raw=bytes)
WHOLE = {"flag": True, "count": 7, "speed": 1.5, "area": "EC2", "seen_at": Timestamp(5), "raw": b"\x00\xff"}
WIDE = EventType("Wide", {f"n{i}": (int, str)[i % 2] for i in range(150)})

CONDITIONS = (
    "flag",
    "count = 7",
    "speed < 2 AND area = 'EC2'",
    "seen_at > TIMESTAMP '1970-01-01T00:00:00Z'",
    "raw = X'00FF'",
    "area IS NULL",
    "speed IS NULL OR count > 100",
)


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("absent", [(), ("area",), ("speed", "raw"), tuple(WHOLE)])
def test_whole_and_partial_events_of_every_type_match_as_defined(settled: bool, absent: tuple[str, ...]) -> None:
    fast, plain = Index(ALL), NaiveIndex(ALL)
    for condition in CONDITIONS:
        fast.add(condition, condition)
        plain.add(condition, condition)
    if settled:
        fast.settle()
    event = {name: value for name, value in WHOLE.items() if name not in absent}
    assert fast.match(event) == plain.match(event)


def test_more_attributes_than_a_word_has_bits_are_told_apart() -> None:
    wanted = Index(WIDE)
    for a in WIDE:
        wanted.add(a.name, f"{a.name} IS NULL")
    wanted.settle()
    event: dict[str, object] = {a.name: "x" if a.type.value == "string" else 1 for a in WIDE}
    assert wanted.match(event) == []
    for name in ("n0", "n63", "n64", "n65", "n127", "n128", "n149"):
        assert wanted.match({**event, name: None}) == [name]


@pytest.mark.parametrize(
    "wrong", [{"count": 2**63}, {"count": True}, {"area": 7}, {"area": "\ud800"}, {"speed": "fast"}, {"unknown": 1}]
)
def test_what_does_not_fit_is_not_packed_and_is_refused(wrong: dict[str, object]) -> None:
    event = {**WHOLE, **wrong}
    assert EventPacker(ALL).plain(event) is None
    with pytest.raises(EventError):
        Index(ALL).match(event)


def test_a_whole_event_is_packed_at_a_glance() -> None:
    event_type = EventType("Plate", area=str, speed=float, lanes=int)
    event: dict[str, Value] = {"lanes": 2, "speed": 31.0, "area": "EC2"}
    assert EventPacker(event_type).plain(event) == EventPacker(event_type).pack(event)
    assert (
        EventPacker(event_type).plain({**event, "area": "Zürich"}) is None
    )  # Looked at more closely, and then packed.


def test_an_event_with_more_matches_than_memory_was_reserved_for_finds_all() -> None:
    wanted = Index(ALL)
    wanted.add_all([(f"c{i}", f"count < {i + 8}") for i in range(5_000)])
    assert wanted.match(WHOLE) == [f"c{i}" for i in range(5_000)]


def test_additions_and_removals_are_seen_by_the_next_single_event() -> None:
    wanted, plain = Index(ALL, tuning=IndexTuning(scanned_max=3)), NaiveIndex(ALL)
    for i in range(40):
        for one in (wanted, plain):
            one.add(f"c{i % 13}", f"count < {i}")
            if i % 5 == 4:
                one.remove(f"c{(i - 2) % 13}")
        assert wanted.match(WHOLE) == plain.match(WHOLE)


def test_events_with_some_of_the_attributes_in_any_order_are_packed_alike() -> None:
    packer = EventPacker(ALL)
    event: dict[str, Value] = {"area": "EC2", "speed": 1.5}
    assert packer.plain(event) == packer.plain(dict(reversed(event.items()))) == packer.pack(event)


def test_more_shapes_than_are_remembered_match_all_the_same() -> None:
    wanted = Index(ALL, tuning=IndexTuning(shapes_max=1))
    wanted.add("far east", "area = 'EC2'")
    assert wanted.match({"area": "EC2"}) == ["far east"]
    assert wanted.match({"area": "EC2", "count": 7}) == ["far east"]
    assert wanted.match({"count": 7}) == []


def test_an_event_without_a_required_attribute_is_not_packed() -> None:
    strict = EventType("Strict", plate=Required(str), speed=float)
    assert EventPacker(strict).plain({"speed": 1.0}) is None
    with pytest.raises(EventError, match="required"):
        Index(strict).match({"speed": 1.0})
