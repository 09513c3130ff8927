"""What CBDLO's experiments measure: on scenes, by formula, or in a world of the protocol itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from statistics import fmean
from typing import Any

import numpy as np

from tidings.errors import InputError
from tidings.lab.cbdlo.claims import (
    FIXED,
    FLOOD,
    MODEL,
    PAPER,
    ROBUST,
    ROBUST_MODEL,
    SIMPLE,
    TERA,
    TERA_MODEL,
    WALK_PROTOCOL,
)
from tidings.lab.cbdlo.model import PUBLISHED, cbdlo_messages, effective_cost, tera_messages, walk_success
from tidings.lab.cbdlo.scene import Cost, Scene, SceneSize, scene_with
from tidings.lab.cbdlo.walks import FOUND, draws_needed, random_tables, random_views, walk_all
from tidings.lab.experiment import Measured, Parameters
from tidings.lab.parameter_checks import expect_at_least, expect_one_of
from tidings.overlay import Ranges
from tidings.sim import World

FAN_OUT = 1.73  # Fits the paper's one printed point.
FLOOD_EVENTS = 2  # A flood is the same whatever the event.
MESSAGES_MAX = 100_000  # Of Simple in one run: with many hops fewer events are enough.
SIMULATED_MAX = 100_000  # Nodes; for larger networks there is only the formula.
MATCHES = 3.0  # For each event of figure 7, at every size or at `SELECTIVE_AT` nodes.
SELECTIVE_AT = 3000  # Where conditions of a fixed width match `MATCHES` subscriptions.
PRINTED_AT = 3000  # Subscriptions, and nodes, of the paper's printed point.
PUBLISHED_MATCHES = PUBLISHED[2] / 125  # For each event at the paper's printed point.

_PROTOCOLS: dict[str, Callable[[Scene, dict[int, float]], Cost]] = {
    SIMPLE: lambda scene, event: scene.simple(event, FAN_OUT),
    FLOOD: lambda scene, event: scene.simple(event, None),
    PAPER: lambda scene, event: scene.as_published(event),
    ROBUST: lambda scene, event: scene.robust(event),
    TERA: lambda scene, event: scene.tera(event),
}


def _size(parameters: Parameters) -> SceneSize:
    names = ("nodes", "view", "table", "hops", "attributes", "subscriptions")
    return SceneSize(**{name: parameters[name] for name in names})


def _events(parameters: Parameters) -> int:
    """How many events are enough."""
    if parameters["protocol"] == FLOOD:
        return min(FLOOD_EVENTS, int(parameters["events"]))
    if parameters["protocol"] == SIMPLE:
        messages = sum(FAN_OUT**hop for hop in range(1, parameters["hops"] + 1))
        return int(max(1, min(parameters["events"], MESSAGES_MAX // messages)))
    return int(parameters["events"])


def _costs(parameters: Parameters, seed: int) -> list[Cost]:
    scene = Scene(_size(parameters), seed)
    if parameters.get("calibrated"):
        # As many matches at the paper's printed point as it prints, whatever the number of attributes.
        at = replace(scene.size, subscriptions=PRINTED_AT)
        scene = Scene(replace(scene.size, width=scene_with(PUBLISHED_MATCHES, at, seed).size.width), seed)
    run = _PROTOCOLS[parameters["protocol"]]
    return [run(scene, scene.event()) for _ in range(_events(parameters))]


def _effective(parameters: Parameters, costs: list[Cost]) -> float | None:
    """The paper's cost, for as many events as it had; nothing where nobody was reached."""
    reached = sum(cost.reached for cost in costs)
    if not reached:
        return None
    scale = parameters["events"] / len(costs)
    return effective_cost(scale * sum(cost.messages for cost in costs), reached, sum(cost.wanted for cost in costs))


def measure_cost(parameters: Parameters, seed: int) -> list[Measured]:
    """Effective distribution cost, over what the figure varies."""
    cost = _effective(parameters, _costs(parameters, seed))
    x = parameters[parameters["over"]]
    return [] if cost is None else [Measured(parameters["protocol"], x, cost)]


def measure_reached(parameters: Parameters, seed: int) -> list[Measured]:
    """The share of matches that came about, in percent."""
    costs = _costs(parameters, seed)
    wanted = sum(cost.wanted for cost in costs)
    return [Measured(parameters["protocol"], parameters["subscriptions"], 100 * sum(c.reached for c in costs) / wanted)]


def measure_sizes(parameters: Parameters, seed: int) -> list[Measured]:
    """Messages of an event, with one subscription a node: where it matches three at every size, or ever more."""
    nodes, protocol, is_fixed = parameters["nodes"], parameters["protocol"], parameters["matches"] == FIXED
    tables = {TERA: parameters["tera_table"], ROBUST: parameters["table"], PAPER: parameters["table"]}
    if protocol == MODEL:
        if is_fixed:
            return []
        setting = (nodes, nodes, parameters["attributes"])
        cbdlo = cbdlo_messages(*setting, tables[ROBUST], parameters["hops"], MATCHES)
        tera = tera_messages(*setting, tables[TERA], parameters["hops"], parameters["view"])
        return [Measured(ROBUST_MODEL, nodes, cbdlo), Measured(TERA_MODEL, nodes, tera)]
    if nodes > SIMULATED_MAX or (is_fixed and protocol == TERA):
        return []  # TERA's cost does not depend on what matches.
    size = _size({**parameters, "table": tables[protocol], "subscriptions": nodes})
    if is_fixed:
        at = replace(size, nodes=SELECTIVE_AT, subscriptions=SELECTIVE_AT)
        scene = Scene(replace(size, width=scene_with(MATCHES, at, seed).size.width), seed)
    else:
        scene = scene_with(MATCHES, size, seed)
    costs = [_PROTOCOLS[protocol](scene, scene.event()) for _ in range(parameters["events"])]
    series = f"{protocol}, {FIXED}" if is_fixed else protocol
    return [Measured(series, nodes, fmean(cost.messages for cost in costs))]


def measure_comparisons(parameters: Parameters, seed: int) -> list[Measured]:
    """Comparisons for one event, as they are and as the paper scales them."""
    if parameters["protocol"] == FLOOD and not parameters["table"]:
        return []  # It has no tables.
    table = parameters["table"] or parameters["attributes"] // 5
    costs = _costs({**parameters, "table": table}, seed)
    looked, x = fmean(cost.looked for cost in costs), parameters[parameters["over"]]
    scale, factor = ("0.1", 0.1) if parameters["protocol"] == FLOOD else ("1/8", 1 / 8)
    label = parameters["protocol"] + ("" if parameters["table"] else ", table a fifth of the attributes")
    rows = [Measured(label, x, looked), Measured(f"{label}, × {scale}", x, looked * factor)]
    if parameters["protocol"] == PAPER:
        rows.append(Measured(f"{label}, tables on a walk", x, fmean((c.looked - c.tree) / table for c in costs) / 8))
        rows.append(Measured(f"{label}, steps in a tree", x, fmean(c.tree for c in costs) / 8))
    return rows


def measure_walks(parameters: Parameters, seed: int) -> list[Measured]:
    """How many walks of a hundred succeed, over how many should."""
    table, attributes, hops = parameters["table"], parameters["attributes"], parameters["hops"]
    nodes, view, count = SceneSize().nodes, SceneSize().view, int(parameters["walks"])
    rng = np.random.default_rng([table, attributes, hops, seed])
    views, knows = random_views(nodes, view, rng), random_tables(nodes, table, attributes, rng)
    sources, wanted = (rng.integers(0, most, size=count) for most in (nodes, int(attributes)))
    draws = rng.random((count, draws_needed(hops)))
    walks = walk_all(views, sources, wanted, knows, hops, draws, trace_max=hops)
    found = float((walks.ended == FOUND).mean())
    return [Measured(f"{hops} hops", 100 * walk_success(table, attributes, hops), 100 * found)]


# ── The protocol itself ────────────────────────────────────────────────────────

_AT_REST: dict[str, Any] = {"profile": "paper", "policy": "balanced"}


def measure_agreement(parameters: Parameters, seed: int) -> list[Measured]:
    """Messages and success of walks, in a world with tables filled by gossip and in a scene."""
    if parameters["run"] == WALK_PROTOCOL:
        success, messages = _walks_of_protocol(parameters, seed)
    else:
        success, messages = _walks_of_scene(parameters, seed)
    table = parameters["table"]
    return [
        Measured(f"{parameters['run']}: walks that succeed (%)", table, 100 * success),
        Measured(f"{parameters['run']}: messages of a walk", table, messages),
    ]


def _walks_of_protocol(parameters: Parameters, seed: int) -> tuple[float, float]:
    nodes, attributes, rng = parameters["nodes"], parameters["attributes"], Random(f"agreement/{seed}")
    options = {**_AT_REST, "table_size": parameters["table"], "hops_max": parameters["hops"]}
    world = World("cbdlo", node_count=nodes, seed=seed, options=options, recording=False)
    world.run_for(20.0)
    for a in range(attributes):
        world.subscribe(rng.randrange(nodes), Ranges.of(**{f"a{a}": (0, 9)}))
    world.run_for(parameters["warm_s"])
    before = world.trace.messages("Walk")
    for _ in range(parameters["walks"]):
        world.publish(rng.randrange(nodes), {f"a{rng.randrange(attributes)}": 5})
        world.run_for(0.2)
    walks = parameters["walks"]
    return world.trace.counted["hits"] / walks, (world.trace.messages("Walk") - before) / walks


def _walks_of_scene(parameters: Parameters, seed: int) -> tuple[float, float]:
    attributes, rng = parameters["attributes"], Random(f"agreement/{seed}")
    size = SceneSize(parameters["nodes"], 10, parameters["table"], parameters["hops"], attributes, 1, all_known=True)
    scene = Scene(size, seed)
    for a in range(attributes):
        scene.members[a] = {rng.randrange(size.nodes)}
    walks = [scene.walk(rng.randrange(size.nodes), rng.randrange(attributes)) for _ in range(parameters["walks"])]
    return fmean(walk.found for walk in walks), fmean(walk.visited for walk in walks)


def measure_tree_agreement(parameters: Parameters, seed: int) -> list[Measured]:
    """Messages inside one attribute's tree for an event, in a world and in a scene."""
    steps = _tree_of_protocol if parameters["run"] == WALK_PROTOCOL else _tree_of_scene
    series = f"{parameters['run']}, {parameters['profile']}"
    return [Measured(series, parameters["subscriptions"], steps(parameters, seed))]


def _tree_of_protocol(parameters: Parameters, seed: int) -> float:
    nodes, rng, width = parameters["nodes"], Random(f"trees/{seed}"), SceneSize().width
    options = {"profile": parameters["profile"], "policy": "balanced"}
    world = World("cbdlo", node_count=nodes, seed=seed, options=options, recording=False)
    world.run_for(20.0)
    for number in range(parameters["subscriptions"]):
        low = int(rng.random() * (1 - width) * _FINE)
        world.subscribe(number % nodes, Ranges.of(a0=(low, low + int(width * _FINE))))
    world.run_for(parameters["warm_s"])
    before = world.trace.counted["tree steps"]
    for _ in range(parameters["events"]):
        world.publish(rng.randrange(nodes), {"a0": rng.randrange(_FINE)})
        world.run_for(0.3)
    return (world.trace.counted["tree steps"] - before) / int(parameters["events"])


def _tree_of_scene(parameters: Parameters, seed: int) -> float:
    rng, fingers = Random(f"trees/{seed}"), parameters["profile"] == "robust"
    scene = Scene(SceneSize(parameters["nodes"], 10, 100, 10, 1, parameters["subscriptions"]), seed)
    return fmean(scene.tree_steps(0, rng.random(), fingers=fingers) for _ in range(parameters["events"]))


_FINE = 1_000_000  # Values of an attribute.
_CHURNED: dict[str, dict[str, Any]] = {ROBUST: {}, PAPER: {"profile": "paper"}}


def measure_churn(parameters: Parameters, seed: int) -> list[Measured]:
    """The share of matches that came about, among nodes that stay, while others crash and new ones come."""
    world = World(
        "cbdlo", node_count=parameters["nodes"], seed=seed, options=_CHURNED[parameters["protocol"]], recording=False
    )
    churn = _Churn(world, parameters, Random(f"churn/{seed}"))
    churn.run()
    return [Measured(parameters["protocol"], parameters["replaced_percent"], 100 * churn.reached())]


class _Churn:
    """Half of the nodes stay. Of the others some crash every period, and as many new ones join; all subscribe."""

    def __init__(self, world: World, parameters: Parameters, rng: Random) -> None:
        self.world, self.rng = world, rng
        self.seconds, self.period_s = parameters["seconds"], 2.0
        self.each = parameters["nodes"] * parameters["replaced_percent"] / 100
        nodes = range(parameters["nodes"])
        self.stable = rng.sample(nodes, len(nodes) // 2)
        self.changing = [node for node in nodes if node not in self.stable]
        self.due = 0.0

    def run(self) -> None:
        world = self.world
        world.run_for(20.0)
        for node in [*self.stable, *self.changing]:
            self._subscribe(node)
        world.run_for(20.0)
        for turn in range(int(self.seconds / self.period_s)):
            world.at(world.now + turn * self.period_s, self._replace)
        for second in range(self.seconds):
            world.at(world.now + second + 0.5, self._publish)
        world.run_for(self.seconds)
        world.run_until_quiet()

    def reached(self) -> float:
        """The share of matches of the nodes that stayed that came about."""
        trace = self.world.trace
        delivered = {(notice.event, notice.subscription) for notice in trace.notices}
        matches = [
            (event, id) in delivered
            for event, published in trace.publications.items()
            for id, subscribed in trace.subscriptions.items()
            if id.origin not in trace.absences
            if subscribed.completed_at is not None and subscribed.completed_at < published.at
            if subscribed.interest.matches(published.packet)
        ]
        return fmean(matches)

    def _subscribe(self, node: int) -> None:
        low = self.rng.randrange(1000)
        self.world.subscribe(node, Ranges.of(x=(low, low + 199)))

    def _publish(self) -> None:
        self.world.publish(self.rng.choice(self.stable), {"x": self.rng.randrange(1200)})

    def _replace(self) -> None:
        self.due += self.each
        while self.due >= 1:
            self.due -= 1
            gone = self.changing.pop(self.rng.randrange(len(self.changing)))
            self.world.crash(gone)
            self.changing.append(self.world.join())
            self._subscribe(self.changing[-1])


# ── Validation and cost of a run ───────────────────────────────────────────────


def check(parameters: Parameters) -> None:
    expect_at_least(2, parameters, "nodes")
    expect_at_least(1, parameters, "view", "hops", "attributes", "subscriptions", "events", "walks")
    expect_at_least(0, parameters, "table")
    expect_one_of(sorted({*_PROTOCOLS, MODEL}), parameters, "protocol")
    if not 0 <= parameters.get("replaced_percent", 0) <= 20:
        raise InputError(f"expected replaced_percent from 0 to 20, got {parameters['replaced_percent']}")


def cost(parameters: Parameters) -> float:
    """Runs of the protocol cost by simulated time, scenes by their size."""
    if "replaced_percent" in parameters:
        return 1.0
    if parameters.get("run") == WALK_PROTOCOL:
        return 3.0
    nodes = 0 if parameters.get("protocol") == MODEL else parameters.get("nodes", 0)
    walked = nodes / 80_000 if nodes <= SIMULATED_MAX else 0.0
    scenes = 2 if parameters.get("calibrated") else 1
    return float(scenes * (0.02 + parameters.get("subscriptions", 0) / 100_000 + walked))
