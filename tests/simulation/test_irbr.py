"""IRBR's properties in whole worlds: exactly once, whoever crashes, joins, or changes its mind."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from tests.unit.overlay.harness import QUIET, Bench
from tidings.overlay import AnyWanted, EventId, NodeId, Ranges, protocol
from tidings.overlay.irbr.filter_table import EntryState
from tidings.overlay.irbr.router import Irbr
from tidings.overlay.prefix.routing_state import shared
from tidings.sim import World

STILL: dict[str, Any] = {"heartbeat_s": 0, "sync_s": 0}


def a_wish(rng: Random) -> AnyWanted:
    low = rng.randrange(90)
    return Ranges.of(x=(low, low + rng.choice((0, 5, 20, 60))))


def a_world(seed: int, *, node_count: int = 0, wishes: int = 20, **options: Any) -> World:
    """Some nodes, some of which want something; all of it settled."""
    rng = Random(seed)
    world = World("irbr", node_count=node_count or rng.randrange(2, 64), seed=seed, options={**STILL, **options})
    for _ in range(wishes):
        world.subscribe(rng.randrange(len(world.nodes)), a_wish(rng))
    world.run_until_quiet()
    return world


def routers(world: World) -> list[Irbr]:
    return [member.router for member in world.nodes if isinstance(member.router, Irbr)]


def wanting(world: World, x: int) -> set[NodeId]:
    """The nodes that are up and want this."""
    return {
        member.id
        for member in world.nodes
        if member.up and any(i.wanted.covers(Ranges.of(x=(x, x))) for i in member.subscriptions.values())
    }


def reached(world: World, event: EventId) -> Counter[NodeId]:
    return Counter({node: times for (each, node), times in world.trace.deliveries.items() if each == event})


def received(world: World, event: EventId) -> Counter[NodeId]:
    return Counter(row.peer for row in world.trace.about(event) if row.kind == "send" and row.what == "Carry")


# ── Exactly once ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["interest", "paper"])
@pytest.mark.parametrize("reliability", ["R0", "R1", "R2"])
@pytest.mark.parametrize("seed", range(4))
def test_each_interested_node_hears_once_and_nobody_else_IRBR_P1(seed: int, reliability: str, mode: str) -> None:
    world = a_world(seed, reliability=reliability, mode=mode)
    for x in (3, 50, 95):
        event = world.publish(world.rng.randrange(len(world.nodes)), {"x": x})
        world.run_until_quiet()
        assert reached(world, event) == Counter(wanting(world, x))


@pytest.mark.parametrize("seed", range(6))
def test_sent_once_no_node_gets_an_event_twice_IRBR_P2(seed: int) -> None:
    world = a_world(seed, reliability="R0", mode="paper")
    event = world.publish(0, {"x": 50})
    world.run_until_quiet()
    assert all(times == 1 for times in received(world, event).values())


@pytest.mark.parametrize("seed", range(6))
def test_in_interest_mode_each_message_reaches_somebody_who_wants_it_IRBR_P9(seed: int) -> None:
    world = a_world(seed, node_count=60)
    publisher = world.nodes[0].id
    for x in range(0, 100, 9):
        event = world.publish(0, {"x": x})
        world.run_until_quiet()
        assert received(world, event) == Counter(wanting(world, x) - {publisher})


# ── Failures ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("bounces", [True, False], ids=["bounced", "silent"])
@pytest.mark.parametrize("reliability", ["R1", "R2"])
@pytest.mark.parametrize("seed", range(4))
def test_the_living_all_hear_once_however_many_crash_IRBR_P3(seed: int, reliability: str, bounces: bool) -> None:
    rng = Random(seed)
    options = {**STILL, "reliability": reliability, "mode": "paper", "obituaries": False}
    world = World("irbr", node_count=100, seed=seed, options=options)
    world.bounces = bounces
    for node in rng.sample(range(100), 30):
        world.subscribe(node, Ranges.of(x=(0, 99)))
    world.run_until_quiet()
    for node in rng.sample(range(1, 100), 20):
        world.crash(node)
    event = world.publish(0, {"x": 7})
    world.run_until_quiet()
    assert reached(world, event) == Counter(wanting(world, 7))


@pytest.mark.parametrize("seed", range(4))
def test_other_representatives_of_the_same_ranges_change_nothing_IRBR_P4(seed: int) -> None:
    world = a_world(seed, node_count=60, mode="paper", alternates=1)
    rng = Random(seed)
    for router in routers(world):
        table = router.ring.table
        for cell in table:
            table[cell] = [rng.choice([other.peer for other in world.nodes if other.id.startswith(cell)])]
    event = world.publish(0, {"x": 50})
    world.run_until_quiet()
    assert reached(world, event) == Counter(wanting(world, 50))


# ── Covers ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(4))
def test_covering_saves_announcements_and_changes_nobody_s_notices_IRBR_P8_P10(seed: int) -> None:
    covering, plain = (a_world(seed, node_count=40, wishes=40, covering=choice) for choice in (True, False))
    for x in range(0, 100, 7):
        events = [world.publish(1, {"x": x}) for world in (covering, plain)]
        for world in (covering, plain):
            world.run_until_quiet()
        assert reached(covering, events[0]) == reached(plain, events[1])
    assert covering.trace.messages("Spread") <= plain.trace.messages("Spread")


def test_the_more_interests_there_are_the_less_a_new_one_costs() -> None:
    world = World("irbr", node_count=60, seed=5, options=STILL)
    rng = Random(5)
    costs = []
    for _ in range(3):
        before = world.trace.messages("Spread")
        for _ in range(60):
            world.subscribe(rng.randrange(60), Ranges.of(x=(0, rng.choice((10, 50, 90)))))
            world.run_until_quiet()
        costs.append(world.trace.messages("Spread") - before)
    assert costs[0] > costs[1] > costs[2]


def uncovered(bench: Bench, at: NodeId) -> list[Any]:
    """Stable subscriptions of which this node knows nothing that covers them, against IRBR-I4."""
    router = bench.routers[at]
    missing = []
    for id in [id for id in bench.routers if id != at]:
        known = [e.interest for e in router.table.under(router.ring.cell(id)) if e.interest]
        stable = [own for own in bench.routers[id].own.values() if own.stable and own.state is EntryState.LIVE]
        missing += [own.interest.id for own in stable if not any(i.covers(own.interest) for i in known)]
    return missing


def change_minds(seed: int, **options: Any) -> tuple[Bench, int]:
    """Twelve nodes (k = 3, L = 4) subscribe and unsubscribe 40 times, all at once; IRBR-I4 is looked at after every message."""
    rng = Random(seed)
    ids = sorted(rng.sample([a + b + c + d for a in "012" for b in "012" for c in "012" for d in "012"], 12))
    bench = Bench(protocol("irbr"), ids, seed=seed, base=3, **QUIET, **options)
    made: list[Any] = []
    violations = 0
    for _ in range(40):
        if made and rng.random() < 0.45:
            bench.unsubscribe(made.pop(rng.randrange(len(made))))
        else:
            low = rng.randrange(3)
            made.append(bench.subscribe(rng.choice(ids), Ranges.of(x=(low, low + rng.choice((0, 1, 2, 8))))))
        violations += sum(len(uncovered(bench, id)) for id in ids)
        violations += sum(len(uncovered(bench, id)) for id in bench.steps(bench.now + rng.random()))
    violations += sum(len(uncovered(bench, id)) for id in bench.steps())
    return bench, violations


@pytest.mark.parametrize("seed", range(15))
def test_a_stable_subscription_is_known_to_all_at_every_moment_IRBR_P6(seed: int) -> None:
    bench, violations = change_minds(seed)
    assert violations == 0
    for router in bench.routers.values():
        assert len(router.custody) == 0
        assert all(own.stable for own in router.own.values())
        entries = [e for cell in router.table.cells() for e in router.table.under(cell)]
        live = [e for e in entries if e.state is not EntryState.GONE]
        assert all(e.id in bench.routers[e.origin.id].own for e in live), "IRBR-I5: a stale entry"
        assert all(e.state is EntryState.LIVE for e in live)


def test_without_the_first_phase_there_are_moments_when_it_is_not() -> None:
    assert sum(change_minds(seed, two_phase=False)[1] for seed in range(6)) > 0


# ── Joining ──────────────────────────────────────────────────────────────────


def assert_knows_what_all_want(router: Irbr, world: World) -> None:
    for other in [each for each in routers(world) if each is not router]:
        known = [e.interest for e in router.table.under(router.ring.cell(other.me.id)) if e.interest]
        for own in other.own.values():
            assert own.stable
            assert any(interest.covers(own.interest) for interest in known)


@pytest.mark.parametrize("seed", range(3))
def test_a_joiner_knows_what_it_would_know_had_it_always_been_there_IRBR_P7(seed: int) -> None:
    world = a_world(seed, node_count=40, wishes=40)
    joined = [world.join() for _ in range(5)]
    world.run_until_quiet()
    for node in joined:
        assert_knows_what_all_want(routers(world)[node], world)
    for x in range(0, 100, 11):
        event = world.publish(joined[0], {"x": x})
        world.run_until_quiet()
        assert reached(world, event) == Counter(wanting(world, x))


@pytest.mark.parametrize("within_s", [0.0, 0.02, 0.2], ids=["at once", "in a flurry", "in haste"])
@pytest.mark.parametrize("seed", range(5))
def test_of_many_that_come_together_each_knows_what_all_want_IRBR_P7(seed: int, within_s: float) -> None:
    world, rng = a_world(seed, node_count=3, wishes=6), Random(seed)
    for _ in range(12):
        node = world.join()
        world.run_for(rng.uniform(0.0, within_s))
        world.subscribe(node, a_wish(rng))
    world.run_until_quiet()
    for router in routers(world):
        assert_knows_what_all_want(router, world)


def test_events_reach_newcomers_in_ranges_that_were_empty() -> None:
    world = a_world(1, node_count=30, wishes=5)
    for _ in range(10):
        node = world.join()
        world.run_until_quiet()
        world.subscribe(node, Ranges.of(x=(0, 99)))
    world.run_until_quiet()
    assert any(shared(a.id, b.id) == 0 for a in world.nodes[30:] for b in world.nodes[:30])
    event = world.publish(3, {"x": 50})
    world.run_until_quiet()
    assert reached(world, event) == Counter(wanting(world, 50))


def test_a_node_that_comes_back_has_its_former_life_mourned() -> None:
    world = World("irbr", node_count=20, seed=3)
    world.subscribe(4, Ranges.of(x=(0, 99)))
    world.run_for(10)
    world.crash(4)
    world.restart(4, memory=True)
    world.run_for(40)
    entries = [e for router in routers(world) for cell in router.table.cells() for e in router.table.under(cell)]
    assert {e.id.incarnation for e in entries if e.state is not EntryState.GONE} == {1}
    event = world.publish(0, {"x": 1})
    world.run_for(10)
    assert reached(world, event) == Counter({world.nodes[4].id: 1})


# ── Size ─────────────────────────────────────────────────────────────────────


def test_a_thousand_nodes_are_settled_and_reached_without_loss() -> None:
    world = World("irbr", node_count=1000, seed=1, options={**STILL, "obituaries": False}, recording=False)
    for node in range(0, 1000, 100):
        world.subscribe(node, Ranges.of(x=(0, 9)))
    world.run_until_quiet()
    for node in range(5, 1000, 10):
        world.crash(node)
    event = world.publish(1, {"x": 5})
    world.run_until_quiet()
    assert reached(world, event) == Counter(wanting(world, 5))
