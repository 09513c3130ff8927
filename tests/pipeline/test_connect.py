"""A real Spark Connect server: this Python is only its client, without a JVM or a SparkContext."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.sightings import expected_pairs, sightings, subscriptions, table, write_lines
from tests.pipeline.test_cluster import ROOT, environment, spark_home
from tests.pipeline.test_run import EVENTS, WANTED, delivered, delivered_so_far, lay_out, put_events
from tidings.pipeline import read_pipeline, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.spark]

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
PROGRAM = """
import os, sys
import pyarrow as pa
from pyspark.errors import PySparkAttributeError
from tests.pipeline.sightings import Sighting, expected_pairs, sightings, subscriptions, table
from tidings.cli import main
from tidings.pipeline import match, start

url = sys.argv[1]
events, wanted = sightings(800), subscriptions(80)
spark = start("connect test", url)
try:
    spark.sparkContext
    raise SystemExit("not a client of Spark Connect")
except PySparkAttributeError:
    pass
rows = spark.createDataFrame(table(events)).repartition(3)
conditions = spark.createDataFrame(pa.Table.from_pylist(wanted))
for plan in ("index", "zones"):
    found = sorted(tuple(row) for row in match(rows, conditions, plan=plan).collect())
    assert found == expected_pairs(events, wanted), (plan, len(found))
import tidings
index = tidings.Index(Sighting)
index.add_all((row["id"], row["filter"]) for row in wanted)
tidings.register(spark, index)
rows.createOrReplaceTempView("events")
pairs = [(event, subscription) for event, subscription, _ in expected_pairs(events, wanted)]
assert sorted(map(tuple, spark.sql("SELECT * FROM tidings_match(TABLE(events))").collect())) == pairs
found = spark.sql("SELECT event_id, tidings_matches('lane = 1', struct(*)) AS is_it FROM events").collect()
assert {row.event_id for row in found if row.is_it} == {row["event_id"] for row in events if row["lane"] == 1}
print("equal", flush=True)
sys.argv = ["tidings", *sys.argv[2:], "--master", url]
main()
"""


@contextmanager
def connect_server(home: Path, folder: Path) -> Iterator[str]:
    """A server from the installed Spark, without our package on its path; gives its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "local").mkdir()
    settings = {
        "spark.connect.grpc.binding.port": port,
        "spark.local.dir": folder / "local",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": 2,
    }
    given = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    command = [str(home / "bin" / "spark-submit"), "--class", SERVER, "--master", "local[2]", *given, "spark-internal"]
    bare = {name: value for name, value in environment(home).items() if name != "PYTHONPATH"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=bare, cwd=folder, stdout=log, stderr=log)
    try:
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=60)


def test_match_over_spark_connect_gives_what_the_definition_gives(tmp_path: Path) -> None:
    events, wanted = sightings(800), subscriptions(80)
    pq.write_table(table(events), tmp_path / "events.parquet", row_group_size=100)
    pq.write_table(pa.Table.from_pylist(wanted), tmp_path / "wanted.parquet")
    home = spark_home(tmp_path / "spark")
    command = ["match", "events.parquet", "wanted.parquet", "--out", "out"]
    with connect_server(home, tmp_path) as url:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, url, *command],
            env=environment(home), cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=200, check=False,
        )  # fmt: skip
    assert done.stdout.startswith("equal"), done.stderr[-4000:]
    assert done.returncode == 0, done.stderr[-4000:]
    found = pq.read_table(tmp_path / "out").to_pylist()
    assert sorted((row["event_id"], row["subscription_id"], row["subscriber"]) for row in found) == expected_pairs(
        events, wanted
    )
    unpacked = [path.name for path in (tmp_path / "local" / f"tidings-{os.getuid()}").iterdir() if path.is_dir()]
    assert len(unpacked) == 2, "equal indexes are unpacked once, among Spark's local files; SQL's has no subscribers"


def run_over(url: str, file: Path, *strike: str) -> tuple[int, str]:
    """`tidings run` as a client, killed at one of its own writes if that is given; how it ended, and what it said."""
    program = ["-m", "tests.pipeline.struck_run", *strike] if strike else ["-m", "tidings"]
    done = subprocess.run(
        [sys.executable, *program, "run", str(file), "--master", url],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        cwd=file.parent, capture_output=True, encoding="utf-8", timeout=900, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr


def test_a_pipeline_runs_over_spark_connect_and_every_pair_is_delivered_once_whoever_is_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A client is killed while others of its batches are staged, then another one; then a classic run goes on."""
    folder = tmp_path / "files"
    file = lay_out(folder)
    put_events(folder, some := EVENTS[:300], 6)
    changed = {**WANTED[0], "filter": "lane = 3"}
    with connect_server(spark_home(tmp_path / "spark"), tmp_path) as url:
        code, said = run_over(url, file, "KILL", "before", "_commits/", "2")
        assert code == -signal.SIGKILL, said[-4000:]
        assert list((folder / "checkpoint" / "staged").rglob("*.parquet")), "Spark was ahead"
        assert 0 < len(delivered_so_far(folder)) < len(expected_pairs(some, WANTED))
        write_lines(folder / "subscriptions" / "2.jsonl", [changed, {"id": "x", "subscriber": "x", "filter": "lane ="}])
        code, said = run_over(url, file, "KILL", "after", "batches/", "2")
        assert code == -signal.SIGKILL, said[-4000:]
        _with_tables(url, tmp_path / "tables")
    put_events(folder, later := sightings(50, first=5_000), 1)
    counts = run(spark, read_pipeline(file))
    after = [changed, *WANTED[1:]]
    expected = expected_pairs(some[:200], WANTED) + expected_pairs([*some[200:], *later], after)
    assert delivered(folder) == sorted(expected)
    assert (counts.events, counts.deliveries, counts.rejected) == (350, len(expected), 1)
    assert not (folder / "checkpoint" / "staged").exists()


def _with_tables(url: str, folder: Path) -> None:
    """Events and deliveries in Delta tables, subscriptions in a table of Parquet files."""
    file = lay_out(folder, "delta", "delta")
    file.write_text(file.read_text().replace('path = "subscriptions"', 'format = "table"\npath = "wanted"'))
    (folder / "wanted").mkdir()
    pq.write_table(pa.Table.from_pylist(WANTED), folder / "wanted" / "1.parquet")
    for at in (0, 100):
        deltalake.write_deltalake(folder / "events", table(EVENTS[at:][:100]), mode="append")
    code, said = run_over(url, file)
    assert code == 0, said[-4000:]
    rows = deltalake.DeltaTable(folder / "deliveries").to_pyarrow_table().to_pylist()
    found = sorted((row["event_id"], row["subscription_id"], row["subscriber"]) for row in rows)
    assert found == expected_pairs(EVENTS[:200], WANTED)


SUBMITTED = """
from tidings.pipeline import start
spark = start("ours")
told = spark.sparkContext.getConf()
print(*(told.get(key) for key in ("spark.master", "spark.ui.enabled", "spark.log.level", "spark.app.name")))
"""


def test_what_spark_submit_was_told_holds(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SUBMITTED)
    home = spark_home(tmp_path / "spark")
    settings = ["spark.ui.enabled=true", "spark.ui.port=0", "spark.log.level=WARN"]
    given = [part for setting in settings for part in ("--conf", setting)]
    command = [str(home / "bin" / "spark-submit"), "--master", "local[1]", "--name", "theirs", *given, str(program)]
    done = subprocess.run(
        command, env=environment(home), cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=100, check=False
    )
    assert done.stdout.split() == ["local[1]", "true", "WARN", "theirs"], done.stderr[-3000:]
