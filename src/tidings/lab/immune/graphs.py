"""Immune routing on other graphs than the paper's: communities, and a plane whose links take as long as they are.

The paper names community and weighted graphs as future work. Communities are dense inside and hang together by a few
links, which a core must not lose. In a plane nodes have links to the nearest ones, and a link's delay is its length: what
a broker forwards along the core takes a detour, measured in time and not in hops. There brokers also find their roles
by messages, by numbers of links or by the delays that they measure.
"""

from __future__ import annotations

from functools import partial
from random import Random
from statistics import fmean
from typing import Any

from tidings.lab.experiment import Claim, Experiment, Measured, Parameters, PlotAxis
from tidings.lab.parameter_checks import expect_at_least, expect_one_of
from tidings.lab.results import Finding, Results, judged
from tidings.sim import World, topology

FLOODING, LITERAL, ELIM, TREE = "flooding", "as published", "guarded, core_elim", "guarded, core_tree"
FOUND, BY_DELAY = "core_elim, roles found by messages", "core_elim, roles by measured delay"
GRAPHS = ("communities", "planar")
REACHED, COPIES, TIME = "brokers reached (%)", "copies per broker", "time to the last broker (ms)"
_STILL = {"heartbeat_s": 0.0, "acks": False}
_WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    FLOODING: ("flooding", {}),
    LITERAL: ("immune", {**_STILL, "demotion": "literal", "forward": "core_flood"}),
    ELIM: ("immune", {**_STILL, "forward": "core_elim"}),
    TREE: ("immune", {**_STILL, "forward": "core_tree"}),
    FOUND: ("immune", {"acks": False}),
    BY_DELAY: ("immune", {"acks": False, "weight": "delay"}),
}
_FORMED_MAX = 10  # Runs in which brokers find their roles by messages: that takes a hundred times as long.
_FORMING_S = 60.0
_SPREAD = {"flooding": "Flood", "immune": "Spread"}


def measure_graphs(parameters: Parameters, seed: int) -> list[Measured]:
    """Who is reached, in how many copies, and when the last one is, over some events from random sources."""
    nodes, kind = parameters["node_count"], parameters["graph"]
    name, options = _WAYS[parameters["protocol"]]
    by_messages = parameters["protocol"] in (FOUND, BY_DELAY)
    if by_messages and (seed >= _FORMED_MAX or kind != "planar"):
        return []  # In communities all links take equally long.
    graph = topology(kind, nodes, Random(f"{kind}/{seed}"))
    world = World(name, topology=graph, seed=seed, options=options, settled=not by_messages)
    if by_messages:
        world.trace.recording = False
        world.run_for(_FORMING_S)
        world.trace.recording = True
    rng, reached, copies, times = Random(f"source/{seed}"), [], [], []
    for _ in range(parameters["sources"]):
        began, before = world.now, world.trace.messages(_SPREAD[name])
        event = world.publish(rng.randrange(nodes), {"x": 0})
        world.run_until_quiet()
        arrived = {row.node: row.at - began for row in world.trace.about(event) if row.kind == "deliver"}
        reached.append(100 * len(arrived) / nodes)
        copies.append((world.trace.messages(_SPREAD[name]) - before) / max(1, len(arrived) - 1))
        times.append(1000 * max(arrived.values()))
    shown = {REACHED: reached, COPIES: copies, TIME: times}
    return [Measured(f"{what}, {kind}, {parameters['protocol']}", nodes, fmean(ys)) for what, ys in shown.items()]


def _means(results: Results, what: str, way: str) -> dict[str, list[float]]:
    return {kind: results.ys(f"{what}, {kind}, {way}") for kind in GRAPHS}


def _covers(way: str, why: str, results: Results) -> Finding:
    by_graph = _means(results, REACHED, way)
    shown = "; ".join(
        f"{kind}: mean {fmean(ys):.2f} %, everyone in {sum(y == 100 for y in ys)} of {len(ys)} runs"
        for kind, ys in by_graph.items()
    )
    return Finding(shown, judged(min(min(ys) for ys in by_graph.values()), holds=lambda least: least == 100), why)


def _light(way: str, why: str, results: Results) -> Finding:
    means = {kind: fmean(ys) for kind, ys in _means(results, COPIES, way).items()}
    flooded = {kind: fmean(ys) for kind, ys in _means(results, COPIES, FLOODING).items()}
    shown = "; ".join(f"{kind}: {means[kind]:.2f}, flooding {flooded[kind]:.2f}" for kind in GRAPHS)
    return Finding(shown, judged(max(means.values()), holds=lambda most: most <= 1.3), why)


def _quick(results: Results) -> Finding:
    times = {way: results.mean(f"{TIME}, planar, {way}") for way in (FLOODING, ELIM, TREE)}
    shown = ", ".join(f"{way} {ms:.0f} ms" for way, ms in times.items())
    why = "roles go by numbers of links and not by delays, so the core's ways are not the shortest in time"
    return Finding(shown, judged(times[ELIM] / times[FLOODING], holds=lambda times: times <= 1.5), why)


def _delays_help(results: Results) -> Finding:
    times = {way: results.mean(f"{TIME}, planar, {way}") for way in (FLOODING, FOUND, BY_DELAY)}
    copies = {way: results.mean(f"{COPIES}, planar, {way}") for way in (FOUND, BY_DELAY)}
    shown = ", ".join(
        f"{way} {ms:.0f} ms" + (f" with {copies[way]:.2f} copies" if way in copies else "") for way, ms in times.items()
    )
    why = (
        "who stays in the core is who lies on short ways, and an immune broker takes the nearest upper; flooding takes "
        "every shortest way"
    )
    return Finding(shown, judged(times[BY_DELAY] / times[FLOODING], holds=lambda times: times <= 1.1), why)


def _check(parameters: Parameters) -> None:
    expect_one_of(_WAYS, parameters, "protocol")
    expect_one_of(GRAPHS, parameters, "graph")
    expect_at_least(10, parameters, "node_count")
    expect_at_least(1, parameters, "sources")


EXPERIMENT = Experiment(
    paper="immune",
    figure="graphs",
    title="Immune: community graphs, and a plane with delays",
    measure=measure_graphs,
    x=PlotAxis("brokers"),
    y=PlotAxis("percent; copies; ms", log=True),
    varies={"protocol": tuple(_WAYS), "graph": GRAPHS, "node_count": (100,)},
    stays={"sources": 3},
    seeds=50,
    quick_seeds=10,
    check=_check,
    cost=lambda parameters: 0.3 if parameters["protocol"] in (FOUND, BY_DELAY) else 0.02,
    conditions=(
        "100 brokers; communities: five random graphs with six links a broker, three links from each to the next; a plane: "
        "links to the four nearest, 2 ms and 100 ms for the width of the plane; roles are computed from the whole graph, "
        "by numbers of links, with the paper's threshold of 3, except where brokers find them by messages (at most ten "
        "runs: that takes a hundred times as long)"
    ),
    claims=(
        Claim(
            "beyond the paper: guarded construction reaches every broker of communities and of a plane",
            "100 % in each run",
            partial(_covers, ELIM, "a broker leaves the core only if the core stays connected and next to everyone"),
        ),
        Claim(
            "beyond the paper: as published every broker of communities and of a plane is reached",
            "100 % in each run",
            partial(
                _covers,
                LITERAL,
                "hardly a broker has as few as three links, so hardly one elects, and whom nobody elects leaves the core",
            ),
        ),
        Claim(
            "beyond the paper: at most 1.3 copies on them (core_elim)",
            "≤ 1.3",
            partial(_light, ELIM, "whoever is not needed leaves the core, however many links it has"),
        ),
        Claim(
            "beyond the paper: at most 1.3 copies on them (core_tree)",
            "≤ 1.3",
            partial(_light, TREE, "a tree has one way to each broker, whatever the graph"),
        ),
        Claim("beyond the paper: little is lost in time", "core_elim at most 1.5 times flooding's", _quick),
        Claim(
            "beyond the paper: measured delays as weights bring events sooner",
            "the last broker within 1.1 times flooding's time",
            _delays_help,
        ),
    ),
)
