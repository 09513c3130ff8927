"""Chaos, scaled down: see `chaos` for the long one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.live.chaos import Plan, run

pytestmark = [pytest.mark.live, pytest.mark.slow]


def test_what_is_acknowledged_comes_once_and_in_order_and_nothing_leaks_whatever_happens(tmp_path: Path) -> None:
    plan = Plan(brokers=5, events=2000, seconds=15.0, seed=7, troubles=1, pause_s=0.5, disk_mb=48)
    outcome = asyncio.run(run(plan, tmp_path))
    assert outcome.wrong == []
    assert set(outcome.faults) == {"kill", "freeze", "split", "clock", "full disk"}
    assert (outcome.events, outcome.intrusions_refused > 0) == (2002, True)
