"""The HTTP gateway: any language, and a browser, can take part, with the same rights as everybody.

    POST /events                      one CloudEvent (structured or binary) or a batch of them; 201 once on disk
    GET  /events?type=…&where=…       server-sent events, each a CloudEvent; `durable=NAME` waits while nobody listens
    POST /acknowledge?durable=NAME&position=N

Who asks is known by a client certificate of the broker's own organisation. Its rights are bearer
capabilities in the header `Authorization: Bearer TOKEN, TOKEN`; each names its holder's key, so a stolen one
is worth nothing without the certificate's key. A listener acknowledges a durable subscription with
`Last-Event-ID`, as browsers do by themselves when they come back, or with a POST.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import secrets
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tidings.errors import Denied, InputError, PeerError, TidingsError
from tidings.events import Timestamp, to_record
from tidings.net import http
from tidings.net.config import host_and_port
from tidings.net.frames import Notice, Told, read_told
from tidings.net.names import now_us, repeat_key, show_event
from tidings.net.pki import key_and_domain, server_context
from tidings.overlay import EventId, SubscriptionId
from tidings.security import NotYet

if TYPE_CHECKING:
    from tidings.net.broker import Broker
    from tidings.net.journal import Durable

LISTENERS_MAX = 1024
QUEUE_MAX = 4096  # Events of one listener that is not durable; the oldest are lost.
COMMENT_EVERY_S = 10.0  # A line that says nothing, so that both ends notice a dead connection.
NOT_YET_TRIES = 100


class Gateway:
    """The gateway of one broker, while it is up."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.address = ""
        self._listeners = 0

    async def __aenter__(self) -> Gateway:
        config = self.broker.config
        host, port = host_and_port(config.gateway, "gateway: ")
        context = server_context(config.certificate, config.key, config.trusted)
        self._server = await asyncio.start_server(self._serve, host, port, ssl=context, limit=http.HEAD_BYTES_MAX)
        self.address = "{}:{}".format(*self._server.sockets[0].getsockname()[:2])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = ""
        try:
            key = self._who(writer)
            client = f"gateway/{secrets.token_hex(6)}"
            while (request := await http.read_request(reader)) is not None:
                self.broker.connections.attach(client, key, _tokens(request.headers))
                await self._answer(request, client, key, writer)
                await writer.drain()
        except TidingsError as wrong:
            writer.write(http.refusal(wrong))
        except (TimeoutError, ConnectionError):
            pass
        finally:
            if client:
                self.broker.connections.detach(client)
            writer.close()

    def _who(self, writer: asyncio.StreamWriter) -> bytes:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        key, domain = key_and_domain(certificate or b"")
        if domain != self.broker.config.domain:
            raise Denied(f"domain: this gateway is for clients of {self.broker.config.domain}")
        return key

    async def _answer(self, request: http.Request, client: str, key: bytes, writer: asyncio.StreamWriter) -> None:
        try:
            match request.method, request.path:
                case "POST", "/events":
                    writer.write(await self._publish(request, client, key))
                case "GET", "/events":
                    await self._listen(request, client, key, writer)
                case "POST", "/acknowledge":
                    writer.write(self._acknowledge(request, key))
                case _:
                    writer.write(http.as_json(404, {"why": "there are POST and GET /events, and POST /acknowledge"}))
        except TidingsError as wrong:
            writer.write(http.refusal(wrong))

    # ── In ──

    async def _publish(self, request: http.Request, client: str, key: bytes) -> bytes:
        from tidings.events import cloudevents  # Here, so that only who has a gateway loads the SDK.

        types = {
            name: known.event_type for known in self.broker.types.all() for name in (known.event_type.name, known.name)
        }
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        now = Timestamp(now_us())
        match kind:
            case cloudevents.STRUCTURED:
                events = [cloudevents.from_structured(request.body, types, time_if_missing=now)]
            case cloudevents.BATCHED:
                events = cloudevents.from_batched(request.body, types, time_if_missing=now)
            case "application/json":
                events = [cloudevents.from_binary(request.headers, request.body, types, time_if_missing=now)]
            case _:
                raise http.BadRequest(415, f"expected {cloudevents.STRUCTURED}, {cloudevents.BATCHED} or ce- headers")
        ids: list[EventId] = []
        for event in events:
            named = [(repeat_key(key, f"{event.source}\0{event.id}"), dict(event.values))]
            ids += await self._when_possible(client, event.type, named)
        return http.as_json(201, {"ids": [show_event(id) for id in ids]})

    async def _when_possible(self, client: str, type: str, named: list[tuple[bytes, dict[str, Any]]]) -> list[EventId]:
        known = self.broker.types.meant(type)
        for _ in range(NOT_YET_TRIES):
            try:
                return await self.broker.publishing.publish(client, known, named)
            except NotYet:
                await asyncio.sleep(0.1)
        raise PeerError("not yet: the keys of this type have not come")

    # ── Out ──

    async def _listen(self, request: http.Request, client: str, key: bytes, writer: asyncio.StreamWriter) -> None:
        if self._listeners >= LISTENERS_MAX:
            raise http.BadRequest(503, f"{LISTENERS_MAX} listen already")
        type, where = request.query.get("type", ""), request.query.get("where", "TRUE")
        listener = Listener(writer)
        self._listeners += 1
        try:
            if name := request.query.get("durable", ""):
                await self._listen_durable(request, key, name, type, where, listener)
            else:
                await self._listen_live(client, type, where, listener)
        finally:
            self._listeners -= 1

    async def _listen_live(self, client: str, type: str, where: str, listener: Listener) -> None:
        id = await self.broker.subscribing.subscribe(client, type, where)
        self.broker.listeners[client] = listener
        try:
            await listener.run()
        finally:
            self.broker.listeners.pop(client, None)
            self.broker.subscribing.unsubscribe(id)

    async def _listen_durable(
        self, request: http.Request, key: bytes, name: str, type: str, where: str, listener: Listener
    ) -> None:
        known = self.broker.types.meant(type)
        durable = await self.broker.subscribing.subscribe_durable(key, name, known, where, -1, _tokens(request.headers))
        last = request.headers.get("last-event-id", "")
        self.broker.queues.read(durable, listener, 0, _position(last) if last else None)
        try:
            await listener.run()
        finally:
            self.broker.queues.stop_reading(durable.id, listener)

    def _acknowledge(self, request: http.Request, key: bytes) -> bytes:
        durable: Durable | None = self.broker.queues.find(key, request.query.get("durable", ""))
        if durable is None:
            raise InputError("there is no such durable subscription of yours")
        self.broker.queues.acknowledge(durable, _position(request.query.get("position", "")))
        return http.as_json(202, {"acknowledged": durable.acknowledged})


class Listener:
    """Somebody who listens by server-sent events. To a durable subscription it looks like a link."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._is_open = True
        self.missed = 0

    @property
    def is_open(self) -> bool:
        return self._is_open and not self._writer.is_closing()

    async def run(self) -> None:
        """Until the other end hangs up."""
        self._writer.write(http.head(200, "text/event-stream", Cache_Control="no-store", Connection="close"))
        try:
            while self.is_open:
                self._writer.write(b": here\n\n")
                await self._writer.drain()
                await asyncio.sleep(COMMENT_EVERY_S)
        except ConnectionError:
            pass
        finally:
            self._is_open = False

    def send(self, frame: Notice) -> bool:
        """A notice of a durable subscription."""
        self._write(read_told(frame.told), frame.position)
        return self.is_open

    def tell(self, subscription: SubscriptionId, told: bytes) -> None:
        """An event of a subscription that is not durable; lost where the other end is too slow."""
        if self._writer.transport.get_write_buffer_size() > http.BODY_BYTES_MAX:
            self.missed += 1
        else:
            self._write(read_told(told), 0)

    async def drained(self) -> None:
        try:
            await self._writer.drain()
        except ConnectionError:
            self._is_open = False

    def _write(self, told: Told, position: int) -> None:
        event = {
            "specversion": "1.0",
            "id": show_event(told.event),
            "source": f"tidings:{told.event.origin}",
            "type": told.type,
            "time": Timestamp(told.at_us).iso(),
            "datacontenttype": "application/json",
            "data": to_record(told.values),
        }
        lines = [f"id: {position}"] if position else []
        self._writer.write("\n".join([*lines, f"data: {json.dumps(event)}", "", ""]).encode())


def _tokens(headers: Mapping[str, str]) -> tuple[bytes, ...]:
    scheme, _, listed = headers.get("authorization", "").partition(" ")
    if not listed:
        return ()
    if scheme.lower() != "bearer":
        raise http.BadRequest(401, "expected Authorization: Bearer and tokens")
    try:
        return tuple(
            base64.urlsafe_b64decode(each.strip() + "=" * (-len(each.strip()) % 4)) for each in listed.split(",")
        )
    except (binascii.Error, ValueError):
        raise http.BadRequest(401, "expected tokens as `tidings grant` prints them") from None


def _position(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise InputError(f"expected a position, got {text[:40]!r}")
    return int(text)
