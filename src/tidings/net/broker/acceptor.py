"""Connections: who comes to a broker, is proven and served, and how fast they may go.

A client has a session of its own (see `sessions`); another broker's connection becomes one of the `links`. Publishers
go no faster than events can leave: everybody waits a while where a link, or a client that is told much, does not keep up.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidings.errors import Denied, PeerError
from tidings.net.broker.client_session import Session
from tidings.net.config import host_and_port
from tidings.net.transport.connection import Link
from tidings.net.transport.handshake import shake
from tidings.net.transport.tls import server_context

if TYPE_CHECKING:
    from tidings.net.broker.broker import Broker

LINK_S_MAX = 5.0  # How long publishers wait for another broker to take most of its queue; then that is its own affair.
CLIENT_S_MAX = 1.0  # How long everybody waits for a client to do so.
TLS_S_MAX = 10.0
CLOSE_S_MAX = 2.0  # For all connections together; each is cut off after one.

log = logging.getLogger("tidings.broker")


class Connections:
    """Who is connected to one broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self.sessions: dict[str, Session] = {}
        self.filling: dict[str, Link] = {}
        """To clients whose queues are half full, and who have not been waited for yet."""
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """From now on others may come."""
        config = self._broker.config
        host, port = host_and_port(config.listen, "listen: ")
        context = server_context(config.certificate, config.key, config.trusted)
        self._server = await asyncio.start_server(
            self._accept, host, port, ssl=context, ssl_handshake_timeout=TLS_S_MAX
        )

    @property
    def address(self) -> str:
        """Where the broker listens, with the port it was given where it asked for any."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def close(self) -> None:
        """Let nobody in any more, and send the clients away."""
        if self._server is not None:
            self._server.close()
        for session in list(self.sessions.values()):
            session.link.close("this broker stops")

    async def closed(self) -> None:
        """Waits until everybody who was connected is gone."""
        if self._serving:
            await asyncio.wait(self._serving, timeout=CLOSE_S_MAX)

    # ── Coming and going ──

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counts = self._broker.counts
        if len(self._serving) >= self._broker.config.limits.connections_max:
            counts["connections refused"] += 1
            writer.transport.abort()
            return
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        try:
            await self._serve(reader, writer)
        except (PeerError, Denied, TimeoutError, ConnectionError, OSError) as wrong:
            counts["handshakes failed"] += 1
            log.info("a connection was refused", extra={"why": str(wrong)[:200] or type(wrong).__name__})
            writer.close()
        finally:
            self._serving.discard(serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        limits = self._broker.config.limits
        proven, frames = await shake((reader, writer), self._broker.participant, dialled=False)
        if proven.role == "broker":
            serving = self._broker.links.accept(proven, frames, writer)
            if serving is not None:
                await asyncio.wait([serving])
            return
        link = Link(
            proven,
            frames,
            writer,
            queue_bytes_max=limits.client_queue_bytes_max,
            silence_s_max=limits.silence_s_max,
        )
        await self._serve_client(link)

    async def _serve_client(self, link: Link) -> None:
        proven = link.proven
        if sum(s.key == proven.key for s in self.sessions.values()) >= self._broker.config.limits.clients_per_key_max:
            link.close("too many connections of this client")
            return
        name = f"{proven.domain}/{proven.name}/{secrets.token_hex(4)}"
        self.attach(name, proven.key, proven.tokens)
        session = self.sessions[name] = Session(self._broker, link, name)
        try:
            await session.serve()
        except PeerError as wrong:
            self._broker.counts["clients that broke the rules"] += 1
            link.close(str(wrong)[:200])
        finally:
            link.close()
            await link.closed()

    def attach(self, client: str, key: bytes, tokens: Sequence[bytes]) -> None:
        """With the tokens that hold; one that does not is as good as not shown."""
        node, good = self._broker.node, []
        for token in tokens:
            try:
                node.attach(client, key, [token], self._loop.time())
                good.append(token)
            except Denied as why:
                log.info("a client's token does not hold", extra={"client": client, "why": str(why)})
        self._broker.carry_out(node.attach(client, key, good, self._loop.time()))

    def left(self, session: Session) -> None:
        """A client has gone."""
        self.sessions.pop(session.name, None)
        self.detach(session.name)

    def detach(self, client: str) -> None:
        """A client is no longer here, and its subscriptions end."""
        self._broker.carry_out(self._broker.node.detach(client, self._loop.time(), drop=True))

    # ── Room ──

    async def has_room(self) -> None:
        """Waits while some link's queue is full, for a while: publishers go no faster than events can leave."""
        crowded = self._broker.links.crowded()
        if crowded is not None:
            await self._taken(crowded, LINK_S_MAX)
        if self.filling:
            await self.room_for_local()

    async def room_for_local(self) -> None:
        """Waits for each client that is sent much, for a while."""
        while self.filling:
            await self._taken(self.filling.pop(next(iter(self.filling))), CLIENT_S_MAX)

    async def _taken(self, link: Link, seconds_max: float) -> None:
        """Waits until most of a queue is taken. Who does not take it in time is not waited for until it has."""
        try:
            async with asyncio.timeout(seconds_max):
                await link.drained()
        except TimeoutError:
            link.is_slow = True
            self._broker.task(self._no_longer_slow(link))

    async def _no_longer_slow(self, link: Link) -> None:
        await link.drained()
        link.is_slow = False
