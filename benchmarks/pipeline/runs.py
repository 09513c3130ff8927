"""All contenders over all sizes, each in a process of its own, their answers compared; and how Tidings grows."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.matching.contenders import ONE_THREAD
from benchmarks.matching.engine import Answers, Workload
from benchmarks.matching.runs import ROOT, SCANNED, run_limited
from benchmarks.pipeline.contenders import COMPACT, CONTENDERS, GROWTH_CORES, GROWTH_SIZE, Contender
from benchmarks.pipeline.contest import answers_file
from benchmarks.workload import load

TOTAL_S_MAX, LIMIT_S_MIN = 590, 15  # Ten minutes at most. Whoever does not begin within them is told as not run.
CORES = 2
OURS = "ours"
EVENTS_MIN = 500  # Of a part of the benchmark; with fewer, what a query costs once would be all there is to see.
# Those that promises are about come first, in case that time runs out.
ORDER = ("base100k", "base1m", "base10k")
KERNEL_LIMIT_S = 60


@dataclass(frozen=True, slots=True)
class Run:
    """A contender on a workload: measured, or not and why. `checked` events were compared with a scan or with Tidings."""

    contender: str
    size: str
    subscriptions: int
    events: int
    cores: int = CORES
    measured: dict[str, Any] | None = None
    why_not: str = ""
    checked: int = 0
    agrees: bool | None = None

    @property
    def events_per_s(self) -> float | None:
        return self.measured["events"] / self.measured["seconds"] if self.measured else None


class Comparison:
    """Runs within one folder and one span of time."""

    def __init__(self, folder: Path, share: float) -> None:
        self.folder, self.share = folder, share
        self.deadline = time.monotonic() + TOTAL_S_MAX
        self.kernel: dict[str, float] = {}
        self._truth: dict[str, Answers] = {}
        self._counts: dict[str, int] = {}

    def take_in(self, size: str) -> None:
        """Makes the workload, and scans some of it for the truth."""
        workload = Workload(size, *load(size))
        workload.save(self.folder)
        self._truth[size] = Answers.by_scan(workload, SCANNED[size])
        self._counts[size] = len(workload.wanted)

    def time_kernel(self, size: str) -> None:
        """The bare kernel, with the index that our first run has kept."""
        said = run_limited(_command("kernel", str(self.folder), size), _environment(), KERNEL_LIMIT_S)
        if "cpu_s_per_event" in said:
            self.kernel[size] = said["cpu_s_per_event"]

    def run(self, contenders: Sequence[Contender], size: str, cores: int = CORES) -> Iterator[Run]:
        """Contenders of one process, with each number of events; whatever they do wrong is told, not raised."""
        known = [
            [Run(each.name, size, self._counts[size], self._some_of(count), cores) for count in each.events[size]]
            for each in contenders
        ]
        limit_s = min(sum(each.limit_s for each in contenders), int(self.deadline - time.monotonic()))
        if limit_s < LIMIT_S_MIN:
            yield from (
                _without(run, f"the {TOTAL_S_MAX} s of all runs were used up") for runs in known for run in runs
            )
            return
        with tempfile.TemporaryDirectory(dir=self.folder) as own:
            events = (",".join(str(run.events) for run in runs) for runs in known)
            command = _command("contest", _engines(contenders), own, size, str(cores), *events)
            said = run_limited(command, _environment(), limit_s)
            if "measured" not in said:
                yield from (_without(run, said["skipped"]) for runs in known for run in runs)
                return
            measured = iter(said["measured"])
            for at, runs in enumerate(known):
                for run in runs:
                    with np.load(answers_file(Path(own), at, run.events)) as arrays:
                        yield self._checked(run, next(measured), Answers(arrays["counts"], arrays["sums"]))

    def _some_of(self, count: int) -> int:
        return max(EVENTS_MIN, int(count * self.share))

    def _checked(self, known: Run, measured: dict[str, Any], answers: Answers) -> Run:
        truth = self._truth[known.size]
        checked, agrees = min(len(answers.counts), len(truth.counts)), answers.agree_with(truth)
        if agrees and len(answers.counts) > len(truth.counts):
            self._truth[known.size] = answers  # Later ones are held against all of its events.
        parts = (known.contender, known.size, known.subscriptions, known.events, known.cores)
        return Run(*parts, measured, "", checked, agrees)


def compare(comparison: Comparison, sizes: Sequence[str]) -> Iterator[Run]:
    """Everybody at every size; after our own jobs also the kernel that they used, and at one size how they grow."""
    for size in sorted(sizes, key=ORDER.index):
        comparison.take_in(size)
        for module, contenders in groupby((each for each in CONTENDERS if size in each.events), _module):
            yield from comparison.run(list(contenders), size)
            if module == OURS:
                comparison.time_kernel(size)
                if size == GROWTH_SIZE or len(sizes) == 1:
                    yield from grow(comparison, size)


def grow(comparison: Comparison, size: str) -> Iterator[Run]:
    """Lists again, on fewer cores; growth with events and subscriptions is in the comparison itself."""
    [ours] = [contender for contender in CONTENDERS if contender.name == COMPACT]
    once = replace(ours, events={size: ours.events[size][:1]})
    for cores in GROWTH_CORES:
        yield from comparison.run([once], size, cores)


def _module(contender: Contender) -> str:
    """Spark SQL's ways have one in common, but no process: what one leaves in memory is not to slow the other."""
    module = contender.engine.partition(":")[0]
    return module if module == OURS else contender.engine


def _engines(contenders: Sequence[Contender]) -> str:
    module = contenders[0].engine.partition(":")[0]
    return f"{module}:{','.join(each.engine.partition(':')[2] for each in contenders)}"


def _without(known: Run, why: str) -> Run:
    return Run(known.contender, known.size, known.subscriptions, known.events, known.cores, why_not=why)


def _command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.pipeline.{module}", *arguments]


def _environment() -> dict[str, str]:
    return os.environ | ONE_THREAD | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
