"""DuckDB, on one thread: as a binned equi-join, and as it plans a join on the sides by itself."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.matching.binned import KEYS_PER_ATTRIBUTE, SIDES_MAX, file_subscriptions
from benchmarks.matching.engine import Answers, Array, Workload
from benchmarks.workload import ATTRIBUTES, DOMAIN, NAMES, NUMBERS


class _Query:
    """Events in a table of one column per attribute, and one query that pairs them with subscriptions."""

    query: str

    def __init__(self) -> None:
        self._database = duckdb.connect()
        self._database.execute("SET threads = 1")
        self._database.execute("SET preserve_insertion_order = false")

    def warm_up(self, workload: Workload) -> None:
        """Queries are planned each time."""

    def _store(self, name: str, columns: dict[str, Array]) -> None:
        self._database.register("incoming", pa.table(columns))
        self._database.execute(f"CREATE TABLE {name} AS FROM incoming")
        self._database.unregister("incoming")

    def admit(self, workload: Workload) -> None:
        columns = {name: workload.events[:, a] for a, name in enumerate(NAMES)}
        self._event_count = len(workload.events)
        self._store("events", {"event": np.arange(self._event_count, dtype=np.int32), **columns})

    def match(self) -> int:
        pairs = self._database.sql(self.query).to_arrow_table()
        self._pairs: dict[str, Array] = {name: pairs[name].to_numpy() for name in ("event", "sub")}
        return int(pairs.num_rows)

    def answers(self) -> Answers:
        return Answers.of_pairs(self._pairs["event"], self._pairs["sub"], self._event_count)

    def facts(self) -> dict[str, Any]:
        return {"version": duckdb.__version__}


class DuckdbBinned(_Query):
    """One hash join per attribute, on its bin; the third and later sides joined late, to the survivors only."""

    def build(self, workload: Workload) -> None:
        filing = file_subscriptions(workload)
        owner = filing.owner
        filed = {"key": filing.key, "sub": owner, "a0": filing.attribute[0][owner]}
        filed |= {"lo0": filing.low[0][owner], "hi0": filing.high[0][owner]}
        filed |= _side(filing.attribute[1][owner], filing.low[1][owner], filing.high[1][owner], 1)
        self._store("filed", filed)
        for a in range(ATTRIBUTES):
            self._database.execute(f"CREATE TABLE filed{a} AS SELECT * EXCLUDE a0 FROM filed WHERE a0 = {a}")
        rest: dict[str, Array] = {"sub": np.arange(len(workload.wanted), dtype=np.int32)}
        for j in range(2, SIDES_MAX):
            rest |= _side(filing.attribute[j], filing.low[j], filing.high[j], j)
        self._store("rest", rest)
        self.query = _binned_query(filing.bins)


def _side(attribute: Array, low: Array, high: Array, j: int) -> dict[str, Array]:
    """Columns of one side; lists count from one, and take 64-bit positions without a cast."""
    return {f"a{j}": attribute.astype(np.int64) + 1, f"lo{j}": low, f"hi{j}": high}


def _binned_query(bins: int) -> str:
    values = f"(SELECT *, [{', '.join(NAMES)}] AS v FROM events)"
    candidates = " UNION ALL ".join(
        f"SELECT event, sub, v FROM {values} JOIN filed{a} ON key = {_key(a, bins)} AND {name} >= lo0 AND {name} < hi0"
        f" WHERE v[a1] >= lo1 AND v[a1] < hi1"
        for a, name in enumerate(NAMES)
    )
    return f"SELECT event, sub FROM ({candidates}) JOIN rest USING (sub) WHERE {_inside(2)}"


def _inside(first: int) -> str:
    """All sides from this one on. They are tried from the last to the first, so the most selective stands last."""
    return " AND ".join(f"v[a{j}] >= lo{j} AND v[a{j}] < hi{j}" for j in reversed(range(first, SIDES_MAX)))


def _key(a: int, bins: int) -> str:
    cell = f"{NAMES[a]}::BIGINT * {bins} // {DOMAIN}" if a < NUMBERS else NAMES[a]
    return f"({a * KEYS_PER_ATTRIBUTE} + {cell})::INT"


class DuckdbItself(_Query):
    """Every side in columns of its own, and a join on all of them: no bins, DuckDB plans a nested loop."""

    def build(self, workload: Workload) -> None:
        filing = file_subscriptions(workload)
        columns: dict[str, Array] = {"sub": np.arange(len(workload.wanted), dtype=np.int32)}
        for j in range(SIDES_MAX):
            columns |= _side(filing.attribute[j], filing.low[j], filing.high[j], j)
        self._store("wanted", columns)
        values = f"(SELECT event, [{', '.join(NAMES)}] AS v FROM events)"
        self.query = f"SELECT event, sub FROM {values} JOIN wanted ON {_inside(0)}"
