"""Hermes in whole worlds: its trees after failures, and the hop counts of the papers."""

from __future__ import annotations

from collections import Counter
from random import Random
from statistics import fmean
from typing import Any

import pytest

from tidings.overlay import EventId, Everything, NodeId, Ranges
from tidings.sim import World

STILL: dict[str, Any] = {"heartbeat_s": 0, "refresh_s": 0}
SCRIBE: dict[str, Any] = {**STILL, "repair": False, "shortcut": False, "alternates": 1}


def reached(world: World, event: EventId) -> Counter[NodeId]:
    return Counter({node: times for (each, node), times in world.trace.deliveries.items() if each == event})


@pytest.mark.parametrize("options", [{}, {"shortcut": False}, {"content": False}, {"remember_root": True}], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_each_interested_node_hears_once(seed: int, options: dict[str, Any]) -> None:
    world = World("hermes", node_count=60, seed=seed, options={**STILL, **options})
    rng = Random(seed)
    for _ in range(30):
        low = rng.randrange(90)
        world.subscribe(rng.randrange(60), Ranges.of(x=(low, low + rng.choice((0, 5, 40)))))
    world.run_until_quiet()
    for x in range(0, 100, 9):
        event = world.publish(rng.randrange(60), {"x": x})
        world.run_until_quiet()
        told = {notice.subscription.origin for notice in world.trace.notices if notice.event == event}
        wanted = {
            member.id
            for member in world.nodes
            if any(i.wanted.covers(Ranges.of(x=(x, x))) for i in member.subscriptions.values())
        }
        assert told == wanted
        assert all(times == 1 for times in reached(world, event).values())


@pytest.mark.parametrize("seed", range(3))
def test_trees_grow_back_after_a_fifth_of_the_nodes_has_crashed(seed: int) -> None:
    world = World("hermes", node_count=50, seed=seed)
    for node in range(0, 50, 3):
        world.subscribe(node, Everything())
    world.run_for(10)
    for node in Random(seed).sample(range(1, 50), 10):
        world.crash(node)
    world.run_for(60)
    event = world.publish(1 if world.nodes[1].up else 0, {"x": 1})
    world.run_for(20)
    assert reached(world, event) == Counter(m.id for m in world.nodes if m.up and m.subscriptions)


def test_a_new_rendezvous_takes_over_the_tree() -> None:
    world = World("hermes", node_count=20, seed=2)
    for node in range(20):
        world.subscribe(node, Everything())
    world.run_for(10)
    for _ in range(20):
        world.join()
        world.run_for(3)
    event = world.publish(39, {"x": 1})
    world.run_for(20)
    assert reached(world, event) == Counter(m.id for m in world.nodes[:20])


def hops(world: World, publisher: int, event_type: str, *, warm: bool) -> int:
    """How many hops one event takes; with `warm`, the second one of its publisher."""
    if warm:
        world.publish(publisher, {"x": 1}, event_type)
        world.run_until_quiet()
    before = world.trace.messages("Up", "Down")
    world.publish(publisher, {"x": 1}, event_type)
    world.run_until_quiet()
    return world.trace.messages("Up", "Down") - before


def mean_hops(subscribers: int, seeds: range, **options: Any) -> float:
    """Over networks of 2000 brokers, some types each."""
    taken = []
    for seed in seeds:
        world = World("hermes", node_count=2000, seed=seed, options={**SCRIBE, **options}, recording=False)
        rng = Random(seed)
        for each in range(40):
            for node in rng.sample(range(2000), subscribers):
                world.subscribe(node, Everything(), f"T{each}")
            world.run_until_quiet()
            taken.append(hops(world, rng.randrange(2000), f"T{each}", warm="remember_root" in options))
    return fmean(taken)


def test_hop_counts_are_those_of_the_secure_paper_s_figure_8() -> None:
    two, ten = mean_hops(2, range(1)), mean_hops(10, range(1))
    assert two == pytest.approx(7.2, rel=0.2)
    assert ten == pytest.approx(24.2, rel=0.15)
    assert mean_hops(10, range(1), remember_root=True) < ten


def test_a_tree_left_alone_loses_whole_branches_when_nodes_fail() -> None:
    losses = []
    for seed in range(6):
        world = World("hermes", node_count=300, seed=seed, options=SCRIBE, recording=False)
        rng = Random(seed)
        wanting = rng.sample(range(1, 300), 60)
        for node in wanting:
            world.subscribe(node, Everything())
        world.run_until_quiet()
        for node in rng.sample(range(1, 300), 30):
            world.crash(node)
        event = world.publish(0, {"x": 1})
        world.run_until_quiet()
        alive = [node for node in wanting if world.nodes[node].up]
        losses.append(1 - len(reached(world, event)) / len(alive))
    assert fmean(losses) > 0.05
