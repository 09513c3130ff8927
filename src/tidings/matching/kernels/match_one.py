"""One event against a segment: everything at addresses, in one call.

A call with sixteen arrays spends more time on its arguments than on the matching. So the
addresses of what the kernel reads are in an address book, and the memory it works in is
allocated once per reader. The steps are those of `match.py`. Memory is prefetched some steps
before it is needed, because a single event has no others to hide the latency behind.

Numba's cache looks only at this file: after a change in `match.py` or `cells.py`, remove
`src/tidings/matching/kernels/__pycache__`.
"""

# mypy: disable-error-code="call-arg, no-untyped-def, no-untyped-call"
# Numba infers types itself; the plain twins of the kernels are fully checked.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]

from tidings.matching.kernels.cache import kernel
from tidings.matching.kernels.cells import (
    AXIS_KEYS,
    AXIS_SIZE,
    KIND_DOUBLE,
    KIND_TEXT,
    axis_of,
    double_key,
    index_of,
    pointer,
    rank_of,
    reversed_text,
    text_rank_of,
)
from tidings.matching.kernels.match import (
    DOUBTFUL_MAX,
    GRID_SIZE,
    HITS_PER_PROBE,
    PROBES_MAX,
    RECORD_SIZE,
    TOTALS_SIZE,
    UNROLLED,
    AxisArrays,
    GridLayout,
    address_of,
    by_event,
    other_of,
    prefetch,
)

BOOK_SIZE = 2 * 16 + 3


def address_book(axes: AxisArrays, layout: GridLayout, others: Sequence[Any], counts: Sequence[int] = ()) -> Any:
    """Where the arrays are and how long; good for as long as somebody keeps them.

    For `match_one`, `others` is one array, by axis where its attribute stands in a packed event, and `counts` are the
    words of a packed event: those that say what is present, those that hold numbers, and all. For `match_few`, `others`
    are the number of each axis's attribute and whether that is a text.
    """
    arrays = (*axes, *layout, *others)
    return np.array([*(number for array in arrays for number in (array.ctypes.data, len(array))), *counts], np.int64)


@njit(inline="always")
def axes_at(book):
    kind = carray(pointer(book[0]), book[1], np.int32)
    rows = carray(pointer(book[2]), (book[3], AXIS_SIZE), np.int64)
    keys, table = carray(pointer(book[4]), book[5], np.int64), carray(pointer(book[6]), book[7], np.int32)
    text_ptr, text_bytes = carray(pointer(book[8]), book[9], np.int64), carray(pointer(book[10]), book[11], np.uint8)
    return AxisArrays(kind, rows, keys, table, text_ptr, text_bytes)


@njit(inline="always")
def layout_at(book):
    grids = carray(pointer(book[12]), (book[13], GRID_SIZE), np.int64)
    axis_grids, starts = carray(pointer(book[14]), book[15], np.int64), carray(pointer(book[16]), book[17], np.int32)
    words, entries = carray(pointer(book[18]), book[19], np.uint64), carray(pointer(book[20]), book[21], np.int32)
    records = carray(pointer(book[22]), (book[23], RECORD_SIZE), np.int32)
    extras, low = carray(pointer(book[24]), book[25], np.int32), carray(pointer(book[26]), book[27], np.int32)
    high = carray(pointer(book[28]), book[29], np.int32)
    return GridLayout(grids, axis_grids, starts, words, entries, records, extras, low, high)


@njit(nogil=True)
def _ask_for_cuts(words, presence, places, kind, rows, keys, table, slots):
    """Has the cuts that numbers lie between on their way, all at once, before the first of them is compared."""
    table_at, keys_at = address_of(table), address_of(keys)
    for axis in range(len(rows)):
        if kind[axis] < KIND_TEXT:
            _, _, slot, last_slot, low, shift = axis_of(rows[axis])
            content = words[presence + places[axis]]
            key = double_key(content) if kind[axis] == KIND_DOUBLE else content
            slots[axis] = slot + (min(np.uint64(key - low) >> shift, last_slot) if key >= low else np.uint64(0))
            prefetch(table_at + (slots[axis] << np.uint64(2)))
    for axis in range(len(rows)):
        if kind[axis] < KIND_TEXT:
            cut = np.uint64(rows[axis, AXIS_KEYS]) + index_of(table[slots[axis]])
            prefetch(keys_at + (cut << np.uint64(3)))


@njit(nogil=True)
def _locate_one(book, packed, slots, cells):
    """cells[0, axis] = the cell of a packed event on each axis; `slots` is for work in between."""
    axes = axes_at(book)
    kind, rows, keys, table = axes.kind, axes.rows, axes.keys, axes.table
    text_ptr, text_bytes = axes.text_ptr, axes.text_bytes
    places = carray(pointer(book[30]), book[31], np.int64)
    presence, numbers, words_end = book[32], book[33], book[34]
    words = carray(pointer(packed.ctypes.data), words_end, np.int64)
    _ask_for_cuts(words, presence, places, kind, rows, keys, table, slots)
    # Texts stand behind all words, in the order of their places, which ascend with the axes.
    text, start = numbers, np.uint64(8 * words_end)
    for axis in range(len(rows)):
        place = places[axis]
        if (words[place >> 6] >> (place & 63)) & 1 == 0:
            cells[0, axis] = 0
            continue
        content, row = words[presence + place], rows[axis]
        if kind[axis] >= KIND_TEXT:
            while text < place:
                start, text = start + np.uint64(words[presence + text]), text + 1
            end = start + np.uint64(content)
            if kind[axis] == KIND_TEXT:
                rank = text_rank_of(row, keys, table, text_ptr, text_bytes, packed, start, end)
            else:
                backwards, size = reversed_text(packed, start, end), end - start
                rank = text_rank_of(row, keys, table, text_ptr, text_bytes, backwards, np.uint64(0), size)
            cells[0, axis] = np.uint64(1) + rank
        else:
            key = double_key(content) if kind[axis] == KIND_DOUBLE else content
            first, last, table_at, last_slot, low, shift = axis_of(row)
            cells[0, axis] = np.uint64(1) + rank_of(keys, table, first, last, table_at, last_slot, low, shift, key)


MATCHED_FIRST = 64  # Matches of one event that need no further memory.


def work_bytes(axes: int, grids: int) -> int:
    """How much memory `match_one` works in, behind where it writes what it finds."""
    probe_count = max(min(PROBES_MAX, grids), axes, 1) + 1
    hit_count = HITS_PER_PROBE * probe_count + UNROLLED
    return 8 * (2 * probe_count + 2 * hit_count + 2 * MATCHED_FIRST + TOTALS_SIZE) + 4 * (probe_count + axes + 1) + 8


@kernel(types.void(types.int64, types.Bytes(types.uint8, 1, "C"), types.int32[:, ::1]))
def locate_one(book_at, packed, cells):
    """cells[0, axis] = the cell of one packed event on each axis, and 0 behind them."""
    book = carray(pointer(book_at), BOOK_SIZE, np.int64)
    slots = np.empty(book[1] + 1, np.uint64)
    _locate_one(book, np.frombuffer(packed, np.uint8), slots, cells)
    cells[0, book[1]] = 0


@njit(inline="always")
def _carved(at, count):
    return carray(pointer(at), count, np.uint64), at + 8 * count


@kernel(types.int64(types.int64, types.Bytes(types.uint8, 1, "C"), types.int64, types.int64))
def match_one(book_at, packed, out_at, room):
    """The same for one event, packed as `event_packing.py` says.

    book_at   where the segment's address book is
    out_at    where owners that match are written, behind them boxes that are doubtful, all as int32
    room      how many fit there; if that is too few, none are written

    Returns how many match and, above 32 bits, how many are doubtful.
    """
    book = carray(pointer(book_at), BOOK_SIZE, np.int64)
    axes, grids, at = book[1], book[13], out_at + 8 * ((room + 1) // 2)
    probe_count = max(min(PROBES_MAX, grids), axes, 1) + 1
    hit_count = HITS_PER_PROBE * probe_count + UNROLLED
    probes, at = _carved(at, probe_count)
    places, at = _carved(at, probe_count)
    hits, at = _carved(at, hit_count)
    unsure, at = _carved(at, hit_count)
    matched, at = _carved(at, MATCHED_FIRST)
    doubtful, at = _carved(at, MATCHED_FIRST)
    totals, at = carray(pointer(at), TOTALS_SIZE, np.int64), at + 8 * TOTALS_SIZE
    sizes, at = carray(pointer(at), probe_count, np.int32), at + 4 * probe_count
    cells = carray(pointer(at), (1, axes + 1), np.int32)
    for i in range(TOTALS_SIZE):
        totals[i] = 0
    totals[DOUBTFUL_MAX] = book[23]  # As many as there are boxes.
    cells[0, axes] = 0
    _locate_one(book, np.frombuffer(packed, np.uint8), probes, cells)
    matched, doubtful = by_event(
        cells, layout_at(book), probes, sizes, places, hits, unsure, np.uint64(0), matched, doubtful, totals
    )
    if totals[0] + totals[1] <= room:
        out = carray(pointer(out_at), room, np.int32)
        for i in range(totals[0]):
            out[i] = other_of(matched[i])
        for i in range(totals[1]):
            out[totals[0] + i] = other_of(doubtful[i])
    return totals[0] | (totals[1] << 32)
