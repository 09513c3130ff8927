"""Tapestry: who has a place in a table, whom a route ends at, and how a newcomer becomes known."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.unit.overlay.harness import QUIET, Bench
from tests.unit.overlay.pastry.test_ring import Told, some_ids
from tidings.errors import InputError
from tidings.overlay import Everything, NodeId, Peer, Ranges, Send, protocol
from tidings.overlay.irbr.router import IrbrOptions
from tidings.overlay.pastry.ring import Ring
from tidings.overlay.prefix.messages import Heartbeat, LookupReply, NodeLeaving, Ping, Pong
from tidings.overlay.prefix.routing_state import settle_states, shared
from tidings.overlay.prefix.search import SearchResult
from tidings.overlay.tapestry.mesh import Mesh, TapestryOptions
from tidings.overlay.tapestry.messages import Insertion, InsertionAck

ON_TAPESTRY: dict[str, Any] = {"base": 4, "network": "tapestry"}


def a_mesh(id: str, *others: str, **options: Any) -> tuple[Mesh, Told]:
    told = Told()
    mesh = Mesh(Peer(id), told, Random(0), TapestryOptions(base=4, **options))
    for other in others:
        mesh.insert(Peer(other))
    mesh.is_in = True
    return mesh, told


def settled(ids: list[str]) -> dict[NodeId, Mesh]:
    meshes = {id: a_mesh(id)[0] for id in ids}
    settle_states(meshes.values(), Random(1))
    return meshes


def bench_of(ids: list[str], **options: Any) -> Bench:
    return Bench(protocol("irbr"), ids, **ON_TAPESTRY, **{**QUIET, **options})


def holes(meshes: dict[NodeId, Mesh]) -> list[tuple[NodeId, str]]:
    """Cells in which there are nodes, and none in the table of a node that sees the cell (Property 1)."""
    return [
        (id, mesh.cell(other))
        for id, mesh in meshes.items()
        for other in meshes
        if other != id and not mesh.table.get(mesh.cell(other))
    ]


def meshes_of(bench: Bench) -> dict[NodeId, Mesh]:
    return {id: router.ring for id, router in bench.routers.items()}


# ── Routing state ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(4))
def test_all_routes_to_an_identifier_end_at_the_same_node_which_shares_most_digits(seed: int) -> None:
    ids = some_ids(40, seed)
    meshes = settled(ids)
    for key in some_ids(20, seed + 100):
        ends = set()
        for start in ids:
            at, hops = start, 0
            while (next_hop := meshes[at].next_hop(key)) is not None:
                at, hops = next_hop, hops + 1
                assert hops <= len(key)
            ends.add(at)
        (end,) = ends
        assert shared(end, key) == max(shared(id, key) for id in ids)
        assert end == min(ids, key=lambda node: meshes[end].surrogate_distance(node, key))
        assert meshes[end].is_next_after(key) or end == key


def test_at_a_hole_the_next_digit_stands_in() -> None:
    mesh, _ = a_mesh("000", "200")
    assert mesh.next_hop("111") == "200"  # Nobody begins with 1.
    assert mesh.next_hop("333") is None  # Nor with 3, and after 3 comes 0.


def test_of_each_cell_the_nearest_by_network_are_kept() -> None:
    mesh, _ = a_mesh("000", answer_s=1.0)
    for tenths, id in enumerate(("100", "101", "102", "103"), 1):
        mesh.check(Peer(id), now=0.0)
        mesh.receive(id, Pong(Peer(id), ()), now=1.0 - tenths / 10)
    assert [peer.id for peer in mesh.in_range("1")] == ["103", "102", "101"]


def test_a_node_that_is_not_near_gets_no_place_and_one_that_is_does() -> None:
    mesh, told = a_mesh("000")
    for id, rtt in (("100", 0.1), ("101", 0.2), ("102", 0.3), ("103", 0.4), ("110", 0.05)):
        mesh.check(Peer(id), now=0.0)
        mesh.receive(id, Pong(Peer(id), ()), now=rtt)
    assert [peer.id for peer in mesh.table["1"]] == ["110", "100", "101"]
    assert ("came", "103") not in told.news


@pytest.mark.parametrize("seed", range(3))
def test_a_range_is_found_empty_exactly_if_nobody_alive_is_in_it(seed: int) -> None:
    ids = some_ids(24, seed)
    bench = bench_of(ids)
    dead = Random(seed).sample(ids[1:], 4)
    for id in dead:
        del bench.routers[id]
    asker = bench.routers[ids[0]]
    answers: dict[str, Peer | SearchResult] = {}
    asker.on_search_ended = lambda prefix, what, now: answers.update({prefix: what}) or []
    ranges = [a + b for a in "0123" for b in "0123" if not ids[0].startswith(a + b)]
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
            assert what is SearchResult.EMPTY or any(id.startswith(prefix) for id in dead)


# ── Joining ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(3))
def test_nodes_that_join_one_by_one_leave_no_hole(seed: int) -> None:
    ids = some_ids(24, seed)
    bench = bench_of([])
    rng = Random(seed)
    for id in rng.sample(ids, len(ids)):
        via = rng.choice(list(bench.routers) or [None])
        bench.enter(protocol("irbr"), id, via=via, **ON_TAPESTRY, **QUIET)
        bench.run(until=bench.now + 30.0)
        assert holes(meshes_of(bench)) == []
    assert all((id, "join", None) in bench.completed for id in ids)


@pytest.mark.parametrize("seed", range(3))
def test_holes_that_simultaneous_joins_and_crashes_leave_close(seed: int) -> None:
    ids, rng = some_ids(24, seed), Random(seed)
    bench = bench_of(ids[:12], heartbeat_s=1.0)
    for id in ids[12:]:
        bench.enter(protocol("irbr"), id, via=rng.choice(ids[:12]), **ON_TAPESTRY, heartbeat_s=1.0, sync_s=0)
    bench.run(until=40.0)
    for id in rng.sample(ids, 4):
        del bench.routers[id]
    bench.run(until=120.0)
    meshes = meshes_of(bench)
    assert holes(meshes) == []
    assert all(peer.id in meshes for mesh in meshes.values() for peer in mesh.known())


def test_a_newcomer_is_in_once_all_who_share_as_many_digits_have_acknowledged() -> None:
    mesh, told = a_mesh("000")
    mesh.is_in = False
    mesh.join([Peer("100")], now=0.0)
    mesh.receive("100", LookupReply(Peer("100"), "000", ()), now=0.1)
    effects = mesh.receive("100", Pong(Peer("100"), ()), now=0.2)
    assert Send("100", Insertion(mesh.me, mesh.me, 0)) in effects
    assert ("entered",) not in told.news
    mesh.receive("100", InsertionAck(Peer("100"), "000", 0, 0), now=0.3)
    assert told.news[-1] == ("entered",)


def test_an_insertion_goes_to_one_of_each_cell_and_is_acknowledged_when_all_have_it() -> None:
    mesh, _ = a_mesh("000", "010", "011", "001", "100")
    effects = mesh.receive("200", Insertion(Peer("200"), Peer("033"), 1), now=0.0)
    passed_on = {e.to: e.message.range_len for e in effects if isinstance(e, Send) and isinstance(e.message, Insertion)}
    assert passed_on == {"010": 2, "001": 3}
    assert Send("033", Ping(mesh.me)) in effects
    assert mesh.receive("010", InsertionAck(Peer("010"), "033", 0, 2), now=0.1) == []
    acknowledged = mesh.receive("001", InsertionAck(Peer("001"), "033", 0, 3), now=0.2)
    assert acknowledged == [Send("200", InsertionAck(mesh.me, "033", 0, 1))]


def test_an_insertion_that_one_does_not_acknowledge_goes_to_another_of_its_cell() -> None:
    mesh, _ = a_mesh("000", "010", "011", answer_s=1.0)
    mesh.receive("200", Insertion(Peer("200"), Peer("033"), 1), now=0.0)
    sent = []
    for now in (1.0, 3.0, 7.0):
        sent += [e.to for e in mesh.wake(("ring", "insertion", ("033", 0, 1), "01"), now) if isinstance(e, Send)]
    assert sent == ["010", "010", "011"]
    effects = mesh.unsent("011", None, now=8.0)
    assert Send("200", InsertionAck(mesh.me, "033", 0, 1)) in effects  # Nobody else in the cell: soft state repairs it.


# ── Talking ──────────────────────────────────────────────────────────────────


def test_a_leaver_tells_also_those_who_have_it_in_their_tables() -> None:
    mesh, _ = a_mesh("000", "100")
    mesh.receive("200", Heartbeat(Peer("200"), answer=True), now=0.0)
    mesh.drop("200")
    assert {effect.to for effect in mesh.leave(now=1.0)} == {"100", "200"}  # type: ignore[union-attr]


def test_a_node_is_told_what_fits_its_table_and_no_more() -> None:
    mesh, _ = a_mesh("000", "100", "200", "201", "202", "010", "001")
    (answer,) = mesh.receive("203", Ping(Peer("203")), now=0.0)[:1]
    assert isinstance(answer, Send)
    assert {peer.id for peer in answer.message.leaves} == {"100", "200", "201", "202"}


@pytest.mark.parametrize(
    "message",
    [
        Insertion(Peer("100"), Peer("9"), 0),
        Insertion(Peer("100"), Peer("000"), 0),
        Insertion(Peer("100"), Peer("200"), -1),
        Insertion(Peer("100"), Peer("200"), 4),
        InsertionAck(Peer("100"), "200", 0, 1),
        Insertion(Peer("zz"), Peer("200"), 0),
    ],
)
def test_nonsense_from_a_peer_changes_nothing(message: Any) -> None:
    mesh, _ = a_mesh("000", "100")
    assert mesh.receive(message.me.id, message, now=0.0) == []
    assert [peer.id for peer in mesh.known()] == ["100"]
    assert not mesh.doubted


def test_a_ring_ignores_what_only_a_mesh_says() -> None:
    ring = Ring(Peer("000"), Told(), Random(0), IrbrOptions(base=4))
    assert ring.receive("100", Insertion(Peer("100"), Peer("200"), 0), now=0.0) == []


def test_multicasts_are_bounded() -> None:
    mesh, _ = a_mesh("000", "100", "010")
    for number in range(2000):
        mesh.receive("100", Insertion(Peer("100"), Peer("200", incarnation=number), 1), now=0.0)
    assert all(held <= at_most for held, at_most in mesh.holdings().values())


def test_a_node_that_leaves_is_forgotten() -> None:
    mesh, told = a_mesh("000", "001", "002")
    mesh.receive("001", NodeLeaving(Peer("001")), now=0.0)
    assert (mesh.knows("001"), told.news) == (None, [("left", "001")])


def test_an_unknown_network_is_refused() -> None:
    with pytest.raises(InputError, match="pastry or tapestry"):
        IrbrOptions(network="chord")  # type: ignore[arg-type]


# ── IRBR on it ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(3))
def test_irbr_reaches_each_interested_node_once_in_as_many_messages(seed: int) -> None:
    ids, rng = some_ids(30, seed), Random(seed)
    bench = bench_of(ids)
    for id in ids[:10]:
        bench.subscribe(id, Everything() if rng.random() < 0.5 else Ranges.of(x=(0, 5)))
    bench.run()
    before = len(bench.sent)
    event = bench.publish(ids[20], x=3)
    bench.run()
    assert sorted(bench.delivered) == sorted((id, event) for id in ids[:10])
    carried = [to for _, to, message in bench.sent[before:] if type(message).__name__ == "EventMulticast"]
    assert sorted(carried) == sorted(ids[:10])


# ── Kademlia ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(3))
def test_with_binary_digits_surrogates_are_the_nearest_by_xor_as_in_kademlia(seed: int) -> None:
    ids = some_ids(30, seed, digits="01", length=10)
    mesh = Mesh(Peer(ids[0]), Told(), Random(0), TapestryOptions(base=2))
    for key in some_ids(20, seed + 1, digits="01", length=10):
        for id in ids:
            assert mesh.surrogate_distance(id, key) == int(id, 2) ^ int(key, 2)


@pytest.mark.parametrize("seed", range(3))
def test_irbr_keeps_its_promise_on_kademlias_buckets_with_covers_joins_and_crashes(seed: int) -> None:
    """The cells of binary digits are Kademlia's buckets: those that share a prefix and differ in the next bit."""
    options: dict[str, Any] = {"base": 2, "network": "tapestry", "sync_s": 0, "heartbeat_s": 1.0}
    ids, rng = some_ids(24, seed, digits="01", length=12), Random(seed)
    bench = Bench(protocol("irbr"), ids[:20], **options)
    for id in ids[20:]:
        bench.enter(protocol("irbr"), id, via=ids[0], **options)
    for id in ids[:14]:
        bench.subscribe(id, Ranges.of(x=(0, rng.choice((5, 20, 80)))))
    bench.run(until=60.0)
    for id in rng.sample(ids[:14], 3):
        del bench.routers[id]
    event = bench.publish(ids[16], x=3)
    bench.run(until=180.0)
    assert sorted(bench.delivered) == sorted((id, event) for id in ids[:14] if id in bench.routers)
