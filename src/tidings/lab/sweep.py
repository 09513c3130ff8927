"""The sweep: all points of all chosen experiments, as one Spark job.

Each finished point is a small Parquet file in the folder `points`, named by its key and
written completely or not at all. So a sweep may be interrupted at any moment: the next one
with the same points finds the finished ones and runs the rest.

The workers write those files, so on a cluster the folder has to be one that all machines
share, and Tidings has to be installed on them.

Each file says how much processor time its point took: that is the same on a busy machine.
"""

from __future__ import annotations

import gc
import heapq
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from tidings.errors import InputError, SetupError, TidingsError
from tidings.lab.experiment import Experiment, Measured, Parameters, Point
from tidings.lab.results import DRAFT, table_of, written_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

Progress: TypeAlias = Callable[[int, int], None]  # Points done, points in all.
Measures: TypeAlias = Mapping[str, tuple[str, str, Callable[[Parameters, int], list[Measured]]]]

TASKS_PER_CORE = 16  # Enough that no core waits long for the last one, few enough that starting them costs little.
LOOK_EVERY_S = 0.5  # How often the finished points are counted.
# Collecting garbage as often as Python does by default takes up to a third of the time of building a world; it is
# collected after each point instead, when a whole world is garbage.
GARBAGE_AFTER = (100_000, 20, 100)
LOCAL = "local[*]"

PROCESSOR_S = b"processor_s"  # In the metadata of a point's file.
_POINT = "batch int, key string, experiment string, parameters string, seed long"
_DONE = "key string, wrong string"
_SESSION = {
    "spark.log.level": "ERROR",
    "spark.sql.adaptive.enabled": "false",  # It would merge small tasks, and these are small only in bytes.
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def sweep(
    experiments: Sequence[Experiment],
    folder: Path,
    *,
    master: str = LOCAL,
    progress: Progress = lambda done, total: None,
) -> list[pa.Table]:
    """Run every point that is not in `folder` yet; returns the rows of all of them.

    Raises InputError for points that are impossible, before any is run.
    """
    points = {point.key: point for experiment in experiments for point in experiment.points()}
    folder.mkdir(parents=True, exist_ok=True)
    missing = [point for key, point in points.items() if not _file(folder, key).exists()]

    def look() -> None:
        # One listing: to ask for thousands of files one by one, twice a second, takes a tenth of two cores.
        progress(len(points.keys() & {file.stem for file in folder.iterdir()}), len(points))

    try:
        look()
        if missing:
            _run(experiments, missing, folder.resolve(), master, look)
    finally:
        look()
        for left_over in folder.glob(f".*{DRAFT}"):
            left_over.unlink(missing_ok=True)
    return [_read(folder, key) for key in points]


def batches(costs: Sequence[float], count: int) -> list[list[int]]:
    """Distribute items, given by their costs, so that no batch costs much more than another; the costliest batch first.

    >>> batches([1, 5, 1, 1, 2], 2)
    [[1], [4, 0, 2, 3]]
    """
    lightest = [(0.0, number) for number in range(min(count, len(costs)))]
    shared: list[list[int]] = [[] for _ in lightest]
    for item in sorted(range(len(costs)), key=lambda item: -costs[item]):
        weight, number = heapq.heappop(lightest)
        shared[number].append(item)
        heapq.heappush(lightest, (weight + costs[item], number))
    return sorted(shared, key=lambda batch: -sum(costs[item] for item in batch))


def _run(
    experiments: Sequence[Experiment], points: Sequence[Point], folder: Path, master: str, look: Callable[[], None]
) -> None:
    by_name = {experiment.name: experiment for experiment in experiments}
    measures: Measures = {name: (each.paper, each.figure, each.measure) for name, each in by_name.items()}
    costs = [by_name[point.experiment].cost(point.parameters) for point in points]
    with _session(master) as spark:
        shared = batches(costs, TASKS_PER_CORE * spark.sparkContext.defaultParallelism)
        rows = [_row(number, points[item]) for number, batch in enumerate(shared) for item in batch]
        todo = spark.createDataFrame(rows, _POINT).repartitionById(len(shared), "batch")
        done = _collect(todo.mapInArrow(partial(_measure_all, measures, str(folder)), _DONE), look)
    wrong = [row.wrong for row in done if row.wrong]
    if wrong:
        raise InputError(wrong[0])
    if any(not _file(folder, point.key).exists() for point in points):
        raise SetupError(
            f"the workers' {folder} is not this machine's; give --out a folder that all machines of {master} share"
        )


def _collect(todo: DataFrame, look: Callable[[], None]) -> list[Row]:
    """Run the job on another thread; this one reports progress meanwhile and can be interrupted."""
    with ThreadPoolExecutor(1) as beside:
        job = beside.submit(todo.collect)
        try:
            while not wait([job], timeout=LOOK_EVERY_S).done:
                look()
        except KeyboardInterrupt:
            # Cancelled tasks log errors; here the cancellation is intended.
            todo.sparkSession.sparkContext.setLogLevel("OFF")
            todo.sparkSession.sparkContext.cancelAllJobs()
            raise
        return job.result()


def _row(batch: int, point: Point) -> tuple[int, str, str, str, int]:
    return batch, point.key, point.experiment, json.dumps(point.parameters), point.seed


def _measure_all(measures: Measures, folder: str, points: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On a worker: measure each point, and store it before the next."""
    gc.collect()
    gc.freeze()  # What is imported stays anyway.
    gc.set_threshold(*GARBAGE_AFTER)
    for batch in points:
        for point in batch.to_pylist():
            wrong = _measure(measures, Path(folder), point)
            gc.collect()
            yield pa.RecordBatch.from_pylist([{"key": point["key"], "wrong": wrong}])


def _measure(measures: Measures, folder: Path, point: dict[str, Any]) -> str | None:
    """Measures and stores one point; returns what is wrong with the point, if anything is."""
    paper, figure, measure = measures[point["experiment"]]
    parameters, seed, began_s = json.loads(point["parameters"]), point["seed"], _processor_s()
    try:
        measured = measure(parameters, seed)
    except TidingsError as wrong:
        return f"{point['experiment']} with {point['parameters']}, seed {seed}: {wrong}"
    about = {"paper": paper, "figure": figure, "seed": seed, "parameters": parameters}
    rows = table_of({**about, **row._asdict()} for row in measured)
    took = {PROCESSOR_S: f"{_processor_s() - began_s:.3f}"}
    with written_whole(_file(folder, point["key"])) as draft:
        pq.write_table(rows.replace_schema_metadata(took), draft)
    return None


def _processor_s() -> float:
    """Of this process, and of those that it started and that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def processor_s(experiment: Experiment, folder: Path) -> float:
    """How much processor time the finished points of an experiment took, whenever that was."""
    files = [file for point in experiment.points() if (file := _file(folder, point.key)).exists()]
    return sum(float((pq.read_schema(file).metadata or {}).get(PROCESSOR_S, 0)) for file in files)


def _file(folder: Path, key: str) -> Path:
    return folder / f"{key}.parquet"


def _read(folder: Path, key: str) -> pa.Table:
    return pq.read_table(_file(folder, key))


@contextmanager
def _session(master: str) -> Iterator[SparkSession]:
    """The active session, or a new one that ends with the sweep."""
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    spark = running or _start(master)
    try:
        yield spark
    finally:
        if running is None:
            spark.stop()


def _start(master: str) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    builder, interrupted = _builder(master), signal.getsignal(signal.SIGINT)
    try:
        session = builder.getOrCreate()
        if current_thread() is main_thread():
            # Spark's own handler of Ctrl-C calls Java from within a call to Java, and ends in a stack trace.
            signal.signal(signal.SIGINT, interrupted)
        return session
    except (PySparkException, Py4JError, OSError) as wrong:
        if "Could not parse Master URL" in str(wrong):
            raise InputError(
                f"there is no Spark master {master!r}; expected local[2] or spark://host:7077, say"
            ) from None
        raise SetupError(
            f"Spark does not start with the master {master!r}; `tidings doctor` tells what is missing"
        ) from wrong


def _builder(master: str) -> SparkSession.Builder:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Else workers are whichever python3 is on PATH.
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master).appName("tidings lab")
    for key, value in _SESSION.items():
        builder = builder.config(key, value)
    return builder
