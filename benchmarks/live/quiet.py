"""Measuring while the machine is left alone: by other programs, and by the other machines of its host.

A virtual machine's host gives its processors to others at will. Linux counts that as `steal`: time in which a program
was ready to run and nothing of the machine could run it. A measurement during which others had much of the
machine says more about them than about what was measured, so it is taken again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from benchmarks.live.contender import Contender

QUIET_CORES = 0.05  # What others may have of the machine while it counts as idle.
_STAT = Path("/proc/stat")
_T = TypeVar("_T")


async def when_quiet(
    contender: Contender, measure: Callable[[], Awaitable[_T]], *, wanted: int = 1, at_most: int
) -> tuple[list[_T], float]:
    """Measurements taken while the machine was left alone, and what others had of it then, on average.

    Measured until `wanted` of them were quiet, at most `at_most` times; then the quietest ones. What was measured
    has no part in the choice.
    """
    taken: list[tuple[float, int, _T]] = []
    while len(taken) < at_most and sum(others <= QUIET_CORES for others, _, _ in taken) < wanted:
        since = _Since(contender)
        found = await measure()
        taken.append((since.others_cores(), len(taken), found))
    chosen = sorted(taken, key=lambda one: one[:2])[:wanted]
    return [found for _, _, found in chosen], round(sum(others for others, _, _ in chosen) / len(chosen), 3)


class _Since:
    """What others have had of the machine since this was made."""

    def __init__(self, contender: Contender) -> None:
        self._contender = contender
        self._used_s, self._begun = self._others_s(), time.perf_counter()

    def _others_s(self) -> float:
        return _everybody_s() - self._contender.cpu_s() - time.process_time()

    def others_cores(self) -> float:
        return max(0.0, (self._others_s() - self._used_s) / (time.perf_counter() - self._begun))


def _everybody_s() -> float:
    """Processor seconds of all programs of this machine, with what its host has given to other machines."""
    user, nice, system, _idle, _waiting, *further = map(int, _STAT.read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(further)) / os.sysconf("SC_CLK_TCK")
