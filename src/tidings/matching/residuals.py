"""What boxes cannot say: residual conditions, and several boxes of one condition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from tidings.events import EventType, Value
from tidings.filters import Condition, parse
from tidings.matching.box_table import Array
from tidings.matching.grid import NO_RESIDUAL, CellBoxes
from tidings.matching.rows import row_values

Test: TypeAlias = Callable[[Mapping[str, Value]], bool]


class Residuals:
    """The sets of residuals of a segment, each compiled once, when it is first asked for.

    Boxes with the same residuals share one set, so each is asked once per event.
    """

    def __init__(self, texts: Sequence[tuple[str, ...]], event_type: EventType) -> None:
        self.texts = texts
        self._event_type = event_type
        self._tests: dict[int, tuple[Test, tuple[str, ...]]] = {}

    def test(self, number: int) -> tuple[Test, tuple[str, ...]]:
        """A closure over an event's values, and the attributes that it looks at."""
        if number not in self._tests:
            self._tests[number] = self._compile(self.texts[number])
        return self._tests[number]

    def _compile(self, texts: tuple[str, ...]) -> tuple[Test, tuple[str, ...]]:
        parsed = [parse(text, self._event_type) for text in texts]
        names = tuple(dict.fromkeys(name for condition in parsed for name in condition.attributes))
        return _all(parsed), names


def decide(
    events: Array, boxes: Array, rows: pa.Table, all_boxes: CellBoxes, residuals: Residuals, event_type: EventType
) -> Array:
    """Of doubtful events and boxes, the pairs of event and owner that match: residuals asked, none of them twice."""
    keep = np.ones(len(events), bool)
    numbers = all_boxes.residual[boxes]
    for number in np.unique(numbers[numbers != NO_RESIDUAL]).tolist():
        here = np.flatnonzero(numbers == number)
        test, names = residuals.test(number)
        asked, place = np.unique(events[here], return_inverse=True)
        answers = [test(values) for values in row_values(rows, asked.tolist(), event_type, names)]
        keep[here] = np.array(answers, bool)[place]
    return np.unique((events[keep].astype(np.uint64) << np.uint64(32)) | all_boxes.owner[boxes[keep]].astype(np.uint64))


def decide_one(
    boxes: Sequence[int], values: Mapping[str, Value], all_boxes: CellBoxes, residuals: Residuals
) -> list[int]:
    """The same for one event: the owners that match."""
    answers: dict[int, bool] = {NO_RESIDUAL: True}
    owners: dict[int, None] = {}
    for box in boxes:
        number = int(all_boxes.residual[box])
        if number not in answers:
            answers[number] = residuals.test(number)[0](values)
        if answers[number]:
            owners[int(all_boxes.owner[box])] = None
    return list(owners)


def _all(conditions: Sequence[Condition]) -> Test:
    tests = [condition.matches for condition in conditions]
    if len(tests) == 1:
        return tests[0]
    return lambda values: all(test(values) for test in tests)
