"""Tokens on the command line: read from files, looked up in a registry if there is one, and displayed."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidings.cli.registry.registry import local_and_utc, open_registry, show_key, show_moment
from tidings.cli.terminal import Output, Row
from tidings.errors import Denied, ErrorCode, InputError, TidingsError, did_you_mean
from tidings.security import ANY_TYPE, fingerprint, from_fingerprint

if TYPE_CHECKING:
    from tidings.security import BiscuitCapability, Grant, SignedType
    from tidings.store import KnownGrant, Registry

TOKEN_CHARACTERS_MAX = 2**20  # Base64 of the longest token there can be, and room to spare.
STDIN = "-"
UNKNOWN_TYPE = "a type that this registry does not know; `tidings type import FILE` makes it known"
UNKNOWN_ATTRIBUTE = "unknown"


def read_token(file: str) -> bytes:
    """The bytes of a token in a file or on stdin; raises InputError for a file with several rights in it."""
    found, _ = read_tokens(file)
    if len(found) != 1:
        raise InputError(f"{file}: expected one right, got {len(found)}; `tidings grant accept` takes them all")
    return found[0]


def read_tokens(file: str) -> tuple[list[bytes], list[SignedType]]:
    """The tokens in a file or on stdin, and the types that come with rights for an organisation."""
    if file == STDIN:
        text = sys.stdin.read(TOKEN_CHARACTERS_MAX)
    else:
        with open(file, encoding="ascii", errors="replace") as stream:
            text = stream.read(TOKEN_CHARACTERS_MAX)
    from tidings.security import token_of

    if not text.lstrip().startswith("{"):
        return [token_of(text, file)], []
    from tidings.net import RightBundle, parse_document, types_of

    bundle, _ = parse_document(text.encode(), RightBundle, file)
    return [token_of(each, file) for each in bundle.tokens], types_of(bundle.types)


@dataclass(frozen=True, slots=True)
class TokenContext:
    """The types and names of a registry that are needed to read tokens; empty if there is no registry."""

    types: dict[bytes, SignedType]
    names: dict[bytes, str]
    registry: str | None

    @classmethod
    def of(cls, registry: str) -> TokenContext:
        """From a registry, if it exists: tokens can be read and narrowed without one."""
        if "://" not in registry and not Path(registry).exists():
            return cls({}, {}, None)
        with open_registry(registry) as opened:
            return cls.of_open(opened, registry)

    @classmethod
    def of_open(cls, opened: Registry, registry: str) -> TokenContext:
        return cls({signed.type_id: signed for signed in opened.types.all()}, opened.domains.names(), registry)

    def knowing(self, types: Sequence[SignedType]) -> TokenContext:
        """The same, and these types."""
        return replace(self, types={**self.types, **{signed.type_id: signed for signed in types}})

    def read(self, raw: bytes, owner: str | None) -> BiscuitCapability:
        """The token, if one of the known owners issued it, or the one that --owner names."""
        from tidings.security import BiscuitCapability

        if owner is not None:
            return BiscuitCapability.from_bytes(raw, self.key_of(owner))
        owners = dict.fromkeys((*(signed.owner_key for signed in self.types.values()), *self.names))
        if not owners:
            raise InputError("the token's owner is unknown without a registry; name it: --owner ed25519:…")
        for key in owners:
            try:
                return BiscuitCapability.from_bytes(raw, key)
            except Denied as refused:
                if refused.code is not ErrorCode.SIGNATURE:
                    raise
        why = "signature: not a valid token of any owner in the registry; --owner names another"
        raise Denied(why, code=ErrorCode.SIGNATURE)

    def key_of(self, name: str) -> bytes:
        if name.startswith("ed25519:"):
            return from_fingerprint(name)
        keys = [key for key, domain in self.names.items() if domain == name]
        if len(keys) != 1:
            hint = did_you_mean(name, self.names.values()) if not keys else "it has several; give one as ed25519:…"
            raise InputError(f"expected ed25519:… or the name of a domain, got {name[:100]!r}; {hint}")
        return keys[0]

    def type_of(self, token: BiscuitCapability) -> SignedType | None:
        type_id = token.inspect()[0].type_id
        return self.types.get(type_id) if isinstance(type_id, bytes) else None

    def type_id_of(self, name: str) -> bytes | str:
        """The id of a type by any of its names; without a registry, only by the id itself."""
        if name == ANY_TYPE:
            return ANY_TYPE
        if self.registry is None:
            if not re.fullmatch("[0-9a-f]{64}", name):
                raise InputError("without a registry, expected --type as an id of 64 hexadecimal digits")
            return bytes.fromhex(name)
        with open_registry(self.registry) as opened:
            return opened.types.find(name).type_id

    def revoked(self, token: BiscuitCapability) -> frozenset[str]:
        if self.registry is None:
            return frozenset()
        with open_registry(self.registry) as opened:
            return opened.grants.revoked(token.revocation_ids)


# ── Display ──────────────────────────────────────────────────────────────────

GRANT_COLUMNS = ("digest", "type", "by", "holder", "actions", "attributes", "where", "role", "until", "state")


def _attribute_names(ids: frozenset[bytes] | None, signed: SignedType | None) -> list[str] | None:
    if ids is None:
        return None
    named = signed.attributes_by_id if signed else {}
    return sorted(named[id].name if id in named else UNKNOWN_ATTRIBUTE for id in ids)


def type_name(type_id: bytes | str, signed: SignedType | None) -> str:
    return (
        type_id
        if isinstance(type_id, str)
        else f"{signed.event_type.name}@{signed.version}"
        if signed
        else UNKNOWN_TYPE
    )


def link_row(token: BiscuitCapability, index: int, context: TokenContext) -> Row:
    link, signed = token.inspect()[index], context.type_of(token)
    attributes = _attribute_names(link.attributes, signed)
    return {
        "link": index,
        "by": show_key(link.issuer, context.names) if link.issuer else "the holder",
        "to": show_key(link.holder, context.names) if link.holder else "itself",
        "type": type_name(link.type_id, signed),
        "actions": ", ".join(sorted(link.actions)),
        "attributes": "all" if attributes is None else ", ".join(attributes),
        "where": " AND ".join(link.constraints),
        "from": local_and_utc(link.not_before),
        "until": local_and_utc(link.not_after),
        "passes on": show_depth(link.steps),
    }


def show_depth(steps: int) -> str:
    """How often a right may be delegated.

    >>> show_depth(0), show_depth(1), show_depth(3)
    ('no', 'once', '3 times')
    """
    return {0: "no", 1: "once"}.get(steps, f"{steps} times")


def _link_json(link: Grant, signed: SignedType | None, revocation_id: str) -> dict[str, Any]:
    return {
        "by": fingerprint(link.issuer) if link.issuer else None,
        "to": fingerprint(link.holder) if link.holder else None,
        "actions": sorted(link.actions),
        "attributes": _attribute_names(link.attributes, signed),
        "where": list(link.constraints),
        "online": [test.url for test in link.online],
        "from": show_moment(link.not_before),
        "until": show_moment(link.not_after),
        "depth": link.steps,
        "revocation_id": revocation_id,
    }


def token_json(token: BiscuitCapability, context: TokenContext, refused: TidingsError | None) -> Row:
    from tidings.store import owner_of

    chain, signed = token.inspect(), context.type_of(token)
    links = [_link_json(link, signed, id) for link, id in zip(chain, token.revocation_ids, strict=True)]
    said = {"digest": token.digest.hex(), "owner": fingerprint(owner_of(token))}
    said["type"] = type_name(chain[0].type_id, signed)
    return {**said, **_right_json(token, signed), "links": links, "refused": str(refused) if refused else None}


def _right_json(token: BiscuitCapability, signed: SignedType | None) -> dict[str, Any]:
    """The resulting right of the chain; empty if there is none."""
    try:
        right = token.right()
    except Denied:
        return {"holder": None, "actions": [], "attributes": []}
    return {
        "holder": fingerprint(right.holder),
        "actions": sorted(right.actions),
        "attributes": _attribute_names(right.attributes, signed),
        "where": list(right.constraints),
        "from": show_moment(right.not_before),
        "until": show_moment(right.not_after),
        "depth": right.depth,
    }


def grant_row(one: KnownGrant, context: TokenContext, now: int, output: Output) -> Row:
    signed, why = context.type_of(one.token), one.refusal(now)
    if output is Output.JSON:
        return token_json(one.token, context, Denied(why) if why else None)
    return {
        "digest": one.token.digest.hex()[:12],
        "type": type_name(one.right.type_id, signed),
        "by": show_chain(one.token, context.names),
        "holder": show_key(one.right.holder, context.names),
        "actions": ", ".join(sorted(one.right.actions)),
        "attributes": show_attributes(one.right.attributes, signed),
        "where": " AND ".join(one.right.constraints),
        "role": one.role,
        "until": local_and_utc(one.right.not_after) + (", renewed" if one.lasts_ms and not why else ""),
        "state": Denied(why).code.value if why else "valid",
    }


def show_attributes(ids: frozenset[bytes] | None, signed: SignedType | None) -> str:
    names = _attribute_names(ids, signed)
    return "all" if names is None else ", ".join(names)


def show_chain(token: BiscuitCapability, names: dict[bytes, str]) -> str:
    """Who has granted a right, and through whose hands it came."""
    return " → ".join(show_key(link.issuer, names) for link in token.inspect() if link.issuer)


def newest_of_each(grants: Sequence[KnownGrant]) -> list[KnownGrant]:
    """Of a right and its renewals the newest, in the order of the first."""
    newest: dict[object, KnownGrant] = {}
    for one in grants:
        key = (one.series, one.revoked) if one.lasts_ms else one.token.digest
        if key not in newest or one.right.not_after >= newest[key].right.not_after:
            newest[key] = one
    return list(newest.values())
