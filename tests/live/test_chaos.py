"""Chaos, scaled down: see `chaos` for the long one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.live.chaos import Plan, run

pytestmark = pytest.mark.live


def test_nothing_acknowledged_is_lost_or_repeated_while_brokers_are_killed_and_frozen(tmp_path: Path) -> None:
    plan = Plan(brokers=3, events=400, seconds=5.0, seed=7, faults_max=4)
    assert asyncio.run(run(plan, tmp_path)) == []
