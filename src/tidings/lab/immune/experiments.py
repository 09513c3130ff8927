"""Immune routing, measured: who is reached, in how many copies and hops, against flooding and gossip.

The paper's setting is a scale-free graph of 100 brokers (m0 = 20, m = 3) with threshold 3,
ten brokers interested, a hundred runs. It shows coverage over the runs (figure 4) and
copies per broker over network sizes it does not name (figure 5), and defines hops without
showing any. Each run here is a graph, a random source and one event in the simulated
world; all links take equally long, so a hop is a unit of time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import fmean
from typing import Any

from tidings.errors import InputError
from tidings.lab.experiment import Claim, Experiment, Measured, Parameters, PlotAxis
from tidings.lab.parameter_checks import expect_at_least, expect_one_of
from tidings.lab.results import Finding, Results, Verdict, judged
from tidings.sim import Topology, World, topology

FLOODING, GOSSIP, LITERAL = "flooding", "gossip, p = 0.9", "immune as published"
FLOOD, ELIM, ELIM_LOCAL, TREE = (
    "guarded, core_flood",
    "guarded, core_elim",
    "guarded, core_elim, looking two hops far",
    "guarded, core_tree",
)
BY_MESSAGES = "guarded, core_elim, roles found by messages"

# No heartbeats and no acknowledgements: the network does not change, and the paper counts neither.
_STILL = {"heartbeat_s": 0.0, "acks": False}
_PROTOCOLS: dict[str, tuple[str, dict[str, Any]]] = {
    FLOODING: ("flooding", {}),
    GOSSIP: ("gossip", {"chance": 0.9}),
    LITERAL: ("immune", {**_STILL, "demotion": "literal", "forward": "core_flood"}),
    FLOOD: ("immune", {**_STILL, "forward": "core_flood"}),
    ELIM: ("immune", {**_STILL, "forward": "core_elim"}),
    ELIM_LOCAL: ("immune", {**_STILL, "forward": "core_elim", "check": "local"}),
    TREE: ("immune", {**_STILL, "forward": "core_tree"}),
    BY_MESSAGES: ("immune", {"acks": False, "forward": "core_elim"}),
}
_FORMING_S = 60.0  # Heartbeats that brokers get to find their roles.
_FORMED_MAX = 2000  # Brokers times runs that find their roles by messages: that takes a hundred times as long.


@dataclass(frozen=True, slots=True)
class _Spread:
    """What became of one event."""

    node_count: int
    reached: frozenset[int]
    copies: int
    hops: int

    @property
    def load(self) -> float:
        """Copies that came to a broker, the source apart, on average over those that got any."""
        return self.copies / max(1, len(self.reached) - 1)


def _spreads(parameters: Parameters, seed: int) -> list[_Spread]:
    """Some events, one after the other, each from a random source, on the seed's graph."""
    graph = _graph(parameters, seed)
    if parameters["protocol"] == BY_MESSAGES:
        return _spreads_by_messages(graph, parameters, seed) if _is_formed(parameters, seed) else []
    name, options = _PROTOCOLS[parameters["protocol"]]
    extra = {"delta": parameters["delta"]} if name == "immune" else {}
    world = World(name, topology=graph, seed=seed, options={**options, **extra})
    rng = Random(f"source/{seed}")
    return [_spread_one(world, rng.randrange(graph.node_count)) for _ in range(parameters["sources"])]


def _is_formed(parameters: Parameters, seed: int) -> bool:
    return bool(parameters["node_count"] * (seed + 1) <= _FORMED_MAX)


def _spreads_by_messages(graph: Topology, parameters: Parameters, seed: int) -> list[_Spread]:
    """The same where brokers know only what their neighbours tell them, as live ones do."""
    options = {**_PROTOCOLS[BY_MESSAGES][1], "delta": parameters["delta"]}
    world = World("immune", topology=graph, seed=seed, options=options, settled=False, recording=False)
    world.run_for(_FORMING_S)
    rng, spreads = Random(f"source/{seed}"), []
    for _ in range(parameters["sources"]):
        before = world.trace.messages("Spread")
        event = world.publish(rng.randrange(graph.node_count), {"x": 0})
        world.run_for(2.0)
        reached = frozenset(member.index for member in world.nodes if world.trace.deliveries[event, member.id])
        spreads.append(_Spread(graph.node_count, reached, world.trace.messages("Spread") - before, hops=0))
    return spreads


def _spread_one(world: World, source: int) -> _Spread:
    began, before = world.now, world.trace.messages()
    event = world.publish(source, {"x": 0})
    world.run_until_quiet()
    arrivals = {row.node: row.at - began for row in world.trace.about(event) if row.kind == "deliver"}
    reached = frozenset(member.index for member in world.nodes if member.id in arrivals)
    hop_s = world.topology.space.delay_s(0, 0)
    return _Spread(len(world.nodes), reached, world.trace.messages() - before, round(max(arrivals.values()) / hop_s))


def _graph(parameters: Parameters, seed: int) -> Topology:
    links = {"m0": parameters["m0"], "m": parameters["m"]}
    return topology("barabasi-albert", parameters["node_count"], Random(f"topology/{seed}"), **links)


def measure_coverage(parameters: Parameters, seed: int) -> list[Measured]:
    """How many of those who count are reached, in percent; the paper counts the interested ones."""
    brokers = range(parameters["node_count"])
    counted = Random(f"interested/{seed}").sample(brokers, parameters["interested"])
    shares = [
        sum(broker in spread.reached for broker in counted) / len(counted) for spread in _spreads(parameters, seed)
    ]
    return [Measured(parameters["protocol"], seed + 1, 100 * fmean(shares))] if shares else []


def measure_load(parameters: Parameters, seed: int) -> list[Measured]:
    """Copies per broker reached."""
    loads = [spread.load for spread in _spreads(parameters, seed)]
    return [Measured(parameters["protocol"], parameters["node_count"], fmean(loads))] if loads else []


def measure_hops(parameters: Parameters, seed: int) -> list[Measured]:
    """Hops until the last broker that is reached at all."""
    return [
        Measured(
            parameters["protocol"],
            parameters["node_count"],
            fmean(spread.hops for spread in _spreads(parameters, seed)),
        )
    ]


def check(parameters: Parameters) -> None:
    nodes, m0, m = parameters["node_count"], parameters["m0"], parameters["m"]
    expect_one_of(_PROTOCOLS, parameters, "protocol")
    expect_at_least(1, parameters, "node_count")
    if not 1 <= m <= m0 <= nodes:
        raise InputError(f"expected 1 ≤ m ≤ m0 ≤ node_count, got m={m}, m0={m0}, node_count={nodes}")
    expect_at_least(1, parameters, "sources")
    expect_at_least(0, parameters, "delta")
    if not 1 <= parameters.get("interested", 1) <= nodes:
        raise InputError(f"expected interested from 1 to node_count={nodes}, got {parameters['interested']}")


def cost(parameters: Parameters) -> float:
    """The construction, where there is one, takes several times as long as the spreading.

    By messages it takes longer still, but only in the first runs: this is the mean of a hundred.
    """
    if parameters["protocol"] == BY_MESSAGES:
        return 0.0052 * min(float(parameters["node_count"]), _FORMED_MAX / 100)
    is_immune = _PROTOCOLS[parameters["protocol"]][0] == "immune"
    return float(parameters["node_count"] * (14e-5 if is_immune else 5e-5))


# ── What the paper says, and what is said beyond it ────────────────────────────

_PAPER_SIZE = 100
_LOADS = {FLOODING: 4.5, GOSSIP: 4.0, LITERAL: 1.2}  # Figure 5, read at the paper's size.
_LOST_WHY = (
    "the three steps leave brokers without a neighbour in the core, and the core in pieces: "
    "nothing keeps a broker from being demoted when others depend on it"
)


def _coverage(results: Results, series: str) -> tuple[str, int, int]:
    shares = results.ys(series)
    full = sum(share == 100 for share in shares)
    return f"mean {results.mean(series):.2f} %, everyone in {full} of {len(shares)} runs", full, len(shares)


def _flooding_reaches_all(results: Results) -> Finding:
    measured, full, runs = _coverage(results, FLOODING)
    return Finding(
        measured, judged(full, holds=lambda n: n == runs), "every broker passes the event on to all it knows"
    )


def _literal_reaches_nearly_all(results: Results) -> Finding:
    measured, _, _ = _coverage(results, LITERAL)
    return Finding(measured, judged(results.mean(LITERAL), holds=lambda share: share >= 99), _LOST_WHY)


def _guarded_reaches_all(results: Results) -> Finding:
    measured, full, runs = _coverage(results, ELIM)
    why = "a broker leaves the core only if the core stays connected and next to everyone without it"
    return Finding(measured, judged(full, holds=lambda _: False, better=lambda n: n == runs), why)


def _messages_reach_all(results: Results) -> Finding:
    measured, full, runs = _coverage(results, BY_MESSAGES)
    why = "two candidates within two hops of each other never leave the core at once, and a lost answer means staying"
    return Finding(measured, judged(full, holds=lambda n: n == runs), why)


def _messages_are_as_light(results: Results) -> Finding:
    places = results.xs(BY_MESSAGES)
    shown = "; ".join(
        f"N = {x:g}: {results.mean(BY_MESSAGES, x):.2f}, from the whole graph {results.mean(ELIM, x):.2f}, "
        f"looking two hops far {results.mean(ELIM_LOCAL, x):.2f}"
        for x in places
    )
    worst = max(results.mean(BY_MESSAGES, x) / results.mean(ELIM_LOCAL, x) for x in places)
    why = "brokers look two hops far, and come to about the core that a computation looking as far does"
    return Finding(shown, judged(worst, holds=lambda ratio: ratio <= 1.1), why)


def _gossip_misses_some(results: Results) -> Finding:
    measured, full, runs = _coverage(results, GOSSIP)
    why = "each copy is passed on by chance, so now and then a broker with few links gets none"
    if full == runs:
        why = "ten brokers of a hundred are too few to meet one of those that it misses; with all counted it does"
    return Finding(measured, judged(full, holds=lambda n: n < runs), why)


def _load_is_about(series: str, within: float) -> Callable[[Results], Finding]:
    def judge(results: Results) -> Finding:
        load = results.spread(series, _PAPER_SIZE)
        holds = judged(load.mean, holds=lambda mean: abs(mean - _LOADS[series]) <= within)
        why = f"within {within:g} of the paper's figure" if holds is Verdict.HOLDS else f"off by more than {within:g}"
        return Finding(f"{load.mean:.2f} ± {load.margin:.2f}", holds, f"{why}; its seed graph is not given, ours is")

    return judge


def _order(results: Results) -> Finding:
    means = {series: results.mean(series, _PAPER_SIZE) for series in (FLOODING, GOSSIP, FLOOD, ELIM, TREE)}
    right = means[FLOODING] > means[GOSSIP] > max(means[FLOOD], means[ELIM], means[TREE])
    shown = ", ".join(f"{series} {mean:.2f}" for series, mean in means.items())
    return Finding(shown, judged(right, holds=bool), "only the core forwards, and it is a fifth of the brokers")


def _guarded_is_light(results: Results) -> Finding:
    elim, tree = results.spread(ELIM, _PAPER_SIZE), results.spread(TREE, _PAPER_SIZE)
    verdict = judged(elim.mean, holds=lambda load: load <= 1.3, better=lambda load: load <= 1.2)
    shown = f"core_elim {elim.mean:.3f} ± {elim.margin:.3f}, core_tree {tree.mean:.3f}"
    return Finding(
        shown, verdict, "core_elim spares neighbours that the sender reaches itself; a tree has no second copies"
    )


def _tree_is_least(results: Results) -> Finding:
    loads = results.ys(TREE)
    why = "each broker has one way to it, so an event takes exactly N - 1 messages; the price is one or two hops"
    return Finding(
        f"{min(loads):.3f} to {max(loads):.3f} at all sizes",
        judged(max(loads), holds=lambda _: False, better=lambda load: load == 1),
        why,
    )


def _light_when_large(results: Results) -> Finding:
    size = 10 * _PAPER_SIZE
    tree, elim, two_hops = (results.mean(series, size) for series in (TREE, ELIM, ELIM_LOCAL))
    shown = f"at N = {size}: core_tree {tree:.2f}, core_elim {elim:.2f}, looking two hops far {two_hops:.2f}"
    why = "core_tree stays at one copy; core_elim grows with the core's own links, which a tree leaves out"
    return Finding(shown, judged(elim, holds=lambda load: load <= 1.3), why)


def _tree_is_light_when_large(results: Results) -> Finding:
    load = results.mean(TREE, 10 * _PAPER_SIZE)
    why = "one copy at every size; it is not the default, as one broken link cuts off a branch until it is repaired"
    return Finding(f"{load:.2f}", judged(load, holds=lambda each: each <= 1.3), why)


def _hops_are_more(results: Results) -> Finding:
    means = {series: results.mean(series, _PAPER_SIZE) for series in (FLOODING, ELIM, TREE)}
    faster = means[ELIM] < means[FLOODING]
    why = "flooding takes every shortest way, so nothing is faster; immune routing trades hops for three quarters of the traffic"
    return Finding(", ".join(f"{series} {mean:.1f}" for series, mean in means.items()), judged(faster, holds=bool), why)


# ── The experiments ────────────────────────────────────────────────────────────

_SETTING = {"node_count": _PAPER_SIZE, "m0": 20, "m": 3, "delta": 3, "sources": 1}
_SIZES = (50, 100, 200, 500, 1000)
_COVERAGE_CLAIMS = (
    Claim("flooding reaches every broker", "100 % in each run", _flooding_reaches_all),
    Claim("immune routing, as published, reaches nearly every broker", "near 100 %", _literal_reaches_nearly_all),
    Claim("gossip reaches fewer, and not always as many", "below 100 % in some runs", _gossip_misses_some),
    Claim("beyond the paper: roles found by messages reach every broker", "100 % in each run", _messages_reach_all),
    Claim("beyond the paper: guarded construction reaches every broker", "100 % in each run", _guarded_reaches_all),
)

_CONDITIONS = (
    "the paper's 100 brokers (m0 = 20, m = 3, threshold 3, 10 interested); its seed graph and sizes are not given; "
    "roles are computed from the whole graph, except where a series looks two hops far or brokers find them by messages "
    "(fewer runs: that takes a hundred times as long)"
)
_experiment = partial(Experiment, paper="immune", check=check, cost=cost, conditions=_CONDITIONS)

EXPERIMENTS = (
    _experiment(
        figure="4",
        title="Immune, figure 4: interested brokers reached",
        measure=measure_coverage,
        x=PlotAxis("run"),
        y=PlotAxis("interested brokers reached (%)"),
        varies={"protocol": (FLOODING, GOSSIP, LITERAL, ELIM, BY_MESSAGES)},
        stays={**_SETTING, "interested": 10},
        seeds=100,
        quick_seeds=50,
        claims=_COVERAGE_CLAIMS[:4],
    ),
    _experiment(
        figure="4-everyone",
        title="Immune, figure 4 with all brokers counted",
        measure=measure_coverage,
        x=PlotAxis("run"),
        y=PlotAxis("brokers reached (%)"),
        varies={"protocol": (FLOODING, GOSSIP, LITERAL, ELIM, BY_MESSAGES)},
        stays={**_SETTING, "interested": _PAPER_SIZE, "sources": 10},
        seeds=100,
        quick_seeds=20,
        claims=_COVERAGE_CLAIMS,
    ),
    _experiment(
        figure="5",
        title="Immune, figure 5: copies per broker",
        measure=measure_load,
        x=PlotAxis("brokers", log=True),
        y=PlotAxis("copies received per broker"),
        varies={"protocol": tuple(_PROTOCOLS), "node_count": _SIZES},
        stays={name: value for name, value in _SETTING.items() if name != "node_count"},
        seeds=100,
        quick_varies={"node_count": (50, 100, 1000)},
        quick_seeds=6,
        published=tuple(Measured(series, _PAPER_SIZE, load) for series, load in _LOADS.items()),
        claims=(
            Claim("flooding brings each broker about 4.5 copies", "4.5", _load_is_about(FLOODING, 0.25)),
            Claim("gossip brings each broker about 4 copies", "4.0", _load_is_about(GOSSIP, 0.25)),
            Claim(
                "immune routing, as published, brings each broker about 1.2 copies", "1.2", _load_is_about(LITERAL, 0.1)
            ),
            Claim("flooding costs most, gossip less, immune routing least", "flooding > gossip > immune", _order),
            Claim("beyond the paper: at most 1.3 copies with everyone reached", "≤ 1.3", _guarded_is_light),
            Claim("beyond the paper: one copy per broker over a tree", "1", _tree_is_least),
            Claim(
                "beyond the paper: roles found by messages are as light as those computed two hops far",
                "within 10 %",
                _messages_are_as_light,
            ),
            Claim(
                "beyond the paper: at most 1.3 copies at ten times the size (the default, core_elim)",
                "≤ 1.3 at N = 1000",
                _light_when_large,
            ),
            Claim(
                "beyond the paper: at most 1.3 copies at ten times the size (core_tree)",
                "≤ 1.3 at N = 1000",
                _tree_is_light_when_large,
            ),
        ),
    ),
    _experiment(
        figure="hops",
        title="Immune: hops to the last broker (no figure in the paper)",
        measure=measure_hops,
        x=PlotAxis("brokers", log=True),
        y=PlotAxis("hops until the last broker is reached"),
        varies={"protocol": (FLOODING, GOSSIP, FLOOD, ELIM, TREE), "node_count": _SIZES},
        stays={name: value for name, value in _SETTING.items() if name != "node_count"},
        seeds=20,
        quick_varies={"node_count": (50, 100, 1000)},
        quick_seeds=3,
        claims=(Claim("immune routing is faster than flooding", "fewer hops than flooding", _hops_are_more),),
    ),
)
