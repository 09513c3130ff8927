"""Patterns of LIKE as the arrays that `kernels.texts` reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from tidings.filters import LikeSegment, like_segments
from tidings.matching.box_table import Array, writable
from tidings.matching.kernels import texts as kernels
from tidings.matching.residuals.column import text_buffers


def compile_patterns(patterns: Iterable[str]) -> kernels.PatternArrays:
    """Many patterns, numbered from 0."""
    segment_counts, has_gaps, units, gaps, masks = [], [], list[list[int]](), list[list[int]](), list[list[_Mask]]()
    for pattern in patterns:
        segments = like_segments(pattern)
        wild = any(not segment.is_plain and segment.length for segment in segments)
        segment_counts.append(len(segments))
        has_gaps.append(wild)
        for segment in segments:
            units.append(_units(segment, in_characters=wild))
            gaps.append(_gap_words(units[-1]))
            masks.append(_masks(units[-1]) if gaps[-1] else [])
    flat = [mask for each in masks for mask in each]
    arrays = kernels.PatternArrays(
        segment_ptr=_ptr(segment_counts),
        has_gaps=np.array(has_gaps, np.uint8),
        unit_ptr=_ptr(map(len, units)),
        units=_joined(units, np.int32),
        failure=np.zeros(sum(map(len, units)), np.int32),
        gap_ptr=_ptr(map(len, gaps)),
        gaps=_joined(gaps, np.uint64),
        mask_ptr=_ptr(map(len, masks)),
        mask_unit=np.array([unit for unit, _, _ in flat], np.int32),
        mask_word=np.array([word for _, word, _ in flat], np.int32),
        mask_bits=np.array([bits for _, _, bits in flat], np.uint64),
    )
    arrays = kernels.PatternArrays(*map(writable, arrays))
    kernels.fill_failures(arrays.unit_ptr, arrays.units, arrays.failure)
    return arrays


def like_each(texts: pa.Array, numbers: Array, wanted: Array, patterns: kernels.PatternArrays) -> Array:
    """Whether the text with each number fits the pattern beside it."""
    out = np.empty(len(numbers), np.uint8)
    kernels.like_pairs(*text_buffers(texts), numbers.astype(np.int32), wanted.astype(np.int32), patterns, out)
    return out.astype(bool)


_Mask = tuple[int, int, int]  # A character, a word, and where in that word it stands, as bits.


def _units(segment: LikeSegment, *, in_characters: bool) -> list[int]:
    if not in_characters:
        return list(segment.runs[0][1].encode()) if segment.runs else []
    units = [kernels.GAP] * segment.length
    for offset, run in segment.runs:
        units[offset : offset + len(run)] = map(ord, run)
    return units


def _gap_words(units: Sequence[int]) -> list[int]:
    if kernels.GAP not in units:
        return []
    words = [0] * -(-len(units) // kernels.WORD_BITS)
    for place, unit in enumerate(units):
        if unit == kernels.GAP:
            words[place // kernels.WORD_BITS] |= 1 << place % kernels.WORD_BITS
    return words


def _masks(units: Sequence[int]) -> list[_Mask]:
    masks: dict[tuple[int, int], int] = {}
    for place, unit in enumerate(units):
        if unit != kernels.GAP:
            word, bit = divmod(place, kernels.WORD_BITS)
            masks[unit, word] = masks.get((unit, word), 0) | 1 << bit
    return sorted((unit, word, bits) for (unit, word), bits in masks.items())


def _ptr(counts: Iterable[int]) -> Array:
    return np.cumsum([0, *counts]).astype(np.int32)


def _joined(lists: Sequence[Sequence[int]], kind: type) -> Array:
    return np.array([item for each in lists for item in each], kind)
