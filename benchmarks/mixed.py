"""The mixed workload: conditions as people write them, over events with gaps and favourites.

Events have the attributes of the plain workload (`benchmarks.workload`), but a quarter of the numbers are skewed
towards zero, texts read 'amber-canyon-17' and come in two spellings, frequent ones far more often, and every fourth
number and the last text are absent now and then.

A condition is an AND of two to five sides, as before. Of a hundred, 35 have something that is no plain side:

    10  an OR between two attributes, or within one
     6  a NOT: `NOT (n3 BETWEEN 5 AND 90)`, `s1 <> 'Amber-canyon-17'`
     5  a suffix, and 5 a contained word; four in ten of these are the selective part of their condition
     4  two attributes: `n3 < n7`, `n3 + 20000 < n7`
     5  a function: `UPPER(s1) = …`, `LENGTH(s0) = 17`, `ABS(n3 - 500) < 20`

and one in five of those with a text has IN. Widths of intervals are chosen such that one condition in 10,000 matches,
as in the plain workload.

Every condition exists in two forms that mean the same: the text, and `Boxes`, the translation for engines that know
nothing but joins on integers. There a text is its code, and what a condition computes (an upper-case text, a length, a
difference of two attributes) is an attribute of its own, computed beforehand. A pattern is the set of the codes
that it accepts, found beforehand as well. Absent is the smallest number of all.

    python -m benchmarks.mixed mixed10k      prints what a workload looks like
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks import workload as plain
from benchmarks.workload import DOMAIN, EVENTS, NUMBERS, TEXT_VALUES, UNBOUNDED_HIGH, UNBOUNDED_LOW, Subscriptions
from tidings.events import EventType

Array = np.ndarray[Any, Any]

MIXED = {"mixed1k": 1_000, "mixed10k": 10_000, "mixed100k": 100_000, "mixed1m": 1_000_000}
SCALE = 0.0021  # Widths of intervals that give one match in 10,000, as in the plain workload.
NULL = UNBOUNDED_LOW + 1  # An absent value; a side that is open downwards begins above it.
LOWEST = NULL + 1

TEXTS = len(TEXT_VALUES)
PAIRS = ((0, 2), (1, 3), (4, 6), (5, 7), (8, 9), (10, 12), (13, 15), (16, 18))  # Numbers that conditions compare.
UPPER, LENGTH = plain.ATTRIBUTES, plain.ATTRIBUTES + TEXTS  # Where computed attributes begin.
DIFFERENCE = LENGTH + TEXTS
ATTRIBUTES = DIFFERENCE + len(PAIRS)
NAMES = [
    *plain.NAMES,
    *(f"upper_s{i}" for i in range(TEXTS)),
    *(f"length_s{i}" for i in range(TEXTS)),
    *(f"n{b}_minus_n{a}" for a, b in PAIRS),
]
READING = EventType("Reading", {name: int if name.startswith("n") else str for name in plain.NAMES})

ABSENT_SHARE = 0.1
WORDS = [
    "amber",
    "anchor",
    "apple",
    "arrow",
    "atlas",
    "autumn",
    "basin",
    "beacon",
    "birch",
    "breeze",
    "bridge",
    "canyon",
    "castle",
    "cedar",
    "cloud",
    "cobalt",
    "copper",
    "coral",
    "crystal",
    "dawn",
    "delta",
    "desert",
    "ember",
    "falcon",
    "fern",
    "field",
    "flint",
    "forest",
    "garnet",
    "glacier",
    "harbor",
    "hazel",
    "heron",
    "indigo",
    "iron",
    "island",
    "ivory",
    "jade",
    "juniper",
    "lagoon",
    "lantern",
    "linden",
    "lotus",
    "marble",
    "meadow",
    "mesa",
    "mist",
    "moss",
    "nickel",
    "oak",
    "ocean",
    "onyx",
    "opal",
    "orchid",
    "otter",
    "pearl",
    "pine",
    "quartz",
    "raven",
    "reef",
    "river",
]
TAILS = 97
KINDS = {"or": 0.10, "not": 0.06, "suffix": 0.05, "contains": 0.05, "two": 0.04, "function": 0.05}
IN_SHARE, SAME_ATTRIBUTE, SELECTIVE = 0.2, 0.3, 0.4


@dataclass(frozen=True, slots=True)
class Boxes:
    """Conditions for engines that join: box b belongs to condition `owner[b]`, which matches if one of its boxes does.

    A box has the sides of `wanted`; where `not_attr` is not negative, a value outside `not_lo <= value < not_hi` and
    present; and where `set_id` is not negative, a code of `set_attr` out of `codes[set_ptr[id]:set_ptr[id + 1]]`.
    """

    wanted: Subscriptions
    owner: Array
    not_attr: Array
    not_lo: Array
    not_hi: Array
    set_attr: Array
    set_id: Array
    set_ptr: Array
    codes: Array

    @property
    def conditions(self) -> int:
        return int(self.owner[-1]) + 1

    def passing(self, event: Array) -> Array:
        """The conditions that one event matches, by looking at every box."""
        value = event[self.wanted.attr]
        inside = (value >= self.wanted.lo) & ((value < self.wanted.hi) | (self.wanted.hi == UNBOUNDED_HIGH))
        holds = np.logical_and.reduceat(inside, self.wanted.ptr[:-1])
        value = event[self.not_attr]
        holds &= (self.not_attr < 0) | (((value < self.not_lo) | (value >= self.not_hi)) & (value != NULL))
        asked = np.flatnonzero(holds & (self.set_id >= 0))
        holds[asked] = [self._accepts(box, event[self.set_attr[box]]) for box in asked]
        return np.unique(self.owner[holds])

    def _accepts(self, box: int, code: int) -> bool:
        start, end = self.set_ptr[self.set_id[box] : self.set_id[box] + 2]
        return bool(code in self.codes[start:end])


# ── Values ───────────────────────────────────────────────────────────────────


@cache
def spelling(code: int) -> str:
    """The text of a code; two codes in a row differ in the first letter's case alone."""
    number = code // 2
    text = f"{WORDS[number % len(WORDS)]}-{WORDS[number // len(WORDS) % len(WORDS)]}-{number % TAILS:02}"
    return text.capitalize() if code % 2 else text


@cache
def spellings() -> list[str]:
    return [spelling(code) for code in range(max(TEXT_VALUES))]


def values(rng: np.random.Generator, a: int, count: int) -> Array:
    """Present values of an attribute, as events have them and conditions ask for them."""
    if a >= NUMBERS:
        weights = 1 / np.arange(1, TEXT_VALUES[a - NUMBERS] + 1) ** 0.8
        return rng.choice(TEXT_VALUES[a - NUMBERS], size=count, p=weights / weights.sum())
    if a % 4 == 1:
        return (rng.random(count) ** 3 * DOMAIN).astype(np.int64)
    if a % 2 == 0:
        return rng.integers(0, DOMAIN, count)
    return np.clip(rng.normal(0.5, 0.15, count) * DOMAIN, 0, DOMAIN - 1).astype(np.int64)


@cache
def events(count: int = EVENTS, seed: int = 3) -> Array:
    """By row and attribute, computed ones included; `NULL` where a value is absent."""
    rng = np.random.default_rng(seed)
    found = np.stack([values(rng, a, count) for a in range(plain.ATTRIBUTES)], 1)
    for a in (*range(3, NUMBERS, 4), plain.ATTRIBUTES - 1):
        found[rng.random(count) < ABSENT_SHARE, a] = NULL
    return with_computed(found.astype(np.int32))


@cache
def _lengths() -> Array:
    return np.array([len(text) for text in spellings()], np.int32)


def with_computed(found: Array) -> Array:
    """Values, and behind them what conditions compute from them."""
    codes = found[:, NUMBERS:]
    upper = np.where(codes == NULL, NULL, codes // 2)
    length = np.where(codes == NULL, NULL, _lengths()[np.maximum(codes, 0)])
    absent = [(found[:, a] == NULL) | (found[:, b] == NULL) for a, b in PAIRS]
    apart = [np.where(gap, NULL, found[:, b] - found[:, a]) for gap, (a, b) in zip(absent, PAIRS)]
    return np.concatenate([found, upper, length, np.stack(apart, 1)], 1).astype(np.int32)


def event_table(found: Array) -> pa.Table:
    """Events as an Arrow table of `READING`, with nulls."""
    words = pa.array(spellings())
    columns = [
        pa.array(found[:, a].astype(np.int64), mask=found[:, a] == NULL)
        if a < NUMBERS
        else words.take(pa.array(found[:, a], mask=found[:, a] == NULL))
        for a in range(plain.ATTRIBUTES)
    ]
    return pa.Table.from_arrays(columns, plain.NAMES)


# ── Conditions ───────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Drawn:
    """Conditions while they are drawn: sides, each for all boxes of its condition (-1) or for the first or second only."""

    count: int
    condition: list[Array]
    box: list[Array]
    attr: list[Array]
    lo: list[Array]
    hi: list[Array]

    def add(self, condition: Array, box: int, attr: Array, lo: Array, hi: Array) -> None:
        parts = (np.full(len(condition), box), attr, lo, hi)
        for column, part in zip((self.condition, self.box, self.attr, self.lo, self.hi), (condition, *parts)):
            column.append(np.asarray(part, np.int64))


@dataclass(frozen=True, slots=True)
class _Pattern:
    """LIKE or IN on a text attribute."""

    attr: int
    like: str = ""
    codes: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        if self.like:
            return f"{NAMES[self.attr]} LIKE '{self.like}'"
        return f"{NAMES[self.attr]} IN ({', '.join(repr(spelling(code)) for code in self.codes)})"

    def accepted(self) -> list[int]:
        if not self.like:
            return sorted(self.codes)
        word, known = self.like.strip("%"), spellings()[: TEXT_VALUES[self.attr - NUMBERS]]
        suffix = not self.like.endswith("%")
        return [code for code, text in enumerate(known) if (text.endswith(word) if suffix else word in text)]


def conditions(count: int, scale: float = SCALE, seed: int = 9) -> tuple[list[str], Boxes]:
    """`count` conditions, as texts and as boxes."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(len(KINDS) + 1, size=count, p=[*KINDS.values(), 1 - sum(KINDS.values())])
    kinds = {name: np.flatnonzero(kind == number) for number, name in enumerate(KINDS)}
    drawn = _Drawn(count, [], [], [], [], [])
    patterns: dict[int, _Pattern] = {}
    alone = _patterns(rng, drawn, kinds, patterns)
    ptr, attr = plain._attributes(rng, count)
    owner = np.repeat(np.arange(count), np.diff(ptr))
    keep = ~np.isin(owner, alone)
    first = np.concatenate([[True], owner[1:] != owner[:-1]])
    first_box = np.where(first & np.isin(owner, kinds["or"]), 0, -1)
    _sides(rng, drawn, owner[keep], first_box[keep], attr[keep], scale)
    _or(rng, drawn, kinds["or"], attr[ptr[:-1]], scale)
    _two(rng, drawn, kinds["two"])
    rounded = _functions(rng, drawn, kinds["function"], scale)
    nots = _nots(rng, kinds["not"], count)
    _ins(rng, kind == len(KINDS), drawn, patterns)
    boxes, sides = _boxes(drawn, nots, patterns)
    return list(_texts(count, sides, nots, patterns, rounded)), boxes


def _interval(rng: np.random.Generator, attr: Array, scale: float) -> tuple[Array, Array]:
    lo, hi = np.empty(len(attr), np.int64), np.empty(len(attr), np.int64)
    for a in np.unique(attr):
        here = np.flatnonzero(attr == a)
        middle = values(rng, a, len(here))
        if a >= NUMBERS:
            lo[here], hi[here] = middle, middle + 1
            continue
        width = np.maximum(1, scale * DOMAIN * rng.lognormal(0, 1, len(here))).astype(np.int64)
        low = middle - (rng.random(len(here)) * width).astype(np.int64)
        lo[here], hi[here] = np.maximum(low, 0), np.minimum(low + width, DOMAIN)
    return lo, hi


def _sides(rng: np.random.Generator, drawn: _Drawn, owner: Array, box: Array, attr: Array, scale: float) -> None:
    """The plain sides; in one condition of five the first numeric one is open to one side."""
    lo, hi = _interval(rng, attr, scale)
    numeric = np.flatnonzero((attr < NUMBERS) & (rng.random(drawn.count) < 0.2)[owner])
    opened = numeric[np.unique(owner[numeric], return_index=True)[1]]
    lo[opened], hi[opened] = _open(rng, attr[opened])
    for which in (-1, 0):
        here = box == which
        drawn.add(owner[here], which, attr[here], lo[here], hi[here])


def _open(rng: np.random.Generator, attr: Array, narrow: float = 0.02, wide: float = 0.3) -> tuple[Array, Array]:
    passing, upward = rng.uniform(narrow, wide, len(attr)), rng.random(len(attr)) < 0.5
    present = np.sort(np.where(events() == NULL, UNBOUNDED_HIGH, events()), 0)
    known = (events() != NULL).sum(0)[attr]
    bound = present[(np.where(upward, 1 - passing, passing) * (known - 1)).astype(int), attr]
    return np.where(upward, bound, LOWEST), np.where(upward, UNBOUNDED_HIGH, bound)


def _or(rng: np.random.Generator, drawn: _Drawn, chosen: Array, first: Array, scale: float) -> None:
    """A second box whose first side is another one, on the same attribute or on any."""
    other = rng.integers(0, plain.ATTRIBUTES, len(chosen))
    attr = np.where(rng.random(len(chosen)) < SAME_ATTRIBUTE, first[chosen], other)
    drawn.add(chosen, 1, attr, *_interval(rng, attr, scale))


def _two(rng: np.random.Generator, drawn: _Drawn, chosen: Array) -> None:
    apart = np.where(rng.random(len(chosen)) < 0.5, 0, rng.integers(1, DOMAIN // 50, len(chosen)))
    attr = DIFFERENCE + rng.integers(0, len(PAIRS), len(chosen))
    drawn.add(chosen, -1, attr, apart + 1, np.full(len(chosen), UNBOUNDED_HIGH))


def _functions(rng: np.random.Generator, drawn: _Drawn, chosen: Array, scale: float) -> set[tuple[int, int]]:
    """UPPER, LENGTH and ABS; returns the condition and attribute of every ABS, which is an interval to the boxes."""
    upper, length, absolute = np.array_split(chosen, 3)
    attr = rng.integers(0, TEXTS, len(upper))
    code = np.array([values(rng, NUMBERS + a, 1)[0] // 2 for a in attr], np.int64)
    drawn.add(upper, -1, UPPER + attr, code, code + 1)
    attr = LENGTH + rng.integers(0, TEXTS, len(length))
    least = rng.integers(12, 18, len(length))
    drawn.add(length, -1, attr, least, np.where(rng.random(len(length)) < 0.5, least + 1, UNBOUNDED_HIGH))
    attr = rng.integers(0, NUMBERS // 2, len(absolute)) * 2
    half = np.maximum(1, 5 * scale * DOMAIN * rng.lognormal(0, 1, len(absolute))).astype(np.int64)
    middle = rng.integers(0, DOMAIN, len(absolute))
    drawn.add(absolute, -1, attr, middle - half + 1, middle + half)
    return set(zip(absolute.tolist(), attr.tolist()))


def _nots(rng: np.random.Generator, chosen: Array, count: int) -> tuple[Array, Array, Array]:
    attr = np.full(count, -1)
    attr[chosen] = rng.integers(0, plain.ATTRIBUTES, len(chosen))
    lo, hi = np.full(count, 0), np.full(count, 0)
    lo[chosen], hi[chosen] = _interval(rng, attr[chosen], 0.2)
    return attr, lo, hi


def _patterns(rng: np.random.Generator, drawn: _Drawn, kinds: dict[str, Array], patterns: dict[int, _Pattern]) -> Array:
    """Suffixes and contained words. The conditions whose only other side is a wide one are returned."""
    alone: list[int] = []
    for name in ("suffix", "contains"):
        selective = rng.random(len(kinds[name])) < SELECTIVE
        for condition, by_itself in zip(kinds[name].tolist(), selective.tolist()):
            attr = NUMBERS + int(rng.integers(TEXTS - 2 if by_itself else 0, TEXTS))
            # Alone, a pattern asks for something rare: favourites would make up most of all matches.
            code = rng.integers(0, TEXT_VALUES[attr - NUMBERS]) if by_itself else values(rng, attr, 1)[0]
            first, second, tail = spelling(int(code)).lower().split("-")
            if name == "suffix":
                like = f"%{second}-{tail}" if by_itself else f"%-{tail}"
            else:
                like = f"%{first[1:]}-{second}%" if by_itself else f"%{second}%"
            patterns[condition] = _Pattern(attr, like)
            alone += [condition] if by_itself else []
    chosen = np.array(alone, np.int64)
    attr = rng.integers(0, NUMBERS, len(chosen))
    drawn.add(chosen, -1, attr, *_open(rng, attr))
    return chosen


def _ins(rng: np.random.Generator, allowed: Array, drawn: _Drawn, patterns: dict[int, _Pattern]) -> None:
    """Of one condition in five that is plain otherwise, the equality on a text becomes one of several."""
    for at, (owner, attr, lo) in enumerate(zip(drawn.condition, drawn.attr, drawn.lo)):
        texts = np.flatnonzero((attr >= NUMBERS) & (attr < plain.ATTRIBUTES) & allowed[owner])
        chosen = texts[rng.random(len(texts)) < IN_SHARE]
        _, single = np.unique(owner[chosen], return_index=True)
        gone = []
        for side in chosen[single].tolist():
            if len(owner) > 1 and int(owner[side]) not in patterns:
                more = values(rng, int(attr[side]), int(rng.integers(1, 4))).tolist()
                patterns[int(owner[side])] = _Pattern(
                    int(attr[side]), codes=tuple(dict.fromkeys([int(lo[side]), *more]))
                )
                gone.append(side)
        for column in (drawn.condition, drawn.box, drawn.attr, drawn.lo, drawn.hi):
            column[at] = np.delete(column[at], gone)


def _boxes(
    drawn: _Drawn, nots: tuple[Array, Array, Array], patterns: dict[int, _Pattern]
) -> tuple[Boxes, tuple[Array, ...]]:
    columns = [np.concatenate(c) for c in (drawn.condition, drawn.box, drawn.attr, drawn.lo, drawn.hi)]
    order = np.argsort(columns[0], kind="stable")
    condition, which, attr, lo, hi = sides = tuple(column[order] for column in columns)
    double = np.zeros(drawn.count, np.int64)
    double[condition[which == 1]] = 1
    begin = np.concatenate([[0], np.cumsum(1 + double)])  # The first box of each condition.
    both = np.flatnonzero((which == -1) & (double[condition] == 1))
    box = np.concatenate([begin[condition] + (which == 1), begin[condition[both]] + 1])
    source = np.concatenate([np.arange(len(condition)), both])
    source = source[np.argsort(box, kind="stable")]
    ptr = np.concatenate([[0], np.cumsum(np.bincount(box, minlength=begin[-1]))])
    wanted = Subscriptions(ptr, attr[source].astype(np.int32), lo[source].astype(np.int32), hi[source].astype(np.int32))
    assert (np.diff(ptr) > 0).all(), "each box has a side"
    owner = np.repeat(np.arange(drawn.count), 1 + double)
    return Boxes(wanted, owner, *(part[owner] for part in nots), *_sets(owner, patterns)), sides


def _sets(owner: Array, patterns: dict[int, _Pattern]) -> tuple[Array, Array, Array, Array]:
    numbers: dict[_Pattern, int] = {}
    attr, number = np.full(owner[-1] + 1, -1), np.full(owner[-1] + 1, -1)
    for condition, pattern in patterns.items():
        attr[condition], number[condition] = pattern.attr, numbers.setdefault(pattern, len(numbers))
    accepted = [pattern.accepted() for pattern in numbers]
    ptr = np.concatenate([[0], np.cumsum([len(codes) for codes in accepted])]).astype(np.int64)
    return attr[owner], number[owner], ptr, np.concatenate([np.array(codes, np.int64) for codes in [*accepted, []]])


# ── Texts ────────────────────────────────────────────────────────────────────


def _texts(
    count: int,
    sides: tuple[Array, ...],
    nots: tuple[Array, Array, Array],
    patterns: dict[int, _Pattern],
    rounded: set[tuple[int, int]],
) -> Iterator[str]:
    _condition, which, attr, lo, hi = (column.tolist() for column in sides)
    ends = np.searchsorted(sides[0], np.arange(count + 1)).tolist()
    not_attr, not_lo, not_hi = (column.tolist() for column in nots)
    for number, (start, end) in enumerate(pairwise(ends)):
        parts, either = [], []
        for at in range(start, end):
            absolute = (number, attr[at]) in rounded and hi[at] < UNBOUNDED_HIGH and lo[at] > LOWEST
            text = _absolute(attr[at], lo[at], hi[at]) if absolute else side_text(attr[at], lo[at], hi[at])
            (parts if which[at] < 0 else either).append(text)
        if either:
            parts.insert(0, f"({' OR '.join(either)})")
        if not_attr[number] >= 0:
            parts.append(_not(not_attr[number], not_lo[number], not_hi[number]))
        if number in patterns:
            parts.append(patterns[number].text)
        yield " AND ".join(parts)


def side_text(a: int, lo: int, hi: int) -> str:
    if a < NUMBERS:
        if lo > LOWEST and hi < UNBOUNDED_HIGH and lo % 2:  # Half of them with BETWEEN.
            return f"{NAMES[a]} BETWEEN {lo} AND {hi - 1}"
        bounds = [] if lo <= LOWEST else [f"{NAMES[a]} >= {lo}"]
        return " AND ".join(bounds if hi == UNBOUNDED_HIGH else [*bounds, f"{NAMES[a]} < {hi}"])
    if a < UPPER:
        return f"{NAMES[a]} = '{spelling(lo)}'"
    if a < LENGTH:
        return f"UPPER(s{a - UPPER}) = '{spelling(2 * lo).upper()}'"
    if a < DIFFERENCE:
        return f"LENGTH(s{a - LENGTH}) {'>=' if hi == UNBOUNDED_HIGH else '='} {lo}"
    one, other = PAIRS[a - DIFFERENCE]
    return f"n{one} < n{other}" if lo == 1 else f"n{one} + {lo - 1} < n{other}"


def _absolute(a: int, lo: int, hi: int) -> str:
    half = (hi - lo + 1) // 2
    return f"ABS({NAMES[a]} - {lo + half - 1}) < {half}"


def _not(a: int, lo: int, hi: int) -> str:
    if a >= NUMBERS:
        return f"{NAMES[a]} <> '{spelling(lo)}'"
    return f"NOT ({NAMES[a]} BETWEEN {lo} AND {hi - 1})"


def main(name: str) -> None:
    texts, boxes = conditions(MIXED[name])
    counts = [len(boxes.passing(event)) for event in events()[:200]]
    print(f"{name}: {len(texts):,} conditions, {len(boxes.owner):,} boxes, {len(boxes.set_ptr) - 1:,} patterns")
    print(f"matches per event, mean of 200: {np.mean(counts):.2f}, one in {len(texts) / np.mean(counts):,.0f}")
    print("\n".join(texts[:12]))


if __name__ == "__main__":
    main(sys.argv[1])
