"""How many random pairs a second are routed over a million brokers, on one core: Spanhop on a balanced tree of two axes.

    python -m benchmarks.spanhop_routing [--levels N] [--pairs N]

The goal is 200,000 a second with 2^20 brokers and m = 4. Exit code 1 if it is missed.
Making the tables and compiling are told apart: both are done once for a network.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

from tidings.lab.spanhop.routing import HERE, RoutingTables, routes, tables
from tidings.lab.spanhop.split_tree import balanced

LEVELS, PAIRS = 20, 1_000_000
PER_S_MIN = 200_000.0
RESULT = Path(__file__).parent / "results" / "spanhop_routing.json"


def measured(known: RoutingTables, pairs: int) -> dict[str, float]:
    """Routes from random brokers to random points of random brokers' zones; CPU time of this one thread."""
    rng = np.random.default_rng(1)
    sources, targets = rng.integers(0, len(known.tree), (2, pairs))
    points = known.tree.points_in(targets, rng)
    routes(known, sources[:1], points[:1])  # Compiles.
    begun = time.process_time()
    walked = routes(known, sources, points)
    seconds = time.process_time() - begun
    assert (walked.ended == HERE).all(), "a message was not delivered"
    return {"hops": float(walked.hops.mean()), "cpu_s": round(seconds, 3), "per_s": pairs / seconds}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spanhop_routing")
    parser.add_argument("--levels", type=int, default=LEVELS)
    parser.add_argument("--pairs", type=int, default=PAIRS)
    asked = parser.parse_args()
    tables(balanced(2, 2), 4)  # Compiles.
    begun = time.process_time()
    known = tables(balanced(2, asked.levels), 4)
    made_s = time.process_time() - begun
    result = measured(known, asked.pairs)
    print(f"{len(known.tree):,} brokers: tables in {made_s:.1f} s")
    print(f"{asked.pairs:,} pairs, {result['hops']:.2f} hops each: {result['per_s']:,.0f} pairs a second")
    RESULT.parent.mkdir(exist_ok=True)
    about = {"goal_per_s": PER_S_MIN, "brokers": len(known.tree), "tables_cpu_s": round(made_s, 3), **result}
    RESULT.write_text(json.dumps(about, indent=2) + "\n")
    return 0 if result["per_s"] >= PER_S_MIN else 1


if __name__ == "__main__":
    sys.exit(main())
