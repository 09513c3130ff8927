"""Who is who in London, what each may read, and how each comes by its keys.

Transport for London owns the event type and gives rights. A key manager, which is somebody else,
hands the keys of attributes to whoever shows a right to them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tidings.events import EventType, Timestamp
from tidings.pipeline import write_keys
from tidings.security import (
    BiscuitCapability,
    Grant,
    Identity,
    KeyManager,
    Keyring,
    Reply,
    SealingKey,
    SignedType,
    grant,
    make_join,
    open_welcome,
)
from tidings.store import Registry

Sighting = EventType("Sighting", plate=str, in_zone=bool, area=str, speed=float, camera=int, seen_at=Timestamp)
WANTED_PLATE = "LB07SEC"
HOUR_MS = 3_600_000

RELAY = "Relay"  # Passes frames on and has no right to anything.
MAY_READ: dict[str, tuple[str, ...]] = {
    "Congestion Charge": ("plate", "in_zone", "seen_at"),
    "Detective": tuple(attribute.name for attribute in Sighting),
    "Road Safety": ("area", "speed", "seen_at"),
    "Camera Repair": ("camera", "speed"),
}
ONLY_WHERE = {"Detective": (f"plate = '{WANTED_PLATE}'",)}


@dataclass(frozen=True)
class London:
    """The type, and a way to join its key groups: for a name and a right, a keyring and a sender id."""

    signed_type: SignedType
    join: Callable[[Identity, BiscuitCapability, tuple[str, ...]], tuple[Keyring, int]]
    owner: Identity


def found_london(out: Path) -> London:
    """A registry with the type, the organisations and their rights, and a key file for each of them."""
    now_ms = time.time_ns() // 1_000_000
    owner, manager = Identity.make(secrets.token_bytes), Identity.make(secrets.token_bytes)
    signed_type = SignedType.make(owner, Sighting, key_manager=manager.public_key)
    with Registry.open(out / "registry.db", now_ms=now_ms) as registry:
        registry.types.declare(signed_type, by="Transport for London", now_ms=now_ms)
    london = London(signed_type, joining(out, signed_type, manager, now_ms), owner)
    for name, attributes in MAY_READ.items():
        give_right(london, out, name, attributes, now_ms)
    write_keys(out / f"{RELAY}.keys", Keyring(signed_type))
    pipeline, token = publisher(london, now_ms)
    write_keys(out / "pipeline.keys", london.join(pipeline, token, MAY_READ["Detective"])[0])
    return london


def give_right(london: London, out: Path, name: str, attributes: tuple[str, ...], now_ms: int) -> None:
    """A token for an organisation, kept in the registry; with it, the keys it may have, in a file of its own."""
    identity = Identity.make(secrets.token_bytes)
    token = token_for(london, identity, {"subscribe"}, attributes, now_ms, ONLY_WHERE.get(name, ()))
    with Registry.open(out / "registry.db", now_ms=now_ms) as registry:
        registry.domains.add(name, [identity.public_key], by="Transport for London", now_ms=now_ms)
        registry.grants.add(token, by="Transport for London", now_ms=now_ms)
    write_keys(out / f"{name}.keys", london.join(identity, token, attributes)[0])


def publisher(london: London, now_ms: int) -> tuple[Identity, BiscuitCapability]:
    """Somebody at Transport for London itself, who may publish and read everything."""
    identity = Identity.make(secrets.token_bytes)
    return identity, token_for(london, identity, {"publish", "subscribe"}, MAY_READ["Detective"], now_ms)


def token_for(
    london: London,
    holder: Identity,
    actions: set[str],
    attributes: tuple[str, ...],
    now_ms: int,
    constraints: tuple[str, ...] = (),
) -> BiscuitCapability:
    given = Grant(
        london.signed_type.type_id,
        frozenset(actions),
        holder=holder.public_key,
        attributes=frozenset(london.signed_type.attr_id(name) for name in attributes),
        not_before=now_ms - HOUR_MS,
        not_after=now_ms + HOUR_MS,
        constraints=constraints,
    )
    return grant(london.owner, given, secrets.token_bytes)


def joining(
    out: Path, signed_type: SignedType, manager_identity: Identity, now_ms: int
) -> Callable[[Identity, BiscuitCapability, tuple[str, ...]], tuple[Keyring, int]]:
    """How one joins: the manager checks the token and answers, sealed to the joiner. Sender ids are the registry's."""

    def next_sender_id() -> int:
        with Registry.open(out / "registry.db", now_ms=now_ms) as registry:
            return registry.keys.new_sender_ids(signed_type.type_id, by="key manager", now_ms=now_ms)[0]

    manager = KeyManager(
        signed_type, manager_identity, secrets.token_bytes, now_ms, lead_ms=0, next_sender_id=next_sender_id
    )

    def join(holder: Identity, token: BiscuitCapability, attributes: tuple[str, ...]) -> tuple[Keyring, int]:
        kex = SealingKey.make(secrets.token_bytes)
        gids = [signed_type.attr_id(name) for name in attributes]
        asked, nonce = make_join(
            signed_type, gids, token.to_bytes(), holder, kex, now_ms=now_ms, random=secrets.token_bytes
        )
        (reply,) = [effect for effect in manager.join(asked, now_ms) if isinstance(effect, Reply)]
        welcome = open_welcome(signed_type, reply.message, nonce, holder, kex)
        keyring = Keyring(signed_type)
        for share in welcome.shares:
            keyring.add(share.gid, share.epoch, share.start_ms, share.dek)
        return keyring, welcome.sender_id

    return join
