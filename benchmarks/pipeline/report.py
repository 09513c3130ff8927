"""Results as a file, as tables on a terminal and in the documentation, and what was promised against what was measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.pipeline.contenders import COMPACT, DUCKDB, EXPERT, ITSELF, SIZES
from benchmarks.pipeline.runs import Run
from benchmarks.showing import (
    PAGES,
    Target,
    markdown_table,
    markdown_targets,
    print_table,
    print_targets,
    put_between,
    save,
)

PAGE = PAGES / "pipeline.md"
# Times as fast as each peer, by size; and how much of the kernel's processor time the whole job may take.
PROMISES = {
    (EXPERT, "base100k"): 40.0,
    (EXPERT, "base1m"): 100.0,
    (ITSELF, "base100k"): 1_000.0,
    (ITSELF, "base1m"): 1_000.0,
    (DUCKDB, "base100k"): 5.0,
    (DUCKDB, "base1m"): 5.0,
}
KERNEL_TIMES_MAX = 2.5

HEAD = ("job", "events/s", "matches/s", "seconds", "CPU s", "kernel's share", "MB per worker", "checked", "lists are")
GROWTH_HEAD = ("size", "events", "cores", "events/s", "seconds", "CPU s")


@dataclass(frozen=True, slots=True)
class Report:
    """One run of the benchmark; `kernel` has processor seconds per event, by size.

    `apart` has the machine of each size that was measured by itself later.
    """

    machine: dict[str, Any]
    quick: bool
    kernel: dict[str, float]
    runs: list[Run] = field(default_factory=list)
    apart: dict[str, dict[str, Any]] = field(default_factory=dict)

    def save(self) -> Path:
        return save("pipeline", asdict(self), self.targets())

    @classmethod
    def open(cls, path: Path) -> Report:
        found = json.loads(path.read_text())
        runs = [Run(**run) for run in found["runs"]]
        return cls(found["machine"], found["quick"], found["kernel"], runs, found.get("apart", {}))

    def renewed(self, later: Report) -> Report:
        """With the sizes of a later run in place of what was known of them."""
        sizes = _sizes(later)
        runs = [run for run in self.runs if run.size not in sizes] + later.runs
        apart = self.apart | dict.fromkeys(sizes, later.machine)
        return Report(self.machine, self.quick, self.kernel | later.kernel, runs, apart)

    def run_of(self, contender: str, size: str) -> Run | None:
        """The run that a contender is compared by: its first at this size."""
        return next((r for r in self.runs if (r.contender, r.size) == (contender, size) and r.measured), None)

    def targets(self) -> list[Target]:
        """Every promise that these runs say something about."""
        return [*self._against_peers(), *self._against_kernel()]

    def _against_peers(self) -> Iterator[Target]:
        for (peer, size), times in PROMISES.items():
            ours, theirs = self.run_of(COMPACT, size), self.run_of(peer, size)
            if ours and theirs:
                yield Target(f"{size}: times {peer}", times, _rate(ours) / _rate(theirs))

    def _against_kernel(self) -> Iterator[Target]:
        for size in SIZES:
            ours = self.run_of(COMPACT, size)
            if ours and ours.measured and size in self.kernel:
                times = ours.measured["cpu_s"] / (self.kernel[size] * ours.measured["events"])
                yield Target(f"{size}: lists, times the kernel's CPU time", KERNEL_TIMES_MAX, times, at_most=True)


def _rate(run: Run) -> float:
    return run.events_per_s or 0.0


# ── Tables, as rows of text ──────────────────────────────────────────────────


def table(report: Report, size: str) -> list[tuple[str, ...]]:
    ours, compared = report.run_of(COMPACT, size), _compared(report, size)
    return [_row(run, ours, report.kernel.get(size)) for run in compared]


def _compared(report: Report, size: str) -> list[Run]:
    """Of several runs of a contender, the first; the others are about growth."""
    first: dict[str, Run] = {}
    for run in report.runs:
        if run.size == size:
            first.setdefault(run.contender, run)
    return list(first.values())


def _row(run: Run, ours: Run | None, kernel: float | None) -> tuple[str, ...]:
    if run.measured is None:
        return (run.contender, run.why_not, *[""] * (len(HEAD) - 2))
    m = run.measured
    is_ours = run.contender.startswith("Tidings")
    share = f"{100 * kernel * m['events'] / m['cpu_s']:.0f} %" if kernel and is_ours and m["cpu_s"] else ""
    ratio = f"{_rate(ours) / _rate(run):,.1f}×" if ours and run.contender != COMPACT else ""
    numbers = (f"{_rate(run):,.0f}", f"{m['pairs'] / m['seconds']:,.0f}", f"{m['seconds']:.2f}", f"{m['cpu_s']:.2f}")
    checked = f"{run.checked:,} equal" if run.agrees else "DIFFERS"
    return (run.contender, *numbers, share, _memory(m["peaks_mb"]), checked, ratio)


def _memory(peaks: dict[str, int]) -> str:
    """Of the JVM and of the largest Python worker, where there are such."""
    parts = [f"{name} {peaks[name]:,}" for name in ("java", "python", "driver") if name in peaks]
    return ", ".join(parts[:2])


def growth_rows(report: Report) -> list[tuple[str, ...]]:
    """Lists at all sizes, numbers of events and cores."""
    runs = [run for run in report.runs if run.contender == COMPACT]
    return [_growth_row(run) for run in sorted(runs, key=lambda run: (run.subscriptions, run.cores, run.events))]


def _growth_row(run: Run) -> tuple[str, ...]:
    header = (run.size, f"{run.events:,}", str(run.cores))
    if run.measured is None:
        return (*header, run.why_not, "", "")
    return (*header, f"{_rate(run):,.0f}", f"{run.measured['seconds']:.2f}", f"{run.measured['cpu_s']:.2f}")


def once_rows(report: Report) -> list[str]:
    """What a job does once, before its first event."""
    runs = [run for size in SIZES if (run := report.run_of(COMPACT, size))]
    return [f"{run.size}: {_once(run.measured['facts'])}" for run in runs if run.measured and run.measured["facts"]]


def _once(facts: dict[str, Any]) -> str:
    if not facts["parse_s"]:  # As releases before 0.2 measured a million.
        return f"conditions given as boxes, index built and sent in {facts['build_and_ship_s']:.1f} s"
    return (
        f"conditions parsed in {facts['parse_s']:.1f} s ({facts['parse_cpu_s']:.1f} s of processors), index built and"
        f" sent in {facts['build_and_ship_s']:.1f} s ({facts['build_and_ship_cpu_s']:.1f} s)"
    )


# ── Where they are shown ─────────────────────────────────────────────────────


def show(report: Report) -> None:
    for size in _sizes(report):
        print(f"\n{size}")
        print_table([HEAD, *table(report, size)])
    print("\ngrowth, lists")
    print_table([GROWTH_HEAD, *growth_rows(report)])
    print("\nonce per job\n" + "\n".join(f"  {line}" for line in once_rows(report)))
    print_targets(report.targets())


def _sizes(report: Report) -> Sequence[str]:
    return [size for size in SIZES if any(run.size == size for run in report.runs)]


def write_page(report: Report) -> None:
    """Puts the numbers between the marks in the documentation's page; the words around them stay."""
    put_between(PAGE, "numbers", _markdown(report))


def _markdown(report: Report) -> str:
    lines = _measured_on(report.machine)
    for size in _sizes(report):
        lines += ["", f"### {size}", ""]
        lines += [*_measured_on(report.apart[size]), ""] if size in report.apart else []
        lines += markdown_table([HEAD, *table(report, size)])
    lines += ["", "### Growth", "", *markdown_table([GROWTH_HEAD, *growth_rows(report)])]
    lines += ["", "### Once per job", "", *(f"- {line}" for line in once_rows(report))]
    return "\n".join([*lines, *markdown_targets(report.targets())])


def _measured_on(machine: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {number}" for name, number in machine["libraries"].items() if number)
    return [
        f"Measured {machine['measured_at']} on {machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB;",
        f"Python {machine['python']}, {machine['java']}, {versions}. Load before the run: {machine['load_before']}.",
    ]
