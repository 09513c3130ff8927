"""Quantisation: typed events become points, and conditions become boxes, in a space of whole numbers.

Each axis of the space is an attribute. A monotone function maps a value's key (its rank in
the order of its type) to a cell, so that a condition's interval becomes an interval of cells
that misses none of its values. Two values that share a cell cost one comparison more, when
the event is matched.

    cell 0            the attribute is absent, or of another kind than the axis
    cells 1 … side-1  values, in order; those beyond the bounds are in the first or last cell

An event with an attribute that this node cannot read is a box: it covers all cells of that axis.

>>> quantiser = Quantiser.of({"x": (0, 1000)}, Space(1, 4))
>>> quantiser.event(View({"x": 500})), quantiser.event(View({})), quantiser.event(View({}, hidden=("x",)))
(Zone(low=(8,), high=(9,)), Zone(low=(0,), high=(1,)), Zone(low=(0,), high=(16,)))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, prod
from typing import Any, TypeAlias

from tidings.errors import InputError
from tidings.events import Key, Value, ValueType
from tidings.filters import View
from tidings.overlay.interest import AnyWanted, Box, Extent, Span, key_of
from tidings.space import Space, Zone

BOXES_MAX = 8  # For one condition; one that needs more is covered by a single bounding box.
TEXT_BYTES = 8  # The leading bytes of a text that decide its cell.

Bounds: TypeAlias = tuple[Value, Value]
Interval: TypeAlias = tuple[int, int]  # Cells, the second not included.

# Keys beyond these belong to no double; a key of an int may lie there, on an axis of doubles.
_KEY_MIN, _KEY_MAX = ValueType.DOUBLE.key(-inf), ValueType.DOUBLE.key(inf)


@dataclass(frozen=True, slots=True)
class QuantisedAxis:
    """One attribute, and the two values between which its cells are spread evenly."""

    name: str
    low: float
    high: float
    kind: type  # int, float, str or bytes: how keys are read as numbers.
    side: int

    @classmethod
    def of(cls, name: str, bounds: Bounds, side: int) -> QuantisedAxis:
        """Raises InputError unless the bounds are of one kind and in order."""
        low, high = bounds
        kind = type(low)
        if kind is not type(high) or kind not in (int, float, str, bytes):
            raise InputError(
                f"axis {name}: expected two whole numbers, two numbers or two texts, got {low!r}, {high!r}"
            )
        from_low, to_high = _number(kind, key_of(low)), _number(kind, key_of(high))
        if not -inf < from_low < to_high < inf:
            raise InputError(f"axis {name}: expected a low and a higher bound, got {low!r} and {high!r}")
        return cls(name, from_low, to_high, kind, side)

    def cell(self, key: Key) -> int:
        """The cell of a value with this key."""
        if not self.reads(key):
            return 0
        number, cells = _number(self.kind, key), self.side - 1
        if not number < self.high:
            return cells
        if number <= self.low:
            return 1
        if self.kind is int:
            return 1 + int((number - self.low) * cells // (self.high - self.low))
        return min(cells, 1 + int((number - self.low) / (self.high - self.low) * cells))

    def reads(self, key: Key | None) -> bool:
        """Whether a key is of the kind that this axis orders."""
        wanted = self.kind if self.kind in (str, bytes) else int
        return isinstance(key, wanted)

    def event(self, view: View) -> Interval:
        """The cells in which an event may lie on this axis."""
        value = view.values.get(self.name)
        if value is not None:
            cell = self.cell(key_of(value))
            return cell, cell + 1
        return (0, self.side) if view.unknown(self.name) else (0, 1)

    def extent(self, extent: Extent | None) -> list[Interval]:
        """The cells that a condition allows on this axis."""
        if extent is None:
            return [(0, self.side)]
        intervals = [(0, 1)] if extent.absent else []
        return _joined([*intervals, *map(self._span, extent.spans)])

    def _span(self, span: Span) -> Interval:
        ends = [key for key in span if key is not None]
        if not ends or not all(map(self.reads, ends)):
            return 0, self.side  # Of another kind than the axis, or unknown: anywhere, cell 0 included.
        low = 1 if span.low is None else self.cell(span.low)
        if span.high is None:
            return low, self.side
        last = span.high - 1 if isinstance(span.high, int) else span.high
        return low, max(low, self.cell(last)) + 1


class Quantiser:
    """Maps events and conditions into a space: all its axes, in order."""

    def __init__(self, axes: Sequence[QuantisedAxis], space: Space) -> None:
        self.axes, self.space = tuple(axes), space

    @classmethod
    def of(cls, bounds: Mapping[str, Bounds], space: Space) -> Quantiser:
        """An axis for each attribute, between the two values given for it."""
        if len(bounds) != space.axes:
            raise InputError(f"expected {space.axes} axes, got {len(bounds)}")
        return cls([QuantisedAxis.of(name, tuple(ends), space.side) for name, ends in bounds.items()], space)  # type: ignore[arg-type]

    def event(self, view: View) -> Zone:
        """The box in which an event lies: one cell if this node can read all its axes."""
        return _zone([axis.event(view) for axis in self.axes])

    def wanted(self, wanted: AnyWanted) -> tuple[Zone, ...]:
        """Disjoint boxes that contain the point of every event that is wanted."""
        found: list[Zone] = []
        for box in wanted.boxes():
            for zone in self._box(box):
                found += _outside(zone, found)
        return tuple(found) if len(found) <= BOXES_MAX else (_hull(found),)

    def _box(self, box: Box) -> list[Zone]:
        sides = [axis.extent(box.get(axis.name)) for axis in self.axes]
        if prod(map(len, sides)) > BOXES_MAX:
            sides = [[(side[0][0], side[-1][1])] for side in sides]
        return [_zone(each) for each in product(*sides)]


def _number(kind: type, key: Any) -> Any:
    """A key as a number, in the same order."""
    if kind is int:
        return key
    if kind is float:
        return ValueType.DOUBLE.value_at(min(max(key, _KEY_MIN), _KEY_MAX))
    raw = key.encode(errors="surrogatepass") if isinstance(key, str) else key
    return int.from_bytes(raw[:TEXT_BYTES].ljust(TEXT_BYTES, b"\0"), "big")


def _joined(intervals: list[Interval]) -> list[Interval]:
    joined: list[Interval] = []
    for low, high in sorted(intervals):
        if joined and joined[-1][1] >= low:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return joined


def _zone(sides: Sequence[Interval]) -> Zone:
    return Zone(tuple(low for low, _ in sides), tuple(high for _, high in sides))


def _outside(zone: Zone, others: list[Zone]) -> list[Zone]:
    parts = [zone]
    for other in others:
        parts = [rest for part in parts for rest in part.without(other)]
    return parts


def _hull(zones: list[Zone]) -> Zone:
    low = tuple(map(min, zip(*(zone.low for zone in zones))))
    return Zone(low, tuple(map(max, zip(*(zone.high for zone in zones)))))
