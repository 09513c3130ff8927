"""The claims of the CBDLO paper, and ours beyond it, judged by the measurements."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import log2

from tidings.lab.cbdlo.model import PUBLISHED, effective_cost
from tidings.lab.results import Finding, Results, Verdict, judged

SIMPLE, FLOOD = "Simple (fan-out 1.73)", "Simple (flooding)"
PAPER, ROBUST, TERA = "CBDLO as published", "CBDLO robust", "TERA"
ROBUST_MODEL, TERA_MODEL = "CBDLO robust, by formula", "TERA, by formula"
MODEL = "by formula"
FIXED, THREE = "fixed selectivity", "three matches"
WALK_SIMULATED, WALK_PROTOCOL = "scene", "protocol"


def simple_is_calibrated(results: Results) -> Finding:
    spread = results.spread(SIMPLE, 3000)
    published = effective_cost(*PUBLISHED)
    verdict = judged(spread.mean, holds=lambda mean: abs(mean / published - 1) <= 0.15)
    return Finding(f"{spread.mean:,.0f} ± {spread.margin:,.0f}", verdict, "calibrated: the fan-out was chosen to fit")


def simple_reaches_a_sixth(results: Results) -> Finding:
    spread = results.spread(SIMPLE, 3000)
    verdict = judged(spread.mean, holds=lambda mean: abs(mean - 100 / 6) <= 2)
    return Finding(f"{spread.mean:.1f} ± {spread.margin:.1f} %", verdict, "calibrated: the fan-out was chosen to fit")


def far_below(results: Results) -> Finding:
    ratios = {x: results.mean(SIMPLE, x) / results.mean(PAPER, x) for x in results.xs(PAPER)}
    shown = ", ".join(f"{x:g}: 1/{ratio:.0f}" for x, ratio in ratios.items())
    why = "a walk ends at the first table with the attribute, a tree takes as many steps as it is high"
    return Finding(shown, judged(min(ratios.values()), holds=lambda least: least >= 10), why)


def flat(series: str, at_most: float) -> Callable[[Results], Finding]:
    def judge(results: Results) -> Finding:
        means = [results.mean(series, x) for x in results.xs(series)]
        grown = max(means) / min(means)
        shown = ", ".join(f"{x:g}: {mean:,.0f}" for x, mean in zip(results.xs(series), means, strict=True))
        why = f"dearest over cheapest {grown:.2f}: trees grow higher by a step or two, and more subscriptions are notified"
        return Finding(shown, judged(grown, holds=lambda ratio: ratio <= at_most), why)

    return judge


def falls(results: Results) -> Finding:
    xs = results.xs(SIMPLE)
    first, last = results.mean(SIMPLE, xs[0]), results.mean(SIMPLE, xs[-1])
    why = (
        "by the paper's own formula the cost is messages over the share reached; neither depends on how many "
        "subscribe, so the curve is flat. A constant share of upkeep in its totals, or its 68 hits, may have made it fall"
    )
    return Finding(
        f"{first:,.0f} at {xs[0]:g}, {last:,.0f} at {xs[-1]:g}", judged(last / first, holds=lambda r: r < 0.8), why
    )


def robust_is_cheaper(results: Results) -> Finding:
    ratios = [results.mean(ROBUST, x) / results.mean(PAPER, x) for x in results.xs(ROBUST)]
    why = "it looks into its own table first, takes short cuts, and tells only those whose whole condition matches"
    verdict = judged(max(ratios), holds=lambda ratio: ratio <= 1.5, better=lambda ratio: ratio < 1)
    return Finding(f"{min(ratios):.2f} to {max(ratios):.2f} of the messages, acknowledgements apart", verdict, why)


def simple_rises(results: Results) -> Finding:
    xs = [x for x in results.xs(SIMPLE) if x >= 10]
    means = [results.mean(SIMPLE, x) for x in xs]
    shown = ", ".join(f"{x:g}: {mean:,.0f}" for x, mean in zip(xs, means, strict=True))
    rising = all(later > earlier for earlier, later in pairwise(means))
    return Finding(shown, judged(rising, holds=bool), "once most nodes are reached, more hops bring only more copies")


def simple_drops(results: Results) -> Finding:
    xs = results.xs(SIMPLE)
    first, tenth = results.mean(SIMPLE, xs[0]), results.mean(SIMPLE, 8)
    why = "below saturation messages and the share reached grow together, so their ratio has no reason to fall"
    return Finding(
        f"{first:,.0f} at {xs[0]:g} hops, {tenth:,.0f} at 8", judged(tenth / first, holds=lambda r: r < 0.8), why
    )


def stable_over_hops(results: Results) -> Finding:
    means = [results.mean(PAPER, x) for x in results.xs(PAPER)]
    rise = max(later / min(means[: i + 1]) for i, later in enumerate(means))
    shown = ", ".join(f"{x:g}: {mean:,.0f}" for x, mean in zip(results.xs(PAPER), means, strict=True))
    why = (
        "not less at the end: a walk that has succeeded takes no more hops, but more walks succeed and go on in a tree"
    )
    if means[-1] < means[0]:
        why = "a walk that has succeeded takes no more hops"
    return Finding(shown, judged(rise, holds=lambda ratio: ratio <= 1.1 and means[-1] < means[0]), why)


def slope(results: Results, series: str, since: float = 0) -> float:
    """How fast a line rises where both axes are logarithmic, from its first point to its last."""
    xs = [x for x in results.xs(series) if x >= since]
    return log2(results.mean(series, xs[-1]) / results.mean(series, xs[0])) / log2(xs[-1] / xs[0])


def grows(series: str, holds: Callable[[float], bool], why: str) -> Callable[[Results], Finding]:
    """Over all sizes, and over those from 1,000 nodes on: below, most attributes have no subscriber."""

    def judge(results: Results) -> Finding:
        xs = results.xs(series)
        large = [x for x in xs if x >= 1000]
        rises = [
            slope(results, series),
            slope(results, series, since=1000) if len(large) > 1 else slope(results, series),
        ]
        shown = f"N^{rises[0]:.2f} from {xs[0]:,.0f} to {xs[-1]:,.0f} nodes, N^{rises[1]:.2f} from 1,000 on"
        return Finding(shown, judged(all(map(holds, rises)), holds=bool), why)

    return judge


def equal_when_small(results: Results) -> Finding:
    ratio = results.mean(PAPER, 100) / results.mean(TERA, 100)
    why = "already among a hundred nodes several subscribe to an attribute, and in TERA each tells all the others it knows"
    return Finding(
        f"CBDLO as published {ratio:.2f} of TERA at 100 nodes", judged(ratio, holds=lambda r: 0.2 <= r <= 5), why
    )


def model_agrees(simulated: str, model: str) -> Callable[[Results], Finding]:
    def judge(results: Results) -> Finding:
        off = {x: results.mean(model, x) / results.mean(simulated, x) - 1 for x in results.xs(simulated) if x >= 1000}
        worst = max(off.values(), key=abs)
        shown = f"off by {worst:+.0%} at worst, from 1,000 nodes on"
        why = "the formula takes means of means; below a thousand nodes many attributes have no subscriber at all"
        return Finding(shown, judged(abs(worst), holds=lambda error: error <= 0.15), why)

    return judge


def billion(results: Results) -> Finding:
    cbdlo, tera = results.mean(ROBUST_MODEL, 1e9), results.mean(TERA_MODEL, 1e9)
    why = "by formula: nobody can simulate a billion nodes. Trees grow by a step when doubled, topics double"
    return Finding(f"{cbdlo:,.0f} messages against {tera:,.0f}", judged(tera / cbdlo, holds=lambda r: r > 1000), why)


def scaled_below(results: Results) -> Finding:
    ours, theirs = f"{PAPER}, × 1/8", f"{FLOOD}, × 0.1"
    ratios = {x: results.mean(ours, x) / results.mean(theirs, x) for x in results.xs(ours)}
    above = [f"{x:g}" for x, ratio in ratios.items() if ratio >= 1]
    why = "Simple compares with every subscription there is, a walk with tables of a fixed size"
    if above:
        why += f"; so with few subscriptions ({', '.join(above)}) comparing with all of them is cheaper"
    shown = ", ".join(f"{x:g}: {ratio:.2f}" for x, ratio in ratios.items())
    return Finding(f"CBDLO over Simple, both as scaled: {shown}", judged(not above, holds=bool), why)


def logarithmic(results: Results) -> Finding:
    series = f"{PAPER}, steps in a tree"
    xs = results.xs(series)
    few, many = results.mean(series, 3000), results.mean(series, xs[-1])
    allowed = 2 * 1.44 * log2(xs[-1] / 3000)
    why = "only the tree grows, by at most 2 × 1.44 steps for every doubling"
    return Finding(
        f"{few:.1f} steps at 3000, {many:.1f} at {xs[-1]:g}", judged(many - few, holds=lambda d: d <= allowed), why
    )


def falls_at_first(results: Results) -> Finding:
    xs = [x for x in results.xs(PAPER) if x <= 3000]
    means = [results.mean(PAPER, x) for x in xs]
    shown = ", ".join(f"{x:g}: {mean:,.0f}" for x, mean in zip(xs, means, strict=True))
    why = (
        "walks end sooner the more nodes are themselves members; tables are as full with few subscriptions as with many"
    )
    return Finding(shown, judged(means[-1] < means[0], holds=bool), why)


def flat_over_attributes(results: Results) -> Finding:
    xs = results.xs(PAPER)
    means = [results.mean(PAPER, x) for x in xs]
    shown = ", ".join(f"{x:g}: {mean:,.0f}" for x, mean in zip(xs, means, strict=True))
    why = (
        "tables of 20 know the fewer attributes the more there are, so walks grow until the limit of hops ends them; "
        "in proportion to the attributes tables take longer to read. Either way some A comparisons for A attributes"
    )
    return Finding(shown, judged(max(means) / min(means), holds=lambda ratio: ratio <= 1.5), why)


def hops_stay(results: Results) -> Finding:
    series = f"{PAPER}, table a fifth of the attributes, tables on a walk"
    means = [results.mean(series, x) for x in results.xs(series)]
    shown = ", ".join(f"{x:g}: {mean:.1f}" for x, mean in zip(results.xs(series), means, strict=True))
    why = (
        "a walk looks at five tables on average, however many attributes there are; fewer share a tree, so it is lower"
    )
    return Finding(shown, judged(max(means) / min(means), holds=lambda ratio: ratio <= 1.5), why)


def as_the_formula(results: Results) -> Finding:
    off = [(abs(results.mean(s, x) - x), s, x) for s in results.series() for x in results.xs(s)]
    worst, series, x = max(off)
    shown = f"off by {worst:.1f} points at worst ({series}, {x:.0f} %), in {len(off)} settings"
    return Finding(shown, judged(worst, holds=lambda points: points <= 3), "a trace keeps a walk from looking twice")


def same_walks(results: Results) -> Finding:
    off = []
    for table in results.xs(f"{WALK_SIMULATED}: walks that succeed (%)"):
        both = [results.mean(f"{run}: walks that succeed (%)", table) for run in (WALK_SIMULATED, WALK_PROTOCOL)]
        off.append(abs(both[0] - both[1]))
    shown = f"{max(off):.1f} points apart at worst"
    why = "a table keeps the attributes of the lowest ranks, which it draws itself, so gossip fills it as chance would"
    return Finding(shown, judged(max(off), holds=lambda points: points <= 5), why)


def same_trees(results: Results) -> Finding:
    off = {}
    for profile in ("paper", "robust"):
        for count in results.xs(f"{WALK_PROTOCOL}, {profile}"):
            scene, protocol = (results.mean(f"{run}, {profile}", count) for run in (WALK_SIMULATED, WALK_PROTOCOL))
            off[f"{profile}, {count:g} subscriptions: {scene:.2f} and {protocol:.2f}"] = scene / protocol - 1
    worst = max(off.values(), key=abs)
    why = (
        "a scene's events enter a tree at any member; in the protocol most tables know the same few, and a robust "
        "publisher that knows two ways in takes both"
    )
    shown = f"{'; '.join(off)} steps; {worst:+.0%} at worst"
    return Finding(shown, judged(abs(worst), holds=lambda error: error <= 0.15), why)


def nothing_lost(results: Results) -> Finding:
    shares = results.ys(ROBUST)
    complete = sum(share == 100 for share in shares)
    why = "a publisher keeps an event, and retries, until all subscribers have acknowledged it"
    verdict = judged(complete, holds=lambda _: False, better=lambda n: n == len(shares))
    return Finding(f"{min(shares):.2f} % at least, 100 % in {complete} of {len(shares)} runs", verdict, why)


def published_loses(results: Results) -> Finding:
    xs = results.xs(PAPER)
    shown = ", ".join(f"{x:g} %: {results.mean(PAPER, x):.1f}" for x in xs)
    full = all(results.mean(PAPER, x) == 100 for x in xs)
    why = "a walk or a step into a node that has just gone is lost, and nobody notices"
    return Finding(shown, Verdict.HOLDS if full else Verdict.DIFFERS, why)
