"""RabbitMQ with the promises of Tidings: see `rabbit`."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections import deque
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.live.certificates import server_files
from benchmarks.live.contender import Unavailable
from benchmarks.live.rabbit import EXCHANGE, QUEUE, START_S_MAX, Rabbit
from benchmarks.live.workload import MARK, EventValues, event

UNACKED_MAX = 4096
ACK_EVERY = 64  # Deliveries that one acknowledgement is for, when they come so fast.
PART = 256  # Events between two looks at the socket.


class RabbitQuorum(Rabbit):
    """One RabbitMQ server, a quorum queue, confirmations for the publisher."""

    name = "RabbitMQ, quorum queue"
    tls = on_disk = True

    def _settings(self, folder: Path) -> str:
        files = server_files(folder)
        self._certificate = files.certificate
        return (
            "listeners.tcp = none\n"
            f"listeners.ssl.1 = 127.0.0.1:{self._port}\n"
            f"ssl_options.cacertfile = {files.certificate}\n"
            f"ssl_options.certfile = {files.certificate}\n"
            f"ssl_options.keyfile = {files.key}\n"
        )

    def _parameters(self) -> Any:
        import pika  # type: ignore[import-untyped]

        trusted = pika.SSLOptions(ssl.create_default_context(cafile=str(self._certificate)), "127.0.0.1")
        return pika.ConnectionParameters("127.0.0.1", self._port, heartbeat=0, ssl_options=trusted)

    def _declare_queue(self) -> None:
        self._publisher.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum"})

    async def start(self) -> None:
        await super().start()
        self._confirmed = asyncio.Event()
        self._unconfirmed: deque[int] = deque()
        self._published = self._asked = 0
        self._is_open = threading.Event()
        threading.Thread(target=self._publish_in_turns, daemon=True).start()
        if not await asyncio.to_thread(self._is_open.wait, START_S_MAX):
            raise Unavailable("RabbitMQ took no connection over TLS")

    def _publish_in_turns(self) -> None:
        """A connection whose publisher does not wait for each confirmation, in a thread of its own."""
        import pika

        def opened(connection: Any) -> None:
            connection.channel(on_open_callback=confirming)

        def confirming(channel: Any) -> None:
            self._channel = channel
            channel.confirm_delivery(self._confirm, callback=lambda _: self._is_open.set())

        connection = pika.SelectConnection(self._parameters(), on_open_callback=opened)
        self._turns = connection.ioloop
        with contextlib.suppress(pika.exceptions.AMQPError):
            self._turns.start()

    def _confirm(self, frame: Any) -> None:
        method = frame.method
        assert method.NAME == "Basic.Ack", method
        if method.multiple:
            while self._unconfirmed and self._unconfirmed[0] <= method.delivery_tag:
                self._unconfirmed.popleft()
        else:
            self._unconfirmed.remove(method.delivery_tag)  # The oldest ones come first: found at once.
        if not self._unconfirmed:
            self._loop.call_soon_threadsafe(self._confirmed.set)

    async def say(self, events: Sequence[EventValues]) -> None:
        self._confirmed.clear()
        for start in range(0, len(events), PART):
            self._turns.add_callback_threadsafe(partial(self._say_part, events[start : start + PART]))
        await self._confirmed.wait()
        while self._published < self._asked + len(events) or self._unconfirmed:
            self._confirmed.clear()
            await self._confirmed.wait()
        self._asked = self._published

    def _say_part(self, events: Sequence[EventValues]) -> None:
        for values in events:
            self._publish(values)

    def _publish(self, values: EventValues) -> None:
        import pika

        headers = {"plate": values["plate"], "area": values["area"]}
        properties = pika.BasicProperties(headers=headers, delivery_mode=pika.DeliveryMode.Persistent)
        self._published += 1
        self._unconfirmed.append(self._published)
        self._channel.basic_publish(EXCHANGE, "", msgspec.msgpack.encode(values), properties)

    def say_mark(self) -> None:
        self._turns.add_callback_threadsafe(partial(self._publish, event(MARK)))

    def _consume(self) -> None:
        import pika

        channel = self._connect().channel()
        channel.basic_qos(prefetch_count=UNACKED_MAX)
        channel.basic_consume(QUEUE, self._hear)
        with contextlib.suppress(pika.exceptions.AMQPError):  # The server is stopped, and says so.
            channel.start_consuming()

    def _hear(self, channel: Any, method: Any, _properties: Any, body: bytes) -> None:
        self._count_in(body)
        if method.delivery_tag % ACK_EVERY == 0:
            channel.basic_ack(method.delivery_tag, multiple=True)

    def _stop(self) -> None:
        if hasattr(self, "_turns"):
            self._turns.add_callback_threadsafe(self._turns.stop)
        super()._stop()
