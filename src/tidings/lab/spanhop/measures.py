"""What one run measures: routes between random pairs on a network, intact, with failures, and by delay.

A route leads from a random broker to a random point of another random broker's zone. Axes are
circles unless the name of a series says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from tidings.errors import InputError
from tidings.lab.experiment import Measured, Parameters, numbers
from tidings.lab.parameter_checks import expect_at_least, expect_one_of, expect_rates
from tidings.lab.spanhop.network_coordinates import fitted
from tidings.lab.spanhop.proximity import index_records, nearest
from tidings.lab.spanhop.routing import HERE, Routes, RoutingTables, live_share, routes, routes_together, tables
from tidings.lab.spanhop.split_tree import AXES_MAX, Array, SplitTree, balanced, joined
from tidings.overlay import Kept
from tidings.sim import Plane

BALANCED, RANDOM, EVEN = "balanced", "random joins", "even joins"
GREEDY, GREEDY_ENDS = "greedy", "greedy, axes with ends"
TOGETHER = "m = 4, all tables together"
LIVE_LINKS = "what links between live neighbours allow"
_BITS = 24  # Of an axis. Zones of a million brokers are thousands of cells wide.


def spanhop(m: int, network: str = BALANCED, kept: Kept = "lower") -> str:
    """The name of a series."""
    grown = f", {network}" if network != BALANCED else ""
    return f"Spanhop, m = {m}{grown}" + (", either half kept" if kept == "either" else "")


# ── Hops and failures ──────────────────────────────────────────────────────────


def _tree(parameters: Parameters, seed: int, kept: Kept = "lower") -> SplitTree:
    axes, brokers, network = parameters["axes"], parameters["brokers"], parameters["network"]
    if network == BALANCED:
        return balanced(axes, brokers.bit_length() - 1, bits=_BITS, kept=kept)
    points = np.random.default_rng([1, seed]).integers(0, 2**_BITS, (brokers - 1, axes))
    return joined(axes, points, even=network == EVEN, bits=_BITS, kept=kept)


def _pairs(tree: SplitTree, count: int, seed: int, among: Array | None = None) -> tuple[Array, Array]:
    """Random sources, and a random point in the zone of a random target of each."""
    rng = np.random.default_rng([2, seed])
    brokers = np.arange(len(tree)) if among is None else among
    sources, targets = brokers[rng.integers(0, len(brokers), (2, count))]
    return sources, tree.points_in(targets, rng)


def _mean_hops(walked: Routes) -> float:
    """Infinite if a single message was not delivered."""
    return float(walked.hops.mean()) if (walked.ended == HERE).all() else math.inf


def measure_hops(parameters: Parameters, seed: int) -> list[Measured]:
    """Mean hops of greedy routing and of Spanhop, on one network; on one that has grown, of Spanhop with the first m."""
    tree = _tree(parameters, seed)
    sources, points = _pairs(tree, parameters["pairs"], seed)
    measured: list[Measured] = []
    known: RoutingTables | None = None
    domains = [int(m) for m in numbers(parameters, "m")]
    for m in domains if parameters["network"] == BALANCED else domains[:1]:
        known = tables(tree, m, present=known.present if known else None)
        hops = _mean_hops(routes(known, sources, points))
        measured.append(Measured(spanhop(m, parameters["network"]), len(tree), hops))
        if m == 4 and parameters["network"] == BALANCED:
            measured.append(Measured(TOGETHER, len(tree), float(routes_together(known, sources, points).mean())))
    if parameters["network"] == BALANCED and 8 in domains:
        either = tables(_tree(parameters, seed, "either"), 8)
        hops = _mean_hops(routes(either, sources, points))
        measured.append(Measured(spanhop(8, kept="either"), len(tree), hops))
    if known and parameters["network"] == BALANCED:
        few = slice(parameters["greedy_pairs"])
        for series, how in ((GREEDY, known), (GREEDY_ENDS, tables(tree, len(tree), wrap=False))):
            hops = _mean_hops(routes(how, sources[few], points[few], greedy=True))
            measured.append(Measured(series, len(tree), hops))
    return measured


def measure_axes(parameters: Parameters, seed: int) -> list[Measured]:
    """Mean hops for one number of axes d, with m = 2^d."""
    tree, brokers, axes = _tree(parameters, seed), parameters["brokers"], parameters["axes"]
    sources, points = _pairs(tree, parameters["pairs"], seed)
    known = tables(tree, 2**axes)
    return [
        Measured(f"{name}, N = {brokers}", axes, _mean_hops(routes(known, sources, points, greedy=name == GREEDY)))
        for name in (GREEDY, "Spanhop")
    ]


def measure_m(parameters: Parameters, seed: int) -> list[Measured]:
    """Mean hops for one m."""
    measured: list[Measured] = []
    kepts: tuple[Kept, ...] = ("lower", "either")
    for kept in kepts:
        tree = _tree(parameters, seed, kept)
        sources, points = _pairs(tree, parameters["pairs"], seed)
        series = of_m(parameters["axes"], parameters["brokers"], kept)
        present = None
        for m in map(int, numbers(parameters, "m")):
            known = tables(tree, m, present=present)
            present = known.present
            measured.append(Measured(series, m, _mean_hops(routes(known, sources, points))))
    return measured


def of_m(axes: int, brokers: int, kept: Kept = "lower") -> str:
    """The name of a series over m."""
    return f"d = {axes}, N = {brokers}" + (", either half kept" if kept == "either" else "")


def _with_failures(known: RoutingTables, parameters: Parameters, seed: int) -> Iterable[tuple[float, Array]]:
    """For each share of failures, the brokers that are alive."""
    order = np.random.default_rng([3, seed]).permutation(len(known.tree))
    for failed in numbers(parameters, "failed_percent"):
        alive = np.ones(len(order), np.bool_)
        alive[order[: round(len(order) * failed / 100)]] = False
        yield failed, alive


def _routes_around(
    known: RoutingTables, alive: Array, parameters: Parameters, seed: int
) -> Iterable[tuple[str, Routes]]:
    """Routes between live brokers, before anything is repaired."""
    sources, points = _pairs(known.tree, parameters["pairs"], seed, np.flatnonzero(alive))
    for series, greedy in ((GREEDY, True), (spanhop(parameters["m"]), False)):
        yield series, routes(known, sources, points, greedy=greedy, alive=alive)


def measure_failures(parameters: Parameters, seed: int) -> list[Measured]:
    """How many messages between live brokers arrive, in percent."""
    known, measured = tables(_tree(parameters, seed), parameters["m"]), []
    for failed, alive in _with_failures(known, parameters, seed):
        measured.append(Measured(LIVE_LINKS, failed, 100 * live_share(known, alive)))
        for series, walked in _routes_around(known, alive, parameters, seed):
            measured.append(Measured(series, failed, 100 * float((walked.ended == HERE).mean())))
    return measured


def measure_failure_hops(parameters: Parameters, seed: int) -> list[Measured]:
    """Mean hops of the messages that arrive."""
    known = tables(_tree(parameters, seed), parameters["m"])
    return [
        Measured(series, failed, float(walked.hops[walked.ended == HERE].mean()))
        for failed, alive in _with_failures(known, parameters, seed)
        for series, walked in _routes_around(known, alive, parameters, seed)
    ]


# ── Storage ────────────────────────────────────────────────────────────────────

TABLES_MEAN, TABLES_MOST = "items in tables of ancestors, mean over 6dc", "items in tables of ancestors, most over 6dc"
INDEX_MEAN, INDEX_MOST = "records of coordinates, mean over log_m N", "records of coordinates, most over log_m N"
INDEX_BEYOND = "brokers with more than log_m N records (%)"
_ONE = ", one for a level"
THINNED_MOST, THINNED_BEYOND = INDEX_MOST + _ONE, INDEX_BEYOND + _ONE
ITEMS = 3  # Of a recorded neighbour: its id, its address and its zone.


def measure_storage(parameters: Parameters, seed: int) -> list[Measured]:
    """What a broker stores beyond its zone and neighbours, over what the paper says it does."""
    tree = _tree(parameters, seed)
    known = tables(tree, parameters["m"])
    sizes = np.append(np.diff(known.recorded.begins), 0)  # -1, for no ancestor, is the last: nothing.
    items = ITEMS * sizes[known.ancestor].sum(axis=1)
    levels = np.maximum(1, (known.ancestor >= 0).sum(axis=1))
    tables_share = items / (6 * parameters["axes"] * levels)
    plane = Plane(seed, clusters=SPREADS[parameters["spread"]])
    places = np.array([plane.point(broker) for broker in range(len(tree))])
    expected = math.log(len(tree), parameters["m"])
    records = index_records(known, places) / expected
    thinned = index_records(known, places, at_most=1) / expected
    where = f", {parameters['network']}, {parameters['spread']}"
    shown = {
        TABLES_MEAN: tables_share.mean(), TABLES_MOST: tables_share.max(), INDEX_MEAN: records.mean(),
        INDEX_MOST: records.max(), INDEX_BEYOND: 100 * (records > 1).mean(),
        THINNED_MOST: thinned.max(), THINNED_BEYOND: 100 * (thinned > 1).mean(),
    }  # fmt: skip
    return [Measured(series + where, len(tree), float(share)) for series, share in shown.items()]


# ── Delays ─────────────────────────────────────────────────────────────────────

AS_RECORDED, NEAREST, THINNED = "as recorded", "nearest by MGNP", "nearest by MGNP, one record for a level"
SPREADS = {
    "uniform plane": 0,
    "eight cities": 8,
}  # How brokers are spread in the network: the number of clusters, 0 for none.


def _delays_and_hops(parameters: Parameters, seed: int) -> Iterable[tuple[str, float, float]]:
    """For each series its name, mean delay in ms, and mean hops."""
    tree = _tree(parameters, seed)
    known = tables(tree, parameters["m"])
    plane = Plane(seed, clusters=SPREADS[parameters["spread"]])
    places = np.array([plane.point(broker) for broker in range(len(tree))])
    sources, points = _pairs(tree, parameters["pairs"], seed)
    coordinates = _coordinates(places, plane, parameters, seed)
    order = np.random.default_rng([5, seed]).permutation(len(tree))  # Who comes last stays; any order will do.
    found = {
        AS_RECORDED: None,
        NEAREST: nearest(known, coordinates),
        THINNED: nearest(known, coordinates, at_most=1, order=order),
    }
    for name, near in found.items():
        walked = routes(known, sources, points, near=near, traced=True)
        delays_ms = 1000 * _delays_s(walked.traces, places, plane)
        yield f"{parameters['spread']}, {name}", float(delays_ms.mean()), _mean_hops(walked)


def _coordinates(places: Array, plane: Plane, parameters: Parameters, seed: int) -> Array:
    """Network coordinates of brokers, from pings to landmarks."""
    rng, jitter_s = np.random.default_rng([4, seed]), parameters["jitter_ms"] / 1000
    return fitted(places, plane, landmarks=parameters["landmarks"], jitter_s=jitter_s, rng=rng)


def _delays_s(traces: Array, places: Array, plane: Plane) -> Array:
    """The delay of each route, over all its links."""
    length = int((traces >= 0).sum(axis=1).max())
    here, there = traces[:, : length - 1], traces[:, 1:length]
    way = np.sqrt(((places[here] - places[there]) ** 2).sum(axis=2))
    delays: Array = np.where(there >= 0, plane.floor_s + plane.across_s * way, 0.0).sum(axis=1)
    return delays


def measure_delay(parameters: Parameters, seed: int) -> list[Measured]:
    """Mean end-to-end delay, with next hops as recorded and with the nearest broker of each region."""
    return [Measured(series, parameters["brokers"], delay) for series, delay, _ in _delays_and_hops(parameters, seed)]


def measure_delay_hops(parameters: Parameters, seed: int) -> list[Measured]:
    """Mean hops of the same routes."""
    return [Measured(series, parameters["brokers"], hops) for series, _, hops in _delays_and_hops(parameters, seed)]


def check(parameters: Parameters) -> None:
    brokers, network = parameters["brokers"], parameters["network"]
    expect_one_of((BALANCED, RANDOM, EVEN), parameters, "network")
    if not 2 <= brokers <= 2**24:
        raise InputError(f"expected brokers from 2 to {2**24}, got {brokers}")
    if network == BALANCED and brokers & (brokers - 1):
        raise InputError(f"expected brokers to be a power of two for a balanced network, got {brokers}")
    if not 1 <= parameters["axes"] <= AXES_MAX:
        raise InputError(f"expected axes from 1 to {AXES_MAX}, got {parameters['axes']}")
    for m in numbers(parameters, "m") if "m" in parameters else []:
        if m < 2 or m != 2 ** (int(m).bit_length() - 1):
            raise InputError(f"expected m to be a power of two and at least 2, got {m:g}")
    expect_at_least(1, parameters, "pairs", "greedy_pairs")
    expect_rates(parameters, "failed_percent")
    expect_one_of(SPREADS, parameters, "spread")
    expect_at_least(0, parameters, "jitter_ms")
    if not parameters["axes"] < parameters.get("landmarks", brokers) <= brokers:
        raise InputError(f"expected more landmarks than axes and at most all brokers, got {parameters['landmarks']}")


def cost(parameters: Parameters) -> float:
    """Seconds, for the scheduler: building the tables is linear in the brokers."""
    return float(0.3 + 9e-6 * parameters["brokers"])
