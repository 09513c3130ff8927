"""Conformance with new seeds for as long as one likes: `python -m tests.soak --minutes 10`.

Prints each failure, shrunk, with the command that replays it; exit code 1 if there was one.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.conformance import FAULTS, NODE_COUNT, PROTOCOLS
from tidings.sim import Plan, failure, shrunk


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Run the conformance suite on new seeds.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--protocol", choices=PROTOCOLS, action="append", help="only these (default: all)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9), help="the first seed")
    asked = parser.parse_args()
    return soak(asked.protocol or PROTOCOLS, asked.seed, time.monotonic() + asked.minutes * 60)


def soak(protocols: tuple[str, ...] | list[str], seed: int, until: float) -> int:
    runs = failures = 0
    while time.monotonic() < until:
        for name in protocols:
            for kind in FAULTS:
                runs += 1
                failures += not holds(Plan(name, seed=seed, node_count=NODE_COUNT, faults=FAULTS[kind](seed)))
        seed += 1
    print(f"{runs} runs, {failures} failures, next seed {seed}")
    return 1 if failures else 0


def holds(plan: Plan) -> bool:
    if failure(plan) is None:
        return True
    print(f"{failure(shrunk(plan))}\n", flush=True)
    return False


if __name__ == "__main__":
    sys.exit(main())
