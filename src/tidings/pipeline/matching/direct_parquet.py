"""From Parquet to Parquet directly: workers read, match and write the files themselves, and Spark moves no rows.

Rows that pass between Spark and a Python worker are converted from columns to rows and back, twice, which costs
more than the matching. Where events are Parquet files that every worker can open, on a local disk or in S3, a task is
a list of row groups instead, and it returns to Spark only how much it wrote.

Each task writes its own file in a staging folder, which readers skip. When all tasks are done, the driver moves the
files of the successful attempts into place, so a failed or repeated task leaves nothing behind.

This serves only the plan that sends the index to the events. The partitioned plan needs Spark's shuffle.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from tidings.errors import SetupError
from tidings.events import EventType, conform
from tidings.pipeline.matching.index_replica import ROWS_MAX, DistributedIndex, distribute_index
from tidings.pipeline.matching.match import EVENT_ID, Matching, PlanName
from tidings.pipeline.matching.sizing import FILE_BYTES_PER_TASK, fixed_cores, tasks_of
from tidings.pipeline.parquet.row_groups import RowGroups
from tidings.pipeline.session import is_connect
from tidings.pipeline.storage import REQUESTS_AT_ONCE, Location, Storage, storage_at
from tidings.pipeline.worker_files import WorkerFiles, damaged

FILES_MAX = 10_000  # Footers that the driver reads to divide the work; with more files, Spark reads them in parallel.
TASKS_PER_CORE = 2  # A core with fast row groups gets more of them.
TASK_BYTES_MAX = 256 << 20
STAGING = "_staging"  # Readers skip names that begin with an underscore.


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Row groups of one file, which is a path or a URI."""

    path: str
    groups: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """The file that a task wrote, and the number of deliveries in it."""

    name: str
    deliveries: int


def tasks_for(
    parquet_files: Sequence[str], matching: Matching, out: str, keep: Sequence[str] = ()
) -> list[list[FileSlice]]:
    """The work, divided into tasks; none if it must go through Spark. Raises InputError for a damaged file."""
    if matching.plan.name is not PlanName.INDEX or not parquet_files or len(parquet_files) > FILES_MAX:
        return []
    spark = matching.events.sparkSession
    if is_connect(spark):  # The client may see other disks than the workers do.
        return []
    files = [Location.of(name) for name in sorted(parquet_files)]
    opened = WorkerFiles.of(spark, [*files, Location.of(out)])
    if opened is None:
        return []
    mentioned = (attribute.name.split(".")[0] for attribute in matching.subscriptions.projected_type)
    needed = {matching.id, *mentioned, *keep}
    slices: list[FileSlice] = []
    for file, footer in zip(files, opened.footers(files)):
        if not needed <= set(footer.schema.to_arrow_schema().names):
            return []  # Partition columns, or files of different schemas.
        if has_julian_days(footer.metadata or {}):
            return []
        groups = range(footer.num_row_groups)
        slices += [FileSlice(file.text, (g,), footer.row_group(g).total_byte_size) for g in groups]
    cores = fixed_cores(spark) or tasks_of(sum(part.size for part in slices), FILE_BYTES_PER_TASK)
    return share_out(slices, cores)


def has_julian_days(metadata: Mapping[bytes, bytes]) -> bool:
    """Whether a file counts days before 1582, or times before 1900, as old releases of Spark did; Spark converts these.

    >>> has_julian_days({b"org.apache.spark.version": b"2.4.8"}), has_julian_days({b"org.apache.spark.version": b"4.3.0"})
    (True, False)
    """
    version = metadata.get(b"org.apache.spark.version", b"")
    told = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
    return bool(version) and (version < b"3.1" or any(key in metadata for key in told))


def match_files_directly(
    matching: Matching, tasks: list[list[FileSlice]], out: str, compact: bool, keep: Sequence[str] = ()
) -> int:
    """Runs the tasks, and returns the number of deliveries. Leaves complete results in `out`, or none."""
    subscriptions = matching.subscriptions
    index = distribute_index(matching.events.sparkSession, subscriptions.tables(), subscriptions.projected_type)
    return match_with_index(index, matching, tasks, out, compact, keep)


def match_with_index(
    index: DistributedIndex,
    matching: Matching,
    tasks: list[list[FileSlice]],
    out: str,
    compact: bool,
    keep: Sequence[str] = (),
) -> int:
    """The same with an index that is distributed already."""
    spark = matching.events.sparkSession
    storage = storage_at(out, spark)
    staging = f"{STAGING}-{uuid.uuid4().hex}"
    storage.make_folder(staging)
    try:
        place, files = storage.root.below(staging), _files_of(matching, tasks, out)
        work = MatchFiles(index, matching, compact, place, files, _carried(matching, keep))
        # The driver collects a name and a number for each task, however much it wrote.
        written: list[TaskOutput] = spark.sparkContext.parallelize(tasks, len(tasks)).map(work).collect()
        moves = [(f"{staging}/{part.name}", f"part-{at:05}.snappy.parquet") for at, part in enumerate(written)]
        move_all(storage, moves)
    finally:
        storage.delete(staging)
    storage.put("_SUCCESS", b"")
    return sum(part.deliveries for part in written)


def move_all(storage: Storage, moves: list[tuple[str, str]]) -> None:
    """Moves all files, or none if the store refuses one."""
    try:
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            list(pool.map(lambda move: storage.move(*move), moves))
    except BaseException:
        for _, target in moves:
            with contextlib.suppress(SetupError):
                storage.delete(target)
        raise


def _files_of(matching: Matching, tasks: list[list[FileSlice]], out: str) -> WorkerFiles:
    locations = [Location(file_slice.path) for task in tasks for file_slice in task]
    opened = WorkerFiles.of(matching.events.sparkSession, [*locations, Location.of(out)])
    assert opened is not None, "otherwise there are no tasks"
    return opened


class MatchFiles:
    """A task: row groups of Parquet files → a Parquet file of deliveries, by this host's replica of the index."""

    def __init__(
        self,
        index: DistributedIndex,
        matching: Matching,
        compact: bool,
        staging: Location,
        files: WorkerFiles,
        carried: pa.Schema,
    ) -> None:
        self.index, self.projected_type = index, matching.subscriptions.projected_type
        self.id, self.carried = matching.id, carried
        self.compact, self.staging, self.files = compact, staging, files

    def __call__(self, slices: list[FileSlice]) -> TaskOutput:
        name, replica = f"{uuid.uuid4().hex}.parquet", self.index.replica()
        target = self.files.create(self.staging.below(name))
        with RowGroups(target, replica, self.carried, compact=self.compact) as out:
            for batch in read_slices(slices, self._columns(), self.files):
                if batch.column(self.id).null_count:  # `Matching.unnamed` has these.
                    batch = with_value(batch, self.id)
                carried = self._carried(batch)
                for start, found in replica.match_in_rounds(_flat(batch, self.projected_type)):
                    out.add(carried.slice(start), found)
        target.close()  # Arrow's writer leaves open what it did not open.
        return TaskOutput(name, out.pairs)

    def _carried(self, batch: pa.RecordBatch) -> pa.Array:
        """What deliveries carry of each event: its id, or a struct of it and the columns to keep."""
        id, *kept = self.carried
        ids = batch.column(self.id).cast(id.type)
        if not kept:
            return ids
        # Digits of a timestamp below the microsecond are cut off.
        columns = [ids, *(batch.column(field.name).cast(field.type, safe=False) for field in kept)]
        return pa.StructArray.from_arrays(columns, fields=list(self.carried))

    def _columns(self) -> list[str]:
        names = [self.id, *(a.name for a in self.projected_type), *self.carried.names[1:]]
        return list(dict.fromkeys(names))


def with_value(batch: pa.RecordBatch, name: str) -> pa.RecordBatch:
    """The rows where this column is not null. Arrow cannot select rows of views, so these become plain texts."""
    plain = pa.schema([field.with_type(_without_views(field.type)) for field in batch.schema])
    return batch.cast(plain).filter(batch.column(name).is_valid())


def _without_views(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_views(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_without_views(kind.key_type), _without_views(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    return kind


def read_slices(slices: list[FileSlice], columns: list[str], files: WorkerFiles) -> Iterator[pa.RecordBatch]:
    """The rows of these row groups, in batches that suit the kernel. Raises InputError for a damaged file."""
    for file_slice in slices:
        location = Location(file_slice.path)
        try:
            with files.open_parquet(location) as file:
                yield from file.iter_batches(ROWS_MAX, list(file_slice.groups), columns, use_threads=False)
        except (pa.ArrowInvalid, OSError) as wrong:
            raise damaged(location, wrong) from None


def _flat(batch: pa.RecordBatch, projected_type: EventType) -> pa.RecordBatch:
    """The batch with one column per attribute. A flat batch passes unchecked here, since the index checks it."""
    is_flat = all(attribute.name in batch.schema.names for attribute in projected_type)
    return batch if is_flat else conform(batch, projected_type)


def share_out(slices: list[FileSlice], cores: int) -> list[list[FileSlice]]:
    """Divides slices into runs of about equal size, so that a task reads few files."""
    total = sum(file_slice.size for file_slice in slices)
    goal = max(1, min(TASK_BYTES_MAX, -(-total // (TASKS_PER_CORE * cores))))
    tasks: list[list[FileSlice]] = []
    filled = goal
    for file_slice in slices:
        if filled >= goal:
            tasks.append([])
            filled = 0
        tasks[-1].append(file_slice)
        filled += file_slice.size
    return tasks


def _carried(matching: Matching, keep: Sequence[str]) -> pa.Schema:
    """The id and the columns to keep, as Spark has them."""
    from tidings.pipeline.arrow_types import to_arrow_type

    kinds = {name: to_arrow_type(matching.events.schema[name].dataType) for name in (matching.id, *keep)}
    return pa.schema([(EVENT_ID, kinds[matching.id]), *((name, kinds[name]) for name in keep)])
