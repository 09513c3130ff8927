"""Functions for SQL: which subscriptions of an index match an event, and whether one condition does.

    SELECT * FROM tidings_match(TABLE(events))                            event_id, subscription_id
    SELECT event_id, tidings_subscriptions(struct(*)) FROM events         the same as an array
    SELECT *, tidings_matches('speed > 20', struct(*)) FROM events        whether one condition is TRUE
    SELECT tidings_condition_error(condition, struct(*)) FROM …           why a condition cannot be used, or NULL

All of them work on Arrow batches. The index travels to the workers as that of `match` does.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidings.errors import EventTypeError, FilterError, InputError
from tidings.events import EventType, conform, row_values
from tidings.filters import Condition, parse
from tidings.matching import Index
from tidings.pipeline.matching.index_distribution import FolderBroadcast
from tidings.pipeline.matching.index_replica import (
    DistributedIndex,
    IndexReplica,
    MatchedPairs,
    RoundSizer,
    group_by_event,
    list_offsets,
)
from tidings.pipeline.session import send_package

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PREFIX = "tidings"
ID_NAMES = ("event_id", "id")
PARSED_MAX = 65_536  # Conditions that a worker keeps parsed.
INDEXED_ROWS_MIN = 64  # Rows with one condition that are worth an index of it; fewer are tested one by one.


def register(spark: SparkSession, index: Index | None = None, *, name: str = PREFIX, id: str | None = None) -> None:
    """Gives SQL the functions `tidings_match`, `tidings_subscriptions`, `tidings_matches`, `tidings_condition_error`.

    The first two need an index, which they keep as it is now: register it again after changes. `name` stands in place
    of `tidings`, so that several indexes can be registered. The event id of `tidings_match` is the column `id`, or
    else `event_id` or `id`; it becomes a string. Raises InputError for a name that SQL would not take.
    """
    from pyspark.sql.functions import arrow_udtf
    from pyspark.sql.pandas import functions

    if not (name.isascii() and name.isidentifier()):
        raise InputError(f"expected a name of ASCII letters, digits and _, got {name!r}")
    arrow_udf: Any = functions.arrow_udf  # Its types demand what has defaults.
    send_package(spark)
    spark.udf.register(f"{name}_matches", arrow_udf(_matches, "boolean"))
    spark.udf.register(f"{name}_condition_error", arrow_udf(_condition_error, "string"))
    if index is None:
        return
    distributed = _distributed(spark, index)
    spark.udf.register(f"{name}_subscriptions", arrow_udf(_subscriptions_function(distributed), "array<string>"))
    table_function = arrow_udtf(returnType="event_id string, subscription_id string")
    spark.udtf.register(f"{name}_match", table_function(_table_function(distributed, id)))  # type: ignore[arg-type]


# ── The index ────────────────────────────────────────────────────────────────


def _distributed(spark: SparkSession, index: Index) -> DistributedIndex:
    folder = Path(tempfile.mkdtemp(prefix="tidings-index-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    ids = pa.array(list(index), pa.string())
    replica = IndexReplica((index,), index.event_type, ids, pa.nulls(len(ids), pa.string()), RoundSizer(len(ids)))
    replica.save(folder)
    return DistributedIndex(FolderBroadcast(spark, folder))


def _table_function(index: DistributedIndex, id: str | None) -> type:
    """A class for Spark, which sends it to workers by value, with the handle of the index in it."""

    class TidingsMatch:
        """Events as batches → event_id, subscription_id, one row per pair."""

        def eval(self, events: pa.RecordBatch) -> Iterator[pa.Table]:
            replica = index.replica()
            at = events.schema.names.index(_id_name(events.schema.names, id))
            ids = events.column(at).cast(pa.string())
            for start, found in replica.match_in_rounds(events):
                columns = [ids.slice(start).take(pa.array(found.events)), found.ids.take(pa.array(found.numbers))]
                yield pa.Table.from_arrays(columns, ["event_id", "subscription_id"])

    # Spark reads annotations as they are, and those of this module are texts.
    TidingsMatch.eval.__annotations__ = {"events": pa.RecordBatch, "return": Iterator[pa.Table]}
    return TidingsMatch


def _subscriptions_function(index: DistributedIndex) -> Callable[[pa.Array], pa.Array]:
    def subscriptions(event: pa.Array) -> pa.Array:
        batch, replica = _rows(event), index.replica()
        parts = [_lists(found, rows) for rows, found in _sized_rounds(batch, replica)]
        return pa.concat_arrays(parts or [pa.array([], pa.list_(pa.string()))])

    subscriptions.__annotations__ = {"event": pa.Array, "return": pa.Array}
    return subscriptions


def _sized_rounds(events: pa.RecordBatch, replica: IndexReplica) -> Iterator[tuple[int, MatchedPairs]]:
    """The pairs of each round, after the number of its rows."""
    rounds = list(replica.match_in_rounds(events))
    ends = [start for start, _ in rounds[1:]] + [events.num_rows]
    for (start, found), end in zip(rounds, ends):
        yield end - start, found


def _lists(found: MatchedPairs, rows: int) -> pa.Array:
    """For each of so many rows the ids that match it, none as an empty list."""
    counts = np.zeros(rows, np.int32)
    numbers = np.zeros(0, np.int32)
    if len(found.events):
        matched, each, numbers = group_by_event(found.events, found.numbers)
        counts[matched] = each
    return pa.ListArray.from_arrays(pa.array(list_offsets(counts)), found.ids.take(pa.array(numbers)))


def _id_name(names: Iterable[str], wanted: str | None) -> str:
    there = list(names)
    for name in (wanted,) if wanted else ID_NAMES:
        if name in there:
            return name
    raise InputError(f"expected a column {wanted or ' or '.join(ID_NAMES)} among {', '.join(there)}")


# ── One condition ────────────────────────────────────────────────────────────


def _matches(condition: pa.Array, event: pa.Array) -> pa.Array:
    """Whether each condition is TRUE for the event beside it; NULL for a condition that is NULL or cannot be used."""
    batch = _rows(event)
    event_type = _type_of(batch.schema)
    rows = conform(pa.Table.from_batches([batch]), event_type)
    answers = np.zeros(len(condition), bool)
    usable = np.zeros(len(condition), bool)
    for text, places in _by_text(condition):
        parsed, _ = _parsed(text, event_type)
        if parsed is not None:
            usable[places] = True
            answers[places] = _answers(parsed, rows.take(pa.array(places)), event_type)
    return pa.array(answers, mask=~usable)


def _condition_error(condition: pa.Array, event: pa.Array) -> pa.Array:
    """Why each condition cannot be used with events of this type; NULL if it can."""
    event_type = _type_of(_rows(event).schema)
    errors: list[str | None] = [None] * len(condition)
    for text, places in _by_text(condition):
        error = _parsed(text, event_type)[1]
        for place in places if error else ():
            errors[place] = error
    return pa.array(errors, pa.string())


for _function in (_matches, _condition_error):  # As above: Spark reads annotations as they are.
    _function.__annotations__ = {"condition": pa.Array, "event": pa.Array, "return": pa.Array}


def _answers(condition: Condition, rows: pa.Table, event_type: EventType) -> Any:
    """TRUE or not, for each row of a conformed table."""
    if rows.num_rows < INDEXED_ROWS_MIN:
        values = row_values(rows, range(rows.num_rows), event_type, condition.attributes)
        return [condition.matches(row) for row in values]
    index = Index(event_type)
    index.add("", condition)
    answers = np.zeros(rows.num_rows, bool)
    answers[index.match_numbers(rows).events] = True
    return answers


def _by_text(condition: pa.Array) -> Iterator[tuple[str, Any]]:
    """Each text that occurs, and the rows where it does."""
    texts = condition.cast(pa.string()).dictionary_encode()
    codes = pc.fill_null(texts.indices, -1).to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-2))
    for start, end in zip(starts, [*starts[1:], len(order)]):
        if (code := int(codes[order[start]])) >= 0:
            yield texts.dictionary[code].as_py(), np.sort(order[start:end])


@lru_cache(maxsize=PARSED_MAX)
def _parsed(text: str, event_type: EventType) -> tuple[Condition | None, str | None]:
    """A condition, or why it is none. Spark gives workers few distinct texts many times, or many a few times."""
    try:
        return parse(text, event_type), None
    except FilterError as wrong:
        return None, str(wrong).splitlines()[0]


@lru_cache(maxsize=64)
def _type_of(schema: pa.Schema) -> EventType:
    """The type of a struct's columns, all optional; columns that no attribute can be are left out."""
    optional = pa.schema([pa.field(field.name, field.type) for field in schema])
    try:
        return EventType.from_arrow("Event", optional, leave_out_others=True)
    except EventTypeError as wrong:
        raise InputError(f"the event: {wrong}") from None


def _rows(event: pa.Array) -> pa.RecordBatch:
    """The members of a struct as columns; a NULL struct has NULL in all of them."""
    if not pa.types.is_struct(event.type):
        raise InputError(f"expected an event as struct(*), got {event.type}")
    return pa.RecordBatch.from_arrays(event.flatten(), [field.name for field in event.type])
