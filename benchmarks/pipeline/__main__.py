"""The whole Spark job from Parquet to Parquet, against Spark SQL and DuckDB on the same cores.

    python -m benchmarks.pipeline                    all sizes, in ten minutes at most
    python -m benchmarks.pipeline --quick            10,000 subscriptions and a quarter of the events
    python -m benchmarks.pipeline --size base100k    some sizes; writes no file without --save, which renews these sizes
    python -m benchmarks.pipeline --page             nothing: tables of the documentation from the last full run

What is compared and how: docs/benchmarks/pipeline.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.matching.machine import facts
from benchmarks.pipeline.contenders import QUICK_SIZES, SIZES
from benchmarks.pipeline.report import Report, show, write_page
from benchmarks.pipeline.runs import Comparison, Run, compare
from benchmarks.showing import RESULTS

QUICK_SHARE = 0.25
BEGAN = time.monotonic()


def main() -> int:
    """Runs, saves and shows; fails if an answer was wrong."""
    asked = _arguments()
    if asked.page:
        write_page(Report.open(RESULTS / "pipeline.json"))
        return 0
    sizes = tuple(asked.size or (QUICK_SIZES if asked.quick else SIZES))
    report = measure(sizes, asked.quick, asked.share or (QUICK_SHARE if asked.quick else 1.0))
    show(report)
    if asked.size and asked.save:
        report = Report.open(RESULTS / "pipeline.json").renewed(report)
    if not asked.size or asked.save:
        print(f"\n{report.save()}")
        if not asked.quick:
            write_page(report)
    return 1 if any(run.agrees is False for run in report.runs) else 0


def measure(sizes: tuple[str, ...], quick: bool, share: float) -> Report:
    machine = facts()
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(Path(folder), share)
        runs = [_told(run) for run in compare(comparison, sizes)]
    return Report(machine, quick, comparison.kernel, runs)


def _told(run: Run) -> Run:
    rate = f"{run.events_per_s:,.0f} events/s" if run.events_per_s else run.why_not
    what = f"{run.size}, {run.contender}, {run.events:,} events, {run.cores} cores"
    print(f"{time.monotonic() - BEGAN:4.0f} s  {what}: {rate}", file=sys.stderr, flush=True)
    return run


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Whole jobs, from Parquet to Parquet.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--size", nargs="+", choices=SIZES)
    parser.add_argument("--save", action="store_true", help="what --size measures; without --size all is saved")
    parser.add_argument("--share", type=float, help="of the events")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
