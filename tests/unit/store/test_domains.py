"""Domains: names for keys."""

from __future__ import annotations

import pytest

from tests.unit.security.london import CAMERA, CHARGE, DETECTIVE, NOW_MS
from tests.unit.store.police import actions
from tidings.errors import InputError
from tidings.security import fingerprint
from tidings.store import Domain, Registry


def add(registry: Registry, name: str, *keys: bytes) -> bool:
    return registry.domains.add(name, keys, by="me", now_ms=NOW_MS)


def test_a_domain_has_the_keys_it_was_given(registry: Registry) -> None:
    assert add(registry, "police", CAMERA.public_key)
    assert add(registry, "police", DETECTIVE.public_key, CAMERA.public_key)
    assert not add(registry, "police", CAMERA.public_key)
    keys = tuple(sorted((CAMERA.public_key, DETECTIVE.public_key)))
    assert registry.domains.all() == [Domain("police", keys)]
    assert actions(registry) == ["add domain", "add domain"]


def test_a_key_is_meant_by_its_fingerprint_or_by_a_domain_that_has_no_other(registry: Registry) -> None:
    add(registry, "ccs", CHARGE.public_key)
    add(registry, "police", CAMERA.public_key, DETECTIVE.public_key)
    assert registry.domains.key_of("ccs") == CHARGE.public_key
    assert registry.domains.key_of(fingerprint(CAMERA.public_key)) == CAMERA.public_key
    with pytest.raises(InputError, match="police has 2 keys; choose one: ed25519:"):
        registry.domains.key_of("police")
    with pytest.raises(InputError, match="did you mean 'ccs'"):
        registry.domains.key_of("css")


def test_a_key_belongs_to_one_domain_only(registry: Registry) -> None:
    add(registry, "ccs", CHARGE.public_key)
    with pytest.raises(InputError, match="belongs to 'ccs' already"):
        add(registry, "tfl", CAMERA.public_key, CHARGE.public_key)
    assert [domain.name for domain in registry.domains.all()] == ["ccs"]


def test_a_removed_domain_can_be_added_anew(registry: Registry) -> None:
    add(registry, "ccs", CHARGE.public_key)
    registry.domains.remove("ccs", by="me", now_ms=NOW_MS)
    assert registry.domains.all() == []
    assert add(registry, "tfl", CHARGE.public_key)
    with pytest.raises(InputError, match="no domain 'ccs'"):
        registry.domains.remove("ccs", by="me", now_ms=NOW_MS)


@pytest.mark.parametrize("name", ["", " ccs", "c\ncs", "c\0cs", "\ud800", "x" * 256, "ed25519:ccs"])
def test_names_that_cannot_be_shown_or_kept_are_refused(registry: Registry, name: str) -> None:
    with pytest.raises(InputError):
        add(registry, name, CHARGE.public_key)
    assert actions(registry) == []
