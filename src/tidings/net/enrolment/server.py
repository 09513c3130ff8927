"""Enrolment over HTTPS: one call enrols with a one-time code, one renews, one renews rights between organisations.

    POST /enrol    {"code": …, "request": CSR}   → Approval; who has the secret of an invitation, once
    POST /renew    {"request": CSR}              → Approval; who has the key of an enrolled participant
    POST /rights   {"request": CSR}              → RightBundle; another organisation, for the rights that it was granted

The server shows a certificate that the organisation's key has signed, and the caller knows that key: from the code, or
since it was enrolled. So nothing depends on host names. The caller says in the server name (SNI) which key it knows,
so that while the organisation changes its key, both are served. A request is a signing request, made minutes ago at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import signal
import ssl
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from tidings.errors import Denied, InputError, PeerError, TidingsError
from tidings.net.clock import now_ms
from tidings.net.enrolment.organisation import Organisation
from tidings.net.enrolment.participant import checked_request_age, read_request
from tidings.net.gateway import http
from tidings.net.transport import tls
from tidings.net.transport.listen import address_of, listen
from tidings.security import Identity

CONNECTIONS_MAX = 256
TLS_S_MAX = 10.0
LEAF_DAYS = 30
MAINTAIN_EVERY_S = 60.0

log = logging.getLogger("tidings.enrolment")


class EnrolmentCall(msgspec.Struct):
    """What a caller sends."""

    request: str
    code: str = ""


class EnrolmentServer:
    """The endpoint of one organisation, while it is up."""

    def __init__(self, folder: Path, address: str) -> None:
        self._folder, self._address = folder, address
        self.address = ""
        self._open = 0
        self._contexts: dict[bytes, tuple[ssl.SSLContext, datetime]] = {}

    async def __aenter__(self) -> EnrolmentServer:
        context = self._context(Organisation(self._folder).authority, Organisation(self._folder))
        context.sni_callback = self._choose
        self._server = await listen(self._accept, self._address, "listen", ssl=context, handshake_s=TLS_S_MAX)
        self.address = address_of(self._server)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    def _choose(self, connection: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
        """Show a certificate of the key that the caller knows."""
        org = Organisation(self._folder)
        for key in org.keys:
            if name == server_name(key.public_key):
                connection.context = self._context(key, org)

    def _context(self, key: Identity, org: Organisation) -> ssl.SSLContext:
        known = self._contexts.get(key.public_key)
        if known is None or known[1] < datetime.now(UTC):
            context = _server_context(key, org)
            known = self._contexts[key.public_key] = (context, datetime.now(UTC) + timedelta(days=LEAF_DAYS / 2))
        return known[0]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._open >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._open += 1
        connection = http.HttpConnection(reader, writer)
        try:
            while (request := await connection.request()) is not None:
                await self._answer(connection, request)
                await connection.drained()
        except http.BadRequest as wrong:
            connection.refuse(wrong)
        except (TimeoutError, OSError):
            pass
        finally:
            self._open -= 1
            with contextlib.suppress(OSError):
                writer.close()

    async def _answer(self, connection: http.HttpConnection, request: http.Request) -> None:
        try:
            if request.method != "POST":
                raise http.BadRequest(405, "expected a POST")
            body = await connection.body()
            connection.respond(200, await asyncio.to_thread(self._document, request.path, body))
        except TidingsError as refused:
            log.info("refused", extra={"path": request.path[:40], "why": str(refused)})
            connection.refuse(refused)

    def _document(self, path: str, body: bytes) -> bytes:
        try:
            call = msgspec.json.decode(body, type=EnrolmentCall)
            code = bytes.fromhex(call.code)
        except (msgspec.MsgspecError, ValueError, RecursionError) as wrong:
            raise InputError(f"expected a JSON object with a request: {wrong}") from None
        org = Organisation(self._folder)
        pem = call.request.encode()
        match path:
            case "/enrol":
                return org.sign(org.enrol(code, pem))
            case "/renew":
                checked_request_age(pem, now_ms())
                return org.sign(org.renew(read_request(pem)))
            case "/rights":
                checked_request_age(pem, now_ms())
                return org.renew_rights(pem)
        raise http.BadRequest(404, "expected /enrol, /renew or /rights")


async def serve_enrolment(folder: Path, address: str, listening: Callable[[str], None]) -> None:
    """Runs the endpoint until SIGTERM or SIGINT, and renews what ends, here and at other organisations."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for way_to_stop in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(way_to_stop, stop.set)
    async with EnrolmentServer(folder, address) as server:
        listening(server.address)
        maintaining = loop.create_task(_maintain(folder))
        await stop.wait()
        maintaining.cancel()


async def _maintain(folder: Path) -> None:
    while True:
        try:
            await asyncio.to_thread(maintain, folder)
        except (TidingsError, OSError) as wrong:
            log.error("renewing failed", extra={"why": str(wrong)})
        await asyncio.sleep(MAINTAIN_EVERY_S)


def maintain(folder: Path) -> None:
    """Renews what ends soon: certificates and rights here, and what other organisations have granted."""
    org = Organisation(folder)
    for name, why in org.renew_received().items():
        log.warning("rights were not renewed", extra={"organisation": name, "why": why})
    org.renew_certificates()
    org.refresh()


def server_name(key: bytes) -> str:
    """The server name by which a caller says which key it knows.

    >>> server_name(bytes(32))
    '00000000000000000000000000000000.tidings'
    """
    return f"{key.hex()[:32]}.tidings"


def _server_context(authority: Identity, org: Organisation) -> ssl.SSLContext:
    leaf = Identity.make(secrets.token_bytes)
    anchor = next(each for each in org.anchors if each.key == authority.public_key)
    certificate = tls.certificate(
        org.name, "enrolment", leaf.public_key, authority, anchor.pem, role="authority", days=LEAF_DAYS
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    with tempfile.NamedTemporaryFile() as file:  # Readable by its owner only; `ssl` reads keys from files alone.
        file.write(leaf.to_pem() + certificate)
        file.flush()
        context.load_cert_chain(file.name)
    return context


def check_server(certificate_der: bytes | None, keys: list[bytes]) -> None:
    """Returns if one of these keys has signed the server's certificate, and for that purpose; raises Denied."""
    if certificate_der is not None and tls.role_of(certificate_der) == "authority":
        for key in keys:
            with contextlib.suppress(PeerError):
                return tls.check_issued(certificate_der, key)
    raise Denied("signature: whoever answers there is not the organisation that was expected; nothing was sent")
