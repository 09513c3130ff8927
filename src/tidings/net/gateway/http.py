"""As much HTTP/1.1 as a gateway and a metrics page need, on asyncio streams, with limits on everything.

One request at a time and no pipelining; a body comes with its length. What is not understood is
answered with 400 and the connection closed: this is a door, not a web server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tidings.errors import Denied, InputError, TidingsError

HEAD_BYTES_MAX = 64 * 1024  # Request line and headers, a bearer token among them.
BODY_BYTES_MAX = 4 << 20
REQUEST_S_MAX = 15.0  # For one request to come in whole; whoever is slower is cut off.

_REASONS = {
    200: "OK",
    201: "Created",
    202: "Accepted",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    503: "Service Unavailable",
}


class BadRequest(InputError):
    """Not a request that this server takes; `status` says why in HTTP's words."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True)
class Request:
    """One request. Header names are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


async def read_request(reader: asyncio.StreamReader) -> Request | None:
    """The next request, or None where the other end has finished; raises BadRequest or TimeoutError."""
    async with asyncio.timeout(REQUEST_S_MAX):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as cut:
            if not cut.partial:
                return None
            raise BadRequest(400, "the request ends in the middle") from None
        except asyncio.LimitOverrunError:
            raise BadRequest(413, f"headers of more than {HEAD_BYTES_MAX} bytes") from None
        except (ConnectionError, OSError):
            return None
        method, target, headers = _head(head)
        body = await _body(reader, headers)
    parts = urlsplit(target)
    return Request(method, parts.path, dict(parse_qsl(parts.query, keep_blank_values=True)), headers, body)


def _head(raw: bytes) -> tuple[str, str, dict[str, str]]:
    lines = raw.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequest(400, "expected a request line of HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        if line:
            name, colon, value = line.partition(":")
            if not colon or name != name.strip() or name.lower() in headers:
                raise BadRequest(400, "expected headers as `name: value`, each once")
            headers[name.lower()] = value.strip()
    return words[0], words[1], headers


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if "transfer-encoding" in headers:
        raise BadRequest(400, "send the body with its Content-Length")
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdecimal():
        raise BadRequest(400, "expected a number as Content-Length")
    if int(length) > BODY_BYTES_MAX:
        raise BadRequest(413, f"at most {BODY_BYTES_MAX} bytes in one request")
    try:
        return await reader.readexactly(int(length))
    except asyncio.IncompleteReadError:
        raise BadRequest(400, "the body ends in the middle") from None


def response(status: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> bytes:
    """A whole answer."""
    return head(status, kind, **{"Content-Length": str(len(body)), **headers}) + body


def head(status: int, kind: str, **headers: str) -> bytes:
    """The beginning of an answer."""
    lines = [f"HTTP/1.1 {status} {_REASONS[status]}", f"Content-Type: {kind}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join([*lines, "X-Content-Type-Options: nosniff", "", ""])).encode()


def as_json(status: int, content: Any, **headers: str) -> bytes:
    return response(status, json.dumps(content, default=str).encode(), **headers)


def refusal(error: TidingsError, **headers: str) -> bytes:
    """An error as an answer, by whose fault it is."""
    match error:
        case BadRequest(status=status):
            pass
        case Denied():
            status = 403
        case InputError():
            status = 400
        case _:
            status = 503
    return as_json(status, {"error": type(error).__name__, "why": str(error)}, **headers)
