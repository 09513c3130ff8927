"""Webhooks: the events of a durable subscription, sent to an address that the operator has allowed.

A client names an address, and the broker calls it from inside its organisation's network. So nothing is called that is
not below one of `gateway_sinks`, redirects are not followed, and answers are not shown to the client. Before the first
event the receiver must agree, by the handshake of the CloudEvents webhook specification (OPTIONS, `WebHook-Allowed-Origin`).

    2xx                      acknowledged; the next event follows
    429, 5xx, no answer      the same event again, after a pause that grows
    410                      the receiver wants no more: nothing is sent until the subscription is changed, or a restart
    anything else            a dead letter; the next event follows

Events wait in the durable queue, so a receiver that is away loses none. The addresses are in the broker's data folder, or in
the database of its journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

import h11

from tidings.errors import Denied, InputError, PeerError, SetupError
from tidings.net.broker.durable_queues import DurableQueues
from tidings.net.broker.journal import DurableSubscription
from tidings.net.broker.subscriptions import BrokerSubscriptions
from tidings.net.config import read_text
from tidings.net.gateway.sse import cloud_event
from tidings.net.observability.spans import SpanRecorder
from tidings.net.transport.frames import EventDelivery, RequestRefused, read_event

WEBHOOKS_MAX: Final = 256  # Of one gateway: each may hold a connection.
AHEAD_MAX: Final = 64  # Events in memory for one webhook.
ANSWER_S_MAX: Final = 15.0  # For one request, from the connection to the head of the answer.
IDLE_S: Final = 5.0  # Without an event, before a webhook looks whether it still reads its queue.
PAUSE_S: Final = (0.5, 60.0)  # Before the second try, and at most; it doubles.
RETRY_AFTER_S_MAX: Final = 600
HEAD_BYTES_MAX: Final = 16 * 1024
FILE: Final = "webhooks.json"
META: Final = "webhooks"  # Where they are in a journal that is in a database.
_ADDRESS = re.compile(r"https?://[!-~]{1,2000}")
_AGAIN = (408, 425, 429)

log = logging.getLogger("tidings.gateway")


@dataclass(frozen=True, slots=True)
class SinkPolicy:
    """Which addresses may be called: those below one of these, `https://host:port/path/`."""

    allowed: tuple[str, ...]

    def __post_init__(self) -> None:
        for each in self.allowed:
            try:
                _parsed(each)
            except InputError:
                raise InputError(f"gateway_sinks: expected https://host/path/, got {each[:100]!r}") from None

    def check(self, address: str) -> SplitResult:
        """The address in its parts; raises Denied for one that is not allowed, InputError for what is none.

        >>> SinkPolicy(("https://hooks.example/in/",)).check("https://hooks.example/in/plates").path
        '/in/plates'
        """
        found = _parsed(address)
        for each in self.allowed:
            base = _parsed(each)
            below = base.path if base.path.endswith("/") else base.path + "/"
            if _server(base) == _server(found) and (found.path.startswith(below) or found.path == base.path):
                return found
        raise Denied(
            "sink: this broker's operator does not allow that address (`gateway_sinks` in broker.toml); use protocol SSE"
            " and read the events at the gateway"
        )


def _parsed(address: str) -> SplitResult:
    try:
        found = urlsplit(address)
        _ = found.port
    except ValueError:
        found = urlsplit("")
    plain = _ADDRESS.fullmatch(address) and not re.search(r"[\\@#]|/\.\.?(/|$|\?)|%2e|%2f|%5c", address, re.IGNORECASE)
    if not plain or not found.hostname:
        raise InputError("expected the sink as https://host/path, without user, fragment or dots as folders")
    return found._replace(path=found.path or "/")


def _server(address: SplitResult) -> tuple[str, str, int]:
    return address.scheme, address.hostname or "", address.port or (443 if address.scheme == "https" else 80)


class Webhooks:
    """All webhooks of one gateway."""

    def __init__(
        self,
        policy: SinkPolicy,
        subscriptions: BrokerSubscriptions,
        queues: DurableQueues,
        data: Path,
        origin: str,
        spans: SpanRecorder | None = None,
    ) -> None:
        """`origin` is how the broker calls itself in the handshake."""
        self.policy, self._subscriptions, self._queues = policy, subscriptions, queues
        self._file, self._origin, self._spans = data / FILE, origin, spans
        self._addresses: dict[str, str] = {}
        self._running: dict[str, tuple[_Webhook, asyncio.Task[None]]] = {}

    def start(self) -> None:
        """Goes on with those of the last time whose subscriptions exist, and whose addresses are still allowed."""
        self._addresses = self._saved()
        for id, address in list(self._addresses.items()):
            durable = self._queues.all.get(id)
            if durable is None:
                del self._addresses[id]
                continue
            try:
                self.policy.check(address)
                self._subscriptions.check_holds(durable)
            except (Denied, InputError) as why:
                log.warning("a webhook is suspended", extra={"durable": durable.name, "why": str(why)})
                continue
            self._run(durable, address)

    async def close(self) -> None:
        for id in list(self._running):
            self._stop(id)

    def address_of(self, id: str) -> str | None:
        """Where the events of a subscription are sent; None if they are read at the gateway."""
        return self._addresses.get(id)

    async def agree(self, address: str) -> None:
        """Asks the receiver whether it wants events from here; raises Denied or InputError."""
        found = self.policy.check(address)
        if len(self._addresses) >= WEBHOOKS_MAX:
            raise PeerError(f"limit: this gateway has {WEBHOOKS_MAX} webhooks already; try later")
        try:
            status, headers = await _request("OPTIONS", found, {"WebHook-Request-Origin": self._origin})
        except _NoAnswerError:
            raise InputError("the sink did not answer the handshake (OPTIONS with WebHook-Request-Origin)") from None
        if status // 100 != 2 or headers.get("webhook-allowed-origin") not in (self._origin, "*"):
            raise InputError(
                f"the sink did not agree in the handshake: expected 2xx and WebHook-Allowed-Origin: {self._origin} or *"
            )

    def attach(self, durable: DurableSubscription, address: str) -> None:
        """Sends the events of a subscription to an address that has agreed."""
        self._stop(durable.id)
        self._addresses[durable.id] = address
        self._save()
        self._run(durable, address)

    def detach(self, id: str) -> None:
        """Sends nothing more."""
        self._stop(id)
        if self._addresses.pop(id, None) is not None:
            self._save()

    def _run(self, durable: DurableSubscription, address: str) -> None:
        hook = _Webhook(durable, self.policy.check(address), self._queues, self._origin, self._spans)
        self._running[durable.id] = hook, asyncio.get_running_loop().create_task(hook.run())
        self._queues.read(durable, hook, 0)

    def _stop(self, id: str) -> None:
        if (running := self._running.pop(id, None)) is not None:
            hook, task = running
            self._queues.stop_reading(id, hook)
            task.cancel()

    def _saved(self) -> dict[str, str]:
        journal = self._queues.journal
        if journal.storage.lease() is not None:
            text = journal.meta(META).decode()
        else:
            text = read_text(self._file) if self._file.exists() else ""
        if not text:
            return {}
        try:
            return {str(id): str(sink) for id, sink in json.loads(text).items()}
        except (ValueError, AttributeError, RecursionError):
            raise SetupError(
                f"{self._file}: expected the webhooks as this broker saved them; remove the file"
            ) from None

    def _save(self) -> None:
        """At once or not at all; for the broker's eyes only, as addresses may hold secrets.

        With the journal in a database they are there, for whichever process takes over.
        """
        journal = self._queues.journal
        if journal.storage.lease() is not None:
            journal.note_meta(META, json.dumps(self._addresses).encode())
            journal.then(_done)
            return
        new = self._file.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as stream:
            json.dump(self._addresses, stream)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(self._file)


def _done() -> None:
    pass


class _Webhook:
    """One webhook: a `DeliverySink` of its subscription's queue."""

    def __init__(
        self,
        durable: DurableSubscription,
        address: SplitResult,
        queues: DurableQueues,
        origin: str,
        spans: SpanRecorder | None,
    ) -> None:
        self._durable, self._address, self._queues, self._origin = durable, address, queues, origin
        self._spans = spans
        self._ahead: asyncio.Queue[EventDelivery] = asyncio.Queue(AHEAD_MAX)
        self._has_room = asyncio.Event()
        self.is_open = True

    def send(self, frame: EventDelivery | RequestRefused) -> bool:
        if isinstance(frame, RequestRefused):
            self._end(frame.why)
            return False
        if not self.is_open or self._ahead.full():
            return False
        self._ahead.put_nowait(frame)
        return True

    async def drained(self) -> None:
        while self.is_open and self._ahead.full():
            self._has_room.clear()
            await self._has_room.wait()

    async def run(self) -> None:
        while self.is_open and self._queues.all.get(self._durable.id) is self._durable:
            try:
                async with asyncio.timeout(IDLE_S):
                    frame = await self._ahead.get()
            except TimeoutError:
                if not self._queues.is_read(self._durable.id):  # Another client has read it meanwhile, and has left.
                    self._queues.read(self._durable, self, 0)
                continue
            self._has_room.set()
            await self._deliver(frame)

    async def _deliver(self, frame: EventDelivery) -> None:
        body = json.dumps(cloud_event(read_event(frame.event), self._spans)).encode()
        pause, longest = PAUSE_S
        while self.is_open:
            status, headers = await self._post(body)
            if status == 410:
                self._end("the receiver is gone (410)")
            elif status and status // 100 != 5 and status not in _AGAIN:
                if status // 100 != 2:
                    why = f"webhook: the receiver answered {status}"
                    await self._queues.reject(self._durable, frame.position, why)
                self._queues.acknowledge(self._durable, frame.position)
                return
            else:
                await asyncio.sleep(max(pause, _retry_after(headers)))
                pause = min(2 * pause, longest)

    async def _post(self, body: bytes) -> tuple[int, Mapping[str, str]]:
        """The status of the answer; 0 for none."""
        headers = {"Content-Type": "application/cloudevents+json", "WebHook-Request-Origin": self._origin}
        try:
            return await _request("POST", self._address, headers, body)
        except _NoAnswerError:
            return 0, {}

    def _end(self, why: str) -> None:
        log.warning("a webhook has ended", extra={"durable": self._durable.name, "why": why})
        self.is_open = False
        self._has_room.set()


# ── HTTP ──


class _NoAnswerError(Exception):
    pass


async def _request(
    method: str, address: SplitResult, headers: Mapping[str, str], body: bytes = b""
) -> tuple[int, Mapping[str, str]]:
    """Status and headers of the answer; its body is not read. Raises _NoAnswerError."""
    scheme, host, port = _server(address)
    context = ssl.create_default_context() if scheme == "https" else None
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            try:
                return await _exchange(reader, writer, method, address, headers, body)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError, h11.ProtocolError, UnicodeError):
        raise _NoAnswerError from None


async def _exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    method: str,
    address: SplitResult,
    headers: Mapping[str, str],
    body: bytes,
) -> tuple[int, Mapping[str, str]]:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
    target = address.path + (f"?{address.query}" if address.query else "")
    fields = {"Host": address.netloc, "Connection": "close", "Content-Length": str(len(body)), **headers}
    events: Sequence[h11.Event] = (
        h11.Request(method=method, target=target, headers=list(fields.items())),
        h11.Data(data=body),
        h11.EndOfMessage(),
    )
    writer.write(b"".join(connection.send(event) or b"" for event in events))
    await writer.drain()
    while not isinstance(event := connection.next_event(), h11.Response):
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(HEAD_BYTES_MAX))
        elif not isinstance(event, h11.InformationalResponse):
            raise _NoAnswerError
    return event.status_code, {name.decode(): value.decode("latin-1") for name, value in event.headers}


def _retry_after(headers: Mapping[str, str]) -> float:
    text = headers.get("retry-after", "")
    return float(min(int(text), RETRY_AFTER_S_MAX)) if text.isascii() and text.isdecimal() and len(text) < 10 else 0.0
