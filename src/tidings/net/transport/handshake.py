"""The handshake: authenticates the other end of a connection, and binds its tokens to the connection.

TLS 1.3 has checked both certificates before the first byte arrives here. Then, both ways:

    Hello          who the sender is, and a nonce of 32 bytes
    SignedTokens   its tokens, signed together with both certificates, both nonces and its side of the connection
    Accepted       how many of them are valid, and why the others are not

Python's `ssl` cannot export keying material, so the certificates themselves are hashed into the
signature: a signature for one connection is worthless on another.

A client attaches only to brokers of its own organisation, which it trusts with the values it may see. The node
decides whether another broker is a member of the network and what it may read: it runs a
handshake of its own on the link that this one has authenticated.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from tidings.errors import Denied, PeerError
from tidings.net.ids import broker_id
from tidings.net.transport.copies import ORIGINAL, CopyProof, check_copy
from tidings.net.transport.frames import (
    BETWEEN_BROKERS,
    VERSIONS,
    Accepted,
    FrameReader,
    Goodbye,
    Hello,
    LinkFrame,
    RequestRefused,
    SignedTokens,
    as_error,
    encoded,
    refusal,
)
from tidings.net.transport.tls import TrustAnchor, certified_by, is_administrator, role_of
from tidings.overlay import NodeId, Peer
from tidings.security import Identity, fingerprint, verify_signature

HANDSHAKE_S_MAX = 10.0  # For the whole handshake.
NONCE_BYTES = 32
TOKENS_MAX = 256  # A participant with more rights than this shows the ones it needs.

Role = Literal["broker", "client"]
_F = TypeVar("_F", bound=LinkFrame)


@dataclass(frozen=True, slots=True)
class Participant:
    """This end of every connection it makes: its key, its certificate, its rights, and how it is reached."""

    identity: Identity
    certificate_der: bytes
    domain: str
    name: str
    role: Role
    tokens: tuple[bytes, ...]
    anchors: tuple[TrustAnchor, ...]
    """The authorities of the organisations that it is linked with."""
    me: Peer | None = None
    protocol: str = ""
    copy: CopyProof = ORIGINAL


@dataclass(frozen=True, slots=True)
class Proven:
    """The other end, authenticated: TLS and its signature prove its key, and an authority certifies its organisation."""

    key: bytes
    domain: str
    name: str
    role: str
    tokens: tuple[bytes, ...]
    peer: Peer | None = None
    administers: bool = False
    """Whether its certificate gives it the right to administer brokers."""
    copy: CopyProof = ORIGINAL
    version: int = VERSIONS[-1]
    """The version that both ends speak."""
    id: NodeId = field(init=False)
    """Derived from the key once: it is asked for with every frame."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", broker_id(self.key))

    def __str__(self) -> str:
        return f"{self.role} {self.domain}/{self.name}"


async def shake(
    stream: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    participant: Participant,
    *,
    dialled: bool,
    expected: bytes | None = None,
    within_s: float = HANDSHAKE_S_MAX,
) -> tuple[Proven, FrameReader]:
    """Authenticates the other end of a new TLS connection; also returns the reader to continue with.

    Raises PeerError for a broken handshake, Denied for a peer without the right to attach, and
    TimeoutError for one that takes too long. The other end gets the reason; the caller closes the connection.
    `expected` is the key that must answer, where it is known.
    """
    reader, writer = FrameReader(stream[0]), stream[1]
    try:
        async with asyncio.timeout(within_s):
            return await _shake(reader, writer, participant, dialled, expected), reader
    except (PeerError, Denied) as error:
        writer.write(encoded(refusal(0, error)))
        raise


async def _shake(
    reader: FrameReader,
    writer: asyncio.StreamWriter,
    participant: Participant,
    dialled: bool,
    expected: bytes | None,
) -> Proven:
    theirs = _peer_certificate(writer)
    nonce = secrets.token_bytes(NONCE_BYTES)
    if dialled:
        writer.write(encoded(_hello(participant, nonce, participant.role)))
    hello = await _next(reader, Hello)
    if not dialled:  # Whoever accepts a connection learns only now whether a broker or a client has made it.
        writer.write(encoded(_hello(participant, nonce, hello.role)))
    key = _check_hello(hello, theirs, participant, expected)
    transcript = _Transcript(participant.certificate_der, theirs, nonce, hello.nonce, dialled)
    signed = transcript.ours(participant.tokens)
    writer.write(encoded(SignedTokens(participant.tokens, participant.identity.sign(signed))))
    creds = await _next(reader, SignedTokens)
    verify_signature(key, creds.signature, transcript.theirs(creds.tokens), "the handshake")
    proven, answer = _judged(hello, creds.tokens, participant, is_administrator(theirs))
    writer.write(encoded(answer))
    await _next(reader, Accepted)
    return proven


def _hello(participant: Participant, nonce: bytes, dialler: str) -> Hello:
    p = participant
    return Hello(
        _versions(p.role, dialler), p.role, p.domain, p.identity.public_key, nonce, p.name, p.me, p.protocol, p.copy
    )


def _peer_certificate(writer: asyncio.StreamWriter) -> bytes:
    tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
    certificate = tls.getpeercert(binary_form=True) if tls is not None else None
    if certificate is None:
        raise PeerError("certificate: the other end has shown none")
    return certificate


def _check_hello(hello: Hello, certificate: bytes, participant: Participant, expected: bytes | None) -> bytes:
    key, domain = certified_by(certificate, participant.anchors)
    _common_version(hello, participant)
    if hello.key != key or hello.domain != domain:
        raise PeerError("hello: the key or the organisation is not the certificate's")
    if len(hello.nonce) != NONCE_BYTES or hello.role not in ("broker", "client"):
        raise PeerError("hello: expected a nonce of 32 bytes and a role")
    if (certified := role_of(certificate)) not in ("", hello.role):
        raise PeerError(f"hello: a {hello.role}, with the certificate of a {certified[:40]}")
    if expected is not None and key != expected:
        raise PeerError(
            f"hello: expected {fingerprint(expected)}, got {fingerprint(key)}: "
            "another broker answers, or this one has a new key"
        )
    if hello.role == participant.role == "broker":
        _check_broker(hello, key, participant)
    return key


def _versions(role: str, other: str) -> tuple[int, ...]:
    """What this program speaks with the other end. Brokers and clients count their versions each by themselves."""
    return BETWEEN_BROKERS if role == other == "broker" else VERSIONS


def _common_version(hello: Hello, participant: Participant) -> int:
    """The highest version that both ends speak; raises PeerError if there is none."""
    ours = _versions(participant.role, hello.role)
    common = [version for version in ours if version in hello.versions]
    if not common:
        theirs, known = (", ".join(map(str, some)) for some in (hello.versions[:8], ours))
        helps = "; update the brokers of a network together" if ours is BETWEEN_BROKERS else "; update the older end"
        raise PeerError(f"version: we speak {known} and they speak {theirs or 'none'}{helps}")
    return max(common)


def _check_broker(hello: Hello, key: bytes, participant: Participant) -> None:
    if hello.me is None or hello.me.id != broker_id(key):
        raise PeerError("hello: a broker's id is made of its key")
    if hello.protocol != participant.protocol:
        raise PeerError(f"protocol: we run {participant.protocol}, they run {hello.protocol[:40]!r}")
    check_copy(key, hello.copy)


@dataclass(frozen=True, slots=True)
class _Transcript:
    our_certificate: bytes
    their_certificate: bytes
    our_nonce: bytes
    their_nonce: bytes
    dialled: bool

    def ours(self, tokens: Sequence[bytes]) -> bytes:
        return self._signed("A" if self.dialled else "B", tokens)

    def theirs(self, tokens: Sequence[bytes]) -> bytes:
        return self._signed("B" if self.dialled else "A", tokens)

    def _signed(self, side: str, tokens: Sequence[bytes]) -> bytes:
        ours = (_digest(self.our_certificate), self.our_nonce)
        theirs = (_digest(self.their_certificate), self.their_nonce)
        (cert_a, nonce_a), (cert_b, nonce_b) = (ours, theirs) if self.dialled else (theirs, ours)
        chains = _digest(b"".join(_digest(token) for token in tokens))
        return _digest(b"".join((b"ps/hs/1", cert_a, cert_b, nonce_a, nonce_b, side.encode(), chains)))


def _digest(raw: bytes) -> bytes:
    return hashlib.sha256(raw).digest()


def _judged(
    hello: Hello, tokens: tuple[bytes, ...], participant: Participant, administers: bool
) -> tuple[Proven, Accepted]:
    """Whether the other end may attach at all. Its tokens are checked when they are used."""
    if len(tokens) > TOKENS_MAX:
        raise PeerError(f"creds: {len(tokens)} tokens; at most {TOKENS_MAX} are allowed")
    if "client" in (hello.role, participant.role) and hello.domain != participant.domain:
        raise Denied(f"domain: a client attaches to a broker of its own organisation, not {hello.domain[:80]!r}")
    if hello.role == participant.role == "client":
        raise PeerError("hello: expected a broker, got another client")
    proven = Proven(
        hello.key,
        hello.domain,
        hello.name[:80],
        hello.role,
        tokens,
        hello.me,
        administers,
        hello.copy,
        _common_version(hello, participant),
    )
    return proven, Accepted(len(tokens))


async def _next(reader: FrameReader, kind: type[_F]) -> _F:
    frames: list[Any] = []
    while not frames:
        frames = await reader.some(at_most=1)
    match frames[0]:
        case None:
            raise PeerError(
                "handshake: the other end has closed the connection without a reason: "
                "it may not trust the authority of our certificate"
            )
        case RequestRefused() as refused:
            raise as_error(refused)
        case Goodbye(why):
            raise PeerError(f"handshake: the other end has closed the connection: {why[:200]}")
        case frame if isinstance(frame, kind):
            return frame
    raise PeerError(f"handshake: expected {kind.__name__}, got {type(frames[0]).__name__}")
