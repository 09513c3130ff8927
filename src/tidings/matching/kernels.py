"""The loops that touch every condition or every candidate, compiled by Numba, without the GIL.

All of them take flat arrays, write only into arrays they are given for it, and know nothing
of types: an event is a row of cells (see `tidings.space`), a side is a range of cells. What
each array means is said in `axes.py` and `layout.py`, which own them. Signatures are written
out so that each kernel is compiled once, and the result is kept on disk.

Branches that a processor cannot foresee cost more here than all arithmetic, so candidates
pass through a few straight loops, each of which writes every item to the end of a list and
moves the end only if the item stays.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# Numba infers types itself; the plain twins of the kernels are fully checked.

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

# Columns of a row that describes an axis.
AXIS_KEYS, AXIS_KEYS_END, AXIS_TABLE, AXIS_TABLE_END, AXIS_LOW, AXIS_SHIFT = range(6)
AXIS_TEXTS, AXIS_SKIP, AXIS_SLOTS, AXIS_SLOTS_LOG, AXIS_SIZE = range(6, 11)

KEY_BYTES = 7  # Bytes of a text that its key holds.
STRAIGHT = 3  # Cuts that are compared with a key without a branch.

KIND_INT, KIND_DOUBLE, KIND_TEXT = range(3)

# Columns of a row that describes a grid.
GRID_A, GRID_B, GRID_SHIFT_A, GRID_SHIFT_B, GRID_COLUMNS_LOG, GRID_START, GRID_END, GRID_SIZE = range(8)

# Columns of a record: two sides that are left to check, whose it is, and where more is said about it.
RECORD_OWNER, RECORD_MORE, RECORD_SIZE = 6, 7, 8

# What more there is to say about a record: how many ranges and sets follow, and the box if it is doubtful, else -1.
EXTRA_RANGES, EXTRA_SETS, EXTRA_BOX, EXTRA_SIDES = range(4)

FIELD_BITS = 15
FIELD_MAX = (1 << FIELD_BITS) - 1

_GUARDS = np.uint64(0x8000_8000_8000_8000)
_NAN_KEY = np.int64(0x7FF0000000000001)
_INT_MIN = np.int64(-(2**63))
_SIGN = np.uint64(1 << 63)
NO_KEY = np.int64(-1)  # No text has it: its last byte would say 255.


def readable(kind: types.Type, dimensions: int = 1) -> types.Array:
    """An array that is only read; Numba takes writable ones for it as well."""
    return types.Array(kind, dimensions, "C", readonly=True)


_I1, _I2 = readable(types.int32), readable(types.int32, 2)
_L1, _L2 = readable(types.int64), readable(types.int64, 2)
_B1, _W1, _F1 = readable(types.uint8), readable(types.uint64), readable(types.float32)
_OUT_I1, _OUT_L1, _OUT_W1 = types.int32[::1], types.int64[::1], types.uint64[::1]


# ── Cells ────────────────────────────────────────────────────────────────────

# Indices are unsigned where it counts: Numba would otherwise ask of each whether it counts from the end.


@njit(inline="always")
def _index(number):
    """A number that is not negative, as an index."""
    return np.uint64(np.uint32(number))


@njit(inline="always")
def _rank(keys, table, first, end, table_at, last_slot, low, shift, key):
    """How many cuts of an axis, keys[first:end], are at most `key`; the other arguments describe its table."""
    start, one = first, np.uint64(1)
    if key < low:
        end = first + _index(table[table_at])
    else:
        slot = table_at + min(np.uint64(key - low) >> shift, last_slot)
        start, end = first + _index(table[slot]), first + _index(table[slot + one])
    while start + np.uint64(STRAIGHT) < end:
        middle = (start + end) >> one
        above = keys[middle] > key
        end = middle if above else end
        start = start if above else middle + one
    # The table leaves about one cut, so the last few are counted without asking whether to go on.
    rank = start - first
    for i in range(STRAIGHT):
        at = start + np.uint64(i)
        rank += np.uint64((at < end) & (keys[at] <= key))
    return rank


@njit(inline="always")
def _axis(row):
    """The numbers of an axis's row as `_rank` takes them."""
    last_slot = np.uint64(row[AXIS_TABLE_END] - row[AXIS_TABLE] - 2)
    first, end, table_at = np.uint64(row[AXIS_KEYS]), np.uint64(row[AXIS_KEYS_END]), np.uint64(row[AXIS_TABLE])
    return first, end, table_at, last_slot, row[AXIS_LOW], np.uint64(row[AXIS_SHIFT])


@njit(inline="always")
def _double_key(bits):
    """The key of a double given as its bits, as `tidings.events.values.double_key`."""
    magnitude = bits & np.int64(0x7FFFFFFFFFFFFFFF)
    if magnitude >= _NAN_KEY:
        return _NAN_KEY
    return bits if bits >= 0 else _INT_MIN - bits


@njit(inline="always")
def _is_valid(valid, at):
    return (valid[np.uint64(at) >> np.uint64(3)] >> (at & 7)) & 1 != 0


@njit(
    types.void(_L1, _L1, _I1, _L1, types.boolean, _B1, types.int64, _OUT_I1),
    cache=True,
    nogil=True,
)
def locate_numbers(row, keys, table, values, is_double, valid, valid_at, out):
    """out[i] = the cell of values[i] on one axis; doubles are given as their bits."""
    first, end, table_at, last_slot, low, shift = _axis(row)
    if is_double:
        for i in range(len(out)):
            out[i] = np.uint64(1) + _rank(
                keys, table, first, end, table_at, last_slot, low, shift, _double_key(values[i])
            )
    else:
        for i in range(len(out)):
            out[i] = np.uint64(1) + _rank(keys, table, first, end, table_at, last_slot, low, shift, values[i])
    if len(valid) > 0:
        for i in range(len(out)):
            if not _is_valid(valid, valid_at + i):
                out[i] = 0


@njit(inline="always")
def _byte(content, at, shift):
    return np.uint64(content[at]) << np.uint64(shift)


@njit(inline="always")
def _text_key(bytes_ahead, size):
    """A text's first seven bytes and, in the last, how many there are or that there are more: in the texts' order.

    bytes_ahead   the eight bytes from where the text begins, whether they belong to it or not
    """
    # What belongs to the next text is cut off, in two steps since no shift is by all 64 bits.
    beyond = np.uint64(63) - np.uint64(8) * min(size, np.uint64(KEY_BYTES))
    key = bytes_ahead & ((~np.uint64(0) << beyond) << np.uint64(1))
    return np.int64((key | min(size, np.uint64(KEY_BYTES + 1))) ^ _SIGN)


@njit(inline="always")
def _bytes_ahead(content, at):
    """Seven bytes from `at` on, the first one on top. Written out, because only so the compiler sees one load."""
    ahead = _byte(content, at, 56) | _byte(content, at + np.uint64(1), 48)
    ahead |= _byte(content, at + np.uint64(2), 40) | _byte(content, at + np.uint64(3), 32)
    ahead |= _byte(content, at + np.uint64(4), 24) | _byte(content, at + np.uint64(5), 16)
    return ahead | _byte(content, at + np.uint64(6), 8)


@njit(inline="always")
def _last_bytes(content, at):
    """The same near the end of the content, zeros behind it."""
    ahead, shift = np.uint64(0), np.uint64(56)
    while at < np.uint64(len(content)) and shift > 0:
        ahead |= np.uint64(content[at]) << shift
        at, shift = at + np.uint64(1), shift - np.uint64(8)
    return ahead


@njit(inline="always")
def _key_at(content, start, end):
    """The key of the text content[start:end]."""
    if start + np.uint64(KEY_BYTES) <= np.uint64(len(content)):
        return _text_key(_bytes_ahead(content, start), end - start)
    return _text_key(_last_bytes(content, start), end - start)


@njit(nogil=True)
def _keys_of(content, offsets, skip, keys):
    """keys[i] = the key of the i-th text behind its first `skip` bytes; shorter texts get one that no cut has."""
    safe, limit = len(keys), np.int64(len(content)) - np.int64(skip) - KEY_BYTES
    while safe > 0 and np.int64(offsets[safe - 1]) > limit:
        safe -= 1
    for i in range(safe):
        start, end = _index(offsets[i]) + skip, _index(offsets[i + 1])
        key = _text_key(_bytes_ahead(content, start), end - start)
        keys[i] = key if start <= end else NO_KEY
    for i in range(safe, len(keys)):
        start, end = _index(offsets[i]) + skip, _index(offsets[i + 1])
        keys[i] = _text_key(_last_bytes(content, start), end - start) if start <= end else NO_KEY


@njit(inline="always")
def _short_slot(key, slots_log):
    value = np.uint64(key)
    value ^= value >> np.uint64(32)
    return (value * np.uint64(0x9E3779B97F4A7C15)) >> (np.uint64(64) - slots_log)


@njit(inline="always")
def _slot(key, content, start, end, slots_log):
    """Where a text is looked for among the slots of its axis: by its key, and what follows if there is more."""
    value, i = np.uint64(key), start + np.uint64(KEY_BYTES)
    while i < end:
        value = (value ^ np.uint64(content[i])) * np.uint64(0x100000001B3)
        i += np.uint64(1)
    return _short_slot(value, slots_log)


@njit(inline="always")
def _begins(one, start, other, other_start, size):
    """Whether `size` bytes of both are the same."""
    for i in range(size):  # noqa: SIM110  Numba knows no generators here.
        if one[start + i] != other[other_start + i]:
            return False
    return True


@njit(inline="always")
def _is_same(one, start, end, other, other_start, other_end):
    return end - start == other_end - other_start and _begins(one, start, other, other_start, end - start)


@njit(inline="always")
def _is_above(text_bytes, cut_start, cut_end, content, start, end):
    """Whether a cut is above a text, both in full."""
    shared = min(cut_end - cut_start, end - start)
    for i in range(shared):
        if text_bytes[cut_start + i] != content[start + i]:
            return text_bytes[cut_start + i] > content[start + i]
    return cut_end - cut_start > end - start


@njit(nogil=True)
def _text_rank(row, keys, table, text_ptr, text_bytes, content, start, end):
    """How many cuts of a text axis are at most the text content[start:end], which need not be one of them."""
    first, last, table_at, last_slot, least, shift = _axis(row)
    texts, skip, one = np.uint64(row[AXIS_TEXTS]), np.uint64(row[AXIS_SKIP]), np.uint64(1)
    if first == last:
        return np.uint64(0)
    # What all cuts begin with is compared once; a text that differs there is below or above all of them.
    head = np.uint64(text_ptr[texts])
    for i in range(skip):
        if start + i >= end or content[start + i] < text_bytes[head + i]:
            return np.uint64(0)
        if content[start + i] > text_bytes[head + i]:
            return last - first
    key = _key_at(content, start + skip, end)
    high = _rank(keys, table, first, last, table_at, last_slot, least, shift, key)
    if end <= start + skip + np.uint64(KEY_BYTES) or high == 0 or keys[first + high - one] != key:
        return high  # Where the key says all, so does the rank.
    low = _rank(keys, table, first, last, table_at, last_slot, least, shift, key - 1)
    while low < high:
        middle = (low + high) >> one
        at = texts + middle
        if _is_above(text_bytes, np.uint64(text_ptr[at]), np.uint64(text_ptr[at + one]), content, start, end):
            high = middle
        else:
            low = middle + one
    return low


@njit(nogil=True)
def _find_cut(row, keys, table, text_ptr, text_bytes, content, start, end):
    """How many cuts are at most a text, tried first as a cut itself, then by halves."""
    first, texts, skip = np.uint64(row[AXIS_KEYS]), np.uint64(row[AXIS_TEXTS]), np.uint64(row[AXIS_SKIP])
    slots, slots_log, one = np.uint64(row[AXIS_SLOTS]), np.uint64(row[AXIS_SLOTS_LOG]), np.uint64(1)
    if start + skip <= end:
        key = _key_at(content, start + skip, end)
        slot = _slot(key, content, start + skip, end, slots_log)
        number = table[slots + slot]
        while number >= 0:
            cut = _index(number)
            at = texts + cut
            if keys[first + cut] == key and _is_same(
                text_bytes, np.uint64(text_ptr[at]), np.uint64(text_ptr[at + one]), content, start, end
            ):
                return cut + one
            slot = (slot + one) & ((one << slots_log) - one)
            number = table[slots + slot]
    return _text_rank(row, keys, table, text_ptr, text_bytes, content, start, end)


@njit(
    types.void(_L1, _L1, _I1, _L1, _B1, _I1, _B1, _B1, types.int64, _OUT_I1),
    cache=True,
    nogil=True,
)
def locate_texts(row, keys, table, text_ptr, text_bytes, offsets, content, valid, valid_at, out):
    """out[i] = the cell of the text content[offsets[i]:offsets[i + 1]] on one axis.

    Most texts are short and are cuts themselves, because conditions ask for them by name: these
    are found by one look into the slots, without a branch. Other short ones go by their keys,
    and only long ones are read in full.
    """
    first, skip, one = np.uint64(row[AXIS_KEYS]), np.uint64(row[AXIS_SKIP]), np.uint64(1)
    slots, slots_log = np.uint64(row[AXIS_SLOTS]), np.uint64(row[AXIS_SLOTS_LOG])
    own = np.empty(len(out), np.int64)
    _keys_of(content, offsets, skip, own)
    head = np.uint64(text_ptr[row[AXIS_TEXTS]])
    for i in range(len(out)):
        key = own[i]
        number = table[slots + _short_slot(key, slots_log)]
        is_cut = (number >= 0) & ((np.uint64(key) & np.uint64(0xFF)) <= np.uint64(KEY_BYTES))
        is_cut &= keys[first + _index(max(number, 0))] == key
        out[i] = number + 2 if is_cut else -1
    if skip > 0:
        for i in range(len(out)):
            if own[i] != NO_KEY and not _begins(text_bytes, head, content, _index(offsets[i]), skip):
                own[i], out[i] = NO_KEY, -1
    first, last, table_at, last_slot, low, shift = _axis(row)
    for i in range(len(out)):
        if out[i] < 0:
            if (np.uint64(own[i]) & np.uint64(0xFF)) <= np.uint64(KEY_BYTES):
                out[i] = one + _rank(keys, table, first, last, table_at, last_slot, low, shift, own[i])
            else:
                start, end = _index(offsets[i]), _index(offsets[i + 1])
                out[i] = one + _find_cut(row, keys, table, text_ptr, text_bytes, content, start, end)
    if len(valid) > 0:
        for i in range(len(out)):
            if not _is_valid(valid, valid_at + i):
                out[i] = 0


@njit(types.void(_L1, _B1, types.int64, _OUT_L1), cache=True, nogil=True)
def text_keys(text_ptr, text_bytes, skip, out):
    """out[i] = the key of the i-th text behind its first `skip` bytes."""
    for i in range(len(out)):
        out[i] = _key_at(text_bytes, np.uint64(text_ptr[i] + skip), np.uint64(text_ptr[i + 1]))


@njit(types.void(_L1, _L1, _B1, types.int64, types.int64, _OUT_I1), cache=True, nogil=True)
def fill_text_slots(keys, text_ptr, text_bytes, skip, slots_log, slots):
    """slots[…] = the number of each cut, where `_text_rank` looks for it; free ones stay -1."""
    for cut in range(len(keys)):
        start, end = np.uint64(text_ptr[cut] + skip), np.uint64(text_ptr[cut + 1])
        slot = _slot(keys[cut], text_bytes, start, end, np.uint64(slots_log))
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & np.uint64(len(slots) - 1)
        slots[slot] = cut


@njit(types.void(_L1, types.int64, types.int64, _OUT_I1), cache=True, nogil=True)
def fill_table(keys, low, shift, out):
    """out[slot] = how many keys lie below the slot's first; the last slot takes all that is above."""
    slots = len(out) - 1
    at = 0
    for slot in range(slots):
        while at < len(keys) and (keys[at] < low or np.uint64(keys[at] - low) >> np.uint64(shift) < np.uint64(slot)):
            at += 1
        out[slot] = at
    out[slots] = len(keys)


# ── Matching ─────────────────────────────────────────────────────────────────

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
        _index(grid[GRID_A]),
        _index(grid[GRID_B]),
        _index(grid[GRID_SHIFT_A]),
        _index(grid[GRID_SHIFT_B]),
    )
    columns_log, base, one = _index(grid[GRID_COLUMNS_LOG]), np.uint64(grid[GRID_START]), np.uint64(1)
    mask_a, mask_b = (one << shift_a) - one, (one << shift_b) - one
    for i in range(e0, e1):
        e = _index(order[i])
        # NULL is cell 0 and gets a bucket of its own, so that events without the attribute find it empty.
        va, vb = _index(cells[e, a]) + mask_a, _index(cells[e, b]) + mask_b
        at = base + ((va >> shift_a) << columns_log) + (vb >> shift_b)
        start = starts[at]
        size = starts[at + one] - start
        probes[q] = _pair(e, _index(start))
        sizes[q] = size
        places[q] = _place(va & mask_a, vb & mask_b)
        q += np.uint64(size > 0)
    return q


@njit(nogil=True)
def _probe_grids(cells, e, grids, g0, g1, starts, probes, sizes, places, q):
    """The same for one event and grids g0 … g1 - 1."""
    one = np.uint64(1)
    for g in range(g0, g1):
        shift_a, shift_b = _index(grids[g, GRID_SHIFT_A]), _index(grids[g, GRID_SHIFT_B])
        mask_a, mask_b = (one << shift_a) - one, (one << shift_b) - one
        va = _index(cells[e, _index(grids[g, GRID_A])]) + mask_a
        vb = _index(cells[e, _index(grids[g, GRID_B])]) + mask_b
        at = np.uint64(grids[g, GRID_START]) + ((va >> shift_a) << _index(grids[g, GRID_COLUMNS_LOG])) + (vb >> shift_b)
        start = starts[at]
        size = starts[at + one] - start
        probes[q] = _pair(e, _index(start))
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
        place, first, size = places[t], probes[t] + skip, _index(sizes[t]) - skip
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
        if size < _index(sizes[t]) - skip:
            return h, t, skip + size
        t, skip = t + one, np.uint64(0)
    return h, t, np.uint64(0)


@njit(nogil=True)
def _verify(h, hits, cells, entries, records, matched, m, unsure):
    """Keeps the hits whose remaining sides hold as matches; those with more to say, as unsure. Returns both counts."""
    u = np.uint64(0)
    for t in range(h):
        e = _event_of(hits[t])
        r = _index(entries[_other_of(hits[t])])
        one = np.uint32(cells[e, _index(records[r, 0])] - records[r, 1]) < np.uint32(records[r, 2])
        two = np.uint32(cells[e, _index(records[r, 3])] - records[r, 4]) < np.uint32(records[r, 5])
        more = records[r, RECORD_MORE]
        matched[m] = _pair(e, _index(records[r, RECORD_OWNER]))
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
                matched[m] = _pair(e, _index(records[r, RECORD_OWNER]))
                m += 1
            else:
                doubtful[d] = _pair(e, _index(box))
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
            start, end, texts = end, end + _index(content[texts]), texts + 1
        if is_present[axis]:
            row = rows[axis]
            if kind[axis] == KIND_TEXT:
                cells[0, axis] = np.uint64(1) + _find_cut(row, keys, table, text_ptr, text_bytes, text, start, end)
            else:
                key = _double_key(content[axis]) if kind[axis] == KIND_DOUBLE else content[axis]
                first, last, table_at, last_slot, low, shift = _axis(row)
                cells[0, axis] = np.uint64(1) + _rank(keys, table, first, last, table_at, last_slot, low, shift, key)
    totals = np.zeros(4, np.int64)
    matched, doubtful = np.empty(64, np.uint64), np.empty(16, np.uint64)
    matched, doubtful = _by_event(cells, _layout_at(book), matched, doubtful, totals)
    out[0], out[1] = totals[0], totals[1]
    if totals[0] + totals[1] + 2 <= len(out):
        for i in range(totals[0]):
            out[2 + i] = _other_of(matched[i])
        for i in range(totals[1]):
            out[2 + totals[0] + i] = _other_of(doubtful[i])


# ── Names ────────────────────────────────────────────────────────────────────


def _crc_table() -> Any:
    """By byte what it adds to a CRC-32; the one that `zlib.crc32` computes, which finds single names faster than a kernel."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0xEDB88320), table >> 1)
    return table.astype(np.uint32)


_CRC_TABLE = _crc_table()


@njit(inline="always")
def _crc32(content, start, end):
    value = np.uint32(0xFFFFFFFF)
    for i in range(start, end):
        value = _CRC_TABLE[(value ^ np.uint32(content[i])) & np.uint32(0xFF)] ^ (value >> np.uint32(8))
    return np.uint64(value ^ np.uint32(0xFFFFFFFF))


@njit(inline="always")
def _slot_of(slots, offsets, content, text, start, end):
    """The slot that holds the name text[start:end], or the free one where it belongs."""
    mask = np.uint64(len(slots) - 1)
    slot = _crc32(text, start, end) & mask
    while slots[slot] >= 0:
        number = slots[slot]
        if _is_same(text, start, end, content, np.int64(offsets[number]), np.int64(offsets[number + 1])):
            break
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(types.void(_I1, _B1, _OUT_I1, types.uint8[::1]), cache=True, nogil=True)
def fill_slots(offsets, content, slots, is_repeated):
    """Enters all names into `slots` (a power of two of them, all -1); of equal names the last one stays."""
    for number in range(len(offsets) - 1):
        slot = _slot_of(slots, offsets, content, content, np.int64(offsets[number]), np.int64(offsets[number + 1]))
        if slots[slot] >= 0:
            is_repeated[slots[slot]] = 1
        slots[slot] = number


@njit(types.void(_I1, _I1, _B1, _I1, _B1, _OUT_I1), cache=True, nogil=True)
def find_names(slots, offsets, content, wanted_offsets, wanted, out):
    """out[i] = the number of the i-th wanted name, or -1."""
    for i in range(len(out)):
        slot = _slot_of(slots, offsets, content, wanted, np.int64(wanted_offsets[i]), np.int64(wanted_offsets[i + 1]))
        out[i] = slots[slot]
