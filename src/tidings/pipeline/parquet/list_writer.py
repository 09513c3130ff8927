"""A Parquet writer for lists of ids, from dictionary codes: columns event_id and subscription_ids.

Matching returns subscription numbers. A number is the id's place in a dictionary page, so each id is written once
per row group and never looked up. That is why this module exists: Arrow accepts any dictionary, and therefore
hashes the texts of each row group again, which costs more than everything else.

    file     = "PAR1", row groups, footer, size of the footer, "PAR1"
    group    = a column chunk of event ids, a column chunk of lists
    chunk    = a dictionary page (lists only), data pages
    page     = Thrift header, Snappy( repetition levels, definition levels, bit-packed codes )

Arrow encodes the column of event ids as a file of its own in memory. Its pages are copied as they are, and so is
what its footer says about them, so event ids may have any type. The format is the plainest Parquet there is (data
page version 1, Snappy), which every reader supports. See `docs/decisions/0082-numbers-become-pages.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numba import njit

from tidings.pipeline.matching.index_replica import Numbers, dictionary_codes, list_offsets
from tidings.pipeline.parquet.thrift import Field, Kind, Struct, decode, encode, i32, i64, items, struct, varint
from tidings.pipeline.tables import COMPACT_NAMES

MAGIC = b"PAR1"
TAIL_SIZE = 4 + len(MAGIC)  # A file ends with the size of its footer, and the magic number.
PAGE_ITEMS = 1 << 18  # About half a megabyte. A list is never split: a longer one has a page of its own.

# Parquet's numbers for physical types, codecs, page types and encodings.
BYTE_ARRAY, SNAPPY = 6, 1
DATA_PAGE, DICTIONARY_PAGE = 0, 2
PLAIN, RLE, RLE_DICTIONARY = 0, 3, 8
IS_ITEM = 3  # The definition level of an item: list and item are both optional, and both present.
# Thrift fields of a footer, of a row group, and of a column chunk.
FOOTER_ROWS, FOOTER_GROUPS = 3, 4
GROUP_COLUMNS, GROUP_SIZE, GROUP_ROWS = 1, 2, 3
CHUNK_META, META_DATA_PAGE, META_DICTIONARY_PAGE = 3, 9, 11

_codec = pa.Codec("snappy")


class ListFile:
    """A file of row groups. Each has the dictionary of all ids, or of those that occur if they are few."""

    def __init__(
        self, target: str | pa.NativeFile, ids: pa.Array, id_type: pa.DataType, *, page_items: int = PAGE_ITEMS
    ) -> None:
        self.ids = ids
        self._page_items = page_items
        self._schema = pa.schema([(COMPACT_NAMES[0], id_type), (COMPACT_NAMES[1], pa.list_(pa.string()))])
        self._all_ids: Dictionary | None = None
        self._groups: list[Struct] = []
        self._rows = 0
        self._file = open(target, "wb") if isinstance(target, str) else target  # noqa: SIM115  Closed by `close`.
        self._file.write(MAGIC)

    def write(self, events: pa.ChunkedArray, counts: Numbers, numbers: Numbers) -> None:
        """Writes a row group: events, the number of subscriptions of each, and all their numbers, concatenated."""
        column = events_chunk(events.cast(self._schema.field(0).type), self._file.tell())
        self._append(column)
        dictionary, codes = self._dictionary(numbers)
        path = [COMPACT_NAMES[1], "list", "element"]
        lists = lists_chunk(path, dictionary, codes, list_offsets(counts), self._file.tell(), self._page_items)
        self._append(lists)
        self._groups.append(_group([column, lists], len(counts)))
        self._rows += len(counts)

    def close(self) -> None:
        """Writes the footer, which completes the file."""
        footer: Struct = {
            **footer_of(_written(self._schema.empty_table())),
            FOOTER_ROWS: i64(self._rows),
            FOOTER_GROUPS: items(Kind.STRUCT, self._groups),
        }
        encoded = encode(footer)
        self._file.write(encoded + len(encoded).to_bytes(4, "little") + MAGIC)
        self._file.close()

    def _dictionary(self, numbers: Numbers) -> tuple[Dictionary, Numbers]:
        """With at least as many pairs as ids, the dictionary of all ids is best: it is made once, and needs no recoding."""
        if len(numbers) < len(self.ids):
            codes, occurring = dictionary_codes(numbers, len(self.ids))
            return Dictionary(self.ids.take(pa.array(occurring))), codes
        if self._all_ids is None:
            self._all_ids = Dictionary(self.ids)
        return self._all_ids, numbers

    def _append(self, chunk: ColumnChunk) -> None:
        for part in chunk.parts:
            self._file.write(part)


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """A column of a row group: its bytes, and its entry in the footer."""

    parts: list[bytes | pa.Buffer]
    about: Struct


# ── The column of events, by Arrow ───────────────────────────────────────────


def events_chunk(events: pa.ChunkedArray, at: int) -> ColumnChunk:
    """The column of events as Arrow writes it, for offset `at` of a file."""
    written = _written(pa.table({COMPACT_NAMES[0]: events}))
    [group] = footer_of(written)[FOOTER_GROUPS].value.values
    [about] = group[GROUP_COLUMNS].value.values
    end = len(written) - TAIL_SIZE - _footer_size(written)
    meta = about[CHUNK_META].value
    for number in (META_DATA_PAGE, META_DICTIONARY_PAGE):
        if number in meta:
            meta[number] = Field(Kind.I64, meta[number].value + at - len(MAGIC))
    return ColumnChunk([written.slice(len(MAGIC), end - len(MAGIC))], about)


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


def _group(columns: list[ColumnChunk], row_count: int) -> Struct:
    return {
        GROUP_COLUMNS: items(Kind.STRUCT, [column.about for column in columns]),
        GROUP_SIZE: i64(sum(column.about[CHUNK_META].value[6].value for column in columns)),
        GROUP_ROWS: i64(row_count),
    }


# ── The column of lists, page by page ────────────────────────────────────────


class Dictionary:
    """A dictionary page: encoded once, written as often as needed."""

    def __init__(self, texts: pa.Array) -> None:
        self.bits = max(1, (len(texts) - 1).bit_length())
        header = {7: struct({1: i32(len(texts)), 2: i32(PLAIN)})}
        self.page = _page(DICTIONARY_PAGE, plain(texts), header)


@dataclass(frozen=True, slots=True)
class _Page:
    header: bytes
    body: pa.Buffer
    plain_size: int


def lists_chunk(
    path: list[str], dictionary: Dictionary, codes: Numbers, offsets: Numbers, at: int, page_items: int = PAGE_ITEMS
) -> ColumnChunk:
    """Non-empty lists of `codes`, cut at `offsets`, for offset `at` of a file."""
    pages = [dictionary.page, *_data_pages(codes, offsets, dictionary.bits, page_items)]
    parts = [part for page in pages for part in (page.header, page.body)]
    first_size = len(parts[0]) + len(parts[1])
    meta: Struct = {
        1: i32(BYTE_ARRAY),
        2: items(Kind.I32, [PLAIN, RLE, RLE_DICTIONARY]),
        3: items(Kind.BINARY, [name.encode() for name in path]),
        4: i32(SNAPPY),
        5: i64(len(codes)),
        6: i64(sum(len(page.header) + page.plain_size for page in pages)),
        7: i64(sum(len(part) for part in parts)),
        META_DATA_PAGE: i64(at + first_size),
        META_DICTIONARY_PAGE: i64(at),
    }
    return ColumnChunk(parts, {2: i64(0), CHUNK_META: struct(meta)})


def plain(texts: pa.Array) -> Numbers:
    """PLAIN encoding: the texts concatenated, each after its length."""
    _, ends, content = texts.buffers()
    here = np.frombuffer(ends, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    out = np.empty(4 * len(texts) + int(here[-1] - here[0]), np.uint8)
    _plain(here, np.frombuffer(content or b"", np.uint8), out)
    return out


def bit_packed(codes: Numbers, bits: int) -> Numbers:
    """Codes of `bits` bits each without a gap, padded to whole groups of eight.

    >>> bit_packed(np.array([1, 2, 3], np.int32), 2).tolist()
    [57, 0]
    """
    size = -(-len(codes) // 8) * bits
    words = np.zeros(size // 4 + 2, np.uint32)
    _pack(codes, np.uint64(bits), words)
    return words.view(np.uint8)[:size]


def _data_pages(codes: Numbers, offsets: Numbers, bits: int, page_items: int) -> Iterator[_Page]:
    row = 0
    while row < len(offsets) - 1:
        upto = max(row + 1, int(np.searchsorted(offsets, offsets[row] + page_items, "right")) - 1)
        start, end = int(offsets[row]), int(offsets[upto])
        header = {5: struct({1: i32(end - start), 2: i32(RLE_DICTIONARY), 3: i32(RLE), 4: i32(RLE)})}
        yield _page(DATA_PAGE, _content(codes[start:end], offsets[row:upto] - start, bits), header)
        row = upto


def _content(codes: Numbers, starts: Numbers, bits: int) -> bytes:
    """Repetition levels (which items begin a list), definition levels (all are present), and the codes."""
    is_continued = np.ones(len(codes), np.uint8)
    is_continued[starts] = 0
    in_groups = varint(-(-len(codes) // 8) << 1 | 1)
    repetition = in_groups + np.packbits(is_continued, bitorder="little").tobytes()
    definition = varint(len(codes) << 1) + bytes([IS_ITEM])
    levels = (part for level in (repetition, definition) for part in (len(level).to_bytes(4, "little"), level))
    return b"".join([*levels, bytes([bits]), in_groups, bit_packed(codes, bits).data])


def _page(kind: int, content: bytes | Numbers, more: Struct) -> _Page:
    body, size = _codec.compress(content), len(content)
    return _Page(encode({1: i32(kind), 2: i32(size), 3: i32(len(body)), **more}), body, size)


@njit(cache=True, nogil=True)
def _pack(numbers: Any, bits: Any, words: Any) -> None:
    """Stores the current word after every number and advances when it is full, so there is no branch to predict."""
    held, used, at = np.uint64(0), np.uint64(0), np.uint64(0)
    for number in numbers:
        held |= np.uint64(number) << used
        used += bits
        words[at] = np.uint32(held & np.uint64(0xFFFFFFFF))
        full = used >> np.uint64(5)
        at += full
        held >>= full << np.uint64(5)
        used &= np.uint64(31)
    words[at] = np.uint32(held)


@njit(cache=True, nogil=True)
def _plain(ends: Any, content: Any, out: Any) -> None:
    at = 0
    for text in range(len(ends) - 1):
        size = ends[text + 1] - ends[text]
        for byte in range(4):
            out[at + byte] = (size >> (8 * byte)) & 0xFF
        at += 4
        for byte in range(size):
            out[at + byte] = content[ends[text] + byte]
        at += size
