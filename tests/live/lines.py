"""Lines to a server that a test can cut: a TCP proxy in front of it, for one process."""

from __future__ import annotations

import asyncio
import contextlib

CHUNK_BYTES = 1 << 16


class Line:
    """A proxy to one port. What goes through it can be reset, or stopped so that nobody is told."""

    def __init__(self, to_port: int) -> None:
        self._to_port = to_port
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_down = False
        self._ends: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> Line:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def cut(self, *, silently: bool) -> None:
        """Nothing gets through any more; if not silently, both ends are told, and new connections refused."""
        if silently:
            self._flows.clear()
        else:
            self._is_down = True
            self._abort()

    def heal(self) -> None:
        self._is_down = False
        self._flows.set()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._flows.set()
        self._abort()

    def _abort(self) -> None:
        for end in list(self._ends):
            end.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_down:
            writer.transport.abort()
            return
        self._ends.add(writer)
        far: asyncio.StreamWriter | None = None
        with contextlib.suppress(OSError):
            await self._flows.wait()
            far_reader, far = await asyncio.open_connection("127.0.0.1", self._to_port)
            self._ends.add(far)
            await asyncio.gather(self._pump(reader, far), self._pump(far_reader, writer))
        for end in (writer, far):
            if end is not None:
                self._ends.discard(end)
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            await self._flows.wait()
            writer.write(chunk)
            await writer.drain()
        writer.transport.abort()
