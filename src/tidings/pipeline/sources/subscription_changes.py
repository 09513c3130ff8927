"""Sources of subscriptions and their changes: a folder of JSON lines, a table, or a Kafka topic.

    folder   every new file is a set of changes; files are read in the order of their names
    topic    every message is a change: the key is the id, the value is the subscription as JSON,
             and a null value (a tombstone) removes it; suits a compacted topic
    table    the desired subscriptions; the difference to the current ones is the set of changes
    delta, iceberg   a table whose log says what has changed (`tidings.pipeline.sources.table_changes`)

All of them return rows of CHANGE, at most one for each id, and a **mark**: the source's offset after these changes. The
checkpoint stores marks with the versions, so that no change is applied twice.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tidings.errors import InputError
from tidings.events import EventType
from tidings.pipeline.config import SubscriptionsFrom, plain_options
from tidings.pipeline.connectors.table_format import check_not_a_table
from tidings.pipeline.matching.parse_subscriptions import of_type
from tidings.pipeline.session import is_connect
from tidings.pipeline.sources.files import ORIGINAL, REASON, ReadLines, literal, spark_schema
from tidings.pipeline.sources.validation import validate_lines
from tidings.pipeline.storage import Location, storage_at
from tidings.pipeline.tables import SUBSCRIPTION_COLUMNS, check_subscriptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHANGE = EventType("a subscription", id=str, subscriber=str, filter=str, type=str, removed=bool)
REMOVAL = b'{"removed": true}'
TOPIC_MARK, TABLE_MARK = "topic:", "table:"

_log = logging.getLogger("tidings.pipeline")

CurrentSubscriptions: TypeAlias = Callable[[], pa.Table]  # id, subscriber, condition


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """New changes: rows of CHANGE with reason and original, and the source's mark after them."""

    mark: str
    rows: DataFrame


class ChangeSource(Protocol):
    """A source of changes."""

    def poll(self, marks: Sequence[str], current: CurrentSubscriptions) -> Iterator[ChangeSet]:
        """The changes after `marks`. The caller stores each set before it asks for the next. Raises InputError."""

    def still_needed(self, marks: Sequence[str]) -> list[str]:
        """The marks that a snapshot of all versions so far must keep."""


def change_source(spark: SparkSession, where: SubscriptionsFrom, event_type: EventType) -> ChangeSource:
    """The source that a pipeline's file describes, of subscriptions to this event type."""
    match where.format:
        case "kafka":
            return ChangeTopic(spark, where.servers, where.topic, plain_options(where.options))
        case "table":
            return ChangeTable(spark, where.path, where.table, event_type)
        case "json":
            return ChangeFolder(spark, where.path)
        case "delta" | "iceberg":
            from tidings.pipeline.sources.table_changes import LoggedTable

            return LoggedTable(spark, where.table_name(), event_type)


def change_schema() -> StructType:
    return spark_schema(CHANGE).add(REASON, "string").add(ORIGINAL, "binary")


# ── A folder of JSON lines ───────────────────────────────────────────────────


class ChangeFolder:
    """New files by name. The mark of a file is its name."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark, self.storage = spark, storage_at(path, spark)

    def poll(self, marks: Sequence[str], current: CurrentSubscriptions) -> Iterator[ChangeSet]:
        taken = frozenset(marks)
        for name in self._names():
            if name not in taken:
                yield ChangeSet(name, self._rows(self.storage.root.below(name).literal))

    def still_needed(self, marks: Sequence[str]) -> list[str]:
        """The marks of files that still exist; deleting old files keeps the list short."""
        there = set(self._names())
        return [mark for mark in marks if mark in there]

    def _names(self) -> list[str]:
        where = self.storage.root
        if where.is_local and not Path(where.text).is_dir():
            raise InputError(f"expected a folder of subscriptions, got {where.text!r}")
        return [file.name for file in self.storage.list() if "/" not in file.name and not file.name.startswith("_")]

    def _rows(self, file: str) -> DataFrame:
        lines = self.spark.read.text(file).where("length(trim(value)) > 0").select(f.col("value").cast("binary"))
        read = lines.mapInArrow(ReadLines(CHANGE, keep_original=True), change_schema())
        row = f.struct(*read.columns)
        numbered = read.select("id", row.alias("row"), f.monotonically_increasing_id().alias("line"))
        # A later line replaces an earlier one with the same id. Lines without an id all stay, to be quarantined.
        key = f.coalesce(f.concat(f.lit("i"), "id"), f.concat(f.lit("l"), f.col("line").cast("string")))
        return numbered.groupBy(key).agg(f.max_by("row", "line").alias("row")).select("row.*")


# ── A topic ──────────────────────────────────────────────────────────────────


class ChangeTopic:
    """The latest message of each key since the last mark. A mark holds the offset of every partition."""

    def __init__(self, spark: SparkSession, servers: str, topic: str, options: Mapping[str, str] | None = None) -> None:
        from tidings.pipeline.connectors.kafka import resolved

        self.spark, self.servers, self.topic = spark, servers, topic
        self.options = resolved(options or {}, "subscriptions.options")

    def poll(self, marks: Sequence[str], current: CurrentSubscriptions) -> Iterator[ChangeSet]:
        from tidings.pipeline.connectors.kafka import end_offsets, read_between

        since = self._since(marks)
        ends = end_offsets(self.spark, self.servers, self.topic, self.options)
        if any(end > since.get(partition, 0) for partition, end in ends.items()):
            messages = read_between(self.spark, self.servers, self.topic, since, ends, self.options)
            yield ChangeSet(TOPIC_MARK + json.dumps(ends), _latest_by_key(messages))

    def still_needed(self, marks: Sequence[str]) -> list[str]:
        return [mark for mark in marks if mark.startswith(TOPIC_MARK)][-1:]

    def _since(self, marks: Sequence[str]) -> dict[str, int]:
        last = self.still_needed(marks)
        return json.loads(last[0].removeprefix(TOPIC_MARK)) if last else {}


def _latest_by_key(messages: DataFrame) -> DataFrame:
    # Messages of one key are in one partition, where a later one has a larger offset. Those without a key all stay.
    key = f.coalesce(f.col("key"), f.concat_ws(":", "partition", "offset").cast("binary"))
    latest = messages.groupBy(key).agg(f.max_by(f.struct("key", "value"), "offset").alias("message"))
    return latest.select("message.*").mapInArrow(_ReadMessages(), change_schema())


class _ReadMessages:
    """mapInArrow: keys and values → rows of CHANGE. The key is the id; a value may repeat it, not contradict it."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pylist(self._rows(batch), schema=_CHANGE_SCHEMA)

    def _rows(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        keys, values = batch.column("key").to_pylist(), batch.column("value").to_pylist()
        found = validate_lines(pc.fill_null(batch.column("value"), REMOVAL), CHANGE)
        good = [_with_key(row, keys[at], values[at]) for row, at in zip(found.good.to_pylist(), found.kept.tolist())]
        return good + [{REASON: reason, ORIGINAL: values[at]} for at, reason in found.broken]


def _with_key(row: dict[str, Any], key: bytes | None, value: bytes | None) -> dict[str, Any]:
    original = {ORIGINAL: value if value is not None else key}
    if key is None:
        return {REASON: "expected the subscription's id as the message's key, got none", **original}
    id = key.decode("utf-8", "replace")
    if row["id"] not in (None, id):
        return {REASON: f"the message's key is {id!r}, but its id is {row['id']!r}", **original}
    return {**row, "id": id, **original}


_CHANGE_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("id", "subscriber", "filter", "type")]
    + [("removed", pa.bool_()), (REASON, pa.string()), (ORIGINAL, pa.binary())]
)


# ── A table ──────────────────────────────────────────────────────────────────


class ChangeTable:
    """A table of the desired subscriptions: a folder of Parquet files, or a table in Spark's catalog.

    It is compared when its files have changed. While it is being replaced, it may be unreadable for a
    moment; the current subscriptions then stay as they are.
    """

    def __init__(self, spark: SparkSession, path: str, name: str, event_type: EventType) -> None:
        self.spark, self.path, self.name, self.event_type = spark, path, name, event_type
        self._seen = ""

    def poll(self, marks: Sequence[str], current: CurrentSubscriptions) -> Iterator[ChangeSet]:
        try:
            table = self._read()
            mark = TABLE_MARK + self._fingerprint(table)
            if mark in (self._seen, *marks[-1:]):
                return
            changed = differences_to(self.spark, table, current()).persist(StorageLevel.DISK_ONLY)
            has_changes = not changed.isEmpty()
        except (PySparkException, Py4JError) as wrong:
            if not marks:
                raise InputError(f"cannot read the subscriptions: {str(wrong).splitlines()[0][:200]}") from None
            _log.warning("cannot read the table of subscriptions now; the current ones stay: %s", wrong)
            return
        if has_changes:
            yield ChangeSet(mark, changed)
        changed.unpersist()
        self._seen = mark

    def still_needed(self, marks: Sequence[str]) -> list[str]:
        return [mark for mark in marks if mark.startswith(TABLE_MARK)][-1:]

    def _read(self) -> DataFrame:
        if self.name:
            self.spark.catalog.refreshTable(self.name)
            table = self.spark.table(self.name)
        else:
            check_not_a_table(self.path, "subscriptions.path", self.spark)
            self.spark.catalog.refreshByPath(Location.of(self.path).text)
            table = self.spark.read.parquet(literal(self.path))
        check_subscriptions(table)
        return of_type(table, self.event_type)

    def _fingerprint(self, table: DataFrame) -> str:
        """A hash of the names, sizes and modification times of its files."""
        if is_connect(self.spark):
            return _fingerprint_of_local(table.inputFiles())
        jvm: Any = self.spark.sparkContext._jvm
        settings = self.spark.sparkContext._jsc.hadoopConfiguration()
        hasher = hashlib.blake2b(digest_size=16)
        for name in sorted(table.inputFiles()):
            path = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(name))
            status = path.getFileSystem(settings).getFileStatus(path)
            hasher.update(f"{name} {status.getLen()} {status.getModificationTime()}\n".encode())
        return hasher.hexdigest()


def _fingerprint_of_local(files: Iterable[str]) -> str:
    """The same for a client of Spark Connect, which sees local files only. Raises InputError."""
    hasher = hashlib.blake2b(digest_size=16)
    for name in sorted(files):
        where = Location.of_uri(name)
        if not where.is_local:
            raise InputError(f"{where}: over Spark Connect expected subscriptions in a local folder, or a Delta table")
        status = Path(where.text).stat()
        hasher.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return hasher.hexdigest()


def differences_to(spark: SparkSession, table: DataFrame, current: pa.Table) -> DataFrame:
    """What a table of subscriptions changes about the current ones: id, subscriber, condition."""
    known: DataFrame
    if current.num_rows:
        known = spark.createDataFrame(current.rename_columns(list(SUBSCRIPTION_COLUMNS)))
    else:  # Spark Connect takes no schema from a table without rows.
        known = spark.createDataFrame([], ", ".join(f"{name} string" for name in SUBSCRIPTION_COLUMNS))
    return differences(table, known)


def differences(table: DataFrame, known: DataFrame) -> DataFrame:
    """Rows that are new or differ from known ones, and removals of known ones that the table lacks: rows of CHANGE."""
    texts = [f.col(name).cast("string").alias(name) for name in SUBSCRIPTION_COLUMNS]
    type = f.col("type").cast("string") if "type" in table.columns else f.lit(None).cast("string")
    rows = table.select(*texts, type.alias("type")).distinct()
    twice = rows.groupBy("id").agg(f.count("*").alias("times"))
    known = known.select("id", *(f.col(name).alias(f"known_{name}") for name in SUBSCRIPTION_COLUMNS[1:]))
    both = rows.join(twice, rows.id.eqNullSafe(twice.id), "left").drop(twice.id).join(known, "id", "full")
    same = f.col("subscriber").eqNullSafe(f.col("known_subscriber")) & f.col("filter").eqNullSafe(f.col("known_filter"))
    is_removed = f.col("times").isNull()
    original = f.to_json(f.struct("id", "subscriber", "filter", "type")).cast("binary")
    several = f.concat(f.lit("several subscriptions have the id "), "id")
    return both.where(is_removed | (f.col("times") > 1) | ~same).select(
        "id", "subscriber", "filter", "type",
        is_removed.alias("removed"),
        f.when(f.col("times") > 1, several).alias(REASON),
        original.alias(ORIGINAL),
    )  # fmt: skip
