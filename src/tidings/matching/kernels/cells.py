"""Kernels that put values into cells.

An axis is described by a row of numbers and by arrays that all axes share (`axes.py` makes
them). A table lookup by the upper bits of a key leaves about two cuts to compare the key with.
Texts are compared by seven bytes first, and in full where those are equal.

Numba's cache looks only at the file of the kernel that it keeps: after a change here, remove
`src/tidings/matching/kernels/__pycache__`, because `match.py` has some of these built in.
"""

# mypy: disable-error-code="assignment, call-arg, no-untyped-def, no-untyped-call"
# Numba infers types itself; the plain twins of the kernels are fully checked.

from __future__ import annotations

import numpy as np
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic

from tidings.matching.kernels.cache import kernel

# Columns of a row that describes an axis.
AXIS_KEYS, AXIS_KEYS_END, AXIS_TABLE, AXIS_TABLE_END, AXIS_LOW, AXIS_SHIFT = range(6)
AXIS_TEXTS, AXIS_SKIP, AXIS_SLOTS, AXIS_SLOTS_LOG, AXIS_SIZE = range(6, 11)

KIND_INT, KIND_DOUBLE, KIND_TEXT, KIND_REVERSED = range(4)  # The last two are texts, one read backwards.

# Columns of a row that says where the values of an axis lie: their bytes or words and how many, the offsets of
# texts, the bits that tell what is there (or 0) and the first of them.
COLUMN_CONTENT, COLUMN_LENGTH, COLUMN_OFFSETS, COLUMN_VALID, COLUMN_VALID_AT, COLUMN_SIZE = range(6)

KEY_BYTES = 7  # Bytes of a text that its key holds.
SEEN_MAX = 8192  # Texts of a batch that are remembered, so that one which comes again is not looked up again.
STRAIGHT = 3  # Cuts that are compared with a key without a branch.

_NAN_KEY = np.int64(0x7FF0000000000001)
_INT_MIN = np.int64(-(2**63))
_SIGN = np.uint64(1 << 63)
NO_KEY = np.int64(-1)  # No text has it: its last byte would say 255.


def readable(kind: types.Type, dimensions: int = 1) -> types.Array:
    """An array that is only read; Numba takes writable ones for it as well."""
    return types.Array(kind, dimensions, "C", readonly=True)


_I1, _L1, _B1 = readable(types.int32), readable(types.int64), readable(types.uint8)
_L2 = readable(types.int64, 2)
_OUT_I1, _OUT_L1 = types.int32[::1], types.int64[::1]

# Indices are unsigned where it counts: Numba would otherwise ask of each whether it counts from the end.


@intrinsic
def pointer(context, address):
    """An address as a pointer to whatever is there."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@njit(inline="always")
def index_of(number):
    """A number that is not negative, as an index."""
    return np.uint64(np.uint32(number))


@njit(inline="always")
def rank_of(keys, table, first, end, table_at, last_slot, low, shift, key):
    """How many cuts of an axis, keys[first:end], are at most `key`; the other arguments describe its table."""
    start, one = first, np.uint64(1)
    if key < low:
        end = first + index_of(table[table_at])
    else:
        slot = table_at + min(np.uint64(key - low) >> shift, last_slot)
        start, end = first + index_of(table[slot]), first + index_of(table[slot + one])
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
def axis_of(row):
    """The numbers of an axis's row as `_rank` takes them."""
    last_slot = np.uint64(row[AXIS_TABLE_END] - row[AXIS_TABLE] - 2)
    first, end, table_at = np.uint64(row[AXIS_KEYS]), np.uint64(row[AXIS_KEYS_END]), np.uint64(row[AXIS_TABLE])
    return first, end, table_at, last_slot, row[AXIS_LOW], np.uint64(row[AXIS_SHIFT])


@njit(inline="always")
def double_key(bits):
    """The key of a double given as its bits, as `tidings.events.values.double_key`."""
    magnitude = bits & np.int64(0x7FFFFFFFFFFFFFFF)
    if magnitude >= _NAN_KEY:
        return _NAN_KEY
    return bits if bits >= 0 else _INT_MIN - bits


@njit(inline="always")
def _is_valid(valid, at):
    return (valid[np.uint64(at) >> np.uint64(3)] >> (at & 7)) & 1 != 0


@njit(nogil=True)
def _locate_numbers(row, keys, table, values, is_double, out):
    """out[i] = the cell of values[i] on one axis; doubles are given as their bits."""
    first, end, table_at, last_slot, low, shift = axis_of(row)
    if is_double:
        for i in range(len(out)):
            out[i] = np.uint64(1) + rank_of(
                keys, table, first, end, table_at, last_slot, low, shift, double_key(values[i])
            )
    else:
        for i in range(len(out)):
            out[i] = np.uint64(1) + rank_of(keys, table, first, end, table_at, last_slot, low, shift, values[i])


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
        start, end = index_of(offsets[i]) + skip, index_of(offsets[i + 1])
        key = _text_key(_bytes_ahead(content, start), end - start)
        keys[i] = key if start <= end else NO_KEY
    for i in range(safe, len(keys)):
        start, end = index_of(offsets[i]) + skip, index_of(offsets[i + 1])
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
def is_same(one, start, end, other, other_start, other_end):
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
    first, last, table_at, last_slot, least, shift = axis_of(row)
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
    high = rank_of(keys, table, first, last, table_at, last_slot, least, shift, key)
    if end <= start + skip + np.uint64(KEY_BYTES) or high == 0 or keys[first + high - one] != key:
        return high  # Where the key says all, so does the rank.
    low = rank_of(keys, table, first, last, table_at, last_slot, least, shift, key - 1)
    while low < high:
        middle = (low + high) >> one
        at = texts + middle
        if _is_above(text_bytes, np.uint64(text_ptr[at]), np.uint64(text_ptr[at + one]), content, start, end):
            high = middle
        else:
            low = middle + one
    return low


@njit(nogil=True)
def text_rank_of(row, keys, table, text_ptr, text_bytes, content, start, end):
    """How many cuts are at most a text, tried first as a cut itself, then by halves."""
    first, texts, skip = np.uint64(row[AXIS_KEYS]), np.uint64(row[AXIS_TEXTS]), np.uint64(row[AXIS_SKIP])
    slots, slots_log, one = np.uint64(row[AXIS_SLOTS]), np.uint64(row[AXIS_SLOTS_LOG]), np.uint64(1)
    if start + skip <= end:
        key = _key_at(content, start + skip, end)
        slot = _slot(key, content, start + skip, end, slots_log)
        number = table[slots + slot]
        while number >= 0:
            cut = index_of(number)
            at = texts + cut
            if keys[first + cut] == key and is_same(
                text_bytes, np.uint64(text_ptr[at]), np.uint64(text_ptr[at + one]), content, start, end
            ):
                return cut + one
            slot = (slot + one) & ((one << slots_log) - one)
            number = table[slots + slot]
    return _text_rank(row, keys, table, text_ptr, text_bytes, content, start, end)


@njit(nogil=True)
def _locate_texts(row, keys, table, text_ptr, text_bytes, offsets, content, out):
    """out[i] = the cell of the text content[offsets[i]:offsets[i + 1]] on one axis.

    Most texts are short and are cuts themselves, because conditions ask for them by name: these
    are found by one look into the slots, without a branch. Other short ones go by their keys,
    and only long ones are read in full, each of them once while a batch repeats it.
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
        is_cut &= keys[first + index_of(max(number, 0))] == key
        out[i] = number + 2 if is_cut else -1
    if skip > 0:
        for i in range(len(out)):
            if own[i] != NO_KEY and not _begins(text_bytes, head, content, index_of(offsets[i]), skip):
                own[i], out[i] = NO_KEY, -1
    first, last, table_at, last_slot, low, shift = axis_of(row)
    seen = _none_seen(len(out))
    for i in range(len(out)):
        if out[i] < 0:
            if (np.uint64(own[i]) & np.uint64(0xFF)) <= np.uint64(KEY_BYTES):
                out[i] = one + rank_of(keys, table, first, last, table_at, last_slot, low, shift, own[i])
                continue
            before = _seen_before(seen, content, offsets, i)
            if before >= 0:
                out[i] = out[before]
            else:
                start, end = index_of(offsets[i]), index_of(offsets[i + 1])
                out[i] = one + text_rank_of(row, keys, table, text_ptr, text_bytes, content, start, end)


@njit(nogil=True)
def _locate_reversed(row, keys, table, text_ptr, text_bytes, offsets, content, out):
    """The same for an axis on which texts are read backwards."""
    one, seen, longest = np.uint64(1), _none_seen(len(out)), np.int32(0)
    for i in range(len(out)):
        longest = max(longest, offsets[i + 1] - offsets[i])
    backwards = np.empty(longest, np.uint8)
    for i in range(len(out)):
        before = _seen_before(seen, content, offsets, i)
        if before >= 0:
            out[i] = out[before]
            continue
        start, end = index_of(offsets[i]), index_of(offsets[i + 1])
        for k in range(end - start):
            backwards[k] = content[end - one - k]
        out[i] = one + text_rank_of(row, keys, table, text_ptr, text_bytes, backwards, np.uint64(0), end - start)


@njit(nogil=True)
def _none_seen(count):
    """Room for the rows of texts that were seen: `_seen_before` fills it."""
    size = 2
    while size < 2 * count and size < SEEN_MAX:
        size *= 2
    seen = np.empty(size, np.int32)
    for i in range(size):
        seen[i] = -1
    return seen


@njit(inline="always")
def _word(content, at):
    """Eight bytes from `at` on."""
    word = np.uint64(content[at]) | _byte(content, at + np.uint64(1), 8) | _byte(content, at + np.uint64(2), 16)
    word |= _byte(content, at + np.uint64(3), 24) | _byte(content, at + np.uint64(4), 32)
    word |= _byte(content, at + np.uint64(5), 40) | _byte(content, at + np.uint64(6), 48)
    return word | _byte(content, at + np.uint64(7), 56)


@njit(inline="always")
def _seen_before(seen, content, offsets, i):
    """An earlier row with the text of row i, or -1. Frequent texts are found nearly always, and cost one comparison.

    Texts are hashed and compared by words of eight bytes, the last of which overlaps the one before it.
    """
    start, end, eight = index_of(offsets[i]), index_of(offsets[i + 1]), np.uint64(8)
    size = end - start
    if size < eight:
        value = np.uint64(0)
        for k in range(size):
            value = (value << eight) | np.uint64(content[start + k])
    else:
        value, at = _word(content, end - eight), start
        while at + eight < end:
            value = (value ^ _word(content, at)) * np.uint64(0x9E3779B97F4A7C15)
            value ^= value >> np.uint64(29)
            at += eight
    value = (value ^ size) * np.uint64(0xBF58476D1CE4E5B9)
    slot = (value >> np.uint64(32)) & np.uint64(len(seen) - 1)
    before = seen[slot]
    seen[slot] = i
    if before < 0 or offsets[before + 1] - offsets[before] != offsets[i + 1] - offsets[i]:
        return np.int32(-1)
    other = index_of(offsets[before])
    if size < eight:
        return before if _begins(content, start, content, other, size) else np.int32(-1)
    same, k = _word(content, end - eight) == _word(content, other + size - eight), np.uint64(0)
    while same and k + eight < size:
        same = _word(content, start + k) == _word(content, other + k)
        k += eight
    return before if same else np.int32(-1)


@njit(nogil=True)
def reversed_text(content, start, end):
    """The bytes of a text from the last to the first."""
    out = np.empty(end - start, np.uint8)
    for i in range(len(out)):
        out[i] = content[end - np.uint64(1) - np.uint64(i)]
    return out


@njit(nogil=True)
def cells_of(kind, rows, keys, table, text_ptr, text_bytes, columns, out):
    """out[axis, i] = the cell of the i-th value of columns[axis], for all axes."""
    count = out.shape[1]
    for axis in range(len(rows)):
        content_at, length = columns[axis, COLUMN_CONTENT], columns[axis, COLUMN_LENGTH]
        if kind[axis] >= KIND_TEXT:
            offsets = carray(pointer(columns[axis, COLUMN_OFFSETS]), count + 1, np.int32)
            content = carray(pointer(content_at), length, np.uint8)
            if kind[axis] == KIND_REVERSED:
                _locate_reversed(rows[axis], keys, table, text_ptr, text_bytes, offsets, content, out[axis])
            else:
                _locate_texts(rows[axis], keys, table, text_ptr, text_bytes, offsets, content, out[axis])
        else:
            values = carray(pointer(content_at), length, np.int64)
            _locate_numbers(rows[axis], keys, table, values, kind[axis] == KIND_DOUBLE, out[axis])
        if columns[axis, COLUMN_VALID] != 0:
            valid_at = columns[axis, COLUMN_VALID_AT]
            valid = carray(pointer(columns[axis, COLUMN_VALID]), (valid_at + count + 7) >> 3, np.uint8)
            for i in range(count):
                if not _is_valid(valid, valid_at + i):
                    out[axis, i] = 0


@kernel(types.void(_I1, _L2, _L1, _I1, _L1, _B1, _L2, types.int32[:, ::1]))
def locate_columns(kind, rows, keys, table, text_ptr, text_bytes, columns, out):
    """The same as a kernel: one call, because threads that share a batch would otherwise wait for the GIL once per axis."""
    cells_of(kind, rows, keys, table, text_ptr, text_bytes, columns, out)


@kernel(types.void(_L1, _B1, types.int64, _OUT_L1))
def text_keys(text_ptr, text_bytes, skip, out):
    """out[i] = the key of the i-th text behind its first `skip` bytes."""
    for i in range(len(out)):
        out[i] = _key_at(text_bytes, np.uint64(text_ptr[i] + skip), np.uint64(text_ptr[i + 1]))


@kernel(types.void(_L1, _L1, _B1, types.int64, types.int64, _OUT_I1))
def fill_text_slots(keys, text_ptr, text_bytes, skip, slots_log, slots):
    """slots[…] = the number of each cut, where `_text_rank` looks for it; free ones stay -1."""
    for cut in range(len(keys)):
        start, end = np.uint64(text_ptr[cut] + skip), np.uint64(text_ptr[cut + 1])
        slot = _slot(keys[cut], text_bytes, start, end, np.uint64(slots_log))
        while slots[slot] >= 0:
            slot = (slot + np.uint64(1)) & np.uint64(len(slots) - 1)
        slots[slot] = cut


@kernel(types.void(_L1, types.int64, types.int64, _OUT_I1))
def fill_table(keys, low, shift, out):
    """out[slot] = how many keys lie below the slot's first; the last slot takes all that is above."""
    slots = len(out) - 1
    at = 0
    for slot in range(slots):
        while at < len(keys) and (keys[at] < low or np.uint64(keys[at] - low) >> np.uint64(shift) < np.uint64(slot)):
            at += 1
        out[slot] = at
    out[slots] = len(keys)
