"""Results: one table for all experiments, and the queries that figures and claims make of it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        ("paper", pa.string()),
        ("figure", pa.string()),
        ("series", pa.string()),
        ("x", pa.float64()),
        ("y", pa.float64()),
        ("seed", pa.int64()),
        ("parameters", pa.string()),  # JSON: each experiment has its own.
    ]
)
"""One row per run: what `results.parquet` promises."""

_ORDER = [(name, "ascending") for name in ("paper", "figure", "series", "x", "seed", "parameters", "y")]


class Verdict(StrEnum):
    """How what was measured compares with what was claimed."""

    HOLDS = "holds"
    BETTER = "better"  # Than a number of the paper, under its conditions.
    DIFFERS = "differs"
    GOAL_MET = "goal met"  # A target of our own.
    GOAL_MISSED = "goal missed"


class Finding(NamedTuple):
    """What was measured for a claim, the verdict, and why."""

    measured: str
    verdict: Verdict
    why: str


class NotMeasured(LookupError):
    """The results lack what was asked for."""


class MeanWithMargin(NamedTuple):
    """The mean of some runs and its margin: half the width of the 95 % interval."""

    mean: float
    margin: float


@dataclass(frozen=True, slots=True)
class Results:
    """All rows of one figure."""

    rows: tuple[tuple[str, float, float], ...]
    """Series, x and y, in a fixed order."""

    def series(self) -> list[str]:
        """The lines of the figure, in the order of their names."""
        return sorted({series for series, _, _ in self.rows})

    def xs(self, series: str) -> list[float]:
        """Where a line has values."""
        return sorted({x for line, x, _ in self.rows if line == series})

    def ys(self, series: str, x: float | None = None) -> list[float]:
        """The values of a line, at one place or anywhere; raises NotMeasured if there are none."""
        found = [y for line, at, y in self.rows if line == series and x in (None, at)]
        if not found:
            raise NotMeasured(f"{series}{'' if x is None else f' at {x:g}'} was not measured")
        return found

    def mean(self, series: str, x: float | None = None) -> float:
        return fmean(self.ys(series, x))

    def spread(self, series: str, x: float) -> MeanWithMargin:
        """The mean at one place, with its 95 % interval (Student's t)."""
        return spread(self.ys(series, x))


def spread(values: Sequence[float]) -> MeanWithMargin:
    """A mean and its margin; of a single value the margin is unknown and given as 0."""
    if len(values) < 2:
        return MeanWithMargin(values[0], 0.0)
    from scipy.stats import t

    return MeanWithMargin(fmean(values), float(t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values)))


def results_of(table: pa.Table, paper: str, figure: str) -> Results:
    """The rows of one figure of a table as `read` gives it."""
    columns = (table[name].to_pylist() for name in ("paper", "figure", "series", "x", "y"))
    return Results(tuple((series, x, y) for p, f, series, x, y in zip(*columns) if (p, f) == (paper, figure)))


def table_of(rows: Iterable[dict[str, Any]]) -> pa.Table:
    """Rows as a table; their parameters become JSON."""
    written = [{**row, "parameters": json.dumps(row["parameters"], sort_keys=True)} for row in rows]
    return pa.Table.from_pylist(written, SCHEMA)


def write(tables: Sequence[pa.Table], path: Path) -> None:
    """All rows in one file, in an order that does not depend on which run finished first; wholly or not at all."""
    joined = pa.concat_tables([SCHEMA.empty_table(), *tables]).sort_by(_ORDER)
    with written_whole(path) as draft:
        pq.write_table(joined, draft)


def read(path: Path) -> pa.Table:
    return pq.read_table(path, schema=SCHEMA)


DRAFT = ".draft"  # How the name of a file ends while it is being written.


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A file to write to, renamed to `path` once it is complete: a reader finds all of it or nothing."""
    draft = path.with_name(f".{path.name}.{os.getpid()}{DRAFT}")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def judged(
    measured: float, *, holds: Callable[[float], bool], better: Callable[[float], bool] = lambda _: False
) -> Verdict:
    """BETTER if `better` says so, else HOLDS or DIFFERS.

    >>> judged(0.0, holds=lambda loss: loss <= 0.11, better=lambda loss: loss == 0)
    <Verdict.BETTER: 'better'>
    """
    if better(measured):
        return Verdict.BETTER
    return Verdict.HOLDS if holds(measured) else Verdict.DIFFERS
