"""The configuration of a pipeline: the file that `tidings run` reads, validated before anything starts.

    name = "london"
    checkpoint = "state"                  # progress, so that a restart continues from there

    [events]
    format = "json"                       # json, parquet, csv, kafka, demo, tidings; frames, with [secure];
                                          # delta, with path; iceberg, with table = "CATALOG.NAMESPACE.TABLE"
    path = "sightings"                    # a folder that files are put into
    type = "sighting.toml"                # the event type; Parquet can do without
    files_per_batch = 10

    [events.options]                      # for Kafka: all that Spark's connector, the clients and a schema registry know
    "kafka.security.protocol" = "SASL_SSL"

    [subscriptions]
    path = "subscriptions"                # a folder of JSON lines: additions, changes, removals
                                          # or format = "table", "delta", "iceberg" or "kafka"

    [deliveries]
    format = "parquet"                    # parquet, json, delta, iceberg, kafka, webhook, tidings
    path = "deliveries"                   # a folder, local or of any file system that Spark knows: s3a://…, hdfs://…
    partition_by = ""                     # "subscriber": a folder for each of them, to=NAME
    keep = ["area"]                       # columns of the event, beside the whole event as JSON; or "all"

    [quarantine]
    path = "quarantine"

    [secure]                              # for sealed events: format = "frames"
    registry = "registry.db"              # types, rights and sender ids
    type = "Sighting"
    keys = "pipeline.keys"                # a key file, mode 600
    rest = "left out"                     # or "sealed"
    signed = false                        # true: refuse what no publisher in the registry has signed

    [trigger]
    every_s = 2.0                         # or: until_empty = true

Relative paths start at the file's own folder. The checkpoint, events, subscriptions, deliveries and the quarantine may
be URIs of any file system that Spark knows, such as `s3a://bucket/folder`; the other files are local.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

import msgspec

from tidings.errors import InputError
from tidings.events import EventType, read_file
from tidings.pipeline.connectors.table_format import TableFormat, TableName, check_library
from tidings.pipeline.storage import Location

# A Kafka message cannot be withdrawn. A failed task therefore ends the run, and the next run checks what was sent.
NO_TASK_RETRIES = {"spark.task.maxFailures": "1", "spark.speculation": "false"}
FILES_PER_BATCH = 100  # With files of some megabytes, a batch of a few seconds.
RECORDS_PER_BATCH = 1_000_000
DEMO_RATE = 1_000.0  # Events per second.


TABLE_FORMATS = tuple(TableFormat)


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class EventsFrom(_Part, frozen=True, kw_only=True):
    """The source of events; `options` are those of Spark's Kafka connector, of Kafka's clients and of a schema registry."""

    format: Literal["json", "parquet", "csv", "delta", "iceberg", "kafka", "demo", "frames", "tidings"]
    path: str = ""
    table: str = ""
    on_change: Literal["refuse", "skip"] = "refuse"
    type: str | None = None
    id: str | None = None
    files_per_batch: int = FILES_PER_BATCH
    servers: str = ""
    topic: str = ""
    value: Literal["json", "avro", "protobuf"] = "json"
    options: dict[str, str | int | bool] = {}
    records_per_batch: int = RECORDS_PER_BATCH
    seed: int = 1
    rate: float = DEMO_RATE
    count: int = 0
    values: dict[str, list[str | int | float | bool]] = {}
    client: str = ""
    type_name: str = ""
    subscription: str = ""
    where: str = "TRUE"

    def table_name(self) -> TableName:
        return _table_name(self)


class SubscriptionsFrom(_Part, frozen=True, kw_only=True):
    """The source of subscriptions and their changes: a folder of JSON lines, a table, or a topic."""

    format: Literal["json", "table", "delta", "iceberg", "kafka"] = "json"
    path: str = ""
    table: str = ""
    servers: str = ""
    topic: str = ""
    options: dict[str, str | int | bool] = {}

    def table_name(self) -> TableName:
        return _table_name(self)


class DeliveriesTo(_Part, frozen=True, kw_only=True):
    """The sink of deliveries; `with_event` adds the event itself, as JSON, and `keep` columns of it.

    With `partition_by`, files are in a folder for each subscriber.
    """

    format: Literal["parquet", "json", "delta", "iceberg", "kafka", "webhook", "tidings"] = "parquet"
    path: str = ""
    table: str = ""
    partition_by: Literal["", "subscriber"] = ""
    with_event: bool = True
    keep: list[str] | Literal["all"] = []
    servers: str = ""
    topic: str = ""
    options: dict[str, str | int | bool] = {}
    urls: dict[str, str] = {}
    source: str = "tidings"
    client: str = ""
    type_name: str = ""

    def table_name(self) -> TableName:
        return _table_name(self)


class QuarantineTo(_Part, frozen=True, kw_only=True):
    """The folder for broken events and rejected subscriptions, with reasons and original bytes."""

    path: str


class Trigger(_Part, frozen=True, kw_only=True):
    """When the next batch begins; with `until_empty`, the run ends when the sources are empty."""

    every_s: float = 2.0
    until_empty: bool = False


class MetricsEndpoint(_Part, frozen=True, kw_only=True):
    """The address that Prometheus scrapes."""

    port: int
    address: str = "127.0.0.1"


class SecureBy(_Part, frozen=True, kw_only=True):
    """How sealed events are decrypted and deliveries encrypted: the registry that has the type, and a key file."""

    registry: str
    type: str
    keys: str
    rest: Literal["left out", "sealed"] = "left out"
    signed: bool = False


class Pipeline(_Part, frozen=True, kw_only=True):
    """A pipeline; every path in it is absolute."""

    name: str
    checkpoint: str
    events: EventsFrom
    subscriptions: SubscriptionsFrom
    deliveries: DeliveriesTo
    quarantine: QuarantineTo
    secure: SecureBy | None = None
    trigger: Trigger = Trigger()
    metrics: MetricsEndpoint | None = None
    spark: dict[str, str] = {}

    def event_type(self) -> EventType | None:
        return read_file(self.events.type) if self.events.type else None

    def spark_settings(self) -> dict[str, str]:
        """Settings for Spark: those that the sink needs, overridden by those in the file."""
        return {**(NO_TASK_RETRIES if self.deliveries.format == "kafka" else {}), **self.spark}


def read_pipeline(path: str | Path) -> Pipeline:
    """The pipeline that a TOML file describes. Raises InputError naming the file, the entry and what was expected."""
    file = Path(path)
    try:
        content = tomllib.loads(file.read_text("utf-8"))
        pipeline = msgspec.convert(content, Pipeline)
        _check(pipeline)
        return _resolved(pipeline, file.resolve().parent)
    except OSError as wrong:
        raise InputError(f"cannot read {str(path)!r}: {wrong.strerror}") from None
    except (ValueError, msgspec.ValidationError) as wrong:
        raise InputError(f"{path}: {str(wrong).replace('`$.', '`')}") from None


_NEEDS: dict[str, dict[str, tuple[str, ...]]] = {
    "events": {
        "json": ("path", "type"), "csv": ("path", "type"), "parquet": ("path",),
        "kafka": ("servers", "topic", "type"), "demo": ("type",), "frames": ("path",),
        "tidings": ("client", "type_name", "subscription"), "delta": ("path",), "iceberg": (),
    },
    "subscriptions": {
        "json": ("path",), "kafka": ("servers", "topic"), "table": (), "delta": ("path",), "iceberg": (),
    },
    "deliveries": {
        "parquet": ("path",), "json": ("path",), "kafka": ("servers", "topic"), "webhook": ("urls",),
        "tidings": ("client", "type_name"), "delta": ("path",), "iceberg": ("table",),
    },
}  # fmt: skip


def _check(pipeline: Pipeline) -> None:
    for part, needs in _NEEDS.items():
        _check_needs(part, getattr(pipeline, part), needs)
        _check_options(part, getattr(pipeline, part))
    _check_numbers(pipeline)
    where = pipeline.subscriptions
    if where.format == "table" and bool(where.path) == bool(where.table):
        raise ValueError(
            "subscriptions: expected either path, a folder of Parquet, or table, a name in Spark's catalog"
        )
    if (pipeline.events.format == "frames") != (pipeline.secure is not None):
        raise ValueError("secure: needed with events of format 'frames', and only with them")
    if pipeline.secure is not None and pipeline.deliveries.format not in ("parquet", "json"):
        raise ValueError(f"deliveries.format: sealed deliveries need parquet or json, got {pipeline.deliveries.format}")
    if pipeline.secure is not None and pipeline.deliveries.keep:
        raise ValueError(
            "deliveries.keep: not with [secure]: it would show attributes to readers without a right to them; "
            "a sealed delivery holds the event already"
        )
    wrong = [key for key in pipeline.spark if not key.startswith("spark.")]
    if wrong:
        raise ValueError(f'spark: expected settings such as "spark.executor.memory", got {wrong[0]!r}')


def _check_needs(
    part: str, given: EventsFrom | SubscriptionsFrom | DeliveriesTo, needs: dict[str, tuple[str, ...]]
) -> None:
    for entry in needs[given.format]:
        if entry == "topic" and part == "events" and any(name in given.options for name in PLACES):
            continue
        if not getattr(given, entry):
            raise ValueError(f"{part}.{entry}: needed with format {given.format!r}")
    if given.format == "iceberg" and bool(given.path) == bool(given.table):
        raise ValueError(f"{part}: expected table, as CATALOG.NAMESPACE.TABLE, or path, a folder to read from")
    if given.format in TABLE_FORMATS:
        check_library(given.table_name())


PLACES = ("assign", "subscribePattern")  # Options of events that stand in place of a topic's name.
_OURS = {"kafka.bootstrap.servers": "servers", "subscribe": "topic", "topic": "topic"}
_OFFSETS = ("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp", *PLACES)
_NEEDED_FOR_ONCE = {"kafka.acks": "all", "kafka.enable.idempotence": "true"}


def _check_options(part: str, given: EventsFrom | SubscriptionsFrom | DeliveriesTo) -> None:
    options = plain_options(given.options)
    if options and given.format != "kafka":
        raise ValueError(f"{part}.options: only with format 'kafka'")
    for name, value in options.items():
        if name in _OURS:
            raise ValueError(f"{part}.options.{name}: given by {part}.{_OURS[name]}")
        if part != "events" and name.startswith(_OFFSETS):
            raise ValueError(f"{part}.options.{name}: the checkpoint decides where to read")
        if part == "deliveries" and _NEEDED_FOR_ONCE.get(name, value) != value:
            raise ValueError(
                f"{part}.options.{name}: expected {_NEEDED_FOR_ONCE[name]!r}, or a message may be lost or sent twice"
            )
    has_registry = any(name.startswith("schema.registry.") for name in options)
    if has_registry and (part != "events" or "schema.registry.url" not in options):
        raise ValueError(f"{part}.options: a schema registry is for events, and needs schema.registry.url")
    if isinstance(given, EventsFrom) and given.value != "json" and not has_registry:
        raise ValueError(f'events.value: {given.value} needs options."schema.registry.url"')


def plain_options(options: dict[str, str | int | bool]) -> dict[str, str]:
    """Options as the texts that Kafka takes.

    >>> plain_options({"failOnDataLoss": False, "minPartitions": 4})
    {'failOnDataLoss': 'false', 'minPartitions': '4'}
    """
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def _check_numbers(pipeline: Pipeline) -> None:
    events = pipeline.events
    if events.files_per_batch < 1 or events.records_per_batch < 1:
        raise ValueError("events.files_per_batch and records_per_batch: expected at least 1")
    if events.rate <= 0 or events.count < 0:
        raise ValueError("events.rate: expected more than 0 a second; events.count: 0 or more")
    if pipeline.trigger.every_s < 0:
        raise ValueError("trigger.every_s: expected seconds, 0 or more")
    if events.format == "demo" and pipeline.trigger.until_empty and not events.count:
        raise ValueError("events.count: needed with trigger.until_empty, or the demo never ends")


def _resolved(pipeline: Pipeline, folder: Path) -> Pipeline:
    replace = msgspec.structs.replace
    events, deliveries = pipeline.events, pipeline.deliveries
    return replace(
        pipeline,
        checkpoint=_within(folder, pipeline.checkpoint),
        events=replace(
            events,
            path=_within(folder, events.path),
            type=_within(folder, events.type or "") or None,
            client=_within(folder, events.client),
        ),
        subscriptions=replace(pipeline.subscriptions, path=_within(folder, pipeline.subscriptions.path)),
        deliveries=replace(
            deliveries, path=_within(folder, deliveries.path), client=_within(folder, deliveries.client)
        ),
        quarantine=QuarantineTo(path=_within(folder, pipeline.quarantine.path)),
        secure=_secure_resolved(pipeline.secure, folder),
    )


def _secure_resolved(secure: SecureBy | None, folder: Path) -> SecureBy | None:
    if secure is None:
        return None
    within = {name: _within(folder, getattr(secure, name)) for name in ("registry", "keys")}
    return msgspec.structs.replace(secure, **within)


def _table_name(given: EventsFrom | SubscriptionsFrom | DeliveriesTo) -> TableName:
    return TableName(TableFormat(given.format), given.table or given.path)


def _within(folder: Path, path: str) -> str:
    if not path or Location.of(path).text == str(Path(path).absolute()):
        return str(folder / path) if path else path
    return Location.of(path).text  # A URI.
