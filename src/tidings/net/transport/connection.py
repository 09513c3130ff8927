"""A link: one authenticated connection, with a bounded send queue.

Frames are collected and written once per turn of the event loop, overlay messages several to a
frame, so that a busy link costs few system calls. `send` never waits: it returns whether there was room.
A caller that must not lose anything checks `has_room` first, or awaits `drained`.

A link on which no whole frame has arrived for a while is closed: a working peer answers pings, and one that
only trickles bytes does not count as working.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tidings.net.transport.frames import (
    BATCH_BYTES,
    AnyFrame,
    FrameReader,
    Goodbye,
    OverlayMessages,
    Padding,
    Ping,
    Pong,
    encoded,
)
from tidings.net.transport.handshake import Proven
from tidings.net.transport.shaping import TICK_S, CoverTraffic, in_class

QUEUE_BYTES_MAX = 8 << 20  # Per link: some seconds of a busy link, and with a hundred links still under a gigabyte.
PING_EVERY_S = 2.0
SILENCE_S_MAX = 10.0  # Five pings without an answer: stopped, cut off, or trickling.


class Link:
    """One end of an authenticated connection."""

    def __init__(
        self,
        proven: Proven,
        reader: FrameReader,
        writer: asyncio.StreamWriter,
        *,
        queue_bytes_max: int = QUEUE_BYTES_MAX,
        silence_s_max: float = SILENCE_S_MAX,
        cover: int = 0,
        padded: bool = False,
    ) -> None:
        """`cover`: bytes a second, whatever is said. `padded`: writes are filled up to a class of sizes (`shaping`)."""
        self.proven, self.queue_bytes_max, self.silence_s_max = proven, queue_bytes_max, silence_s_max
        self.is_slow = False
        """Whether publishers no longer wait for the other end, because its queue did not drain in time."""
        self._is_open = True
        self.bytes_sent = 0
        self._reader, self._writer = reader, writer
        self._loop = asyncio.get_running_loop()
        self._received_at = self._loop.time()
        self._out: list[bytes] = []
        self._messages: list[bytes] = []
        self._out_bytes = self._messages_bytes = 0
        self._written_bytes = 0  # What the transport held when last asked; since then it can only have shrunk.
        self._is_flush_due = False
        self._padded = padded
        self._cover = CoverTraffic(cover) if cover else None
        self._covering = self._loop.call_later(TICK_S, self._send_cover) if cover else None
        writer.transport.set_write_buffer_limits(high=queue_bytes_max // 2)
        # A timer, not a task: a cancelled task keeps references to everything it used.
        self._keeper = self._loop.call_later(PING_EVERY_S, self._keep_alive)

    @property
    def certificate_der(self) -> bytes:
        """The TLS certificate of the other end."""
        return bytes(self._writer.get_extra_info("ssl_object").getpeercert(binary_form=True))

    @property
    def transport(self) -> asyncio.WriteTransport:
        """What carries the bytes: for who wants to pause it, or to write what is no frame."""
        return self._writer.transport

    def send(self, frame: AnyFrame) -> bool:
        """Queues a frame; False, and nothing is queued, where the link is closed or its queue is full."""
        if not self.has_room:
            return False
        if self._messages:
            self._put_messages()
        self._put(encoded(frame))
        return True

    def send_message(self, message: bytes) -> bool:
        """Queues a message of the overlay, likewise."""
        if not self.has_room:
            return False
        self._messages.append(message)
        self._messages_bytes += len(message)
        if self._messages_bytes >= BATCH_BYTES:
            self._put_messages()
        self._flush_soon()
        return True

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def has_room(self) -> bool:
        if not self._is_open:
            return False
        # Asking the transport costs more than a frame does.
        about = self._out_bytes + self._messages_bytes + self._written_bytes
        return about < self.queue_bytes_max or self.queued_bytes < self.queue_bytes_max

    @property
    def is_half_full(self) -> bool:
        about = self._out_bytes + self._messages_bytes + self._written_bytes
        return about > self.queue_bytes_max // 2 and self.queued_bytes > self.queue_bytes_max // 2

    @property
    def queued_bytes(self) -> int:
        """What the other end has not read yet, as far as this process knows."""
        self._written_bytes = self._writer.transport.get_write_buffer_size() + len(self._cover or ())
        return self._out_bytes + self._messages_bytes + self._written_bytes

    @property
    def silent_s(self) -> float:
        """How long ago the other end was last heard."""
        return self._loop.time() - self._received_at

    async def drained(self) -> None:
        """Waits until the queue is at most half full, or the link is closed."""
        self._flush()
        while self._cover is not None and self.is_open and len(self._cover) > self.queue_bytes_max // 2:  # noqa: ASYNC110
            await asyncio.sleep(TICK_S)  # It shrinks by the tick.
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def frames(self, stage: str) -> AsyncIterator[AnyFrame]:
        """The frames of the other end until it closes; pings are answered here. Raises PeerError for a frame that is not allowed.

        As long as the caller is busy with a frame nothing more is read, so that TCP slows the sender down.
        """
        self._reader.expect(stage)
        while self.is_open:
            for frame in await self._reader.some():
                self._received_at = self._loop.time()
                match frame:
                    case None | Goodbye():
                        return
                    case Ping():
                        self.send(Pong())
                    case Pong() | Padding():
                        pass
                    case _:
                        yield frame
                        self._received_at = self._loop.time()

    def close(self, why: str = "") -> None:
        """Sends a `Goodbye` if that is still possible, and closes."""
        if not self.is_open:
            return
        if why:
            self.send(Goodbye(why))
        self._flush()
        if self._cover is not None:
            self._writer.write(self._cover.rest())
        self._end()
        self._writer.close()

    def cut(self) -> None:
        """Closes at once, dropping what is queued."""
        self._end()
        self._writer.transport.abort()

    def _end(self) -> None:
        self._is_open = False
        self._keeper.cancel()
        if self._covering is not None:
            self._covering.cancel()

    async def closed(self) -> None:
        """Waits until the connection is closed; aborts it where the peer does not read what is queued."""
        try:
            async with asyncio.timeout(1.0):
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()

    def _put(self, raw: bytes) -> None:
        self._out.append(raw)
        self._out_bytes += len(raw)
        if not self._is_flush_due:
            self._flush_soon()

    def _put_messages(self) -> None:
        if self._messages:
            messages, self._messages, self._messages_bytes = tuple(self._messages), [], 0
            self._put(encoded(OverlayMessages(messages)))

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        if not self.is_open:
            return
        self._put_messages()
        if self._out:
            raw = b"".join(self._out)
            self._out, self._out_bytes = [], 0
            if self._cover is not None:
                self._cover.add(raw)
                self._written_bytes = self.queued_bytes
            else:
                self._write(in_class(raw) if self._padded else raw)

    def _write(self, raw: bytes) -> None:
        self.bytes_sent += len(raw)
        self._writer.write(raw)
        self._written_bytes = self._writer.transport.get_write_buffer_size() + len(self._cover or ())

    def _send_cover(self) -> None:
        """Every tick, as many bytes. Where the other end does not read, nothing is piled up on what it has not read."""
        assert self._cover is not None
        if not self.is_open:
            return
        self._covering = self._loop.call_later(TICK_S, self._send_cover)
        if self._writer.transport.get_write_buffer_size() < self.queue_bytes_max // 2:
            self._write(self._cover.take())

    def _keep_alive(self) -> None:
        if not self.is_open:
            return
        if self._loop.time() - self._received_at > self.silence_s_max:
            self.cut()
            return
        self.send(Ping())
        self._keeper = self._loop.call_later(PING_EVERY_S, self._keep_alive)
