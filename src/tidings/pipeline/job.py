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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from tidings.errors import InputError, TidingsError
from tidings.events import EventType
from tidings.pipeline.changes import Changes, InForce
from tidings.pipeline.config import Pipeline
from tidings.pipeline.deliver import FileSink, Quarantine, Sink
from tidings.pipeline.files import told
from tidings.pipeline.ledger import Counts, Entry, Ledger
from tidings.pipeline.records import original_of, sort_lines, sort_rows
from tidings.pipeline.sources import CORRUPT, NO_FIT, id_attribute, spark_schema, type_of_table, with_id
from tidings.pipeline.tables import delivery_id_column, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S = 0.5  # How soon Ctrl-C and a failed query are noticed.

_DELIVERY, _BROKEN, _COUNT = 0, 1, 2
_FIELDS = [
    ("kind", pa.int8()),
    ("event_id", pa.string()),
    ("subscription_id", pa.string()),
    ("subscriber", pa.string()),
    ("event", pa.string()),
    ("reason", pa.string()),
    ("original", pa.binary()),
    ("counts", pa.list_(pa.int64())),
]
RESULTS = pa.schema(_FIELDS)
RESULTS_SCHEMA = (
    "kind tinyint, event_id string, subscription_id string, subscriber string, event string, "
    "reason string, original binary, counts array<long>"
)


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
        self.source = open_source(spark, pipeline)
        self.changes = Changes(spark, pipeline.subscriptions.path, pipeline.checkpoint, self.source.whole_type)
        self.sink = _sink(spark, pipeline, self.source.whole_type.name)
        self.quarantine = Quarantine(spark, pipeline.quarantine.path)
        self.is_stopped: Callable[[], bool] = lambda: False
        self._query: StreamingQuery | None = None
        self._failure: BaseException | None = None

    def run(self) -> None:
        self.sink.get_ready()
        self.quarantine.get_ready()
        self._query = self._start()
        try:
            while not self._query.awaitTermination(POLL_S):  # type: ignore[arg-type]
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
        if trigger.until_empty:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{trigger.every_s} seconds")
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
        if entry and entry.counts:
            return
        if entry is None:
            entry = Entry(self.changes.scan(self.quarantine.put_subscriptions))
            self.ledger[number] = entry
        in_force = self.changes.at(entry.version)
        counts = self._deliver(records, number, in_force)
        self.ledger[number] = Entry(entry.version, counts)
        seconds = time.monotonic() - began
        self.watch(BatchDone(number, entry.version, in_force.count, counts, seconds, _behind(self._query)))

    def _deliver(self, records: DataFrame, number: int, in_force: InForce) -> Counts:
        step = MatchRecords(self.source, in_force, with_event=self.pipeline.deliveries.with_event)
        results = records.mapInArrow(step, RESULTS_SCHEMA).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            counts = _counts(results)
            if counts.quarantined:
                broken = results.where(f.col("kind") == _BROKEN)
                self.quarantine.put_events(broken.select("reason", "original"), number)
            self.sink.put(deliveries_of(results, in_force.version, self.pipeline.deliveries.with_event), number)
            return counts
        finally:
            results.unpersist()


def _hush(spark: SparkSession) -> None:
    """Once we are stopped, the batch under way fails, as it is meant to; it will be run again. Stacks would be no news."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    spark.sparkContext.setLogLevel("OFF")
    java: Any = spark.sparkContext._jvm.java  # type: ignore[union-attr]
    java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))


# ── Sources ──────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Source:
    """A stream of records, what they should be, and which attribute is the id.

    `is_lines` tells JSON documents in one column `value` from typed columns `_0`, `_1`, …
    """

    stream: Any
    whole_type: EventType
    id: str
    is_lines: bool

    def __getstate__(self) -> tuple[Any, ...]:
        return self.whole_type, self.id, self.is_lines  # What workers need; a stream does not travel.

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        for name, value in zip(("whole_type", "id", "is_lines"), state):
            object.__setattr__(self, name, value)


def open_source(spark: SparkSession, pipeline: Pipeline) -> Source:
    """The stream of events that a pipeline reads. Raises InputError."""
    events, declared = pipeline.events, pipeline.event_type()
    if events.format in ("json", "kafka"):
        assert declared is not None, "the configuration is checked"
        id = id_attribute(declared, events.id)
        return Source(_lines(spark, pipeline), with_id(declared, id), id.name, True)
    _check_folder(events.path)
    reader = spark.readStream.option("maxFilesPerTrigger", events.files_per_batch)
    if events.format == "csv":
        if declared is None:
            raise InputError("events.type: needed with format 'csv'")
        id = id_attribute(declared, events.id)
        whole = with_id(declared, id)
        schema = spark_schema(whole).add(CORRUPT, "string")
        stream = reader.schema(schema).option("header", True).option("columnNameOfCorruptRecord", CORRUPT)
        return Source(_by_position(stream.csv(events.path), whole), whole, id.name, False)
    still = spark.read.parquet(events.path)
    declared = declared or type_of_table(still, events.path)
    id = id_attribute(declared, events.id)
    whole = with_id(declared, id)
    return Source(_by_position(reader.schema(still.schema).parquet(events.path), whole), whole, id.name, False)


def _lines(spark: SparkSession, pipeline: Pipeline) -> DataFrame:
    events = pipeline.events
    if events.format == "kafka":
        from tidings.pipeline.kafka import read_topic

        return read_topic(spark, events.servers, events.topic, events.records_per_batch)
    _check_folder(events.path)
    lines = spark.readStream.option("maxFilesPerTrigger", events.files_per_batch).text(events.path)
    return lines.where("length(trim(value)) > 0").select(f.col("value").cast("binary"))


def _by_position(stream: DataFrame, whole: EventType) -> DataFrame:
    """Typed columns by the attributes' positions, what Spark could not read, and the whole record as JSON."""
    columns = [_column(stream, attribute.name).alias(f"_{at}") for at, attribute in enumerate(whole)]
    kept = [quoted(name) for name in stream.columns if name != CORRUPT]
    corrupt = f.col(CORRUPT) if CORRUPT in stream.columns else f.lit(None).cast("string")
    return stream.select(*columns, corrupt.alias("_corrupt"), f.to_json(f.struct(*kept)).alias("_record"))


def _column(stream: DataFrame, name: str) -> Any:
    if name in stream.columns:
        return f.col(quoted(name))
    top, _, _ = name.partition(".")
    if top not in stream.columns:
        return f.lit(None)
    return f.col(".".join(quoted(part) for part in name.split(".")))


def _check_folder(path: str) -> None:
    if "://" not in path and not Path(path).is_dir():
        raise InputError(f"events.path: expected a folder that files are put into, got {path!r}")


# ── One pass through the workers ─────────────────────────────────────────────


class MatchRecords:
    """mapInArrow: records → deliveries, broken records and counts, told apart by `kind`."""

    def __init__(self, source: Source, in_force: InForce, *, with_event: bool) -> None:
        self.source, self.in_force, self.with_event = source, in_force, with_event

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from self._match(self._admitted(batch))

    def _match(self, admitted: _Admitted) -> Iterator[pa.RecordBatch]:
        if admitted.reasons:
            reasons, originals = pa.array(admitted.reasons, pa.string()), pa.array(admitted.originals, pa.binary())
            yield _results(_BROKEN, len(reasons), reason=reasons, original=originals)
        is_wanted, pairs = np.zeros(admitted.rows.num_rows, bool), 0
        ids = admitted.rows.column(self.source.id).cast(pa.string())
        for start, found in self.in_force.match_in_rounds(admitted.rows):
            is_wanted[start + found.events] = True
            pairs += len(found.events)
            if len(found.events):
                yield self._deliveries(found.pairs(ids.slice(start)), admitted.texts, start + found.events)
        counts = [len(is_wanted) + len(admitted.reasons), int(is_wanted.sum()), len(admitted.reasons), pairs]
        yield _results(_COUNT, 1, counts=pa.array([counts], pa.list_(pa.int64())))

    def _deliveries(self, pairs: pa.RecordBatch, texts: pa.Array, events: Any) -> pa.RecordBatch:
        columns = {name: pairs.column(name) for name in ("event_id", "subscription_id", "subscriber")}
        if self.with_event:
            columns["event"] = texts.take(pa.array(events))
        return _results(_DELIVERY, pairs.num_rows, **columns)

    def _admitted(self, batch: pa.RecordBatch) -> _Admitted:
        return _admit_lines(batch, self.source) if self.source.is_lines else _admit_rows(batch, self.source)


@dataclass(frozen=True, slots=True)
class _Admitted:
    """Good rows with their texts as JSON, and of the others the reasons and the originals."""

    rows: pa.RecordBatch
    texts: pa.Array
    reasons: list[str]
    originals: list[bytes]


def _admit_lines(batch: pa.RecordBatch, source: Source) -> _Admitted:
    lines = batch.column("value")
    found = sort_lines(lines, source.whole_type)
    originals = [lines[row].as_py() or b"" for row, _ in found.broken]
    texts = lines.take(pa.array(found.kept)).cast(pa.string())
    return _Admitted(_one_batch(found.good), texts, [reason for _, reason in found.broken], originals)


def _admit_rows(batch: pa.RecordBatch, source: Source) -> _Admitted:
    corrupt, texts = batch.column("_corrupt"), batch.column("_record")
    readable = corrupt.is_null()
    typed = pa.RecordBatch.from_arrays(
        [batch.column(f"_{at}") for at in range(len(source.whole_type.attributes))],
        [attribute.name for attribute in source.whole_type],
    ).filter(readable)
    found = sort_rows(typed, source.whole_type)
    originals = [original_of(typed, row) for row, _ in found.broken]
    unreadable = corrupt.drop_null().to_pylist()
    reasons = [*(reason for _, reason in found.broken), *(NO_FIT for _ in unreadable)]
    kept_texts = texts.filter(readable).take(pa.array(found.kept))
    return _Admitted(_one_batch(found.good), kept_texts, reasons, [*originals, *(text.encode() for text in unreadable)])


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    whole = table.combine_chunks()
    return whole.to_batches()[0] if whole.num_rows else pa.RecordBatch.from_pylist([], schema=table.schema)


def _results(kind: int, count: int, **columns: pa.Array) -> pa.RecordBatch:
    kinds = pa.array(np.full(count, kind, np.int8))
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in list(RESULTS)[1:]]
    return pa.RecordBatch.from_arrays([kinds, *arrays], schema=RESULTS)


def _counts(results: DataFrame) -> Counts:
    parts = [f.sum(f.col("counts")[at]) for at in range(4)]
    events, wanted, broken, pairs = (
        number or 0 for number in results.where(f.col("kind") == _COUNT).agg(*parts).collect()[0]
    )
    counts = Counts(
        events=events, delivered_from=wanted, unmatched=events - wanted - broken, quarantined=broken, deliveries=pairs
    )
    assert counts.unmatched >= 0, f"counts do not add up: {counts}"
    return counts


def deliveries_of(results: DataFrame, version: int, with_event: bool) -> DataFrame:
    """The rows that a sink gets."""
    event_id, subscription_id = f.col("event_id"), f.col("subscription_id")
    return results.where(f.col("kind") == _DELIVERY).select(
        delivery_id_column(event_id, subscription_id).alias("delivery_id"),
        event_id,
        subscription_id,
        f.col("subscriber"),
        f.lit(version).cast("long").alias("subscriptions_version"),
        *([f.col("event")] if with_event else []),
    )


def _sink(spark: SparkSession, pipeline: Pipeline, type_name: str) -> Sink:
    to = pipeline.deliveries
    match to.format:
        case "kafka":
            from tidings.pipeline.kafka import KafkaSink

            return KafkaSink(spark, to.servers, to.topic, pipeline.checkpoint)
        case "webhook":
            from tidings.pipeline.webhook import WebhookSink

            return WebhookSink(to.urls, to.source, type_name)
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
