"""The receiving side without a network: numbers are released in order, once, whatever comes twice, late or not at all."""

from __future__ import annotations

from random import Random

import pytest

from tidings.delivery.inbox import NACK_AFTER_S, NACKED_AT_ONCE, Inbox, KeyDeadlines
from tidings.delivery.messages import Announce, Announced
from tidings.errors import PeerError
from tidings.overlay import EventId

JOURNAL = b"j" * 16


def event(number: int) -> EventId:
    return EventId("origin", 0, number)


def announce(inbox: Inbox, *numbers: int, first: int = 1, journal: bytes = JOURNAL, now: float = 0.0) -> None:
    events = tuple(Announced(number, event(number)) for number in numbers)
    inbox.receive_announce("origin", Announce(journal, first, events), now)


def released(inbox: Inbox) -> list[int]:
    return [id.seq for id, _ in inbox.release("origin")]


def requested(inbox: Inbox, now: float) -> list[int]:
    nack = inbox.nack("origin", now)
    return list(nack.numbers) if nack else []


def test_an_event_is_released_when_it_is_announced_and_has_arrived_in_whichever_order() -> None:
    inbox = Inbox()
    inbox.receive_from_overlay(event(1), ("d", b"one"))
    assert released(inbox) == []
    announce(inbox, 1, 2)
    assert released(inbox) == [1]
    inbox.receive_from_overlay(event(2), ("d", b"two"))
    assert released(inbox) == [2]


def test_a_gap_is_waited_for_and_requested() -> None:
    inbox = Inbox()
    announce(inbox, 1, 2)
    inbox.receive_from_overlay(event(2), ("d", b"two"))
    assert released(inbox) == []
    assert requested(inbox, now=NACK_AFTER_S) == [1]
    assert requested(inbox, now=NACK_AFTER_S) == []  # Requested just now.
    inbox.receive_retransmit("origin", 1, [("d", b"one")])
    assert released(inbox) == [1, 2]


def test_what_is_released_is_acknowledged_only_when_it_is_on_disk() -> None:
    inbox = Inbox()
    announce(inbox, 1, 2)
    inbox.receive_from_overlay(event(1), ("d", b"one"))
    assert (released(inbox), inbox.position("origin"), inbox.ack("origin").acked) == ([1], (JOURNAL, 2), 1)
    inbox.persisted("origin", JOURNAL, 2)
    assert inbox.ack("origin").acked == 2


def test_what_was_persisted_of_a_lost_journal_acknowledges_nothing_of_the_next_one() -> None:
    inbox = Inbox([("origin", JOURNAL, 50)])
    announce(inbox, 1, journal=b"another journal!")
    inbox.persisted("origin", JOURNAL, 60)
    assert inbox.ack("origin").acked == 1


def test_more_is_requested_as_soon_as_half_of_what_was_requested_has_arrived() -> None:
    inbox = Inbox()
    announce(inbox, *range(1, 2 * NACKED_AT_ONCE + 1))
    first = requested(inbox, now=NACK_AFTER_S)
    assert (first, inbox.can_nack("origin")) == (list(range(1, NACKED_AT_ONCE + 1)), False)
    for number in first[: NACKED_AT_ONCE // 2]:
        inbox.receive_retransmit("origin", number, [])
    assert inbox.can_nack("origin")
    assert requested(inbox, now=NACK_AFTER_S) == [NACKED_AT_ONCE + n for n in range(1, NACKED_AT_ONCE // 2 + 1)]


def test_what_the_overlay_brings_after_all_makes_room_for_what_is_missing() -> None:
    inbox = Inbox()
    announce(inbox, *range(2, NACKED_AT_ONCE + 2))
    for number in requested(inbox, now=NACK_AFTER_S):
        inbox.receive_from_overlay(event(number), ("d", b""))
    announce(inbox, 1, now=NACK_AFTER_S)
    assert requested(inbox, now=2 * NACK_AFTER_S) == [1]


def test_what_was_released_before_a_restart_is_not_released_again() -> None:
    inbox = Inbox([("origin", JOURNAL, 3)])
    announce(inbox, 1, 2, 3)
    for number in (1, 2, 3):
        inbox.receive_from_overlay(event(number), ("d", b""))
    assert released(inbox) == [3]


def test_an_origin_that_lost_its_journal_starts_a_new_stream() -> None:
    inbox = Inbox([("origin", JOURNAL, 50)])
    announce(inbox, 1, journal=b"another journal!")
    inbox.receive_from_overlay(event(1), ("d", b""))
    assert released(inbox) == [1]


def test_a_broker_that_lost_its_own_journal_continues_after_what_it_had_acknowledged() -> None:
    inbox = Inbox()
    announce(inbox, 7, first=7)
    inbox.receive_from_overlay(event(7), ("d", b""))
    assert released(inbox) == [7]


def test_an_event_for_one_subscription_alone_goes_to_no_other() -> None:
    inbox = Inbox()
    inbox.receive_announce("origin", Announce(JOURNAL, 1, (Announced(1, event(1), "late"),)), now=0.0)
    assert requested(inbox, now=0.0) == [1]
    inbox.receive_retransmit("origin", 1, [("early", b""), ("late", b"event")])
    assert [deliveries for _, deliveries in inbox.release("origin")] == [[("late", b"event")]]


def test_a_broker_cannot_announce_the_events_of_another() -> None:
    with pytest.raises(PeerError, match="announce: a broker announces events that were published there"):
        Inbox().receive_announce("liar", Announce(JOURNAL, 1, (Announced(1, event(1)),)), now=0.0)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_lost_repeated_and_reordered_each_number_is_released_once_and_in_order(seed: int) -> None:
    rng, inbox, got, now = Random(seed), Inbox(early_max=8), list[int](), 0.0
    while len(got) < 40:
        now += 0.3
        some = sorted(rng.sample(range(1, 41), 5))
        if rng.random() < 0.7:
            announce(inbox, *some, now=now)
        for number in rng.sample(range(1, 41), 4):
            inbox.receive_from_overlay(event(number), ("d", b""))
        for number in requested(inbox, now):
            if rng.random() < 0.7:
                inbox.receive_retransmit("origin", number, [("d", b"")])
        got += released(inbox)
        assert inbox.holdings()["early"][0] <= 8
    assert got == list(range(1, 41))


def test_an_event_without_a_key_is_given_up_only_after_the_key_manager_has_answered() -> None:
    keys = KeyDeadlines(unreadable_s_max=60.0)
    assert not keys.has_expired("origin", 1, now=0.0, keys_are_requested=True)
    assert not keys.has_expired("origin", 1, now=100.0, keys_are_requested=True)
    assert not keys.has_expired("origin", 1, now=159.0, keys_are_requested=False)
    assert keys.has_expired("origin", 1, now=160.0, keys_are_requested=False)


def test_an_event_that_could_be_opened_starts_its_wait_anew() -> None:
    keys = KeyDeadlines(unreadable_s_max=60.0)
    keys.has_expired("origin", 1, now=0.0, keys_are_requested=False)
    keys.opened("origin", 1)
    assert not keys.has_expired("origin", 1, now=70.0, keys_are_requested=False)


@pytest.mark.parametrize(
    ("journal", "first", "number"),
    [
        (JOURNAL, 1 << 63, 1 << 63),
        (JOURNAL, (1 << 63) - 1, (1 << 63) - 1),
        (JOURNAL, 1, 1 << 62),
        (JOURNAL, 0, 1),
        (JOURNAL, -1, 1),
        (bytes(1000), 1, 1),
    ],
)
def test_a_stream_whose_numbers_no_journal_can_hold_is_refused(journal: bytes, first: int, number: int) -> None:
    """The next number goes to disk: one too large for it would have kept everything noted since from being written."""
    inbox = Inbox()
    with pytest.raises(PeerError):
        announce(inbox, number, first=first, journal=journal)
    inbox.receive_from_overlay(event(number), ("d", b"one"))
    assert (released(inbox), inbox.position("origin")) == ([], (b"", 1))
