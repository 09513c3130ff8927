"""Several threads build the very same segment as one."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.strategies_filters import random_condition, random_type
from tidings.matching import Index, IndexTuning, boxes_table
from tidings.matching.box_table import columns_of
from tidings.matching.kernels.threads import ALONE, start_workers
from tidings.matching.segment import build


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [0, 1, 400])
def test_threads_make_the_same_arrays_as_one_alone(seed: int, count: int) -> None:
    rng = Random(seed)
    event_type = random_type(rng)
    columns = columns_of([(f"c{i}", random_condition(rng, event_type)) for i in range(count)], event_type)
    alone = build(columns, event_type)
    with start_workers(3) as workers:
        together = build(columns, event_type, None, workers)
    for one, other in zip(
        (*alone.layout, *alone.axes.arrays, *alone.boxes.sides),
        (*together.layout, *together.axes.arrays, *together.boxes.sides),
        strict=True,
    ):
        assert np.array_equal(one, other)


def test_runs_cover_every_number_once_and_results_keep_their_order() -> None:
    for count in (0, 1, 7, 100):
        with start_workers(3) as workers:
            runs = workers.over(count, range)
        assert [number for run in runs for number in run] == list(range(count))
    assert ALONE.over(5, lambda start, end: (start, end)) == [(0, 5)]


def test_an_index_built_by_threads_holds_what_it_was_given() -> None:
    rng = Random(1)
    event_type = random_type(rng)
    conditions = [(f"c{i}", random_condition(rng, event_type)) for i in range(50)]
    tuning = IndexTuning(single_thread_build_max=0, build_threads=2)
    built = Index.from_boxes(boxes_table([*conditions, conditions[0]], event_type), event_type, tuning=tuning)
    assert list(built) == [*(id for id, _ in conditions[1:]), conditions[0][0]]


def test_what_goes_wrong_in_a_thread_is_raised() -> None:
    with start_workers(2) as workers, pytest.raises(ZeroDivisionError):
        workers.map(lambda number: 1 // number, [1, 0])
