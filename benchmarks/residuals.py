"""Conditions as people write them, over records with nulls and skewed values: the index against DuckDB.

300 random conditions, a third of them with a suffix, a contained word, `<>`, NOT, OR or two attributes, over 336,776
records in the columns of a year of flights. DuckDB is asked 300 times, once for each condition, on one thread
like the index, and the matches are compared.

    python -m benchmarks.residuals [--rows N] [--conditions N]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.matching.contest import pin
from tidings.events import EventType, event_type_from
from tidings.matching import Index

ROWS, CONDITIONS, ROUNDS = 336_776, 300, 3
CARRIERS = ("UA", "B6", "EV", "DL", "AA", "MQ", "US", "9E", "WN", "VX", "FL", "AS", "F9", "YV", "HA", "OO")
ORIGINS = ("EWR", "JFK", "LGA")
OWNERS = ("AA", "UA", "JB", "DL", "WN", "MQ", "EV")


class Flights:
    """Records and conditions from one seed."""

    def __init__(self, rows: int, seed: int = 7) -> None:
        self._chance, self._rng, self._rows = np.random.default_rng(seed), Random(seed), rows
        letters = np.array(list("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
        self.destinations = ["".join(code) for code in self._chance.choice(letters, (105, 3))]
        self.tails = [f"N{n}{self._rng.choice(OWNERS)}" for n in self._chance.integers(100, 999, 4043)]

    def table(self) -> pa.Table:
        chance, rows = self._chance, self._rows
        departure = chance.normal(12, 40, rows).round()
        whole = {name: chance.integers(low, high, rows) for name, low, high in _WHOLE}
        return pa.table(
            {
                **whole,
                "carrier": self._skewed(CARRIERS),
                "origin": self._skewed(ORIGINS),
                "dest": self._skewed(self.destinations),
                "tailnum": self._skewed(self.tails, 0.007),
                "dep_delay": self._some(departure, 0.025),
                "arr_delay": self._some(departure + chance.normal(-5, 18, rows).round(), 0.028),
                "air_time": self._some(chance.integers(20, 700, rows).astype(float), 0.028),
            }
        )

    def _skewed(self, texts: Sequence[str], nulls: float = 0.0) -> pa.Array:
        weight = 1 / np.arange(1, len(texts) + 1)
        drawn = self._chance.choice(len(texts), self._rows, p=weight / weight.sum())
        return pa.array(texts, pa.string()).take(self._some(drawn, nulls))

    def _some(self, values: Any, nulls: float) -> pa.Array:
        return pa.array(values, mask=self._chance.random(self._rows) < nulls)

    def condition(self) -> str:
        parts = [self._plain() for _ in range(self._rng.choice([1, 2, 2, 3]))]
        if self._rng.random() < 1 / 3:
            parts.insert(self._rng.randrange(len(parts) + 1), self._other())
        return " AND ".join(parts)

    def _plain(self) -> str:
        rng = self._rng
        low = rng.randrange(100, 2500)
        places = ", ".join(f"'{place}'" for place in rng.sample(self.destinations, 3))
        return rng.choice(
            [
                f"month = {rng.randrange(1, 13)}",
                f"carrier = '{rng.choice(CARRIERS)}'",
                f"dep_delay > {rng.randrange(120)}",
                f"distance BETWEEN {low} AND {low + rng.randrange(100, 800)}",
                f"dest IN ({places})",
                f"origin = '{rng.choice(ORIGINS)}'",
                f"air_time < {rng.randrange(30, 400)}",
            ]
        )

    def _other(self) -> str:
        rng = self._rng
        return rng.choice(
            [
                f"tailnum LIKE '%{rng.choice(OWNERS)}'",
                f"tailnum LIKE '%{rng.randrange(10, 99)}%'",
                f"dest LIKE '%{rng.choice('ABCDEFGHIJ')}%'",
                f"carrier <> '{rng.choice(CARRIERS)}'",
                f"NOT ({self._plain()} AND {self._plain()})",
                f"({self._plain()} OR {self._plain()})",
                f"arr_delay > dep_delay + {rng.randrange(30)}",
            ]
        )


_WHOLE = (("month", 1, 13), ("day", 1, 29), ("flight", 1, 8500), ("distance", 17, 5000), ("sched_dep_time", 500, 2359))


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """The shortest of some rounds, and the result."""
    best, found = float("inf"), None
    for _ in range(ROUNDS):
        start = time.perf_counter()
        found = work()
        best = min(best, time.perf_counter() - start)
    return best, found


def ours(table: pa.Table, conditions: Sequence[str], event_type: EventType) -> tuple[float, float, list[int]]:
    """Seconds for numbers, seconds for a table in order, and the matches of each condition."""
    index = Index(event_type)
    index.add_all([(str(number), condition) for number, condition in enumerate(conditions)])
    index.settle()
    numbers_s, found = seconds(lambda: index.match_numbers(table))
    ordered_s, _ = seconds(lambda: index.match_batch(table))
    counts = np.bincount(found.numbers, minlength=len(conditions))
    return numbers_s, ordered_s, [int(counts[found.ids.index(str(n)).as_py()]) for n in range(len(conditions))]


def duckdb_one_by_one(table: pa.Table, conditions: Sequence[str]) -> tuple[float, list[int]]:
    import duckdb

    connection = duckdb.connect(config={"threads": 1})
    connection.register("records", table)
    connection.execute("CREATE TABLE flights AS SELECT * FROM records")

    def ask() -> list[int]:
        query = "SELECT rowid FROM flights WHERE {}"
        return [len(connection.execute(query.format(each)).fetchnumpy()["rowid"]) for each in conditions]

    return seconds(ask)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--conditions", type=int, default=CONDITIONS)
    wanted = parser.parse_args(argv)
    pin(1)
    flights = Flights(wanted.rows)
    table, conditions = flights.table(), [flights.condition() for _ in range(wanted.conditions)]
    numbers_s, ordered_s, counts = ours(table, conditions, event_type_from("Flight", table.schema))
    duckdb_s, expected = duckdb_one_by_one(table, conditions)
    print(f"{len(conditions)} conditions, {table.num_rows:,} records, {sum(counts):,} matches, one core")
    print(f"  index, numbers        {numbers_s:6.2f} s")
    print(f"  index, ids in order   {ordered_s:6.2f} s")
    print(f"  DuckDB, one by one    {duckdb_s:6.2f} s   {duckdb_s / ordered_s:.1f} times as long as ids in order")
    differ = [condition for condition, a, b in zip(conditions, counts, expected, strict=True) if a != b]
    for condition in differ:
        print(f"  DIFFERS: {condition}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
