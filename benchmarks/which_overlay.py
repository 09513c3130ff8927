"""The numbers, figure and recommendations of the page "Which overlay for me?".

    python -m benchmarks.which_overlay                every scenario over every overlay, as `tidings lab compare` runs them
    python -m benchmarks.which_overlay --only cbdlo   only this overlay, or these; the rest stays as it was measured
    python -m benchmarks.which_overlay --text-only    only figure and text again, from what was measured before

Writes `benchmarks/results/which_overlay.json`, `docs/figures/which-overlay.svg` and, in `docs/guide/which-overlay.md`,
everything below the line that says so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.paper_figures import this_commit
from tidings import __version__
from tidings.lab import SCENARIOS, OverlayCost, Recommendation, compare, recommend
from tidings.overlay import NAMES

ROOT = Path(__file__).parent.parent
RESULT = Path(__file__).parent / "results" / "which_overlay.json"
PAGE, FIGURE = ROOT / "docs" / "guide" / "which-overlay.md", ROOT / "docs" / "figures" / "which-overlay.svg"
MARK = "<!-- Below this line: written by python -m benchmarks.which_overlay -->"
RATES = ((1.0, 0.01), (10.0, 0.1), (100.0, 0.1))  # Events and subscriptions of the whole network in a second.
USUAL = (10.0, 0.1)
SHOWN = {
    "messages": "messages an event", "hops": "hops", "delay_ms": "delay, ms", "lost": "lost, %", "state": "entries",
    "subscribing": "messages a subscription", "upkeep": "upkeep /s", "gini": "Gini", "attack_lost": "attacked: lost, %",
    "attack_messages": "attacked: messages an event",
}  # fmt: skip
Costs = dict[str, list[OverlayCost]]


def measure(overlays: Sequence[str]) -> Costs:
    return {name: compare(workload, overlays, seeds=1) for name, (_, workload) in SCENARIOS.items()}


def write(costs: Costs, commit: str, overlays: Sequence[str]) -> None:
    """Put what was measured in the place of what was measured before; the rest stays."""
    before: dict[str, Any] = json.loads(RESULT.read_text(encoding="utf-8"))
    rows = {name: {each["overlay"]: each for each in before["scenarios"].get(name, ())} for name in costs}
    for name, some in costs.items():
        rows[name] |= {each.overlay: dataclasses.asdict(each) for each in some}
    made = {
        "version": __version__,
        "commits": {**before["commits"], **dict.fromkeys(overlays, commit)},
        "scenarios": {name: [some[overlay] for overlay in NAMES] for name, some in rows.items()},
    }
    RESULT.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


def stored() -> tuple[Costs, str]:
    """What was measured, and of which version it is."""
    made = json.loads(RESULT.read_text(encoding="utf-8"))
    costs = {name: [OverlayCost(**each) for each in some] for name, some in made["scenarios"].items()}
    by_commit: dict[str, list[str]] = {}
    for overlay, commit in made["commits"].items():
        by_commit.setdefault(commit, []).append(overlay)
    said = "; ".join(f"{', '.join(some)} at commit {commit}" for commit, some in by_commit.items())
    return costs, f"Tidings {made['version']}: {said}"


def best(costs: Costs, name: str, rates: tuple[float, float]) -> Recommendation | None:
    events, subscriptions = rates
    brokers = SCENARIOS[name][1].brokers
    return recommend(costs[name], brokers, events_per_s=events, subscriptions_per_s=subscriptions)


def text(costs: Costs, version: str) -> str:
    """Everything below the line: recommendations, then all numbers."""
    heads = " | ".join(f"{events:g} events/s" for events, _ in RATES)
    lines = ["## Recommended", ""]
    lines += [f"| scenario | {heads} |", "| --- " * (1 + len(RATES)) + "|"]
    for name in costs:
        cells = " | ".join(_cell(best(costs, name, rates)) for rates in RATES)
        lines.append(f"| {name} | {cells} |")
    said = (
        f"Measured with {version}. Each cell: the overlay that loses nothing and takes the fewest messages, how many a broker sends in a second, "
        f"and the next. Subscriptions come at {', '.join(f'{each:g}' for _, each in RATES)} a second."
    )
    lines += ["", textwrap.fill(said, 118), "", "![messages a broker sends in a second](../figures/which-overlay.svg)"]
    for name in costs:
        lines += ["", f"## {name.capitalize()}: {SCENARIOS[name][0]}", "", *_table(costs[name])]
    return "\n".join(lines) + "\n"


def _cell(found: Recommendation | None) -> str:
    if found is None:
        return "none loses nothing"
    second = f", {found.ranking[1][0]} {found.ranking[1][1]:.1f}" if len(found.ranking) > 1 else ""
    return f"**{found.overlay}** {found.messages_per_s:.1f}{second}"


def _table(costs: list[OverlayCost]) -> list[str]:
    rows = [f"| {' | '.join(each.overlay for each in costs)} |"]
    head = f"| |{rows[0][1:]}"
    body = [
        f"| {words} | " + " | ".join(_number(getattr(each, name)) for each in costs) + " |"
        for name, words in SHOWN.items()
    ]
    return [head, "| --- " * (len(costs) + 1) + "|", *body]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def draw(costs: Costs) -> None:
    """Messages that a broker sends in a second, by scenario, at the usual rates; hollow where something was lost."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "tidings"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 5))
    for index, overlay in enumerate(NAMES):
        for place, (name, some) in enumerate(costs.items()):
            cost = next(each for each in some if each.overlay == overlay)
            ranked = recommend(
                [cost], SCENARIOS[name][1].brokers, events_per_s=USUAL[0], subscriptions_per_s=USUAL[1], lost_max=100.0
            )
            assert ranked is not None
            filled = f"C{index}" if cost.lost == 0 else "none"
            axes.scatter(
                place,
                max(ranked.messages_per_s, 0.1),
                color=f"C{index}",
                facecolors=filled,
                label=overlay if place == 0 else None,
            )
    axes.set_yscale("log")
    axes.set_xticks(range(len(costs)), list(costs), rotation=30)
    axes.set_ylabel("messages a broker sends in a second")
    axes.legend(ncols=3, fontsize=8)
    figure.tight_layout()
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.which_overlay")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="OVERLAY")
    parser.add_argument("--text-only", action="store_true")
    given = parser.parse_args()
    if not given.text_only:
        commit = this_commit()
        write(measure(given.only), commit, given.only)
    costs, version = stored()
    draw(costs)
    above = PAGE.read_text(encoding="utf-8").split(MARK)[0]
    PAGE.write_text(f"{above}{MARK}\n\n{text(costs, version)}", encoding="utf-8")


if __name__ == "__main__":
    main()
