"""Executors that are processes of their own, without our package and without the driver's memory or folders."""

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
import pyspark
import pytest

from tests import java_classes
from tests.pipeline.sightings import expected_pairs, sightings, subscriptions, table

ROOT = Path(__file__).parents[2]
EXECUTOR = ("memory=512m", "cores=1", f"extraJavaOptions={java_classes.options()}")
PROGRAM = """
import sys
import pyarrow as pa
from tests.pipeline.sightings import Sighting, expected_pairs, sightings, subscriptions, table
from tidings.cli import main
from tidings.pipeline import match, start

master, *settings = sys.argv[1:]
events, wanted = sightings(800), subscriptions(80)
spark = start("cluster test", master, dict(setting.split("=", 1) for setting in settings))

def where(batches):
    import os, tidings, tidings.matching
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"pid": [os.getppid()], "file": [tidings.__file__]})

homes = spark.range(0, 2, 1, 2).mapInArrow(where, "pid long, file string").collect()
assert all("/tidings-package-" in row.file for row in homes), homes
rows = spark.createDataFrame(table(events)).repartition(4)
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
print("equal", flush=True)
# Names without a folder: executors are at home elsewhere, and find the files all the same.
sys.argv = ["tidings", "match", "events.parquet", "wanted.parquet", "--out", "out", "--master", master]
main()
"""


def spark_home(folder: Path) -> Path:
    """The installed Spark, with a place of its own for what its workers write."""
    folder.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != "work":
            (folder / part.name).symlink_to(part)
    return folder


def environment(home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "PYSPARK_PYTHON": sys.executable,
    }


@contextmanager
def standalone(home: Path, folder: Path) -> Iterator[str]:
    """A master and a worker from the installed Spark, without our package on their path; gives the master's URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"spark://127.0.0.1:{port}"
    bare = {name: value for name, value in environment(home).items() if name != "PYTHONPATH"}
    deploy, host = "org.apache.spark.deploy", ["--host", "127.0.0.1", "--webui-port", "0"]
    roles = [
        [f"{deploy}.master.Master", *host, "--port", str(port)],
        [f"{deploy}.worker.Worker", *host, "--cores", "2", "--memory", "1g", "--work-dir", str(folder / "work"), url],
    ]
    with (folder / "log").open("wb") as log:
        started = [
            subprocess.Popen([str(home / "bin" / "spark-class"), *role], env=bare, cwd=folder, stdout=log, stderr=log)
            for role in roles
        ]
    try:
        yield url
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(timeout=60)


@pytest.mark.slow
@pytest.mark.spark
def test_a_cluster_of_two_executor_processes_gives_what_the_definition_gives(tmp_path: Path) -> None:
    events, wanted = sightings(800), subscriptions(80)
    pq.write_table(table(events), tmp_path / "events.parquet", row_group_size=100)
    pq.write_table(pa.Table.from_pylist(wanted), tmp_path / "wanted.parquet")
    home = spark_home(tmp_path / "spark")
    settings = [f"spark.executor.{what}" for what in EXECUTOR] + ["spark.sql.shuffle.partitions=2"]
    with standalone(home, tmp_path) as url:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, url, *settings],
            env=environment(home), cwd=tmp_path, capture_output=True, encoding="utf-8", timeout=400, check=False,
        )  # fmt: skip
    assert done.stdout.startswith("equal"), done.stderr[-4000:]
    assert done.returncode == 0, done.stderr[-4000:]
    found = pq.read_table(tmp_path / "out").to_pylist()
    assert sorted((row["event_id"], row["subscription_id"], row["subscriber"]) for row in found) == expected_pairs(
        events, wanted
    )
    assert len(list((tmp_path / "work").glob("app-*/*/stderr"))) == 2, "each core was an executor of its own"
