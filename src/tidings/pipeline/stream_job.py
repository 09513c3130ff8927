"""The streaming job behind `tidings run`: records → EVENTS → MATCHES → DELIVERIES, batch by batch, exactly once.

A micro-batch goes through five steps:

    batch log   chooses the version of the subscriptions, and writes it to disk before the work begins
    match       records → deliveries, broken records, counts, in one pass of the workers
    quarantine  stores broken records with the reason and the original bytes
    sink        stores the deliveries, all of them or none
    batch log   writes the counts; the batch is done

A StreamingQueryListener sees the records of each batch as the observed metric `tidings`; a QueryExecutionListener sees
`tidings_batch` with events, matched, quarantined and deliveries, since what happens within a batch is no part of the
streaming query.

The job may be killed at any point. The next run repeats the unfinished batch with the same version of the
subscriptions, and each step detects what it had already finished. Spark's own checkpoint records which records
belong to a batch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from tidings.errors import SetupError, TidingsError
from tidings.events import EventType
from tidings.pipeline.config import MetricsEndpoint, Pipeline
from tidings.pipeline.matching.batch_step import (
    MatchRecords,
    broken_of,
    counts_of,
    deliveries_of,
    observed,
    results_schema,
)
from tidings.pipeline.matching.sizing import index_limit
from tidings.pipeline.matching.zone_step import match_batch_in_zones
from tidings.pipeline.session import activate, described, is_connect, spark_error
from tidings.pipeline.sinks.files import Quarantine
from tidings.pipeline.sinks.sink import open_sink
from tidings.pipeline.sources.staged_batches import StagedBatches, check_staged
from tidings.pipeline.sources.streams import Source, check_names, open_source
from tidings.pipeline.sources.subscription_changes import change_source
from tidings.pipeline.state.batch_log import BatchEntry, BatchLog, BatchRecords, Counts
from tidings.pipeline.state.epoch import Epoch
from tidings.pipeline.state.subscription_versions import (
    VERSIONS_MAX,
    SubscriptionVersions,
    VersionIndex,
    VersionZones,
)
from tidings.pipeline.storage import storage_at
from tidings.pipeline.tables import DELIVERY_NAMES, kept_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tidings.pipeline.security.job import SecureStage
    from tidings.pipeline.security.step import AdmitMatchSecure

FILE_FORMATS = ("json", "csv", "parquet", "frames")
POLL_S = 0.5  # How soon the job notices Ctrl-C or a failed query.
OBSERVED, OBSERVED_BATCH = "tidings", "tidings_batch"  # Names of observed metrics.
SECONDS_BUCKETS = (0.5, 1, 2, 5, 10, 30, 60, 300)


@dataclass(frozen=True, slots=True)
class BatchDone:
    """The report after each batch; `behind` says how much is waiting, if the source knows."""

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
    """Runs a pipeline until its sources are empty, if it is configured so, or until KeyboardInterrupt.

    The job calls `is_stopped` now and then, and raises KeyboardInterrupt when it returns True. Returns the counts of
    all runs of this pipeline. Raises InputError and SetupError; in any case the next run continues
    where this one stopped.
    """
    if is_connect(spark):
        check_staged(pipeline)
    activate(spark)
    batch_log = BatchLog(pipeline.checkpoint, spark)
    try:
        StreamJob(spark, pipeline, batch_log, watch, is_stopped).run()
        return batch_log.totals()
    except (PySparkException, Py4JError) as wrong:
        raise spark_error(wrong) from None
    finally:
        batch_log.close()


def totals(pipeline: Pipeline, spark: SparkSession | None = None) -> Counts:
    """The counts of all finished batches of a pipeline, whether it is running or not."""
    return BatchRecords(storage_at(pipeline.checkpoint, spark)).totals()


class StreamJob:
    """A pipeline as it runs. Builds a new base index after at most `versions_max` versions of the subscriptions."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        batch_log: BatchLog,
        watch: Watch = lambda done: None,
        is_stopped: Callable[[], bool] = lambda: False,
        *,
        versions_max: int = VERSIONS_MAX,
    ) -> None:
        self.spark, self.pipeline, self.batch_log = spark, pipeline, batch_log
        self.watch, self.is_stopped = watch, is_stopped
        self.secure = _secure_stage(spark, pipeline, batch_log.epoch)
        self.source = self.secure.source if self.secure else open_source(spark, pipeline)
        whole_type = self.source.whole_type
        self.kept = _kept(self.source, pipeline.deliveries.keep)
        changes = change_source(spark, pipeline.subscriptions, whole_type)
        self.versions = SubscriptionVersions(
            spark, changes, batch_log.epoch, whole_type,
            versions_max=versions_max,
            boxes_max=None if self.secure else index_limit(spark).boxes,  # Frames are opened where they are matched.
        )  # fmt: skip
        self.sink = open_sink(spark, pipeline.deliveries, epoch=batch_log.epoch, type_name=whole_type.name)
        self.quarantine = Quarantine(spark, pipeline.quarantine.path, batch_log.epoch)
        self._query: StreamingQuery | None = None
        self._failure: BaseException | None = None
        self._has_ended = self._is_exhausted()

    def run(self) -> None:
        self.sink.prepare()
        self.quarantine.prepare()
        if is_connect(self.spark):
            self._run_staged()
        else:
            self._run_streaming()

    def _run_staged(self) -> None:
        """Over Spark Connect: the batches come as files, and are matched by queries of this client."""
        log, trigger = self.batch_log, self.pipeline.trigger
        staged = StagedBatches(
            self.spark, self._observed(), log.storage, log.epoch.number, log.spark_checkpoint(), self.pipeline.name
        )  # fmt: skip
        while True:
            began = time.monotonic()
            done = log.last_done()
            is_all = staged.stage(self._check_stopped, done)
            for number in staged.after(done):
                self._check_stopped()
                self.batch(staged.records(number), number)
                staged.drop(number)
            if is_all and trigger.until_empty:
                return
            while is_all and time.monotonic() < began + trigger.every_s:
                self._check_stopped()
                time.sleep(POLL_S)

    def _check_stopped(self) -> None:
        if self.is_stopped():
            raise KeyboardInterrupt

    def _run_streaming(self) -> None:
        self._query = self._start()
        try:
            while not self._query.awaitTermination(POLL_S) and not self._has_ended:  # type: ignore[arg-type]
                self._check_stopped()
        except KeyboardInterrupt:
            _silence(self.spark)
            raise
        except (PySparkException, Py4JError):
            if isinstance(self._failure, TidingsError):
                raise self._failure from None
            raise
        finally:
            self._query.stop()

    def _start(self) -> StreamingQuery:
        trigger = self.pipeline.trigger
        writer = self._observed().writeStream.queryName(self.pipeline.name).foreachBatch(self._try_batch)
        writer = writer.option("checkpointLocation", self.batch_log.spark_checkpoint())
        if trigger.until_empty and not self.source.count:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{0 if trigger.until_empty else trigger.every_s} seconds")
        query: StreamingQuery = writer.start()
        return query

    def _observed(self) -> DataFrame:
        counted: DataFrame = self.source.stream.observe(OBSERVED, f.count(f.lit(1)).alias("records"))
        return counted

    def _try_batch(self, records: DataFrame, number: int) -> None:
        try:
            self.batch(records, number)
        except BaseException as wrong:  # Spark would keep only its text, deep within a Java stack trace.
            self._failure = wrong
            raise

    def batch(self, records: DataFrame, number: int) -> None:
        """One batch, from records to sink."""
        began = time.monotonic()
        entry = self.batch_log[number]
        if self._has_ended or (entry and entry.counts):
            return
        if self.pipeline.events.format in FILE_FORMATS:
            check_names(self.pipeline.events.path, self.spark)
        entry = self.batch_log.same_input(number, entry) if entry else self._begin(number)
        index = self.versions.at(entry.version)
        counts = msgspec.structs.replace(self._deliver(records, number, index), rejected=entry.rejected)
        self.batch_log.finish(number, counts)
        self._has_ended = self._is_exhausted()
        seconds = time.monotonic() - began
        self.watch(BatchDone(number, entry.version, index.count, counts, seconds, _behind(self._query)))

    def _begin(self, number: int) -> BatchEntry:
        """Chooses the version of the subscriptions for a new batch, and writes it down."""
        with described(self.spark, "read changes of the subscriptions"):
            version = self.versions.scan(self.quarantine.put_subscriptions)
        before = self.batch_log[number - 1] if number else None
        rejected = self.versions.rejected_between(before.version if before else 0, version)
        return self.batch_log.begin(number, version, rejected)

    def _is_exhausted(self) -> bool:
        """Whether a source with a fixed count has delivered all of it; its later batches are empty."""
        return bool(self.source.count) and self.batch_log.totals().events >= self.source.count

    def _deliver(self, records: DataFrame, number: int, index: VersionIndex | VersionZones) -> Counts:
        if isinstance(index, VersionZones):
            return self._deliver_in_zones(records, number, index)
        if self.secure:  # Read twice, and removing duplicates is expensive. The cached frames are still encrypted.
            records = records.persist(StorageLevel.MEMORY_AND_DISK)
        step = self._step(records, index)
        results = observed(records.mapInArrow(step, results_schema(self.kept)), OBSERVED_BATCH)
        results = results.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            with described(self.spark, f"match with version {index.version} of the subscriptions"):
                counts = counts_of(results)
            if counts.quarantined:
                with described(self.spark, "write broken events"):
                    self.quarantine.put_events(broken_of(results), number)
            with described(self.spark, "write deliveries"):
                self.sink.put(self._deliveries(results, index.version), number)
            return counts
        finally:
            results.unpersist()
            records.unpersist()

    def _deliver_in_zones(self, records: DataFrame, number: int, zones: VersionZones) -> Counts:
        """The same for more conditions than an executor should hold."""
        with described(self.spark, f"match in zones with version {zones.version} of the subscriptions"):
            batch = match_batch_in_zones(records, self.source, zones, self.kept)
        try:
            with described(self.spark, f"match in zones with version {zones.version} of the subscriptions"):
                counts = batch.counts()
            if counts.quarantined:
                with described(self.spark, "write broken events"):
                    self.quarantine.put_events(broken_of(batch.admitted), number)
            with described(self.spark, "write deliveries"):
                self.sink.put(self._deliveries(batch.results, zones.version), number)
            return counts
        finally:
            batch.unpersist()

    def _step(self, records: DataFrame, index: VersionIndex) -> MatchRecords | AdmitMatchSecure:
        if self.secure:
            return self.secure.step(records, index, self.versions.subscriptions_at)
        return MatchRecords(self.source, index, with_event=self.pipeline.deliveries.with_event, kept=self.kept)

    def _deliveries(self, results: DataFrame, version: int) -> DataFrame:
        if self.secure:
            return self.secure.sealed_of(results, version)
        return deliveries_of(results, version, self.pipeline.deliveries.with_event, self.kept)


def _silence(spark: SparkSession) -> None:
    """Suppresses stack traces of the interrupted batch: it fails by design, and the next run repeats it."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    spark.sparkContext.setLogLevel("OFF")
    java: Any = spark.sparkContext._jvm.java  # type: ignore[union-attr]
    java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))


def _secure_stage(spark: SparkSession, pipeline: Pipeline, epoch: Epoch) -> SecureStage | None:
    if pipeline.secure is None:
        return None
    from tidings.pipeline.security.job import SecureStage  # Loads the registry's database, which others do not need.

    return SecureStage(spark, pipeline, pipeline.secure, epoch)


def _kept(source: Source, keep: str | Sequence[str]) -> EventType | None:
    """The attributes that deliveries carry. Raises InputError."""
    names = kept_columns(keep, [attribute.name for attribute in source.whole_type], source.id, DELIVERY_NAMES)
    return EventType.of(source.whole_type.name, tuple(source.whole_type[name] for name in names)) if names else None


def _behind(query: StreamingQuery | None) -> str:
    """How much is waiting, as far as the source reports it."""
    progress = query.lastProgress if query is not None else None
    if progress is None:
        return ""
    metrics: dict[str, str] = {}
    for source in progress.sources:
        metrics |= dict(source.metrics or {})
    waiting = [f"{metrics[key]} {word}" for key, word in _WAITING.items() if metrics.get(key) not in (None, "0", "0.0")]
    return ", ".join(waiting)


_WAITING = {"numFilesOutstanding": "files behind", "avgOffsetsBehindLatest": "records behind"}


class BatchMetrics:
    """A `Watch` that counts each batch for Prometheus, then calls `then`. Serves the metrics if `endpoint` is given."""

    def __init__(self, endpoint: MetricsEndpoint | None, then: Watch) -> None:
        self._then = then
        self.registry = CollectorRegistry()
        self._events = Counter("tidings_events", "Events by outcome.", ["outcome"], registry=self.registry)
        self._deliveries = Counter("tidings_deliveries", "Deliveries written to the sink.", registry=self.registry)
        self._version = Gauge("tidings_subscriptions_version", "Current version.", registry=self.registry)
        self._count = Gauge("tidings_subscriptions", "Current subscriptions.", registry=self.registry)
        self._seconds = Histogram(
            "tidings_batch_seconds", "Duration of a batch.", buckets=SECONDS_BUCKETS, registry=self.registry
        )
        if endpoint is not None:
            self._serve(endpoint)

    def __call__(self, done: BatchDone) -> None:
        for outcome in ("delivered_from", "unmatched", "quarantined"):
            self._events.labels(outcome).inc(getattr(done.counts, outcome))
        self._deliveries.inc(done.counts.deliveries)
        self._version.set(done.version)
        self._count.set(done.subscriptions)
        self._seconds.observe(done.seconds)
        self._then(done)

    def _serve(self, endpoint: MetricsEndpoint) -> None:
        try:
            start_http_server(endpoint.port, endpoint.address, self.registry)
        except OSError as wrong:
            raise SetupError(f"cannot serve metrics on {endpoint.address}:{endpoint.port}: {wrong.strerror}") from None
