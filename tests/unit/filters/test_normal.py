"""Boxes: what becomes an interval, what stays a residual, and how boxes relate."""

from __future__ import annotations

from random import Random

import pytest

from tidings.events import INT_MAX, EventType, Required
from tidings.filters import Condition, View, covers, may_match, overlaps, parse

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
        ("i IS DISTINCT FROM 5", ["i ∈ (-∞, 5) ∪ [6, ∞) ∪ NULL"]),
        ("5 IS NOT DISTINCT FROM i", ["i ∈ {5}"]),
        ("NOT i IS NOT DISTINCT FROM 5", ["i ∈ (-∞, 5) ∪ [6, ∞) ∪ NULL"]),
        ("s IS DISTINCT FROM NULL", ["s ∈ (-∞, ∞)"]),
        ("i IS NOT DISTINCT FROM d", ["d ∈ NULL and i ∈ NULL", "d ∈ (-∞, ∞) and i ∈ (-∞, ∞) and «i = d»"]),
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


def _boxes_at(rng: Random, size: int) -> list[str]:
    """Conditions of one box each, on a small grid so that many hold each other."""
    found = []
    for _ in range(size):
        i, d = rng.randrange(6), rng.randrange(6)
        forms = [f"i >= {i}", f"d BETWEEN {d} AND {d + rng.randrange(3)}", f"s LIKE '{'ab'[: rng.randrange(3)]}%'", "b"]
        forms += [f"i IN ({i}, {i + 2})", f"d IS NULL AND i <> {i}", f"s LIKE '%{i}'"]
        found.append(" AND ".join(rng.sample(forms, rng.choice([1, 1, 2, 3]))))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_many_boxes_cover_and_overlap_as_each_pair_of_them_does(seed: int) -> None:
    rng = Random(seed)
    wide, narrow = _boxes_at(rng, 40), _boxes_at(rng, 12)
    outer, inner = ([parse(text, Thing) for text in texts] for texts in (wide, narrow))
    whole = parse(" OR ".join(f"({text})" for text in wide), Thing)
    for text, box in zip(narrow, inner):
        padded = parse(" OR ".join([f"({text})", *(f"({text}) AND r = {n} AND y = X'00'" for n in range(9))]), Thing)
        assert covers(whole, padded) >= any(covers(one, box) for one in outer)
        if covers(whole, padded):
            assert any(covers(one, box) for one in whole_boxes(whole))
        assert overlaps(whole, padded) is any(overlaps(one, box) for one in outer)


def whole_boxes(condition: Condition) -> list[Condition]:
    """A condition for each box."""
    return [Condition(condition.text, condition.event_type, condition.tree, (box,)) for box in condition.boxes]
