"""A real Spark Connect server: this Python is only its client, without a JVM or a SparkContext."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.sightings import expected_pairs, sightings, subscriptions, table
from tests.pipeline.test_cluster import environment, spark_home

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
