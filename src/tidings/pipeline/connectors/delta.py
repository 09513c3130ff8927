"""Delta Lake tables, by the library `deltalake`: its log in the driver, Parquet files in the workers.

Reading: the library lists the live files of a version, with partition values and deletion vectors, which go to the
workers with the file. A commit's own file in `_delta_log` says what a version appended.

Writing: each worker writes files and describes them; the driver adds them in one transaction. As a pipeline's batch,
the transaction holds an application id and the batch's number (`txn` in Delta's protocol). Delta's conflict check
refuses a second transaction with the same application id, so two drivers cannot both commit a batch.
"""

from __future__ import annotations

import datetime
import json
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction

from tidings.errors import InputError
from tidings.pipeline.connectors.table_format import (
    DELTA_LOG,
    PHYSICAL_NAME,
    ReadPart,
    TableFormat,
    check_columns,
    commit_once,
    first_line,
    is_anywhere,
    no_type_for,
    projected,
)
from tidings.pipeline.worker_files import AS_SPARK

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

ROWS_PER_BATCH = 32_768  # What suits the matching kernel.
ROWS_PER_FILE_MAX = 4_000_000
TEXT_STATISTICS_MAX = 32  # Characters of a text in a file's statistics, as Delta's own writer has it.
_PHYSICAL = "delta.columnMapping.physicalName"
_NOT_PLAIN = {"deletionVectors", "columnMapping", "typeWidening", "typeWidening-preview"}
_NOT_WRITTEN = {
    "columnMapping",
    "identityColumns",
    "generatedColumns",
    "rowTracking",
    "icebergCompatV1",
    "icebergCompatV2",
}


@dataclass(frozen=True, slots=True)
class DeltaFile:
    """A live file: its path, values of the partition columns, and which of its rows are live."""

    path: str
    size: int
    partition: tuple[tuple[str, Any], ...] = ()
    live: bytes | None = None  # A bit per row; rows after the last bit are live. None: all are.

    @property
    def key(self) -> tuple[str, bytes | None]:
        return self.path, self.live


class DeltaReader:
    """A `VersionedTable`. Raises InputError if there is no Delta table, or one that the library cannot read."""

    def __init__(self, location: str, options: Mapping[str, str] | None = None) -> None:
        self.location, self.options = _absolute(location), dict(options or {})
        self._table = _opened(self.location, self.options)

    @property
    def id(self) -> str:
        return str(self._table.metadata().id)

    def version(self) -> int:
        self._table.update_incremental()
        return self._table.version()

    def schema(self) -> StructType:
        return _spark_schema(self._table)

    def parts(self, version: int) -> list[DeltaFile]:
        table = self._at(version)
        listed: list[dict[str, Any]] = pa.table(table.get_add_actions()).to_pylist()
        files = [
            DeltaFile(unquote(row["path"]), row["size_bytes"], tuple(sorted((row.get("partition") or {}).items())))
            for row in listed
        ]
        if "deletionVectors" in features(table):
            files = _with_vectors(files, table)
        return sorted(files, key=lambda file: file.path)

    def plain_files(self, version: int) -> list[str] | None:
        table = self._at(version)
        if table.metadata().partition_columns or not features(table).isdisjoint(_NOT_PLAIN):
            return None
        return [_uri(self.location, file.path) for file in self.parts(version)]

    def versions_after(self, version: int, until: int) -> list[int]:
        if until < version:
            raise InputError(
                f"the Delta table {self.location!r} is at version {until}, but was read up to version {version}: "
                "it was restored or created again; begin with a new checkpoint"
            )
        return list(range(version + 1, until + 1))

    def appended(self, version: int, *, skip_changes: bool) -> list[DeltaFile]:
        actions = self._commit(version)
        added = [action["add"] for action in actions if action.get("add", {}).get("dataChange")]
        removed = [action["remove"] for action in actions if action.get("remove", {}).get("dataChange")]
        if removed or any(add.get("deletionVector") for add in added):
            if skip_changes:
                return []
            raise InputError(
                f"version {version} of the Delta table {self.location!r} changed or removed rows, and a stream takes "
                'only rows that are added; to skip such versions: on_change = "skip"'
            )
        types = {_physical(field): (field.name, field) for field in _fields(self._table)}
        files = [DeltaFile(unquote(add["path"]), add["size"], _partition(add, types)) for add in added]
        return sorted(files, key=lambda file: file.path)

    def changed(self, since: int, until: int) -> pa.Table | None:
        """The change data feed. None without one, or if deletion vectors have changed, which the library leaves out."""
        configured = self._table.metadata().configuration.get("delta.enableChangeDataFeed", "")
        versions = self.versions_after(since, until)
        if configured != "true" or any(self._has_vectors(version) for version in versions):
            return None
        try:
            feed = self._table.load_cdf(starting_version=since + 1, ending_version=until)
            return pa.RecordBatchReader.from_stream(feed).read_all()
        except DeltaError:  # It was enabled later than `since`, or its files are vacuumed.
            return None

    def reader(self, columns: Collection[str] | None = None) -> ReadPart:
        fields = [field for field in _fields(self._table) if columns is None or field.name in columns]
        return ReadDelta(self.location, self.options, pa.schema([_arrow_field(field) for field in fields]))

    def _has_vectors(self, version: int) -> bool:
        kinds = ("add", "remove")
        return any(action.get(kind, {}).get("deletionVector") for action in self._commit(version) for kind in kinds)

    def _at(self, version: int) -> DeltaTable:
        if version == self._table.version():
            return self._table
        try:
            return DeltaTable(self.location, version=version, storage_options=self.options)
        except (DeltaError, OSError) as wrong:
            raise _gone(self.location, version, wrong) from None

    def _commit(self, version: int) -> list[dict[str, Any]]:
        """The actions of a commit, from its own file in the log."""
        try:
            with _files(self.location, self.options).open_input_file(f"{DELTA_LOG}/{version:020}.json") as file:
                lines = file.read().splitlines()
        except OSError as wrong:
            raise _gone(self.location, version, wrong) from None
        return [json.loads(line) for line in lines if line.strip()]


@dataclass(frozen=True, slots=True)
class ReadDelta:
    """A `ReadPart`: a file's live rows, with partition columns, under the table's names. Runs in workers."""

    location: str
    options: dict[str, str]
    schema: pa.Schema

    def __call__(self, part: DeltaFile) -> Iterator[pa.RecordBatch]:
        values = dict(part.partition)
        inside = pa.schema([field for field in self.schema if field.name not in values])
        wanted = [_physical_name(field) for field in inside]
        first = 0
        with self._opened(part.path) as file:
            there = set(file.schema_arrow.names)
            columns = [name for name in wanted if name in there] or file.schema_arrow.names[:1]
            for batch in file.iter_batches(ROWS_PER_BATCH, columns=columns, use_threads=False):
                rows = projected(batch, inside)
                yield self._whole(rows, values).filter(_mask(part.live, first, batch.num_rows))
                first += batch.num_rows

    def _whole(self, rows: pa.RecordBatch, values: dict[str, Any]) -> pa.RecordBatch:
        columns = [
            pa.repeat(pa.scalar(values[field.name], field.type), rows.num_rows)
            if field.name in values
            else rows.column(field.name)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, self.schema.names)

    def _opened(self, path: str) -> pq.ParquetFile:
        if "://" in path or path.startswith("/"):  # A clone refers to files of its original.
            root, _, path = path.rpartition("/")
            return pq.ParquetFile(_files(root, self.options).open_input_file(path), **AS_SPARK)
        if "://" not in self.location:
            return pq.ParquetFile(f"{self.location}/{path}", memory_map=True, **AS_SPARK)
        return pq.ParquetFile(_files(self.location, self.options).open_input_file(path), **AS_SPARK)


def _mask(live: bytes | None, first: int, count: int) -> pa.Array:
    mask = np.ones(count, bool)
    if live is not None:
        known = np.unpackbits(np.frombuffer(live, np.uint8), bitorder="little")[first : first + count]
        mask[: len(known)] = known
    return pa.array(mask)


# ── Writing ──────────────────────────────────────────────────────────────────


class DeltaWriter:
    """A `TableWriter`."""

    def __init__(self, location: str, options: Mapping[str, str] | None = None) -> None:
        self.location, self.options = _absolute(location), dict(options or {})

    def prepare(self) -> None:
        table = self.load()
        if table is None:
            return
        unfit = sorted(features(table) & _NOT_WRITTEN)
        constraints = [key for key in table.metadata().configuration if key.startswith("delta.constraints.")]
        if unfit or constraints:
            what = ", ".join(unfit + constraints)
            raise InputError(f"cannot write to the Delta table {self.location!r}: it has {what}; use a table without")

    def last_batch(self, pipeline: str) -> int | None:
        table = self.load()
        return table.transaction_version(pipeline) if table is not None else None

    def is_empty(self) -> bool:
        table = self.load()
        return table is None or table.count() == 0

    def open_for(self, schema: StructType) -> Callable[[Iterable[pa.RecordBatch]], Iterator[bytes]]:
        from tidings.pipeline.arrow_types import to_arrow_schema

        wanted = to_arrow_schema(schema)
        for field in wanted:
            if is_anywhere(field.type, _is_beyond_delta):
                raise no_type_for(field, TableFormat.DELTA)
        table = self.load()
        if table is None:
            table = DeltaTable.create(self.location, wanted, mode="ignore", storage_options=self.options)
        check_columns(wanted, pa.schema(table.schema().to_arrow()), f"the Delta table {self.location!r}")
        return WriteDelta(self.location, self.options, wanted, tuple(table.metadata().partition_columns))

    def commit(self, files: Sequence[bytes], *, batch: tuple[str, int] | None = None, replace: bool = False) -> None:
        actions = [AddAction(**json.loads(file)) for file in files]

        def attempt() -> None:
            table = self.load()
            assert table is not None, "opened before"
            _append(table, actions, batch, replace)

        commit_once(self, attempt, batch, CommitFailedError)

    def load(self) -> DeltaTable | None:
        """The table as its log has it now; None if there is none."""
        try:
            return DeltaTable(self.location, storage_options=self.options)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as wrong:
            raise InputError(f"cannot open the Delta table {self.location!r}: {first_line(wrong)}") from None


def _is_beyond_delta(kind: pa.DataType) -> bool:
    return bool(pa.types.is_time(kind) or pa.types.is_duration(kind))


def _append(table: DeltaTable, actions: list[AddAction], batch: tuple[str, int] | None, replace: bool) -> None:
    marks = [Transaction(*batch)] if batch else None
    table.create_write_transaction(
        actions,  # type: ignore[arg-type]
        "overwrite" if replace else "append",
        table.schema(),
        list(table.metadata().partition_columns),
        commit_properties=CommitProperties(app_transactions=marks, max_commit_retries=0),
    )


@dataclass(frozen=True, slots=True)
class WriteDelta:
    """Rows → Parquet files in the table's folder, and for each what its entry in the log says. Runs in workers."""

    location: str
    options: dict[str, str]
    schema: pa.Schema
    partitions: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        files: dict[tuple[Any, ...], _OpenFile] = {}
        for batch in batches:
            for values, rows in _by_partition(batch.cast(self.schema), self.partitions):
                file = files.get(values) or files.setdefault(values, self._new(values))
                file.write(rows)
                if file.rows >= ROWS_PER_FILE_MAX:
                    yield files.pop(values).close()
        for file in files.values():
            yield file.close()

    def _new(self, values: tuple[Any, ...]) -> _OpenFile:
        inside = pa.schema([field for field in self.schema if field.name not in self.partitions])
        texts = {name: partition_text(value) for name, value in zip(self.partitions, values)}
        return _OpenFile(_files(self.location, self.options), f"part-{uuid.uuid4()}.snappy.parquet", inside, texts)


class _OpenFile:
    def __init__(
        self, files: pyarrow.fs.FileSystem, path: str, schema: pa.Schema, partition: Mapping[str, str | None]
    ) -> None:
        self.path, self.partition, self.rows = path, dict(partition), 0
        self._files, self._out = files, files.open_output_stream(path)
        self._writer = pq.ParquetWriter(self._out, schema, compression="snappy", store_schema=False)

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)
        self.rows += rows.num_rows

    def close(self) -> bytes:
        """Completes the file. Returns what its entry in the log says, as JSON."""
        self._writer.close()
        self._out.close()
        with self._files.open_input_file(self.path) as written:
            size, footer = written.size(), pq.ParquetFile(written).metadata
        entry = {
            "path": self.path, "size": size, "partition_values": self.partition,
            "modification_time": time.time_ns() // 1_000_000, "data_change": True,
            "stats": json.dumps(statistics(footer)),
        }  # fmt: skip
        return json.dumps(entry).encode()


def _by_partition(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    rows = pa.Table.from_batches([batch])
    if not names:
        yield (), rows
        return
    for values in rows.select(names).group_by(list(names)).aggregate([]).to_pylist():
        here = [
            pc.is_null(rows.column(name)) if value is None else pc.fill_null(pc.equal(rows.column(name), value), False)
            for name, value in values.items()
        ]
        mask = here[0]
        for more in here[1:]:
            mask = pc.and_(mask, more)
        yield tuple(values[name] for name in names), rows.filter(mask).drop_columns(list(names))


def statistics(footer: pq.FileMetaData) -> dict[str, Any]:
    """A file's statistics as Delta's log has them: the rows, and of flat texts and integers minimum, maximum and nulls."""
    found: dict[str, Any] = {"numRecords": footer.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for at in range(footer.num_columns):
        name = footer.schema.column(at).path
        parts = [footer.row_group(group).column(at).statistics for group in range(footer.num_row_groups)]
        if "." in name or not parts or any(part is None or not part.has_null_count for part in parts):
            continue
        found["nullCount"][name] = sum(part.null_count for part in parts)
        bounds = [part for part in parts if part.has_min_max]
        if bounds and all(isinstance(bound.min, (str, int)) and not isinstance(bound.min, bool) for bound in bounds):
            found["minValues"][name] = _cut(min(bound.min for bound in bounds), "")
            found["maxValues"][name] = _cut(max(bound.max for bound in bounds), "\U0010ffff")
    return found


def _cut(bound: str | int, more: str) -> str | int:
    """A long text is cut; what is cut of a maximum is replaced by something that is never smaller."""
    long = isinstance(bound, str) and len(bound) > TEXT_STATISTICS_MAX
    return f"{bound[:TEXT_STATISTICS_MAX]}{more}" if isinstance(bound, str) and long else bound


def compact(location: str, options: Mapping[str, str] | None = None) -> tuple[int, int]:
    """Merges small files by the library's own OPTIMIZE. Returns how many files there were, and how many there are."""
    table = _opened(_absolute(location), dict(options or {}))
    before = len(table.file_uris())
    try:
        table.optimize.compact()
    except DeltaError as wrong:
        raise InputError(f"cannot compact the Delta table {location!r}: {first_line(wrong)}") from None
    return before, len(table.file_uris())


# ── The log ──────────────────────────────────────────────────────────────────


def features(table: DeltaTable) -> set[str]:
    """The table features that a reader or writer must know, those of old protocol versions included."""
    protocol = table.protocol()
    named = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    mode = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    return named - {"columnMapping"} | ({"columnMapping"} if mode != "none" else set())


def _opened(location: str, options: dict[str, str]) -> DeltaTable:
    try:
        return DeltaTable(location, storage_options=options)
    except TableNotFoundError:
        raise InputError(f"no Delta table at {location!r}: expected a folder with {DELTA_LOG}") from None
    except (DeltaError, OSError) as wrong:
        raise InputError(f"cannot read the Delta table {location!r}: {first_line(wrong)}") from None


def _with_vectors(files: list[DeltaFile], table: DeltaTable) -> list[DeltaFile]:
    """Files with their deletion vectors. Names of files are unique, since Delta's writers take them at random."""
    vectors: dict[str, bytes] = {}
    for batch in table.deletion_vectors():
        found = pa.record_batch(batch)
        for path, flags in zip(found.column("filepath").to_pylist(), found.column("selection_vector")):
            bits = np.packbits(flags.values.to_numpy(zero_copy_only=False), bitorder="little")
            vectors[_name(unquote(path))] = _padded(bits, len(flags))
    with_vectors = [replace(file, live=vectors.pop(_name(file.path), None)) for file in files]
    if vectors:  # Rather an error than rows that were deleted.
        raise InputError(f"the Delta table has a deletion vector for {next(iter(vectors))!r}, which is no live file")
    return with_vectors


def _padded(bits: Any, count: int) -> bytes:
    """Rows after the last flag are live, also those that share its byte."""
    if count % 8:
        bits[-1] |= (0xFF << (count % 8)) & 0xFF
    return bytes(bits.tobytes())


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _fields(table: DeltaTable) -> list[Any]:
    from pyspark.sql.types import StructType

    return list(StructType.fromJson(json.loads(table.schema().to_json())))


def _spark_schema(table: DeltaTable) -> StructType:
    """Delta's schemas are Spark's. Without metadata, which only the log needs."""
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(field.name, _nullable(field.dataType)) for field in _fields(table)])


def _nullable(kind: Any) -> Any:
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    match kind:
        case StructType():
            return StructType([StructField(field.name, _nullable(field.dataType)) for field in kind])
        case ArrayType():
            return ArrayType(_nullable(kind.elementType))
        case MapType():
            return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    return kind


def _arrow_field(field: Any) -> pa.Field:
    return pa.field(field.name, _arrow_type(field.dataType), metadata={PHYSICAL_NAME: _physical(field).encode()})


def _arrow_type(kind: Any) -> pa.DataType:
    from pyspark.sql.types import ArrayType, MapType, StructType

    from tidings.pipeline.arrow_types import to_arrow_type

    match kind:
        case StructType():
            return pa.struct([_arrow_field(field) for field in kind])
        case ArrayType():
            return pa.list_(_arrow_type(kind.elementType))
        case MapType():
            return pa.map_(_arrow_type(kind.keyType), _arrow_type(kind.valueType))
    return to_arrow_type(kind)


def _physical(field: Any) -> str:
    return str((field.metadata or {}).get(_PHYSICAL, field.name))


def _physical_name(field: pa.Field) -> str:
    return str(field.metadata[PHYSICAL_NAME].decode())


def _partition(add: dict[str, Any], types: Mapping[str, tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """Values of the partition columns, which a commit has as texts under their names in files."""
    found = []
    for physical, text in (add.get("partitionValues") or {}).items():
        name, field = types[physical]
        found.append((name, partition_value(text, _arrow_type(field.dataType))))
    return tuple(sorted(found))


def partition_value(text: str | None, kind: pa.DataType) -> Any:
    """A partition column's value, as Delta's log writes it: NULL is an empty text or none, times are in UTC.

    >>> partition_value("2026-03-01", pa.date32()), partition_value("", pa.string())
    (datetime.date(2026, 3, 1), None)
    """
    if text is None or text == "":
        return None
    if pa.types.is_binary(kind):
        return text.encode("latin-1").decode("unicode_escape").encode("latin-1")
    if pa.types.is_timestamp(kind):
        plain = pa.scalar(text.removesuffix("Z").replace("T", " "), pa.string()).cast(pa.timestamp("us"))
        return plain.cast(kind).as_py()
    return pa.scalar(text, pa.string()).cast(kind).as_py()


def partition_text(value: Any) -> str | None:
    """The reverse: a value as Delta's log writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime.datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    return None if value is None else str(value)


def _files(location: str, options: dict[str, str]) -> pyarrow.fs.FileSystem:
    return pyarrow.fs.PyFileSystem(DeltaStorageHandler(location, options))


def _absolute(location: str) -> str:
    return location.rstrip("/") if "://" in location else str(Path(location).absolute())


def _uri(location: str, path: str) -> str:
    return path if "://" in path or path.startswith("/") else f"{location}/{path}"


def _gone(location: str, version: int, wrong: Exception) -> InputError:
    return InputError(
        f"version {version} of the Delta table {location!r} cannot be read: its log or files were cleaned up "
        f"(VACUUM, log retention) before they were read; begin with a new checkpoint ({first_line(wrong)})"
    )
