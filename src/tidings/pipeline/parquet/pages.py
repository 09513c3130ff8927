"""A Parquet column of lists of texts, made from numbers: a dictionary page, and pages of numbers packed into few bits.

A number is the text's place in the dictionary, so texts are written once for a row group and
never looked up. That is what makes this worth its lines: Arrow takes any dictionary, and has to hash
the texts of each row group anew, which costs more than all of the rest.

What is written is the plainest Parquet there is (pages of the first version, Snappy), which every
reader has read for years. See `docs/decisions/0082-numbers-become-pages.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numba import njit

from tidings.pipeline.matching.grouping import Numbers
from tidings.pipeline.parquet.thrift import Kind, Struct, encode, i32, i64, items, struct, varint

PAGE_ITEMS = 1 << 18  # About half a megabyte. A list is never cut: one that is longer has a page of its own.

# Parquet's numbers for what is used of it.
BYTE_ARRAY, SNAPPY = 6, 1
DATA_PAGE, DICTIONARY_PAGE = 0, 2
PLAIN, RLE, RLE_DICTIONARY = 0, 3, 8
IS_ITEM, IS_ITEM_BITS = 3, 2  # The level of an item that is there, in a list that is there, both of which need not be.
# Fields of what a footer says about a column.
CHUNK_META, META_DATA_PAGE, META_DICTIONARY_PAGE = 3, 9, 11

_codec = pa.Codec("snappy")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A column of a row group: its bytes, and what the footer says about it."""

    parts: list[bytes | pa.Buffer]
    about: Struct

    @property
    def size(self) -> int:
        return sum(len(part) for part in self.parts)


class Dictionary:
    """Texts as a page that numbers refer to: made once, written as often as needed."""

    def __init__(self, texts: pa.Array) -> None:
        self.bits = max(1, (len(texts) - 1).bit_length())
        head = {7: struct({1: i32(len(texts)), 2: i32(PLAIN)})}
        self.page = _page(DICTIONARY_PAGE, plain(texts), head)


@dataclass(frozen=True, slots=True)
class _Page:
    head: bytes
    body: pa.Buffer
    plain_size: int


def lists_chunk(path: list[str], dictionary: Dictionary, numbers: Numbers, ends: Numbers, at: int) -> Chunk:
    """Lists of `numbers`, the first of which ends at `ends[1]`; none is empty. The chunk is going to be at byte `at`."""
    pages = [dictionary.page, *_data_pages(numbers, ends, dictionary.bits)]
    parts = [part for page in pages for part in (page.head, page.body)]
    first_size = len(parts[0]) + len(parts[1])
    meta: Struct = {
        1: i32(BYTE_ARRAY),
        2: items(Kind.I32, [PLAIN, RLE, RLE_DICTIONARY]),
        3: items(Kind.BINARY, [name.encode() for name in path]),
        4: i32(SNAPPY),
        5: i64(len(numbers)),
        6: i64(sum(len(page.head) + page.plain_size for page in pages)),
        7: i64(sum(len(part) for part in parts)),
        META_DATA_PAGE: i64(at + first_size),
        META_DICTIONARY_PAGE: i64(at),
    }
    return Chunk(parts, {2: i64(0), CHUNK_META: struct(meta)})


def plain(texts: pa.Array) -> Numbers:
    """Texts one after another, the length of each before it."""
    _, ends, content = texts.buffers()
    here = np.frombuffer(ends, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    out = np.empty(4 * len(texts) + int(here[-1] - here[0]), np.uint8)
    _plain(here, np.frombuffer(content or b"", np.uint8), out)
    return out


def packed(numbers: Numbers, bits: int) -> Numbers:
    """Numbers of so many bits without a gap, as many as fill whole groups of eight.

    >>> packed(np.array([1, 2, 3], np.int32), 2).tolist()
    [57, 0]
    """
    size = -(-len(numbers) // 8) * bits
    words = np.zeros(size // 4 + 2, np.uint32)
    _pack(numbers, np.uint64(bits), words)
    return words.view(np.uint8)[:size]


def _data_pages(numbers: Numbers, ends: Numbers, bits: int) -> Iterator[_Page]:
    row = 0
    while row < len(ends) - 1:
        upto = max(row + 1, int(np.searchsorted(ends, ends[row] + PAGE_ITEMS, "right")) - 1)
        start, end = int(ends[row]), int(ends[upto])
        head = {5: struct({1: i32(end - start), 2: i32(RLE_DICTIONARY), 3: i32(RLE), 4: i32(RLE)})}
        yield _page(DATA_PAGE, _content(numbers[start:end], ends[row:upto] - start, bits), head)
        row = upto


def _content(numbers: Numbers, starts: Numbers, bits: int) -> bytes:
    """Which items begin a list, that all are there, and the numbers."""
    goes_on = np.ones(len(numbers), np.uint8)
    goes_on[starts] = 0
    in_groups = varint(-(-len(numbers) // 8) << 1 | 1)
    repeats = in_groups + np.packbits(goes_on, bitorder="little").tobytes()
    all_there = varint(len(numbers) << 1) + bytes([IS_ITEM])
    levels = (part for level in (repeats, all_there) for part in (len(level).to_bytes(4, "little"), level))
    return b"".join([*levels, bytes([bits]), in_groups, packed(numbers, bits).data])


def _page(kind: int, content: bytes | Numbers, more: Struct) -> _Page:
    body, size = _codec.compress(content), len(content)
    return _Page(encode({1: i32(kind), 2: i32(size), 3: i32(len(body)), **more}), body, size)


@njit(cache=True, nogil=True)
def _pack(numbers: Any, bits: Any, words: Any) -> None:
    """Writes the word that is being filled with every number, and moves on when it is full: no branch to foresee."""
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
