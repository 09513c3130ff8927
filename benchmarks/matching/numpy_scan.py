"""The naive scan: every event against every side, vectorised with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.matching.engine import Answers, Array, Workload
from benchmarks.workload import matches_by_scan


class NumpyScan:
    """Nothing to build; one pass over all sides for each event."""

    def warm_up(self, workload: Workload) -> None:
        """Nothing is compiled."""

    def build(self, workload: Workload) -> None:
        self._wanted = workload.wanted

    def admit(self, workload: Workload) -> None:
        self._events = workload.events
        self._found: list[Array] = []

    def match(self) -> int:
        self._found = [matches_by_scan(self._wanted, event) for event in self._events]
        return sum(len(hits) for hits in self._found)

    def answers(self) -> Answers:
        rows = np.repeat(np.arange(len(self._found)), [len(hits) for hits in self._found])
        return Answers.of_pairs(rows, np.concatenate(self._found), len(self._found))

    def facts(self) -> dict[str, Any]:
        return {}
