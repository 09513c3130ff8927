"""Spark plugged into the live network: `spark.readStream.format("tidings")` and `df.writeStream.format("tidings")`.

    spark.dataSource.register(LiveNetwork)                       once in a session

    seen = (spark.readStream.format("tidings").option("client", "london/police/desk/client.toml")
            .option("type", "Numberplate").option("subscription", "spark").option("where", "speed > 20").load())
    (told.writeStream.format("tidings").option("client", "london/police/camera/client.toml")
         .option("type", "Numberplate").option("checkpointLocation", "state").start())

Each event comes into the table once, and each row of a table becomes one event, whichever of Spark,
its workers and the brokers are killed and started again. What a plan shows of a participant is
where its file is; keys and tokens are read where they are used.
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
from tidings.pipeline.sinks.live import LiveBatchWriter, LiveStreamWriter, Where
from tidings.pipeline.sources.files import spark_schema
from tidings.pipeline.sources.live import EVENTS_PER_BATCH_MAX, LiveReader, Wanted
from tidings.pipeline.tables import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "tidings"
ID = "event_id"
DELIVERY_ID = "delivery_id"
_READS = ("client", "type", "subscription", "where", "since", "maxEventsPerTrigger", "id")
_WRITES = ("client", "type", "id", "path", "checkpointLocation", "queryName")  # The last three are Spark's own.


class LiveNetwork(DataSource):
    """The live network as a data source: read as a stream, written as a stream or at once.

    | option | |
    | --- | --- |
    | `client` | file of the client to read or publish as |
    | `type` | name of the event type, as its broker knows it |
    | `subscription` | reading: name of the durable subscription; one query at a time reads it |
    | `where` | reading: the condition; all events without it |
    | `since` | reading: where a new subscription begins, as an ISO time; else with what is published from now on |
    | `maxEventsPerTrigger` | reading: at most so many per batch, up to 2048, which is what a broker sends ahead |
    | `id` | reading: the column for event ids (`event_id`); writing: a column whose values name the events |
    """

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        wanted = self._wanted()
        declared = type_at(wanted.client, wanted.type)
        if wanted.id in declared:
            raise InputError(f"{declared.name} has an attribute {wanted.id!r}; name the column of ids with option id")
        return StructType([StructField(wanted.id, StringType()), *spark_schema(declared)])

    def reader(self, schema: StructType) -> NoReturn:
        raise InputError(
            'format "tidings" is a stream: expected spark.readStream, with trigger(availableNow=True) for what is there now'
        )

    def streamReader(self, schema: StructType) -> LiveReader:  # noqa: N802
        return LiveReader(self._wanted(), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> LiveStreamWriter:  # noqa: N802
        return LiveStreamWriter(self._where())

    def writer(self, schema: StructType, overwrite: bool) -> LiveBatchWriter:
        if overwrite:
            raise InputError('what is published stays so: expected mode("append")')
        return LiveBatchWriter(self._where())

    def _wanted(self) -> Wanted:
        options = _checked(self.options, _READS, needed=("client", "type", "subscription"))
        return Wanted(
            client=options["client"],
            type=options["type"],
            subscription=options["subscription"],
            condition=options.get("where", "TRUE"),
            since=Timestamp(options["since"]) if "since" in options else None,
            events_per_batch=_count(options.get("maxeventspertrigger", str(EVENTS_PER_BATCH_MAX))),
            id=options.get("id", ID),
        )

    def _where(self) -> Where:
        options = _checked(self.options, _WRITES, needed=("client", "type"))
        return Where(options["client"], options["type"], options.get("id", ""))


class LiveSink:
    """Deliveries published as events of a type, which says by its attributes what of a delivery they carry.

    An event is named by its delivery's id, so a batch that is put again is published once.
    """

    def __init__(self, spark: SparkSession, client: str, type: str) -> None:
        spark.dataSource.register(LiveNetwork)
        self.client, self.type = client, type
        self._attributes: set[str] = set()

    def get_ready(self) -> None:
        """Asks the broker for the type. Raises InputError if there is none, PeerError if nobody answers."""
        self._attributes = {attribute.name for attribute in type_at(self.client, self.type)}

    def put(self, deliveries: DataFrame, batch: int) -> None:
        carried = [quoted(name) for name in deliveries.columns if name in self._attributes | {DELIVERY_ID}]
        writer = deliveries.select(*carried).write.format(NAME).mode("append")
        writer.option("client", self.client).option("type", self.type).option("id", DELIVERY_ID).save()


def read_live(spark: SparkSession, events: EventsFrom, id: str) -> DataFrame:
    """The stream that a pipeline's `[events]` of format `tidings` describes."""
    spark.dataSource.register(LiveNetwork)
    reader = spark.readStream.format(NAME).option("client", events.client).option("type", events.type_name)
    reader = reader.option("subscription", events.subscription).option("where", events.where).option("id", id)
    return reader.option("maxEventsPerTrigger", min(events.records_per_batch, EVENTS_PER_BATCH_MAX)).load()


def type_at(client: str, name: str) -> EventType:
    """An event type as a client's broker knows it."""
    with BlockingClient(client) as connected:
        (declared,) = connected.ask("type", name=name)
    return from_declaration(declared)


def _checked(options: Mapping[str, Any], known: Sequence[str], *, needed: Sequence[str]) -> dict[str, str]:
    """The options by their names in lower case, as Spark tells them apart. Raises InputError."""
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
