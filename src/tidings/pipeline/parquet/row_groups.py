"""DELIVERIES → row groups of a Parquet file, without turning numbers into texts one by one.

A subscription is a number until the end: a row group holds each id once, in its dictionary, and the events have
dictionary codes. Rounds of matching are collected until a row group is worth its dictionary. Only events have
statistics: no query searches for a list by its smallest text, and finding that takes longer than writing the list.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidings.pipeline.matching.index_replica import (
    IndexReplica,
    MatchedPairs,
    Numbers,
    dictionary_codes,
    group_by_event,
    list_offsets,
)
from tidings.pipeline.parquet.list_writer import ListFile
from tidings.pipeline.tables import COMPACT_NAMES, PAIR_NAMES

# Pairs of a row group: several for each subscription, as far as a worker's memory allows.
PAIRS_PER_SUBSCRIPTION, PAIRS_MIN, PAIRS_MAX = 8, 1_000_000, 8_000_000
DICTIONARY_BYTES_MAX = 64 << 20  # Beyond this, texts are written plain, which readers load a page at a time.


class _File(Protocol):
    """What row groups are written to."""

    def write(self, events: pa.ChunkedArray, counts: Numbers, numbers: Numbers) -> None:
        """Writes a row group: events, the number of subscriptions of each, and all their numbers, concatenated."""

    def close(self) -> None:
        """Completes the file."""


class RowGroups:
    """A Parquet file under construction: one row per pair, or one per matched event with a list.

    The target is a path, or a file that is open for writing. `carried` are the columns of an event: its id, and those
    to keep. `pairs_max` sets the pairs of a row group; without it, the number of subscriptions does.
    """

    def __init__(
        self,
        target: str | pa.NativeFile,
        replica: IndexReplica,
        carried: pa.Schema,
        *,
        compact: bool,
        pairs_max: int | None = None,
    ) -> None:
        self.pairs = self._collected = 0
        self._file = _file(target, replica, carried, compact)
        fitting = min(max(PAIRS_PER_SUBSCRIPTION * len(replica.ids), PAIRS_MIN), PAIRS_MAX)
        self._pairs_max = fitting if pairs_max is None else pairs_max
        self._clear()

    def __enter__(self) -> RowGroups:
        return self

    def __exit__(self, *wrong: object) -> None:
        if wrong[0] is None:
            self._flush()
        self._file.close()

    def add(self, events: pa.Array, found: MatchedPairs) -> None:
        """Adds the pairs of a round; `events` are the ids of its rows, or structs of all carried columns."""
        if not len(found.events):
            return
        rows, counts, numbers = group_by_event(found.events, found.numbers)
        self._events.append(events.take(pa.array(rows)))
        self._counts.append(counts)
        self._numbers.append(numbers)
        self.pairs += len(numbers)
        self._collected += len(numbers)
        if self._collected >= self._pairs_max:
            self._flush()

    def _flush(self) -> None:
        if self._collected:
            events = pa.chunked_array(self._events)
            self._file.write(events, np.concatenate(self._counts), np.concatenate(self._numbers))
            self._clear()

    def _clear(self) -> None:
        self._events: list[pa.Array] = []
        self._counts: list[Numbers] = []
        self._numbers: list[Numbers] = []
        self._collected = 0


def _file(target: str | pa.NativeFile, replica: IndexReplica, carried: pa.Schema, compact: bool) -> _File:
    if compact and len(carried) == 1 and replica.ids.nbytes <= DICTIONARY_BYTES_MAX:
        return ListFile(target, replica.ids, carried.field(0).type)
    return _ArrowFile(target, replica, carried, compact)


class _ArrowFile:
    """Written by Arrow: rows of pairs, lists whose ids are too many for a dictionary, and columns of the events."""

    def __init__(self, target: str | pa.NativeFile, replica: IndexReplica, carried: pa.Schema, compact: bool) -> None:
        self.ids, self.compact = replica.ids, compact
        self.subscribers = replica.subscribers.dictionary_encode()
        self.kept = list(carried)[1:]
        self.schema = _schema(carried.field(0).type, compact, self.kept)
        flat = [field.name for field in self.kept if not pa.types.is_nested(field.type)]
        self._writer = pq.ParquetWriter(
            target,
            self.schema,
            compression="snappy",
            use_dictionary=[*(["subscription_ids.list.element"] if compact else PAIR_NAMES[1:]), *flat],
            dictionary_pagesize_limit=DICTIONARY_BYTES_MAX,
            write_statistics=["event_id", *flat],
            store_schema=False,  # Readers should see plain texts, not our dictionaries.
        )

    def write(self, events: pa.ChunkedArray, counts: Numbers, numbers: Numbers) -> None:
        ids = take_as_dictionary(self.ids, numbers)
        events = events if self.compact else _repeated(events, counts)
        event, *kept = events.flatten() if self.kept else [events]
        if self.compact:
            columns = [event, pa.ListArray.from_arrays(pa.array(list_offsets(counts)), ids), *kept]
        else:
            columns = [event, ids, self.subscribers.take(pa.array(numbers)), *kept]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self.schema), row_group_size=len(columns[0]))

    def close(self) -> None:
        self._writer.close()


def _schema(id_type: pa.DataType, compact: bool, kept: list[pa.Field]) -> pa.Schema:
    text = pa.dictionary(pa.int32(), pa.string())
    first, *others = COMPACT_NAMES if compact else PAIR_NAMES
    return pa.schema([(first, id_type), *((name, pa.list_(text) if compact else text) for name in others), *kept])


def _repeated(events: pa.ChunkedArray, counts: Numbers) -> pa.ChunkedArray:
    """Repeats each event `counts` times, chunk by chunk: all texts together may be too large for one array."""
    first, parts = 0, []
    for chunk in events.chunks:
        parts.append(chunk.take(pa.array(np.repeat(np.arange(len(chunk)), counts[first : first + len(chunk)]))))
        first += len(chunk)
    return pa.chunked_array(parts)


def take_as_dictionary(texts: pa.Array, numbers: Numbers) -> pa.DictionaryArray:
    """`texts[numbers]`, with a dictionary of those that occur."""
    codes, occurring = dictionary_codes(numbers, len(texts))
    return pa.DictionaryArray.from_arrays(pa.array(codes), texts.take(pa.array(occurring)), safe=False)
