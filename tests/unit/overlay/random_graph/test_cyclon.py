"""The view of one node (INV-S6)."""

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


def test_a_view_is_bounded_and_holds_nobody_twice_and_not_itself() -> None:
    sampler = a_sampler(size=3, known="aab")
    sampler.fill([ME, Peer("c"), Peer("d")])
    assert [peer.id for peer in sampler.view()] == ["a", "b", "c"]


def test_a_view_of_nobody_is_refused() -> None:
    with pytest.raises(InputError):
        PeerSampler(ME, Random(0), size=0)


def test_an_exchange_goes_to_the_oldest_who_is_out_of_view_until_it_answers() -> None:
    sampler = a_sampler()
    sampler.answer([])
    first = sampler.propose()
    assert first is not None
    partner, offered = first
    assert partner.id not in sampler
    assert ViewEntry(ME) in offered
    sampler.answered(partner.id, [ViewEntry(Peer("x"))])
    assert "x" in sampler


def test_what_comes_in_takes_the_place_of_what_was_sent_and_of_nothing_else() -> None:
    for seed in range(50):
        sampler = a_sampler(seed=seed)
        before = ids(sampler)
        sent = {known.peer.id for known in sampler.answer([ViewEntry(Peer("x")), ViewEntry(Peer("y"))])}
        assert before - ids(sampler) <= sent
        assert len(sampler) == 4


def test_who_is_heard_of_afresh_gets_younger_and_in_a_later_life_is_replaced() -> None:
    sampler = a_sampler(size=2, known="a")
    sampler.propose()
    sampler.fill([Peer("a")])
    sampler.answer([ViewEntry(Peer("a", incarnation=2), age=5)])
    assert sampler.view() == [Peer("a", incarnation=2)]


def test_a_newcomer_takes_somebodys_place_and_gets_that_one_in_return() -> None:
    sampler = a_sampler()
    given = sampler.swap(Peer("new"))
    assert given is not None
    assert ids(sampler) == {"a", "b", "c", "d", "new"} - {given.peer.id}
    assert sampler.swap(Peer("new")) is None


def test_who_was_lost_may_be_asked_again() -> None:
    sampler = a_sampler()
    sampler.drop("a")
    assert sampler.once_lost() == Peer("a")
    sampler.fill([Peer("a")])
    assert sampler.once_lost() is None


def test_those_lost_are_bounded() -> None:
    sampler = a_sampler(size=1, known="")
    for number in range(2 * LOST_MAX):
        sampler.fill([Peer(f"p{number}")])
        sampler.propose()
    assert all(held <= at_most for held, at_most in sampler.holdings().values())
