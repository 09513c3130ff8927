"""Subscriptions → boxes in normal form, parsed by all workers in parallel; what does not parse is rejected.

Parsing is the expensive part of a large set, so it happens once. Rows are shuffled by id, so that a worker has all rows
of an id and finds out by itself whether they are equal. It turns so many subscriptions at a time into one row: the good
ones as a *payload*, an Arrow stream (the columns of `BOXES_SCHEMA` without texts, and the subscriber), and the rejected
ones with their errors. Spark moves these few rows without looking inside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import functions as f

from tidings.events import Attribute, EventType
from tidings.matching import BOXES_SCHEMA, one_chunk, parse_texts, table_of
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
PAYLOAD_ROWS = 16_384  # Subscriptions in one payload, at most.
_NAMES, CONFLICT = ["id", "subscriber", "filter"], "conflict"
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
        parsed = rows.repartition(parse_tasks(rows), "id").mapInArrow(_Parse(event_type), PARSED_SCHEMA)
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
    columns = {name: pa.array([row[at] for row in listed], pa.string()) for at, name in enumerate(_NAMES)}
    return parse_table(pa.table({**columns, CONFLICT: pa.array([row[3] for row in listed], pa.bool_())}), event_type)


def parse_table(rows: pa.Table, event_type: EventType) -> tuple[pa.Table, set[str], list[Rejected]]:
    """The same for a table of id, subscriber, filter, conflict."""
    ids, subscribers, texts = (one_chunk(rows.column(name)) for name in _NAMES)
    unnamed = pc.fill_null(pc.equal(ids, ""), True)
    usable = pc.invert(pc.or_(pc.or_(unnamed, one_chunk(rows.column(CONFLICT))), texts.is_null()))
    wrong: dict[int, str] = {}
    if not pc.all(usable).as_py():
        places = np.flatnonzero(~usable.to_numpy(zero_copy_only=False))
        wrong = {int(at): _refusal(ids[at].as_py(), rows.column(CONFLICT)[int(at)].as_py()) for at in places}
        ids, subscribers, texts = (column.filter(usable) for column in (ids, subscribers, texts))
    parsed = parse_texts(ids, texts, event_type)
    if parsed.wrong:
        places = np.flatnonzero(usable.to_numpy(zero_copy_only=False))
        wrong |= {int(places[at]): f"{type(error).__name__}: {error}" for at, error in parsed.wrong.items()}
        subscribers = subscribers.take(pa.array(parsed.good))
    table = table_of(parsed.columns, event_type)
    table = table.append_column(SUBSCRIPTIONS_SCHEMA.field("subscriber"), subscribers)
    return table, set(parsed.attributes), _rejected(rows, wrong)


def _refusal(id: str | None, conflict: bool) -> str:
    """Why a row cannot be used, whatever its condition means."""
    if not id:
        return "a subscription needs an id"
    if conflict:
        return f"several subscriptions have the id {id!r}; expected one, or equal ones"
    return "a subscription needs a filter: an SQL condition such as speed > 20"


def _rejected(rows: pa.Table, wrong: dict[int, str]) -> list[Rejected]:
    places = sorted(wrong)
    found = rows.select(_NAMES).take(pa.array(places, pa.int64())).to_pylist() if places else []
    return [{**row, "error": wrong[at]} for at, row in zip(places, found)]


def one_row_per_id(rows: pa.Table) -> pa.Table:
    """Rows of id, subscriber, filter, with equal ones merged; different ones of the same id become one `conflict`."""
    counts = rows.select(["id"]).group_by("id").aggregate([("id", "count", pc.CountOptions(mode="all"))])
    alone = pa.array(np.zeros(rows.num_rows, bool))
    if counts.num_rows == rows.num_rows:
        return rows.append_column(CONFLICT, alone)
    several = counts.filter(pc.greater(counts.column("id_count"), 1)).column("id")
    is_several = pc.is_in(rows.column("id"), value_set=one_chunk(several))
    once = rows.filter(pc.invert(is_several))
    merged = rows.filter(is_several).sort_by([(name, "ascending") for name in _NAMES])
    distinct = [(name, "count_distinct", pc.CountOptions(mode="all")) for name in _NAMES[1:]]
    first = [(name, "first", pc.ScalarAggregateOptions(skip_nulls=False)) for name in _NAMES[1:]]
    groups = merged.group_by("id", use_threads=False).aggregate([*distinct, *first])
    is_conflict = pc.or_(*(pc.greater(groups.column(f"{name}_count_distinct"), 1) for name in _NAMES[1:]))
    columns = [groups.column("id"), *(groups.column(f"{name}_first") for name in _NAMES[1:])]
    marked = pa.table([*columns, is_conflict], names=[*_NAMES, CONFLICT])
    return pa.concat_tables([once.append_column(CONFLICT, alone.slice(0, once.num_rows)), marked])


def without_texts(subscriptions: pa.Table) -> pa.Table:
    """Texts of conditions are there to be explained, which no worker does."""
    nothing = pa.array([""], pa.string()).take(pa.array(np.zeros(len(subscriptions), np.int32)))
    at = subscriptions.schema.get_field_index("condition")
    return subscriptions.set_column(at, BOXES_SCHEMA.field("condition"), nothing)


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
    """mapInArrow: subscriptions → payloads. An object, so that Spark pickles only its name and the event type.

    Holds the texts of a whole partition, whose size `parse_tasks` bounds.
    """

    def __init__(self, event_type: EventType) -> None:
        self.event_type = event_type

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        whole = list(batches)
        if not whole:
            return
        rows = one_row_per_id(pa.Table.from_batches(whole))
        whole.clear()
        for at in range(0, rows.num_rows, PAYLOAD_ROWS):
            yield self._parsed(rows.slice(at, PAYLOAD_ROWS))

    def _parsed(self, rows: pa.Table) -> pa.RecordBatch:
        table, attributes, rejected = parse_table(rows, self.event_type)
        row = {
            "subscriptions": table.num_rows,
            "box_count": pc.sum(pc.list_value_length(table.column("boxes"))).as_py() or 0,
            "attributes": sorted(attributes),
            "payload": write_payload(without_texts(table)),
            "rejected": rejected,
        }
        return pa.RecordBatch.from_pylist([row], schema=_PARSED)


def of_type(subscriptions: DataFrame, event_type: EventType) -> DataFrame:
    """The subscriptions that name this event type, or none."""
    if "type" not in subscriptions.columns or event_type.name == UNNAMED:
        return subscriptions
    return subscriptions.where(f.col("type").isNull() | (f.col("type") == event_type.name))


UNNAMED = "Event"  # The name of a type that was taken from a table: its subscriptions may call it anything.


def _texts(subscriptions: DataFrame) -> DataFrame:
    return subscriptions.select(*(f.col(name).cast("string").alias(name) for name in ("id", "subscriber", "filter")))


def _totals() -> list[Column]:
    sizes = (f.col("subscriptions"), f.col("box_count"), f.length("payload"), f.size("rejected"))
    return [*(f.sum(size) for size in sizes), f.array_distinct(f.flatten(f.collect_set("attributes")))]
