"""IRBR, measured: events lost when nodes fail, and messages per event, against Scribe.

The paper's setting is 1000 nodes. For figure 4(a) a share of them fails at once and
somebody publishes before anything is repaired; the loss is the share of live interested
nodes that get nothing. For figure 4(b) nothing fails and the messages of one event are
counted. The baseline is Scribe: hermes with one rendezvous, whose tree is built before
the failures and not repaired.

How many nodes were interested in figure 4(a) is not said; here 100. All want everything:
what an event matches is not what these figures are about.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from tidings.errors import InputError
from tidings.lab.copies import in_a_copy
from tidings.lab.experiment import Axis, Claim, Experiment, Measured, Parameters
from tidings.lab.results import Finding, Results, Verdict, judged
from tidings.overlay import Everything, Ranges
from tidings.sim import Flat, Topology, World

SCRIBE, R0, R1, R2, SILENT = "Scribe", "IRBR, R0", "IRBR, R1", "IRBR, R2", "IRBR, R2, silent crashes"
PAPER_MODE, INTEREST_MODE = "IRBR, as published", "IRBR, interest"

# No routine talk: nothing happens in these worlds but what is measured.
_STILL = {"heartbeat_s": 0, "sync_s": 0}
_SCRIBE = {"heartbeat_s": 0, "refresh_s": 0, "content": False, "shortcut": False, "repair": False}
_PROTOCOLS: dict[str, tuple[str, dict[str, Any]]] = {
    SCRIBE: ("hermes", _SCRIBE),
    R0: ("irbr", {**_STILL, "mode": "paper", "reliability": "R0"}),
    R1: ("irbr", {**_STILL, "mode": "paper", "reliability": "R1"}),
    R2: ("irbr", {**_STILL, "mode": "interest", "reliability": "R2"}),
    SILENT: ("irbr", {**_STILL, "mode": "interest", "reliability": "R2"}),
    PAPER_MODE: ("irbr", {**_STILL, "mode": "paper", "reliability": "R0"}),
    INTEREST_MODE: ("irbr", {**_STILL, "mode": "interest", "reliability": "R0"}),
}
_CARRY_EVENTS = ("Carry", "Up", "Down")


def _network(parameters: Parameters, seed: int) -> World:
    """A network in which everybody has joined and nobody wants anything yet."""
    name, options = _PROTOCOLS[parameters["protocol"]]
    alone = Topology(parameters["node_count"], (), Flat())
    bounces = parameters["protocol"] != SILENT
    return World(name, topology=alone, seed=seed, options=options, recording=False, bounces=bounces)


def _interested(world: World, count: int, seed: int) -> list[int]:
    """Nodes that want everything, one after the other, each known wherever it must be before the next."""
    chosen = Random(f"interested/{seed}").sample(range(len(world.nodes)), count)
    for node in chosen:
        world.subscribe(node, Everything())
        world.run_until_quiet()
    return chosen


def measure_loss(parameters: Parameters, seed: int) -> list[Measured]:
    """For each set of failures, the share of live interested nodes that one event does not reach, in percent."""
    world = _network(parameters, seed)
    interested = _interested(world, parameters["interested"], seed)
    failed = parameters["failed_percent"]
    lost = [
        in_a_copy(lambda chance=Random(f"failures/{seed}/{number}"): _lost(world, interested, failed, chance))
        for number in range(parameters["failure_sets"])
    ]
    return [Measured(parameters["protocol"], failed, percent) for percent in lost]


def _lost(world: World, interested: Sequence[int], failed_percent: float, chance: Random) -> float:
    nodes = range(len(world.nodes))
    for node in chance.sample(nodes, round(len(nodes) * failed_percent / 100)):
        world.crash(node)
    world.publish(chance.choice(world.up()), {"x": 0})
    world.run_until_quiet()
    reached = {notice.subscription.origin for notice in world.trace.notices}
    live = [world.nodes[node].id for node in interested if world.nodes[node].up]
    return 100 * sum(id not in reached for id in live) / max(1, len(live))


def measure_messages(parameters: Parameters, seed: int) -> list[Measured]:
    """Messages that one event takes, on average over some publishers."""
    world = _network(parameters, seed)
    _interested(world, parameters["interested"], seed)
    before = world.trace.messages(*_CARRY_EVENTS)
    publishers = Random(f"publishers/{seed}").choices(range(len(world.nodes)), k=parameters["events"])
    for node in publishers:
        world.publish(node, {"x": 0})
        world.run_until_quiet()
    each = (world.trace.messages(*_CARRY_EVENTS) - before) / len(publishers)
    return [Measured(parameters["protocol"], parameters["interested"], each)]


def measure_announcements(parameters: Parameters, seed: int) -> list[Measured]:
    """Messages that the next subscription takes, the more there are already; each wants a random range."""
    options = {**_STILL, "covering": parameters["covering"] == "yes"}
    world = World("irbr", topology=Topology(parameters["node_count"], (), Flat()), seed=seed, options=options, recording=False)
    chance = Random(f"ranges/{seed}")
    counts = []
    for _ in range(parameters["subscriptions"]):
        before = world.trace.messages("Spread")
        low, high = sorted(chance.sample(range(1000), 2))
        world.subscribe(chance.randrange(len(world.nodes)), Ranges.of(x=(low, high)))
        world.run_until_quiet()
        counts.append(world.trace.messages("Spread") - before)
    series = "with covering" if parameters["covering"] == "yes" else "without covering"
    return [Measured(series, place + _EACH, sum(counts[place : place + _EACH]) / _EACH) for place in range(0, len(counts), _EACH)]


_EACH = 20  # Subscriptions that are counted together.


def check(parameters: Parameters) -> None:
    nodes = parameters["node_count"]
    if nodes < 1:
        raise InputError(f"expected node_count of at least 1, got {nodes}")
    if "protocol" in parameters and parameters["protocol"] not in _PROTOCOLS:
        raise InputError(f"expected protocol to be one of {'; '.join(_PROTOCOLS)}, got {parameters['protocol']!r}")
    if not 0 <= parameters.get("interested", 0) <= nodes:
        raise InputError(f"expected interested from 0 to node_count={nodes}, got {parameters['interested']}")
    if not 0 <= parameters.get("failed_percent", 0) < 100:
        raise InputError(f"expected failed_percent from 0 to below 100, got {parameters['failed_percent']:g}")
    for name in ("failure_sets", "events", "subscriptions"):
        if parameters.get(name, 1) < 1:
            raise InputError(f"expected {name} of at least 1, got {parameters[name]}")
    if parameters.get("covering", "yes") not in ("yes", "no"):
        raise InputError(f"expected covering to be yes or no, got {parameters['covering']!r}")


def cost(parameters: Parameters) -> float:
    """Building goes with the nodes, and with IRBR each subscription reaches a share of them."""
    light = parameters.get("protocol") == SCRIBE
    subscribing = parameters.get("interested", 0) * (0.01 if light else 0.2)
    return float(parameters["node_count"] * (5 + subscribing + parameters.get("failure_sets", 0)))
