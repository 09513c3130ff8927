"""Several threads build the very same part as one."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.strategies_filters import random_condition, random_type
from tidings.matching import Index, boxes_table, index
from tidings.matching.box_table import columns_of
from tidings.matching.parallel import ALONE, workers
from tidings.matching.segment import build


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [0, 1, 400])
def test_threads_make_the_same_arrays_as_one_alone(seed: int, count: int) -> None:
    rng = Random(seed)
    event_type = random_type(rng)
    columns = columns_of([(f"c{i}", random_condition(rng, event_type)) for i in range(count)], event_type)
    alone = build(columns, event_type)
    with workers(3) as crew:
        together = build(columns, event_type, None, crew)
    for one, other in zip(
        (*alone.layout, *alone.axes.arrays, *alone.boxes.sides),
        (*together.layout, *together.axes.arrays, *together.boxes.sides),
        strict=True,
    ):
        assert np.array_equal(one, other)


def test_runs_cover_every_number_once_and_results_keep_their_order() -> None:
    for count in (0, 1, 7, 100):
        with workers(3) as crew:
            runs = crew.over(count, range)
        assert [number for run in runs for number in run] == list(range(count))
    assert ALONE.over(5, lambda start, end: (start, end)) == [(0, 5)]


def test_an_index_built_by_threads_holds_what_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "BUILT_ALONE_MAX", 0)
    monkeypatch.setattr(index, "core_count", lambda: 2)
    rng = Random(1)
    event_type = random_type(rng)
    conditions = [(f"c{i}", random_condition(rng, event_type)) for i in range(50)]
    built = Index.from_boxes(boxes_table([*conditions, conditions[0]], event_type), event_type)
    assert list(built) == [*(id for id, _ in conditions[1:]), conditions[0][0]]


def test_what_goes_wrong_in_a_thread_is_raised() -> None:
    with workers(2) as crew, pytest.raises(ZeroDivisionError):
        crew.map(lambda number: 1 // number, [1, 0])
