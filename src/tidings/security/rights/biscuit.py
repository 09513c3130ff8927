"""Rights as Biscuit tokens: carried by their holder, narrowed and verified offline.

The rest of Tidings sees a `Capability`. It is implemented by a Biscuit: an Ed25519 chain of
blocks that contain Datalog. The type's owner signs block 0; a delegation is a third-party block
that the present holder signs; a narrowing is a plain block. Each block holds its grant twice:
as facts, for reading, and as checks, which the verifier runs.

A block is accepted only if it is, byte for byte, what this module writes for its facts. So
`inspect` shows what the checks enforce, and a block whose facts and checks differ is refused as
a whole ("form"). A Biscuit is a bearer token; ours names its holder, and the verifier compares
that with the key that the other side has proven to hold.

    token.verify(request, now_ms=…, proven_key=…, revoked=…)    returns, or raises Denied: "validity: …"
"""

from __future__ import annotations

import base64
import binascii
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from hashlib import sha256
from typing import Any

from biscuit_auth import (
    Algorithm,
    AuthorizationError,
    AuthorizerBuilder,
    Biscuit,
    BiscuitBuilder,
    BiscuitValidationError,
    BlockBuilder,
    PrivateKey,
    PublicKey,
)

from tidings.errors import Denied, ErrorCode, InputError
from tidings.security.identity import Identity, RandomBytes, fingerprint
from tidings.security.rights.actions import ANY_TYPE
from tidings.security.rights.reduction import AccessRequest, Grant, OnlineTest, Right, reduce
from tidings.security.validity import why_not_valid

TOKEN_BYTES_MAX = 2**19  # Two full lists of 4096 attribute ids.
BLOCKS_MAX = 32  # Far more delegations than an honest right has.
ID_BYTES = 16
RUN_TIME_MAX = timedelta(seconds=2)  # The library's own 1 ms refuses honest tokens on a busy machine.


class Capability(ABC):
    """A right its holder carries. Only ever narrowed, never widened; checked offline."""

    @abstractmethod
    def to_bytes(self) -> bytes:
        """The token in its binary form."""

    @abstractmethod
    def inspect(self) -> tuple[Grant, ...]:
        """The chain of grants, the owner's first."""

    @property
    @abstractmethod
    def revocation_ids(self) -> tuple[str, ...]:
        """One id for each link; revoking one revokes every token that contains the link."""

    @abstractmethod
    def narrow(self, grant: Grant, signer: Identity | None = None) -> Capability:
        """A narrower token: for oneself, or, with `signer` the present holder, for `grant.holder`."""

    @abstractmethod
    def verify(
        self,
        request: AccessRequest,
        *,
        now_ms: int,
        proven_key: bytes,
        revoked: Collection[str] = (),
        online: Mapping[str, int] | None = None,
    ) -> None:
        """Returns if the token covers the request; raises Denied naming the check that failed."""

    def right(self) -> Right:
        """The right that the chain reduces to, apart from any request; raises Denied if nothing is left."""
        chain = self.inspect()
        return reduce(chain, chain[0].issuer or b"")

    @property
    def digest(self) -> bytes:
        """A digest that identifies this token, for caches and audit trails."""
        return sha256(self.to_bytes()).digest()


@dataclass(frozen=True, slots=True)
class BiscuitCapability(Capability):
    """A Biscuit whose signatures and form have been checked against its root key."""

    _raw: bytes
    _token: Biscuit = field(compare=False)
    _chain: tuple[Grant, ...] = field(compare=False)

    @classmethod
    def from_bytes(cls, raw: bytes, owner_key: bytes) -> BiscuitCapability:
        """A received token; raises Denied unless `owner_key` started it and every block is in form."""
        if len(raw) > TOKEN_BYTES_MAX:
            raise Denied(f"form: a token of {len(raw)} bytes; at most {TOKEN_BYTES_MAX} are allowed")
        try:
            token = Biscuit.from_bytes(raw, _public(owner_key))
        except (BiscuitValidationError, ValueError):
            why = f"signature: not a valid token of {fingerprint(owner_key)}"
            raise Denied(why, code=ErrorCode.SIGNATURE) from None
        if bytes(token.to_bytes()) != raw:  # Otherwise one token would have many digests.
            raise Denied("form: the token has more in it than its links")
        return cls(bytes(raw), token, _read_chain(token, owner_key))

    def to_bytes(self) -> bytes:
        return self._raw

    def __reduce__(self) -> tuple[Any, ...]:
        return BiscuitCapability.from_bytes, (self._raw, self._chain[0].issuer)

    def __repr__(self) -> str:
        return f"BiscuitCapability({self.digest.hex()[:16]}…, {len(self._chain)} links)"

    def inspect(self) -> tuple[Grant, ...]:
        return self._chain

    @property
    def revocation_ids(self) -> tuple[str, ...]:
        return tuple(self._token.revocation_ids)

    def narrow(self, grant: Grant, signer: Identity | None = None) -> BiscuitCapability:
        """Appends a link. It may ask for more than the token holds; it only ever gets what both allow.

        Raises InputError where `signer` and `grant.holder` do not go together, and Denied where the
        chain would come to nothing: better to say so now than to have it refused later.
        """
        if (signer is None) != (grant.holder is None):
            raise InputError("a delegation needs a new holder and the present one's signature; a narrowing neither")
        issuer = signer.public_key if signer else None
        link = _with(grant, issuer)
        reduce((*self._chain, link), self._chain[0].issuer or b"")
        level = _level(self._chain) + (signer is not None)
        block = BlockBuilder(*datalog_of(link, level))
        if signer is None:
            token = self._token.append(block)
        else:
            third = self._token.third_party_request().create_block(_private(signer), block)
            token = self._token.append_third_party(_public(signer.public_key), third)
        return BiscuitCapability(bytes(token.to_bytes()), token, (*self._chain, link))

    def verify(
        self,
        request: AccessRequest,
        *,
        now_ms: int,
        proven_key: bytes,
        revoked: Collection[str] = (),
        online: Mapping[str, int] | None = None,
    ) -> None:
        for index, id in enumerate(self.revocation_ids):
            if id in revoked:
                raise Denied(f"revoked: link {index} ({id[:16]}…) has been revoked")
        authorizer = self._authorizer(request, now_ms, proven_key, online or {}).build(self._token)
        try:
            authorizer.authorize()
        except AuthorizationError as refused:
            raise Denied(_why(str(refused), self._chain, request, now_ms, proven_key)) from None

    def _authorizer(
        self, request: AccessRequest, now_ms: int, proven_key: bytes, online: Mapping[str, int]
    ) -> AuthorizerBuilder:
        code = [
            "now({now}); request_type({type}); request_action({action}); request_attributes({attributes});",
            "delegations({level}); allow if true;",
        ]
        facts: dict[str, Any] = {
            "now": now_ms,
            "type": request.type_id,
            "action": request.action,
            "attributes": set(request.attributes),
            "level": _level(self._chain),
        }
        for index, (url, said_yes) in enumerate(sorted(online.items())):
            code.append(f"said_yes({{url{index}}}, {{at{index}}});")
            facts |= {f"url{index}": url.encode(), f"at{index}": said_yes}
        scopes = self._custody(code, facts, proven_key)
        builder = AuthorizerBuilder("\n".join(code), facts, scopes)
        limits = builder.limits()  # type: ignore[attr-defined]
        limits.max_time = RUN_TIME_MAX
        builder.set_limits(limits)  # type: ignore[attr-defined]
        return builder

    def _custody(self, code: list[str], facts: dict[str, Any], proven_key: bytes) -> dict[str, PublicKey]:
        """Checks, one for each delegation: the holder named before it signed it."""
        scopes: dict[str, PublicKey] = {}
        hands = [link for link in self._chain if link.holder is not None]
        signers = [link.issuer or b"" for link in hands[1:]] + [proven_key]
        for level, (link, next_key) in enumerate(zip(hands, signers, strict=True)):
            said_by = "authority" if level == 0 else f"{{by{level}}}"
            code.append(f"check if holder({level}, {{next{level}}}) trusting {said_by};")
            facts[f"next{level}"] = next_key
            if level > 0:
                scopes[f"by{level}"] = _public(link.issuer or b"")
        return scopes


def grant(owner: Identity, granted: Grant, random: RandomBytes) -> BiscuitCapability:
    """A new token: `owner` gives `granted.holder` this right.

    Its `id` is drawn from `random` unless it has one. The chain's inner keys are drawn by the
    Biscuit library from the system, whatever `random` is.
    """
    if granted.holder is None:
        raise InputError("a grant needs a holder")
    root = _with(granted, owner.public_key, granted.id or random(ID_BYTES))
    token = BiscuitBuilder(*datalog_of(root, 0)).build(_private(owner))
    return BiscuitCapability(bytes(token.to_bytes()), token, (root,))


class Verifier:
    """Reads tokens and caches the latest: verifying a signature costs a hundred times an encryption.

    Remembers only that the signatures and the form are right. Time, holder and revocation are
    asked anew each time.
    """

    def __init__(self, remembered_max: int = 1024) -> None:
        self._remembered_max = remembered_max
        self._tokens: dict[tuple[bytes, bytes], BiscuitCapability] = {}

    def read(self, raw: bytes, owner_key: bytes) -> BiscuitCapability:
        """As `BiscuitCapability.from_bytes`."""
        name = (sha256(raw).digest(), owner_key)
        token = self._tokens.pop(name, None) or BiscuitCapability.from_bytes(raw, owner_key)
        while len(self._tokens) >= self._remembered_max:
            del self._tokens[next(iter(self._tokens))]
        self._tokens[name] = token
        return token


# ── One grant as one block ───────────────────────────────────────────────────


def datalog_of(link: Grant, level: int) -> tuple[str, dict[str, Any]]:
    """The Datalog of one link, and its parameters. Texts go in as bytes: the library prints them unescaped."""
    code = [
        "grant({id});",
        "type({type});",
        f"actions({_listed(link.actions)});",
        "valid({from}, {to});",
        "delegation({may}, {deep});",
    ]
    facts: dict[str, Any] = {"id": link.id, "type": link.type_id}
    facts |= {"from": link.not_before, "to": link.not_after, "may": link.delegate, "deep": link.max_depth}
    facts |= {"level": level, "last": level + link.steps}
    if link.holder is not None:
        code.append("holder({level}, {holder});")
        facts["holder"] = link.holder
    if link.attributes is not None:
        code.append("attributes({attributes});")
        facts["attributes"] = set(link.attributes)
    for index, text in enumerate(link.constraints):
        code.append(f"constraint({{constraint{index}}});")
        facts[f"constraint{index}"] = text.encode()
    for index, test in enumerate(link.online):
        code.append(f"online({{url{index}}}, {{age{index}}});")
        facts |= {f"url{index}": test.url.encode(), f"age{index}": test.max_age_ms}
    code += [f"{text};" for _, text in _checks(link)]
    used = "\n".join(code)
    return used, {name: value for name, value in facts.items() if f"{{{name}}}" in used}


def _checks(link: Grant) -> list[tuple[str, str]]:
    """The checks of one block, in order, each with the name a refusal gives it."""
    checks = [
        ("type", "check if request_type({type})"),
        ("action", f"check if request_action($asked), {_listed(link.actions)}.contains($asked)"),
        ("validity", "check if now($now), $now >= {from}, $now < {to}"),
        ("depth", "check if delegations($steps), $steps <= {last}"),
    ]
    if link.attributes is not None:
        checks.append(("attributes", "check if request_attributes($asked), {attributes}.contains($asked)"))
    for index in range(len(link.online)):
        text = f"check if said_yes({{url{index}}}, $at), now($now), $at <= $now, $now - $at <= {{age{index}}}"
        checks.append(("online", text))
    return checks


def _listed(actions: frozenset[str]) -> str:
    """Actions as a Datalog array. Not a set: of texts, the library prints a set in an order of its own."""
    return "[" + ", ".join(f'"{action}"' for action in sorted(actions)) + "]"


_HEX = r"hex:((?:[0-9a-f]{2})*)"
_INT = r"(-?[0-9]{1,19})"
_FACTS = {
    name: re.compile(pattern)
    for name, pattern in {
        "grant": rf"grant\({_HEX}\);",
        "type": rf'type\((?:{_HEX}|"(\*)")\);',
        "actions": r'actions\(\[((?:"[a-z-]{1,20}"(?:, )?)+)\]\);',
        "valid": rf"valid\({_INT}, {_INT}\);",
        "delegation": rf"delegation\((true|false), {_INT}\);",
        "holder": rf"holder\({_INT}, {_HEX}\);",
        "attributes": rf"attributes\(\{{((?:{_HEX}(?:, )?)+)\}}\);",
        "constraint": rf"constraint\({_HEX}\);",
        "online": rf"online\({_HEX}, {_INT}\);",
    }.items()
}


def _read_chain(token: Biscuit, owner_key: bytes) -> tuple[Grant, ...]:
    if token.block_count() > BLOCKS_MAX:
        raise Denied(f"form: {token.block_count()} links; at most {BLOCKS_MAX} are allowed")
    chain: list[Grant] = []
    level = 0
    for index in range(token.block_count()):
        signer = owner_key if index == 0 else _signer(token.block_external_key(index), index)
        source = token.block_source(index)
        link = _read_block(source, signer, index)
        level += link.holder is not None and index > 0
        if (signer is None) != (link.holder is None) or not _is_written(link, level, source, index):
            raise Denied(f"form: link {index} is not as Tidings writes links")
        chain.append(link)
    return tuple(chain)


def _read_block(source: str, issuer: bytes | None, index: int) -> Grant:
    found: dict[str, list[re.Match[str]]] = {name: [] for name in _FACTS}
    for line in source.splitlines():
        fact = _FACTS.get(line.partition("(")[0])
        if fact and (match := fact.fullmatch(line)):
            found[line.partition("(")[0]].append(match)
    try:
        return _grant_from(found, issuer)
    except (IndexError, ValueError, InputError) as wrong:
        raise Denied(f"form: link {index} is not as Tidings writes links: {wrong}") from None


def _grant_from(found: dict[str, list[re.Match[str]]], issuer: bytes | None) -> Grant:
    (may, depth), (start, end) = found["delegation"][0].groups(), found["valid"][0].groups()
    type_id, any_type = found["type"][0].groups()
    return Grant(
        type_id=ANY_TYPE if any_type else bytes.fromhex(type_id),
        actions=frozenset(re.findall(r'"([a-z-]+)"', found["actions"][0][1])),
        holder=bytes.fromhex(found["holder"][0][2]) if found["holder"] else None,
        issuer=issuer,
        attributes=_ids(found["attributes"][0][1]) if found["attributes"] else None,
        not_before=int(start),
        not_after=int(end),
        delegate=may == "true",
        max_depth=int(depth),
        online=tuple(OnlineTest(bytes.fromhex(m[1]).decode(), int(m[2])) for m in found["online"]),
        constraints=tuple(bytes.fromhex(m[1]).decode() for m in found["constraint"]),
        id=bytes.fromhex(found["grant"][0][1]),
    )


def _ids(listed: str) -> frozenset[bytes]:
    return frozenset(bytes.fromhex(item.removeprefix("hex:")) for item in listed.split(", "))


def _is_written(link: Grant, level: int, source: str, index: int) -> bool:
    """Whether `source` is exactly the block this file writes for `link`: facts and checks, and nothing else."""
    if index == 0:
        ours = BiscuitBuilder(*datalog_of(link, level)).build(_SCRATCH).block_source(0)
    else:
        ours = _SCRATCH_TOKEN.append(BlockBuilder(*datalog_of(link, level))).block_source(1)
    return ours == source


def _level(chain: Sequence[Grant]) -> int:
    """How often the right was delegated."""
    return sum(link.holder is not None for link in chain) - 1


def _with(link: Grant, issuer: bytes | None, id: bytes | None = None) -> Grant:
    return replace(link, issuer=issuer, id=link.id if id is None else id)


# ── Refusals ─────────────────────────────────────────────────────────────────

_FAILED = re.compile(r"Check n°(\d+) in (?:block n°(\d+)|authorizer)")


def _why(refusal: str, chain: tuple[Grant, ...], request: AccessRequest, now_ms: int, proven_key: bytes) -> str:
    """Names the first check that failed, in the order of the links and the custody checks last."""
    failed = sorted((int(block or BLOCKS_MAX), int(number)) for number, block in _FAILED.findall(refusal))
    if not failed:
        return f"token: {refusal[:200]}"
    index, number = failed[0]
    if index == BLOCKS_MAX:
        return _why_custody(chain, number, proven_key)
    link = chain[index]
    check = _checks(link)[number][0]
    detail = {
        "type": f"is not for {request.type_id!r}",
        "action": f"{request.action} is not allowed, only {' and '.join(sorted(link.actions))}",
        "attributes": "does not cover every attribute asked for",
        "validity": why_not_valid(link.not_before, link.not_after, now_ms),
        "depth": f"allows {link.steps} more delegations",
        "online": "has no recent confirmation from its online test",
    }[check]
    return f"{check}: link {index} {detail}"


def _why_custody(chain: tuple[Grant, ...], level: int, proven_key: bytes) -> str:
    hands = [link for link in chain if link.holder is not None]
    holder = fingerprint(hands[level].holder or b"")
    if level == len(hands) - 1:
        return f"holder: the right is {holder}'s, not {fingerprint(proven_key)}'s"
    return f"issuer: delegation {level + 1} is not signed by the holder {holder}"


def _signer(shown: object, index: int) -> bytes | None:
    if shown is None:
        return None
    kind, _, digits = str(shown).partition(
        "/"
    )  # The library's stub promises a text; it gives a key that prints as one.
    if kind != "ed25519":
        raise Denied(f"form: link {index} is signed with {kind}; expected ed25519")
    return bytes.fromhex(digits)


def _public(key: bytes) -> PublicKey:
    return PublicKey.from_bytes(key, Algorithm.Ed25519)  # type: ignore[call-arg, attr-defined]


def _private(identity: Identity) -> PrivateKey:
    return PrivateKey.from_bytes(identity.secret, Algorithm.Ed25519)  # type: ignore[call-arg, attr-defined]


# Blocks are compared as text, and only the library can print one: this key signs nothing that leaves this module.
_SCRATCH = _private(Identity(bytes(32)))
_SCRATCH_TOKEN = BiscuitBuilder("scratch(true);").build(_SCRATCH)


def token_of(text: str, where: str) -> bytes:
    """The bytes of a token from its text. A text that is not Base64 is wrong input; a truncated token is refused as forged."""
    bare = text.strip().rstrip("=")
    if not re.fullmatch(r"[A-Za-z0-9_-]+", bare):
        # Not shown: it may be a private key, named by mistake.
        raise InputError(f"{where}: expected a token, which is one line of letters, digits, - and _")
    try:
        return base64.urlsafe_b64decode(bare + "=" * (-len(bare) % 4))
    except binascii.Error:
        raise Denied("form: the token is cut short") from None
