"""Rights in the registry: kept, listed, and taken back by those who may."""

from __future__ import annotations

import pytest

from tests.unit.security.london import (
    CAMERA,
    CHARGE,
    DAY_MS,
    DETECTIVE,
    NOW_MS,
    OWNER,
    PLATES,
    STRANGER,
    a_grant,
    source,
)
from tests.unit.store.police import BY_OWNER, a_token, actions, declare_plates
from tidings.errors import Denied, InputError
from tidings.security import ANY_TYPE, AccessRequest, Identity, grant, sign_revocation
from tidings.store import Registry


@pytest.fixture(autouse=True)
def plates(registry: Registry) -> None:
    declare_plates(registry)


def test_a_token_is_kept_once_and_comes_back_as_it_was(registry: Registry) -> None:
    token = a_token()
    assert registry.grants.add(token, by=BY_OWNER, now_ms=NOW_MS)
    assert not registry.grants.add(token, by=BY_OWNER, now_ms=NOW_MS)
    (known,) = registry.grants.all()
    assert known.token.to_bytes() == token.to_bytes()
    assert (known.right, known.owner_key, known.refusal(NOW_MS)) == (token.right(), OWNER.public_key, None)
    assert actions(registry) == ["declare type", "grant"]


def test_several_revocations_that_come_at_once_are_all_kept_and_each_is_in_the_audit(registry: Registry) -> None:
    tokens = [a_token(CHARGE), a_token(DETECTIVE)]
    heard = [sign_revocation(token, 0, OWNER, now_ms=NOW_MS, reason="over") for token in tokens]
    for _ in range(2):
        registry.grants.learn(heard, by="a broker", now_ms=NOW_MS)
    assert registry.grants.revoked([one.id for one in heard]) == {one.id for one in heard}
    assert actions(registry) == ["declare type", "hear", "hear"]


def test_grants_are_listed_by_type_holder_and_digest(registry: Registry) -> None:
    mine, theirs = a_token(CHARGE), a_token(DETECTIVE)
    for token in (mine, theirs):
        registry.grants.add(token, by=BY_OWNER, now_ms=NOW_MS)
    assert [known.right.holder for known in registry.grants.all(holder=CHARGE.public_key)] == [CHARGE.public_key]
    assert len(registry.grants.all(type_id=PLATES.type_id)) == 2
    assert registry.grants.all(type_id=bytes(32)) == []
    assert registry.grants.find(theirs.digest.hex()).token.digest == theirs.digest
    for unclear in ("", "zz"):
        with pytest.raises(InputError, match="known grants have a digest"):
            registry.grants.find(unclear)


def test_a_right_to_an_unknown_type_or_from_another_than_its_owner_is_not_kept(registry: Registry) -> None:
    with pytest.raises(InputError, match="no event type with the id"):
        registry.grants.add(a_token(type_id=bytes(32)), by=BY_OWNER, now_ms=NOW_MS)
    usurped = grant(STRANGER, a_grant(), source(1))
    with pytest.raises(Denied, match="issuer: .* to give rights to"):
        registry.grants.add(usurped, by="stranger", now_ms=NOW_MS)
    assert registry.grants.all() == []


def test_membership_of_the_network_is_for_no_type(registry: Registry) -> None:
    member = a_token(type_id=ANY_TYPE, actions=frozenset({"join-net"}))
    assert registry.grants.add(member, by=BY_OWNER, now_ms=NOW_MS)
    assert registry.grants.all()[0].right.type_id == ANY_TYPE


def test_an_expired_and_a_coming_right_say_so(registry: Registry) -> None:
    registry.grants.add(a_token(), by=BY_OWNER, now_ms=NOW_MS)
    (known,) = registry.grants.all()
    assert known.refusal(NOW_MS - 1) == (
        "validity: the right is not valid before 2025-11-15T23:04:00Z, and it is 2025-11-15T23:04:00Z by this clock"
    )
    assert str(known.refusal(NOW_MS + DAY_MS)).startswith("validity: the right expired at 2025-11-16")


def test_a_revoked_token_is_refused_with_all_that_was_made_of_it(registry: Registry) -> None:
    root = a_token(DETECTIVE, delegate=True, max_depth=1)
    passed_on = root.narrow(a_grant(CHARGE), DETECTIVE)
    for token in (root, passed_on):
        registry.grants.add(token, by=BY_OWNER, now_ms=NOW_MS)
    id = registry.grants.revoke(root, by_key=OWNER.public_key, now_ms=NOW_MS, reason="lost")
    assert registry.grants.revoked((*passed_on.revocation_ids, "other")) == {id}
    assert [str(known.refusal(NOW_MS))[:16] for known in registry.grants.all()] == ["revoked: link 0 "] * 2
    (revocation,) = registry.grants.revocations()
    assert (revocation.revoked_by, revocation.reason) == (OWNER.public_key, "lost")
    with pytest.raises(Denied, match="revoked: link 0"):
        passed_on.verify(
            AccessRequest(PLATES.type_id, "subscribe", frozenset(PLATES.attr_ids.values())),
            now_ms=NOW_MS,
            proven_key=CHARGE.public_key,
            revoked=registry.grants.revoked(passed_on.revocation_ids),
        )


@pytest.mark.parametrize(("who", "link"), [(OWNER, 0), (OWNER, 1), (DETECTIVE, 0), (DETECTIVE, 1), (CHARGE, 1)])
def test_whoever_gave_or_held_a_link_may_revoke_it(registry: Registry, who: Identity, link: int) -> None:
    token = a_token(DETECTIVE, delegate=True, max_depth=1).narrow(a_grant(CHARGE), DETECTIVE)
    id = registry.grants.revoke(token, by_key=who.public_key, now_ms=NOW_MS, link=link)
    assert id == token.revocation_ids[link]


@pytest.mark.parametrize(("who", "link"), [(STRANGER, 0), (STRANGER, 1), (CHARGE, 0), (CAMERA, 1)])
def test_nobody_else_may(registry: Registry, who: Identity, link: int) -> None:
    token = a_token(DETECTIVE, delegate=True, max_depth=1).narrow(a_grant(CHARGE), DETECTIVE)
    with pytest.raises(Denied, match="neither issued nor holds"):
        registry.grants.revoke(token, by_key=who.public_key, now_ms=NOW_MS, link=link)
    assert registry.grants.revocations() == []


def test_revoking_twice_is_one_change_and_a_link_that_is_not_there_is_an_error(registry: Registry) -> None:
    for _ in range(2):
        registry.grants.revoke(token := a_token(), by_key=OWNER.public_key, now_ms=NOW_MS)
        registry.grants.revoke(token, by_key=OWNER.public_key, now_ms=NOW_MS + 1)
    assert actions(registry) == ["declare type", "revoke", "revoke"]
    for link in (-1, 1):
        with pytest.raises(InputError, match="the links 0 to 0"):
            registry.grants.revoke(a_token(), by_key=OWNER.public_key, now_ms=NOW_MS, link=link)


def test_more_ids_than_one_statement_takes_are_asked_about_in_runs(registry: Registry) -> None:
    id = registry.grants.revoke(a_token(), by_key=OWNER.public_key, now_ms=NOW_MS)
    assert registry.grants.revoked([*map(str, range(70_000)), id]) == {id}
