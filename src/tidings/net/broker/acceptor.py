"""Accepts connections: TLS, the handshake, and then a session for a client or a link for a broker."""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
from collections import Counter
from collections.abc import Callable, Collection

from tidings.errors import Denied, PeerError
from tidings.net.broker.client_session import ClientSession
from tidings.net.broker.subscriptions import AttachedClients
from tidings.net.config import BrokerConfig
from tidings.net.transport.connection import Link
from tidings.net.transport.handshake import Participant, shake
from tidings.net.transport.listen import Listening, address_of, listen
from tidings.net.transport.peer_links import PeerLinks
from tidings.net.transport.tls import server_context

TLS_S_MAX = 10.0
CLOSE_S_MAX = 2.0  # For all connections together; each is aborted after one.

log = logging.getLogger("tidings.broker")


class Acceptor:
    """The listening socket of one broker, and the sessions of its clients."""

    def __init__(
        self,
        config: BrokerConfig,
        participant: Participant,
        links: PeerLinks,
        clients: AttachedClients,
        new_session: Callable[[Link, str], ClientSession],
        counts: Counter[str],
    ) -> None:
        self._config, self._participant, self._links = config, participant, links
        self._clients, self._new_session, self._counts = clients, new_session, counts
        self.sessions: dict[str, ClientSession] = {}
        self._server: Listening | None = None
        self._context: ssl.SSLContext | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Begins to accept connections."""
        config = self._config
        context = server_context(config.certificate, config.key, config.trusted)
        context.sni_callback = self._choose
        self._server = await listen(self._accept, config.listen, "listen", ssl=context, handshake_s=TLS_S_MAX)

    def present(self, participant: Participant, context: ssl.SSLContext) -> None:
        """From now on, new connections see this certificate and are checked against these authorities."""
        self._participant, self._context = participant, context

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        if self._context is not None:
            connection.context = self._context

    def close_removed(self, removed: Collection[bytes]) -> None:
        """Ends the sessions of clients that their organisation has removed."""
        for session in [each for each in self.sessions.values() if each.key in removed]:
            session.link.close("certificate: its organisation has removed this client")

    @property
    def address(self) -> str:
        """Where the broker listens, with the actual port where the configuration says 0."""
        assert self._server is not None
        return address_of(self._server)

    def close(self) -> None:
        """Accepts no more connections, and closes those of clients."""
        if self._server is not None:
            self._server.close()
        self.close_sessions("this broker is stopping")

    def close_sessions(self, why: str) -> None:
        """Ends the connections of all clients, which come back to this broker or to another process of it."""
        for session in list(self.sessions.values()):
            session.link.close(why)

    async def closed(self) -> None:
        """Waits until all accepted connections are gone."""
        if self._serving:
            await asyncio.wait(self._serving, timeout=CLOSE_S_MAX)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= self._config.limits.connections_max:
            self._counts["connections refused"] += 1
            writer.transport.abort()
            return
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        try:
            await self._serve(reader, writer)
        except (PeerError, Denied, TimeoutError, ConnectionError, OSError) as wrong:
            self._counts["handshakes failed"] += 1
            late = "it did not finish its handshake in time"
            why = late if isinstance(wrong, TimeoutError) else str(wrong)[:200] or type(wrong).__name__
            log.info("a connection was refused", extra={"why": why})
            writer.close()
        finally:
            self._serving.discard(serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        limits = self._config.limits
        proven, frames = await shake(
            (reader, writer), self._participant, dialled=False, within_s=limits.handshake_s_max
        )
        if proven.role == "broker":
            serving = self._links.accept(proven, frames, writer)
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
        if sum(s.key == proven.key for s in self.sessions.values()) >= self._config.limits.clients_per_key_max:
            link.close("too many connections of this client")
            return
        name = f"{proven.domain}/{proven.name}/{secrets.token_hex(4)}"
        try:
            self._clients.attach(name, proven.key, proven.tokens)
        except Denied as refused:
            self._counts["handshakes failed"] += 1
            link.close(str(refused))
            return
        session = self._new_session(link, name)
        self.sessions[name] = self._clients.recipients[name] = session
        try:
            await session.serve()
        except PeerError as wrong:
            self._counts["clients that broke the rules"] += 1
            link.close(str(wrong)[:200])
        finally:
            self.sessions.pop(name, None)
            self._clients.detach(name)
            link.close()
            await link.closed()
