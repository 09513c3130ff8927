"""DELIVERIES → sinks, each batch exactly once.

A sink writes a batch as a whole or not at all, and knows afterwards that it has: a batch that
is run again after a crash finds its deliveries there and leaves them alone. On files this is a
rename: a batch is written aside, under a name of this run's own, and then moved to its place
in one step. What a crash leaves aside is never read, and swept away at the next start.

    deliveries/batch=000000012/to=police/part-….parquet
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Protocol

from py4j.protocol import Py4JError
from pyspark.sql import functions as f

from tidings.errors import SetupError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ASIDE = "_aside"  # Readers skip what begins with an underscore.


class Sink(Protocol):
    """Where batches of deliveries go."""

    def put(self, deliveries: DataFrame, batch: int) -> None:
        """The batch stands in the sink once, however often this is called for it."""

    def get_ready(self) -> None:
        """Called once at each start, before the first batch."""


class Folder:
    """A folder with one folder per batch, in any file system that Spark knows and that renames in one step."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self.path = path
        self._new_path = jvm.org.apache.hadoop.fs.Path
        java: Any = spark.sparkContext._jsc
        self._files = self._new_path(path).getFileSystem(java.hadoopConfiguration())

    def get_ready(self) -> None:
        """Makes the folder and sweeps away what an earlier run left unfinished. Raises SetupError."""
        try:
            self._files.delete(self._at(ASIDE), True)
            if not self._files.mkdirs(self._at(ASIDE)):
                raise SetupError(f"cannot write to {self.path!r}")
        except Py4JError as wrong:
            raise SetupError(f"cannot write to {self.path!r}: {_reason(wrong)}") from None

    def has(self, name: str) -> bool:
        return bool(self._files.exists(self._at(name)))

    def aside(self, name: str) -> str:
        """A place to write to that nobody else does, not even the dying remains of an earlier run."""
        return f"{self.path}/{ASIDE}/{name}-{uuid.uuid4().hex}"

    def move_in(self, aside: str, name: str) -> None:
        """Puts what was written aside in its place, in one step."""
        if not self._files.rename(self._new_path(aside), self._at(name)):
            raise SetupError(f"cannot rename {aside!r} to {name!r}")

    def drop(self, path: str) -> None:
        self._files.delete(self._new_path(path), True)

    def drop_named(self, name: str) -> None:
        self._files.delete(self._at(name), True)

    def _at(self, name: str) -> Any:
        return self._new_path(f"{self.path}/{name}")


class FileSink:
    """Parquet or JSON lines, by batch and subscriber."""

    def __init__(self, spark: SparkSession, path: str, format: str) -> None:
        self.folder = Folder(spark, path)
        self.format = format

    def get_ready(self) -> None:
        self.folder.get_ready()

    def put(self, deliveries: DataFrame, batch: int) -> None:
        name = batch_name(batch)
        if self.folder.has(name):
            return
        aside = self.folder.aside(name)
        by_reader = deliveries.withColumn("to", f.col("subscriber"))  # The column itself stays in the files.
        by_reader.write.partitionBy("to").format(self.format).save(aside)
        self.folder.move_in(aside, name)


class Quarantine:
    """What could not be used, as JSON lines: broken events by batch, rejected subscriptions by version."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.events = Folder(spark, f"{path}/events")
        self.subscriptions = Folder(spark, f"{path}/subscriptions")

    def get_ready(self) -> None:
        self.events.get_ready()
        self.subscriptions.get_ready()

    def put_events(self, broken: DataFrame, batch: int) -> None:
        _replace(self.events, broken, batch_name(batch))

    def put_subscriptions(self, rejected: DataFrame, version: int) -> None:
        if not rejected.isEmpty():
            _replace(self.subscriptions, rejected, f"version={version:09}")


def batch_name(batch: int) -> str:
    return f"batch={batch:09}"


def _replace(folder: Folder, rows: DataFrame, name: str) -> None:
    """The same rows come out whenever a batch is run again, so the later writing may take the earlier one's place."""
    aside = folder.aside(name)
    rows.write.parquet(aside)
    folder.drop_named(name)
    folder.move_in(aside, name)


def _reason(wrong: Exception) -> str:
    java = getattr(wrong, "java_exception", None)
    return str(java.getMessage() if java is not None else wrong).splitlines()[0][:200]
