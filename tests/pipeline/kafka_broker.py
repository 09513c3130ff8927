"""A real Kafka, one node that is its own controller, from jars that Maven fetches; and topics to write and read."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POM = Path(__file__).parent / "kafka" / "pom.xml"
BUILD = Path(__file__).parents[2] / "build"
FETCH_S_MAX, START_S_MAX = 300, 60
CLUSTER = "dGlkaW5ncyBvZiBLYWZrYQ"  # Sixteen bytes in base64; drawn by lot, one of 64 begins with a dash and is taken for an option.

PROPERTIES = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/data
offsets.topic.replication.factor=1
"""


def jars(profile: str) -> list[Path]:
    """The jars of `connector` or `broker`."""
    return fetched(POM, "kafka-jars", profile)


def fetched(pom: Path, name: str, profile: str = "") -> list[Path]:
    """The jars of a POM, fetched once. Skips the test where they cannot be had; on CI, fails it."""
    folder = BUILD / name / hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    done = folder / f"{profile}.whole"
    if not done.exists():
        _fetch(pom, profile, folder)
        done.touch()
    return sorted((folder / profile).glob("*.jar"))


def _fetch(pom: Path, profile: str, folder: Path) -> None:
    if shutil.which("mvn") is None:
        _cannot("`mvn` is not on this machine")
    command = ["mvn", "-B", "-q", "-Dstyle.color=never", "-f", str(pom), f"-Djars={folder}"]
    chosen = [f"-P{profile}"] if profile else []
    try:
        done = subprocess.run(
            [*command, *chosen, "generate-resources"], capture_output=True, text=True, timeout=FETCH_S_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        _cannot(f"Maven did not fetch the jars in {FETCH_S_MAX} s")
    if done.returncode != 0:
        _cannot(f"Maven cannot fetch the jars: {(done.stdout.strip().splitlines() or ['no reason given'])[0][:300]}")


def _cannot(why: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Runs Kafka as long as the block does; gives its address."""
    classpath = os.pathsep.join(str(jar) for jar in jars("broker"))
    port, controller = _free_ports(2)
    properties = folder / "server.properties"
    properties.write_text(PROPERTIES.format(port=port, controller=controller, folder=folder))
    java = ["java", "-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", classpath]
    format_disk = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(properties)]
    subprocess.run(format_disk, check=True, capture_output=True, timeout=START_S_MAX)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=log, stderr=log)
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [open_socket.getsockname()[1] for open_socket in sockets]
    for open_socket in sockets:
        open_socket.close()
    return ports


def make_topic(spark: SparkSession, servers: str, topic: str, partitions: int = 1, **settings: str) -> None:
    """Waits for the broker, too: its answer is that the topic is there."""
    jvm: Any = spark.sparkContext._jvm
    optional = jvm.java.util.Optional
    options = jvm.java.util.Properties()
    options.put("bootstrap.servers", servers)
    options.put("default.api.timeout.ms", str(1000 * START_S_MAX))
    client = jvm.org.apache.kafka.clients.admin.AdminClient.create(options)
    wanted = jvm.org.apache.kafka.clients.admin.NewTopic(topic, optional.of(partitions), optional.empty())
    made = jvm.java.util.ArrayList()
    made.add(wanted.configs({name.replace("_", "."): value for name, value in settings.items()}))
    client.createTopics(made).all().get()
    client.close()


def send(spark: SparkSession, servers: str, topic: str, messages: Iterable[tuple[str | None, str | None]]) -> None:
    rows = spark.createDataFrame(
        [(key, value, n) for n, (key, value) in enumerate(messages)], "key string, value string, n int"
    )
    ordered = rows.coalesce(1).sortWithinPartitions("n").select("key", "value")
    ordered.write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", topic).save()


def received(spark: SparkSession, servers: str, topic: str) -> list[tuple[str, str]]:
    """Everything in the topic, by Spark's connector alone."""
    rows = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic).load()
    return [(row.key, row.value) for row in rows.selectExpr("string(key) key", "string(value) value").collect()]
