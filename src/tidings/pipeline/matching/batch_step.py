"""One pass of a worker over a micro-batch: records → RESULTS, a table of deliveries, broken records and counts.

A column `kind` distinguishes the three. Since one pass produces them all, records are read, validated and matched
once, and the counts belong to exactly the rows that go to the sink.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.types import StructField, StructType, _parse_datatype_string

from tidings.events import EventType, arrow_schema
from tidings.pipeline.sources.files import NO_FIT, spark_schema
from tidings.pipeline.sources.streams import Source
from tidings.pipeline.sources.validation import original_of, validate_lines, validate_rows
from tidings.pipeline.state.batch_log import Counts
from tidings.pipeline.state.subscription_versions import VersionIndex
from tidings.pipeline.tables import PAIR_NAMES, delivery_id_column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELIVERY, BROKEN, COUNT = 0, 1, 2  # The kinds.
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
KEPT = "_kept_"  # Columns of the event that deliveries carry, by their position, come after the others.
RESULTS_SCHEMA = (
    "kind tinyint, event_id string, subscription_id string, subscriber string, event string, "
    "reason string, original binary, counts array<long>"
)


class MatchRecords:
    """mapInArrow: records → RESULTS."""

    def __init__(self, source: Source, index: VersionIndex, *, with_event: bool, kept: EventType | None = None) -> None:
        self.source, self.index, self.with_event, self.kept = source, index, with_event, kept
        self.schema = with_kept(kept)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from self._match(admit(batch, self.source))

    def _match(self, admitted: AdmittedRecords) -> Iterator[pa.RecordBatch]:
        if admitted.reasons:
            reasons, originals = pa.array(admitted.reasons, pa.string()), pa.array(admitted.originals, pa.binary())
            yield self._results(BROKEN, len(reasons), reason=reasons, original=originals)
        is_matched, pairs = np.zeros(admitted.rows.num_rows, bool), 0
        ids = admitted.rows.column(self.source.id).cast(pa.string())
        for start, found in self.index.match_in_rounds(admitted.rows):
            is_matched[start + found.events] = True
            pairs += len(found.events)
            if len(found.events):
                yield self._deliveries(found.pairs(ids.slice(start)), admitted, start + found.events)
        counts = [len(is_matched) + len(admitted.reasons), int(is_matched.sum()), len(admitted.reasons), pairs]
        yield self._results(COUNT, 1, counts=pa.array([counts], pa.list_(pa.int64())))

    def _deliveries(self, pairs: pa.RecordBatch, admitted: AdmittedRecords, events: Any) -> pa.RecordBatch:
        columns, rows = {name: pairs.column(name) for name in PAIR_NAMES}, pa.array(events)
        if self.with_event:
            columns["event"] = admitted.texts.take(rows)
        for at, attribute in enumerate(self.kept or ()):
            columns[f"{KEPT}{at}"] = admitted.rows.column(attribute.name).take(rows)
        return self._results(DELIVERY, pairs.num_rows, **columns)

    def _results(self, kind: int, count: int, **columns: pa.Array) -> pa.RecordBatch:
        return results_of(kind, count, self.schema, **columns)


@dataclass(frozen=True, slots=True)
class AdmittedRecords:
    """Valid rows with their records as JSON, and the reasons and original bytes of the others."""

    rows: pa.RecordBatch
    texts: pa.Array
    reasons: list[str]
    originals: list[bytes]


def admit(batch: pa.RecordBatch, source: Source) -> AdmittedRecords:
    """Validates the records of a batch."""
    return _admit_lines(batch, source) if source.is_lines else _admit_rows(batch, source)


def _admit_lines(batch: pa.RecordBatch, source: Source) -> AdmittedRecords:
    messages = lines = batch.column("value")
    broken: list[tuple[int, str]] = []
    place: Sequence[int] = range(len(lines))  # Of each line among the messages.
    if source.decode is not None:
        decoded = source.decode(messages)
        lines, place, broken = decoded.lines, decoded.kept, decoded.broken
    found = validate_lines(lines, source.whole_type)
    broken = [*broken, *((place[row], reason) for row, reason in found.broken)]
    originals = [messages[row].as_py() or b"" for row, _ in broken]
    texts = lines.take(pa.array(found.kept)).cast(pa.string())
    return AdmittedRecords(_one_batch(found.good), texts, [reason for _, reason in broken], originals)


def _admit_rows(batch: pa.RecordBatch, source: Source) -> AdmittedRecords:
    corrupt, texts = batch.column("_corrupt"), batch.column("_record")
    readable = corrupt.is_null()
    typed = pa.RecordBatch.from_arrays(
        [batch.column(f"_{at}") for at in range(len(source.whole_type.attributes))],
        [attribute.name for attribute in source.whole_type],
    ).filter(readable)
    found = validate_rows(typed, source.whole_type)
    originals = [original_of(typed, row) for row, _ in found.broken]
    unreadable = corrupt.drop_null().to_pylist()
    reasons = [*(reason for _, reason in found.broken), *(NO_FIT for _ in unreadable)]
    kept_texts = texts.filter(readable).take(pa.array(found.kept))
    return AdmittedRecords(
        _one_batch(found.good), kept_texts, reasons, [*originals, *(text.encode() for text in unreadable)]
    )


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    whole = table.combine_chunks()
    return whole.to_batches()[0] if whole.num_rows else pa.RecordBatch.from_pylist([], schema=table.schema)


def with_kept(kept: EventType | None) -> pa.Schema:
    """The columns of RESULTS, and those of the event that are kept."""
    fields = arrow_schema(kept) if kept else ()
    return pa.schema([*RESULTS, *(pa.field(f"{KEPT}{at}", field.type) for at, field in enumerate(fields))])


def results_schema(kept: EventType | None) -> StructType:
    """The same as a schema of Spark's."""
    fields = spark_schema(kept) if kept else StructType()
    schema = cast(StructType, _parse_datatype_string(RESULTS_SCHEMA))
    return StructType([*schema, *(StructField(f"{KEPT}{at}", field.dataType) for at, field in enumerate(fields))])


def results_of(kind: int, count: int, schema: pa.Schema = RESULTS, **columns: pa.Array) -> pa.RecordBatch:
    """Rows of one kind: these columns, and null in the others."""
    kinds = pa.array(np.full(count, kind, np.int8))
    arrays = [columns.get(field.name, pa.nulls(count, field.type)) for field in list(schema)[1:]]
    return pa.RecordBatch.from_arrays([kinds, *arrays], schema=schema)


def counts_of(results: DataFrame) -> Counts:
    """How many records were delivered, unmatched and quarantined."""
    parts = [f.sum(f.col("counts")[at]) for at in range(4)]  # The driver collects one row.
    events, matched, broken, pairs = (
        number or 0 for number in results.where(f.col("kind") == COUNT).agg(*parts).collect()[0]
    )
    counts = Counts(
        events=events, delivered_from=matched, unmatched=events - matched - broken, quarantined=broken, deliveries=pairs
    )
    assert counts.unmatched >= 0, f"counts do not add up: {counts}"
    return counts


def observed(results: DataFrame, name: str) -> DataFrame:
    """The same, with its counts as metrics of the query that computes it."""
    names = ("events", "matched", "quarantined", "deliveries")
    sums = [f.coalesce(f.sum(f.col("counts")[at]), f.lit(0)).alias(each) for at, each in enumerate(names)]
    return results.observe(name, *sums)


def deliveries_of(results: DataFrame, version: int, with_event: bool, kept: EventType | None = None) -> DataFrame:
    """The rows for the sink."""
    carried = [f.col(f"{KEPT}{at}").alias(attribute.name) for at, attribute in enumerate(kept or ())]
    event_id, subscription_id = f.col("event_id"), f.col("subscription_id")
    return results.where(f.col("kind") == DELIVERY).select(
        delivery_id_column(event_id, subscription_id).alias("delivery_id"),
        event_id,
        subscription_id,
        f.col("subscriber"),
        f.lit(version).cast("long").alias("subscriptions_version"),
        *([f.col("event")] if with_event else []),
        *carried,
    )


def broken_of(results: DataFrame) -> DataFrame:
    """The rows for the quarantine."""
    return results.where(f.col("kind") == BROKEN).select("reason", "original")
