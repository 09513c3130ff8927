"""`tidings lab …`: lists experiments, and runs them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidings.cli.terminal import Output, OutputOption, show, tell
from tidings.errors import InputError

if TYPE_CHECKING:
    from tidings.lab import Experiment, Progress, Report

app = typer.Typer(
    name="lab",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Repeat the experiments of the papers: measured on Spark, drawn, and judged claim by claim.",
)

TELL_EVERY = 10  # Percent, if there is no terminal for a progress bar.

QuickOption = Annotated[bool, typer.Option("--quick", help="Fewer points and seeds: minutes instead of hours.")]
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
