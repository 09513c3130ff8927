"""The batch job behind `tidings match`: from files to files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from tidings.errors import InputError
from tidings.events import EventType
from tidings.pipeline.connectors.table_format import TableWriter, open_writer, store_options, table_name
from tidings.pipeline.matching.direct_parquet import match_files_directly, tasks_for
from tidings.pipeline.matching.match import Matching
from tidings.pipeline.session import activate, described, spark_error
from tidings.pipeline.sinks.table import by_subscriber, write_files
from tidings.pipeline.sources.files import Events, literal, read_events, read_subscriptions
from tidings.pipeline.storage import Location, storage_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a match in numbers; `example` is the id and the error of one rejected subscription."""

    out: str
    plan: str
    subscriptions: int = 0
    rejected: int = 0
    broken: int = 0
    deliveries: int = 0
    example: str = ""

    @property
    def rejected_folder(self) -> str:
        """Where the rejected subscriptions are: beside the result, since readers of a folder read all of it."""
        return rejected_folder(self.out)

    @property
    def quarantine_folder(self) -> str:
        return quarantine_folder(self.out)

    def row(self) -> dict[str, object]:
        names = ("deliveries", "subscriptions", "rejected", "broken", "out")
        return {name: getattr(self, name) for name in names}


def match_files(
    spark: SparkSession,
    events: str,
    subscriptions: str,
    out: str,
    *,
    id: str | None = None,
    event_type: EventType | None = None,
    compact: bool = False,
    keep: str | Sequence[str] = (),
    plan: str = "auto",
    explain_only: bool = False,
    overwrite: bool = False,
) -> Outcome:
    """Matches files or tables and writes Parquet or a table; see `tidings match --help`.

    Raises InputError or SetupError.
    """
    activate(spark)
    try:
        target = table_name(out)
        writer = open_writer(target, store_options(spark, target)) if target else None
        old: list[Location] = []
        if not explain_only:
            if writer is not None:
                check_table(writer, out, overwrite)
            old = check_output(out, (events, subscriptions), overwrite, spark)
            out = out if writer is not None else old[0].text
        read = read_events(spark, events, id=id, event_type=event_type)
        rows = read_subscriptions(spark, subscriptions)
        matching = Matching(read.rows, rows, id=read.id, event_type=read.event_type, plan=plan)
        if explain_only:
            return Outcome(out, matching.explain(), rejected=matching.subscriptions.stats.rejected)
        kept, unnamed = matching.kept(keep, compact=compact), matching.unnamed
        if read.narrowed:
            matching.events = read.narrowed(_needed(matching, kept))
        for folder in old if overwrite else []:  # Not before the input is known to be usable.
            storage_at(folder, spark).delete("")
        with described(spark, f"match events and write {out}"):
            if writer is not None:
                plan, deliveries = _write_table(matching, writer, compact, kept)
            else:
                plan, deliveries = _write(matching, read, out, compact, kept)
        broken = [*([read.broken] if read.broken is not None else []), unnamed]
        with described(spark, "write rejected subscriptions and broken events"):
            return _outcome(matching, broken, plan, deliveries, out)
    except (PySparkException, Py4JJavaError) as error:
        raise spark_error(error) from None


def _write(matching: Matching, read: Events, out: str, compact: bool, kept: Sequence[str]) -> tuple[str, int]:
    """Writes files. Returns the plan, and how many deliveries there are."""
    tasks = tasks_for(read.parquet_files, matching, out, kept)
    plan = f"{matching.explain()}\nfiles          {_DIRECT if tasks else _BY_SPARK}"
    if tasks:
        return plan, match_files_directly(matching, tasks, out, compact, kept)
    return plan, _match_by_spark(matching, out, compact, kept)


def _write_table(matching: Matching, writer: TableWriter, compact: bool, kept: Sequence[str]) -> tuple[str, int]:
    """The same with a table, whose rows are replaced in one transaction."""
    deliveries = matching.deliveries(compact=compact, keep=kept)
    written = write_files(writer, deliveries if compact else by_subscriber(deliveries))
    writer.commit(written.files, replace=True)
    return f"{matching.explain()}\nfiles          {_TO_TABLE}", written.deliveries


def _outcome(matching: Matching, broken: list[DataFrame], plan: str, deliveries: int, out: str) -> Outcome:
    """Writes what was rejected to folders beside the result."""
    stats, example = matching.subscriptions.stats, ""
    if stats.rejected:
        matching.rejected.write.parquet(rejected_folder(out))
        first = matching.rejected.head()
        example = f"{first.id}: {first.error}" if first else ""
    return Outcome(out, plan, stats.subscriptions, stats.rejected, _write_broken(broken, out), deliveries, example)


_DIRECT, _BY_SPARK = "read and written by the workers", "read and written by Spark"
_TO_TABLE = "written by the workers, and added to the table in one transaction"


def _needed(matching: Matching, kept: Sequence[str]) -> set[str]:
    """The columns that the match reads."""
    mentioned = (attribute.name for attribute in matching.subscriptions.projected_type)
    return {matching.id, *kept, *(name for each in mentioned for name in (each, each.split(".")[0]))}


def check_table(writer: TableWriter, out: str, overwrite: bool) -> None:
    """Raises InputError for a table that cannot be written, or whose rows must not be replaced."""
    writer.prepare()
    if not overwrite and not writer.is_empty():
        raise InputError(f"the table {out!r} has rows; choose another table, or replace them with --overwrite")


def _match_by_spark(matching: Matching, out: str, compact: bool, kept: Sequence[str]) -> int:
    matching.deliveries(compact=compact, keep=kept).write.mode("append").parquet(out)
    written = matching.events.sparkSession.read.parquet(literal(out))
    if compact:  # The driver collects one row, a sum.
        return int(written.agg(f.sum(f.size("subscription_ids"))).collect()[0][0] or 0)
    return written.count()


def _write_broken(kinds: list[DataFrame], out: str) -> int:
    """Writes events that cannot be matched, and returns how many there are. Parquet's statistics say where none is."""
    count = 0
    for broken in kinds:
        here = broken.count()
        if here:
            broken.write.mode("append").parquet(quarantine_folder(out))
        count += here
    return count


def rejected_folder(out: str) -> str:
    """The folder beside a result that has the rejected subscriptions.

    >>> rejected_folder("s3a://bucket/matched/")
    's3a://bucket/matched-rejected'
    """
    return _place(out).beside("-rejected").text


def quarantine_folder(out: str) -> str:
    return _place(out).beside("-quarantine").text


def _place(given: str) -> Location:
    """Where a folder or a table is. For a table that only a catalog knows, a name in the current folder."""
    table = table_name(given)
    return Location.of(table.location if table else given)


def check_output(out: str, inputs: Iterable[str], overwrite: bool, spark: SparkSession | None = None) -> list[Location]:
    """The folders of a result, those of a table beside it, so that results are never mixed with older files.

    Raises InputError if the result would be mixed with older files, or replace its own input.
    """
    folder = _place(out)
    if folder.is_local and Path(folder.text).exists() and not Path(folder.text).is_dir():
        raise InputError(f"{out!r} is a file; expected a folder for the result")
    for given in map(_place, inputs):
        if f"{given}/".startswith(f"{folder}/"):
            raise InputError(f"{given.text!r} is in the folder for the result, {out!r}; choose another one")
    beside = [Location(rejected_folder(out)), Location(quarantine_folder(out))]
    folders = beside if table_name(out) else [folder, *beside]
    full = [old for old in folders if not overwrite and storage_at(old, spark).list()]
    if full:
        raise InputError(f"{full[0].text!r} is not empty; choose another folder, or replace it with --overwrite")
    return folders
