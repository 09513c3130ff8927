"""What is said and what is wanted: the same for everybody, and no more than a headers exchange can express.

Condition n asks for two texts to be equal: `plate = 'ABn' AND area = 'A(n mod 50)'`. Plates of events run through
twice as many numbers as there are conditions, so every other event, on average, is wanted, by one condition.
A mark is an event by itself, wanted by a condition by itself: latency is measured with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

AREAS = 50
MARK = -1
EventValues: TypeAlias = Mapping[str, Any]


def texts_of(number: int) -> dict[str, str]:
    """The two texts that condition `number` asks for."""
    return {"plate": "MARK", "area": "A0"} if number == MARK else {"plate": f"AB{number}", "area": f"A{number % AREAS}"}


def condition(number: int) -> str:
    """The condition in SQL.

    >>> condition(51)
    "plate = 'AB51' AND area = 'A1'"
    """
    return " AND ".join(f"{name} = '{text}'" for name, text in texts_of(number).items())


def number_of(plate: str) -> int:
    """The condition that an event with this plate is for.

    >>> number_of("AB51"), number_of("MARK") == MARK
    (51, True)
    """
    return MARK if plate == "MARK" else int(plate[2:])


def event(number: int) -> dict[str, Any]:
    """An event for condition `number`, whether or not there is such a condition."""
    return {**texts_of(number), "speed": float(number % 100)}


def events(count: int, conditions: int) -> list[dict[str, Any]]:
    """The first `count` events where there are so many conditions."""
    return [event(at % (2 * conditions)) for at in range(count)]


def wanted(count: int, conditions: int) -> list[int]:
    """For which conditions the first `count` events are, in order."""
    return [number for at in range(count) if (number := at % (2 * conditions)) < conditions]
