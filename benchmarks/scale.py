r"""Conditions as text against events through `tidings match`, at any size, checked by a sample and by count.

    python -m benchmarks.scale                                                   100,000 against 100,000
    python -m benchmarks.scale --conditions 10000000 --events 10000000 --plan zones \
        --master 'local-cluster[2,1,4096]' --conf spark.executor.memory=4g       the large one; hours, and 20 GB of disk
    python -m benchmarks.scale --conditions 1000000 --cache                      twice, the second time without parsing

Intervals are narrower than in the other benchmarks, so that about `--matches` conditions match an event however many
there are. `--save` appends the result to benchmarks/results/scale.json. `local-cluster` needs SPARK_HOME.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks import workload
from benchmarks.matching.machine import facts
from benchmarks.showing import RESULTS, ROOT

CHUNK = 250_000  # Conditions or events that are made and written at once.
SAMPLED = 20  # Events whose matches are found by looking at every condition.
TRIAL = 50_000  # Conditions by which the width of intervals is chosen.


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: what was matched, how long it took, and whether the sample agrees."""

    conditions: int
    events: int
    plan: str
    master: str
    cached: bool
    seconds: float
    deliveries: int
    largest_process_mb: int
    agrees: bool


def main() -> int:
    """Fails if a sampled event has other matches than it should, or files hold another count than the command said."""
    asked = _arguments()
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        width = width_for(asked.matches / asked.conditions)
        write(folder, asked.conditions, asked.events, width)
        outcomes = []
        for is_again in (False, True) if asked.cache else (False,):
            outcomes.append(measured(folder, asked, width, is_again))
            print(json.dumps(asdict(outcomes[-1])), flush=True)
    if asked.save:
        _save(outcomes)
    return 0 if all(outcome.agrees for outcome in outcomes) else 1


def width_for(share: float) -> float:
    """The width of intervals by which about this share of pairs match, between none and the benchmark's usual."""
    values = workload.events()[:200]
    low, high = 1e-6, workload.SCALES["base"]
    for _ in range(12):
        middle = (low * high) ** 0.5
        trial = workload.subscriptions(TRIAL, middle)
        found = np.mean([len(workload.matches_by_scan(trial, event)) for event in values]) / TRIAL
        low, high = (low, middle) if found > share else (middle, high)
    return high


def chunks(count: int) -> Iterator[tuple[int, int]]:
    """The number and the size of each chunk."""
    for at, start in enumerate(range(0, count, CHUNK)):
        yield at, min(CHUNK, count - start)


def wanted(at: int, count: int, width: float) -> workload.Subscriptions:
    return workload.subscriptions(count, width, seed=1_000 + at)


def write(folder: Path, conditions: int, events: int, width: float) -> None:
    for part in ("conditions", "events"):
        (folder / part).mkdir()
    for at, count in chunks(conditions):
        texts = workload.condition_texts(wanted(at, count, width))
        ids = [f"c{at * CHUNK + row}" for row in range(count)]
        rows = pa.table({"id": ids, "subscriber": [f"s{row % 1_000}" for row in range(count)], "filter": texts})
        pq.write_table(rows, folder / "conditions" / f"{at:05}.parquet")
    for at, count in chunks(events):
        rows = workload.event_table(workload.events.__wrapped__(count, 2_000 + at))
        ids = pa.array([f"e{at * CHUNK + row}" for row in range(count)])
        pq.write_table(rows.add_column(0, "event_id", ids), folder / "events" / f"{at:05}.parquet")


def measured(folder: Path, asked: argparse.Namespace, width: float, is_again: bool) -> Outcome:
    out = folder / "out"
    settings = [*asked.conf, *([f"spark.tidings.parsedCache={folder / 'parsed'}"] if asked.cache else [])]
    given = [part for setting in settings for part in ("--conf", setting)]
    command = [sys.executable, "-m", "tidings", "match", "events", "conditions", "--out", str(out), "--overwrite"]
    command += ["--plan", asked.plan, "--master", asked.master, "-o", "json", *given]
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if done.returncode != 0:
        sys.exit(f"tidings match failed:\n{done.stderr[-2_000:]}")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    held = ds.dataset(out, format="parquet").count_rows()
    agrees = held == told["deliveries"] and sample_agrees(out, asked.conditions, asked.events, width)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
    return Outcome(
        asked.conditions, asked.events, asked.plan, asked.master, is_again, round(seconds, 1), held, peak, agrees
    )  # fmt: skip


def sample_agrees(out: Path, conditions: int, events: int, width: float) -> bool:
    """Whether some events of the first chunk have exactly the matches that a look at every condition finds."""
    at, count = next(chunks(events))
    values = workload.events.__wrapped__(count, 2_000 + at)
    rows = np.random.default_rng(3).choice(count, min(SAMPLED, count), replace=False)
    expected: dict[str, set[str]] = defaultdict(set)
    for number, size in chunks(conditions):
        here = wanted(number, size, width)
        for row in rows:
            expected[f"e{row}"] |= {f"c{number * CHUNK + at}" for at in workload.matches_by_scan(here, values[row])}
    ids = pa.array([f"e{row}" for row in rows])
    found: dict[str, list[str]] = defaultdict(list)
    for row in ds.dataset(out, format="parquet").to_table(filter=pc.field("event_id").isin(ids)).to_pylist():
        found[row["event_id"]].append(row["subscription_id"])
    return all(sorted(found[id]) == sorted(expected[id]) for id in ids.to_pylist())


def _save(outcomes: list[Outcome]) -> None:
    file = RESULTS / "scale.json"
    known = json.loads(file.read_text()) if file.exists() else []
    machine = facts()
    known += [{"machine": machine, **asdict(outcome)} for outcome in outcomes]
    file.write_text(json.dumps(known, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conditions", type=int, default=100_000)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--matches", type=float, default=5.0, help="conditions that match an event, about")
    parser.add_argument("--plan", default="auto")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--conf", action="append", default=[])
    parser.add_argument("--folder", help="where there is space; the system's temporary folder otherwise")
    parser.add_argument("--cache", action="store_true", help="keep parsed conditions, and run twice")
    parser.add_argument("--save", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
