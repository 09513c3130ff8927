"""Somebody who listens at the gateway, by server-sent events."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping

from tidings.events import Timestamp, to_record
from tidings.net.gateway import http
from tidings.net.ids import show_event
from tidings.net.transport.frames import Notice, Told, read_told
from tidings.overlay import SubscriptionId

COMMENT_EVERY_S = 10.0  # A line that says nothing, so that both ends notice a dead connection.


class Listener:
    """One who listens. To a durable subscription it looks like a link."""

    def __init__(self, writer: asyncio.StreamWriter, headers: Mapping[str, str]) -> None:
        """`headers` go before the events, beside those that every listener gets."""
        self._writer, self._headers = writer, headers
        self._over = asyncio.Event()
        self._missed = 0

    @property
    def is_open(self) -> bool:
        return not self._over.is_set() and not self._writer.is_closing()

    async def run(self) -> None:
        """Until the other end hangs up, or the right to listen is over; then the connection ends."""
        headers = {"Cache-Control": "no-store", "Connection": "close", **self._headers}
        self._writer.write(http.head(200, "text/event-stream", **headers))
        try:
            while self.is_open:
                self._writer.write(b": here\n\n")
                await self._writer.drain()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._over.wait(), COMMENT_EVERY_S)
        except ConnectionError:
            pass
        finally:
            self._over.set()
            self._writer.close()

    def send(self, frame: Notice) -> bool:
        """A notice of a durable subscription."""
        self._write(read_told(frame.told), frame.position)
        return self.is_open

    def tell(self, subscription: SubscriptionId, told: bytes) -> None:
        """An event of a subscription that is not durable; lost, and counted, where the other end is too slow."""
        if self._writer.transport.get_write_buffer_size() > http.BODY_BYTES_MAX:
            self._missed += 1
            return
        if self._missed:
            self._say("missed", self._missed)
            self._missed = 0
        self._write(read_told(told), 0)

    def ended(self, why: str) -> None:
        """The right to listen is over: says so, and hangs up."""
        self._say("refused", {"error": "Denied", "why": why})
        self._over.set()

    async def drained(self) -> None:
        try:
            await self._writer.drain()
        except ConnectionError:
            self._over.set()

    def _say(self, what: str, content: object) -> None:
        self._writer.write(f"event: {what}\ndata: {json.dumps(content)}\n\n".encode())

    def _write(self, told: Told, position: int) -> None:
        event = {
            "specversion": "1.0",
            "id": show_event(told.event),
            "source": f"tidings:{told.event.origin}",
            "type": told.type,
            "time": Timestamp(told.at_us).iso(),
            "datacontenttype": "application/json",
            "data": to_record(told.values),
        }
        lines = [f"id: {position}"] if position else []
        self._writer.write("\n".join([*lines, f"data: {json.dumps(event)}", "", ""]).encode())
