"""Logging in as oneself: by a client certificate, or at an OpenID Connect provider.

The login key in the printed URL opens a session of the operator, which may act as every client of the console. With
`--user WHO=CLIENT` others log in as themselves, and may act only as the clients that this names:

    certificate    TLS has verified it against `--user-authority`; WHO is its common name, or an e-mail address in it
    OpenID Connect the provider's ID token, by the authorization code flow with PKCE; WHO is its subject, or its e-mail
                   address if the provider says that it has verified it

The ID token is checked as OpenID Connect Core 3.1.3.7 says: signature by a key of the provider, issuer, audience,
authorized party, times and nonce. The state of a login is here, under a cookie that only this browser has, and is used
once.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import urllib.error
import urllib.parse
import urllib.request
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jwt

from tidings.errors import Denied, InputError, PeerError

LOGIN_S_MAX = 600.0  # From the click to the return: time to find a password.
LOGINS_MAX = 1000  # Begun and not finished; the oldest goes.
ANSWER_BYTES_MAX = 1 << 20
ANSWER_S_MAX = 10.0
KEYS_S = 300.0  # How long the provider's keys and addresses are used before they are read anew.
CLOCKS_S = 60  # The provider's clock and ours may differ by so much.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
CALLBACK = "/login/oidc/callback"


class Users:
    """Who may act as which clients."""

    def __init__(self, users: Iterable[tuple[str, str]], clients: Iterable[str]) -> None:
        """Raises InputError for a client that the console does not act as."""
        known = set(clients)
        self._clients: dict[str, list[str]] = {}
        for who, client in users:
            if client not in known:
                raise InputError(f"--user {who}={client}: this console does not act as {client}; name it with --as")
            self._clients.setdefault(who, []).append(client)

    def clients_of(self, names: Iterable[str]) -> tuple[str, tuple[str, ...]]:
        """The first of these names that is known, with its clients; raises Denied if none is."""
        for name in names:
            if name and name in self._clients:
                return name, tuple(dict.fromkeys(self._clients[name]))
        raise Denied("member: you are known, but not as a user of this console; its operator names users with --user")


def names_in_certificate(certificate: Mapping[str, Any] | None) -> list[str]:
    """Whom a certificate that TLS has verified is of: e-mail addresses, then the common name.

    >>> names_in_certificate({"subject": ((("commonName", "ada"),),), "subjectAltName": (("email", "a@x.example"),)})
    ['a@x.example', 'ada']
    """
    if not certificate:
        raise Denied("signature: your browser has sent no certificate; choose one, and load the page anew")
    emails = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "email"]
    parts = (part for group in certificate.get("subject", ()) for part in group)
    return [*emails, *(value for kind, value in parts if kind == "commonName")]


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """A client of an OpenID Connect provider."""

    issuer: str
    client_id: str
    client_secret: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        _checked(self.issuer)


@dataclass(frozen=True, slots=True)
class _BegunLogin:
    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    begun_at: float


class OidcLogin:
    """Logging in at one provider."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._begun: OrderedDict[str, _BegunLogin] = OrderedDict()
        self._read: tuple[float, dict[str, Any], jwt.PyJWKSet] | None = None
        self._reading = asyncio.Lock()

    @property
    def provider(self) -> str:
        """The provider's host, to show."""
        return urllib.parse.urlsplit(self._settings.issuer).netloc

    async def begin(self, redirect_uri: str, now: float) -> tuple[str, str]:
        """Where to send the browser, and the cookie that it is to bring back."""
        found, _ = await self._provider(now)
        begun = _BegunLogin(
            secrets.token_urlsafe(24), secrets.token_urlsafe(24), secrets.token_urlsafe(48), redirect_uri, now
        )
        cookie = secrets.token_urlsafe(24)
        self._begun[cookie] = begun
        while len(self._begun) > LOGINS_MAX:
            self._begun.popitem(last=False)
        challenge = base64.urlsafe_b64encode(hashlib.sha256(begun.verifier.encode()).digest()).rstrip(b"=").decode()
        asked = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": redirect_uri,
            "scope": "openid email",
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        endpoint = _checked(str(found.get("authorization_endpoint", "")))
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urllib.parse.urlencode(asked)}", cookie

    async def finish(self, cookie: str, query: Mapping[str, str], now: float) -> list[str]:
        """The names of whoever has logged in; raises Denied for a login that was not begun by this browser."""
        begun = self._begun.pop(cookie, None)
        if begun is None or now - begun.begun_at > LOGIN_S_MAX:
            raise Denied("token: this login was not begun in this browser, or took too long; log in again")
        if not hmac.compare_digest(begun.state.encode(), query.get("state", "").encode()):
            raise Denied("token: the provider's answer is not to this login; log in again")
        if query.get("iss", self._settings.issuer) != self._settings.issuer:
            raise Denied("token: the answer is of another provider")
        if "error" in query or not query.get("code"):
            raise Denied(f"token: the provider has refused: {query.get('error', 'no code')[:100]}")
        found, keys = await self._provider(now)
        answer = await asyncio.to_thread(self._exchange, found, begun, query["code"])
        claims = checked_claims(str(answer.get("id_token", "")), keys, self._settings, begun.nonce)
        verified = claims.get("email_verified") is True
        return [str(claims["sub"]), *([str(claims["email"])] if verified and claims.get("email") else [])]

    def _exchange(self, found: Mapping[str, Any], begun: _BegunLogin, code: str) -> dict[str, Any]:
        settings = self._settings
        asked = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": begun.redirect_uri,
            "code_verifier": begun.verifier,
            "client_id": settings.client_id,
        }
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if settings.client_secret:
            quoted = f"{urllib.parse.quote(settings.client_id, '')}:{urllib.parse.quote(settings.client_secret, '')}"
            headers["Authorization"] = f"Basic {base64.b64encode(quoted.encode()).decode()}"
            del asked["client_id"]
        return _fetched(str(found.get("token_endpoint", "")), urllib.parse.urlencode(asked).encode(), headers)

    async def _provider(self, now: float) -> tuple[dict[str, Any], jwt.PyJWKSet]:
        """Its addresses and keys."""
        async with self._reading:
            if self._read is None or now - self._read[0] > KEYS_S:
                self._read = now, *await asyncio.to_thread(self._discover)
            return self._read[1], self._read[2]

    def _discover(self) -> tuple[dict[str, Any], jwt.PyJWKSet]:
        issuer = self._settings.issuer
        found = _fetched(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        if found.get("issuer") != issuer:
            raise PeerError(f"the OpenID Connect provider calls itself {str(found.get('issuer'))[:100]}, not {issuer}")
        try:
            return found, jwt.PyJWKSet.from_dict(_fetched(str(found.get("jwks_uri", ""))))
        except jwt.PyJWTError as wrong:
            raise PeerError(f"the OpenID Connect provider's keys cannot be used: {wrong}") from None


def checked_claims(token: str, keys: jwt.PyJWKSet, settings: OidcSettings, nonce: str) -> dict[str, Any]:
    """What an ID token says, if the provider has made it for this login; raises Denied if it has not."""
    try:
        head = jwt.get_unverified_header(token)
        claims: dict[str, Any] = jwt.decode(
            token,
            _key_for(keys, head.get("kid")),
            algorithms=[each for each in ALGORITHMS if each == head.get("alg")],
            audience=settings.client_id,
            issuer=settings.issuer,
            leeway=CLOCKS_S,
            options={"require": ["exp", "iat", "iss", "aud", "sub", "nonce"]},
        )
    except (jwt.PyJWTError, ValueError) as wrong:
        raise Denied(f"signature: the provider's ID token is not valid: {wrong}") from None
    if not hmac.compare_digest(str(claims["nonce"]).encode(), nonce.encode()):
        raise Denied("token: the ID token is of another login")
    if isinstance(claims["aud"], list) and len(claims["aud"]) > 1 and claims.get("azp") != settings.client_id:
        raise Denied("token: the ID token is for another program")
    return claims


def _key_for(keys: jwt.PyJWKSet, kid: Any) -> jwt.PyJWK:
    """The key that a token names; one that names none fits only a provider with one key."""
    fit = [key for key in keys.keys if key.public_key_use in (None, "sig") and (kid is None or key.key_id == kid)]
    if len(fit) != 1:
        raise Denied("signature: the ID token names no key of the provider")
    return fit[0]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """An answer from elsewhere is no answer of the provider."""

    def redirect_request(self, *_: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


def _fetched(url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A JSON object from the provider; raises PeerError if it gives none."""
    request = urllib.request.Request(_checked(url), body, {"Accept": "application/json", **(headers or {})})  # noqa: S310  Checked.
    try:
        with _OPENER.open(request, timeout=ANSWER_S_MAX) as answer:
            content = json.loads(answer.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as refused:
        raise PeerError(f"the OpenID Connect provider has refused, with status {refused.code}") from None
    except (OSError, ValueError, RecursionError) as wrong:
        raise PeerError(f"the OpenID Connect provider does not answer as expected: {wrong}") from None
    if not isinstance(content, dict):
        raise PeerError("the OpenID Connect provider does not answer with a JSON object")
    return content


def _checked(url: str) -> str:
    """An address over TLS, or on loopback; raises InputError for others."""
    try:
        parts = urllib.parse.urlsplit(url)
        host = parts.hostname
    except ValueError:
        host, parts = None, urllib.parse.urlsplit("")
    if host and (parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK_NAMES)):
        return url
    raise InputError(f"expected an address of an OpenID Connect provider over https, got {url[:100]!r}")
