"""Signed event types: names nobody else can give, and definitions nobody can change."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import cbor2
import pytest

from tests.unit.security.london import MANAGER, NOW_MS, OWNER, PLATES, STRANGER, Numberplate, a_type
from tidings.errors import Denied, EventError, EventTypeError, PeerError
from tidings.events import EventType, Required
from tidings.security import MODERN, PAPER, Mode, PadPolicy, SignedType


def test_a_name_starts_with_the_owners_key() -> None:
    assert PLATES.name == f"ed25519:{OWNER.public_key.hex()}/Numberplate@1"


def test_ids_are_those_of_the_known_answer() -> None:
    name = "pito.police.uk/Numberplate@1"
    assert MODERN.type_id(name).hex() == "57876ee7d3d160753e08d13e5435025e147d0b92173ba96cc48424d6ee2275c7"
    assert MODERN.attr_id(name, "plate").hex() == "947c13055b18667ce9c4e77ff9630989e9efde126767813764f6e2b161f4bc58"
    assert MODERN.attr_id(name, "location").hex() == "6ed62f089371dfd125348dbacec5a38d613f8bbb51d8bf3697e4f65c3c5c37c4"


def test_two_types_never_share_an_attributes_id_but_in_the_paper_they_do() -> None:
    other = a_type(version=2)
    assert PLATES.attr_id("plate") != other.attr_id("plate")
    assert PAPER.attr_id("one", "plate") == PAPER.attr_id("other", "plate")  # SECURE-GAP-6


def test_attribute_ids_stand_in_the_order_of_the_wire() -> None:
    assert list(PLATES.attr_ids.values()) == sorted(PLATES.attr_ids.values())
    assert {a.name for a in PLATES.attributes_by_id.values()} == {"plate", "location", "speed"}


def test_groups_are_one_for_an_event_and_one_for_each_attribute() -> None:
    assert a_type(mode=Mode.EVENT).group_ids == (a_type(mode=Mode.EVENT).type_id,)
    assert PLATES.group_ids == tuple(PLATES.attr_ids.values())
    assert a_type(mode=Mode.PLAIN).group_ids == ()


def test_an_attribute_the_type_has_not_is_named_with_its_neighbour() -> None:
    with pytest.raises(EventError, match="did you mean 'plate'"):
        PLATES.attr_id("plat")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"mode": Mode.EVENT, "suite": 0x12, "version": 7},
        {"pad_policy": PadPolicy.BUCKET, "max_len": {"plate": 12}},
        {"suite": 0x10, "tag_len": 8},
        {"event_type": EventType("Ünïcode", a=Required(bytes), b=bool, c=int)},
    ],
)
def test_a_definition_survives_its_bytes(fields: dict[str, Any]) -> None:
    made = a_type(**fields)
    read = SignedType.from_bytes(made.to_bytes())
    read.verify(NOW_MS)
    assert read == made
    assert (read.name, read.type_id, read.attr_ids, read.group_ids) == (
        made.name,
        made.type_id,
        made.attr_ids,
        made.group_ids,
    )
    assert pickle.loads(pickle.dumps(made)) == made


def test_the_order_in_which_attributes_were_declared_does_not_matter() -> None:
    turned = EventType("Numberplate", speed=float, location=str, plate=str)
    assert a_type(event_type=turned).canonical() == PLATES.canonical()


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 2},
        {"mode": Mode.PLAIN},
        {"suite": 0x02},
        {"pad_policy": PadPolicy.BUCKET},
        {"key_manager": STRANGER.public_key},
        {"owner_key": STRANGER.public_key},
        {"refresh_secs": 10},
        {"grace_ms": 60_000},
        {"max_lazy_secs": 0},
        {"not_after": NOW_MS + 1},
        {"not_before": 1},
        {"max_len": {"plate": 5}},
        {"event_type": EventType("Numberplate", plate=str, location=str)},
        {"event_type": EventType("Numberplates", plate=str, location=str, speed=float)},
        {"event_type": EventType("Numberplate", plate=str, location=str, speed=Required(float))},
        {"signature": bytes(64)},
        {"signature": b""},
    ],
)
def test_no_field_can_be_changed_by_anybody_but_the_owner(changed: dict[str, Any]) -> None:
    with pytest.raises(PeerError, match="signature: event type 'Numberplates?' is not signed by"):
        replace(PLATES, **changed).verify(NOW_MS)


def test_a_type_holds_from_its_first_to_before_its_last_moment() -> None:
    made = a_type(not_before=100_000, not_after=200_000)
    made.verify(100_000)
    made.verify(199_999)
    with pytest.raises(
        Denied, match=r"validity: .* is not valid before 1970-01-01T00:01:40Z, and it is 1970-01-01T00:01:39Z"
    ):
        made.verify(99_000)
    with pytest.raises(Denied, match=r"validity: .* expired at 1970-01-01T00:03:20Z, and it is 1970-01-01T00:03:20Z"):
        made.verify(200_000)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"suite": 0x99}, "suite 153 is unknown"),
        ({"tag_len": 12}, "tag of 16 to 16 bytes"),
        ({"suite": 0x10, "tag_len": 3}, "tag of 4 to 16 bytes"),
        ({"version": -1}, "expected version between"),
        ({"version": True}, "expected version between"),
        ({"grace_ms": 2**32}, "expected grace_ms between"),
        ({"not_before": 5, "not_after": 5}, "which is never"),
        ({"max_len": {"colour": 3}}, "'colour', which is no attribute"),
        ({"max_len": {"plate": 0}}, "expected max_len of 'plate'"),
        ({"event_type": EventType("Ångström".replace("Å", "A\u030a"), a=str)}, "NFC"),
    ],
)
def test_a_definition_that_makes_no_sense_is_refused_when_it_is_made(fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(EventTypeError, match=complaint):
        a_type(**fields)


def test_only_the_one_canonical_form_is_read() -> None:
    fields = cbor2.loads(PLATES.to_bytes())
    with pytest.raises(PeerError, match="not in canonical form"):
        SignedType.from_bytes(cbor2.dumps(dict(reversed(fields.items()))))
    with pytest.raises(PeerError, match="expected a signed event type"):
        SignedType.from_bytes(cbor2.dumps({**fields, "colour": 1}, canonical=True))
    with pytest.raises(PeerError, match="canonical|expected"):
        SignedType.from_bytes(PLATES.to_bytes() + b"\0")


def test_a_definition_of_more_than_a_megabyte_is_not_even_read() -> None:
    with pytest.raises(PeerError, match="at most"):
        SignedType.from_bytes(bytes(2**20 + 1))


def test_types_with_equal_bytes_are_equal_and_hash_alike() -> None:
    again = SignedType.make(OWNER, Numberplate, key_manager=MANAGER.public_key)
    assert again == PLATES
    assert hash(again) == hash(PLATES)
    assert a_type(version=2) != PLATES
