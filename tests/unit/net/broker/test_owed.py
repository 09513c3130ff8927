"""What is owed, without a network: numbers are taken in order, once, whatever comes twice, late or not at all."""

from __future__ import annotations

from random import Random

import pytest

from tests.given import Quake
from tidings.errors import PeerError
from tidings.net.broker.owed import (
    ASK_AFTER_S,
    ASKED_AT_ONCE,
    Demand,
    Dues,
    DurableInterest,
    WantsBody,
    read_wants,
    signed_wants,
)
from tidings.net.transport.frames import Listed, Wants
from tidings.node import node_id_of
from tidings.overlay import EventId, Peer
from tidings.security import Identity

JOURNAL = b"j" * 16
BROKER = Identity(bytes(range(32)))
ME = Peer(node_id_of(BROKER.public_key), "127.0.0.1:1")


def event(number: int) -> EventId:
    return EventId("origin", 0, number)


def listed(*numbers: int) -> list[Listed]:
    return [Listed(number, event(number)) for number in numbers]


def taken(dues: Dues) -> list[int]:
    return [id.seq for id, _ in dues.ready("origin")]


def test_an_event_is_taken_when_it_is_listed_and_has_come_in_whichever_order() -> None:
    dues = Dues()
    dues.came(event(1), ("d", b"one"))
    assert taken(dues) == []
    dues.listed("origin", JOURNAL, 1, listed(1, 2), now=0.0)
    assert taken(dues) == [1]
    dues.came(event(2), ("d", b"two"))
    assert taken(dues) == [2]


def test_a_gap_is_waited_for_and_asked_for() -> None:
    dues = Dues()
    dues.listed("origin", JOURNAL, 1, listed(1, 2), now=0.0)
    dues.came(event(2), ("d", b"two"))
    assert taken(dues) == []
    assert dues.overdue("origin", now=ASK_AFTER_S) == [1]
    assert dues.overdue("origin", now=ASK_AFTER_S) == []  # Asked just now.
    dues.again("origin", 1, [("d", b"one")])
    assert taken(dues) == [1, 2]


def test_what_is_taken_is_safe_only_when_it_is_on_disk() -> None:
    dues = Dues()
    dues.listed("origin", JOURNAL, 1, listed(1, 2), now=0.0)
    dues.came(event(1), ("d", b"one"))
    assert (taken(dues), dues.next_number("origin"), dues.safe("origin")) == ([1], 2, 1)
    dues.is_on_disk("origin", JOURNAL, 2)
    assert dues.safe("origin") == 2


def test_what_was_written_for_a_lost_journal_makes_nothing_of_the_next_one_safe() -> None:
    dues = Dues([("origin", JOURNAL, 50)])
    dues.listed("origin", b"another journal!", 1, listed(1), now=0.0)
    dues.is_on_disk("origin", JOURNAL, 60)
    assert dues.safe("origin") == 1


def test_more_is_asked_for_as_soon_as_half_of_what_was_asked_for_has_come() -> None:
    dues = Dues()
    dues.listed("origin", JOURNAL, 1, listed(*range(1, 2 * ASKED_AT_ONCE + 1)), now=0.0)
    first = dues.overdue("origin", now=ASK_AFTER_S)
    assert (first, dues.can_ask("origin")) == (list(range(1, ASKED_AT_ONCE + 1)), False)
    for number in first[: ASKED_AT_ONCE // 2]:
        dues.again("origin", number, [])
    assert dues.can_ask("origin")
    assert dues.overdue("origin", now=ASK_AFTER_S) == [ASKED_AT_ONCE + n for n in range(1, ASKED_AT_ONCE // 2 + 1)]


def test_what_the_overlay_brings_after_all_makes_room_for_what_is_missing() -> None:
    dues = Dues()
    dues.listed("origin", JOURNAL, 1, listed(*range(2, ASKED_AT_ONCE + 2)), now=0.0)
    for number in dues.overdue("origin", now=ASK_AFTER_S):
        dues.came(event(number), ("d", b""))
    dues.listed("origin", JOURNAL, 1, listed(1), now=ASK_AFTER_S)
    assert dues.overdue("origin", now=2 * ASK_AFTER_S) == [1]


def test_what_was_taken_in_an_earlier_life_is_not_taken_again() -> None:
    dues = Dues([("origin", JOURNAL, 3)])
    dues.listed("origin", JOURNAL, 1, listed(1, 2, 3), now=0.0)
    for number in (1, 2, 3):
        dues.came(event(number), ("d", b""))
    assert taken(dues) == [3]


def test_an_origin_that_lost_its_journal_begins_anew() -> None:
    dues = Dues([("origin", JOURNAL, 50)])
    dues.listed("origin", b"another journal!", 1, listed(1), now=0.0)
    dues.came(event(1), ("d", b""))
    assert taken(dues) == [1]


def test_a_broker_that_lost_its_own_journal_goes_on_where_it_had_confirmed() -> None:
    dues = Dues()
    dues.listed("origin", JOURNAL, 7, listed(7), now=0.0)
    dues.came(event(7), ("d", b""))
    assert taken(dues) == [7]


def test_an_event_owed_to_one_subscription_alone_goes_to_no_other() -> None:
    dues = Dues()
    dues.listed("origin", JOURNAL, 1, [Listed(1, event(1), "late")], now=0.0)
    assert dues.overdue("origin", now=0.0) == [1]
    dues.again("origin", 1, [("early", b""), ("late", b"told")])
    assert [bundle for _, bundle in dues.ready("origin")] == [[("late", b"told")]]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_lost_repeated_and_overtaken_each_number_is_taken_once_and_in_order(seed: int) -> None:
    rng, dues, got, now = Random(seed), Dues(early_max=8), list[int](), 0.0
    while len(got) < 40:
        now += 0.3
        some = sorted(rng.sample(range(1, 41), 5))
        if rng.random() < 0.7:
            dues.listed("origin", JOURNAL, 1, listed(*some), now)
        for number in rng.sample(range(1, 41), 4):
            dues.came(event(number), ("d", b""))
        for number in dues.overdue("origin", now):
            if rng.random() < 0.7:
                dues.again("origin", number, [("d", b"")])
        got += taken(dues)
        assert dues.holdings()["early"][0] <= 8
    assert got == list(range(1, 41))


def test_a_broker_is_owed_what_one_of_its_subscriptions_may_want() -> None:
    demand = Demand(lambda name: Quake if name == "Quake" else None)
    demand.learn(WantsBody(ME, 1, (DurableInterest("a", "Quake", "magnitude > 6.0", 0),)))
    assert demand.brokers_for("Quake", {"magnitude": 7.0}) == [ME.id]
    assert demand.brokers_for("Quake", {"magnitude": 5.0}) == []
    demand.learn(WantsBody(ME, 2, (DurableInterest("b", "Quake", "depth < 10", 0),)))
    assert demand.brokers_for("Quake", {"magnitude": 7.0, "depth": 50}) == []
    assert demand.brokers_for("Quake", {"magnitude": 1.0, "depth": 5}) == [ME.id]


def test_a_subscription_without_a_readable_condition_is_owed_everything_of_its_type() -> None:
    demand = Demand(lambda name: Quake)
    demand.learn(WantsBody(ME, 1, (DurableInterest("a", "Quake", "", 0), DurableInterest("b", "Quake", "no SQL (", 0))))
    assert demand.brokers_for("Quake", None) == [ME.id]
    demand.learn(WantsBody(ME, 2, ()))
    assert demand.brokers_for("Quake", None) == []


def test_what_a_broker_wants_counts_only_as_the_broker_itself_has_signed_it() -> None:
    wants = signed_wants(WantsBody(ME, 1, ()), BROKER)
    assert read_wants(wants).who == ME
    with pytest.raises(PeerError, match="not signed"):
        read_wants(Wants(wants.body + b"\0", wants.key, wants.signature))
    stranger = Identity(bytes(32))
    with pytest.raises(PeerError, match="not the signer's own"):
        read_wants(signed_wants(WantsBody(ME, 9, ()), stranger))
