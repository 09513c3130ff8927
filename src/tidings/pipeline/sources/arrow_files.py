"""Parquet with columns that Spark has no type for: the workers read the files with Arrow.

One nanosecond timestamp (pandas' default), one float of 16 bits or one UUID (DuckDB), and Spark reads nothing of the
file. Arrow reads them all. Columns that no attribute can hold are left out, and the rest becomes a table of Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from tidings.errors import InputError
from tidings.events import EventType, arrow_schema, conform
from tidings.pipeline.storage import Location
from tidings.pipeline.tables import quoted
from tidings.pipeline.worker_files import AS_SPARK, WorkerFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 16_384
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # The folder of rows without a value.


class ArrowFiles(NamedTuple):
    """The rows of Parquet files as a table with one column per attribute, the event type, and the files."""

    rows: DataFrame
    event_type: EventType
    files: tuple[str, ...]


def read_with_arrow(spark: SparkSession, path: Location, type_name: str) -> ArrowFiles | None:
    """The table of a file or folder; None where workers cannot open a file.

    Folders such as `area=EC2` are columns, of the types that Spark sees in them.
    """
    from pyspark.sql import functions as f

    from tidings.pipeline.arrow_types import from_arrow_schema

    listed = spark.read.schema("_ string").parquet(path.literal)
    files = sorted((Location.of_uri(uri) for uri in listed.inputFiles()), key=str)
    opened = WorkerFiles.of(spark, files)
    if not files or opened is None:
        return None
    folders = {field.name: field for field in listed.schema if field.name != "_"}
    footers = opened.footers(files)
    schema = _without(folders, _with_intervals(footers[0].schema))
    event_type = EventType.from_arrow(type_name, _signed(schema), leave_out_others=True)
    fields = [
        *(field.with_nullable(True) for field in arrow_schema(event_type)),
        *((name, pa.string()) for name in folders),
    ]
    groups = [
        (file.text, group, _folder_values(file, folders))
        for file, footer in zip(files, footers)
        for group in range(footer.num_row_groups)
    ]
    work = spark.createDataFrame(groups, "file string, row_group int, folders array<string>")
    reader = _ReadRowGroups(event_type, opened, tuple(folders))
    read = work.repartition(max(1, len(groups))).mapInArrow(reader, from_arrow_schema(pa.schema(fields)))
    rows = read.withColumns({name: f.col(quoted(name)).cast(folders[name].dataType) for name in folders})
    by_folder = EventType.from_spark(type_name, StructType(list(folders.values())), leave_out_others=True)
    attributes = (*event_type, *by_folder)
    return ArrowFiles(rows, EventType.of(type_name, attributes, event_type.others), tuple(file.text for file in files))


def _with_intervals(schema: pq.ParquetSchema) -> pa.Schema:
    """The columns as Arrow reads them; intervals, which it takes for twelve bytes, under their own name."""
    columns = [schema.column(at) for at in range(len(schema.names))]
    intervals = {column.path for column in columns if column.converted_type == "INTERVAL"}
    fields = schema.to_arrow_schema()
    return pa.schema(
        [each.with_type(pa.month_day_nano_interval()) if each.name in intervals else each for each in fields]
    )


def needs_arrow(file: str) -> bool:
    """Whether a local file has a column that Spark cannot read; False for one that cannot be looked into."""
    try:
        schema = _schema(file)
    except InputError:
        return False
    return any(_is_beyond_spark(field.type) for field in schema)


def _without(folders: Collection[str], schema: pa.Schema) -> pa.Schema:
    """A file's columns, but for those that the folders' names say otherwise, as Spark has it."""
    return pa.schema([field for field in schema if field.name not in folders])


def _folder_values(file: Location, folders: Collection[str]) -> list[str | None]:
    """What the folders of a file say about these columns.

    >>> _folder_values(Location("/data/area=New York/day=__HIVE_DEFAULT_PARTITION__/1.parquet"), ["area", "day"])
    ['New York', None]
    """
    parts = (part.partition("=") for part in file.text.split("/")[:-1])
    said = {unquote(name): unquote(value) for name, is_one, value in parts if is_one}
    return [value if (value := said.get(name)) != NO_VALUE else None for name in folders]


def beyond_spark(path: str, file: str | None) -> InputError:
    """Says which columns Spark cannot read, by the schema of a local file, if there is one to look at."""
    fields = [field for field in _schema(file) if _is_beyond_spark(field.type)] if file else []
    named = ", ".join(f"{field.name} ({field.type})" for field in fields) or "a column of a type that it does not have"
    return InputError(
        f"{path}: Spark, which reads streams, cannot read {named}; write timestamps and times in microseconds "
        "(pandas: to_parquet(…, coerce_timestamps='us')) and cast the rest; `tidings match` reads such files as they are"
    )


def _is_beyond_spark(kind: pa.DataType) -> bool:
    is_nanoseconds = (pa.types.is_timestamp(kind) or pa.types.is_duration(kind)) and kind.unit == "ns"
    is_time = pa.types.is_time(kind) and kind != pa.time64("us")
    is_raw = pa.types.is_fixed_size_binary(kind) or isinstance(kind, pa.BaseExtensionType)
    return bool(is_nanoseconds or is_time or is_raw or pa.types.is_float16(kind))


class _ReadRowGroups:
    """mapInArrow: rows of file, row group and what its folders say → the event type's columns, and the folders'."""

    def __init__(self, event_type: EventType, files: WorkerFiles, folders: tuple[str, ...]) -> None:
        self.event_type, self.files, self.folders = event_type, files, folders

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        heads = sorted({attribute.name.split(".")[0] for attribute in self.event_type})
        for batch in batches:
            for row in batch.to_pylist():  # A row is a whole row group.
                with self.files.open_parquet(Location(row["file"])) as file:
                    for rows in file.iter_batches(BATCH_ROWS, [row["row_group"]], heads, use_threads=False):
                        yield self._with_folders(for_spark(conform(rows, self.event_type)), row["folders"])

    def _with_folders(self, rows: pa.RecordBatch, values: list[str | None]) -> pa.RecordBatch:
        for name, value in zip(self.folders, values):
            rows = rows.append_column(name, pa.repeat(pa.scalar(value, pa.string()), rows.num_rows))
        return rows


def for_spark(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with times of day in nanoseconds, the only ones that Spark takes from Python."""
    times = {field.name: pa.time64("ns") for field in rows.schema if pa.types.is_time(field.type)}
    return rows.cast(pa.schema([f.with_type(times.get(f.name, f.type)) for f in rows.schema])) if times else rows


def _schema(file: str) -> pa.Schema:
    try:
        with pq.ParquetFile(file, memory_map=True, **AS_SPARK) as opened:
            return opened.schema_arrow
    except (pa.ArrowException, OSError) as wrong:
        raise InputError(f"{file}: cannot be read as Parquet: {str(wrong).splitlines()[0][:200]}") from None


def _signed(schema: pa.Schema) -> pa.Schema:
    """Unsigned ints of 64 bits as decimals, which hold them all; as Spark reads them, too."""
    fields = [field.with_type(_UNSIGNED) if pa.types.is_uint64(field.type) else field for field in schema]
    return pa.schema(fields)


_UNSIGNED = pa.decimal128(20, 0)
