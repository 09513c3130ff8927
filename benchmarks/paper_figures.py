"""Everything that the pages about the papers show, measured anew: results, figures, verdicts, and their text.

    python -m benchmarks.paper_figures                     everything, at full size
    python -m benchmarks.paper_figures --seconds-max 100   fewer runs where an experiment would take longer
    python -m benchmarks.paper_figures --only spanhop-6    only this, or these; the rest stays as it was measured
    python -m benchmarks.paper_figures --quick             the quick form
    python -m benchmarks.paper_figures --again             one run of each point: is what was measured what this code gives?
    python -m benchmarks.paper_figures --text-only         only the text again, from what was measured before

Writes `figures/` and the section "Measured in the lab" of each page in `docs/papers`. Finished runs are kept in --work,
so an interrupted command continues where it was.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from tidings import __version__
from tidings.lab import EXPERIMENTS, Experiment, find, report, run
from tidings.lab.results import read, write
from tidings.lab.sweep import processor_s, sweep

ROOT = Path(__file__).parent.parent
FIGURES, PAGES = ROOT / "figures", ROOT / "docs" / "papers"
MEASURED = FIGURES / "measured.json"
HEADING = "## Measured in the lab"
SEEDS_MIN = 2  # Fewer runs say nothing of how far they spread.
WIDTH = 118  # Of a line of text.


def chosen(names: list[str], seconds_max: float | None, *, quick: bool) -> list[Experiment]:
    """Experiments; with fewer runs of each point where one would take longer, by its own estimate."""
    sized = [each.quick() if quick else each for each in find(names)]
    return sized if seconds_max is None else [_within(each, seconds_max) for each in sized]


def _within(experiment: Experiment, seconds_max: float) -> Experiment:
    seconds = sum(experiment.cost(point.parameters) for point in experiment.points())
    seeds = int(experiment.seeds * seconds_max / max(seconds, seconds_max))
    return replace(experiment, seeds=max(SEEDS_MIN, seeds) if experiment.seeds >= SEEDS_MIN else experiment.seeds)


def this_commit() -> str:
    ran = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short=7", "HEAD"], capture_output=True, text=True, check=False
    )
    return ran.stdout.strip() or "unknown"


def measured_by(experiments: list[Experiment], points: Path, *, commit: str, quick: bool) -> dict[str, dict[str, Any]]:
    """For each figure with what it was measured, and how: what a reader needs to repeat it."""
    made = {"version": __version__, "commit": commit, "quick": quick}
    took = {each.name: round(processor_s(each, points), 1) for each in experiments}
    return {each.name: {**made, "runs": each.seeds, "processor_s": took[each.name]} for each in experiments}


def publish(experiments: list[Experiment], work: Path, made: dict[str, dict[str, Any]]) -> None:
    """Put what was measured in the place of what was measured before; the rest stays."""
    before = read(FIGURES / "results.parquet")
    new = {(each.paper, each.figure) for each in experiments}
    here = list(zip(before["paper"].to_pylist(), before["figure"].to_pylist(), strict=True))
    kept = before.filter(pa.array([row not in new for row in here], pa.bool_()))
    write([kept, read(work / "results.parquet")], FIGURES / "results.parquet")
    known = json.loads(MEASURED.read_text(encoding="utf-8"))
    MEASURED.write_text(json.dumps({**known, **made}, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def measure_again(experiments: list[Experiment], work: Path, master: str) -> None:
    """The first run of each point by the present code: which figures it still gives, to the last digit.

    Times and memory never are the same.
    """
    commit, stored = this_commit(), read(FIGURES / "results.parquet").to_pylist()
    known = json.loads(MEASURED.read_text(encoding="utf-8"))
    for each in experiments:
        tables = sweep([replace(each, seeds=1)], work / "points", master=master, progress=_progress)
        is_same = is_still([row for table in tables for row in table.to_pylist()], stored)
        if each.name in known:
            known[each.name].pop("again", None)
            known[each.name] |= {"again": commit} if is_same else {}
        print(f"{'the same' if is_same else 'differs ' if is_same is not None else 'not there'}  {each.name}")
    MEASURED.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def is_still(now: list[dict[str, Any]], stored: list[dict[str, Any]]) -> bool | None:
    """Whether the points that are stored, of those measured now, have the same numbers; None if none of them is."""
    here = {_point(row) for row in now} & {_point(row) for row in stored}
    one, other = (Counter(map(_numbers, rows)) for rows in (now, stored))
    if not here:
        return None
    return {row: n for row, n in one.items() if row[0] in here} == {
        row: n for row, n in other.items() if row[0] in here
    }


def _point(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("paper", "figure", "seed", "parameters"))


def _numbers(row: dict[str, Any]) -> tuple[Any, ...]:
    return _point(row), row["series"], row["x"], row["y"]


def draw_and_judge() -> None:
    """Figures and verdicts of everything, from what was measured."""
    with TemporaryDirectory() as folder:
        made = report(EXPERIMENTS, FIGURES / "results.parquet", Path(folder))
        for paper in sorted({each.paper for each in EXPERIMENTS}):
            shutil.copytree(Path(folder) / "figures" / paper, FIGURES / paper, dirs_exist_ok=True)
        shutil.copyfile(made.claims, FIGURES / "claims.json")
        for missing in made.not_judged:
            print(f"not judged: {missing}")


def write_pages() -> None:
    """The sections of all pages, from what is in `figures`."""
    claims: list[dict[str, str]] = json.loads((FIGURES / "claims.json").read_text(encoding="utf-8"))
    made: dict[str, Any] = json.loads(MEASURED.read_text(encoding="utf-8"))
    for paper in sorted({each.paper for each in EXPERIMENTS}):
        page = PAGES / f"{paper}.md"
        before = page.read_text(encoding="utf-8").split(HEADING)[0].rstrip()
        page.write_text(f"{before}\n\n{section(paper, claims, made)}", encoding="utf-8")


def section(paper: str, claims: list[dict[str, str]], made: dict[str, Any]) -> str:
    """The section of one page: every figure with its verdicts, in the order of the experiments."""
    said = (
        "Measured by `python -m benchmarks.paper_figures`; the numbers are in `figures/results.parquet`, the verdicts in "
        "`figures/claims.json`, and under each figure stands of which version it is. "
        'A claim that begins with "beyond the paper" is ours: its goal is met or missed.'
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
    """Of which version a figure is, and how many runs of each point there were."""
    how = made[name]
    whole = next((each.seeds for each in EXPERIMENTS if each.name == name), how["runs"])
    runs = f"{how['runs']} runs of each point" + ("" if how["runs"] >= whole else f" ({whole} at full size)")
    quick = ", the quick form" if how["quick"] else ""
    took = f", {how['processor_s']:,.0f} s of processor time" if "processor_s" in how else ""
    note = f"; {how['note']}" if "note" in how else ""
    again = f"; one run of each, at commit {how['again']}, is the same" if "again" in how else ""
    return _wrapped(f"Tidings {how['version']} at commit {how['commit']}{quick}: {runs}{took}{note}{again}.")


def _verdict(row: dict[str, Any]) -> str:
    return (
        f"- **{row['verdict']}**: {row['claim']}. Expected: {row['expected']}. Measured: {row['measured']}. "
        f"Why: {row['why']}."
    )


def _wrapped(text: str, hanging: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_figures", description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", default=["all"], metavar="NAME", help="experiments or papers")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds-max", type=float, help="for each experiment, by its own estimate")
    parser.add_argument("--again", action="store_true", help="only say which figures the present code still gives")
    parser.add_argument("--text-only", action="store_true")
    parser.add_argument("--work", type=Path, default=ROOT / "lab-results")
    parser.add_argument("--master", default="local[*]")
    given = parser.parse_args()
    if given.again:
        measure_again(find(given.only), given.work, given.master)
    elif not given.text_only:
        experiments = chosen(given.only, given.seconds_max, quick=given.quick)
        commit = this_commit()  # Before hours in which another may be made.
        run(experiments, given.work, master=given.master, progress=_progress)
        made = measured_by(experiments, given.work / "points", commit=commit, quick=given.quick)
        _tell_times(made)
        publish(experiments, given.work, made)
        draw_and_judge()
    write_pages()


def _tell_times(made: dict[str, dict[str, Any]]) -> None:
    """What took how long, the dearest first."""
    by_name = sorted(((how["processor_s"], name) for name, how in made.items()), reverse=True)
    for seconds, name in by_name:
        print(f"{seconds:8,.1f} s of processor time  {name}")
    print(f"{sum(seconds for seconds, _ in by_name):8,.1f} s altogether")


def _progress(done: int, total: int) -> None:
    print(f"\r{done} of {total} runs", end="\n" if done == total else "", file=sys.stderr)


if __name__ == "__main__":
    main()
