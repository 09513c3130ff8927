"""A micro-batch of a stream whose conditions exceed one index: validated first, then matched in zones.

Gives the same as `batch_step`, in two passes: records → ADMITTED, a table of valid events and broken records, and from
there, shuffled into zones, the deliveries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as f
from pyspark.sql.types import BinaryType, ByteType, StringType, StructField, StructType

from tidings.events import EventType
from tidings.pipeline.matching.batch_step import BROKEN, DELIVERY, KEPT, admit, results_of
from tidings.pipeline.matching.match import EVENT_ID, deliveries_schema
from tidings.pipeline.matching.partitioned import SubscriptionPayloads, match_in_zones
from tidings.pipeline.sources.arrow_files import for_spark
from tidings.pipeline.sources.files import spark_schema
from tidings.pipeline.sources.streams import Source
from tidings.pipeline.state.batch_log import Counts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROW, EVENT = "_row", "event"


@dataclass(frozen=True, slots=True)
class ZonedBatch:
    """What became of a micro-batch: ADMITTED has the broken records, `results` the deliveries as `batch_step` has them."""

    admitted: DataFrame
    results: DataFrame

    def counts(self) -> Counts:
        events, broken = self.admitted.agg(
            f.count(f.lit(1)), f.count_if(f.col("kind") == BROKEN)
        ).collect()[0]  # fmt: skip
        pairs, matched = self.results.agg(f.count(f.lit(1)), f.count_distinct(ROW)).collect()[0]
        unmatched = events - broken - matched
        assert unmatched >= 0, f"{events} events, {broken} broken, {matched} matched"
        return Counts(
            events=events, delivered_from=matched, unmatched=unmatched, quarantined=broken, deliveries=pairs
        )  # fmt: skip

    def unpersist(self) -> None:
        self.results.unpersist()
        self.admitted.unpersist()


def match_batch_in_zones(
    records: DataFrame, source: Source, subscriptions: SubscriptionPayloads, kept: EventType | None
) -> ZonedBatch:
    """Matches a micro-batch; both tables are cached until `unpersist`."""
    event_type = subscriptions.projected_type
    step = AdmitRecords(source, kept)
    admitted = records.mapInArrow(step, admitted_schema(event_type, kept))
    admitted = admitted.withColumn(ROW, f.monotonically_increasing_id()).persist(StorageLevel.MEMORY_AND_DISK)
    names = [ROW, EVENT, *(f"{KEPT}{at}" for at in range(len(kept.attributes) if kept else 0))]
    attributes = [f"_{at}" for at in range(len(event_type.attributes))]
    projected = admitted.where(f.col("kind") == DELIVERY).select(
        f.col("event_id").alias(EVENT_ID),
        *attributes,
        *(f.col(name).alias(f"{KEPT}{at}") for at, name in enumerate(names)),
    )
    carried = [StructField(name, admitted.schema[name].dataType) for name in names]
    schema = StructType([*deliveries_schema(StringType(), False), *carried])
    pairs = match_in_zones(projected, subscriptions, schema, False, names)
    results = pairs.withColumn("kind", f.lit(DELIVERY)).persist(StorageLevel.MEMORY_AND_DISK)
    return ZonedBatch(admitted, results)


def admitted_schema(event_type: EventType, kept: EventType | None) -> StructType:
    """Kind, id, the event as JSON, why it is broken, its bytes; attributes by position; columns to keep by position."""
    plain = [
        StructField("kind", ByteType()),
        StructField("event_id", StringType()),
        StructField(EVENT, StringType()),
        StructField("reason", StringType()),
        StructField("original", BinaryType()),
    ]
    attributes = [StructField(f"_{at}", field.dataType) for at, field in enumerate(spark_schema(event_type))]
    others = spark_schema(kept) if kept else StructType()
    return StructType([*plain, *attributes, *(StructField(f"{KEPT}{at}", a.dataType) for at, a in enumerate(others))])


class AdmitRecords:
    """mapInArrow: records → ADMITTED without row numbers."""

    def __init__(self, source: Source, kept: EventType | None) -> None:
        self.source, self.kept = source, kept

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            admitted = admit(batch, self.source)
            rows = admitted.rows
            kept = [attribute.name for attribute in self.kept or ()]
            columns = {f"_{at}": rows.column(at) for at in range(rows.num_columns)}
            columns |= {f"{KEPT}{at}": rows.column(name) for at, name in enumerate(kept)}
            columns |= {"event_id": rows.column(self.source.id).cast(pa.string()), EVENT: admitted.texts}
            schema = self._schema(rows.schema, kept)
            if rows.num_rows:
                yield for_spark(results_of(DELIVERY, rows.num_rows, schema, **columns))
            if admitted.reasons:
                reasons = pa.array(admitted.reasons, pa.string())
                originals = pa.array(admitted.originals, pa.binary())
                yield for_spark(results_of(BROKEN, len(reasons), schema, reason=reasons, original=originals))

    def _schema(self, rows: pa.Schema, kept: list[str]) -> pa.Schema:
        plain = [("kind", pa.int8()), ("event_id", pa.string()), (EVENT, pa.string()), ("reason", pa.string())]
        attributes = [(f"_{at}", field.type) for at, field in enumerate(rows)]
        others = [(f"{KEPT}{at}", rows.field(name).type) for at, name in enumerate(kept)]
        return pa.schema([*plain, ("original", pa.binary()), *attributes, *others])
