"""Who may see what until when: from a client's own tokens, and for an administrator from the registry.

A client knows its own rights only. An administrator of an organisation, whose registry the console was started with,
sees all rights that the registry knows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import Any

from tidings.console.participants import ConsoleClient
from tidings.errors import Denied
from tidings.net import files_in, read_token
from tidings.security import ANY_TYPE, BiscuitCapability, Right, fingerprint, from_fingerprint, why_not_valid
from tidings.store import KnownGrant, Registry

ROWS_MAX = 2000


async def rights_of(client: ConsoleClient, registry: str) -> dict[str, Any]:
    """The matrix for one client; `source` says where it is from, `rows` are rights, `types` their attributes."""
    types = await client.types()
    by_id = {row["id"]: row for row in types}
    if registry and client.administers:
        found = await asyncio.to_thread(_from_registry, registry, client, by_id)
        if found is not None:
            return {"source": "registry", "rows": found[:ROWS_MAX], "types": _columns(types)}
    return {"source": "own", "rows": own_rights(client, types), "types": _columns(types)}


def own_rights(client: ConsoleClient, types: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rights in the client's own tokens, to the types that its broker knows."""
    held = [read_token(file) for file in files_in(client.config.tokens, ".token")]
    return [
        {**_row(right, type), "who": client.name, "by": "", "state": _state(right)}
        for raw in held
        for type in types
        if type["owner"] and (right := _right(raw, type)) is not None
    ]


def hidden_from(client: ConsoleClient, type: Mapping[str, Any]) -> set[str]:
    """The attributes of a type that no right of the client lets it read."""
    if type["owner"] is None:
        return set()
    seen = {
        name
        for row in own_rights(client, [type])
        if row["state"] == "valid" and "subscribe" in row["actions"]
        for name in row["attributes"]
    }
    return set(type["attributes"]) - seen


def _right(raw: bytes, type: Mapping[str, Any]) -> Right | None:
    try:
        right = BiscuitCapability.from_bytes(raw, from_fingerprint(type["owner"])).right()
    except Denied:
        return None  # Of another owner.
    of = right.type_id if isinstance(right.type_id, str) else right.type_id.hex()
    return right if of == type["id"] else None


def _from_registry(
    address: str, client: ConsoleClient, types: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]] | None:
    """All rights in a registry; None if the client is not of its organisation."""
    with Registry.open(address, now_ms=_now_ms(), create=False) as registry:
        if registry.participants.with_key(client.key) is None:
            return None
        names = registry.domains.names()
        names |= {one.key: f"{client.config.domain}/{one.name}" for one in registry.participants.all()}
        known = registry.grants.all()
    rows = []
    for each in known:
        if each.right.type_id == ANY_TYPE or isinstance(each.right.type_id, str):
            continue
        if (type := types.get(each.right.type_id.hex())) is not None:
            rows.append(_known_row(each, type, names) | {"ends": _ends_with(each, known, names)})
    return rows


def _ends_with(one: KnownGrant, known: Iterable[KnownGrant], names: Mapping[bytes, str]) -> list[str]:
    """Who else would lose a right if this one were revoked: whose token was derived from it."""
    link = one.token.revocation_ids[-1]
    others = (each for each in known if each is not one and link in each.token.revocation_ids)
    return sorted({_name(each.right.holder, names) for each in others})


def _name(key: bytes, names: Mapping[bytes, str]) -> str:
    return names.get(key, fingerprint(key)[:24] + "…")


def _known_row(known: KnownGrant, type: Mapping[str, Any], names: Mapping[bytes, str]) -> dict[str, Any]:
    by = [_name(link.issuer, names) for link in known.token.inspect() if link.issuer]
    refusal = known.refusal(_now_ms())
    return {
        **_row(known.right, type),
        "who": _name(known.right.holder, names),
        "digest": known.token.digest.hex()[:16],
        "revoked": next((id for id in known.token.revocation_ids if id in known.revoked), ""),
        "by": " → ".join(by),
        "chain": by,
        "state": "valid" if refusal is None else refusal.partition(":")[0].replace("validity", "not valid"),
    }


def _row(right: Right, type: Mapping[str, Any]) -> dict[str, Any]:
    names = {bytes.fromhex(id): name for name, id in type["attribute_ids"].items()}
    visible = (
        sorted(type["attributes"]) if right.attributes is None else [names.get(id, "?") for id in right.attributes]
    )
    return {
        "type": type["name"],
        "actions": sorted(right.actions),
        "attributes": sorted(visible),
        "where": list(right.constraints),
        "until_ms": right.not_after,
        "passes_on": right.depth,
    }


def _state(right: Right) -> str:
    return "not valid" if why_not_valid(right.not_before, right.not_after, _now_ms()) else "valid"


def _columns(types: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": each["name"], "attributes": sorted(each["attributes"]), "mode": each["mode"]} for each in types]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
