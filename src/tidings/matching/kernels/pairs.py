"""Kernels over lists of pairs, which sort by counting: what is counted is small numbers."""

# mypy: disable-error-code="call-arg, no-untyped-def, no-untyped-call"
# Numba infers types itself; the plain twins of the kernels are fully checked.

from __future__ import annotations

import numpy as np
from numba import njit, types

from tidings.matching.kernels.cache import kernel
from tidings.matching.kernels.cells import readable

_I1, _OUT_I1, _OUT_L1 = readable(types.int32), types.int32[::1], types.int64[::1]
DIGIT_BITS = 11  # So that a pass writes to as many places at a time as the cache holds.
_W1, _OUT_W1 = readable(types.uint64), types.uint64[::1]


@njit(nogil=True)
def _starts(numbers, ptr):
    for i in range(len(ptr)):
        ptr[i] = 0
    for i in range(len(numbers)):
        ptr[numbers[i] + 1] += 1
    for i in range(len(ptr) - 1):
        ptr[i + 1] += ptr[i]


@kernel(types.void(_I1, _OUT_L1, _OUT_I1))
def group(numbers, ptr, order):
    """order[ptr[k]:ptr[k + 1]] = the places where k stands in `numbers`, ascending."""
    _starts(numbers, ptr)
    for i in range(len(numbers)):
        order[ptr[numbers[i]]] = i
        ptr[numbers[i]] += 1
    for i in range(len(ptr) - 1, 0, -1):
        ptr[i] = ptr[i - 1]
    ptr[0] = 0


@kernel(types.int64(_I1, _I1, types.int64, types.int64, _OUT_W1))
def distinct_pairs(events, owners, event_count, owner_count, out):
    """Writes each pair of event and owner once, the events ascending; returns how many there are."""
    ptr, order = np.empty(event_count + 1, np.int64), np.empty(len(events), np.int32)
    _starts(events, ptr)
    for i in range(len(events)):
        order[ptr[events[i]]] = owners[i]
        ptr[events[i]] += 1
    seen, count, start = np.full(owner_count, -1, np.int32), 0, 0
    for event in range(event_count):
        for i in range(start, ptr[event]):
            out[count] = (np.uint64(event) << np.uint64(32)) | np.uint64(order[i])
            count += seen[order[i]] != event
            seen[order[i]] = event
        start = ptr[event]
    return count


@njit(nogil=True)
def _pass(pairs, shift, spare):
    """Orders the pairs by one digit, those with the same one as they were, into `spare`; returns whether it did."""
    size = 1 << DIGIT_BITS
    mask, ends = np.uint64(size - 1), np.zeros(size + 1, np.int64)
    for i in range(len(pairs)):
        ends[np.int64((pairs[i] >> shift) & mask) + 1] += 1
    for digit in range(size):
        if ends[digit + 1] == len(pairs):
            return False
        ends[digit + 1] += ends[digit]
    for i in range(len(pairs)):
        here = np.int64((pairs[i] >> shift) & mask)
        spare[ends[here]] = pairs[i]
        ends[here] += 1
    return True


@kernel(types.void(_OUT_W1, types.uint64, types.int64, types.int64, _OUT_W1, _OUT_L1, _OUT_I1))
def sort_pairs(pairs, first, event_count, owner_count, spare, events, owners):
    """Writes pairs of event and owner in order. The events are `event_count` from `first` on; `spare` is for work."""
    base = first << np.uint64(32)
    for i in range(len(pairs)):
        pairs[i] -= base
    for start, limit in ((0, owner_count), (32, event_count)):
        shift = start
        while (limit - 1) >> (shift - start) > 0:
            if _pass(pairs, np.uint64(shift), spare):
                pairs, spare = spare, pairs
            shift += DIGIT_BITS
    for i in range(len(pairs)):
        events[i] = np.int64((pairs[i] + base) >> np.uint64(32))
        owners[i] = np.int32(pairs[i] & np.uint64(0xFFFFFFFF))


@kernel(types.int64(_OUT_I1, _OUT_I1, _OUT_I1))
def encode(numbers, codes, occurring):
    """Writes the numbers that occur, ascending, and replaces each number by its place among them; returns how many.

    codes   by number a zero, for work
    """
    for i in range(len(numbers)):
        codes[numbers[i]] = 1
    count = 0
    for number in range(len(codes)):
        if codes[number] != 0:
            occurring[count] = number
            codes[number] = count
            count += 1
    for i in range(len(numbers)):
        numbers[i] = codes[numbers[i]]
    return count
