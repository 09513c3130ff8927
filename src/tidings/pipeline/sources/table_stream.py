"""A Delta or Iceberg table as a stream: what it holds at the start, then what each version or snapshot appends.

Spark's checkpoint stores the offset: the table's id, a version, and how many of its files have been read. So a
restart goes on with the next file, and the same offsets always mean the same rows. A version that changes or removes
rows ends the stream with an error, or is skipped; versions that only rearrange files are always skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from tidings.errors import InputError
from tidings.pipeline.connectors.table_format import Part, VersionedTable, open_table, table_name
from tidings.pipeline.sources.read_limits import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "tidings_table"
# Spark masks options with such names in plans and logs. Those of a store or a catalog may hold keys.
STORE_OPTIONS = "storeSecrets"
ALL_READ = -1


@dataclass(frozen=True, slots=True)
class TableOffset:
    """How far a table has been read: `files` of those that `version` appended, or of all that it had at the start."""

    table: str
    version: int
    files: int = ALL_READ
    at_start: bool = False


class TableStream(DataSource):
    """The data source. Its options are table, filesPerBatch, onChange (refuse or skip), and those of the store."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return self._table().schema()

    def streamReader(self, schema: StructType) -> TableStreamReader:  # noqa: N802
        skip_changes = self.options.get("onChange", "refuse") == "skip"
        return TableStreamReader(self._table(), int(self.options["filesPerBatch"]), skip_changes)

    def _table(self) -> VersionedTable:
        name = table_name(self.options["table"])
        assert name is not None, "given by read_stream"
        return open_table(name, json.loads(self.options.get(STORE_OPTIONS, "{}")))


class FilePartition(InputPartition):
    """A file for a worker."""

    def __init__(self, part: Part) -> None:
        super().__init__(part)


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a table in the order of its versions, a number of files at a time."""

    def __init__(self, table: VersionedTable, files_per_batch: int, skip_changes: bool) -> None:
        self.table, self.read_part = table, table.reader()
        self._listed: tuple[TableOffset, list[Part]] | None = None
        self.files_per_batch, self.skip_changes = files_per_batch, skip_changes
        self._target: int | None = None  # The last version of a query with trigger(availableNow=True).

    def __getstate__(self) -> dict[str, Any]:
        return {"read_part": self.read_part}  # What workers need.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return asdict(TableOffset(self.table.id, self.table.version(), 0, at_start=True))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxFiles(self.files_per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self.table.version()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        left = limit.max_files if isinstance(limit, ReadMaxFiles) else self.files_per_batch
        if isinstance(limit, ReadAllAvailable):
            left = -1
        reached = TableOffset(**start)
        for reached, part in self._steps(TableOffset(**start)):  # noqa: B007  The last one counts.
            left -= part is not None
            if left == 0:
                break
        return asdict(reached)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        last, found = TableOffset(**end), []
        if start == end:
            return []
        for offset, part in self._steps(TableOffset(**start), last.version):
            if part is not None:
                found.append(FilePartition(part))
            if offset == last:
                return found
        raise InputError(
            "the checkpoint is ahead of the table: it was created again, or restored; begin with a new one"
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        yield from self.read_part(partition.value)

    def _steps(self, after: TableOffset, until: int | None = None) -> Iterator[tuple[TableOffset, Part | None]]:
        """What comes after an offset, file by file, each with the offset after it."""
        self._check(after)
        until = until if until is not None else self._target if self._target is not None else self.table.version()
        if after.files != ALL_READ:
            yield from self._rest(after)
        for version in self.table.versions_after(after.version, until):
            yield from self._rest(TableOffset(after.table, version, 0))

    def _rest(self, after: TableOffset) -> Iterator[tuple[TableOffset, Part | None]]:
        """The files of one version from an offset within it, and the offset at which all of them are read."""
        parts = self._parts(after)
        done = TableOffset(after.table, after.version)
        for number, part in islice(enumerate(parts, 1), after.files, None):
            here = TableOffset(after.table, after.version, number, after.at_start)
            yield (done if number == len(parts) else here), part
        if after.files >= len(parts):
            yield done, None

    def _parts(self, at: TableOffset) -> list[Part]:
        """The files that an offset counts. A large version is read in many batches, and listed once."""
        version = TableOffset(at.table, at.version, 0, at.at_start)
        if self._listed is None or self._listed[0] != version:
            skip_changes = self.skip_changes
            table = self.table
            parts = table.parts(at.version) if at.at_start else table.appended(at.version, skip_changes=skip_changes)
            self._listed = version, parts
        return self._listed[1]

    def _check(self, offset: TableOffset) -> None:
        self.table.version()
        if offset.table != self.table.id:
            raise InputError(
                "the table was deleted and created again since it was last read; begin with a new checkpoint"
            )


def read_stream(
    spark: SparkSession, table: str, options: dict[str, str], *, files_per_batch: int, on_change: str
) -> DataFrame:
    """The table `delta:…` or `iceberg:…` as a stream."""
    spark.dataSource.register(TableStream)
    reader = spark.readStream.format(NAME).option("table", table).option("filesPerBatch", files_per_batch)
    return reader.option("onChange", on_change).option(STORE_OPTIONS, json.dumps(options)).load()
