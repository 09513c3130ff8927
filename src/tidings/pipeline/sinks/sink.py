"""What a sink is, and which one a pipeline's file describes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from tidings.pipeline.config import DeliveriesTo, plain_options
from tidings.pipeline.state.epoch import Epoch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Sink(Protocol):
    """Where batches of deliveries go."""

    def prepare(self) -> None:
        """Called once at each start, before the first batch. Raises SetupError or PeerError if the sink is unusable."""

    def put(self, deliveries: DataFrame, batch: int) -> None:
        """Stores a batch. Idempotent: a batch that is put again is stored once."""


def open_sink(spark: SparkSession, to: DeliveriesTo, *, epoch: Epoch, type_name: str) -> Sink:
    """The sink of a pipeline for deliveries of the event type `type_name`. Raises InputError.

    A sink writes nothing that others see unless `epoch.check` has just passed; `epoch.storage` is the checkpoint.
    """
    match to.format:
        case "kafka":
            from tidings.pipeline.connectors.kafka import KafkaSink, resolved

            options = resolved(plain_options(to.options), "deliveries.options")
            return KafkaSink(spark, to.servers, to.topic, epoch, options)
        case "webhook":
            from tidings.pipeline.sinks.webhook import WebhookSink

            return WebhookSink(to.urls, to.source, type_name)
        case "tidings":
            from tidings.pipeline.connectors.spark_datasource import LiveSink

            return LiveSink(spark, to.client, to.type_name)
        case "delta" | "iceberg":
            from tidings.pipeline.sinks.table import TableSink

            return TableSink(spark, to.table_name(), epoch)
        case _:
            from tidings.pipeline.sinks.files import FileSink

            return FileSink(spark, to.path, to.format, epoch, by_subscriber=to.partition_by == "subscriber")
