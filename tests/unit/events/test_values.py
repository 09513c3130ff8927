"""Values: which are taken as which type, how they order, what an error says of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from tidings.errors import EventError
from tidings.events import INT_MAX, INT_MIN, Timestamp, ValueType, describe, type_of
from tidings.events.values import double_at, double_key


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T00:00:00", 0),
        ("1970-01-01", 0),
        ("1969-12-31T23:59:59.999999Z", -1),
        ("1970-01-01T00:00:00.0000019Z", 1),
        ("@9223372036854775807", INT_MAX),
        ("@-9223372036854775808", INT_MIN),
    ],
)
def test_a_timestamp_reads_iso_texts_as_utc(text: str, micros: int) -> None:
    assert Timestamp(text) == micros


@pytest.mark.parametrize(
    "text",
    ["", "yesterday", "2026-13-01", "@", "@1e3", "@" + "9" * 19, "@ 1", "@1_0", pytest.param("x" * 10_000, id="long")],
)
def test_a_timestamp_refuses_other_texts_in_one_short_sentence(text: str) -> None:
    with pytest.raises(EventError, match="expected a") as refusal:
        Timestamp(text)
    assert len(str(refusal.value)) < 200


def test_a_timestamp_takes_a_datetime_in_any_zone() -> None:
    noon_in_india = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert Timestamp(noon_in_india) == Timestamp("2026-01-01T06:30:00Z")
    assert Timestamp(datetime(1, 1, 1, tzinfo=UTC)).iso() == "0001-01-01T00:00:00Z"


@pytest.mark.parametrize("other", [1.5, True, None, 2**63, -(2**63) - 1, pytest.param(10**5000, id="huge"), Decimal(1)])
def test_a_timestamp_refuses_what_is_no_64_bit_number_of_microseconds(other: object) -> None:
    with pytest.raises(EventError, match="expected a timestamp"):
        Timestamp(other)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value_type", "given", "taken"),
    [
        (ValueType.DOUBLE, 31, 31.0),
        (ValueType.DOUBLE, 2**60, 2.0**60),
        (ValueType.TIMESTAMP, "1970-01-01T00:00:00Z", Timestamp(0)),
        (ValueType.TIMESTAMP, datetime(1970, 1, 1, tzinfo=UTC), Timestamp(0)),
        (ValueType.BYTES, bytearray(b"ab"), b"ab"),
        (ValueType.BYTES, memoryview(b"ab"), b"ab"),
    ],
)
def test_a_value_that_loses_nothing_is_brought_into_its_python_form(
    value_type: ValueType, given: object, taken: object
) -> None:
    checked = value_type.check(given)
    assert checked == taken
    assert type(checked) is value_type.python


@pytest.mark.parametrize(
    ("value_type", "given"),
    [
        (ValueType.INT, True),
        (ValueType.INT, 1.0),
        (ValueType.INT, INT_MAX + 1),
        (ValueType.INT, INT_MIN - 1),
        pytest.param(ValueType.INT, 10**5000, id="huge"),
        (ValueType.INT, Timestamp(1)),
        (ValueType.DOUBLE, 2**53 + 1),
        (ValueType.DOUBLE, 10**400),
        (ValueType.DOUBLE, True),
        (ValueType.DOUBLE, "1"),
        (ValueType.STRING, b"a"),
        (ValueType.STRING, "\ud800"),
        (ValueType.STRING, None),
        (ValueType.BOOL, 1),
        (ValueType.TIMESTAMP, 1),
        (ValueType.BYTES, "a"),
        (ValueType.NULL, 1),
    ],
)
def test_no_value_is_cast_where_it_would_change_or_mean_something_else(value_type: ValueType, given: object) -> None:
    with pytest.raises(EventError, match=r"expected .*, got "):
        value_type.check(given)


def test_nan_is_one_value_above_all_others_and_both_zeros_are_one() -> None:
    assert double_key(float("nan")) == double_key(-float("nan")) > double_key(float("inf"))
    assert double_key(-0.0) == double_key(0.0)
    assert double_at(double_key(-1.5)) == -1.5


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "value",
    ["x" * 10**6, b"x" * 10**6, 10**10_000, [0] * 10**5, Unshowable()],
    ids=["text", "bytes", "int", "list", "unshowable"],
)
def test_describing_a_value_is_short_and_never_fails(value: object) -> None:
    assert len(describe(value)) < 100


def test_a_value_of_no_type_is_named_with_what_would_do() -> None:
    with pytest.raises(EventError, match=r"a timestamp .* got set"):
        type_of({1})
