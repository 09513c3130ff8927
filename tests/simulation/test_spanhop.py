"""Spanhop in simulated networks: the state after faults, and how many hops events take."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.conformance import FAULTS, NODE_COUNT, it_keeps_its_guarantees
from tidings.overlay import EventId, Everything, Ranges
from tidings.overlay.spanhop.router import Spanhop
from tidings.overlay.spanhop.zone_ownership import uncovered
from tidings.sim import Workload, World
from tidings.space import within

STILL: dict[str, Any] = {"heartbeat_s": 0, "refresh_s": 0, "upkeep_s": 0}


def brokers(world: World) -> dict[str, Spanhop]:
    return {member.id: broker(world, member.index) for member in world.nodes if member.up}


def broker(world: World, node: int) -> Spanhop:
    router = world.nodes[node].router
    assert isinstance(router, Spanhop)
    return router


def check_zones(world: World) -> None:
    """SPANHOP-INV-1 to SPANHOP-INV-4: zones tile the space, neighbours know each other, tables belong to their paths."""
    routers = brokers(world)
    space = broker(world, 0).zones.space
    paths = [path for router in routers.values() for path in router.zones.owned]
    assert uncovered((), paths) == []
    assert sum(space.zone(path).size for path in paths) == space.whole.size
    for id, router in routers.items():
        for path, owned in router.zones.owned.items():
            assert owned.zone == space.zone(path)
            assert len(owned.ancestors) == len(path) // router.zones.k + 1
            beside = {
                other
                for other, each in routers.items()
                if other != id
                and any(owned.zone.borders(z.zone, router.zones.around) is not None for z in each.zones.owned.values())
            }
            assert {known.id for known in router.zones.routing_state(owned).neighbours} == beside


def check_records(world: World) -> None:
    """SPANHOP-INV-7: each subscription in force is in exactly the zones its box touches."""
    routers, members = brokers(world), {member.id: member for member in world.nodes}
    for id, wish in world.trace.subscriptions.items():
        home = members[id.origin]
        if wish.dropped_at is None and id in home.subscriptions and home.up:
            boxes = broker(world, 0).quantiser.wanted(wish.interest.wanted)
            for router in routers.values():
                for owned in router.zones.owned.values():
                    assert (id in owned.records) == any(box.touches(owned.zone) for box in boxes)


@pytest.mark.parametrize("faults", FAULTS)
def test_zones_and_records_are_consistent_again_after_faults(faults: str) -> None:
    """SPANHOP-P1, and every broker has one zone again."""
    world = World("spanhop", node_count=NODE_COUNT, seed=7)
    rng = Random(7)
    for wanted in Workload(subscriptions=12, axes=2).wanted(rng):
        world.subscribe(rng.randrange(NODE_COUNT), wanted)
    world.run_for(20.0)
    world.strike(FAULTS[faults](7))
    world.publish_some(10, over_s=30.0)
    world.run_for(90.0)
    check_zones(world)
    check_records(world)
    assert {len(router.zones.owned) for router in brokers(world).values()} == {1}


def test_brokers_that_all_join_at_once_find_their_zones() -> None:
    world = World("spanhop", node_count=NODE_COUNT, seed=3, settled=False)
    world.run_for(120.0)
    check_zones(world)
    assert all(router.stage == "ready" for router in brokers(world).values())


@pytest.mark.parametrize(
    ("faults", "options"),
    [
        ("everything", {"notify": "multicast", "m": 8}),
        ("crashes", {"mode": "greedy", "wrap": False}),
        ("everything", {"mode": "together"}),
        ("a split", {"axes": {"x": [0, 1000]}, "join_policy": "point"}),
        ("comings and goings", {"axes": {"x": [0, 1000], "y": [0, 1000], "z": [0, 1000]}, "proximity": "vivaldi"}),
    ],
    ids=str,
)
def test_spanhop_keeps_its_guarantees_with_other_options_under(faults: str, options: dict[str, Any]) -> None:
    it_keeps_its_guarantees("spanhop", 5, FAULTS[faults](5), **options)


@pytest.mark.parametrize("m", [4, 16])
def test_events_take_half_of_log2_n_hops_with_ancestors_and_many_more_without(m: int) -> None:
    """Figure 6, in a world: 64 brokers, m = 4 or 16, against 4 hops on average without ancestors."""
    hops = {}
    for mode in ("spanhop", "greedy"):
        options = {**STILL, "mode": mode, "m": m, "layout": "balanced", "profile": "paper"}
        world = World("spanhop", node_count=64, seed=1, options=options, recording=False)
        rng = Random(2)
        for _ in range(400):
            world.publish(rng.randrange(64), {"x": rng.randrange(1, 1000), "y": rng.randrange(1, 1000)})
        world.run_until_quiet()
        hops[mode] = world.trace.messages("Carry") / 400
    assert hops["spanhop"] == pytest.approx(3.0, rel=0.06)
    assert hops["greedy"] == pytest.approx(4.0, rel=0.06)


def test_with_all_tables_together_events_take_fewer_hops_still() -> None:
    """Beyond the paper: 256 brokers that joined at random points; acknowledgements tell where everybody is now."""
    hops = {}
    for mode in ("spanhop", "together"):
        world = World("spanhop", node_count=256, seed=1, options={**STILL, "mode": mode}, recording=False)
        rng = Random(2)
        for _ in range(400):
            world.publish(rng.randrange(256), {"x": rng.randrange(1, 1000), "y": rng.randrange(1, 1000)})
        world.run_until_quiet()
        hops[mode] = world.trace.messages("Carry") / 400
    assert hops["spanhop"] == pytest.approx(4.0, rel=0.1)
    assert hops["together"] < 0.85 * hops["spanhop"]


def test_an_acknowledgement_tells_where_a_recorded_broker_is_now() -> None:
    """Brokers that have joined by messages know each other's zones as they were; traffic brings them up to date."""
    world = World("spanhop", node_count=32, seed=2, settled=False, options={"mode": "together", "upkeep_s": 0})
    world.run_for(150.0)
    rng = Random(3)
    counts = []
    for _ in range(2):
        before = world.trace.messages("Carry")
        for _ in range(600):
            world.publish(rng.randrange(32), {"x": rng.randrange(1, 1000), "y": rng.randrange(1, 1000)})
            world.run_for(0.5)
        counts.append(world.trace.messages("Carry") - before)
    present = [
        (entry.present[0], broker(world, index).zones.owned)
        for router in brokers(world).values()
        for owned in router.zones.owned.values()
        for ancestor in router.zones.routing_state(owned).ancestors
        for entry in ancestor.known
        if entry.present
        for index in [next(member.index for member in world.nodes if member.id == entry.id)]
    ]
    assert len(present) > 20
    assert all(zone in [each.zone for each in owned.values()] for zone, owned in present)
    assert counts[1] < 1.05 * counts[0]


def test_only_brokers_on_the_route_and_interested_ones_get_an_event() -> None:
    world = World("spanhop", node_count=64, seed=1, options=STILL)
    world.subscribe(5, Ranges.of(x=(0, 999)))
    world.run_until_quiet()
    event = world.publish(9, {"x": 500, "y": 500})
    world.run_until_quiet()
    touched = {row.peer for row in world.trace.about(event) if row.kind == "send"}
    assert len(touched) < 12
    assert [notice.event for notice in world.trace.notices] == [event]


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_events_for_live_zones_arrive_although_many_brokers_have_just_failed(share: float) -> None:
    """Messages bounce off failed brokers, then go round them, or wait until a neighbour takes the zone over."""
    world = World("spanhop", node_count=128, seed=2, options={**STILL, "cut": "middle"})
    rng = Random(2)
    world.subscribe(0, Everything())
    world.run_until_quiet()
    for node in rng.sample(range(1, 128), int(128 * share)):
        world.crash(node)
    live = world.up()
    events = [_publish_into(world, rng.choice(live), broker(world, rng.choice(live))) for _ in range(40)]
    world.run_until_quiet()
    assert {notice.event for notice in world.trace.notices} == set(events)


def _publish_into(world: World, start: int, owner: Spanhop) -> EventId:
    """An event in the middle of somebody's zone."""
    zone = next(iter(owner.zones.owned.values())).zone
    x, y = (int((low + high) / 2 / 2**32 * 1000) for low, high in zip(zone.low, zone.high))
    return world.publish(start, {"x": x, "y": y})


def test_a_recorded_broker_is_in_its_recorded_zone_after_joins_and_leaves() -> None:
    """SPANHOP-INV-6, by refreshing tables: brokers look up entries that became wrong."""
    world = World("spanhop", node_count=NODE_COUNT, seed=4, options={"upkeep_s": 1.0, "refresh_s": 0})
    world.strike(FAULTS["comings and goings"](4))
    world.run_for(150.0)
    routers = brokers(world)
    entries = right = 0
    for router in routers.values():
        for owned in router.zones.owned.values():
            for entry in (entry for table in owned.ancestors for entry in table):
                entries += 1
                other = routers.get(entry.peer.id)
                right += other is not None and any(
                    within(path, entry.path) or within(entry.path, path) for path in other.zones.owned
                )
    assert right >= 0.95 * entries
