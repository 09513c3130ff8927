"""The claims about IRBR and Scribe, on small runs: who wins, and which way the curves bend."""

from __future__ import annotations

import pytest

from tests.lab.small import experiment, judged, measured
from tidings.lab import Results, Verdict
from tidings.lab.irbr.experiments import INTEREST_MODE, PAPER_MODE, R0, R1, R2, SCRIBE, SILENT

PROTOCOLS = f"{SCRIBE};{R0};{R1};{R2};{SILENT}"


@pytest.fixture(scope="module")
def losses() -> Results:
    rows: list[tuple[str, float, float]] = []
    for protocol in PROTOCOLS.split(";"):
        chosen = experiment("irbr-4a", node_count="150", interested="30", seeds="1")
        small = {**chosen.stays, "protocol": protocol, "failed_percent": "0.7 10", "failure_sets": 6}
        rows += chosen.measure(small, 0)
    return Results(tuple(rows))


@pytest.fixture(scope="module")
def messages() -> Results:
    return measured(experiment("irbr-4b", node_count="150", interested="1 2 30 150", seeds="2"))


def test_scribe_loses_events_and_more_the_more_nodes_fail(losses: Results) -> None:
    assert 0 < losses.mean(SCRIBE, 0.7) < losses.mean(SCRIBE, 10)
    assert judged(experiment("irbr-4a"), "more the more nodes fail", losses).verdict is Verdict.HOLDS


@pytest.mark.parametrize("protocol", [R0, R1])
def test_irbr_loses_no_more_than_the_paper_says(losses: Results, protocol: str) -> None:
    assert losses.mean(protocol, 10) <= 0.28


@pytest.mark.parametrize("protocol", [R2, SILENT])
def test_custody_loses_nothing_in_any_trial(losses: Results, protocol: str) -> None:
    assert set(losses.ys(protocol)) == {0.0}


def test_interest_mode_takes_as_many_messages_as_there_are_interested_nodes(messages: Results) -> None:
    assert [messages.mean(INTEREST_MODE, count) for count in (1, 2, 30, 150)] == [1, 2, 30, 149]
    assert judged(experiment("irbr-4b"), "as many messages as", messages).verdict is Verdict.GOAL_MET
    assert judged(experiment("irbr-4b"), "fewer than Scribe", messages).verdict is Verdict.GOAL_MET


def test_as_published_it_is_cheaper_than_scribe_only_for_few_or_all(messages: Results) -> None:
    assert messages.mean(PAPER_MODE, 1) < messages.mean(SCRIBE, 1)
    assert messages.mean(PAPER_MODE, 150) < messages.mean(SCRIBE, 150)
    assert messages.mean(PAPER_MODE, 30) > messages.mean(INTEREST_MODE, 30)


def test_the_next_subscription_costs_less_the_more_there_are() -> None:
    chosen = experiment("irbr-subscriptions", node_count="60", subscriptions="80")
    assert judged(chosen, "costs less", measured(chosen)).verdict is Verdict.HOLDS


def test_on_tapestry_nothing_is_lost_and_an_event_takes_as_many_messages() -> None:
    chosen = experiment("irbr-4a-networks", node_count="100", interested="20", failure_sets="3", failed_percent="10")
    assert judged(chosen, "lost on Tapestry", measured(chosen)).verdict is Verdict.GOAL_MET
    chosen = experiment("irbr-4b-networks", node_count="100", interested="1 20 100", events="20")
    assert judged(chosen, "in interest mode", measured(chosen)).verdict is Verdict.GOAL_MET
