"""Spark SQL for the same question, from Parquet to Parquet on local[2]: the expert's form, and as Spark plans it by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from benchmarks.matching.binned import file_subscriptions
from benchmarks.matching.engine import Array, Workload
from benchmarks.matching.spark_join import INSIDE, _key, _sides
from benchmarks.workload import NAMES

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "8g",
    "spark.log.level": "ERROR",
    "spark.sql.adaptive.enabled": "false",  # Joins are broadcast by hint: nothing to adapt, only rounds to lose.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.parquet.compression.codec": "snappy",
}


class _Query(ABC):
    """Subscriptions cached; events read, joined and written anew each time."""

    def __init__(self, folder: Path, cores: int) -> None:
        builder = SparkSession.builder.master(f"local[{cores}]")
        for key, value in SETTINGS.items():
            builder = builder.config(key, value)
        self.spark, self.folder, self.cores = builder.getOrCreate(), folder, cores

    @abstractmethod
    def build(self, workload: Workload) -> None:
        """Take the subscriptions in."""

    @abstractmethod
    def pairs(self, events: DataFrame) -> DataFrame:
        """Which event matches which subscription."""

    def run(self, events: Path, out: Path) -> None:
        self.pairs(self.spark.read.parquet(str(events))).write.mode("overwrite").parquet(str(out))

    def facts(self) -> dict[str, str]:
        return {"version": self.spark.version}

    def close(self) -> None:
        self.spark.stop()

    def cached(self, columns: dict[str, Array]) -> DataFrame:
        path = self.folder / "subscriptions.parquet"
        pq.write_table(pa.table(columns), path)
        table = self.spark.read.parquet(str(path)).cache()
        table.count()
        return table


class SparkBinned(_Query):
    """One broadcast hash join on (attribute, bin); every side looks into the event's array of values."""

    def build(self, workload: Workload) -> None:
        filing = file_subscriptions(workload)
        self.bins = filing.bins
        self.filed = self.cached({"key": filing.key, "sub": filing.owner, **_sides(filing, filing.owner)})

    def pairs(self, events: DataFrame) -> DataFrame:
        keys = fn.array(*(_key(a, self.bins) for a in range(len(NAMES))))
        looking = events.select("event", fn.array(*NAMES).alias("v"), fn.explode(keys).alias("key"))
        return looking.join(fn.broadcast(self.filed), "key").where(INSIDE).select("event", "sub")


class SparkItself(_Query):
    """A join on all sides, which Spark plans as a broadcast nested loop."""

    def build(self, workload: Workload) -> None:
        everyone = np.arange(len(workload.wanted), dtype=np.int32)
        self.wanted = self.cached({"sub": everyone, **_sides(file_subscriptions(workload), everyone)})

    def pairs(self, events: DataFrame) -> DataFrame:
        values = events.select("event", fn.array(*NAMES).alias("v"))
        return values.join(fn.broadcast(self.wanted), fn.expr(INSIDE)).select("event", "sub")
