"""The loops that touch every candidate, compiled by Numba, without the GIL.

All of them take flat arrays, write only into arrays they are given for it, and know nothing
of types: an event is a row of cells (see `reference.py`), a side is a range of cells. What
each array means is said in `grid.py`, which makes them. Signatures are written out so that
each kernel is compiled once, and the result is kept on disk.

Branches that a processor cannot foresee cost more here than all arithmetic, so candidates
pass through a few straight loops, each of which writes every item to the end of a list and
moves the end only if the item stays.

Loops are written out even where NumPy has a word for them: what Numba takes from NumPy, it
loads with the kernel in every process, and a sum alone brings half of SciPy with it.
"""

# mypy: disable-error-code="call-arg, no-untyped-def, no-untyped-call"
# Numba infers types itself; the plain twins of the kernels are fully checked.

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from tidings.matching.kernels.cache import kernel
from tidings.matching.kernels.cells import (
    index_of,
    readable,
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
CHUNK = 256  # Events in the order of one axis that are taken through all its grids before the next ones.
UNROLLED = 4  # Entries of a cell that are tested whether they are there or not.
ORDER_BITS = 10  # Events are ordered by this many leading bits of their cell: more than any grid has rows.


# What kernels count, and how many doubtful pairs they may find before they give up.
MATCHES, DOUBTFUL, CANDIDATES, HITS, DOUBTFUL_MAX, TOTALS_SIZE = range(6)


class GridLayout(NamedTuple):
    """The arrays of a segment that matching reads; see `grid.py`."""

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
_GRID_LAYOUT = types.NamedTuple(_LAYOUT_TYPES, GridLayout)

# Lists of pairs are arrays of 64 bits: the event above, what stands beside it below. Kernels take arrays out
# of tuples before they loop: Numba counts a reference each time, and the counting costs more than the work.


@intrinsic
def prefetch(context, address):
    """Asks for the memory at an address before it is needed; nothing waits for it."""

    def generate(context, builder, signature, arguments):
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, number, number, number])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # To read it, to keep it as close as can be, as data.
        builder.call(ask, [builder.inttoptr(arguments[0], cgutils.voidptr_t), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(types.uint64), generate


@njit(inline="always")
def _pair(event, other):
    return (np.uint64(event) << np.uint64(32)) | np.uint64(other)


@njit(inline="always")
def _event_of(pair):
    return pair >> np.uint64(32)


@njit(inline="always")
def other_of(pair):
    return pair & np.uint64(0xFFFFFFFF)


@njit(inline="always")
def address_of(array):
    return np.uint64(array.ctypes.data)


@njit(nogil=True)
def _with_room(pairs, used, more):
    if used + more <= len(pairs):
        return pairs
    larger = np.empty(max(2 * len(pairs), used + more), np.uint64)
    for i in range(used):
        larger[i] = pairs[i]
    return larger


@njit(inline="always")
def _place(a, b):
    """Where in its grid cell an event lies, to be compared with the words of entries in one subtraction.

    Four fields of 15 bits and a guard above each: a, its distance to the top, and the same of b.
    An entry's word has the least value that each may have, and a guard survives exactly if it is reached.
    """
    va, vb, top = np.uint64(a), np.uint64(b), np.uint64(FIELD_MAX)
    return _GUARDS | va | ((top - va) << np.uint64(16)) | (vb << np.uint64(32)) | ((top - vb) << np.uint64(48))


class Chunk(NamedTuple):
    """Some events on their way through the grids of one axis, and room for what is computed of them in each grid."""

    rows: Any
    events: Any
    on_a: Any
    on_b: Any
    at: Any
    place: Any


@njit(nogil=True)
def _new_chunk():
    return Chunk(
        np.empty(CHUNK, np.uint64),
        np.empty(CHUNK, np.uint64),
        np.empty(CHUNK, np.uint32),
        np.empty(CHUNK, np.uint32),
        np.empty(CHUNK, np.uint32),
        np.empty(CHUNK, np.uint64),
    )


@njit(nogil=True)
def _take_events(order, e0, e1, cells, axis, chunk):
    """Events order[e0:e1], as rows of `chunk`: where the cells of each begin, the event itself, its cell on the axis."""
    flat, axes = cells.reshape(-1), np.uint64(cells.shape[1])
    rows, events, on_a = chunk.rows, chunk.events, chunk.on_a
    for i in range(e1 - e0):
        e = index_of(order[e0 + i])
        rows[i], events[i] = e * axes, e << np.uint64(32)
        on_a[i] = flat[rows[i] + np.uint64(axis)]


@njit(nogil=True)
def _probe_events(n, cells, chunk, grid, starts, words_at, probes, sizes, places, q):
    """Looks up the grid cells of the chunk's n events; keeps those that are not empty as probes from q on.

    probes[q] = event and first entry, sizes[q] = how many entries, places[q] = where in the cell the event lies.

    The loops are apart so that the compiler makes the second one a loop over vectors: together they take twice as long.
    """
    flat, (rows, events, on_a, on_b, at, place) = cells.reshape(-1), chunk
    b, base, columns_log = np.uint64(grid[GRID_B]), np.uint32(grid[GRID_START]), np.uint32(grid[GRID_COLUMNS_LOG])
    shift_a, shift_b, one = np.uint32(grid[GRID_SHIFT_A]), np.uint32(grid[GRID_SHIFT_B]), np.uint32(1)
    mask_a, mask_b, next_one = (one << shift_a) - one, (one << shift_b) - one, np.uint64(1)
    for i in range(n):
        on_b[i] = flat[rows[i] + b]
    for i in range(n):
        # NULL is cell 0 and gets a bucket of its own, so that events without the attribute find it empty.
        va, vb = on_a[i] + mask_a, on_b[i] + mask_b
        at[i] = base + ((va >> shift_a) << columns_log) + (vb >> shift_b)
        place[i] = _place(va & mask_a, vb & mask_b)
    for i in range(n):
        start = starts[index_of(at[i])]
        size = starts[index_of(at[i]) + next_one] - start
        prefetch(words_at + (index_of(start) << np.uint64(3)))
        probes[q] = events[i] | index_of(start)
        sizes[q] = size
        places[q] = place[i]
        q += np.uint64(size > 0)
    return q


@njit(nogil=True)
def _probe_grids(cells, e, grids, g0, g1, starts, words_at, probes, sizes, places, q):
    """The same for one event and grids g0 … g1 - 1."""
    one, starts_at, here = np.uint64(1), address_of(starts), q
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
        # All cells are on their way before the first of them is looked into.
        prefetch(starts_at + (at << np.uint64(2)))
        probes[here] = at
        places[here] = _place(va & mask_a, vb & mask_b)
        here += one
    for i in range(q, here):
        at = probes[i]
        start = starts[at]
        size = starts[at + one] - start
        prefetch(words_at + (index_of(start) << np.uint64(3)))
        probes[q] = _pair(e, index_of(start))
        sizes[q] = size
        places[q] = places[i]
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
        start = other_of(first)
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
def _ask_for_records(h, hits, entries, records):
    """Has the records of the hits on their way before the first of them is looked at."""
    records_at = address_of(records)
    for t in range(h):
        prefetch(records_at + (index_of(entries[other_of(hits[t])]) << np.uint64(5)))


@njit(nogil=True)
def _verify(h, hits, cells, entries, records, first, matched, m, unsure):
    """Keeps the hits whose remaining sides hold as matches; those with more to say, as unsure. Returns both counts."""
    u = np.uint64(0)
    for t in range(h):
        e = _event_of(hits[t])
        r = index_of(entries[other_of(hits[t])])
        one = np.uint32(cells[e, index_of(records[r, 0])] - records[r, 1]) < np.uint32(records[r, 2])
        two = np.uint32(cells[e, index_of(records[r, 3])] - records[r, 4]) < np.uint32(records[r, 5])
        more = records[r, RECORD_MORE]
        matched[m] = first + _pair(e, index_of(records[r, RECORD_OWNER]))
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
def _look_closer(u, unsure, cells, records, extras, piece_low, piece_high, first, matched, m, doubtful, d):
    """Decides the unsure: matches, or doubtful where a residual or another box of the same condition has a say."""
    for t in range(u):
        e, r = _event_of(unsure[t]), other_of(unsure[t])
        more = records[r, RECORD_MORE]
        if _holds_more(cells, e, more, extras, piece_low, piece_high):
            box = extras[more + EXTRA_BOX]
            if box < 0:
                matched[m] = first + _pair(e, index_of(records[r, RECORD_OWNER]))
                m += 1
            else:
                doubtful[d] = _pair(e, index_of(box))
                d += 1
    return m, d


@njit(nogil=True)
def _settle(q, probes, sizes, places, hits, unsure, cells, layout, first, matched, doubtful, totals):
    """Takes q probes to their end. totals: matches, doubtful, candidates, hits so far."""
    words, entries, records, extras = layout.words, layout.entries, layout.records, layout.extras
    piece_low, piece_high = layout.piece_low, layout.piece_high
    t, skip = np.uint64(0), np.uint64(0)
    while t < q and totals[DOUBTFUL] <= totals[DOUBTFUL_MAX]:
        h, t, skip = _sift(probes, sizes, places, t, skip, q, words, hits)
        d = totals[1]
        matched = _with_room(matched, totals[0], np.int64(h) + 1)
        _ask_for_records(h, hits, entries, records)
        matches, u = _verify(h, hits, cells, entries, records, first, matched, np.uint64(totals[0]), unsure)
        m = np.int64(matches)
        if u > 0:
            doubtful = _with_room(doubtful, d, np.int64(u))
            m, d = _look_closer(
                u, unsure, cells, records, extras, piece_low, piece_high, first, matched, m, doubtful, d
            )
        totals[0], totals[1] = m, d
        totals[3] += np.int64(h)
    for i in range(q):
        totals[2] += sizes[i]
    return matched, doubtful


@njit(nogil=True)
def _order_by(column, order):
    """Sorts the events by the leading bits of their cells."""
    largest, shift = np.int32(0), 0
    for e in range(len(column)):
        largest = max(largest, column[e])
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
def _by_axis(columns, cells, layout, probes, sizes, places, hits, unsure, first, matched, doubtful, totals):
    """Axis by axis, events in the order of their cells on it, so that each part of the segment is read once."""
    axes, n = columns.shape
    grids, axis_grids, starts, words_at = layout.grids, layout.axis_grids, layout.starts, address_of(layout.words)
    order, chunk = np.empty(n, np.int32), _new_chunk()
    for e in range(n):
        order[e] = e
    for axis in range(axes):
        if axis_grids[axis] == axis_grids[axis + 1]:
            continue
        if axis < axes - 1:
            _order_by(columns[axis], order)
        for e0 in range(0, n, CHUNK):
            e1, q = min(n, e0 + CHUNK), np.uint64(0)
            _take_events(order, e0, e1, cells, axis, chunk)
            for g in range(axis_grids[axis], axis_grids[axis + 1]):
                if np.int64(q) + e1 - e0 > PROBES_MAX:
                    matched, doubtful = _settle(
                        q, probes, sizes, places, hits, unsure, cells, layout, first, matched, doubtful, totals
                    )
                    q = np.uint64(0)
                q = _probe_events(e1 - e0, cells, chunk, grids[g], starts, words_at, probes, sizes, places, q)
            matched, doubtful = _settle(
                q, probes, sizes, places, hits, unsure, cells, layout, first, matched, doubtful, totals
            )
    return matched, doubtful


@njit(nogil=True)
def by_event(cells, layout, probes, sizes, places, hits, unsure, first, matched, doubtful, totals):
    """Event by event through all grids: for few events, or a segment that fits into the cache."""
    grids, starts, words_at = layout.grids, layout.starts, address_of(layout.words)
    room, q = len(probes) - 1, np.uint64(0)
    for e in range(len(cells)):
        for g0 in range(0, len(grids), room):
            g1 = min(len(grids), g0 + room)
            if np.int64(q) + g1 - g0 > room:
                matched, doubtful = _settle(
                    q, probes, sizes, places, hits, unsure, cells, layout, first, matched, doubtful, totals
                )
                q = np.uint64(0)
            q = _probe_grids(cells, e, grids, g0, g1, starts, words_at, probes, sizes, places, q)
    return _settle(q, probes, sizes, places, hits, unsure, cells, layout, first, matched, doubtful, totals)


@njit(nogil=True)
def match_cells(columns, by_axis, layout, first, matched, totals):
    """What `match_events` does."""
    axes, n = columns.shape
    cells = np.empty((n, axes), np.int32)
    for e0 in range(0, n, 64):
        for axis in range(axes):
            for e in range(e0, min(n, e0 + 64)):
                cells[e, axis] = columns[axis, e]
    # A few events need little memory, and to ask for much of it takes longer than to match one.
    room = min(PROBES_MAX, max(n * len(layout.grids), CHUNK)) + 1
    probes, sizes, places = np.empty(room, np.uint64), np.empty(room, np.int32), np.empty(room, np.uint64)
    hits, unsure = np.empty(HITS_PER_PROBE * room, np.uint64), np.empty(HITS_PER_PROBE * room, np.uint64)
    doubtful = np.empty(16, np.uint64)
    if by_axis:
        return _by_axis(columns, cells, layout, probes, sizes, places, hits, unsure, first, matched, doubtful, totals)
    return by_event(cells, layout, probes, sizes, places, hits, unsure, first, matched, doubtful, totals)


@kernel(types.UniTuple(_OUT_W1, 2)(_I2, types.boolean, _GRID_LAYOUT, types.uint64, _OUT_W1, _OUT_L1))
def match_events(columns, by_axis, layout, first, matched, totals):
    """All matches of a batch of events with a segment.

    columns[axis, e]  the cell of event e; the line behind the last axis is zeros
    by_axis           the order of the work, which changes the time it takes and the order of the matches
    first             added to every match: the number of the first event above, of the first owner below
    matched           where matches are written, at least one; a larger array takes its place when it is full
    totals            adds: matches, doubtful, candidates, candidates whose filed sides hold; and has the most doubtful
                      pairs that are wanted: with more than that, the result is not complete

    Returns two lists of pairs: the events and owners that match, and the events and boxes that
    hold each other but are doubtful: the box has residuals, or siblings that may match the
    same event.
    """
    return match_cells(columns, by_axis, layout, first, matched, totals)


class AxisArrays(NamedTuple):
    """The arrays of all axes; see `axes.py`."""

    kind: Any
    rows: Any
    keys: Any
    table: Any
    text_ptr: Any
    text_bytes: Any
