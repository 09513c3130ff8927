"""What a pipeline is: the file that `tidings run` reads, checked as a whole before anything starts.

    name = "london"
    checkpoint = "state"                  # what was done, so that a restart goes on from there

    [events]
    format = "json"                       # json, parquet, csv, kafka
    path = "sightings"                    # a folder that files are put into
    type = "sighting.toml"                # the event type; Parquet can do without
    files_per_batch = 10

    [subscriptions]
    path = "subscriptions"                # a folder of JSON lines: additions, changes, removals

    [deliveries]
    format = "parquet"                    # parquet, json, kafka, webhook
    path = "deliveries"

    [quarantine]
    path = "quarantine"

    [trigger]
    every_s = 2.0                         # or: until_empty = true

Paths are taken from the folder that the file is in.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Literal

import msgspec

from tidings.errors import InputError
from tidings.events import EventType, read_file

FILES_PER_BATCH = 100  # With files of some megabytes, a batch of a few seconds.
RECORDS_PER_BATCH = 1_000_000


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class EventsFrom(_Part, frozen=True, kw_only=True):
    """Where events come from."""

    format: Literal["json", "parquet", "csv", "kafka"]
    path: str = ""
    type: str | None = None
    id: str | None = None
    files_per_batch: int = FILES_PER_BATCH
    servers: str = ""
    topic: str = ""
    records_per_batch: int = RECORDS_PER_BATCH


class SubscriptionsFrom(_Part, frozen=True, kw_only=True):
    """The folder where subscriptions and their changes are put."""

    path: str


class DeliveriesTo(_Part, frozen=True, kw_only=True):
    """Where deliveries go; `with_event` adds the event itself, as JSON."""

    format: Literal["parquet", "json", "kafka", "webhook"] = "parquet"
    path: str = ""
    with_event: bool = True
    servers: str = ""
    topic: str = ""
    urls: dict[str, str] = {}
    source: str = "tidings"


class QuarantineTo(_Part, frozen=True, kw_only=True):
    """The folder for what is broken, with reasons and original bytes."""

    path: str


class Trigger(_Part, frozen=True, kw_only=True):
    """When the next batch begins; `until_empty` takes what is there and ends."""

    every_s: float = 2.0
    until_empty: bool = False


class Metrics(_Part, frozen=True, kw_only=True):
    """The port on which Prometheus may ask."""

    port: int
    address: str = "127.0.0.1"


class Pipeline(_Part, frozen=True, kw_only=True):
    """A whole pipeline; every path in it is absolute."""

    name: str
    checkpoint: str
    events: EventsFrom
    subscriptions: SubscriptionsFrom
    deliveries: DeliveriesTo
    quarantine: QuarantineTo
    trigger: Trigger = Trigger()
    metrics: Metrics | None = None
    spark: dict[str, str] = {}

    def event_type(self) -> EventType | None:
        return read_file(self.events.type) if self.events.type else None


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


def _check(pipeline: Pipeline) -> None:
    events, deliveries = pipeline.events, pipeline.deliveries
    _need("events", events.format, {"kafka": ("servers", "topic", "type"), "json": ("path", "type")}, events, ("path",))
    needs = {"kafka": ("servers", "topic"), "webhook": ("urls",)}
    _need("deliveries", deliveries.format, needs, deliveries, ("path",))
    if events.files_per_batch < 1 or events.records_per_batch < 1:
        raise ValueError("events.files_per_batch and records_per_batch: expected at least 1")
    if pipeline.trigger.every_s < 0:
        raise ValueError("trigger.every_s: expected seconds, 0 or more")
    wrong = [key for key in pipeline.spark if not key.startswith("spark.")]
    if wrong:
        raise ValueError(f'spark: expected settings such as "spark.executor.memory", got {wrong[0]!r}')


def _need(part: str, format: str, needs: dict[str, tuple[str, ...]], given: object, otherwise: tuple[str, ...]) -> None:
    for entry in needs.get(format, otherwise):
        if not getattr(given, entry):
            raise ValueError(f"{part}.{entry}: needed with format {format!r}")


def _resolved(pipeline: Pipeline, folder: Path) -> Pipeline:
    replace = msgspec.structs.replace
    events, deliveries = pipeline.events, pipeline.deliveries
    return replace(
        pipeline,
        checkpoint=_within(folder, pipeline.checkpoint),
        events=replace(events, path=_within(folder, events.path), type=_within(folder, events.type or "") or None),
        subscriptions=SubscriptionsFrom(path=_within(folder, pipeline.subscriptions.path)),
        deliveries=replace(deliveries, path=_within(folder, deliveries.path)),
        quarantine=QuarantineTo(path=_within(folder, pipeline.quarantine.path)),
    )


def _within(folder: Path, path: str) -> str:
    return path if not path or "://" in path else str(folder / path)
