"""What each protocol shows of a node on a map, in a simulated network."""

from __future__ import annotations

import json

import msgspec
import pytest

from tidings.console.simulations import Simulation
from tidings.errors import InputError
from tidings.overlay import NAMES, MapEntry, Ranges
from tidings.sim import World

SECRET = 7654


def entries(world: World) -> dict[str, MapEntry]:
    return {each.id: each.router.map_entry() for each in world.nodes if each.up}


def world_of(name: str) -> World:
    world = World(name, node_count=16, seed=3)
    for node in range(0, 16, 2):
        world.subscribe(node, Ranges.of(x=(SECRET, SECRET + node), y=(3, 5)))
    world.run_for(40.0)
    return world


@pytest.mark.parametrize("name", NAMES)
def test_no_map_entry_contains_a_value_of_a_condition(name: str) -> None:
    assert str(SECRET) not in json.dumps(msgspec.to_builtins(entries(world_of(name))))


def test_zones_of_all_brokers_cover_the_space_once() -> None:
    found = entries(world_of("spanhop"))
    sizes = [(box[0][1] - box[0][0]) * (box[1][1] - box[1][0]) for one in found.values() for box in one.zones]
    assert sum(sizes) == pytest.approx(1.0)
    assert {one.axes for one in found.values()} == {("x", "y")}


def test_each_follower_has_one_core_node_above_it() -> None:
    found = entries(world_of("immune"))
    core = {id for id, one in found.items() if one.role == "core"}
    assert core
    followers = [one for one in found.values() if one.role == "follower"]
    assert all(set(one.trees[0].up) <= core and len(one.trees[0].up) == 1 for one in followers)
    assert len(core) + len(followers) == len(found)


def test_a_rendezvous_tree_has_one_root_and_leads_everybody_there() -> None:
    found = entries(world_of("hermes"))
    up = {id: tree.up[0] for id, one in found.items() for tree in one.trees if tree.up}
    (root,) = [id for id, one in found.items() for tree in one.trees if tree.is_root]
    for id in up:
        way = [id]
        while way[-1] in up and len(way) <= len(found):
            way.append(up[way[-1]])
        assert way[-1] == root


def test_an_attribute_tree_has_one_root_for_each_attribute_with_conditions() -> None:
    trees = [tree for one in entries(world_of("cbdlo")).values() for tree in one.trees]
    assert sorted(tree.attribute for tree in trees if tree.is_root) == ["x", "y"]
    assert any(tree.down for tree in trees)


# ── The console's simulated networks ──


@pytest.mark.parametrize("name", NAMES)
def test_a_simulated_network_notifies_who_wants_an_event_and_survives_a_crash(name: str) -> None:
    simulation = Simulation({"protocol": name, "nodes": 12, "subscriptions": 8, "seed": 5})
    simulation.act("step", {"seconds": 20})
    for _ in range(4):
        simulation.act("publish", {})
    simulation.act("step", {"seconds": 20})
    view = simulation.view()
    assert view["expected"] > 0
    assert view["twice"] == 0
    assert view["notified"] >= view["expected"] * (0.8 if name in ("gossip", "simple", "tera") else 1)
    simulation.act("crash", {"node": 0})
    simulation.act("step", {"seconds": 1})
    assert [each["state"] for each in simulation.view()["brokers"]].count("away") == 1


def test_the_same_steps_show_the_same() -> None:
    def run() -> str:
        simulation = Simulation({"protocol": "irbr", "nodes": 10, "seed": 9})
        for action, asked in (("step", {"seconds": 3}), ("weather", {"loss": 0.2}), ("publish", {}), ("next", {})):
            simulation.act(action, asked)
        return json.dumps({**simulation.view(), "work_left": 0})

    assert run() == run()


def test_messages_are_on_their_way_between_two_steps() -> None:
    simulation = Simulation({"protocol": "flooding", "nodes": 10, "subscriptions": 0})
    simulation.act("publish", {"node": 3})
    (sender,) = {each["from"] for each in simulation.view()["messages"]}
    assert sender == simulation.world.nodes[3].id
    when = simulation.view()["next_s"]
    simulation.act("next", {})
    assert simulation.view()["now_s"] == pytest.approx(when)


@pytest.mark.parametrize(
    ("action", "asked"),
    [
        ("step", {"seconds": 1e9}),
        ("step", {"seconds": True}),
        ("step", {"seconds": float("nan")}),
        ("crash", {"node": 99}),
        ("crash", {"node": "0"}),
        ("weather", {"loss": 2}),
        ("explode", {}),
    ],
)
def test_what_is_out_of_bounds_is_refused(action: str, asked: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Simulation({"protocol": "flooding", "nodes": 4}).act(action, asked)


@pytest.mark.parametrize("asked", [{"nodes": 100_000}, {"protocol": "pastry"}, {"subscriptions": -1}, {"seed": "x"}])
def test_networks_that_are_too_large_or_unknown_are_refused(asked: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Simulation(asked)
