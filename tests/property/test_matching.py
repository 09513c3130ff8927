"""The index answers as the definition does: whatever is asked, whichever way, and however it came to be."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.strategies_filters import (
    ONLY_IN_EVENTS,
    POOLS,
    columns_of,
    random_condition,
    random_residual,
    random_type,
    random_values,
)
from tidings.events import EventType, ValueType
from tidings.filters import Condition
from tidings.matching import Index, IndexTuning, NaiveIndex, boxes_table, live_segment
from tidings.matching.axes import make_axes, sorted_numbers, sorted_texts
from tidings.matching.kernels.keys import wide_key
from tidings.matching.reference import NaiveAxis
from tidings.matching.residuals import residuals

RANDOM = st.randoms(use_true_random=False)


def table_of(event_type: EventType, events: list[dict[str, Any]]) -> pa.Table:
    return columns_of(events, event_type)


def as_bytes(cut: Any) -> bytes:
    return wide_key(cut) if isinstance(cut, int) else cut.encode() if isinstance(cut, str) else cut


def pairs(found: pa.Table) -> list[tuple[int, str]]:
    return list(zip(found["event"].to_pylist(), found["subscription"].to_pylist(), strict=True))


@settings(max_examples=60)
@given(RANDOM)
def test_kernel_closure_and_definition_agree(rng: Random) -> None:
    event_type = random_type(rng)
    conditions = [(f"c{i}", random_condition(rng, event_type)) for i in range(rng.choice([1, 10, 80]))]
    events = [random_values(rng, event_type) for _ in range(rng.choice([1, 30]))]
    plain, fast = NaiveIndex(event_type), Index.from_boxes(boxes_table(conditions, event_type), event_type)
    plain.add_all(conditions)
    table = table_of(event_type, events)
    assert pairs(fast.match_batch(table)) == plain.match_batch(table)
    with pytest.MonkeyPatch.context() as limits:  # The same by columns, however few are in doubt.
        limits.setattr(residuals, "PAIRS_FEW", 0)
        limits.setattr(live_segment, "DOUBTS_FEW", 0)
        assert pairs(fast.match_batch(table)) == plain.match_batch(table)
        for values in events[:3]:
            assert fast.match_values(values) == plain.match_values(values)
    for values in events:
        expected = plain.match_values(values)
        assert fast.match_values(values) == expected
        assert [id for id, condition in conditions if condition.matches(values)] == expected


@settings(max_examples=15, suppress_health_check=[HealthCheck.large_base_example])
@given(RANDOM)
def test_saving_and_opening_changes_nothing(rng: Random) -> None:
    event_type = random_type(rng)
    fast = Index(event_type)
    fast.add_all([(f"c{i}", random_condition(rng, event_type)) for i in range(40)])
    events = table_of(event_type, [random_values(rng, event_type) for _ in range(20)])
    expected = fast.match_batch(events)
    with tempfile.TemporaryDirectory() as folder:
        fast.save(Path(folder, "index"))
        assert Index.open(Path(folder, "index"), verify=True).match_batch(events).equals(expected)
    assert fast.match_batch(events).equals(expected)


@settings(max_examples=60)
@given(st.sampled_from(list(POOLS)), RANDOM)
def test_the_kernels_put_values_into_the_cells_of_the_plain_axis(kind: ValueType, rng: Random) -> None:
    pool = POOLS[kind] + ONLY_IN_EVENTS.get(kind, [])
    cuts = sorted({kind.key(value) for value in rng.sample(POOLS[kind], rng.randrange(len(POOLS[kind])))})
    event_type = EventType("Thing", a=kind)
    flat = (
        sorted_numbers([np.array(cuts, np.int64)])
        if kind.has_int_keys
        else sorted_texts(pa.array([as_bytes(cut) for cut in cuts], pa.binary()))
    )
    values = [None, *pool]
    cells = make_axes(event_type, {0: flat}).locate(table_of(event_type, [{"a": v} for v in values]), event_type)
    assert cells[0].tolist() == [NaiveAxis(kind, tuple(cuts)).cell(value) for value in values]


class Changes(RuleBasedStateMachine):
    """Adds, replacements, removals, folds and questions in any order, beside the definition."""

    @initialize(rng=RANDOM)
    def begin(self, rng: Random) -> None:
        self.rng = rng
        self.event_type = random_type(rng)
        # Segments of a few, so that a short story has many of them.
        tuning = IndexTuning(pending_max=rng.choice([2, 5, 1024]))
        self.plain, self.fast = NaiveIndex(self.event_type), Index(self.event_type, tuning=tuning)
        draw = rng.choice([random_condition, random_residual])
        self.conditions = [draw(rng, self.event_type) for _ in range(12)]
        self.events = [random_values(rng, self.event_type) for _ in range(6)]

    def teardown(self) -> None:
        if hasattr(self, "fast"):
            self.fast.settle()

    def some_condition(self) -> Condition:
        return self.rng.choice(self.conditions)

    @rule(id=st.integers(0, 15))
    def add(self, id: int) -> None:
        condition = self.some_condition()
        self.fast.add(f"c{id}", condition)
        self.plain.add(f"c{id}", condition)

    @rule(ids=st.lists(st.integers(0, 30), max_size=8))
    def add_all(self, ids: list[int]) -> None:
        items = [(f"c{id}", self.some_condition()) for id in ids]
        self.fast.add_all(items)
        self.plain.add_all(items)

    @rule(ids=st.lists(st.integers(0, 30), max_size=8))
    def add_table(self, ids: list[int]) -> None:
        items = [(f"c{id}", self.some_condition()) for id in ids]
        self.fast.add_all(boxes_table(items, self.event_type))
        self.plain.add_all(items)

    @rule(at=st.integers(0, 1000))
    def remove(self, at: int) -> None:
        if self.plain.conditions:
            id = list(self.plain.conditions)[at % len(self.plain.conditions)]
            self.fast.remove(id)
            self.plain.remove(id)

    @rule()
    def settle(self) -> None:
        self.fast.settle()

    @rule()
    def match_batch(self) -> None:
        events = table_of(self.event_type, self.events)
        assert pairs(self.fast.match_batch(events)) == self.plain.match_batch(events)

    @rule(at=st.integers(0, 5))
    def match(self, at: int) -> None:
        assert self.fast.match_values(self.events[at]) == self.plain.match_values(self.events[at])

    @invariant()
    def they_hold_the_same(self) -> None:
        if hasattr(self, "plain"):
            assert len(self.fast) == len(self.plain.conditions)
            assert list(self.fast) == list(self.plain.conditions)


Changes.TestCase.settings = settings(max_examples=20, stateful_step_count=25)
TestChanges = Changes.TestCase
