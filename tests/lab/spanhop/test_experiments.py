"""The claims about Spanhop, on small runs: the paper's formulas, the numbers that have to hold, which way curves bend."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.lab.small import experiment, judged, measured
from tidings.errors import InputError
from tidings.lab import Results, Verdict
from tidings.lab.spanhop.measures import (
    EVEN,
    GREEDY,
    GREEDY_ENDS,
    RANDOM,
    TABLES_MOST,
    THINNED_MOST,
    TOGETHER,
    spanhop,
)
from tidings.lab.spanhop.proximity import nearest
from tidings.lab.spanhop.routing import tables
from tidings.lab.spanhop.split_tree import balanced


@pytest.fixture(scope="module")
def hops() -> Results:
    return measured(experiment("spanhop-6", brokers="16,64,256,1024", seeds="2"))


def test_greedy_routing_takes_a_quarter_of_each_axis_and_a_third_where_axes_have_ends(hops: Results) -> None:
    for brokers in (64, 256, 1024):
        assert hops.mean(GREEDY, brokers) == pytest.approx(0.5 * math.sqrt(brokers), rel=0.05)
        assert hops.mean(GREEDY_ENDS, brokers) == pytest.approx(2 / 3 * math.sqrt(brokers), rel=0.05)


def test_spanhop_takes_half_a_hop_for_each_doubling_of_the_brokers(hops: Results) -> None:
    for brokers in (64, 256, 1024):
        assert hops.mean(spanhop(4), brokers) == pytest.approx(0.5 * math.log2(brokers), rel=0.04)
        assert hops.mean(spanhop(8), brokers) == pytest.approx(0.68 * math.log(brokers), rel=0.35)


def test_networks_grown_by_joins_do_as_well(hops: Results) -> None:
    assert hops.mean(spanhop(4, RANDOM), 1024) <= 0.75 * math.log(1024)
    assert hops.mean(spanhop(4, EVEN), 1024) <= 0.75 * math.log(1024)


def test_the_gap_to_greedy_routing_grows_and_all_tables_together_are_shorter_still(hops: Results) -> None:
    chosen = experiment("spanhop-6")
    assert judged(chosen, "the gap between", hops).verdict is Verdict.HOLDS
    assert judged(chosen, "all tables together", hops).verdict is Verdict.GOAL_MET
    assert hops.mean(TOGETHER, 1024) < 0.8 * hops.mean(spanhop(4), 1024)


def test_every_message_arrives_and_a_lost_one_would_be_reported(hops: Results) -> None:
    chosen = experiment("spanhop-6")
    assert judged(chosen, "every message arrives", hops).verdict is Verdict.GOAL_MET
    lost = Results((*hops.rows, (GREEDY, 16.0, math.inf)))
    assert judged(chosen, "every message arrives", lost).verdict is Verdict.GOAL_MISSED


def test_the_number_of_axes_does_not_matter_to_spanhop() -> None:
    chosen = experiment("spanhop-axes", axes="2,3,4", brokers="64,4096", seeds="1")
    results = measured(chosen)
    assert judged(chosen, "do not depend", results).verdict is Verdict.HOLDS
    assert judged(chosen, "catches up", results).verdict is Verdict.HOLDS


def test_small_m_is_best_not_the_papers_optimum() -> None:
    chosen = experiment("spanhop-m", axes="2", brokers="4096")
    found = judged(chosen, "m = e^d is best", measured(chosen))
    assert found.verdict is Verdict.DIFFERS
    assert "m = 2" in found.measured or "m = 4" in found.measured


@pytest.mark.parametrize(("levels", "m", "length"), [(12, 4, 7), (12, 8, 5), (13, 8, 5), (10, 2, 11)])
def test_a_broker_keeps_a_table_for_every_kth_ancestor_and_the_whole_space(levels: int, m: int, length: int) -> None:
    assert set(tables(balanced(2, levels), m).levels.tolist()) == {length}


def test_with_a_fifth_of_the_brokers_dead_most_messages_still_arrive_in_few_more_hops() -> None:
    chosen = experiment("spanhop-failures", brokers="1024", failed_percent="0 1 20", seeds="2", pairs="4000")
    arrive = measured(chosen)
    assert arrive.mean(spanhop(4), 0) == arrive.mean(GREEDY, 0) == 100
    assert arrive.mean(spanhop(4), 1) > 99.5
    assert arrive.mean(spanhop(4), 20) > 92
    slower = experiment("spanhop-failures-hops", brokers="1024", failed_percent="0 20", seeds="1", pairs="4000")
    assert judged(slower, "few hops", measured(slower)).verdict is Verdict.GOAL_MET


def test_nearest_brokers_cut_the_delay_by_more_than_a_quarter_at_equal_hops() -> None:
    delay = experiment("spanhop-delay", brokers="1024", seeds="1")
    assert judged(delay, "cut the delay", measured(delay)).verdict is Verdict.GOAL_MET
    hops = experiment("spanhop-delay-hops", brokers="1024", seeds="1")
    assert judged(hops, "cost no hops", measured(hops)).verdict is Verdict.GOAL_MET


def test_a_look_up_finds_a_broker_of_the_region_that_is_closer_than_most() -> None:
    known = tables(balanced(2, 8), 4)
    places = np.random.default_rng(1).random((256, 2))
    found = nearest(known, places)
    asker, entry = np.nonzero(found >= 0)
    chosen = found[asker, entry]
    box, low, last = known.recorded.box[entry], known.tree.low[known.tree.leaf], known.tree.last[known.tree.leaf]
    assert (low[chosen] >= box[:, :2]).all()
    assert (last[chosen] <= box[:, 2:]).all()
    first = known.recorded.node[entry]
    large = known.tree.depth[first] == 2  # Regions of 64 brokers.
    away = np.linalg.norm(places[chosen] - places[asker], axis=1)
    assert away[large].mean() < 0.15


@pytest.mark.parametrize(
    ("name", "settings", "says"),
    [
        ("spanhop-6", {"brokers": "0"}, "brokers from 2 to"),
        ("spanhop-6", {"brokers": "100"}, "power of two for a balanced network, got 100"),
        ("spanhop-6", {"m": "4 6"}, "m to be a power of two and at least 2, got 6"),
        ("spanhop-6", {"network": "round"}, "network to be one of balanced"),
        ("spanhop-axes", {"axes": "0"}, "axes from 1 to 16, got 0"),
        ("spanhop-failures", {"failed_percent": "100"}, "failed_percent from 0 to below 100"),
        ("spanhop-delay", {"spread": "moon"}, "spread to be one of uniform plane"),
        ("spanhop-delay", {"jitter_ms": "-1"}, "jitter_ms of at least 0"),
        ("spanhop-delay", {"landmarks": "2"}, "more landmarks than axes"),
        ("spanhop-delay", {"pairs": "0"}, "pairs of at least 1"),
    ],
)
def test_impossible_parameters_are_refused(name: str, settings: dict[str, str], says: str) -> None:
    with pytest.raises(InputError) as refused:
        experiment(name, **settings).points()
    assert says in str(refused.value)


def test_at_most_is_judged_by_the_worst_run_and_by_how_brokers_joined() -> None:
    chosen = experiment("spanhop-storage")
    rows = [
        (f"{name}, even joins, uniform plane", 256.0, y) for name in (TABLES_MOST, THINNED_MOST) for y in (0.7, 0.9)
    ]
    rows.append((f"{TABLES_MOST}, random joins, uniform plane", 256.0, 1.2))
    results = Results(tuple(rows))
    assert judged(chosen, "the default)", results).verdict is Verdict.HOLDS
    assert judged(chosen, "(random joins)", results).verdict is Verdict.DIFFERS
    assert judged(chosen, "one for a level", results).verdict is Verdict.HOLDS
    once = Results((*rows, (f"{THINNED_MOST}, even joins, uniform plane", 256.0, 1.1)))
    assert judged(chosen, "one for a level", once).verdict is Verdict.DIFFERS
