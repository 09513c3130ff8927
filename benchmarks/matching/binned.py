"""The best form found for engines that only know joins: a binned equi-join on the most selective side.

Each subscription is filed under its most selective side, once for every bin of the attribute's
domain that the side touches (texts: under their code). An event looks into one bin per attribute,
so a hash join on (attribute, bin) brings the candidates; the exact bounds of the side are checked
in the join, the second side right after, the remaining ones on the few survivors.

Selectivity is measured on the events themselves and texts are already codes: whatever helps the
peers and costs Tidings nothing is granted to them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.matching.engine import Array, Workload
from benchmarks.workload import ATTRIBUTES, DOMAIN, NUMBERS, UNBOUNDED_HIGH, UNBOUNDED_LOW, Subscriptions

SIDES_MAX = 5
# Bins per numeric attribute, the fastest of 128 to 4,096 for DuckDB: narrow ones bring fewer candidates, and more rows.
BINS = {"base10k": 512, "base100k": 1_024, "base1m": 2_048, "hard1m": 512}
KEYS_PER_ATTRIBUTE = 8_192  # More than bins or text codes of any attribute, so that keys do not collide.


@dataclass(frozen=True, slots=True)
class Filing:
    """Subscriptions ready to be joined.

    `attribute[j]`, `low[j]`, `high[j]` are the j-th most selective side of every subscription (one that
    accepts everything where it has fewer); row r of the join table files subscription `owner[r]` under `key[r]`.
    """

    bins: int
    attribute: list[Array]
    low: list[Array]
    high: list[Array]
    owner: Array
    key: Array


def file_subscriptions(workload: Workload) -> Filing:
    bins = BINS[workload.name]
    wanted = _by_selectivity(workload.wanted, workload.events)
    attribute = [_slot(wanted, wanted.attr, j, 0) for j in range(SIDES_MAX)]
    low = [_slot(wanted, wanted.lo, j, UNBOUNDED_LOW) for j in range(SIDES_MAX)]
    high = [_slot(wanted, wanted.hi, j, UNBOUNDED_HIGH) for j in range(SIDES_MAX)]
    owner, key = _keys(attribute[0], low[0], high[0], bins)
    return Filing(bins, attribute, low, high, owner, key)


def event_keys(events: Array, bins: int) -> Array:
    """The one key per attribute under which an event looks for candidates."""
    numbers = events[:, :NUMBERS].astype(np.int64) * bins // DOMAIN
    cells = np.concatenate([numbers, events[:, NUMBERS:]], 1)
    return (cells + np.arange(ATTRIBUTES) * KEYS_PER_ATTRIBUTE).astype(np.int32)


def _by_selectivity(wanted: Subscriptions, events: Array) -> Subscriptions:
    """The same subscriptions, each with its most selective side first."""
    share = np.empty(len(wanted.attr))
    for a in range(ATTRIBUTES):
        here, column = wanted.attr == a, np.sort(events[:, a])
        share[here] = np.searchsorted(column, wanted.hi[here]) - np.searchsorted(column, wanted.lo[here])
    owner = np.repeat(np.arange(len(wanted)), np.diff(wanted.ptr))
    order = np.lexsort((share, owner))
    return Subscriptions(wanted.ptr, wanted.attr[order], wanted.lo[order], wanted.hi[order])


def _slot(wanted: Subscriptions, values: Array, j: int, missing: int) -> Array:
    there = np.diff(wanted.ptr) > j
    slot = np.full(len(wanted), missing, np.int32)
    slot[there] = values[wanted.ptr[:-1][there] + j]
    return slot


def _keys(attribute: Array, low: Array, high: Array, bins: int) -> tuple[Array, Array]:
    numeric = attribute < NUMBERS
    first = np.where(numeric, np.clip(low, 0, DOMAIN - 1).astype(np.int64) * bins // DOMAIN, low)
    last = np.where(numeric, np.clip(high.astype(np.int64) - 1, 0, DOMAIN - 1) * bins // DOMAIN, low)
    rows = last - first + 1
    owner = np.repeat(np.arange(len(attribute)), rows)
    step = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)
    key = attribute[owner] * KEYS_PER_ATTRIBUTE + first[owner] + step
    return owner.astype(np.int32), key.astype(np.int32)
