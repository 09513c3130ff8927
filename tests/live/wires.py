"""Wires between brokers that a test can cut or make long: a TCP proxy in front of each broker, which knows who dials.

A broker that advertises its proxy's address is reached by other brokers through it alone; clients go
straight to the broker. What passes is TLS, and stays so. Who dials is asked of the system: the process that
holds the other end of a connection (Linux only).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from tidings.net.config import host_and_port

CHUNK_BYTES = 1 << 16
UNDERWAY_MAX = 1024  # Chunks on a wire at a time.


class Wire:
    """One connection through a proxy."""

    def __init__(self, ends: frozenset[str], delay_s: float = 0.0) -> None:
        """`delay_s` is how long bytes take from one end to the other; they keep their order and are not slowed down."""
        self.ends, self.delay_s = ends, delay_s
        self.flows = asyncio.Event()
        self.flows.set()
        self._transports: list[asyncio.WriteTransport] = []

    async def carry(self, near: asyncio.StreamWriter, streams: tuple[asyncio.StreamReader, str]) -> None:
        """Carry bytes both ways until one end hangs up."""
        reader, address = streams
        far_reader, far = await asyncio.open_connection(*host_and_port(address))
        self._transports = [near.transport, far.transport]
        pump = self._pump_late if self.delay_s else self._pump
        try:
            await asyncio.gather(pump(reader, far), pump(far_reader, near))
        finally:
            self.cut()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            await self.flows.wait()
            writer.write(chunk)
            await writer.drain()
        self.cut()

    async def _pump_late(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The same, each chunk as long after it came as the wire is."""
        now = asyncio.get_running_loop().time
        on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(UNDERWAY_MAX)

        async def arrive() -> None:
            while (at_chunk := await on_the_way.get())[1]:
                at, chunk = at_chunk
                await asyncio.sleep(at - now())
                await self.flows.wait()
                writer.write(chunk)
                await writer.drain()

        async def leave() -> None:
            while chunk := await reader.read(CHUNK_BYTES):
                await on_the_way.put((now() + self.delay_s, chunk))
            await on_the_way.put((now() + self.delay_s, b""))

        await asyncio.gather(leave(), arrive())
        self.cut()

    def cut(self) -> None:
        for transport in self._transports:
            transport.abort()


class Wires:
    """A proxy for each broker, and the wires that go through them."""

    def __init__(
        self,
        pids: Callable[[], Mapping[str, int]],
        delay_s: Callable[[frozenset[str]], float] = lambda ends: 0.0,
    ) -> None:
        """`pids` tells the processes of the brokers that run now, `delay_s` how long a wire between two of them is."""
        self._holders, self._delay_s = Holders(pids), delay_s
        self._all: set[Wire] = set()
        self._apart: frozenset[str] = frozenset()
        self._servers: list[asyncio.Server] = []

    async def lead_to(self, name: str, address: str) -> str:
        """The address of a new proxy in front of a broker."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._accept(name, (reader, address), writer)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self._servers.append(server)
        return f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _accept(self, name: str, streams: tuple[asyncio.StreamReader, str], writer: asyncio.StreamWriter) -> None:
        dialled_from, proxy = (writer.get_extra_info(end)[1] for end in ("peername", "sockname"))
        ends = frozenset({name, self._holders.of(dialled_from, proxy)})
        wire = Wire(ends, self._delay_s(ends))
        if self._is_cut(wire):
            writer.transport.abort()
            return
        self._all.add(wire)
        with contextlib.suppress(OSError):
            await wire.carry(writer, streams)
        self._all.discard(wire)
        writer.transport.abort()

    def split(self, apart: Collection[str], *, silently: bool) -> None:
        """Cut these brokers off from all others: with a reset, or so that bytes just stop coming."""
        self._apart = frozenset(apart)
        for wire in [wire for wire in self._all if self._is_cut(wire)]:
            wire.flows.clear() if silently else wire.cut()

    def heal(self) -> None:
        """Let everything through again; what has waited goes on its way."""
        self._apart = frozenset()
        for wire in self._all:
            wire.flows.set()

    def _is_cut(self, wire: Wire) -> bool:
        return 0 < len(wire.ends & self._apart) < len(wire.ends)

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for wire in list(self._all):
            wire.flows.set()
            wire.cut()


class Holders:
    """Which process holds which connection, as the system tells; looked up again when there is a new one."""

    def __init__(self, pids: Callable[[], Mapping[str, int]]) -> None:
        self._pids = pids
        self._known: dict[str, str] = {}  # By inode: one look serves all that dial at the same time.

    def of(self, dialled_from: int, proxy: int) -> str:
        """The broker that has dialled from one port to the other; empty if none has."""
        inode = _inode_of(dialled_from, proxy)
        if inode not in self._known:
            self._known = {found: name for name, pid in self._pids().items() for found in _inodes(pid)}
        return self._known.get(inode, "")


def _inodes(pid: int) -> Iterator[str]:
    """All sockets of a process. Without Path, which takes ten times as long, and this is done for each connection."""
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):  # noqa: PTH208
            with contextlib.suppress(OSError):
                kind, _, inode = os.readlink(f"/proc/{pid}/fd/{fd}").partition(":")  # noqa: PTH115
                if kind == "socket":
                    yield inode.strip("[]")


def _inode_of(dialled_from: int, proxy: int) -> str:
    """The nearer end of a connection. By both ports: the nearer one alone may serve several, some just closed."""
    near, far = f":{dialled_from:04X}", f":{proxy:04X}"
    for line in Path("/proc/net/tcp").read_text().split("\n"):
        if near in line and far in line:
            _, here, there, *rest = line.split()
            if here.endswith(near) and there.endswith(far):
                return rest[6]
    return ""
