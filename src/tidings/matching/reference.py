"""What matching means, written plainly: the tests hold the index and its kernels to it.

`NaiveIndex` evaluates every condition, one after another, and `Index` answers what it answers.
`NaiveAxis` puts one value into a cell, as the kernels do with columns of them.

An axis is one attribute's values, cut into cells by the bounds that conditions mention. With
cuts k0 < k1 < … (keys, see `tidings.events.values`) the cells are

    0             1          2            3            …    len(cuts) + 1
    NULL or       below k0   k0 up to     k1 up to          from the last
    absent                   before k1    before k2         cut on

Every interval between two cuts is a range of cells, and NULL is a cell beside them. So a set
of values of any type becomes a few ranges of small ints, and nothing is lost: a value lies in
the set exactly if its cell lies in one of the ranges. A value that no condition mentions falls
between two cuts like all others.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidings.events import EventType, Value, ValueType, conform, row_values
from tidings.filters import DOMAIN, Condition, Intervals, parse

NULL_CELL = 0


class NaiveIndex:
    """Subscriptions by id, in the order in which they were added."""

    def __init__(self, event_type: EventType) -> None:
        self.event_type = event_type
        self.conditions: dict[str, Condition] = {}

    def add(self, id: str, condition: str | Condition) -> None:
        """Adds or replaces; a replaced one moves to the end."""
        parsed = parse(condition, self.event_type) if isinstance(condition, str) else condition
        self.conditions.pop(id, None)
        self.conditions[id] = parsed

    def add_all(self, items: Iterable[tuple[str, str | Condition]]) -> None:
        for id, condition in items:
            self.add(id, condition)

    def remove(self, id: str) -> None:
        del self.conditions[id]

    def match(self, record: Mapping[str, Any]) -> list[str]:
        return self.match_values(self.event_type.check(record))

    def match_values(self, values: Mapping[str, Value]) -> list[str]:
        """The ids whose conditions are TRUE of checked values."""
        return [id for id, condition in self.conditions.items() if condition.evaluate(values) is True]

    def match_batch(self, events: pa.Table) -> list[tuple[int, str]]:
        """Pairs of row number and id."""
        rows = row_values(conform(events, self.event_type), range(events.num_rows), self.event_type)
        return [(row, id) for row, values in enumerate(rows) for id in self.match_values(values)]


@dataclass(frozen=True, slots=True)
class NaiveAxis:
    """Cuts in ascending order, none of them twice and none at the start of the type's domain.

    >>> axis = NaiveAxis(ValueType.INT, (10, 20))
    >>> [axis.cell(value) for value in (None, 9, 10, 19, 20)]
    [0, 1, 2, 2, 3]
    """

    type: ValueType
    cuts: tuple[Any, ...]

    @property
    def cell_count(self) -> int:
        return len(self.cuts) + 2

    def cell(self, value: Value | None) -> int:
        """The cell a value, or NULL as None, falls into."""
        if value is None:
            return NULL_CELL
        return bisect_right(self.cuts, self.type.key(value)) + 1

    def ranges(self, side: Intervals) -> list[tuple[int, int]]:
        """The cells of a set whose bounds are cuts here: `low <= cell < high`, ascending, not touching.

        Of a set with other bounds, these are the cells that it touches.

        >>> axis = NaiveAxis(ValueType.INT, (10, 20))
        >>> axis.ranges(Intervals(ValueType.INT, ((10, 20),), True))
        [(0, 1), (2, 3)]
        """
        ranges = [(self._low_cell(low), self._high_cell(high)) for low, high in side.pairs]
        return _joined_ranges([(NULL_CELL, 1), *ranges]) if side.null else _joined_ranges(ranges)

    def _low_cell(self, low: Any) -> int:
        return bisect_right(self.cuts, low) + 1

    def _high_cell(self, high: Any) -> int:
        """The cell after the last one below `high`."""
        if high is None or high == DOMAIN[self.type][1]:
            return self.cell_count
        before = bisect_right(self.cuts, high) - 1
        return before + 2 if before >= 0 and self.cuts[before] == high else before + 3


def cuts_of(kind: ValueType, sides: Iterable[Intervals]) -> tuple[Any, ...]:
    """The cuts that the bounds of these sets make, as an `NaiveAxis` takes them.

    >>> cuts_of(ValueType.INT, [Intervals(ValueType.INT, ((10, 20),)), Intervals(ValueType.INT, ((20, 2**63),))])
    (10, 20)
    """
    bounds = {bound for side in sides for pair in side.pairs for bound in pair}
    start, end = DOMAIN[kind]
    return tuple(sorted(bound for bound in bounds if bound is not None and bound not in (start, end)))


def _joined_ranges(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for low, high in ranges:
        if joined and joined[-1][1] >= low:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return joined
