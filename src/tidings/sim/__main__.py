"""`python -m tidings.sim`: run a plan again, show it, or make it smaller.

    python -m tidings.sim replay PLAN            run it, judge it, print its digest
    python -m tidings.sim replay PLAN --show     … and the timeline of what happened
    python -m tidings.sim shrink PLAN            print a smaller plan that fails too

PLAN is JSON, or a file of it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tidings.errors import TidingsError
from tidings.sim.plan import SimulationPlan, failure, run, shrunk


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0: the plan holds. 1: it fails. 2: it is no plan."""
    asked = _parser().parse_args(arguments)
    try:
        plan = SimulationPlan.read(asked.plan if asked.plan.lstrip().startswith("{") else Path(asked.plan).read_text())
        return _shrink(plan) if asked.what == "shrink" else _replay(plan, asked.show)
    except (TidingsError, OSError) as wrong:
        sys.stderr.write(f"{wrong}\n")
        return 2


def _replay(plan: SimulationPlan, show: bool) -> int:
    failed = failure(plan)
    if show:
        sys.stdout.write(run(plan).trace.timeline(rows_max=100_000) + "\n")
    elif not failed:
        sys.stdout.write(run(plan).trace.digest() + "\n")
    if failed:
        sys.stderr.write(f"{failed}\n")
    return 1 if failed else 0


def _shrink(plan: SimulationPlan) -> int:
    if failure(plan) is None:
        sys.stderr.write("this plan holds; there is nothing to shrink\n")
        return 0
    smaller = shrunk(plan)
    sys.stdout.write(smaller.written() + "\n")
    sys.stderr.write(f"{failure(smaller)}\n")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tidings.sim", description="Replay or shrink a simulated run.")
    parser.add_argument("what", choices=["replay", "shrink"])
    parser.add_argument("plan", help="a plan as JSON, or a file of it")
    parser.add_argument("--show", action="store_true", help="print the timeline of what happened")
    return parser


if __name__ == "__main__":
    sys.exit(main())
