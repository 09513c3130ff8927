"""All contenders over all workloads, each in a process of its own, their answers compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np

from benchmarks.matching.contenders import ONE_THREAD, Contender
from benchmarks.matching.engine import Answers, Workload

ROOT = Path(__file__).parents[2]
# The whole benchmark ends within 20 minutes: the two families of workloads, growth, and Tidings alone.
TOTAL_S_MAX, LIMIT_S_MIN = 520, 10
# Events scanned as the definition of right; what a scan of them costs is about a second or two per workload.
SCANNED = {"base10k": 1_000, "base100k": 500, "base1m": 60, "hard1m": 60}
SCANNED |= {"mixed1k": 1_000, "mixed10k": 1_000, "mixed100k": 300, "mixed1m": 40}


@dataclass(frozen=True, slots=True)
class Run:
    """A contender on a workload: measured, or not and why; `checked` events were compared with the scan or with Tidings.

    `load` is that of the machine when the run began: above 1 or so, other programs ran beside it.
    """

    contender: str
    workload: str
    subscriptions: int
    measured: dict[str, Any] | None = None
    why_not: str = ""
    checked: int = 0
    agrees: bool | None = None
    measured_at: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    load: float | None = None

    @property
    def events_per_s(self) -> float | None:
        return self.measured["events"] / self.measured["match_s"] if self.measured else None


def compare(
    contenders: Sequence[Contender], workloads: Sequence[str], folder: Path, patience: float = 1.0
) -> Iterator[Run]:
    """One run after the other. The first contender that answers all events is what the later ones are held against.

    All limits of time are multiplied by `patience`.
    """
    deadline = time.monotonic() + TOTAL_S_MAX * patience
    for name in workloads:
        workload = Workload.make(name, folder)
        truth = Answers.by_scan(workload, SCANNED[name])
        for contender in contenders:
            load = round(os.getloadavg()[0], 2)
            run, answers = _compete(contender, workload, truth, folder, deadline, patience)
            yield replace(run, load=load)
            if answers is not None and run.agrees and len(answers.counts) > len(truth.counts):
                truth = answers


def _compete(
    contender: Contender, workload: Workload, truth: Answers, folder: Path, deadline: float, patience: float
) -> tuple[Run, Answers | None]:
    """Runs one contender; whatever it does wrong is told, not raised."""
    size = workload.conditions
    if workload.name not in contender.events:
        return Run(contender.name, workload.name, size, why_not=f"not tried: {contender.absent}"), None
    limit_s = min(int(contender.limit_s * patience), int(deadline - time.monotonic()))
    if limit_s < LIMIT_S_MIN:
        return Run(
            contender.name, workload.name, size, why_not=f"the {TOTAL_S_MAX * patience:.0f} s of all runs were used up"
        ), None
    said = _start(contender, workload.name, folder, limit_s)
    if "measured" not in said:
        return Run(contender.name, workload.name, size, why_not=said["skipped"]), None
    with np.load(folder / "answers.npz") as arrays:
        answers = Answers(arrays["counts"], arrays["sums"])
    checked = min(len(answers.counts), len(truth.counts))
    return Run(contender.name, workload.name, size, said["measured"], "", checked, answers.agree_with(truth)), answers


def _start(contender: Contender, workload: str, folder: Path, limit_s: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.matching.contest", contender.engine, str(folder), workload]
    command += [str(contender.events[workload]), str(contender.cores)]
    environment = os.environ | ONE_THREAD | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    return run_limited(command, environment, limit_s)


def run_limited(command: list[str], environment: dict[str, str], limit_s: int) -> dict[str, Any]:
    """The JSON a program prints last; one that fails or takes too long is skipped with the reason."""
    # A group of its own, so that a JVM started on the way is ended with it.
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=PIPE, stderr=PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"skipped": f"did not finish in {limit_s} s"}
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.returncode != 0:
        return {"skipped": f"failed: {(err.strip().splitlines() or ['no message'])[-1][:300]}"}
    last: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    return last
