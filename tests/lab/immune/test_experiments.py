"""The claims about immune routing, on small runs: who wins, and which way the curves bend."""

from __future__ import annotations

import pytest

from tests.lab.small import experiment, judged, measured
from tidings.lab import NotMeasured, Results, Verdict
from tidings.lab.immune.experiments import ELIM, FLOODING, GOSSIP, LITERAL, TREE


@pytest.fixture(scope="module")
def reached() -> Results:
    return measured(experiment("immune-4-everyone", seeds="12"))


@pytest.fixture(scope="module")
def loads() -> Results:
    return measured(experiment("immune-5", node_count="50,100", seeds="6"))


def test_flooding_and_the_guarded_construction_reach_everyone_in_every_run(reached: Results) -> None:
    assert set(reached.ys(FLOODING)) == set(reached.ys(ELIM)) == {100.0}
    chosen = experiment("immune-4-everyone")
    assert judged(chosen, "flooding reaches", reached).verdict is Verdict.HOLDS
    assert judged(chosen, "guarded construction", reached).verdict is Verdict.GOAL_MET


def test_the_published_steps_and_gossip_miss_some(reached: Results) -> None:
    assert 85 <= reached.mean(LITERAL) <= 95
    assert 95 < reached.mean(GOSSIP) < 100
    assert judged(experiment("immune-4-everyone"), "as published", reached).verdict is Verdict.DIFFERS


def test_flooding_costs_most_then_gossip_then_the_guarded_construction_and_a_tree_least(loads: Results) -> None:
    assert loads.mean(FLOODING, 100) > loads.mean(GOSSIP, 100) > 3 > 1.4 > loads.mean(ELIM, 100) > 1
    assert set(loads.ys(TREE)) == {1.0}
    chosen = experiment("immune-5")
    for about in ("flooding brings", "gossip brings", "flooding costs most", "1.3 copies with everyone"):
        assert judged(chosen, about, loads).verdict is not Verdict.DIFFERS


def test_flooding_costs_more_the_larger_the_network(loads: Results) -> None:
    assert loads.mean(FLOODING, 50) < loads.mean(FLOODING, 100)


def test_the_guarded_construction_takes_more_hops_than_flooding() -> None:
    chosen = experiment("immune-hops", node_count="100", seeds="4")
    hops = measured(chosen)
    assert hops.mean(FLOODING, 100) < hops.mean(ELIM, 100) < hops.mean(TREE, 100)
    assert judged(chosen, "faster than flooding", hops).verdict is Verdict.DIFFERS


def test_a_claim_about_what_was_not_measured_is_not_judged(loads: Results) -> None:
    with pytest.raises(NotMeasured, match="at 1000 was not measured"):
        judged(experiment("immune-5"), "ten times the size (core_tree)", loads)


def test_on_communities_and_a_plane_guarded_roles_reach_everyone_and_published_ones_do_not() -> None:
    chosen = experiment("immune-graphs", node_count="40", seeds="3")
    results = measured(chosen)
    assert judged(chosen, "guarded construction", results).verdict is Verdict.GOAL_MET
    assert judged(chosen, "as published", results).verdict is Verdict.GOAL_MISSED
    assert results.mean("copies per broker, communities, guarded, core_tree") == 1.0
    assert judged(chosen, "measured delays", results).measured.startswith("flooding")


def test_who_can_be_reached_is_reached_while_brokers_move() -> None:
    chosen = experiment("immune-mobile", node_count="25", reach="0.35", events="4", ranges_per_min="0,3")
    results = measured(chosen)
    assert judged(chosen, "reaches who can be reached", results).verdict is Verdict.GOAL_MET
    assert results.mean("copies per broker, immune", 0.0) < results.mean("copies per broker, flooding", 0.0) / 2
