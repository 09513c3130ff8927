"""Slices of a batch come together again, whoever matched them and wherever their matches were written."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.events import EventType
from tidings.matching import Index, IndexTuning
from tidings.matching.batch import Matches, OutputBuffers

READING = EventType("Reading", n=int, s=str)


def pairs(index: Index, events: pa.Table, threads: int) -> list[tuple[int, str]]:
    found = index.match_numbers(events, threads=threads)
    ids = found.ids.take(pa.array(found.numbers)).to_pylist()
    return sorted(zip(found.events.tolist(), ids, strict=True))


@pytest.mark.parametrize("by_axis", [False, True])
@pytest.mark.parametrize("more", ["", " AND s LIKE '%x'", " OR s = 'x'"])
def test_threads_and_slices_find_what_one_thread_finds_at_once(more: str, by_axis: bool) -> None:
    # As if the index were a large one, which events go through in the order of their cells.
    large = {"cached_bytes_max": 0, "unordered_events_max": 8} if by_axis else {}
    whole, sliced = (
        Index(READING, tuning=IndexTuning(**large)),
        Index(READING, tuning=IndexTuning(**large, batch_rows=64)),
    )
    for index in (whole, sliced):
        index.add_all([(f"c{i}", f"n >= {i} AND n < {i + 40}{more}") for i in range(100)])
        index.settle()
        index.add("late", "n > 50")
    events = pa.table({"n": [i % 120 for i in range(500)], "s": ["x", "y"] * 250})
    expected = pairs(whole, events, 1)
    assert len(expected) > 1000
    assert pairs(whole, events, 2) == expected
    for _ in range(2):  # The first time the output buffers are too small: no match has been counted yet.
        assert pairs(sliced, events, 1) == expected
        assert pairs(sliced, events, 3) == expected


@pytest.mark.parametrize("more", ["", " AND s LIKE '%x'", " OR d > 3.5"])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_small_batches_find_what_a_large_one_finds(size: int, more: str) -> None:
    kind = EventType("Gap", n=int, s=str, d=float)
    index = Index(kind)
    index.add_all([(f"c{i}", f"n >= {i} AND n < {i + 9}{more}") for i in range(40)])
    index.settle()
    # Nulls and texts of different lengths, read from slices that begin anywhere in a byte of Arrow's bits.
    numbers = [None if i % 11 == 0 else i % 50 for i in range(300)]
    texts = [None if i % 7 == 0 else "y" * (i % 20) + "x" for i in range(300)]
    doubles = [None if i % 5 == 0 else i % 9 + 0.5 for i in range(300)]
    events = pa.table({"n": numbers, "s": texts, "d": doubles})
    expected = pairs(index, events, 1)
    assert len(expected) > 500
    starts = range(0, 300, size)
    found = [(start + row, id) for start in starts for row, id in pairs(index, events.slice(start, size), 1)]
    assert found == expected


def test_what_was_removed_is_left_out_of_every_slice() -> None:
    index = Index(READING, tuning=IndexTuning(batch_rows=64))
    index.add_all([("all", "n >= 0"), ("some", "n < 10")])
    index.settle()
    index.remove("some")
    assert pairs(index, pa.table({"n": list(range(200))}), 2) == [(row, "all") for row in range(200)]


def test_an_index_without_subscriptions_finds_nothing() -> None:
    assert pairs(Index(READING), pa.table({"n": [1, 2, 3]}), 2) == []


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=8))
def test_every_pair_is_kept_once_whether_it_fits_into_its_buffer_or_not(tasks: list[tuple[int, int]]) -> None:
    buffers = OutputBuffers([size for size, _ in tasks])
    ends = np.cumsum([0, *(count for _, count in tasks)]).tolist()
    written = np.arange(ends[-1], dtype=np.uint64)
    found = [buffers.place(at, written[start:end]) for at, (start, end) in enumerate(pairwise(ends))]
    assert sorted(buffers.joined(found).tolist()) == written.tolist()


@pytest.mark.parametrize("threads", [1, 3])
def test_a_batch_comes_back_in_the_order_of_events_and_of_additions(threads: int) -> None:
    index = Index(READING, tuning=IndexTuning(batch_rows=64))
    index.add_all([(f"c{i}", f"n >= {i % 50} AND n < {i % 50 + 9}") for i in range(5000)])
    index.settle()
    index.add("late", "n > 50")
    events = pa.table({"n": [(i * 7) % 120 for i in range(500)]})
    found = index.match_batch(events, threads=threads)
    place = {id: at for at, id in enumerate(index)}
    order = [(event, place[id]) for event, id in zip(*found.to_pydict().values(), strict=True)]
    assert order == sorted(order)
    assert sorted(zip(*found.to_pydict().values(), strict=True)) == pairs(index, events, 1)


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 2999)), max_size=60))
def test_matches_become_a_table_with_each_id_once(pairs: list[tuple[int, int]]) -> None:
    events, numbers = (np.array([pair[at] for pair in pairs], np.int32) for at in (0, 1))
    ids = pa.chunked_array([[f"a{n}" for n in range(2000)], [f"b{n}" for n in range(2000, 3000)]])
    found = Matches(events, numbers, ids).to_table()
    assert list(zip(*found.to_pydict().values(), strict=True)) == [(e, ids[n].as_py()) for e, n in sorted(pairs)]
    assert len(found["subscription"].combine_chunks().dictionary) == len({number for _, number in pairs})


@pytest.mark.parametrize("form", ["s LIKE '%x%y{}%'", "n > {} OR s LIKE '_x%'", "n % {} = 1"])
def test_what_is_in_doubt_at_a_time_is_bounded_and_changes_no_answer(form: str) -> None:
    whole, bounded = Index(READING), Index(READING, tuning=IndexTuning(doubtful_max=100))
    conditions = [(f"c{i}", form.format(i + 1)) for i in range(60)]
    for index in (whole, bounded):
        index.add_all(conditions)
        index.settle()
    events = pa.table({"n": list(range(300)), "s": ["x", "axy1", "bxy30y", None, "y", "x"] * 50})
    for _ in range(2):
        assert pairs(bounded, events, 2) == pairs(whole, events, 1)
    assert bounded.match_batch(events).equals(whole.match_batch(events))
