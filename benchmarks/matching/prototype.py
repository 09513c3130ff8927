"""The prototype the engine grew from, where TIDINGS_PROTOTYPE names its folder: the mark to keep up with.

It is not part of this repository: without the variable, the comparison is left out. It knows
32-bit integers only, so it gets the texts as their codes.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.matching.engine import Answers, Skipped, Workload

FOLDER = "TIDINGS_PROTOTYPE"
MATCHES_MAX = 24_000_000  # Room for the pairs of 20,000 events of the hard workload.
WARM_UP = 1_000  # Subscriptions for a first, untimed index, so that compiling does not count as building.


class Prototype:
    """Batches of all events, on one thread."""

    def __init__(self) -> None:
        source = os.environ.get(FOLDER, "")
        if not (Path(source) / "nb3.py").is_file():
            raise Skipped(f"{FOLDER} does not name its folder")
        sys.path.insert(0, source)
        self._code: Any = import_module("nb3")
        self._out = np.ones(MATCHES_MAX, np.int32), np.ones(MATCHES_MAX, np.int32)

    def warm_up(self, workload: Workload) -> None:
        wanted, end = workload.wanted, workload.wanted.ptr[WARM_UP]
        sides = (part[:end] for part in (wanted.attr, wanted.lo, wanted.hi))
        self._index = self._code.Hybrid(wanted.ptr[: WARM_UP + 1], *sides, workload.events)
        self.admit(workload)
        self.match()

    def build(self, workload: Workload) -> None:
        wanted, events = workload.wanted, workload.events
        self._index = self._code.Hybrid(wanted.ptr, wanted.attr, wanted.lo, wanted.hi, events, len(events))

    def admit(self, workload: Workload) -> None:
        self._events = workload.events

    def match(self) -> int:
        index, count = self._index, len(self._events)
        values, cells = self._code.prep(self._events, index.B, index.lut, 0, count)
        self._found, self._candidates = self._code.match3(values, cells, *index.args, *self._out, 0)
        return int(self._found)

    def answers(self) -> Answers:
        events, subscriptions = (part[: self._found] for part in self._out)
        return Answers.of_pairs(events, subscriptions, len(self._events))

    def facts(self) -> dict[str, Any]:
        return {"bytes": int(self._index.bytes), "candidates": int(self._candidates)}
