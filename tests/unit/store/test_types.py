"""Event types in the registry: signed, versioned, never replaced, checked whenever they are read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.security.london import NOW_MS, OWNER, PLATES, STRANGER, Numberplate, a_type
from tests.unit.store.police import actions, declare_plates, tamper
from tidings.errors import Denied, InputError, PeerError
from tidings.events import EventType
from tidings.security import Mode, SignedType
from tidings.store import Registry


def test_a_declared_type_is_found_by_name_version_full_name_and_id(registry: Registry) -> None:
    declare_plates(registry)
    for name in ("Numberplate", "Numberplate@1", PLATES.name, PLATES.type_id.hex()):
        assert registry.types.find(name) == PLATES
    assert registry.types.with_id(PLATES.type_id) == PLATES


def test_the_bare_name_means_the_newest_version(registry: Registry) -> None:
    for version in (1, 10, 9):
        registry.types.declare(a_type(version=version), by="owner", now_ms=NOW_MS)
    assert registry.types.find("Numberplate").version == 10
    assert registry.types.find("Numberplate@9").version == 9
    assert [signed.version for signed in registry.types.all()] == [1, 9, 10]


def test_declaring_the_very_same_again_changes_nothing(registry: Registry) -> None:
    declare_plates(registry)
    assert not registry.types.declare(PLATES, by="owner", now_ms=NOW_MS)
    assert actions(registry) == ["declare type"]


def test_a_declared_version_is_not_replaced(registry: Registry) -> None:
    declare_plates(registry)
    with pytest.raises(InputError, match="another definition; a changed type is a new version: --version 2"):
        registry.types.declare(a_type(mode=Mode.EVENT), by="owner", now_ms=NOW_MS)
    assert registry.types.find("Numberplate") == PLATES


def test_a_type_that_its_owner_did_not_sign_is_not_kept(registry: Registry) -> None:
    forged = replace(PLATES, grace_ms=501)
    with pytest.raises(PeerError, match="signature"):
        registry.types.declare(forged, by="nobody", now_ms=NOW_MS)
    assert registry.types.all() == []
    assert actions(registry) == []


def test_a_type_for_later_is_kept_and_an_expired_one_is_not(registry: Registry) -> None:
    registry.types.declare(a_type(not_before=NOW_MS + 1), by="owner", now_ms=NOW_MS)
    with pytest.raises(Denied, match="validity"):
        registry.types.declare(a_type(version=2, not_after=NOW_MS), by="owner", now_ms=NOW_MS)


def test_a_name_that_two_owners_use_must_be_said_in_full(registry: Registry) -> None:
    declare_plates(registry)
    other = SignedType.make(STRANGER, Numberplate)
    registry.types.declare(other, by="stranger", now_ms=NOW_MS)
    with pytest.raises(InputError, match=f"several owners .* {PLATES.name}"):
        registry.types.find("Numberplate")
    assert registry.types.find(other.name) == other
    registry.types.own_keys = frozenset([PLATES.owner_key])
    assert registry.types.find("Numberplate") == PLATES, "its own is meant, whatever others call theirs"


def test_an_unknown_name_is_answered_with_the_nearest(registry: Registry) -> None:
    declare_plates(registry)
    with pytest.raises(InputError, match="did you mean 'Numberplate'"):
        registry.types.find("Nummerplate")
    for name in ("", "@", "Numberplate@", "Numberplate@2", "Numberplate@99999999999999999999", "'; --", "\0", "ab"):
        with pytest.raises(InputError, match="has no event type"):
            registry.types.find(name)


def test_a_definition_altered_in_the_database_is_noticed(registry: Registry, address: str) -> None:
    declare_plates(registry)
    other = SignedType.make(OWNER, EventType("Numberplate", plate=str), version=2)
    registry.types.declare(other, by="owner", now_ms=NOW_MS)
    swap = "UPDATE tidings_type SET definition = (SELECT definition FROM tidings_type WHERE version = 2)"
    tamper(address, swap + " WHERE version = 1")
    with pytest.raises(PeerError, match="holds another type"):
        registry.types.find("Numberplate@1")
