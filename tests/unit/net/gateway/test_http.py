"""The server's end of HTTP/1.1, spoken to byte by byte over a real socket."""

from __future__ import annotations

import asyncio

import pytest

from tidings.errors import TidingsError
from tidings.net.gateway.http import BODY_BYTES_MAX, HEAD_BYTES_MAX, HttpConnection

pytestmark = pytest.mark.live

GET = b"GET /a?b=c HTTP/1.1\r\nHost: h\r\n\r\n"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers each request with what it was."""
    connection = HttpConnection(reader, writer)
    try:
        while (request := await connection.request()) is not None:
            length = "unread" if request.path == "/unread" else len(await connection.body())
            told = f"{request.method} {request.path} {dict(request.query)} {length}"
            connection.respond(200, told.encode(), "text/plain")
    except TidingsError as wrong:
        connection.refuse(wrong)
    finally:
        writer.close()


def answers(*sent: bytes, wait_for: bytes = b"") -> bytes:
    """All that the server answers. The first piece is sent, then `wait_for` is waited for, then the others are sent."""

    async def scenario() -> bytes:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, asyncio.timeout(30):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            writer.write(sent[0])
            answer = await reader.readuntil(wait_for) if wait_for else b""
            for part in sent[1:]:
                writer.write(part)
                await writer.drain()
            writer.write_eof()
            answer += await reader.read()
            writer.close()
            return answer

    return asyncio.run(scenario())


def test_a_request_in_pieces_and_another_right_behind_it_are_answered_in_order() -> None:
    said = answers(GET[:9], GET[9:] + GET)
    assert said.count(b"HTTP/1.1 200") == 2
    assert said.count(b"GET /a {'b': 'c'} 0") == 2


def test_head_is_answered_without_a_body_and_the_connection_goes_on() -> None:
    said = answers(GET.replace(b"GET", b"HEAD") + GET)
    assert said.count(b"HTTP/1.1 200") == 2
    assert (said.count(b"HEAD /a"), said.count(b"GET /a {'b': 'c'} 0")) == (0, 1)


def test_a_parameter_without_a_value_is_empty_and_not_missing() -> None:
    assert b"{'b': '', 'd': 'e'}" in answers(GET.replace(b"b=c", b"b=&d=e"))


def test_a_body_may_come_in_chunks() -> None:
    chunked = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    assert b"POST / {} 5" in answers(chunked)


def test_a_client_that_waits_for_100_continue_is_told_to_go_on() -> None:
    head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    said = answers(head, b"ab", wait_for=b"HTTP/1.1 100 ")
    assert b"POST / {} 2" in said


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET //[ HTTP/1.1\r\nHost: h\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: 1\r\nX: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: h\r\nBad name: 1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na", 400),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nshort", 400),
        # One byte too many, so that none is left unread: closing would reset the connection before the answer is read.
        (b"GET / HTTP/1.1\r\nHost: h\r\nX: ".ljust(HEAD_BYTES_MAX + 1, b"x"), 431),
        (b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999\r\n\r\n" + bytes(BODY_BYTES_MAX + 1), 413),
    ],
    ids=[
        "nonsense",
        "no address",
        "twice",
        "bad name",
        "no number",
        "two lengths",
        "cut short",
        "long header",
        "long body",
    ],
)
def test_what_is_not_understood_or_too_large_is_refused_and_the_connection_closed(sent: bytes, status: int) -> None:
    said = answers(sent)
    assert said.startswith(b"HTTP/1.1 %d " % status)
    assert said.count(b"HTTP/1.1") == 1


def test_a_body_that_nobody_reads_is_dropped_and_the_next_request_answered() -> None:
    said = answers(b"POST /unread HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n", b"abcde" + GET)
    assert said.count(b"HTTP/1.1 200") == 2
    assert said.endswith(b"GET /a {'b': 'c'} 0")


def test_a_length_of_five_thousand_digits_is_a_bad_request() -> None:
    said = answers(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 400")
