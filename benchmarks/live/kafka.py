"""Kafka with the promises of Tidings: TLS, and on disk before an event is acknowledged; a filter in the subscriber.

One node, a topic with one partition, `acks=all` and `flush.messages=1`, so that every write is forced to disk. Kafka gathers
events into batches by itself. The broker is the one that Maven fetches for the tests of the pipeline; the client is
confluent-kafka, with events as msgpack. The consumer commits its position every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.live.client_filter import AT_ONCE_MAX, ClientFilter
from benchmarks.live.contender import Unavailable
from benchmarks.live.workload import MARK, EventValues, event

TOPIC = "sightings"
START_S_MAX = 60.0
POLL_S = 0.2
LINGER_MS = 1  # The default of 5 is no quicker here, and every single event waits for it.
PENDING_MAX = 200_000  # Events that the client may hold.
JAVA = ("-Xmx1g", "-XX:+UseG1GC")  # As a server has it: with all of the compiler.


class Kafka(ClientFilter):
    """One Kafka broker, and an index in its consumer."""

    name = "Kafka, filter in the client"
    tls = on_disk = True

    def __init__(self) -> None:
        super().__init__()
        self._stack = contextlib.ExitStack()
        self._ending = threading.Event()
        self._consumer: threading.Thread | None = None
        self._pid = 0

    async def start(self) -> None:
        if find_spec("confluent_kafka") is None:
            raise Unavailable("its client is not installed: pip install confluent-kafka")
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._start)
        await self.want(MARK, 0)

    def _start(self) -> None:
        import pytest
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient, NewTopic

        from tests.pipeline import kafka_broker

        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            addresses = self._stack.enter_context(kafka_broker.broker(folder, JAVA))
        except (pytest.skip.Exception, pytest.fail.Exception, OSError) as why:  # The jars cannot be had.
            raise Unavailable(f"Kafka: {why}") from None
        self._pid = addresses.pid
        secured = {
            "bootstrap.servers": addresses.secured,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": kafka_broker.USER,
            "sasl.password": kafka_broker.PASSWORD,
            "ssl.ca.location": str(addresses.authority),
            "log_level": 0,  # It says of each try that the broker does not listen yet.
        }
        admin = AdminClient(secured)
        topic = NewTopic(TOPIC, 1, 1, config={"flush.messages": "1"})
        admin.create_topics([topic], operation_timeout=START_S_MAX)[TOPIC].result(START_S_MAX)
        self._producer = Producer(
            {**secured, "acks": "all", "linger.ms": LINGER_MS, "queue.buffering.max.messages": PENDING_MAX}
        )
        self._consumer = threading.Thread(target=self._consume, args=(secured,), daemon=True)
        self._consumer.start()

    def _consume(self, secured: dict[str, Any]) -> None:
        from confluent_kafka import Consumer

        settings = {"group.id": "desk", "auto.offset.reset": "earliest", "auto.commit.interval.ms": 1000}
        # A fetch answers as soon as there is anything: the least delay, and full batches under load.
        consumer = Consumer({**secured, **settings, "fetch.wait.max.ms": 10})
        consumer.subscribe([TOPIC])
        while not self._ending.is_set():
            if first := consumer.poll(POLL_S):
                found = [first, *consumer.consume(AT_ONCE_MAX - 1, timeout=0)]
                bodies = [message.value() for message in found if message.error() is None]
                self._loop.call_soon_threadsafe(self._take, bodies)
        consumer.close()

    async def say(self, events: Sequence[EventValues]) -> None:
        def publish() -> None:
            for values in events:
                self._produce(values)
            self._producer.flush()

        await asyncio.to_thread(publish)

    def _produce(self, values: EventValues) -> None:
        while True:
            try:
                self._producer.produce(TOPIC, msgspec.msgpack.encode(values))
            except BufferError:
                self._producer.poll(POLL_S)
            else:
                self._producer.poll(0)
                return

    def say_mark(self) -> None:
        self._produce(event(MARK))

    async def stop(self) -> None:
        self._ending.set()
        if self._consumer is not None:
            await asyncio.to_thread(self._consumer.join)
        self._stack.close()

    def servers(self) -> Sequence[int]:
        return [self._pid]
