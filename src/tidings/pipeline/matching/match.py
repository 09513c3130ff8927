"""EVENTS × SUBSCRIPTIONS → DELIVERIES: which subscriptions match which events, on Spark.

Two plans give the same answer. The size of the subscriptions decides between them, as Spark chooses its joins, and
`Matching.explain` says which plan and why.

**index to events**  The driver builds one index of the subscriptions and sends it to every host once; all workers
of a host map it into memory. Events stay where they are, as in a broadcast join.

**meet in zones**  For sets too large for one executor: a K-D tree cuts the attribute space into zones of equal
load. Each subscription goes to the zones that it touches, and each event to the one that contains it
(see `tidings.pipeline.matching.partitioned`).
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from tidings.errors import InputError
from tidings.events import EventType
from tidings.pipeline.matching.index_replica import DistributedIndex, IndexReplica, distribute_index
from tidings.pipeline.matching.parse_subscriptions import ParsedSubscriptions, SubscriptionStats
from tidings.pipeline.matching.sizing import IndexLimit, index_limit
from tidings.pipeline.session import is_connect, send_package
from tidings.pipeline.sources.files import check_fits, type_of_table
from tidings.pipeline.tables import (
    COMPACT_NAMES,
    JSON_TIMES,
    PAIR_NAMES,
    attribute_column,
    id_column,
    kept_columns,
    quoted,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PLANS = ("auto", "index", "zones")  # What may be requested.

EVENT_ID = "_tidings_event_id"
KEPT = "_kept_"

_log = logging.getLogger("tidings.pipeline")


class PlanName(enum.StrEnum):
    """How events and subscriptions come together."""

    INDEX = "index to events"
    ZONES = "meet in zones"


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan and the reason for it."""

    name: PlanName
    why: str


def match(
    events: DataFrame,
    subscriptions: DataFrame,
    *,
    id: str | None = None,
    event_type: EventType | None = None,
    compact: bool = False,
    keep: str | Sequence[str] = (),
    plan: str = "auto",
) -> DataFrame:
    """Which subscriptions match which events: event_id, subscription_id, subscriber, one row per pair.

    `events` may have any columns. The id column is the one named `id`, or else `event_id` or `id`. Without an event
    type, the type is that of the table's schema. `subscriptions` have the columns id, subscriber, filter and
    optionally type, the name of the event type they are for. Each pair occurs once, even if several parts of a
    condition match. With `compact`, there is one row per matched event: event_id, subscription_ids. `keep` names
    columns of the events that deliveries carry as well, or is "all".

    The subscriptions are parsed at once and must not be a stream. The events are read when the result is, and may
    be one. Subscriptions that cannot be used are left out, and a warning says how many;
    `Matching.rejected` has them with their errors. Events whose id is NULL are left out; `Matching.unnamed` has them.
    """
    matching = Matching(events, subscriptions, id=id, event_type=event_type, plan=plan)
    if matching.subscriptions.stats.rejected:
        _log.warning(
            "%s subscriptions cannot be used; Matching(…).rejected tells why", matching.subscriptions.stats.rejected
        )
    return matching.deliveries(compact=compact, keep=keep)


class Matching:
    """A match as an object: parsed subscriptions, a plan, and the table of deliveries."""

    def __init__(
        self,
        events: DataFrame,
        subscriptions: DataFrame,
        *,
        id: str | None = None,
        event_type: EventType | None = None,
        plan: str = "auto",
    ) -> None:
        if subscriptions.isStreaming:
            raise InputError("expected subscriptions as a table, not a stream; changing ones need `tidings run`")
        if event_type:
            check_fits(events, event_type)
        if is_connect(events.sparkSession):
            send_package(events.sparkSession)
        self.events = events
        self.id = id_column(events, id)
        self.subscriptions = ParsedSubscriptions(subscriptions, event_type or type_of_table(events))
        self.plan = choose_plan(self.subscriptions.stats, events.isStreaming, index_limit(events.sparkSession), plan)

    @property
    def rejected(self) -> DataFrame:
        """id, subscriber, filter, error of every subscription that cannot be used."""
        return self.subscriptions.rejected

    @property
    def unnamed(self) -> DataFrame:
        """The events without an id, which cannot be delivered: reason, and the event as JSON in `original`."""
        reason = f.lit(f"has no id: {self.id} is NULL").alias("reason")
        original = f.to_json(f.struct("*"), JSON_TIMES).cast("binary").alias("original")
        return self.events.where(f.col(quoted(self.id)).isNull()).select(reason, original)

    def kept(self, keep: str | Sequence[str], *, compact: bool = False) -> list[str]:
        """The columns of the events that deliveries carry. Raises InputError."""
        return kept_columns(keep, self.events.columns, self.id, COMPACT_NAMES if compact else PAIR_NAMES)

    def deliveries(self, *, compact: bool = False, keep: str | Sequence[str] = ()) -> DataFrame:
        """The table that `match` returns."""
        kept = self.kept(keep, compact=compact)
        projected = project_events(self.events, self.id, self.subscriptions.projected_type, kept)
        schema = deliveries_schema(self.events.schema[self.id].dataType, compact)
        schema = StructType([*schema, *(StructField(name, self.events.schema[name].dataType) for name in kept)])
        if self.plan.name is PlanName.ZONES:
            from tidings.pipeline.matching.partitioned import match_in_zones

            return match_in_zones(projected, self.subscriptions, schema, compact, kept)
        index = distribute_index(
            self.events.sparkSession, self.subscriptions.tables(), self.subscriptions.projected_type
        )
        return projected.mapInArrow(MatchRows(index, compact, kept), schema)

    def explain(self) -> str:
        """The plan, the reason for it, and the size of the subscriptions."""
        stats = self.subscriptions.stats
        mentioned = ", ".join(stats.attributes) or "none"
        return (
            f"plan           {self.plan.name}: {self.plan.why}\n"
            f"subscriptions  {stats.subscriptions:,} in {stats.boxes:,} boxes, {stats.rejected:,} rejected\n"
            f"attributes     {mentioned}"
        )


def choose_plan(stats: SubscriptionStats, is_stream: bool, limit: IndexLimit, requested: str = "auto") -> Plan:
    """The plan that was requested, or the one that fits the size.

    >>> choose_plan(SubscriptionStats(10, 12, 900, 0, ("speed",)), False, IndexLimit(100, "by hand")).name.value
    'index to events'
    """
    match requested:
        case "auto" if is_stream:
            return Plan(PlanName.INDEX, "a stream's events cannot be sorted into zones")
        case "auto" if stats.boxes <= limit.boxes:
            return Plan(PlanName.INDEX, f"{stats.boxes:,} boxes fit one index ({limit})")
        case "auto":
            return Plan(PlanName.ZONES, f"{stats.boxes:,} boxes are too many for one index ({limit})")
        case "index":
            return Plan(PlanName.INDEX, "requested")
        case "zones" if not is_stream:
            return Plan(PlanName.ZONES, "requested")
        case "zones":
            raise InputError("a stream's events cannot be sorted into zones; expected the plan 'index' or 'auto'")
    raise _no_plan(requested)


def check_plan(requested: str) -> None:
    """Raises InputError for what is no plan."""
    if requested not in PLANS:
        raise _no_plan(requested)


def _no_plan(requested: str) -> InputError:
    return InputError(f"expected the plan 'auto', 'index' or 'zones', got {requested!r}")


def project_events(events: DataFrame, id: str, projected_type: EventType, kept: Sequence[str] = ()) -> DataFrame:
    """The id, the attributes that conditions mention, and columns to keep: all that workers need.

    Events without an id are left out.

    Columns are named by position, since Spark's Python functions do not accept names with dots.
    """
    projected = [
        attribute_column(events, attribute.name).alias(f"_{at}") for at, attribute in enumerate(projected_type)
    ]
    carried = [f.col(quoted(name)).alias(f"{KEPT}{at}") for at, name in enumerate(kept)]
    named = events.where(f.col(quoted(id)).isNotNull())
    return named.select(f.col(quoted(id)).alias(EVENT_ID), *projected, *carried)


def deliveries_schema(id_type: DataType, compact: bool) -> StructType:
    event_id, *others = COMPACT_NAMES if compact else PAIR_NAMES
    other_type = ArrayType(StringType()) if compact else StringType()
    return StructType([StructField(event_id, id_type), *(StructField(name, other_type) for name in others)])


class MatchRows:
    """mapInArrow: events from `project_events` → deliveries, by this host's replica of the index."""

    def __init__(self, index: DistributedIndex, compact: bool, kept: Sequence[str] = ()) -> None:
        self.index, self.compact, self.kept = index, compact, kept

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        replica = self.index.replica()
        for batch in batches:
            yield from match_rows(batch, replica, self.compact, self.kept)


def match_rows(
    batch: pa.RecordBatch, replica: IndexReplica, compact: bool, kept: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The deliveries of a batch from `project_events`, in rounds of bounded size."""
    ids, rows = batch.column(EVENT_ID), named(batch, replica.event_type)
    columns = [batch.column(f"{KEPT}{at}") for at in range(len(kept))]
    carried = pa.RecordBatch.from_arrays(columns, list(kept)) if kept else None
    for start, found in replica.match_in_rounds(rows):
        if len(found.events):
            here, with_it = ids.slice(start), carried.slice(start) if carried else None
            yield found.compact(here, with_it) if compact else found.pairs(here, with_it)


def named(batch: pa.RecordBatch, projected_type: EventType) -> pa.RecordBatch:
    """The attributes of such a batch, under their own names."""
    columns = [batch.column(f"_{at}") for at in range(len(projected_type.attributes))]
    return pa.RecordBatch.from_arrays(columns, [attribute.name for attribute in projected_type])
