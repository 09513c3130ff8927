"""From a sweep to its report: `results.parquet`, a figure for each experiment, and `claims.json`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from tidings.lab.experiment import Claim, Experiment
from tidings.lab.figures import draw
from tidings.lab.results import NotMeasured, read, results_of, write, written_whole
from tidings.lab.sweep import LOCAL, Progress, sweep

Judgement = dict[str, str]  # paper, figure, claim, expected, conditions, measured, verdict, why


@dataclass(frozen=True, slots=True)
class Report:
    """The files that a run has written, and its verdicts."""

    results: Path
    figures: list[Path]
    claims: Path
    judgements: list[Judgement]
    not_judged: list[str]
    """Claims that could not be judged, because parameters were changed, and what is missing."""


def run(
    experiments: Sequence[Experiment],
    out: Path,
    *,
    master: str = LOCAL,
    progress: Progress = lambda done, total: None,
) -> Report:
    """Measure, store, draw and judge. What is in `out` afterwards is about these experiments and no others.

    Raises InputError before anything is run if an experiment is impossible, OSError if
    `out` cannot be written. An interrupted run keeps its finished points, and the next call
    continues from there.
    """
    for experiment in experiments:
        experiment.points()  # Raises before a folder is made.
    _check_writable(out)
    results = out / "results.parquet"
    write(sweep(experiments, out / "points", master=master, progress=progress), results)
    return report(experiments, results, out)


def report(experiments: Sequence[Experiment], results: Path, out: Path) -> Report:
    """Draw and judge what a file of results says, without measuring anything."""
    out.mkdir(parents=True, exist_ok=True)
    table = read(results)
    figures = [path for each in experiments for path in _drawn(each, table, out / "figures")]
    judgements, not_judged = _judge_all(experiments, table)
    claims = out / "claims.json"
    with written_whole(claims) as draft:
        draft.write_text(json.dumps(judgements, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return Report(results, figures, claims, judgements, not_judged)


def _drawn(experiment: Experiment, table: pa.Table, folder: Path) -> list[Path]:
    return draw(experiment, results_of(table, experiment.paper, experiment.figure), folder)


def _judge_all(experiments: Sequence[Experiment], table: pa.Table) -> tuple[list[Judgement], list[str]]:
    judgements, not_judged = [], []
    for experiment in experiments:
        for claim in experiment.claims:
            try:
                judgements.append(_judge(experiment, claim, table))
            except NotMeasured as missing:
                not_judged.append(f"{experiment.name}: {claim.says}: {missing}")
    return judgements, not_judged


def _judge(experiment: Experiment, claim: Claim, table: pa.Table) -> Judgement:
    found = claim.find(results_of(table, experiment.paper, experiment.figure))
    return {
        "paper": experiment.paper,
        "figure": experiment.figure,
        "claim": claim.says,
        "expected": claim.expected,
        "conditions": experiment.conditions,
        "measured": found.measured,
        "verdict": str(found.verdict),
        "why": found.why,
    }


def _check_writable(out: Path) -> None:
    """Before hours of measuring: raises OSError if nothing can be stored."""
    out.mkdir(parents=True, exist_ok=True)
    probe = out / ".probe"
    probe.touch()
    probe.unlink()
