"""Files → tables: events and subscriptions in Parquet, JSON lines or CSV, a file or a folder.

With an event type, JSON and CSV records are validated against it, and those that do not fit are returned separately.
Without one, Spark infers the files' schema, and the event type follows from that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from tidings.errors import EventTypeError, InputError
from tidings.events import Attribute, EventType, ValueType, arrow_schema, conform
from tidings.pipeline.connectors.table_format import (
    TableName,
    named_or_found,
    open_table,
    read_table,
    reads_by_connector,
    store_options,
)
from tidings.pipeline.matching.parse_subscriptions import UNNAMED
from tidings.pipeline.sources.arrow_files import ArrowFiles, for_spark, needs_arrow, read_with_arrow
from tidings.pipeline.sources.validation import validate_lines
from tidings.pipeline.storage import Location, storage_at
from tidings.pipeline.tables import EVENT_IDS, id_column, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMATS = {
    ".parquet": "parquet", ".parq": "parquet",
    ".json": "json", ".jsonl": "json", ".ndjson": "json",
    ".csv": "csv",
}  # fmt: skip
COMPRESSED = (".gz", ".bz2", ".zst", ".snappy", ".lz4")
CORRUPT = "_corrupt_record"
REASON, ORIGINAL = "_reason", "_original"
NO_FIT = "does not fit the event type"


@dataclass(frozen=True, slots=True)
class Events:
    """A table of valid events, their type, the id column, and the broken ones with reason and original bytes.

    `parquet_files` are the files that the rows come from, if workers may as well read these themselves.
    """

    rows: DataFrame
    event_type: EventType
    id: str
    broken: DataFrame | None
    parquet_files: tuple[str, ...] = ()
    narrowed: Callable[[Collection[str]], DataFrame] | None = None  # Reads only these columns, where Spark would not.


def format_of(path: str, spark: SparkSession | None = None) -> str:
    """parquet, json or csv, by the name of the file, or of the first data file in the folder.

    >>> format_of("events.jsonl.gz")
    'json'
    """
    for name in [path, *data_files(path, spark)]:
        suffixes = [f".{part.lower()}" for part in name.rpartition("/")[2].split(".")[1:]]
        while suffixes and suffixes[-1] in COMPRESSED:
            suffixes.pop()
        if suffixes and suffixes[-1] in FORMATS:
            return FORMATS[suffixes[-1]]
    raise InputError(
        f"cannot tell the format of {path!r}: expected .parquet, .json, .jsonl or .csv, or a folder of these"
    )


def check_exists(path: str) -> None:
    """Raises InputError for a local path that does not exist or cannot be read; Spark checks remote ones."""
    where = Location.of(path)
    if not where.is_local:
        return
    place = Path(where.text)
    if not place.exists():
        raise InputError(f"no such file or folder: {path!r}")
    odd = place if ":" in place.name and place.is_file() else next(place.rglob("*:*"), None)
    if odd is not None:
        raise InputError(f"{str(odd)!r}: Spark cannot read a local file with a colon in its name; rename it")


def read_events(
    spark: SparkSession, path: str, *, id: str | None = None, event_type: EventType | None = None
) -> Events:
    """The events of a file, a folder or a table. Raises InputError that names what is missing or does not fit."""
    table = named_or_found(path, spark)
    if table is not None:
        return _table_events(spark, table, id, event_type)
    check_exists(path)
    kind = format_of(path, spark)
    if kind == "json" and event_type:
        return _lines_as_events(spark.read.text(literal(path)), event_type, id_attribute(event_type, id))
    if kind == "parquet":
        return _read_parquet(spark, path, id, event_type)
    rows = _read_typed(spark, path, kind, event_type, id)
    broken = None
    if CORRUPT in rows.columns:
        rows = rows.persist(StorageLevel.DISK_ONLY)  # Spark refuses to query the corrupt column alone otherwise.
        broken = rows.where(f.col(CORRUPT).isNotNull()).select(
            f.lit("is not well-formed, or " + NO_FIT).alias("reason"), f.col(CORRUPT).cast("binary").alias("original")
        )
        rows = rows.where(f.col(CORRUPT).isNull()).drop(CORRUPT)
    return Events(rows, event_type or type_of_table(rows, path), _id_of(rows, id, path), broken)


def read_subscriptions(spark: SparkSession, path: str) -> DataFrame:
    """The subscriptions of a file, a folder or a table, not yet parsed. A broken JSON line becomes a rejected filter."""
    table = named_or_found(path, spark)
    if table is not None:
        return _table_rows(spark, table)()
    check_exists(path)
    match format_of(path, spark):
        case "parquet":
            return _read(spark, "parquet", path)
        case "json":
            fields = [StructField(name, StringType()) for name in ("id", "subscriber", "filter", "type", CORRUPT)]
            lines = spark.read.schema(StructType(fields)).json(literal(path))
            return lines.select("id", "subscriber", f.coalesce("filter", f.col(CORRUPT)).alias("filter"), "type")
        case other:
            raise InputError(f"expected subscriptions as JSON lines or Parquet, got {other}: {path!r}")


def type_of_table(rows: DataFrame, path: str = "the events") -> EventType:
    """The event type of a table's schema, without columns of types that no attribute can have."""
    try:
        event_type = EventType.from_spark(UNNAMED, rows.schema, leave_out_others=True)
    except EventTypeError as wrong:
        raise InputError(f"{path}: {wrong}") from None
    if not event_type.attributes:
        raise InputError(f"{path}: no events to take the event type from; declare it in a file and give it with --type")
    return event_type


def check_fits(rows: DataFrame, event_type: EventType) -> None:
    """Raises InputError if a column has another type than the attribute of its name."""
    from tidings.pipeline.arrow_types import to_arrow_schema

    known = {attribute.name.split(".")[0] for attribute in event_type}
    columns = [quoted(name) for name in rows.columns if name in known or name in event_type]
    conform(to_arrow_schema(rows.select(*columns).schema).empty_table(), event_type)


class ReadLines:
    """mapInArrow: JSON documents in a binary column `value` → the event type's columns, or a reason and the bytes."""

    def __init__(self, event_type: EventType, keep_original: bool = False) -> None:
        self.event_type = event_type
        self.keep_original = keep_original

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            lines = batch.column("value")
            found = validate_lines(lines, self.event_type)
            yield from self._valid(found.good, lines.take(pa.array(found.kept)))
            if found.broken:
                rows, reasons = zip(*found.broken)
                yield self._broken(lines.take(pa.array(rows)), pa.array(reasons))

    def _valid(self, good: pa.Table, originals: pa.Array) -> Iterator[pa.RecordBatch]:
        originals = originals if self.keep_original else pa.nulls(len(good), pa.binary())
        columns = [*good.columns, pa.nulls(len(good), pa.string()), originals]
        # Without the schema's nullability: all batches must have one schema, and broken rows are all null.
        batches = pa.Table.from_arrays(columns, [*good.schema.names, REASON, ORIGINAL]).to_batches()
        yield from map(for_spark, batches)

    def _broken(self, originals: pa.Array, reasons: pa.Array) -> pa.RecordBatch:
        schema = arrow_schema(self.event_type)
        nulls = [pa.nulls(len(reasons), field.type) for field in schema]
        names = [*schema.names, REASON, ORIGINAL]
        return for_spark(pa.RecordBatch.from_arrays([*nulls, reasons, originals], names))


def spark_schema(event_type: EventType) -> StructType:
    """The event type's columns, flat, as a Spark schema in which all are nullable."""
    from tidings.pipeline.arrow_types import from_arrow_schema

    schema = from_arrow_schema(arrow_schema(event_type))
    return StructType([StructField(field.name, field.dataType) for field in schema])


def _table_events(spark: SparkSession, name: TableName, id: str | None, event_type: EventType | None) -> Events:
    read = _table_rows(spark, name)
    rows = read()
    if event_type:
        check_fits(rows, event_type)
    id = _id_of(rows, id, str(name))
    # Where Spark reads the files as they are, so can the direct path. Its connector does not say whether it does.
    files = () if reads_by_connector(spark, name) else files_of(rows)
    found = event_type or type_of_table(rows, str(name))
    return Events(rows, found, id, None, files, read)


def _table_rows(spark: SparkSession, name: TableName) -> Callable[..., DataFrame]:
    """What reads the current version of a table, or some columns of it."""
    if reads_by_connector(spark, name):
        return lambda columns=None: spark.read.format(name.format).load(name.location)
    return partial(read_table, spark, open_table(name, store_options(spark, name)))


def _lines_as_events(lines: DataFrame, event_type: EventType, id: Attribute) -> Events:
    whole = with_id(event_type, id)
    schema = spark_schema(whole).add(REASON, "string").add(ORIGINAL, "binary")
    read = (
        lines.select(f.col("value").cast("binary")).mapInArrow(ReadLines(whole), schema).persist(StorageLevel.DISK_ONLY)
    )
    broken = read.where(f.col(REASON).isNotNull())
    broken = broken.select(f.col(REASON).alias("reason"), f.col(ORIGINAL).alias("original"))
    return Events(read.where(f.col(REASON).isNull()).drop(REASON, ORIGINAL), event_type, id.name, broken)


def with_id(event_type: EventType, id: Attribute) -> EventType:
    """The event type with its id as a required attribute."""
    others = (attribute for attribute in event_type if attribute.name != id.name)
    return EventType.of(event_type.name, (Attribute(id.name, id.type, True), *others))


def id_attribute(event_type: EventType, wanted: str | None) -> Attribute:
    """The attribute that is the id of events: a declared one, or else a string that the type does not declare."""
    declared = [name for name in EVENT_IDS if name in event_type]
    name = wanted or (declared[0] if declared else EVENT_IDS[0])
    return event_type[name] if name in event_type else Attribute(name, ValueType.STRING, True)


def _read_parquet(spark: SparkSession, path: str, id: str | None, event_type: EventType | None) -> Events:
    rows, found, files = _parquet_table(spark, path, event_type)
    if event_type:
        check_fits(rows, event_type)
    return Events(rows, event_type or found, _id_of(rows, id, path), None, files)


def _parquet_table(spark: SparkSession, path: str, event_type: EventType | None) -> ArrowFiles:
    """By Spark, or by Arrow where Spark has no type for a column."""
    by_arrow = read_with_arrow(spark, Location.of(path), UNNAMED) if _needs_arrow(path) else None
    if by_arrow is not None:
        return by_arrow
    try:
        rows = spark.read.parquet(literal(path))
        return ArrowFiles(rows, event_type or type_of_table(rows, path), files_of(rows))
    except AnalysisException as wrong:
        if any(sign in str(wrong) for sign in UNREADABLE):
            by_arrow = read_with_arrow(spark, Location.of(path), UNNAMED)
        if by_arrow is None:
            raise _unreadable(path, "parquet", wrong) from None
        return by_arrow


def _needs_arrow(path: str) -> bool:
    """Whether the first of local files says so: Spark finds out by a failed job, whose trace its log shows."""
    where = Location.of(path)
    if not where.is_local:
        return False
    first = where.text if Path(where.text).is_file() else next((f"{where}/{name}" for name in data_files(path)), "")
    return bool(first) and needs_arrow(first)


UNREADABLE = ("PARQUET_TYPE_ILLEGAL", "PARQUET_TYPE_NOT_SUPPORTED")


def _read_typed(spark: SparkSession, path: str, kind: str, event_type: EventType | None, id: str | None) -> DataFrame:
    if kind == "json":
        return spark.read.option("columnNameOfCorruptRecord", CORRUPT).json(literal(path))
    return _read_csv(spark, path, event_type, id)


def _read_csv(spark: SparkSession, path: str, event_type: EventType | None, id: str | None) -> DataFrame:
    reader = spark.read.option("header", True).option("preferDate", False)
    rows = reader.option("inferSchema", True).csv(literal(path))
    if event_type is None:
        return rows
    declared = {field.name: field for field in spark_schema(with_id(event_type, id_attribute(event_type, id)))}
    fields = [declared.get(name, StructField(name, StringType())) for name in rows.columns]
    schema = StructType([*fields, StructField(CORRUPT, StringType())])
    return (
        reader.option("enforceSchema", False)
        .option("columnNameOfCorruptRecord", CORRUPT)
        .schema(schema)
        .csv(literal(path))
    )


def _read(spark: SparkSession, kind: str, path: str) -> DataFrame:
    try:
        return spark.read.format(kind).load(literal(path))
    except AnalysisException as wrong:
        raise _unreadable(path, kind, wrong) from None


def _unreadable(path: str, kind: str, wrong: Exception) -> InputError:
    reason = str(wrong).splitlines()[0][:200]
    helps = next((helps for sign, helps in _REMEDIES.items() if sign in reason), "")
    return InputError(f"cannot read {path!r} as {kind}: {reason}{helps}")


_REMEDIES = {
    "COLUMN_ALREADY_EXISTS": "; to tell names apart by case, give --conf spark.sql.caseSensitive=true",
    "UNABLE_TO_INFER_SCHEMA": "; there is no file in it that is not empty, and Spark skips names that begin with _ or .",
}


def _id_of(rows: DataFrame, wanted: str | None, path: str) -> str:
    try:
        return id_column(rows, wanted)
    except InputError as wrong:
        raise InputError(f"{path}: {wrong}; name it with --id") from None


def literal(path: str) -> str:
    """A path that a user wrote, for Spark's readers: it is taken as it is, and is never a pattern."""
    return Location.of(path).literal


def files_of(rows: DataFrame) -> tuple[str, ...]:
    """The files that a table is read from, as paths and as locations are written."""
    return tuple(Location.of_uri(uri).text for uri in rows.inputFiles())


def data_files(path: str, spark: SparkSession | None = None) -> Iterator[str]:
    """The names of data files below a folder; of a remote one only with Spark, which knows its file system."""
    where = Location.of(path)
    if where.is_local or spark is not None:
        for file in storage_at(where, spark).list():
            if not any(part.startswith(("_", ".")) for part in file.name.split("/")):
                yield file.name
