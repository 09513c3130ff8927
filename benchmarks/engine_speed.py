"""How fast the index is, without any peers: the numbers that its design is tuned by.

    python -m benchmarks.engine_speed base100k [base1m …]

Prints, per workload: build time from a table of boxes, bytes per condition, events per second
of CPU time with one thread, the speed-up of two, candidates and hits per match, the median of microseconds
for one event at a time, changes per second, milliseconds to open a saved index, and the
longest wait of a reader while everything is folded.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.workload import READING, Subscriptions, boxes_table, condition_texts, event_table, load, records
from tidings.filters import Condition, parse
from tidings.matching import Index

REPEATS = 5
TURNS_S = 2.0  # Seconds in which one thread and two take turns; at least REPEATS of them.
CHANGE_ROUNDS = 5
WAIT_ROUNDS = 3
SINGLE_EVENTS, SINGLE_ROUNDS = 2_000, 5  # One at a time; enough for a 99th percentile that twenty events decide.
SINGLE_WARM_UP = 200
CHANGES = 20_000
WAITING_EVENTS = 64  # What a reader asks at a time while its longest wait is measured.


def best_of(work: Callable[[], object], clock: Callable[[], float], repeats: int = REPEATS) -> float:
    """The shortest of some runs, in seconds."""
    times = []
    for _ in range(repeats):
        start = clock()
        work()
        times.append(clock() - start)
    return min(times)


def measure(name: str) -> dict[str, float]:
    wanted, values = load(name)
    table, events = boxes_table(wanted), event_table(values)
    build_s = best_of(lambda: Index.from_boxes(table, READING), time.perf_counter, 2)
    index = Index.from_boxes(table, READING)
    one_s = best_of(lambda: index.match_numbers(events), time.thread_time)
    return {
        "build s": build_s,
        "bytes per condition": index.stats().bytes_per_subscription,
        "events/s": len(values) / one_s,
        "2 threads ×": speed_up(index, events),
        **effort(index, events),
        "one event µs": single_event_us(index, values)[0],
        "changes/s": changes_per_s(index, wanted),
        "open ms": open_ms(index),
        "longest wait ms": longest_wait_ms(index, events.slice(0, WAITING_EVENTS)),
    }


def effort(index: Index, events: pa.Table) -> dict[str, float]:
    """Entries looked at, and entries whose two filed sides held, per match."""
    found = index.effort(events)
    return {"candidates per match": found.candidates / found.matches, "hits per match": found.hits / found.matches}


def speed_up(index: Index, events: pa.Table) -> float:
    """How much sooner two threads are done than one, the best of either; they take turns, so that both have the same luck."""
    best, turns, begun = [float("inf")] * 2, 0, time.perf_counter()
    while turns < REPEATS or time.perf_counter() - begun < TURNS_S:
        for at, threads in enumerate((1, 2)):
            start = time.perf_counter()
            index.match_numbers(events, threads=threads)
            best[at] = min(best[at], time.perf_counter() - start)
        turns += 1
    return best[0] / best[1]


def single_event_us(index: Index, values: np.ndarray) -> tuple[float, float]:
    """Median and 99th percentile for one record through `Index.match`, in the best of some rounds; each has its own events."""
    for record in records(values[-SINGLE_WARM_UP:]):
        index.match(record)
    starts = range(0, SINGLE_ROUNDS * SINGLE_EVENTS, SINGLE_EVENTS)
    rounds = [[_time_one(index, record) for record in records(values[at : at + SINGLE_EVENTS])] for at in starts]
    median, p99 = min(np.quantile(taken, (0.5, 0.99)).tolist() for taken in rounds)
    return median / 1e3, p99 / 1e3


def _time_one(index: Index, record: dict[str, Any]) -> int:
    fresh = dict(record)  # As one that has just been read from a message: in the cache.
    start = time.perf_counter_ns()
    index.match(fresh)
    return time.perf_counter_ns() - start


def changes_per_s(index: Index, wanted: Subscriptions) -> float:
    """Additions, replacements and removals, one by one, beside all that is there; by the clock.

    Conditions are parsed already. What is folded meanwhile, is folded at the expense of the changes.
    """
    some = Subscriptions(wanted.ptr[: CHANGES + 1], wanted.attr, wanted.lo, wanted.hi)
    conditions = [parse(text, READING) for text in condition_texts(some)]
    return 3 * len(conditions) / best_of(lambda: _change(index, conditions), time.perf_counter, CHANGE_ROUNDS)


def _change(index: Index, conditions: list[Condition]) -> None:
    for number, condition in enumerate(conditions):
        index.add(f"new{number}", condition)
    for number, condition in enumerate(reversed(conditions)):
        index.add(f"new{number}", condition)
    for number in range(len(conditions)):
        index.remove(f"new{number}")


def open_ms(index: Index) -> float:
    with tempfile.TemporaryDirectory() as folder:
        index.save(Path(folder, "index"))
        return best_of(lambda: Index.open(Path(folder, "index")), time.perf_counter) * 1e3


def longest_wait_ms(index: Index, events: pa.Table) -> float:
    """The longest wait of a reader while everything is folded, in the best of some rounds: the machine's own pauses do not return."""
    return min(_longest_wait_ms(index, events) for _ in range(WAIT_ROUNDS))


def _longest_wait_ms(index: Index, events: pa.Table) -> float:
    """The longest time between two answers of a reader while a writer's change is folded into everything."""
    index.add("last", "n0 = 1")
    folding = threading.Thread(target=index.settle)
    longest, last = 0.0, time.perf_counter()
    folding.start()
    while folding.is_alive():
        index.match_numbers(events)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    folding.join()
    return longest * 1e3


def main(names: list[str]) -> None:
    for name in names:
        print(name)
        for what, value in measure(name).items():
            print(f"  {what:24} {value:14,.2f}")


if __name__ == "__main__":
    main(sys.argv[1:] or ["base10k", "base100k"])
