"""Moments: never the same twice, never far ahead of the clock (SECURE-INV-8)."""

from __future__ import annotations

import itertools

import pytest

from tidings.errors import Denied
from tidings.security import NonceClock, NotYet
from tidings.security.envelope.nonce import SEQ_MAX, TS_MS_MAX


def test_a_million_moments_of_one_millisecond_are_all_different() -> None:
    moments = NonceClock(grace_ms=5000)
    first = moments.take(1000)
    moments.take(1000, run=SEQ_MAX - 1)
    last = moments.take(1000)
    assert (first, last, moments.take(1000)) == ((1000, 0), (1000, SEQ_MAX), (1001, 0))


def test_ten_thousand_moments_taken_singly_increase() -> None:
    moments = NonceClock(grace_ms=5000)
    taken = [moments.take(1000 - step % 7) for step in range(10_000)]
    assert all(one < other for one, other in itertools.pairwise(taken))


def test_a_clock_that_steps_back_a_little_repeats_nothing() -> None:
    moments = NonceClock(grace_ms=5000)
    taken = [moments.take(now) for now in (5000, 5000, 4000, 2600, 5001, 5000)]
    assert taken == sorted(set(taken))


def test_a_clock_that_steps_back_too_far_is_waited_for() -> None:
    moments = NonceClock(grace_ms=5000)
    moments.take(10_000)
    with pytest.raises(NotYet, match=r"clock: 3000 ms behind the last event; at most 2500 ms") as refused:
        moments.take(7000)
    assert refused.value.until_ms == 7500
    assert moments.take(refused.value.until_ms) == (10_000, 1)


def test_a_refused_moment_is_not_used_up() -> None:
    moments = NonceClock(grace_ms=2, per_ms=1)
    assert [moments.take(10), moments.take(10)] == [(10, 0), (11, 0)]
    with pytest.raises(NotYet):
        moments.take(10)
    assert moments.take(11) == (12, 0)


def test_in_the_papers_way_each_millisecond_is_used_once() -> None:
    moments = NonceClock(grace_ms=5000, per_ms=1)
    assert [moments.take(10) for _ in range(3)] == [(10, 0), (11, 0), (12, 0)]


def test_a_run_never_crosses_a_millisecond() -> None:
    moments = NonceClock(grace_ms=5000)
    moments.take(10, run=SEQ_MAX - 5)
    assert moments.take(10, run=100) == (11, 0)
    assert moments.take(10) == (11, 100)


@pytest.mark.parametrize("now", [-1, TS_MS_MAX + 1])
def test_a_clock_outside_all_reason_is_refused(now: int) -> None:
    with pytest.raises(Denied, match="clock: .* outside 1970 to 2248"):
        NonceClock(grace_ms=5000).take(now)
