"""`tidings lab …`: lists experiments, and runs them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidings.cli.terminal import Output, OutputOption, show, tell
from tidings.errors import InputError

if TYPE_CHECKING:
    from tidings.lab import Experiment, OverlayCost, Progress, Recommendation, Report

app = typer.Typer(
    name="lab",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Repeat the experiments of the papers: measured on Spark, drawn, and judged claim by claim.",
)

TELL_EVERY = 10  # Percent, if there is no terminal for a progress bar.

QuickOption = Annotated[bool, typer.Option("--quick", help="Fewer points and seeds: minutes instead of half an hour.")]
SettingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change a parameter. One that varies takes several values, separated by commas.",
    ),
]


@app.command("list")
def list_experiments(output: OutputOption = Output.TABLE) -> None:
    """Show the experiments: their names, what they measure, and how many runs that takes.

    \b
    Examples:
      tidings lab list
      tidings lab list -o json | jq .varies
    """
    from tidings.lab import EXPERIMENTS

    if output is Output.JSON:
        show(map(_about, EXPERIMENTS), output)
    else:
        show(map(_in_short, EXPERIMENTS), output)


@app.command("run")
def run_experiments(
    names: Annotated[list[str], typer.Argument(metavar="NAME…", help="Experiments, papers, or all.")],
    quick: QuickOption = False,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the results go.")] = Path("lab-results"),
    master: Annotated[str, typer.Option("--master", metavar="URL", help="Where Spark runs.")] = "local[*]",
    settings: SettingOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run experiments, draw their figures and judge the papers' claims by what was measured.

    Writes results.parquet, claims.json and figures/PAPER/FIGURE.png and .svg under --out.
    Finished runs are stored in DIR/points: after an interruption the same command continues
    from there. A claim that differs is a result, not a failure: the exit code is 0.

    \b
    Examples:
      tidings lab run immune --quick                            all figures of one paper
      tidings lab run irbr-4a irbr-4b --out out                 two figures, in full
      tidings lab run immune-5 --set node_count=100,2000 --set seeds=5
      tidings lab run all --master spark://host:7077 --out /shared/lab
    """
    from tidings.lab import find, run

    given = _read_settings(settings or [])
    chosen = [(each.quick() if quick else each).given(given) for each in find(names)]
    try:
        with _shown_progress() as progress:
            report = run(chosen, out, master=master, progress=progress)
    except KeyboardInterrupt:
        tell(f"stopped; finished runs are in {out / 'points'}, and the same command continues from there")
        raise
    _show_report(report, output)


@app.command("compare")
def compare_overlays(
    scenario: Annotated[
        str | None, typer.Option("--scenario", metavar="NAME", help="A workload of the guide, or all of them.")
    ] = None,
    brokers: Annotated[int | None, typer.Option("--brokers", help="Brokers of the network.")] = None,
    subscriptions: Annotated[
        int | None, typer.Option("--subscriptions", help="Subscriptions at all brokers together.")
    ] = None,
    selectivity: Annotated[
        float | None, typer.Option("--selectivity", help="The share of events that a subscription matches.")
    ] = None,
    unreadable: Annotated[
        float | None, typer.Option("--unreadable", help="The share of attributes that brokers may not read: 0, 0.5, 1.")
    ] = None,
    churn: Annotated[float | None, typer.Option("--churn", help="Percent of brokers replaced in a minute.")] = None,
    delays: Annotated[
        str | None, typer.Option("--delays", help="How far brokers are apart: flat, plane or cities.")
    ] = None,
    events_per_s: Annotated[
        float, typer.Option("--events-per-s", help="Events published in the whole network.")
    ] = 10.0,
    subscriptions_per_s: Annotated[
        float, typer.Option("--subscriptions-per-s", help="Subscriptions added and removed.")
    ] = 0.1,
    lost_max: Annotated[float, typer.Option("--lost-max", help="Percent of matches that may get lost.")] = 0.0,
    delay_ms_max: Annotated[
        float, typer.Option("--delay-ms-max", help="Milliseconds from publisher to subscriber.")
    ] = 1e9,
    overlays: Annotated[list[str] | None, typer.Option("--overlay", help="Only this overlay; may be repeated.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", help="Runs to take the mean of.")] = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run one workload over every overlay in a simulated network, and recommend one by what was measured.

    Start from a scenario of the guide, or from 64 brokers with a subscription each, and change
    what is different with you. A recommended overlay loses no more than --lost-max, is quicker
    than --delay-ms-max, and takes the fewest messages at your rates of events and subscriptions.

    \b
    Examples:
      tidings lab compare                                     64 brokers; a minute
      tidings lab compare --brokers 200 --selectivity 0.001 --events-per-s 500
      tidings lab compare --scenario secret -o json
      tidings lab compare --overlay irbr --overlay spanhop --churn 10
    """
    from tidings.lab import SCENARIOS, compare, recommend
    from tidings.overlay import NAMES

    if scenario is not None and scenario not in (*SCENARIOS, "all"):
        raise InputError(f"there is no scenario {scenario!r}; there are all, {', '.join(SCENARIOS)}")
    given = {
        "brokers": brokers, "subscriptions": subscriptions, "selectivity": selectivity, "unreadable": unreadable,
        "churn": churn, "delays": delays,
    }  # fmt: skip
    changed: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name in SCENARIOS if scenario == "all" else [scenario or "usual"]:
        workload = dataclasses.replace(SCENARIOS[name][1], **changed)
        costs = compare(workload, overlays or NAMES, seeds=seeds)
        best = recommend(
            costs, workload.brokers, events_per_s=events_per_s, subscriptions_per_s=subscriptions_per_s,
            lost_max=lost_max, delay_ms_max=delay_ms_max,
        )  # fmt: skip
        if scenario == "all":
            tell(f"{name}: {SCENARIOS[name][0]}")
        show([_rounded(cost, name, best) for cost in costs], output)
        tell(f"recommended: {best.overlay}: {best.why}" if best else "none of them loses and delays as little as that")


def _rounded(cost: OverlayCost, scenario: str, best: Recommendation | None) -> dict[str, object]:
    row = {
        key: round(value, 2) if isinstance(value, float) else value for key, value in dataclasses.asdict(cost).items()
    }
    return {"scenario": scenario, **row, "recommended": best is not None and best.overlay == cost.overlay}


def _show_report(report: Report, output: Output) -> None:
    columns = () if output is Output.JSON else ("paper", "verdict", "claim", "expected", "measured", "why")
    show(report.judgements, output, columns)
    for missing in report.not_judged:
        tell(f"not judged: {missing}")
    tell(f"wrote {report.results}, {report.claims} and {len(report.figures)} figures under {report.results.parent}")


def _read_settings(texts: list[str]) -> dict[str, str]:
    given = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise InputError(f"expected --set NAME=VALUE, got {text!r}")
        given[name.strip()] = value
    return given


def _in_short(experiment: Experiment) -> dict[str, object]:
    runs, quick = len(experiment.points()), len(experiment.quick().points())
    return {"name": experiment.name, "runs": runs, "quick": quick, "shows": experiment.title}


def _about(experiment: Experiment) -> dict[str, object]:
    return {
        **_in_short(experiment),
        "paper": experiment.paper,
        "figure": experiment.figure,
        "x": experiment.x.label,
        "y": experiment.y.label,
        "varies": dict(experiment.varies),
        "stays": dict(experiment.stays),
        "seeds": experiment.seeds,
        "claims": [claim.says for claim in experiment.claims],
    }


@contextmanager
def _shown_progress() -> Iterator[Progress]:
    """A progress bar on a terminal; elsewhere a line for every tenth."""
    if not sys.stderr.isatty():
        yield _TenthByTenth()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as bar:
        task = bar.add_task("runs")
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _TenthByTenth:
    """Prints how many runs are done, whenever another tenth is."""

    def __init__(self) -> None:
        self._printed = -1

    def __call__(self, done: int, total: int) -> None:
        reached = 100 * done // max(1, total) // TELL_EVERY
        if reached > self._printed:
            self._printed = reached
            tell(f"{done} of {total} runs done")
