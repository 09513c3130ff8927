"""Results as a file, as tables on a terminal, and as tables in the documentation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.matching.contenders import OURS, OURS_TWO_THREADS, SIZES
from benchmarks.matching.runs import ROOT, Run
from benchmarks.matching.targets import Target, bytes_per_condition, targets

RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "reference" / "benchmarks-matching.md"
NUMBERS, GROWTH = "numbers", "growth"  # What stands between a mark of this name and its end is written here.


@dataclass(frozen=True, slots=True)
class Report:
    """One run of the benchmark."""

    machine: dict[str, Any]
    quick: bool
    runs: list[Run]
    growth: dict[str, Any]

    def save(self) -> Path:
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / ("matching-quick.json" if self.quick else "matching.json")
        path.write_text(json.dumps(asdict(self) | {"targets": self._targets()}, indent=1) + "\n")
        return path

    @classmethod
    def open(cls, path: Path) -> Report:
        found = json.loads(path.read_text())
        return cls(found["machine"], found["quick"], [Run(**run) for run in found["runs"]], found["growth"])

    def _targets(self) -> list[dict[str, Any]]:
        return [asdict(target) | {"met": target.met} for target in targets(self.runs)]


# ── Tables, as rows of text ──────────────────────────────────────────────────

HEAD = (
    "engine",
    "events/s",
    "matches/s",
    "build s",
    "bytes/condition",
    "candidates/match",
    "events timed",
    "checked",
    "Tidings is",
)


def table(runs: Sequence[Run], workload: str) -> list[tuple[str, ...]]:
    """One row per contender, in the order they ran."""
    ours = next((run.events_per_s for run in runs if (run.contender, run.workload) == (OURS, workload)), None)
    return [_row(run, ours) for run in runs if run.workload == workload]


def _row(run: Run, ours: float | None) -> tuple[str, ...]:
    rate = run.events_per_s
    if run.measured is None or rate is None:
        return (run.contender, run.why_not, *[""] * (len(HEAD) - 2))
    measured, facts = run.measured, run.measured["facts"]
    matches_per_s = measured["matches"] / measured["match_s"]
    ratio = "" if ours is None or run.contender == OURS else f"{ours / rate:,.1f}×"
    checked = f"{run.checked:,} equal" if run.agrees else "DIFFERS"
    candidates = facts["candidates"] / max(measured["matches"], 1) if facts.get("candidates") else None
    numbers = (f"{rate:,.0f}", f"{matches_per_s:,.0f}", f"{measured['build_s']:.2f}", _number(bytes_per_condition(run)))
    return (run.contender, *numbers, _number(candidates, 1), f"{measured['events']:,}", checked, ratio)


def _number(value: float | None, digits: int = 0) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def target_rows(found: Sequence[Target]) -> list[tuple[str, ...]]:
    return [
        (t.what, f"{'<' if t.at_most else '≥'} {t.wanted:g}", f"{t.measured:,.2f}", "met" if t.met else "MISSED")
        for t in found
    ]


def extras(runs: Sequence[Run]) -> list[str]:
    """What only Tidings is asked: one event at a time, small batches, a warm start, changes."""
    alone = [_extra(run) for run in runs if run.contender == OURS and run.measured]
    return alone + [_changing(run) for run in runs if run.contender == OURS_TWO_THREADS and run.measured]


def _extra(run: Run) -> str:
    assert run.measured is not None, "filtered by the caller"
    facts = run.measured["facts"]
    single, warm = facts["single_us"], facts["warm_start"]
    batches = ", ".join(f"{float(rate):,.0f} in batches of {size}" for size, rate in facts["batches"].items())
    return (
        f"{run.workload}: one event {single['median']:.1f} µs (p99 {single['p99']:.1f}); events/s {batches}; fresh process: import "
        f"{warm['import_s']:.2f} s, open {warm['open_s'] * 1e3:.1f} ms, first match {warm['first_match_s'] * 1e3:.1f} ms"
    )


def _changing(run: Run) -> str:
    assert run.measured is not None, "filtered by the caller"
    facts = run.measured["facts"]
    changes, wait = facts["changes_per_s"], facts["longest_wait_ms"]
    return (
        f"{run.workload}, 2 cores: {changes:,.0f} changes/s; a reader waits {wait:.1f} ms at most while all is folded"
    )


# ── Where they are shown ─────────────────────────────────────────────────────


def show(report: Report) -> None:
    for workload in _workloads(report):
        print(f"\n{workload}")
        _print([HEAD, *table(report.runs, workload)])
    print("\nTidings alone")
    print("\n".join(f"  {line}" for line in extras(report.runs)))
    print("\ntargets")
    _print([("what", "wanted", "measured", ""), *target_rows(targets(report.runs))])


def _workloads(report: Report) -> list[str]:
    return [size for size in SIZES if any(run.workload == size for run in report.runs)]


def _print(rows: Sequence[tuple[str, ...]]) -> None:
    # A reason why something did not run may be long; it has no numbers beside it to be aligned with.
    full = [row for row in rows if len(row) < 3 or any(row[2:])]
    widths = [max(len(row[i]) for row in full) for i in range(len(rows[0]))]
    names = max(len(row[0]) for row in rows)
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:])] if any(row[2:]) else [row[1]]
        print("  " + "  ".join([row[0].ljust(names), *cells]).rstrip())


def write_page(report: Report, drawn: Sequence[str]) -> None:
    """Puts numbers and figures between the marks in the documentation's page; the words around them stay."""
    text = _between(PAGE.read_text(), NUMBERS, _markdown(report))
    PAGE.write_text(_between(text, GROWTH, _images(drawn)))


def _between(text: str, mark: str, content: str) -> str:
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, after = text.split(begin, 1)[0], text.split(end, 1)[1]
    return f"{before}{begin}\n{content}\n{end}{after}"


def _images(drawn: Sequence[str]) -> str:
    paths = [Path(path) for path in drawn if path.endswith(".svg")]
    return "\n\n".join(f"![events per second by {_what(path)}](../figures/{path.name})" for path in paths)


def _what(path: Path) -> str:
    return path.stem.removeprefix("matching-")


def _markdown(report: Report) -> str:
    machine, libraries = report.machine, report.machine["libraries"]
    versions = ", ".join(f"{name} {number}" for name, number in libraries.items() if number)
    lines = [
        f"Measured {machine['measured_at']} on {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB;"
    ]
    lines += [
        f"Python {machine['python']}, {machine['java']}, {versions}. Load before the run: {machine['load_before']}."
    ]
    for workload in _workloads(report):
        lines += ["", f"### {workload}", "", *_markdown_table([HEAD, *table(report.runs, workload)])]
    lines += ["", "### Tidings alone", "", *(f"- {line}" for line in extras(report.runs))]
    rows = target_rows(targets(report.runs))
    return "\n".join(
        [*lines, "", "### Targets", "", *_markdown_table([("what", "wanted", "measured", "verdict"), *rows])]
    )


def _markdown_table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    rule = "| --- |" + " ---: |" * (len(rows[0]) - 1)
    return [head, rule, *body]
