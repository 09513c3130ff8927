"""The replay window: once, in time, in bounded memory (SECURE-INV-9)."""

from __future__ import annotations

import random

import pytest

from tests.unit.security.london import NOW_MS
from tidings.errors import PeerError
from tidings.security import ReplayWindow
from tidings.security.envelope.replay import WINDOW

TYPE = bytes(32)
FRESH_MS = 65_000


def a_window() -> ReplayWindow:
    return ReplayWindow(grace_ms=5_000, delay_ms=60_000)


def take(window: ReplayWindow, ts: int, seq: int = 0, *, sender: int = 1, now: int = NOW_MS) -> None:
    window.check(TYPE, sender, ts, seq, now)
    window.accept(TYPE, sender, ts, seq, now)


def test_the_same_event_is_taken_once_and_other_senders_are_apart() -> None:
    window = a_window()
    take(window, NOW_MS)
    with pytest.raises(PeerError, match=f"replay: event 1/{NOW_MS}/0 was seen before"):
        take(window, NOW_MS)
    take(window, NOW_MS, sender=2)
    window.check(b"\1" * 32, 1, NOW_MS, 0, NOW_MS)


def test_events_may_overtake_one_another_within_the_window() -> None:
    window = a_window()
    order = list(range(WINDOW))
    random.Random(1).shuffle(order)
    for seq in order:
        take(window, NOW_MS, seq)
    for seq in order:
        with pytest.raises(PeerError, match="replay"):
            take(window, NOW_MS, seq)


def test_what_is_older_than_all_that_is_kept_counts_as_seen() -> None:
    window = a_window()
    for seq in range(1, WINDOW + 2):
        take(window, NOW_MS, seq)
    for seq in (0, 1):
        with pytest.raises(PeerError, match="replay"):
            take(window, NOW_MS, seq)


@pytest.mark.parametrize("age", [FRESH_MS, -FRESH_MS])
def test_an_event_is_fresh_up_to_grace_and_delay_and_no_longer(age: int) -> None:
    take(a_window(), NOW_MS - age)
    with pytest.raises(PeerError, match="fresh: published"):
        take(a_window(), NOW_MS - age - (1 if age > 0 else -1))


def test_a_sender_long_silent_is_forgotten_and_its_events_are_stale() -> None:
    window = a_window()
    take(window, NOW_MS)
    assert window.forget(NOW_MS + 2 * FRESH_MS) == 0
    assert window.forget(NOW_MS + 2 * FRESH_MS + 1) == 1
    with pytest.raises(PeerError, match="fresh"):
        take(window, NOW_MS, now=NOW_MS + 2 * FRESH_MS + 1)


def test_more_senders_than_the_window_can_hold_are_turned_away() -> None:
    window = ReplayWindow(grace_ms=5_000, delay_ms=60_000, senders_max=3)
    for sender in range(3):
        take(window, NOW_MS, sender=sender)
    with pytest.raises(PeerError, match="more than 3 senders at once"):
        take(window, NOW_MS, sender=9)
    later = NOW_MS + 2 * FRESH_MS + 1
    take(window, later, sender=9, now=later)
    assert len(window) == 1


@pytest.mark.parametrize("seed", range(5))
def test_replays_at_any_time_are_refused(seed: int) -> None:
    rng, window = random.Random(seed), a_window()
    taken: list[tuple[int, int]] = []
    now = NOW_MS
    for step in range(3000):
        now += rng.randrange(0, 200)
        if taken and rng.random() < 0.5:
            with pytest.raises(PeerError, match="replay|fresh"):
                take(window, *rng.choice(taken), now=now)
        else:
            take(window, now, step, now=now)
            taken.append((now, step))
        if rng.random() < 0.01:
            window.forget(now)


def test_after_a_restart_nothing_is_accepted_up_to_where_a_sender_had_come() -> None:
    before, after, now = a_window(), a_window(), 1_000_000
    for seq in (3, 1):
        before.accept(TYPE, 7, now, seq, now)
    newest = before.take_newest()
    assert newest == [(7, now << 20 | 3)]
    assert before.take_newest() == []
    after.restore(TYPE, dict(newest), now + 1)
    for seq in (1, 2, 3):
        with pytest.raises(PeerError, match="replay"):
            after.check(TYPE, 7, now, seq, now + 1)
    after.check(TYPE, 7, now, 4, now + 1)
    after.check(TYPE, 8, now, 1, now + 1)
