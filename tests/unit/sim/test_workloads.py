"""Crowds of subscribers and streams of events, drawn as they say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tidings.errors import InputError
from tidings.sim import Workload


def drawn(load: Workload, count: int) -> list[dict[str, int]]:
    draw, rng = load.drawing(Random(1)), Random(2)
    return [draw(rng) for _ in range(count)]


def test_uniform_events_are_everywhere() -> None:
    counts = Counter(point["x"] // 100 for point in drawn(Workload(), 5000))
    assert all(400 < counts[tenth] < 600 for tenth in range(10))


def test_zipf_events_are_mostly_in_few_places() -> None:
    counts = Counter(point["x"] for point in drawn(Workload(kind="zipf"), 5000)).most_common()
    assert counts[0][1] > 5 * counts[9][1] > 0
    assert sum(n for _, n in counts[:20]) > 2000


def test_hotspots_hold_nine_tenths() -> None:
    counts = Counter(point["x"] // 20 for point in drawn(Workload(kind="hotspots", spots=2), 2000)).most_common(4)
    assert sum(n for _, n in counts) > 1700


def test_a_condition_is_as_wide_as_the_workload_says() -> None:
    for wanted in Workload(axes=3, width=50).wanted(Random(1)):
        assert [(name, high - low) for name, low, high in wanted.ranges] == [("x", 49), ("y", 49), ("z", 49)]


def test_recorded_events_come_in_order_and_again(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"x": 1}\n\n{"x": 2, "y": 3}\n')
    load = Workload(kind="recorded", file=str(tmp_path / "events.jsonl"))
    assert drawn(load, 3) == [{"x": 1}, {"x": 2, "y": 3}, {"x": 1}]


@pytest.mark.parametrize("text", ["", "{}x", '{"x": "a"}', "[1]"])
def test_a_bad_recording_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "events.jsonl").write_text(text)
    with pytest.raises(InputError, match=r"events\.jsonl"):
        Workload(kind="recorded", file=str(tmp_path / "events.jsonl")).drawing(Random(1))


@pytest.mark.parametrize(
    "wrong", [{"kind": "odd"}, {"axes": 0}, {"width": 2000}, {"events": -1}, {"spots": 0}, {"skew": -1.0}]
)
def test_impossible_workloads_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError):
        Workload(**wrong).drawing(Random(1))  # type: ignore[arg-type]
