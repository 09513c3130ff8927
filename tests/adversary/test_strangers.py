"""Who has proven nothing can hold connections open, and not read; nobody else is kept out by it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tidings.net.dev_network import DevNetwork, lay_out
from tidings.net.gateway import http
from tidings.net.transport.listen import address_of, listen
from tidings.net.transport.tls import client_context, server_context

pytestmark = pytest.mark.live

SHAKING = 4
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"


@contextlib.asynccontextmanager
async def silent(address: str, host: str) -> AsyncIterator[asyncio.StreamReader]:
    """A connection from a host, on which nothing is said."""
    where, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(where, int(port), local_addr=(host, 0))
    try:
        yield reader
    finally:
        writer.close()


async def is_hung_up_on(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionError):
        return await reader.read() == b""
    return True


def contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of a broker, and of a client of its organisation."""
    laid = lay_out(folder, DevNetwork(first_port=0))
    broker, client = laid.brokers["police-1"].parent, laid.clients["police/camera"].parent
    made = [
        make(one / "cert.pem", one / "key.pem", one.parent / "trusted.pem")
        for make, one in ((server_context, broker), (client_context, client))
    ]
    return made[0], made[1]


def test_whoever_connects_and_says_nothing_pushes_out_its_own_connections(tmp_path: Path) -> None:
    ours, theirs = contexts(tmp_path)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    async def scenario() -> None:
        server = await listen(answer, f"{HERE}:0", "listen", ssl=ours, handshake_s=60.0, shaking_max=SHAKING)
        address = address_of(server)
        async with contextlib.AsyncExitStack() as stack, asyncio.timeout(60.0):
            honest = await stack.enter_async_context(silent(address, ELSEWHERE))
            readers = [await stack.enter_async_context(silent(address, HERE)) for _ in range(2 * SHAKING)]
            for pushed_out in readers[: SHAKING + 1]:
                assert await is_hung_up_on(pushed_out)
            assert not honest.at_eof()
            where, port = address.rsplit(":", 1)
            reader, writer = await asyncio.open_connection(where, int(port), ssl=theirs, server_hostname="")
            writer.write(b"hello\n")
            assert await reader.readline() == b"hello\n"
            writer.close()
        server.close()

    asyncio.run(scenario())


def test_whoever_asks_and_does_not_read_is_not_waited_for() -> None:
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = http.HttpConnection(reader, writer, request_s_max=0.5)
        with contextlib.suppress(TimeoutError, ConnectionError):
            while await connection.request() is not None:
                connection.respond(200, bytes(1 << 20))
                await connection.drained()
        ended.set()

    async def scenario() -> None:
        server = await listen(serve, f"{HERE}:0", "listen")
        where, port = address_of(server).rsplit(":", 1)
        async with asyncio.timeout(60.0):
            _, writer = await asyncio.open_connection(where, int(port), limit=1024)
            writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n" * 64)
            await ended.wait()
            writer.close()
        server.close()

    asyncio.run(scenario())
