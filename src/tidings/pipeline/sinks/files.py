"""DELIVERIES → files, each batch exactly once.

The sink writes a batch to a staging folder with a unique name, then renames it, which is atomic. A batch that
is repeated after a crash finds its deliveries in place and writes nothing. Readers skip the staging folder, and
the next start deletes what a crash left in it.

    deliveries/batch=000000012/to=police/part-….parquet
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.sql import functions as f

from tidings.errors import SetupError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STAGING = "_aside"  # Readers skip names that begin with an underscore.


class BatchFolder:
    """A folder with one sub-folder per batch, in any file system of Spark's that renames atomically."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self.path = path
        self._new_path = jvm.org.apache.hadoop.fs.Path
        java: Any = spark.sparkContext._jsc
        self._files = self._new_path(path).getFileSystem(java.hadoopConfiguration())

    def prepare(self) -> None:
        """Creates the folder, and deletes unfinished batches of an earlier run. Raises SetupError."""
        try:
            self._files.delete(self._at(STAGING), True)
            if not self._files.mkdirs(self._at(STAGING)):
                raise SetupError(f"cannot write to {self.path!r}")
        except Py4JError as wrong:
            raise SetupError(f"cannot write to {self.path!r}: {_reason(wrong)}") from None

    def has(self, name: str) -> bool:
        return bool(self._files.exists(self._at(name)))

    def staging(self, name: str) -> str:
        """A path that no other process writes to, not even an earlier run that is still ending."""
        return f"{self.path}/{STAGING}/{name}-{uuid.uuid4().hex}"

    def commit(self, staged: str, name: str) -> None:
        """Renames a staged folder to its final name, atomically."""
        if not self._files.rename(self._new_path(staged), self._at(name)):
            raise SetupError(f"cannot rename {staged!r} to {name!r}")

    def delete(self, name: str) -> None:
        self._files.delete(self._at(name), True)

    def _at(self, name: str) -> Any:
        return self._new_path(f"{self.path}/{name}")


class FileSink:
    """Parquet or JSON lines, by batch and subscriber."""

    def __init__(self, spark: SparkSession, path: str, format: str) -> None:
        self.folder = BatchFolder(spark, path)
        self.format = format

    def prepare(self) -> None:
        self.folder.prepare()

    def put(self, deliveries: DataFrame, batch: int) -> None:
        name = batch_name(batch)
        if self.folder.has(name):
            return
        staged = self.folder.staging(name)
        by_reader = deliveries.withColumn("to", f.col("subscriber"))  # The column itself stays in the files.
        by_reader.write.partitionBy("to").format(self.format).save(staged)
        self.folder.commit(staged, name)


class Quarantine:
    """Unusable input as Parquet: broken events by batch, rejected subscriptions by version."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.events = BatchFolder(spark, f"{path}/events")
        self.subscriptions = BatchFolder(spark, f"{path}/subscriptions")

    def prepare(self) -> None:
        self.events.prepare()
        self.subscriptions.prepare()

    def put_events(self, broken: DataFrame, batch: int) -> None:
        _replace(self.events, broken, batch_name(batch))

    def put_subscriptions(self, rejected: DataFrame, version: int) -> None:
        if not rejected.isEmpty():
            _replace(self.subscriptions, rejected, f"version={version:09}")


def batch_name(batch: int) -> str:
    return f"batch={batch:09}"


def _replace(folder: BatchFolder, rows: DataFrame, name: str) -> None:
    """A repeated batch has the same rows, so the later write may replace the earlier one."""
    staged = folder.staging(name)
    rows.write.parquet(staged)
    folder.delete(name)
    folder.commit(staged, name)


def _reason(wrong: Exception) -> str:
    java = getattr(wrong, "java_exception", None)
    return str(java.getMessage() if java is not None else wrong).splitlines()[0][:200]
