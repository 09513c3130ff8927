"""The Spark data source `tidings`: the live network as a stream to read from and to write to.

    spark.dataSource.register(LiveNetwork)                       once in a session

    seen = (spark.readStream.format("tidings").option("client", "london/police/desk/client.toml")
            .option("type", "Numberplate").option("subscription", "spark").option("where", "speed > 20").load())
    (rows.writeStream.format("tidings").option("client", "london/police/camera/client.toml")
         .option("type", "Numberplate").option("checkpointLocation", "state").start())

Each event appears in the table once, and each row of a table becomes one event, even if Spark, its workers or the
brokers are killed and restarted. A query plan shows only the path of the client's file; workers read keys and
tokens from it when they need them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StringType, StructField, StructType

from tidings.errors import InputError, did_you_mean
from tidings.events import EventType, Timestamp, from_declaration
from tidings.net import BlockingClient
from tidings.pipeline.config import EventsFrom
from tidings.pipeline.sinks.live import LiveBatchWriter, LiveSinkOptions, LiveStreamWriter
from tidings.pipeline.sources.files import spark_schema
from tidings.pipeline.sources.live import EVENTS_PER_BATCH_MAX, LiveReader, LiveSourceOptions
from tidings.pipeline.tables import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "tidings"
ID = "event_id"
DELIVERY_ID = "delivery_id"
_READS = ("client", "type", "subscription", "where", "since", "maxEventsPerTrigger", "id")
_WRITES = ("client", "type", "id", "path", "checkpointLocation", "queryName")  # The last three are Spark's own.


class LiveNetwork(DataSource):
    """The live network as a data source: readable as a stream, writable as a stream or a batch.

    | option | |
    | --- | --- |
    | `client` | file of the client to read or publish as |
    | `type` | name of the event type, as its broker has it |
    | `subscription` | reading: name of the durable subscription; one query at a time can read it |
    | `where` | reading: the condition; without it, all events |
    | `since` | reading: where a new subscription begins, as an ISO time; without it, now |
    | `maxEventsPerTrigger` | reading: the largest batch, up to 2048, the broker's window |
    | `id` | reading: the column for event ids (`event_id`); writing: a column with an idempotency key per event |
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        source = self._source_options()
        declared = type_at(source.client, source.type)
        if source.id in declared:
            raise InputError(f"{declared.name} has an attribute {source.id!r}; name the column of ids with option id")
        return StructType([StructField(source.id, StringType()), *spark_schema(declared)])

    def reader(self, schema: StructType) -> NoReturn:
        raise InputError(
            'format "tidings" is a stream: expected spark.readStream, with trigger(availableNow=True) for what is there now'
        )

    def streamReader(self, schema: StructType) -> LiveReader:  # noqa: N802
        return LiveReader(self._source_options(), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LiveStreamWriter:  # noqa: N802
        return LiveStreamWriter(self._sink_options())

    def writer(self, schema: StructType, overwrite: bool) -> LiveBatchWriter:
        if overwrite:
            raise InputError('published events cannot be withdrawn: expected mode("append")')
        return LiveBatchWriter(self._sink_options())

    def _source_options(self) -> LiveSourceOptions:
        options = _checked(self.options, _READS, needed=("client", "type", "subscription"))
        return LiveSourceOptions(
            client=options["client"],
            type=options["type"],
            subscription=options["subscription"],
            condition=options.get("where", "TRUE"),
            since=Timestamp(options["since"]) if "since" in options else None,
            events_per_batch=_count(options.get("maxeventspertrigger", str(EVENTS_PER_BATCH_MAX))),
            id=options.get("id", ID),
        )

    def _sink_options(self) -> LiveSinkOptions:
        options = _checked(self.options, _WRITES, needed=("client", "type"))
        return LiveSinkOptions(options["client"], options["type"], options.get("id", ""))


class LiveSink:
    """Publishes deliveries as events of a type, with those columns that the type has attributes for.

    The delivery id is the idempotency key, so a repeated batch is published once.
    """

    def __init__(self, spark: SparkSession, client: str, type: str) -> None:
        spark.dataSource.register(LiveNetwork)
        self.client, self.type = client, type
        self._attributes: set[str] = set()

    def prepare(self) -> None:
        """Asks the broker for the type. Raises InputError if it has none, PeerError if it does not answer."""
        self._attributes = {attribute.name for attribute in type_at(self.client, self.type)}

    def put(self, deliveries: DataFrame, batch: int) -> None:
        carried = [quoted(name) for name in deliveries.columns if name in self._attributes | {DELIVERY_ID}]
        writer = deliveries.select(*carried).write.format(NAME).mode("append")
        writer.option("client", self.client).option("type", self.type).option("id", DELIVERY_ID).save()


def read_live(spark: SparkSession, events: EventsFrom, id: str) -> DataFrame:
    """The stream of a pipeline's `[events]` of format `tidings`."""
    spark.dataSource.register(LiveNetwork)
    reader = spark.readStream.format(NAME).option("client", events.client).option("type", events.type_name)
    reader = reader.option("subscription", events.subscription).option("where", events.where).option("id", id)
    return reader.option("maxEventsPerTrigger", min(events.records_per_batch, EVENTS_PER_BATCH_MAX)).load()


def type_at(client: str, name: str) -> EventType:
    """An event type, from a client's broker."""
    with BlockingClient(client) as connected:
        (declared,) = connected.ask("type", name=name)
    return from_declaration(declared)


def _checked(options: Mapping[str, Any], known: Sequence[str], *, needed: Sequence[str]) -> dict[str, str]:
    """The options by their names in lower case: Spark's options are case-insensitive. Raises InputError."""
    given = {name.lower(): str(value) for name, value in options.items()}
    for name in given:
        if name not in {each.lower() for each in known}:
            hint = did_you_mean(name, known) or f"there are {', '.join(known)}"
            raise InputError(f"format {NAME!r} has no option {name!r}; {hint}")
    for name in needed:
        if not given.get(name):
            raise InputError(f"format {NAME!r} needs the option {name!r}")
    return given


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= EVENTS_PER_BATCH_MAX:
        raise InputError(f"maxEventsPerTrigger: expected 1 to {EVENTS_PER_BATCH_MAX}, got {text!r}")
    return int(text)
