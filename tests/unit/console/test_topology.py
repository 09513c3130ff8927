"""The map, put together from what brokers report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tidings.console.participants import StatusHistory
from tidings.console.topology import topology


def reporting(owed: int, published_per_s: float) -> Any:
    """A client whose broker has one link."""
    end = {"id": "b", "name": "broker ccs/ccs-1", "address": "127.0.0.1:1", "queued": 0, "silent_s": 0.1, "owed": owed}
    status = {
        "id": "a",
        "broker": "police-1",
        "domain": "police",
        "address": "127.0.0.1:2",
        "protocol": "irbr",
        "joined": True,
        "draining": False,
        "stuck": False,
        "connected": [],
        "subscriptions": 0,
        "waiting": 0,
        "oldest_s": 0.0,
        "counts": {},
        "links": ["b"],
        "linked": [end],
        "unlinked": [],
        "owed": {"b": owed},
        "map": {"role": "", "zones": [], "axes": [], "trees": []},
    }
    history = StatusHistory(latest=status)
    for second in range(3):
        history.points.append((float(second), {"published": published_per_s * second, "delivered": 0.0}))
    return SimpleNamespace(name="police/desk", history=history)


@pytest.mark.parametrize(
    ("owed", "published_per_s", "is_behind"), [(0, 0, False), (8, 12, False), (40, 0, True), (40, 12, False)]
)
def test_a_link_is_behind_with_more_events_than_are_usually_under_way(
    owed: int, published_per_s: float, is_behind: bool
) -> None:
    (link,) = topology([reporting(owed, published_per_s)])["links"]
    assert (link["owed"], link["behind"]) == (owed, is_behind)
