"""The audit trail: one entry a change, in order, and nothing altered unnoticed."""

from __future__ import annotations

from hashlib import sha256

import pytest
from sqlalchemy.exc import DBAPIError

from tests.unit.security.london import CAMERA, CHARGE, DETECTIVE, NOW_MS
from tests.unit.store.police import BY_OWNER, declare_plates, tamper
from tidings.errors import Denied
from tidings.store import AuditHead, Registry

UNLOCK = {
    "sqlite": ["DROP TRIGGER tidings_audit_no_update", "DROP TRIGGER tidings_audit_no_delete"],
    "postgresql": ["DROP TRIGGER tidings_audit_only_added ON tidings_audit"],
}


@pytest.fixture(autouse=True)
def three_changes(registry: Registry) -> None:
    declare_plates(registry)
    registry.domains.add("ccs", [CHARGE.public_key], by="user me", now_ms=NOW_MS + 1)
    registry.domains.add("yard", [DETECTIVE.public_key], by="user me", now_ms=NOW_MS + 2)


def as_administrator(address: str, *statements: str) -> None:
    """Past the database's own guard, as only somebody can who may alter tables."""
    dialect = "postgresql" if address.startswith("postgresql") else "sqlite"
    tamper(address, *UNLOCK[dialect], *statements)


def test_an_entry_tells_when_who_and_what(registry: Registry) -> None:
    first, second, _ = registry.audit.entries()
    assert (first.position, first.at_ms, first.actor, first.action) == (1, NOW_MS, BY_OWNER, "declare type")
    assert (second.actor, second.subject) == ("user me", "ccs")
    assert [entry.position for entry in registry.audit.entries(after=2)] == [3]


def test_the_hash_is_what_the_reference_says(registry: Registry) -> None:
    before = bytes(32)
    for e in registry.audit.entries():
        quoted = e.details.replace('"', '\\"')
        line = f'[{e.position},{e.at_ms},"{e.actor}","{e.action}","{e.subject}","{quoted}"]'
        assert e.hash == sha256(b"tidings/audit/1\0" + before + line.encode()).digest()
        before = e.hash
    assert registry.audit.head() == registry.audit.verify() == AuditHead(3, before)


@pytest.mark.parametrize("statement", ["UPDATE tidings_audit SET actor = 'x'", "DELETE FROM tidings_audit"])
def test_the_database_itself_refuses_to_change_entries(registry: Registry, address: str, statement: str) -> None:
    with pytest.raises(DBAPIError, match="only added to"):
        tamper(address, statement)
    assert registry.audit.verify().position == 3


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE tidings_audit SET actor = 'x' WHERE position = 2", "broken at entry 2"),
        ("UPDATE tidings_audit SET at_ms = at_ms + 1 WHERE position = 1", "broken at entry 1"),
        ("DELETE FROM tidings_audit WHERE position = 2", "broken at entry 2"),
        ("DELETE FROM tidings_audit WHERE position = 3", "ends at entry 2, but should end at 3"),
        ("DELETE FROM tidings_audit", "ends at entry 0, but should end at 3"),
        ("UPDATE tidings_audit_head SET position = 2", "ends at entry 3, but should end at 2"),
    ],
)
def test_what_was_altered_or_removed_is_found(registry: Registry, address: str, statement: str, why: str) -> None:
    as_administrator(address, statement)
    with pytest.raises(Denied, match=f"audit: .*{why}"):
        registry.audit.verify()


def test_a_trail_cut_off_together_with_its_head_is_found_by_a_head_noted_elsewhere(
    registry: Registry, address: str
) -> None:
    noted = registry.audit.verify()
    assert registry.audit.verify(noted) == noted
    shorter = "(SELECT hash FROM tidings_audit WHERE position = 2)"
    as_administrator(
        address,
        "DELETE FROM tidings_audit WHERE position = 3",
        f"UPDATE tidings_audit_head SET position = 2, hash = {shorter}",
    )
    assert registry.audit.verify().position == 2
    with pytest.raises(Denied, match="does not contain entry 3"):
        registry.audit.verify(noted)


def test_a_noted_head_stays_good_while_the_trail_grows(registry: Registry) -> None:
    noted = [AuditHead(0, bytes(32)), registry.audit.verify()]
    registry.domains.add("cameras", [CAMERA.public_key], by="user me", now_ms=NOW_MS)
    for head in noted:
        assert registry.audit.verify(head).position == 4
