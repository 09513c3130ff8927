"""The whole Spark job from Parquet to Parquet: events per second, memory, and what of the time is the kernel's.

    python -m benchmarks.pipeline                       100,000 subscriptions, both forms
    python -m benchmarks.pipeline --size base1m --events 400000 --cores 2

The subscriptions are parsed and the index is built and shipped before the clock starts, and how
long that took is told by itself: a job that runs for hours does it once. Then every form is
written to Parquet, and its pairs are checked on a hundred events against a scan of all
subscriptions. `kernel_s` is the time that the same events take in `Index.match_numbers`
alone, on one core. How peers do on the same workload: `python -m benchmarks.matching`.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import workload
from benchmarks.matching.machine import facts
from tidings.matching import Index
from tidings.pipeline import Matching, start

RESULTS = Path(__file__).parents[1] / "results"
FILES = 8
CHECKED = 100

Answer = TypeVar("Answer")


def main() -> None:
    """Runs both forms and writes benchmarks/results/pipeline.json."""
    asked = _arguments()
    wanted, values = workload.load(asked.size)
    repeats = -(-asked.events // len(values))
    with tempfile.TemporaryDirectory() as folder:
        _write_inputs(Path(folder), wanted, values, repeats)
        outcome = {"machine": facts(), "size": asked.size, "cores": asked.cores, "events": repeats * len(values)}
        outcome |= _kernel(wanted, values, repeats) | _run_job(Path(folder), asked.cores, wanted, values, repeats)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "pipeline.json").write_text(json.dumps(outcome, indent=2) + "\n")
    print(json.dumps({key: value for key, value in outcome.items() if key != "machine"}, indent=2))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The whole Spark job, from Parquet to Parquet.")
    parser.add_argument("--size", choices=sorted(workload.WORKLOADS), default="base100k")
    parser.add_argument("--events", type=int, default=400_000)
    parser.add_argument("--cores", type=int, default=2)
    return parser.parse_args()


def _write_inputs(folder: Path, wanted: workload.Subscriptions, values: Any, repeats: int) -> None:
    (folder / "events").mkdir()
    table = workload.event_table(values)
    for number in range(repeats):
        ids = pa.array(np.arange(len(values)) + number * len(values))
        pq.write_table(table.add_column(0, "event_id", ids), folder / "events" / f"{number:04}.parquet")
    count = len(wanted)
    rows = {"id": workload.ids(count), "subscriber": ["bench"] * count, "filter": workload.condition_texts(wanted)}
    pq.write_table(pa.table(rows), folder / "wanted.parquet", row_group_size=-(-count // FILES))


def _kernel(wanted: workload.Subscriptions, values: Any, repeats: int) -> dict[str, float]:
    index = Index.from_boxes(workload.boxes_table(wanted), workload.READING)
    table = workload.event_table(values)
    index.match_numbers(table)
    _, seconds = _timed(lambda: index.match_numbers(table))
    return {"kernel_s": round(seconds * repeats, 3)}


def _run_job(folder: Path, cores: int, wanted: workload.Subscriptions, values: Any, repeats: int) -> dict[str, Any]:
    spark = start("tidings benchmark", f"local[{cores}]", {"spark.driver.memory": "4g"})
    events = spark.read.parquet(str(folder / "events"))
    subscriptions = spark.read.parquet(str(folder / "wanted.parquet")).repartition(FILES)
    matching, parse_s = _timed(lambda: Matching(events, subscriptions, plan="index"))
    outcome: dict[str, Any] = {"parse_s": round(parse_s, 1)}
    for form in ("compact", "pairs"):
        deliveries, ship_s = _timed(lambda form=form: matching.deliveries(compact=form == "compact"))  # type: ignore[misc]
        target = str(folder / form)
        deliveries.limit(1).collect()  # Workers start, import and map the index once.
        _, seconds = _timed(lambda: deliveries.write.parquet(target))  # noqa: B023
        found = spark.read.parquet(target)
        pairs = found.count() if form == "pairs" else found.selectExpr("sum(size(subscription_ids))").collect()[0][0]
        outcome[form] = {
            "build_and_ship_s": round(ship_s, 1),
            "seconds": round(seconds, 2),
            "events_per_s": round(repeats * len(values) / seconds),
            "pairs": pairs,
            "pairs_per_s": round(pairs / seconds),
        }
        _check(found, form, wanted, values)
    spark.stop()
    outcome["largest_process_mb"] = round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
    return outcome


def _check(found: Any, form: str, wanted: workload.Subscriptions, values: Any) -> None:
    here = found.where(f"event_id < {CHECKED}")
    rows = here.selectExpr("event_id", "explode(subscription_ids)") if form == "compact" else here.drop("subscriber")
    got = sorted((event, int(id[1:])) for event, id in rows.collect())
    expected = [(e, int(s)) for e in range(CHECKED) for s in workload.matches_by_scan(wanted, values[e])]
    assert got == expected, f"{form}: the answer is wrong"


def _timed(work: Callable[[], Answer]) -> tuple[Answer, float]:
    began = time.perf_counter()
    answer = work()
    return answer, time.perf_counter() - began


if __name__ == "__main__":
    main()
