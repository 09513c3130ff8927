"""DELIVERIES → row groups of a Parquet file, without turning numbers into texts one by one.

A subscription is a number until the end: a row group holds each id once, in its dictionary, and
numbers beside the events. What rounds of matching find is collected until a row group is
worth its dictionary. Statistics are kept for events alone: nobody looks for a list by its least
text, and to find it takes longer than to write it.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidings.pipeline.matching.grouping import Numbers, by_event, ends_of, recoded
from tidings.pipeline.matching.index_replica import COMPACT_NAMES, PAIR_NAMES, Found, Holding
from tidings.pipeline.parquet.list_writer import ListFile

# Pairs of a row group: several for each subscription, if that is not too much for a worker's memory.
PAIRS_PER_SUBSCRIPTION, PAIRS_MIN, PAIRS_MAX = 8, 1_000_000, 8_000_000
DICTIONARY_BYTES_MAX = 64 << 20  # Larger ones fall back to plain texts, which readers take in a page at a time.


class _File(Protocol):
    """What row groups are written to."""

    def write(self, events: pa.ChunkedArray, counts: Numbers, numbers: Numbers) -> None:
        """A row group: events, how many subscriptions want each, and the numbers of these one after another."""

    def close(self) -> None:
        """Makes it a whole file."""


class RowGroups:
    """A Parquet file that is being written: a row per pair, or per event that somebody wants with a list."""

    def __init__(self, path: str, holding: Holding, id_type: pa.DataType, *, compact: bool) -> None:
        self.pairs = self._collected = 0
        self._file = _file(path, holding, id_type, compact)
        self._pairs_max = min(max(PAIRS_PER_SUBSCRIPTION * len(holding.ids), PAIRS_MIN), PAIRS_MAX)
        self._start_anew()

    def __enter__(self) -> RowGroups:
        return self

    def __exit__(self, *wrong: object) -> None:
        if wrong[0] is None:
            self._flush()
        self._file.close()

    def add(self, event_ids: pa.Array, found: Found) -> None:
        """What a round has found; `event_ids` are those of its rows."""
        if not len(found.events):
            return
        rows, counts, numbers = by_event(found.events, found.numbers)
        self._events.append(event_ids.take(pa.array(rows)))
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
            self._start_anew()

    def _start_anew(self) -> None:
        self._events: list[pa.Array] = []
        self._counts: list[Numbers] = []
        self._numbers: list[Numbers] = []
        self._collected = 0


def _file(path: str, holding: Holding, id_type: pa.DataType, compact: bool) -> _File:
    if compact and holding.ids.nbytes <= DICTIONARY_BYTES_MAX:
        return ListFile(path, holding.ids, id_type)
    return _ArrowFile(path, holding, id_type, compact)


class _ArrowFile:
    """Written by Arrow: rows of pairs, and lists of texts that are too many for a dictionary."""

    def __init__(self, path: str, holding: Holding, id_type: pa.DataType, compact: bool) -> None:
        self.ids, self.compact = holding.ids, compact
        self.people = holding.subscribers.dictionary_encode()
        self.schema = _schema(id_type, compact)
        self._writer = pq.ParquetWriter(
            path,
            self.schema,
            compression="snappy",
            use_dictionary=["subscription_ids.list.element"] if compact else PAIR_NAMES[1:],
            dictionary_pagesize_limit=DICTIONARY_BYTES_MAX,
            write_statistics=["event_id"],
            store_schema=False,  # That texts were numbers here is no reader's business.
        )

    def write(self, events: pa.ChunkedArray, counts: Numbers, numbers: Numbers) -> None:
        ids = some_of(self.ids, numbers)
        if self.compact:
            columns = [events, pa.ListArray.from_arrays(pa.array(ends_of(counts)), ids)]
        else:
            columns = [_repeated(events, counts), ids, self.people.take(pa.array(numbers))]
        self._writer.write_table(pa.Table.from_arrays(columns, schema=self.schema), row_group_size=len(columns[0]))

    def close(self) -> None:
        self._writer.close()


def _schema(id_type: pa.DataType, compact: bool) -> pa.Schema:
    text = pa.dictionary(pa.int32(), pa.string())
    first, *others = COMPACT_NAMES if compact else PAIR_NAMES
    return pa.schema([(first, id_type), *((name, pa.list_(text) if compact else text) for name in others)])


def _repeated(events: pa.ChunkedArray, counts: Numbers) -> pa.ChunkedArray:
    """Each event so many times; a chunk at a time, since the texts of all may be too much for one array."""
    first, parts = 0, []
    for chunk in events.chunks:
        parts.append(chunk.take(pa.array(np.repeat(np.arange(len(chunk)), counts[first : first + len(chunk)]))))
        first += len(chunk)
    return pa.chunked_array(parts)


def some_of(texts: pa.Array, numbers: Numbers) -> pa.DictionaryArray:
    """`texts[numbers]`, with a dictionary of those that occur."""
    codes, occurring = recoded(numbers, len(texts))
    return pa.DictionaryArray.from_arrays(pa.array(codes), texts.take(pa.array(occurring)), safe=False)
