"""Subscriptions: kept only with a signature and a right, and asked for both again (SECURE-INV-10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

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
    a_type,
    ids,
    source,
)
from tests.unit.security.rights.test_biscuit import passed_on_twice
from tests.unit.store.police import a_subscription, a_token, actions, declare_plates, tamper
from tidings.errors import Denied, FilterError, InputError, PeerError
from tidings.security import grant
from tidings.store import KeptSubscription, Registry


@pytest.fixture(autouse=True)
def plates(registry: Registry) -> None:
    declare_plates(registry)


def test_a_subscription_with_a_right_is_kept_in_canonical_form(registry: Registry) -> None:
    wanted = a_subscription("speed>20.0   and plate like 'A%'")
    assert registry.subscriptions.add(wanted, now_ms=NOW_MS)
    assert not registry.subscriptions.add(wanted, now_ms=NOW_MS)
    assert registry.subscriptions.all() == [wanted]
    assert wanted.condition == "speed > 20.0 AND plate LIKE 'A%'"
    assert actions(registry) == ["declare type", "add subscription"]


def test_the_owner_of_a_type_needs_no_token(registry: Registry) -> None:
    registry.subscriptions.add(a_subscription(holder=OWNER, token=b""), now_ms=NOW_MS)
    (with_status,) = registry.subscriptions.with_status(now_ms=NOW_MS)
    assert (with_status.right, with_status.refused) == (None, None)


def test_a_condition_that_does_not_fit_the_type_is_not_made() -> None:
    for wrong in ("sped > 20.0", "speed > 'fast'", "speed >"):
        with pytest.raises(FilterError):
            a_subscription(wrong)


REFUSED: dict[str, tuple[Callable[[], KeptSubscription], type[Exception], str]] = {
    "no token": (lambda: a_subscription(token=b""), Denied, "token: .* presents no right"),
    "another's token": (lambda: a_subscription(token=a_token(DETECTIVE).to_bytes()), Denied, "holder: the right is"),
    "an expired token": (
        lambda: a_subscription(token=a_token(not_before=0, not_after=NOW_MS).to_bytes()),
        Denied,
        "validity: link 0",
    ),
    "a token for later": (lambda: a_subscription(token=a_token(not_before=NOW_MS + 1).to_bytes()), Denied, "validity"),
    "a token for another type": (
        lambda: a_subscription(token=a_token(type_id=a_type(version=2).type_id).to_bytes()),
        Denied,
        "type: link 0",
    ),
    "a token to publish": (
        lambda: a_subscription(token=a_token(actions=frozenset({"publish"})).to_bytes()),
        Denied,
        "action: link 0",
    ),
    "a condition on what the token does not cover": (
        lambda: a_subscription(
            "plate = 'A' AND speed > 20.0", token=a_token(attributes=ids(PLATES, "plate")).to_bytes()
        ),
        Denied,
        "attributes: link 0",
    ),
    "a token cut short": (lambda: a_subscription(token=a_token().to_bytes()[:-3]), Denied, "signature"),
    "a token of another root": (
        lambda: a_subscription(token=grant(STRANGER, a_grant(CHARGE), source(1)).to_bytes()),
        Denied,
        "signature",
    ),
    "signed by another": (
        lambda: replace(a_subscription(), signature=STRANGER.sign(a_subscription().signed_bytes())),
        PeerError,
        "signature: subscription 'ccs-1'",
    ),
    "altered after signing": (lambda: replace(a_subscription(), condition="speed > 2.0"), PeerError, "signature"),
    "a condition not in its canonical form": (
        lambda: replace(a_subscription(), condition="speed>20.0"),
        InputError,
        "canonical form",
    ),
    "an unknown type": (lambda: replace(a_subscription(), type_id=bytes(32)), InputError, "no event type with the id"),
    "an empty id": (lambda: a_subscription(id=""), InputError, "a subscription's id"),
    "an id of two lines": (lambda: a_subscription(id="a\nb"), InputError, "a subscription's id"),
    "a NUL in the condition": (lambda: a_subscription("plate = 'a\0b'"), InputError, "NUL"),
}


@pytest.mark.parametrize(("make", "error", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_without_a_signature_and_a_right_nothing_is_kept(
    registry: Registry, make: Callable[[], KeptSubscription], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        registry.subscriptions.add(make(), now_ms=NOW_MS)
    assert registry.subscriptions.all() == []
    assert actions(registry) == ["declare type"]


def test_a_revoked_token_gives_no_subscription(registry: Registry) -> None:
    token = a_token()
    registry.grants.revoke(token, by_key=OWNER.public_key, now_ms=NOW_MS)
    with pytest.raises(Denied, match="revoked: link 0"):
        registry.subscriptions.add(a_subscription(token=token.to_bytes()), now_ms=NOW_MS)


def test_an_over_delegated_token_gives_no_subscription(registry: Registry) -> None:
    wanted = a_subscription(holder=CAMERA, token=passed_on_twice())
    with pytest.raises(Denied, match="depth: link 2"):
        registry.subscriptions.add(wanted, now_ms=NOW_MS)
    assert registry.subscriptions.all() == []


def test_the_status_tells_what_each_holder_may_read_and_who_may_no_longer(registry: Registry) -> None:
    token = a_token(attributes=ids(PLATES, "plate"))
    registry.subscriptions.add(a_subscription("TRUE", token=token.to_bytes()), now_ms=NOW_MS)
    (with_status,) = registry.subscriptions.with_status(now_ms=NOW_MS, type_id=PLATES.type_id)
    assert with_status.right is not None
    assert with_status.right.attributes == ids(PLATES, "plate")
    (later,) = registry.subscriptions.with_status(now_ms=NOW_MS + DAY_MS)
    assert later.right is None
    assert str(later.refused).startswith("validity: link 0")
    registry.grants.revoke(token, by_key=CHARGE.public_key, now_ms=NOW_MS)
    assert str(registry.subscriptions.with_status(now_ms=NOW_MS)[0].refused).startswith("revoked: link 0")


def test_a_condition_altered_in_the_database_does_not_stand(registry: Registry, address: str) -> None:
    registry.subscriptions.add(a_subscription(), now_ms=NOW_MS)
    tamper(address, "UPDATE tidings_subscription SET condition = 'TRUE'")
    (with_status,) = registry.subscriptions.with_status(now_ms=NOW_MS)
    assert str(with_status.refused).startswith("signature: subscription 'ccs-1'")


def test_a_holder_replaces_its_own_subscription_and_nobody_elses(registry: Registry) -> None:
    registry.subscriptions.add(a_subscription(), now_ms=NOW_MS)
    registry.subscriptions.add(a_subscription("speed > 30.0"), now_ms=NOW_MS)
    assert [kept.condition for kept in registry.subscriptions.all()] == ["speed > 30.0"]
    with pytest.raises(Denied, match="holder: subscription 'ccs-1'"):
        registry.subscriptions.add(a_subscription(holder=DETECTIVE), now_ms=NOW_MS)
    assert actions(registry)[1:] == ["add subscription", "replace subscription"]


def test_a_subscription_is_removed_by_its_holder_or_the_owner(registry: Registry) -> None:
    for by in (CHARGE, OWNER):
        registry.subscriptions.add(a_subscription(), now_ms=NOW_MS)
        with pytest.raises(Denied, match="holder"):
            registry.subscriptions.remove("ccs-1", by_key=STRANGER.public_key, now_ms=NOW_MS)
        registry.subscriptions.remove("ccs-1", by_key=by.public_key, now_ms=NOW_MS)
        assert registry.subscriptions.all() == []
    with pytest.raises(InputError, match="no subscription 'ccs-1'"):
        registry.subscriptions.remove("ccs-1", by_key=CHARGE.public_key, now_ms=NOW_MS)


def test_subscriptions_are_listed_by_type(registry: Registry) -> None:
    registry.subscriptions.add(a_subscription(), now_ms=NOW_MS)
    listed: list[Any] = registry.subscriptions.all(type_id=bytes(32))
    assert listed == []
    assert len(registry.subscriptions.all(type_id=PLATES.type_id)) == 1
