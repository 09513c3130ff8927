"""Immune, links weighed by delay: what is measured, what may be believed, and which ways are short."""

from __future__ import annotations

from random import Random
from statistics import mean

import pytest

from tests.unit.overlay.immune.test_router import nodes_of, wrong_with
from tidings.errors import InputError
from tidings.overlay import Send
from tidings.overlay.immune.link_delays import COMPARED_MAX, LinkDelays, ways_stay_short
from tidings.overlay.immune.messages import DelayProbe
from tidings.overlay.immune.neighbour_state import ImmuneOptions
from tidings.sim import Roaming, Topology, World, topology, within_reach


def probe_of(delays: LinkDelays, peer: str, now: float) -> int:
    (number,) = [
        effect.message.number
        for effect in delays.probe([peer], now)
        if isinstance(effect, Send) and isinstance(effect.message, DelayProbe)
    ]
    return int(number)


def test_half_a_round_trip_counts_once_and_only_with_the_number_of_the_probe() -> None:
    delays = LinkDelays(Random(1))
    number = probe_of(delays, "a", 0.0)
    delays.answered("a", number + 1, 0.01)
    assert delays.of("a") is None
    delays.answered("a", number, 0.04)
    delays.answered("a", number, 9.0)
    delays.answered("b", 7, 9.0)
    assert (delays.of("a"), delays.of("b")) == (0.02, None)
    delays.answered("a", probe_of(delays, "a", 10.0), 10.12)
    assert delays.of("a") == pytest.approx(0.03)  # A quarter of the way from 20 to 60 ms.
    delays.forget("a")
    assert delays.of("a") is None
    assert delays.count() == 0


def test_who_has_not_been_measured_comes_first_and_then_one_at_a_time() -> None:
    delays, peers = LinkDelays(Random(1)), [f"p{index}" for index in range(6)]
    assert len(delays.probe(peers, 0.0)) == 4
    for peer in peers:
        delays.answered(peer, probe_of(delays, peer, 1.0), 1.02)
    turns = [delays.probe(peers, 2.0 + beat) for beat in range(6)]
    assert {effect.to for turn in turns for effect in turn if isinstance(effect, Send)} == set(peers)
    assert all(len(turn) == 1 for turn in turns)


def test_only_what_is_much_nearer_is_worth_a_change() -> None:
    delays = LinkDelays(Random(1))
    for peer, far_s in (("a", 0.100), ("b", 0.085), ("c", 0.060), ("d", 0.002), ("e", 0.004)):
        delays.answered(peer, probe_of(delays, peer, 0.0), 2 * far_s)
    assert delays.is_nearer("c", than="a")
    assert not delays.is_nearer("b", than="a")  # Not by a fifth.
    assert not delays.is_nearer("d", than="e")  # Not by five milliseconds.
    assert delays.is_nearer("a", than="unknown")


def test_a_way_that_is_not_there_is_not_short_and_many_ways_are_not_compared() -> None:
    assert not ways_stay_short({"a": 1.0, "b": 1.0}, {"a": {}, "b": {}}, stretch=100.0)
    many = {f"n{index}": 1.0 for index in range(COMPARED_MAX + 1)}
    assert not ways_stay_short(many, {a: dict.fromkeys(many, 0.1) for a in many}, stretch=100.0)
    assert ways_stay_short({"a": 1.0}, {}, stretch=1.0)


def test_weights_need_heartbeats_and_guarded_demotion() -> None:
    for wrong in ({"heartbeat_s": 0.0}, {"demotion": "literal"}, {"stretch": 0.9}, {"stretch": float("nan")}):
        with pytest.raises(InputError):
            ImmuneOptions(weight="delay", **wrong)


def test_by_measured_delay_roles_are_right_uppers_are_near_and_events_arrive_sooner() -> None:
    """IMMUNE-J1 to IMMUNE-J5, with links weighed by the delays that nodes measure themselves."""
    arrivals = {}
    for weight in ("none", "delay"):
        times = []
        for seed in range(2):
            graph = topology("planar", 40, Random(f"plane/{seed}"))
            options = {"weight": weight, "acks": False}
            world = World("immune", topology=graph, seed=seed, options=options, settled=False)
            world.run_for(70.0)
            assert wrong_with(world) == []
            for source in range(0, 40, 8):
                began, event = world.now, world.publish(source, {"x": 1})
                world.run_until_quiet()
                times += [row.at - began for row in world.trace.about(event) if row.kind == "deliver"]
            if weight == "delay":
                for node in nodes_of(world):
                    assert node.state.in_core or not node.state.nearer_upper()
        assert len(times) == 2 * 5 * 40
        arrivals[weight] = mean(times)
    assert arrivals["delay"] < arrivals["none"]


def test_nodes_that_move_are_reached_and_links_that_are_gone_for_long_are_forgotten() -> None:
    """Ten nodes in a crowd, of which one walks away to another crowd."""
    here = [(a, b) for b in range(10) for a in range(b)]
    there = [(a, b) for b in range(10, 20) for a in range(10, b)]
    space = Roaming(1, speed=0.0)
    world = World("immune", topology=Topology(20, (*here, *there, (0, 10)), space), seed=1, settled=False)
    world.run_for(20.0)
    moved = [link for link in here if 9 not in link] + there + [(0, 10)] + [(9, other) for other in range(11, 15)]
    world.relink(moved)
    world.run_for(20.0)
    assert wrong_with_links(world, moved) == []
    event = world.publish(9, {"x": 1})
    world.run_for(5.0)
    assert sum(id == event for id, _ in world.trace.deliveries) == 20
    back = [*here, *there, (0, 10)]
    world.relink(back)
    world.run_for(90.0)
    links = {node.id: node.state.links for node in nodes_of(world)}
    assert "n0011" not in links["n0009"]
    assert "n0009" not in links["n0011"]
    assert "n0000" in links["n0009"]  # It was given that link.


def wrong_with_links(world: World, links: list[tuple[int, int]]) -> list[str]:
    """Nodes whose upper they cannot hear."""
    pairs = {frozenset((f"n{a:04}", f"n{b:04}")) for a, b in links}
    return [node.id for node in nodes_of(world) if not node.state.in_core and {node.id, node.state.upper} not in pairs]


def test_who_roams_stays_in_the_square_moves_as_fast_as_said_and_the_same_way_each_time() -> None:
    one, other = Roaming(3, speed=0.05), Roaming(3, speed=0.05)
    before = [one.point(node) for node in range(20)]
    assert [other.point(node) for node in range(20)] == before
    for _ in range(100):
        one.pass_time(1.0)
    for _ in range(50):
        other.pass_time(2.0)
    after = [one.point(node) for node in range(20)]
    assert after != before
    assert after == [pytest.approx(other.point(node)) for node in range(20)]
    assert all(0 <= x <= 1 and 0 <= y <= 1 for x, y in after)
    one.pass_time(1.0)
    steps = [
        ((a - c) ** 2 + (b - d) ** 2) ** 0.5 for (a, b), (c, d) in zip(after, map(one.point, range(20)), strict=True)
    ]
    assert max(steps) <= 0.05 + 1e-9
    assert within_reach(20, one, 2.0) == tuple((a, b) for b in range(20) for a in range(b))
    assert within_reach(20, one, 0.0) == ()
