"""Spark's classes, read, checked and laid out once for all the Javas that tests start.

    python -m tests.java_classes

Writes what Java calls an archive of shared classes. With it, a Spark starts with half the work. A Java that the
archive does not fit, another version perhaps, leaves it alone.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

ARCHIVE = Path(__file__).parents[1] / "build" / "spark-classes.jsa"
# They end before Java's second compiler, or more threads to collect garbage, would pay.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUIET = "-Xlog:disable"  # Java tells on stdout, where programs print, which classes it does not share.


def options() -> str:
    """For every Java that tests start, by whatever command."""
    return f'{SHORT_LIVED} {QUIET} -XX:SharedArchiveFile="{ARCHIVE}"' if ARCHIVE.exists() else SHORT_LIVED


def main() -> None:
    ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as folder:
        written = Path(folder, ARCHIVE.name)
        os.environ["SPARK_SUBMIT_OPTS"] = f'{SHORT_LIVED} {QUIET} -XX:ArchiveClassesAtExit="{written}"'
        _use_a_little_of_everything(folder)
        written.replace(ARCHIVE)  # At once: tests may be starting.


def _use_a_little_of_everything(folder: str) -> None:
    """What Spark loads when it reads, joins, streams and calls Python; returns when its Java has ended."""
    from pyspark import SparkContext

    from tidings.pipeline import start

    spark = start("classes", "local[2]", {"spark.sql.shuffle.partitions": "2"})
    java: Any = SparkContext._gateway
    spark.range(100).selectExpr("id", "string(id) text", "struct(id) inner").write.parquet(f"{folder}/in")
    found = spark.read.parquet(f"{folder}/in")
    stream = spark.readStream.schema(found.schema).parquet(f"{folder}/in").join(found, "id").select("id", found.text)
    answered = stream.mapInArrow(lambda batches: batches, "id long, text string")
    query = answered.writeStream.foreachBatch(lambda rows, _: rows.write.mode("append").json(f"{folder}/out"))
    query.option("checkpointLocation", f"{folder}/state").trigger(availableNow=True).start().awaitTermination()
    spark.read.json(f"{folder}/out").groupBy("text").count().orderBy("count").collect()
    spark.stop()
    java.shutdown()
    java.proc.stdin.close()
    java.proc.wait()


if __name__ == "__main__":
    main()
