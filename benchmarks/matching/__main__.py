"""The matching benchmark: `python -m benchmarks.matching [PART …] [--quick] [--only NAME …] [--size WORKLOAD …]`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.matching import figures, machine, report
from benchmarks.matching.contenders import (
    CONTENDERS,
    MIXED_CONTENDERS,
    MIXED_SIZES,
    QUICK_MIXED_SIZES,
    QUICK_SIZES,
    SIZES,
    Contender,
)
from benchmarks.matching.prototype import FOLDER
from benchmarks.matching.report import Report
from benchmarks.matching.runs import ROOT, Run, compare, run_limited
from benchmarks.showing import RESULTS
from tidings.matching import load_kernels

# Parts that compare engines, with who takes part; and those that are programs of their own, with their seconds at most.
CONTESTS = {"plain": CONTENDERS, "mixed": MIXED_CONTENDERS}
WORKLOADS = {"plain": (SIZES, QUICK_SIZES), "mixed": (MIXED_SIZES, QUICK_MIXED_SIZES)}
PROGRAMS = {"flights": 150, "condition_texts": 120, "growth": 150}
PARTS = (*CONTESTS, *PROGRAMS)
BUSY = 0.5  # A load above which something else takes part of a core.


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    # Ended from outside, it still ends the contender it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if options.page:
        return _redraw()
    if options.prototype:
        os.environ[FOLDER] = str(Path(options.prototype).resolve())
    facts = machine.facts()
    if facts["load_before"] > BUSY:
        print(
            f"The machine is busy (load {facts['load_before']}): numbers will be low and ratios unsure.",
            file=sys.stderr,
        )
    load_kernels()  # Once per machine, and at nobody's expense.
    runs, alone = list[Run](), dict[str, dict[str, Any]]()
    try:
        for part in options.parts:
            if part in PROGRAMS:
                alone[part] = _program(part, options)
                continue
            for run in _contest(part, options):
                runs.append(run)
    finally:  # Ended from outside as well, it keeps what it has measured.
        growth = alone.pop("growth", {})
        fresh = Report(facts, options.quick, runs, growth, {part: found for part, found in alone.items() if found})
        done = fresh.merged_with_last()
        if options.keep:
            done.save()
    report.show(done)
    if options.keep:
        _keep(done)
    return 0 if all(run.agrees for run in runs if run.measured) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matching", description="tidings.Index and its peers")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"only these of {', '.join(PARTS)}; all unless told")
    parser.add_argument(
        "--quick", action="store_true", help="small workloads, fast engines: a few minutes, and a file of its own"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only engines whose name contains one of these")
    parser.add_argument("--size", nargs="+", choices=(*SIZES, *MIXED_SIZES), help="only these workloads")
    parser.add_argument(
        "--patience", type=float, default=1.0, metavar="TIMES", help="limits so many times as long: for a busy machine"
    )
    parser.add_argument("--no-keep", dest="keep", action="store_false", help="leave the file of results as it is")
    parser.add_argument("--prototype", metavar="DIR", help=f"folder of the prototype, also by {FOLDER}")
    parser.add_argument(
        "--page", action="store_true", help="draw figures and documentation from the last full results, run nothing"
    )
    options = parser.parse_args(arguments)
    if unknown := [part for part in options.parts if part not in PARTS]:
        parser.error(f"no part is called {unknown[0]!r}; there are {', '.join(PARTS)}")
    # Some engines or some workloads: nothing else is run unless it is named.
    options.parts = options.parts or (CONTESTS if options.only or options.size else PARTS)
    return options


def _contest(part: str, options: argparse.Namespace) -> Iterator[Run]:
    every, few = WORKLOADS[part]
    sizes = [size for size in options.size if size in every] if options.size else few if options.quick else every
    return _compete(_chosen(CONTESTS[part], options), sizes, options.patience)


def _chosen(contenders: Sequence[Contender], options: argparse.Namespace) -> list[Contender]:
    chosen = [contender for contender in contenders if contender.quick or not options.quick]
    words = [word.lower() for word in options.only or [""]]
    return [contender for contender in chosen if any(word in contender.name.lower() for word in words)]


def _compete(contenders: Sequence[Contender], sizes: Sequence[str], patience: float) -> Iterator[Run]:
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for run in compare(contenders, sizes, Path(folder), patience):
            _tell(run, time.monotonic() - begun)
            yield run


def _tell(run: Run, elapsed_s: float) -> None:
    outcome = f"{run.events_per_s:,.0f} events/s" if run.events_per_s else run.why_not
    doubt = "" if run.agrees is not False else "  ANSWERS DIFFER"
    print(f"{elapsed_s:4.0f} s  {run.workload:9} {run.contender:30} {outcome}{doubt}", file=sys.stderr, flush=True)


def _program(part: str, options: argparse.Namespace) -> dict[str, Any]:
    begun = time.monotonic()
    command = [sys.executable, "-m", f"benchmarks.matching.{part}", *(["--quick"] if options.quick else [])]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    found = run_limited(command, environment, int(PROGRAMS[part] * options.patience))
    outcome = found.get("skipped", "done")
    print(f"{time.monotonic() - begun:4.0f} s  {part}: {outcome}", file=sys.stderr, flush=True)
    return {} if "skipped" in found else found


def _keep(done: Report) -> None:
    print(f"\nwritten: {done.save().relative_to(ROOT)}")
    if not done.quick:
        _redraw()


def _redraw() -> int:
    last = Report.open(RESULTS / "matching.json")
    drawn = figures.draw(last)
    report.write_page(last, drawn)
    print("drawn: " + ", ".join(drawn))
    return 0


if __name__ == "__main__":
    sys.exit(main())
