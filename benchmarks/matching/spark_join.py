"""Spark SQL, on local[1]: as a binned equi-join, and as it plans a join on the sides by itself.

Results go to Spark's `noop` sink, which computes every row and writes none. Subscriptions and events
are cached before the clock starts; the broadcast of the subscriptions is part of every query, as in any job.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from benchmarks.matching.binned import BINS, KEYS_PER_ATTRIBUTE, SIDES_MAX, Filing, file_subscriptions
from benchmarks.matching.engine import Answers, Array, Workload
from benchmarks.secure_spark import processor_seconds
from benchmarks.workload import DOMAIN, NAMES, NUMBERS

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "10g",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",  # One partition, one join: nothing to adapt, only rounds to lose.
    "spark.sql.autoBroadcastJoinThreshold": "-1",  # Hints decide.
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
}


class _Query:
    """Events cached as a table of one column per attribute, joined with the subscriptions."""

    def __init__(self) -> None:
        builder = SparkSession.builder.master("local[1]")
        for key, value in SETTINGS.items():
            builder = builder.config(key, value)
        self._spark = builder.getOrCreate()
        self._spark.sparkContext.setLogLevel("ERROR")
        self._folder = tempfile.TemporaryDirectory()

    def warm_up(self, workload: Workload) -> None:
        """The session is up; the first of the rounds warms the JVM."""

    def clock(self) -> float:
        """Processor time of the JVM, which does the work, and of this process."""
        return processor_seconds(os.getpid())

    def _cached(self, name: str, columns: dict[str, Array]) -> DataFrame:
        path = Path(self._folder.name) / f"{name}.parquet"
        pq.write_table(pa.table(columns), path)
        table = self._spark.read.parquet(str(path)).coalesce(1).cache()
        table.count()
        return table

    def admit(self, workload: Workload) -> None:
        columns = {name: workload.events[:, a] for a, name in enumerate(NAMES)}
        self._event_count = len(workload.events)
        self._events = self._cached("events", {"event": np.arange(self._event_count, dtype=np.int32), **columns})

    def _pairs(self) -> DataFrame:
        raise NotImplementedError

    def match(self) -> int:
        self._pairs().write.format("noop").mode("overwrite").save()
        return 0  # Known only from the answers: counting would be another query.

    def answers(self) -> Answers:
        found = self._pairs().groupBy("event").agg(fn.count("*").alias("count"), fn.sum("sub").alias("sum")).toArrow()
        counts, sums = np.zeros(self._event_count, np.int64), np.zeros(self._event_count, np.int64)
        counts[found["event"].to_numpy()], sums[found["event"].to_numpy()] = (
            found["count"].to_numpy(),
            found["sum"].to_numpy(),
        )
        return Answers(counts, sums)

    def facts(self) -> dict[str, Any]:
        return {"version": self._spark.version}


class SparkBinned(_Query):
    """One broadcast hash join on (attribute, bin); every side looks into the event's array of values."""

    def build(self, workload: Workload) -> None:
        filing = file_subscriptions(workload)
        self._bins = BINS[workload.name]
        self._filed = self._cached("filed", {"key": filing.key, "sub": filing.owner, **_sides(filing, filing.owner)})

    def _pairs(self) -> DataFrame:
        keys = fn.array(*(_key(a, self._bins) for a in range(len(NAMES))))
        looking = self._events.select("event", fn.array(*NAMES).alias("v"), fn.explode(keys).alias("key"))
        return looking.join(fn.broadcast(self._filed), "key").where(INSIDE).select("event", "sub")


class SparkItself(_Query):
    """Every side in columns of its own, and a join on all of them: Spark plans a broadcast nested loop."""

    def build(self, workload: Workload) -> None:
        everyone = np.arange(len(workload.wanted), dtype=np.int32)
        self._wanted = self._cached("wanted", {"sub": everyone, **_sides(file_subscriptions(workload), everyone)})

    def _pairs(self) -> DataFrame:
        values = self._events.select("event", fn.array(*NAMES).alias("v"))
        return values.join(fn.broadcast(self._wanted), fn.expr(INSIDE)).select("event", "sub")


# Conjuncts are tested in the order they are written: the most selective side comes first.
INSIDE = " AND ".join(f"v[a{j}] >= lo{j} AND v[a{j}] < hi{j}" for j in range(SIDES_MAX))


def _sides(filing: Filing, rows: Array) -> dict[str, Array]:
    parts = {"a": filing.attribute, "lo": filing.low, "hi": filing.high}
    return {f"{part}{j}": values[j][rows] for part, values in parts.items() for j in range(SIDES_MAX)}


def _key(a: int, bins: int) -> Column:
    cell = f"{NAMES[a]} * {bins}L DIV {DOMAIN}" if a < NUMBERS else NAMES[a]
    return fn.expr(f"CAST({cell} + {a * KEYS_PER_ATTRIBUTE} AS INT)")
