"""Sealed subscriptions: read as far as the keys go, and only from those who may subscribe."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.security.london import CHARGE, DETECTIVE, NOW_MS, OPEN, PLATES, WHOLE, a_keyring, a_type, ids
from tidings.errors import Denied, InputError, PeerError
from tidings.security import FilterOpener, FilterSealer, Keyring, SignedType

PLATE, PLACE = PLATES.attr_id("plate"), PLATES.attr_id("location")
CLAUSES = [{PLATE: b"= 'AB12CDE'", PLACE: b"LIKE 'R%'"}, {PLATE: b"= 'ZZ99ZZZ'"}]
SUB_ID = bytes(range(16))


def a_subscription(signed_type: SignedType = PLATES, clauses: Any = None, **how: Any) -> bytes:
    signer = how.pop("signer", None)
    given: dict[str, Any] = {"sub_id": SUB_ID, "version": 1, "lease_ms": 60_000, "now_ms": NOW_MS}
    clauses = clauses or (CLAUSES if signed_type is PLATES else [{signed_type.type_id: b"anything"}])
    return FilterSealer(signed_type, a_keyring(signed_type), 7, signer=signer).seal(clauses, **given | how)


def test_whoever_has_the_keys_reads_the_clauses() -> None:
    opened = FilterOpener(PLATES, a_keyring(PLATES)).open_(a_subscription())
    assert (opened.sub_id, opened.version, opened.lease_ms) == (SUB_ID, 1, 60_000)
    assert [dict(clause) for clause in opened.clauses] == CLAUSES
    whole = FilterOpener(WHOLE, a_keyring(WHOLE)).open_(a_subscription(WHOLE))
    assert whole.clauses == ({WHOLE.type_id: b"anything"},)


def test_who_lacks_a_key_sees_which_attribute_is_meant_and_not_what_is_wanted_of_it() -> None:
    raw = a_subscription()
    opened = FilterOpener(PLATES, a_keyring(PLATES, ["plate"])).open_(raw)
    assert opened.clauses == ({PLATE: b"= 'AB12CDE'", PLACE: None}, {PLATE: b"= 'ZZ99ZZZ'"})
    nothing = FilterOpener(PLATES, Keyring(PLATES)).open_(raw)
    assert nothing.clauses == ({PLATE: None, PLACE: None}, {PLATE: None})
    assert b"AB12CDE" not in raw


def test_a_lease_ends_and_none_is_for_as_long_as_the_right() -> None:
    opened = FilterOpener(PLATES, a_keyring(PLATES)).open_(a_subscription(lease_ms=60_000))
    opened.check_lease(NOW_MS + 59_999)
    with pytest.raises(PeerError, match="lease: of 60000 ms"):
        opened.check_lease(NOW_MS + 60_000)
    FilterOpener(PLATES, a_keyring(PLATES)).open_(a_subscription(lease_ms=0)).check_lease(2**62)


def test_an_empty_clause_wants_everything() -> None:
    assert FilterOpener(PLATES, a_keyring(PLATES)).open_(a_subscription(clauses=[{}])).clauses == ({},)


def test_no_two_clauses_share_key_and_nonce() -> None:
    """SECURE-GAP-5: equal plaintexts on one attribute give different bytes in every clause and version."""
    sealer = FilterSealer(PLATES, a_keyring(PLATES), 7)
    parts = set()
    for version in (1, 2, 3):
        raw = sealer.seal([{PLATE: b"> 10"}] * 3, sub_id=SUB_ID, version=version, lease_ms=1, now_ms=NOW_MS)
        body = raw[54 + 26 :]
        size = len(body) // 3
        parts |= {body[index * size + 46 : (index + 1) * size] for index in range(3)}
    assert len(parts) == 9


@pytest.mark.parametrize("signed_type", [PLATES, WHOLE], ids=["attribute", "event"])
def test_no_flipped_bit_goes_unnoticed_but_in_the_lease_and_unread_epochs(signed_type: SignedType) -> None:
    """The lease is the broker's own affair unless signed; an epoch nobody has makes the part opaque, that is: true."""
    raw = a_subscription(signed_type, [{signed_type.group_ids[0]: b"x"}])
    opener = FilterOpener(signed_type, a_keyring(signed_type))
    for bit in range(8 * len(raw)):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << (bit % 8)
        try:
            opened = opener.open_(bytes(changed))
        except PeerError:
            continue
        assert 74 <= bit // 8 < 78 or set(opened.clauses[0].values()) == {None}, f"bit {bit} went unnoticed"


@pytest.mark.parametrize("signed_type", [PLATES, WHOLE], ids=["attribute", "event"])
def test_nothing_of_a_signed_subscription_can_be_changed_even_for_a_broker_without_keys(
    signed_type: SignedType,
) -> None:
    raw = a_subscription(signed_type, signer=DETECTIVE, capability_digest=bytes(32))
    opener = FilterOpener(signed_type, Keyring(signed_type), may_subscribe=lambda key, digest, attributes: None)
    assert opener.open_(raw).signer == DETECTIVE.public_key
    for at in range(len(raw)):
        changed = raw[:at] + bytes([raw[at] ^ 0x10]) + raw[at + 1 :]
        with pytest.raises(PeerError):
            opener.open_(changed)
    for size in range(len(raw)):
        with pytest.raises(PeerError):
            opener.open_(raw[:size])


def test_only_who_may_subscribe_is_stored() -> None:
    """SECURE-INV-10, its second half."""
    asked = []

    def may_subscribe(key: bytes, digest: bytes, attributes: tuple[bytes, ...]) -> None:
        asked.append((digest, attributes))
        if key != DETECTIVE.public_key:
            raise Denied("action: may not subscribe")

    opener = FilterOpener(PLATES, Keyring(PLATES), may_subscribe=may_subscribe)
    opener.open_(a_subscription(signer=DETECTIVE, capability_digest=bytes(32)))
    assert asked == [(bytes(32), tuple(sorted(ids(PLATES, "plate", "location"))))]
    with pytest.raises(Denied, match="may not subscribe"):
        opener.open_(a_subscription(signer=CHARGE))
    with pytest.raises(PeerError, match="signature: the subscription is not signed"):
        opener.open_(a_subscription())


def test_a_clause_moved_dropped_or_taken_from_another_subscription_is_refused() -> None:
    raw = a_subscription(clauses=[{PLATE: b"aaaa"}, {PLATE: b"bbbb"}])
    head, body = raw[:80], raw[80:]
    one, two = body[: len(body) // 2], body[len(body) // 2 :]
    opener = FilterOpener(PLATES, a_keyring(PLATES))
    with pytest.raises(PeerError, match="a clause out of its turn"):
        opener.open_(head + two + one)
    with pytest.raises(PeerError, match="tag"):
        opener.open_(head + two[:0] + one[:4] + two[4:] + two[:4] + one[4:])
    with pytest.raises(PeerError, match="tag"):
        opener.open_(head + one[:4] + two[4:] + two)
    other = a_subscription(clauses=[{PLATE: b"aaaa"}, {PLATE: b"bbbb"}], sub_id=bytes(16))
    with pytest.raises(PeerError, match="tag"):
        opener.open_(head + other[80:])


@pytest.mark.parametrize(
    ("clauses", "how", "why"),
    [
        ([], {}, "1 to 1024 clauses"),
        ([{}] * 1025, {}, "1 to 1024 clauses"),
        ([{}], {"sub_id": b""}, "an id of 16 bytes"),
        ([{}], {"capability_digest": b"short"}, "digest of 32 bytes"),
        ([{bytes(32): b""}], {}, "no key group of its type"),
    ],
)
def test_what_cannot_be_a_subscription_is_refused(clauses: Any, how: dict[str, Any], why: str) -> None:
    given: dict[str, Any] = {"sub_id": SUB_ID, "version": 1, "lease_ms": 1, "now_ms": NOW_MS}
    with pytest.raises(InputError, match=why):
        FilterSealer(PLATES, a_keyring(PLATES), 7).seal(clauses, **given | how)


def test_filters_are_sealed_in_the_papers_profile_too() -> None:
    """Section 3.3 of the paper. Each clause has a nonce of its own; the subscriber's key in it is the signer's."""
    paper = a_type(suite=0x10)
    plate, place = paper.attr_id("plate"), paper.attr_id("location")
    clauses = [{plate: b"> 10", place: b"x"}, {plate: b"> 10"}]
    raw = a_subscription(paper, clauses, signer=CHARGE)
    opener = FilterOpener(paper, a_keyring(paper), may_subscribe=lambda *asked: None)
    opened = opener.open_(raw)
    assert [dict(clause) for clause in opened.clauses] == clauses
    assert opened.signer == CHARGE.public_key
    partly = FilterOpener(paper, a_keyring(paper, ["plate"])).open_(raw)
    assert partly.clauses == ({plate: b"> 10", place: None}, {plate: b"> 10"})
    nonces = {paper.profile.filter_nonce(7, NOW_MS, seq, CHARGE.public_key) for seq in range(3)}
    assert len(nonces) == 3
    for bit in range(8 * len(raw)):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises((PeerError, Denied)):
            opener.open_(bytes(changed))
    with pytest.raises(InputError, match="needs a signer"):
        FilterSealer(paper, a_keyring(paper), 7)


def test_a_plain_types_filter_has_nothing_to_be_sealed_with() -> None:
    with pytest.raises(InputError, match="one part, under the type's id"):
        FilterSealer(OPEN, Keyring(OPEN), 7).seal([{}], sub_id=SUB_ID, version=1, lease_ms=1, now_ms=NOW_MS)
