"""Why an event matches a condition, or why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidings.events import Value
from tidings.filters import Condition

LACKING = "is absent"


@dataclass(frozen=True, slots=True)
class Explanation:
    """`outcome` is what the condition is for the event (True, False, or None for NULL); `parts` decided it.

    Where it did not match, `first` is the first predicate that failed, and `values` are the
    event's values that the deciding parts look at.
    """

    id: str
    matched: bool
    outcome: bool | None
    parts: tuple[str, ...]
    values: Mapping[str, Value | None]

    @property
    def first(self) -> str | None:
        """The first predicate that failed; None if the event matched."""
        return None if self.matched or not self.parts else self.parts[0]

    def __str__(self) -> str:
        if self.matched:
            return f"{self.id} matched: {' AND '.join(self.parts)}"
        seen = ", ".join(
            f"{name} {LACKING if value is None else f'is {value!r}'}" for name, value in self.values.items()
        )
        outcome = "NULL" if self.outcome is None else "FALSE"
        return f"{self.id} did not match: {self.first} is {outcome}{f', as {seen}' if seen else ''}"


def explain(id: str, condition: Condition, values: Mapping[str, Value]) -> Explanation:
    """The explanation for one event's checked values."""
    outcome = condition.evaluate(values)
    parts = condition.decided_by(values)
    names = dict.fromkeys(name for part in (parts if outcome else parts[:1]) for name in part.attributes)
    seen = {name: values.get(name) for name in names}
    return Explanation(id, outcome is True, outcome, tuple(map(str, parts)), seen)
