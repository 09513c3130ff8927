"""The histograms and the ages of queues that a broker's metrics show."""

from __future__ import annotations

from tidings.net.observability.latency import BUCKETS_S, MARKS_MAX, LatencyHistogram, QueueAges


def test_a_value_at_a_bound_counts_in_its_bucket() -> None:
    took = LatencyHistogram()
    took.observe(0.001)
    took.observe(10_000.0, 2)
    assert dict(took.cumulative())["0.001"] == 1
    assert took.cumulative()[-1] == ("+Inf", 3)
    assert took.sum_s == 20_000.001


def test_each_acknowledged_event_is_timed_from_its_own_arrival() -> None:
    ages, took = QueueAges(), LatencyHistogram()
    for position, at_s in ((1, 100.0), (2, 100.001), (3, 101.0), (4, 103.0)):
        ages.arrived(position, at_s)
    ages.acknowledged(0, 1, 104.0, took)
    assert took.sum_s == 4.0
    ages.acknowledged(1, 3, 104.0, took)
    assert (took.sum_s, sum(took.counts)) == (4.0 + 4.0 + 3.0, 3)
    assert ages.oldest_s(3, 5, 104.0) == 1.0


def test_an_emptied_queue_is_as_old_as_what_comes_next() -> None:
    ages, took = QueueAges(), LatencyHistogram()
    ages.arrived(1, 100.0)
    ages.acknowledged(0, 1, 101.0, took)
    assert ages.oldest_s(1, 2, 500.0) == 0.0
    ages.arrived(2, 500.0)
    assert ages.oldest_s(1, 3, 502.0) == 2.0


def test_what_a_restart_found_has_an_age_and_is_not_timed() -> None:
    ages, took = QueueAges(), LatencyHistogram()
    ages.restore(5, 50.0, below=8)
    ages.arrived(8, 100.0)
    assert ages.oldest_s(4, 9, 110.0) == 60.0
    ages.acknowledged(4, 8, 110.0, took)
    assert (took.sum_s, sum(took.counts)) == (10.0, 1)


def test_a_long_queue_keeps_its_oldest_mark_and_few_others() -> None:
    ages = QueueAges()
    for position in range(1, 10 * MARKS_MAX):
        ages.arrived(position, float(position))
    assert len(ages) <= MARKS_MAX
    assert ages.oldest_s(0, 10 * MARKS_MAX, 20_000.0) == 19_999.0
    assert tuple(sorted(BUCKETS_S)) == BUCKETS_S
