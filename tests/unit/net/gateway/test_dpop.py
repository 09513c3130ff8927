"""A proof says who makes one request: with one's own key and certificate, for that request, soon, and once."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tidings.errors import Denied
from tidings.net.gateway.dpop import FRESH_S, SEEN_MAX, DpopVerifier, token_hash
from tidings.net.gateway.http import Request
from tidings.net.transport import tls
from tidings.security import Identity

NOW = 1_800_000_000.0
BEGAN = datetime.fromtimestamp(NOW, UTC)
TOKENS = "Bearer abc, def"


class Organisation:
    """An authority, and one participant with its certificate."""

    def __init__(self, name: str, seed: int, issued: datetime = BEGAN) -> None:
        make = random.Random(seed).randbytes
        authority, self.member = Identity.make(make), Identity.make(make)
        self.trusted = tls.authority(name, authority, issued)
        self.certificate = tls.der(
            tls.certificate(name, "desk", self.member.public_key, authority, self.trusted, issued)
        )


POLICE, OTHERS = Organisation("police", 1), Organisation("police", 2)


def proofs(folder: Path, *, since_s: float = 0.0, seen_max: int = SEEN_MAX) -> DpopVerifier:
    (folder / "trusted.pem").write_bytes(POLICE.trusted)
    made = DpopVerifier("police", folder / "trusted.pem", since_s=since_s, seen_max=seen_max)
    made.hosts = frozenset({"here:1"})
    return made


def proof(of: Organisation = POLICE, header: dict[str, Any] | None = None, **claims: Any) -> str:
    """A proof as it should be, but for what is given."""
    key = Ed25519PrivateKey.from_private_bytes(of.member.secret)
    jwk = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    x5c = [base64.b64encode(of.certificate).decode()]
    says = {"jti": "1", "htm": "POST", "htu": "https://here:1/events", "iat": NOW, "ath": token_hash(TOKENS), **claims}
    header = {"typ": "dpop+jwt", "jwk": jwk, "x5c": x5c, **(header or {})}
    return jwt.encode({name: value for name, value in says.items() if value is not None}, key, "EdDSA", header)


def request(dpop: str, **headers: str) -> Request:
    return Request("POST", "/events", {"a": "b"}, {"host": "here:1", "authorization": TOKENS, "dpop": dpop, **headers})


def test_a_proof_tells_whose_request_it_is(tmp_path: Path) -> None:
    assert proofs(tmp_path).who(request(proof()), NOW) == POLICE.member.public_key


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: proof(htm="GET"), "another method"),
        (lambda: proof(htu="https://elsewhere/events"), "another address"),
        (lambda: proof(htu="http://here:1/events"), "another address"),
        (lambda: proof(htu="https://here:1/acknowledge"), "another address"),
        (lambda: proof(htu="https://["), "an address as htu"),
        (lambda: proof(iat=10**400), "no moment"),
        (lambda: proof(ath=token_hash("Bearer abc")), "other tokens"),
        (lambda: proof(iat=NOW - FRESH_S - 1), "61 s ago"),
        (lambda: proof(iat=NOW + FRESH_S + 1), "-61 s ago"),
        (lambda: proof(iat=float("nan")), "ago|number"),
        (lambda: proof(iat="now"), "number"),
        (lambda: proof(jti="x" * 1000), "short text"),
        (lambda: proof(jti=None), "jti"),
        (lambda: proof(header={"typ": "JWT"}), "type dpop"),
        (lambda: proof(header={"x5c": []}), "x5c"),
        (lambda: proof(header={"x5c": ["bm8="]}), "x5c"),
        (lambda: proof(header={"jwk": {"kty": "OKP"}}), "jwk"),
        (lambda: proof(OTHERS), "not of this organisation"),
        (lambda: proof(OTHERS, {"x5c": [base64.b64encode(POLICE.certificate).decode()]}), "the same Ed25519 key"),
        (lambda: proof()[:-8] + "AAAAAAAA", "Signature"),
        (lambda: "nonsense", "segments"),
    ],
)  # fmt: skip
def test_a_proof_with_anything_wrong_in_it_is_worth_nothing(made: Callable[[], str], why: str, tmp_path: Path) -> None:
    with pytest.raises(Denied, match=f"^proof: .*({why})"):
        proofs(tmp_path).who(request(made()), NOW)


def test_a_signature_by_another_than_the_certified_key_is_worth_nothing(tmp_path: Path) -> None:
    said, _, _ = proof().rpartition(".")
    other = Ed25519PrivateKey.from_private_bytes(OTHERS.member.secret).sign(said.encode())
    forged = f"{said}.{base64.urlsafe_b64encode(other).rstrip(b'=').decode()}"
    with pytest.raises(Denied, match="(?i)signature"):
        proofs(tmp_path).who(request(forged), NOW)


def test_a_proof_counts_once(tmp_path: Path) -> None:
    gateway = proofs(tmp_path)
    gateway.who(request(proof()), NOW)
    with pytest.raises(Denied, match="used before"):
        gateway.who(request(proof()), NOW + 1)
    gateway.who(request(proof(jti="2")), NOW + 1)


def test_what_is_remembered_of_proofs_is_bounded_and_forgotten_when_they_are_stale(tmp_path: Path) -> None:
    gateway = proofs(tmp_path, seen_max=3)
    for number in range(3):
        gateway.who(request(proof(jti=f"old {number}")), NOW)
    with pytest.raises(Denied, match="too many"):
        gateway.who(request(proof()), NOW)
    later = NOW + 2 * FRESH_S + 1
    for number in range(3):
        gateway.who(request(proof(jti=f"old {number}", iat=later)), later)


def test_a_certificate_that_no_longer_holds_proves_nothing(tmp_path: Path) -> None:
    later = NOW + timedelta(days=tls.VALID_DAYS).total_seconds()
    with pytest.raises(Denied, match="is not valid now"):
        proofs(tmp_path).who(request(proof(iat=later)), later)


def test_a_proof_for_another_host_is_worth_nothing_whatever_the_request_calls_its_host(tmp_path: Path) -> None:
    with pytest.raises(Denied, match="another address"):
        proofs(tmp_path).who(request(proof(htu="https://there:1/events"), host="there:1"), NOW)


def test_a_proof_made_before_the_gateway_started_may_have_been_used_before(tmp_path: Path) -> None:
    gateway = proofs(tmp_path, since_s=NOW)
    with pytest.raises(Denied, match="before this gateway started"):
        gateway.who(request(proof(iat=NOW - 2)), NOW)
    assert gateway.who(request(proof(iat=NOW + 1)), NOW + 1) == POLICE.member.public_key
