"""Chaos, scaled down: see `chaos` for the long one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.live.chaos import Plan, run
from tests.live.wanted import Said, Wanted

pytestmark = [pytest.mark.live, pytest.mark.slow]


def test_what_is_acknowledged_comes_once_and_in_order_and_nothing_leaks_whatever_happens(tmp_path: Path) -> None:
    plan = Plan(brokers=6, events=2000, seconds=15.0, seed=7, troubles=1, pause_s=0.5, disk_mb=48)
    outcome = asyncio.run(run(plan, tmp_path))
    assert outcome.wrong == []
    assert set(outcome.faults) == {"kill", "freeze", "split", "clock", "full disk"}
    assert (outcome.events, outcome.intrusions_refused > 0) == (2002, True)


@pytest.mark.parametrize(
    ("got", "saw", "reasons"),
    [
        (["a", "b", "c"], {"plate"}, []),
        (["b", "a", "c"], {"plate"}, []),  # Of two publishers, either may come first.
        (["a", "b", "b", "c"], set(), ["desk got 1 events twice: b"]),
        (["a", "c"], set(), ["desk got 1 of 3 not at all: b"]),
        (["a", "x", "b", "c"], set(), ["desk got 1 that it must not have: x"]),
        (["b", "c", "a"], set(), ["desk got events of police-1 out of order: a"]),
        (["a", "b", "c"], {"plate", "speed"}, ["desk was shown speed"]),
    ],
)
def test_the_judge_sees_what_is_wrong_and_nothing_else(got: list[str], saw: set[str], reasons: list[str]) -> None:
    desk = Wanted("desk", "yard-1", "TRUE", lambda values: values["plate"] == 1, frozenset({"plate"}), got, saw)
    said = {"a": ("police-1", 1), "x": ("police-1", 2), "b": ("police-2", 1), "c": ("police-1", 1)}
    assert desk.wrong({id: Said(at, {"plate": plate}) for id, (at, plate) in said.items()}) == reasons
