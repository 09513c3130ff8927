"""Hermes, measured: hops per publication where each attribute, or each whole event, has its own key.

The paper on encryption across domains asks what it costs to do without encrypted
attributes (its figure 8). With them, one event of one type serves all N groups of
subscribers. Without, every group needs an event of its own, encrypted for it, in a tree
of its own. 2000 brokers, one publisher, N subscribers on brokers of their own.

What the paper describes and what it shows disagree, so both are measured: in model A each
group's event goes to that group's one subscriber; in model B, which fits the paper's
numbers, each of the N events goes to all N subscribers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from tidings.errors import InputError
from tidings.lab.experiment import Axis, Claim, Experiment, Measured, Parameters
from tidings.lab.results import Finding, Results, Verdict, judged
from tidings.overlay import Everything
from tidings.sim import Flat, Topology, World

ATTRIBUTE, MODEL_A, MODEL_B = "attribute encryption", "event encryption, model A", "event encryption, model B"
SHORTCUT, REMEMBERED = "attribute, shortcut", "attribute, shortcut and known rendezvous"

# No routine talk: nothing happens in these worlds but what is measured. Leaf sets as in the paper's time.
_STILL = {"heartbeat_s": 0, "refresh_s": 0, "repair": False, "leaf_count": 16}
_OPTIONS: dict[str, dict[str, Any]] = {
    ATTRIBUTE: {"shortcut": False},
    MODEL_A: {"shortcut": False},
    MODEL_B: {"shortcut": False},
    SHORTCUT: {"shortcut": True},
    REMEMBERED: {"shortcut": True, "remember_root": True},
}


def measure_hops(parameters: Parameters, seed: int) -> list[Measured]:
    """Hops that one publication takes until all groups have it, for some choices of groups in one network."""
    options = {**_STILL, **_OPTIONS[parameters["model"]], "base": parameters["base"]}
    alone = Topology(parameters["node_count"], (), Flat())
    world = World("hermes", topology=alone, seed=seed, options=options, recording=False)
    hops = [_hops(world, parameters, Random(f"groups/{seed}/{trial}"), f"{seed}/{trial}") for trial in range(parameters["trials"])]
    return [Measured(parameters["model"], parameters["groups"], each) for each in hops]


def _hops(world: World, parameters: Parameters, chance: Random, name: str) -> int:
    publisher, *subscribers = chance.sample(range(len(world.nodes)), parameters["groups"] + 1)
    for event_type, wanting in _trees(parameters["model"], subscribers, name):
        for node in wanting:
            world.subscribe(node, Everything(), event_type)
    world.run_until_quiet()
    types = [event_type for event_type, _ in _trees(parameters["model"], subscribers, name)]
    if parameters["model"] == REMEMBERED:
        _publish(world, publisher, types)  # The first one tells the publisher where the rendezvous is.
    return _publish(world, publisher, types)


def _trees(model: str, subscribers: list[int], name: str) -> list[tuple[str, list[int]]]:
    """The types there are, each with its subscribers. Names are new each time: each has another rendezvous."""
    if model == MODEL_A:
        return [(f"{name}/{group}", [node]) for group, node in enumerate(subscribers)]
    if model == MODEL_B:
        return [(f"{name}/{group}", subscribers) for group, _ in enumerate(subscribers)]
    return [(name, subscribers)]


def _publish(world: World, publisher: int, types: Iterable[str]) -> int:
    before = world.trace.messages("Up", "Down")
    for event_type in types:
        world.publish(publisher, {"x": 0}, event_type)
    world.run_until_quiet()
    return world.trace.messages("Up", "Down") - before


def check(parameters: Parameters) -> None:
    nodes, groups = parameters["node_count"], parameters["groups"]
    if parameters["model"] not in _OPTIONS:
        raise InputError(f"expected model to be one of {'; '.join(_OPTIONS)}, got {parameters['model']!r}")
    if nodes < 2:
        raise InputError(f"expected node_count of at least 2, got {nodes}")
    if not 1 <= groups < nodes:
        raise InputError(f"expected groups from 1 to below node_count={nodes}, got {groups}")
    if parameters["base"] not in (2, 4, 8, 16):
        raise InputError(f"expected base to be 2, 4, 8 or 16, got {parameters['base']}")
    if parameters["trials"] < 1:
        raise InputError(f"expected trials of at least 1, got {parameters['trials']}")
