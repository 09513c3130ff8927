"""Delta tables that others wrote, read as their log says; and batches that are committed once."""

from __future__ import annotations

import datetime as dt
import json
import pickle
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.pipeline.tables.given_tables import FIXTURES, all_rows, delta_copy, events
from tidings.errors import InputError, SetupError
from tidings.pipeline.connectors.delta import DeltaFile, DeltaReader, DeltaWriter
from tidings.pipeline.connectors.table_format import (
    TableFormat,
    check_library,
    connector_for,
    named_or_found,
    open_table,
    table_at,
    table_name,
)

UTC = dt.UTC
DELIVERIES = StructType([StructField("event_id", LongType()), StructField("subscriber", StringType())])


def written(writer: DeltaWriter, *ids: int) -> list[bytes]:
    rows = pa.RecordBatch.from_pydict({"event_id": list(ids), "subscriber": [f"org{id}" for id in ids]})
    return list(pickle.loads(pickle.dumps(writer.open_for(DELIVERIES)))([rows]))


def ids_in(folder: Path | str) -> list[int]:
    return sorted(DeltaTable(str(folder)).to_pyarrow_table().column("event_id").to_pylist())


# ── Reading ──────────────────────────────────────────────────────────────────


def test_rows_that_deletion_vectors_delete_stay_deleted_and_every_type_is_read() -> None:
    table = DeltaReader(str(FIXTURES / "delta/vectors"))
    rows = all_rows(table)
    assert [row["event_id"] for row in rows] == list(range(50))
    assert rows[3] == {
        "event_id": 3,
        "area": "WC0",
        "speed": 3.5,
        "day": dt.date(2026, 3, 2),
        "seen_at": dt.datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC),
        "local_at": dt.datetime(2026, 1, 1),  # noqa: DTZ001
        "price": Decimal("0.7500"),
        "place": {"lat": 51.5, "lon": -0.1},
    }
    assert len(all_rows(table, version=1)) == 150
    assert table.plain_files(2) is None


def test_columns_that_were_renamed_added_or_dropped_are_found_by_their_names_in_files() -> None:
    rows = all_rows(DeltaReader(str(FIXTURES / "delta/mapped")))
    assert rows[0] == {
        "event_id": 0, "area": "WC1", "speed": 0, "zone": "north", "place": {"lat": 51.5, "lon": None}, "extra": None,
    }  # fmt: skip
    assert [row["zone"] for row in rows] == ["north"] * 3 + [None] * 2 + ["south"]
    assert rows[5]["place"] == {"lat": 51.4, "lon": 0.1}


def test_a_reader_of_some_columns_reads_only_these() -> None:
    table = DeltaReader(str(FIXTURES / "delta/vectors"))
    read = table.reader(["day", "event_id"])
    (part, *_) = table.parts(2)
    assert next(read(part)).schema.names == ["event_id", "day"]


def test_partition_values_are_the_same_from_the_log_and_from_the_list_of_files(tmp_path: Path) -> None:
    moment = dt.datetime(2026, 1, 1, 12, 30, 0, 250_000, tzinfo=UTC)
    odd = pl.DataFrame(
        {
            "event_id": [1, 2, 3],
            "text": ["a b/c%:é", "x=y", None],
            "day": [dt.date(2026, 1, 1), None, dt.date(1969, 12, 31)],
            "flag": [True, False, None],
            "moment": [moment, None, moment],
            "price": pl.Series([Decimal("1.50"), None, Decimal("2.25")], dtype=pl.Decimal(10, 2)),
        }
    )
    names = ["text", "day", "flag", "moment", "price"]
    odd.write_delta(str(tmp_path / "t"), delta_write_options={"partition_by": names})
    table = DeltaReader(str(tmp_path / "t"))
    assert table.appended(0, skip_changes=False) == table.parts(0)
    assert all_rows(table) == odd.sort("event_id").to_dicts()


def test_what_polars_writes_without_partitions_can_be_read_as_plain_files(tmp_path: Path) -> None:
    pl.DataFrame({"event_id": [1, 2]}).write_delta(str(tmp_path / "t"))
    table = DeltaReader(str(tmp_path / "t"))
    (file,) = table.plain_files(0) or []
    assert pq.read_table(file).num_rows == 2


def test_a_version_that_changes_rows_is_refused_or_skipped_and_one_that_rearranges_files_is_empty(
    tmp_path: Path,
) -> None:
    where = str(tmp_path / "t")
    write_deltalake(where, events(0, 10))
    write_deltalake(where, events(10, 10), mode="append")
    DeltaTable(where).optimize.compact()
    DeltaTable(where).delete("event_id = 3")
    table = DeltaReader(where)
    assert table.appended(2, skip_changes=False) == []
    with pytest.raises(InputError, match='on_change = "skip"'):
        table.appended(3, skip_changes=False)
    assert table.appended(3, skip_changes=True) == []


def test_history_that_is_gone_is_named(tmp_path: Path) -> None:
    where = delta_copy("vectors", tmp_path)
    DeltaTable(where).create_checkpoint()
    for version in (0, 1):
        (Path(where) / f"_delta_log/{version:020}.json").unlink()
    table = DeltaReader(where)
    assert len(all_rows(table)) == 50
    with pytest.raises(InputError, match="version 1 of the Delta table .* cleaned up"):
        table.appended(1, skip_changes=False)
    with pytest.raises(InputError, match="version 1 of the Delta table .* cleaned up"):
        table.parts(1)
    with pytest.raises(InputError, match="restored or created again"):
        table.versions_after(9, table.version())


def test_a_table_is_found_at_its_path_and_a_part_of_one_is_refused(tmp_path: Path) -> None:
    where = str(FIXTURES / "delta/vectors")
    assert str(table_at(where)) == f"delta:{where}"
    assert str(table_at(str(FIXTURES / "iceberg/merged"))).startswith("iceberg:")
    assert table_at(str(tmp_path)) is None
    with pytest.raises(InputError, match=f"expected the table: delta:{where}"):
        table_at(f"{where}/day=2026-03-01")
    with pytest.raises(InputError, match="within the Iceberg table"):
        table_at(str(FIXTURES / "iceberg/merged/data"))
    with pytest.raises(InputError, match="no Delta table"):
        open_table(table_name(f"delta:{tmp_path}"))  # type: ignore[arg-type]
    assert named_or_found("s3a://bucket/x") is None


def test_a_missing_library_is_told_with_the_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SetupError, match=r"pip install 'tidings\[delta\]'"):
        check_library(table_name("delta:events"))  # type: ignore[arg-type]


def test_connectors_go_with_versions_of_spark() -> None:
    assert "delta-spark_4.2" in (connector_for(TableFormat.DELTA, "4.2.1") or "")
    assert connector_for(TableFormat.ICEBERG, "4.3.0") is None


# ── Writing ──────────────────────────────────────────────────────────────────


def test_a_batch_is_committed_once_however_often_it_is_put(tmp_path: Path) -> None:
    writer = DeltaWriter(str(tmp_path / "out"))
    for ids, batch in (((1, 2), 0), ((1, 2), 0), ((3,), 1), ((1, 2), 0)):
        writer.commit(written(writer, *ids), batch=("p", batch))
    assert ids_in(tmp_path / "out") == [1, 2, 3]
    assert writer.last_batch("p") == 1
    assert writer.last_batch("another pipeline") is None


def test_files_without_a_commit_are_not_part_of_the_table(tmp_path: Path) -> None:
    writer = DeltaWriter(str(tmp_path / "out"))
    written(writer, 1, 2)
    assert ids_in(tmp_path / "out") == []
    writer.commit(written(writer, 1, 2), batch=("p", 0))
    assert ids_in(tmp_path / "out") == [1, 2]


def test_two_drivers_that_commit_the_same_batch_at_once_commit_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = DeltaWriter(str(tmp_path / "out")), DeltaWriter(str(tmp_path / "out"))
    files = written(slow, 1, 2)
    seen: list[int | None] = []

    def looked(pipeline: str) -> int | None:
        """The slow one looks, and before it commits, the fast one does."""
        seen.append(DeltaWriter(str(tmp_path / "out")).last_batch(pipeline))
        table = real()
        if len(seen) == 1:
            fast.commit(written(fast, 1, 2), batch=("p", 0))
            monkeypatch.setattr(slow, "load", lambda: monkeypatch.setattr(slow, "load", real) or table)
        return seen[-1]

    real = slow.load
    monkeypatch.setattr(slow, "last_batch", looked)
    slow.commit(files, batch=("p", 0))
    assert seen == [None, 0]
    assert ids_in(tmp_path / "out") == [1, 2]


def test_other_writers_do_not_disturb_a_commit(tmp_path: Path) -> None:
    writer = DeltaWriter(str(tmp_path / "out"))
    files = written(writer, 1)
    DeltaWriter(str(tmp_path / "out")).commit(written(writer, 7), batch=("another", 5))
    writer.commit(files, batch=("p", 0))
    assert ids_in(tmp_path / "out") == [1, 7]


def test_a_table_can_be_replaced_and_partitioned_ones_are_written(tmp_path: Path) -> None:
    where = str(tmp_path / "out")
    schema = pa.schema([("event_id", pa.int64()), ("subscriber", pa.string())])
    DeltaTable.create(where, schema, partition_by=["subscriber"])
    writer = DeltaWriter(where)
    writer.commit(written(writer, 1, 2, 1))
    assert [row["subscriber"] for row in all_rows(DeltaReader(where))] == ["org1", "org1", "org2"]
    writer.commit(written(writer, 3), replace=True)
    assert [row["event_id"] for row in all_rows(DeltaReader(where))] == [3]


def test_statistics_let_readers_skip_files(tmp_path: Path) -> None:
    writer = DeltaWriter(str(tmp_path / "out"))
    (file,) = written(writer, 5, 9)
    stats = json.loads(json.loads(file)["stats"])
    assert stats["numRecords"] == 2
    assert (stats["minValues"]["event_id"], stats["maxValues"]["event_id"]) == (5, 9)
    assert (stats["minValues"]["subscriber"], stats["nullCount"]["subscriber"]) == ("org5", 0)


def test_a_table_that_lacks_a_column_is_refused_with_what_helps(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "out"), pa.table({"event_id": [1]}))
    with pytest.raises(InputError, match="'subscriber'.*has no such column; add the column"):
        written(DeltaWriter(str(tmp_path / "out")), 1)


def test_a_table_with_column_mapping_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="it has columnMapping"):
        DeltaWriter(delta_copy("mapped", tmp_path)).prepare()


def test_a_file_is_read_even_if_all_wanted_columns_are_younger(tmp_path: Path) -> None:
    where = str(tmp_path / "t")
    write_deltalake(where, pa.table({"event_id": [1, 2]}))
    write_deltalake(where, pa.table({"event_id": [3], "late": ["x"]}), mode="append", schema_mode="merge")
    table = DeltaReader(where)
    read = table.reader(["late"])
    found = [row["late"] for part in table.parts(1) for batch in read(part) for row in batch.to_pylist()]
    assert sorted(found, key=str) == [None, None, "x"]


def copied(part: DeltaFile) -> Any:
    return pickle.loads(pickle.dumps(part))


def test_parts_and_readers_travel_to_workers(tmp_path: Path) -> None:
    where = Path(delta_copy("vectors", tmp_path))
    table = DeltaReader(str(where))
    read = pickle.loads(pickle.dumps(table.reader()))
    assert sum(batch.num_rows for part in table.parts(2) for batch in read(copied(part))) == 50
    shutil.rmtree(where)
