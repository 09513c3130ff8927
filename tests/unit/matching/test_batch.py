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
from tidings.matching.batch import OutputBuffers

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
