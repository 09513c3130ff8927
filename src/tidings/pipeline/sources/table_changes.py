"""Subscriptions in a Delta or Iceberg table: changes by what the table's log says, not by comparing all of it.

The first poll takes the whole table. Later ones take the change data feed, if the table has one, or else read only
the files that were added and removed since, and compare these. If the log no longer reaches back that far, the
whole table is compared with the current subscriptions, once.

A mark is the table's id and version. Ids must be unique: two rows with one id are rejected if the same change brings
them, and otherwise the later one replaces the earlier one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from tidings.errors import InputError
from tidings.events import EventType
from tidings.pipeline.connectors.table_format import (
    TableName,
    VersionedTable,
    open_table,
    read_parts,
    read_table,
    store_options,
)
from tidings.pipeline.matching.parse_subscriptions import of_type
from tidings.pipeline.sources.subscription_changes import ChangeSet, CurrentSubscriptions, differences, differences_to
from tidings.pipeline.tables import SUBSCRIPTION_COLUMNS, check_subscriptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MARK = "log:"
COLUMNS = (*SUBSCRIPTION_COLUMNS, "type")
GONE = ("delete", "update_preimage")  # Change types of a feed after which a row is not there.

_VERSION = pa.field("_commit_version", pa.int64())

_log = logging.getLogger("tidings.pipeline")


class LoggedTable:
    """A `ChangeSource`."""

    def __init__(self, spark: SparkSession, name: TableName, event_type: EventType) -> None:
        self.spark, self.name, self.event_type = spark, name, event_type
        self.table: VersionedTable = open_table(name, store_options(spark, name))
        self._seen: int | None = None  # A later version than the last mark's, with the same subscriptions.

    def poll(self, marks: Sequence[str], current: CurrentSubscriptions) -> Iterator[ChangeSet]:
        version = self.table.version()
        last = self._last(marks) if self._seen is None else self._seen
        if last == version:
            return
        changed = self._changed(last, version, current).persist(StorageLevel.DISK_ONLY)
        if not changed.isEmpty():
            yield ChangeSet(MARK + json.dumps({"table": self.table.id, "version": version}), changed)
        changed.unpersist()
        self._seen = version

    def still_needed(self, marks: Sequence[str]) -> list[str]:
        return [mark for mark in marks if mark.startswith(MARK)][-1:]

    def _last(self, marks: Sequence[str]) -> int | None:
        """The version of the last mark; None if there is none, or if it is of another table."""
        for mark in self.still_needed(marks):
            told = json.loads(mark.removeprefix(MARK))
            if told["table"] == self.table.id:
                return int(told["version"])
        return None

    def _changed(self, since: int | None, until: int, current: CurrentSubscriptions) -> DataFrame:
        """Rows of CHANGE, with reason and original."""
        if since is not None:
            try:
                return self._changed_by_log(since, until)
            except InputError as gone:
                _log.warning("all subscriptions are compared, since their table's log has a gap: %s", gone)
        self._check_columns()
        return differences_to(self.spark, of_type(read_table(self.spark, self.table), self.event_type), current())

    def _check_columns(self) -> None:
        check_subscriptions(self.spark.createDataFrame([], self.table.schema()))

    def _changed_by_log(self, since: int, until: int) -> DataFrame:
        self.table.versions_after(since, until)  # Raises InputError if `until` does not follow from `since`.
        self._check_columns()
        feed = self.table.changed(since, until)
        before, after = _of_feed(self.spark, feed) if feed is not None else self._of_files(since, until)
        return differences(of_type(after, self.event_type), before)

    def _of_files(self, since: int, until: int) -> tuple[DataFrame, DataFrame]:
        """The rows of removed files, and those of added ones. A file whose deleted rows have changed is both."""
        old = {part.key: part for part in self.table.parts(since)}
        new = {part.key: part for part in self.table.parts(until)}
        removed = [part for key, part in old.items() if key not in new]
        added = [part for key, part in new.items() if key not in old]
        schema = StructType([field for field in self.table.schema() if field.name in COLUMNS])
        reader = self.table.reader(schema.names)
        before = read_parts(self.spark, removed, reader, schema)
        known = before.groupBy("id").agg(*(f.first(name).alias(name) for name in SUBSCRIPTION_COLUMNS[1:]))
        return known, read_parts(self.spark, added, reader, schema)


def _of_feed(spark: SparkSession, feed: pa.Table) -> tuple[DataFrame, DataFrame]:
    """A change feed as ids that were there, and rows that are there after the last change of their id."""
    names = [name for name in COLUMNS if name in feed.column_names]
    texts = pa.schema([(name, pa.string()) for name in (*names, "_change_type")])
    # The library returns texts in a layout that Spark does not know. A feed is as long as the changes are.
    rows = spark.createDataFrame(feed.select([*texts.names, "_commit_version"]).cast(texts.append(_VERSION)))
    is_gone = f.col("_change_type").isin(*GONE)
    order = f.struct("_commit_version", ~is_gone)  # Within a commit, a row's new state comes after its old one.
    last = rows.groupBy("id").agg(f.max_by(f.struct(*names, is_gone.alias("is_gone")), order).alias("row"))
    after = last.where(~f.col("row.is_gone")).select("row.*").drop("is_gone")
    nothing = [f.lit(None).cast("string").alias(name) for name in SUBSCRIPTION_COLUMNS[1:]]
    return rows.where(is_gone).select("id").distinct().select("id", *nothing), after
