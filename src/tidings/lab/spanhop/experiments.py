"""Spanhop's experiments: hops with and without the tables of ancestors, failures, delays; and the claims about them.

The paper shows one figure: mean hops against the number of brokers, greedy routing and
Spanhop, on a space of two axes (figure 6), without numbers, m or how it was simulated. Its
formulas give the numbers: greedy d/4·N^(1/d), Spanhop d/4·m^(1/d)·log_m N, least at m = e^d
with 0.68·ln N. Here every route is followed, hop by hop, from N = 16 to N = 2^20 (see `routing`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

from tidings.lab.experiment import Claim, Experiment, Measured, PlotAxis
from tidings.lab.results import Finding, NotMeasured, Results, judged
from tidings.lab.scale import scale_experiment
from tidings.lab.spanhop.measures import (
    AS_RECORDED,
    BALANCED,
    EVEN,
    GREEDY,
    GREEDY_ENDS,
    INDEX_BEYOND,
    INDEX_MOST,
    NEAREST,
    RANDOM,
    SPREADS,
    TABLES_MEAN,
    TABLES_MOST,
    THINNED,
    THINNED_BEYOND,
    THINNED_MOST,
    TOGETHER,
    check,
    cost,
    measure_axes,
    measure_delay,
    measure_delay_hops,
    measure_failure_hops,
    measure_failures,
    measure_hops,
    measure_m,
    measure_storage,
    of_m,
    spanhop,
)
from tidings.overlay import Kept

# ── The paper's claims, and ours beyond it ─────────────────────────────────────


def greedy_formula(axes: int, brokers: float) -> float:
    """The paper's mean hops of greedy routing, on circular axes."""
    return axes / 4 * math.pow(brokers, 1 / axes)


def spanhop_formula(axes: int, m: float, brokers: float) -> float:
    """The paper's mean hops of Spanhop."""
    return axes / 4 * math.pow(m, 1 / axes) * math.log(brokers, m)


def level_formula(axes: int, m: int, brokers: float, kept: Kept) -> float:
    """Our mean hops of Spanhop on a balanced tree, level by level.

    Of the cuts of a level, s = 2^c fall on an axis. The first level is a circle, where a way of s zones takes s/4 hops
    on average. Below it a way does not go round the end of a domain: from anywhere in it (s² - 1)/3s hops, from its low
    corner (s - 1)/2.

    >>> level_formula(2, 4, 4096, "lower"), level_formula(2, 8, 4096, "lower"), level_formula(2, 8, 4096, "either")
    (6.0, 7.5, 6.75)
    """
    cuts, k, hops = round(math.log2(brokers)), m.bit_length() - 1, 0.0
    for first in range(0, cuts, k):
        for axis in range(axes):
            s = 2 ** sum(cut % axes == axis for cut in range(first, min(first + k, cuts)))
            if s > 1:
                inside = (s - 1) / 2 if kept == "lower" else (s * s - 1) / (3 * s)
                hops += s / 4 if first == 0 else inside
    return hops


def _off(results: Results, series: str, expected: Callable[[float], float], least: float = 0) -> float:
    """How far off a line is at most, as a share of what is expected."""
    places = [x for x in results.xs(series) if x >= least]
    results.ys(series)  # Raises if there is nothing.
    return max(abs(results.mean(series, x) - expected(x)) / expected(x) for x in places)


def _greedy_as_formula(results: Results) -> Finding:
    off = _off(results, GREEDY, lambda brokers: greedy_formula(2, brokers))
    return Finding(
        f"at most {off:.1%} off, N = {_span(results, GREEDY)}",
        judged(off, holds=lambda each: each <= 0.05),
        "on circular axes a way is a quarter of an axis long on average, on each axis",
    )


def _span(results: Results, series: str) -> str:
    xs = results.xs(series)
    return f"{xs[0]:,.0f} to {xs[-1]:,.0f}"


def _optimum_as_formula(kept: Kept) -> Callable[[Results], Finding]:
    def judge(results: Results) -> Finding:
        line = spanhop(8, kept=kept)
        off = _off(results, line, lambda brokers: 0.68 * math.log(brokers))
        worst = max(results.xs(line))
        shown = f"at most {off:.1%} off; {results.mean(line, worst):.2f} at N = {worst:,.0f}"
        why = "the formula takes every domain for a circle, but inside a domain ways do not go round"
        if kept == "lower":
            why += "; and a domain is entered at its low corner, as owners keep the lower half in the paper's example"
        shown = f"{shown}, formula {0.68 * math.log(worst):.2f}"
        return Finding(shown, judged(off, holds=lambda each: each <= 0.1), why)

    return judge


def _levels(m: int, kept: Kept) -> Callable[[float], float]:
    return lambda brokers: level_formula(2, m, brokers, kept)


def _as_levels(results: Results) -> Finding:
    lines: list[tuple[str, int, Kept]] = [
        (spanhop(4), 4, "lower"), (spanhop(8), 8, "lower"), (spanhop(8, kept="either"), 8, "either"),
    ]  # fmt: skip
    offs = {line: _off(results, line, _levels(m, kept), least=64) for line, m, kept in lines}
    shown = ", ".join(f"{line}: at most {off:.1%} off" for line, off in offs.items())
    why = "s/4 hops on each axis of the first level, a circle; below it (s - 1)/2 from the corner, (s² - 1)/3s from anywhere"
    return Finding(shown, judged(max(offs.values()), holds=lambda off: off <= 0.05), why)


def _four_as_halves(results: Results) -> Finding:
    off = _off(results, spanhop(4), lambda brokers: 0.5 * math.log2(brokers), least=64)
    last = max(results.xs(spanhop(4)))
    shown = f"at most {off:.1%} off; {results.mean(spanhop(4), last):.2f} at N = {last:,.0f}"
    return Finding(
        shown, judged(off, holds=lambda each: each <= 0.04), "each bit of a path differs in half of all pairs"
    )


def _gap_grows(results: Results) -> Finding:
    ratios = [results.mean(GREEDY, x) / results.mean(spanhop(4), x) for x in results.xs(GREEDY)]
    grows = all(before < after for before, after in pairwise(ratios))
    return Finding(
        " < ".join(f"{ratio:.1f}" for ratio in ratios) if grows else ", ".join(f"{ratio:.1f}" for ratio in ratios),
        judged(grows, holds=bool),
        "greedy grows with the square root of N, Spanhop with its logarithm",
    )


def _grows_with_logarithm(results: Results) -> Finding:
    line = spanhop(4)
    slopes = [
        (results.mean(line, after) - results.mean(line, before)) / math.log(after / before)
        for before, after in pairwise(results.xs(line))
    ]
    shown = f"{min(slopes):.3f} to {max(slopes):.3f} hops for each factor e, over all steps of N"
    steady = max(slopes) - min(slopes) <= 0.1 * max(slopes)
    return Finding(shown, judged(steady, holds=bool), "one more level of tables for each factor m")


def _joins_are_as_good(results: Results) -> Finding:
    line = spanhop(4, RANDOM)
    hops = results.mean(line, 1024)
    shown = ", ".join(
        f"{network}: {results.mean(spanhop(4, network), 1024):.2f} at N = 1024, "
        f"{results.mean(spanhop(4, network), max(results.xs(line))):.2f} at {max(results.xs(line)):,.0f}"
        for network in (RANDOM, EVEN)
    )
    why = "zones of unequal size make some paths longer and others shorter; a way that comes round goes on greedily"
    return Finding(shown, judged(hops, holds=lambda each: each <= 0.75 * math.log(1024)), why)


def _together_is_shorter(results: Results) -> Finding:
    places = results.xs(TOGETHER)
    last = max(places)
    share = max(results.mean(TOGETHER, x) / (0.68 * math.log(x)) for x in places if x >= 64)
    shown = (
        f"{results.mean(TOGETHER, last):.2f} hops at N = {last:,.0f}; at most {share:.2f} of 0.68·ln N from N = 64 on"
    )
    why = (
        "of all brokers in all tables, the one whose present zone is nearest is the next hop; acknowledgements tell it"
    )
    return Finding(shown, judged(share, holds=lambda each: each < 1), why)


def _ends_as_formula(results: Results) -> Finding:
    off = _off(results, GREEDY_ENDS, lambda brokers: 2 / 3 * math.sqrt(brokers), least=64)
    why = "without a way round, a way is a third of an axis long on average"
    return Finding(f"at most {off:.1%} off", judged(off, holds=lambda each: each <= 0.05), why)


def _all_arrive(results: Results) -> Finding:
    missing = sum(not math.isfinite(hops) for _, _, hops in results.rows)
    why = "greedy steps always come nearer, and a way that comes round goes on greedily"
    shown = f"undelivered messages in {missing} of {len(results.rows)} runs"
    return Finding(shown, judged(missing, holds=lambda count: count == 0), why)


def _axes_do_not_matter(results: Results) -> Finding:
    lines = [series for series in results.series() if series.startswith("Spanhop")]
    if not lines:
        raise NotMeasured("Spanhop was not measured")
    offs, shown = [], []
    for line in lines:
        expected = 0.5 * math.log2(float(line.rsplit(" ", 1)[1]))
        means = [results.mean(line, axes) for axes in results.xs(line)]
        offs += [abs(mean - expected) / expected for mean in means]
        shown.append(f"{line.removeprefix('Spanhop, ')}: {min(means):.2f} to {max(means):.2f} ({expected:.2f})")
    return Finding(
        "; ".join(shown),
        judged(max(offs), holds=lambda off: off <= 0.04),
        f"at most {max(offs):.1%} off 0.5·log2 N for every number of axes: with m = 2^d a level halves each axis once",
    )


def _greedy_catches_up(results: Results) -> Finding:
    line, other = (f"{name}, N = 4096" for name in (GREEDY, "Spanhop"))
    shown = ", ".join(
        f"d = {d:g}: {results.mean(line, d):.1f} and {results.mean(other, d):.1f}" for d in results.xs(line)
    )
    falls = all(results.mean(line, a) > results.mean(line, b) for a, b in pairwise(results.xs(line)))
    why = "greedy gains from each axis until d is near ln N, where both take about as many hops"
    return Finding(shown, judged(falls, holds=bool), why)


def _best_m(results: Results) -> Finding:
    # Equals are decided for the paper's: the means of two m may differ by chance alone.
    best = {
        line: min(results.xs(line), key=lambda m: (round(results.mean(line, m), 1), -m)) for line in results.series()
    }
    if not best:
        raise NotMeasured("no m was measured")
    shown = "; ".join(
        f"{line}: m = {m:g} ({results.mean(line, m):.2f} hops, m = 8: {results.mean(line, 8):.2f})"
        for line, m in best.items()
    )
    as_said = all(m == (8 if line.startswith("d = 2") else 16) for line, m in best.items())
    why = (
        "inside a domain ways do not go round: from anywhere in it to anywhere a level of m = s^d zones takes "
        "d·(s² - 1)/3s hops, not the d/4·s of a circle; for s = 2 both are the same, and beyond it the difference grows"
    )
    return Finding(shown, judged(as_said, holds=bool), why)


def _arrive_despite(series: str, failed: float, least: float) -> Callable[[Results], Finding]:
    def judge(results: Results) -> Finding:
        share = results.spread(series, failed)
        why = "who meets a hole goes round it, nowhere twice; before any repair"
        verdict = judged(share.mean, holds=lambda each: each >= least, better=lambda each: each == 100)
        return Finding(f"{share.mean:.2f} ± {share.margin:.2f} %", verdict, why)

    return judge


def _hops_despite(results: Results) -> Finding:
    line = spanhop(4)
    whole, worst = results.mean(line, 0), results.mean(line, 20)
    why = "a dead entry is replaced by another of the table, a smaller span, or present neighbours"
    shown = ", ".join(f"{failed:g} %: {results.mean(line, failed):.2f}" for failed in results.xs(line))
    return Finding(shown, judged(worst / whole, holds=lambda more: more <= 2), why)


def _delay_is_lower(brokers: float) -> Callable[[Results], Finding]:
    def judge(results: Results) -> Finding:
        means = {
            spread: tuple(results.mean(f"{spread}, {name}", brokers) for name in (AS_RECORDED, NEAREST))
            for spread in SPREADS
        }
        saved = min(1 - nearest_ms / recorded_ms for recorded_ms, nearest_ms in means.values())
        shown = "; ".join(f"{spread}: {a:.0f} to {b:.0f} ms ({1 - b / a:.0%} less)" for spread, (a, b) in means.items())
        why = "all but the last hops may choose among many brokers, and a look-up finds one nearby"
        return Finding(shown, judged(saved, holds=lambda _: False, better=lambda share: share >= 0.25), why)

    return judge


def _hops_are_equal(results: Results) -> Finding:
    offs, shown = [], []
    for spread in SPREADS:
        for brokers in results.xs(f"{spread}, {NEAREST}"):
            before, after = (results.mean(f"{spread}, {name}", brokers) for name in (AS_RECORDED, NEAREST))
            offs.append(abs(after - before) / before)
            shown.append(f"{before:.2f} and {after:.2f}")
    if not offs:
        raise NotMeasured(f"{NEAREST} was not measured")
    why = "every broker of a region has the same tables for what lies beyond it"
    return Finding(", ".join(shown), judged(max(offs), holds=lambda off: off <= 0.02), why)


def _tables_are_small(*networks: str) -> Callable[[Results], Finding]:
    def judge(results: Results) -> Finding:
        lines = [line for line in results.series() if line.startswith((TABLES_MEAN, TABLES_MOST))]
        lines = [line for line in lines if any(f", {network}, " in line for network in networks)]
        if not lines:
            raise NotMeasured(f"tables of ancestors of {' and '.join(networks)} were not measured")
        shown = "; ".join(f"{line} {max(results.ys(line)):.2f}" for line in lines)
        most = max(max(results.ys(line)) for line in lines)
        why = "6dc is 2d neighbours of three items at each of c levels"
        why += (
            "; zones of unequal size have more neighbours"
            if most > 1
            else ", and zones of nearly equal size have no more"
        )
        return Finding(shown, judged(most, holds=lambda share: share <= 1), why)

    return judge


def _records_are_few(results: Results) -> Finding:
    why = "log_m N is the mean; brokers that are close by network index their coordinates in the same zones"
    return _records(results, f"{INDEX_MOST},", f"{INDEX_BEYOND},", why, but=THINNED_MOST)


def _thinned_records_are_few(results: Results) -> Finding:
    why = "a zone keeps one record for each of its levels; a broker that is near serves as well as another one there"
    return _records(results, THINNED_MOST, THINNED_BEYOND, why)


def _records(results: Results, most: str, beyond: str, why: str, but: str = "(none)") -> Finding:
    thinned = (but, but.replace(INDEX_MOST, INDEX_BEYOND))
    lines = [line for line in results.series() if line.startswith((most, beyond)) and not line.startswith(thinned)]
    if not lines:
        raise NotMeasured("records of coordinates were not measured")
    shown = "; ".join(f"{line} {max(results.ys(line)):.1f}" for line in lines)
    share = max(max(results.ys(line)) for line in lines if line.startswith(most))
    return Finding(shown, judged(share, holds=lambda share: share <= 1), why)


def _thinned_is_near(results: Results) -> Finding:
    shown, more = [], 0.0
    for spread in SPREADS:
        for brokers in results.xs(f"{spread}, {THINNED}"):
            whole, thinned = (results.mean(f"{spread}, {name}", brokers) for name in (NEAREST, THINNED))
            more = max(more, thinned / whole)
            shown.append(f"{spread}, {brokers:g}: {whole:.0f} and {thinned:.0f} ms")
    if not shown:
        raise NotMeasured(f"{THINNED} was not measured")
    why = "the one broker that a zone still knows is near, though seldom the nearest"
    return Finding("; ".join(shown), judged(more, holds=lambda share: share <= 1.1), why)


# ── The experiments ────────────────────────────────────────────────────────────

_SIZES = tuple(4**power for power in range(2, 11))
_HOPS, _BROKERS = PlotAxis("mean hops", log=True), PlotAxis("brokers", log=True)
_FAILED = PlotAxis("brokers failed at once (%)")
_RATES = "0 1 2 5 10 20"
_SHARED: dict[str, Any] = {"axes": 2, "pairs": 20_000}

_CONDITIONS = (
    "the paper gives formulas and one curve without numbers; here every route is followed on a balanced tree with "
    "circular axes unless named otherwise; a region is entered at the broker that owned it when it was recorded, which "
    "sits in its low corner if owners keep the lower half, as in the paper's example, and anywhere with `kept` either"
)
_experiment = partial(Experiment, paper="spanhop", check=check, cost=cost, conditions=_CONDITIONS)
_of_failures = partial(
    _experiment,
    x=_FAILED,
    varies={"network": (BALANCED,), "failed_percent": (_RATES,)},
    stays={**_SHARED, "brokers": 4096, "m": 4},
    seeds=20,
    quick_seeds=4,
)
_of_nearness = partial(
    _experiment,
    x=_BROKERS,
    varies={"spread": tuple(SPREADS), "brokers": (256, 1024, 4096)},
    stays={**_SHARED, "network": BALANCED, "m": 4, "landmarks": 8, "jitter_ms": 2.0},
    seeds=10,
    quick_seeds=2,
)

EXPERIMENTS = (
    _experiment(
        figure="6",
        title="Spanhop, figure 6: hops against brokers (two axes)",
        measure=measure_hops,
        x=_BROKERS,
        y=_HOPS,
        varies={"network": (BALANCED, RANDOM, EVEN), "brokers": _SIZES},
        stays={**_SHARED, "m": "4 8", "greedy_pairs": 5000},
        seeds=3,
        quick_varies={"brokers": (16, 64, 256, 1024, 4096, 4**8)},
        quick_seeds=2,
        published=tuple(
            Measured(series, brokers, hops)
            for brokers in _SIZES
            for series, hops in ((GREEDY, greedy_formula(2, brokers)), (spanhop(8), 0.68 * math.log(brokers)))
        ),
        claims=(
            Claim("greedy routing takes d/4·N^(1/d) hops", "within 5 %", _greedy_as_formula),
            Claim("Spanhop takes 0.68·ln N hops with m = 8 (as in the paper's example)", "within 10 %", _optimum_as_formula("lower")),
            Claim("Spanhop takes 0.68·ln N hops with m = 8 (either half kept)", "within 10 %", _optimum_as_formula("either")),
            Claim("beyond the paper: hops as a formula of levels has them", "within 5 % from N = 64 on", _as_levels),
            Claim("Spanhop with m = 4 takes 0.5·log2 N hops", "within 4 % from N = 64 on", _four_as_halves),
            Claim("the gap between greedy routing and Spanhop grows with N", "growing", _gap_grows),
            Claim("Spanhop's hops grow with the logarithm of N", "the same for each factor", _grows_with_logarithm),
            Claim("beyond the paper: random joins with m = 4 do as well", "≤ 0.75·ln N at N = 1024", _joins_are_as_good),
            Claim("beyond the paper: every message arrives", "none undelivered", _all_arrive),
            Claim("beyond the paper: greedy routing on axes with ends takes d/3·N^(1/d) hops", "within 5 % from N = 64 on", _ends_as_formula),
            Claim("beyond the paper: fewer hops over all tables together", "below 0.68·ln N", _together_is_shorter),
        ),
    ),
    _experiment(
        figure="axes",
        title="Spanhop: hops against the number of axes d (m = 2^d; no figure in the paper)",
        measure=measure_axes,
        x=PlotAxis("axes"),
        y=_HOPS,
        varies={"axes": (2, 3, 4, 6), "brokers": (64, 4096, 65_536)},
        stays={"network": BALANCED, "pairs": 20_000},
        seeds=5,
        quick_varies={"axes": (2, 3, 4), "brokers": (64, 4096)},
        quick_seeds=2,
        claims=(
            Claim("Spanhop's hops do not depend on the number of axes", "within 4 % of 0.5·log2 N", _axes_do_not_matter),
            Claim("greedy routing catches up as axes are added", "falling", _greedy_catches_up),
        ),
    ),
    _experiment(
        figure="m",
        title="Spanhop: hops against m (no figure in the paper)",
        measure=measure_m,
        x=PlotAxis("m", log=True),
        y=PlotAxis("mean hops"),
        varies={"axes": (2, 3), "brokers": (4096, 262_144)},
        stays={"network": BALANCED, "m": "2 4 8 16 32 64", "pairs": 20_000},
        seeds=3,
        quick_varies={"brokers": (4096,)},
        quick_seeds=1,
        published=tuple(
            Measured(of_m(axes, brokers), m, spanhop_formula(axes, m, brokers))
            for axes in (2, 3)
            for brokers in (4096, 262_144)
            for m in (2, 4, 8, 16, 32, 64)
        ),
        claims=(Claim("m = e^d is best", "m = 8 for d = 2, m = 16 for d = 3", _best_m),),
    ),
    _experiment(
        figure="storage",
        title="Spanhop and MGNP: what a broker stores, over what the paper says (no figure in the paper)",
        measure=measure_storage,
        x=_BROKERS,
        y=PlotAxis("over what the paper says; percent", log=True),
        varies={"network": (BALANCED, RANDOM, EVEN), "spread": tuple(SPREADS), "brokers": (256, 1024, 4096)},
        stays={"axes": 2, "m": 4},
        seeds=5,
        quick_seeds=2,
        claims=(
            Claim("tables of ancestors take 6dc items at c levels (balanced, and even joins, the default)", "at most 6dc", _tables_are_small(BALANCED, EVEN)),
            Claim("tables of ancestors take 6dc items at c levels (random joins)", "at most 6dc", _tables_are_small(RANDOM)),
            Claim("a broker stores at most log_m N coordinates (every record kept)", "at most log_m N", _records_are_few),
            Claim("a broker stores at most log_m N coordinates (the default, one for a level)", "at most log_m N", _thinned_records_are_few),
        ),
    ),
    _of_failures(
        figure="failures",
        title="Spanhop: messages that arrive when brokers fail, before repair (4096 brokers)",
        measure=measure_failures,
        y=PlotAxis("messages between live brokers that arrive (%)"),
        claims=(
            Claim("beyond the paper: Spanhop delivers when 1 % of the brokers have failed", "≥ 99.9 %", _arrive_despite(spanhop(4), 1, 99.9)),
            Claim("beyond the paper: Spanhop delivers when 20 % of the brokers have failed", "≥ 95 %", _arrive_despite(spanhop(4), 20, 95)),
        ),
    ),
    _of_failures(
        figure="failures-hops",
        title="Spanhop: hops when brokers fail, before repair (4096 brokers)",
        measure=measure_failure_hops,
        y=_HOPS,
        claims=(Claim("beyond the paper: failures cost few hops", "at most twice as many with 20 % failed", _hops_despite),),
    ),
    _of_nearness(
        figure="delay",
        title="MGNP: delay from end to end (no figure in the paper)",
        measure=measure_delay,
        y=PlotAxis("mean delay (ms)"),
        claims=(
            Claim("beyond the paper: nearest brokers cut the delay by a quarter", "≥ 25 % less at N = 1024", _delay_is_lower(1024)),
            Claim("beyond the paper: one record for a level costs little delay", "≤ 10 % more", _thinned_is_near),
        ),
    ),
    _of_nearness(
        figure="delay-hops",
        title="MGNP: hops with and without nearest brokers (no figure in the paper)",
        measure=measure_delay_hops,
        y=PlotAxis("mean hops"),
        claims=(Claim("beyond the paper: nearest brokers cost no hops", "within 2 %", _hops_are_equal),),
    ),
    scale_experiment("spanhop", (2**10, 2**14, 2**17), seconds=lambda nodes: 1.5 + 6e-4 * nodes),
)  # fmt: skip
