"""The definition of matching: every condition is asked, one after another.

What `Index` answers is what this answers; the tests hold the two to each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from tidings.events import EventType, Value, conform
from tidings.filters import Condition, parse
from tidings.matching.rows import row_values


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
