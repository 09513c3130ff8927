"""The console's server: pages, and what they ask for, over HTTP on loopback.

    GET  /, /console.css, /*.mjs            the pages, from the package
    POST /api/session {key}                 exchanges the login key for a session (see `sessions`)
    POST /api/session {certificate: true}   likewise, the client certificate of the TLS connection (see `login`)
    GET  /api/logins                        how one can log in
    GET  /login/oidc, /login/oidc/callback  to the OpenID Connect provider, and back
    GET  /api/me                            the clients that the console acts as, and what it may do
    GET  /api/network, /api/broker?client=  the map; one broker's status and the last quarter of an hour
    GET  /api/types, /api/subscriptions     of one client: ?client=
    GET  /api/check?type=&where=            a condition: its boxes, or what is wrong and where
    GET  /api/feed?type=&where=             server-sent events, at most a hundred a second; ?replay= of a replay
    POST /api/replay {type, where, back_s}  begins one: the events of the last seconds, then new ones; if allowed
    POST /api/why {type, event, conditions} which conditions match an event, and which clause decides
    POST /api/try {type, where}             a condition against the recent events
    GET  /api/trace?event=                  the route of an event
    GET  /api/rights, /api/heard            who may see what until when; who has heard of a revocation
    POST /api/rights/preview, …/change      what a change of rights would end and begin; the change, with --org
    GET  /api/mine                          a client's certificate, subscriptions and dead letters
    GET  /api/pipelines, /api/pipeline      jobs of `tidings run`; one of them: ?number=
    GET  /api/deliveries                    of one pipeline to one subscriber: ?number=&subscriber=
    GET  /api/papers, /figures/…            the lab's verdicts and figures
    GET  /api/simulations                   what can be simulated
    POST /api/simulate {action}             begins, steps and breaks the session's simulated network
    POST /api/publish {type, values}        if publishing is allowed
    POST /api/act {action}                  drain the client's broker, replay its dead letters: if that is allowed

Every answer carries a content security policy that lets a page load and run only what this server sent, and makes
the browser refuse text as markup (Trusted Types).
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import json
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from tidings import __version__
from tidings.console import conditions, papers, pipelines, rights
from tidings.console.audit import ACTOR, OPERATOR, AuditLog
from tidings.console.feeds import from_page, show
from tidings.console.grants import RightsDesk
from tidings.console.login import CALLBACK, OidcLogin, OidcSettings, Users, names_in_certificate
from tidings.console.participants import ConsoleClient
from tidings.console.sessions import WebSession, WebSessions, check_csrf, check_source, cookie
from tidings.console.simulations import NODES_MAX, Simulations
from tidings.console.topology import topology
from tidings.errors import Denied, InputError, PeerError, SetupError, TidingsError, did_you_mean
from tidings.events import Attribute, EventType
from tidings.filters import parse
from tidings.net import (
    BadRequest,
    HttpConnection,
    HttpRequest,
    address_of,
    certificate_end_ms,
    host_and_port,
    listen,
    names_in,
)
from tidings.overlay import NAMES, check_size

log = logging.getLogger("tidings.console")

DEFAULT_ADDRESS = "127.0.0.1:7480"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
CONNECTIONS_MAX = 256
OBSERVE_S = 2.0
OBSERVE_FOR_S = 15.0  # After the last request of any page.
BODY_BYTES_MAX = 256 * 1024
CONDITIONS_MAX = 100
OTHERS_CHARACTERS_MAX = 32_768  # Of the conditions that one is compared with, together.
LETTERS_SHOWN = 100
ACTIONS = {"drain": "drain", "replay": "dlq replay"}
"""What pages may ask for, and the broker's name for it."""
PUBLISH_S_MAX = 10.0
REPLAY_BACK_S_MAX = 31 * 86_400
RECENT_WAIT_S = 1.5  # For the first events of a feed that a question has just opened.

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_WEB = Path(__file__).with_name("web")

# The browser begins anew from here: a page of this site, which the cookie of the session is sent with.
RETURNED = b"""<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/">
<title>Logged in</title><p>You are logged in. <a href="/">Go on to the console</a></html>"""

REFUSED = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>Not logged in</title>
<h1>You are not logged in</h1><p>%s</p><p><a href="/">Back to the console</a></html>"""

Answerer: TypeAlias = Callable[["ConsoleClient", Mapping[str, Any]], Awaitable[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSettings:
    """What a console is started with."""

    clients: Sequence[Path]
    """The files of the clients that it acts as."""
    listen: str = DEFAULT_ADDRESS
    registry: str = ""
    """Of the organisation whose rights its administrator may see."""
    figures: Path | None = None
    pipelines: Sequence[Path] = ()
    """The files of the pipelines that it shows."""
    allow_publish: bool = False
    allow_actions: bool = False
    """Drain a broker, replay dead letters; the broker decides who may."""
    org: Path | None = None
    """The organisation's folder, with its key: its administrators may change rights."""
    audit: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    users: Sequence[tuple[str, str]] = ()
    """Who else may log in, and as which of the clients each may act: (who, client)."""
    user_authority: Path | None = None
    """The certificates of the authorities by whose certificates users log in."""
    oidc: OidcSettings | None = None


class Console:
    """The console, while it is up."""

    def __init__(self, settings: ConsoleSettings) -> None:
        """Raises InputError for settings that cannot be used."""
        if not settings.clients:
            raise InputError("a console acts as a client; name one with --as")
        self.settings = settings
        self._tls = _tls(settings)
        self._desk = RightsDesk(settings.org) if settings.org is not None else None
        self._registry = settings.registry or (self._desk.registry if self._desk is not None else "")
        self._changing = asyncio.Lock()  # One change of rights at a time.
        clients = [ConsoleClient(file) for file in settings.clients]
        self.clients = {client.name: client for client in clients}
        self.sessions = WebSessions()
        self._users = Users(settings.users, self.clients)
        self._oidc = OidcLogin(settings.oidc) if settings.oidc is not None else None
        self._simulations = Simulations()
        self._audit = AuditLog(settings.audit)
        self._pages = _pages()
        self._connections: set[asyncio.Task[None]] = set()
        self._strangers: dict[asyncio.Task[None], None] = {}  # Those on which nobody has shown a session; oldest first.
        self.address, self._hosts = "", frozenset[str]()
        self._get: dict[str, Answerer] = {
            "/api/broker": self._broker,
            "/api/types": self._types,
            "/api/subscriptions": self._subscriptions,
            "/api/check": self._check,
            "/api/trace": self._trace,
            "/api/rights": self._rights,
            "/api/heard": self._heard,
            "/api/mine": self._mine,
            "/api/pipeline": self._pipeline,
            "/api/deliveries": self._deliveries,
        }
        self._post: dict[str, Answerer] = {
            "/api/why": self._why,
            "/api/try": self._try,
            "/api/publish": self._publish,
            "/api/replay": self._replay,
            "/api/act": self._act,
            "/api/rights/preview": self._preview_rights,
            "/api/rights/change": self._change_rights,
        }

    # ── Life ──

    async def __aenter__(self) -> Console:
        self._loop = asyncio.get_running_loop()
        self._server = await listen(self._accept, self.settings.listen, "listen", ssl=self._tls)
        self.address = address_of(self._server)
        port = self.address.rpartition(":")[2]
        asked, _ = host_and_port(self.settings.listen)
        self._names = names_in(self.settings.certificate.read_bytes()) if self.settings.certificate else []
        named = {asked, *LOOPBACK, *self._names}
        self._hosts = frozenset(f"{f'[{host}]' if ':' in host else host}:{port}" for host in named)
        self._observer = self._loop.create_task(self._observe())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._server.close()
        self._observer.cancel()
        for connection in list(self._connections):
            connection.cancel()
        await asyncio.gather(self._observer, *self._connections, return_exceptions=True)
        self._simulations.close()
        for client in self.clients.values():
            await client.stop()

    @property
    def url(self) -> str:
        """Where a browser finds it, with the login key in the fragment, which browsers keep to themselves."""
        host, _, port = self.address.rpartition(":")
        shown = host if host in LOOPBACK or not self._names else self._names[0]
        return f"{self._scheme}://{shown}:{port}/#login={self.sessions.key}"

    @property
    def _scheme(self) -> str:
        return "https" if self._tls else "http"

    async def _observe(self) -> None:
        """Asks the brokers for their status, as long as somebody looks."""
        while True:
            if self._loop.time() - self.sessions.last_use() < OBSERVE_FOR_S:
                await asyncio.gather(*(client.observe() for client in self.clients.values()))
                for client in self.clients.values():
                    await client.end_idle_feeds()
            await asyncio.sleep(OBSERVE_S)

    # ── Requests ──

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs this as a task"
        if len(self._connections) >= CONNECTIONS_MAX and not self._make_room():
            writer.close()
            return
        self._connections.add(task)
        self._strangers[task] = None
        ACTOR.set("")
        connection = HttpConnection(reader, writer)
        try:
            while (request := await connection.request()) is not None:
                await self._answer(request, connection)
                await connection.drained()
        except TidingsError as wrong:
            connection.refuse(wrong, **HEADERS)
        except (TimeoutError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._connections.discard(task)
            self._strangers.pop(task, None)
            writer.close()

    def _is_known(self) -> None:
        """The connection that is answered has shown a session."""
        if (task := asyncio.current_task()) is not None:
            self._strangers.pop(task, None)

    def _make_room(self) -> bool:
        """Ends the oldest connection on which nobody has shown a session, so that strangers cannot keep users out."""
        oldest = next(iter(self._strangers), None)
        if oldest is None:
            return False
        del self._strangers[oldest]
        self._connections.discard(oldest)
        oldest.cancel()
        return True

    async def _answer(self, request: HttpRequest, connection: HttpConnection) -> None:
        try:
            check_source(request.headers, self._hosts, self._scheme, is_return=request.path == CALLBACK)
            if request.method in ("GET", "HEAD") and request.path in self._pages:
                content, kind = self._pages[request.path]
                connection.respond(200, content, kind, **HEADERS, **{"Cache-Control": "no-cache"})
            elif request.path == "/api/session" and request.method == "POST":
                await self._log_in(connection)
            elif request.path == "/api/logins" and request.method == "GET":
                self._respond(connection, self._logins())
            elif request.path == "/login/oidc" and request.method == "GET":
                await self._begin_oidc(connection)
            elif request.path == CALLBACK and request.method == "GET":
                await self._finish_oidc(request, connection)
            else:
                session = self.sessions.find(request.headers, self._cookie_name, self._loop.time())
                ACTOR.set(session.user or OPERATOR)
                self._is_known()
                await self._answer_in(session, request, connection)
        except TidingsError as wrong:
            connection.refuse(wrong, **HEADERS, **{"Cache-Control": "no-store"})
        except TimeoutError:
            connection.refuse(PeerError("the broker does not answer; is it running?"), **HEADERS)
        except OSError as wrong:
            if isinstance(wrong, ConnectionError):
                raise
            connection.refuse(SetupError(f"{wrong.filename or 'a file'}: {wrong.strerror or wrong}"), **HEADERS)

    async def _answer_in(self, session: WebSession, request: HttpRequest, connection: HttpConnection) -> None:
        match request.method, request.path:
            case "GET", "/api/me":
                self._respond(connection, await self._me(session))
            case "GET", "/api/network":
                self._respond(connection, await self._network(session))
            case "GET", "/api/pipelines":
                self._check_pipelines(session)
                self._respond(connection, await asyncio.to_thread(pipelines.overview, list(self.settings.pipelines)))
            case "GET", "/api/papers":
                self._respond(connection, papers.claims(self.settings.figures))
            case "GET", path if path.startswith("/figures/"):
                self._figure(path, connection)
            case "GET", "/api/feed":
                await self._feed(self._client(session, request.query), request, connection)
            case "GET", path if path in self._get:
                if path in ("/api/pipeline", "/api/deliveries"):
                    self._check_pipelines(session)
                self._respond(connection, await self._get[path](self._client(session, request.query), request.query))
            case "POST", path if path in self._post:
                check_csrf(session, request.headers)
                asked = await _json_body(connection)
                self._respond(connection, await self._post[path](self._client(session, asked), asked))
            case "GET", "/api/simulations":
                self._respond(connection, {"protocols": NAMES, "nodes_max": NODES_MAX})
            case "POST", "/api/simulate":
                check_csrf(session, request.headers)
                asked = await _json_body(connection)
                self._respond(connection, await self._simulations.act(session.cookie, asked))
            case "POST", "/api/logout":
                check_csrf(session, request.headers)
                self.sessions.close(session)
                self._audit.record("log out", "")
                self._respond(connection, {})
            case _:
                raise BadRequest(404, "there is no such page; begin at /")

    def _respond(self, connection: HttpConnection, content: Any, **headers: str) -> None:
        connection.respond_json(200, content, **HEADERS, **{"Cache-Control": "no-store"}, **headers)

    @property
    def _cookie_name(self) -> str:
        """With the port in it: cookies of one host are shared by all its ports."""
        return f"tidings-{self.address.rpartition(':')[2]}"

    async def _log_in(self, connection: HttpConnection) -> None:
        asked = await _json_body(connection)
        if asked.get("certificate") is True:
            session = self._log_in_by_certificate(connection)
        else:
            try:
                session = self.sessions.open(str(asked.get("key", ""))[:200], self._loop.time())
            except Denied as refused:
                self._audit.record("log in refused", "", by="login key", code=refused.code)
                raise
            self._audit.record("log in", "", by="login key", user=OPERATOR)
        self._respond(connection, {"csrf": session.csrf}, **{"Set-Cookie": self._session_cookie(session)})

    def _session_cookie(self, session: WebSession) -> str:
        return f"{self._cookie_name}={session.cookie}; HttpOnly; SameSite=Strict; Path=/{self._secure}"

    @property
    def _secure(self) -> str:
        return "; Secure" if self._tls else ""

    def _logins(self) -> dict[str, Any]:
        return {
            "certificate": self.settings.user_authority is not None,
            "oidc": self._oidc.provider if self._oidc is not None else None,
        }

    def _log_in_by_certificate(self, connection: HttpConnection) -> WebSession:
        if self.settings.user_authority is None:
            raise BadRequest(404, "this console takes no certificates; its operator names their --user-authority")
        shown = connection.writer.get_extra_info("ssl_object")
        return self._open_for(names_in_certificate(shown.getpeercert() if shown else None), "certificate")

    async def _begin_oidc(self, connection: HttpConnection) -> None:
        if self._oidc is None:
            raise BadRequest(404, "this console has no OpenID Connect provider; its operator names one with --oidc")
        where, begun = await self._oidc.begin(self._return_address, self._loop.time())
        # Lax: the provider's page sends the browser back, and this cookie with it; no other request carries it.
        kept = f"{self._cookie_name}-login={begun}; HttpOnly; SameSite=Lax; Path={CALLBACK}; Max-Age=600{self._secure}"
        headers = {**HEADERS, "Location": where, "Set-Cookie": kept, "Cache-Control": "no-store"}
        connection.respond(303, b"", "text/plain", **headers)

    async def _finish_oidc(self, request: HttpRequest, connection: HttpConnection) -> None:
        if self._oidc is None:
            raise BadRequest(404, "this console has no OpenID Connect provider")
        kept = cookie(request.headers, f"{self._cookie_name}-login")
        try:
            session = self._open_for(await self._oidc.finish(kept, request.query, self._loop.time()), "OpenID Connect")
        except TidingsError as refused:
            self._audit.record("log in refused", "", by="OpenID Connect", code=refused.code)
            page = REFUSED % html.escape(str(refused)).encode()
            connection.respond(403, page, "text/html; charset=utf-8", **HEADERS, **{"Cache-Control": "no-store"})
            return
        headers = {**HEADERS, "Set-Cookie": self._session_cookie(session), "Cache-Control": "no-store"}
        connection.respond(200, RETURNED, "text/html; charset=utf-8", **headers)

    @property
    def _return_address(self) -> str:
        return f"{self.url.partition('/#')[0]}{CALLBACK}"

    def _open_for(self, names: list[str], by: str) -> WebSession:
        try:
            user, clients = self._users.clients_of(names)
        except Denied:
            self._audit.record("log in refused", "", by=by, user=", ".join(names))
            raise
        self._audit.record("log in", "", by=by, user=user)
        return self.sessions.open_for(user, clients, self._loop.time())

    def _client(self, session: WebSession, asked: Mapping[str, Any]) -> ConsoleClient:
        """The client that a page acts as: one of those that its user may act as."""
        known = self._clients_of(session)
        name = str(asked.get("client", "")) or next(iter(known))
        if name not in known:
            raise InputError(f"this console does not act as {name[:100]!r} for you; {did_you_mean(name, known)}")
        return known[name]

    def _clients_of(self, session: WebSession) -> dict[str, ConsoleClient]:
        return {name: self.clients[name] for name in (self.clients if session.clients is None else session.clients)}

    def _check_pipelines(self, session: WebSession) -> None:
        """They are read with the console's own rights on files, not with those of a client."""
        if not session.is_operator and not any(each.administers for each in self._clients_of(session).values()):
            raise Denied("administer: pipelines are shown to administrators, and to whoever started the console")

    # ── Answers ──

    async def _me(self, session: WebSession) -> dict[str, Any]:
        clients = [
            {"name": each.name, "administers": each.administers, "may_change_rights": await self._may_change(each)}
            for each in self._clients_of(session).values()
        ]
        return {
            "user": session.user,
            "version": __version__,
            "csrf": session.csrf,
            "clients": clients,
            "may_publish": self.settings.allow_publish,
            "may_act": self.settings.allow_actions,
        }

    async def _network(self, session: WebSession) -> dict[str, Any]:
        """The map. The first page does not wait for the next round of questions."""
        clients = self._clients_of(session).values()
        unasked = [each for each in clients if each.history.latest is None and not each.history.problem]
        await asyncio.gather(*(client.observe() for client in unasked))
        return topology(clients)

    async def _broker(self, client: ConsoleClient, asked: Mapping[str, Any]) -> dict[str, Any]:
        if client.history.latest is None:
            await client.observe()
        now = self._loop.time()
        points = [{"ago_s": round(now - at, 2), **counts} for at, counts in client.history.points]
        return {"status": client.history.latest, "problem": client.history.problem, "points": points}

    async def _types(self, client: ConsoleClient, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        shown = ("name", "version", "mode", "attributes")
        return [
            {**{field: row[field] for field in shown}, "hidden": sorted(rights.hidden_from(client, row))}
            for row in await client.types()
        ]

    async def _subscriptions(self, client: ConsoleClient, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        return await client.ask("subscriptions")

    async def _check(self, client: ConsoleClient, asked: Mapping[str, Any]) -> dict[str, Any]:
        event_type = await client.event_type(str(asked.get("type", "")))
        return await asyncio.to_thread(conditions.describe, str(asked.get("where", "")), event_type)

    async def _trace(self, client: ConsoleClient, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        return await client.ask("trace", event=str(asked.get("event", ""))[:200])

    async def _rights(self, client: ConsoleClient, asked: Mapping[str, Any]) -> dict[str, Any]:
        found = await rights.rights_of(client, self._registry)
        if self._desk is not None and await self._may_change(client):
            found["holders"] = await asyncio.to_thread(self._desk.holders)
        return found

    async def _may_change(self, client: ConsoleClient) -> bool:
        return self._desk is not None and await asyncio.to_thread(self._desk.serves, client)

    async def _preview_rights(self, client: ConsoleClient, asked: Mapping[str, Any]) -> dict[str, Any]:
        return await asyncio.to_thread(self._rights_desk().preview, client, asked)

    async def _change_rights(self, client: ConsoleClient, asked: Mapping[str, Any]) -> dict[str, Any]:
        desk = self._rights_desk()
        kind = f"{str(asked.get('kind', ''))[:20]} right"
        about = {name: str(asked.get(name, "")) for name in ("type", "to", "digest", "reason")}
        self._audit.record(kind, client.name, **about)
        try:
            async with self._changing:
                done = await asyncio.to_thread(desk.carry_out, client, asked)
        except TidingsError as refused:
            self._audit.record(f"{kind} refused", client.name, code=refused.code, **about)
            raise
        outcome = {"who": done["who"], "digest": done.get("digest", ""), "revoked": " ".join(done["revoked"])}
        self._audit.record(f"{kind} done", client.name, **outcome)
        return done

    def _rights_desk(self) -> RightsDesk:
        if self._desk is None:
            raise BadRequest(403, "this console does not change rights; start it with --org FOLDER of an organisation")
        return self._desk

    async def _heard(self, client: ConsoleClient, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        return await client.ask("heard", revocation=str(asked.get("revocation", ""))[:200])

    async def _mine(self, client: ConsoleClient, asked: Mapping[str, Any]) -> dict[str, Any]:
        subscriptions, letters = await asyncio.gather(client.ask("subscriptions"), client.ask("dlq"))
        ends_ms = certificate_end_ms(client.config.certificate.read_bytes())
        return {
            "certificate_ends_ms": ends_ms,
            "subscriptions": subscriptions,
            "letters": letters[:LETTERS_SHOWN],
        }

    async def _pipeline(self, client: ConsoleClient, asked: Mapping[str, Any]) -> dict[str, Any]:
        found = await asyncio.to_thread(pipelines.details, list(self.settings.pipelines), _pipeline_number(asked))
        return {**found, "lag": await self._pipeline_lag(client, found["subscription"])}

    async def _pipeline_lag(self, client: ConsoleClient, subscription: str) -> int | None:
        """How many events wait at the broker for the pipeline; None if it reads elsewhere, or is not this client's."""
        if not subscription:
            return None
        own = await client.ask("subscriptions")
        return next((row["waiting"] for row in own if row["name"] == subscription and "waiting" in row), None)

    async def _deliveries(self, client: ConsoleClient, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        subscriber = str(asked.get("subscriber", ""))[:1000]
        files = list(self.settings.pipelines)
        return await asyncio.to_thread(pipelines.delivered, files, _pipeline_number(asked), subscriber)

    async def _why(self, client: ConsoleClient, asked: Mapping[str, Any]) -> dict[str, Any]:
        event_type = await client.event_type(str(asked.get("type", "")))
        texts, record = asked.get("conditions"), asked.get("event")
        if not isinstance(record, Mapping):
            raise InputError('expected the event as a JSON object such as {"speed": 31.0}')
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise InputError("expected conditions as a list of texts")
        if len(texts) > CONDITIONS_MAX:
            raise InputError(f"at most {CONDITIONS_MAX} conditions at once")
        readable = EventType.of(event_type.name, tuple(Attribute(each.name, each.type) for each in event_type))
        values = from_page(record, readable)  # What is required may be hidden from this client.
        hidden = await self._hidden(client, event_type.name) - set(values)
        check_size("\n".join(texts))
        rows = await asyncio.to_thread(conditions.explain, texts, event_type, values, hidden)
        return {"rows": rows, "hidden": sorted(hidden)}

    async def _try(self, client: ConsoleClient, asked: Mapping[str, Any]) -> dict[str, Any]:
        event_type = await client.event_type(str(asked.get("type", "")))
        described = await asyncio.to_thread(conditions.describe, str(asked.get("where", "")), event_type)
        if not described["ok"]:
            return {"check": described}
        feed = await client.feed(event_type.name, "TRUE")
        if not feed.total:
            await asyncio.sleep(RECENT_WAIT_S)
        hidden = await self._hidden(client, event_type.name)
        recent = [(event.id, event.values) for event in feed.recent]
        wanted = parse(str(asked["where"]), event_type)
        others = await self._others(client, asked)
        return {
            "check": described,
            "hidden": sorted(hidden),
            **await asyncio.to_thread(conditions.try_on, wanted, recent, hidden),
            "related": await asyncio.to_thread(conditions.related, wanted, others, event_type),
            "last": show(feed.recent[-1]) if feed.recent else None,
        }

    async def _others(self, client: ConsoleClient, asked: Mapping[str, Any]) -> list[str]:
        """The conditions to compare one with: the client's own subscriptions to the type, and those that the page has."""
        own = await client.ask("subscriptions")
        kept = asked.get("others", [])
        if not isinstance(kept, list) or not all(isinstance(text, str) for text in kept):
            raise InputError("expected other conditions as a list of texts")
        mine = [str(row["condition"]) for row in own if row["type"] == asked.get("type")]
        texts = list(dict.fromkeys([*mine, *kept]))[:CONDITIONS_MAX]
        ends = list(accumulate(map(len, texts)))
        return [text for text, end in zip(texts, ends) if end <= OTHERS_CHARACTERS_MAX]  # Of all together.

    async def _hidden(self, client: ConsoleClient, type: str) -> set[str]:
        return next((rights.hidden_from(client, row) for row in await client.types() if row["name"] == type), set())

    async def _publish(self, client: ConsoleClient, asked: Mapping[str, Any]) -> dict[str, Any]:
        if not self.settings.allow_publish:
            raise BadRequest(403, "this console only reads; start it with --allow-publish")
        event_type = await client.event_type(str(asked.get("type", "")))
        record = asked.get("values")
        if not isinstance(record, Mapping):
            raise InputError('expected the values as a JSON object such as {"speed": 31.0}')
        values = from_page(record, event_type)
        self._audit.record("publish", client.name, type=event_type.name, attributes=", ".join(sorted(values)))
        try:
            async with asyncio.timeout(PUBLISH_S_MAX):
                id = await (await client.client()).publish(event_type.name, values)
        except TidingsError as refused:
            self._audit.record("publish refused", client.name, type=event_type.name, code=refused.code)
            raise
        self._audit.record("published", client.name, type=event_type.name, id=id)
        return {"id": id}

    async def _act(self, client: ConsoleClient, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
        action = str(asked.get("action", ""))
        if action not in ACTIONS:
            raise InputError(f"expected one of {', '.join(ACTIONS)}")
        if not self.settings.allow_actions:
            raise BadRequest(403, "this console only reads; start it with --allow-actions")
        self._audit.record(action, client.name, broker=client.config.broker)
        try:
            done = await client.ask(ACTIONS[action])
        except TidingsError as refused:
            self._audit.record(f"{action} refused", client.name, code=refused.code)
            raise
        self._audit.record(f"{action} done", client.name, outcome=json.dumps(done))
        return done

    async def _replay(self, client: ConsoleClient, asked: Mapping[str, Any]) -> dict[str, Any]:
        if not self.settings.allow_actions:
            raise BadRequest(403, "this console only reads what is new; start it with --allow-actions")
        event_type = await client.event_type(str(asked.get("type", "")))
        where, back_s = _condition_in(asked, event_type), asked.get("back_s")
        if not isinstance(back_s, int) or isinstance(back_s, bool) or not 0 < back_s <= REPLAY_BACK_S_MAX:
            raise InputError(f"back_s: expected a whole number of seconds from 1 to {REPLAY_BACK_S_MAX}")
        self._audit.record("replay events", client.name, type=event_type.name, seconds=str(back_s))
        return {"replay": await client.replay(event_type.name, where, back_s)}

    def _figure(self, path: str, connection: HttpConnection) -> None:
        found = papers.figure(self.settings.figures, path)
        if found is None:
            raise BadRequest(404, "there is no such figure; `tidings lab run` draws them")
        connection.respond(200, found[0], found[1], **HEADERS, **{"Cache-Control": "no-cache"})

    async def _feed(self, client: ConsoleClient, request: HttpRequest, connection: HttpConnection) -> None:
        """Server-sent events, until the page or the feed ends."""
        event_type = await client.event_type(request.query.get("type", ""))
        if replay := request.query.get("replay", ""):
            feed = await client.replayed(replay)
        else:
            feed = await client.feed(event_type.name, _condition_in(request.query, event_type))
        headers = {**HEADERS, "Cache-Control": "no-store", "Connection": "close"}
        connection.begin(200, "text/event-stream", **headers)
        try:
            async with contextlib.aclosing(feed.messages()) as messages:
                async for message in messages:
                    _send(connection, "batch", message)
                    await connection.writer.drain()
            _send(connection, "over", {"why": "the connection to the broker has ended"})
        except TidingsError as refused:
            _send(connection, "over", {"why": str(refused)})
        finally:
            connection.end()
            with contextlib.suppress(ConnectionError):
                await connection.writer.drain()


def _condition_in(asked: Mapping[str, Any], event_type: EventType) -> str:
    """The condition that a page asks for; raises FilterError here, with the spot, before the broker is asked."""
    where = str(asked.get("where", "")).strip() or "TRUE"
    check_size(where)
    parse(where, event_type)
    return where


def _pipeline_number(asked: Mapping[str, Any]) -> int:
    number = str(asked.get("number", ""))
    if not number.isdecimal() or len(number) > 4:
        raise InputError("expected the number of a pipeline")
    return int(number)


def _send(connection: HttpConnection, what: str, content: Any) -> None:
    connection.send(f"event: {what}\ndata: {json.dumps(content, default=str)}\n\n".encode())


async def _json_body(connection: HttpConnection) -> Mapping[str, Any]:
    body = await connection.body()
    if len(body) > BODY_BYTES_MAX:
        raise BadRequest(413, f"at most {BODY_BYTES_MAX} bytes in one request")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        raise BadRequest(400, "expected JSON") from None
    if not isinstance(content, dict):
        raise BadRequest(400, "expected a JSON object")
    return content


def _pages() -> dict[str, tuple[bytes, str]]:
    """All files of the pages, by their path; nothing else can be asked for."""
    found = {f"/{file.name}": (file.read_bytes(), _KINDS[file.suffix]) for file in sorted(_WEB.iterdir())}
    return {"/": found["/index.html"], **found}


def _tls(settings: ConsoleSettings) -> ssl.SSLContext | None:
    """None on loopback without a certificate; raises InputError for another address without one."""
    host, _ = host_and_port(settings.listen, "listen: ")
    if settings.user_authority is not None and settings.certificate is None:
        raise InputError("--user-authority needs --certificate and --key: users show their certificates over TLS")
    if settings.certificate is None:
        if host not in LOOPBACK:
            raise InputError(f"listen: {host} is not loopback, so the console needs --certificate and --key for TLS")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if settings.user_authority is not None:
        context.verify_mode = ssl.CERT_OPTIONAL  # Others log in otherwise.
        try:
            context.load_verify_locations(settings.user_authority)
        except (OSError, ssl.SSLError) as wrong:
            raise SetupError(f"{settings.user_authority}: no certificates of authorities: {wrong}") from None
    try:
        context.load_cert_chain(settings.certificate, settings.key)
    except (OSError, ssl.SSLError) as wrong:
        raise SetupError(f"{settings.certificate}: cannot be used with this key: {wrong}") from None
    return context
