"""DuckDB's best, from Parquet to Parquet: the binned equi-join that serves it best, on as many threads as there are cores."""

from __future__ import annotations

from pathlib import Path

import duckdb

from benchmarks.matching import duckdb_join
from benchmarks.matching.engine import Workload


class DuckdbBinned:
    """Subscriptions in tables; events read from files by the query that writes the pairs."""

    def __init__(self, folder: Path, cores: int) -> None:
        self.join = duckdb_join.DuckdbBinned()
        self.join._database.execute(f"SET threads = {cores}")

    def build(self, workload: Workload) -> None:
        self.join.build(workload)

    def run(self, events: Path, out: Path) -> None:
        self.join._database.execute(f"CREATE OR REPLACE VIEW events AS FROM read_parquet('{events}/*.parquet')")
        self.join._database.execute(f"COPY ({self.join.query}) TO '{out}' (FORMAT parquet, COMPRESSION snappy)")

    def facts(self) -> dict[str, str]:
        return {"version": duckdb.__version__}

    def close(self) -> None:
        self.join._database.close()
