"""DELIVERIES → a Delta or Iceberg table, each batch exactly once, by the table's own transactions.

Workers write data files, sorted by subscriber; the driver adds all files of a batch in one transaction, which also
records the pipeline's id and the batch's number. A batch that is repeated after a crash finds its number there and
writes nothing. Files that a crash left behind are in no transaction: readers never see them, and the table's own
clean-up (VACUUM, remove_orphan_files) deletes them.

The id belongs to the checkpoint. A new checkpoint counts batches from 0 again, and is another pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tidings.pipeline.connectors.table_format import TableName, TableWriter, open_writer, store_options
from tidings.pipeline.state.epoch import Epoch
from tidings.pipeline.tables import COMPACT_NAMES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class TableSink:
    """A `Sink`."""

    def __init__(self, spark: SparkSession, name: TableName, epoch: Epoch) -> None:
        self.writer, self.epoch = open_writer(name, store_options(spark, name)), epoch

    def prepare(self) -> None:
        self.writer.prepare()

    def put(self, deliveries: DataFrame, batch: int) -> None:
        pipeline = self.epoch.pipeline
        last = self.writer.last_batch(pipeline)
        if last is None or last < batch:
            written = write_files(self.writer, by_subscriber(deliveries))
            self.epoch.check()
            if written.files:
                self.writer.commit(written.files, batch=(pipeline, batch))


def by_subscriber(deliveries: DataFrame) -> DataFrame:
    """Sorted so that a file has few subscribers and its statistics say which. Spark merges small parts by itself."""
    return deliveries.repartitionByRange("subscriber").sortWithinPartitions("subscriber")


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """Data files that no transaction has yet, as `TableWriter.commit` takes them, and the deliveries in them."""

    files: list[bytes]
    deliveries: int


def write_files(writer: TableWriter, rows: DataFrame) -> WrittenFiles:
    """Writes rows to data files of a table."""
    written = rows.mapInArrow(_WriteFiles(writer.open_for(rows.schema)), "file binary, deliveries long")
    described = written.collect()  # The driver collects a description of each file.
    return WrittenFiles([bytes(row.file) for row in described if row.file], sum(row.deliveries for row in described))


class _WriteFiles:
    """mapInArrow: rows → descriptions of the files that they are in, and at last how many deliveries there are."""

    def __init__(self, write: Callable[[Iterable[pa.RecordBatch]], Iterator[bytes]]) -> None:
        self.write = write

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        self._deliveries = 0
        for file in self.write(self._counted(batches)):
            yield _described(file, 0)
        yield _described(None, self._deliveries)

    def _counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            lists = COMPACT_NAMES[1] in batch.schema.names
            self._deliveries += len(batch.column(COMPACT_NAMES[1]).flatten()) if lists else batch.num_rows
            if batch.num_rows:
                yield batch


def _described(file: bytes | None, deliveries: int) -> pa.RecordBatch:
    columns = [pa.array([file], pa.binary()), pa.array([deliveries], pa.int64())]
    return pa.RecordBatch.from_arrays(columns, ["file", "deliveries"])
