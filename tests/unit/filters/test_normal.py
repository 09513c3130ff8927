"""Boxes: what becomes an interval, what stays a residual, and how boxes relate."""

from __future__ import annotations

import pytest

from tidings.events import INT_MAX, EventType, Required
from tidings.filters import View, covers, may_match, overlaps, parse

Thing = EventType("Thing", i=int, d=float, s=str, b=bool, r=Required(int), y=bytes)


@pytest.mark.parametrize(
    ("text", "boxes"),
    [
        ("i > 2.5", ["i ∈ [3, ∞)"]),
        ("i < 1e19", ["i ∈ (-∞, ∞)"]),
        ("i = 2.5", []),
        (f"i > {INT_MAX}", []),
        ("d > 2 AND d <= 3", ["d ∈ (2.0, 3.0]"]),
        ("NOT d BETWEEN 2 AND 3", ["d ∈ (-∞, 2.0) ∪ (3.0, ∞)"]),
        ("s > 'a' AND s <= 'b'", ["s ∈ ('a', 'b']"]),
        ("s LIKE 'ab%'", ["s ∈ ['ab', 'ac')"]),
        ("s NOT LIKE 'ab%'", ["s ∈ (-∞, 'ab') ∪ ['ac', ∞)"]),
        ("s LIKE 'ab%c'", ["s ∈ ['ab', 'ac') and «s LIKE 'ab%c'»"]),
        ("s LIKE '%'", ["s ∈ (-∞, ∞)"]),
        ("y >= X'ff'", [r"y ∈ [b'\xff', ∞)"]),
        ("i IN (3, 1, 2, 7)", ["i ∈ [1, 4) ∪ {7}"]),
        ("i NOT IN (1, NULL)", []),
        ("b", ["b ∈ {True}"]),
        ("NOT b", ["b ∈ {False}"]),
        ("i IS NULL OR i = 1", ["i ∈ {1} ∪ NULL"]),
        ("i = 1 OR d = 2", ["i ∈ {1}", "d ∈ {2.0}"]),
        ("i = 1 OR i = 1 + 1 OR TRUE", ["everything"]),
        ("i = 1 AND i = 2", []),
        ("i = NULL", []),
        ("i > d", ["«i > d»"]),
        ("NOT i > d", ["«NOT i > d»"]),
        ("5 > i", ["i ∈ (-∞, 5)"]),
        ("(i = 1 OR b) AND s = 'x'", ["i ∈ {1} and s ∈ {'x'}", "b ∈ {True} and s ∈ {'x'}"]),
    ],
)
def test_a_condition_becomes_these_boxes(text: str, boxes: list[str]) -> None:
    assert [str(box) for box in parse(text, Thing).boxes] == boxes


@pytest.mark.parametrize(
    ("wide", "narrow"),
    [
        ("i > 1", "i > 2"),
        ("i > 1", "i > 2 AND s = 'x'"),
        ("i > 1", "i = 5 OR i = 6"),
        ("i > 1 OR s = 'x'", "s = 'x'"),
        ("s LIKE 'a%'", "s LIKE 'ab%c'"),
        ("s LIKE '%c'", "s LIKE '%c' AND i = 1"),
        ("TRUE", "i > d"),
        ("i = 1", "FALSE"),
        ("i IS NOT NULL", "i <> 3"),
    ],
)
def test_the_wider_condition_covers_the_narrower_and_not_the_reverse(wide: str, narrow: str) -> None:
    assert covers(parse(wide, Thing), parse(narrow, Thing))
    assert not covers(parse(narrow, Thing), parse(wide, Thing))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("i > 1", "i < 3", True),
        ("i > 1", "i < 2", False),
        ("i > 1", "s = 'x'", True),
        ("i > d", "i > d", False),  # Unsure: a residual is not looked into.
        ("i IS NULL", "i IS NULL", True),
        ("r IS NULL", "r IS NULL", False),  # A required attribute is never absent.
        ("i > 1 OR s = 'x'", "s = 'x' AND i < 0", True),
    ],
)
def test_two_conditions_overlap_where_an_event_surely_matches_both(one: str, other: str, expected: bool) -> None:
    assert overlaps(parse(one, Thing), parse(other, Thing)) is expected
    assert overlaps(parse(other, Thing), parse(one, Thing)) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("i = 1", True),
        ("i = 2", False),
        ("s = 'x'", True),  # Unreadable: it might be.
        ("s IS NULL", True),
        ("i = 2 AND s = 'x'", False),
        ("i = 2 OR s = 'x'", True),
        ("s = 'x' AND s = 'y'", False),
        ("d + LENGTH(s) > 3", False),  # d is absent, so this is NULL whatever s holds.
        ("i + LENGTH(s) > 3", True),
        ("d IN (LENGTH(s), 1)", False),
        ("NOT (i = LENGTH(s))", True),
    ],
)
def test_what_cannot_be_read_counts_as_a_possible_match(text: str, expected: bool) -> None:
    assert may_match(parse(text, Thing), View({"i": 1, "b": True}, ("s",))) is expected
