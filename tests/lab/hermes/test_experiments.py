"""The claims about hops with and without encrypted attributes, on a small network."""

from __future__ import annotations

import pytest

from tests.lab.small import experiment, judged, measured
from tidings.lab import Results, Verdict
from tidings.lab.hermes.experiments import ATTRIBUTE, MODEL_A, MODEL_B, REMEMBERED, SHORTCUT


@pytest.fixture(scope="module")
def hops() -> Results:
    return measured(experiment("hermes-8", node_count="300", groups="1 2 10", seeds="2", trials="8"))


def test_one_shared_tree_takes_fewest_hops_and_every_event_to_every_group_most(hops: Results) -> None:
    assert hops.mean(ATTRIBUTE, 2) < hops.mean(MODEL_A, 2) < hops.mean(MODEL_B, 2)
    assert judged(experiment("hermes-8"), "takes fewest hops", hops).verdict is Verdict.HOLDS


def test_the_gap_grows_with_the_number_of_groups(hops: Results) -> None:
    assert hops.mean(MODEL_B, 10) / hops.mean(ATTRIBUTE, 10) > hops.mean(MODEL_B, 2) / hops.mean(ATTRIBUTE, 2)
    assert judged(experiment("hermes-8"), "hops for 10 groups (model B)", hops).verdict is Verdict.HOLDS


def test_with_one_group_there_is_nothing_to_share(hops: Results) -> None:
    assert abs(hops.mean(MODEL_A, 1) - hops.mean(MODEL_B, 1)) < 1


def test_shortcuts_and_a_known_rendezvous_save_hops(hops: Results) -> None:
    assert hops.mean(SHORTCUT, 10) <= hops.mean(ATTRIBUTE, 10)
    assert hops.mean(REMEMBERED, 10) < hops.mean(ATTRIBUTE, 10)
