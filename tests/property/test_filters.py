"""Laws of conditions: all meanings agree, format undoes parse, cover and may_match err one way only."""

from __future__ import annotations

import math
from decimal import Decimal
from random import Random
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.strategies_filters import cases, random_comparison
from tidings.errors import FilterError
from tidings.events import EventType, ValueType
from tidings.filters import Condition, Intervals, View, boxes_of, covers, may_match, overlaps, parse, parse_tree
from tidings.filters.evaluate import COMPARE, compare
from tidings.filters.intervals import DOMAIN, comparing

Case = tuple[EventType, list[Condition], list[dict[str, Any]]]


@given(cases())
def test_parsing_the_canonical_text_gives_the_same_tree(case: Case) -> None:
    event_type, (condition,), _ = case
    assert parse_tree(str(condition), event_type) == condition.tree


@given(cases())
def test_the_closure_and_the_boxes_say_what_the_definition_says(case: Case) -> None:
    _, (condition,), events = case
    for values in events:
        true = condition.evaluate(values) is True
        assert condition.matches(values) is true
        assert any(box.holds(values) for box in condition.boxes) is true


@given(cases(), st.randoms(use_true_random=False))
def test_the_short_cut_for_known_shapes_gives_the_boxes_of_the_long_way(case: Case, rng: Random) -> None:
    event_type, (condition,), _ = case
    simple = " AND ".join(random_comparison(rng, event_type) for _ in range(rng.choice([1, 2, 3])))
    for text in (condition.text, str(condition), simple):
        parse(text, event_type)  # Leaves a template behind, if the condition is of that kind.
        assert parse(text, event_type).boxes == boxes_of(parse_tree(text, event_type))


@given(cases(), st.integers(1, 8), st.integers(0, 40))
def test_boxes_are_exact_however_few_of_them_are_allowed(case: Case, boxes_max: int, steps_max: int) -> None:
    _, (condition,), events = case
    boxes = boxes_of(condition.tree, boxes_max=boxes_max, steps_max=steps_max)
    assert len(boxes) <= boxes_max
    for values in events:
        assert any(box.holds(values) for box in boxes) is (condition.evaluate(values) is True)


@given(cases(conditions=2), st.integers(0, 20))
def test_what_a_covered_condition_matches_the_covering_one_matches(case: Case, steps_max: int) -> None:
    event_type, (one, other), events = case
    both = parse(f"({one}) AND ({other})", event_type)
    for wide, narrow in ((one, other), (one, both), (other, both), (one, one)):
        assert covers(wide, narrow, steps_max=steps_max) <= covers(wide, narrow)
        if covers(wide, narrow):
            assert all(wide.matches(values) for values in events if narrow.matches(values))


@settings(suppress_health_check=[HealthCheck.large_base_example])
@given(cases(conditions=2, events=30))
def test_conditions_that_share_an_event_are_never_both_said_to_be_apart_and_overlapping(case: Case) -> None:
    event_type, (one, other), events = case
    both = parse(f"({one}) AND ({other})", event_type)
    if overlaps(one, other):
        assert both.boxes
    if any(one.matches(values) and other.matches(values) for values in events):
        assert any(not box.residuals for box in both.boxes) <= overlaps(one, other)


@given(cases(), st.randoms(use_true_random=False))
def test_hiding_attributes_never_turns_a_match_into_a_no(case: Case, rng: Random) -> None:
    event_type, (condition,), events = case
    for values in events:
        hidden = tuple(attribute.name for attribute in event_type if rng.random() < 0.4)
        view = View({name: value for name, value in values.items() if name not in hidden}, hidden)
        if condition.matches(values):
            assert may_match(condition, view)
        assert may_match(condition, View(dict(values))) is condition.matches(values)


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused_with_a_column_inside_it(text: str) -> None:
    refused = _refusal(text)
    assert refused is None or 1 <= refused.column <= len(text) + 1


_WORDS = [
    "a",
    "b",
    "1",
    "'x'",
    "(",
    ")",
    "AND",
    "OR",
    "NOT",
    "IN",
    ",",
    "LIKE",
    "IS",
    "NULL",
    "=",
    "<",
    "-",
    "LENGTH",
    "BETWEEN",
]


@given(st.lists(st.sampled_from(_WORDS), max_size=15))
def test_any_order_of_words_is_parsed_or_refused(words: list[str]) -> None:
    text = " ".join(words)
    refused = _refusal(text)
    assert refused is None or 1 <= refused.column <= len(text) + 1


def _refusal(text: str) -> FilterError | None:
    try:
        parse(text)
    except FilterError as refused:
        return refused
    return None


_KEYS = st.integers(-4, 4)


@st.composite
def sets(draw: st.DrawFn) -> Intervals:
    points = sorted(draw(st.sets(_KEYS, max_size=6)))
    pairs = tuple(zip(points[::2], points[1::2], strict=False))
    return Intervals(ValueType.INT, pairs, draw(st.booleans()))


@given(sets(), sets(), st.none() | _KEYS)
def test_intervals_are_sets(one: Intervals, other: Intervals, value: int | None) -> None:
    assert (value in (one & other)) is (value in one and value in other)
    assert (value in (one | other)) is (value in one or value in other)
    assert (value in ~one) is (value not in one)
    assert (one <= other) is all(v in other for v in [None, *range(-5, 6)] if v in one)
    assert ~~one == one


_EXACT_TYPES = st.just(ValueType.INT) | st.integers(1, 38).flatmap(
    lambda digits: st.integers(0, digits).map(lambda scale: ValueType.decimal(digits, scale))
)


@st.composite
def near_values(draw: st.DrawFn) -> tuple[ValueType, float]:
    """A type of exact numbers and a double near one of them, at their ends, or anywhere."""
    kind = draw(_EXACT_TYPES)
    low, high = DOMAIN[kind]
    assert isinstance(low, int)
    assert isinstance(high, int)
    near = float(kind.value_at(draw(st.integers(low, high - 1) | st.sampled_from([low, -1, 0, 1, high - 1]))))  # type: ignore[arg-type]
    for _ in range(draw(st.integers(0, 2))):
        near = math.nextafter(near, draw(st.sampled_from([-math.inf, math.inf])))
    return kind, draw(st.just(near) | st.floats(allow_nan=False, allow_infinity=False))


@given(near_values(), st.sampled_from(sorted(COMPARE)), st.integers())
def test_a_double_bounds_exact_numbers_where_comparing_says_so(
    case: tuple[ValueType, float], op: str, anywhere: int
) -> None:
    kind, bound = case
    side = comparing(op, kind, bound)
    low, high = DOMAIN[kind]
    assert isinstance(low, int)
    assert isinstance(high, int)
    ends = {
        end + step for pair in comparing("=", kind, bound).pairs + side.pairs for end in pair for step in (-1, 0, 1)
    }
    near = int(Decimal(bound).scaleb(kind.scale)) if abs(bound) < 1e40 else 0
    for key in ends | {low, high - 1, anywhere, near - 1, near, near + 1}:
        if low <= key < high:
            value: Any = kind.value_at(key)
            assert (value in side) is compare(op, value, bound)
