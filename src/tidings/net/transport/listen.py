"""Listening sockets, what a stranger can hold of them, and what an operator reads where one cannot be opened.

Until the TLS handshake is done nobody knows who connects, and each connection takes a file descriptor of the process. So
there are at most `SHAKING_MAX` that have not finished it. One more costs the address with most of them its oldest:
whoever connects and says nothing pushes out its own connections, and nobody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias

from tidings.errors import SetupError
from tidings.net.config import host_and_port

SHAKING_MAX = 512
BACKLOG = 128
PAUSE_S = 0.1  # After the system has refused to accept a connection: it has no descriptor left, say.

Accept: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Listening(Protocol):
    """What accepts connections until it is closed."""

    @property
    def sockets(self) -> Sequence[Any]: ...

    def close(self) -> None:
        """Accepts no more; connections that were handed over go on."""


class TlsListener:
    """Accepts connections, and hands those over with which the TLS handshake is done."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        accept: Accept,
        context: ssl.SSLContext,
        handshake_s: float,
        shaking_max: int = SHAKING_MAX,
    ) -> None:
        self.sockets, self._accept, self._context = sockets, accept, context
        self._handshake_s, self._shaking_max = handshake_s, shaking_max
        self._loop = asyncio.get_running_loop()
        self._shaking: dict[asyncio.Task[None], str] = {}  # Oldest first; each with the host that it is from.
        self._accepting = [self._loop.create_task(self._take(each)) for each in sockets]

    def close(self) -> None:
        for task in (*self._accepting, *self._shaking):
            task.cancel()
        for each in self.sockets:
            each.close()

    async def _take(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, address = await self._loop.sock_accept(listening)
            except OSError:
                await asyncio.sleep(PAUSE_S)
                continue
            if len(self._shaking) >= self._shaking_max:
                self._push_one_out()
            task = self._loop.create_task(self._shake(connection))
            self._shaking[task] = str(address[0])
            task.add_done_callback(lambda done: self._shaking.pop(done, None))

    def _push_one_out(self) -> None:
        ((crowding, _),) = Counter(self._shaking.values()).most_common(1)
        oldest = next(task for task, host in self._shaking.items() if host == crowding)
        del self._shaking[oldest]
        oldest.cancel()

    async def _shake(self, connection: socket.socket) -> None:
        reader = asyncio.StreamReader(loop=self._loop)
        # Its end of the handshake may be wrong, or missing: then the transport has closed it.
        with contextlib.suppress(OSError):
            await self._loop.connect_accepted_socket(
                lambda: asyncio.StreamReaderProtocol(reader, self._accept, loop=self._loop),
                connection,
                ssl=self._context,
                ssl_handshake_timeout=self._handshake_s,
            )


async def listen(
    accept: Accept,
    address: str,
    setting: str,
    *,
    ssl: ssl.SSLContext | None = None,
    handshake_s: float = 10.0,
    shaking_max: int = SHAKING_MAX,
) -> Listening:
    """Accepts connections at `host:port`, with TLS where there is a context, and at most so many handshakes at once.

    Raises InputError for what is no address, and SetupError, naming the setting, where nobody can listen.
    """
    host, port = host_and_port(address, f"{setting}: ")
    try:
        server = await asyncio.start_server(accept, host, port, start_serving=ssl is None)
    except OSError as wrong:
        raise SetupError(f"{setting}: cannot listen at {address}: {_why(wrong, host, port, setting)}") from None
    if ssl is None:
        return server
    sockets = [each.dup() for each in server.sockets]
    server.close()
    for each in sockets:
        each.setblocking(False)
        each.listen(BACKLOG)
    return TlsListener(sockets, accept, ssl, handshake_s, shaking_max)


def address_of(server: Listening) -> str:
    """Where a server listens, with the actual port where the configuration says 0."""
    host, port = server.sockets[0].getsockname()[:2]
    return f"{host}:{port}"


def _why(wrong: OSError, host: str, port: int, setting: str) -> str:
    if isinstance(wrong, socket.gaierror):
        return f"no host {host!r} is known; expected an address of this machine, or 0.0.0.0 for all of them"
    match wrong.errno:
        case errno.EADDRINUSE:
            return (
                f"port {port} is in use; does this broker or server run already? "
                f"`ss -ltnp sport = :{port}` shows by whom, --{setting} chooses another port"
            )
        case errno.EADDRNOTAVAIL:
            return f"{host} is not an address of this machine; `ip address` lists them, and 0.0.0.0 means all of them"
        case errno.EACCES:
            return "ports below 1024 are for root; choose a higher one"
    return wrong.strerror or str(wrong)
