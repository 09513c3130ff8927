"""The way of an event through the modules, as `make walk` traces it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.walk import publish

pytestmark = pytest.mark.live

PASS_ON_MAX = 32  # As many as there are: one more has to be worth it. Seven are there for hostile members.


def test_a_published_event_goes_down_the_layers_and_never_up(tmp_path: Path) -> None:
    walk = asyncio.run(publish(tmp_path))
    assert walk.upward == ()
    assert {"tidings.net.client.client", "tidings.node.node", "tidings.delivery.outbox"} <= set(walk.way)
    assert len(walk.way) <= PASS_ON_MAX
