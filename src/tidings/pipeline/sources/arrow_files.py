"""Parquet with columns that Spark has no type for: the workers read the files with Arrow.

One nanosecond timestamp (pandas' default), one float of 16 bits or one UUID (DuckDB), and Spark reads nothing of the
file. Arrow reads them all. Columns that no attribute can hold are left out, and the rest becomes a table of Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from tidings.errors import InputError
from tidings.events import EventType, arrow_schema, conform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 16_384


class ArrowFiles(NamedTuple):
    """The rows of Parquet files as a table with one column per attribute, the event type, and the files."""

    rows: DataFrame
    event_type: EventType
    files: tuple[str, ...]


def read_with_arrow(spark: SparkSession, path: str, type_name: str) -> ArrowFiles | None:
    """The table of a local file or folder; None where a file is elsewhere."""
    from tidings.pipeline.arrow_types import from_arrow_schema

    uris = spark.read.schema("_ string").parquet(path).inputFiles()
    files = tuple(sorted(filter(None, map(local_path, uris))))
    if not files or len(files) < len(uris):
        return None
    event_type = EventType.from_arrow(type_name, _signed(_schema(files[0])), leave_out_others=True)
    optional = pa.schema([field.with_nullable(True) for field in arrow_schema(event_type)])
    groups = [(file, group) for file in files for group in range(_row_groups(file))]
    work = spark.createDataFrame(groups, "file string, row_group int").repartition(max(1, len(groups)))
    return ArrowFiles(work.mapInArrow(_ReadRowGroups(event_type), from_arrow_schema(optional)), event_type, files)


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


def local_path(uri: str) -> str | None:
    """The path of a file on this machine, given as Spark names it; None if it is elsewhere."""
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme in ("", "file") else None


class _ReadRowGroups:
    """mapInArrow: rows of file and row group → the event type's columns."""

    def __init__(self, event_type: EventType) -> None:
        self.event_type = event_type

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        heads = sorted({attribute.name.split(".")[0] for attribute in self.event_type})
        for batch in batches:
            for row in batch.to_pylist():  # A row is a whole row group.
                with pq.ParquetFile(row["file"], memory_map=True) as file:
                    for rows in file.iter_batches(BATCH_ROWS, [row["row_group"]], heads, use_threads=False):
                        yield for_spark(conform(rows, self.event_type))


def for_spark(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with times of day in nanoseconds, the only ones that Spark takes from Python."""
    times = {field.name: pa.time64("ns") for field in rows.schema if pa.types.is_time(field.type)}
    return rows.cast(pa.schema([f.with_type(times.get(f.name, f.type)) for f in rows.schema])) if times else rows


def _schema(file: str) -> pa.Schema:
    try:
        return pq.read_schema(file, memory_map=True)
    except (pa.ArrowException, OSError) as wrong:
        raise InputError(f"{file}: cannot be read as Parquet: {str(wrong).splitlines()[0][:200]}") from None


def _signed(schema: pa.Schema) -> pa.Schema:
    """Unsigned ints of 64 bits as decimals, which hold them all; as Spark reads them, too."""
    fields = [field.with_type(_UNSIGNED) if pa.types.is_uint64(field.type) else field for field in schema]
    return pa.schema(fields)


_UNSIGNED = pa.decimal128(20, 0)


def _row_groups(file: str) -> int:
    return int(pq.read_metadata(file, memory_map=True).num_row_groups)
