"""RabbitMQ: a headers exchange, one binding for each condition (`x-match: all`), one queue for the subscriber.

- **headers exchange**: it is spared what Tidings does: no TLS, nothing on disk, no confirmation to the publisher and none
  from the subscriber, and one queue where Tidings keeps a stream for each condition.
- **quorum queue**: with the promises of Tidings: TLS, and a queue that has an event on disk (fsync) before the publisher
  gets its confirmation; the subscriber acknowledges.

The server is Debian's `rabbitmq-server`, in folders and on ports of its own; the client is pika, publisher and
subscriber in a thread each.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.live.contender import Contender, Unavailable, free_ports
from benchmarks.live.workload import MARK, EventValues, event, number_of, texts_of

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # The one in PATH changes to a user whose folders are not ours.
START_S_MAX = 40.0
POLL_S = 0.005
EXCHANGE, QUEUE = "sightings", "desk"


class Rabbit(Contender):
    """One RabbitMQ server."""

    name = "RabbitMQ, headers exchange"

    def __init__(self) -> None:
        self._told: Counter[int] = Counter()
        self._count = self._marks = self._marks_taken = 0
        self._server: subprocess.Popen[bytes] | None = None
        self._is_awaited = False

    async def start(self) -> None:
        await asyncio.to_thread(self._start)
        self._loop = asyncio.get_running_loop()
        self._came = asyncio.Event()
        threading.Thread(target=self._consume, daemon=True).start()

    def _start(self) -> None:
        if not SERVER.exists():
            raise Unavailable("RabbitMQ is not installed: apt-get install rabbitmq-server")
        if find_spec("pika") is None:
            raise Unavailable("its client is not installed: pip install pika")
        self._folder = tempfile.TemporaryDirectory()
        self._port, distribution, self._epmd = free_ports(3)
        settings = Path(self._folder.name) / "rabbitmq.conf"
        settings.write_text(self._settings(settings.parent))
        self._environment = _environment(self._folder.name, distribution, self._epmd)
        nowhere = subprocess.DEVNULL
        self._server = subprocess.Popen(
            [str(SERVER)], env=self._environment, stdout=nowhere, stderr=nowhere, start_new_session=True
        )
        self._publisher = self._connect().channel()
        self._publisher.exchange_declare(EXCHANGE, "headers")
        self._declare_queue()
        self._bind(MARK)

    def _settings(self, folder: Path) -> str:
        """What `rabbitmq.conf` says."""
        return f"listeners.tcp.1 = 127.0.0.1:{self._port}\n"

    def _declare_queue(self) -> None:
        self._publisher.queue_declare(QUEUE)

    def _parameters(self) -> Any:
        import pika  # type: ignore[import-untyped]

        return pika.ConnectionParameters("127.0.0.1", self._port, heartbeat=0)

    def _connect(self) -> Any:
        import pika

        deadline = time.monotonic() + START_S_MAX
        while True:
            try:
                made = pika.BlockingConnection(self._parameters())
            except pika.exceptions.AMQPError:
                if time.monotonic() > deadline:
                    raise Unavailable(f"RabbitMQ did not start within {START_S_MAX:.0f} s") from None
                time.sleep(0.3)
            else:
                return made

    def _consume(self) -> None:
        import pika

        channel = self._connect().channel()
        channel.basic_consume(QUEUE, self._hear, auto_ack=True)
        with contextlib.suppress(pika.exceptions.AMQPError):  # The server is stopped, and says so.
            channel.start_consuming()

    def _hear(self, _channel: Any, _method: Any, _properties: Any, body: bytes) -> None:
        self._count_in(body)

    def _count_in(self, body: bytes) -> None:
        number = number_of(msgspec.msgpack.decode(body)["plate"])
        if number == MARK:
            self._marks += 1
        else:
            self._told[number] += 1
            self._count += 1
        if self._is_awaited:
            self._is_awaited = False
            self._loop.call_soon_threadsafe(self._came.set)

    def _bind(self, number: int) -> None:
        self._publisher.queue_bind(QUEUE, EXCHANGE, arguments={"x-match": "all", **texts_of(number)})

    async def want(self, first: int, end: int) -> None:
        for number in range(first, end):
            self._bind(number)

    async def say(self, events: Sequence[EventValues]) -> None:
        def publish() -> None:
            for values in events:
                self._publish(values)

        await asyncio.to_thread(publish)

    def _publish(self, values: EventValues) -> None:
        """What conditions ask about as headers, everything as the body: headers hold no fractions."""
        import pika

        headers = {"plate": values["plate"], "area": values["area"]}
        body = msgspec.msgpack.encode(values)
        self._publisher.basic_publish(EXCHANGE, "", body, pika.BasicProperties(headers=headers))

    async def heard(self, numbers: Sequence[int]) -> bool:
        while self._count < len(numbers):
            await self._next()
        told, self._told, self._count = self._told, Counter(), 0
        return told == Counter(numbers)

    def say_mark(self) -> None:
        self._publish(event(MARK))

    async def hear_mark(self) -> None:
        while self._marks <= self._marks_taken:
            await self._next()
        self._marks_taken += 1

    async def _next(self) -> None:
        """Waits for a notice, or for some time: one may come between the question and the waiting."""
        self._came.clear()
        self._is_awaited = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await self._came.wait()

    async def stop(self) -> None:
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        if self._server is None:
            return
        os.killpg(self._server.pid, signal.SIGTERM)
        self._server.wait()
        epmd = shutil.which("epmd")
        for _ in range(20 if epmd else 0):  # Started beside the server, on a port of its own; it outlives its nodes.
            asked = subprocess.run([str(epmd), "-kill"], env=self._environment, capture_output=True, check=False)
            if b"Killed" in asked.stdout:
                break
            time.sleep(0.1)
        self._folder.cleanup()

    def servers(self) -> Sequence[int]:
        assert self._server is not None
        return _with_children(self._server.pid)


def _environment(folder: str, distribution: int, epmd: int) -> dict[str, str]:
    return {
        **os.environ,
        "HOME": folder,
        "RABBITMQ_NODENAME": "benchmark@localhost",
        "RABBITMQ_CONFIG_FILE": f"{folder}/rabbitmq",
        "RABBITMQ_DIST_PORT": str(distribution),
        "ERL_EPMD_PORT": str(epmd),
        "RABBITMQ_MNESIA_BASE": folder,
        "RABBITMQ_LOG_BASE": folder,
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
    }


def _with_children(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in _with_children(int(child)))]
