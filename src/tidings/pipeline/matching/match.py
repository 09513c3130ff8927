"""EVENTS × SUBSCRIPTIONS → DELIVERIES: which subscriptions want which events, on Spark.

Two plans give the same answer. They are chosen by size, as Spark chooses its joins, and
`Matching.explain` says which and why.

**index to events**  The subscriptions become one index, which is written to files, sent to
every host once and mapped there by all workers. Events stay where they are.

**meet in zones**  For sets that no executor should hold whole: a K-D tree cuts the space into
zones of equal load, each subscription goes to the zones it touches and each event to the one
it lies in (see `tidings.pipeline.matching.partitioned`).
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from tidings.errors import InputError
from tidings.events import EventType
from tidings.pipeline.matching.index_replica import Holding, Shipped, ship
from tidings.pipeline.matching.parse_subscriptions import Size, Wanted
from tidings.pipeline.sources.files import check_fits, type_of_table
from tidings.pipeline.tables import id_column, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# About a gigabyte of index: what a host can spare for one mapped copy beside Spark itself.
INDEX_BOXES_MAX = 4_000_000
INDEX_BOXES_SETTING = "spark.tidings.indexBoxesMax"

EVENT_ID = "_tidings_event_id"

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
    plan: str = "auto",
) -> DataFrame:
    """Which subscriptions want which events: event_id, subscription_id, subscriber, a row for each pair.

    `events` have any columns, one of them the id: `id`, or else `event_id` or `id`. Without an
    event type, their schema is it. `subscriptions` have id, subscriber, filter and perhaps type,
    the name of the event type they are for. A pair stands once, even where several parts of a
    condition hold. With `compact`, one row per event that anybody wants: event_id, subscription_ids.

    The subscriptions are parsed at once and must not be a stream; the events are read when the
    result is, and may be one. Subscriptions that cannot be used are left out and counted in a
    warning: `Matching.rejected` has them with their errors.
    """
    matching = Matching(events, subscriptions, id=id, event_type=event_type, plan=plan)
    if matching.wanted.size.rejected:
        _log.warning("%s subscriptions cannot be used; Matching(…).rejected tells why", matching.wanted.size.rejected)
    return matching.deliveries(compact=compact)


class Matching:
    """A match in the making: parsed subscriptions, a plan, and the table of deliveries."""

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
            raise InputError("expected subscriptions as a table that stands still; changing ones need `tidings run`")
        if event_type:
            check_fits(events, event_type)
        self.events = events
        self.id = id_column(events, id)
        self.wanted = Wanted(subscriptions, event_type or type_of_table(events))
        self.plan = choose_plan(self.wanted.size, events.isStreaming, _boxes_max(events), plan)

    @property
    def rejected(self) -> DataFrame:
        """id, subscriber, filter, error of every subscription that cannot be used."""
        return self.wanted.rejected

    def deliveries(self, *, compact: bool = False) -> DataFrame:
        """As `match` returns them."""
        asked = select_asked(self.events, self.id, self.wanted.asked_type)
        schema = deliveries_schema(self.events.schema[self.id].dataType, compact)
        if self.plan.name is PlanName.ZONES:
            from tidings.pipeline.matching.partitioned import meet_in_zones

            return meet_in_zones(asked, self.wanted, schema, compact)
        shipped = ship(self.events.sparkSession, self.wanted.payloads(), self.wanted.asked_type)
        return asked.mapInArrow(MatchRows(shipped, compact), schema)

    def explain(self) -> str:
        """Which plan, why, and for how much."""
        size = self.wanted.size
        asked = ", ".join(size.attributes) or "nothing"
        return (
            f"plan           {self.plan.name}: {self.plan.why}\n"
            f"subscriptions  {size.subscriptions:,} in {size.boxes:,} boxes, {size.rejected:,} rejected\n"
            f"asked about    {asked}"
        )


def choose_plan(size: Size, is_stream: bool, boxes_max: int, asked: str = "auto") -> Plan:
    """The plan asked for, or the one that fits the size.

    >>> choose_plan(Size(10, 12, 900, 0, ("speed",)), False, 100).name.value
    'index to events'
    """
    match asked:
        case "auto" if is_stream:
            return Plan(PlanName.INDEX, "a stream's events cannot be sorted into zones")
        case "auto" if size.boxes <= boxes_max:
            return Plan(PlanName.INDEX, f"{size.boxes:,} boxes fit one index ({boxes_max:,} at most)")
        case "auto":
            return Plan(PlanName.ZONES, f"{size.boxes:,} boxes are too many for one index ({boxes_max:,} at most)")
        case "index":
            return Plan(PlanName.INDEX, "asked for")
        case "zones" if not is_stream:
            return Plan(PlanName.ZONES, "asked for")
        case "zones":
            raise InputError("a stream's events cannot be sorted into zones; expected the plan 'index' or 'auto'")
    raise InputError(f"expected the plan 'auto', 'index' or 'zones', got {asked!r}")


def select_asked(events: DataFrame, id: str, asked_type: EventType) -> DataFrame:
    """The id and the asked attributes: all that workers need to see.

    Columns go by the attributes' positions, since Spark's Python functions do not take names with dots.
    """
    asked = [_attribute_column(events, attribute.name).alias(f"_{at}") for at, attribute in enumerate(asked_type)]
    return events.select(f.col(quoted(id)).alias(EVENT_ID), *asked)


def deliveries_schema(id_type: DataType, compact: bool) -> StructType:
    if compact:
        return StructType([StructField("event_id", id_type), StructField("subscription_ids", ArrayType(StringType()))])
    texts = [StructField(name, StringType()) for name in ("subscription_id", "subscriber")]
    return StructType([StructField("event_id", id_type), *texts])


class MatchRows:
    """mapInArrow: ids and asked attributes → deliveries, through the index that is mapped on this host."""

    def __init__(self, shipped: Shipped, compact: bool) -> None:
        self.shipped = shipped
        self.compact = compact

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        holding = self.shipped.holding()
        for batch in batches:
            yield from match_rows(batch, holding, self.compact)


def match_rows(batch: pa.RecordBatch, holding: Holding, compact: bool) -> Iterator[pa.RecordBatch]:
    """The deliveries of a batch as `select_asked` makes them, in rounds of bounded size."""
    ids, rows = batch.column(EVENT_ID), named(batch, holding.event_type)
    for start, found in holding.match_in_rounds(rows):
        if len(found.events):
            here = ids.slice(start)
            yield found.compact(here) if compact else found.pairs(here)


def named(batch: pa.RecordBatch, asked_type: EventType) -> pa.RecordBatch:
    """The asked attributes of such a batch, by their own names."""
    columns = [batch.column(f"_{at}") for at in range(len(asked_type.attributes))]
    return pa.RecordBatch.from_arrays(columns, [attribute.name for attribute in asked_type])


def _attribute_column(events: DataFrame, name: str) -> Column:
    if name in events.columns:
        return f.col(quoted(name))
    return f.col(".".join(quoted(part) for part in name.split(".")))


def _boxes_max(events: DataFrame) -> int:
    return int(str(events.sparkSession.conf.get(INDEX_BOXES_SETTING, str(INDEX_BOXES_MAX))))
