"""Rights as tokens: what they allow, and some forty ways to forge or widen one (SECURE-INV-10)."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from biscuit_auth import Algorithm, Biscuit, BiscuitBuilder, BiscuitBuildError, BlockBuilder, PrivateKey, PublicKey

from tests.unit.security.london import (
    CAMERA,
    CHARGE,
    DAY_MS,
    DETECTIVE,
    NOW_MS,
    OWNER,
    PLATES,
    STRANGER,
    Numberplate,
    a_grant,
    ids,
    source,
)
from tidings.errors import Denied, InputError
from tidings.events import Value
from tidings.security import (
    ANY_TYPE,
    AccessRequest,
    BiscuitCapability,
    Capability,
    Grant,
    Identity,
    OnlineTest,
    Verifier,
    grant,
    reduce,
)
from tidings.security.rights.biscuit import BLOCKS_MAX, datalog_of

READ_PLATE = AccessRequest(PLATES.type_id, "subscribe", ids(PLATES, "plate"))
READ_LOCATION = AccessRequest(PLATES.type_id, "subscribe", ids(PLATES, "location"))


def a_token(**fields: Any) -> BiscuitCapability:
    return grant(OWNER, a_grant(**fields), source(1))


def delegable(**fields: Any) -> BiscuitCapability:
    return a_token(delegate=True, max_depth=1, **fields)


def sent(token: Capability) -> BiscuitCapability:
    """The token as the other side reads it."""
    return BiscuitCapability.from_bytes(token.to_bytes(), OWNER.public_key)


def check(token: Capability, request: AccessRequest = READ_PLATE, **how: Any) -> None:
    given: dict[str, Any] = {"now_ms": NOW_MS, "proven_key": DETECTIVE.public_key}
    sent(token).verify(request, **given | how)


# ── What a token allows ──────────────────────────────────────────────────────


def test_a_token_allows_what_it_says() -> None:
    check(a_token())
    check(a_token(), AccessRequest(PLATES.type_id, "publish", frozenset(PLATES.attr_ids.values())))


def test_a_token_can_be_delegated_and_then_is_the_new_holders() -> None:
    token = delegable().narrow(a_grant(CHARGE, attributes=ids(PLATES, "plate")), DETECTIVE)
    check(token, proven_key=CHARGE.public_key)
    with pytest.raises(Denied, match="attributes: link 1"):
        check(token, READ_LOCATION, proven_key=CHARGE.public_key)


def test_a_holder_narrows_for_itself_without_a_signature() -> None:
    token = a_token().narrow(a_grant(None, not_after=NOW_MS + 10))
    check(token, now_ms=NOW_MS + 9)
    with pytest.raises(Denied, match="validity: link 1"):
        check(token, now_ms=NOW_MS + 10)


def test_asking_for_more_than_one_has_gives_no_more() -> None:
    narrow = a_token(attributes=ids(PLATES, "plate"), actions=frozenset({"subscribe"}), not_after=NOW_MS + 10)
    wide = narrow.narrow(a_grant(None, not_after=NOW_MS + DAY_MS))
    assert wide.right() == narrow.right()
    with pytest.raises(Denied, match="attributes: link 0"):
        check(wide, READ_LOCATION)


def test_a_token_shows_its_links_and_what_they_come_to() -> None:
    online = OnlineTest("https://acs.example/ok", 1000)
    token = delegable(constraints=("plate = 'AB12CDE'",)).narrow(
        a_grant(CHARGE, constraints=('speed > 20;\n"x"',), online=(online,)), DETECTIVE
    )
    chain = sent(token).inspect()
    assert [(link.issuer, link.holder) for link in chain] == [
        (OWNER.public_key, DETECTIVE.public_key),
        (DETECTIVE.public_key, CHARGE.public_key),
    ]
    assert sent(token).right().constraints == ("plate = 'AB12CDE'", 'speed > 20;\n"x"')
    assert sent(token).right().online == (online,)
    assert chain == token.inspect()
    assert len(chain[0].id) == 16


def test_constraints_are_conditions_that_all_must_match() -> None:
    token = delegable(constraints=("plate = 'AB12CDE'",)).narrow(
        a_grant(CHARGE, constraints=("speed > 20 OR location = 'WC1'",)), DETECTIVE
    )
    conditions = token.right().conditions(Numberplate)
    seen: list[dict[str, Value]] = [
        {"plate": "AB12CDE", "speed": 31.0},
        {"plate": "ZZ99ZZZ", "speed": 31.0},
        {"plate": "AB12CDE"},
    ]
    assert [all(condition.matches(values) for condition in conditions) for values in seen] == [True, False, False]


def test_a_constraint_cannot_break_out_of_its_brackets() -> None:
    token = a_token(constraints=("plate = 'AB12CDE'", "speed > 0) OR (1 = 1"))
    with pytest.raises(Denied, match="constraints: "):
        token.right().conditions(Numberplate)


def test_membership_of_the_network_is_a_right_like_any_other() -> None:
    token = grant(OWNER, a_grant(type_id=ANY_TYPE, actions=frozenset({"join-net"})), source(1))
    check(token, AccessRequest(ANY_TYPE, "join-net"))
    with pytest.raises(Denied, match="type: link 0"):
        check(token, READ_PLATE)


def test_an_online_test_needs_a_recent_yes() -> None:
    token = a_token(online=(OnlineTest("https://acs", 1000),))
    check(token, online={"https://acs": NOW_MS - 1000})
    for online in ({}, {"https://acs": NOW_MS - 1001}, {"https://acs": NOW_MS + 1}, {"https://other": NOW_MS}):
        with pytest.raises(Denied, match="online: link 0"):
            check(token, online=online)


def test_whoever_revokes_a_link_revokes_all_that_was_made_of_it() -> None:
    root = delegable()
    token = root.narrow(a_grant(CHARGE), DETECTIVE)
    assert token.revocation_ids[0] == root.revocation_ids[0]
    for index, id in enumerate(token.revocation_ids):
        with pytest.raises(Denied, match=f"revoked: link {index}"):
            check(token, proven_key=CHARGE.public_key, revoked={id})
    check(root, revoked={token.revocation_ids[1]})


def test_a_token_survives_pickling_and_its_repr_is_not_the_token() -> None:
    token = delegable().narrow(a_grant(CHARGE), DETECTIVE)
    again = pickle.loads(pickle.dumps(token))
    assert again == token
    assert again.inspect() == token.inspect()
    assert repr(token) == f"BiscuitCapability({token.digest.hex()[:16]}…, 2 links)"


def test_a_verifier_remembers_tokens_but_not_verdicts() -> None:
    verifier, raw = Verifier(remembered_max=2), a_token().to_bytes()
    token = verifier.read(raw, OWNER.public_key)
    assert verifier.read(raw, OWNER.public_key) is token
    for number in range(3):
        verifier.read(grant(OWNER, a_grant(), source(number)).to_bytes(), OWNER.public_key)
    assert verifier.read(raw, OWNER.public_key) is not token
    with pytest.raises(Denied, match="signature"):
        verifier.read(raw, STRANGER.public_key)


# ── Requests that a good token does not cover ────────────────────────────────

REFUSED: dict[str, tuple[Callable[[], Capability], dict[str, Any], AccessRequest, str]] = {
    "expired": (a_token, {"now_ms": NOW_MS + DAY_MS}, READ_PLATE, "validity: link 0 expired at"),
    "not yet valid": (a_token, {"now_ms": NOW_MS - 1}, READ_PLATE, "validity: link 0 is not valid before"),
    "wrong holder": (a_token, {"proven_key": STRANGER.public_key}, READ_PLATE, "holder: the right is"),
    "the delegator after delegating": (
        lambda: delegable().narrow(a_grant(CHARGE), DETECTIVE),
        {},
        READ_PLATE,
        "holder: the right is",
    ),
    "wrong type": (a_token, {}, AccessRequest(bytes(32), "subscribe", ids(PLATES, "plate")), "type: link 0"),
    "wrong action": (
        a_token,
        {},
        AccessRequest(PLATES.type_id, "history", ids(PLATES, "plate")),
        "action: link 0 history",
    ),
    "wrong attribute": (lambda: a_token(attributes=ids(PLATES, "plate")), {}, READ_LOCATION, "attributes: link 0"),
    "one attribute too many": (
        lambda: a_token(attributes=ids(PLATES, "plate")),
        {},
        AccessRequest(PLATES.type_id, "subscribe", ids(PLATES, "plate", "location")),
        "attributes: link 0",
    ),
    "expired in the second link": (
        lambda: delegable().narrow(a_grant(CHARGE, not_after=NOW_MS + 5), DETECTIVE),
        {"now_ms": NOW_MS + 6, "proven_key": CHARGE.public_key},
        READ_PLATE,
        "validity: link 1",
    ),
    "an action narrowed away": (
        lambda: a_token().narrow(a_grant(None, actions=frozenset({"publish"}))),
        {},
        READ_PLATE,
        "action: link 1",
    ),
}


@pytest.mark.parametrize(("make", "how", "request_", "why"), REFUSED.values(), ids=REFUSED.keys())
def test_what_a_token_does_not_cover_is_refused(
    make: Callable[[], Capability], how: dict[str, Any], request_: AccessRequest, why: str
) -> None:
    with pytest.raises(Denied, match=why):
        check(make(), request_, **how)


# ── Tokens that should not exist ─────────────────────────────────────────────


def private(identity: Identity) -> PrivateKey:
    return PrivateKey.from_bytes(identity.secret, Algorithm.Ed25519)  # type: ignore[call-arg, attr-defined]


def public(identity: Identity) -> PublicKey:
    return PublicKey.from_bytes(identity.public_key, Algorithm.Ed25519)  # type: ignore[call-arg, attr-defined]


def forged_root(signer: Identity, **fields: Any) -> bytes:
    return bytes(BiscuitBuilder(*datalog_of(a_grant(**fields), 0)).build(private(signer)).to_bytes())


def rooted(code: str, parameters: dict[str, Any] | None = None) -> bytes:
    return bytes(BiscuitBuilder(code, parameters).build(private(OWNER)).to_bytes())


def biscuit(token: Capability) -> Biscuit:
    return Biscuit.from_bytes(token.to_bytes(), public(OWNER))


def appended(token: Capability, code: str, parameters: dict[str, Any] | None = None) -> bytes:
    return bytes(biscuit(token).append(BlockBuilder(code, parameters)).to_bytes())


def delegated(token: Capability, signer: Identity, link: Grant, level: int, shown: Identity | None = None) -> bytes:
    """A delegation made with the bare library, which refuses nothing that we would refuse."""
    old = biscuit(token)
    third = old.third_party_request().create_block(private(signer), BlockBuilder(*datalog_of(link, level)))
    return bytes(old.append_third_party(public(shown or signer), third).to_bytes())


def block_code(link: Grant, level: int, old: str = "", new: str = "", more: str = "") -> tuple[str, dict[str, Any]]:
    code, parameters = datalog_of(link, level)
    assert old in code
    used = code.replace(old, new) + more
    return used, {name: value for name, value in parameters.items() if f"{{{name}}}" in used}


def passed_on_twice() -> bytes:
    once = delegable().narrow(a_grant(CHARGE), DETECTIVE)
    return delegated(once, CHARGE, a_grant(CAMERA), 2)


def block_of_another_token() -> bytes:
    """A third-party block made for one token, put on another."""
    one, other = biscuit(delegable(attributes=ids(PLATES, "plate"))), biscuit(delegable())
    third = one.third_party_request().create_block(private(DETECTIVE), BlockBuilder(*datalog_of(a_grant(CHARGE), 1)))
    return bytes(other.append_third_party(public(DETECTIVE), third).to_bytes())


WITHOUT_ATTRIBUTES = "check if request_attributes($asked), {attributes}.contains($asked);"
ONLY_PLATE: dict[str, Any] = {"attributes": ids(PLATES, "plate")}

FORGED: dict[str, tuple[Callable[[], bytes], str]] = {
    "signed by a stranger": (lambda: forged_root(STRANGER), "signature: not a valid token"),
    "signed by the holder itself": (lambda: forged_root(DETECTIVE), "signature: not a valid token"),
    "empty": (lambda: b"", "signature"),
    "noise": (lambda: source(3)(300), "signature"),
    "cut short": (lambda: a_token().to_bytes()[:-1], "signature"),
    "with more at the end": (lambda: a_token().to_bytes() + b"\x08\x01", "form: the token has more in it"),
    "too long": (lambda: bytes(2**20), "form: a token of"),
    "no grant in it": (lambda: rooted("hello(true);"), "form: link 0"),
    "facts without checks": (
        lambda: rooted(*block_code(a_grant(**ONLY_PLATE), 0, WITHOUT_ATTRIBUTES)),
        "form: link 0 is not as Tidings writes",
    ),
    "a check weaker than its fact": (
        lambda: rooted(*block_code(a_grant(), 0, "$now < {to}", "$now <= {to}")),
        "form: link 0",
    ),
    "a rule beside the grant": (
        lambda: rooted(*block_code(a_grant(), 0, more="request_type($t) <- grant($t);")),
        "form: link 0",
    ),
    "two holders": (
        lambda: rooted(*block_code(a_grant(), 0, more=f"holder(0, hex:{bytes(32).hex()});")),
        "form: link 0",
    ),
    "a link that trusts others": (
        lambda: rooted(*block_code(a_grant(), 0, more="check if grant($x) trusting previous;")),
        "form: link 0",
    ),
    "an unknown action": (
        lambda: rooted(*block_code(a_grant(), 0, 'actions(["publish", "subscribe"]);', 'actions(["govern"]);')),
        "form: link 0",
    ),
    "a narrowing that grants facts": (
        lambda: appended(a_token(**ONLY_PLATE), f"holder(0, hex:{STRANGER.public_key.hex()});"),
        "form: link 1",
    ),
    "a narrowing with a policy of its own": (lambda: appended(a_token(), "check if true;"), "form: link 1"),
    "a new holder without a signature": (
        lambda: appended(delegable(), *datalog_of(a_grant(STRANGER), 1)),
        "form: link 1",
    ),
    "delegated by a stranger": (
        lambda: delegated(delegable(), STRANGER, a_grant(STRANGER), 1),
        "issuer: delegation 1 is not signed by the holder",
    ),
    "delegated by the owner in the holder's place": (
        lambda: delegated(delegable(), OWNER, a_grant(STRANGER), 1),
        "issuer: delegation 1",
    ),
    "delegated though it may not be": (
        lambda: delegated(a_token(), DETECTIVE, a_grant(STRANGER), 1),
        "depth: link 0 allows 0 more",
    ),
    "delegated though the depth is used up": (passed_on_twice, "depth: link 0 allows 1 more"),
    "delegated with depth but no leave to": (
        lambda: delegated(a_token(delegate=False, max_depth=5), DETECTIVE, a_grant(STRANGER), 1),
        "depth: link 0",
    ),
    "a delegation that claims an earlier place": (
        lambda: delegated(delegable(), DETECTIVE, a_grant(STRANGER), 0),
        "form: link 1",
    ),
    "a delegation that claims a later place": (
        lambda: delegated(delegable(), DETECTIVE, a_grant(STRANGER), 2),
        "form: link 1",
    ),
    "a narrowing signed like a delegation": (
        lambda: delegated(delegable(), DETECTIVE, a_grant(None), 1),
        "form: link 1",
    ),
    "delegated with wider attributes": (
        lambda: delegated(delegable(**ONLY_PLATE), DETECTIVE, a_grant(STRANGER, attributes=ids(PLATES, "location")), 1),
        "attributes: link 0",
    ),
    "delegated for a longer time": (
        lambda: delegated(delegable(not_after=NOW_MS + 1), DETECTIVE, a_grant(STRANGER), 1),
        "validity: link 0",
    ),
    "delegated for more actions": (
        lambda: delegated(delegable(actions=frozenset({"publish"})), DETECTIVE, a_grant(STRANGER), 1),
        "action: link 0",
    ),
    "delegated for another type": (
        lambda: delegated(delegable(), DETECTIVE, a_grant(STRANGER, type_id=bytes(32)), 1),
        "type: link 1",
    ),
}


@pytest.mark.parametrize(("make", "why"), FORGED.values(), ids=FORGED.keys())
def test_a_forged_or_widened_chain_is_refused(make: Callable[[], bytes], why: str) -> None:
    raw = make()
    with pytest.raises(Denied, match=why):
        _present(raw)


def test_a_block_under_anothers_name_or_of_another_token_cannot_even_be_put_on() -> None:
    with pytest.raises(BiscuitBuildError):
        delegated(delegable(), STRANGER, a_grant(STRANGER), 1, shown=DETECTIVE)
    with pytest.raises(BiscuitBuildError):
        block_of_another_token()


def _present(raw: bytes) -> None:
    """The forger shows its token, and proves the key that the token's last link names."""
    token = BiscuitCapability.from_bytes(raw, OWNER.public_key)
    holders = [link.holder for link in token.inspect() if link.holder]
    token.verify(READ_LOCATION, now_ms=NOW_MS + 2, proven_key=holders[-1])


def test_there_are_more_than_twenty_forged_chains() -> None:
    assert len(FORGED) > 20


def test_every_flipped_byte_of_a_token_is_refused() -> None:
    raw = delegable().narrow(a_grant(CHARGE), DETECTIVE).to_bytes()
    for at in range(len(raw)):
        changed = raw[:at] + bytes([raw[at] ^ 0x55]) + raw[at + 1 :]
        with pytest.raises(Denied):
            BiscuitCapability.from_bytes(changed, OWNER.public_key).verify(
                READ_PLATE, now_ms=NOW_MS, proven_key=CHARGE.public_key
            )


def test_a_chain_has_an_end() -> None:
    token = a_token()
    for _ in range(BLOCKS_MAX):
        token = token.narrow(a_grant(None))
    with pytest.raises(Denied, match=f"form: {BLOCKS_MAX + 1} links"):
        sent(token)


# ── What cannot even be asked for ────────────────────────────────────────────


@pytest.mark.parametrize(
    ("link", "signer", "why"),
    [
        (a_grant(CHARGE), None, "needs a new holder and the present one's signature"),
        (a_grant(None), DETECTIVE, "needs a new holder and the present one's signature"),
    ],
)
def test_a_delegation_needs_a_signature_and_a_narrowing_none(link: Grant, signer: Identity | None, why: str) -> None:
    with pytest.raises(InputError, match=why):
        delegable().narrow(link, signer)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: a_token().narrow(a_grant(CHARGE), DETECTIVE), "depth: link 1 delegates a right that may not be"),
        (lambda: delegable().narrow(a_grant(CHARGE), STRANGER), "issuer: link 1 is signed by"),
        (lambda: a_token().narrow(a_grant(None, type_id=bytes(32))), "type: link 1"),
        (lambda: a_token().narrow(a_grant(None, actions=frozenset({"history"}))), "action: .* no action in common"),
        (
            lambda: a_token(**ONLY_PLATE).narrow(a_grant(None, attributes=ids(PLATES, "speed"))),
            "attributes: .* no attribute in common",
        ),
        (
            lambda: a_token().narrow(a_grant(None, not_before=NOW_MS + DAY_MS, not_after=NOW_MS + 2 * DAY_MS)),
            "validity: .* never valid at the same time",
        ),
    ],
)
def test_a_narrowing_that_leaves_nothing_is_told_at_once(make: Callable[[], Capability], why: str) -> None:
    with pytest.raises(Denied, match=why):
        make()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"actions": frozenset()}, "one or more actions"),
        ({"actions": frozenset({"govern"})}, "got govern"),
        ({"actions": frozenset({"join-net", "publish"})}, "join-net is for the network"),
        ({"type_id": ANY_TYPE}, "join-net is for the network"),
        ({"attributes": frozenset()}, "one or more attributes"),
        ({"not_before": 5, "not_after": 5}, "never valid"),
        ({"max_depth": 256}, "delegation depth from 0 to 255"),
        ({"constraints": ("",)}, "constraint or address"),
        ({"holder": STRANGER}, "expected 32 bytes as holder"),
    ],
)
def test_a_grant_that_means_nothing_cannot_be_made(fields: dict[str, Any], why: str) -> None:
    holder = bytes(5) if "holder" in fields else DETECTIVE.public_key
    with pytest.raises(InputError, match=why):
        replace(a_grant(), **{**fields, "holder": holder})


def test_a_request_names_attributes_unless_it_is_for_the_network() -> None:
    wrong: list[tuple[bytes | str, str]] = [
        (PLATES.type_id, "subscribe"),
        (PLATES.type_id, "join-net"),
        (ANY_TYPE, "publish"),
    ]
    for request in wrong:
        with pytest.raises(InputError, match="attribute"):
            AccessRequest(*request)
    with pytest.raises(InputError, match="expected an action"):
        AccessRequest(PLATES.type_id, "govern")


def test_an_empty_chain_comes_to_nothing() -> None:
    with pytest.raises(Denied, match="issuer: link 0"):
        reduce((), OWNER.public_key)
