"""Three hundred conditions over 336,776 flights: `Index.match_numbers` once, and DuckDB asked one by one.

The records are drawn by a seed, with the columns, types, gaps and skew of a year's departures from one city's airports.
A third of the conditions have a suffix, a contained text, `<>`, NOT or OR; many match thousands of records, so that what comes out
counts as well.

    python -m benchmarks.matching.flights       prints one line of JSON
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.matching.contest import pin
from tidings.events import EventType
from tidings.matching import Index

RECORDS, CONDITIONS, ROUNDS = 336_776, 300, 3
CARRIERS = ["UA", "B6", "EV", "DL", "AA", "MQ", "US", "9E", "WN", "VX", "FL", "AS", "F9", "YV", "HA", "OO"]
AIRPORTS = [f"{a}{b}{c}" for a in "ABDLMPS" for b in "AEOST" for c in "LNX"]
FLIGHT = EventType(
    "Flight",
    {
        "month": int,
        "day": int,
        "hour": int,
        "dep_delay": float,
        "arr_delay": float,
        "carrier": str,
        "flight": int,
        "tailnum": str,
        "origin": str,
        "dest": str,
        "air_time": float,
        "distance": int,
    },
)


def flights(count: int = RECORDS, seed: int = 17) -> pa.Table:
    rng = np.random.default_rng(seed)
    delay = np.round(rng.exponential(25, count) - 12)
    distance = rng.choice([94, 184, 213, 502, 719, 1_089, 1_400, 2_475, 4_983], count)
    cancelled = rng.random(count) < 0.025
    columns = {
        "month": rng.integers(1, 13, count),
        "day": rng.integers(1, 29, count),
        "hour": np.clip(rng.normal(13, 4.5, count), 5, 23).astype(np.int64),
        "dep_delay": pa.array(delay, mask=cancelled),
        "arr_delay": pa.array(np.round(delay + rng.normal(-5, 15, count)), mask=cancelled),
        "carrier": _skewed(rng, CARRIERS, count),
        "flight": rng.integers(1, 6_500, count),
        "tailnum": _skewed(
            rng, [f"N{number}{end}" for number in range(100, 900) for end in ("UA", "JB", "EV", "DL", "MQ")], count
        ),
        "origin": _skewed(rng, ["EWR", "JFK", "LGA"], count),
        "dest": _skewed(rng, AIRPORTS, count),
        "air_time": pa.array(np.round(distance / 7.5 + rng.normal(15, 8, count)), mask=cancelled),
        "distance": distance.astype(np.int64),
    }
    return pa.table(columns)


def _skewed(rng: np.random.Generator, words: list[str], count: int) -> pa.Array:
    weights = 1 / np.arange(1, len(words) + 1) ** 0.7
    return pa.array(words).take(pa.array(rng.choice(len(words), count, p=weights / weights.sum())))


def conditions(count: int = CONDITIONS, seed: int = 23) -> list[str]:
    draw = Random(seed)
    return [_odd(draw) if number % 3 == 0 else " AND ".join(_plain(draw)) for number in range(count)]


def _plain(draw: Random) -> list[str]:
    """One to three sides."""
    month, low = draw.randrange(1, 13), draw.randrange(-10, 120)
    sides = [
        f"month = {month}",
        f"day BETWEEN {draw.randrange(1, 14)} AND {draw.randrange(14, 29)}",
        f"hour >= {draw.randrange(6, 22)}",
        f"dep_delay > {low}.0",
        f"arr_delay BETWEEN {low}.0 AND {low + draw.randrange(5, 60)}.0",
        f"carrier IN ('{draw.choice(CARRIERS)}', '{draw.choice(CARRIERS)}')",
        f"dest = '{draw.choice(AIRPORTS)}'",
        f"origin = '{draw.choice(('EWR', 'JFK', 'LGA'))}'",
        f"flight < {draw.randrange(50, 6_000)}",
        f"distance >= {draw.randrange(100, 2_500)}",
    ]
    return draw.sample(sides, draw.randrange(1, 4))


def _odd(draw: Random) -> str:
    sides = _plain(draw)
    kinds: list[Callable[[], str]] = [
        lambda: f"tailnum LIKE '%{draw.choice(('UA', 'JB', 'EV', 'DL', 'MQ'))}'",
        lambda: f"tailnum LIKE '%{draw.randrange(10, 99)}%'",
        lambda: f"carrier <> '{draw.choice(CARRIERS)}'",
        lambda: f"NOT (hour BETWEEN 8 AND {draw.randrange(12, 20)})",
        lambda: f"(dest = '{draw.choice(AIRPORTS)}' OR arr_delay > {draw.randrange(20, 200)}.0)",
        lambda: "arr_delay > dep_delay",
        lambda: f"dest LIKE '%{draw.choice('LNX')}'",
    ]
    return " AND ".join([*sides, draw.choice(kinds)()])


def measure() -> dict[str, Any]:
    table, wanted = flights(), conditions()
    index = Index(FLIGHT)
    index.add_all(pa.table({"id": [f"w{number}" for number in range(len(wanted))], "condition": wanted}))
    index.settle()
    index.match_numbers(table.slice(0, 1_000))
    matched = index.match_batch(table)
    ours = matched.group_by("subscription").aggregate([("event", "count"), ("event", "sum")])
    database = duckdb.connect()
    database.execute("SET threads = 1")
    database.register("numbered", table.add_column(0, "record", pa.array(np.arange(len(table), dtype=np.int64))))
    database.execute("CREATE TABLE flights AS FROM numbered")
    found = [_ask(database, text) for text in wanted]
    counts = dict(
        zip(ours["subscription"].to_pylist(), zip(ours["event_count"].to_pylist(), ours["event_sum"].to_pylist()))
    )
    agrees = all(counts.get(f"w{n}", (0, 0)) == (len(rows), int(rows.sum())) for n, rows in enumerate(found))
    return {
        "records": len(table),
        "conditions": len(wanted),
        "matches": sum(map(len, found)),
        "agrees": agrees,
        "ours_s": _best(lambda: index.match_numbers(table)),
        "duckdb_s": _best(lambda: [_ask(database, text) for text in wanted]),
    }


def _ask(database: duckdb.DuckDBPyConnection, text: str) -> Any:
    return database.execute(f"SELECT record FROM flights WHERE {text}").fetchnumpy()["record"]


def _best(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(ROUNDS):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


if __name__ == "__main__":
    pin(1)
    print(json.dumps(measure()))
    sys.exit(0)
