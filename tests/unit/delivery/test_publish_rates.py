"""Rates: what is let in, what is refused, and when to come again."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.delivery import PeerRates, PublishRates
from tidings.errors import ErrorCode, RateLimited
from tidings.net.transport.frames import as_error, refusal


def test_a_client_over_its_rate_is_told_when_to_come_again_and_others_go_on() -> None:
    counts = Counter[str]()
    rates = PublishRates(per_client=10, per_organisation=0, burst_s=2, counts=counts)
    rates.admit(b"fast", 20, now=5.0)
    with pytest.raises(RateLimited, match="rate: this client may publish 10 events a second") as refused:
        rates.admit(b"fast", 5, now=5.0)
    assert (refused.value.retry_after_s, refused.value.code, counts["rate limited"]) == (0.5, ErrorCode.RATE, 5)
    rates.admit(b"other", 20, now=5.0)
    rates.admit(b"fast", 5, now=5.5)


def test_all_clients_together_have_the_rate_of_their_organisation() -> None:
    rates = PublishRates(per_client=0, per_organisation=100, burst_s=1, counts=Counter())
    rates.admit(b"a", 60, now=0.0)
    with pytest.raises(RateLimited, match="this organisation") as refused:
        rates.admit(b"b", 60, now=0.0)
    assert refused.value.retry_after_s == pytest.approx(0.2)


def test_a_batch_larger_than_the_burst_is_let_in_when_the_bucket_is_full_and_paid_for_later() -> None:
    rates = PublishRates(per_client=10, per_organisation=0, burst_s=1, counts=Counter())
    rates.admit(b"a", 100, now=0.0)
    with pytest.raises(RateLimited) as refused:
        rates.admit(b"a", 1, now=0.0)
    assert refused.value.retry_after_s == pytest.approx(9.1)


@given(st.lists(st.tuples(st.integers(1, 30), st.floats(0, 2)), max_size=50))
def test_whoever_comes_again_after_the_time_it_was_told_is_let_in(tries: list[tuple[int, float]]) -> None:
    rates, now, admitted = PublishRates(per_client=10, per_organisation=0, burst_s=2, counts=Counter()), 0.0, 0
    for count, pause_s in tries:
        now += pause_s
        try:
            rates.admit(b"a", count, now)
        except RateLimited as refused:
            now += refused.retry_after_s + 1e-6
            rates.admit(b"a", count, now)
        admitted += count
    assert admitted <= 20 + 10 * now + 30  # The burst, the rate, and at most one batch in advance.


def test_a_refusal_crosses_the_link_with_its_time() -> None:
    error = as_error(refusal(7, RateLimited("rate: too fast", retry_after_s=0.25)))
    assert isinstance(error, RateLimited)
    assert (error.retry_after_s, error.code) == (0.25, ErrorCode.RATE)


def test_an_organisation_that_sends_too_fast_is_read_later_and_no_other() -> None:
    counts = Counter[str]()
    rates = PeerRates(per_organisation=10, burst_s=1, counts=counts)
    assert rates.pause_s("ccs", 9, now=0.0) == 0.0
    assert rates.pause_s("ccs", 5, now=0.0) == pytest.approx(0.5)
    assert (rates.pause_s("yard", 5, now=0.0), counts["peers slowed down"]) == (0.0, 1)
    assert PeerRates(0, 1, counts).pause_s("ccs", 10**9, now=0.0) == 0.0
