"""The loops that touch every candidate, compiled by Numba, without the GIL.

All of them take flat arrays, write only into arrays they are given for it, and know nothing
of types: an event is a row of cells (see `tidings.space`), a side is a range of cells. What
each array means is said in `layout.py`, which makes them. Signatures are written out so that
each kernel is compiled once, and the result is kept on disk.

Branches that a processor cannot foresee cost more here than all arithmetic, so candidates
pass through a few straight loops, each of which writes every item to the end of a list and
moves the end only if the item stays.
"""

# mypy: disable-error-code="call-arg, no-untyped-def, no-untyped-call"
# Numba infers types itself; the plain twins of the kernels are fully checked.

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic

from tidings.matching.cells import (
    AXIS_SIZE,
    KIND_DOUBLE,
    KIND_TEXT,
    axis_of,
    double_key,
    index_of,
    rank_of,
    readable,
    text_rank_of,
)

# Columns of a row that describes a grid.
GRID_A, GRID_B, GRID_SHIFT_A, GRID_SHIFT_B, GRID_COLUMNS_LOG, GRID_START, GRID_END, GRID_SIZE = range(8)

# Columns of a record: two sides that are left to check, whose it is, and where more is said about it.
RECORD_OWNER, RECORD_MORE, RECORD_SIZE = 6, 7, 8

# What more there is to say about a record: how many ranges and sets follow, and the box if it is doubtful, else -1.
EXTRA_RANGES, EXTRA_SETS, EXTRA_BOX, EXTRA_SIDES = range(4)

FIELD_BITS = 15
FIELD_MAX = (1 << FIELD_BITS) - 1

_GUARDS = np.uint64(0x8000_8000_8000_8000)

_I2, _L1, _B1 = readable(types.int32, 2), readable(types.int64), readable(types.uint8)
_OUT_I1, _OUT_L1, _OUT_W1 = types.int32[::1], types.int64[::1], types.uint64[::1]

PROBES_MAX = 4096  # Grid cells looked into at a time; their list fits into the cache.
HITS_PER_PROBE = 4
HITS_MAX = HITS_PER_PROBE * PROBES_MAX
CHUNK = 256  # Events in the order of one axis that are taken through all its grids before the next ones.
UNROLLED = 4  # Entries of a cell that are tested whether they are there or not.
ORDER_BITS = 10  # Events are ordered by this many leading bits of their cell: more than any grid has rows.


class Layout(NamedTuple):
    """The arrays of a segment that matching reads; see `layout.py`."""

    grids: Any
    axis_grids: Any
    starts: Any
    words: Any
    entries: Any
    records: Any
    extras: Any
    piece_low: Any
    piece_high: Any


_LAYOUT_TYPES = (
    *(types.int64[:, ::1], types.int64[::1], types.int32[::1], types.uint64[::1], types.int32[::1]),
    *(types.int32[:, ::1], types.int32[::1], types.int32[::1], types.int32[::1]),
)
_LAYOUT = types.NamedTuple(_LAYOUT_TYPES, Layout)

# Lists of pairs are arrays of 64 bits: the event above, what stands beside it below. Kernels take arrays out
# of tuples before they loop: Numba counts a reference each time, and the counting costs more than the work.


@njit(inline="always")
def _pair(event, other):
    return (np.uint64(event) << np.uint64(32)) | np.uint64(other)


@njit(inline="always")
def _event_of(pair):
    return pair >> np.uint64(32)


@njit(inline="always")
def _other_of(pair):
    return pair & np.uint64(0xFFFFFFFF)


@njit(nogil=True)
def _with_room(pairs, used, more):
    if used + more <= len(pairs):
        return pairs
    larger = np.empty(max(2 * len(pairs), used + more), np.uint64)
    larger[:used] = pairs[:used]
    return larger


@njit(inline="always")
def _place(a, b):
    """Where in its grid cell an event lies, to be compared with the words of entries in one subtraction.

    Four fields of 15 bits and a guard above each: a, its distance to the top, and the same of b.
    An entry's word has the least value that each may have, and a guard survives exactly if it is reached.
    """
    va, vb, top = np.uint64(a), np.uint64(b), np.uint64(FIELD_MAX)
    return _GUARDS | va | ((top - va) << np.uint64(16)) | (vb << np.uint64(32)) | ((top - vb) << np.uint64(48))


@njit(nogil=True)
def _probe_events(cells, order, e0, e1, grid, starts, probes, sizes, places, q):
    """Looks up the grid cells of events order[e0:e1]; keeps those that are not empty as probes from q on.

    probes[q] = event and first entry, sizes[q] = how many entries, places[q] = where in the cell the event lies.
    """
    a, b, shift_a, shift_b = (
        index_of(grid[GRID_A]),
        index_of(grid[GRID_B]),
        index_of(grid[GRID_SHIFT_A]),
        index_of(grid[GRID_SHIFT_B]),
    )
    columns_log, base, one = index_of(grid[GRID_COLUMNS_LOG]), np.uint64(grid[GRID_START]), np.uint64(1)
    mask_a, mask_b = (one << shift_a) - one, (one << shift_b) - one
    for i in range(e0, e1):
        e = index_of(order[i])
        # NULL is cell 0 and gets a bucket of its own, so that events without the attribute find it empty.
        va, vb = index_of(cells[e, a]) + mask_a, index_of(cells[e, b]) + mask_b
        at = base + ((va >> shift_a) << columns_log) + (vb >> shift_b)
        start = starts[at]
        size = starts[at + one] - start
        probes[q] = _pair(e, index_of(start))
        sizes[q] = size
        places[q] = _place(va & mask_a, vb & mask_b)
        q += np.uint64(size > 0)
    return q


@njit(nogil=True)
def _probe_grids(cells, e, grids, g0, g1, starts, probes, sizes, places, q):
    """The same for one event and grids g0 … g1 - 1."""
    one = np.uint64(1)
    for g in range(g0, g1):
        shift_a, shift_b = index_of(grids[g, GRID_SHIFT_A]), index_of(grids[g, GRID_SHIFT_B])
        mask_a, mask_b = (one << shift_a) - one, (one << shift_b) - one
        va = index_of(cells[e, index_of(grids[g, GRID_A])]) + mask_a
        vb = index_of(cells[e, index_of(grids[g, GRID_B])]) + mask_b
        at = (
            np.uint64(grids[g, GRID_START])
            + ((va >> shift_a) << index_of(grids[g, GRID_COLUMNS_LOG]))
            + (vb >> shift_b)
        )
        start = starts[at]
        size = starts[at + one] - start
        probes[q] = _pair(e, index_of(start))
        sizes[q] = size
        places[q] = _place(va & mask_a, vb & mask_b)
        q += np.uint64(size > 0)
    return q


@njit(nogil=True)
def _sift(probes, sizes, places, t, skip, q, words, hits):
    """Keeps as hits the entries of probes t … q - 1 whose two filed sides hold, until there is no more room.

    Returns how many, and the probe and the entry within it to go on with.
    """
    h, one = np.uint64(0), np.uint64(1)
    room = np.uint64(len(hits) - UNROLLED)
    while t < q:
        place, first, size = places[t], probes[t] + skip, index_of(sizes[t]) - skip
        start = _other_of(first)
        if size > room - h:
            if h > 0:
                return h, t, skip
            size = room
        for i in range(UNROLLED):
            hits[h] = first + np.uint64(i)
            holds = ((place - words[start + np.uint64(i)]) & _GUARDS) == _GUARDS
            h += np.uint64(holds & (np.uint64(i) < size))
        for i in range(np.uint64(UNROLLED), size):
            hits[h] = first + i
            h += np.uint64(((place - words[start + i]) & _GUARDS) == _GUARDS)
        if size < index_of(sizes[t]) - skip:
            return h, t, skip + size
        t, skip = t + one, np.uint64(0)
    return h, t, np.uint64(0)


@njit(nogil=True)
def _verify(h, hits, cells, entries, records, matched, m, unsure):
    """Keeps the hits whose remaining sides hold as matches; those with more to say, as unsure. Returns both counts."""
    u = np.uint64(0)
    for t in range(h):
        e = _event_of(hits[t])
        r = index_of(entries[_other_of(hits[t])])
        one = np.uint32(cells[e, index_of(records[r, 0])] - records[r, 1]) < np.uint32(records[r, 2])
        two = np.uint32(cells[e, index_of(records[r, 3])] - records[r, 4]) < np.uint32(records[r, 5])
        more = records[r, RECORD_MORE]
        matched[m] = _pair(e, index_of(records[r, RECORD_OWNER]))
        unsure[u] = _pair(e, r)
        m += np.uint64(one & two & (more == 0))
        u += np.uint64(one & two & (more != 0))
    return m, u


@njit(nogil=True)
def _holds_more(cells, e, more, extras, piece_low, piece_high):
    """Whether the sides that did not fit into a record hold: ranges first, then sets of ranges."""
    at = np.int64(more) + EXTRA_SIDES
    for _ in range(extras[more + EXTRA_RANGES]):
        if np.uint32(cells[e, extras[at]] - extras[at + 1]) >= np.uint32(extras[at + 2]):
            return False
        at += 3
    for _ in range(extras[more + EXTRA_SETS]):
        value, low = cells[e, extras[at]], np.int64(extras[at + 1])
        end = high = low + extras[at + 2]
        while low < high:
            middle = (low + high) >> 1
            if piece_high[middle] <= value:
                low = middle + 1
            else:
                high = middle
        if low == end or value < piece_low[low]:
            return False
        at += 3
    return True


@njit(nogil=True)
def _look_closer(u, unsure, cells, records, extras, piece_low, piece_high, matched, m, doubtful, d):
    """Decides the unsure: matches, or doubtful where a residual or another box of the same condition has a say."""
    for t in range(u):
        e, r = _event_of(unsure[t]), _other_of(unsure[t])
        more = records[r, RECORD_MORE]
        if _holds_more(cells, e, more, extras, piece_low, piece_high):
            box = extras[more + EXTRA_BOX]
            if box < 0:
                matched[m] = _pair(e, index_of(records[r, RECORD_OWNER]))
                m += 1
            else:
                doubtful[d] = _pair(e, index_of(box))
                d += 1
    return m, d


@njit(nogil=True)
def _settle(q, probes, sizes, places, hits, unsure, cells, layout, matched, doubtful, totals):
    """Takes q probes to their end. totals: matches, doubtful, candidates, hits so far."""
    words, entries, records, extras = layout.words, layout.entries, layout.records, layout.extras
    piece_low, piece_high = layout.piece_low, layout.piece_high
    t, skip = np.uint64(0), np.uint64(0)
    while t < q:
        h, t, skip = _sift(probes, sizes, places, t, skip, q, words, hits)
        d = totals[1]
        matched = _with_room(matched, totals[0], np.int64(h) + 1)
        matches, u = _verify(h, hits, cells, entries, records, matched, np.uint64(totals[0]), unsure)
        m = np.int64(matches)
        if u > 0:
            doubtful = _with_room(doubtful, d, np.int64(u))
            m, d = _look_closer(u, unsure, cells, records, extras, piece_low, piece_high, matched, m, doubtful, d)
        totals[0], totals[1] = m, d
        totals[3] += np.int64(h)
    totals[2] += sizes[:q].sum()
    return matched, doubtful


@njit(inline="always")
def _new_probes(room):
    """Lists for so many probes, and one more, which is written and not kept."""
    return np.empty(room + 1, np.uint64), np.empty(room + 1, np.int32), np.empty(room + 1, np.uint64)


@njit(nogil=True)
def _order_by(column, order):
    """Sorts the events by the leading bits of their cells."""
    largest = column.max()
    shift = 0
    while largest >> shift >= 1 << ORDER_BITS:
        shift += 1
    ends = np.zeros((1 << ORDER_BITS) + 1, np.int32)
    for e in range(len(column)):
        ends[(column[e] >> shift) + 1] += 1
    for i in range(1 << ORDER_BITS):
        ends[i + 1] += ends[i]
    for e in range(len(column)):
        bucket = column[e] >> shift
        order[ends[bucket]] = e
        ends[bucket] += 1


@njit(nogil=True)
def _by_axis(columns, cells, layout, matched, doubtful, totals):
    """Axis by axis, events in the order of their cells on it, so that each part of the segment is read once."""
    axes, n = columns.shape
    grids, axis_grids, starts = layout.grids, layout.axis_grids, layout.starts
    probes, sizes, places = _new_probes(PROBES_MAX)
    hits, unsure = np.empty(HITS_MAX, np.uint64), np.empty(HITS_MAX, np.uint64)
    order = np.arange(n).astype(np.int32)
    for axis in range(axes):
        if axis_grids[axis] == axis_grids[axis + 1]:
            continue
        if axis < axes - 1:
            _order_by(columns[axis], order)
        for e0 in range(0, n, CHUNK):
            e1, q = min(n, e0 + CHUNK), np.uint64(0)
            for g in range(axis_grids[axis], axis_grids[axis + 1]):
                if np.int64(q) + e1 - e0 > PROBES_MAX:
                    matched, doubtful = _settle(
                        q, probes, sizes, places, hits, unsure, cells, layout, matched, doubtful, totals
                    )
                    q = np.uint64(0)
                q = _probe_events(cells, order, e0, e1, grids[g], starts, probes, sizes, places, q)
            matched, doubtful = _settle(
                q, probes, sizes, places, hits, unsure, cells, layout, matched, doubtful, totals
            )
    return matched, doubtful


@njit(nogil=True)
def _by_event(cells, layout, matched, doubtful, totals):
    """Event by event through all grids: for few events, or a segment that fits into the cache."""
    grids, starts = layout.grids, layout.starts
    room = min(PROBES_MAX, len(cells) * len(grids))  # A single event gets by with what costs nothing to allocate.
    probes, sizes, places = _new_probes(room)
    hits_max = HITS_PER_PROBE * room + 64
    hits, unsure = np.empty(hits_max, np.uint64), np.empty(hits_max, np.uint64)
    q = np.uint64(0)
    for e in range(len(cells)):
        for g0 in range(0, len(grids), PROBES_MAX):
            g1 = min(len(grids), g0 + PROBES_MAX)
            if np.int64(q) + g1 - g0 > room:
                matched, doubtful = _settle(
                    q, probes, sizes, places, hits, unsure, cells, layout, matched, doubtful, totals
                )
                q = np.uint64(0)
            q = _probe_grids(cells, e, grids, g0, g1, starts, probes, sizes, places, q)
    return _settle(q, probes, sizes, places, hits, unsure, cells, layout, matched, doubtful, totals)


@njit(types.UniTuple(_OUT_W1, 2)(_I2, types.boolean, _LAYOUT, _OUT_W1, _OUT_L1), cache=True, nogil=True)
def match_events(columns, by_axis, layout, matched, totals):
    """All matches of a batch of events with a segment.

    columns[axis, e]  the cell of event e; the line behind the last axis is zeros
    by_axis           the order of the work, which changes the time it takes and the order of the matches
    matched           where matches are written, at least one; a larger array takes its place when it is full
    totals            adds: matches, doubtful, candidates, candidates whose filed sides hold

    Returns two lists of pairs: the events and owners that match, and the events and boxes that
    hold each other but are doubtful: the box has residuals, or siblings that may match the
    same event.
    """
    axes, n = columns.shape
    cells = np.empty((n, axes), np.int32)
    for e0 in range(0, n, 64):
        for axis in range(axes):
            for e in range(e0, min(n, e0 + 64)):
                cells[e, axis] = columns[axis, e]
    doubtful = np.empty(16, np.uint64)
    if by_axis:
        return _by_axis(columns, cells, layout, matched, doubtful, totals)
    return _by_event(cells, layout, matched, doubtful, totals)


class AxisArrays(NamedTuple):
    """The arrays of all axes; see `axes.py`."""

    kind: Any
    rows: Any
    keys: Any
    table: Any
    text_ptr: Any
    text_bytes: Any


@intrinsic
def _pointer(context, address):
    """An address as a pointer to whatever is there."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


def address_book(axes: AxisArrays, layout: Layout) -> Any:
    """Where the arrays are and how long, for `match_one`; good for as long as somebody keeps them.

    A call that hands over fifteen arrays spends more time on that than on the matching.
    """
    arrays = (*axes, *layout)
    return np.array([[array.ctypes.data, len(array)] for array in arrays], np.int64).reshape(-1)


@njit(inline="always")
def _axes_at(book):
    kind = carray(_pointer(book[0]), book[1], np.int32)
    rows = carray(_pointer(book[2]), (book[3], AXIS_SIZE), np.int64)
    keys, table = carray(_pointer(book[4]), book[5], np.int64), carray(_pointer(book[6]), book[7], np.int32)
    text_ptr, text_bytes = carray(_pointer(book[8]), book[9], np.int64), carray(_pointer(book[10]), book[11], np.uint8)
    return AxisArrays(kind, rows, keys, table, text_ptr, text_bytes)


@njit(inline="always")
def _layout_at(book):
    grids = carray(_pointer(book[12]), (book[13], GRID_SIZE), np.int64)
    axis_grids, starts = carray(_pointer(book[14]), book[15], np.int64), carray(_pointer(book[16]), book[17], np.int32)
    words, entries = carray(_pointer(book[18]), book[19], np.uint64), carray(_pointer(book[20]), book[21], np.int32)
    records = carray(_pointer(book[22]), (book[23], RECORD_SIZE), np.int32)
    extras, low = carray(_pointer(book[24]), book[25], np.int32), carray(_pointer(book[26]), book[27], np.int32)
    high = carray(_pointer(book[28]), book[29], np.int32)
    return Layout(grids, axis_grids, starts, words, entries, records, extras, low, high)


@njit(types.void(_L1, _L1, _B1, _B1, _OUT_I1), cache=True, nogil=True)
def match_one(book, content, is_present, text, out):
    """The same for one event.

    content      by axis its number, a double as its bits; then, by axis of texts, how long its text is
    is_present   by axis whether the event has a value
    text         all its texts, joined in the order of their axes
    out          two counts, then so many owners that match, then so many boxes that are doubtful;
                 if there is no room for them, only the counts
    """
    axes = _axes_at(book)
    kind, rows, keys, table = axes.kind, axes.rows, axes.keys, axes.table
    text_ptr, text_bytes = axes.text_ptr, axes.text_bytes
    cells = np.zeros((1, len(rows) + 1), np.int32)
    texts, start, end = len(rows), np.uint64(0), np.uint64(0)
    for axis in range(len(rows)):
        if kind[axis] == KIND_TEXT:
            start, end, texts = end, end + index_of(content[texts]), texts + 1
        if is_present[axis]:
            row = rows[axis]
            if kind[axis] == KIND_TEXT:
                cells[0, axis] = np.uint64(1) + text_rank_of(row, keys, table, text_ptr, text_bytes, text, start, end)
            else:
                key = double_key(content[axis]) if kind[axis] == KIND_DOUBLE else content[axis]
                first, last, table_at, last_slot, low, shift = axis_of(row)
                cells[0, axis] = np.uint64(1) + rank_of(keys, table, first, last, table_at, last_slot, low, shift, key)
    totals = np.zeros(4, np.int64)
    matched, doubtful = np.empty(64, np.uint64), np.empty(16, np.uint64)
    matched, doubtful = _by_event(cells, _layout_at(book), matched, doubtful, totals)
    out[0], out[1] = totals[0], totals[1]
    if totals[0] + totals[1] + 2 <= len(out):
        for i in range(totals[0]):
            out[2 + i] = _other_of(matched[i])
        for i in range(totals[1]):
            out[2 + totals[0] + i] = _other_of(doubtful[i])
