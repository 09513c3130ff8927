"""The claims about CBDLO, Simple and TERA, on small runs: the order of the protocols and the shape of the curves."""

from __future__ import annotations

from random import Random
from statistics import fmean

import pytest

from tests.lab.small import experiment, judged, measured
from tidings.errors import InputError
from tidings.lab import NotMeasured, Results, Verdict
from tidings.lab.cbdlo.claims import FLOOD, PAPER, ROBUST, SIMPLE, TERA
from tidings.lab.cbdlo.hotspots import REGISTERED, SUCCEEDED, UNREADABLE
from tidings.lab.cbdlo.model import PUBLISHED, effective_cost, tree_steps, walk_success
from tidings.lab.cbdlo.scene import OwnedTree, Scene, SceneSize, scene_with


def test_the_papers_one_printed_point_follows_from_its_formula() -> None:
    """CBDLO-A1."""
    assert effective_cost(*PUBLISHED) == 411_630


@pytest.fixture(scope="module")
def costs() -> Results:
    return measured(experiment("cbdlo-5", nodes="800", events="40", subscriptions="500,3000", seeds="2"))


def test_cbdlo_costs_a_tenth_of_simple_at_most_and_robust_less_still(costs: Results) -> None:
    for x in (500, 3000):
        assert costs.mean(SIMPLE, x) > 10 * costs.mean(PAPER, x) > 10 * costs.mean(ROBUST, x)
    assert judged(experiment("cbdlo-5"), "at most half more", costs).verdict is Verdict.GOAL_MET


def test_a_cost_that_doubles_is_not_one_that_hardly_depends() -> None:
    doubled = Results(((PAPER, 1000.0, 9_000.0), (PAPER, 10_000.0, 18_000.0)))
    assert judged(experiment("cbdlo-5"), "hardly depends", doubled).verdict is Verdict.DIFFERS


def test_the_cost_hardly_grows_with_the_subscriptions(costs: Results) -> None:
    """CBDLO-A3."""
    assert judged(experiment("cbdlo-5"), "three times as much", costs).verdict is Verdict.GOAL_MET
    assert judged(experiment("cbdlo-5"), "flatter still", costs).verdict is Verdict.GOAL_MET


def test_a_flood_reaches_all_and_the_calibrated_simple_a_sixth() -> None:
    chosen = experiment("cbdlo-5-reached", seeds="1")
    shares = {
        p: chosen.measure({**chosen.stays, "protocol": p, "subscriptions": 3000}, 0)[0].y for p in (SIMPLE, FLOOD)
    }
    assert shares[FLOOD] == 100
    assert shares[SIMPLE] == pytest.approx(100 / 6, abs=5)


def test_simples_cost_rises_once_nearly_all_are_reached() -> None:
    chosen = experiment("cbdlo-6", nodes="300", events="30", hops="8,10,14", protocol=SIMPLE, seeds="2")
    assert judged(chosen, "rises again", measured(chosen)).verdict is Verdict.HOLDS


def test_tera_grows_with_the_network_and_cbdlo_hardly_and_the_formula_agrees() -> None:
    """CBDLO-A6."""
    chosen = experiment("cbdlo-7", nodes="1000,8000,1000000000", events="40", seeds="2")
    results = measured(chosen)
    slow = "grows slowly (as published, three"
    for about in ("TERA's cost grows fast", slow, "scene (CBDLO)", "scene (TERA)", "billion"):
        assert judged(chosen, about, results).verdict in (Verdict.HOLDS, Verdict.GOAL_MET), about
    assert results.mean(TERA, 8000) > 50 * results.mean(ROBUST, 8000)


@pytest.mark.parametrize(("table", "attributes"), [(50, 243), (100, 486), (20, 100)])
def test_walks_succeed_as_often_as_the_formula_says(table: int, attributes: int) -> None:
    """CBDLO-A5, with uniform tables; the protocol's own are in `cbdlo-agreement`."""
    scene, rng = Scene(SceneSize(table=table, attributes=attributes, subscriptions=1, all_known=True), 1), Random(1)
    found = [scene.walk(rng.randrange(3000), rng.randrange(attributes)).found for _ in range(1500)]
    assert fmean(found) == pytest.approx(walk_success(table, attributes, 10), abs=0.03)


def test_a_walk_of_the_scene_is_a_walk_of_the_protocol() -> None:
    setting = {"nodes": 120, "attributes": 40, "hops": 10, "warm_s": 60.0, "walks": 1500, "table": 4}
    chosen = experiment("cbdlo-agreement")
    ours, theirs = ([row.y for row in chosen.measure({**setting, "run": run}, 1)] for run in ("scene", "protocol"))
    assert ours[0] == pytest.approx(theirs[0], abs=3), "percent that succeed"
    assert ours[1] == pytest.approx(theirs[1], rel=0.15), "messages of a walk"


def test_comparisons_are_tables_on_the_walk_and_steps_in_the_tree() -> None:
    """CBDLO-A7: |APT| · H1 + H2, exactly."""
    scene = Scene(SceneSize(nodes=500, subscriptions=800, table=20), 3)
    for _ in range(20):
        cost = scene.as_published(scene.event())
        assert (cost.looked - cost.tree) % 20 == 0
        assert cost.walk >= (cost.looked - cost.tree) // 20


def test_the_protocol_counts_comparisons_the_same_way() -> None:
    from tidings.overlay import Ranges
    from tidings.sim import World

    world = World("cbdlo", node_count=40, seed=1, options={"profile": "paper", "table_size": 3})
    world.run_for(10.0)
    for node in range(12):
        world.subscribe(node, Ranges.of(**{f"a{node % 6}": (0, 50 + node)}))
    world.run_for(60.0)
    counted = world.trace.counted
    full = {member.id: len(member.router.graph.table) for member in world.nodes}  # type: ignore[attr-defined]
    assert set(full.values()) == {3}
    before, asked = counted["match_ops"] - counted["tree steps"], world.trace.messages("Walk")
    world.publish_some(20, draw=lambda rng: {f"a{rng.randrange(6)}": rng.randrange(50)})
    looks = world.trace.messages("Walk") - asked
    assert counted["match_ops"] - counted["tree steps"] - before == 3 * looks


@pytest.mark.parametrize("count", [1, 2, 7, 100, 1000])
def test_routes_in_a_balanced_tree_are_within_their_bounds(count: int) -> None:
    """CBDLO-A8."""
    rng, height, tree = Random(count), count.bit_length(), OwnedTree(range(count))
    for _ in range(200):
        start, goal = rng.randrange(count), rng.randrange(count)
        by_links, by_fingers = (tree.steps(start, goal, fingers=fingers) for fingers in (False, True))
        assert by_links <= 2 * (height - 1)
        assert by_fingers <= height
        assert (by_links == 0) == (start == goal) == (by_fingers == 0)


def test_an_owner_takes_no_message_between_its_own_partitions() -> None:
    tree = OwnedTree([0, 1, 0, 2, 1, 2, 0])
    assert [tree.steps(0, goal, fingers=fingers) for goal in (0, 2, 6) for fingers in (False, True)] == [0] * 6
    assert tree.steps(1, 5, fingers=False) == 1  # From partition 4, a child of 5; from 1 it would be two.


def test_a_member_whose_bounds_are_others_too_asks_the_owner_where_its_interest_begins() -> None:
    scene = Scene(SceneSize(nodes=9, attributes=1, subscriptions=9, width=1.0), 1)  # All want everything.
    assert len(scene.owned(0, False).of) < 9
    assert {scene.tree_steps(0, 0.5, fingers=fingers) for _ in range(99) for fingers in (False, True)} == {0, 1}


def test_the_formula_for_steps_holds_in_trees_of_all_sizes() -> None:
    rng = Random(1)
    for levels in (7, 10, 14):
        count = 2**levels - 1
        owner = [partition // 2 for partition in range(count)]
        rng.shuffle(owner)
        tree = OwnedTree(owner)
        steps = fmean(tree.steps(rng.choice(owner), rng.randrange(count), fingers=True) for _ in range(600))
        assert steps == pytest.approx(tree_steps(count), rel=0.15)


@pytest.mark.parametrize("profile", ["paper", "robust"])
def test_a_scene_s_trees_cost_what_the_protocol_s_do(profile: str) -> None:
    chosen = experiment(
        "cbdlo-agreement-trees", profile=profile, subscriptions="40", nodes="40", events="150", seeds="2"
    )
    results = measured(chosen)
    scene, protocol = (results.mean(f"{run}, {profile}", 40) for run in ("scene", "protocol"))
    assert scene == pytest.approx(protocol, rel=0.15)


def test_conditions_are_as_wide_as_the_requested_matches_need() -> None:
    scene = scene_with(3.0, SceneSize(nodes=1000, subscriptions=1000), 1)
    assert fmean(len(scene.matching(scene.event())) for _ in range(400)) == pytest.approx(3.0, rel=0.3)


@pytest.mark.parametrize(
    ("name", "settings"), [("cbdlo-5", {"nodes": "1"}), ("cbdlo-churn", {"replaced_percent": "70"})]
)
def test_invalid_settings_are_refused_before_anything_is_run(name: str, settings: dict[str, str]) -> None:
    with pytest.raises(InputError):
        experiment(name, **settings).points()


def test_coordinators_share_a_popular_attribute_that_nobody_can_read() -> None:
    chosen = experiment(
        "cbdlo-hotspots", values=UNREADABLE, coordinators="1,8", subscriptions="40", events="10", seeds="1"
    )
    results = measured(chosen)
    assert results.mean(f"{REGISTERED}, {UNREADABLE}", 1) == 100
    assert results.mean(f"{REGISTERED}, {UNREADABLE}", 8) < 40
    assert judged(chosen, "is unreadable", results).verdict is Verdict.GOAL_MET


def test_walks_meet_their_topology_where_tables_are_hashed() -> None:
    chosen = experiment("cbdlo-rendezvous", attributes="60", nodes="40", walks="100", warm_s="30", seeds="1")
    results = measured(chosen)
    assert results.mean(f"{SUCCEEDED}, hashed", 60) >= 90
    with pytest.raises(NotMeasured):  # The claim is about twenty attributes for each entry of a table.
        judged(chosen, "one walk finds", results)
    assert results.mean(f"{SUCCEEDED}, hashed", 60) > results.mean(f"{SUCCEEDED}, balanced", 60) + 5
