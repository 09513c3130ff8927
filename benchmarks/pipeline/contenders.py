"""Who takes part in the comparison of whole jobs, with how many events at which size, and how long they may take.

Everybody reads events from Parquet and writes every pair to Parquet, on the same two cores.
Subscriptions are taken in before the clock starts. The slow get fewer events, since only the rate
counts, but enough for some seconds of work, so that what a query costs once does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SIZES = ("base10k", "base100k", "base1m")
QUICK_SIZES = ("base10k",)
COMPACT, ROWS = "Tidings, lists", "Tidings, rows"
DATAFRAMES = "Tidings, DataFrames"
DUCKDB, EXPERT, ITSELF = "DuckDB, binned join", "Spark SQL, binned join", "Spark SQL by itself"


GROWTH_SIZE, GROWTH_EVENTS, GROWTH_CORES = "base100k", (800_000, 400_000), (1,)


@dataclass(frozen=True, slots=True)
class Contender:
    """`events` by size; one that is not listed is not tried. `limit_s` bounds its part of a process.

    `engine` is a module and a name in it; neighbours of one module share a process. The first number is what contenders are compared by. Others show how time grows with events.
    """

    name: str
    engine: str
    events: Mapping[str, tuple[int, ...]]
    limit_s: int


def _events(*counts: int) -> dict[str, tuple[int, ...]]:
    return {size: (count,) for size, count in zip(SIZES, counts)}


def _with_growth(events: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return events | {GROWTH_SIZE: events[GROWTH_SIZE] + GROWTH_EVENTS}


CONTENDERS = (
    Contender(COMPACT, "ours:Lists", _with_growth(_events(2_400_000, 1_600_000, 400_000)), 200),
    Contender(ROWS, "ours:Rows", _events(800_000, 400_000, 100_000), 90),
    Contender(DATAFRAMES, "ours:DataFrames", _events(400_000, 400_000), 90),
    Contender(DUCKDB, "duckdb_job:DuckdbBinned", _events(200_000, 100_000, 20_000), 90),
    Contender(EXPERT, "spark_job:SparkBinned", _events(100_000, 20_000, 4_000), 120),
    Contender(ITSELF, "spark_job:SparkItself", _events(8_000, 1_000, 500), 90),
)
