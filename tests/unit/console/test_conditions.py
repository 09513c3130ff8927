"""What a page can ask about a condition takes bounded time, however long the condition is."""

from __future__ import annotations

import pytest

from tidings.console import conditions
from tidings.events import EventType
from tidings.filters import parse

PLATE = EventType("Plate", plate=str, speed=float)
FALSE_EVENTS = [(f"e{n}", {"speed": -float(n)}) for n in range(10)]


def test_a_condition_that_the_network_would_not_take_is_not_parsed() -> None:
    text = " OR ".join(f"speed = {n}" for n in range(12_000))
    said = conditions.describe(text, PLATE)
    assert (said["ok"], "32,768 characters" in said["what"]) == (False, True)
    (row,) = conditions.explain([text], PLATE, {"speed": 1.0}, ())
    assert row["outcome"] == "ERROR"


def test_a_condition_is_tried_on_the_newest_events_as_long_as_there_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = parse("speed > -3", PLATE)
    tried = conditions.try_on(wanted, FALSE_EVENTS, ())
    assert (tried["events"], tried["left_out"], tried["matched"]) == (10, 0, ["e2", "e1", "e0"])
    moments = iter([0.0, 0.5, 0.9, 1.5])
    monkeypatch.setattr("tidings.console.conditions.time.thread_time", lambda: next(moments))
    tried = conditions.try_on(wanted, FALSE_EVENTS, ())
    assert (tried["events"], tried["left_out"], tried["outcomes"]) == (2, 8, {"FALSE": 2})
