"""Tidings: the job that `tidings match` runs on Parquet files, in both forms, and the one that DataFrames go through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import workload as made
from benchmarks.matching.engine import Workload
from benchmarks.pipeline.usage import timed
from tidings.pipeline import Matching, start
from tidings.pipeline.direct import match_with, tasks_for
from tidings.pipeline.holding import ship

SUBSCRIPTION_FILES = 8


class _Job:
    compact = True

    def __init__(self, folder: Path, cores: int) -> None:
        self.folder = folder
        self.spark = start("tidings benchmark", f"local[{cores}]", {"spark.driver.memory": "4g"})
        self.told: dict[str, Any] = {}

    def build(self, workload: Workload) -> None:
        """Texts are parsed by the workers, the index is built and sent to them: once for a job of any length."""
        path = self._write_subscriptions(workload)
        events = self.spark.read.parquet(str(self.folder / "events"))
        subscriptions = self.spark.read.parquet(path).repartition(SUBSCRIPTION_FILES)
        self.matching, parse_s = timed(lambda: Matching(events, subscriptions, plan="index"))
        wanted = self.matching.wanted
        self.shipped, ship_s = timed(lambda: ship(self.spark, wanted.payloads(), wanted.asked_type))
        self.told = {"parse_s": round(parse_s, 2), "build_and_ship_s": round(ship_s, 2)}

    def run(self, events: Path, out: Path) -> None:
        tasks = tasks_for(self.spark.read.parquet(str(events)), self.matching, str(out))
        assert tasks, "the workers read and write the files"
        match_with(self.shipped, self.matching, tasks, str(out), self.compact)

    def facts(self) -> dict[str, Any]:
        return self.told

    def close(self) -> None:
        self.spark.stop()

    def _write_subscriptions(self, workload: Workload) -> str:
        count, path = len(workload.wanted), str(self.folder / "wanted.parquet")
        texts = made.condition_texts(workload.wanted)
        rows = {"id": made.ids(count), "subscriber": ["bench"] * count, "filter": texts}
        pq.write_table(pa.table(rows), path, row_group_size=-(-count // SUBSCRIPTION_FILES))
        return path


class Lists(_Job):
    """One row per event, with the list of its subscriptions."""


class Rows(_Job):
    """One row per pair."""

    compact = False


class DataFrames(_Job):
    """Lists again, but as `match(events, subscriptions)` gives them: Spark reads, `mapInArrow` matches, Spark writes."""

    def run(self, events: Path, out: Path) -> None:
        self.matching.events = self.spark.read.parquet(str(events))
        self.matching.deliveries(compact=True).write.parquet(str(out))
