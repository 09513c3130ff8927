"""The streaming job: records → EVENTS → MATCHES → DELIVERIES, batch by batch, each exactly once.

    ledger      which subscriptions does this batch go by?      written before the work
    match       records → deliveries, broken ones, counts       one pass through the workers
    quarantine  broken ones, with reason and original bytes
    sink        deliveries                                      whole, or not at all
    ledger      the counts; the batch is done

Kill it anywhere: the batch that was under way is run again, by the same subscriptions, and
every step finds what it had finished. Spark's own checkpoint holds which records a batch has.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException

from tidings.errors import TidingsError
from tidings.pipeline.config import Pipeline
from tidings.pipeline.match_job import told
from tidings.pipeline.matching.batch_step import RESULTS_SCHEMA, MatchRecords, broken_of, counts_of, deliveries_of
from tidings.pipeline.sinks.files import FileSink, Quarantine, Sink
from tidings.pipeline.sources.streams import open_source
from tidings.pipeline.sources.subscription_changes import change_source
from tidings.pipeline.state.batch_log import Counts, Entry, Ledger
from tidings.pipeline.state.subscription_versions import Changes, InForce

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tidings.pipeline.security.job import Secured
    from tidings.pipeline.security.step import AdmitMatchSecure

POLL_S = 0.5  # How soon Ctrl-C and a failed query are noticed.


@dataclass(frozen=True, slots=True)
class BatchDone:
    """What is told after each batch."""

    batch: int
    version: int
    subscriptions: int
    counts: Counts
    seconds: float
    behind: str


Watch = Callable[[BatchDone], None]


def run(
    spark: SparkSession,
    pipeline: Pipeline,
    watch: Watch = lambda done: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Counts:
    """Runs a pipeline until its sources are empty, if it says so, or until KeyboardInterrupt.

    `is_stopped` is asked now and then; where it says yes, that is a KeyboardInterrupt, too.
    Returns the counts over its whole life, earlier runs included. Raises InputError and
    SetupError; whatever happens, the next run goes on where this one stopped.
    """
    ledger = Ledger(pipeline.checkpoint)
    try:
        ledger.lend_to(spark)
        job = Job(spark, pipeline, ledger, watch)
        job.is_stopped = is_stopped
        job.run()
        return ledger.totals()
    except (PySparkException, Py4JError) as wrong:
        raise told(wrong) from None
    finally:
        ledger.close()


class Job:
    """A pipeline that is under way."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, ledger: Ledger, watch: Watch) -> None:
        self.spark, self.pipeline, self.ledger, self.watch = spark, pipeline, ledger, watch
        self.secured = _secured(spark, pipeline)
        self.source = self.secured.source if self.secured else open_source(spark, pipeline)
        changes_from = change_source(spark, pipeline.subscriptions, self.source.whole_type)
        self.changes = Changes(spark, changes_from, pipeline.checkpoint, self.source.whole_type)
        self.sink = _sink(spark, pipeline, self.source.whole_type.name)
        self.quarantine = Quarantine(spark, pipeline.quarantine.path)
        self.is_stopped: Callable[[], bool] = lambda: False
        self._query: StreamingQuery | None = None
        self._failure: BaseException | None = None
        self._is_over = self._has_ended()

    def run(self) -> None:
        self.sink.get_ready()
        self.quarantine.get_ready()
        self._query = self._start()
        try:
            while not self._query.awaitTermination(POLL_S) and not self._is_over:  # type: ignore[arg-type]
                if self.is_stopped():
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            _hush(self.spark)
            raise
        except (PySparkException, Py4JError):
            if isinstance(self._failure, TidingsError):
                raise self._failure from None
            raise
        finally:
            self._query.stop()

    def _start(self) -> StreamingQuery:
        trigger = self.pipeline.trigger
        writer = self.source.stream.writeStream.queryName(self.pipeline.name).foreachBatch(self._batch_or_reason)
        writer = writer.option("checkpointLocation", str(Path(self.pipeline.checkpoint) / "spark"))
        if trigger.until_empty and not self.source.count:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{0 if trigger.until_empty else trigger.every_s} seconds")
        query: StreamingQuery = writer.start()
        return query

    def _batch_or_reason(self, records: DataFrame, number: int) -> None:
        try:
            self.batch(records, number)
        except BaseException as wrong:  # Spark would keep only its text, deep within a Java stack.
            self._failure = wrong
            raise

    def batch(self, records: DataFrame, number: int) -> None:
        """One batch, from records to sink."""
        began = time.monotonic()
        entry = self.ledger[number]
        if self._is_over or (entry and entry.counts):
            return
        if entry is None:
            entry = Entry(self.changes.scan(self.quarantine.put_subscriptions))
            self.ledger[number] = entry
        in_force = self.changes.at(entry.version)
        counts = self._deliver(records, number, in_force)
        self.ledger[number] = Entry(entry.version, counts)
        self._is_over = self._has_ended()
        seconds = time.monotonic() - began
        self.watch(BatchDone(number, entry.version, in_force.count, counts, seconds, _behind(self._query)))

    def _has_ended(self) -> bool:
        """Whether a source that counts has given all it has; what it gives afterwards are batches of nothing."""
        return bool(self.source.count) and self.ledger.totals().events >= self.source.count

    def _deliver(self, records: DataFrame, number: int, in_force: InForce) -> Counts:
        if self.secured:  # Frames are looked at twice, and finding second copies among them is dear. They are sealed.
            records = records.persist(StorageLevel.MEMORY_AND_DISK)
        step = self._step(records, in_force)
        results = records.mapInArrow(step, RESULTS_SCHEMA).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            counts = counts_of(results)
            if counts.quarantined:
                self.quarantine.put_events(broken_of(results), number)
            self.sink.put(self._deliveries(results, in_force.version), number)
            return counts
        finally:
            results.unpersist()
            records.unpersist()

    def _step(self, records: DataFrame, in_force: InForce) -> MatchRecords | AdmitMatchSecure:
        if self.secured:
            return self.secured.step(records, in_force, self.changes)
        return MatchRecords(self.source, in_force, with_event=self.pipeline.deliveries.with_event)

    def _deliveries(self, results: DataFrame, version: int) -> DataFrame:
        if self.secured:
            return self.secured.sealed_of(results, version)
        return deliveries_of(results, version, self.pipeline.deliveries.with_event)


def _hush(spark: SparkSession) -> None:
    """Once we are stopped, the batch under way fails, as it is meant to; it will be run again. Stacks would be no news."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    spark.sparkContext.setLogLevel("OFF")
    java: Any = spark.sparkContext._jvm.java  # type: ignore[union-attr]
    java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))


def _secured(spark: SparkSession, pipeline: Pipeline) -> Secured | None:
    if pipeline.secure is None:
        return None
    from tidings.pipeline.security.job import Secured  # With the registry's database, which others need not load.

    return Secured(spark, pipeline, pipeline.secure)


def _sink(spark: SparkSession, pipeline: Pipeline, type_name: str) -> Sink:
    to = pipeline.deliveries
    match to.format:
        case "kafka":
            from tidings.pipeline.connectors.kafka import KafkaSink

            return KafkaSink(spark, to.servers, to.topic, pipeline.checkpoint)
        case "webhook":
            from tidings.pipeline.sinks.webhook import WebhookSink

            return WebhookSink(to.urls, to.source, type_name)
        case "tidings":
            from tidings.pipeline.connectors.spark_datasource import LiveSink

            return LiveSink(spark, to.client, to.type_name)
        case _:
            return FileSink(spark, to.path, to.format)


def _behind(query: StreamingQuery | None) -> str:
    """How much is waiting, as far as the source tells."""
    progress = query.lastProgress if query is not None else None
    if progress is None:
        return ""
    metrics: dict[str, str] = {}
    for source in progress.sources:
        metrics |= dict(source.metrics or {})
    told = [f"{metrics[key]} {word}" for key, word in _WAITING.items() if metrics.get(key) not in (None, "0", "0.0")]
    return ", ".join(told)


_WAITING = {"numFilesOutstanding": "files behind", "avgOffsetsBehindLatest": "records behind"}
