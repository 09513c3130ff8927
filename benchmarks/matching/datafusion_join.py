"""Apache DataFusion, on one partition: the binned equi-join.

Each event has one row per attribute, with the key it looks under. Boxes filed there are joined, their first side is
checked at once, and the further ones on what is left.
"""

from __future__ import annotations

from typing import Any

import datafusion
import pyarrow as pa

from benchmarks.matching.binned import KEYS_PER_ATTRIBUTE, Bins, Coder, Filing, file_subscriptions
from benchmarks.matching.duckdb_join import coded, rest_of, side
from benchmarks.matching.engine import Answers, Workload

SETTINGS = {
    "datafusion.execution.target_partitions": "1",
    "datafusion.optimizer.prefer_existing_sort": "false",
}


class DatafusionBinned:
    """Candidates by one hash join per attribute; the third and later sides joined late, to the survivors only."""

    def __init__(self) -> None:
        self._context = datafusion.SessionContext(datafusion.SessionConfig(SETTINGS))

    def warm_up(self, workload: Workload) -> None:
        """Queries are planned each time."""

    def _store(self, name: str, table: pa.Table) -> None:
        if self._context.table_exist(name):
            self._context.deregister_table(name)
        self._context.register_record_batches(name, [table.to_batches(max_chunksize=8_192) or [_empty(table.schema)]])

    def build(self, workload: Workload) -> None:
        filing = file_subscriptions(workload)
        owner = filing.owner
        filed = {"key": filing.key, "box": owner, "lo0": filing.low[0][owner], "hi0": filing.high[0][owner]}
        filed |= side(filing.attribute[1][owner], filing.low[1][owner], filing.high[1][owner], 1)
        table = pa.table(filed)
        for a in range(len(workload.names)):
            here = filing.key // KEYS_PER_ATTRIBUTE == a
            self._store(f"filed{a}", table.filter(pa.array(here)))
        self._store("rest", pa.table(rest_of(filing)))
        if filing.beyond:
            self._store("accepted", pa.table({"code": filing.beyond.accepted}))
        self._query = _query(workload.names, filing)

    def admit(self, workload: Workload) -> None:
        self._names, self._bins, self._coder = workload.names, Bins(workload), Coder()
        self._given = workload.event_table() if workload.boxes else None
        self._count = len(workload.events)
        if self._given is None:
            self._store("coded", coded(workload.events, self._bins, self._names))

    def match(self) -> int:
        if self._given is not None:
            self._store("coded", coded(self._coder(self._given), self._bins, self._names))
        self._pairs = self._context.sql(self._query).to_arrow_table()
        return int(self._pairs.num_rows)

    def answers(self) -> Answers:
        return Answers.of_pairs(self._pairs["event"].to_numpy(), self._pairs["sub"].to_numpy(), self._count)

    def facts(self) -> dict[str, Any]:
        return {"version": datafusion.__version__}


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema)


def _query(names: list[str], filing: Filing) -> str:
    values = f"(SELECT *, make_array({', '.join(names)}) AS v FROM coded)"
    candidates = " UNION ALL ".join(
        f"SELECT event, box, v FROM {values} JOIN filed{a} ON key = key{a} AND {name} >= lo0 AND {name} < hi0"
        f" WHERE v[a1] >= lo1 AND v[a1] < hi1"
        for a, name in enumerate(names)
    )
    inside = " AND ".join(f"v[a{j}] >= lo{j} AND v[a{j}] < hi{j}" for j in range(2, len(filing.attribute)))
    if filing.beyond is None:
        return f"SELECT event, sub FROM ({candidates}) c JOIN rest ON c.box = rest.box WHERE {inside}"
    beyond = (
        "v[not_a] > not_above AND (v[not_a] < not_lo OR v[not_a] >= not_hi)"
        f" AND (set_id < 0 OR set_id * {KEYS_PER_ATTRIBUTE} + v[set_a] IN (SELECT code FROM accepted))"
    )
    found = f"SELECT event, sub, twice FROM ({candidates}) c JOIN rest ON c.box = rest.box WHERE {inside} AND {beyond}"
    return f"SELECT DISTINCT event, sub FROM ({found})"
