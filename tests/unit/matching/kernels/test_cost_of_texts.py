"""No pattern and no text makes a match cost more than their lengths: counted in what is read, not in seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidings.events import EventType
from tidings.filters.like import like
from tidings.matching.kernels import texts as kernels
from tidings.matching.kernels import words as word_kernels
from tidings.matching.residuals import words
from tidings.matching.residuals.column import text_buffers
from tidings.matching.residuals.patterns import compile_patterns

LENGTH = 1500
TEXT = "a" * LENGTH
PLAIN = ["%a%a%a%b", "%" + "a%" * 300 + "b", "%" + "a" * 500 + "b%", "%" + "ab" * 200 + "%", "a%a%" + "a" * 400 + "b"]
WITH_GAPS = ["%" + "a_" * 300 + "b%", "%_%_%a_b%" + "%a_c" * 50, "_%" * 400 + "b"]


class CountingText(str):  # noqa: SLOT000  It counts.
    """Counts the characters that are looked at."""

    reads = 0

    def __getitem__(self, at: Any) -> str:
        self.reads += 1
        return super().__getitem__(at)

    def find(self, word: str, start: Any = 0, end: Any = None) -> int:
        place = super().find(word, start, end)
        self.reads += (end if place < 0 else place + len(word)) - start  # What an algorithm in linear time reads.
        return place


@pytest.mark.parametrize("pattern", PLAIN + WITH_GAPS)
def test_the_definition_of_like_looks_at_each_character_once(pattern: str) -> None:
    text = CountingText(TEXT)
    assert not like(pattern, text)
    assert text.reads <= LENGTH


class CountingArray:
    """Counts how often an item is read."""

    def __init__(self, items: Any) -> None:
        self.items, self.reads = items, 0

    def __getitem__(self, at: Any) -> Any:
        self.reads += 1
        return self.items[at]

    def __len__(self) -> int:
        return len(self.items)


@pytest.fixture
def plain_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernels' own source, run by Python."""
    for module in (kernels, word_kernels):
        for name, function in list(vars(module).items()):
            if hasattr(function, "py_func"):
                monkeypatch.setattr(module, name, function.py_func)
    with np.errstate(over="ignore"):
        yield


@pytest.mark.parametrize("pattern", PLAIN + WITH_GAPS)
@pytest.mark.usefixtures("plain_python")
def test_the_kernel_of_like_reads_as_much_as_text_and_pattern_are_long(pattern: str) -> None:
    arrays, out = compile_patterns([pattern]), np.zeros(1, np.uint8)
    offsets, content = text_buffers(pa.array([TEXT]))
    units, failure, mask_bits = map(CountingArray, (arrays.units, arrays.failure, arrays.mask_bits))
    counted = arrays._replace(units=units, failure=failure, mask_bits=mask_bits)
    zero = np.zeros(1, np.int32)
    kernels.like_pairs.function(offsets, content, zero, zero, counted, out)
    assert out[0] == 0
    words_per_character = 1 + len(pattern) // kernels.WORD_BITS
    assert units.reads <= 4 * (LENGTH + len(pattern))
    assert failure.reads <= LENGTH + len(pattern)
    assert mask_bits.reads <= LENGTH * words_per_character


@pytest.fixture
def word_index() -> words.WordIndex:
    event_type = EventType("Note", body=str)
    sets = [(f"body LIKE '%{'a' * size}%'",) for size in range(1, 101)] + [(f"body LIKE '%{'a' * 90}b%'",)]
    index, is_filed = words.file_under_words(sets, np.arange(101, dtype=np.int32), np.full(101, 1e9), event_type)
    assert is_filed.all()
    return index


def test_a_scan_for_words_takes_two_steps_a_byte_and_one_for_each_word_it_finds(
    word_index: words.WordIndex, plain_python: None
) -> None:  # In this order: what builds the index may have to be compiled, which takes compiled parts.
    index = word_index
    offsets, content = text_buffers(pa.array([TEXT]))
    failure, last_seen = CountingArray(index.failure), CountingSeen(len(index.box_ptr) - 1)
    automaton = word_kernels.Automaton(index.keys, index.targets, failure, index.word, index.shorter)
    _, count = word_kernels.scan_texts.function(offsets, content, np.zeros(1, np.int32), 1, automaton, last_seen)
    assert count == 100
    assert failure.reads <= LENGTH
    assert last_seen.reads <= LENGTH + count


class CountingSeen(CountingArray):
    """When each word was last seen."""

    def __init__(self, size: int) -> None:
        super().__init__(np.full(size, word_kernels.NONE, np.int32))

    def __setitem__(self, at: Any, text: int) -> None:
        self.items[at] = text
