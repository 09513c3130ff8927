"""Figures, drawn from results alone: one style for all papers, as PNG for the screen and SVG for print.

A line is the mean over seeds, the band around it the 95 % interval, a hollow diamond a number
that the paper published.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.lab.experiment import Experiment, PlotAxis
from tidings.lab.results import MeanWithMargin, Results, written_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
LINE_MAX = 30  # With more x values than this, points are single runs: marks of growing size, so that all show where they coincide.

# Also for colour-blind readers: the colours are Okabe and Ito's, and each line has its own marker and dashes.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
_MARKERS = "osv^DPX*"
_DASHES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), "-", "--")
_LOOK: dict[Any, Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 150,
    "figure.figsize": (7.0, 4.4),
    "font.size": 10,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 5,
    "savefig.bbox": "tight",
    "svg.fonttype": "none",  # Text stays text: it can be searched and copied.
    "svg.hashsalt": "tidings",  # The same figure is the same file.
}


def draw(experiment: Experiment, results: Results, folder: Path) -> list[Path]:
    """Write the experiment's figure to `folder/PAPER/FIGURE.png` and `.svg`; returns where."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    paths = [folder / experiment.paper / f"{experiment.figure}.{kind}" for kind in FORMATS]
    paths[0].parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_LOOK):
        figure = Figure()  # Not through pyplot, which keeps every figure until it is closed.
        _fill(figure.subplots(), experiment, results)
        for path in paths:
            _save(figure, path)
    return paths


def _fill(axes: Axes, experiment: Experiment, results: Results) -> None:
    from matplotlib.ticker import NullLocator

    for number, series in enumerate(results.series()):
        _draw_line(axes, number, series, results)
    for number, (series, x, y) in enumerate(experiment.published):
        label = "published" if number == 0 else None
        colour = _colour(results.series().index(series)) if series in results.series() else "black"
        axes.plot(x, y, "D", markersize=9, markerfacecolor="none", markeredgecolor=colour, zorder=5, label=label)
    _label(axes, experiment.x, experiment.y)
    if experiment.x.log:
        axes.set_xticks(sorted({x for series in results.series() for x in results.xs(series)}), minor=False)
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set_title(experiment.title, loc="left", fontsize=11)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _draw_line(axes: Axes, number: int, series: str, results: Results) -> None:
    xs = results.xs(series)
    spreads: list[MeanWithMargin] = [results.spread(series, x) for x in xs]
    style = {"color": _colour(number), "linestyle": _DASHES[number % len(_DASHES)]}
    if len(xs) > LINE_MAX:
        style |= {"linestyle": "", "markerfacecolor": "none", "markersize": 5 + number}
    marker = _MARKERS[number % len(_MARKERS)]
    axes.plot(xs, [each.mean for each in spreads], marker=marker, label=series, **style)
    low = [mean - margin for mean, margin in spreads]
    high = [mean + margin for mean, margin in spreads]
    axes.fill_between(xs, low, high, color=_colour(number), alpha=0.18, linewidth=0)


def _label(axes: Axes, x: PlotAxis, y: PlotAxis) -> None:
    from matplotlib.ticker import FuncFormatter

    axes.set(xlabel=x.label, ylabel=y.label, xscale="log" if x.log else "linear", yscale="log" if y.log else "linear")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def short(value: float) -> str:
    """A number short enough for an axis: three digits and a letter from ten thousand on.

    >>> [short(value) for value in (0.5, 4096, 65_536, 1_048_576)]
    ['0.5', '4096', '65.5k', '1.05M']
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:g}"


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _save(figure: Figure, path: Path) -> None:
    kind = path.suffix[1:]
    with written_whole(path) as draft:
        figure.savefig(draft, format=kind, metadata={"Date": None} if kind == "svg" else {"Software": None})
