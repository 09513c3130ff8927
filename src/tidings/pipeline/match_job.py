"""From files to files: what `tidings match` does."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from tidings.errors import InputError, SetupError, TidingsError
from tidings.events import EventType
from tidings.pipeline.matching.direct_parquet import match_direct, tasks_for
from tidings.pipeline.matching.match import Matching
from tidings.pipeline.sources.files import Events, read_events, read_subscriptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a match, in numbers; `example` is the first rejected subscription's id and error."""

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
        _make_room(out, overwrite and not explain_only)
        read = read_events(spark, events, id=id, event_type=event_type)
        rows = read_subscriptions(spark, subscriptions)
        matching = Matching(read.rows, rows, id=read.id, event_type=read.event_type, plan=plan)
        if explain_only:
            return Outcome(out, matching.explain(), rejected=matching.wanted.size.rejected)
        return _write(matching, read, out, compact)
    except (PySparkException, Py4JJavaError) as error:
        raise told(error) from None


def told(error: Exception) -> TidingsError:
    """What Spark said, in a line, as our own error: a file that cannot be read, a disk that is full."""
    said = str(error)
    for sign, blame, what in _SIGNS:
        if sign in said:
            return blame(f"{what}: {_telling_line(said, sign)}")
    from_python = re.findall(r"^[\w.]*[A-Z]\w*(?:Error|Invalid): .+$", said, re.MULTILINE)
    return SetupError(
        f"Spark failed: {from_python[-1][:LINE_MAX] if from_python else _telling_line(said, 'Exception')}"
    )


_SIGNS: tuple[tuple[str, type[TidingsError], str], ...] = (
    ("No space left on device", SetupError, "the disk is full"),
    ("Permission denied", SetupError, "no right to write or read there"),
    ("Mkdirs failed", SetupError, "a folder cannot be made"),
    ("Not a directory", SetupError, "a folder cannot be made"),
    ("ParentNotDirectoryException", SetupError, "a folder cannot be made"),
    ("the file is damaged, or no Parquet", InputError, "a file is damaged or not what its name says"),
    ("FAILED_READ_FILE", InputError, "a file is damaged or not what its name says"),
    ("is not a Parquet file", InputError, "a file is damaged or not what its name says"),
    ("CANNOT_READ_FILE_FOOTER", InputError, "a file is damaged or not what its name says"),
    ("PATH_NOT_FOUND", InputError, "no such file"),
    ("MALFORMED", InputError, "a file is damaged or not what its name says"),
    ("EventError", InputError, "an event does not fit its type"),
)
LINE_MAX = 300


def _telling_line(said: str, sign: str) -> str:
    lines = [line.strip() for line in said.splitlines() if sign in line]
    return (lines or [said.strip().splitlines()[0] if said.strip() else "no reason given"])[0][:LINE_MAX]


def _write(matching: Matching, read: Events, out: str, compact: bool) -> Outcome:
    size = matching.wanted.size
    tasks = tasks_for(read.rows, matching, out) if read.is_parquet else []
    plan = f"{matching.explain()}\nfiles          {_DIRECT if tasks else _BY_SPARK}"
    deliveries = match_direct(matching, tasks, out, compact) if tasks else _match_by_spark(matching, out, compact)
    example = ""
    if size.rejected:
        matching.rejected.write.mode("overwrite").parquet(f"{out}/rejected")
        first = matching.rejected.head()
        example = f"{first.id}: {first.error}" if first else ""
    broken = _write_broken(read.broken, out)
    return Outcome(out, plan, size.subscriptions, size.rejected, broken, deliveries, example)


_DIRECT, _BY_SPARK = "read and written by the workers", "read and written by Spark"


def _match_by_spark(matching: Matching, out: str, compact: bool) -> int:
    matching.deliveries(compact=compact).write.mode("append").parquet(out)
    written = matching.events.sparkSession.read.parquet(out)
    if compact:  # One row comes to the driver: a sum.
        return int(written.agg(f.sum(f.size("subscription_ids"))).collect()[0][0] or 0)
    return written.count()


def _write_broken(broken: DataFrame | None, out: str) -> int:
    count = broken.count() if broken is not None else 0
    if broken is not None and count:
        broken.write.mode("overwrite").parquet(f"{out}/quarantine")
    return count


def _make_room(out: str, overwrite: bool) -> None:
    """Nothing is ever mixed with what lies there already."""
    folder = Path(out)
    if "://" in out or not folder.exists():
        return
    if not folder.is_dir():
        raise InputError(f"{out!r} is a file; expected a folder for the result")
    if any(folder.iterdir()):
        if not overwrite:
            raise InputError(f"{out!r} is not empty; choose another folder, or replace it with --overwrite")
        shutil.rmtree(folder)
