"""The view of one node (CBDLO-INV-S6)."""

from __future__ import annotations

from random import Random

import pytest

from tidings.errors import InputError
from tidings.overlay import Peer
from tidings.overlay.random_graph.cyclon import LOST_MAX, PeerSampler, ViewEntry

ME = Peer("me")


def a_sampler(size: int = 4, known: str = "abcd", seed: int = 0) -> PeerSampler:
    sampler = PeerSampler(ME, Random(seed), size=size)
    sampler.fill(Peer(id) for id in known)
    return sampler


def ids(sampler: PeerSampler) -> set[str]:
    return {peer.id for peer in sampler.view()}


def test_a_view_is_bounded_and_has_each_peer_once_and_not_its_own_node() -> None:
    sampler = a_sampler(size=3, known="aab")
    sampler.fill([ME, Peer("c"), Peer("d")])
    assert [peer.id for peer in sampler.view()] == ["a", "b", "c"]


def test_a_view_of_size_zero_is_refused() -> None:
    with pytest.raises(InputError):
        PeerSampler(ME, Random(0), size=0)


def test_an_exchange_goes_to_the_oldest_peer_which_leaves_the_view_until_it_answers() -> None:
    sampler = a_sampler()
    sampler.answer([])
    first = sampler.propose()
    assert first is not None
    partner, offered = first
    assert partner.id not in sampler
    assert ViewEntry(ME) in offered
    sampler.answered(partner.id, [ViewEntry(Peer("x"))])
    assert "x" in sampler


def test_received_entries_replace_those_that_were_sent_and_no_others() -> None:
    for seed in range(50):
        sampler = a_sampler(seed=seed)
        before = ids(sampler)
        sent = {known.peer.id for known in sampler.answer([ViewEntry(Peer("x")), ViewEntry(Peer("y"))])}
        assert before - ids(sampler) <= sent
        assert len(sampler) == 4


def test_a_peer_of_a_later_incarnation_replaces_the_earlier_one() -> None:
    sampler = a_sampler(size=2, known="a")
    sampler.propose()
    sampler.fill([Peer("a")])
    sampler.answer([ViewEntry(Peer("a", incarnation=2), age=5)])
    assert sampler.view() == [Peer("a", incarnation=2)]


def test_a_newcomer_replaces_a_peer_and_gets_it_in_return() -> None:
    sampler = a_sampler()
    given = sampler.swap(Peer("new"))
    assert given is not None
    assert ids(sampler) == {"a", "b", "c", "d", "new"} - {given.peer.id}
    assert sampler.swap(Peer("new")) is None


def test_a_lost_peer_may_be_tried_again() -> None:
    sampler = a_sampler()
    sampler.drop("a")
    assert sampler.random_lost() == Peer("a")
    sampler.fill([Peer("a")])
    assert sampler.random_lost() is None


def test_the_lost_peers_are_bounded() -> None:
    sampler = a_sampler(size=1, known="")
    for number in range(2 * LOST_MAX):
        sampler.fill([Peer(f"p{number}")])
        sampler.propose()
    assert all(held <= at_most for held, at_most in sampler.holdings().values())
