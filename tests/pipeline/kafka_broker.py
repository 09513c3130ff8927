"""A real Kafka, one node that is its own controller, from jars that Maven fetches; and topics to write and read.

It listens twice: to anybody, and over TLS to who has a password (SCRAM). Beside it a real schema registry, Apicurio.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import os
import shutil
import socket
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

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
listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{secured},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SASL_SSL://127.0.0.1:{secured}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
ssl.keystore.type=PEM
ssl.keystore.location={folder}/server.pem
log.dirs={folder}/data
offsets.topic.replication.factor=1
"""


def jars(profile: str) -> list[Path]:
    """The jars of `connector` or `broker`."""
    return fetched(POM, "kafka-jars", profile)


def fetched(pom: Path, name: str, profile: str = "", *, kinds: str = "*.jar") -> list[Path]:
    """The jars, or other files, of a POM, fetched once. Skips the test where they cannot be had; on CI, fails it."""
    folder = BUILD / name / hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    done = folder / f"{profile}.whole"
    if not done.exists():
        _fetch(pom, profile, folder)
        done.touch()
    return sorted((folder / profile).glob(kinds))


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


USER, PASSWORD = "reader", "as-long-as-it-is-secret"


class Addresses(NamedTuple):
    """Where a broker listens: to anybody, and over TLS to USER with PASSWORD; who signed its certificate; its process."""

    plain: str
    secured: str
    authority: Path
    pid: int


QUICK_TO_START = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@contextmanager
def broker(folder: Path, options: Sequence[str] = QUICK_TO_START) -> Iterator[Addresses]:
    """Runs Kafka as long as the block does, with these options of Java."""
    classpath = os.pathsep.join(str(jar) for jar in jars("broker"))
    port, secured, controller = _free_ports(3)
    properties = folder / "server.properties"
    properties.write_text(PROPERTIES.format(port=port, secured=secured, controller=controller, folder=folder))
    authority = _certified(folder)
    java = ["java", *options, "-cp", classpath]
    format_disk = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(properties)]
    format_disk += ["--add-scram", f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"]
    subprocess.run(format_disk, check=True, capture_output=True, timeout=START_S_MAX)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*java, "kafka.Kafka", str(properties)], stdout=log, stderr=log)
    try:
        yield Addresses(f"127.0.0.1:{port}", f"127.0.0.1:{secured}", authority, process.pid)
    finally:
        process.kill()
        process.wait()


def _certified(folder: Path) -> Path:
    """Writes the broker's key and certificate, which signs itself; returns the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "kafka")])
    now = datetime.datetime.now(datetime.UTC)
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(here, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    private = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server.pem").write_bytes(private + certificate.public_bytes(encoding))
    authority = folder / "authority.pem"
    authority.write_bytes(certificate.public_bytes(encoding))
    return authority


REGISTRY_POM = Path(__file__).parent / "schema_registry" / "pom.xml"


@contextmanager
def schema_registry(folder: Path) -> Iterator[str]:
    """Runs Apicurio's registry as long as the block does; gives the address where it speaks Confluent's protocol."""
    (archive,) = fetched(REGISTRY_POM, "schema-registry", kinds="*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (program,) = folder.glob("*-runner.jar")
    (port,) = _free_ports(1)
    settings = [f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1"]
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *settings, "-jar", str(program)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        _wait_for(f"{url}/subjects", process)
        yield url
    finally:
        process.kill()
        process.wait()


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S_MAX
    while True:
        try:
            urllib.request.urlopen(url, timeout=START_S_MAX).close()
            return
        except OSError:
            assert process.poll() is None, "the registry has ended"
            assert time.monotonic() < deadline, "the registry does not answer"
            time.sleep(0.2)


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


def send(
    spark: SparkSession, servers: str, topic: str, messages: Iterable[tuple[str | None, str | bytes | None]]
) -> None:
    content = [(key, value.encode() if isinstance(value, str) else value) for key, value in messages]
    rows = spark.createDataFrame(
        [(key, value, n) for n, (key, value) in enumerate(content)], "key string, value binary, n int"
    )
    ordered = rows.coalesce(1).sortWithinPartitions("n").select("key", "value")
    ordered.write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", topic).save()


def received(spark: SparkSession, servers: str, topic: str) -> list[tuple[str, str]]:
    """Everything in the topic, by Spark's connector alone."""
    rows = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic).load()
    return [(row.key, row.value) for row in rows.selectExpr("string(key) key", "string(value) value").collect()]
