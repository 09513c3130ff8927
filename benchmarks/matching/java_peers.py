"""Peers in Java, through the Maven project in benchmarks/java: one core, serial garbage collector.

Rules are given as text, because that is what the libraries take, so building includes their parsing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.matching.binned import Bins, file_subscriptions
from benchmarks.matching.contest import Measured
from benchmarks.matching.engine import BEYOND, Answers, Array, Skipped, Workload

PROJECT = Path(__file__).parents[1] / "java"
BUILD_S_MAX, MATCH_S_MAX = 90, 30  # Per peer and workload: the harness stops there and says how far it came.
PACKAGE_S_MAX = 240  # The first time, Maven downloads its plugins and the library.
HEAP = "-Xmx10g"
LUCENE_JAVA = 21  # What Lucene 10 needs.


def event_ruler(workload: Workload) -> tuple[Measured, Answers]:
    return _run("ruler", workload)


def lucene(workload: Workload) -> tuple[Measured, Answers]:
    return _run("lucene", workload, LUCENE_JAVA)


def vespa(workload: Workload) -> tuple[Measured, Answers]:
    return _run("vespa", workload)


def _run(peer: str, workload: Workload, least_java: int = 17) -> tuple[Measured, Answers]:
    home = _java_home(least_java)
    _package(peer, home)
    with tempfile.TemporaryDirectory() as folder:
        given, answered = Path(folder) / "workload", Path(folder) / "answers"
        _write(workload, given)
        result = json.loads(_java(home, peer, given, answered))
        if result["built"] < workload.conditions:
            raise Skipped(f"built {result['built']:,} of {workload.conditions:,} rules in {BUILD_S_MAX} s")
        answers = _read(answered)
    facts = {"bytes": result["heap_bytes"], "bytes_are": "used heap, rules and events"}
    return Measured(result["build_s"], result["events"], result["match_s"], int(answers.counts.sum()), facts), answers


def _java_home(least: int) -> Path:
    """The first JDK that is new enough: by JAVA_HOME, the one of `java`, or one installed beside that."""
    program = shutil.which("java")
    if program is None or shutil.which("mvn") is None:
        raise Skipped("`java` or `mvn` is not on this machine")
    usual = Path(program).resolve().parents[1]
    named = [Path(os.environ["JAVA_HOME"])] if "JAVA_HOME" in os.environ else []
    for home in (*named, usual, *sorted(usual.parent.iterdir())):
        release = home / "release"
        version = re.search(r'JAVA_VERSION="(\d+)', release.read_text()) if release.exists() else None
        if version and int(version[1]) >= least and (home / "bin" / "javac").exists():
            return home
    raise Skipped(f"needs a JDK of version {least} or newer, and there is none beside {usual.name}")


def _package(peer: str, home: Path) -> None:
    run = partial(subprocess.run, cwd=PROJECT, capture_output=True, text=True, timeout=PACKAGE_S_MAX)
    command = ["mvn", "-B", "-q", "-Dstyle.color=never", "-pl", peer, "-am", "package"]
    done = run(command, env=os.environ | {"JAVA_HOME": str(home)})
    if done.returncode != 0:
        errors = [line for line in done.stdout.splitlines() if "ERROR" in line]
        raise Skipped(f"Maven: {_cause(errors[0] if errors else done.stderr)}")


def _cause(error: str) -> str:
    """The part of Maven's complaint that says what is missing."""
    missing = re.search(r"Could not find artifact (\S+)|(\S+:jar:\S+) was not found", error)
    return f"could not find {missing[1] or missing[2]}" if missing else error.removeprefix("[ERROR] ")[:200]


def _java(home: Path, peer: str, given: Path, answered: Path) -> str:
    target = PROJECT / peer / "target"
    classes = f"{target / f'{peer}-1.jar'}:{target / 'dependency'}/*"
    limits = [str(BUILD_S_MAX), str(MATCH_S_MAX)]
    command = [
        str(home / "bin" / "java"),
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
    wanted, events, filing = workload.wanted, workload.events, file_subscriptions(workload)
    order = np.argsort(filing.owner, kind="stable")
    begins = np.searchsorted(filing.owner[order], np.arange(len(wanted) + 1))
    keys = Bins(workload).keys(events)
    beyond = _beyond(workload)
    sizes = [len(wanted), len(wanted.attr), *events.shape, len(order), len(beyond[-2]) - 1, len(beyond[-1])]
    parts = (np.array(sizes), wanted.ptr, wanted.attr, wanted.lo, wanted.hi, events, begins, filing.key[order], keys)
    with path.open("wb") as file:
        for part in (*parts, *beyond):
            file.write(part.astype("<i4").tobytes())


def _beyond(workload: Workload) -> list[Array]:
    """What boxes have beside sides; nothing in a plain workload."""
    if boxes := workload.boxes:
        return [getattr(boxes, part) for part in BEYOND]
    nothing, everyone = np.full(len(workload.wanted), -1), np.arange(len(workload.wanted))
    return [everyone, nothing, nothing, nothing, nothing, nothing, np.zeros(1), np.zeros(0)]


def _read(path: Path) -> Answers:
    content = path.read_bytes()
    count = len(content) // 12
    return Answers(
        np.frombuffer(content, "<i4", count).astype(np.int64), np.frombuffer(content, "<i8", count, 4 * count)
    )
