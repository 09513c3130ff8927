"""London for Spark tests: a signed type, rights, key files, and frames from a live sealer."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

from tests.unit.security.london import CHARGE, DETECTIVE, NOW_MS, a_keyring, a_type, ids
from tidings.events import EventType, Required, Timestamp, Value
from tidings.pipeline import KeyFile, NonceLeases, write_keys
from tidings.security import Right, Sealer, SignedType

Sighting = EventType("Sighting", plate=Required(str), area=str, speed=float, lane=int, is_night=bool, seen_at=Timestamp)
SIGHTINGS = a_type(event_type=Sighting)
WANTED = "P7"


def sightings(count: int, seed: int = 1) -> list[dict[str, Value]]:
    rng = random.Random(seed)
    return [_sighting(rng) for _ in range(count)]


def _sighting(rng: random.Random) -> dict[str, Value]:
    drawn: dict[str, Value | None] = {
        "plate": f"P{rng.randint(0, 20)}",
        "area": rng.choice([None, "EC2", "Zürich"]),
        "speed": rng.choice([None, 31.5, -0.0, 1e300]),
        "lane": rng.randint(-3, 3),
        "is_night": rng.random() < 0.5,
        "seen_at": Timestamp(rng.randint(0, 2**50)),
    }
    return {name: value for name, value in drawn.items() if value is not None}


def keys(folder: Path, *names: str, signed_type: SignedType = SIGHTINGS) -> KeyFile:
    """A key file with the keys of these attributes, or of all."""
    file = folder / ("-".join(names) or "all")
    return write_keys(f"{file}.keys", a_keyring(signed_type, names or None))


def frames(rows: list[dict[str, Value]], sender_id: int = 7, signed_type: SignedType = SIGHTINGS) -> list[bytes]:
    sealer = Sealer(signed_type, a_keyring(signed_type), sender_id)
    return [sealer.seal(row, NOW_MS) for row in rows]


def rights(signed_type: SignedType = SIGHTINGS) -> dict[str, Right]:
    """The charge reads plates and times; the detective reads all of one plate."""
    common: dict[str, Any] = {
        "type_id": signed_type.type_id,
        "actions": frozenset({"subscribe"}),
        "not_before": NOW_MS - 1000,
        "not_after": NOW_MS + 1000,
        "depth": 0,
    }
    some = ids(signed_type, "plate", "seen_at")
    return {
        "charge": Right(CHARGE.public_key, attributes=some, **common),
        "detective": Right(DETECTIVE.public_key, attributes=None, constraints=(f"plate = '{WANTED}'",), **common),
    }


def leases(folder: Path, run: str = "run-1", first: int = 100) -> NonceLeases:
    """Leases whose ids are counted from `first`, as a registry would."""
    given = itertools.count(first)
    return NonceLeases(folder / "leases.json", run, lambda count: [next(given) for _ in range(count)], now_ms=NOW_MS)
