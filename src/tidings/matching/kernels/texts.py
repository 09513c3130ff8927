"""Kernels over texts as Arrow holds them: offsets into bytes of UTF-8.

LIKE runs as in `tidings.filters.like`, whose reasons why a pattern takes linear time hold here
as well; a plain segment is found by Knuth, Morris and Pratt's algorithm. A pattern without `_` is compared in
bytes: no character's bytes begin inside another's. One with `_` is compared in characters.
"""

# mypy: disable-error-code="call-arg, no-untyped-def, no-untyped-call"
# Numba infers types itself; the plain twins of the kernels are fully checked.

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types

from tidings.matching.kernels.cache import kernel
from tidings.matching.kernels.cells import readable

GAP = -1  # The unit that stands for `_`.
WORD_BITS = 64

_I1, _L1, _B1 = readable(types.int32), readable(types.int64), readable(types.uint8)
_OUT_I1, _OUT_L1, _OUT_B1 = types.int32[::1], types.int64[::1], types.uint8[::1]


class PatternArrays(NamedTuple):
    """Patterns of LIKE: each a run of segments, each of these a run of units, which are bytes or characters.

    segment_ptr   segments by pattern
    has_gaps      by pattern whether it has `_`; then units are characters
    unit_ptr      units by segment
    units         bytes, characters, or GAP
    failure       by unit of a plain segment, how much of it is still found if the next unit differs
    gap_ptr       words by segment, none for a plain one; bit i stands for its i-th unit
    gaps          words of bits: which units are GAP
    mask_ptr      masks by segment, ordered by character
    mask_unit, mask_word, mask_bits     where in that word the character is
    """

    segment_ptr: Any
    has_gaps: Any
    unit_ptr: Any
    units: Any
    failure: Any
    gap_ptr: Any
    gaps: Any
    mask_ptr: Any
    mask_unit: Any
    mask_word: Any
    mask_bits: Any


_PATTERNS = types.NamedTuple(
    (
        *(types.int32[::1], types.uint8[::1], types.int32[::1], types.int32[::1], types.int32[::1], types.int32[::1]),
        *(types.uint64[::1], types.int32[::1], types.int32[::1], types.int32[::1], types.uint64[::1]),
    ),
    PatternArrays,
)


@kernel(types.void(types.int32[::1], types.int32[::1], _OUT_I1))
def fill_failures(unit_ptr, units, failure):
    """failure[i] = of the units from the segment's start to i, how many end with as many of its first ones."""
    for segment in range(len(unit_ptr) - 1):
        first, end = unit_ptr[segment], unit_ptr[segment + 1]
        if first < end:
            failure[first] = 0
        held = 0
        for at in range(first + 1, end):
            while held > 0 and units[at] != units[first + held]:
                held = failure[first + held - 1]
            held += units[at] == units[first + held]
            failure[at] = held


@njit(nogil=True)
def _fits_at(text, at, units, first, end):
    for i in range(end - first):  # noqa: SIM110  Numba knows no generators here.
        if units[first + i] >= 0 and units[first + i] != text[at + i]:
            return False
    return True


@njit(nogil=True)
def _find_plain(text, start, stop, units, failure, first, end):
    """Behind the first place in text[start:stop] where the segment is, or -1."""
    held, size = 0, end - first
    if size == 0:
        return start
    for at in range(start, stop):
        unit = np.int32(text[at])
        while held > 0 and unit != units[first + held]:
            held = failure[first + held - 1]
        held += unit == units[first + held]
        if held == size:
            return at + 1
    return np.int64(-1)


@njit(nogil=True)
def _first_mask(patterns, segment, unit):
    low, high = patterns.mask_ptr[segment], patterns.mask_ptr[segment + 1]
    while low < high:
        middle = (low + high) >> 1
        if patterns.mask_unit[middle] < unit:
            low = middle + 1
        else:
            high = middle
    return low


@njit(nogil=True)
def _find_with_gaps(text, start, stop, patterns, segment, state, shifted):
    """The same for a segment with gaps. Bit i of `state`: the last i + 1 characters fit its first i + 1."""
    size = patterns.unit_ptr[segment + 1] - patterns.unit_ptr[segment]
    first, words = patterns.gap_ptr[segment], patterns.gap_ptr[segment + 1] - patterns.gap_ptr[segment]
    mask_end, mask_unit, mask_word = patterns.mask_ptr[segment + 1], patterns.mask_unit, patterns.mask_word
    mask_bits, gaps = patterns.mask_bits, patterns.gaps
    last = np.uint64(1) << np.uint64((size - 1) & (WORD_BITS - 1))
    for word in range(words):
        state[word] = 0
    for at in range(start, stop):
        carry = np.uint64(1)
        for word in range(words):
            shifted[word] = (state[word] << np.uint64(1)) | carry
            carry = state[word] >> np.uint64(WORD_BITS - 1)
            state[word] = shifted[word] & gaps[first + word]
        mask = _first_mask(patterns, segment, text[at])
        while mask < mask_end and mask_unit[mask] == text[at]:
            state[mask_word[mask]] |= shifted[mask_word[mask]] & mask_bits[mask]
            mask += 1
        if state[words - 1] & last:
            return at + 1
    return np.int64(-1)


@njit(inline="always")
def _is_like(text, start, stop, patterns, pattern, state, shifted):
    """Whether text[start:stop], in the pattern's units, fits it."""
    unit_ptr, units, failure, gap_ptr = patterns.unit_ptr, patterns.units, patterns.failure, patterns.gap_ptr
    segment, last = patterns.segment_ptr[pattern], patterns.segment_ptr[pattern + 1] - 1
    head, tail = unit_ptr[segment + 1] - unit_ptr[segment], unit_ptr[last + 1] - unit_ptr[last]
    if segment == last:
        return head == stop - start and _fits_at(text, start, units, unit_ptr[segment], unit_ptr[segment + 1])
    at, stop = np.int64(start + head), np.int64(stop - tail)
    if at > stop or not _fits_at(text, start, units, unit_ptr[segment], unit_ptr[segment + 1]):
        return False
    if not _fits_at(text, stop, units, unit_ptr[last], unit_ptr[last + 1]):
        return False
    for middle in range(segment + 1, last):
        if gap_ptr[middle] == gap_ptr[middle + 1]:
            at = _find_plain(text, at, stop, units, failure, unit_ptr[middle], unit_ptr[middle + 1])
        else:
            at = _find_with_gaps(text, at, stop, patterns, middle, state, shifted)
        if at < 0:
            return False
    return True


@njit(inline="always")
def _starts_character(byte):
    return (byte & 0xC0) != 0x80


@njit(nogil=True)
def _characters(content, start, stop, out):
    """Writes the characters of a text; returns how many."""
    count = 0
    for at in range(start, stop):
        byte = np.int32(content[at])
        if not _starts_character(byte):
            out[count - 1] = (out[count - 1] << 6) | (byte & 0x3F)
        else:
            out[count] = byte if byte < 0x80 else byte & (0x1F if byte < 0xE0 else 0x0F if byte < 0xF0 else 0x07)
            count += 1
    return count


@kernel(types.void(_I1, _B1, _I1, _I1, _PATTERNS, _OUT_B1))
def like_pairs(offsets, content, texts, wanted, patterns, out):
    """out[i] = whether the text with number texts[i] fits the pattern with number wanted[i]."""
    longest, words = 1, 1
    for i in range(len(offsets) - 1):
        longest = max(longest, offsets[i + 1] - offsets[i])
    for i in range(len(patterns.gap_ptr) - 1):
        words = max(words, patterns.gap_ptr[i + 1] - patterns.gap_ptr[i])
    state, shifted = np.empty(words, np.uint64), np.empty(words, np.uint64)
    characters, decoded, count = np.empty(longest, np.int32), -1, 0
    for i in range(len(out)):
        text, pattern = texts[i], wanted[i]
        start, stop = offsets[text], offsets[text + 1]
        if patterns.has_gaps[pattern] == 0:
            out[i] = _is_like(content, start, stop, patterns, pattern, state, shifted)
            continue
        if text != decoded:
            decoded, count = text, _characters(content, start, stop, characters)
        out[i] = _is_like(characters, 0, count, patterns, pattern, state, shifted)


# ── Parts of texts, and numbers in them ──────────────────────────────────────


@njit(nogil=True)
def _behind_characters(content, at, stop, count):
    """Where the text goes on behind `count` characters from `at` on."""
    while at < stop and count > 0:
        at += 1
        while at < stop and not _starts_character(content[at]):
            at += 1
        count -= 1
    return at


@kernel(types.void(_I1, _B1, _L1, _L1, _OUT_I1, _OUT_I1))
def slice_texts(offsets, content, skipped, counts, starts, ends):
    """content[starts[i]:ends[i]] = counts[i] characters of text i behind the first skipped[i] ones, or as many as there are."""
    for i in range(len(starts)):
        starts[i] = _behind_characters(content, np.int64(offsets[i]), np.int64(offsets[i + 1]), skipped[i])
        ends[i] = _behind_characters(content, np.int64(starts[i]), np.int64(offsets[i + 1]), counts[i])


@kernel(types.void(_B1, _I1, _L1, _OUT_B1))
def copy_slices(content, starts, ptr, out):
    """out[ptr[i]:ptr[i + 1]] = as many bytes of the content from starts[i] on."""
    for i in range(len(ptr) - 1):
        for k in range(ptr[i + 1] - ptr[i]):
            out[ptr[i] + k] = content[starts[i] + k]


@kernel(types.void(_I1, _B1, types.int64, _OUT_L1, _OUT_B1))
def parse_ints(offsets, content, length_max, numbers, is_number):
    """numbers[i] = text i as a whole number in decimal digits with or without a sign, if is_number[i] = 1."""
    for i in range(len(numbers)):
        at, stop = offsets[i], offsets[i + 1]
        negative, fits = at < stop and content[at] == ord("-"), 0 < stop - at <= length_max
        if at < stop and (negative or content[at] == ord("+")):
            at += 1
        fits &= at < stop
        number = np.uint64(0)
        limit = np.uint64(1 << 63) if negative else np.uint64((1 << 63) - 1)
        while at < stop and fits:
            digit = np.uint64(content[at]) - np.uint64(48)
            fits = digit <= 9 and number <= (limit - digit) // np.uint64(10)
            number = number * np.uint64(10) + digit
            at += 1
        numbers[i] = -np.int64(number) if negative else np.int64(number)
        is_number[i] = fits
