"""The claims about sealed events and keys that are counted, on small runs. Speeds are judged by the lab, not by tests."""

from __future__ import annotations

import pytest

from tests.lab.small import experiment, judged, measured
from tidings.lab import Results, Verdict
from tidings.lab.secure.experiments import ATTRIBUTE, DECRYPTIONS, ENCRYPTIONS, EVENT, NONE
from tidings.lab.secure.keys import CLASSIC, LAZY, LEAVES, LKH, OFT, STORED


@pytest.fixture(scope="module")
def trees() -> Results:
    return measured(experiment("secure-trees", members="2 4 8 16 32 64 128", seeds="1", changes="8"))


def test_sealing_takes_one_operation_an_event_or_one_an_attribute_and_so_does_opening() -> None:
    results = measured(experiment("secure-6", attributes="1 3 10", events="40", rounds="2", seeds="1"))
    assert [results.ys(ENCRYPTIONS[EVENT], width) for width in (1, 3, 10)] == [[1.0]] * 3
    assert [results.ys(DECRYPTIONS[ATTRIBUTE], width) for width in (1, 3, 10)] == [[1.0], [3.0], [10.0]]
    assert judged(experiment("secure-6"), "operations", results).verdict is Verdict.HOLDS
    assert all(results.mean(mode, width) > 0 for mode in (NONE, EVENT, ATTRIBUTE) for width in (1, 3, 10))


def test_within_a_domain_nothing_is_decrypted() -> None:
    results = measured(experiment("secure-7", attributes="1 10", events="40", rounds="2", seeds="1"))
    assert judged(experiment("secure-7"), "nothing is decrypted", results).verdict is Verdict.HOLDS


def test_entries_grow_with_the_height_once_for_oft_and_twice_for_lkh(trees: Results) -> None:
    for about in ("OFT: entries per leave", "OFT: entries per join", "LKH: entries per leave"):
        assert judged(experiment("secure-trees"), about, trees).verdict is Verdict.HOLDS
    assert trees.mean(LEAVES[OFT], 128) < trees.mean(LEAVES[LKH], 128) < 2 * 7


def test_a_member_stores_no_more_than_its_path(trees: Results) -> None:
    assert max(trees.ys(STORED[LKH], 128)) <= 9
    assert judged(experiment("secure-trees"), "stores a path", trees).verdict is Verdict.HOLDS


def test_credentials_of_a_day_cost_a_refresh_a_day_and_not_one_for_each_coming_and_going() -> None:
    results = measured(experiment("secure-refreshes", members="1 4", days="6", seeds="1"))
    assert results.ys(CLASSIC, 4) == [48.0]
    assert results.ys(LAZY, 4) == [6.0]
    assert judged(experiment("secure-refreshes"), "save refreshes", results).verdict is Verdict.HOLDS
