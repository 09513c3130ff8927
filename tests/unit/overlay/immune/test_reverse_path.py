"""Reverse pointers: interests walk back along adverts, events follow them down, and covering saves messages."""

from __future__ import annotations

from random import Random
from typing import Any

from tidings.overlay import Everything, Ranges, SubscriptionId
from tidings.overlay.immune.router import Immune
from tidings.sim import (
    Topology,
    Workload,
    World,
    check_nothing_lost,
    check_nothing_twice,
    check_nothing_unwanted,
    topology,
)
from tidings.sim.network import Flat

ADVERTISE = {"mode": "advertise"}


def a_path(node_count: int) -> World:
    """Nodes in a row; the ones between the ends are the core."""
    links = tuple((i, i + 1) for i in range(node_count - 1))
    return World("immune", topology=Topology(node_count, links, Flat()), seed=1, options={**ADVERTISE, "delta": 1})


def router(world: World, node: int) -> Immune:
    found = world.nodes[node].router
    assert isinstance(found, Immune)
    return found


def settled_publisher(world: World, node: int) -> None:
    """Have a node publish once, so that its advert is known, and wait until events follow pointers."""
    world.publish(node, {"x": 0})
    world.run_for(10.0)


def sent(world: World, *names: str) -> int:
    return world.trace.messages(*names)


def test_an_event_goes_only_where_it_is_wanted() -> None:
    world = a_path(6)
    settled_publisher(world, 0)
    world.subscribe(3, Ranges.of(x=(5, 9)))
    world.run_for(5.0)
    before = sent(world, "Forward")
    wanted, unwanted = world.publish(0, {"x": 7}), world.publish(0, {"x": 1})
    world.run_until_quiet()
    assert sent(world, "Forward") - before == 3
    assert [notice.event for notice in world.trace.notices] == [wanted]
    assert not [node for event, node in world.trace.deliveries if event == unwanted and node != "n0000"]


def test_a_subscription_is_complete_when_the_publisher_knows_of_it() -> None:
    world = a_path(6)
    settled_publisher(world, 0)
    id = world.subscribe(5, Everything())
    assert world.trace.subscriptions[id].completed_at is None
    world.run_for(5.0)
    assert world.trace.subscriptions[id].completed_at is not None
    assert any(id in wanted for tree in router(world, 0).paths.trees.values() for wanted in tree.wanted.values())


def test_a_covered_interest_is_not_forwarded() -> None:
    world = a_path(6)
    settled_publisher(world, 0)
    world.subscribe(3, Ranges.of(x=(0, 100)))
    world.run_for(5.0)
    before = sent(world, "Sub")
    id = world.subscribe(3, Ranges.of(x=(5, 9)))
    assert world.trace.subscriptions[id].completed_at == world.now
    assert sent(world, "Sub") == before
    world.subscribe(4, Ranges.of(x=(6, 7)))
    world.run_for(5.0)
    assert sent(world, "Sub") == before + 1  # As far as node 3, which has said all that is needed.


def test_what_an_interest_covered_is_sent_before_it_is_taken_back() -> None:
    world = a_path(6)
    settled_publisher(world, 0)
    wide = world.subscribe(5, Ranges.of(x=(0, 100)))
    world.run_for(5.0)
    narrow = world.subscribe(5, Ranges.of(x=(5, 9)))
    world.unsubscribe(wide)
    for step in range(200):  # At no moment is the narrow one missed.
        world.publish(0, {"x": 7})
        world.run_for(0.003 * (1 + step % 3))
    world.run_until_quiet()
    assert len(world.trace.notices) == 200
    assert {notice.subscription for notice in world.trace.notices} == {narrow}
    assert interests_at(world, 0) == [narrow]


def interests_at(world: World, node: int) -> list[SubscriptionId]:
    trees = router(world, node).paths.trees.values()
    return [id for tree in trees for wanted in tree.wanted.values() for id in wanted]


def test_all_traces_of_a_subscription_go_when_it_is_taken_back() -> None:
    world = World("immune", node_count=20, seed=3, options=ADVERTISE)
    settled_publisher(world, 0)
    ids = [world.subscribe(node, Ranges.of(x=(node, node + 5))) for node in range(20)]
    world.run_for(10.0)
    for id in ids:
        world.unsubscribe(id)
    world.run_for(30.0)
    assert [interests_at(world, node) for node in range(20)] == [[]] * 20


def test_events_of_many_publishers_reach_many_subscribers_once() -> None:
    graph = topology("barabasi-albert", 40, Random(2), m0=10)
    world = World("immune", topology=graph, seed=2, options=ADVERTISE)
    rng = Random(2)
    for node in range(0, 40, 4):
        world.publish(node, {"x": 1})
    for wanted in Workload(subscriptions=60).wanted(rng):
        world.subscribe(rng.randrange(40), wanted)
    world.run_for(20.0)
    before = world.trace.messages("Spread")
    for _ in range(50):
        world.publish(rng.randrange(0, 40, 4), {"x": rng.randrange(1000)})
        world.run_for(0.1)
    world.run_until_quiet()
    assert world.trace.messages("Spread") == before  # None of them had to be spread to everyone.
    check_nothing_lost(world.trace)
    check_nothing_twice(world.trace)
    check_nothing_unwanted(world.trace)


def test_a_broken_tree_is_laid_anew() -> None:
    world = World("immune", node_count=24, seed=9, options=ADVERTISE)
    settled_publisher(world, 23)
    wanted = [world.subscribe(node, Everything()) for node in range(23)]
    world.run_for(10.0)
    middle = _a_relay(world, "n0023")
    world.crash(middle)
    world.run_for(40.0)
    event = world.publish(23, {"x": 1})
    world.run_until_quiet()
    parts = world.parts()
    owed = {id for id in wanted if parts.get(id.origin) == parts["n0023"]}
    assert {notice.subscription for notice in world.trace.notices if notice.event == event} == owed
    assert max(tree.advert.seq for tree in router(world, 23).paths.trees.values()) > 1


def _a_relay(world: World, publisher: str) -> int:
    """A node that others hear this publisher through."""
    through: dict[Any, int] = {}
    for member in world.nodes:
        for id, tree in router(world, member.index).paths.trees.items():
            if id.origin == publisher and tree.pointer and tree.pointer != publisher:
                through[tree.pointer] = through.get(tree.pointer, 0) + 1
    return [member.id for member in world.nodes].index(max(through, key=lambda relay: through[relay]))
