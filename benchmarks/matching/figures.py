"""The growth of Tidings and its peers as figures, drawn from the result file."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.matching.contenders import OURS
from benchmarks.matching.report import Report
from benchmarks.matching.runs import ROOT, Run
from benchmarks.matching.targets import PEERS

FIGURES = ROOT / "docs" / "figures"
INK, OURS_COLOUR = "#333333", "#0b6e99"
PEER_COLOURS = (
    "#d1603d",
    "#e0a458",
    "#7a5195",
    "#b07aa1",
    "#59a14f",
    "#8c8c8c",
    "#9c6b4f",
    "#c44e6c",
    "#4c78a8",
    "#3d8b7d",
)
STYLE: Any = {
    "figure.figsize": (7.2, 4.4),
    "font.size": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "svg.hashsalt": "tidings",  # The same numbers give the same file.
}
GROWTH = {
    "attributes": ("attributes of the event type", "20,000 conditions of three sides, 2 matches per event"),
    "matches": ("matches per event", "100,000 conditions, intervals from narrow to wide"),
}


def draw(report: Report) -> list[str]:
    """Every figure the report has numbers for, as PNG and SVG; the names of the files."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):
        figures = {"conditions": _conditions(report, "base", "One match in 10,000 per condition and event; one core")}
        if any(run.measured and run.workload.startswith("mixed") for run in report.runs):
            figures["mixed"] = _conditions(report, "mixed", "Mixed conditions, one match in 10,000; one core")
        figures |= {
            name: _growth(report.growth[name], *words) for name, words in GROWTH.items() if name in report.growth
        }
        return [path for name, figure in figures.items() for path in _save(figure, f"matching-{name}")]


def _save(figure: Figure, name: str) -> list[str]:
    paths = [FIGURES / f"{name}.{kind}" for kind in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=160, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None)
    return [str(path.relative_to(ROOT)) for path in paths]


def _conditions(report: Report, family: str, title: str) -> Figure:
    """Events per second against conditions: Tidings as a curve, every peer at the sizes it managed."""
    figure, axes = _axes("conditions", title)
    for colour, (name, runs) in zip(cycle(PEER_COLOURS), _peers(report, family).items()):
        points = [(run.subscriptions, run.events_per_s) for run in runs]
        axes.plot(*zip(*points), marker="o", markersize=4, linewidth=1.2, color=colour, label=name)
    _curve(axes, report.growth.get("conditions", []) if family == "base" else _points(report, family))
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[-1:] + handles[:-1], labels[-1:] + labels[:-1], loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _points(report: Report, family: str) -> list[dict[str, Any]]:
    """The runs of Tidings itself as points of a curve."""
    runs = [run for run in report.runs if run.measured and run.contender == OURS and run.workload.startswith(family)]
    return [{"x": run.subscriptions, "events_per_s": run.events_per_s} for run in runs]


def _peers(report: Report, family: str) -> dict[str, list[Run]]:
    there = [run for run in report.runs if run.measured and run.workload.startswith(family)]
    found = {name: [run for run in there if run.contender == name] for name in PEERS}
    return {name: runs for name, runs in found.items() if runs}


def _growth(points: list[dict[str, Any]], label: str, title: str) -> Figure:
    figure, axes = _axes(label, title)
    _curve(axes, points)
    return figure


def _curve(axes: Axes, points: list[dict[str, Any]]) -> None:
    x, y = [point["x"] for point in points], [point["events_per_s"] for point in points]
    axes.plot(x, y, marker="o", markersize=5, linewidth=2.4, color=OURS_COLOUR, label=OURS)
    for at, rate in zip(x, y):
        axes.annotate(
            f"{rate / 1e3:,.0f}k", (at, rate), textcoords="offset points", xytext=(0, 7), ha="center", color=OURS_COLOUR
        )


def _axes(label: str, title: str) -> tuple[Figure, Axes]:
    figure = Figure()
    axes = figure.subplots()
    for axis in (axes.xaxis, axes.yaxis):
        axis.axes.set(**{f"{axis.axis_name}scale": "log"})
        axis.set_major_formatter("{x:,.0f}")
        axis.set_minor_formatter("")
    axes.margins(x=0.06, y=0.14)
    axes.set_xlabel(label)
    axes.set_ylabel("events per second")
    axes.set_title(title, loc="left", fontsize=10.5, color=INK)
    return figure, axes
