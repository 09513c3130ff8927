"""Slices of a batch come together again, whoever matched them and wherever their matches were written."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.events import EventType
from tidings.matching import Index, batch, live_segment
from tidings.matching.batch import Rooms

READING = EventType("Reading", n=int, s=str)


def pairs(index: Index, events: pa.Table, threads: int) -> list[tuple[int, str]]:
    found = index.match_numbers(events, threads=threads)
    ids = found.ids.take(pa.array(found.numbers)).to_pylist()
    return sorted(zip(found.events.tolist(), ids, strict=True))


@pytest.mark.parametrize("by_axis", [False, True])
@pytest.mark.parametrize("more", ["", " AND s LIKE '%x'", " OR s = 'x'"])
def test_threads_and_slices_find_what_one_thread_finds_at_once(
    more: str, by_axis: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = Index(READING)
    if by_axis:  # As if the index were a large one, which events go through in the order of their cells.
        monkeypatch.setattr(live_segment, "SMALL_BYTES", 0)
        monkeypatch.setattr(live_segment, "FEW_EVENTS", 8)
    index.add_all([(f"c{i}", f"n >= {i} AND n < {i + 40}{more}") for i in range(100)])
    index.settle()
    index.add("late", "n > 50")
    events = pa.table({"n": [i % 120 for i in range(500)], "s": ["x", "y"] * 250})
    expected = pairs(index, events, 1)
    assert len(expected) > 1000
    assert pairs(index, events, 2) == expected
    monkeypatch.setattr(batch, "BATCH", 64)
    for _ in range(2):  # The first time the rooms are too small, as nobody has seen how many match.
        assert pairs(index, events, 1) == expected
        assert pairs(index, events, 3) == expected


def test_what_was_removed_is_left_out_of_every_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "BATCH", 64)
    index = Index(READING)
    index.add_all([("all", "n >= 0"), ("some", "n < 10")])
    index.settle()
    index.remove("some")
    assert pairs(index, pa.table({"n": list(range(200))}), 2) == [(row, "all") for row in range(200)]


def test_an_index_without_subscriptions_finds_nothing() -> None:
    assert pairs(Index(READING), pa.table({"n": [1, 2, 3]}), 2) == []


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=8))
def test_every_pair_is_kept_once_whether_it_fits_into_its_room_or_not(rooms: list[tuple[int, int]]) -> None:
    given_rooms = Rooms([size for size, _ in rooms])
    ends = np.cumsum([0, *(count for _, count in rooms)]).tolist()
    written = np.arange(ends[-1], dtype=np.uint64)
    found = [given_rooms.moved_in(at, written[start:end]) for at, (start, end) in enumerate(pairwise(ends))]
    assert sorted(given_rooms.together(found).tolist()) == written.tolist()
