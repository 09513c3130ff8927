"""A Parquet file of lists: event_id, subscription_ids. Events are Arrow's to encode, lists are made of `pages`.

Arrow writes the column of events as a file of its own, in memory; its pages are copied from there as they
are, and so is what its footer says about them. So events may have ids of any type.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidings.pipeline.matching.grouping import Numbers, ends_of, recoded
from tidings.pipeline.matching.index_replica import COMPACT_NAMES
from tidings.pipeline.parquet.pages import (
    CHUNK_META,
    META_DATA_PAGE,
    META_DICTIONARY_PAGE,
    Chunk,
    Dictionary,
    lists_chunk,
)
from tidings.pipeline.parquet.thrift import Field, Kind, Struct, decode, encode, i64, items

MARK = b"PAR1"
TAIL_SIZE = 4 + len(MARK)  # A file ends with the size of its footer, and the mark.
# Fields of a footer, and of a row group in it.
FOOTER_ROWS, FOOTER_GROUPS = 3, 4
GROUP_COLUMNS, GROUP_SIZE, GROUP_ROWS = 1, 2, 3


class ListFile:
    """Row groups one after another, each with the dictionary of all ids, or of those that occur if they are few."""

    def __init__(self, path: str, ids: pa.Array, id_type: pa.DataType) -> None:
        self.ids = ids
        self._schema = pa.schema([(COMPACT_NAMES[0], id_type), (COMPACT_NAMES[1], pa.list_(pa.string()))])
        self._everybody: Dictionary | None = None
        self._groups: list[Struct] = []
        self._rows = 0
        self._file = open(path, "wb")  # noqa: SIM115  Closed by `close`.
        self._file.write(MARK)

    def write(self, events: pa.ChunkedArray, counts: Numbers, numbers: Numbers) -> None:
        """A row group: events, how many subscriptions want each, and the numbers of these one after another."""
        column = events_chunk(events.cast(self._schema.field(0).type), self._file.tell())
        self._append(column)
        dictionary, codes = self._dictionary(numbers)
        path = [COMPACT_NAMES[1], "list", "element"]
        lists = lists_chunk(path, dictionary, codes, ends_of(counts), self._file.tell())
        self._append(lists)
        self._groups.append(_group([column, lists], len(counts)))
        self._rows += len(counts)

    def close(self) -> None:
        """Writes the footer, without which it is no Parquet file."""
        footer: Struct = {
            **footer_of(_written(self._schema.empty_table())),
            FOOTER_ROWS: i64(self._rows),
            FOOTER_GROUPS: items(Kind.STRUCT, self._groups),
        }
        encoded = encode(footer)
        self._file.write(encoded + len(encoded).to_bytes(4, "little") + MARK)
        self._file.close()

    def _dictionary(self, numbers: Numbers) -> tuple[Dictionary, Numbers]:
        """With as many pairs as there are ids, the dictionary of all serves best: it is there, and numbers stay what they are."""
        if len(numbers) < len(self.ids):
            codes, occurring = recoded(numbers, len(self.ids))
            return Dictionary(self.ids.take(pa.array(occurring))), codes
        if self._everybody is None:
            self._everybody = Dictionary(self.ids)
        return self._everybody, numbers

    def _append(self, chunk: Chunk) -> None:
        for part in chunk.parts:
            self._file.write(part)


def events_chunk(events: pa.ChunkedArray, at: int) -> Chunk:
    """The column of events as Arrow writes it, for a place `at` in a file."""
    written = _written(pa.table({COMPACT_NAMES[0]: events}))
    [group] = footer_of(written)[FOOTER_GROUPS].value.values
    [about] = group[GROUP_COLUMNS].value.values
    end = len(written) - TAIL_SIZE - _footer_size(written)
    meta = about[CHUNK_META].value
    for number in (META_DATA_PAGE, META_DICTIONARY_PAGE):
        if number in meta:
            meta[number] = Field(Kind.I64, meta[number].value + at - len(MARK))
    return Chunk([written.slice(len(MARK), end - len(MARK))], about)


def footer_of(written: pa.Buffer) -> Struct:
    end = len(written) - TAIL_SIZE
    return decode(written.slice(end - _footer_size(written), _footer_size(written)).to_pybytes())


def _footer_size(written: pa.Buffer) -> int:
    return int.from_bytes(written.slice(len(written) - TAIL_SIZE, 4).to_pybytes(), "little")


def _written(table: pa.Table) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    how: dict[str, Any] = {"compression": "snappy", "use_dictionary": False, "store_schema": False}
    pq.write_table(table, sink, row_group_size=max(1, len(table)), **how)
    return sink.getvalue()


def _group(columns: list[Chunk], row_count: int) -> Struct:
    return {
        GROUP_COLUMNS: items(Kind.STRUCT, [column.about for column in columns]),
        GROUP_SIZE: i64(sum(column.about[CHUNK_META].value[6].value for column in columns)),
        GROUP_ROWS: i64(row_count),
    }
