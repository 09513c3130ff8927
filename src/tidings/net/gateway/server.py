"""The HTTP gateway: programs in any language, and browsers, take part with the same rights as native clients.

    POST /events                      one CloudEvent (structured or binary) or a batch of them; 201 once on disk
    GET  /events?type=…&where=…       server-sent events, each a CloudEvent; `durable=NAME` waits while nobody listens
    POST /acknowledge?durable=NAME&position=N
    /subscriptions, /subscriptions/ID the CloudEvents Subscriptions API, see `subscriptions_api`
    GET  /openapi.json                all of this, described
    GET  /, /tidings.mjs              a page to try it in a browser, and the module that it and other pages use

Who asks is known by a client certificate of the broker's own organisation, or by a proof that it holds the
certificate's key (see `dpop`). Its rights are capabilities in the header `Authorization: Bearer TOKEN, TOKEN`; each names its
holder's key, so a stolen one is worth nothing without it. A listener acknowledges a durable subscription
with `Last-Event-ID` when it comes back, or with a POST.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import itertools
import json
import re
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tidings import __version__
from tidings.errors import Denied, InputError, PeerError, TidingsError
from tidings.events import Timestamp
from tidings.net.broker.client_session import ClientServices
from tidings.net.broker.journal import DurableSubscription
from tidings.net.broker.subscriptions import AttachedClients
from tidings.net.clock import now_us
from tidings.net.config import BrokerConfig
from tidings.net.gateway import http
from tidings.net.gateway.dpop import DpopVerifier
from tidings.net.gateway.openapi import JSON, WAIT_S_MAX, Operation, methods_of, openapi, operation_for, subscription_in
from tidings.net.gateway.sse import SseListener
from tidings.net.gateway.subscriptions_api import SubscriptionsApi
from tidings.net.gateway.webhooks import SinkPolicy, Webhooks
from tidings.net.ids import repeat_key, show_event
from tidings.net.transport.listen import address_of, listen
from tidings.net.transport.tls import anchors_in, certified_by, names_in, server_context, web_context
from tidings.overlay import EventId
from tidings.security import NotYet

GUESTS_MAX = 4096  # Connections, of whomever; one that does not ask in time is closed.
LISTENERS_MAX, LISTENERS_OF_ONE_MAX = 1024, 256  # Streams, and those of one client.
PREFLIGHT_S = "600"  # How long a browser may remember that a page of another origin is let in.
_WEB = Path(__file__).with_name("web")
_PAGES = {
    "page": (_WEB / "index.html", "text/html; charset=utf-8"),
    "pageScript": (_WEB / "page.mjs", "text/javascript"),
    "browserModule": (_WEB / "tidings.mjs", "text/javascript"),
}
_ONLY_OURS = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'"
NOT_YET_TRIES = 100
_HEADER_NAMES = re.compile(r"[A-Za-z0-9_, -]{0,1000}")


@dataclass(slots=True)
class _Guest:
    """One connection to the gateway."""

    http: http.HttpConnection
    name: str
    shown: tuple[bytes, tuple[bytes, ...]] | None = None
    """The key and the rights by which the broker knows it."""


class Gateway:
    """The gateway of one broker, while it is up."""

    def __init__(self, config: BrokerConfig, services: ClientServices, clients: AttachedClients) -> None:
        self._config, self._clients = config, clients
        self._types, self._publisher = services.types, services.publisher
        self._subscriptions, self._queues = services.subscriptions, services.queues
        self._backpressure, self._rates, self._spans = services.backpressure, services.rates, services.spans
        self._webhooks = Webhooks(
            SinkPolicy(config.gateway_sinks),
            services.subscriptions,
            services.queues,
            config.data,
            config.domain,
            services.spans,
        )
        self._api = SubscriptionsApi(services.types, services.subscriptions, services.queues, self._webhooks)
        self.address = ""
        self._proofs = DpopVerifier(config.domain, config.trusted, since_s=now_us() / 1e6)
        self._guests: dict[str, _Guest] = {}  # Oldest first.
        self._listeners: Counter[bytes] = Counter()  # By key.

    async def __aenter__(self) -> Gateway:
        config = self._config
        if config.gateway_certificate is not None:
            context = web_context(config.gateway_certificate, config.gateway_key or config.key, config.trusted)
        else:
            context = server_context(config.certificate, config.key, config.trusted)
        self._server = await listen(self._serve, config.gateway, "gateway", ssl=context, handshake_s=http.REQUEST_S_MAX)
        self.address = address_of(self._server)
        self._proofs.hosts = frozenset(config.gateway_hosts) or _hosts(config, self.address)
        self._webhooks.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.close()
        await self._webhooks.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._guests) >= GUESTS_MAX and not self._push_out_a_stranger():
            writer.transport.abort()
            return
        connection = http.HttpConnection(reader, writer)
        guest = _Guest(connection, f"gateway/{secrets.token_hex(6)}")
        self._guests[guest.name] = guest
        try:
            while (request := await connection.request()) is not None:
                await self._answer(request, guest)
                await connection.drained()
        except TidingsError as wrong:
            connection.refuse(wrong)
        except (TimeoutError, ConnectionError):
            pass
        finally:
            self._guests.pop(guest.name, None)
            if guest.shown is not None:
                self._clients.detach(guest.name)
            writer.close()

    def _push_out_a_stranger(self) -> bool:
        """Ends the oldest connection of somebody who has not said who it is; whether there was one."""
        for name, guest in self._guests.items():
            if guest.shown is None:
                del self._guests[name]
                guest.http.writer.transport.abort()
                return True
        return False

    async def _answer(self, request: http.Request, guest: _Guest) -> None:
        shared, connection = self._shared_with(request), guest.http
        try:
            if request.method == "OPTIONS":
                connection.respond(200, b"", "text/plain", Allow=methods_of(request), **shared)
                return
            operation = operation_for(request)
            if operation.is_public:
                self._show(operation, connection, shared)
                return
            key = self._who(request, connection.writer)
            self._attach(guest, key, _tokens(request.headers))
            await self._do(operation, request, guest, key, shared)
        except http.BadRequest as wrong:
            allow = {"Allow": methods_of(request)} if wrong.status == 405 else {}
            connection.refuse(wrong, **allow, **shared)
        except TidingsError as wrong:
            connection.refuse(wrong, **shared)

    def _shared_with(self, request: http.Request) -> dict[str, str]:
        """The headers by which a browser lets a page of another origin see the answer, where that one is let in."""
        origin = request.headers.get("origin", "")
        if origin not in self._config.gateway_origins:
            return {}
        asked = request.headers.get("access-control-request-headers", "")
        allowed = {"Methods": "GET, POST, PUT, DELETE", "Headers": asked if _HEADER_NAMES.fullmatch(asked) else ""}
        preflight = {f"Access-Control-Allow-{what}": value for what, value in allowed.items()}
        preflight["Access-Control-Max-Age"] = PREFLIGHT_S
        return {
            "Access-Control-Allow-Origin": origin,
            "Vary": "Origin",
            **(preflight if request.method == "OPTIONS" else {}),
        }

    def _who(self, request: http.Request, writer: asyncio.StreamWriter) -> bytes:
        """The key of whoever asks, who is of this organisation; raises Denied."""
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if certificate:
            key, domain = certified_by(certificate, anchors_in(self._config.trusted))
            if domain != self._config.domain:
                raise Denied(f"domain: this gateway is for clients of {self._config.domain}")
            return key
        if "dpop" in request.headers:
            return self._proofs.who(request, now_us() / 1e6)
        raise http.BadRequest(401, "show a certificate of this organisation in TLS, or a proof in the header DPoP")

    def _attach(self, guest: _Guest, key: bytes, tokens: tuple[bytes, ...]) -> None:
        """Once for all requests that show the same: the rights of all clients are looked up anew each time."""
        self._clients.check_enrolled(key)
        if guest.shown != (key, tokens):
            self._clients.attach(guest.name, key, tokens)
            guest.shown = (key, tokens)

    def _show(self, operation: Operation, connection: http.HttpConnection, shared: dict[str, str]) -> None:
        if operation.name == "describe":
            connection.respond_json(200, openapi(__version__), **shared)
            return
        file, kind = _PAGES[operation.name]
        connection.respond(200, file.read_bytes(), kind, **{"Content-Security-Policy": _ONLY_OURS, **shared})

    async def _do(
        self, operation: Operation, request: http.Request, guest: _Guest, key: bytes, shared: dict[str, str]
    ) -> None:
        connection = guest.http
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if operation.bodies and kind not in operation.bodies:
            raise http.BadRequest(415, f"expected {' or '.join(operation.bodies)}")
        body = await connection.body() if request.method in ("POST", "PUT") else b""
        match operation.name:
            case "publishEvents":
                connection.respond_json(201, await self._publish(request, kind, body, guest.name, key), **shared)
            case "streamEvents":
                await self._listen(
                    request, guest.name, key, SseListener(connection, shared, _wait_s(request), self._spans)
                )
            case "acknowledge":
                connection.respond_json(202, self._acknowledge(request, key), **shared)
            case _:
                await self._do_subscriptions(operation, request, body, guest, key, shared)

    async def _do_subscriptions(
        self,
        operation: Operation,
        request: http.Request,
        body: bytes,
        guest: _Guest,
        key: bytes,
        shared: dict[str, str],
    ) -> None:
        respond, tokens, id = guest.http.respond_json, _tokens(request.headers), subscription_in(request)
        match operation.name:
            case "querySubscriptions":
                respond(200, self._api.query(key), **shared)
            case "createSubscription":
                made = await self._api.create(body, guest.name, key, tokens)
                respond(201, made, Location=f"/subscriptions/{made['id']}", **shared)
            case "retrieveSubscription":
                respond(200, self._api.retrieve(key, id), **shared)
            case "updateSubscription":
                respond(200, await self._api.update(id, body, guest.name, key, tokens), **shared)
            case "deleteSubscription":
                respond(200, await self._api.delete(key, id), **shared)
            case other:
                raise AssertionError(f"{other} is described and not answered")

    # ── In ──

    async def _publish(self, request: http.Request, kind: str, body: bytes, client: str, key: bytes) -> dict[str, Any]:
        from tidings.events import cloudevents  # Here, so that only who has a gateway loads the SDK.

        types = {name: known.event_type for known in self._types.all() for name in (known.event_type.name, known.name)}
        now = Timestamp(now_us())
        match kind:
            case cloudevents.STRUCTURED:
                events = [cloudevents.from_structured(body, types, time_if_missing=now)]
            case cloudevents.BATCHED:
                events = cloudevents.from_batched(body, types, time_if_missing=now)
            case _:
                events = [cloudevents.from_binary(request.headers, body, types, time_if_missing=now)]
        self._rates.admit(key, len(events), asyncio.get_running_loop().time())
        ids: list[EventId] = []
        for type, together in itertools.groupby(events, key=lambda event: event.type):
            named = [(repeat_key(key, f"{event.source}\0{event.id}"), dict(event.values)) for event in together]
            ids += await self._when_possible(client, type, named)
        if self._spans is not None:
            for id, parent in zip(ids, _traceparents(request, kind, body), strict=True):
                self._spans.caused_by(id, parent)
        return {"ids": [show_event(id) for id in ids]}

    async def _when_possible(self, client: str, type: str, named: list[tuple[bytes, dict[str, Any]]]) -> list[EventId]:
        known = self._types.find(type)
        for _ in range(NOT_YET_TRIES):
            try:
                await self._backpressure.wait()
                return await self._publisher.publish(client, known, named)
            except NotYet:
                await asyncio.sleep(0.1)
        raise PeerError("not yet: the broker is waiting for the keys of this type")

    # ── Out ──

    async def _listen(self, request: http.Request, client: str, key: bytes, listener: SseListener) -> None:
        if self._listeners.total() >= LISTENERS_MAX or self._listeners[key] >= LISTENERS_OF_ONE_MAX:
            raise http.BadRequest(
                503, f"{self._listeners.total()} streams are open, {self._listeners[key]} of them yours; try later"
            )
        type, where = request.query.get("type", ""), request.query.get("where", "TRUE")
        last = request.headers.get("last-event-id", "")
        after = _position(last) if last else None
        self._listeners[key] += 1
        try:
            if name := request.query.get("durable", ""):
                self._refuse_webhook(key, name)
                known = self._types.find(type)
                durable = await self._subscriptions.subscribe_durable(
                    key, name, known, where, -1, _tokens(request.headers)
                )
                await self._listen_durable(durable, after, listener)
            else:
                await self._listen_live(client, type, where, listener)
        finally:
            self._listeners[key] -= 1
            self._listeners += Counter()  # Without those that are 0.

    async def _listen_live(self, client: str, type: str, where: str, listener: SseListener) -> None:
        id = await self._subscriptions.subscribe(client, type, where)
        self._clients.recipients[client] = listener
        try:
            await listener.run()
        finally:
            self._clients.recipients.pop(client, None)
            self._subscriptions.unsubscribe(id)

    async def _listen_durable(self, durable: DurableSubscription, after: int | None, listener: SseListener) -> None:
        self._queues.read(durable, listener, 0, after)
        try:
            await listener.run()
        finally:
            self._queues.stop_reading(durable.id, listener)

    def _refuse_webhook(self, key: bytes, name: str) -> None:
        durable = self._queues.find(key, name)
        if durable is not None and self._webhooks.address_of(durable.id) is not None:
            raise http.BadRequest(
                409, "the events of this subscription go to a webhook; PUT it with protocol SSE first"
            )

    def _acknowledge(self, request: http.Request, key: bytes) -> dict[str, Any]:
        durable = self._queues.find(key, request.query.get("durable", ""))
        if durable is None:
            raise http.BadRequest(404, "there is no such durable subscription of yours")
        self._queues.acknowledge(durable, _position(request.query.get("position", "")))
        return {"acknowledged": durable.acknowledged}


def _hosts(config: BrokerConfig, address: str) -> frozenset[str]:
    """How clients name a gateway unless the configuration says so: by its address, and by its certificate."""
    certificate = (config.gateway_certificate or config.certificate).read_bytes()
    port = address.rpartition(":")[2]
    return frozenset({address, *(f"{name}:{port}" for name in names_in(certificate))})


def _tokens(headers: Mapping[str, str]) -> tuple[bytes, ...]:
    scheme, _, listed = headers.get("authorization", "").partition(" ")
    if not listed:
        return ()
    if scheme.lower() not in ("bearer", "dpop"):
        raise http.BadRequest(401, "expected Authorization: Bearer and tokens")
    try:
        return tuple(
            base64.urlsafe_b64decode(each.strip() + "=" * (-len(each.strip()) % 4)) for each in listed.split(",")
        )
    except (binascii.Error, ValueError):
        raise http.BadRequest(401, "expected tokens as `tidings grant` prints them") from None


def _traceparents(request: http.Request, kind: str, body: bytes) -> list[object]:
    """What the distributed-tracing extension of each published CloudEvent says; the body has been read before."""
    if kind == JSON:
        return [request.headers.get("ce-traceparent")]
    found = json.loads(body)
    return [event.get("traceparent") for event in (found if isinstance(found, list) else [found])]


def _wait_s(request: http.Request) -> float | None:
    text = request.query.get("wait_s")
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 6 or int(text) > WAIT_S_MAX:
        raise InputError(f"expected wait_s as whole seconds up to {WAIT_S_MAX}, got {text[:40]!r}")
    return float(text)


def _position(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise InputError(f"expected a position, got {text[:40]!r}")
    return int(text)
