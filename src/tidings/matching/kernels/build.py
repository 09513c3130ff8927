"""The loops that file boxes under grid cells, compiled by Numba; `grid.py` says what for.

A bucket of an axis is a run of 2^shift cells, NULL apart: bucket 0 is NULL alone, and cell c is in
bucket (c + 2^shift - 1) >> shift.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# Numba infers types itself; the plain twins of the kernels are fully checked.

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types

from tidings.matching.kernels.cache import kernel
from tidings.matching.kernels.cells import readable
from tidings.matching.kernels.match import (
    EXTRA_SIDES,
    FIELD_MAX,
    GRID_COLUMNS_LOG,
    GRID_SHIFT_A,
    GRID_SHIFT_B,
    GRID_START,
    RECORD_MORE,
    RECORD_OWNER,
)

CHOICES_MAX = 6  # Sides of a box, the least likely ones, among which the two to file it under are chosen.
LEVELS = 10  # Resolutions tried per axis: from 512 buckets down to one.


class Sides(NamedTuple):
    """Boxes in cells: sides by box, pieces by side, and each piece `low <= cell < high` on the side's axis."""

    side_ptr: Any
    side_axis: Any
    piece_ptr: Any
    piece_low: Any
    piece_high: Any


_I1, _L1, _L2, _F1 = readable(types.int32), readable(types.int64), readable(types.int64, 2), readable(types.float32)
_SIDES = types.NamedUniTuple(types.int32[::1], 5, Sides)
_OUT_I1, _OUT_F1 = types.int32[::1], types.float32[::1]


@njit(inline="always")
def pair_number(a, b, axes, size):
    """A number below `size` for a pair of axes in either order. With very many axes some share one: a worse guess."""
    return (min(a, b) * np.int64(axes + 1) + max(a, b)) % size


@njit(inline="always")
def _buckets(sides, side, shift):
    """How many times a side is filed when its axis has buckets of 2^shift cells."""
    if side < 0:
        return np.int64(1)
    pad, count = (np.int64(1) << shift) - 1, np.int64(0)
    for piece in range(sides.piece_ptr[side], sides.piece_ptr[side + 1]):
        count += ((sides.piece_high[piece] - 1 + pad) >> shift) - ((sides.piece_low[piece] + pad) >> shift) + 1
    return count


@njit(inline="always")
def _pieces(sides, side):
    return sides.piece_ptr[side + 1] - sides.piece_ptr[side] if side >= 0 else 1


@njit(inline="always")
def _piece(sides, side, i):
    """A box without the side is filed under the one cell that every event has there."""
    if side < 0:
        return np.int64(0), np.int64(1)
    at = sides.piece_ptr[side] + i
    return np.int64(sides.piece_low[at]), np.int64(sides.piece_high[at])


@njit(inline="always")
def _fields(low, high, bucket, shift):
    """A range's part of a bucket as two fields: the least place, and the least distance from the top."""
    pad = (np.int64(1) << shift) - 1
    start = max((low + pad) - (bucket << shift), 0)
    last = min((high - 1 + pad) - (bucket << shift), pad)
    return np.uint64(start) | (np.uint64(FIELD_MAX - last) << np.uint64(16))


@njit(inline="always")
def _is_range(sides, side):
    return sides.piece_ptr[side + 1] - sides.piece_ptr[side] == 1


@njit(inline="always")
def _write_record(sides, a, b, box, no_axis, record):
    for i in range(2):  # Where there is nothing to check, the line of zeros, which always holds.
        record[3 * i], record[3 * i + 1], record[3 * i + 2] = no_axis, 0, 1
    at = 0
    for side in range(sides.side_ptr[box], sides.side_ptr[box + 1]):
        if side != a and side != b and _is_range(sides, side) and at < 6:
            piece = sides.piece_ptr[side]
            record[at], record[at + 1] = sides.side_axis[side], sides.piece_low[piece]
            record[at + 2] = sides.piece_high[piece] - sides.piece_low[piece]
            at += 3


@njit(inline="always")
def _write_extras(sides, a, b, box, extras, at):
    ranges = 0
    for side in range(sides.side_ptr[box], sides.side_ptr[box + 1]):
        if side != a and side != b and _is_range(sides, side):
            ranges += 1
            if ranges > 2:
                piece = sides.piece_ptr[side]
                extras[at], extras[at + 1] = sides.side_axis[side], sides.piece_low[piece]
                extras[at + 2] = sides.piece_high[piece] - sides.piece_low[piece]
                at += 3
    for side in range(sides.side_ptr[box], sides.side_ptr[box + 1]):
        if side != a and side != b and not _is_range(sides, side):
            extras[at], extras[at + 1] = sides.side_axis[side], sides.piece_ptr[side]
            extras[at + 2] = sides.piece_ptr[side + 1] - sides.piece_ptr[side]
            at += 3


@kernel(types.void(_SIDES, _L1, _F1, types.int64, types.int64, _OUT_F1))
def measure_sides(sides, share_ptr, share, start, end, chance):
    """chance[side] = how likely an event satisfies it, for the sides from `start` up to `end`.

    share[share_ptr[axis] + c] is the part of all events whose cell on the axis is below c.
    """
    for side in range(start, end):
        base, likely = share_ptr[sides.side_axis[side]], np.float32(0)
        for piece in range(sides.piece_ptr[side], sides.piece_ptr[side + 1]):
            likely += share[base + sides.piece_high[piece]] - share[base + sides.piece_low[piece]]
        chance[side] = likely


@kernel(
    types.void(
        *(_SIDES, _F1, types.int64, _F1, types.float64[::1], types.int64, types.int64),
        *(_OUT_I1, _OUT_I1, types.int64[::1]),
    )
)
def choose_sides(sides, chance, axes, costs, probe, start, end, first, second, sizes):
    """Per box from `start` up to `end`, the one or two sides under which finding it costs least, or -1.

    costs   by what is paid per candidate, per hit, and what buckets add to a side's chance
    probe   per pair of axes, what looking into its grid costs each of its boxes
    sizes   per pair, adds how many boxes chose it
    """
    candidate, hit, blur = costs[0], costs[1], costs[2]
    best = np.empty(CHOICES_MAX, np.int64)
    for box in range(start, end):
        count = 0
        for side in range(sides.side_ptr[box], sides.side_ptr[box + 1]):
            at = min(count, CHOICES_MAX - 1)
            if count < CHOICES_MAX or chance[side] < chance[best[at]]:
                while at > 0 and chance[best[at - 1]] > chance[side]:
                    best[at] = best[at - 1]
                    at -= 1
                best[at] = side
                count = min(count + 1, CHOICES_MAX)
        one, two, least, chosen = -1, -1, np.inf, pair_number(axes, axes, axes, len(probe))
        for i in range(count):
            likely, a = chance[best[i]], sides.side_axis[best[i]]
            number = pair_number(a, axes, axes, len(probe))
            cost = probe[number] + likely * hit + (likely + blur) * candidate
            if cost < least:
                one, two, least, chosen = best[i], -1, cost, number
            for j in range(i + 1, count):
                both, b = likely * chance[best[j]], sides.side_axis[best[j]]
                number = pair_number(a, b, axes, len(probe))
                cost = probe[number] + both * hit + (likely + blur) * (chance[best[j]] + blur) * candidate
                if cost < least:
                    one, two, least, chosen = best[i], best[j], cost, number
        first[box], second[box] = one, two
        sizes[chosen] += 1


@kernel(types.void(_SIDES, _I1, _I1, _I1, _I1, types.int64, types.int64, types.int64[:, :, ::1]))
def count_entries(sides, side_a, side_b, pair, finest, start, end, entries):
    """entries[pair, x, y] += how often its boxes are filed x and y levels below the finest buckets of their axes.

    Counts the boxes from `start` up to `end`.
    """
    widths = np.empty(LEVELS, np.int64)
    for box in range(start, end):
        p, a, b = pair[box], side_a[box], side_b[box]
        if p < 0:
            continue
        for y in range(LEVELS):
            widths[y] = _buckets(sides, b, finest[sides.side_axis[b]] + y) if b >= 0 else 1
        for x in range(LEVELS):
            width = _buckets(sides, a, finest[sides.side_axis[a]] + x) if a >= 0 else 1
            for y in range(LEVELS):
                entries[p, x, y] += width * widths[y]


@kernel(types.void(_SIDES, _I1, _I1, _I1, _L2, _I1, types.int64[::1]))
def count_cells(sides, side_a, side_b, grid, grids, boxes, counts):
    """counts[c + 1] += how many entries grid cell c has."""
    for box in boxes:
        g = grid[box]
        shift_a, shift_b = grids[g, GRID_SHIFT_A], grids[g, GRID_SHIFT_B]
        pad_a, pad_b = (np.int64(1) << shift_a) - 1, (np.int64(1) << shift_b) - 1
        for i in range(_pieces(sides, side_a[box])):
            low_a, high_a = _piece(sides, side_a[box], i)
            for j in range(_pieces(sides, side_b[box])):
                low_b, high_b = _piece(sides, side_b[box], j)
                for x in range((low_a + pad_a) >> shift_a, ((high_a - 1 + pad_a) >> shift_a) + 1):
                    row = grids[g, GRID_START] + (x << grids[g, GRID_COLUMNS_LOG])
                    for y in range((low_b + pad_b) >> shift_b, ((high_b - 1 + pad_b) >> shift_b) + 1):
                        counts[row + y + 1] += 1


@kernel(types.void(_SIDES, _I1, _I1, _I1, _L2, _I1, types.int64, types.int64[::1], types.uint64[::1], _OUT_I1))
def file_entries(sides, side_a, side_b, grid, grids, boxes, first, ends, words, entries):
    """Writes the entries of the r-th of `boxes` for record first + r; ends[c] is where cell c's next entry goes."""
    for r in range(len(boxes)):
        box = boxes[r]
        g = grid[box]
        shift_a, shift_b = grids[g, GRID_SHIFT_A], grids[g, GRID_SHIFT_B]
        pad_a, pad_b = (np.int64(1) << shift_a) - 1, (np.int64(1) << shift_b) - 1
        for i in range(_pieces(sides, side_a[box])):
            low_a, high_a = _piece(sides, side_a[box], i)
            for j in range(_pieces(sides, side_b[box])):
                low_b, high_b = _piece(sides, side_b[box], j)
                for x in range((low_a + pad_a) >> shift_a, ((high_a - 1 + pad_a) >> shift_a) + 1):
                    row = grids[g, GRID_START] + (x << grids[g, GRID_COLUMNS_LOG])
                    fields_a = _fields(low_a, high_a, x, shift_a)
                    for y in range((low_b + pad_b) >> shift_b, ((high_b - 1 + pad_b) >> shift_b) + 1):
                        at = ends[row + y]
                        ends[row + y] = at + 1
                        words[at] = fields_a | (_fields(low_b, high_b, y, shift_b) << np.uint64(32))
                        entries[at] = first + r


@kernel(types.int64(_SIDES, _I1, _I1, _I1, _I1, _I1, types.int64, types.int64, types.int32[:, ::1], _OUT_I1))
def write_records(sides, side_a, side_b, owner, doubtful, boxes, no_axis, used, records, extras):
    """Writes what remains to be checked of each of `boxes`: two ranges in its record, all else among the extras.

    doubtful[box] tells whether a residual or a sibling box has a say. `used` is how much of `extras` is
    used before, at least 1, since 0 stands for nothing more to say. Returns how much is then; with an
    empty `extras` it only counts.
    """
    for r in range(len(boxes)):
        box = boxes[r]
        ranges, sets = 0, 0
        for side in range(sides.side_ptr[box], sides.side_ptr[box + 1]):
            if side != side_a[box] and side != side_b[box]:
                ranges += _is_range(sides, side)
                sets += not _is_range(sides, side)
        more = 0
        if ranges > 2 or sets > 0 or doubtful[box]:
            more, used = used, used + EXTRA_SIDES + 3 * (max(ranges - 2, 0) + sets)
        if len(extras) > 0:
            _write_record(sides, side_a[box], side_b[box], box, no_axis, records[r])
            records[r, RECORD_OWNER], records[r, RECORD_MORE] = owner[box], more
            if more > 0:
                extras[more], extras[more + 1], extras[more + 2] = max(ranges - 2, 0), sets, -1
                if doubtful[box]:
                    extras[more + 2] = box
                _write_extras(sides, side_a[box], side_b[box], box, extras, more + EXTRA_SIDES)
    return used


@kernel(types.int64(readable(types.uint8), _L1, _I1, _I1, _L1, _I1, _I1, types.boolean, _OUT_I1, _OUT_I1, _OUT_I1))
def join_pieces(null, number_ptr, number_low, number_high, text_ptr, text_low, text_high, is_count, ptr, low, high):
    """Writes per side its pieces in cells, NULL's cell among them; ptr[side] is where they start.

    With `is_count` only `ptr` is written. Returns -1, or the first side whose pieces do not ascend apart.
    """
    used = 0
    for side in range(len(null)):
        ptr[side] = used
        last = -1
        if null[side]:
            last = 1
            if not is_count:
                low[used], high[used] = 0, 1
            used += 1
        for kind in range(2):
            pieces, lows, highs = (
                (number_ptr, number_low, number_high) if kind == 0 else (text_ptr, text_low, text_high)
            )
            for i in range(pieces[side], pieces[side + 1]):
                if lows[i] >= highs[i] or (lows[i] <= last and not (null[side] and last == 1)):
                    return side
                if lows[i] == last:  # Begins where NULL ends: one range.
                    used -= 1
                elif not is_count:
                    low[used] = lows[i]
                if not is_count:
                    high[used] = highs[i]
                last = highs[i]
                used += 1
    ptr[len(null)] = used
    return -1


@kernel(types.int64(_SIDES, _I1, types.boolean, _OUT_I1, _OUT_I1, _OUT_I1, _OUT_I1, _OUT_I1))
def select_boxes(sides, boxes, is_count, side_ptr, side_axis, piece_ptr, piece_low, piece_high):
    """Copies the sides of these boxes. With `is_count` only counts: sides into side_ptr[0], pieces into piece_ptr[0]."""
    s, p = 0, 0
    for i in range(len(boxes)):
        box = boxes[i]
        if is_count:
            first, last = sides.side_ptr[box], sides.side_ptr[box + 1]
            s += last - first
            p += sides.piece_ptr[last] - sides.piece_ptr[first]
            continue
        side_ptr[i] = s
        for side in range(sides.side_ptr[box], sides.side_ptr[box + 1]):
            side_axis[s], piece_ptr[s] = sides.side_axis[side], p
            s += 1
            for piece in range(sides.piece_ptr[side], sides.piece_ptr[side + 1]):
                piece_low[p], piece_high[p] = sides.piece_low[piece], sides.piece_high[piece]
                p += 1
    side_ptr[0 if is_count else len(boxes)] = s
    piece_ptr[0 if is_count else s] = p
    return s


@kernel(types.void(_SIDES, _L1, types.uint8[::1]))
def mark_bounds(sides, first, is_bound):
    """is_bound[first[axis] + cell] = 1 for every cell at which a piece begins or behind which it ends."""
    for side in range(len(sides.side_axis)):
        base = first[sides.side_axis[side]]
        for piece in range(sides.piece_ptr[side], sides.piece_ptr[side + 1]):
            is_bound[base + sides.piece_low[piece]] = 1
            is_bound[base + sides.piece_high[piece]] = 1


@kernel(types.void(_SIDES, _L1, _I1, _OUT_I1, _OUT_I1))
def renumber(sides, first, table, low, high):
    """low, high = the pieces' bounds, each cell c of an axis replaced by table[first[axis] + c]."""
    for side in range(len(sides.side_axis)):
        base = first[sides.side_axis[side]]
        for piece in range(sides.piece_ptr[side], sides.piece_ptr[side + 1]):
            low[piece] = table[base + sides.piece_low[piece]]
            high[piece] = table[base + sides.piece_high[piece]]
