"""Kernels that find all words of a set in a text in one pass: Aho and Corasick's automaton.

States are numbered; those of a word's beginnings form a trie, and each attribute has a root of its own. Where the trie does
not go on with the next byte, the search continues at the longest end of what was read that is a beginning as well
(`failure`). So a text costs as many steps as it has bytes, twice at most, and one for each word found, however many words
there are. Edges are in a hash table by state and byte.
"""

# mypy: disable-error-code="call-arg, no-untyped-def, no-untyped-call"
# Numba infers types itself; the plain twins of the kernels are fully checked.

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types

from tidings.matching.kernels.build import Sides
from tidings.matching.kernels.cache import kernel
from tidings.matching.kernels.cells import readable

_I1, _B1 = readable(types.int32), readable(types.uint8)
_OUT_I1, _OUT_L1, _OUT_W1 = types.int32[::1], types.int64[::1], types.uint64[::1]
NONE = -1


class Automaton(NamedTuple):
    """Edges as keys (state and byte) and targets; by state where it fails to, the word that ends there, and the next
    shorter one that ends there as well (as the state where it ends).
    """

    keys: Any
    targets: Any
    failure: Any
    word: Any
    shorter: Any


_AUTOMATON = types.NamedTuple((_OUT_L1, _OUT_I1, _OUT_I1, _OUT_I1, _OUT_I1), Automaton)
_SIDES = types.NamedUniTuple(types.int32[::1], 5, Sides)


@njit(inline="always")
def _slot(keys, key):
    """Where the edge is, or the free slot where it belongs."""
    mask = np.uint64(len(keys) - 1)
    value = np.uint64(key)
    value ^= value >> np.uint64(29)
    slot = ((value * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)) & mask
    while keys[slot] != NONE and keys[slot] != key:
        slot = (slot + np.uint64(1)) & mask
    return slot


@njit(inline="always")
def _next(keys, targets, state, byte):
    """The state behind an edge, or NONE."""
    key = (np.int64(state) << 8) | np.int64(byte)
    slot = _slot(keys, key)
    return targets[slot] if keys[slot] == key else np.int32(NONE)


@kernel(types.int64(_I1, _B1, _I1, types.int64, _AUTOMATON, _OUT_I1, _OUT_I1))
def add_words(offsets, content, roots, root_count, automaton, parent, depth):
    """Enters the words as a trie, each under its root; returns the number of states.

    parent, depth    by state; written
    """
    keys, targets, word = automaton.keys, automaton.targets, automaton.word
    count = root_count
    for number in range(len(offsets) - 1):
        state = roots[number]
        for at in range(offsets[number], offsets[number + 1]):
            key = (np.int64(state) << 8) | np.int64(content[at])
            slot = _slot(keys, key)
            if keys[slot] == NONE:
                keys[slot], targets[slot] = key, count
                parent[count], depth[count] = state, depth[state] + 1
                count += 1
            state = targets[slot]
        word[state] = number
    return count


@kernel(types.void(types.int64, _I1, _I1, _AUTOMATON))
def link_states(root_count, by_depth, parent, automaton):
    """Writes `failure` and `shorter` of all states, the shallow ones first."""
    keys, targets, failure, word, shorter = automaton
    byte_of = np.zeros(len(failure), np.int32)
    for slot in range(len(keys)):
        if keys[slot] != NONE:
            byte_of[targets[slot]] = np.int32(keys[slot] & 255)
    for state in range(root_count):
        failure[state], shorter[state] = state, NONE
    for i in range(len(by_depth)):
        state = by_depth[i]
        if state < root_count:
            continue
        above = parent[state]
        target = above
        if above >= root_count:
            back = failure[above]
            target = _next(keys, targets, back, byte_of[state])
            while target == NONE and back >= root_count:
                back = failure[back]
                target = _next(keys, targets, back, byte_of[state])
            if target == NONE:
                target = back
        failure[state] = target
        shorter[state] = target if word[target] != NONE else shorter[target]


@njit(nogil=True)
def _with_room(pairs, used):
    if used < len(pairs):
        return pairs
    larger = np.empty(2 * len(pairs), np.uint64)
    for i in range(used):
        larger[i] = pairs[i]
    return larger


@kernel(types.Tuple((_OUT_W1, types.int64))(_I1, _B1, _I1, types.int64, _AUTOMATON, _OUT_I1))
def scan_texts(offsets, content, roots, root_count, automaton, last_seen):
    """Pairs of a text's number and that of a word in it, each once, ordered by text; and how many.

    roots       by text the state that its attribute's words begin at; or one for all
    last_seen   by word NONE, for work. If a word was seen in this text, so were the shorter ones at its end.
    """
    keys, targets, failure, word, shorter = automaton
    out, count = np.empty(64, np.uint64), 0
    for text in range(len(offsets) - 1):
        state = roots[text] if len(roots) > 1 else roots[0]
        for at in range(offsets[text], offsets[text + 1]):
            target = _next(keys, targets, state, content[at])
            while target == NONE and state >= root_count:
                state = failure[state]
                target = _next(keys, targets, state, content[at])
            if target == NONE:
                continue
            state = target
            end = state if word[state] != NONE else shorter[state]
            while end != NONE and last_seen[word[end]] != text:
                last_seen[word[end]] = text
                out = _with_room(out, count)
                out[count] = (np.uint64(text) << np.uint64(32)) | np.uint64(word[end])
                count += 1
                end = shorter[end]
    return out, count


@njit(nogil=True)
def _holds(cells, row, box, sides):
    """Whether all sides of a box hold the cells of a row."""
    side_axis, piece_ptr, piece_low, piece_high = sides.side_axis, sides.piece_ptr, sides.piece_low, sides.piece_high
    for side in range(sides.side_ptr[box], sides.side_ptr[box + 1]):
        value, low, end = cells[side_axis[side], row], piece_ptr[side], piece_ptr[side + 1]
        high = end
        while low < high:
            middle = (low + high) >> 1
            if piece_high[middle] <= value:
                low = middle + 1
            else:
                high = middle
        if low == end or value < piece_low[low]:
            return False
    return True


@kernel(
    types.Tuple((_OUT_W1, types.int64))(
        _I1, _OUT_L1, _OUT_I1, _OUT_I1, _OUT_I1, readable(types.int32, 2), _SIDES, types.int64
    )
)
def boxes_with_words(codes, hit_ptr, hits, box_ptr, boxes, cells, sides, count_max):
    """Pairs of a row and a box filed under a word of the row's text, whose sides all hold the row; and how many.

    codes            by row the number of its text
    hit_ptr, hits    words by text
    box_ptr, boxes   boxes by word
    cells            by axis and row
    count_max        with more pairs than that, the result is not complete
    """
    out, count = np.empty(64, np.uint64), 0
    for row in range(len(codes)):
        if count > count_max:
            break
        for hit in range(hit_ptr[codes[row]], hit_ptr[codes[row] + 1]):
            for i in range(box_ptr[hits[hit]], box_ptr[hits[hit] + 1]):
                if _holds(cells, row, boxes[i], sides):
                    out = _with_room(out, count)
                    out[count] = (np.uint64(row) << np.uint64(32)) | np.uint64(boxes[i])
                    count += 1
    return out, count
