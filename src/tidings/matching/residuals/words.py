"""Boxes filed under words: conditions with `LIKE '%word%'` and no selective side are found by the words in an event's texts.

All words of an attribute are looked for in one pass over each different text of a batch (`kernels.words`).
What is found is a pair of event and box whose sides hold; the residuals, the pattern among them, are evaluated as always.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from tidings.events import EventType, Value
from tidings.filters import like_segments
from tidings.matching.box_table import Array, one_chunk
from tidings.matching.kernels import words as kernels
from tidings.matching.kernels.build import Sides
from tidings.matching.residuals.column import text_buffers
from tidings.matching.residuals.indexable import read_like, text_names

Rows: TypeAlias = pa.Table | pa.RecordBatch

ROWS_FEW: Final = 32  # Finding the different texts of so few rows costs more than it saves.
BOXES_MIN: Final = 8  # A pass over the texts costs more than checking fewer boxes.
# How likely a text has a word of so many bytes, as long as nothing else is known.
CHANCES: Final = (1.0, 0.3, 0.1, 0.03, 0.01, 0.005, 0.003, 0.002, 0.001, 0.0005)
COST_RATIO: Final = 2.0  # Of a pair found by a word, to one found in a grid.


class WordIndex(NamedTuple):
    """Arrays of the words of a segment, ordered by attribute, of the automaton that finds them, and of the boxes under each.

    attribute   by root the place of its attribute in the event type
    box_ptr     boxes by word
    """

    attribute: Array
    box_ptr: Array
    boxes: Array
    keys: Array
    targets: Array
    failure: Array
    word: Array
    shorter: Array

    def __bool__(self) -> bool:
        return len(self.boxes) > 0

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self)

    def find(self, rows: Rows, cells_of: Callable[[], Array], sides: Sides, count_max: int) -> Array:
        """Pairs of a row, its number in the upper 32 bits, and a box that is filed here and whose sides hold the row.

        If they are more than `count_max`, they are not all. Cells are asked for only if some row has a word.
        """
        found = [self._find(root, rows, cells_of, sides, count_max) for root in range(len(self.attribute))]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def _find(self, root: int, rows: Rows, cells_of: Callable[[], Array], sides: Sides, count_max: int) -> Array:
        texts, codes = _texts_of(rows.column(int(self.attribute[root])))
        hits = self._scan(root, texts)
        if not len(hits):
            return hits
        hit_ptr = np.searchsorted(hits >> np.uint64(32), np.arange(len(texts) + 1)).astype(np.int64)
        words = (hits & np.uint64(0xFFFFFFFF)).astype(np.int32)
        lists = (codes, hit_ptr, words, self.box_ptr, self.boxes)
        pairs, count = kernels.boxes_with_words(*lists, cells_of(), sides, count_max)
        return pairs[:count]  # type: ignore[no-any-return]

    def _scan(self, root: int, texts: pa.Array) -> Array:
        last_seen = np.full(len(self.box_ptr) - 1, kernels.NONE, np.int32)
        what = (np.array([root], np.int32), len(self.attribute), self.automaton, last_seen)
        hits, count = kernels.scan_texts(*text_buffers(texts), *what)
        return hits[:count]  # type: ignore[no-any-return]

    @property
    def automaton(self) -> kernels.Automaton:
        return kernels.Automaton(self.keys, self.targets, self.failure, self.word, self.shorter)


class SingleEventWords:
    """Finds the boxes under the words of one event at a time."""

    def __init__(self, index: WordIndex, event_type: EventType) -> None:
        self._index, self._automaton = index, index.automaton
        self._names = [event_type.attributes[place].name for place in index.attribute.tolist()]
        self._roots = np.arange(len(self._names), dtype=np.int32)
        self._free: list[Array] = []  # By word NONE: as many as there have been readers at the same time.

    def words_of(self, values: Mapping[str, Value]) -> Array:
        """The words in the event's texts, by number; all texts are looked through in one call."""
        texts = [(values.get(name) or "").encode() for name in self._names]  # type: ignore[union-attr]
        content = np.frombuffer(b"".join(texts), np.uint8)
        ends = np.array([0, *accumulate(map(len, texts))], np.int32)
        try:
            last_seen = self._free.pop()
        except IndexError:
            last_seen = np.full(len(self._index.box_ptr) - 1, kernels.NONE, np.int32)
        hits, count = kernels.scan_texts(ends, content, self._roots, len(texts), self._automaton, last_seen)
        words = hits[:count].view(np.int32)[::2].copy()
        last_seen[words] = kernels.NONE
        self._free.append(last_seen)
        return words  # type: ignore[no-any-return]

    def boxes(self, words: Array, cells: Array, sides: Sides) -> list[int]:
        """The boxes under these words whose sides hold the event, given as its cell on each axis."""
        index = self._index
        lists = (_FIRST_TEXT, np.array([0, len(words)]), words, index.box_ptr, index.boxes)
        pairs, count = kernels.boxes_with_words(*lists, cells.reshape(-1, 1), sides, len(index.boxes))
        return pairs[:count].view(np.int32)[::2].tolist()  # type: ignore[no-any-return]


_FIRST_TEXT: Final = np.zeros(1, np.int32)


def _texts_of(column: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, Array]:
    """The different texts of a column, and for each row which it has; few rows keep a text each."""
    texts = one_chunk(column)
    if len(texts) <= ROWS_FEW:
        return texts, np.arange(len(texts), dtype=np.int32)  # What stands in place of a NULL fits no pattern.
    coded = texts.dictionary_encode()
    texts = pa.concat_arrays([coded.dictionary, pa.array([""], coded.dictionary.type)])  # NULL has no words.
    return texts, coded.indices.fill_null(len(coded.dictionary)).to_numpy(zero_copy_only=False)


def file_under_words(
    sets: Sequence[tuple[str, ...]], residual: Array, likely: Array, event_type: EventType
) -> tuple[WordIndex, Array]:
    """The boxes for which a word is more selective than where they are filed, and whether each box is one of them.

    residual   by box the number of its set of residuals, or one below 0
    likely     by box how likely an event is to meet it where it is filed
    """
    words = _best_words(sets, event_type)
    kinds: dict[tuple[int, bytes], int] = {}
    number = np.array([*(kinds.setdefault(word, len(kinds)) if word else -1 for word in words), -1], np.int64)[residual]
    chance = np.array([*(CHANCES[min(len(word), len(CHANCES) - 1)] for _, word in kinds), 1.0])[number]
    is_filed = (number >= 0) & (residual >= 0) & (COST_RATIO * chance < likely)
    if np.count_nonzero(is_filed) < BOXES_MIN:
        return NO_WORDS, np.zeros(len(residual), bool)
    boxes = np.flatnonzero(is_filed)
    known = list(kinds)
    used = sorted(known[at] for at in np.unique(number[boxes]).tolist())
    place = {word: at for at, word in enumerate(used)}
    at = np.array([place.get(word, -1) for word in known], np.int64)[number[boxes]]
    return _built(used, boxes[np.argsort(at, kind="stable")], np.bincount(at, minlength=len(used))), is_filed


def _best_words(sets: Sequence[tuple[str, ...]], event_type: EventType) -> list[tuple[int, bytes] | None]:
    """By set the longest word that one of its residuals looks for, with its attribute."""
    names = text_names(event_type)
    return [max((word for text in texts for word in _words(text, names)), key=_length, default=None) for texts in sets]


def _words(text: str, names: Mapping[str, int]) -> list[tuple[int, bytes]]:
    condition = read_like(text, names)
    if condition is None or condition.is_negated:
        return []
    middle = like_segments(condition.pattern)[1:-1]
    return [(condition.attribute, run.encode()) for segment in middle for _, run in segment.runs]


def _length(word: tuple[int, bytes]) -> int:
    return len(word[1])


def _built(words: list[tuple[int, bytes]], boxes: Array, counts: Array) -> WordIndex:
    attributes = sorted({attribute for attribute, _ in words})
    roots = np.array([attributes.index(attribute) for attribute, _ in words], np.int32)
    state_max = len(attributes) + sum(len(word) for _, word in words)
    keys = np.full(1 << (2 * state_max).bit_length(), kernels.NONE, np.int64)
    states = [np.full(state_max, kernels.NONE, np.int32) for _ in range(3)]
    automaton = kernels.Automaton(keys, np.zeros(len(keys), np.int32), *states)
    parent, depth = np.zeros(state_max, np.int32), np.zeros(state_max, np.int32)
    offsets, content = text_buffers(pa.array([word for _, word in words], pa.binary()))
    count = kernels.add_words(offsets, content, roots, len(attributes), automaton, parent, depth)
    by_depth = np.argsort(depth[:count], kind="stable").astype(np.int32)
    kernels.link_states(len(attributes), by_depth, parent, automaton)
    box_ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return WordIndex(np.array(attributes, np.int32), box_ptr, boxes.astype(np.int32), *automaton)


def _nothing(*kinds: Any) -> list[Array]:
    return [np.zeros(0, kind) for kind in kinds]


NO_WORDS: Final = WordIndex(
    np.zeros(0, np.int32),
    np.zeros(1, np.int32),
    *_nothing(np.int32, np.int64, np.int32, np.int32, np.int32, np.int32),
)
