"""Results as a file, as tables on a terminal, and as tables in the documentation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from benchmarks.matching.contenders import CONTENDERS, MIXED_CONTENDERS, MIXED_SIZES, OURS, OURS_TWO_THREADS, SIZES
from benchmarks.matching.runs import Run
from benchmarks.matching.targets import bytes_per_condition, targets
from benchmarks.showing import (
    PAGES,
    RESULTS,
    Target,
    markdown_table,
    markdown_targets,
    print_table,
    print_targets,
    put_between,
    save,
)

PAGE = PAGES / "matching.md"
PAGE_WIDTH = 120  # Characters of a line that is no table.
QUIET = 2.0  # A load above which the page says that other programs ran, too: a contender itself makes it 1.
NUMBERS, GROWTH = "numbers", "growth"  # What stands between a mark of this name and its end is written here.


@dataclass(frozen=True, slots=True)
class Report:
    """One run of the benchmark."""

    machine: dict[str, Any]
    quick: bool
    runs: list[Run]
    growth: dict[str, Any]
    alone: dict[str, Any]  # What programs of their own found, by part.

    def save(self) -> Path:
        return save("matching", asdict(self), self.targets())

    def targets(self) -> list[Target]:
        return targets(self.runs, self.alone)

    @classmethod
    def open(cls, path: Path) -> Report:
        found = json.loads(path.read_text())
        runs = [Run(**{"measured_at": found["machine"]["measured_at"]} | run) for run in found["runs"]]
        return cls(found["machine"], found["quick"], runs, found["growth"], found.get("alone", {}))

    def merged_with_last(self) -> Report:
        """This run, and from the file what it did not measure again."""
        path = RESULTS / ("matching-quick.json" if self.quick else "matching.json")
        if not path.exists():
            return self
        last = Report.open(path)
        fresh = {(run.contender, run.workload): run for run in self.runs}
        kept = [fresh.pop((run.contender, run.workload), run) for run in last.runs]
        runs = sorted([*kept, *fresh.values()], key=_place)
        return Report(self.machine, self.quick, runs, self.growth or last.growth, last.alone | self.alone)


def _place(run: Run) -> tuple[int, int]:
    """Where a run stands: by workload, then in the order of the contenders."""
    names = [contender.name for contender in (*CONTENDERS, *MIXED_CONTENDERS)]
    known = names.index(run.contender) if run.contender in names else len(names)
    return (*SIZES, *MIXED_SIZES).index(run.workload), known


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


def extras(runs: Sequence[Run]) -> list[str]:
    """What only Tidings is asked: one event at a time, small batches, a warm start, changes."""
    alone = [_extra(run) for run in runs if run.contender == OURS and run.measured and run.workload in SIZES]
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
        f"{run.workload}, 2 cores: 2 threads are {facts['speed_up']:.2f}× as fast as 1; {changes:,.0f} changes/s; "
        f"a reader waits {wait:.1f} ms at most while all is folded"
    )


def _programs(alone: dict[str, Any]) -> list[str]:
    lines = []
    if found := alone.get("flights"):
        lines.append(
            f"{found['conditions']} conditions on {found['records']:,} flights, {found['matches']:,} matches, "
            f"{'equal' if found['agrees'] else 'DIFFERENT'} answers: {found['ours_s']:.2f} s; "
            f"DuckDB one by one {found['duckdb_s']:.2f} s"
        )
    if found := alone.get("condition_texts"):
        name, taken = max(found["text_ms"].items(), key=lambda text: text[1])
        lines.append(
            f"{found['bulk_per_s']:,.0f} conditions a second from text to boxes; the slowest text of 64 KB, "
            f"{name}, takes {taken:.0f} ms"
        )
    return lines


# ── Where they are shown ─────────────────────────────────────────────────────


def show(report: Report) -> None:
    for workload in _workloads(report):
        print(f"\n{workload}")
        print_table([HEAD, *table(report.runs, workload)])
    print("\nTidings alone")
    print("\n".join(f"  {line}" for line in [*extras(report.runs), *_programs(report.alone)]))
    print_targets(report.targets())


def _beside(runs: Sequence[Run]) -> list[str]:
    """What other programs mean for these numbers, if there were any."""
    loads = sorted(run.load for run in runs if run.measured and run.load is not None)
    if not loads or loads[-1] <= QUIET:
        return []
    beside = f"Other programs ran beside these, at a load between {loads[0]:.1f} and {loads[-1]:.1f}: what goes by"
    beside += " processor time is somewhat lower than on an idle machine; two threads, changes and waits, by the wall"
    return ["", *_wrapped(beside + " clock, say nothing.")]


def _workloads(report: Report) -> list[str]:
    return [size for size in (*SIZES, *MIXED_SIZES) if any(run.workload == size for run in report.runs)]


def write_page(report: Report, drawn: Sequence[str]) -> None:
    """Puts numbers and figures between the marks in the documentation's page; the words around them stay."""
    put_between(PAGE, NUMBERS, _markdown(report))
    put_between(PAGE, GROWTH, _images(drawn))


def _images(drawn: Sequence[str]) -> str:
    paths = [Path(path) for path in drawn if path.endswith(".svg")]
    return "\n\n".join(f"![events per second by {_what(path)}](../figures/{path.name})" for path in paths)


def _what(path: Path) -> str:
    return path.stem.removeprefix("matching-")


def _wrapped(text: str, first: str = "") -> list[str]:
    return wrap(text, PAGE_WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_long_words=False)


def _markdown(report: Report) -> str:
    machine, libraries = report.machine, report.machine["libraries"]
    versions = ", ".join(f"{name} {number}" for name, number in libraries.items() if number)
    measured = (
        f"Measured {machine['measured_at']} on {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB;"
    )
    measured += (
        f" Python {machine['python']}, {machine['java']}, {versions}. Load before the run: {machine['load_before']}."
    )
    earlier = {run.measured_at for run in report.runs if run.measured_at < machine["measured_at"]}
    if earlier:
        measured += f" Some parts were measured earlier, the first at {min(earlier)}: the file of results says which."
    lines = _wrapped(measured)
    lines += _beside(report.runs)
    for workload in _workloads(report):
        lines += ["", f"### {workload}", "", *markdown_table([HEAD, *table(report.runs, workload)])]
    lines += ["", "### Tidings alone", ""]
    for line in [*extras(report.runs), *_programs(report.alone)]:
        lines += _wrapped(line, "- ")
    return "\n".join([*lines, *markdown_targets(report.targets())])
