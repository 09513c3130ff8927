r"""LIKE in linear time, whatever the pattern: subscribers write patterns, publishers write texts.

`%` cuts a pattern into segments of plain characters and `_`. The first must stand at the start of the
text and the last at its end. Each one between is taken where it first fits behind the one before, and
that is never wrong: if the segments fit in any way, then moving them to the left one after another, each
to its first place, leaves more room to those that follow. So nothing is tried twice, unlike in a regular
expression, where `%a%a%a%b` takes the cube of the text's length.

A segment without `_` is found by `str.find`, whose worst case is linear. One with `_` is found by
Shift-Or: bit i from the top of `state` is 0 if the last i + 1 characters fit the first i + 1 of the segment.
So a character costs one shift and one OR, in words of the machine a 64th of the segment's length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Final, TypeAlias

from tidings.filters.syntax import like_parts

PATTERNS_MAX: Final = 16_384  # Compiled patterns that are kept; a miss costs only time.
SHORT: Final = 64  # Characters of a segment whose misfits are kept: so many of one word at most.

_ANY_OTHER: Final = ""  # Stands for a character that the segment does not have.

_Places: TypeAlias = dict[str, int]  # By character, as bits; the first place is the highest bit.


@dataclass(frozen=True, slots=True)
class LikeSegment:
    """Plain runs with their places in the segment; every other character of it is `_`."""

    length: int
    runs: tuple[tuple[int, str], ...]
    misfits: _Places | None  # By character the places that it does not fit, for a short segment with `_`.

    @property
    def is_plain(self) -> bool:
        return len(self.runs) == 1 and len(self.runs[0][1]) == self.length

    def fits(self, text: str, at: int) -> bool:
        """Whether the segment fits at a place that leaves it enough room."""
        return all(text.startswith(run, at + offset) for offset, run in self.runs)

    def find(self, text: str, start: int, end: int) -> int:
        """The first place in text[start:end] where it fits, or -1."""
        if self.is_plain:
            return text.find(self.runs[0][1], start, end)
        if not self.runs:
            return start if start + self.length <= end else -1
        return self._find_with_gaps(text, start, end)

    def _find_with_gaps(self, text: str, start: int, end: int) -> int:
        if start + self.length > end:
            return -1
        misfits = self.misfits or _misfits(self.length, self.runs)
        state, plain = (1 << self.length) - 1, misfits[_ANY_OTHER]
        for at in range(start, end):
            state = state >> 1 | misfits.get(text[at], plain)
            if not state & 1:
                return at + 1 - self.length
        return -1


@lru_cache(maxsize=PATTERNS_MAX)
def like_segments(pattern: str) -> tuple[LikeSegment, ...]:
    """The segments between the `%` of a pattern, empty ones included: one more than there are `%`."""
    segments, here = [], [""]
    for index, part in enumerate(like_parts(pattern)):
        if part == "%" and index % 2:
            segments.append(_segment(here))
            here = [""]
        elif index % 2:
            here.append("")
        else:
            here[-1] += part
    return (*segments, _segment(here))


def like(pattern: str, text: str) -> bool:
    """Whether a text fits a pattern.

    >>> like("%b_n%s", "bananas"), like("a%a", "a")
    (True, False)
    """
    first, *middle = like_segments(pattern)
    if not middle:
        return len(text) == first.length and first.fits(text, 0)
    last = middle.pop()
    at, end = first.length, len(text) - last.length
    if at > end or not first.fits(text, 0) or not last.fits(text, end):
        return False
    for segment in middle:
        place = segment.find(text, at, end)
        if place < 0:
            return False
        at = place + segment.length
    return True


def _segment(pieces: list[str]) -> LikeSegment:
    """A segment of these plain pieces with one `_` between any two."""
    offsets = accumulate((len(piece) + 1 for piece in pieces), initial=0)
    runs = tuple((offset, piece) for offset, piece in zip(offsets, pieces) if piece)
    length = sum(map(len, pieces)) + len(pieces) - 1
    kept = len(pieces) > 1 and length <= SHORT
    return LikeSegment(length, runs, _misfits(length, runs) if kept else None)


def _misfits(length: int, runs: tuple[tuple[int, str], ...]) -> _Places:
    """The places that each character of the segment does not fit; any other character fits none but those of `_`."""
    plain = _plain_places(length, runs)
    misfits: _Places = {_ANY_OTHER: plain}
    for offset, run in runs:
        for place, character in enumerate(run, offset + 1):
            misfits[character] = misfits.get(character, plain) ^ 1 << length - place
    return misfits


def _plain_places(length: int, runs: tuple[tuple[int, str], ...]) -> int:
    """Every place but those of `_`."""
    bits = bytearray(b"0") * length
    for offset, run in runs:
        bits[offset : offset + len(run)] = b"1" * len(run)
    return int(bits, 2)
