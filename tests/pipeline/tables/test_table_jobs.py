"""Delta and Iceberg tables in `tidings match` and `tidings run`."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from tests.pipeline.commands import tidings
from tests.pipeline.tables.given_tables import FIXTURES, WANTED, catalog_in, events
from tests.pipeline.test_run import struck_run
from tidings.errors import SetupError
from tidings.pipeline.connectors.delta import DeltaWriter


def wanted_file(folder: Path) -> str:
    file = folder / "wanted.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in WANTED))
    return str(file)


def test_a_delta_folder_given_as_a_plain_path_is_read_as_a_table_without_its_deleted_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    ended = tidings("match", str(FIXTURES / "delta/vectors"), wanted_file(tmp_path), "--out", str(tmp_path / "out"))
    assert ended.code == 0, ended.said
    found = pq.read_table(tmp_path / "out").to_pylist()
    assert {row["event_id"] for row in found} <= set(range(50))
    assert sum(row["subscription_id"] == "s1" for row in found) == 40
    assert sum(row["subscription_id"] == "s2" for row in found) == 17


def test_a_match_goes_from_a_delta_table_to_a_delta_table_with_columns_of_the_events(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_deltalake(str(tmp_path / "in"), events(0, 100))
    DeltaTable(str(tmp_path / "in")).delete("event_id >= 50")
    out = f"delta:{tmp_path}/out"
    asked = ("match", f"delta:{tmp_path}/in", wanted_file(tmp_path), "--out", out, "--keep", "area,speed")
    ended = tidings(*asked)
    assert ended.code == 0, ended.said
    found = DeltaTable(str(tmp_path / "out")).to_pyarrow_table()
    assert found.column_names == ["event_id", "subscription_id", "subscriber", "area", "speed"]
    assert sum(row["subscription_id"] == "s1" for row in found.to_pylist()) == 39
    again = tidings(*asked)
    assert again.code == 2
    assert "--overwrite" in again.said
    assert tidings(*asked, "--overwrite").code == 0
    assert DeltaTable(str(tmp_path / "out")).to_pyarrow_table().num_rows == found.num_rows


def test_a_match_goes_from_an_iceberg_table_to_an_iceberg_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = catalog_in(tmp_path, monkeypatch)
    table = catalog.create_table("db.events", events(0, 0).schema)
    table.append(events(0, 100))
    table.delete("event_id >= 50")
    asked = ("match", "iceberg:lake.db.events", wanted_file(tmp_path), "--out", "iceberg:lake.db.out", "--keep", "all")
    ended = tidings(*asked)
    assert ended.code == 0, ended.said
    found = catalog.load_table("db.out").scan().to_arrow()
    assert found.column_names == ["event_id", "subscription_id", "subscriber", "area", "speed"]
    assert sum(row["subscription_id"] == "s1" for row in found.to_pylist()) == 39
    assert tidings(*asked, "--overwrite").code == 0
    assert catalog.load_table("db.out").scan().to_arrow().num_rows == found.num_rows
    by_path = tidings("match", str(tmp_path / "lake/db/events"), wanted_file(tmp_path), "--out", str(tmp_path / "out"))
    assert by_path.code == 0, by_path.said
    assert pq.read_table(tmp_path / "out").num_rows == found.num_rows


PIPELINE = """
name = "lake"
checkpoint = "state"
[events]
{events}
files_per_batch = 2
[subscriptions]
{subscriptions}
[deliveries]
{deliveries}
keep = ["area"]
[quarantine]
path = "quarantine"
[trigger]
until_empty = true
"""


def pipeline(folder: Path, **parts: str) -> str:
    file = folder / "lake.toml"
    file.write_text(PIPELINE.format(**parts))
    return str(file)


def pairs(rows: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return sorted((row["event_id"], row["subscription_id"]) for row in rows)


def expected(numbers: range) -> list[tuple[str, str]]:
    fast = [(str(n), "s1") for n in numbers if n > 10]
    return sorted(fast + [(str(n), "s2") for n in numbers if n % 3 == 1])


def test_a_pipeline_runs_on_delta_tables_alone(spark: SparkSession, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "events"), events(0, 20))
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(str(tmp_path / "wanted"), pa.Table.from_pylist(WANTED), configuration=feed)
    file = pipeline(
        tmp_path,
        events='format = "delta"\npath = "events"',
        subscriptions='format = "delta"\npath = "wanted"',
        deliveries='format = "delta"\npath = "out"',
    )
    first = tidings("run", file)
    assert first.code == 0, first.said
    out = DeltaTable(str(tmp_path / "out"))
    assert pairs(out.to_pyarrow_table().to_pylist()) == expected(range(20))
    assert "area" in out.to_pyarrow_table().column_names
    for start in (20, 30, 40):
        write_deltalake(str(tmp_path / "events"), events(start, 10), mode="append")
    DeltaTable(str(tmp_path / "wanted")).delete("id = 's2'")
    second = tidings("run", file)
    assert second.code == 0, second.said
    late = [(str(n), "s1") for n in range(20, 50)]
    found = pairs(DeltaTable(str(tmp_path / "out")).to_pyarrow_table().to_pylist())
    assert found == sorted(expected(range(20)) + late)
    DeltaTable(str(tmp_path / "events")).delete("event_id = 3")
    refused = tidings("run", file)
    assert refused.code == 2
    assert refused.said.splitlines()[-1].startswith("InputError: version 4 of the Delta table")
    assert 'on_change = "skip"' in refused.said
    assert "Traceback" not in refused.said


def test_a_pipeline_runs_on_iceberg_tables_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = catalog_in(tmp_path, monkeypatch)
    table = catalog.create_table("db.events", events(0, 0).schema)
    wanted = catalog.create_table("db.wanted", pa.Table.from_pylist(WANTED).schema)
    wanted.append(pa.Table.from_pylist(WANTED))
    file = pipeline(
        tmp_path,
        events='format = "iceberg"\ntable = "lake.db.events"\non_change = "skip"',
        subscriptions='format = "iceberg"\ntable = "lake.db.wanted"',
        deliveries='format = "iceberg"\ntable = "lake.db.out"',
    )
    empty = tidings("run", file)
    assert empty.code == 0, empty.said
    for start in (0, 5, 10):
        table.append(events(start, 5))
    table.delete("event_id = 3")
    first = tidings("run", file)
    assert first.code == 0, first.said
    found = pairs(catalog.load_table("db.out").scan().to_arrow().to_pylist())
    assert found == expected(range(15))
    wanted.delete("id = 's2'")
    table.append(events(15, 5))
    second = tidings("run", file)
    assert second.code == 0, second.said
    late = [(str(n), "s1") for n in range(15, 20)]
    found = pairs(catalog.load_table("db.out").scan().to_arrow().to_pylist())
    assert found == sorted(expected(range(15)) + late)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_run_stopped_around_its_commit_neither_loses_nor_doubles_a_delivery(
    spark: SparkSession, tmp_path: Path, moment: str
) -> None:
    """After the commit by SIGKILL, before it by an error, which is cheaper; `tests.soak` kills at both."""
    write_deltalake(str(tmp_path / "events"), events(0, 20))
    wanted_file(tmp_path)
    (tmp_path / "wanted").mkdir()
    (tmp_path / "wanted.jsonl").rename(tmp_path / "wanted/1.jsonl")
    file = pipeline(
        tmp_path,
        events='format = "delta"\npath = "events"',
        subscriptions='path = "wanted"',
        deliveries='format = "delta"\npath = "out"',
    )
    if moment == "after":
        code, said = struck_run(("KILL", moment, "commit", 1), Path(file))
        assert code == -signal.SIGKILL, said
    else:
        with pytest.MonkeyPatch.context() as here:
            here.setattr(DeltaWriter, "commit", refuse)
            assert tidings("run", file).code == 2
    files = len(list((tmp_path / "out").glob("*.parquet")))
    assert files > 0
    there = DeltaTable(str(tmp_path / "out")).to_pyarrow_table()
    assert there.num_rows == (0 if moment == "before" else len(expected(range(20))))
    ended = tidings("run", file)
    assert ended.code == 0, ended.said
    assert pairs(DeltaTable(str(tmp_path / "out")).to_pyarrow_table().to_pylist()) == expected(range(20))
    if moment == "after":
        assert len(list((tmp_path / "out").glob("*.parquet"))) == files


def refuse(*given: Any, **named: Any) -> None:
    raise SetupError("the store does not answer")
