"""Where subscriptions and their changes come from: a folder of JSON lines, a table, or a Kafka topic.

    folder   every new file is a set of changes, taken in the order of their names
    topic    every message is a change: the key is the id, the value the subscription as JSON,
             no value (a tombstone) its removal; a topic that Kafka compacts keeps the latest of each
    table    the subscriptions as they should be; what differs from those in force is what changed

All three give the same thing: rows of CHANGE, at most one for each id, and a **mark** that says
how far they reach. Marks are kept with the versions in the checkpoint, so that nothing is taken twice.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tidings.errors import InputError
from tidings.events import EventType
from tidings.pipeline.config import SubscriptionsFrom
from tidings.pipeline.matching.parse_subscriptions import of_type
from tidings.pipeline.sources.files import ORIGINAL, REASON, ReadLines, spark_schema
from tidings.pipeline.sources.validation import sort_lines
from tidings.pipeline.tables import check_subscriptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHANGE = EventType("a subscription", id=str, subscriber=str, filter=str, type=str, removed=bool)
REMOVAL = b'{"removed": true}'
TOPIC_MARK, TABLE_MARK = "topic:", "table:"

_log = logging.getLogger("tidings.pipeline")

InForce: TypeAlias = Callable[[], pa.Table]  # id, subscriber, condition of what is in force


@dataclass(frozen=True, slots=True)
class News:
    """Changes that nobody has taken yet: rows of CHANGE with reason and original, and the mark they reach to."""

    mark: str
    rows: DataFrame


class ChangeSource(Protocol):
    """Where changes come from."""

    def news(self, marks: Sequence[str], in_force: InForce) -> Iterator[News]:
        """What came after `marks`. Each is to be taken before the next is asked for. Raises InputError."""

    def still_needed(self, marks: Sequence[str]) -> list[str]:
        """The marks that must be kept when all versions so far become one."""


def change_source(spark: SparkSession, where: SubscriptionsFrom, event_type: EventType) -> ChangeSource:
    """The one that a pipeline's file describes, with subscriptions to this event type."""
    match where.format:
        case "kafka":
            return Topic(spark, where.servers, where.topic)
        case "table":
            return Table(spark, where.path, where.table, event_type)
        case "json":
            return Folder(spark, where.path)


def change_schema() -> StructType:
    return spark_schema(CHANGE).add(REASON, "string").add(ORIGINAL, "binary")


# ── A folder of JSON lines ───────────────────────────────────────────────────


class Folder:
    """New files by name. The mark of a file is its name."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark, self.path = spark, Path(path)

    def news(self, marks: Sequence[str], in_force: InForce) -> Iterator[News]:
        taken = frozenset(marks)
        for file in self._files():
            if file.name not in taken:
                yield News(file.name, self._rows(file))

    def still_needed(self, marks: Sequence[str]) -> list[str]:
        """Those of files that are still there. Who deletes old files keeps the list short."""
        there = {file.name for file in self._files()}
        return [mark for mark in marks if mark in there]

    def _files(self) -> list[Path]:
        if not self.path.is_dir():
            raise InputError(f"expected a folder of subscriptions, got {str(self.path)!r}")
        return sorted(file for file in self.path.iterdir() if file.is_file() and not file.name.startswith((".", "_")))

    def _rows(self, file: Path) -> DataFrame:
        lines = self.spark.read.text(str(file)).where("length(trim(value)) > 0").select(f.col("value").cast("binary"))
        read = lines.mapInArrow(ReadLines(CHANGE, keep_original=True), change_schema())
        row = f.struct(*read.columns)
        numbered = read.select("id", row.alias("row"), f.monotonically_increasing_id().alias("line"))
        # A later line of a file takes the place of an earlier one; lines without an id all stay, to be quarantined.
        key = f.coalesce(f.concat(f.lit("i"), "id"), f.concat(f.lit("l"), f.col("line").cast("string")))
        return numbered.groupBy(key).agg(f.max_by("row", "line").alias("row")).select("row.*")


# ── A topic ──────────────────────────────────────────────────────────────────


class Topic:
    """Messages since the last mark, the latest of each key. The mark holds the offset of every partition."""

    def __init__(self, spark: SparkSession, servers: str, topic: str) -> None:
        self.spark, self.servers, self.topic = spark, servers, topic

    def news(self, marks: Sequence[str], in_force: InForce) -> Iterator[News]:
        from tidings.pipeline.connectors.kafka import ends_of, read_between

        since = self._since(marks)
        ends = ends_of(self.spark, self.servers, self.topic)
        if any(end > since.get(partition, 0) for partition, end in ends.items()):
            messages = read_between(self.spark, self.servers, self.topic, since, ends)
            yield News(TOPIC_MARK + json.dumps(ends), _latest_by_key(messages))

    def still_needed(self, marks: Sequence[str]) -> list[str]:
        return [mark for mark in marks if mark.startswith(TOPIC_MARK)][-1:]

    def _since(self, marks: Sequence[str]) -> dict[str, int]:
        last = self.still_needed(marks)
        return json.loads(last[0].removeprefix(TOPIC_MARK)) if last else {}


def _latest_by_key(messages: DataFrame) -> DataFrame:
    # Messages of one key are in one partition, where a later one has the larger offset. Those without a key all stay.
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
        found = sort_lines(pc.fill_null(batch.column("value"), REMOVAL), CHANGE)
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


class Table:
    """A table of subscriptions as they should be: a folder of Parquet files, or a table that Spark knows by name.

    It is looked at when its files have changed. While somebody replaces it, it may be
    unreadable for a moment; then what is in force remains so.
    """

    def __init__(self, spark: SparkSession, path: str, name: str, event_type: EventType) -> None:
        self.spark, self.path, self.name, self.event_type = spark, path, name, event_type
        self._seen = ""

    def news(self, marks: Sequence[str], in_force: InForce) -> Iterator[News]:
        try:
            table = self._read()
            mark = TABLE_MARK + self._fingerprint(table)
            if mark in (self._seen, *marks[-1:]):
                return
            changed = _differences(self.spark, table, in_force()).persist()
            is_news = not changed.isEmpty()
        except (PySparkException, Py4JError) as wrong:
            if not marks:
                raise InputError(f"cannot read the subscriptions: {str(wrong).splitlines()[0][:200]}") from None
            _log.warning("the table of subscriptions cannot be read now; what is in force stays so: %s", wrong)
            return
        if is_news:
            yield News(mark, changed)
        changed.unpersist()
        self._seen = mark

    def still_needed(self, marks: Sequence[str]) -> list[str]:
        return [mark for mark in marks if mark.startswith(TABLE_MARK)][-1:]

    def _read(self) -> DataFrame:
        if self.name:
            self.spark.catalog.refreshTable(self.name)
            table = self.spark.table(self.name)
        else:
            self.spark.catalog.refreshByPath(self.path)
            table = self.spark.read.parquet(self.path)
        check_subscriptions(table)
        return of_type(table, self.event_type)

    def _fingerprint(self, table: DataFrame) -> str:
        """Of its files: names, sizes and times."""
        jvm: Any = self.spark.sparkContext._jvm
        settings = self.spark.sparkContext._jsc.hadoopConfiguration()
        hasher = hashlib.blake2b(digest_size=16)
        for name in sorted(table.inputFiles()):
            path = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(name))
            status = path.getFileSystem(settings).getFileStatus(path)
            hasher.update(f"{name} {status.getLen()} {status.getModificationTime()}\n".encode())
        return hasher.hexdigest()


def _differences(spark: SparkSession, table: DataFrame, in_force: pa.Table) -> DataFrame:
    """Rows that are new or other than in force, and removals of what is in force and not in the table."""
    texts = [f.col(name).cast("string").alias(name) for name in ("id", "subscriber", "filter")]
    type = f.col("type").cast("string") if "type" in table.columns else f.lit(None).cast("string")
    rows = table.select(*texts, type.alias("type")).distinct()
    twice = rows.groupBy("id").agg(f.count("*").alias("times"))
    known = spark.createDataFrame(in_force.rename_columns(["id", "known_subscriber", "known_filter"]))
    both = rows.join(twice, rows.id.eqNullSafe(twice.id), "left").drop(twice.id).join(known, "id", "full")
    same = f.col("subscriber").eqNullSafe(f.col("known_subscriber")) & f.col("filter").eqNullSafe(f.col("known_filter"))
    is_gone = f.col("times").isNull()
    original = f.to_json(f.struct("id", "subscriber", "filter", "type")).cast("binary")
    several = f.concat(f.lit("several subscriptions have the id "), "id")
    return both.where(is_gone | (f.col("times") > 1) | ~same).select(
        "id", "subscriber", "filter", "type",
        is_gone.alias("removed"),
        f.when(f.col("times") > 1, several).alias(REASON),
        original.alias(ORIGINAL),
    )  # fmt: skip
