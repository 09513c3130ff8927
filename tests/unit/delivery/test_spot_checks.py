"""Spot checks: what is chosen, how long it is held, and when an origin is asked for a detour."""

from __future__ import annotations

from random import Random

from tidings.delivery.spot_checks import (
    AGAIN_S,
    CHECK_BYTES_MAX,
    DETOUR_S,
    HELD_BYTES_MAX,
    HELD_OF_ONE_MAX,
    HOLD_S,
    MISSED_WITHIN_S,
    RECENT_BYTES_MAX,
    REQUEST_EVERY_S,
    TYPES_CHECKED_MAX,
    CheckedEvent,
    Detours,
    HeldChecks,
    RecentChecks,
    SpotSample,
)


def test_of_few_events_all_are_checked_and_of_many_a_random_choice() -> None:
    sample = SpotSample(Random(1), 4)
    for number in range(3):
        sample.add("few", b"%d" % number, 0.0)
    for number in range(1000):
        sample.add("many", b"%d" % number, 0.0)
    chosen = sample.take()
    assert [event.raw for event in chosen["few"]] == [b"0", b"1", b"2"]
    assert len(chosen["many"]) == 4
    assert len({int(event.raw) // 250 for event in chosen["many"]}) > 1
    assert sample.take() == {}


def test_every_event_is_as_likely_to_be_checked() -> None:
    rng, counts = Random(2), [0] * 10
    for _ in range(2000):
        sample = SpotSample(rng, 2)
        for number in range(10):
            sample.add("T", bytes([number]), 0.0)
        for event in sample.take()["T"]:
            counts[event.raw[0]] += 1
    assert all(300 < count < 500 for count in counts), counts


def test_what_is_sent_in_a_second_is_bounded() -> None:
    sample = SpotSample(Random(3), 16)
    for number in range(2 * TYPES_CHECKED_MAX):
        sample.add(f"T{number}", b"x", 0.0)
    for _ in range(16):
        sample.add("T0", bytes(CHECK_BYTES_MAX // 2), 0.0)
    chosen = sample.take()
    assert len(chosen) == TYPES_CHECKED_MAX
    assert sum(len(event.raw) for event in chosen["T0"]) <= CHECK_BYTES_MAX
    off = SpotSample(Random(3), 0)
    off.add("T", b"x", 0.0)
    assert off.take() == {}


def test_a_check_is_held_as_long_as_the_overlay_may_take() -> None:
    held = HeldChecks()
    held.hold("a", [(0.5, b"one"), (float("nan"), b"two"), (-1e300, b"three")], 10.0)
    assert held.due(10.0 + HOLD_S - 0.01) == []
    due = held.due(10.0 + HOLD_S)
    assert [(each.origin, each.published_at, each.raw) for each in due] == [
        ("a", 9.5, b"one"),
        ("a", 10.0, b"two"),
        ("a", 10.0, b"three"),
    ]
    assert held.due(1000.0) == []


def test_one_origin_takes_no_more_than_its_share_and_all_no_more_than_the_bound() -> None:
    held = HeldChecks()
    held.hold("hostile", [(0.0, b"x")] * (2 * HELD_OF_ONE_MAX), 0.0)
    held.hold("honest", [(0.0, b"y")], 0.0)
    assert [each.origin for each in held.due(HOLD_S)].count("hostile") == HELD_OF_ONE_MAX
    held.hold("hostile", [(0.0, bytes(1 << 20))] * 100, 0.0)
    (_, _), (size, bound) = held.holdings().values()
    assert HELD_BYTES_MAX - (1 << 20) <= size <= bound == HELD_BYTES_MAX


def test_whoever_fills_what_is_held_loses_its_own_and_no_check_of_others() -> None:
    """Checks are what finds out who swallows events: they must not be kept out by events that are sent for that."""
    held = HeldChecks()
    held.hold("honest", [(0.0, b"before")], 0.0)
    held.hold("hostile", [(0.0, bytes(1 << 19))] * 1000, 0.0)
    held.hold("honest", [(0.0, bytes(1 << 19)), (0.0, b"after")], 0.0)
    for number in range(8):
        held.hold(f"hostile {number}", [(0.0, b"")] * (2 * HELD_OF_ONE_MAX), 0.0)
    held.hold("honest", [(0.0, b"last")], 0.0)
    (count, most), (size, bound) = held.holdings().values()
    assert count <= most
    assert size <= bound
    due = held.due(HOLD_S)
    assert [each.raw for each in due if each.origin == "honest"] == [b"before", bytes(1 << 19), b"after", b"last"]
    assert len(due) == count
    assert [amount for amount, _ in held.holdings().values()] == [0, 0]


def test_an_origin_remembers_its_last_checks_for_a_while_and_within_bounds() -> None:
    recent = RecentChecks()
    recent.add("old", [CheckedEvent(0.0, b"x")], 0.0)
    recent.add("new", [CheckedEvent(0.0, b"y")], AGAIN_S)
    assert [type for type, _ in recent.since(0.0)] == ["old", "new"]
    assert [type for type, _ in recent.since(1.0)] == ["new"]
    recent.add("later", [CheckedEvent(0.0, bytes(RECENT_BYTES_MAX - 1))], AGAIN_S + 1.0)
    assert [type for type, _ in recent.since(0.0)] == ["new", "later"]
    recent.add("last", [CheckedEvent(0.0, b"z")], AGAIN_S + 2.0)
    assert [type for type, _ in recent.since(0.0)] == ["later", "last"]


def test_a_detour_is_asked_for_after_the_second_missing_event_and_not_too_often() -> None:
    held = HeldChecks()
    assert not held.missed("a", "T", 0.0)
    assert not held.missed("a", "T", MISSED_WITHIN_S + 1.0), "long after the first"
    assert held.missed("a", "T", MISSED_WITHIN_S + 2.0)
    assert held.has_asked("a", "T", MISSED_WITHIN_S + 2.0 + DETOUR_S)
    assert not held.has_asked("a", "other", MISSED_WITHIN_S + 3.0)
    assert not held.missed("a", "T", MISSED_WITHIN_S + 3.0)
    assert held.missed("a", "T", MISSED_WITHIN_S + 3.0 + REQUEST_EVERY_S)
    held.forget(10 * DETOUR_S)
    assert not held.has_asked("a", "T", 10 * DETOUR_S)


def test_a_detour_ends_by_itself_and_begins_with_what_was_published_before() -> None:
    detours = Detours()
    assert detours.begin("b", "T", 0.0)
    assert not detours.begin("b", "T", 1.0), "sent a second ago"
    assert detours.begin("b", "T", REQUEST_EVERY_S + 2.0)
    assert detours.brokers("T", DETOUR_S) == ["b"]
    assert detours.brokers("other", 0.0) == []
    assert detours.brokers("T", 2 * DETOUR_S) == []
    assert len(detours) == 0
