"""Ids are found by number and numbers by id, however many have been asked for before."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tidings.matching import id_dictionary
from tidings.matching.id_dictionary import Names, hashed

IDS = [f"wäch-{i}" for i in range(20)]


@pytest.mark.parametrize("few", [0, 32])
def test_ids_are_the_same_whether_remembered_or_forgotten(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_dictionary, "REMEMBERED_MAX", 3)
    monkeypatch.setattr(id_dictionary, "FEW", few)
    known, _ = Names.of(pa.array(IDS))
    for wanted in ([0, 1], [1, 2, 0], [5, 1, 9, 2], [], [19, 5], list(range(20))):
        assert known.at(wanted) == [IDS[number] for number in wanted]


def test_of_equal_ids_the_later_one_counts() -> None:
    known, repeated = Names.of(pa.array(["a", "b", "a"]))
    assert [known.find(hashed(id)) for id in ("a", "b", "c")] == [2, 1, -1]
    assert repeated.tolist() == [0]
