"""Which peers are still there."""

from __future__ import annotations

from tidings.overlay.failure_detector import FailureDetector


def test_a_peer_is_silent_after_three_heartbeats_and_not_before() -> None:
    peers = FailureDetector(heartbeat_s=1.0)
    peers.watch("a", now=10.0)
    assert peers.silent(now=13.0) == []
    assert peers.silent(now=13.1) == ["a"]
    peers.heard("a", now=13.2)
    assert peers.silent(now=16.0) == []


def test_watching_again_does_not_excuse_silence() -> None:
    peers = FailureDetector(heartbeat_s=1.0)
    peers.watch("a", now=0.0)
    peers.watch("a", now=3.0)
    assert peers.silent(now=3.5) == ["a"]


def test_a_sign_of_life_from_a_stranger_is_not_remembered() -> None:
    peers = FailureDetector(heartbeat_s=1.0)
    peers.heard("stranger", now=0.0)
    assert len(peers) == 0
    peers.watch("a", now=0.0)
    peers.forget("a")
    assert peers.watched() == ()
