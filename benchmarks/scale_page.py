"""The figure and the page of large sets, from benchmarks/results/scale.json: `python -m benchmarks.scale --page`.

Coefficients are a fit of processor seconds to a start, a price for each condition and a price for each event, separately
for each plan. Seconds of the clock are shown beside, with the load of the machine at the beginning of each run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from benchmarks.matching.figures import FIGURES, OURS_COLOUR, PEER_COLOURS, STYLE
from benchmarks.showing import PAGES, RESULTS, Target, markdown_table, markdown_targets, put_between

Row = dict[str, Any]
LOCAL = "local[2]"
DAY_S = 86_400
EVENTS_A_DAY, CONDITIONS = 1e9, 1e8
CORES_BUSY = 0.7  # Share of a core's time that a plan counts on.
TOO_FEW = "Not computed yet: it takes runs of several sizes (`--save`), on a machine with free cores."
BUILD_S_MAX, FIRST_S_MAX = 25.0, 15.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Processor seconds: once for each run, for each condition, for each event."""

    start: float
    condition: float
    event: float

    def seconds(self, conditions: float, events: float) -> float:
        return self.start + self.condition * conditions + self.event * events


def write() -> None:
    """Writes the page's numbers and the figure."""
    rows: list[Row] = json.loads((RESULTS / "scale.json").read_text())
    page = PAGES / "scale.md"
    numbers = [_machine(rows), "", *_table(rows), *markdown_targets(_targets(rows))]
    prices = prices_of(rows, "zones")
    if prices is not None:
        _draw(rows)
        numbers += ["", "![Processor seconds by conditions and by events, both plans](../figures/scale.svg)"]
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
    terms = np.array([[1.0, row["conditions"], row["events"]] for row in runs]) * weights[:, None]
    found, *_ = np.linalg.lstsq(terms, np.ones(len(runs)), rcond=None)
    return Prices(*(max(float(price), 0.0) for price in found))


def _is_plain(row: Row) -> bool:
    return bool(row["command"] == "match" and row["master"] == LOCAL and row["agrees"])


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
    return [
        Target("s from a million texts to an index", BUILD_S_MAX, least("build", 1_000_000, 0), at_most=True),
        Target("s for 200,000 events and 2,000 conditions", FIRST_S_MAX, least("match", 2_000, 200_000), at_most=True),
        Target("conditions, and as many events", 10_000_000, largest),
    ]


def _cluster(prices: Prices) -> list[str]:
    """What a billion events a day and a hundred million conditions need, by how often they are matched."""
    said = (
        f"Of the plan with zones: {prices.start:.0f} s for each run, {1e6 * prices.condition:,.0f} s for a million "
        f"conditions, {1e6 * prices.event:,.0f} s for a million events, in processor time."
    )
    body = []
    for runs in (1, 4, 24, 96):
        day = runs * prices.seconds(CONDITIONS, EVENTS_A_DAY / runs)
        body.append(
            (f"{runs}", f"{EVENTS_A_DAY / runs:,.0f}", f"{day / 3600:,.0f}", f"{day / DAY_S / CORES_BUSY:,.0f}")
        )
    return [said, "", *markdown_table([("runs a day", "events each", "processor hours a day", "cores"), *body])]


def _draw(rows: list[Row]) -> None:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.6, 4.0))
        conditions, events = figure.subplots(1, 2, sharey=True)
        for colour, plan in zip((OURS_COLOUR, PEER_COLOURS[0]), ("index", "zones")):
            runs = [row for row in rows if _is_plain(row) and row["plan"] == plan and not row["cached"]]
            for axes, by, fixed in ((conditions, "conditions", "events"), (events, "events", "conditions")):
                points = _line(runs, by, fixed)
                axes.plot(*zip(*points), marker="o", markersize=5, linewidth=2.0, color=colour, label=f"plan: {plan}")
        for axes, label in ((conditions, "conditions"), (events, "events")):
            axes.set(xscale="log", yscale="log", xlabel=label)
            axes.xaxis.set_major_formatter("{x:,.0f}")
        conditions.yaxis.set_major_formatter("{x:,.0f}")
        conditions.set_ylabel("processor seconds")
        conditions.legend()
        figure.tight_layout()
        for kind in ("png", "svg"):
            metadata = {"Date": None} if kind == "svg" else None
            figure.savefig(FIGURES / f"scale.{kind}", dpi=160, bbox_inches="tight", metadata=metadata)


def _line(runs: list[Row], by: str, fixed: str) -> list[tuple[int, float]]:
    """The longest line of runs that differ in one size only."""
    lines: dict[int, dict[int, float]] = {}
    for row in runs:
        lines.setdefault(row[fixed], {})[row[by]] = row["cpu_s"]
    longest = max(lines.values(), key=len, default={0: 0.0})
    return sorted(longest.items())
