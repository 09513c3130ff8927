"""Apache Iceberg tables, by the library `pyiceberg`: metadata and commits in the driver, data files in the workers.

Reading: the library plans the live files of a snapshot with their delete files, and reads each in a worker, which
resolves columns by their ids. It refuses equality deletes; position deletes and deletion vectors are applied.

Writing: each worker writes data files and describes them; the driver appends them in one snapshot. As a pipeline's
batch, the snapshot's summary holds the pipeline's id and the batch's number. So does a property of the table, set in
the same commit, since snapshots expire. A commit holds only for the table as it was when that was checked, so two
drivers cannot both commit a batch.
"""

from __future__ import annotations

import json
import logging
import pickle
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files, _read_all_delete_files, schema_to_pyarrow
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import FileScanTask, StaticTable, Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.utils.config import Config

from tidings.errors import InputError, SetupError
from tidings.pipeline.connectors.table_format import (
    BEFORE_FIRST,
    ICEBERG_METADATA,
    ReadPart,
    TableFormat,
    check_columns,
    commit_once,
    first_line,
    is_anywhere,
    no_type_for,
    projected,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

ROWS_PER_FILE_MAX = 1_000_000  # A worker holds the rows of one file.
PIPELINE, BATCH = "tidings.pipeline", "tidings.batch"  # In a snapshot's summary.
DEFAULT_CATALOG = "default"

_log = logging.getLogger("tidings.pipeline")


@dataclass(frozen=True, slots=True)
class IcebergFile:
    """A live data file with its delete files."""

    task: FileScanTask

    @property
    def size(self) -> int:
        return int(self.task.file.file_size_in_bytes)

    @property
    def key(self) -> tuple[str, ...]:
        return self.task.file.file_path, *sorted(file.file_path for file in self.task.delete_files)


class IcebergReader:
    """A `VersionedTable`. Raises InputError if there is no Iceberg table."""

    def __init__(self, location: str, options: Mapping[str, str] | None = None) -> None:
        self.location = location
        self.options = {**(options or {}), **_configured(location)}
        self._table = _loaded(location, self.options)

    @property
    def id(self) -> str:
        return str(self._table.metadata.table_uuid)

    def version(self) -> int:
        self._table = _loaded(self.location, self.options)
        current = self._table.current_snapshot()
        return current.snapshot_id if current else BEFORE_FIRST

    def schema(self) -> StructType:
        from tidings.pipeline.arrow_types import from_arrow_schema

        return from_arrow_schema(_arrow_schema(self._table.schema()))

    def parts(self, version: int) -> list[IcebergFile]:
        if version == BEFORE_FIRST:
            return []
        self._snapshot(version)
        return self._planned(self._table.scan(snapshot_id=version))

    def plain_files(self, version: int) -> list[str] | None:
        metadata = self._table.metadata
        if len(metadata.schemas) > 1 or any(not spec.is_unpartitioned() for spec in metadata.partition_specs):
            return None
        tasks = [part.task for part in self.parts(version)]
        if any(task.delete_files or task.file.file_format != FileFormat.PARQUET for task in tasks):
            return None
        return [str(task.file.file_path) for task in tasks]

    def versions_after(self, version: int, until: int) -> list[int]:
        found: list[int] = []
        while until not in (version, BEFORE_FIRST):
            found.append(until)
            parent = self._snapshot(until).parent_snapshot_id
            until = BEFORE_FIRST if parent is None else parent
        if until != version or (found and version == BEFORE_FIRST and not self._is_first(found[-1])):
            raise InputError(
                f"the Iceberg table {self.location!r} was read up to snapshot {version}, from which none leads to the "
                "current one: snapshots between them have expired, or it was rolled back; begin with a new checkpoint"
            )
        return found[::-1]

    def _is_first(self, version: int) -> bool:
        """Whether a snapshot without a parent never had one: all files of the table are those that it added."""
        summary = self._snapshot(version).summary
        return summary is not None and summary.get("total-data-files") == summary.get("added-data-files", "0")

    def appended(self, version: int, *, skip_changes: bool) -> list[IcebergFile]:
        snapshot = self._snapshot(version)
        operation = snapshot.summary.operation if snapshot.summary else None
        if operation is Operation.REPLACE:  # The same rows in other files.
            return []
        if operation is not Operation.APPEND:
            if skip_changes:
                return []
            raise InputError(
                f"snapshot {version} of the Iceberg table {self.location!r} changed or removed rows, and a stream "
                'takes only rows that are added; to skip such snapshots: on_change = "skip"'
            )
        parent = snapshot.parent_snapshot_id
        return self._planned(
            self._table.incremental_append_scan(from_snapshot_id_exclusive=parent, to_snapshot_id_inclusive=version)
        )

    def changed(self, since: int, until: int) -> None:
        """Iceberg's metadata has no change feed; its changed files say what has changed."""

    def reader(self, columns: Collection[str] | None = None) -> ReadPart:
        wanted = _arrow_schema(self._table.schema())
        wanted = pa.schema([field for field in wanted if columns is None or field.name in columns])
        return ReadIceberg(_slim(self._table), self._table.io, wanted)

    def _planned(self, scan: Any) -> list[IcebergFile]:
        try:
            return sorted((IcebergFile(task) for task in scan.plan_files()), key=lambda part: part.key)
        except (ValueError, NotImplementedError) as wrong:
            if "equality deletes" not in str(wrong):
                raise
            raise InputError(
                f"the Iceberg table {self.location!r} has equality deletes, as Flink writes them, which pyiceberg "
                "cannot apply; compact the table first, for example by Spark's procedure rewrite_data_files"
            ) from None

    def _snapshot(self, version: int) -> Snapshot:
        found = self._table.snapshot_by_id(version)
        if found is None:
            raise InputError(
                f"snapshot {version} of the Iceberg table {self.location!r} has expired before it was read; "
                "begin with a new checkpoint"
            )
        return found


@dataclass(frozen=True, slots=True)
class ReadIceberg:
    """A `ReadPart`: the rows of a data file that are not deleted, by the table's schema. Runs in workers."""

    table: Any
    io: FileIO
    schema: pa.Schema

    def __call__(self, part: IcebergFile) -> Iterator[pa.RecordBatch]:
        columns = self.table.schema().select(*self.schema.names)
        scan = ArrowScan(self.table, self.io, columns, AlwaysTrue())
        deletes = _read_all_delete_files(self.io, [part.task])
        # The public method would hold all rows of the file at once.
        for batch in scan._record_batches_from_scan_tasks_and_deletes([part.task], deletes):
            yield projected(batch, self.schema)


# ── Writing ──────────────────────────────────────────────────────────────────


class IcebergWriter:
    """A `TableWriter`, for a table in a catalog."""

    def __init__(self, location: str, options: Mapping[str, str] | None = None) -> None:
        if _is_path(location):
            raise InputError(
                f"iceberg:{location}: an Iceberg table is written through its catalog; expected "
                "iceberg:CATALOG.NAMESPACE.TABLE, with the catalog in .pyiceberg.yaml or PYICEBERG_CATALOG__… "
            )
        self.location = location
        self.options = {**(options or {}), **_configured(location)}
        self._catalog, self._identifier = _catalog(location, self.options)

    def prepare(self) -> None:
        self.load()

    def last_batch(self, pipeline: str) -> int | None:
        table = self.load()
        if table is None:
            return None
        marked = table.properties.get(_property(pipeline))
        summaries = [snapshot.summary for snapshot in table.snapshots() if snapshot.summary is not None]
        found = [int(summary[BATCH] or -1) for summary in summaries if summary.get(PIPELINE) == pipeline]
        return max([*found, *([int(marked)] if marked else [])], default=None)

    def is_empty(self) -> bool:
        table = self.load()
        return table is None or table.current_snapshot() is None or not any(table.scan().plan_files())

    def open_for(self, schema: StructType) -> Callable[[Iterable[pa.RecordBatch]], Iterator[bytes]]:
        from tidings.pipeline.arrow_types import to_arrow_schema

        wanted = pa.schema([_storable(field) for field in to_arrow_schema(schema)])
        table = self.load()
        if table is None:
            self._catalog.create_namespace_if_not_exists(self._identifier[:-1])
            table = self._catalog.create_table_if_not_exists(self._identifier, wanted)
        there = pa.schema([_storable(field) for field in _arrow_schema(table.schema())])
        check_columns(wanted, there, f"the Iceberg table {self.location!r}")
        return WriteIceberg(_slim(table), table.io, wanted)

    def commit(self, files: Sequence[bytes], *, batch: tuple[str, int] | None = None, replace: bool = False) -> None:
        data_files = [pickle.loads(file) for file in files]  # noqa: S301  Pickled by our own workers.

        def attempt() -> None:
            table = self.load()
            assert table is not None, "opened before"
            _append(_without_retries(table), data_files, batch, replace)

        commit_once(self, attempt, batch, CommitFailedException)

    def load(self) -> Table | None:
        """The table as its catalog has it now; None if there is none."""
        try:
            return self._catalog.load_table(self._identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except Exception as wrong:  # noqa: BLE001  Each catalog's client has errors of its own.
            raise SetupError(f"cannot reach the catalog of {self.location!r}: {first_line(wrong)}") from None


def _storable(field: pa.Field) -> pa.Field:
    """The column as Iceberg has it: it knows no ints below 32 bits, and times in microseconds only.

    Raises InputError for a type that it does not have.
    """
    if is_anywhere(field.type, _is_beyond_iceberg):
        raise no_type_for(field, TableFormat.ICEBERG)
    return field.with_type(_widened(field.type))


def _is_beyond_iceberg(kind: pa.DataType) -> bool:
    return bool(pa.types.is_duration(kind) or pa.types.is_null(kind))


def _widened(kind: pa.DataType) -> pa.DataType:
    if kind in (pa.int8(), pa.int16()):
        return pa.int32()
    if pa.types.is_time(kind):
        return pa.time64("us")
    if pa.types.is_list(kind):
        return pa.list_(_widened(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_widened(kind.key_type), _widened(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([inner.with_type(_widened(inner.type)) for inner in kind])
    return kind


def _append(table: Table, data_files: list[Any], batch: tuple[str, int] | None, replace: bool) -> None:
    marks = {PIPELINE: batch[0], BATCH: str(batch[1])} if batch else {}
    with table.transaction() as transaction:
        if replace and any(table.scan().plan_files()):
            transaction.delete(AlwaysTrue())
        if batch:
            transaction.set_properties({_property(batch[0]): str(batch[1])})
        with transaction.update_snapshot(snapshot_properties=marks).fast_append() as append:
            for data_file in data_files:
                append.append_data_file(data_file)


def _without_retries(table: Table) -> Table:
    """The library would repeat a refused commit by itself, and not ask whether the batch is there by now."""
    properties = {**table.metadata.properties, "commit.retry.num-retries": "0"}
    table.metadata = table.metadata.model_copy(update={"properties": properties})
    return table


def _property(pipeline: str) -> str:
    return f"{PIPELINE}.{pipeline}"


@dataclass(frozen=True, slots=True)
class WriteIceberg:
    """Rows → data files with column ids and statistics, and for each its description. Runs in workers."""

    table: Any
    io: FileIO
    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            waiting.append(batch.cast(self.schema))
            if sum(rows.num_rows for rows in waiting) >= ROWS_PER_FILE_MAX:
                yield from self._written(waiting)
                waiting = []
        if waiting:
            yield from self._written(waiting)

    def _written(self, batches: list[pa.RecordBatch]) -> Iterator[bytes]:
        rows = pa.Table.from_batches(batches)
        for data_file in _dataframe_to_data_files(self.table, rows, self.io, uuid.uuid4()):
            yield pickle.dumps(data_file)


# ── Catalogs and metadata ────────────────────────────────────────────────────


def _is_path(location: str) -> bool:
    return "/" in location or location.endswith(".metadata.json") or Path(location).is_dir()


def _parts(location: str) -> tuple[str, tuple[str, ...]]:
    """The catalog, and the table's name within it: the first part is the catalog if one of that name is known."""
    parts = tuple(location.split("."))
    if len(parts) > 2 and parts[0].lower() in Config().get_known_catalogs():
        return parts[0], parts[1:]
    return (parts[0], parts[1:]) if len(parts) > 2 else (DEFAULT_CATALOG, parts)


def _configured(location: str) -> dict[str, str]:
    """The catalog's settings, by the file .pyiceberg.yaml and the environment."""
    if _is_path(location):
        return {}
    return {key: str(value) for key, value in (Config().get_catalog_config(_parts(location)[0]) or {}).items()}


def warehouse(location: str) -> str:
    """Where the table's files are, as far as its name and the catalog's settings tell."""
    return location if _is_path(location) else _configured(location).get("warehouse", "")


def _catalog(location: str, options: Mapping[str, str]) -> tuple[Catalog, tuple[str, ...]]:
    name, identifier = _parts(location)
    if len(identifier) < 2:
        raise InputError(f"iceberg:{location}: expected iceberg:CATALOG.NAMESPACE.TABLE, or the path of a table")
    try:
        return load_catalog(name, **options), identifier
    except Exception as wrong:  # noqa: BLE001  Each catalog's client has errors of its own.
        raise InputError(
            f"iceberg:{location}: cannot open the catalog {name!r}: {first_line(wrong)}; "
            f"describe it in .pyiceberg.yaml, or as PYICEBERG_CATALOG__{name.upper()}__URI"
        ) from None


def _loaded(location: str, options: dict[str, str]) -> Table:
    if _is_path(location):
        return _static(location, options)
    catalog, identifier = _catalog(location, options)
    try:
        return catalog.load_table(identifier)
    except (NoSuchTableError, NoSuchNamespaceError):
        raise InputError(f"no Iceberg table {'.'.join(identifier)!r} in the catalog {catalog.name!r}") from None
    except Exception as wrong:  # noqa: BLE001  Each catalog's client has errors of its own.
        raise SetupError(f"cannot reach the catalog of {location!r}: {first_line(wrong)}") from None


def _static(location: str, options: dict[str, str]) -> Table:
    """A table by its metadata file. Settings for the store come from us, never from that file."""
    try:
        file = metadata_file(location, options)
        io = load_file_io(options, file)
        metadata = FromInputFile.table_metadata(io.new_input(file))
    except (OSError, ValueError, json.JSONDecodeError) as wrong:
        raise InputError(f"cannot read the Iceberg table {location!r}: {first_line(wrong)}") from None
    return StaticTable(("static-table", file), metadata, file, io, NoopCatalog("static-table"))


def metadata_file(location: str, options: dict[str, str]) -> str:
    """The current metadata file of a table's folder: by its version hint, or else the one with the highest number.

    Raises InputError if that is not certain, since only the catalog knows which of two was committed.
    """
    if location.endswith(".metadata.json"):
        return location
    folder = Path(location.removeprefix("file://")).absolute() / ICEBERG_METADATA
    if "://" in location.removeprefix("file://") or (folder / "version-hint.text").is_file():
        return StaticTable._metadata_location_from_version_hint(location.rstrip("/"), options)
    numbered = sorted((_number(file.name), str(file)) for file in folder.glob("*.metadata.json"))
    if not numbered:
        raise InputError(f"no Iceberg table at {location!r}: expected a folder with {ICEBERG_METADATA}/*.metadata.json")
    if len(numbered) > 1 and numbered[-1][0] == numbered[-2][0]:
        raise InputError(
            f"{location!r} has two metadata files with the number {numbered[-1][0]}, and only its catalog knows which "
            "is current; expected iceberg:CATALOG.NAMESPACE.TABLE, or the metadata file itself"
        )
    return numbered[-1][1]


def _number(name: str) -> int:
    found = re.match(r"v?(\d+)", name)
    return int(found[1]) if found else -1


def _slim(table: Table) -> Any:
    """The metadata that workers need: schemas and partitions, not the history."""
    return table.metadata.model_copy(update={"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}})


def _arrow_schema(schema: Schema) -> pa.Schema:
    """The columns as Spark's Arrow types. Columns of types that Spark does not have are left out, with a warning."""
    from pyspark.errors import PySparkException

    from tidings.pipeline.arrow_types import from_arrow_type, to_arrow_type

    fields = []
    for field in schema_to_pyarrow(schema, include_field_ids=False):
        try:
            kind = to_arrow_type(from_arrow_type(_simple(field.type)))
            fields.append(pa.field(field.name, kind))
        except PySparkException:
            _log.warning("column %s has the type %s, which Spark does not have; it is left out", field.name, field.type)
    return pa.schema(fields)


def _simple(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.ExtensionType):
        return _simple(kind.storage_type)
    return pa.binary() if pa.types.is_fixed_size_binary(kind) else kind
