"""IRBR's ranges on other networks: what holds on Kademlia, and on Chord only in part."""

from __future__ import annotations

from random import Random

import pytest

from tests.lab.small import experiment, judged, measured
from tidings.errors import InputError
from tidings.lab import Verdict
from tidings.lab.irbr.other_networks import (
    CHORD,
    CHORD_FIRST,
    KADEMLIA,
    NETWORKS,
    PREFIX,
    SIZE,
    Circle,
    ranges,
    reached,
)


@pytest.mark.parametrize("network", [PREFIX, KADEMLIA])
def test_ranges_of_a_prefix_are_disjoint_and_hold_everybody_else(network: str) -> None:
    rng = Random(1)
    node, others = rng.randrange(SIZE), [rng.randrange(SIZE) for _ in range(200)]
    spans = [span for span, _ in ranges(network, node, (0, SIZE))]
    for other in others:
        assert sum(low <= other < high for low, high in spans) == (other != node)


def test_fingers_are_disjoint_and_hold_everybody_else() -> None:
    rng = Random(2)
    node, circle = rng.randrange(SIZE), Circle(rng.sample(range(SIZE), 200))
    seen = [id for span, _ in ranges(CHORD, node, (node, node + SIZE)) for id in circle.within(span)]
    assert sorted(seen) == circle.ids


@pytest.mark.parametrize("network", [PREFIX, KADEMLIA, CHORD_FIRST])
def test_without_failures_all_interested_nodes_are_reached(network: str) -> None:
    for seed in range(5):
        rng = Random(seed)
        ids = rng.sample(range(SIZE), 100)
        interested = Circle(ids[:30])
        assert set(interested.ids) <= reached(network, Circle(ids), interested, frozenset(), rng)


def test_what_is_measured_is_judged_as_it_is() -> None:
    chosen = experiment("irbr-other-networks", node_count="200", interested="40", events="10")
    results = measured(chosen)
    assert judged(chosen, "bucket of Kademlia", results).verdict is Verdict.GOAL_MET
    assert judged(chosen, "range of Chord", results).verdict is Verdict.GOAL_MISSED
    assert judged(chosen, "first interested node", results).verdict is Verdict.GOAL_MET


def test_covers_hold_where_ranges_are_prefixes_and_not_on_chord() -> None:
    chosen = experiment("irbr-other-covers", node_count="20 100")
    results = measured(chosen)
    assert judged(chosen, "hold in Kademlia", results).verdict is Verdict.GOAL_MET
    assert judged(chosen, "hold on Chord", results).verdict is Verdict.GOAL_MISSED


def test_impossible_settings_are_refused() -> None:
    chosen = experiment("irbr-other-networks")
    for wrong in ({"network": "Ring"}, {"failed_percent": "100"}, {"node_count": 10, "interested": 20}):
        with pytest.raises(InputError):
            chosen.check({**chosen.stays, "network": NETWORKS[0], "failed_percent": "0", **wrong})
