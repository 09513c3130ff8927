"""Peers in Java, through the Maven project in benchmarks/java: one core, serial garbage collector.

Rules are given as text, because that is what the libraries take, so building includes their parsing.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.matching.contest import Measured
from benchmarks.matching.engine import Answers, Skipped, Workload
from benchmarks.workload import ATTRIBUTES

PROJECT = Path(__file__).parents[1] / "java"
BUILD_S_MAX, MATCH_S_MAX = 90, 30  # Per peer and workload: the harness stops there and says how far it came.
PACKAGE_S_MAX = 240  # The first time, Maven downloads its plugins and the library.
HEAP = "-Xmx10g"


def event_ruler(workload: Workload) -> tuple[Measured, Answers]:
    return _run("ruler", workload)


def vespa(workload: Workload) -> tuple[Measured, Answers]:
    return _run("vespa", workload)


def _run(peer: str, workload: Workload) -> tuple[Measured, Answers]:
    _package(peer)
    with tempfile.TemporaryDirectory() as folder:
        given, answered = Path(folder) / "workload", Path(folder) / "answers"
        _write(workload, given)
        result = json.loads(_java(peer, given, answered))
        if result["built"] < len(workload.wanted):
            raise Skipped(f"built {result['built']:,} of {len(workload.wanted):,} rules in {BUILD_S_MAX} s")
        answers = _read(answered)
    facts = {"bytes": result["heap_bytes"], "bytes_are": "used heap, rules and events"}
    return Measured(result["build_s"], result["events"], result["match_s"], int(answers.counts.sum()), facts), answers


def _package(peer: str) -> None:
    for program in ("mvn", "java"):
        if shutil.which(program) is None:
            raise Skipped(f"`{program}` is not on this machine")
    run = partial(subprocess.run, cwd=PROJECT, capture_output=True, text=True, timeout=PACKAGE_S_MAX)
    done = run(["mvn", "-B", "-q", "-Dstyle.color=never", "-pl", peer, "-am", "package"])
    if done.returncode != 0:
        errors = [line for line in done.stdout.splitlines() if "ERROR" in line]
        raise Skipped(f"Maven: {_cause(errors[0] if errors else done.stderr)}")


def _cause(error: str) -> str:
    """The part of Maven's complaint that says what is missing."""
    missing = re.search(r"Could not find artifact (\S+)|(\S+:jar:\S+) was not found", error)
    return f"could not find {missing[1] or missing[2]}" if missing else error.removeprefix("[ERROR] ")[:200]


def _java(peer: str, given: Path, answered: Path) -> str:
    target = PROJECT / peer / "target"
    classes = f"{target / f'{peer}-1.jar'}:{target / 'dependency'}/*"
    limits = [str(BUILD_S_MAX), str(MATCH_S_MAX)]
    command = [
        "java",
        "-XX:+UseSerialGC",
        HEAP,
        "-cp",
        classes,
        f"bench.{peer}.Main",
        str(given),
        str(answered),
        *limits,
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _write(workload: Workload, path: Path) -> None:
    wanted, events = workload.wanted, workload.events
    sizes = np.array([len(wanted), len(wanted.attr), len(events), ATTRIBUTES])
    with path.open("wb") as file:
        for part in (sizes, wanted.ptr, wanted.attr, wanted.lo, wanted.hi, events):
            file.write(part.astype("<i4").tobytes())


def _read(path: Path) -> Answers:
    content = path.read_bytes()
    count = len(content) // 12
    return Answers(
        np.frombuffer(content, "<i4", count).astype(np.int64), np.frombuffer(content, "<i8", count, 4 * count)
    )
