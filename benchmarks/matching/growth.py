"""How Tidings grows: with conditions, with attributes, with matches per event; one process, one core.

python -m benchmarks.matching.growth            prints one line of JSON
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.matching.contest import goes_on, pin
from benchmarks.matching.engine import Array
from benchmarks.workload import EVENTS, READING, SCALES, boxes_table, event_table, events, subscriptions
from tidings.events import EventType
from tidings.matching import Index

CONDITIONS = (10_000, 30_000, 100_000, 300_000, 1_000_000)
QUICK_CONDITIONS = (10_000, 30_000, 100_000)
# Widths of intervals, in the workload's terms: from one match in a million to one in a hundred.
SCALES_TRIED = tuple(SCALES["base"] * step for step in (0.1, 0.3, 1, 3, 10, 30))
ATTRIBUTE_COUNTS = (5, 10, 25, 50, 100, 200)
WIDE_CONDITIONS, WIDE_EVENTS, WIDE_DOMAIN, WIDE_SIDES = 20_000, 5_000, 1_000_000, 3
WIDE_PASSING = 0.046  # Of each of three sides, so that one condition in 10,000 matches whatever the attributes.
MATCHES_CONDITIONS, MATCHES_EVENTS = 100_000, 5_000  # Fewer events, since the widest match thousands each.
WARM_UP = 1_000


def growth(quick: bool) -> dict[str, list[dict[str, float]]]:
    return {
        "conditions": [
            _of_workload(n, SCALES["base"], EVENTS) | {"x": n} for n in (QUICK_CONDITIONS if quick else CONDITIONS)
        ],
        "attributes": [_of_attributes(n) | {"x": n} for n in ATTRIBUTE_COUNTS],
        "matches": [
            _with_matches_as_x(_of_workload(MATCHES_CONDITIONS, scale, MATCHES_EVENTS)) for scale in SCALES_TRIED
        ],
    }


def _with_matches_as_x(point: dict[str, float]) -> dict[str, float]:
    return point | {"x": point["matches_per_event"]}


def _of_workload(count: int, scale: float, event_count: int) -> dict[str, float]:
    table = boxes_table(subscriptions(count, scale))
    start = time.process_time()
    index = Index.from_boxes(table, READING)
    build_s = time.process_time() - start
    return _timed(index, event_table(events()[:event_count])) | {"build_s": build_s}


def _of_attributes(count: int) -> dict[str, float]:
    rng = np.random.default_rng(11)
    index = Index(EventType("Wide", {f"n{a}": int for a in range(count)}))
    index.add_all((f"w{i}", text) for i, text in enumerate(_wide_conditions(rng, count)))
    index.settle()
    values = rng.integers(0, WIDE_DOMAIN, (count, WIDE_EVENTS))
    return _timed(index, pa.table({f"n{a}": column for a, column in enumerate(values)}))


def _wide_conditions(rng: np.random.Generator, attributes: int) -> list[str]:
    """Three sides each, on attributes drawn without favour."""
    chosen = rng.random((WIDE_CONDITIONS, attributes)).argsort(axis=1)[:, :WIDE_SIDES]
    width = int(WIDE_PASSING * WIDE_DOMAIN)
    low = rng.integers(0, WIDE_DOMAIN - width, chosen.shape)
    return [_wide_condition(*row, width) for row in zip(chosen, low)]


def _wide_condition(attributes: Array, lows: Array, width: int) -> str:
    return " AND ".join(f"n{a} >= {low} AND n{a} < {low + width}" for a, low in zip(attributes, lows))


def _timed(index: Index, table: pa.Table) -> dict[str, float]:
    rounds, matches = list[float](), 0
    while goes_on(len(rounds), sum(rounds)):
        start = time.process_time()
        matches = len(index.match_numbers(table).events)
        rounds.append(time.process_time() - start)
    return {"events_per_s": len(table) / min(rounds), "matches_per_event": matches / len(table)}


def main(arguments: list[str]) -> None:
    pin(1)
    _of_workload(WARM_UP, SCALES["base"], WARM_UP)  # So that the first point does not wait for kernels.
    result: dict[str, Any] = growth(quick="--quick" in arguments)
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
