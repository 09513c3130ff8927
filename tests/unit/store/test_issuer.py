"""Participants, invitations, roles, and the issuer that makes tokens of them; on both databases."""

from __future__ import annotations

import pytest

from tests.unit.security.london import CAMERA, CHARGE, DAY_MS, DETECTIVE, NOW_MS, OWNER, PLATES, STRANGER, source
from tests.unit.store.police import actions, declare_plates
from tidings.errors import Denied, InputError
from tidings.security import Identity
from tidings.store import EnrolledParticipant, IssuedChanges, Issuer, KnownGrant, Registry, RightTerms

READ = RightTerms(PLATES.type_id, ("subscribe",))
PLATE_ONLY = RightTerms(PLATES.type_id, ("subscribe",), ("plate",))


def enrolled(registry: Registry, name: str, key: Identity, role: str = "client") -> EnrolledParticipant:
    one = EnrolledParticipant(name, role, key.public_key, b"certificate")
    registry.participants.add(one, by="test", now_ms=NOW_MS)
    return one


def issuer(registry: Registry, *keys: Identity) -> Issuer:
    return Issuer(registry, keys or (OWNER,), source(5))


def live(registry: Registry, holder: Identity, at_ms: int) -> list[KnownGrant]:
    return [one for one in registry.grants.all(holder=holder.public_key) if one.refusal(at_ms) is None]


def held(registry: Registry, holder: Identity, at_ms: int = NOW_MS) -> list[frozenset[bytes] | None]:
    """The attributes of each right that holds."""
    return [one.right.attributes for one in live(registry, holder, at_ms)]


def test_a_participants_name_belongs_to_its_key_until_it_is_removed(registry: Registry) -> None:
    enrolled(registry, "camera", CAMERA)
    with pytest.raises(InputError, match="enrolled already, as a client with another key"):
        enrolled(registry, "camera", CHARGE)
    with pytest.raises(InputError, match="enrolled already, as camera"):
        enrolled(registry, "other", CAMERA)
    with pytest.raises(InputError, match="did you mean 'camera'"):
        registry.participants.find("camrea")
    registry.participants.remove("camera", by="test", now_ms=NOW_MS)
    enrolled(registry, "camera", CHARGE)
    assert registry.domains.names()[CHARGE.public_key] == "camera"
    assert registry.domains.key_of("camera") == CHARGE.public_key
    assert actions(registry) == ["enrol", "remove participant", "enrol"]


def test_an_invitation_is_for_one_key_and_ends(registry: Registry) -> None:
    invite = registry.participants.invite
    for secret, name, ends in ((b"one", "desk", NOW_MS + 1), (b"two", "late", NOW_MS)):
        invite(secret, name, "client", expires_ms=ends, by="test", now_ms=NOW_MS)
    redeem = registry.participants.redeem
    for name, role in (("dsk", "client"), ("desk", "broker")):
        with pytest.raises(Denied, match="it is for the client desk"):
            redeem(b"one", CAMERA.public_key, name, role, now_ms=NOW_MS)
    redeem(b"one", CAMERA.public_key, "desk", "client", now_ms=NOW_MS)
    redeem(b"one", CAMERA.public_key, "desk", "client", now_ms=NOW_MS + DAY_MS)
    for secret, name, why in ((b"one", "desk", "been used"), (b"two", "late", "expired"), (b"none", "x", "not valid")):
        with pytest.raises(Denied, match=why):
            redeem(secret, STRANGER.public_key, name, "client", now_ms=NOW_MS)
    assert [registry.participants.uninvite("late", "client", by="test", now_ms=NOW_MS) for _ in "ab"] == [1, 0]


def test_members_of_a_role_have_exactly_its_rights_whenever_it_changes(registry: Registry) -> None:
    declare_plates(registry)
    hand, roles = issuer(registry), registry.roles
    roles.create("analyst", by="test", now_ms=NOW_MS)
    roles.allow("analyst", PLATE_ONLY, by="test", now_ms=NOW_MS)
    for member in (CHARGE, DETECTIVE):
        roles.assign("analyst", member.public_key, by="test", now_ms=NOW_MS)
    assert len(hand.apply_roles(NOW_MS).issued) == 2
    assert hand.apply_roles(NOW_MS).issued == ()
    roles.disallow("analyst", PLATES.type_id, by="test", now_ms=NOW_MS)
    roles.allow("analyst", READ, by="test", now_ms=NOW_MS)
    changes = hand.apply_roles(NOW_MS)
    assert (len(changes.issued), len(changes.revoked)) == (2, 2)
    assert held(registry, CHARGE) == held(registry, DETECTIVE) == [None]
    roles.unassign("analyst", CHARGE.public_key, by="test", now_ms=NOW_MS)
    hand.apply_roles(NOW_MS)
    assert (held(registry, CHARGE), held(registry, DETECTIVE)) == ([], [None])
    roles.delete("analyst", by="test", now_ms=NOW_MS)
    hand.apply_roles(NOW_MS)
    assert held(registry, DETECTIVE) == []
    assert roles.all() == []


def test_a_right_is_renewed_when_a_third_is_left_and_not_once_it_is_revoked(registry: Registry) -> None:
    declare_plates(registry)
    hand = issuer(registry)
    hand.issue(READ, CHARGE.public_key, now_ms=NOW_MS, lasts_ms=3 * DAY_MS)
    hand.issue(PLATE_ONLY, CHARGE.public_key, now_ms=NOW_MS, not_after=NOW_MS + 3 * DAY_MS)
    assert hand.renew(NOW_MS + DAY_MS).issued == ()
    later = NOW_MS + 2 * DAY_MS
    (renewed,) = hand.renew(later).issued
    assert (renewed.right().not_after, renewed.right().attributes) == (later + 3 * DAY_MS, None)
    assert hand.renew(later).issued == ()
    hand.issue(READ, CHARGE.public_key, now_ms=later, not_before=later + DAY_MS, lasts_ms=3 * DAY_MS)
    (known, *_) = [one for one in registry.grants.all(holder=CHARGE.public_key) if one.lasts_ms]
    assert len(hand.revoke(known, later)) == 3, "the right, its renewal, and one that begins later"
    assert hand.renew(later + 3 * DAY_MS).issued == ()
    assert held(registry, CHARGE, NOW_MS + 4 * DAY_MS) == []


def test_what_is_passed_on_is_no_more_and_no_longer_than_what_was_granted(registry: Registry) -> None:
    declare_plates(registry)
    wanted = RightTerms(PLATES.type_id, ("subscribe",), ("plate", "speed"), depth=1)
    issuer(registry).issue(wanted, CHARGE.public_key, now_ms=NOW_MS, not_after=NOW_MS + DAY_MS)
    theirs = issuer(registry, CHARGE)
    token = theirs.issue(READ, CAMERA.public_key, now_ms=NOW_MS, lasts_ms=7 * DAY_MS)
    assert token.right().not_after == NOW_MS + DAY_MS
    assert token.right().attributes == frozenset(map(PLATES.attr_id, ("plate", "speed")))
    refused = {
        "attributes: no right": RightTerms(PLATES.type_id, ("subscribe",), ("location",)),
        "action: the right": RightTerms(PLATES.type_id, ("publish",)),
        "attributes: no": RightTerms(PLATES.type_id, ("subscribe",), depth=1),
    }
    for why, terms in refused.items():
        with pytest.raises(Denied, match=why):
            theirs.issue(terms, CAMERA.public_key, now_ms=NOW_MS)
    with pytest.raises(Denied, match="has granted this organisation no right"):
        issuer(registry, STRANGER).issue(READ, CAMERA.public_key, now_ms=NOW_MS)
    with pytest.raises(Denied, match="has granted this organisation no right"):
        theirs.issue(READ, CAMERA.public_key, now_ms=NOW_MS + 2 * DAY_MS)


@pytest.mark.parametrize(
    "granted",
    [
        RightTerms(PLATES.type_id, ("subscribe",), ("plate", "speed"), ("speed > 20",), depth=1),
        RightTerms(
            PLATES.type_id, ("publish", "subscribe"), ("plate", "speed"), ("speed > 20", "plate = 'A'"), depth=2
        ),
    ],
)
def test_a_role_of_delegated_rights_is_issued_once_and_renewed_though_they_come_with_conditions(
    registry: Registry, granted: RightTerms
) -> None:
    declare_plates(registry)
    issuer(registry).issue(granted, CHARGE.public_key, now_ms=NOW_MS, not_after=NOW_MS + 30 * DAY_MS)
    hand, roles = issuer(registry, CHARGE), registry.roles
    roles.create("analyst", by="test", now_ms=NOW_MS)
    for terms in (READ, PLATE_ONLY):
        roles.allow("analyst", terms, by="test", now_ms=NOW_MS)
        roles.assign("analyst", CAMERA.public_key, by="test", now_ms=NOW_MS)
        assert len(hand.apply_roles(NOW_MS).issued) == 1
        assert hand.apply_roles(NOW_MS) == IssuedChanges()
        assert [one.right.constraints for one in live(registry, CAMERA, NOW_MS)] == [granted.where]
        later = NOW_MS + 6 * DAY_MS
        assert len(hand.renew(later).issued) == 1
        assert hand.apply_roles(later) == IssuedChanges()
        roles.disallow("analyst", PLATES.type_id, by="test", now_ms=NOW_MS)
        assert len(hand.apply_roles(later).revoked) == 2


def test_a_right_is_passed_on_from_the_one_that_adds_no_condition(registry: Registry) -> None:
    declare_plates(registry)
    for where, days in ((("speed > 20",), 30), ((), 20), (("speed > 30",), 40)):
        terms = RightTerms(PLATES.type_id, ("subscribe",), where=where, depth=1)
        issuer(registry).issue(terms, CHARGE.public_key, now_ms=NOW_MS, not_after=NOW_MS + days * DAY_MS)
    assert issuer(registry, CHARGE).issue(READ, CAMERA.public_key, now_ms=NOW_MS).right().constraints == ()


def test_who_repeats_a_grant_gets_the_right_that_is_there_until_it_is_to_be_renewed_or_was_revoked(
    registry: Registry,
) -> None:
    declare_plates(registry)
    hand, holder = issuer(registry), CAMERA.public_key
    first, is_new = hand.issue_once(READ, holder, now_ms=NOW_MS, lasts_ms=3 * DAY_MS)
    assert is_new
    assert hand.issue_once(READ, holder, now_ms=NOW_MS + DAY_MS, lasts_ms=3 * DAY_MS) == (first, False)
    others = [
        hand.issue_once(PLATE_ONLY, holder, now_ms=NOW_MS, lasts_ms=3 * DAY_MS),
        hand.issue_once(READ, CHARGE.public_key, now_ms=NOW_MS, lasts_ms=3 * DAY_MS),
        hand.issue_once(READ, holder, now_ms=NOW_MS, not_after=NOW_MS + 9 * DAY_MS),
        hand.issue_once(READ, holder, now_ms=NOW_MS + 2 * DAY_MS, lasts_ms=3 * DAY_MS),
    ]
    assert [new for _, new in others] == [True] * 4
    assert not hand.issue_once(READ, holder, now_ms=NOW_MS + DAY_MS, not_after=NOW_MS + 9 * DAY_MS)[1]
    for known in live(registry, CAMERA, NOW_MS + 2 * DAY_MS):
        hand.revoke(known, NOW_MS + 2 * DAY_MS)
    assert hand.issue_once(READ, holder, now_ms=NOW_MS + 2 * DAY_MS, lasts_ms=3 * DAY_MS)[1]


def test_brokers_are_equipped_with_own_types_and_with_what_was_granted(registry: Registry) -> None:
    declare_plates(registry)
    enrolled(registry, "police-1", CAMERA, "broker")
    assert len(issuer(registry).equip_brokers(NOW_MS).issued) == 1
    assert issuer(registry).equip_brokers(NOW_MS).issued == ()
    (known,) = registry.grants.all(holder=CAMERA.public_key)
    assert known.right.actions == {"publish", "subscribe"}
    granted = RightTerms(PLATES.type_id, ("subscribe",), ("plate",), depth=1)
    issuer(registry).issue(granted, CHARGE.public_key, now_ms=NOW_MS)
    (token,) = issuer(registry, CHARGE).equip_brokers(NOW_MS).issued
    assert (token.right().attributes, token.right().depth) == (frozenset([PLATES.attr_id("plate")]), 0)
