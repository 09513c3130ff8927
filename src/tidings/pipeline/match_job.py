"""The batch job behind `tidings match`: from files to files."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from tidings.errors import InputError
from tidings.events import EventType
from tidings.pipeline.matching.direct_parquet import match_files_directly, tasks_for
from tidings.pipeline.matching.match import Matching
from tidings.pipeline.session import spark_error
from tidings.pipeline.sources.files import Events, read_events, read_subscriptions

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
    plan: str = "auto",
    explain_only: bool = False,
    overwrite: bool = False,
) -> Outcome:
    """Matches files and writes Parquet; see `tidings match --help`. Raises InputError or SetupError."""
    try:
        _clear_output(out, overwrite and not explain_only)
        read = read_events(spark, events, id=id, event_type=event_type)
        rows = read_subscriptions(spark, subscriptions)
        matching = Matching(read.rows, rows, id=read.id, event_type=read.event_type, plan=plan)
        if explain_only:
            return Outcome(out, matching.explain(), rejected=matching.subscriptions.stats.rejected)
        return _write(matching, read, out, compact)
    except (PySparkException, Py4JJavaError) as error:
        raise spark_error(error) from None


def _write(matching: Matching, read: Events, out: str, compact: bool) -> Outcome:
    stats = matching.subscriptions.stats
    tasks = tasks_for(read.rows, matching, out) if read.is_parquet else []
    plan = f"{matching.explain()}\nfiles          {_DIRECT if tasks else _BY_SPARK}"
    if tasks:
        deliveries = match_files_directly(matching, tasks, out, compact)
    else:
        deliveries = _match_by_spark(matching, out, compact)
    example = ""
    if stats.rejected:
        matching.rejected.write.mode("overwrite").parquet(f"{out}/rejected")
        first = matching.rejected.head()
        example = f"{first.id}: {first.error}" if first else ""
    broken = _write_broken(read.broken, out)
    return Outcome(out, plan, stats.subscriptions, stats.rejected, broken, deliveries, example)


_DIRECT, _BY_SPARK = "read and written by the workers", "read and written by Spark"


def _match_by_spark(matching: Matching, out: str, compact: bool) -> int:
    matching.deliveries(compact=compact).write.mode("append").parquet(out)
    written = matching.events.sparkSession.read.parquet(out)
    if compact:  # The driver collects one row, a sum.
        return int(written.agg(f.sum(f.size("subscription_ids"))).collect()[0][0] or 0)
    return written.count()


def _write_broken(broken: DataFrame | None, out: str) -> int:
    count = broken.count() if broken is not None else 0
    if broken is not None and count:
        broken.write.mode("overwrite").parquet(f"{out}/quarantine")
    return count


def _clear_output(out: str, overwrite: bool) -> None:
    """Makes sure that results are never mixed with older files."""
    folder = Path(out)
    if "://" in out or not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{out!r} is a file; expected a folder for the result")
    if any(folder.iterdir()):
        if not overwrite:
            raise InputError(f"{out!r} is not empty; choose another folder, or replace it with --overwrite")
        shutil.rmtree(folder)
