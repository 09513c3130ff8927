"""Everything that the pages about the papers show, measured anew: results, figures, verdicts, and their text.

    python -m benchmarks.paper_figures                     everything, at full size
    python -m benchmarks.paper_figures --seconds-max 100   fewer runs where an experiment would take longer
    python -m benchmarks.paper_figures --quick             the quick form
    python -m benchmarks.paper_figures --text-only         only the text again, from what was measured before

Writes `figures/` and the section "Measured in the lab" of each page in `docs/papers`. Finished runs are kept in --work,
so an interrupted command continues where it was.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import textwrap
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from tidings import __version__
from tidings.lab import EXPERIMENTS, Experiment, run

ROOT = Path(__file__).parent.parent
FIGURES, PAGES = ROOT / "figures", ROOT / "docs" / "papers"
HEADING = "## Measured in the lab"
SEEDS_MIN = 2  # Fewer runs say nothing of how far they spread.
WIDTH = 118  # Of a line of text.


def chosen(seconds_max: float | None, *, quick: bool) -> list[Experiment]:
    """All experiments; with fewer runs of each point where one would take longer, by its own estimate."""
    sized = [each.quick() if quick else each for each in EXPERIMENTS]
    return sized if seconds_max is None else [_within(each, seconds_max) for each in sized]


def _within(experiment: Experiment, seconds_max: float) -> Experiment:
    seconds = sum(experiment.cost(point.parameters) for point in experiment.points())
    seeds = int(experiment.seeds * seconds_max / max(seconds, seconds_max))
    return replace(experiment, seeds=max(SEEDS_MIN, seeds) if experiment.seeds >= SEEDS_MIN else experiment.seeds)


def measured_by(experiments: list[Experiment], *, quick: bool) -> dict[str, Any]:
    """What was measured, and how: what a reader needs to repeat it."""
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "version": __version__,
        "commit": commit.stdout.strip() or "unknown",
        "size": "the quick form" if quick else "full size",
        "runs": {each.name: each.seeds for each in experiments},
    }


def publish(work: Path, made: dict[str, Any]) -> None:
    """Copy results, verdicts and figures of a run to where the pages show them."""
    for paper in sorted({each.paper for each in EXPERIMENTS}):
        shutil.rmtree(FIGURES / paper, ignore_errors=True)
        shutil.copytree(work / "figures" / paper, FIGURES / paper)
    for name in ("results.parquet", "claims.json"):
        shutil.copyfile(work / name, FIGURES / name)
    (FIGURES / "measured.json").write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")


def write_pages() -> None:
    """The sections of all pages, from what is in `figures`."""
    claims: list[dict[str, str]] = json.loads((FIGURES / "claims.json").read_text(encoding="utf-8"))
    made: dict[str, Any] = json.loads((FIGURES / "measured.json").read_text(encoding="utf-8"))
    for paper in sorted({each.paper for each in EXPERIMENTS}):
        page = PAGES / f"{paper}.md"
        before = page.read_text(encoding="utf-8").split(HEADING)[0].rstrip()
        page.write_text(f"{before}\n\n{section(paper, claims, made)}", encoding="utf-8")


def section(paper: str, claims: list[dict[str, str]], made: dict[str, Any]) -> str:
    """The section of one page: every figure with its verdicts, in the order of the experiments."""
    said = (
        f"Measured by `python -m benchmarks.paper_figures` with Tidings {made['version']} at commit {made['commit']}, "
        f"{made['size']}; the numbers are in `figures/results.parquet`, the verdicts in `figures/claims.json`. "
        'A claim that begins with "beyond the paper" is ours: its goal is met, or it differs.'
    )
    parts = [HEADING, _wrapped(said)]
    mine = [claim for claim in claims if claim["paper"] == paper]
    told = ""
    for figure, group in groupby(mine, key=lambda claim: claim["figure"]):
        rows = list(group)
        parts.append(f"### Figure {figure}")
        parts.append(_runs(f"{paper}-{figure}", made))
        if rows[0]["conditions"] and rows[0]["conditions"] != told:
            told = rows[0]["conditions"]
            parts.append(_wrapped(f"Conditions: {told}."))
        parts.append("\n".join(_wrapped(_verdict(row), hanging="  ") for row in rows))
        parts.append(f"![{paper}, {figure}](../../figures/{paper}/{figure}.png)")
    return "\n\n".join(parts) + "\n"


def _runs(name: str, made: dict[str, Any]) -> str:
    """How many runs of each point there were, and how many there are at full size."""
    runs = made["runs"].get(name, 0)
    whole = next((each.seeds for each in EXPERIMENTS if each.name == name), runs)
    return f"{runs} runs of each point" + ("." if runs >= whole else f", of {whole} at full size.")


def _verdict(row: dict[str, Any]) -> str:
    return (
        f"- **{row['verdict']}**: {row['claim']}. Expected: {row['expected']}. Measured: {row['measured']}. "
        f"Why: {row['why']}."
    )


def _wrapped(text: str, hanging: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_figures", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds-max", type=float, help="for each experiment, by its own estimate")
    parser.add_argument("--text-only", action="store_true")
    parser.add_argument("--work", type=Path, default=ROOT / "lab-results")
    parser.add_argument("--master", default="local[*]")
    given = parser.parse_args()
    if not given.text_only:
        experiments = chosen(given.seconds_max, quick=given.quick)
        made = measured_by(experiments, quick=given.quick)
        run(
            experiments,
            given.work,
            master=given.master,
            progress=lambda done, total: print(f"\r{done}/{total}", end=""),
        )
        print()
        publish(given.work, made)
    write_pages()


if __name__ == "__main__":
    main()
