"""The running example: London's cameras publish number plates, and not everybody may read everything.

Randomness is a seeded source here, so that a failing test fails the same way again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from tidings.events import EventType, Value
from tidings.security import Grant, Identity, Keyring, Mode, RandomBytes, SignedType

NOW_MS = 1_763_247_840_123
DAY_MS = 86_400_000

Numberplate = EventType("Numberplate", plate=str, location=str, speed=float)
SIGHTING: dict[str, Value] = {"plate": "AB12CDE", "location": "Russell Square", "speed": 31.0}


def source(seed: int) -> RandomBytes:
    return random.Random(seed).randbytes


def person(number: int) -> Identity:
    return Identity.make(source(1000 + number))


OWNER, MANAGER, CAMERA, DETECTIVE, CHARGE, STRANGER = (person(number) for number in range(6))


def a_type(**fields: Any) -> SignedType:
    return SignedType.make(OWNER, fields.pop("event_type", Numberplate), key_manager=MANAGER.public_key, **fields)


PLATES = a_type()
WHOLE = a_type(mode=Mode.EVENT)
OPEN = a_type(mode=Mode.PLAIN)


def ids(signed_type: SignedType, *names: str) -> frozenset[bytes]:
    return frozenset(signed_type.attr_id(name) for name in names)


def a_keyring(
    signed_type: SignedType,
    names: Iterable[str] | None = None,
    *,
    epoch: int = 3,
    start_ms: int = NOW_MS,
    seed: int = 7,
) -> Keyring:
    """Keys for some attributes (or for all), the same ones for everybody who asks with the same seed."""
    keyring = Keyring(signed_type)
    wanted = None if names is None else ids(signed_type, *names)
    for gid in signed_type.group_ids:
        if wanted is None or gid in wanted:
            keyring.add(gid, epoch, start_ms, random.Random(f"{seed}/{gid.hex()}/{epoch}").randbytes(32))
    return keyring


def a_grant(holder: Identity | None = DETECTIVE, **fields: Any) -> Grant:
    given: dict[str, Any] = {
        "type_id": PLATES.type_id,
        "actions": frozenset({"publish", "subscribe"}),
        "holder": holder.public_key if holder else None,
        "not_before": NOW_MS,
        "not_after": NOW_MS + DAY_MS,
    }
    return Grant(**given | fields)
