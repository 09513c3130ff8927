"""Seeded workloads for the matching benchmarks: the same million wishes for every engine.

An event has 25 attributes, all present: n0 … n19 are ints below a million (uniform where the
number is even, bell-shaped where odd), s0 … s4 are texts 'v<code>' out of 100 to 5,000, the
low codes more often. A subscription is an AND of two to five sides on different attributes,
popular attributes first; a numeric side is an interval, of one in five subscriptions one is
open to one side, and a side on a text is an equality.

Everything is kept as flat arrays and turned into whatever an engine takes: condition texts,
tables of boxes, tables of events.

    python -m benchmarks.workload base100k      prints what a workload looks like
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from tidings.events import EventType

NUMBERS, DOMAIN = 20, 1_000_000
TEXT_VALUES = (100, 200, 500, 1_000, 5_000)
ATTRIBUTES = NUMBERS + len(TEXT_VALUES)
EVENTS = 20_000
UNBOUNDED_LOW, UNBOUNDED_HIGH = -(2**31), 2**31 - 1  # Where a side is open.

NAMES = [f"n{i}" for i in range(NUMBERS)] + [f"s{i}" for i in range(len(TEXT_VALUES))]
READING = EventType("Reading", {name: int if name.startswith("n") else str for name in NAMES})

# Widths of intervals that give one match in 10,000 (base) and in 1,000 (hard) per subscription and event.
SCALES = {"base": 0.004410505556063916, "hard": 0.024065370599013716}
WORKLOADS = {
    "base10k": (10_000, "base"),
    "base100k": (100_000, "base"),
    "base1m": (1_000_000, "base"),
    "hard1m": (1_000_000, "hard"),
}


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """Sides `ptr[i]:ptr[i + 1]` belong to subscription i: `lo <= value < hi` on attribute `attr`."""

    ptr: np.ndarray[Any, Any]
    attr: np.ndarray[Any, Any]
    lo: np.ndarray[Any, Any]
    hi: np.ndarray[Any, Any]

    def __len__(self) -> int:
        return len(self.ptr) - 1


def load(name: str) -> tuple[Subscriptions, np.ndarray[Any, Any]]:
    """The subscriptions of a workload and its events, one row each, one column per attribute."""
    count, kind = WORKLOADS[name]
    return subscriptions(count, SCALES[kind]), events()


@cache
def events(count: int = EVENTS, seed: int = 1) -> np.ndarray[Any, Any]:
    """Values by row and attribute; texts as their codes."""
    rng = np.random.default_rng(seed)
    return np.stack([_values(rng, a, count) for a in range(ATTRIBUTES)], 1).astype(np.int32)


def subscriptions(count: int, scale: float, seed: int = 5) -> Subscriptions:
    """`count` subscriptions whose numeric intervals are about `scale` of the domain wide."""
    rng = np.random.default_rng(seed)
    ptr, attr = _attributes(rng, count)
    lo, hi = np.empty(len(attr), np.int64), np.empty(len(attr), np.int64)
    for a in range(ATTRIBUTES):
        here = np.flatnonzero(attr == a)
        lo[here], hi[here] = _intervals(rng, a, len(here), scale)
    _open_some(rng, ptr, attr, lo, hi)
    return Subscriptions(ptr, attr, lo.astype(np.int32), hi.astype(np.int32))


def _values(rng: np.random.Generator, a: int, count: int) -> np.ndarray[Any, Any]:
    if a >= NUMBERS:
        weights = 1 / np.sqrt(np.arange(1, TEXT_VALUES[a - NUMBERS] + 1))
        return rng.choice(TEXT_VALUES[a - NUMBERS], size=count, p=weights / weights.sum())
    if a % 2 == 0:
        return rng.integers(0, DOMAIN, count)
    return np.clip(rng.normal(0.5, 0.15, count) * DOMAIN, 0, DOMAIN - 1).astype(np.int64)


def _attributes(rng: np.random.Generator, count: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two to five different attributes for each, drawn by popularity (Gumbel's top k)."""
    sizes = rng.integers(2, 6, count)
    ranked = np.random.default_rng(7).permutation(ATTRIBUTES)
    popularity = np.empty(ATTRIBUTES)
    popularity[ranked] = 1 / np.arange(1, ATTRIBUTES + 1)
    score = np.log(popularity / popularity.sum())[None] + rng.gumbel(size=(count, ATTRIBUTES)).astype(np.float32)
    best = np.argpartition(-score, 5, axis=1)[:, :5]
    order = np.argsort(-np.take_along_axis(score, best, 1), 1)
    chosen = np.take_along_axis(best, order, 1)[np.arange(5)[None] < sizes[:, None]]
    return np.concatenate([[0], np.cumsum(sizes)]), chosen.astype(np.int32)


def _intervals(rng: np.random.Generator, a: int, count: int, scale: float) -> tuple[Any, Any]:
    middle = _values(rng, a, count)
    if a >= NUMBERS:
        return middle, middle + 1
    width = np.maximum(1, scale * DOMAIN * rng.lognormal(0, 1, count)).astype(np.int64)
    low = middle - (rng.random(count) * width).astype(np.int64)
    return np.maximum(low, 0), np.minimum(low + width, DOMAIN)


def _open_some(rng: np.random.Generator, ptr: Any, attr: Any, lo: Any, hi: Any) -> None:
    """In one subscription of five, the first numeric side becomes open and passes 2 to 30 % of the events."""
    owner = np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))
    numeric = np.flatnonzero((attr < NUMBERS) & (rng.random(len(ptr) - 1) < 0.2)[owner])
    sides = numeric[np.unique(owner[numeric], return_index=True)[1]]
    passing, upward = rng.uniform(0.02, 0.3, len(sides)), rng.random(len(sides)) < 0.5
    quantile = np.where(upward, 1 - passing, passing)
    bound = np.sort(events(), 0)[(quantile * (EVENTS - 1)).astype(int), attr[sides]]
    lo[sides], hi[sides] = np.where(upward, bound, UNBOUNDED_LOW), np.where(upward, UNBOUNDED_HIGH, bound)


# ── What engines take ────────────────────────────────────────────────────────


def ids(count: int) -> list[str]:
    return [f"w{i}" for i in range(count)]


def condition_texts(wanted: Subscriptions) -> list[str]:
    """Each subscription as SQL: `n3 >= 17 AND n3 < 40 AND s1 = 'v5'`."""
    sides = [_side_text(*side) for side in zip(wanted.attr.tolist(), wanted.lo.tolist(), wanted.hi.tolist())]
    ptr = wanted.ptr.tolist()
    return [" AND ".join(sides[start:end]) for start, end in pairwise(ptr)]


def _side_text(a: int, lo: int, hi: int) -> str:
    if a >= NUMBERS:
        return f"{NAMES[a]} = 'v{lo}'"
    bounds = [] if lo == UNBOUNDED_LOW else [f"{NAMES[a]} >= {lo}"]
    return " AND ".join(bounds if hi == UNBOUNDED_HIGH else [*bounds, f"{NAMES[a]} < {hi}"])


def boxes_table(wanted: Subscriptions) -> pa.Table:
    """Each subscription as a row of normalised boxes, as `Index.from_boxes` takes them; ids w0, w1, …"""
    from tidings.matching import BOXES_SCHEMA

    count = len(wanted)
    ones = pa.array(np.arange(count + 1, dtype=np.int32))
    nothing = pa.ListArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), pa.array([], pa.string()))
    sides = pa.ListArray.from_arrays(pa.array(wanted.ptr.astype(np.int32)), _sides(wanted))
    boxes = pa.ListArray.from_arrays(ones, pa.StructArray.from_arrays([sides, nothing], ["sides", "residuals"]))
    columns = [pa.array(ids(count)), pa.array(condition_texts(wanted)), boxes]
    return pa.Table.from_arrays(columns, ["id", "condition", "boxes"]).cast(BOXES_SCHEMA)


def _sides(wanted: Subscriptions) -> pa.StructArray:
    texts = wanted.attr >= NUMBERS
    lo, hi = wanted.lo[~texts].astype(np.int64), wanted.hi[~texts].astype(np.int64)
    low, high = pa.array(lo, mask=lo == UNBOUNDED_LOW), pa.array(hi, mask=hi == UNBOUNDED_HIGH)
    code = pa.array(wanted.lo[texts])
    points = [_words(end).take(code) for end in ("", "\0")]
    fields = {
        "attribute": pa.array(NAMES).take(pa.array(wanted.attr)),
        "null": pa.array(np.zeros(len(texts), bool)),
        "numbers": _lists(~texts, pa.StructArray.from_arrays([low, high], ["low", "high"])),
        "texts": _lists(texts, pa.StructArray.from_arrays(points, ["low", "high"])),
    }
    return pa.StructArray.from_arrays(list(fields.values()), list(fields))


def _lists(here: np.ndarray[Any, Any], items: pa.Array) -> pa.ListArray:
    """A list of one item where `here`, an empty one elsewhere."""
    return pa.ListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(here)]).astype(np.int32)), items)


def _words(end: str = "") -> pa.Array:
    """The texts of all codes, as bytes."""
    return pa.array([f"v{code}{end}".encode() for code in range(max(TEXT_VALUES))], pa.binary())


def event_table(values: np.ndarray[Any, Any]) -> pa.Table:
    """Events as an Arrow table of `READING`."""
    words = _words().cast(pa.string())
    columns = [
        pa.array(values[:, a].astype(np.int64)) if a < NUMBERS else words.take(pa.array(values[:, a]))
        for a in range(ATTRIBUTES)
    ]
    return pa.Table.from_arrays(columns, NAMES)


def records(values: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    """Events as plain records."""
    return event_table(values).to_pylist()  # type: ignore[no-any-return]


def matches_by_scan(wanted: Subscriptions, event: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The numbers of the subscriptions that one event matches, by looking at all of them: the check on every engine."""
    value = event[wanted.attr]
    inside = (value >= wanted.lo) & ((value < wanted.hi) | (wanted.hi == UNBOUNDED_HIGH))
    return np.flatnonzero(np.logical_and.reduceat(inside, wanted.ptr[:-1]))


def main(name: str) -> None:
    wanted, values = load(name)
    counts = [len(matches_by_scan(wanted, event)) for event in values[:100]]
    print(f"{name}: {len(wanted):,} subscriptions, {len(wanted.attr) / len(wanted):.2f} sides each")
    print(f"matches per event, mean of 100: {np.mean(counts):.1f}; the first: {condition_texts(wanted)[0]}")


if __name__ == "__main__":
    main(sys.argv[1])
