"""DELIVERIES → Parquet or JSON lines, each batch exactly once; and the quarantine.

A batch is a few files, sorted by subscriber: with the statistics that Parquet keeps of every row group, a reader of
one subscriber's deliveries skips the rest. On request each subscriber has a folder, which makes many small files:

    deliveries/batch=000000012/part-….parquet
    deliveries/batch=000000012/to=police/part-….parquet      partition_by = "subscriber"

How a batch gets there, and what readers see meanwhile, is in `tidings.pipeline.sinks.committed_folder`.
`read_deliveries` reads what is committed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, overload

from pyspark.sql import functions as f

from tidings.errors import InputError
from tidings.pipeline.sinks.committed_folder import CommitLog, CommittedFolder
from tidings.pipeline.state.epoch import Epoch
from tidings.pipeline.storage import Location, storage_at
from tidings.pipeline.tables import JSON_TIMES

if TYPE_CHECKING:
    import pyarrow.dataset
    from pyspark.sql import Column, DataFrame, SparkSession

ROWS_PER_FILE = 1_000_000  # Of some hundred bytes each: files of a size that every engine reads well.

UNNAMED_FOLDER = "__HIVE_DEFAULT_PARTITION__"
NAME_LENGTH_MAX = 60  # Of a folder, in characters of up to four bytes each: a name in a file system has at most 255.

DELIVERIES_SCHEMA = (
    "delivery_id string, event_id string, subscription_id string, subscriber string, subscriptions_version long"
)

# Spark's tasks move their files into the attempt's folder themselves: what fails is no attempt at all.
_WRITE_OPTIONS = {
    "mapreduce.fileoutputcommitter.algorithm.version": "2",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}


class FileSink:
    """Parquet or JSON lines, by batch; with `by_subscriber`, in a folder for each subscriber."""

    def __init__(
        self, spark: SparkSession, path: str, format: str, epoch: Epoch | None = None, *, by_subscriber: bool = False
    ) -> None:
        self.spark, self.format, self.by_subscriber = spark, format, by_subscriber
        self.folder = _committed(spark, path, "batch", epoch)

    def prepare(self) -> None:
        self.folder.prepare()

    def put(self, deliveries: DataFrame, batch: int) -> None:
        rows = deliveries.count()
        write = partial(self._write, deliveries, rows)
        self.folder.put(batch, write, partial(_count_rows, self.spark, self.format, deliveries), rows)

    def _write(self, deliveries: DataFrame, rows: int, folder: str) -> None:
        if rows == 0:
            return
        files = -(-rows // ROWS_PER_FILE)
        # By delivery, too, so that a subscriber who gets most of them does not make one file large.
        spread = (
            deliveries.coalesce(1) if files == 1 else deliveries.repartitionByRange(files, "subscriber", "delivery_id")
        )
        arranged = spread.sortWithinPartitions("subscriber")
        if self.by_subscriber:  # The column itself stays in the files.
            arranged = arranged.withColumn("to", folder_of(f.col("subscriber")))
        writer = arranged.write.format(self.format).options(**_WRITE_OPTIONS, **JSON_TIMES)
        (writer.partitionBy("to") if self.by_subscriber else writer).save(folder)


def folder_of(subscriber: Column) -> Column:
    """The name of a subscriber's folder; NULL for the one that Spark gives to those without a name.

    Anybody may choose a name that is too long for a file system, or that Spark's own folder has: two partitions in
    one folder stop the run.
    """
    short = f.concat(
        f.substring(subscriber, 1, NAME_LENGTH_MAX // 2), f.lit("~"), f.sha2(subscriber, 256).substr(1, 16)
    )
    named = f.when(f.length(subscriber) > NAME_LENGTH_MAX, short).otherwise(subscriber)
    return f.when(~subscriber.isin("", UNNAMED_FOLDER), named)


class Quarantine:
    """Unusable input as Parquet: broken events by batch, rejected subscriptions by version."""

    def __init__(self, spark: SparkSession, path: str, epoch: Epoch | None = None) -> None:
        self.spark = spark
        self.events = _committed(spark, f"{path}/events", "batch", epoch)
        self.subscriptions = _committed(spark, f"{path}/subscriptions", "version", epoch)

    def prepare(self) -> None:
        self.events.prepare()
        self.subscriptions.prepare()

    def put_events(self, broken: DataFrame, batch: int) -> None:
        self._put(self.events, broken, batch, broken.count())

    def put_subscriptions(self, rejected: DataFrame, version: int) -> int:
        """Stores the rejected changes of a version, and returns how many there are."""
        rows = rejected.count()
        if rows:
            self._put(self.subscriptions, rejected, version, rows)
        return rows

    def _put(self, folder: CommittedFolder, rows: DataFrame, number: int, count: int) -> None:
        write = lambda to: rows.write.options(**_WRITE_OPTIONS).parquet(to)  # noqa: E731
        folder.put(number, write, partial(_count_rows, self.spark, "parquet", rows), count)


@overload
def read_deliveries(where: SparkSession, path: str) -> DataFrame: ...
@overload
def read_deliveries(where: str) -> pyarrow.dataset.Dataset: ...


def read_deliveries(where: SparkSession | str, path: str = "") -> Any:
    """The deliveries that a pipeline has committed to a folder: whole batches, each once, at every moment.

    `read_deliveries(spark, "s3a://bucket/deliveries")` is a DataFrame. Without Spark, `read_deliveries("deliveries")`
    is a `pyarrow.dataset.Dataset` of a local folder, for `to_table()` and for DuckDB, Polars and pandas. Either has
    the column `batch`. Raises InputError for a folder without commit records.
    """
    if isinstance(where, str):
        return _arrow_dataset(*committed_files(where))
    root, files = committed_files(path, where)
    if not files:
        return where.createDataFrame([], f"{DELIVERIES_SCHEMA}, batch int")
    reader = where.read.option("basePath", root.text)
    return reader.format(_format(files)).load([Location(file).literal for file in files])


def list_deliveries(path: str, spark: SparkSession | None = None) -> list[str]:
    """The committed files of a folder, in full: what `read_deliveries` reads, for programs that take a list of files.

    Right at every moment on every store, where a listing of the folder may show a part of a batch. A folder in a store
    needs the session, which knows its file system.
    """
    return committed_files(path, spark)[1]


def _arrow_dataset(root: Location, files: list[str]) -> Any:
    import pyarrow as pa
    import pyarrow.dataset

    if not files:
        columns = [(name, pa.string()) for name in ("delivery_id", "event_id", "subscription_id", "subscriber")]
        schema = pa.schema([*columns, ("subscriptions_version", pa.int64()), ("batch", pa.int32())])
        return pa.dataset.dataset(schema.empty_table())
    return pa.dataset.dataset(files, format=_format(files), partition_base_dir=root.text, partitioning="hive")


def _format(files: list[str]) -> str:
    return "json" if files[0].endswith(".json") else "parquet"


def committed_files(path: str, spark: SparkSession | None = None) -> tuple[Location, list[str]]:
    """A folder, and the full paths of its committed files. Raises InputError if it has no commit records."""
    storage = storage_at(path, spark)
    log = CommitLog(storage)
    if not log.exists():
        raise InputError(f"{path!r} has no commit records; expected the deliveries of `tidings run`, as files")
    return storage.root, [storage.root.below(file.name).text for file in log.files()]


def _committed(spark: SparkSession, path: str, prefix: str, epoch: Epoch | None) -> CommittedFolder:
    storage = storage_at(path, spark)
    if epoch is None:
        return CommittedFolder(storage, prefix=prefix)
    return CommittedFolder(storage, prefix=prefix, pipeline=epoch.pipeline, epoch=epoch.number, check=epoch.check)


def _count_rows(spark: SparkSession, format: str, like: DataFrame, paths: list[str]) -> int:
    """Rows of files that were just written: for Parquet their footers, for JSON their lines."""
    if not paths:
        return 0
    paths = [Location(path).literal for path in paths]
    if format != "parquet":
        return spark.read.text(paths).count()
    return spark.read.schema(like.schema).parquet(*paths).count()
