"""Proofs of possession at the gateway, as in RFC 9449 (DPoP), for clients that TLS does not authenticate.

A browser cannot present an Ed25519 certificate in TLS, but a script in it can sign with such a key. Each request
then carries a header `DPoP`: a short JWT, signed for this method and address, at this moment, with these tokens. The
client's certificate is in it (`x5c`), which shows that the key belongs to the organisation.
A proof is valid once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jwt
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tidings.errors import Denied
from tidings.net.gateway.http import Request
from tidings.net.transport.tls import authority_of

FRESH_S = 60.0  # How old, or how far ahead, a proof may be: clocks differ.
SEEN_MAX = 8192  # Proofs of one key remembered while they are fresh; with more in two minutes, its next is refused.
MOMENT_MAX = 1e12  # Seconds since 1970.
NAME_MAX = 128  # Of a proof (`jti`).
_CLAIMS = ("jti", "htm", "htu", "iat", "ath")


class DpopVerifier:
    """Verifies the proofs that one gateway receives."""

    def __init__(self, domain: str, trusted: Path, *, since_s: float = 0.0, seen_max: int = SEEN_MAX) -> None:
        """For participants of `domain`, whose authority is in the file `trusted`.

        Which proofs were used before `since_s`, when the gateway started, nobody knows: older ones are refused.
        """
        self._since_s, self._seen_max = since_s, seen_max
        self._authority = authority_of(domain, trusted.read_bytes())
        self.hosts: frozenset[str] = frozenset()
        """The `host:port` that a proof may be for. Not the request's own Host header: whoever has a proof writes that."""
        self._seen: dict[bytes, OrderedDict[str, float]] = {}

    def who(self, request: Request, now_s: float) -> bytes:
        """The key that made this request; raises Denied naming what is wrong with its proof."""
        proof = request.headers["dpop"]
        try:
            certificate, key = self._certified(jwt.get_unverified_header(proof), now_s)
            claims = jwt.decode(proof, certificate, ["EdDSA"], options={"require": [*_CLAIMS], "verify_iat": False})
        except jwt.InvalidTokenError as wrong:
            raise Denied(f"proof: {wrong}") from None
        _check_is_for(claims, request, self.hosts)
        self._check_is_new(claims, key, now_s)
        return key

    def _certified(self, header: Mapping[str, Any], now_s: float) -> tuple[Ed25519PublicKey, bytes]:
        if header.get("typ") != "dpop+jwt":
            raise Denied("proof: expected a JWT of type dpop+jwt")
        certificate = _certificate_in(header)
        try:
            certificate.verify_directly_issued_by(self._authority)
        except (ValueError, TypeError, InvalidSignature):
            raise Denied("proof: its certificate is not of this organisation") from None
        if not certificate.not_valid_before_utc <= datetime.fromtimestamp(now_s, UTC) < certificate.not_valid_after_utc:
            raise Denied("proof: its certificate is not valid now")
        key = certificate.public_key()
        if not isinstance(key, Ed25519PublicKey) or key != _key_in(header):
            raise Denied("proof: expected the same Ed25519 key in jwk and x5c")
        return key, key.public_bytes_raw()

    def _check_is_new(self, claims: Mapping[str, Any], key: bytes, now_s: float) -> None:
        name, made_s = claims["jti"], claims["iat"]
        if not isinstance(name, str) or len(name) > NAME_MAX or not isinstance(made_s, int | float):
            raise Denied("proof: expected a short text as jti and a number as iat")
        if abs(made_s) > MOMENT_MAX:  # An integer of any length, which makes no float.
            raise Denied("proof: iat is no moment")
        if not abs(now_s - made_s) <= FRESH_S:
            raise Denied(f"proof: made {now_s - made_s:.0f} s ago by this broker's clock; at most {FRESH_S:.0f}")
        if made_s < int(self._since_s):
            raise Denied("proof: made before this gateway started; sign the request again")
        seen = self._seen.setdefault(key, OrderedDict())
        while seen and next(iter(seen.values())) < now_s - 2 * FRESH_S:
            seen.popitem(last=False)
        if name in seen or len(seen) >= self._seen_max:
            raise Denied("proof: used before" if name in seen else "proof: too many at once")
        seen[name] = now_s


def _check_is_for(claims: Mapping[str, Any], request: Request, hosts: frozenset[str]) -> None:
    if claims["htm"] != request.method:
        raise Denied(f"proof: for another method than {request.method}")
    try:
        address = urlsplit(str(claims["htu"]))
    except ValueError:
        raise Denied("proof: expected an address as htu") from None
    if address.scheme != "https" or address.netloc not in hosts or address.path != request.path:
        raise Denied("proof: for another address")
    if claims["ath"] != token_hash(request.headers.get("authorization", "")):
        raise Denied("proof: for other tokens")


def token_hash(authorization: str) -> str:
    """What a proof says about the tokens beside it (`ath`): the hash of all that follows the scheme."""
    tokens = authorization.partition(" ")[2]
    return base64.urlsafe_b64encode(hashlib.sha256(tokens.encode()).digest()).rstrip(b"=").decode()


def _certificate_in(header: Mapping[str, Any]) -> x509.Certificate:
    try:
        (encoded,) = header["x5c"]
        return x509.load_der_x509_certificate(base64.b64decode(encoded, validate=True))
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise Denied("proof: expected the certificate of its key, and no other, in x5c") from None


def _key_in(header: Mapping[str, Any]) -> object:
    try:
        return jwt.PyJWK(header["jwk"], algorithm="EdDSA").key
    except (KeyError, TypeError, ValueError, jwt.PyJWTError):
        raise Denied("proof: expected its key in jwk") from None
