"""ClickHouse inside this process (chdb), on one thread: the binned equi-join, in the fastest form that was found.

Tables of the engine `Join` keep their hash table, so that a query only probes it. The one with the candidates has
arrays of all boxes under a key, which ARRAY JOIN unfolds: four times as fast as a row per box. Single values of an event are
looked up in a FLAT dictionary, which beats carrying all of them along. Small blocks keep candidates in the cache.
"""

from __future__ import annotations

from typing import Any

import chdb
import numpy as np
import pyarrow as pa

from benchmarks.matching.binned import KEYS_PER_ATTRIBUTE, Bins, Coder, Filing, file_subscriptions
from benchmarks.matching.duckdb_join import rest_of
from benchmarks.matching.engine import Answers, Array, Workload

# As many rows of events by attributes at a time: small blocks were faster than the default.
SETTINGS = "max_threads = 1, max_block_size = 2048"
TYPES = {pa.int32(): "Int32", pa.int64(): "Int64", pa.uint64(): "UInt64", pa.bool_(): "UInt8"}
VALUES = (
    "CREATE DICTIONARY {0} (place UInt64, value Int32) PRIMARY KEY place SOURCE(CLICKHOUSE(TABLE 'places'))"
    " LAYOUT(FLAT(MAX_ARRAY_SIZE 100000000)) LIFETIME(0)"
)


class ChdbBinned:
    """Each event with one row per attribute; a row probes for the boxes filed under its key."""

    def __init__(self) -> None:
        self._connection = chdb.connect(":memory:")
        self._connection.query("SET max_threads = 1")

    def warm_up(self, workload: Workload) -> None:
        """Queries are planned each time."""

    def _store(self, name: str, incoming: pa.Table, engine: str) -> None:
        # Columns from Python would be Nullable, which is slower.
        columns = ", ".join(
            f"CAST({column.name}, '{_type(column.type)}') AS {column.name}" for column in incoming.schema
        )
        self._connection.query(
            f"CREATE OR REPLACE TABLE {name} ENGINE = {engine} AS SELECT {columns} FROM Python(incoming)"
        )

    def build(self, workload: Workload) -> None:
        filing = file_subscriptions(workload)
        self._store("filed", _cells(filing), "Join(ANY, LEFT, key)")
        rest = rest_of(filing)
        self._store("rest", pa.table(rest), "Join(ANY, LEFT, box)")
        if filing.beyond:
            self._store("accepted", pa.table({"code": filing.beyond.accepted}), "Set")
        self._query = _query(filing, len(workload.names))

    def admit(self, workload: Workload) -> None:
        self._bins, self._coder = Bins(workload), Coder()
        self._given = workload.event_table() if workload.boxes else None
        self._count = len(workload.events)
        if self._given is None:
            self._insert(workload.events)

    def _insert(self, values: Array) -> None:
        event = np.repeat(np.arange(len(values), dtype=np.int32), values.shape[1])
        flat, keys = values.reshape(-1), self._bins.keys(values).reshape(-1)
        self._store("events", pa.table({"event": event, "key": keys, "value": flat}), "Memory")
        places = np.arange(len(flat), dtype=np.uint64)
        self._store("places", pa.table({"place": places, "value": flat}), "Memory")
        self._connection.query("DROP DICTIONARY IF EXISTS v")
        self._connection.query(VALUES.format("v"))
        self._connection.query("SYSTEM RELOAD DICTIONARY v")

    def match(self) -> int:
        if self._given is not None:
            self._insert(self._coder(self._given))
        self._pairs = self._connection.query(self._query, "arrowtable")
        return int(self._pairs.num_rows)

    def answers(self) -> Answers:
        return Answers.of_pairs(self._pairs["event"].to_numpy(), self._pairs["sub"].to_numpy(), self._count)

    def facts(self) -> dict[str, Any]:
        return {"version": chdb.engine_version}


def _type(kind: pa.DataType) -> str:
    return f"Array({TYPES[kind.value_type]})" if pa.types.is_list(kind) else TYPES[kind]


def _cells(filing: Filing) -> pa.Table:
    """A row per key, with arrays of the boxes filed there, their first side and their second."""
    order = np.argsort(filing.key, kind="stable")
    keys, begin = np.unique(filing.key[order], return_index=True)
    ends = pa.array(np.append(begin, len(order)).astype(np.int32))
    owner = filing.owner[order]
    parts = {"boxes": owner, "los0": filing.low[0][owner], "his0": filing.high[0][owner]}
    parts |= {"as1": filing.attribute[1][owner], "los1": filing.low[1][owner], "his1": filing.high[1][owner]}
    return pa.table(
        {"key": keys} | {name: pa.ListArray.from_arrays(ends, pa.array(part)) for name, part in parts.items()}
    )


def _query(filing: Filing, width: int) -> str:
    def value(attribute: str) -> str:
        return f"dictGet('v', 'value', toUInt64(event * {width} + {attribute}))"

    first = f"value >= lo0 AND value < hi0 AND {value('a1')} >= lo1 AND {value('a1')} < hi1"
    candidates = (
        "SELECT event, box FROM events ANY LEFT JOIN filed USING (key) ARRAY JOIN boxes AS box, los0 AS lo0, his0 AS hi0,"
        f" as1 AS a1, los1 AS lo1, his1 AS hi1 WHERE {first}"
    )
    # Positions in `rest` count from one.
    tests = [f"{value(f'a{j} - 1')} >= lo{j} AND {value(f'a{j} - 1')} < hi{j}" for j in range(2, len(filing.attribute))]
    if filing.beyond:
        held = value("not_a - 1")
        tests.append(f"{held} > not_above AND ({held} < not_lo OR {held} >= not_hi)")
        tests.append(f"(set_id < 0 OR (set_id * {KEYS_PER_ATTRIBUTE} + {value('set_a - 1')}) IN accepted)")
    found = f"SELECT event, sub FROM ({candidates}) AS c ANY LEFT JOIN rest USING (box) WHERE {' AND '.join(tests)}"
    # A condition of two boxes may be there twice.
    return f"{found}{' LIMIT 1 BY event, sub' if filing.beyond else ''} SETTINGS {SETTINGS}"
