"""One workload over several overlays: the same numbers every time, and a recommendation that follows from them."""

from __future__ import annotations

import dataclasses

import pytest

from tidings.errors import InputError
from tidings.lab import SCENARIOS, ComparedWorkload, OverlayCost, compare, recommend
from tidings.lab.comparison import gini

SMALL = ComparedWorkload(brokers=12, subscriptions=12, selectivity=0.2, events=12, delays="flat")
COST = OverlayCost(
    overlay="irbr", messages=10.0, hops=1.0, delay_ms=50.0, lost=0.0, state=10.0, subscribing=100.0, upkeep=2.0, gini=0.3,
    attack_lost=0.0, attack_messages=12.0,
)  # fmt: skip


def cost(overlay: str, **changes: float) -> OverlayCost:
    return dataclasses.replace(COST, overlay=overlay, **changes)


def test_flooding_costs_more_and_reaches_as_many_and_the_same_seed_gives_the_same_numbers() -> None:
    flooding, irbr = compare(SMALL, ["flooding", "irbr"], seeds=1)
    assert flooding.lost == irbr.lost == 0
    assert flooding.messages > 2 * irbr.messages
    assert flooding.subscribing == 0 < irbr.subscribing
    assert irbr.delay_ms == pytest.approx(10 * irbr.hops, abs=1e-6), "a hop is 10 ms where delays are flat"
    assert compare(SMALL, ["irbr"], seeds=1) == [irbr]


def test_a_message_on_schedule_is_one_of_the_protocol_itself_whatever_others_call_theirs() -> None:
    """`Gossip` is what gossip sends for an event, and what CBDLO sends on schedule."""
    cbdlo, gossip = compare(SMALL, ["cbdlo", "gossip"], seeds=1)
    assert gossip.messages > cbdlo.messages > 0
    assert cbdlo.upkeep > gossip.upkeep == 0


def test_where_brokers_read_nothing_every_broker_gets_every_event_and_nothing_is_lost() -> None:
    open_, secret = (
        compare(dataclasses.replace(SMALL, unreadable=hidden), ["irbr"], seeds=1)[0] for hidden in (0.0, 1.0)
    )
    assert secret.lost == 0
    assert secret.messages > 2 * open_.messages


def test_brokers_that_come_and_go_cost_messages() -> None:
    calm, restless = (
        compare(dataclasses.replace(SMALL, churn=churn), ["spanhop"], seeds=1)[0] for churn in (0.0, 100.0)
    )
    assert restless.messages > calm.messages


def test_the_cheapest_that_loses_nothing_is_recommended() -> None:
    costs = [cost("irbr"), cost("spanhop", messages=5.0), cost("gossip", messages=1.0, lost=0.2)]
    best = recommend(costs, brokers=10, events_per_s=10.0, subscriptions_per_s=0.1)
    assert best is not None
    assert best.overlay == "spanhop"
    assert best.messages_per_s == pytest.approx((5 * 10 + 100 * 0.1) / 10 + 2)
    assert [name for name, _ in best.ranking] == ["spanhop", "irbr"]
    lucky = recommend([cost("irbr"), cost("gossip", messages=1.0)], brokers=10)
    assert lucky is not None
    assert lucky.overlay == "irbr", "gossip loses by chance, also where a short run did not show it"
    allowed = recommend([cost("irbr"), cost("gossip", messages=1.0)], brokers=10, lost_max=1.0)
    assert allowed is not None
    assert allowed.overlay == "gossip"
    assert "too lossy: gossip (0.2 %)" in best.why


def test_what_counts_depends_on_the_rates_and_limits_given() -> None:
    costs = [cost("irbr", subscribing=1000.0), cost("hermes", messages=40.0, subscribing=1.0, delay_ms=120.0)]
    often, seldom = (recommend(costs, 10, events_per_s=rate, subscriptions_per_s=1.0) for rate in (100.0, 1.0))
    assert often is not None
    assert seldom is not None
    assert (often.overlay, seldom.overlay) == ("irbr", "hermes")
    quick = recommend(costs, 10, events_per_s=1.0, subscriptions_per_s=1.0, delay_ms_max=100.0)
    assert quick is not None
    assert quick.overlay == "irbr"
    assert "too slow: hermes (120 ms)" in quick.why
    assert recommend(costs, 10, delay_ms_max=1.0) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"brokers": 1}, {"brokers": 10**6}, {"subscriptions": 0}, {"selectivity": 0.0}, {"unreadable": 0.3},
        {"churn": -1.0}, {"attacked": 90.0}, {"delays": "none"}, {"events": 0},
    ],
    ids=str,
)  # fmt: skip
def test_an_impossible_workload_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))):
        ComparedWorkload(**wrong)  # type: ignore[arg-type]


def test_an_unknown_overlay_is_refused_before_anything_runs() -> None:
    with pytest.raises(InputError, match="did you mean 'irbr'"):
        compare(SMALL, ["flooding", "irbrr"])


def test_every_scenario_differs_from_the_usual_one_in_what_it_says() -> None:
    usual = SCENARIOS["usual"][1]
    assert all(load != usual for name, (_, load) in SCENARIOS.items() if name != "usual")


def test_a_share_of_everything_is_uneven_and_equal_shares_are_not() -> None:
    assert gini([3, 3, 3]) == 0
    assert gini([0] * 99 + [1]) == pytest.approx(0.99)
