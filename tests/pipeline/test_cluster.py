"""Executors that are processes of their own, without our package and without the driver's memory or folders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

PROGRAM = """
import sys
import pyarrow as pa
from tests.pipeline.sightings import expected_pairs, sightings, subscriptions, table
from tidings.pipeline import match, start

events, wanted = sightings(800), subscriptions(80)
spark = start("cluster test", "local-cluster[2,1,1024]", {"spark.sql.shuffle.partitions": "2"})

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
print("equal")
spark.stop()
"""


def spark_home(folder: Path) -> Path:
    """The installed Spark, with a place of its own for what its workers write."""
    folder.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != "work":
            (folder / part.name).symlink_to(part)
    return folder


@pytest.mark.slow
@pytest.mark.spark
def test_two_executor_processes_give_what_the_definition_gives(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "SPARK_HOME": str(spark_home(tmp_path / "spark")),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": os.pathsep.join(["src", "."]),
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=400,
        check=False,
    )
    assert done.stdout.strip().endswith("equal"), done.stderr[-4000:]
