"""Ids are found by number and numbers by id, however many have been asked for before."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidings.matching.id_dictionary import IdDictionary, hashed

IDS = [f"wäch-{i}" for i in range(20)]


@pytest.mark.parametrize("few", [0, 32])
def test_ids_are_the_same_whether_remembered_or_forgotten(few: int) -> None:
    known, _ = IdDictionary.of(pa.array(IDS), remembered_max=3, read_one_by_one_max=few)
    for wanted in ([0, 1], [1, 2, 0], [5, 1, 9, 2], [], [19, 5], list(range(20))):
        assert known.at(wanted) == [IDS[number] for number in wanted]


def test_of_equal_ids_the_later_one_counts() -> None:
    known, repeated = IdDictionary.of(pa.array(["a", "b", "a"]))
    assert [known.find(hashed(id)) for id in ("a", "b", "c")] == [2, 1, -1]
    assert repeated.tolist() == [0]
