"""Files that others wrote, with every type of column they have: Spark, pandas, Polars, DuckDB, Arrow."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.sightings import write_lines
from tidings.events import EventType, Timestamp
from tidings.pipeline import Matching, Outcome, check_files, match_files
from tidings.pipeline.sources.arrow_files import needs_arrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IDS = ["e0", "e1", "e2", "e3"]
SPEEDS = [0.0, 1.5, 3.0, 4.5]
TIMES = [dt.datetime(2026, 1, 1 + day, 12, 0, 0, 123456) for day in range(4)]  # noqa: DTZ001  Some files have no zone.


def matched(spark: SparkSession, events: Path, conditions: dict[str, str], out: Path, **how: Any) -> Outcome:
    rows = [{"id": id, "subscriber": "x", "filter": condition} for id, condition in conditions.items()]
    wanted = write_lines(out.with_suffix(".jsonl"), rows)
    return match_files(spark, str(events), str(wanted), str(out), **how)


def pairs(out: Path) -> list[tuple[str, str]]:
    rows = pa.concat_tables([pq.read_table(file) for file in out.glob("*.parquet")]).to_pylist()
    return sorted((row["event_id"], row["subscription_id"]) for row in rows)


LATER = "at > TIMESTAMP '2026-01-03T00:00:00Z'"


@pytest.mark.parametrize("kind", ["INT96", "TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"])
def test_timestamps_that_spark_wrote(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
    zoned = [at.replace(tzinfo=dt.UTC) for at in TIMES]
    rows = spark.createDataFrame(
        list(zip(IDS, SPEEDS, zoned, zoned)), "id string, speed double, at timestamp, by timestamp"
    )
    rows.write.parquet(str(tmp_path / "events.parquet"))
    spark.conf.unset("spark.sql.parquet.outputTimestampType")
    matched(spark, tmp_path / "events.parquet", {"fast": "speed > 4", "late": LATER}, tmp_path / "out")
    assert pairs(tmp_path / "out") == [("e2", "late"), ("e3", "fast"), ("e3", "late")]


@pytest.mark.parametrize("plan", ["index", "zones"])
def test_times_of_int96_far_away_are_not_taken_for_others(spark: SparkSession, tmp_path: Path, plan: str) -> None:
    times = [dt.datetime(year, 12, 31, 23, 59, 59) for year in (9999, 2026, 1600)]  # noqa: DTZ001
    rows = pa.table({"id": IDS[:3], "at": pa.array(times, pa.timestamp("us"))})
    pq.write_table(rows, tmp_path / "events.parquet", use_deprecated_int96_timestamps=True)
    wanted = {"never": "at > TIMESTAMP '9999-01-01T00:00:00Z'", "old": "at < TIMESTAMP '1601-01-01T00:00:00Z'"}
    matched(spark, tmp_path / "events.parquet", wanted, tmp_path / "out", plan=plan)
    assert pairs(tmp_path / "out") == [("e0", "never"), ("e2", "old")]
    assert not needs_arrow(str(tmp_path / "events.parquet")), "Spark reads them, and folders beside them"


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/London"])
@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_timestamps_of_pandas_in_every_unit_and_zone(
    spark: SparkSession, tmp_path: Path, unit: str, zone: str | None
) -> None:
    at = pd.Series(pd.to_datetime(TIMES)).dt.tz_localize(zone).dt.as_unit(unit)
    pd.DataFrame({"id": IDS, "speed": SPEEDS, "at": at}).to_parquet(tmp_path / "events.parquet")
    matched(spark, tmp_path / "events.parquet", {"late": LATER}, tmp_path / "out")
    assert pairs(tmp_path / "out") == [("e2", "late"), ("e3", "late")]


def test_a_csv_file_with_a_zoned_timestamp(spark: SparkSession, tmp_path: Path) -> None:
    lines = [f"{id},{speed},{at.isoformat()}Z" for id, speed, at in zip(IDS, SPEEDS, TIMES)]
    (tmp_path / "events.csv").write_text("\n".join(["id,speed,at", *lines]))
    matched(spark, tmp_path / "events.csv", {"fast": "speed > 4", "late": LATER}, tmp_path / "out")
    assert pairs(tmp_path / "out") == [("e2", "late"), ("e3", "fast"), ("e3", "late")]


def test_a_csv_file_of_a_spreadsheet_begins_with_a_byte_order_mark(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("id,speed\ne0,1.5\ne1,4.5\n", encoding="utf-8-sig")
    wanted = write_lines(tmp_path / "w.jsonl", [{"id": "fast", "subscriber": "x", "filter": "speed > 4"}])
    check_files(str(tmp_path / "events.csv"), str(wanted), str(tmp_path / "out"))
    match_files(spark, str(tmp_path / "events.csv"), str(wanted), str(tmp_path / "out"))
    assert pairs(tmp_path / "out") == [("e1", "fast")]


def test_a_declared_type_with_a_timestamp(spark: SparkSession) -> None:
    events = spark.sql("SELECT 'e0' AS id, TIMESTAMP '2026-01-01 12:00:00' AS at")
    wanted = spark.sql("SELECT 's' AS id, 'x' AS subscriber, 'at IS NOT NULL' AS filter")
    declared = EventType("Seen", at=Timestamp)
    assert [row.subscription_id for row in Matching(events, wanted, event_type=declared).deliveries().collect()] == [
        "s"
    ]


def test_an_id_may_be_a_timestamp(spark: SparkSession, tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"id": pa.array(TIMES, pa.timestamp("us", "UTC")), "speed": SPEEDS}), tmp_path / "e.parquet"
    )
    assert matched(spark, tmp_path / "e.parquet", {"fast": "speed > 4"}, tmp_path / "out").deliveries == 1


def _write_duckdb(file: Path) -> None:
    query = f"""COPY (SELECT 'e' || i AS id, i * 1.5::DOUBLE AS speed, i::HUGEINT AS huge, uuid() AS uu, time '12:00:00' AS tm,
        (CASE WHEN i = 0 THEN 'a' ELSE 'b' END)::ENUM ('a', 'b') AS en, timetz '12:00:00+01' AS tmz, interval 1 day AS iv,
        timestamptz '2026-01-01 12:00:00+02' AS tsz, timestamp_s '2026-01-01 12:00:00' AS tss,
        timestamp_ns '2026-01-01 12:00:00' AS tsns, date '2026-01-01' AS d, 'ab'::BLOB AS bl, '101'::BIT AS bi,
        1.25::DECIMAL(38, 2) AS dc, i::UTINYINT AS u8, i::UBIGINT AS u64, [i, 2] AS li, [1, 2]::INT[2] AS arr,
        map {{'k': i}} AS mp, {{'a': i, 'b': {{'c': 'x'}}}} AS st, '{{"a": 1}}'::JSON AS js FROM range(4) t (i))
        TO '{file}' (FORMAT parquet)"""
    # In a process of its own: DuckDB complains at its end about what Python has not freed.
    subprocess.run([sys.executable, "-c", "import sys, duckdb; duckdb.sql(sys.argv[1])", query], check=True)


def _write_polars(file: Path) -> None:
    times = pl.Series(TIMES)
    columns = {
        "id": IDS, "speed": SPEEDS, "tsms": times.cast(pl.Datetime("ms")), "tsns": times.cast(pl.Datetime("ns")),
        "tsz": times.dt.replace_time_zone("Europe/Paris"), "date": times.dt.date(), "time": times.dt.time(),
        "duration": pl.Series([dt.timedelta(seconds=1)] * 4), "category": pl.Series(["a", "b", "a", None], dtype=pl.Categorical),
        "enum": pl.Series(["a", "b", "a", None], dtype=pl.Enum(["a", "b"])), "decimal": pl.Series([1] * 4).cast(pl.Decimal(10, 2)),
        "list": [[1], [2, 3], [], None], "array": pl.Series([[1, 2]] * 4, dtype=pl.Array(pl.Int8, 2)),
        "struct": [{"x": 1, "y": "b"}] * 4, "binary": [b"x"] * 4, "u64": pl.Series([1] * 4, dtype=pl.UInt64), "null": [None] * 4,
    }  # fmt: skip
    pl.DataFrame(columns).write_parquet(file)


def _write_arrow(file: Path) -> None:
    def column(value: object, arrow_type: pa.DataType) -> pa.Array:
        return pa.array([value, None, value, value], arrow_type)

    columns = {
        f"{unit} {zone}": column(0, pa.timestamp(unit, zone))
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC")
    }
    columns |= {f"duration {unit}": column(1, pa.duration(unit)) for unit in ("s", "ms", "us", "ns")}
    columns |= {f"u{width}": column(2**width - 1, getattr(pa, f"uint{width}")()) for width in (8, 16, 32, 64)}
    columns |= {
        "f16": column(np.float16(1.5), pa.float16()), "d256": column(1, pa.decimal256(60, 2)), "d64": column(1, pa.decimal64(12, 2)),
        "sv": column("x", pa.string_view()), "bv": column(b"x", pa.binary_view()), "ls": column("x", pa.large_string()),
        "lb": column(b"x", pa.large_binary()), "fsb": column(b"xy", pa.binary(2)), "dict": column("x", pa.string()).dictionary_encode(),
        "t32": column(1, pa.time32("ms")), "t64": column(1, pa.time64("ns")), "date64": column(86_400_000, pa.date64()),
        "ll": column([1], pa.large_list(pa.int64())), "fl": column([1, 2], pa.list_(pa.int8(), 2)),
        "map": column([("k", 1)], pa.map_(pa.string(), pa.int32())), "null": pa.nulls(4),
        "st": column({"a": 1, "b": {"c": [1]}}, pa.struct({"a": pa.int8(), "b": pa.struct({"c": pa.list_(pa.int8())})})),
    }  # fmt: skip
    pq.write_table(pa.table({"id": pa.array(IDS, pa.large_string()), "speed": SPEEDS, **columns}), file)


def _write_hostile_names(file: Path) -> None:
    """Names that no attribute can have, and a struct that is nested too deep for one."""
    deep: Any = 1
    for _ in range(40):
        deep = {"a": deep}
    names = ["", "a`b", "a\nb", "a\0b", "x" * 300, "..", "speed.limit", "position.lat"]
    columns: dict[str, list[Any]] = {name: [1, 2, 3, 4] for name in names}
    columns |= {"deep": [deep] * 4, "position": [{"lat": 1.0}] * 4}
    pq.write_table(pa.table({"id": IDS, "speed": SPEEDS, **columns}), file)


@pytest.mark.parametrize("write", [_write_hostile_names, _write_duckdb, _write_polars, _write_arrow])
@pytest.mark.parametrize("plan", ["index", "zones"])
def test_no_column_stops_conditions_on_others(spark: SparkSession, tmp_path: Path, write: Any, plan: str) -> None:
    write(tmp_path / "events.parquet")
    matched(spark, tmp_path / "events.parquet", {"fast": "speed > 2"}, tmp_path / "out", plan=plan)
    assert pairs(tmp_path / "out") == [("e2", "fast"), ("e3", "fast")]


def test_a_name_that_two_columns_have_is_refused_in_conditions(spark: SparkSession, tmp_path: Path) -> None:
    _write_hostile_names(tmp_path / "events.parquet")
    outcome = matched(spark, tmp_path / "events.parquet", {"which": "position.lat > 0"}, tmp_path / "out")
    assert "a name that another column has" in outcome.example


def test_an_interval_of_duckdb_is_refused_by_name_and_stops_no_other_condition(
    spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / "events.parquet"
    rows = "SELECT 'e' || i AS id, i * 1.5::DOUBLE AS speed, to_days(i::INT) AS span FROM range(4) r(i)"
    query = f"COPY ({rows}) TO '{file}' (FORMAT parquet)"
    subprocess.run([sys.executable, "-c", "import sys, duckdb; duckdb.sql(sys.argv[1])", query], check=True)
    wanted = {"fast": "speed > 2", "long": "span IS NOT NULL"}
    outcome = matched(spark, file, wanted, tmp_path / "out")
    assert pairs(tmp_path / "out") == [("e2", "fast"), ("e3", "fast")]
    assert "interval" in outcome.example
    assert "extract(DAY FROM span)" in outcome.example


@pytest.mark.parametrize("plan", ["index", "zones"])
def test_folders_are_columns_beside_nanoseconds_too(spark: SparkSession, tmp_path: Path, plan: str) -> None:
    at = pd.Series(pd.to_datetime(TIMES)).dt.as_unit("ns")
    lanes = pd.array([1, 2, None, 2], "Int64")
    rows = pd.DataFrame({"id": IDS, "at": at, "area": ["New York", "50%=/", "New York", None], "lane": lanes})
    rows.to_parquet(tmp_path / "events", partition_cols=["area", "lane"])
    wanted = {"york": "area = 'New York'", "odd": "area = '50%=/'", "second": "lane = 2", "none": "area IS NULL"}
    matched(spark, tmp_path / "events", wanted, tmp_path / "out", plan=plan, keep="all")
    expected = [("e0", "york"), ("e1", "odd"), ("e1", "second"), ("e2", "york"), ("e3", "none"), ("e3", "second")]
    assert pairs(tmp_path / "out") == expected


@pytest.mark.parametrize("name", ["b[1]{a,b}", "s*", "50%20 é\\#"])
def test_a_name_is_no_pattern_and_no_uri(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """A folder beside it that the pattern would match, and results in a folder of such a name."""
    for folder, id in ((name, "e0"), ("b1a", "e1"), ("stars", "e2")):
        (tmp_path / folder).mkdir()
        pq.write_table(pa.table({"id": [id], "speed": [5.0]}), tmp_path / folder / f"{folder}.parquet")
    for plan in ("index", "zones"):
        outcome = matched(spark, tmp_path / name, {"fast": "speed > 4"}, tmp_path / f"out {plan} {name}", plan=plan)
        assert outcome.deliveries == 1
        assert pairs(tmp_path / f"out {plan} {name}") == [("e0", "fast")]


@pytest.mark.parametrize("plan", ["index", "zones"])
def test_another_thread_matches_times_decimals_dates_and_lists_of_polars(
    spark: SparkSession, tmp_path: Path, plan: str
) -> None:
    days = [at.date() for at in TIMES]
    prices = pl.Series(["1.00", "2.50", "99.99", None]).cast(pl.Decimal(10, 2))
    tags, clock = [["a"], ["b", "c"], [], None], [dt.time(hour, 0, 0, 5) for hour in (1, 9, 13, 23)]
    table = pl.DataFrame({"id": IDS, "price": prices, "day": days, "clock": clock, "tags": tags})
    table.write_parquet(tmp_path / "events.parquet")
    wanted = {
        "cheap": "price < 2.505",
        "late": "day >= DATE '2026-01-04'",
        "noon": "clock BETWEEN TIME '08:00:00' AND TIME '14:00:00'",
        "tagged": "ARRAY_CONTAINS(tags, 'c')",
    }
    # Of which Spark does not know the session, as when a command has started it in a thread of its own.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(matched, spark, tmp_path / "events.parquet", wanted, tmp_path / "out", plan=plan).result()
    expected = [("e0", "cheap"), ("e1", "cheap"), ("e1", "noon"), ("e1", "tagged"), ("e2", "noon"), ("e3", "late")]
    assert pairs(tmp_path / "out") == expected
