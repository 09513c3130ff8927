"""A condition taken apart and put together again, by readers of some, all or none of its parts (SECURE-INV-5)."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies_filters import NAMES, random_condition, random_type, random_values
from tidings.filters import parse
from tidings.node.filter_encoding import UNREAD, clauses_of, wanted_from
from tidings.overlay import Sql, View
from tidings.security import Mode
from tidings.sim import Federation

FEDERATION = Federation(0)


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.sets(st.sampled_from(NAMES)), st.none() | st.sets(st.sampled_from(NAMES)))
def test_whoever_reads_some_parts_never_says_no_to_what_is_wanted(
    seed: int, readable: set[str], granted: set[str] | None
) -> None:
    rng = Random(seed)
    made = FEDERATION.type(random_type(rng), Mode.ATTRIBUTE)
    condition = random_condition(rng, made.event_type)
    ids = {made.attr_ids[name] for name in readable if name in made.attr_ids}
    told = None if granted is None else frozenset(made.attr_ids[name] for name in granted if name in made.attr_ids)
    clauses = clauses_of(condition, made, told)
    assert told is None or all(told.issuperset(each) for each in clauses)
    wanted = wanted_from([{id: part if id in ids else None for id, part in each.items()} for each in clauses], made)
    for _ in range(5):
        values = random_values(rng, made.event_type)
        hidden = tuple(name for name in values if name not in readable)
        view = View({name: value for name, value in values.items() if name in readable}, hidden)
        if condition.boxes and condition.matches(values):
            assert wanted.matches(view)


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.none() | st.sets(st.sampled_from(NAMES)))
def test_parts_that_say_that_they_are_all_say_exactly_what_the_condition_says(
    seed: int, granted: set[str] | None
) -> None:
    rng = Random(seed)
    made = FEDERATION.type(random_type(rng), Mode.ATTRIBUTE)
    condition = random_condition(rng, made.event_type)
    told = None if granted is None else frozenset(made.attr_ids[name] for name in granted if name in made.attr_ids)
    wanted = wanted_from(clauses_of(condition, made, told), made) if condition.boxes else UNREAD
    for _ in range(5):
        values = random_values(rng, made.event_type)
        if wanted.exact:
            assert wanted.matches(View(values)) == condition.matches(values)


@given(st.integers(0, 2**32))
def test_a_condition_sealed_as_one_comes_back_as_it_was(seed: int) -> None:
    rng = Random(seed)
    made = FEDERATION.type(random_type(rng), Mode.EVENT)
    condition = random_condition(rng, made.event_type)
    (clause,) = clauses_of(condition, made)
    wanted = wanted_from([clause], made)
    assert isinstance(wanted, Sql)
    assert wanted.exact
    assert parse(wanted.text, made.event_type).boxes == condition.boxes


@given(st.lists(st.dictionaries(st.binary(min_size=1, max_size=3), st.none() | st.binary(max_size=40), max_size=3)))
def test_parts_that_are_no_condition_are_as_good_as_unread(clauses: list[dict[bytes, bytes | None]]) -> None:
    made = FEDERATION.type(random_type(Random(1)), Mode.ATTRIBUTE)
    wanted = wanted_from(clauses, made)
    assert wanted == UNREAD or isinstance(wanted, Sql)
