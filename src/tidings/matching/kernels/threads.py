"""Threads for work that holds no GIL: kernels, and NumPy and Arrow on large arrays."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

RUNS_PER_THREAD = 4  # So that a thread whose runs are easy takes more of them.


class Workers:
    """Some threads, or the caller's own. A function that runs on them must not use them itself."""

    def __init__(self, threads: int = 1, pool: ThreadPoolExecutor | None = None) -> None:
        self._pool = pool
        self.run_count = 1 if pool is None else threads * RUNS_PER_THREAD

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        """The function's result for each item, in their order."""
        return [function(item) for item in items] if self._pool is None else list(self._pool.map(function, items))

    def over(self, count: int, function: Callable[[int, int], Any]) -> list[Any]:
        """The function's result for each run `start, end` of the numbers below `count`; there is at least one run."""
        ends = [count * run // self.run_count for run in range(self.run_count + 1)]
        return self.map(lambda run: function(*run), pairwise(ends))

    def begin(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """Starts the function; the caller gets its result by calling what is returned."""
        return function if self._pool is None else self._pool.submit(function).result


ALONE = Workers()


@contextmanager
def start_workers(threads: int) -> Iterator[Workers]:
    """So many threads, which end with the block."""
    if threads <= 1:
        yield ALONE
        return
    with ThreadPoolExecutor(threads) as pool:
        yield Workers(threads, pool)


def core_count() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
