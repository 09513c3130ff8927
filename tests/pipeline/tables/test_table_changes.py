"""Subscriptions in a table: what its log says has changed, and what reading that costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from tests.pipeline.tables.given_tables import catalog_in
from tidings import EventType
from tidings.pipeline.connectors.table_format import table_name
from tidings.pipeline.sources.table_changes import LoggedTable

Sighting = EventType("Sighting", event_id=int, area=str, speed=float)
CURRENT = pa.schema([("id", pa.string()), ("subscriber", pa.string()), ("condition", pa.string())])


def rows(*names: str, filter: str = "speed > 1") -> pa.Table:
    return pa.table({"id": names, "subscriber": ["police"] * len(names), "filter": [filter] * len(names)})


class Poller:
    """Polls as `SubscriptionVersions` does, and remembers the current subscriptions."""

    def __init__(self, spark: SparkSession, where: str) -> None:
        name = table_name(where)
        assert name is not None
        self.source, self.marks = LoggedTable(spark, name, Sighting), list[str]()
        self.current: dict[str, tuple[str, str]] = {}

    def poll(self) -> dict[str, Any]:
        """What has changed: the new condition, or None for a removal."""
        found: dict[str, Any] = {}
        for change in self.source.poll(self.marks, self._table):
            for row in change.rows.collect():
                found[row.id] = None if row.removed else row.filter
                self.current.pop(row.id, None)
                if not row.removed:
                    self.current[row.id] = (row.subscriber, row.filter)
            self.marks.append(change.mark)
        return found

    def _table(self) -> pa.Table:
        listed = [{"id": id, "subscriber": who, "condition": what} for id, (who, what) in self.current.items()]
        return pa.Table.from_pylist(listed, schema=CURRENT)


@pytest.mark.parametrize("feed", ["true", "false"])
def test_changes_of_a_delta_table_are_those_of_its_log(spark: SparkSession, tmp_path: Path, feed: str) -> None:
    where = str(tmp_path / "t")
    write_deltalake(where, rows("a", "b"), configuration={"delta.enableChangeDataFeed": feed})
    write_deltalake(where, rows("c", "d"), mode="append")
    poller = Poller(spark, f"delta:{where}")
    assert poller.poll() == dict.fromkeys("abcd", "speed > 1")
    assert poller.poll() == {}
    DeltaTable(where).delete("id = 'a'")
    DeltaTable(where).update({"filter": "'speed > 2'"}, predicate="id = 'c'")
    DeltaTable(where).update({"filter": "'speed > 3'"}, predicate="id = 'c'")
    write_deltalake(where, rows("e"), mode="append")
    assert poller.poll() == {"a": None, "c": "speed > 3", "e": "speed > 1"}
    DeltaTable(where).optimize.compact()
    assert poller.poll() == {}
    write_deltalake(where, rows("f"), mode="append")
    assert poller.poll() == {"f": "speed > 1"}


def test_only_files_that_have_changed_are_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = str(tmp_path / "t")
    for name in "abcdefgh":
        write_deltalake(where, rows(name), mode="append")
    poller = Poller(spark, f"delta:{where}")
    poller.poll()
    write_deltalake(where, rows("x"), mode="append")
    for file in DeltaTable(where, version=7).file_uris():
        Path(file).unlink()  # Whoever reads an old file fails.
    assert poller.poll() == {"x": "speed > 1"}


def test_after_a_gap_in_the_log_all_subscriptions_are_compared(spark: SparkSession, tmp_path: Path) -> None:
    where = str(tmp_path / "t")
    write_deltalake(where, rows("a", "b"))
    poller = Poller(spark, f"delta:{where}")
    poller.poll()
    write_deltalake(where, rows("b", "c"), mode="overwrite")
    DeltaTable(where).create_checkpoint()
    (Path(where) / "_delta_log/00000000000000000000.json").unlink()
    DeltaTable(where).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert poller.poll() == {"a": None, "c": "speed > 1"}


def test_changes_of_an_iceberg_table_are_those_of_its_snapshots(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = catalog_in(tmp_path, monkeypatch).create_table("db.wanted", rows("a").schema)
    poller = Poller(spark, "iceberg:lake.db.wanted")
    assert poller.poll() == {}
    table.append(rows("a", "b"))
    assert poller.poll() == dict.fromkeys("ab", "speed > 1")
    table.append(rows("c"))
    table.delete("id = 'a'")
    table.overwrite(rows("b", filter="speed > 2"), "id = 'b'")
    assert poller.poll() == {"a": None, "b": "speed > 2", "c": "speed > 1"}
