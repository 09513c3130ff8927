"""Kafka topics as source and sink, through Spark's own connector, which comes as jars (`spark.jars`).

The connector alone would send a repeated batch twice. Here the sink first writes a mark to the checkpoint: the
topic's end offsets. If the batch is repeated, the messages that it had already sent are behind that mark, by
delivery id, and only the rest is sent. A run begins only after the Spark of an earlier run on the same host has ended
(`tidings.pipeline.state.epoch`), so no other process is still sending. Kafka cannot fence: where an earlier run goes
on unseen on another host, what it sends after the next run has looked stands twice, under the same key.

Options of a topic go to Spark's connector as they are, and those that begin with `kafka.` to the consumer with which
this module looks at offsets, too: an address that only answers clients with a password answers all of them.

Within a batch no task is retried: a failed task ends the run (`config.NO_TASK_RETRIES`), and the next run looks at
the mark. Kafka's producer is idempotent.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from tidings.errors import InputError, SetupError
from tidings.pipeline.config import PLACES
from tidings.pipeline.state.epoch import Epoch, StaleRun
from tidings.pipeline.storage import decoded
from tidings.pipeline.tables import JSON_TIMES

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MARKS = "kafka"  # A folder of the checkpoint.
MARKS_KEPT = 8  # Only the latest batch can be repeated; a few more help whoever inspects a checkpoint.
WAIT_MS_MAX = 20_000  # For Kafka to answer with a topic's end offsets.
EARLIEST = -2  # Spark's number for the first available offset.

_NO_CONNECTOR = (
    "Spark's Kafka connector is missing: give spark-sql-kafka-0-10_2.13 and what it needs as "
    "--conf spark.jars=a.jar,b.jar (docs/guide/pipeline.md says which)"
)
_NONE: Mapping[str, str] = MappingProxyType({})
CLIENT_PREFIX, REGISTRY_PREFIX = "kafka.", "schema.registry."
_FROM_ENVIRONMENT = re.compile(r"\$\{env:([^}]*)\}")
_BYTES = "org.apache.kafka.common.serialization.ByteArrayDeserializer"


def resolved(options: Mapping[str, str], where: str) -> dict[str, str]:
    """The options with `${env:NAME}` replaced by that variable of the environment. Raises InputError.

    >>> resolved({"a": "${env:HOME_OF_NOBODY}"}, "events.options")
    Traceback (most recent call last):
    tidings.errors.InputError: events.options.a: the environment has no variable 'HOME_OF_NOBODY'
    """

    def resolved_value(name: str, value: str) -> str:
        for variable in _FROM_ENVIRONMENT.findall(value):
            if variable not in os.environ:
                raise InputError(f"{where}.{name}: the environment has no variable {variable!r}")
        return _FROM_ENVIRONMENT.sub(lambda found: os.environ[found[1]], value)

    return {name: resolved_value(name, value) for name, value in options.items()}


def _for_connector(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if not name.startswith(REGISTRY_PREFIX)}


def read_topic(
    spark: SparkSession, servers: str, topic: str, records_per_batch: int, options: Mapping[str, str] = _NONE
) -> DataFrame:
    """The topic's messages, from the beginning unless an option says otherwise, as a stream with a binary column `value`.

    Raises SetupError.
    """
    ours = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": str(records_per_batch)}
    place = {} if any(name in options for name in PLACES) else {"subscribe": topic}
    reader = (
        spark.readStream.format("kafka")
        .options(**ours, **place, **{"kafka.bootstrap.servers": servers})
        .options(**_for_connector(options))
    )
    try:
        return reader.load().select("value")
    except PySparkException as wrong:
        raise _no_connector(wrong) from None


def read_between(
    spark: SparkSession,
    servers: str,
    topic: str,
    since: Mapping[str, int],
    until: Mapping[str, int] | None = None,
    options: Mapping[str, str] = _NONE,
) -> DataFrame:
    """The messages between these offsets: key, value, partition, offset."""
    reader = spark.read.format("kafka").options(**_for_connector(options))
    reader = reader.option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    if until is None:
        until = end_offsets(spark, servers, topic, options)
    starts = {partition: since.get(partition, EARLIEST) for partition in until}
    reader = reader.option("startingOffsets", json.dumps({topic: starts}))
    reader = reader.option("endingOffsets", json.dumps({topic: dict(until)}))
    return reader.load().select("key", "value", "partition", "offset")


def end_offsets(
    spark: SparkSession, servers: str, topic: str, options: Mapping[str, str] = _NONE, *, wait_ms: int = WAIT_MS_MAX
) -> dict[str, int]:
    """The next offset of each partition; none for a topic that does not exist. Raises SetupError."""
    jvm: Any = spark.sparkContext._jvm
    consumer = _consumer(jvm, servers, wait_ms, options)
    try:
        return _ends(jvm, consumer, topic)
    except Py4JError as wrong:
        raise SetupError(f"Kafka at {servers!r} does not answer for topic {topic!r}: {_cause(wrong)}") from None
    finally:
        consumer.close()


def _consumer(jvm: Any, servers: str, wait_ms: int, options: Mapping[str, str]) -> Any:
    settings = jvm.java.util.Properties()
    waits = {"default.api.timeout.ms": wait_ms, "request.timeout.ms": wait_ms}
    formats = {"key.deserializer": _BYTES, "value.deserializer": _BYTES}
    where = {"bootstrap.servers": servers, "allow.auto.create.topics": "false"}
    given = {key.removeprefix(CLIENT_PREFIX): value for key, value in options.items() if key.startswith(CLIENT_PREFIX)}
    for key, value in {**waits, **given, **where, **formats}.items():
        settings.put(key, str(value))
    try:
        return jvm.org.apache.kafka.clients.consumer.KafkaConsumer(settings)
    except TypeError:  # What Py4J raises for a class that does not exist.
        raise SetupError(_NO_CONNECTOR) from None
    except Py4JError as wrong:
        raise SetupError(f"cannot reach Kafka at {servers!r}: {_cause(wrong)}") from None


def _ends(jvm: Any, consumer: Any, topic: str) -> dict[str, int]:
    partitions = jvm.java.util.ArrayList()
    for info in consumer.partitionsFor(topic) or []:
        partitions.add(jvm.org.apache.kafka.common.TopicPartition(topic, info.partition()))
    ends = consumer.endOffsets(partitions).entrySet()
    return {str(entry.getKey().partition()): int(entry.getValue()) for entry in ends}


class KafkaSink:
    """Deliveries as JSON messages, keyed by delivery id; each is sent once, however often its batch is repeated."""

    def __init__(
        self, spark: SparkSession, servers: str, topic: str, epoch: Epoch, options: Mapping[str, str] = _NONE
    ) -> None:
        self.spark, self.servers, self.topic, self.epoch, self.options = spark, servers, topic, epoch, options

    def prepare(self) -> None:
        """Raises SetupError if Kafka does not answer, before anything is matched."""
        self._ends()

    def put(self, deliveries: DataFrame, batch: int) -> None:
        self.epoch.check()  # Kafka itself refuses nobody: a run that is paused after this line may send late.
        mark = self._mark(batch)
        if mark is not None:
            deliveries = deliveries.join(self._sent_since(mark), "delivery_id", "left_anti")
        else:
            # With the epoch, since two runs may find the same offsets.
            ends = {**self._ends(), "epoch": self.epoch.number}
            if not self.epoch.storage.put_if_absent(_mark(batch), json.dumps(ends).encode()):
                raise StaleRun(f"another run is sending batch {batch}; this one stops")
            self._delete_old_marks()
        messages = deliveries.select(
            f.col("delivery_id").alias("key"), f.to_json(f.struct("*"), JSON_TIMES).alias("value")
        )
        writer = messages.write.format("kafka").options(**_for_connector(self.options))
        writer = writer.option("kafka.bootstrap.servers", self.servers)
        writer.option("topic", self.topic).option("kafka.acks", "all").save()

    def _ends(self) -> dict[str, int]:
        return end_offsets(self.spark, self.servers, self.topic, self.options)

    def _mark(self, batch: int) -> dict[str, int] | None:
        content = self.epoch.storage.read(_mark(batch))
        return decoded(self.epoch.storage, _mark(batch), content, dict[str, int]) if content is not None else None

    def _sent_since(self, mark: dict[str, int]) -> DataFrame:
        if not self._ends():
            return self.spark.createDataFrame([], "delivery_id string")
        sent = read_between(self.spark, self.servers, self.topic, mark, options=self.options)
        return sent.select(f.col("key").cast("string").alias("delivery_id")).distinct()

    def _delete_old_marks(self) -> None:
        for old in self.epoch.storage.list(MARKS)[:-MARKS_KEPT]:
            self.epoch.storage.delete(old.name)


def _mark(batch: int) -> str:
    return f"{MARKS}/{batch:09}.json"


def _no_connector(wrong: PySparkException) -> SetupError:
    said = str(wrong).splitlines()[0]
    return SetupError(
        _NO_CONNECTOR if "DATA_SOURCE_NOT_FOUND" in said or "Failed to find data source" in said else said
    )


def _cause(wrong: Py4JError) -> str:
    java = getattr(wrong, "java_exception", None)
    while java is not None and java.getCause() is not None:
        java = java.getCause()
    return str(java.getMessage() if java is not None else wrong).splitlines()[0][:200]
