"""Mistakes that are found before Spark starts: a path that is not there, a column that is missing, a wrong format.

Starting Spark takes many seconds, and nobody should wait for it to hear about a typing error. What is looked at here is
cheap: names, the first lines of a file, the schema of one Parquet file, on local disks only. What is found to be right
here may still be wrong, and Spark finds it; what is said to be wrong here is wrong.
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from tidings.errors import InputError, SetupError, did_you_mean
from tidings.events import EventType
from tidings.pipeline.config import TABLE_FORMATS, Pipeline, plain_options
from tidings.pipeline.connectors.kafka import resolved
from tidings.pipeline.connectors.schema_registry import decoder_of
from tidings.pipeline.connectors.table_format import (
    TableFormat,
    TableName,
    check_library,
    check_not_a_table,
    named_or_found,
    open_table,
    open_writer,
    table_name,
)
from tidings.pipeline.match_job import check_output, check_table
from tidings.pipeline.matching.match import check_plan
from tidings.pipeline.s3_settings import bucket_of
from tidings.pipeline.sources.files import check_exists, data_files, format_of, id_attribute, with_id
from tidings.pipeline.sources.streams import check_folder
from tidings.pipeline.storage import Location, storage_at
from tidings.pipeline.tables import DELIVERY_NAMES, EVENT_IDS, SUBSCRIPTION_COLUMNS, kept_columns, listed

FILES_MAX = 20  # Of a folder, to see which columns any of them has.
SMALL_BYTES = 32 << 20  # Seconds of reading, at most.
LINES_MAX = 1_000  # Of a JSON file, to see which attributes there are; in a longer one others may come later.


def check_files(
    events: str,
    subscriptions: str,
    out: str,
    *,
    id: str | None = None,
    event_type: EventType | None = None,
    overwrite: bool = False,
    keep: str | Sequence[str] = (),
    plan: str = "auto",
) -> None:
    """Raises InputError for what `match_files` would refuse, as far as a look at local files shows it."""
    check_plan(plan)
    tables = [_table_columns(path) for path in (events, subscriptions)]
    for path in (events, subscriptions):
        if _is_local(path):
            check_exists(path)
    columns = tables[0]
    if columns is None and _is_local(events):
        kind = format_of(events)
        columns = _columns(events, kind) if event_type is None or kind == "parquet" else None
    if columns is not None:
        _check_id(events, columns, id, "--id")
        _check_kept(keep, columns)
    if tables[1]:
        _check_columns(subscriptions, tables[1])
    elif _is_local(subscriptions):
        _check_subscriptions(subscriptions)
    target = table_name(out)
    if target is not None:
        check_library(target)
        if _is_here(target):
            check_table(open_writer(target), out, overwrite)
    elif _is_local(out):
        check_output(out, (events, subscriptions), overwrite)
        _check_writable(Path(Location.of(out).text))


def is_small(*paths: str) -> bool:
    """Whether these are local files that are soon read; of tables and remote files nothing is known.

    >>> is_small("/dev/null"), is_small("s3a://lake/events"), is_small("delta:events")
    (True, False, False)
    """
    if not all(map(_is_local, paths)):
        return False
    places = [Path(Location.of(path).text) for path in paths]
    folders = [storage_at(str(place)).list() for place in places if place.is_dir()]
    files = sum(place.stat().st_size for place in places if place.is_file())
    return files + sum(file.size for folder in folders for file in folder) <= SMALL_BYTES


def check_pipeline(pipeline: Pipeline) -> None:
    """The same for what `run` would refuse."""
    events, subscriptions = pipeline.events, pipeline.subscriptions
    pipeline.event_type()
    if events.format in ("json", "csv", "parquet", "frames"):
        check_folder(events.path)
        if events.format == "parquet" and _is_local(events.path):
            check_not_a_table(events.path, "events.path")
            _check_stream_id(events.path, events.id)
    for part, given in (("events", events), ("subscriptions", subscriptions)):
        columns = _columns_of_table(given.table_name()) if given.format in TABLE_FORMATS else None
        if columns is not None:
            _check_id(part, columns, events.id, "events.id") if given is events else _check_columns(part, columns)
    if subscriptions.format == "json" and _is_local(subscriptions.path) and not Path(subscriptions.path).is_dir():
        raise InputError(f"subscriptions.path: expected a folder of subscriptions, got {subscriptions.path!r}")
    _check_topics(pipeline)
    _check_run_kept(pipeline)
    for place in (pipeline.checkpoint, pipeline.deliveries.path, pipeline.quarantine.path):
        if _is_local(place):
            _check_writable(Path(Location.of(place).text))
    if pipeline.secure is not None:
        for entry in ("registry", "keys"):
            path = getattr(pipeline.secure, entry)
            if "://" not in path and not Path(path).exists():
                raise InputError(f"secure.{entry}: no such file: {path!r}")


def _check_run_kept(pipeline: Pipeline) -> None:
    declared = pipeline.event_type()
    if declared is not None:
        id = id_attribute(declared, pipeline.events.id)
        names = [attribute.name for attribute in with_id(declared, id)]
        kept_columns(pipeline.deliveries.keep, names, id.name, DELIVERY_NAMES)


def _check_topics(pipeline: Pipeline) -> None:
    """Variables that options name, and libraries and settings of a schema registry."""
    for part in ("events", "subscriptions", "deliveries"):
        given = getattr(pipeline, part)
        if given.format == "kafka":
            options = resolved(plain_options(given.options), f"{part}.options")
            decoder = decoder_of(given.value, options) if part == "events" else None
            if decoder is not None:
                decoder.check()


def _check_stream_id(path: str, id: str | None) -> None:
    if not any(name.endswith((".parquet", ".parq")) for name in data_files(path)):
        raise InputError(f"events.path: {path!r} has no Parquet file yet, and its schema is that of its files")
    columns = _columns(path, "parquet")
    if columns is not None:
        _check_id(path, columns, id, "events.id")


def _check_id(path: str, columns: list[str], wanted: str | None, option: str) -> None:
    if any(name in columns for name in ((wanted,) if wanted else EVENT_IDS)):
        return
    expected = f"a column {wanted!r}" if wanted else "a column 'event_id' or 'id', or the name of another one as the id"
    hint = did_you_mean(wanted, columns) if wanted else ""
    end = f"; {hint}" if hint else ""
    raise InputError(f"{path}: the events need {expected}; they have {listed(columns)}{end}; name it with {option}")


def _check_kept(keep: str | Sequence[str], columns: list[str]) -> None:
    named = [name for name in keep if "." not in name] if not isinstance(keep, str) else []  # Fields have dots.
    kept_columns(named, columns, "", ())


def _check_subscriptions(path: str) -> None:
    kind = format_of(path)
    if kind not in ("json", "parquet"):
        raise InputError(f"expected subscriptions as JSON lines or Parquet, got {kind}: {path!r}")
    _check_columns(path, _columns(path, kind))


def _check_columns(path: str, columns: list[str] | None) -> None:
    missing = [name for name in SUBSCRIPTION_COLUMNS if columns is not None and name not in columns]
    if columns and missing:
        raise InputError(
            f"{path}: the subscriptions need the columns id, subscriber and filter; {', '.join(missing)} missing, "
            f"they have {listed(columns)}"
        )


def _check_writable(folder: Path) -> None:
    """Raises SetupError if a folder is not there and cannot be created, or cannot be written."""
    while not folder.exists():
        folder = folder.parent
    try:
        Path(tempfile.mkdtemp(prefix=".tidings-", dir=folder)).rmdir()
    except OSError as wrong:
        raise SetupError(f"cannot write to {str(folder)!r}: {wrong.strerror}") from None


def _columns(path: str, kind: str) -> list[str] | None:
    """The columns that any of the local files has; None where a look at a few files does not show them all."""
    folder = Path(Location.of(path).text)
    names = [""] if folder.is_file() else list(islice(data_files(path), FILES_MAX + 1))
    if len(names) > FILES_MAX:
        return None
    columns: dict[str, None] = {}
    for name in names:
        found = _columns_of_file(folder / name, kind)
        if found is None:
            return None
        columns |= dict.fromkeys([*found, *_folder_columns(name)])
    return list(columns)


def _folder_columns(name: str) -> list[str]:
    """The columns in the names of a file's folders, such as `area=EC2`."""
    return [unquote(part.partition("=")[0]) for part in name.split("/")[:-1] if "=" in part]


def _columns_of_file(file: Path, kind: str) -> list[str] | None:
    try:
        if kind == "parquet":
            return list(pq.read_schema(file).names)
        if file.suffix not in (".csv", ".json", ".jsonl", ".ndjson"):
            return None  # Compressed.
        with file.open(encoding="utf-8-sig") as lines:
            return _csv_columns(lines) if kind == "csv" else _json_columns(list(islice(lines, LINES_MAX + 1)))
    except (pa.ArrowException, OSError, ValueError, csv.Error):
        return None  # Damaged: Spark says how.


def _csv_columns(lines: Iterable[str]) -> list[str] | None:
    columns = next(csv.reader(lines), [])
    return columns if all(columns) and len(set(columns)) == len(columns) else None  # Spark makes up other names.


def _json_columns(lines: list[str]) -> list[str] | None:
    if len(lines) > LINES_MAX:
        return None
    columns: dict[str, None] = {}
    for line in filter(str.strip, lines):
        record = json.loads(line)
        if not isinstance(record, dict):
            return None
        columns |= dict.fromkeys(record)
    return list(columns) or None


def _table_columns(path: str) -> list[str] | None:
    """The columns of a table that can be opened without Spark. Raises SetupError if a library is missing."""
    name = named_or_found(path)
    if name is None:
        return None
    return _columns_of_table(name)


def _columns_of_table(name: TableName) -> list[str] | None:
    """None if the table's files are in a store that only Spark was told about."""
    check_library(name)
    return list(open_table(name).schema().names) if _is_here(name) else None


def _is_here(name: TableName) -> bool:
    """Whether a table's files are not in a store that only Spark was told about, as far as its name tells."""
    if "://" in name.location or name.format is not TableFormat.ICEBERG:
        return "://" not in name.location
    from tidings.pipeline.connectors.iceberg import warehouse

    return not bucket_of(warehouse(name.location))


def _is_local(path: str) -> bool:
    return bool(path) and named_or_found(path) is None and Location.of(path).is_local
