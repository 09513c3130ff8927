"""The matching benchmark: `python -m benchmarks.matching [--quick] [--only NAME …] [--size WORKLOAD …]`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.matching import figures, machine, report
from benchmarks.matching.contenders import CONTENDERS, OURS, QUICK_SIZES, SIZES, Contender
from benchmarks.matching.prototype import FOLDER
from benchmarks.matching.runs import ROOT, Run, compare, run_limited
from benchmarks.showing import RESULTS

GROWTH_S_MAX = 150
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
    runs = _compete(_chosen(options), options.size or (QUICK_SIZES if options.quick else SIZES))
    done = report.Report(facts, options.quick, runs, {} if options.only else _growth(options.quick))
    report.show(done)
    if not options.only and not options.size:
        _keep(done)
    return 0 if all(run.agrees for run in runs if run.measured) else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matching", description="tidings.Index and its peers")
    parser.add_argument("--quick", action="store_true", help="10k and 100k, fast engines only: about two minutes")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="only engines whose name contains one of these; no file is written"
    )
    parser.add_argument("--size", nargs="+", choices=SIZES, help="only these workloads; no file is written")
    parser.add_argument("--prototype", metavar="DIR", help=f"folder of the prototype, also by {FOLDER}")
    parser.add_argument(
        "--page", action="store_true", help="draw figures and documentation from the last full results, run nothing"
    )
    return parser.parse_args(arguments)


def _chosen(options: argparse.Namespace) -> list[Contender]:
    chosen = [contender for contender in CONTENDERS if contender.quick or not options.quick]
    words = [word.lower() for word in options.only or [""]]
    return [contender for contender in chosen if any(word in contender.name.lower() for word in words)]


def _compete(contenders: Sequence[Contender], sizes: Sequence[str]) -> list[Run]:
    runs, begun = [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for run in compare(contenders, sizes, Path(folder)):
            _tell(run, time.monotonic() - begun)
            runs.append(run)
    return runs


def _tell(run: Run, elapsed_s: float) -> None:
    outcome = f"{run.events_per_s:,.0f} events/s" if run.events_per_s else run.why_not
    doubt = "" if run.agrees is not False else "  ANSWERS DIFFER"
    print(f"{elapsed_s:4.0f} s  {run.workload:9} {run.contender:24} {outcome}{doubt}", file=sys.stderr, flush=True)


def _growth(quick: bool) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.matching.growth", *(["--quick"] if quick else [])]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    found = run_limited(command, environment, GROWTH_S_MAX)
    if "skipped" in found:
        print(f"growth of {OURS}: {found['skipped']}", file=sys.stderr)
        return {}
    return found


def _keep(done: report.Report) -> None:
    print(f"\nwritten: {done.save().relative_to(ROOT)}")
    if not done.quick:
        _redraw()


def _redraw() -> int:
    last = report.Report.open(RESULTS / "matching.json")
    drawn = figures.draw(last)
    report.write_page(last, drawn)
    print("drawn: " + ", ".join(drawn))
    return 0


if __name__ == "__main__":
    sys.exit(main())
