"""Event types: declared well or with an error that helps, and records checked against them."""

from __future__ import annotations

import copy
import pickle
from datetime import date
from decimal import Decimal
from typing import Any

import pytest

from tests.given import Plate, a_record
from tidings.errors import EventError, EventTypeError
from tidings.events import Attribute, EventType, Required, Timestamp, ValueType
from tidings.events.schema import ATTRIBUTES_MAX, NAME_LENGTH_MAX, NESTING_MAX


def test_nested_declarations_give_dotted_attributes() -> None:
    assert str(EventType("Quake", at={"lat": float, "deep": {"er": "int"}}, felt=Required(bool))) == (
        "Quake(at.lat double, at.deep.er int, felt bool required)"
    )


def test_required_marks_every_attribute_of_a_group() -> None:
    assert [a.required for a in EventType("Quake", at=Required({"lat": float, "lon": float}))] == [True, True]


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"speed": "duble"}, "'speed': expected a type .* got string 'duble'; did you mean 'double'?"),
        ({"speed": complex}, "'speed': expected bool, int, .* got complex"),
        ({"speed": None}, "'speed': expected bool, int, .* got null None"),
        ({"speed": ValueType.NULL}, "'speed': expected bool"),
        ({"speed": "decimal(39,2)"}, "'speed': expected a type"),
        ({"speed": "array<array<int>>"}, "'speed': expected a type"),
        ({"speed": "map<double,int>"}, "'speed': expected a type"),
        ({"speed": list[list[int]]}, "'speed': expected bool"),
        ({"speed": [float]}, "'speed': expected bool"),
        ({"a.b": int, "a": {"b": int}}, "'a.b' is declared twice"),
        ({"a": int, "a.b": int}, "'a' cannot be both an attribute and the parent of 'a.b'"),
        ({"a.b.c": int, "a": int}, "'a' cannot be both"),
        ({"": int}, "is no attribute name"),
        ({"a..b": int}, "is no attribute name"),
        ({"a`": int}, "without backticks"),
        ({"a\n": int}, "printable"),
        ({"\ud800": int}, "printable"),
        ({"a" * (NAME_LENGTH_MAX + 1): int}, f"1 to {NAME_LENGTH_MAX}"),
        ({1: int}, "names to be texts, got int 1"),
        ({".".join("a" * (NESTING_MAX + 2)): int}, "nested more than"),
        ({f"a{i}": int for i in range(ATTRIBUTES_MAX + 1)}, f"at most {ATTRIBUTES_MAX}"),
    ],
)
def test_a_wrong_declaration_names_the_attribute_and_what_was_expected(declared: dict[str, Any], says: str) -> None:
    with pytest.raises(EventTypeError, match=says):
        EventType("Quake", declared)


def test_a_declaration_nested_without_end_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["a"] = endless
    with pytest.raises(EventTypeError, match="nested more than"):
        EventType("Quake", endless)


@pytest.mark.parametrize("name", ["", "a\n", "x" * (NAME_LENGTH_MAX + 1), None, 5])
def test_an_event_type_needs_a_printable_name(name: Any) -> None:
    with pytest.raises(EventTypeError, match="expected an event type name"):
        EventType(name)


def test_an_attribute_given_both_ways_of_declaring_is_declared_twice() -> None:
    with pytest.raises(EventTypeError, match="'depth' is declared twice"):
        EventType("Quake", {"depth": int}, depth=float)


def test_event_types_are_frozen_values() -> None:
    assert pickle.loads(pickle.dumps(Plate)) == Plate == copy.deepcopy(Plate)
    assert hash(EventType("A", b=int)) == hash(EventType("A", b=int))
    assert EventType("A", b=int) != EventType("A", b=float)
    with pytest.raises(AttributeError, match="frozen"):
        Plate.name = "Other"


def test_a_name_is_found_in_other_case_only_if_that_is_clear() -> None:
    cased = EventType("A", Speed=float, x=int, X=int)
    assert cased.find("SPEED") == cased["Speed"]
    assert cased.find("x") == cased["x"]
    assert EventType("A", xy=int, Xy=int).find("XY") is None


def test_a_record_may_be_nested_or_flat_and_absent_is_null() -> None:
    nested = Plate.check({"plate": "A", "position": {"lat": 51.5, "lon": None}, "area": None})
    assert nested == Plate.check({"plate": "A", "position.lat": 51.5}) == {"plate": "A", "position.lat": 51.5}
    assert Plate.check({"plate": "A", "position": None}) == {"plate": "A"}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"plate": None}, "Numberplate: attribute 'plate' is required and missing"),
        ({"speed": "fast"}, "Numberplate: attribute 'speed': expected a number, got string 'fast'"),
        ({"sped": 1.0}, "no attribute 'sped'; did you mean 'speed'?"),
        ({"zzz": 1.0}, "no attribute 'zzz'; it has plate, area"),
        ({"position": 5}, "no attribute 'position'"),
        ({"position": {"lat": "north"}}, "attribute 'position.lat': expected a number"),
        ({"position.lat": 5.0}, "attribute 'position.lat' is given twice"),
        ({"area": {"name": "EC2"}}, "attribute 'area': expected a text, got dict"),
        ({7: "x"}, "names to be texts, got int 7"),
        ({"x" * 10_000: 1}, "has no attribute"),
    ],
)
def test_a_record_that_does_not_fit_is_refused_by_name(change: dict[Any, Any], says: str) -> None:
    with pytest.raises(EventError, match=says) as refusal:
        Plate.check(a_record | change)
    assert len(str(refusal.value)) < 1000


@pytest.mark.parametrize("record", [None, 5, "plate", [("plate", "A")]])
def test_what_is_no_record_is_refused(record: Any) -> None:
    with pytest.raises(EventError, match="expected a record"):
        Plate.check(record)


def test_a_record_nested_without_end_is_refused() -> None:
    endless: dict[str, Any] = {}
    endless["a"] = endless
    for read in (Plate.check, EventType.infer):
        with pytest.raises(EventError, match="nested more than"):
            read(endless)


def test_the_deepest_name_allowed_can_be_declared_and_given_nested() -> None:
    declared: Any = int
    record: Any = 1
    for _ in range(NESTING_MAX + 1):
        declared, record = {"a": declared}, {"a": record}
    deepest = EventType("Deep", declared)
    assert deepest.check(record) == {".".join("a" * (NESTING_MAX + 1)): 1}


def test_a_type_is_inferred_from_a_record_and_null_tells_nothing() -> None:
    inferred = EventType.infer({"a": {"b": 1}, "c": None, "d": Timestamp(0)})
    assert inferred.attributes == (
        Attribute("a.b", ValueType.INT),
        Attribute("c", ValueType.NULL),
        Attribute("d", ValueType.TIMESTAMP),
    )
    assert str(EventType.infer({"e": [1, None], "f": [date(2026, 1, 1)], "g": Decimal("1.50")})) == (
        "Event(e array<int>, f array<date>, g decimal(3,2))"
    )
    with pytest.raises(EventError, match=r"attribute 'e': expected items of one type, got int and string"):
        EventType.infer({"e": [1, "a"]})


def test_what_is_checked_is_a_record_of_its_own() -> None:
    record = {"speed": 31.0, "plate": "AB12CDE"}
    checked = EventType("Plate", plate=str, speed=float).check(record)
    checked["speed"] = 0.0
    assert record["speed"] == 31.0
