"""A listener at the gateway, by server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

from tidings.events import Timestamp, to_record
from tidings.net.gateway.http import BODY_BYTES_MAX, HttpConnection
from tidings.net.ids import show_event
from tidings.net.observability.spans import SpanRecorder
from tidings.net.transport.frames import DeliveredEvent, EventDelivery, RequestRefused, read_event
from tidings.node import BatchDelivery
from tidings.overlay import SubscriptionId

COMMENT_EVERY_S = 10.0  # An empty comment, so that both ends notice a dead connection.


class SseListener:
    """One listener: a `DeliverySink` of a durable subscription, or the `LiveSubscriber` of a live one."""

    def __init__(
        self,
        connection: HttpConnection,
        headers: Mapping[str, str],
        wait_s: float | None = None,
        spans: SpanRecorder | None = None,
    ) -> None:
        """`headers` go before the events, beside those that every listener gets. Ends by itself after `wait_s`."""
        self._wait_s, self._spans = wait_s, spans
        self._http, self._writer, self._headers = connection, connection.writer, headers
        self._over = asyncio.Event()
        self._missed = 0

    @property
    def is_open(self) -> bool:
        return not self._over.is_set() and not self._writer.is_closing()

    async def run(self) -> None:
        """Until the other end disconnects, the right to listen or the time ends; then the connection is closed."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._wait_s if self._wait_s is not None else None
        headers = {"Cache-Control": "no-store", "Connection": "close", **self._headers}
        self._http.begin(200, "text/event-stream", **headers)
        try:
            while self.is_open:
                self._http.send(b": here\n\n")
                await self._writer.drain()
                left = COMMENT_EVERY_S if ends is None else min(COMMENT_EVERY_S, ends - loop.time())
                if left <= 0:
                    break
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), left)
        except ConnectionError:
            pass
        finally:
            self._over.set()
            self._http.end()
            self._writer.close()

    def send(self, frame: EventDelivery | RequestRefused) -> bool:
        """An event of a durable subscription, or why it has ended."""
        if isinstance(frame, RequestRefused):
            self._send("refused", {"error": "Denied", "why": frame.why})
            self._over.set()
            return False
        self._write(read_event(frame.event), frame.position)
        return self.is_open

    def deliver(self, subscription: SubscriptionId, encoded: bytes) -> None:
        """An event of a live subscription; lost, and counted, where the other end is too slow."""
        if self._writer.transport.get_write_buffer_size() > BODY_BYTES_MAX:
            self._missed += 1
            return
        if self._missed:
            self._send("missed", self._missed)
            self._missed = 0
        self._write(read_event(encoded), 0)

    def deliver_rows(self, delivery: BatchDelivery) -> bool:
        """Never: an event of a stream is one event."""
        return False

    def end(self, subscription: SubscriptionId, why: str) -> None:
        """The right to listen has ended: sends the reason, and closes."""
        self._send("refused", {"error": "Denied", "why": why})
        self._over.set()

    async def drained(self) -> None:
        try:
            await self._writer.drain()
        except ConnectionError:
            self._over.set()

    def _send(self, what: str, content: object) -> None:
        self._http.send(f"event: {what}\ndata: {json.dumps(content)}\n\n".encode())

    def _write(self, delivered: DeliveredEvent, position: int) -> None:
        event = cloud_event(delivered, self._spans)
        lines = [f"id: {position}"] if position else []
        self._http.send("\n".join([*lines, f"data: {json.dumps(event)}", "", ""]).encode())


def cloud_event(delivered: DeliveredEvent, spans: SpanRecorder | None) -> dict[str, Any]:
    """An event as the gateway hands it out: a CloudEvent, with its trace where spans are recorded."""
    event = {
        "specversion": "1.0",
        "id": show_event(delivered.event),
        "source": f"tidings:{delivered.event.origin}",
        "type": delivered.type,
        "time": Timestamp(delivered.at_us).iso(),
        "datacontenttype": "application/json",
        "data": to_record(delivered.values),
    }
    if spans is not None:
        event["traceparent"] = spans.traceparent(delivered.event)
    return event
