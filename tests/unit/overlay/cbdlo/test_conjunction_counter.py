"""Counting attributes: all of them, each once, with an expiry and a bound (CBDLO-INV-10)."""

from __future__ import annotations

from tidings.overlay import EventId, SubscriptionId
from tidings.overlay.cbdlo.conjunction_counter import ConjunctionCounter

QUAKE, FLOOD = EventId("p", 0, 1), EventId("p", 0, 2)
WISH = SubscriptionId("s", 0, 1)


def test_an_interest_matches_when_all_its_attributes_have_matched() -> None:
    """Equal to their number; the paper says more, which can never be (CBDLO-GAP-01)."""
    counters = ConjunctionCounter()
    assert not counters.matched(QUAKE, WISH, "depth", needed=2, now=0.0)
    assert counters.matched(QUAKE, WISH, "magnitude", needed=2, now=0.1)
    assert len(counters) == 0


def test_an_attribute_that_matches_twice_counts_once() -> None:
    counters = ConjunctionCounter()
    assert [counters.matched(QUAKE, WISH, "depth", needed=2, now=0.0) for _ in range(3)] == [False] * 3


def test_events_are_counted_separately() -> None:
    counters = ConjunctionCounter()
    counters.matched(QUAKE, WISH, "depth", needed=2, now=0.0)
    assert not counters.matched(FLOOD, WISH, "magnitude", needed=2, now=0.0)


def test_an_incomplete_count_expires() -> None:
    counters = ConjunctionCounter(partial_s=30.0)
    counters.matched(QUAKE, WISH, "depth", needed=2, now=0.0)
    counters.expire(29.0)
    assert len(counters) == 1
    counters.expire(30.0)
    assert (len(counters), counters.dropped) == (0, 1)


def test_counts_are_bounded_and_the_oldest_is_evicted_first() -> None:
    counters = ConjunctionCounter(at_most=3)
    for seq in range(5):
        counters.matched(EventId("p", 0, seq), WISH, "depth", needed=2, now=0.0)
    assert (len(counters), counters.dropped) == (3, 2)
    assert not counters.matched(EventId("p", 0, 0), WISH, "magnitude", needed=2, now=0.0)
    assert counters.matched(EventId("p", 0, 4), WISH, "magnitude", needed=2, now=0.0)
