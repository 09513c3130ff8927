"""Tidings: the job that `tidings match` runs on Parquet files, in both forms, and the one that DataFrames go through.

Conditions are parsed and the index is built once for each size, by whoever comes first; the others find it kept.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import workload as made
from benchmarks.matching.engine import Workload
from benchmarks.pipeline.usage import cpu_s, timed
from tidings.pipeline import Matching, start
from tidings.pipeline.matching.direct_parquet import match_with_index, tasks_for
from tidings.pipeline.matching.index_distribution import FolderBroadcast
from tidings.pipeline.matching.index_replica import DistributedIndex, distribute_index
from tidings.pipeline.matching.match import MatchRows, deliveries_schema, project_events

SUBSCRIPTION_FILES = 8
SOME = 2_000  # Subscriptions that ask about every attribute, as all of them do.


def kept_index(folder: Path, size: str) -> Path:
    """Where the index of a size stays, beside the folders of the runs."""
    return folder / f"{size}.index"


class _Job:
    compact = True

    def __init__(self, folder: Path, cores: int) -> None:
        self.folder = folder
        self.spark = start("tidings benchmark", f"local[{cores}]", {"spark.driver.memory": "4g"})
        self.told: dict[str, Any] = {}

    @classmethod
    def beside(cls, other: _Job) -> Self:
        """The same subscriptions, in the same Spark."""
        job = cls.__new__(cls)
        job.__dict__.update(other.__dict__)
        return job

    def build(self, workload: Workload) -> None:
        """Texts are parsed by the workers, the index is built and sent to them: once for a job of any length."""
        kept = kept_index(self.folder.parent, workload.name)
        if kept.exists():
            self.matching = self._matching(self._texts(workload, SOME))
            self.distributed = DistributedIndex(FolderBroadcast(self.spark, kept))
        else:
            self._take_in(workload)
            shutil.copytree(self.distributed.broadcast.folder(), kept)
        assert self.distributed.replica().event_type == self.matching.subscriptions.projected_type
        self.run(self.folder / "events", self.folder / "out")  # Workers start, and open the index: once, too.

    def _take_in(self, workload: Workload) -> None:
        """From texts to an index on every host, in a Spark whose workers have parsed a few before."""
        self._matching(self._texts(workload, SOME)).subscriptions.unpersist()
        texts, before = self._texts(workload, len(workload.wanted)), cpu_s()
        self.matching, parse_s = timed(lambda: self._matching(texts))
        parsed, wanted = cpu_s(), self.matching.subscriptions
        self.distributed, ship_s = timed(lambda: distribute_index(self.spark, wanted.tables(), wanted.projected_type))
        self.told = {
            "parse_s": round(parse_s, 2), "parse_cpu_s": round(parsed - before, 2),
            "build_and_ship_s": round(ship_s, 2), "build_and_ship_cpu_s": round(cpu_s() - parsed, 2),
        }  # fmt: skip

    def run(self, events: Path, out: Path) -> None:
        tasks = tasks_for(self.spark.read.parquet(str(events)), self.matching, str(out))
        assert tasks, "the workers read and write the files"
        match_with_index(self.distributed, self.matching, tasks, str(out), self.compact)

    def facts(self) -> dict[str, Any]:
        return self.told

    def close(self) -> None:
        self.spark.stop()

    def _texts(self, workload: Workload, count: int) -> str:
        """A file of the first conditions."""
        path = str(self.folder / f"wanted-{count}.parquet")
        texts = made.condition_texts(workload.wanted)[:count]
        rows = {"id": made.ids(len(texts)), "subscriber": ["bench"] * len(texts), "filter": texts}
        pq.write_table(pa.table(rows), path, row_group_size=-(-len(texts) // SUBSCRIPTION_FILES))
        return path

    def _matching(self, path: str) -> Matching:
        events = self.spark.read.parquet(str(self.folder / "events"))
        return Matching(events, self.spark.read.parquet(path).repartition(SUBSCRIPTION_FILES), plan="index")


class Lists(_Job):
    """One row per event, with the list of its subscriptions."""


class Rows(_Job):
    """One row per pair."""

    compact = False


class DataFrames(_Job):
    """Lists again, but as `match(events, subscriptions)` gives them: Spark reads, `mapInArrow` matches, Spark writes."""

    def run(self, events: Path, out: Path) -> None:
        rows = self.spark.read.parquet(str(events))
        asked = project_events(rows, self.matching.id, self.matching.subscriptions.projected_type)
        schema = deliveries_schema(rows.schema[self.matching.id].dataType, compact=True)
        asked.mapInArrow(MatchRows(self.distributed, compact=True), schema).write.parquet(str(out))
