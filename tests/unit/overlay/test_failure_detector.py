"""Who is still there, and what still waits for an answer."""

from __future__ import annotations

from tidings.overlay.failure_detector import Liveness, Unanswered


def test_a_peer_is_silent_after_three_heartbeats_and_not_before() -> None:
    peers = Liveness(heartbeat_s=1.0)
    peers.watch("a", now=10.0)
    assert peers.silent(now=13.0) == []
    assert peers.silent(now=13.1) == ["a"]
    peers.heard("a", now=13.2)
    assert peers.silent(now=16.0) == []


def test_watching_again_does_not_excuse_silence() -> None:
    peers = Liveness(heartbeat_s=1.0)
    peers.watch("a", now=0.0)
    peers.watch("a", now=3.0)
    assert peers.silent(now=3.5) == ["a"]


def test_a_sign_of_life_from_a_stranger_is_not_remembered() -> None:
    peers = Liveness(heartbeat_s=1.0)
    peers.heard("stranger", now=0.0)
    assert len(peers) == 0
    peers.watch("a", now=0.0)
    peers.forget("a")
    assert peers.watched() == ()


def test_waits_double_and_end() -> None:
    calls = Unanswered[str](wait_s=1.0, tries_max=3, at_most=8)
    assert calls.add("k", "peer", "message", now=0.0) == 1.0
    assert calls.again("k", now=1.0) == 3.0
    assert calls.again("k", now=3.0) == 7.0
    assert calls.again("k", now=7.0) is None
    assert calls.answered("k") is None


def test_a_call_is_overdue_when_its_wait_is_over_and_not_after_it_was_tried_again() -> None:
    calls = Unanswered[str](wait_s=1.0, tries_max=3, at_most=8)
    calls.add("k", "peer", "message", now=0.0)
    assert calls.overdue("k", now=0.5) is None
    assert calls.overdue("k", now=1.0) == calls.get("k")
    calls.again("k", now=1.0)
    assert calls.overdue("k", now=1.0) is None
    assert calls.overdue("never asked", now=9.0) is None


def test_when_full_the_oldest_call_is_given_up() -> None:
    calls = Unanswered[int](wait_s=1.0, tries_max=3, at_most=2)
    for key in (1, 2, 3):
        calls.add(key, "peer", key, now=0.0)
    assert [key in calls for key in (1, 2, 3)] == [False, True, True]
    assert calls.to_peer("peer") == [2, 3]
