r"""Conditions as text against events through `tidings match`, at any size, checked by a sample and by count.

    python -m benchmarks.scale                                                   100,000 against 100,000
    python -m benchmarks.scale --conditions 10000000 --events 10000000 --plan zones \
        --master 'local-cluster[2,1,4096]' --conf spark.executor.memory=1536m    the large one; an hour, and 40 GB of disk
    python -m benchmarks.scale --conditions 1000000 --cache                      twice, the second time without parsing
    python -m benchmarks.scale --stream --batches 4                              the same through `tidings run`
    python -m benchmarks.scale --build --conditions 1000000                      from text to an index, in a Spark that runs
    python -m benchmarks.scale --page                                            the figure and the page, from what is saved

Intervals are narrower than in the other benchmarks, so that about `--matches` conditions match an event however many
there are. `--save` appends the result to benchmarks/results/scale.json. `local-cluster` needs SPARK_HOME.

Seconds are of the clock and grow on a machine that does other things as well; processor seconds, of the command and all
that it starts, hardly do. Memory is what the processes of one executor had at once, pages that they share counted in
each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks import scale_page, workload
from benchmarks.matching.machine import facts
from benchmarks.pipeline.usage import cpu_s, executors_mb, peaks_mb
from benchmarks.showing import RESULTS, ROOT
from tidings.events import write_file
from tidings.pipeline import list_deliveries, parse_settings, start
from tidings.pipeline.matching.index_replica import distribute_index
from tidings.pipeline.matching.parse_subscriptions import ParsedSubscriptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CHUNK = 250_000  # Conditions or events that are made and written at once.
SAMPLED = 20  # Events whose matches are found by looking at every condition.
TRIAL = 50_000  # Conditions by which the width of intervals is chosen.


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: what was matched, how long it took, and whether the sample agrees."""

    conditions: int
    events: int
    plan: str
    command: str
    batches: int
    master: str
    cached: bool
    seconds: float
    cpu_s: float
    deliveries: int
    executor_mb: int
    driver_mb: int
    load: float
    agrees: bool


def main() -> int:
    """Fails if a sampled event has other matches than it should, or files hold another count than the command said."""
    asked = _arguments()
    if asked.page:
        scale_page.write()
        return 0
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        folder = Path(name)
        width = width_for(asked.matches / asked.conditions)
        made = Path(asked.made or folder).absolute()
        write(made, asked.conditions, 1 if asked.build else asked.events, width)
        if asked.only_make:
            return 0
        for part in ("conditions", "events") if asked.made else ():
            (folder / part).symlink_to(made / part)
        if asked.build:
            outcomes = [built(folder, asked)]
        else:
            outcomes = [measured(folder, asked, width, again) for again in ((False, True) if asked.cache else (False,))]
    for outcome in outcomes:
        print(json.dumps(asdict(outcome)), flush=True)
    if asked.save:
        save(outcomes)
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
    for at, first in enumerate(range(0, count, CHUNK)):
        yield at, min(CHUNK, count - first)


def wanted(at: int, count: int, width: float) -> workload.Subscriptions:
    return workload.subscriptions(count, width, seed=1_000 + at)


def write(folder: Path, conditions: int, events: int, width: float) -> None:
    """Files that are there already stay."""
    for part in ("conditions", "events"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for at, count in chunks(conditions):
        if (folder / "conditions" / f"{at:05}.parquet").exists():
            continue
        texts = workload.condition_texts(wanted(at, count, width))
        ids = [f"c{at * CHUNK + row}" for row in range(count)]
        rows = pa.table({"id": ids, "subscriber": [f"s{row % 1_000}" for row in range(count)], "filter": texts})
        _write_whole(rows, folder / "conditions" / f"{at:05}.parquet")
    for at, count in chunks(events):
        if (folder / "events" / f"{at:05}.parquet").exists():
            continue
        rows = workload.event_table(workload.events.__wrapped__(count, 2_000 + at))
        ids = pa.array([f"e{at * CHUNK + row}" for row in range(count)])
        _write_whole(rows.add_column(0, "event_id", ids), folder / "events" / f"{at:05}.parquet")


def _write_whole(rows: pa.Table, file: Path) -> None:
    pq.write_table(rows, beside := file.with_name(f"_{file.name}"))
    beside.rename(file)


def measured(folder: Path, asked: argparse.Namespace, width: float, is_again: bool) -> Outcome:
    settings = [*asked.conf, *([f"spark.tidings.parsedCache={folder / 'parsed'}"] if asked.cache else [])]
    if asked.stream and asked.plan == "zones":
        settings.append(f"spark.tidings.indexBoxesMax={max(1, asked.conditions // 2)}")
    given = [part for setting in settings for part in ("--conf", setting)]
    what = _run(folder, asked) if asked.stream else _match(asked)
    command = [sys.executable, "-m", "tidings", *what, "--master", asked.master, "-o", "json", *given]
    load, began = os.getloadavg()[0], time.monotonic()
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    with Watched() as watched:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - began
    if done.returncode != 0:
        sys.exit(f"tidings {what[0]} failed:\n{done.stderr[-2_000:]}")
    told = json.loads(done.stdout.strip().splitlines()[-1])
    out = list_deliveries(str(folder / "deliveries")) if asked.stream else folder / "out"
    held = ds.dataset(out, format="parquet").count_rows()
    agrees = held == told["deliveries"] and sample_agrees(out, asked.conditions, asked.events, width)
    return Outcome(
        conditions=asked.conditions, events=asked.events, plan=asked.plan, command=what[0],
        batches=asked.batches if asked.stream else 1, master=asked.master, cached=is_again,
        seconds=round(seconds, 1), cpu_s=round(watched.cpu_s, 1), deliveries=held, executor_mb=watched.executor_mb,
        driver_mb=watched.driver_mb, load=round(load, 1), agrees=agrees,
    )  # fmt: skip


def built(folder: Path, asked: argparse.Namespace) -> Outcome:
    """From conditions as text to an index that is sent to every host, after Spark has started and compiled a little."""
    spark = start("scale", asked.master, parse_settings(asked.conf))
    _build(spark.read.parquet(str(folder / "conditions")).limit(1_000))
    load, cpu_before, began = os.getloadavg()[0], cpu_s(), time.monotonic()
    count = _build(spark.read.parquet(str(folder / "conditions")))
    seconds, used = time.monotonic() - began, cpu_s() - cpu_before
    driver_mb = peaks_mb()["driver"]
    spark.stop()
    return Outcome(
        conditions=asked.conditions, events=0, plan="index", command="build", batches=1, master=asked.master,
        cached=False, seconds=round(seconds, 1), cpu_s=round(used, 1), deliveries=0, executor_mb=0,
        driver_mb=driver_mb, load=round(load, 1), agrees=count == asked.conditions,
    )  # fmt: skip


def _build(rows: DataFrame) -> int:
    """The subscriptions in the index."""
    parsed = ParsedSubscriptions(rows, workload.READING)
    index = distribute_index(rows.sparkSession, parsed.tables(), parsed.projected_type)
    parsed.unpersist()
    return len(index.replica().ids)


def _match(asked: argparse.Namespace) -> list[str]:
    return ["match", "events", "conditions", "--out", "out", "--overwrite", "--plan", asked.plan]


PIPELINE = """
name = "scale"
checkpoint = "checkpoint"
[events]
format = "parquet"
path = "events"
type = "reading.toml"
files_per_batch = {files}
[subscriptions]
format = "table"
path = "conditions"
[deliveries]
path = "deliveries"
with_event = false
[quarantine]
path = "quarantine"
[trigger]
until_empty = true
"""


def _run(folder: Path, asked: argparse.Namespace) -> list[str]:
    write_file(workload.READING, folder / "reading.toml")
    files = len(list((folder / "events").iterdir()))
    (folder / "scale.toml").write_text(PIPELINE.format(files=max(1, files // asked.batches)))
    return ["run", "scale.toml"]


class Watched:
    """Looks, twice a second, at what this program has started: processor time, and memory by executor."""

    def __init__(self) -> None:
        self.cpu_s, self.executor_mb, self.driver_mb = 0.0, 0, 0
        self._before, self._ended = _others_s(), threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watched:
        self._thread.start()
        return self

    def __exit__(self, *wrong: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            self.cpu_s = max(self.cpu_s, _others_s() - self._before)
            self.executor_mb = max([self.executor_mb, *executors_mb()])
            self.driver_mb = max(self.driver_mb, peaks_mb("tidings").get("tidings", 0))


def _others_s() -> float:
    """Without this process, which looks."""
    return cpu_s() - time.process_time()


def sample_agrees(out: Path | list[str], conditions: int, events: int, width: float) -> bool:
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


def save(outcomes: list[Outcome]) -> None:
    file = RESULTS / "scale.json"
    known = json.loads(file.read_text()) if file.exists() else []
    machine = facts()
    known += [{**asdict(outcome), "machine": machine} for outcome in outcomes]
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
    parser.add_argument("--made", help="folder of conditions and events of this size, made where they are missing")
    parser.add_argument("--only-make", action="store_true", help="with --made: match nothing")
    parser.add_argument("--cache", action="store_true", help="keep parsed conditions, and run twice")
    parser.add_argument("--build", action="store_true", help="parse and index only")
    parser.add_argument("--stream", action="store_true", help="through `tidings run`")
    parser.add_argument("--batches", type=int, default=1, help="of a stream, about")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--page", action="store_true", help="measure nothing; write the page from what is saved")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
