"""Listening sockets, and what an operator reads where one cannot be opened."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

from tidings.errors import SetupError
from tidings.net.config import host_and_port


async def listen(accept: Any, address: str, setting: str, **options: Any) -> asyncio.Server:
    """A server at `host:port`; `accept` and `options` are those of `asyncio.start_server`.

    Raises InputError for what is no address, and SetupError, naming the setting, where nobody can listen.
    """
    host, port = host_and_port(address, f"{setting}: ")
    try:
        return await asyncio.start_server(accept, host, port, **options)
    except OSError as wrong:
        raise SetupError(f"{setting}: cannot listen at {address}: {_why(wrong, host, port, setting)}") from None


def address_of(server: asyncio.Server) -> str:
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
