"""CBDLO in simulated networks: correct trees after faults, one topology an attribute, a connected graph, no loss."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from tests.city import NAMES, Sighting, a_city
from tests.conformance import FAULTS, NODE_COUNT
from tests.given_trees import check_tree
from tests.simulation.test_node_rights import random_condition, random_values
from tidings.filters import parse
from tidings.lab.cbdlo.claims import ROBUST
from tidings.lab.cbdlo.measures import measure_churn
from tidings.overlay import EventId, NodeId, Ranges, Sql, SubscriptionId
from tidings.overlay.cbdlo.attribute_tree import AttributeTree
from tidings.overlay.cbdlo.coordinator import Coordinator
from tidings.overlay.cbdlo.owned_partitions import OwnedPartition
from tidings.overlay.cbdlo.router import Cbdlo
from tidings.overlay.random_graph.partition import AttributeAxis, intervals_of
from tidings.security import Mode
from tidings.sim import SimulationPlan, World, check_safe, run

X = AttributeAxis("Event", "x")


def a_world(seed: int, *, nodes: int = 24, wishes: int = 30, attributes: str = "x", **options: Any) -> World:
    """Some nodes with some interests, all registered."""
    world, rng = World("cbdlo", node_count=nodes, seed=seed, options=options), Random(seed)
    world.run_for(20.0)
    for _ in range(wishes):
        wanted = {}
        for name in rng.sample(attributes, rng.randint(1, len(attributes))):
            low = rng.randrange(800)
            wanted[name] = (low, low + 200)
        world.subscribe(rng.choice(world.up()), Ranges.of(**wanted))
    world.run_for(30.0)
    return world


def routers(world: World) -> dict[NodeId, Cbdlo]:
    """Of the nodes that are up."""
    return {m.id: m.router for m in world.nodes if m.up and isinstance(m.router, Cbdlo)}


def coordinators(world: World, axis: AttributeAxis = X) -> list[Coordinator]:
    found = [router.upper.coordinators.by_axis.get(axis) for router in routers(world).values()]
    return [coordinator for coordinator in found if coordinator is not None]


def check_as_planned(world: World, coordinator: Coordinator) -> None:
    """The owners have exactly what the coordinator has planned (CBDLO-INV-07)."""
    check_tree(coordinator.plan)
    held: dict[Any, OwnedPartition] = {}
    for id, router in routers(world).items():
        for low, holding in router.upper.owned.partitions(coordinator.axis, coordinator.tree).items():
            assert low not in held, f"{low} has two owners"
            held[low] = holding
            planned = coordinator.plan.get(low)
            assert planned is not None
            assert planned.owner.id == id
    for each in coordinator.plan:
        holding = held.pop(each.low)
        assert holding.registered.keys() == each.registered.keys()
        assert (holding.state.high, holding.state.first, holding.state.last) == (each.high, each.first, each.last)
        links = (
            holding.state.parent,
            holding.state.left,
            holding.state.right,
            holding.state.before,
            holding.state.after,
        )
        planned_links = (each.parent, each.left, each.right, each.before, each.after)
        assert [link and (link.low, link.owner) for link in links] == [p and (p.low, p.owner) for p in planned_links]
    assert not held


def check_all_registered(world: World, plan: AttributeTree) -> None:
    """The interests of all nodes that are up are registered, and no others."""
    wanted = {id for member in world.nodes if member.up for id in member.subscriptions}
    assert {each.interest.id for each in plan.registrations()} == wanted


# ── Trees ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("faults", ["comings and goings", "a split", "everything"])
def test_the_tree_recovers_from(faults: str) -> None:
    """CBDLO-INV-07: as planned, balanced, and with all interests registered."""
    world = a_world(5)
    world.strike(FAULTS[faults](5))
    world.run_for(150.0)
    (coordinator,) = coordinators(world)
    check_as_planned(world, coordinator)
    check_all_registered(world, coordinator.plan)


def test_the_tree_is_correct_after_many_subscriptions_and_withdrawals() -> None:
    world, rng = a_world(7, wishes=10), Random(7)
    wishes = [id for member in world.nodes for id in member.subscriptions]
    for _ in range(120):
        if wishes and rng.random() < 0.5:
            world.unsubscribe(wishes.pop(rng.randrange(len(wishes))))
        else:
            low = rng.randrange(900)
            wishes.append(world.subscribe(rng.choice(world.up()), Ranges.of(x=(low, low + rng.randrange(99)))))
        world.run_for(rng.choice((0.0, 0.1, 1.0)))
    world.run_for(60.0)
    (coordinator,) = coordinators(world)
    check_as_planned(world, coordinator)
    check_all_registered(world, coordinator.plan)
    assert coordinator.plan.root.height >= 4


class Changing:
    """A network in which nodes subscribe, unsubscribe, join, leave and crash many times a second."""

    def __init__(self, seed: int, *, nodes: int = 16) -> None:
        self.world, self.rng = World("cbdlo", node_count=nodes, seed=seed, recording=False), Random(seed)
        self.world.run_for(20.0)
        self.done: Counter[str] = Counter()

    def change_often(self, count: int, over_s: float) -> None:
        for _ in range(count):
            change = self.rng.choices(("interest", "leave", "crash"), (98, 1, 1))[0]
            self.done[change] += 1
            self._change_interest() if change == "interest" else self._replace(change)
            self.world.run_for(over_s / count)

    def _replace(self, how: str) -> None:
        gone = self.rng.choice(self.world.up())
        self.world.crash(gone) if how == "crash" else self.world.leave(gone)
        self.world.join()

    def _change_interest(self) -> None:
        """There are some twenty interests at a time."""
        staying = [self.world.nodes[node] for node in self.world.up()]
        wishes = [id for member in staying for id in member.subscriptions]
        if self.rng.random() < len(wishes) / 40:
            self.world.unsubscribe(self.rng.choice(wishes))
        else:
            low = self.rng.randrange(900)
            wanted = Ranges.of(x=(low, low + self.rng.randrange(99)))
            self.world.subscribe(self.rng.choice(staying).index, wanted)


def test_trees_views_and_tables_are_correct_after_ten_thousand_changes() -> None:
    """CBDLO-INV-07: subscribe, unsubscribe, leave and crash, checked after every thousand changes."""
    changing = Changing(3)
    for _ in range(10):
        changing.change_often(1000, over_s=40.0)
        changing.world.run_for(120.0)  # Two leases: the registrations of crashed nodes have expired.
        (coordinator,) = coordinators(changing.world)
        check_as_planned(changing.world, coordinator)
        check_all_registered(changing.world, coordinator.plan)
        for id, router in routers(changing.world).items():
            assert len(router.graph.sampler) <= router.graph.sampler.size
            assert len(router.graph.table) <= router.graph.table.size
            assert id not in router.links()
    assert changing.done.total() == 10_000
    assert min(changing.done[kind] for kind in ("interest", "leave", "crash")) > 50


def test_an_interest_withdrawn_before_it_was_confirmed_is_registered_nowhere() -> None:
    """A founder confirms nothing at first, and registrations are retransmitted; a withdrawal must end that."""
    changing = Changing(3)
    changing.change_often(250, over_s=10.0)
    changing.world.run_for(8.0)
    up = [member for member in changing.world.nodes if member.up]
    wanted = {id for member in up for id in member.subscriptions}
    names = {member.id for member in up}
    (coordinator,) = coordinators(changing.world)
    assert {each.interest.id for each in coordinator.registrations() if each.peer.id in names} == wanted


def test_a_replica_takes_over_from_a_failed_coordinator_and_no_registration_is_lost() -> None:
    world = a_world(3)
    (before,) = coordinators(world)
    known = {each.interest.id for each in before.registrations() if each.peer.id != before.me.id}
    world.crash(next(m.index for m in world.nodes if m.id == before.me.id))
    world.run_for(12.0)
    (after,) = coordinators(world)
    assert after.me.id in before.replicas
    assert known <= {each.interest.id for each in after.registrations()}


def test_two_topologies_of_one_attribute_become_one() -> None:
    """CBDLO-INV-12: each half of a split network has founded its own."""
    world, rng = World("cbdlo", node_count=24, seed=9), Random(9)
    world.run_for(20.0)
    with world.split(range(12)):
        world.run_for(2.0)
        for node in range(24):
            low = rng.randrange(800)
            world.subscribe(node, Ranges.of(x=(low, low + 200)))
        world.run_for(30.0)
        assert len(coordinators(world)) >= 2
    world.run_for(40.0)
    (coordinator,) = coordinators(world)
    check_all_registered(world, coordinator.plan)
    world.run_for(30.0)
    check_as_planned(world, coordinator)


# ── The lower layer ──────────────────────────────────────────────────────────


def test_the_graph_stays_connected_when_three_nodes_in_ten_crash_at_once() -> None:
    """CBDLO-INV-14."""
    world = World("cbdlo", node_count=200, seed=2, recording=False)
    world.run_for(20.0)
    for node in Random(2).sample(range(200), 60):
        world.crash(node)
    alive = routers(world)
    world.run_for(20.0)
    views = {id: [peer for peer in router.links() if peer in alive] for id, router in alive.items()}
    assert max(_components(views)) > 0.99 * len(alive)


def test_no_node_is_in_far_more_views_than_others() -> None:
    world = World("cbdlo", node_count=120, seed=4, recording=False)
    world.run_for(60.0)
    known = Counter(peer for router in routers(world).values() for peer in router.links())
    assert len(known) == 120
    assert max(known.values()) <= 30, "three times the mean"
    assert all(len(router.graph.sampler) >= 9 for router in routers(world).values())


def _components(views: dict[NodeId, list[NodeId]]) -> list[int]:
    """The sizes of the connected components, with links taken both ways."""
    links: dict[NodeId, set[NodeId]] = {id: set(view) for id, view in views.items()}
    for id, view in views.items():
        for peer in view:
            links[peer].add(id)
    sizes, left = [], dict.fromkeys(links)
    while left:
        waiting, size = [next(iter(left))], 0
        while waiting:
            node = waiting.pop()
            if node in left:
                del left[node]
                size += 1
                waiting += links[node]
        sizes.append(size)
    return sizes


# ── Delivery ─────────────────────────────────────────────────────────────────


OPTIONS: list[dict[str, Any]] = [
    {}, {"mode": "count", "fingers": False}, {"profile": "paper"}, {"coordinators": 3},
    {"coordinators": 3, "mode": "count"}, {"policy": "balanced"},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_events_reach_exactly_the_conditions_on_several_attributes_that_match(options: dict[str, Any]) -> None:
    """CBDLO-INV-01, CBDLO-INV-02 and CBDLO-INV-03, with every option, where all nodes have an access point."""
    world = a_world(11, attributes="xyz", wishes=40, **options)
    world.run_for(60.0)
    before = len(world.trace.notices)
    world.publish_some(25, draw=lambda rng: {name: rng.randrange(1000) for name in "xyz"})
    world.run_for(60.0)
    delivered = Counter((notice.event, notice.subscription) for notice in world.trace.notices[before:])
    expected = {
        (event, id)
        for event, said in world.trace.publications.items()
        for id, wish in world.trace.subscriptions.items()
        if wish.interest.matches(said.packet)
    }
    assert set(delivered) == expected
    assert set(delivered.values()) == {1}
    assert expected


def test_several_coordinators_share_an_attribute() -> None:
    world = a_world(5, nodes=30, wishes=60, coordinators=3)
    shares = [sum(len(each.registrations()) for each in coordinators(world, X._replace(number=k))) for k in range(3)]
    assert sum(shares) == 60
    assert max(shares) < 40
    founders = {each.me.id for number in range(3) for each in coordinators(world, X._replace(number=number))}
    assert len(founders) == 3


@pytest.mark.parametrize("faults", ["comings and goings", "everything"])
def test_the_trees_of_all_coordinators_recover_from(faults: str) -> None:
    world = a_world(8, coordinators=2)
    world.strike(FAULTS[faults](8))
    world.run_for(150.0)
    (first,), (second,) = (coordinators(world, X._replace(number=number)) for number in range(2))
    check_as_planned(world, first)
    check_as_planned(world, second)
    wanted = {id for member in world.nodes if member.up for id in member.subscriptions}
    assert {each.interest.id for one in (first, second) for each in one.registrations()} == wanted


def test_the_nodes_of_live_brokers_deliver_what_routers_alone_do() -> None:
    """CBDLO-INV-13: the same interests and events, as bytes between nodes and as objects between routers."""
    rng = Random(6)
    wishes = [(node, random_condition(rng, NAMES)) for node in range(8) for _ in range(2)]
    said = [(rng.randrange(8), random_values(rng)) for _ in range(20)]
    city = a_city("cbdlo", Mode.PLAIN, [None] * 8, seed=6)
    asked = [city.ask(node, condition) for node, condition in wishes]
    city.settle(10.0)
    live = []
    for node, values in said:
        live.append(city.say(node, **values))
        city.settle(2.0)
    world = World("cbdlo", node_count=8, seed=6)
    world.run_for(20.0)
    wanted = [world.subscribe(node, Sql.of(parse(condition, Sighting))) for node, condition in wishes]
    world.run_for(30.0)
    plain = []
    for node, values in said:
        plain.append(world.publish(node, values))
        world.run_for(2.0)
    delivered = deliveries(world, plain, wanted)
    assert deliveries(city.world, live, asked) == delivered
    assert len(delivered) > 20


def deliveries(world: World, events: list[EventId], wishes: list[SubscriptionId]) -> list[tuple[int, int]]:
    """Which event was delivered for which interest, by their numbers."""
    return sorted((events.index(notice.event), wishes.index(notice.subscription)) for notice in world.trace.notices)


def test_incomplete_counts_expire() -> None:
    """CBDLO-INV-10."""
    world = a_world(12, attributes="xy", wishes=30, profile="paper")
    world.publish_some(20, draw=lambda rng: {"x": rng.randrange(1000)})
    world.run_for(5.0)
    assert sum(len(router.counter) for router in routers(world).values()) > 0
    world.run_for(40.0)
    assert sum(len(router.counter) for router in routers(world).values()) == 0


@pytest.mark.parametrize("faults", ["loss and repeats", "everything"])
def test_as_published_it_may_lose_events_and_does_nothing_else_wrong(faults: str) -> None:
    world = run(
        SimulationPlan("cbdlo", seed=1, node_count=NODE_COUNT, faults=FAULTS[faults](1), options={"profile": "paper"})
    )
    check_safe(world, crossings_max=16)


def test_nodes_that_stay_miss_nothing_while_others_join_and_crash() -> None:
    setting = {"protocol": ROBUST, "nodes": 30, "replaced_percent": 3.0, "seconds": 40}
    assert [share for _, _, share in measure_churn(setting, seed=1)] == [100.0]


def test_an_event_takes_at_most_as_many_tree_steps_as_the_tree_is_high() -> None:
    """CBDLO-A8."""
    world = a_world(6, nodes=40, wishes=60)
    (coordinator,) = coordinators(world)
    before, steps = world.trace.counted["tree steps"], 20
    world.publish_some(steps)
    world.run_until_quiet()
    assert (world.trace.counted["tree steps"] - before) / steps <= coordinator.plan.root.height
    assert all(intervals_of(each.interest, X) for each in coordinator.registrations())
