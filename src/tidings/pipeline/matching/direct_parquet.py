"""Parquet to Parquet without a detour: the workers themselves read, match and write files; Spark moves no rows.

What passes between Spark and a Python worker is turned from columns into rows and back, twice,
which costs more than the matching. Where events are Parquet files that every worker can
open, a task is a list of row groups instead, and what it gives back to Spark is how much it wrote.

Each task writes a file of its own aside. When all are done, the driver moves those of the tasks
that counted to their place, so that a failed or repeated task leaves nothing behind.

Only where the index goes to the events: those that meet subscriptions in zones have to travel, which is Spark's to do.
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
from tidings.pipeline.matching.index_replica import ROWS_MAX, Shipped, ship
from tidings.pipeline.matching.match import Matching, PlanName
from tidings.pipeline.parquet.row_groups import RowGroups

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FILES_MAX = 10_000  # Footers that the driver reads to share out the work; with more, Spark lists them in parallel.
TASKS_PER_CORE = 2  # A core that has drawn quick row groups gets others.
TASK_BYTES_MAX = 256 << 20
ASIDE = "_aside"


@dataclass(frozen=True, slots=True)
class Piece:
    """Row groups of one file."""

    path: str
    groups: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Written:
    """What a task has done: the file it wrote, and how many deliveries are in it."""

    name: str
    deliveries: int


def tasks_for(events: DataFrame, matching: Matching, out: str) -> list[list[Piece]]:
    """The work, shared out; nothing where it must go through Spark. Raises InputError for a damaged file."""
    if matching.plan.name is not PlanName.INDEX or "://" in out:
        return []
    files = [_local_path(name) for name in sorted(events.inputFiles()[: FILES_MAX + 1])]
    if not files or len(files) > FILES_MAX or None in files:
        return []
    asked = {name.split(".")[0] for name in (matching.id, *(a.name for a in matching.wanted.asked_type))}
    pieces: list[Piece] = []
    for file in filter(None, files):
        footer = _footer(file)
        if not asked <= set(footer.schema.to_arrow_schema().names):  # Partition columns, or a file of another make.
            return []
        pieces += [Piece(file, (g,), footer.row_group(g).total_byte_size) for g in range(footer.num_row_groups)]
    return _shared_out(pieces, events.sparkSession.sparkContext.defaultParallelism)


def match_direct(matching: Matching, tasks: list[list[Piece]], out: str, compact: bool) -> int:
    """Does the work; returns how many deliveries there are. In `out` stand whole results, or none."""
    shipped = ship(matching.events.sparkSession, matching.wanted.payloads(), matching.wanted.asked_type)
    return match_with(shipped, matching, tasks, out, compact)


def match_with(shipped: Shipped, matching: Matching, tasks: list[list[Piece]], out: str, compact: bool) -> int:
    """The same with an index that is on its way already."""
    spark, folder = matching.events.sparkSession, Path(out).resolve()  # Executors are at home elsewhere.
    aside = folder / f"{ASIDE}-{uuid.uuid4().hex}"
    aside.mkdir(parents=True)
    try:
        work = MatchFiles(shipped, matching.wanted.asked_type, matching.id, _id_type(matching), compact, str(aside))
        # To the driver comes a name and a number for each task, however much it wrote.
        written: list[Written] = spark.sparkContext.parallelize(tasks, len(tasks)).map(work).collect()
        for number, part in enumerate(written):
            (aside / part.name).rename(folder / f"part-{number:05}.snappy.parquet")
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    (folder / "_SUCCESS").touch()
    return sum(part.deliveries for part in written)


class MatchFiles:
    """A task: pieces of Parquet → a Parquet file of deliveries, through the index that is mapped on this host."""

    def __init__(
        self, shipped: Shipped, asked_type: EventType, id: str, id_type: pa.DataType, compact: bool, aside: str
    ) -> None:
        self.shipped, self.asked_type, self.id, self.id_type = shipped, asked_type, id, id_type
        self.compact, self.aside = compact, aside

    def __call__(self, pieces: list[Piece]) -> Written:
        name, holding = f"{uuid.uuid4().hex}.parquet", self.shipped.holding()
        with RowGroups(str(Path(self.aside) / name), holding, self.id_type, compact=self.compact) as out:
            for batch in read_pieces(pieces, self._columns()):
                ids = batch.column(self.id).cast(self.id_type)
                for start, found in holding.match_in_rounds(_flat(batch, self.asked_type)):
                    out.add(ids.slice(start), found)
        return Written(name, out.pairs)

    def _columns(self) -> list[str]:
        return [self.id, *(a.name for a in self.asked_type if a.name != self.id)]


def read_pieces(pieces: list[Piece], columns: list[str]) -> Iterator[pa.RecordBatch]:
    """The rows of row groups, in batches that suit the kernel. Raises InputError for a damaged file."""
    for piece in pieces:
        try:
            with pq.ParquetFile(piece.path, memory_map=True) as file:
                yield from file.iter_batches(ROWS_MAX, list(piece.groups), columns, use_threads=False)
        except (pa.ArrowInvalid, OSError) as wrong:
            raise _damaged(piece.path, wrong) from None


def _flat(batch: pa.RecordBatch, asked_type: EventType) -> pa.RecordBatch:
    """With a column for each attribute; the index checks them, so that those which are flat already are checked once."""
    is_flat = all(attribute.name in batch.schema.names for attribute in asked_type)
    return batch if is_flat else conform(batch, asked_type)


def _shared_out(pieces: list[Piece], cores: int) -> list[list[Piece]]:
    """Runs of pieces of about equal size, so that a task reads few files."""
    total = sum(piece.size for piece in pieces)
    goal = max(1, min(TASK_BYTES_MAX, -(-total // (TASKS_PER_CORE * cores))))
    tasks: list[list[Piece]] = []
    filled = goal
    for piece in pieces:
        if filled >= goal:
            tasks.append([])
            filled = 0
        tasks[-1].append(piece)
        filled += piece.size
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
