"""Subscriptions → boxes in normal form, parsed by all workers in parallel; what does not parse is rejected.

Parsing is the expensive part of a large set, so it happens once, and where the rows are. A worker turns each batch
of subscriptions into one row: the good ones as a *payload*, an Arrow stream (the columns of `BOXES_SCHEMA`, and the
subscriber), and the rejected ones with their errors. Spark moves these few rows without looking inside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import functions as f

from tidings.events import Attribute, EventType
from tidings.matching import BOXES_SCHEMA, parse_texts, table_of
from tidings.pipeline.matching.parsed_cache import cached
from tidings.pipeline.matching.sizing import fixed_cores, parse_tasks
from tidings.pipeline.session import described
from tidings.pipeline.tables import check_subscriptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PARSED_SCHEMA = (
    "subscriptions long, box_count long, attributes array<string>, payload binary, "
    "rejected array<struct<id: string, subscriber: string, filter: string, error: string>>"
)
SUBSCRIPTIONS_SCHEMA = BOXES_SCHEMA.append(pa.field("subscriber", pa.string()))
_REJECTED = pa.list_(pa.struct([(name, pa.string()) for name in ("id", "subscriber", "filter", "error")]))
_PARSED = pa.schema(
    [
        ("subscriptions", pa.int64()),
        ("box_count", pa.int64()),
        ("attributes", pa.list_(pa.string())),
        ("payload", pa.binary()),
        ("rejected", _REJECTED),
    ]
)


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """The size of a set of subscriptions, and the attributes that it mentions: what the choice of a plan goes by."""

    subscriptions: int
    boxes: int
    payload_bytes: int
    rejected: int
    attributes: tuple[str, ...]


class ParsedSubscriptions:
    """Parsed subscriptions: parsed at first use, and cached by Spark until `unpersist`, or between runs in a folder."""

    def __init__(self, subscriptions: DataFrame, event_type: EventType) -> None:
        check_subscriptions(subscriptions)
        self.event_type = event_type
        rows = _texts(of_type(subscriptions, event_type))
        tasks = parse_tasks(rows)
        one_each = coalesce_to_cores(_one_row_per_id(rows.repartition(tasks, "id") if tasks else rows))
        parsed = one_each.mapInArrow(_Parse(event_type), PARSED_SCHEMA)
        kept = cached(rows, event_type, parsed)
        self.batches = kept if kept is not parsed else parsed.persist(StorageLevel.DISK_ONLY)
        self._stats: SubscriptionStats | None = None

    @property
    def stats(self) -> SubscriptionStats:
        if self._stats is None:
            with described(self.batches.sparkSession, "parse subscriptions"):
                totals = self.batches.agg(*_totals()).collect()[0]  # One row: sums, and names of the type's attributes.
            subscriptions, boxes, payload_bytes, rejected = (total or 0 for total in totals[:-1])
            self._stats = SubscriptionStats(
                subscriptions, boxes, payload_bytes, rejected, tuple(sorted(totals[-1] or ()))
            )
        return self._stats

    @property
    def projected_type(self) -> EventType:
        """The event type, projected to the attributes that conditions mention, all of them optional.

        If they mention none, one attribute stays: a table without columns has no rows.
        """
        names = self.stats.attributes or tuple(a.name for a in self.event_type)[:1]
        mentioned = (self.event_type[name] for name in names)
        return EventType.of(self.event_type.name, tuple(Attribute(a.name, a.type) for a in mentioned))

    @property
    def rejected(self) -> DataFrame:
        """id, subscriber, filter, error of every subscription that cannot be used."""
        return self.batches.select(f.inline("rejected"))

    def tables(self) -> Iterator[pa.Table]:
        """The good ones, one payload at a time, so that the driver never holds them all at once."""
        with described(self.batches.sparkSession, "collect subscriptions for the index"):
            rows = self.batches.where("subscriptions > 0").select("payload").toLocalIterator()
        for row in rows:
            yield read_payload(row.payload)

    def unpersist(self) -> None:
        """Frees Spark's cache."""
        self.batches.unpersist()


Rejected: TypeAlias = dict[str, str | None]
Row: TypeAlias = tuple[str | None, str | None, str | None, bool]


def parse_subscriptions(rows: Iterable[Row], event_type: EventType) -> tuple[pa.Table, set[str], list[Rejected]]:
    """Rows of id, subscriber, filter, conflict → a table of SUBSCRIPTIONS_SCHEMA, the attributes in it, the rejected."""
    listed = list(rows)
    wrong = {at: reason for at, row in enumerate(listed) if (reason := _refusal(*row)) is not None}
    usable = [row for at, row in enumerate(listed) if at not in wrong] if wrong else listed
    ids, subscribers, texts = (pa.array([row[part] for row in usable], pa.string()) for part in range(3))
    parsed = parse_texts(ids, texts, event_type)
    if parsed.wrong:
        places = [at for at in range(len(listed)) if at not in wrong]
        wrong |= {places[at]: f"{type(error).__name__}: {error}" for at, error in parsed.wrong.items()}
        subscribers = subscribers.take(pa.array(parsed.good))
    table = table_of(parsed.columns, event_type)
    table = table.append_column(SUBSCRIPTIONS_SCHEMA.field("subscriber"), subscribers)
    return table, set(parsed.attributes), [_rejected(listed[at], wrong[at]) for at in sorted(wrong)]


def _refusal(id: str | None, subscriber: str | None, text: str | None, conflict: bool) -> str | None:
    """Why a row cannot be used, whatever its condition means; None if it can."""
    if not id:
        return "a subscription needs an id"
    if conflict:
        return f"several subscriptions have the id {id!r}; expected one, or equal ones"
    return "a subscription needs a filter: an SQL condition such as speed > 20" if text is None else None


def _rejected(row: Row, error: str) -> Rejected:
    id, subscriber, text, _ = row
    return {"id": id, "subscriber": subscriber, "filter": text, "error": error}


def write_payload(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def read_payload(payload: bytes) -> pa.Table:
    return pa.ipc.open_stream(payload).read_all()


def coalesce_to_cores(rows: DataFrame) -> DataFrame:
    """One partition per core: after a shuffle Spark may have hundreds, and each one starts a worker.

    Where nobody knows the cores, as many as there are.
    """
    cores = fixed_cores(rows.sparkSession)
    return rows.coalesce(cores) if cores else rows


class _Parse:
    """mapInArrow: subscriptions → payloads. An object, so that Spark pickles only its name and the event type."""

    def __init__(self, event_type: EventType) -> None:
        self.event_type = event_type

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = (batch.column(name).to_pylist() for name in ("id", "subscriber", "filter", "conflict"))
            table, attributes, rejected = parse_subscriptions(zip(*columns), self.event_type)
            box_count = len(table.column("boxes").combine_chunks().flatten()) if table.num_rows else 0
            row = {
                "subscriptions": table.num_rows,
                "box_count": box_count,
                "attributes": sorted(attributes),
                "payload": write_payload(table),
                "rejected": rejected,
            }
            yield pa.RecordBatch.from_pylist([row], schema=_PARSED)


def of_type(subscriptions: DataFrame, event_type: EventType) -> DataFrame:
    """The subscriptions that name this event type, or none."""
    if "type" not in subscriptions.columns or event_type.name == UNNAMED:
        return subscriptions
    return subscriptions.where(f.col("type").isNull() | (f.col("type") == event_type.name))


UNNAMED = "Event"  # The name of a type that was taken from a table: its subscriptions may call it anything.


def _texts(subscriptions: DataFrame) -> DataFrame:
    return subscriptions.select(*(f.col(name).cast("string").alias(name) for name in ("id", "subscriber", "filter")))


def _one_row_per_id(subscriptions: DataFrame) -> DataFrame:
    """Merges equal subscriptions, and marks different ones with the same id as a conflict."""
    rest = f.struct("subscriber", "filter")
    grouped = subscriptions.groupBy("id").agg(f.min(rest).alias("least"), f.max(rest).alias("most"))
    conflict = ~f.col("least").eqNullSafe(f.col("most"))
    return grouped.select("id", "least.subscriber", "least.filter", conflict.alias("conflict"))


def _totals() -> list[Column]:
    sizes = (f.col("subscriptions"), f.col("box_count"), f.length("payload"), f.size("rejected"))
    return [*(f.sum(size) for size in sizes), f.array_distinct(f.flatten(f.collect_set("attributes")))]
