"""From Parquet to Parquet directly: workers read, match and write the files themselves, and Spark moves no rows.

Rows that pass between Spark and a Python worker are converted from columns to rows and back, twice, which costs
more than the matching. Where events are Parquet files that every worker can open, a task is a list of row groups
instead, and it returns to Spark only how much it wrote.

Each task writes its own file in a staging folder. When all tasks are done, the driver moves the files of the
successful attempts into place, so a failed or repeated task leaves nothing behind.

This serves only the plan that sends the index to the events. The partitioned plan needs Spark's shuffle.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from tidings.errors import InputError
from tidings.events import EventType, conform
from tidings.pipeline.matching.index_replica import ROWS_MAX, DistributedIndex, distribute_index
from tidings.pipeline.matching.match import Matching, PlanName
from tidings.pipeline.parquet.row_groups import RowGroups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILES_MAX = 10_000  # Footers that the driver reads to divide the work; with more files, Spark reads them in parallel.
TASKS_PER_CORE = 2  # A core with fast row groups gets more of them.
TASK_BYTES_MAX = 256 << 20
STAGING = "_aside"


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Row groups of one file."""

    path: str
    groups: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class TaskOutput:
    """The file that a task wrote, and the number of deliveries in it."""

    name: str
    deliveries: int


def tasks_for(events: DataFrame, matching: Matching, out: str) -> list[list[FileSlice]]:
    """The work, divided into tasks; none if it must go through Spark. Raises InputError for a damaged file."""
    if matching.plan.name is not PlanName.INDEX or "://" in out:
        return []
    files = [_local_path(name) for name in sorted(events.inputFiles()[: FILES_MAX + 1])]
    if not files or len(files) > FILES_MAX or None in files:
        return []
    needed = {name.split(".")[0] for name in (matching.id, *(a.name for a in matching.subscriptions.projected_type))}
    slices: list[FileSlice] = []
    for file in filter(None, files):
        footer = _footer(file)
        if not needed <= set(
            footer.schema.to_arrow_schema().names
        ):  # Partition columns, or files of different schemas.
            return []
        slices += [FileSlice(file, (g,), footer.row_group(g).total_byte_size) for g in range(footer.num_row_groups)]
    return share_out(slices, events.sparkSession.sparkContext.defaultParallelism)


def match_files_directly(matching: Matching, tasks: list[list[FileSlice]], out: str, compact: bool) -> int:
    """Runs the tasks, and returns the number of deliveries. Leaves complete results in `out`, or none."""
    subscriptions = matching.subscriptions
    index = distribute_index(matching.events.sparkSession, subscriptions.tables(), subscriptions.projected_type)
    return match_with_index(index, matching, tasks, out, compact)


def match_with_index(
    index: DistributedIndex, matching: Matching, tasks: list[list[FileSlice]], out: str, compact: bool
) -> int:
    """The same with an index that is distributed already."""
    spark, folder = matching.events.sparkSession, Path(out).resolve()  # Executors have another working directory.
    staging = folder / f"{STAGING}-{uuid.uuid4().hex}"
    staging.mkdir(parents=True)
    try:
        projected_type = matching.subscriptions.projected_type
        work = MatchFiles(index, projected_type, matching.id, _id_type(matching), compact, str(staging))
        # The driver collects a name and a number for each task, however much it wrote.
        written: list[TaskOutput] = spark.sparkContext.parallelize(tasks, len(tasks)).map(work).collect()
        for number, part in enumerate(written):
            (staging / part.name).rename(folder / f"part-{number:05}.snappy.parquet")
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    (folder / "_SUCCESS").touch()
    return sum(part.deliveries for part in written)


class MatchFiles:
    """A task: row groups of Parquet files → a Parquet file of deliveries, by this host's replica of the index."""

    def __init__(
        self,
        index: DistributedIndex,
        projected_type: EventType,
        id: str,
        id_type: pa.DataType,
        compact: bool,
        staging: str,
    ) -> None:
        self.index, self.projected_type, self.id, self.id_type = index, projected_type, id, id_type
        self.compact, self.staging = compact, staging

    def __call__(self, slices: list[FileSlice]) -> TaskOutput:
        name, replica = f"{uuid.uuid4().hex}.parquet", self.index.replica()
        with RowGroups(str(Path(self.staging) / name), replica, self.id_type, compact=self.compact) as out:
            for batch in read_slices(slices, self._columns()):
                ids = batch.column(self.id).cast(self.id_type)
                for start, found in replica.match_in_rounds(_flat(batch, self.projected_type)):
                    out.add(ids.slice(start), found)
        return TaskOutput(name, out.pairs)

    def _columns(self) -> list[str]:
        return [self.id, *(a.name for a in self.projected_type if a.name != self.id)]


def read_slices(slices: list[FileSlice], columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of these row groups, in batches that suit the kernel. Raises InputError for a damaged file."""
    for file_slice in slices:
        try:
            with pq.ParquetFile(file_slice.path, memory_map=True) as file:
                yield from file.iter_batches(ROWS_MAX, list(file_slice.groups), columns, use_threads=False)
        except (pa.ArrowInvalid, OSError) as wrong:
            raise _damaged(file_slice.path, wrong) from None


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


def _id_type(matching: Matching) -> pa.DataType:
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(matching.events.schema[matching.id].dataType)


def _local_path(uri: str) -> str | None:
    parts = urlsplit(uri)
    return unquote(parts.path) if parts.scheme in ("", "file") else None


def _footer(path: str) -> Any:
    try:
        return pq.read_metadata(path, memory_map=True)
    except (pa.ArrowInvalid, OSError) as wrong:
        raise _damaged(path, wrong) from None


def _damaged(path: str, wrong: Exception) -> InputError:
    return InputError(f"{path}: the file is damaged, or no Parquet: {str(wrong).splitlines()[0][:200]}")
