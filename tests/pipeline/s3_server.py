"""A real S3 protocol server (moto's), with a front that fails on request; and Hadoop's S3A for Spark, by Maven."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from wsgiref.types import StartResponse, WSGIEnvironment

from tests.pipeline.kafka_broker import fetched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POM = Path(__file__).parent / "s3" / "pom.xml"
WRITES = ("PUT", "POST", "DELETE")


def jars() -> list[Path]:
    """hadoop-aws and what it needs, fetched once. Skips the test where they cannot be had; on CI, fails it."""
    return fetched(POM, "s3-jars")


@dataclass
class Faults:
    """What goes wrong at the server. Each is off until it is set; `writes` counts requests that change something."""

    writes: int = 0
    stops_after: int | None = None  # So many writes are carried out, and then nothing is: as if the client were dead.
    loses_answer_of: int | None = None  # This write is carried out, and answered with an error.
    fails: int | None = None  # This write is answered with a 500 and not carried out.
    lag_s: float = 0.0  # For so long a new object is missing in listings.
    on_write: Callable[[int, str], None] = lambda number, path: None
    born: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def clear(self) -> None:
        self.writes, self.stops_after, self.loses_answer_of, self.fails, self.lag_s = 0, None, None, None, 0.0
        self.on_write = lambda number, path: None

    def arrange(self, **faults: float) -> None:
        """These faults and no others, counted from now on."""
        self.clear()
        for name, value in faults.items():
            setattr(self, name, value)

    def count(self) -> int:
        with self._lock:
            self.writes += 1
            return self.writes


class FaultsApart(Faults):
    """Faults of a server in another process, which hears of them by `arrange`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__()
        self.process = process

    def arrange(self, **faults: float) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(faults), file=self.process.stdin, flush=True)
        self.process.stdout.readline()


class FaultyFront:
    """WSGI: in front of the server's own application."""

    def __init__(self, inner: Callable[..., Iterable[bytes]], faults: Faults) -> None:
        self.inner, self.faults = inner, faults

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        faults, method, path = self.faults, environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if method not in WRITES or path.startswith("/moto-api"):
            return self._listed(environ, start_response)
        number = faults.count()
        faults.on_write(number, path)
        if faults.stops_after is not None and number > faults.stops_after:
            return _refuse(start_response, "403 Forbidden", "AccessDenied")
        if faults.fails == number:
            return _refuse(start_response, "500 Internal Server Error", "InternalError")
        if faults.lag_s and method != "DELETE":
            faults.born.setdefault(path, time.monotonic())
        if faults.loses_answer_of == number:
            list(self.inner(environ, lambda *answer: lambda data: None))
            return _refuse(start_response, "500 Internal Server Error", "InternalError")
        return self.inner(environ, start_response)

    def _listed(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if not self.faults.lag_s or "list-type" not in environ.get("QUERY_STRING", ""):
            return self.inner(environ, start_response)
        answer: list[Any] = []
        body = b"".join(self.inner(environ, lambda *given: answer.append(given) or (lambda data: None)))  # type: ignore[func-returns-value]
        young = {path for path, born in self.faults.born.items() if time.monotonic() - born < self.faults.lag_s}
        bucket = environ["PATH_INFO"].strip("/")

        def shown(found: re.Match[bytes]) -> bytes:
            key = re.search(rb"<Key>(.*?)</Key>", found[0])
            return b"" if key and f"/{bucket}/{key[1].decode()}" in young else found[0]

        body = re.sub(rb"<Contents>.*?</Contents>", shown, body, flags=re.DOTALL)
        status, headers = answer[0][:2]
        kept = [(name, value) for name, value in headers if name.lower() != "content-length"]
        start_response(status, [*kept, ("Content-Length", str(len(body)))])
        return [body]


def _refuse(start_response: StartResponse, status: str, code: str) -> Iterable[bytes]:
    body = f"<Error><Code>{code}</Code><Message>on request of the test</Message></Error>".encode()
    start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


@dataclass(frozen=True)
class S3:
    """A server with an empty bucket, and how to make it fail."""

    port: int
    faults: Faults

    @property
    def bucket(self) -> str:
        """Hadoop keeps a client for each bucket, so each server has another one."""
        return f"lake-{self.port}"

    def at(self, path: str) -> str:
        return f"s3a://{self.bucket}/{path}"

    def settings(self) -> dict[str, str]:
        """For Hadoop."""
        return {
            f"fs.s3a.bucket.{self.bucket}.endpoint": f"http://127.0.0.1:{self.port}",
            "fs.s3a.endpoint.region": "us-east-1",
            "fs.s3a.path.style.access": "true",
            "fs.s3a.access.key": "access",
            "fs.s3a.secret.key": "secret",
            "fs.s3a.connection.ssl.enabled": "false",
            "fs.s3a.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
            "fs.AbstractFileSystem.s3a.impl": "org.apache.hadoop.fs.s3a.S3A",
            "fs.s3a.input.stream.type": "classic",  # The default reads small files slowly.
            "fs.s3a.attempts.maximum": "2",
            "fs.s3a.retry.interval": "50ms",
        }

    def options(self) -> list[str]:
        """For the command line."""
        settings = {f"spark.hadoop.{key}": value for key, value in self.settings().items()}
        settings["spark.jars"] = ",".join(map(str, jars()))
        return [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]

    def keys(self, prefix: str = "") -> list[str]:
        found = self.client().list_objects_v2(Bucket=self.bucket, Prefix=prefix).get("Contents", [])
        return [each["Key"] for each in found]

    def client(self) -> Any:
        import boto3

        address = f"http://127.0.0.1:{self.port}"
        return boto3.client(
            "s3", endpoint_url=address, region_name="us-east-1",
            aws_access_key_id="access", aws_secret_access_key="secret",
        )  # fmt: skip


@contextmanager
def serving() -> Iterator[S3]:
    """Runs a server as long as the block does."""
    import logging

    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    faults = Faults()
    application = FaultyFront(DomainDispatcherApplication(create_backend_app), faults)
    server = make_server("127.0.0.1", 0, application, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        s3 = S3(server.server_port, faults)
        s3.client().create_bucket(Bucket=s3.bucket)
        yield s3
    finally:
        server.shutdown()
        thread.join()


@contextmanager
def serving_apart() -> Iterator[S3]:
    """The same in a process of its own: `deltalake` holds Python's lock while it waits for an answer."""
    command = [sys.executable, "-m", "tests.pipeline.s3_server"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield S3(int(process.stdout.readline()), FaultsApart(process))
        finally:
            process.stdin.close()


def teach(spark: SparkSession, s3: S3) -> None:
    """Gives a running session the S3A file system, and this server's address."""
    for jar in jars():
        spark.sql(f"ADD JAR '{jar}'")
    jvm: Any = spark.sparkContext._jvm
    java: Any = spark.sparkContext._jsc
    settings = java.hadoopConfiguration()
    settings.setClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    for key, value in s3.settings().items():
        settings.set(key, value)


if __name__ == "__main__":
    with serving() as served:
        print(served.port, flush=True)
        for arranged in sys.stdin:  # Until whoever started it closes the pipe, or is gone.
            served.faults.arrange(**json.loads(arranged))
            print(flush=True)
