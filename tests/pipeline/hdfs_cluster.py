"""A real HDFS: a name node and a data node (Hadoop's mini cluster), in a process of their own; the jar by Maven.

python -m tests.pipeline.hdfs_cluster FOLDER
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.pipeline.kafka_broker import fetched

POM = Path(__file__).parent / "hdfs" / "pom.xml"
BUILDER = "org.apache.hadoop.hdfs.MiniDFSCluster$Builder"


@contextmanager
def hdfs(folder: Path) -> Iterator[str]:
    """Runs a cluster with its files in this folder as long as the block does. Gives its address."""
    [jar] = fetched(POM, "hdfs-jars")
    command = [sys.executable, "-m", "tests.pipeline.hdfs_cluster", str(jar), str(folder)]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            port = process.stdout.readline().strip()
            assert port, (folder / "log").read_text()[-2000:]
            yield f"hdfs://127.0.0.1:{port}"
        finally:
            process.stdin.close()


def main(jar: str, folder: str) -> None:
    """In the Java that pyspark starts, whose jars have the rest of Hadoop."""
    from pyspark import SparkConf
    from pyspark.java_gateway import launch_gateway

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = SparkConf(loadDefaults=False).set("spark.driver.extraClassPath", jar).set("spark.driver.memory", "512m")
    jvm = launch_gateway(settings).jvm  # type: ignore[no-untyped-call]
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    configuration.set("hdfs.minidfs.basedir", folder)
    cluster = getattr(jvm, BUILDER)(configuration).numDataNodes(1).build()
    cluster.waitActive()
    print(cluster.getNameNodePort(), flush=True)
    sys.stdin.read()  # Until whoever started it closes the pipe, or is gone.
    cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
