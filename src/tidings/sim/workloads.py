"""Workloads: subscriptions and events, drawn at random or recorded.

A workload is data. A seeded generator draws first the subscriptions, then the values of
events. Conditions are boxes of whole numbers on the
axes `x`, `y`, … of a space of `extent` to a side.
"""

from __future__ import annotations

import json
from bisect import bisect
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import TypeAlias

import msgspec

from tidings.errors import InputError
from tidings.events import Value
from tidings.overlay import Ranges

Values: TypeAlias = Mapping[str, Value]

AXES = "xyzuvwabcdefgh"  # Names for as many axes as a made-up space may have.


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Subscriptions and events. `kind` says where in the space they lie:

    uniform   everywhere alike
    zipf      at the k-th place with a weight of 1 / k^skew: most of it at few places
    hotspots  nine tenths of it within a few narrow spots
    recorded  at the points of a file of JSON lines, one event each, in order and then from the start
    """

    kind: str = "uniform"
    axes: int = 1
    extent: int = 1000
    width: int = 200  # Of a condition, on each axis.
    skew: float = 1.0
    spots: int = 3
    subscriptions: int = 30
    events: int = 30
    file: str = ""

    def check(self) -> None:
        """Raises InputError for impossible numbers."""
        if self.kind not in _POINTS:
            raise InputError(f"there is no workload {self.kind!r}; there are {', '.join(_POINTS)}")
        if not 1 <= self.axes <= len(AXES) or self.extent < 1 or not 1 <= self.width <= self.extent:
            raise InputError(f"expected 1 to {len(AXES)} axes and a width of 1 to the extent, got {self}")
        if self.subscriptions < 0 or self.events < 0 or self.skew < 0 or self.spots < 1:
            raise InputError(f"expected no negative numbers and at least one spot, got {self}")

    def drawing(self, rng: Random) -> Callable[[Random], dict[str, int]]:
        """A function that draws the values of one event."""
        self.check()
        return _POINTS[self.kind](self, rng)

    def wanted(self, rng: Random) -> list[Ranges]:
        """The conditions of all subscriptions, each around a point drawn as those of events are."""
        draw = self.drawing(rng)
        return [self._around(draw(rng), rng) for _ in range(self.subscriptions)]

    def _around(self, point: Mapping[str, int], rng: Random) -> Ranges:
        lows = {axis: max(0, at - rng.randrange(self.width)) for axis, at in point.items()}
        return Ranges.of(**{axis: (low, low + self.width - 1) for axis, low in lows.items()})


def _uniform(load: Workload, rng: Random) -> Callable[[Random], dict[str, int]]:
    return lambda luck: {axis: luck.randrange(load.extent) for axis in AXES[: load.axes]}


def _zipf(load: Workload, rng: Random) -> Callable[[Random], dict[str, int]]:
    places = list(range(load.extent))
    rng.shuffle(places)  # Popular places lie anywhere, not side by side.
    weights = list(accumulate(1 / rank**load.skew for rank in range(1, load.extent + 1)))
    return lambda luck: {axis: places[bisect(weights, luck.random() * weights[-1])] for axis in AXES[: load.axes]}


def _hotspots(load: Workload, rng: Random) -> Callable[[Random], dict[str, int]]:
    spots = [{axis: rng.randrange(load.extent) for axis in AXES[: load.axes]} for _ in range(load.spots)]

    def draw(luck: Random) -> dict[str, int]:
        if luck.random() < 0.1:
            return {axis: luck.randrange(load.extent) for axis in AXES[: load.axes]}
        near = max(1, load.extent // 50)
        return {axis: min(load.extent - 1, at + luck.randrange(near)) for axis, at in luck.choice(spots).items()}

    return draw


def _recorded(load: Workload, rng: Random) -> Callable[[Random], dict[str, int]]:
    points = _read_points(Path(load.file))
    turn = iter(range(2**63))
    return lambda luck: points[next(turn) % len(points)]


def _read_points(path: Path) -> list[dict[str, int]]:
    try:
        points = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except (OSError, ValueError) as wrong:
        raise InputError(f"{path}: expected JSON lines of recorded events: {wrong}") from None
    numbers = [isinstance(p, dict) and all(type(v) is int for v in p.values()) for p in points]
    if not points or not all(numbers):
        raise InputError(f"{path}: expected at least one event, each an object of whole numbers")
    return points


_POINTS: dict[str, Callable[[Workload, Random], Callable[[Random], dict[str, int]]]] = {
    "uniform": _uniform,
    "zipf": _zipf,
    "hotspots": _hotspots,
    "recorded": _recorded,
}
