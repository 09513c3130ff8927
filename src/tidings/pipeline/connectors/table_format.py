"""Tables of the formats Delta Lake and Apache Iceberg: how they are named, found, opened and read.

A table is a set of Parquet files and a log that says which of them are live, and which of their rows. Read as plain
Parquet, a table shows rows that were deleted, and misses columns whose values are only in the log. So a folder that
holds such a table is never read that way.

    delta:PATH                          a folder, here or in an object store
    iceberg:CATALOG.NAMESPACE.TABLE     a table in a catalog that PyIceberg is configured for
    iceberg:PATH                        a table's folder or metadata file, for reading only
    PATH                                a folder in which one of the two is found

The libraries `deltalake` and `pyiceberg` read and commit the log, in the driver. Workers read and write the Parquet
files. Neither needs a jar, so any version of Spark will do (`connector_for`, and decision 0105).
"""

from __future__ import annotations

import enum
import pickle
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import pyarrow as pa
from py4j.protocol import Py4JError

from tidings.errors import InputError, SetupError
from tidings.pipeline.s3_settings import S3Settings, bucket_of
from tidings.pipeline.session import is_connect
from tidings.pipeline.storage import Location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

DELTA_LOG, ICEBERG_METADATA = "_delta_log", "metadata"
PLAIN_FILES_MAX = 10_000  # Paths that Spark gets in one list; with more, workers read what the driver lists.
TASKS_MAX = 10_000
COMMITS_MAX = 20  # Attempts, when others write to the table at the same time.
BEFORE_FIRST = -1  # The version of a table that nothing has been written to.

Part: TypeAlias = Any
"""A live file, or a part of one, as its format describes it: picklable, small, with `key` and `size`."""
ReadPart: TypeAlias = Callable[[Part], Iterator[pa.RecordBatch]]


class TableFormat(enum.StrEnum):
    """The formats, by the word that comes before the colon."""

    DELTA = "delta"
    ICEBERG = "iceberg"

    @property
    def library(self) -> str:
        return {"delta": "deltalake", "iceberg": "pyiceberg"}[self.value]

    @property
    def product(self) -> str:
        return {"delta": "Delta", "iceberg": "Iceberg"}[self.value]


@dataclass(frozen=True, slots=True)
class TableName:
    """A table: its format, and where it is."""

    format: TableFormat
    location: str

    def __str__(self) -> str:
        return f"{self.format}:{self.location}"


class VersionedTable(Protocol):
    """A table to read. Versions are Delta's numbers or Iceberg's snapshot ids; later ones need not be larger."""

    options: dict[str, str]
    """What the store or the catalog was opened with."""

    @property
    def id(self) -> str:
        """What tells the table from another one that takes its place later."""

    def version(self) -> int:
        """The current version, by the log as it is now; BEFORE_FIRST if nothing has been written."""

    def schema(self) -> StructType:
        """The columns of the current version, as Spark has them."""

    def parts(self, version: int) -> list[Part]:
        """The live files of a version, in an order that is always the same. Raises InputError if it is gone."""

    def plain_files(self, version: int) -> list[str] | None:
        """The live files, if reading them as plain Parquet with `schema` is right; None if it is not."""

    def versions_after(self, version: int, until: int) -> list[int]:
        """The versions after one up to another, the oldest first. Raises InputError if one of them is gone."""

    def appended(self, version: int, *, skip_changes: bool) -> list[Part]:
        """What a version added. Raises InputError if it changed or removed rows; skips such a version if told to."""

    def changed(self, since: int, until: int) -> pa.Table | None:
        """The change feed between two versions, if the table has one: columns, and `_change_type`, `_commit_version`."""

    def reader(self, columns: Collection[str] | None = None) -> ReadPart:
        """What reads a part in a worker: rows of `schema`, or of these columns of it."""


class TableWriter(Protocol):
    """A table to write to. `write` runs in workers; its results go to `commit`, in the driver."""

    def prepare(self) -> None:
        """Raises InputError or SetupError if the table, should it exist, cannot be written."""

    def last_batch(self, pipeline: str) -> int | None:
        """The last batch of this pipeline that the table has."""

    def is_empty(self) -> bool:
        """Whether the table has no rows, or does not exist."""

    def open_for(self, schema: StructType) -> Callable[[Iterable[pa.RecordBatch]], Iterator[bytes]]:
        """Creates the table if it does not exist. What it returns writes rows to files, and describes each."""

    def commit(self, files: Sequence[bytes], *, batch: tuple[str, int] | None = None, replace: bool = False) -> None:
        """Adds files in one transaction: as a pipeline's batch, once; or instead of all earlier rows."""


# ── Names ────────────────────────────────────────────────────────────────────


def table_name(text: str) -> TableName | None:
    """The table that an argument names by its format; None for a plain path.

    >>> str(table_name("delta:s3a://bucket/events")), table_name("events/2026")
    ('delta:s3a://bucket/events', None)
    """
    word, colon, location = text.partition(":")
    if not colon or word not in _EXPECTED:
        return None
    if not location:
        raise InputError(f"{text!r}: expected {_EXPECTED[word]}")
    return TableName(TableFormat(word), location)


_EXPECTED = {
    "delta": "delta:PATH, the folder of a Delta table",
    "iceberg": "iceberg:CATALOG.NAMESPACE.TABLE, or iceberg:PATH for reading",
}


def table_at(path: str, spark: SparkSession | None = None) -> TableName | None:
    """The table that a plain path holds. Raises InputError if the path is within a table.

    Looks at local paths itself. With `spark`, looks at remote ones through Spark's file systems.
    """
    listed = _remote(path, spark) if "://" in path else _local(path)
    if listed is None:
        return None
    format = listed.format()
    if format is not None:
        return TableName(format, path)
    for parent in listed.parents():
        around = parent.format()
        if around is not None:
            raise InputError(
                f"{path!r} is within the {around.product} table {parent.path!r}, whose log says which of its files are "
                f"live; expected the table: {around}:{parent.path}"
            )
    return None


def named_or_found(text: str, spark: SparkSession | None = None) -> TableName | None:
    """The table that an argument names, or that is at its path."""
    return table_name(text) or table_at(text, spark)


def check_not_a_table(path: str, entry: str, spark: SparkSession | None = None) -> None:
    """Raises InputError if an entry for plain files names a table."""
    found = table_at(path, spark)
    if found is not None:
        raise InputError(f'{entry}: {path!r} is a {found.format.product} table; expected format = "{found.format}"')


@dataclass(frozen=True, slots=True)
class _Folder:
    path: str
    exists: Callable[[str], bool]
    listing: Callable[[str], Iterable[str]]

    def format(self) -> TableFormat | None:
        """The format of the table that the folder holds, if it holds one."""
        if self.exists(f"{self.path}/{DELTA_LOG}"):
            return TableFormat.DELTA
        metadata = f"{self.path}/{ICEBERG_METADATA}"
        if self.exists(metadata) and any(name.endswith(".metadata.json") for name in self.listing(metadata)):
            return TableFormat.ICEBERG
        return None

    def parents(self) -> Iterator[_Folder]:
        root, path = self.path.count("://") * 2, self.path
        while path.count("/") > root:
            path = path.rpartition("/")[0]
            yield _Folder(path, self.exists, self.listing)


def _local(path: str) -> _Folder:
    def names(folder: str) -> Iterable[str]:
        return (file.name for file in Path(folder).iterdir())

    return _Folder(str(Path(path).absolute()), lambda folder: Path(folder).is_dir(), names)


def _remote(path: str, spark: SparkSession | None) -> _Folder | None:
    if spark is None or is_connect(spark):
        return None
    jvm: Any = spark.sparkContext._jvm
    files = jvm.org.apache.hadoop.fs.Path(path).getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def exists(folder: str) -> bool:
        try:
            return bool(files.exists(jvm.org.apache.hadoop.fs.Path(folder)))
        except Py4JError:  # No right to look there, as above a bucket's prefix: then it is no part of ours.
            return False

    def names(folder: str) -> Iterable[str]:
        return (status.getPath().getName() for status in files.listStatus(jvm.org.apache.hadoop.fs.Path(folder)))

    return _Folder(path.rstrip("/"), exists, names)


# ── Opening ──────────────────────────────────────────────────────────────────


def check_library(name: TableName) -> None:
    """Raises SetupError, with the command that helps, if the format's library is missing."""
    if util.find_spec(name.format.library) is None:
        raise SetupError(
            f"{str(name)!r} is a {name.format.product} table, and the library {name.format.library} is not installed; "
            f"to read and write such tables: pip install 'tidings[{name.format}]'"
        )


def open_table(name: TableName, options: dict[str, str] | None = None) -> VersionedTable:
    """The table, for reading; `options` are for its store. Raises InputError, or SetupError if a library is missing."""
    check_library(name)
    if name.format is TableFormat.DELTA:
        from tidings.pipeline.connectors.delta import DeltaReader

        return DeltaReader(name.location, options)
    from tidings.pipeline.connectors.iceberg import IcebergReader

    return IcebergReader(name.location, options)


def open_writer(name: TableName, options: dict[str, str] | None = None) -> TableWriter:
    """The table, for writing; it need not exist yet. Raises InputError and SetupError."""
    check_library(name)
    if name.format is TableFormat.DELTA:
        from tidings.pipeline.connectors.delta import DeltaWriter

        return DeltaWriter(name.location, options)
    from tidings.pipeline.connectors.iceberg import IcebergWriter

    return IcebergWriter(name.location, options)


@dataclass(frozen=True, slots=True)
class Compacted:
    """How many files there were, and how many there are."""

    before: int
    after: int


def compact_table(given: str, conf: Mapping[str, str] | None = None) -> Compacted | None:
    """Merges small files of a Delta table by Delta's own OPTIMIZE; None if no table is given.

    `conf` are settings as Spark has them, which say how S3 is reached. Raises InputError for an Iceberg table, since PyIceberg rewrites no files.
    """
    name = named_or_found(given)
    if name is None:
        return None
    check_library(name)
    if name.format is TableFormat.ICEBERG:
        raise InputError(
            f"{str(name)!r}: pyiceberg cannot merge files; call the procedure rewrite_data_files in a Spark that has "
            "Iceberg's connector (`tidings doctor` names it)"
        )
    from tidings.pipeline.connectors.delta import compact

    bucket = bucket_of(name.location)
    return Compacted(*compact(name.location, S3Settings.from_conf(conf or {}, bucket).delta() if bucket else {}))


def store_options(spark: SparkSession, name: TableName) -> dict[str, str]:
    """What Spark is told about the table's store, if that is S3, in the words of the format's library."""
    if name.format is TableFormat.DELTA:
        bucket = bucket_of(name.location)
        return S3Settings.from_spark(spark, bucket).delta() if bucket else {}
    from tidings.pipeline.connectors.iceberg import warehouse

    return S3Settings.from_spark(spark, bucket_of(warehouse(name.location))).iceberg()


# ── Spark's own connectors ───────────────────────────────────────────────────

# By Spark's version, as far as they work there. On 4.3 neither does: Delta's (4.4.0, for 4.2) fails on the second
# write with NoSuchMethodError, Iceberg's (1.12.0, for 4.1) with IncompatibleClassChangeError.
CONNECTORS = {
    TableFormat.DELTA: {
        "4.1": "io.delta:delta-spark_4.1_2.13:4.1.0",
        "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
    },
    TableFormat.ICEBERG: {"4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"},
}
_DELTA_CLASS = "org.apache.spark.sql.delta.sources.DeltaDataSource"


def connector_for(format: TableFormat, spark_version: str) -> str | None:
    """The Maven coordinates of Spark's own connector for this version of Spark; None if none works there.

    >>> connector_for(TableFormat.DELTA, "4.3.0") is None
    True
    """
    return CONNECTORS[format].get(".".join(spark_version.split(".")[:2]))


def reads_by_connector(spark: SparkSession, name: TableName) -> bool:
    """Whether Spark itself reads this table in batch: the session has Delta's connector, and one that works here.

    Everything else goes through the libraries on every version of Spark: streams, changes and commits need what
    the connectors do not offer to Python, or offer otherwise.
    """
    if name.format is not TableFormat.DELTA or connector_for(name.format, spark.version) is None or is_connect(spark):
        return False
    jvm: Any = spark.sparkContext._jvm
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(_DELTA_CLASS)
    except Py4JError:
        return False
    return True


# ── Reading, in workers ──────────────────────────────────────────────────────


def read_table(spark: SparkSession, table: VersionedTable, columns: Collection[str] | None = None) -> DataFrame:
    """The rows of the current version, or these columns of them."""
    version, schema = table.version(), table.schema()
    if columns is not None:
        schema = type(schema)([field for field in schema if field.name in columns])
    plain = table.plain_files(version)
    if plain and len(plain) <= PLAIN_FILES_MAX:
        return spark.read.schema(schema).parquet(
            *(Location(re.sub("^s3://", "s3a://", file)).literal for file in plain)
        )
    return read_parts(spark, table.parts(version), table.reader(columns), schema)


def read_parts(spark: SparkSession, parts: Sequence[Part], reader: ReadPart, schema: StructType) -> DataFrame:
    """The rows of these parts, read by workers."""
    described, tasks = [(pickle.dumps(part),) for part in parts], max(1, min(len(parts), TASKS_MAX))
    if is_connect(spark):
        listed = spark.createDataFrame(described, "part binary").repartition(tasks)
    else:
        listed = spark.createDataFrame(spark.sparkContext.parallelize(described, tasks), "part binary")
    return listed.mapInArrow(_ReadParts(reader), schema)


class _ReadParts:
    """mapInArrow: parts → their rows."""

    def __init__(self, reader: ReadPart) -> None:
        self.reader = reader

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.column("part").to_pylist():
                yield from self.reader(pickle.loads(part))  # noqa: S301  Pickled by our own driver.


def projected(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Rows of a file as rows of the table: by the names that files have, NULL for what a file has not."""
    columns = [_projected_child(rows, rows.schema, rows.num_rows, field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, [field.name for field in schema])


PHYSICAL_NAME = b"physical"  # In a field's metadata: its name in files, where that is another one.


def _projected_child(parent: Any, fields: Any, count: int, field: pa.Field) -> pa.Array:
    name = (field.metadata or {}).get(PHYSICAL_NAME, field.name.encode()).decode()
    at = fields.get_field_index(name)
    if at < 0:
        return pa.nulls(count, field.type)
    return _projected_array(parent.column(at) if isinstance(parent, pa.RecordBatch) else parent.field(at), field.type)


def _projected_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type.equals(kind, check_metadata=True):
        return array
    if pa.types.is_struct(kind):
        children = [_projected_child(array, array.type, len(array), field) for field in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        return _projected_lists(array.take(pa.array(range(len(array)), pa.int64())), kind)
    return array.cast(kind)


def _projected_lists(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Lists and maps, of an array that begins at its first element."""
    if pa.types.is_map(kind):
        keys, items = _projected_array(array.keys, kind.key_type), _projected_array(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=kind, mask=array.is_null())
    values = _projected_array(array.values, kind.value_type)
    return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=array.is_null())


# ── Writing ──────────────────────────────────────────────────────────────────


def commit_once(
    writer: TableWriter, attempt: Callable[[], None], batch: tuple[str, int] | None, refused: type[Exception]
) -> None:
    """Tries to commit until the table has the batch, by whomever.

    `attempt` commits to the table as it is then, and raises `refused` if another writer was faster. What that one
    wrote decides whether there is anything left to do.
    """
    reason = ""
    for _ in range(COMMITS_MAX):
        last = writer.last_batch(batch[0]) if batch else None
        if batch and last is not None and last >= batch[1]:
            return
        try:
            attempt()
        except refused as wrong:
            reason = first_line(wrong)
        else:
            return
    raise SetupError(f"cannot commit to the table, {COMMITS_MAX} times, while others write to it: {reason}")


def check_columns(wanted: pa.Schema, there: pa.Schema, where: str) -> None:
    """Raises InputError if a table lacks a column, has one of another type, or requires one that is not written."""
    for field in wanted:
        at = there.get_field_index(field.name)
        if at < 0 or not _same_type(there.field(at).type, field.type):
            found = "has no such column" if at < 0 else f"has {there.field(at).type}"
            raise InputError(
                f"deliveries have a column {field.name!r} of type {field.type}, but {where} {found}; "
                "add the column to the table, or deliver to a new one"
            )
    required = [field.name for field in there if not field.nullable and field.name not in wanted.names]
    if required:
        raise InputError(f"{where} requires a column {required[0]!r}, which deliveries do not have")


def is_anywhere(kind: pa.DataType, is_it: Callable[[pa.DataType], bool]) -> bool:
    """Whether it is true of a type, or of one within it.

    >>> is_anywhere(pa.map_(pa.string(), pa.list_(pa.time64("us"))), pa.types.is_time)
    True
    """
    return is_it(kind) or any(is_anywhere(kind.field(at).type, is_it) for at in range(kind.num_fields))


def no_type_for(field: pa.Field, format: TableFormat) -> InputError:
    """Says that tables of a format cannot hold a column that is to be kept."""
    return InputError(
        f"column {field.name!r} has the type {field.type}, and {format.product} has no type for it; "
        "do not keep it, or deliver to Parquet files"
    )


def _same_type(one: pa.DataType, other: pa.DataType) -> bool:
    text = (pa.string(), pa.large_string())
    return bool(
        one == other or (one in text and other in text) or (pa.types.is_nested(one) and pa.types.is_nested(other))
    )


def first_line(wrong: Exception) -> str:
    return (str(wrong).strip().splitlines() or [type(wrong).__name__])[0][:200]
