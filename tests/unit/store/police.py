"""Ready things for the registry's tests: what London's police would keep in theirs."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from sqlalchemy import text

from tests.unit.security.london import CHARGE, NOW_MS, OWNER, PLATES, a_grant, source
from tidings.security import BiscuitCapability, Identity, fingerprint, grant
from tidings.store import KeptSubscription, Registry
from tidings.store.database import Database

BY_OWNER = fingerprint(OWNER.public_key)


def declare_plates(registry: Registry) -> None:
    registry.types.declare(PLATES, by=BY_OWNER, now_ms=NOW_MS)


def a_token(holder: Identity = CHARGE, **fields: Any) -> BiscuitCapability:
    return grant(OWNER, a_grant(holder, **fields), source(1))


def a_subscription(
    condition: str = "speed > 20.0", *, holder: Identity = CHARGE, id: str = "ccs-1", token: bytes | None = None
) -> KeptSubscription:
    shown = a_token(holder).to_bytes() if token is None else token
    return KeptSubscription.make(holder, PLATES, condition, id=id, subscriber="ccs", token=shown)


def tamper(address: str, *statements: str) -> None:
    """What somebody with the database in hand can do, past the registry."""
    with closing(Database.open(address, NOW_MS)) as database, database.transaction() as connection:
        for statement in statements:
            connection.execute(text(statement))


def actions(registry: Registry) -> list[str]:
    return [entry.action for entry in registry.audit.entries()]
