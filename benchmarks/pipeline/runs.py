"""All contenders over all sizes, each in a process of its own, their answers compared; and how Tidings grows."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.matching.contenders import ONE_THREAD
from benchmarks.matching.engine import Answers, Workload
from benchmarks.matching.runs import ROOT, SCANNED, run_limited
from benchmarks.pipeline.contenders import COMPACT, CONTENDERS, Contender
from benchmarks.workload import load

TOTAL_S_MAX, LIMIT_S_MIN = 590, 15  # Ten minutes at most. Whoever does not begin within them is told as not run.
CORES = 2
GROWTH_SIZE = "base100k"
GROWTH_EVENTS, GROWTH_CORES = (200_000, 400_000), (1,)
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

    def run(self, contender: Contender, size: str, cores: int = CORES, events: int = 0) -> Run:
        """One contender; whatever it does wrong is told, not raised."""
        count = events or max(1_000, int(contender.events[size] * self.share))
        known = Run(contender.name, size, self._counts[size], count, cores)
        limit_s = min(contender.limit_s, int(self.deadline - time.monotonic()))
        if limit_s < LIMIT_S_MIN:
            return _without(known, f"the {TOTAL_S_MAX} s of all runs were used up")
        with tempfile.TemporaryDirectory(dir=self.folder) as own:
            command = _command("contest", contender.engine, own, size, str(count), str(cores))
            said = run_limited(command, _environment(), limit_s)
            if "measured" not in said:
                return _without(known, said["skipped"])
            with np.load(Path(own) / "answers.npz") as arrays:
                return self._checked(known, said["measured"], Answers(arrays["counts"], arrays["sums"]))

    def _checked(self, known: Run, measured: dict[str, Any], answers: Answers) -> Run:
        truth = self._truth[known.size]
        checked, agrees = min(len(answers.counts), len(truth.counts)), answers.agree_with(truth)
        if agrees and len(answers.counts) > len(truth.counts):
            self._truth[known.size] = answers  # Later ones are held against all of its events.
        parts = (known.contender, known.size, known.subscriptions, known.events, known.cores)
        return Run(*parts, measured, "", checked, agrees)


def compare(comparison: Comparison, sizes: Sequence[str]) -> Iterator[Run]:
    for size in sorted(sizes, key=ORDER.index):
        comparison.take_in(size)
        for contender in CONTENDERS:
            if size in contender.events:
                yield comparison.run(contender, size)
            if contender.name == COMPACT:
                comparison.time_kernel(size)


def grow(comparison: Comparison, sizes: Sequence[str]) -> Iterator[Run]:
    """Lists again, with fewer events and on one core; growth with subscriptions is in the comparison itself."""
    size = GROWTH_SIZE if GROWTH_SIZE in sizes else sizes[0]
    [ours] = [contender for contender in CONTENDERS if contender.name == COMPACT]
    for cores in GROWTH_CORES:
        yield comparison.run(ours, size, cores=cores)
    for events in GROWTH_EVENTS:
        yield comparison.run(ours, size, events=max(1_000, int(events * comparison.share)))


def _without(known: Run, why: str) -> Run:
    return Run(known.contender, known.size, known.subscriptions, known.events, known.cores, why_not=why)


def _command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"benchmarks.pipeline.{module}", *arguments]


def _environment() -> dict[str, str]:
    return os.environ | ONE_THREAD | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
