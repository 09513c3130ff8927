"""DuckDB, on one thread: as a binned equi-join, as it plans a join on the sides by itself, and asked condition by condition."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.matching.binned import BINS, KEYS_PER_ATTRIBUTE, SIDES_MAX, Bins, Coder, Filing, file_subscriptions
from benchmarks.matching.engine import Answers, Array, Workload
from benchmarks.workload import DOMAIN, NAMES, NUMBERS


class _Query:
    """Events in a table of one column per attribute, and one query that pairs them with subscriptions."""

    query: str

    def __init__(self) -> None:
        self._database = duckdb.connect()
        self._database.execute("SET threads = 1")
        self._database.execute("SET preserve_insertion_order = false")

    def warm_up(self, workload: Workload) -> None:
        """Queries are planned each time."""

    def _store(self, name: str, columns: dict[str, Array] | pa.Table) -> None:
        self._database.register("incoming", columns if isinstance(columns, pa.Table) else pa.table(columns))
        self._database.execute(f"CREATE TABLE {name} AS FROM incoming")
        self._database.unregister("incoming")

    def admit(self, workload: Workload) -> None:
        columns = {name: workload.events[:, a] for a, name in enumerate(workload.names)}
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
        filed = {"key": filing.key, "box": owner, "lo0": filing.low[0][owner], "hi0": filing.high[0][owner]}
        filed |= side(filing.attribute[1][owner], filing.low[1][owner], filing.high[1][owner], 1)
        self._store("filed", filed)
        for a in range(len(workload.names)):
            here = f"key // {KEYS_PER_ATTRIBUTE} = {a}"
            self._database.execute(f"CREATE TABLE filed{a} AS FROM filed WHERE {here}")
        self._store("rest", rest_of(filing))
        if filing.beyond:
            self._store("accepted", {"code": filing.beyond.accepted})
        self.query = _binned_query(workload, filing)

    def admit(self, workload: Workload) -> None:
        super().admit(workload)
        self._given = workload.event_table() if workload.boxes else None
        self._names, self._bins, self._coder = workload.names, Bins(workload), Coder()

    def match(self) -> int:
        if self._given is not None:
            self._database.register("coded", coded(self._coder(self._given), self._bins, self._names))
        return super().match()


def coded(values: Array, bins: Bins, names: list[str]) -> pa.Table:
    """Events as a table of integers: one column per attribute, and one with the key to look under."""
    keys = bins.keys(values)
    columns: dict[str, Array] = {"event": np.arange(len(values), dtype=np.int32)}
    columns |= {name: np.ascontiguousarray(values[:, a]) for a, name in enumerate(names)}
    return pa.table(columns | {f"key{a}": np.ascontiguousarray(keys[:, a]) for a in range(len(names))})


def rest_of(filing: Filing) -> dict[str, Array]:
    """What is joined to survivors only, by box: the third and later sides, and what is no side."""
    rest: dict[str, Array] = {"box": np.arange(len(filing.condition), dtype=np.int32), "sub": filing.condition}
    for j in range(2, len(filing.attribute)):
        rest |= side(filing.attribute[j], filing.low[j], filing.high[j], j)
    if beyond := filing.beyond:
        rest |= {"twice": filing.twice, "not_a": beyond.not_attr.astype(np.int64) + 1, "not_lo": beyond.not_low}
        rest |= {"not_hi": beyond.not_high, "not_above": beyond.not_above}
        rest |= {"set_a": beyond.set_attr.astype(np.int64) + 1, "set_id": beyond.set_id.astype(np.int64)}
    return rest


def side(attribute: Array, low: Array, high: Array, j: int) -> dict[str, Array]:
    """Columns of one side; lists count from one, and take 64-bit positions without a cast."""
    return {f"a{j}": attribute.astype(np.int64) + 1, f"lo{j}": low, f"hi{j}": high}


def _binned_query(workload: Workload, filing: Filing) -> str:
    names = workload.names
    values = f"(SELECT *, [{', '.join(names)}] AS v FROM {'coded' if workload.boxes else 'events'})"
    candidates = " UNION ALL ".join(
        f"SELECT event, box, v FROM {values} JOIN filed{a} ON key = {_key(a, workload)} AND {name} >= lo0 AND {name} < hi0"
        f" WHERE v[a1] >= lo1 AND v[a1] < hi1"
        for a, name in enumerate(names)
    )
    inside = _inside(2, len(filing.attribute))
    if filing.beyond is None:
        return f"SELECT event, sub FROM ({candidates}) JOIN rest USING (box) WHERE {inside}"
    found = f"SELECT event, sub, twice FROM ({candidates}) JOIN rest USING (box) WHERE {BEYOND} AND {inside}"
    return f"WITH found AS MATERIALIZED ({found}) {ONCE}"


def _key(a: int, workload: Workload) -> str:
    if workload.boxes:
        return f"key{a}"
    cell = f"{NAMES[a]}::BIGINT * {BINS[workload.name]} // {DOMAIN}" if a < NUMBERS else NAMES[a]
    return f"({a * KEYS_PER_ATTRIBUTE} + {cell})::INT"


BEYOND = (
    f"(set_id < 0 OR set_id * {KEYS_PER_ATTRIBUTE} + v[set_a] IN (SELECT code FROM accepted))"
    " AND v[not_a] > not_above AND (v[not_a] < not_lo OR v[not_a] >= not_hi)"
)
ONCE = "SELECT event, sub FROM found WHERE NOT twice UNION ALL SELECT DISTINCT event, sub FROM found WHERE twice"


def _inside(first: int, sides: int = SIDES_MAX) -> str:
    """All sides from this one on. They are tried from the last to the first, so the most selective stands last."""
    return " AND ".join(f"v[a{j}] >= lo{j} AND v[a{j}] < hi{j}" for j in reversed(range(first, sides)))


class DuckdbItself(_Query):
    """Every side in columns of its own, and a join on all of them: no bins, DuckDB plans a nested loop."""

    def build(self, workload: Workload) -> None:
        filing = file_subscriptions(workload)
        columns: dict[str, Array] = {"sub": np.arange(len(workload.wanted), dtype=np.int32)}
        for j in range(SIDES_MAX):
            columns |= side(filing.attribute[j], filing.low[j], filing.high[j], j)
        self._store("wanted", columns)
        values = f"(SELECT event, [{', '.join(workload.names)}] AS v FROM events)"
        self.query = f"SELECT event, sub FROM {values} JOIN wanted ON {_inside(0)}"


class DuckdbOneByOne(_Query):
    """Each condition as the text it is, asked by a query of its own over all events."""

    def build(self, workload: Workload) -> None:
        self._texts = workload.texts()

    def admit(self, workload: Workload) -> None:
        self._event_count = len(workload.events)
        number = pa.array(np.arange(self._event_count, dtype=np.int32))
        self._store("events", workload.event_table().add_column(0, "event", number))

    def match(self) -> int:
        ask = self._database.execute
        self._found = [ask(f"SELECT event FROM events WHERE {text}").fetchnumpy()["event"] for text in self._texts]
        return sum(map(len, self._found))

    def answers(self) -> Answers:
        conditions = np.repeat(np.arange(len(self._found)), [len(rows) for rows in self._found])
        return Answers.of_pairs(np.concatenate(self._found), conditions, self._event_count)
