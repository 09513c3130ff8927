"""HTTP/1.1 for the gateway and the metrics page: h11 speaks the protocol, asyncio carries the bytes, all within limits.

An `HttpConnection` serves one request at a time. It answers what it does not understand with 400, or with what h11
says is the better status, and closes. Why h11: docs/decisions/0091-h11-for-http.md.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import h11

from tidings.errors import Denied, InputError, RateLimited, TidingsError

HEAD_BYTES_MAX = 64 * 1024  # Request line and headers, a bearer token among them.
BODY_BYTES_MAX = 4 << 20
REQUEST_S_MAX = 15.0  # For one request to arrive completely; a slower client is disconnected.
READ_BYTES = 64 * 1024


class BadRequest(InputError):
    """A request that this server does not accept, with the HTTP status that says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request. Header names are in lower case; `HttpConnection.body` reads what follows."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


class HttpConnection:
    """The server's end of one connection."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, request_s_max: float = REQUEST_S_MAX
    ) -> None:
        self._reader, self.writer, self._request_s_max = reader, writer, request_s_max
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._is_head = False

    # ── Requests ──

    async def request(self) -> Request | None:
        """The next request, or None where the other end has finished; raises BadRequest or TimeoutError.

        Its body is not read: who asks is known by the head, and a stranger's body is not worth the memory. What
        nobody has read of it is dropped, piece by piece, before the next request.
        """
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.SEND_BODY:
            async for _ in self._pieces():
                pass
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
        if self._h11.our_state is not h11.IDLE:
            return None  # One of the two ends has asked to close the connection.
        try:
            async with asyncio.timeout(self._request_s_max):
                head = await self._next_event()
                if not isinstance(head, h11.Request):
                    return None
                self._is_head = head.method == b"HEAD"
                asked = _request(head)
                if "transfer-encoding" not in asked.headers and asked.headers.get("content-length", "0") == "0":
                    await self.body()  # There is none, and the next request may follow.
                return asked
        except OSError:
            return None

    async def body(self) -> bytes:
        """The body of the request; raises BadRequest or TimeoutError."""
        return b"".join([piece async for piece in self._pieces()])

    async def _pieces(self) -> AsyncIterator[bytes]:
        size = 0
        async with asyncio.timeout(self._request_s_max):
            while self._h11.their_state is h11.SEND_BODY:
                event = await self._next_event()
                if not isinstance(event, h11.Data):
                    return
                size += len(event.data)
                if size > BODY_BYTES_MAX:
                    raise BadRequest(413, f"at most {BODY_BYTES_MAX} bytes in one request")
                yield bytes(event.data)

    async def _next_event(self) -> h11.Event | None:
        """What the other end sends next; None once it has closed."""
        try:
            while (event := self._h11.next_event()) is h11.NEED_DATA:
                if self._h11.they_are_waiting_for_100_continue:
                    self._send(h11.InformationalResponse(status_code=100, headers=[]))
                self._h11.receive_data(await self._reader.read(READ_BYTES))
        except h11.RemoteProtocolError as wrong:
            raise BadRequest(wrong.error_status_hint, str(wrong)) from None
        except ValueError as wrong:  # A Content-Length of five thousand digits.
            raise BadRequest(400, f"expected HTTP/1.1: {wrong}") from None
        return event if isinstance(event, h11.Event) else None

    # ── Responses ──

    def respond(self, status: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> None:
        """Sends a whole response."""
        self.begin(status, kind, **{"Content-Length": str(len(body)), **headers})
        self.send(body)
        self.end()

    def respond_json(self, status: int, content: Any, **headers: str) -> None:
        self.respond(status, json.dumps(content, default=str).encode(), **headers)

    def refuse(self, error: TidingsError, **headers: str) -> None:
        """Sends an error, with the status for whose fault it is; if a response has begun, there is no place for it."""
        if self._h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        closing = {"Connection": "close"} if self._h11.their_state is h11.ERROR else {}
        content = {"error": type(error).__name__, "code": error.code, "why": str(error)}
        if isinstance(error, RateLimited):
            headers["Retry-After"] = str(math.ceil(error.retry_after_s))
        self.respond_json(_status_of(error), content, **closing, **headers)

    def begin(self, status: int, kind: str, **headers: str) -> None:
        """Begins a response; `send` goes on with it. Without a Content-Length it is chunked."""
        fields = {"Content-Type": kind, **headers, "X-Content-Type-Options": "nosniff"}
        self._send(h11.Response(status_code=status, headers=list(fields.items()), reason=HTTPStatus(status).phrase))

    def send(self, data: bytes) -> None:
        """Sends a part of the response's body; nothing if the response has ended, or HEAD asked for its headers only."""
        if self._h11.our_state is h11.SEND_BODY and not self._is_head:
            self._send(h11.Data(data=data))

    def end(self) -> None:
        """Ends a response that `begin` began."""
        if self._h11.our_state is h11.SEND_BODY:
            self._send(h11.EndOfMessage())

    async def drained(self) -> None:
        """Waits until most of what was sent has been read; ends the connection, and raises, where the other end does not."""
        try:
            async with asyncio.timeout(self._request_s_max):
                await self.writer.drain()
        except TimeoutError:
            self.writer.transport.abort()
            raise

    def _send(self, event: h11.Event) -> None:
        if raw := self._h11.send(event):
            self.writer.write(raw)


def _request(head: h11.Request) -> Request:
    headers: dict[str, str] = {}
    for name, value in head.headers:
        if name.decode() in headers:
            raise BadRequest(400, f"expected the header {name.decode()} once")
        headers[name.decode()] = value.decode("latin-1")
    try:
        target = urlsplit(head.target.decode("latin-1"))
    except ValueError as wrong:
        raise BadRequest(400, f"expected a path: {wrong}") from None
    query = dict(parse_qsl(target.query, keep_blank_values=True))  # An empty condition is not a missing one.
    return Request(head.method.decode(), target.path, query, headers)


def _status_of(error: TidingsError) -> int:
    match error:
        case BadRequest(status=status):
            return status
        case RateLimited():
            return 429
        case Denied():
            return 403
        case InputError():
            return 400
        case _:
            return 503
