"""New seeds for as long as one likes: `python -m tests.soak --minutes 10`.

A fifth of the time the conformance suite runs in the simulated world, a fifth of it chaos strikes live networks of
broker processes, a fifth of it a broker with two processes and a journal in PostgreSQL outlives both and its database, a
fifth of it a hostile member and a stranger attack every overlay, and a fifth of it streaming jobs on Spark, on a
local disk and in S3, are killed and started again. Prints each failure with the command that
replays it, a simulated one shrunk; exit code 1 if there was one.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.adversary.catalogue import KINDS, HostilePlan
from tests.adversary.catalogue import judged as attacked
from tests.conformance import FAULTS, NODE_COUNT, PROTOCOLS
from tests.live import chaos, outliving
from tests.pipeline.kills import killed_again_and_again, killed_in_s3
from tidings.sim import SimulationPlan, failure, shrunk

WORLDS = ("simulated", "live", "outliving", "hostile", "spark")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Run the hard tests on new seeds.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--world", choices=WORLDS, action="append", help="only this one (default: all, a fifth each)")
    parser.add_argument("--protocol", choices=PROTOCOLS, action="append", help="only these in the simulated world")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**9), help="the first seed")
    asked = parser.parse_args()
    worlds, begun, failures = asked.world or WORLDS, time.monotonic(), 0
    for number, world in enumerate(worlds):
        until = begun + asked.minutes * 60 * (number + 1) / len(worlds)
        if world == "simulated":
            failures += soak(asked.protocol or PROTOCOLS, asked.seed, until)
        else:
            soaks = {"live": soak_live, "outliving": soak_outliving, "hostile": soak_hostile, "spark": soak_spark}
            failures += soaks[world](asked.seed, until)
    return 1 if failures else 0


def soak(protocols: Sequence[str], seed: int, until: float) -> int:
    """How many simulated runs failed."""
    runs = failures = 0
    while time.monotonic() < until:
        for name in protocols:
            for kind in FAULTS:
                runs += 1
                failures += not holds(SimulationPlan(name, seed=seed, node_count=NODE_COUNT, faults=FAULTS[kind](seed)))
        seed += 1
    print(f"{runs} simulated runs, {failures} failures, next seed {seed}")
    return failures


def holds(plan: SimulationPlan) -> bool:
    if failure(plan) is None:
        return True
    print(f"{failure(shrunk(plan))}\n", flush=True)
    return False


def soak_live(seed: int, until: float) -> int:
    """How many live runs failed. The last one takes as long as it takes."""
    runs = failures = 0
    while time.monotonic() < until:
        wrong = chaos.judged(chaos.Plan(brokers=6, events=6000, seconds=45.0, seed=seed)).wrong
        runs, failures, seed = runs + 1, failures + bool(wrong), seed + 1
    print(f"{runs} live runs, {failures} failures, next seed {seed}")
    return failures


def soak_outliving(seed: int, until: float) -> int:
    """How many runs lost or repeated something: of 100,000 events, in an order of trials drawn from the seed."""
    runs = failures = 0
    while time.monotonic() < until:
        trials = random.Random(seed).sample(outliving.TRIALS[:-1], len(outliving.TRIALS) - 1)
        wrong = outliving.judged(100_000, 150.0, [*trials, outliving.TRIALS[-1]]).wrong()  # Nothing is left to promote.
        if wrong:
            again = f"python -m tests.live.outliving --only {' '.join(trials)} {outliving.TRIALS[-1]}"
            print("\n".join([*wrong, f"again with {again}\n"]), flush=True)
        runs, failures, seed = runs + 1, failures + bool(wrong), seed + 1
    print(f"{runs} runs of a broker that outlives its machine, {failures} failures, next seed {seed}")
    return failures


def soak_hostile(seed: int, until: float) -> int:
    """How many runs of the catalogue of attacks did harm. The last one takes as long as it takes."""
    runs = failures = 0
    while time.monotonic() < until:
        plan = HostilePlan(KINDS[seed % len(KINDS)], seed, attacks=12)
        if wrong := attacked(plan).wrong:
            again = f"python -m tests.adversary.catalogue --overlay {plan.overlay} --seed {seed} --attacks 12"
            print("\n".join([*wrong, f"again with {again}\n"]), flush=True)
        runs, failures, seed = runs + 1, failures + bool(wrong), seed + 1
    print(f"{runs} hostile runs, {failures} failures, next seed {seed}")
    return failures


def soak_spark(seed: int, until: float) -> int:
    """How many streaming jobs lost or repeated something. The last one takes as long as it takes."""
    runs = failures = 0
    while time.monotonic() < until:
        folder = Path(tempfile.mkdtemp(prefix="tidings-soak-"))
        in_s3 = seed % 2 == 1
        wrong = (killed_in_s3 if in_s3 else killed_again_and_again)(folder, seed)
        if wrong:
            again = f"python -m tests.pipeline.kills --seed {seed}{' --s3' if in_s3 else ''}"
            print("\n".join([*wrong, f"what is left is in {folder}; perhaps again with {again}\n"]), flush=True)
        else:
            shutil.rmtree(folder)
        runs, failures, seed = runs + 1, failures + bool(wrong), seed + 1
    print(f"{runs} streaming jobs, {failures} failures, next seed {seed}")
    return failures


if __name__ == "__main__":
    sys.exit(main())
