"""Tidings itself: `tidings.Index`, built from normalised boxes, fed Arrow tables with real texts."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks import mixed
from benchmarks.engine_speed import WAITING_EVENTS, changes_per_s, longest_wait_ms, single_event_us, speed_up
from benchmarks.matching.contest import best_round
from benchmarks.matching.engine import Answers, Array, Workload
from benchmarks.workload import READING, SCALES, boxes_table, event_table, ids, subscriptions
from benchmarks.workload import events as plain_events
from tidings.matching import Index

BATCH_SIZES = (1, 64, 1_024)  # Beside all events at once: what smaller batches cost.
STARTS = 4  # Of fresh processes, the best of which counts; the first one finds no bytecode perhaps.


class Tidings:
    """All events at once, on one thread; pairs of numbers in any order, which is what the peers give, too."""

    def warm_up(self, workload: Workload) -> None:
        self._table = boxes_table(workload.wanted)
        self._index = Index.from_boxes(self._table.slice(0, 100), READING)
        self._index.match_batch(event_table(workload.events[:10]))

    def build(self, workload: Workload) -> None:
        self._wanted = workload.wanted
        self._index = Index.from_boxes(self._table, READING)

    def admit(self, workload: Workload) -> None:
        self._values, self._events = workload.events, event_table(workload.events)

    def match(self) -> int:
        self._matches = self._index.match_numbers(self._events)
        return len(self._matches.events)

    def answers(self) -> Answers:
        # The table of boxes went in at once, so numbers are those of the workload.
        return Answers.of_pairs(self._matches.events, self._matches.numbers, len(self._events))

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "bytes": self._index.stats().bytes,
            "candidates": self._index.effort(self._events).candidates,
        }
        facts |= {"batches": self._by_batch_size(), "single_us": self._latencies()}
        return facts | {"warm_start": self._warm_start()}

    def _latencies(self) -> dict[str, float]:
        """Microseconds for one record through `Index.match`."""
        return dict(zip(("median", "p99"), single_event_us(self._index, self._values)))

    def _by_batch_size(self) -> dict[int, float]:
        """Events per second when they come in small batches, made before; at most a second is spent on each size."""
        return {
            size: self._rate(self._events.slice(0, min(len(self._events), 1_000 * size)), size) for size in BATCH_SIZES
        }

    def _rate(self, events: pa.Table, size: int) -> float:
        batches = [events.slice(at, size) for at in range(0, len(events), size)]
        done, start = 0, time.process_time()
        for batch in batches:
            self._index.match_numbers(batch)
            done += len(batch)
            if time.process_time() - start > 1.0:
                break
        return done / (time.process_time() - start)

    def _warm_start(self) -> dict[str, float]:
        """Seconds in a fresh process to import, to open the saved index, and to answer the first event."""
        with tempfile.TemporaryDirectory() as folder:
            self._index.save(Path(folder) / "index")
            starts = [_start(Path(folder) / "index") for _ in range(STARTS)]
        parts = ("import_s", "open_s", "first_match_s", "first_batch_s")
        best = min(starts, key=_to_the_first_match)
        return dict(zip(parts, best))


def _to_the_first_match(taken: list[float]) -> float:
    return sum(taken[:3])


def _start(index: Path) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.matching.warm_start", str(index)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return list(map(float, done.stdout.split()))


class TidingsTwoThreads(Tidings):
    """The same, on two threads; and what happens while the index changes, as folding has a thread of its own."""

    clock = staticmethod(time.perf_counter)

    def match(self) -> int:
        self._matches = self._index.match_numbers(self._events, threads=2)
        return len(self._matches.events)

    def facts(self) -> dict[str, Any]:
        faster = speed_up(self._index, self._events)
        changes = changes_per_s(self._index, self._wanted)
        wait = longest_wait_ms(self._index, self._events.slice(0, WAITING_EVENTS))
        return {"speed_up": faster, "changes_per_s": changes, "longest_wait_ms": wait}


class TidingsTable(Tidings):
    """The same as a table of row numbers and ids, in order: what `match_batch` promises and the peers do not."""

    def match(self) -> int:
        self._pairs = self._index.match_batch(self._events)
        return int(self._pairs.num_rows)

    def answers(self) -> Answers:
        subscriptions = _numbers_of(self._pairs["subscription"])
        return Answers.of_pairs(self._pairs["event"].to_numpy(), subscriptions, len(self._events))

    def facts(self) -> dict[str, Any]:
        return {}


class TidingsMixed:
    """The mixed workload: conditions as texts, parsed and normalised as part of building; events with texts and nulls."""

    def warm_up(self, workload: Workload) -> None:
        texts = workload.texts()
        self._table = pa.table({"id": ids(len(texts)), "condition": texts})
        index = self._built(self._table.slice(0, 1_000))
        index.match_numbers(workload.event_table().slice(0, 100))

    def build(self, workload: Workload) -> None:
        self._index = self._built(self._table)

    def _built(self, conditions: pa.Table) -> Index:
        index = Index(mixed.READING)
        index.add_all(conditions)
        index.settle()
        return index

    def admit(self, workload: Workload) -> None:
        self._events = workload.event_table()

    def match(self) -> int:
        self._matches = self._index.match_numbers(self._events)
        return len(self._matches.events)

    def answers(self) -> Answers:
        found = self._index.match_batch(self._events)
        return Answers.of_pairs(found["event"].to_numpy(), _numbers_of(found["subscription"]), len(self._events))

    def facts(self) -> dict[str, Any]:
        return {"bytes": self._index.stats().bytes, "plain_events_per_s": self._plain()}

    def _plain(self) -> float:
        """Events per second with as many plain conditions, which match as often; in the same process."""
        wanted, events = subscriptions(len(self._table), SCALES["base"]), plain_events()
        self._index = Index.from_boxes(boxes_table(wanted), READING)
        self._events = event_table(events)
        return len(events) / best_round(self)


def _numbers_of(ids: pa.ChunkedArray) -> Array:
    """w17 → 17."""
    digits = pc.utf8_slice_codeunits(ids.cast(pa.string()), 1)
    return np.asarray(pc.cast(digits, pa.int64()))
