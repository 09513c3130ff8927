"""The sending side without a network: numbers without gaps, announced within a window until they are acknowledged."""

from __future__ import annotations

from tidings.delivery.log_cursor import LogRead
from tidings.delivery.messages import Announce
from tidings.delivery.outbox import ANNOUNCE_AGAIN_S, Outbox, PendingEvent
from tidings.overlay import EventId

JOURNAL = b"j" * 16


def event(number: int) -> EventId:
    return EventId("me", 0, number)


def publish(outbox: Outbox, *seqs: int) -> list[PendingEvent]:
    added = [outbox.add("b", seq, event(seq)) for seq in seqs]
    for pending in added:
        outbox.committed("b", pending)
    return added


def announced(outbox: Outbox) -> list[int]:
    step = outbox.next_step("b")
    assert isinstance(step, Announce)
    return [entry.number for entry in step.events]


def test_each_broker_has_numbers_of_its_own_without_gaps() -> None:
    outbox = Outbox(JOURNAL)
    assert [outbox.add(broker, 1, event(1)).number for broker in ("b", "c", "b", "b", "c")] == [1, 1, 2, 3, 2]


def test_nothing_is_announced_before_it_is_on_disk() -> None:
    outbox = Outbox(JOURNAL)
    pending = outbox.add("b", 1, event(1))
    assert outbox.next_step("b") is None
    outbox.committed("b", pending)
    assert announced(outbox) == [1]
    assert outbox.next_step("b") is None


def test_no_more_is_announced_than_the_window_allows_until_some_is_acknowledged() -> None:
    outbox = Outbox(JOURNAL, window=3)
    publish(outbox, *range(1, 6))
    assert announced(outbox) == [1, 2, 3]
    assert outbox.next_step("b") is None
    assert outbox.ack("b", 3, now=0.0)
    assert announced(outbox) == [4, 5]


def test_an_announcement_that_the_link_did_not_take_is_made_again_from_the_log() -> None:
    outbox = Outbox(JOURNAL)
    added = publish(outbox, 1, 2)
    step = outbox.next_step("b")
    assert isinstance(step, Announce)
    outbox.not_sent("b", step)
    read = outbox.next_step("b")
    assert isinstance(read, LogRead)
    assert outbox.supply("b", read, added) == step


def test_what_is_not_acknowledged_for_a_while_is_announced_again() -> None:
    outbox = Outbox(JOURNAL)
    publish(outbox, 1)
    announced(outbox)
    assert outbox.unanswered(ANNOUNCE_AGAIN_S) == []
    assert outbox.unanswered(ANNOUNCE_AGAIN_S + 0.1) == ["b"]
    outbox.announce_again("b", ANNOUNCE_AGAIN_S + 0.1)
    assert isinstance(outbox.next_step("b"), LogRead)
    assert outbox.unanswered(ANNOUNCE_AGAIN_S + 0.2) == []


def test_an_acknowledgement_of_what_was_never_sent_changes_nothing() -> None:
    outbox = Outbox(JOURNAL)
    publish(outbox, 1)
    assert not outbox.ack("b", 3, now=0.0)
    assert not outbox.ack("b", -5, now=0.0)
    assert not outbox.ack("stranger", 1, now=0.0)
    assert outbox.pending() == {"b": 1}


def test_a_stream_goes_on_after_a_restart_where_it_was_on_disk() -> None:
    outbox = Outbox(JOURNAL, [("b", 8, 5)])
    assert list(outbox.unacked("b", 64)) == [5, 6, 7]
    step = outbox.next_step("b")
    assert isinstance(step, LogRead)
    assert step.after == 4
    assert outbox.add("b", 9, event(9)).number == 8
