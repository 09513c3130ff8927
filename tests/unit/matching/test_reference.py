"""An axis and its cells: nothing is lost between values and cells."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from tests.strategies_filters import COLLECTIONS, ONLY_IN_EVENTS, POOLS, random_condition, random_type
from tidings.events import ValueType
from tidings.filters import Intervals, anything, parse
from tidings.matching.reference import NULL_CELL, NaiveAxis, cuts_of


def test_null_has_a_cell_of_its_own() -> None:
    assert NaiveAxis(ValueType.STRING, ("a",)).cell(None) == NULL_CELL
    assert NaiveAxis(ValueType.STRING, ("a",)).cell("") == 1


def test_a_cut_begins_the_cell_that_it_falls_into() -> None:
    axis = NaiveAxis(ValueType.STRING, ("b", "b\0", "c"))
    assert [axis.cell(text) for text in ("a", "b", "b\0", "bz", "c", "d")] == [1, 2, 3, 3, 4, 4]


def test_everything_and_nothing_need_no_cuts() -> None:
    side = anything(ValueType.INT)
    assert cuts_of(ValueType.INT, [side]) == ()
    assert NaiveAxis(ValueType.INT, ()).ranges(side) == [(1, 2)]
    assert NaiveAxis(ValueType.INT, ()).ranges(Intervals(ValueType.INT, ())) == []


def test_null_joins_the_values_that_begin_with_the_domain() -> None:
    side = Intervals(ValueType.INT, ((-(2**63), 5),), True)
    assert NaiveAxis(ValueType.INT, cuts_of(ValueType.INT, [side])).ranges(side) == [(0, 2)]


def test_a_set_with_other_bounds_gets_the_cells_that_it_touches() -> None:
    axis = NaiveAxis(ValueType.INT, (10, 20))
    assert axis.ranges(Intervals(ValueType.INT, ((12, 13),))) == [(2, 3)]
    assert axis.ranges(Intervals(ValueType.INT, ((5, 11),))) == [(1, 3)]


@given(st.randoms(use_true_random=False))
def test_a_value_is_in_a_set_exactly_if_its_cell_is_in_the_ranges(rng: Random) -> None:
    event_type = random_type(rng)
    conditions = [random_condition(rng, event_type) for _ in range(6)]
    sides = [side for condition in conditions for box in condition.boxes for side in box.sides]
    for name, side in sides:
        others = [other for other_name, other in sides if other_name == name]
        axis = NaiveAxis(side.type, cuts_of(side.type, others))
        ranges = axis.ranges(side)
        for value in [None, *(COLLECTIONS.get(side.type) or POOLS[side.type]), *ONLY_IN_EVENTS.get(side.type, [])]:
            cell = axis.cell(value)
            assert (value in side) == any(low <= cell < high for low, high in ranges)


def test_cells_of_a_prefix_hold_exactly_the_texts_that_have_it() -> None:
    ((name, side),) = parse("s LIKE 'ab%'").boxes[0].sides
    axis = NaiveAxis(side.type, cuts_of(side.type, [side]))
    ((low, high),) = axis.ranges(side)
    assert name == "s"
    for text in ("", "a", "ab", "ab\0", "abz", "ab\U0010ffff", "ac", "b"):
        assert (low <= axis.cell(text) < high) == text.startswith("ab")
