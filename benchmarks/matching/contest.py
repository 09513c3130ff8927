"""One contender on one workload, in this process, pinned: `python -m benchmarks.matching.contest …`.

The program is started by `runs`, with its limits; it leaves the answers as a file and prints one line of JSON.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np

from benchmarks.matching.engine import Answers, Engine, Skipped, Workload

# The best round counts: of as many as fit into a while, since a quick one may be disturbed for all its time;
# and of a few where a round takes longer, unless they take too long.
ROUNDS_MAX, ROUNDS_S = 25, 1.5
ROUNDS_MIN, ROUNDS_S_MAX = 5, 6.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What the clock said: the best round over `events` events, `matches` pairs found in it."""

    build_s: float
    events: int
    match_s: float
    matches: int
    facts: dict[str, Any] = field(default_factory=dict)


def enter(engine: str, workload: Workload) -> tuple[Measured, Answers]:
    """Runs the contender named `module:attribute`: an engine for us to time, or a function that times itself."""
    module, attribute = engine.split(":")
    entrant = getattr(import_module(f"benchmarks.matching.{module}"), attribute)
    if isinstance(entrant, FunctionType):
        measured, answers = entrant(workload)
        return measured, answers
    return time_engine(entrant(), workload)


def time_engine(engine: Engine, workload: Workload) -> tuple[Measured, Answers]:
    engine.warm_up(workload)
    clock = _clock(engine)
    start = clock()
    engine.build(workload)
    build_s = clock() - start
    engine.admit(workload)
    match_s = best_round(engine)
    answers = engine.answers()
    matches = int(answers.counts.sum())
    return Measured(build_s, len(workload.events), match_s, matches, engine.facts()), answers


def best_round(engine: Engine) -> float:
    rounds, clock = list[float](), _clock(engine)
    while goes_on(len(rounds), sum(rounds)):
        start = clock()
        engine.match()
        rounds.append(clock() - start)
    return min(rounds)


def _clock(engine: Engine) -> Callable[[], float]:
    """Processor time of this process, all its threads together: on one pinned core that is the time an idle machine takes.

    An engine that works elsewhere, or on several cores, brings a clock of its own.
    """
    return getattr(engine, "clock", time.process_time)


def goes_on(rounds: int, spent_s: float) -> bool:
    """Whether a further round is begun, after so many that took so long: the same rule for every engine."""
    return (rounds < ROUNDS_MAX and spent_s < ROUNDS_S) or (rounds < ROUNDS_MIN and spent_s < ROUNDS_S_MAX)


def pin(core_count: int) -> None:
    """Keeps this process and what it starts on the last cores of the machine, where that can be said."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-core_count:])


def main(engine: str, folder: str, workload: str, event_count: str, core_count: str) -> None:
    pin(int(core_count))
    try:
        measured, answers = enter(engine, Workload.open(Path(folder), workload, int(event_count)))
    except Skipped as why:
        print(json.dumps({"skipped": str(why)}))
        return
    np.savez(Path(folder) / "answers.npz", counts=answers.counts, sums=answers.sums)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"measured": asdict(measured) | {"peak_bytes": peak}}))


if __name__ == "__main__":
    main(*sys.argv[1:])
