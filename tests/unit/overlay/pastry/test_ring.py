"""Routing state on the circle, and how a ring keeps it up to date."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.overlay.harness import QUIET, Bench
from tidings.errors import InputError
from tidings.overlay import Effect, Peer, Send, WakeAt, protocol
from tidings.overlay.pastry.ring import PastryOptions, Ring
from tidings.overlay.pastry.routing_table import PastryState
from tidings.overlay.prefix.messages import Heartbeat, LookupReply, LookupRequest, NodeLeaving, Ping, Pong
from tidings.overlay.prefix.routing_state import settle_states, shared
from tidings.overlay.prefix.search import SearchResult
from tidings.overlay.router import remembered

ids_of_three = st.text("0123", min_size=3, max_size=3)


class Told:
    """An application that records its upcalls."""

    def __init__(self) -> None:
        self.news: list[tuple[Any, ...]] = []

    def on_joined(self, now: float) -> list[Effect]:
        self.news.append(("entered",))
        return []

    def on_node_up(self, peer: Peer, now: float) -> list[Effect]:
        self.news.append(("came", peer.id))
        return []

    def on_node_failed(self, peer: Peer, now: float) -> list[Effect]:
        self.news.append(("died", peer.id))
        return []

    def on_node_left(self, peer: Peer, now: float) -> list[Effect]:
        self.news.append(("left", peer.id))
        return []

    def on_search_ended(self, prefix: str, what: Peer | SearchResult, now: float) -> list[Effect]:
        self.news.append(("found", prefix, what))
        return []


def a_ring(id: str, *others: str, **options: Any) -> tuple[Ring, Told]:
    told = Told()
    ring = Ring(Peer(id), told, Random(0), PastryOptions(base=4, **options))
    for other in others:
        ring.insert(Peer(other))
    ring.is_in = True
    return ring, told


def some_ids(count: int, seed: int, *, digits: str = "0123", length: int = 5) -> list[str]:
    rng = Random(seed)
    ids: dict[str, None] = {}
    while len(ids) < count:
        ids["".join(rng.choice(digits) for _ in range(length))] = None
    return sorted(ids)


def settled(ids: list[str], **options: Any) -> dict[str, PastryState]:
    places = {id: PastryState(Peer(id), base=4, **options) for id in ids}
    settle_states(places.values(), Random(1))
    return places


# ── Routing state ────────────────────────────────────────────────────────────


@given(ids_of_three, ids_of_three)
def test_every_other_id_lies_in_exactly_one_cell_IRBR_I1(mine: str, other: str) -> None:
    places = PastryState(Peer(mine), base=4)
    cells = [cell for row in range(3) for cell in places.cells(row)]
    holding = [cell for cell in cells if other.startswith(cell)]
    assert holding == ([] if mine == other else [places.cell(other)])


def test_the_way_from_213_to_201_is_the_one_of_table_1() -> None:
    entries = ["031", "102", "320", "202", "221", "233", "210", "211", "212"]
    at_213 = PastryState(Peer("213"), base=4, leaf_count=2)
    for entry in entries:
        at_213.insert(Peer(entry))
    assert at_213.next_hop("201") == "202"
    at_202 = PastryState(Peer("202"), base=4, leaf_count=2)
    at_202.insert(Peer("201"))
    assert at_202.next_hop("201") == "201"


@pytest.mark.parametrize("seed", range(5))
def test_every_way_ends_at_the_nearest_node(seed: int) -> None:
    ids = some_ids(40, seed)
    places = settled(ids, leaf_count=4)
    for key in some_ids(30, seed + 100):
        nearest = min(ids, key=lambda node: places[node].away(node, int(key, 4)))
        at, hops = Random(seed).choice(ids), 0
        while (next_hop := places[at].next_hop(key)) is not None:
            at, hops = next_hop, hops + 1
            assert hops <= 12
        assert at == nearest


def test_settled_leaves_are_the_nearest_on_both_sides() -> None:
    ids = some_ids(30, 3)
    places = settled(ids, leaf_count=6)
    for index, id in enumerate(ids):
        around = [ids[(index + step) % 30] for step in (1, 2, 3, -1, -2, -3)]
        assert [peer.id for peer in places[id].leaves()] == around


def test_settled_cells_are_empty_exactly_where_nobody_is() -> None:
    ids = some_ids(30, 4)
    for id, places in settled(ids, leaf_count=4).items():
        for row in range(places.depth()):
            for cell in places.cells(row):
                assert places.is_empty(cell, now=0.0) == (not any(other.startswith(cell) for other in ids)), (id, cell)


def test_nobody_shares_more_digits_than_a_neighbour() -> None:
    ids = some_ids(30, 5)
    for id, places in settled(ids, leaf_count=4).items():
        assert places.depth() == max(shared(id, other) for other in ids if other != id) + 1


def test_a_table_entry_becomes_a_leaf_when_nearer_ones_have_gone() -> None:
    places = PastryState(Peer("000"), base=4, leaf_count=2)
    for id in ("001", "010", "333"):
        places.insert(Peer(id))
    places.drop("001")
    assert not places.is_leaf("010")
    assert places.insert(Peer("010"))
    assert places.is_leaf("010")


def test_a_later_life_replaces_an_earlier_one_and_not_the_other_way_round() -> None:
    places = PastryState(Peer("000"), base=4)
    assert places.insert(Peer("001", incarnation=1))
    assert not places.insert(Peer("001", incarnation=0))
    assert places.insert(Peer("001", incarnation=2))
    assert places.knows("001") == Peer("001", incarnation=2)


@pytest.mark.parametrize(
    ("id", "options"),
    [("xyz", {}), ("", {}), ("213", {"base": 1}), ("213", {"leaf_count": 3}), ("213", {"alternates": 0})],
)
def test_impossible_places_are_refused(id: str, options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        PastryState(Peer(id), **{"base": 4, **options})


# ── Talking ──────────────────────────────────────────────────────────────────


def test_hearsay_is_checked_before_it_is_believed() -> None:
    ring, told = a_ring("000", "001")
    effects = ring.receive("001", Pong(Peer("001"), (Peer("002"),)), now=0.0)
    assert Send("002", Ping(Peer("000"))) in effects
    assert ring.knows("002") is None
    ring.receive("002", Pong(Peer("002"), ()), now=0.1)
    assert ring.knows("002") == Peer("002")
    assert ("came", "002") in told.news


def test_a_doubted_node_is_not_sent_to_and_given_up_after_four_pings() -> None:
    ring, told = a_ring("000", "001", answer_s=1.0)
    ring.doubt("001", now=0.0)
    assert ring.in_range("001") == []
    pings = 1
    for now in (1.0, 3.0, 7.0, 15.0):
        pings += sum(isinstance(effect, Send) for effect in ring.wake(("ring", "ping", "001"), now))
    assert (pings, told.news, ring.is_dead("001")) == (4, [("died", "001")], True)


def test_a_node_that_answers_is_no_longer_doubted() -> None:
    ring, _ = a_ring("000", "001")
    ring.doubt("001", now=0.0)
    ring.receive("001", Pong(Peer("001"), ()), now=0.2)
    assert [peer.id for peer in ring.in_range("001")] == ["001"]


def test_a_ping_that_bounces_ends_all_doubt() -> None:
    ring, told = a_ring("000", "001", "002")
    ring.unsent("001", None, now=0.0)
    ring.unsent("001", Ping(ring.me), now=0.1)
    assert told.news == [("died", "001")]


def test_a_silent_leaf_is_doubted_after_three_heartbeats() -> None:
    ring, _ = a_ring("000", "001", "002", heartbeat_s=1.0)
    ring.start(now=0.0)
    for now in (1.0, 2.0, 3.0, 4.0):
        ring.receive("002", Heartbeat(Peer("002")), now)
        ring.wake(("ring", "tick"), now)
    assert list(ring.doubted) == ["001"]


def test_the_dead_are_heard_when_they_come_back() -> None:
    ring, told = a_ring("000", "001", "002")
    ring.unsent("001", None, now=0.0)
    ring.unsent("001", Ping(ring.me), now=0.1)
    ring.receive("001", Heartbeat(Peer("001")), now=9.0)
    assert told.news == [("died", "001"), ("came", "001")]
    assert not ring.is_dead("001")


def test_a_node_that_leaves_is_forgotten() -> None:
    ring, told = a_ring("000", "001", "002")
    ring.receive("001", NodeLeaving(Peer("001")), now=0.0)
    assert (ring.knows("001"), told.news) == (None, [("left", "001")])


def test_heartbeats_go_on_as_idle_wakes() -> None:
    ring, _ = a_ring("000", "001", heartbeat_s=1.0)
    wakes = [effect for effect in ring.start(now=0.0) if isinstance(effect, WakeAt)]
    assert [wake.idle for wake in wakes] == [True]


@pytest.mark.parametrize(
    "message",
    [
        Heartbeat(Peer("0011")),
        Ping(Peer("zz")),
        Pong(Peer("001"), (Peer("9"), Peer(""), Peer("000"))),
        LookupRequest(Peer("001"), "not a key"),
        LookupReply(Peer("001"), "3", (Peer("1 2"),)),
    ],
)
def test_nonsense_from_a_peer_changes_nothing(message: Any) -> None:
    ring, _ = a_ring("000", "001")
    ring.receive(message.me.id, message, now=0.0)
    assert [peer.id for peer in ring.known()] == ["001"]
    assert not ring.doubted


def test_memory_gives_back_the_peers_and_damaged_memory_none() -> None:
    ring, _ = a_ring("000", "001", "330")
    assert {peer.id for peer in remembered(ring.memory())} == {"001", "330"}
    assert remembered(b"\xff not a memory") == ()


# ── Whole rings ──────────────────────────────────────────────────────────────


def bench_of(ids: list[str], **options: Any) -> Bench:
    return Bench(protocol("irbr"), ids, base=4, **{**QUIET, **options})


@pytest.mark.parametrize("seed", range(4))
def test_a_range_is_found_empty_exactly_if_nobody_alive_is_in_it(seed: int) -> None:
    ids = some_ids(24, seed)
    bench = bench_of(ids, leaf_count=8)
    dead = Random(seed).sample(ids[1:], 4)
    for id in dead:
        del bench.routers[id]
    asker = bench.routers[ids[0]]
    answers: dict[str, Peer | SearchResult] = {}
    asker.on_search_ended = lambda prefix, what, now: answers.update({prefix: what}) or []
    ranges = [a + b for a in "0123" for b in "0123"]
    for prefix in ranges:
        bench.do(ids[0], asker.ring.seek(prefix, bench.now))
    bench.run()
    for prefix in ranges:
        alive = [id for id in bench.routers if id.startswith(prefix)]
        what = answers[prefix]
        if alive:
            assert isinstance(what, Peer)
            assert what.id in alive
        else:
            # Whoever crashed unnoticed might still be there; nothing that is EMPTY ever is.
            assert what is SearchResult.EMPTY or any(id.startswith(prefix) for id in dead)


@pytest.mark.parametrize("seed", range(3))
def test_nodes_that_join_one_by_one_end_up_with_perfect_leaves(seed: int) -> None:
    ids = some_ids(20, seed)
    bench = bench_of([], leaf_count=6)
    rng = Random(seed)
    for id in rng.sample(ids, len(ids)):
        bench.enter(protocol("irbr"), id, via=rng.choice(list(bench.routers) or [None]), base=4, leaf_count=6, **QUIET)
        bench.run(until=bench.now + 30.0)
    for index, id in enumerate(ids):
        around = {ids[(index + step) % 20] for step in (1, 2, 3, -1, -2, -3)}
        assert {peer.id for peer in bench.routers[id].ring.leaves()} == around
        assert (id, "join", None) in bench.completed


def test_leaves_close_the_gap_after_a_crash() -> None:
    ids = some_ids(20, 7)
    bench = bench_of(ids, leaf_count=6, heartbeat_s=1.0)
    bench.run(until=5.0)
    for id in ids[4:6]:
        del bench.routers[id]
    bench.run(until=60.0)
    on_node_left = sorted(bench.routers)
    for index, id in enumerate(on_node_left):
        around = {on_node_left[(index + step) % 18] for step in (1, 2, 3, -1, -2, -3)}
        assert {peer.id for peer in bench.routers[id].ring.leaves()} == around


def test_a_newcomer_is_in_once_all_it_pinged_have_been_heard_by_whatever_message() -> None:
    ring, told = a_ring("000")
    ring.is_in = False
    ring.join([Peer("001")], now=0.0)
    ring.receive("001", LookupReply(Peer("001"), "000", (Peer("002"),)), now=0.1)
    ring.receive("002", LookupReply(Peer("002"), "000", ()), now=0.2)
    ring.receive("001", Pong(Peer("001"), ()), now=0.3)
    assert ("entered",) not in told.news
    ring.receive("002", Heartbeat(Peer("002")), now=0.4)
    assert told.news[-1] == ("entered",)


def test_a_join_is_tried_again_and_fails_if_no_contact_ever_answers() -> None:
    bench = bench_of([])
    bench.enter(protocol("irbr"), "000", via="001", base=4, **QUIET)
    bench.run()
    tries = sum(isinstance(message, LookupRequest) for _, _, message in bench.sent)
    assert tries == 5 * 4
    assert bench.failed == [("000", "join")]


def test_a_contact_that_answers_only_the_second_try_will_do() -> None:
    bench = bench_of([])
    bench.enter(protocol("irbr"), "000", via="001", base=4, **QUIET)
    bench.run(until=8.0)
    bench.enter(protocol("irbr"), "001", via=None, base=4, **QUIET)
    bench.run()
    assert ("000", "join", None) in bench.completed
    assert bench.failed == []
