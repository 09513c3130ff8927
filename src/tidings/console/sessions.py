"""Who may ask: login keys, cookies, CSRF tokens, and the hosts and origins that a request may name.

Any program of any user of the machine can connect to a loopback port, and any page in the user's browser can make the
browser send requests to it. So:

    login      the console prints a URL with a key in its fragment, which browsers do not send; the page exchanges it
               for a session. Users log in by a certificate or with OpenID Connect (see `login`)
    session    a cookie that scripts cannot read (HttpOnly) and that other sites cannot send (SameSite=Strict)
    CSRF       a request that is not a GET carries the session's token in a header, and its Origin is the console's own
    host       the Host header names the console, so that a hostile name which resolves to 127.0.0.1 (DNS rebinding)
               gets nothing
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

from tidings.errors import Denied
from tidings.net import BadRequest

SESSION_S = 12 * 3600.0  # A working day.
SESSIONS_MAX = 64
LOGINS_PER_MINUTE = 30  # Of wrong keys; the key has 192 bits, this is for the logs.
CSRF_HEADER = "x-tidings-csrf"


@dataclass(slots=True)
class WebSession:
    """One browser that has logged in."""

    cookie: str
    csrf: str
    ends_at: float
    used_at: float
    user: str = ""
    """Who has logged in; empty for the operator, who has the login key."""
    clients: tuple[str, ...] | None = None
    """Whom a user may act as; None: every client of the console."""

    @property
    def is_operator(self) -> bool:
        return self.clients is None


class WebSessions:
    """All sessions of one console."""

    def __init__(self) -> None:
        self.key = secrets.token_urlsafe(24)
        self._open: dict[str, WebSession] = {}
        self._wrong: list[float] = []

    def open(self, key: str, now: float) -> WebSession:
        """A session for whoever shows the login key; raises Denied for another key.

        The key itself is always taken: whoever sends wrong ones must not be able to keep its owner out.
        """
        if hmac.compare_digest(key.encode(errors="replace"), self.key.encode()):
            return self._opened(now)
        self._wrong = [at for at in self._wrong if now - at < 60]
        if len(self._wrong) >= LOGINS_PER_MINUTE:
            raise BadRequest(429, "too many wrong login keys; wait a minute")
        self._wrong.append(now)
        raise Denied("token: not the login key of this console; use the URL that `tidings console` printed last")

    def open_for(self, user: str, clients: tuple[str, ...], now: float) -> WebSession:
        """A session for a user who has proven to be one."""
        return self._opened(now, user, clients)

    def _opened(self, now: float, user: str = "", clients: tuple[str, ...] | None = None) -> WebSession:
        self._forget(now)
        session = WebSession(secrets.token_urlsafe(32), secrets.token_urlsafe(32), now + SESSION_S, now, user, clients)
        self._open[session.cookie] = session
        return session

    def close(self, session: WebSession) -> None:
        self._open.pop(session.cookie, None)

    def find(self, headers: Mapping[str, str], name: str, now: float) -> WebSession:
        """The session whose cookie a request carries; raises BadRequest (401) if there is none."""
        session = self._open.get(cookie(headers, name))
        if session is None or session.ends_at <= now:
            raise BadRequest(401, "no session; log in, or open the URL that `tidings console` printed")
        session.used_at = now
        return session

    def last_use(self) -> float:
        """When a browser last asked for something."""
        return max((session.used_at for session in self._open.values()), default=float("-inf"))

    def _forget(self, now: float) -> None:
        """Ended sessions, and the one that was not used for longest if there are too many."""
        self._open = {cookie: each for cookie, each in self._open.items() if each.ends_at > now}
        while len(self._open) >= SESSIONS_MAX:
            del self._open[min(self._open, key=lambda cookie: self._open[cookie].used_at)]


def check_csrf(session: WebSession, headers: Mapping[str, str]) -> None:
    """Raises Denied for a request that would change something and does not come from the console's own page."""
    if not hmac.compare_digest(headers.get(CSRF_HEADER, "").encode(), session.csrf.encode()):
        raise Denied("token: the request does not carry this session's CSRF token; reload the page")


def check_source(headers: Mapping[str, str], hosts: frozenset[str], scheme: str, *, is_return: bool = False) -> None:
    """Raises Denied for a request to another host, or from a page of another site.

    `is_return`: where a login provider sends the browser back to, which is a page of another site by its nature.
    """
    if headers.get("host", "").lower() not in hosts:
        raise Denied("domain: this console does not serve that host; use the URL that it printed")
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in {f"{scheme}://{host}" for host in hosts}:
        raise Denied("domain: a page of another site may not ask this console")
    is_page = is_return and headers.get("sec-fetch-mode", "navigate") == "navigate"
    if not is_page and headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Denied("domain: a page of another site may not ask this console")


def cookie(headers: Mapping[str, str], name: str) -> str:
    """The value of a cookie; empty if there is none."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""
