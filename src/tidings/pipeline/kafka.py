"""Kafka topics as source and sink, through Spark's own connector, which comes as a jar (`spark.jars`).

The connector by itself repeats deliveries when a batch is run again. Here a batch first notes,
in the checkpoint, where the topic ends. If it is run again, what it had already written lies
behind that mark, by delivery id, and only the rest is sent.

That holds against a driver that is killed. A single task that fails and is tried again within
one batch may still repeat some deliveries; the message key, the delivery id, is the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import functions as f

from tidings.errors import SetupError
from tidings.pipeline.ledger import write_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NO_CONNECTOR = (
    "Spark's Kafka connector is missing: give spark-sql-kafka-0-10_2.13 and what it needs as "
    "--conf spark.jars=a.jar,b.jar (docs/guide/pipeline.md says which)"
)


def read_topic(spark: SparkSession, servers: str, topic: str, records_per_batch: int) -> DataFrame:
    """The topic's messages from the beginning, as bytes in a column `value`."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    reader = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", records_per_batch)
    try:
        return reader.load().select("value")
    except AnalysisException as wrong:
        raise SetupError(_NO_CONNECTOR if "kafka" in str(wrong).lower() else str(wrong).splitlines()[0]) from None


class KafkaSink:
    """Deliveries as JSON messages, keyed by delivery id."""

    def __init__(self, spark: SparkSession, servers: str, topic: str, checkpoint: str) -> None:
        self.spark, self.servers, self.topic = spark, servers, topic
        self.marks = Path(checkpoint) / "kafka"

    def get_ready(self) -> None:
        self.marks.mkdir(parents=True, exist_ok=True)

    def put(self, deliveries: DataFrame, batch: int) -> None:
        mark = self.marks / f"{batch:09}.json"
        if mark.exists():
            sent = self._sent_since(json.loads(mark.read_text()))
            deliveries = deliveries.join(sent, "delivery_id", "left_anti")
        else:
            write_whole(mark, json.dumps({self.topic: self._ends()}).encode())
        messages = deliveries.select(f.col("delivery_id").alias("key"), f.to_json(f.struct("*")).alias("value"))
        writer = messages.write.format("kafka").option("kafka.bootstrap.servers", self.servers)
        writer.option("topic", self.topic).option("kafka.acks", "all").save()

    def _sent_since(self, mark: dict[str, dict[str, int]]) -> DataFrame:
        if not mark[self.topic]:
            mark = {self.topic: {"0": 0}}
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.servers)
        reader = reader.option("subscribe", self.topic).option("startingOffsets", json.dumps(mark))
        return reader.load().select(f.col("key").cast("string").alias("delivery_id")).distinct()

    def _ends(self) -> dict[str, int]:
        """By partition, the offset that the next message will have."""
        jvm: Any = self.spark.sparkContext._jvm
        settings = jvm.java.util.Properties()
        settings.put("bootstrap.servers", self.servers)
        for side in ("key", "value"):
            settings.put(f"{side}.deserializer", "org.apache.kafka.common.serialization.ByteArrayDeserializer")
        consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(settings)
        try:
            partitions = jvm.java.util.ArrayList()
            for info in consumer.partitionsFor(self.topic) or []:
                partitions.add(jvm.org.apache.kafka.common.TopicPartition(self.topic, info.partition()))
            return {
                str(entry.getKey().partition()): entry.getValue()
                for entry in consumer.endOffsets(partitions).entrySet()
            }
        finally:
            consumer.close()
