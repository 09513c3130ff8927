"""Delta and Iceberg tables in S3: as source, as subscriptions and as sink, against a real server of the protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import Catalog, load_catalog
from pyspark.sql import SparkSession

from tests.pipeline.commands import tidings
from tests.pipeline.s3_server import S3, serving_apart, teach
from tests.pipeline.tables.given_tables import WANTED, events
from tests.pipeline.tables.test_delta_tables import written
from tests.pipeline.tables.test_table_jobs import expected, pairs, pipeline, wanted_file
from tidings.errors import TidingsError
from tidings.pipeline.connectors.delta import DeltaWriter
from tidings.pipeline.connectors.iceberg import IcebergWriter
from tidings.pipeline.s3_settings import S3Settings


@pytest.fixture(scope="module")
def s3(spark: SparkSession) -> Iterator[S3]:
    with serving_apart() as server:
        teach(spark, server)
        yield server


def delta_options(s3: S3) -> dict[str, str]:
    return S3Settings.from_conf(
        {f"spark.hadoop.{key}": value for key, value in s3.settings().items()}, s3.bucket
    ).delta()


def test_a_pipeline_runs_on_delta_tables_in_s3(spark: SparkSession, s3: S3, tmp_path: Path) -> None:
    options = delta_options(s3)
    write_deltalake(s3.at("events"), events(0, 20), storage_options=options)
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(s3.at("wanted"), pa.Table.from_pylist(WANTED), configuration=feed, storage_options=options)
    file = pipeline(
        tmp_path,
        events=f'format = "delta"\npath = "{s3.at("events")}"',
        subscriptions=f'format = "delta"\npath = "{s3.at("wanted")}"',
        deliveries=f'format = "delta"\npath = "{s3.at("out")}"',
    )
    first = tidings("run", file)
    assert first.code == 0, first.said
    write_deltalake(s3.at("events"), events(20, 10), mode="append", storage_options=options)
    DeltaTable(s3.at("wanted"), storage_options=options).delete("id = 's2'")
    second = tidings("run", file)
    assert second.code == 0, second.said
    found = DeltaTable(s3.at("out"), storage_options=options).to_pyarrow_table().to_pylist()
    assert pairs(found) == sorted(expected(range(20)) + [(str(n), "s1") for n in range(20, 30)])
    matched = tidings("match", f"delta:{s3.at('events')}", wanted_file(tmp_path), "--out", f"delta:{s3.at('matched')}")
    assert matched.code == 0, matched.said
    assert DeltaTable(s3.at("matched"), storage_options=options).count() == len(expected(range(30)))


def test_a_commit_to_a_delta_table_in_s3_never_replaces_another(s3: S3) -> None:
    """By a conditional PUT: moto has it (If-None-Match), as S3 itself has."""
    options = delta_options(s3)
    write_deltalake(s3.at("race"), events(0, 5), storage_options=options)
    slow = DeltaTable(s3.at("race"), storage_options=options)
    write_deltalake(s3.at("race"), events(5, 5), mode="append", storage_options=options)
    write_deltalake(slow, events(10, 5), mode="append")
    assert DeltaTable(s3.at("race"), storage_options=options).version() == 2
    assert DeltaTable(s3.at("race"), storage_options=options).count() == 15


def test_a_delta_table_in_s3_is_compacted_with_the_settings_that_spark_has(s3: S3) -> None:
    options = delta_options(s3)
    for number in range(3):
        write_deltalake(s3.at("small"), events(number, 1), mode="append", storage_options=options)
    told = [part for key, value in s3.settings().items() for part in ("--conf", f"spark.hadoop.{key}={value}")]
    done = tidings("compact", f"delta:{s3.at('small')}", *told, "-o", "json")
    assert done.code == 0, done.said
    assert '"files before": 3, "files after": 1' in done.out
    assert DeltaTable(s3.at("small"), storage_options=options).count() == 3


def iceberg_catalog(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Catalog, dict[str, str]]:
    """The catalog `far`, whose tables are in S3, and what else a client has to know."""
    settings = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": s3.at("lake")}
    for key, value in settings.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__FAR__{key.upper()}", value)
    told = {f"spark.hadoop.{key}": value for key, value in s3.settings().items()}
    options = S3Settings.from_conf(told, s3.bucket).iceberg()
    catalog = load_catalog("far", **settings, **options)
    catalog.create_namespace("db")
    return catalog, options


@pytest.mark.parametrize("format", ["delta", "iceberg"])
@pytest.mark.parametrize("fault", ["stops_after", "loses_answer_of"])
def test_stopped_at_any_request_or_without_its_answer_a_batch_is_in_a_table_in_s3_once(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, fault: str
) -> None:
    """A commit of a Delta table writes four times, one of an Iceberg table up to eight times."""
    catalog, options = iceberg_catalog(s3, tmp_path, monkeypatch)

    def put(name: str, ids: tuple[int, ...], batch: int) -> None:
        writer: Any = (
            DeltaWriter(s3.at(name), delta_options(s3))
            if format == "delta"
            else IcebergWriter(f"far.db.{name}", options)
        )
        writer.commit(written(writer, *ids), batch=("p", batch))

    def ids_in(name: str) -> list[int]:
        if format == "delta":
            rows = DeltaTable(s3.at(name), storage_options=delta_options(s3)).to_pyarrow_table()
        else:
            rows = catalog.load_table(f"db.{name}").scan().to_arrow()
        return sorted(rows.column("event_id").to_pylist())

    for number in range(1, 5 if format == "delta" else 9):
        name = f"{fault}_{number}"
        put(name, (1, 2), 0)
        s3.faults.arrange(**{fault: number})
        with contextlib.suppress(OSError, TidingsError):
            put(name, (3, 4), 1)
        s3.faults.arrange()
        assert ids_in(name) in ([1, 2], [1, 2, 3, 4]), number
        put(name, (3, 4), 1)
        assert ids_in(name) == [1, 2, 3, 4], number


def test_a_pipeline_runs_on_iceberg_tables_in_s3(
    spark: SparkSession, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog says where its tables are; the keys and the address are those that Spark has."""
    catalog, _ = iceberg_catalog(s3, tmp_path, monkeypatch)
    table = catalog.create_table("db.events", events(0, 0).schema)
    wanted = catalog.create_table("db.wanted", pa.Table.from_pylist(WANTED).schema)
    wanted.append(pa.Table.from_pylist(WANTED))
    table.append(events(0, 20))
    file = pipeline(
        tmp_path,
        events='format = "iceberg"\ntable = "far.db.events"',
        subscriptions='format = "iceberg"\ntable = "far.db.wanted"',
        deliveries='format = "iceberg"\ntable = "far.db.out"',
    )
    first = tidings("run", file)
    assert first.code == 0, first.said
    wanted.delete("id = 's2'")
    table.append(events(20, 10))
    second = tidings("run", file)
    assert second.code == 0, second.said
    found = catalog.load_table("db.out").scan().to_arrow().to_pylist()
    assert pairs(found) == sorted(expected(range(20)) + [(str(n), "s1") for n in range(20, 30)])
    matched = tidings("match", "iceberg:far.db.events", wanted_file(tmp_path), "--out", "iceberg:far.db.matched")
    assert matched.code == 0, matched.said
    assert catalog.load_table("db.matched").scan().to_arrow().num_rows == len(expected(range(30)))
