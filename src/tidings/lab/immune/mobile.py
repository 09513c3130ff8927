"""Immune routing among brokers that move, which the paper leaves to the future.

Brokers roam a square and hear those within reach. A new link is told to both ends; that one is gone is noticed by
silence. An event should come to all whom its publisher could reach over links when it was published: the same *part*.
"""

from __future__ import annotations

from functools import partial
from random import Random
from statistics import fmean
from typing import Any

from tidings.lab.experiment import Claim, Experiment, Measured, Parameters, PlotAxis
from tidings.lab.parameter_checks import expect_at_least, expect_one_of
from tidings.lab.results import Finding, Results, judged
from tidings.sim import Roaming, Topology, World, within_reach

FLOODING, GOSSIP, IMMUNE, BY_DELAY = "flooding", "gossip, p = 0.9", "immune", "immune, roles by measured delay"
REACHED, COPIES = "brokers of the part reached (%)", "copies per broker"
_WAYS: dict[str, tuple[str, dict[str, Any], str]] = {
    FLOODING: ("flooding", {}, "Flood"),
    GOSSIP: ("gossip", {"chance": 0.9}, "Rumour"),
    IMMUNE: ("immune", {}, "Spread"),
    BY_DELAY: ("immune", {"weight": "delay"}, "Spread"),
}
_FORMING_S, _MOVE_EVERY_S, _BETWEEN_S, _ARRIVE_S = 40.0, 1.0, 2.0, 30.0


def measure_mobile(parameters: Parameters, seed: int) -> list[Measured]:
    """Some events while brokers move: who of the publisher's part is reached, in how many copies that arrive."""
    nodes, reach, speed = parameters["node_count"], parameters["reach"], parameters["ranges_per_min"]
    name, options, spread = _WAYS[parameters["protocol"]]
    space = Roaming(seed, speed=speed * reach / 60, across_s=0.01)
    world = World(name, topology=Topology(nodes, within_reach(nodes, space, reach), space), seed=seed, options=options)

    def move() -> None:
        space.pass_time(_MOVE_EVERY_S)
        world.relink(within_reach(nodes, space, reach))
        world.at(world.now + _MOVE_EVERY_S, move)

    world.trace.recording = False
    move()
    world.run_for(_FORMING_S)
    world.trace.recording = True
    rng, wanted = Random(f"mobile/{seed}"), {}
    for _ in range(parameters["events"]):
        world.run_for(rng.uniform(0.5, 1.5) * _BETWEEN_S)
        source, parts = rng.randrange(nodes), world.parts()
        part = {id for id, each in parts.items() if each == parts[world.nodes[source].id]}
        wanted[world.publish(source, {"x": 0})] = part
    world.run_for(_ARRIVE_S)
    reached, copies = [], []
    for event, part in wanted.items():
        rows = world.trace.about(event)
        got = {row.node for row in rows if row.kind == "deliver"}
        arrived = sum((row.kind == "send") - (row.kind == "lose") for row in rows if row.what == spread)
        reached.append(100 * len(got & part) / len(part))
        copies.append(arrived / max(1, len(got) - 1))
    return [
        Measured(f"{REACHED}, {parameters['protocol']}", speed, fmean(reached)),
        Measured(f"{COPIES}, {parameters['protocol']}", speed, fmean(copies)),
    ]


def _speeds(results: Results, what: str, way: str) -> dict[float, float]:
    return {speed: results.mean(f"{what}, {way}", speed) for speed in results.xs(f"{what}, {way}")}


def _shown(means: dict[float, float]) -> str:
    return ", ".join(f"{speed:g}: {y:.2f}" for speed, y in means.items())


def _reaches(way: str, results: Results) -> Finding:
    means, flooded = _speeds(results, REACHED, way), _speeds(results, REACHED, FLOODING)
    shown = f"{_shown(means)} % at so many ranges a minute; flooding {_shown(flooded)} %"
    why = "a broker whose upper or core neighbour falls silent floods, and what was not acknowledged is flooded again"
    return Finding(shown, judged(min(means.values()), holds=lambda least: least >= 99.9), why)


def _is_lighter(way: str, results: Results) -> Finding:
    means, flooded = _speeds(results, COPIES, way), _speeds(results, COPIES, FLOODING)
    shown = f"{_shown(means)} at so many ranges a minute; flooding {_shown(flooded)}"
    why = "the faster brokers move, the more of them are unstable and flood; at rest the core alone forwards"
    most = max(means[speed] / flooded[speed] for speed in means)
    return Finding(shown, judged(most, holds=lambda share: share <= 0.5), why)


def _check(parameters: Parameters) -> None:
    expect_one_of(_WAYS, parameters, "protocol")
    expect_at_least(2, parameters, "node_count")
    expect_at_least(1, parameters, "events")
    expect_at_least(0, parameters, "ranges_per_min", "reach")


EXPERIMENT = Experiment(
    paper="immune",
    figure="mobile",
    title="Immune: brokers that move",
    measure=measure_mobile,
    x=PlotAxis("ranges a minute"),
    y=PlotAxis("percent; copies", log=True),
    varies={"protocol": tuple(_WAYS), "ranges_per_min": (0.0, 0.1, 1.0, 10.0)},
    stays={"node_count": 60, "reach": 0.2, "events": 20},
    seeds=5,
    quick_varies={"ranges_per_min": (0.0, 1.0)},
    quick_seeds=1,
    check=_check,
    cost=lambda parameters: 1.4 if parameters["protocol"] in (IMMUNE, BY_DELAY) else 0.2,
    conditions=(
        "60 brokers in a square hear all within a fifth of its width and move to random points, so many of these "
        "ranges in a minute (a pedestrian with 100 m of range about one, a car ten); links are looked at every second; "
        "new ones are told, that one is gone is noticed by three missed heartbeats of one second; roles by messages; "
        "copies that arrive, acknowledgements apart"
    ),
    claims=(
        Claim(
            "beyond the paper: immune routing reaches who can be reached while brokers move",
            "≥ 99.9 % of the publisher's part",
            partial(_reaches, IMMUNE),
        ),
        Claim(
            "beyond the paper: it does so with measured delays as weights",
            "≥ 99.9 % of the publisher's part",
            partial(_reaches, BY_DELAY),
        ),
        Claim(
            "beyond the paper: while brokers move, at most half of flooding's copies",
            "≤ 0.5",
            partial(_is_lighter, IMMUNE),
        ),
    ),
)
