"""The figure and the page of large sets, from benchmarks/results/scale.json: `python -m benchmarks.scale --page`.

Coefficients are a fit of processor seconds to a start and a price for each condition, each event and each delivery,
separately for each plan. Seconds of the clock are shown beside, with the load of the machine at the beginning of each run.
"""

from __future__ import annotations

import json
import re
import textwrap
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import nnls

from benchmarks.matching.figures import FIGURES, OURS_COLOUR, PEER_COLOURS, STYLE
from benchmarks.showing import PAGES, RESULTS, Target, markdown_table, markdown_targets, put_between

Row = dict[str, Any]
LOCAL = "local[2]"
TWO_CORES = (LOCAL, "local-cluster[2,1,")  # Beginnings of masters: what a run costs is about the same on both.
DAY_S = 86_400
EVENTS_A_DAY, CONDITIONS, MATCHES = 1e9, 1e8, 10
WIDTH = 118  # Of a line of text.
CORES_BUSY = 0.7  # Share of a core's time that a plan counts on.
TOO_FEW = "Not computed yet: it takes runs of several sizes (`--save`), on a machine with free cores."
BUILD_S_MAX, FIRST_S_MAX = 25.0, 15.0
LARGEST, EXECUTOR_MB = 10_000_000, 4_096


@dataclass(frozen=True, slots=True)
class Prices:
    """Processor seconds: once for each run, for each condition, for each event, for each delivery."""

    start: float
    condition: float
    event: float
    delivery: float

    def seconds(self, conditions: float, events: float, deliveries: float) -> float:
        return self.start + self.condition * conditions + self.event * events + self.delivery * deliveries


def write() -> None:
    """Writes the page's numbers and the figure."""
    rows: list[Row] = json.loads((RESULTS / "scale.json").read_text())
    page = PAGES / "scale.md"
    numbers = [_machine(rows), "", *_table(rows), *markdown_targets(_targets(rows))]
    prices = prices_of(rows, "zones")
    if prices is not None:
        _draw(rows)
        numbers += [
            "",
            "![Processor seconds by conditions, events and executors: both plans, as a batch and as a stream](../figures/scale.svg)",
        ]
    put_between(page, "numbers", "\n".join(numbers))
    put_between(page, "cluster", "\n".join(_cluster(prices) if prices else [TOO_FEW]))


def prices_of(rows: list[Row], plan: str) -> Prices | None:
    """The prices of a plan that fit its runs best; None if they do not vary in both conditions and events.

    Errors count in proportion, so that small runs have a say.
    """
    runs = [row for row in rows if _is_plain(row) and row["plan"] == plan and not row["cached"]]
    if min(len({row["conditions"] for row in runs}), len({row["events"] for row in runs}), len(runs) - 1) < 2:
        return None
    weights = np.array([1 / row["cpu_s"] for row in runs])
    terms = np.array([[1.0, row["conditions"], row["events"], row["deliveries"]] for row in runs]) * weights[:, None]
    scale = terms.max(0)  # Prices differ by many powers of ten.
    found, _ = nnls(terms / scale, np.ones(len(runs)))
    return Prices(*(float(price) for price in found / scale))


def _is_plain(row: Row) -> bool:
    return bool(row["command"] == "match" and _on_two_cores(row) and row["agrees"])


def _on_two_cores(row: Row) -> bool:
    return bool(row["master"].startswith(TWO_CORES))


def _table(rows: list[Row]) -> list[str]:
    head = (
        "command, plan",
        "conditions",
        "events",
        "deliveries",
        "processor s",
        "s",
        "load",
        "executor MB",
        "driver MB",
    )
    named = [(f"{_name(row)}", row) for row in rows]
    body = [
        (
            name, f"{row['conditions']:,}", f"{row['events']:,}" if row["events"] else "", f"{row['deliveries']:,}",
            f"{row['cpu_s']:,.0f}", f"{row['seconds']:,.1f}", f"{row['load']:.0f}",
            f"{row['executor_mb']:,}" if row["executor_mb"] else "", f"{row['driver_mb']:,}",
        )
        for name, row in sorted(named, key=lambda pair: (pair[0], pair[1]["conditions"], pair[1]["events"]))
    ]  # fmt: skip
    return markdown_table([head, *body])


def _name(row: Row) -> str:
    more = [f"{row['batches']} batches"] if row["command"] == "run" else []
    more += [row["master"]] if row["master"] != LOCAL else []
    more += ["parsed before"] if row["cached"] else []
    return ", ".join([f"{row['command']}, {row['plan']}", *more])


def _machine(rows: list[Row]) -> str:
    last = max((row["machine"] for row in rows), key=lambda machine: machine["measured_at"])
    return (
        f"Measured until {last['measured_at']} on {last['cpu']}, {last['cores']} cores, {last['memory_gb']} GB; "
        f"Python {last['python']}, pyspark {last['libraries']['pyspark']}."
    )


def _targets(rows: list[Row]) -> list[Target]:
    def least(command: str, conditions: int, events: int) -> float:
        found = [
            row["seconds"]
            for row in rows
            if (row["command"], row["conditions"], row["events"]) == (command, conditions, events)
        ]
        return min(found, default=float("inf"))

    largest = max((min(row["conditions"], row["events"]) for row in rows if row["agrees"]), default=0)
    memory = [row["executor_mb"] for row in rows if row["agrees"] and min(row["conditions"], row["events"]) == largest]
    return [
        Target("s from a million texts to an index", BUILD_S_MAX, least("build", 1_000_000, 0), at_most=True),
        Target("s for 200,000 events and 2,000 conditions", FIRST_S_MAX, least("match", 2_000, 200_000), at_most=True),
        Target("conditions, and as many events", LARGEST, largest),
        *(
            [Target("MB of an executor at this size", EXECUTOR_MB, min(memory), at_most=True)]
            if largest >= LARGEST
            else []
        ),
    ]


def _cluster(prices: Prices) -> list[str]:
    """What a billion events a day and a hundred million conditions need, by how often they are matched."""
    said = (
        f"Of the plan with zones: {prices.start:.0f} s for each run, {1e6 * prices.condition:,.0f} s for a million "
        f"conditions, {1e6 * prices.event:,.1f} s for a million events, {1e6 * prices.delivery:,.1f} s for a million "
        "deliveries, in processor time."
    )
    body = []
    for runs in (1, 4, 24, 96):
        day = runs * prices.seconds(CONDITIONS, EVENTS_A_DAY / runs, MATCHES * EVENTS_A_DAY / runs)
        body.append(
            (f"{runs}", f"{EVENTS_A_DAY / runs:,.0f}", f"{day / 3600:,.0f}", f"{day / DAY_S / CORES_BUSY:,.1f}")
        )
    return [
        *textwrap.wrap(said, WIDTH),
        "",
        *markdown_table([("runs a day", "events each", "processor hours a day", "cores"), *body]),
    ]


def _draw(rows: list[Row]) -> None:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(12.0, 4.2))
        panels = dict(zip(("conditions", "events", "executors"), figure.subplots(1, 3, sharey=True)))
        for colour, (name, runs) in zip((OURS_COLOUR, *PEER_COLOURS), _kinds(rows).items()):
            alike = [row for row in runs if _on_two_cores(row)]
            lines = {
                "conditions": _line(alike, "conditions", "events"),
                "events": _line(alike, "events", "conditions"),
                "executors": _by_executors(runs),
            }
            for by, points in lines.items():
                panels[by].plot(*zip(*points), marker="o", markersize=5, linewidth=2.0, color=colour, label=name)
        for by, axes in panels.items():
            axes.set(yscale="log", xlabel=by)
            axes.yaxis.set_major_formatter("{x:,.0f}")
            axes.yaxis.set_minor_formatter("{x:,.0f}")
            if by == "executors":
                axes.set_xticks([1, 2])
            else:
                axes.set(xscale="log")
                axes.xaxis.set_major_formatter(_in_millions)
                axes.xaxis.set_minor_formatter(_in_millions)
        panels["conditions"].set_ylabel("processor seconds")
        figure.legend(*panels["conditions"].get_legend_handles_labels(), loc="upper center", ncols=4)
        figure.tight_layout(rect=(0, 0, 1, 0.92))
        for kind in ("png", "svg"):
            metadata = {"Date": None} if kind == "svg" else None
            figure.savefig(FIGURES / f"scale.{kind}", dpi=160, bbox_inches="tight", metadata=metadata)


def _in_millions(value: float, _at: int) -> str:
    """Labels of the sizes that were run: 1, 3, 10 and 30 of a power of ten."""
    return f"{value / 1e6:g}M" if f"{value:e}"[0] in "13" else ""


def _kinds(rows: list[Row]) -> dict[str, list[Row]]:
    """Runs by plan, as a batch and as a stream."""
    return {
        f"{'stream' if command == 'run' else 'batch'}, {plan}": [
            row
            for row in rows
            if (row["command"], row["plan"]) == (command, plan) and row["agrees"] and not row["cached"]
        ]
        for command in ("match", "run")
        for plan in ("index", "zones")
    }


def _line(runs: list[Row], by: str, fixed: str) -> list[tuple[int, float]]:
    """The longest line of runs that differ in one size only."""
    lines: dict[int, dict[int, float]] = {}
    for row in runs:
        line = lines.setdefault(row[fixed], {})
        line[row[by]] = min(row["cpu_s"], line.get(row[by], row["cpu_s"]))
    longest = max(lines.values(), key=len, default={})
    return sorted(longest.items()) or [(0, float("nan"))]


def _by_executors(runs: list[Row]) -> list[tuple[int, float]]:
    """Runs on `local-cluster[EXECUTORS,…]` of one size."""
    sizes: dict[tuple[int, int], dict[int, float]] = {}
    for row in runs:
        if found := re.match(r"local-cluster\[(\d+),", row["master"]):
            sizes.setdefault((row["conditions"], row["events"]), {})[int(found[1])] = row["cpu_s"]
    return sorted(max(sizes.values(), key=len, default={}).items()) or [(1, float("nan"))]
