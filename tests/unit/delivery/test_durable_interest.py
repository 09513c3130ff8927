"""The interest directory: which brokers need an event, by advertisements that only their own brokers can sign."""

from __future__ import annotations

import pytest

from tests.given import Quake
from tidings.delivery.durable_interest import (
    BROKERS_OF_ONE_MAX,
    EXPIRE_S,
    BrokerInterests,
    DurableInterest,
    InterestDirectory,
    Shown,
    may_match,
    read_advertisement,
    sign_advertisement,
)
from tidings.delivery.messages import InterestAdvertisement, InterestVersions
from tidings.errors import Denied, PeerError
from tidings.events import EventType
from tidings.node import node_id_of
from tidings.overlay import Peer
from tidings.security import Identity

OTHER, ME = Identity(bytes(range(32))), Identity(bytes([7] * 32))
OTHER_PEER, MY_PEER = (Peer(node_id_of(each.public_key), "127.0.0.1:1") for each in (OTHER, ME))


def type_named(name: str) -> EventType | None:
    return Quake if name == "Quake" else None


class Members:
    """A network whose members are listed, with organisations; whoever is dropped is none any more."""

    def __init__(self) -> None:
        self.organisations = {identity.public_key: b"one" for identity in (OTHER, ME)}

    def __call__(self, key: bytes, rights: Shown) -> bytes:
        if key not in self.organisations:
            raise Denied("member: no")
        return self.organisations[key]


def directory(members: Members | None = None) -> InterestDirectory:
    return InterestDirectory(MY_PEER, ME, type_named, node_id_of, members or Members())


def learn(known: InterestDirectory, version: int, *interests: DurableInterest) -> InterestAdvertisement:
    body = BrokerInterests(OTHER_PEER, version, interests)
    advertisement = sign_advertisement(body, OTHER)
    known.learn(body, advertisement)
    return advertisement


def test_a_broker_needs_what_one_of_its_subscriptions_may_match() -> None:
    known = directory()
    learn(known, 1, DurableInterest("a", "Quake", "magnitude > 6.0", 0))
    assert known.brokers_for("Quake", {"magnitude": 7.0}) == [OTHER_PEER.id]
    assert known.brokers_for("Quake", {"magnitude": 5.0}) == []
    learn(known, 2, DurableInterest("b", "Quake", "depth < 10", 0))
    assert known.brokers_for("Quake", {"magnitude": 7.0, "depth": 50}) == []
    assert known.brokers_for("Quake", {"magnitude": 1.0, "depth": 5}) == [OTHER_PEER.id]


def test_a_subscription_without_a_readable_condition_needs_everything_of_its_type() -> None:
    known = directory()
    learn(known, 1, DurableInterest("a", "Quake", "", 0), DurableInterest("b", "Quake", "no SQL (", 0))
    assert known.brokers_for("Quake", None) == [OTHER_PEER.id]
    learn(known, 2)
    assert known.brokers_for("Quake", None) == []


def test_an_advertisement_counts_only_if_its_own_broker_has_signed_it() -> None:
    signed = sign_advertisement(BrokerInterests(OTHER_PEER, 1, ()), OTHER)
    assert read_advertisement(signed, node_id_of).who == OTHER_PEER
    with pytest.raises(PeerError, match="not signed"):
        read_advertisement(InterestAdvertisement(signed.body + b"\0", signed.key, signed.signature), node_id_of)
    with pytest.raises(PeerError, match="not the signer's own"):
        read_advertisement(sign_advertisement(BrokerInterests(OTHER_PEER, 9, ()), ME), node_id_of)


def test_two_directories_that_compare_versions_end_up_alike() -> None:
    one, other = directory(), directory()
    learn(one, 1, DurableInterest("a", "Quake", "", 0))
    for advertisement in one.newer_than(other.versions()):
        other.restore(advertisement, 1)
    assert other.brokers_for("Quake", None) == [OTHER_PEER.id]
    assert one.newer_than(other.versions()) == []


def test_an_older_version_is_no_news() -> None:
    known = directory()
    learn(known, 5)
    assert not known.is_news(BrokerInterests(OTHER_PEER, 5, ()))
    assert known.is_news(BrokerInterests(OTHER_PEER, 6, ()))


def test_a_broker_that_lost_its_journal_goes_on_above_the_version_that_others_have() -> None:
    before, after = directory(), directory()
    known = before.advertise([], 1000, ())
    assert after.verify(known) is None
    after.advertise([], 10, ())
    assert after.versions() == InterestVersions({MY_PEER.id: 1001})


def test_what_cannot_be_decided_may_match() -> None:
    interest = DurableInterest("a", "Quake", "magnitude > 6.0", 0)
    assert not may_match(interest, Quake, {"magnitude": 5.0})
    assert may_match(interest, None, {"magnitude": 5.0})
    assert may_match(interest, Quake, None)


def a_broker(number: int, version: int = 1) -> tuple[BrokerInterests, Identity]:
    identity = Identity(number.to_bytes(32, "big"))
    everything = DurableInterest("a", "Quake", "", 0)
    return BrokerInterests(Peer(node_id_of(identity.public_key), "127.0.0.1:1"), version, (everything,)), identity


def admit(known: InterestDirectory, number: int, version: int = 1, now_us: int = 1) -> None:
    body, identity = a_broker(number, version)
    known.admit(body, advertisement := sign_advertisement(body, identity), now_us)
    known.learn(body, advertisement)


def test_nobody_is_owed_anything_who_is_not_a_member() -> None:
    members = Members()
    known = directory(members)
    with pytest.raises(Denied, match="member"):
        admit(known, 1)
    members.organisations[a_broker(1)[1].public_key] = b"two"
    admit(known, 1)
    assert len(known.brokers_for("Quake", None)) == 1


def test_an_organisation_has_a_bounded_share_and_what_is_not_renewed_expires() -> None:
    members = Members()
    members.organisations.update({a_broker(n)[1].public_key: b"two" for n in range(1, BROKERS_OF_ONE_MAX + 2)})
    known = directory(members)
    for number in range(1, BROKERS_OF_ONE_MAX + 1):
        admit(known, number)
    with pytest.raises(Denied, match="more than"):
        admit(known, BROKERS_OF_ONE_MAX + 1)
    assert len(known.expire(int(EXPIRE_S * 1e6) + 2)) == BROKERS_OF_ONE_MAX
    assert known.brokers_for("Quake", None) == []


def test_brokers_with_live_subscriptions_only_are_known_by_type_and_take_no_place_of_durable_ones() -> None:
    members, count = Members(), BROKERS_OF_ONE_MAX + 2
    members.organisations.update({a_broker(n)[1].public_key: b"two" for n in range(1, count + 1)})
    known = directory(members)
    ids = []
    for number in range(1, count):
        body, identity = a_broker(number)
        body = BrokerInterests(body.who, 1, (), ("Quake", f"~keys/{number % 2}"))
        known.admit(body, advertisement := sign_advertisement(body, identity), 1)
        known.learn(body, advertisement)
        ids.append(body.who.id)
    admit(known, count)
    assert known.live_brokers("Quake") == ids
    assert known.live_brokers("~keys/1") == ids[::2]
    body, identity = a_broker(1, version=2)
    known.learn(body, sign_advertisement(body, identity))
    assert known.live_brokers("Quake") == ids[1:]
    assert len(known.brokers_for("Quake", None)) == 2
    known.expire(int(EXPIRE_S * 1e6) + 2)
    assert known.live_brokers("Quake") == []


def test_the_types_of_live_subscriptions_that_a_version_adds_are_told() -> None:
    known, added = directory(), []
    for version, live in enumerate((("Quake",), ("Quake", "~keys/1"), ("~keys/1",), ("~keys/1", "Quake")), 1):
        body = BrokerInterests(OTHER_PEER, version, (), live)
        added.append(known.live_added_by(body))
        known.learn(body, sign_advertisement(body, OTHER))
    assert added == [["Quake"], ["~keys/1"], [], ["Quake"]]


def test_a_version_from_the_future_is_refused() -> None:
    members = Members()
    members.organisations[a_broker(1)[1].public_key] = b"two"
    with pytest.raises(Denied, match="future"):
        admit(directory(members), 1, version=1 << 63)
