"""The best form found for engines that only know joins: a binned equi-join on the most selective side.

Each box is filed under its most selective side, once for every bin of the attribute's values that the side touches
(texts: under their code; sets of texts: under each of their codes). An event looks into one bin per attribute, so a hash
join on (attribute, bin) brings the candidates; the exact bounds of the side are checked in the join, the second side
right after, and what remains on the few survivors: further sides, a negated one, membership in a set. A condition of
two boxes is counted once.

Selectivity is measured on the events themselves, and patterns are sets of codes found beforehand: whatever helps the
peers and costs Tidings nothing is granted to them. In the plain workload texts are codes already. In the mixed one
everybody gets texts and nulls, and `Coder` turns them into integers while the clock runs: with Arrow and NumPy, quicker
than any of these engines does it in its own language.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import mixed
from benchmarks import workload as plain
from benchmarks.matching.engine import Array, Workload
from benchmarks.mixed import DIFFERENCE, NULL
from benchmarks.workload import DOMAIN, NUMBERS, UNBOUNDED_HIGH, UNBOUNDED_LOW, Subscriptions

SIDES_MAX = 5
MIXED_SIDES_MAX = 6
# Bins per numeric attribute, the fastest of 128 to 4,096 for DuckDB: narrow ones bring fewer candidates, and more rows.
BINS = {"base10k": 512, "base100k": 1_024, "base1m": 2_048, "hard1m": 512}
BINS |= {"mixed1k": 256, "mixed10k": 512, "mixed100k": 1_024, "mixed1m": 2_048}
KEYS_PER_ATTRIBUTE = 8_192  # More than bins or text codes of any attribute, so that keys do not collide.
NO_KEY = -1  # Of a value that is absent.


@dataclass(frozen=True, slots=True)
class Filing:
    """Boxes ready to be joined.

    `attribute[j]`, `low[j]`, `high[j]` are the j-th most selective side of every box (one that accepts everything where
    it has fewer); row r of the join table files box `owner[r]` under `key[r]`. `condition` has the condition of each
    box, and `twice` whether another box has the same. `beyond` is there where boxes have more than sides.
    """

    attribute: list[Array]
    low: list[Array]
    high: list[Array]
    owner: Array
    key: Array
    condition: Array
    twice: Array
    beyond: Beyond | None


@dataclass(frozen=True, slots=True)
class Beyond:
    """A negated side per box (one that refuses nothing where there is none), and a set that is not filed already.

    `not_above` is what a value must exceed to count as present. A value's code is in set `set_id` if
    `set_id * KEYS_PER_ATTRIBUTE + code` is among `accepted`; `set_id` is -1 where there is none.
    """

    not_attr: Array
    not_low: Array
    not_high: Array
    not_above: Array
    set_attr: Array
    set_id: Array
    accepted: Array


def file_subscriptions(workload: Workload) -> Filing:
    wanted, share = _by_selectivity(workload.wanted, workload.events)
    sides = range(MIXED_SIDES_MAX if workload.boxes else SIDES_MAX)
    columns = {"attr": (wanted.attr, 0), "lo": (wanted.lo, UNBOUNDED_LOW), "hi": (wanted.hi, UNBOUNDED_HIGH)}
    attribute, low, high = ([_slot(wanted, part, j, missing) for j in sides] for part, missing in columns.values())
    owner, key = _keys(attribute[0], low[0], high[0], Bins(workload))
    condition, twice, beyond = np.arange(len(wanted)), np.zeros(len(wanted), bool), None
    if boxes := workload.boxes:
        condition = boxes.owner
        twice = np.bincount(condition)[condition] > 1
        by_set = _sets_first(workload, share)
        owner, key = _file_sets(workload, by_set, owner, key)
        for slots, (_, missing) in zip((attribute, low, high), columns.values()):
            _make_room(slots, by_set, missing)
        beyond = _beyond(workload, by_set)
    return Filing(attribute, low, high, owner, key, condition.astype(np.int32), twice, beyond)


class Bins:
    """Cells of attributes: of equal width in the plain workload, of equal shares in the mixed one, which is skewed."""

    def __init__(self, workload: Workload) -> None:
        self.count = BINS[workload.name]
        shares = np.arange(1, self.count) / self.count
        numbers = [a for a in range(len(workload.names)) if a < NUMBERS or a >= DIFFERENCE] if workload.boxes else []
        present = {a: workload.events[:, a][workload.events[:, a] != NULL] for a in numbers}
        self._edges = {a: np.unique(np.quantile(present[a], shares).astype(np.int32)) for a in numbers}

    def cells(self, a: int, values: Array) -> Array:
        """The cell of each value; that of a text is its code."""
        if a in self._edges:
            return np.searchsorted(self._edges[a], values, "right")
        if a >= NUMBERS:
            return np.clip(values, 0, KEYS_PER_ATTRIBUTE - 1)
        return np.clip(values, 0, DOMAIN - 1).astype(np.int64) * self.count // DOMAIN

    def keys(self, values: Array) -> Array:
        """The one key per attribute under which each event looks for candidates."""
        keys = np.empty(values.shape, np.int32, order="F")
        for a in range(values.shape[1]):
            keys[:, a] = self.cells(a, values[:, a]) + a * KEYS_PER_ATTRIBUTE
        return np.where(values == NULL, NO_KEY, keys)


class Coder:
    """Events of the mixed workload into integers."""

    def __init__(self) -> None:
        self._spellings = pa.array(mixed.spellings())

    def __call__(self, events: pa.Table) -> Array:
        """Values by row and attribute, computed ones included."""
        columns = [self._codes(events[name], a) for a, name in enumerate(plain.NAMES)]
        return mixed.with_computed(np.stack(columns, 1))

    def _codes(self, column: pa.ChunkedArray, a: int) -> Array:
        whole = column if a < NUMBERS else pc.index_in(column, self._spellings)
        codes: Array = whole.fill_null(NULL).to_numpy().astype(np.int32)
        return codes


def _by_selectivity(wanted: Subscriptions, events: Array) -> tuple[Subscriptions, Array]:
    """The same subscriptions, each with its most selective side first; and how many events that one passes."""
    share = np.empty(len(wanted.attr), np.int64)
    for a in range(events.shape[1]):
        here, column = wanted.attr == a, np.sort(events[:, a])
        share[here] = np.searchsorted(column, wanted.hi[here]) - np.searchsorted(column, wanted.lo[here])
    owner = np.repeat(np.arange(len(wanted)), np.diff(wanted.ptr))
    order = np.lexsort((share, owner))
    ordered = Subscriptions(wanted.ptr, wanted.attr[order], wanted.lo[order], wanted.hi[order])
    return ordered, share[order][wanted.ptr[:-1]]


def _slot(wanted: Subscriptions, values: Array, j: int, missing: int) -> Array:
    there = np.diff(wanted.ptr) > j
    slot = np.full(len(wanted), missing, np.int32)
    slot[there] = values[wanted.ptr[:-1][there] + j]
    return slot


def _keys(attribute: Array, low: Array, high: Array, bins: Bins) -> tuple[Array, Array]:
    first, last = np.empty(len(low), np.int64), np.empty(len(low), np.int64)
    for a in np.unique(attribute):
        here = attribute == a
        first[here] = bins.cells(a, low[here])
        last[here] = bins.cells(a, high[here].astype(np.int64) - 1)
    owner, step = _repeated(last - first + 1)
    key = attribute[owner] * KEYS_PER_ATTRIBUTE + first[owner] + step
    return owner.astype(np.int32), key.astype(np.int32)


def _repeated(counts: Array) -> tuple[Array, Array]:
    """Each position as often as its count says, and how often it was there before."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)


def _sets_first(workload: Workload, share: Array) -> Array:
    """Which boxes are filed under their set, because it passes fewer events than any of their sides."""
    boxes = workload.boxes
    assert boxes is not None, "only mixed workloads have sets"
    passing = np.full(len(boxes.owner), np.iinfo(np.int64).max)
    totals = {}
    for a in np.unique(boxes.set_attr[boxes.set_id >= 0]):
        column = workload.events[:, a]
        seen = np.bincount(column[column != NULL], minlength=KEYS_PER_ATTRIBUTE)
        totals[a] = np.concatenate([[0], np.cumsum(seen[boxes.codes])])
    for a, total in totals.items():
        here = np.flatnonzero((boxes.set_attr == a) & (boxes.set_id >= 0))
        begin, end = boxes.set_ptr[boxes.set_id[here]], boxes.set_ptr[boxes.set_id[here] + 1]
        passing[here] = total[end] - total[begin]
    return passing < share


def _file_sets(workload: Workload, by_set: Array, owner: Array, key: Array) -> tuple[Array, Array]:
    boxes = workload.boxes
    assert boxes is not None, "only mixed workloads have sets"
    filed = np.flatnonzero(by_set)
    begin, end = boxes.set_ptr[boxes.set_id[filed]], boxes.set_ptr[boxes.set_id[filed] + 1]
    row, step = _repeated(end - begin)
    codes = boxes.codes[begin[row] + step]
    keys = boxes.set_attr[filed][row] * KEYS_PER_ATTRIBUTE + codes
    other = ~by_set[owner]
    return (
        np.concatenate([owner[other], filed[row]]).astype(np.int32),
        np.concatenate([key[other], keys]).astype(np.int32),
    )


def _make_room(slots: list[Array], by_set: Array, missing: int) -> None:
    """Where a box is filed under its set, its first side is one that accepts everything, and the others follow."""
    for j in reversed(range(1, len(slots))):
        slots[j][by_set] = slots[j - 1][by_set]
    slots[0][by_set] = missing


def _beyond(workload: Workload, by_set: Array) -> Beyond:
    boxes = workload.boxes
    assert boxes is not None, "only mixed workloads have more than sides"
    negated = boxes.not_attr >= 0
    number, _ = _repeated(np.diff(boxes.set_ptr))
    return Beyond(
        np.where(negated, boxes.not_attr, 0).astype(np.int32),
        np.where(negated, boxes.not_lo, 0).astype(np.int32),
        np.where(negated, boxes.not_hi, 0).astype(np.int32),
        np.where(negated, NULL, NULL - 1).astype(np.int32),
        np.where(boxes.set_id >= 0, boxes.set_attr, 0).astype(np.int32),
        np.where(by_set, -1, boxes.set_id).astype(np.int32),
        (number * KEYS_PER_ATTRIBUTE + boxes.codes).astype(np.int64),
    )
