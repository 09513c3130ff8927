"""Three-valued logic and arithmetic, case by case."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tidings.events import INT_MAX, INT_MIN, EventType
from tidings.filters import evaluate, parse, parse_value

Thing = EventType("Thing", i=int, d=float, s=str, b=bool, c=bool)


@pytest.mark.parametrize(
    ("left", "right", "both", "either", "one"),
    [
        (True, True, True, True, False),
        (True, False, False, True, True),
        (True, None, None, True, None),
        (False, False, False, False, False),
        (False, None, False, None, None),
        (None, None, None, None, None),
    ],
)
def test_and_or_and_xor_follow_sql(left: bool | None, right: bool | None, both: Any, either: Any, one: Any) -> None:
    for b, c in ((left, right), (right, left)):
        values = {name: truth for name, truth in (("b", b), ("c", c)) if truth is not None}
        assert parse("b AND c", Thing).evaluate(values) is both
        assert parse("b OR c", Thing).evaluate(values) is either
        assert parse("b XOR c", Thing).evaluate(values) is one


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7 / 2", 3),
        ("-7 / 2", -3),
        ("7 % -2", 1),
        ("-7 % 2", -1),
        ("7 / 2.0", 3.5),
        ("5 / 0", None),
        ("5.0 / 0", None),
        ("5 % 0", None),
        (f"{INT_MAX} + 1", None),
        (f"{INT_MIN} / -1", None),
        (f"{INT_MIN} % -1", 0),
        (f"ABS({INT_MIN})", None),
        (f"-({INT_MIN} + 0)", None),
        ("1e308 * 10", math.inf),
        ("SUBSTRING('Sakila', -5, 3)", "aki"),
        ("SUBSTRING('abc', 0)", ""),
        ("SUBSTRING('abc', 4)", None),
        ("LEFT('abc', -1)", None),
        ("RIGHT('abc', 0)", ""),
        ("CONCAT_WS(',', 'a', NULL)", None),
        ("TRIM('\u2003a\t')", "a"),
        ("INT('12a')", None),
        ("INT('+12')", 12),
        ("INT(-1.9)", -1),
        ("IS_INT(NULL)", False),
        ("BOOL('TrUe')", True),
        ("STRING(TRUE)", "true"),
    ],
)
def test_what_has_no_result_is_null(text: str, value: Any) -> None:
    found = evaluate(parse_value(text, Thing), {})
    assert (type(found), found) == (type(value), value)


@pytest.mark.parametrize(
    ("text", "values", "outcome"),
    [
        ("i IS DISTINCT FROM d", {}, False),
        ("i IS DISTINCT FROM d", {"i": 1}, True),
        ("i IS DISTINCT FROM d", {"d": 1.0}, True),
        ("i IS DISTINCT FROM d", {"i": 1, "d": 1.0}, False),
        ("i IS NOT DISTINCT FROM d", {}, True),
        ("i IS NOT DISTINCT FROM d", {"i": 1}, False),
        ("i IS NOT DISTINCT FROM 5", {}, False),
        ("d IS DISTINCT FROM d", {"d": math.nan}, False),
        ("d > 1e300", {"d": math.nan}, True),
        ("d = d", {"d": math.nan}, True),
        ("d < 1e300", {"d": math.nan}, False),
        ("d = 0", {"d": -0.0}, True),
        ("i = 9007199254740992.0", {"i": 2**53 + 1}, True),  # As a double it is the even neighbour.
        ("i = 9007199254740992", {"i": 2**53 + 1}, False),
        ("i > d", {"i": INT_MAX, "d": 9.3e18}, False),
        ("s < 'a'", {"s": ""}, True),
        ("s > '\uffff'", {"s": "𝄞"}, True),
        ("s LIKE '_'", {"s": "𝄞"}, True),
        ("s LIKE 'a%b'", {"s": "a\nb"}, True),
        ("i IN (1, NULL)", {"i": 1}, True),
        ("i IN (1, NULL)", {"i": 2}, None),
        ("i NOT IN (1, NULL)", {"i": 2}, None),
        ("NOT (i > 1 AND s = 'x')", {"s": "y"}, True),
    ],
)
def test_odd_values_behave_as_in_spark(text: str, values: dict[str, Any], outcome: bool | None) -> None:
    condition = parse(text, Thing)
    assert condition.evaluate(values) is outcome
    assert condition.matches(values) is (outcome is True)


@pytest.mark.parametrize(
    ("text", "values", "parts"),
    [
        ("i > 1 AND d > 2 AND s = 'x'", {"i": 2, "d": 1.0, "s": "y"}, ["d > 2"]),
        ("i > 1 AND d > 2", {"i": 2, "d": 3.0}, ["i > 1", "d > 2"]),
        ("i > 1 OR d > 2", {"i": 2, "d": 3.0}, ["i > 1"]),
        ("i > 1 OR d > 2", {"i": 0, "d": 0.0}, ["i > 1", "d > 2"]),
        ("i > 1 AND d > 2", {"d": 3.0}, ["i > 1"]),
        ("NOT (i > 1 AND s IS NOT NULL)", {"i": 2}, ["s IS NOT NULL"]),
    ],
)
def test_the_part_that_decided_is_named(text: str, values: dict[str, Any], parts: list[str]) -> None:
    assert [str(part) for part in parse(text, Thing).decided_by(values)] == parts
