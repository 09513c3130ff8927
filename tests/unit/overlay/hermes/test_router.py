"""Hermes on a handful of nodes: ways up, covers, ways down, and what happens when a parent goes."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from tests.unit.overlay.harness import TYPE, Bench
from tidings.errors import InputError
from tidings.overlay import (
    Codec,
    Completed,
    Deliver,
    EventId,
    Everything,
    Header,
    Interest,
    NodeId,
    Packet,
    Peer,
    Place,
    Ranges,
    SubscriptionId,
    View,
    protocol,
)
from tidings.overlay.hermes.messages import (
    ChildRefresh,
    EventAck,
    InterestAck,
    InterestRequest,
    InterestWithdrawal,
    ParentLeaving,
    ParentRefresh,
    Prune,
    RendezvousHint,
    ToRendezvous,
    ToSubscribers,
)
from tidings.overlay.hermes.router import PROTOCOL, Hermes, HermesOptions

WIDE, NARROW = Ranges.of(x=(0, 100)), Ranges.of(x=(10, 20))
ALL = [a + b + c for a in "0123" for b in "0123" for c in "0123"]
STILL: dict[str, Any] = {"heartbeat_s": 0, "refresh_s": 0}


def a_bench(**options: Any) -> Bench:
    """All 64 nodes of three digits in base 4, with few leaves so that ways have several hops."""
    return Bench(protocol("hermes"), ALL, base=4, delay_s=0.0, **{"leaf_count": 2, **STILL, **options})


def rendezvous(bench: Bench) -> NodeId:
    router = bench.routers["000"]
    return str(router.trees.key_of(TYPE))


def way_up(bench: Bench, start: NodeId) -> list[NodeId]:
    way = [start]
    while (parent := bench.routers[way[-1]].ring.next_hop(rendezvous(bench))) is not None:
        way.append(parent)
    return way


def far_from_root(bench: Bench) -> NodeId:
    return next(id for id in ALL if len(way_up(bench, id)) == 4)


def said(bench: Bench, *kinds: type) -> list[tuple[NodeId, NodeId]]:
    return [(a, b) for a, b, message in bench.sent if isinstance(message, kinds)]


# ── Trees ────────────────────────────────────────────────────────────────────


def test_an_interest_rises_to_the_node_nearest_to_the_type_s_hash() -> None:
    bench = a_bench()
    node = far_from_root(bench)
    id = bench.subscribe(node, WIDE)
    bench.run()
    way = way_up(bench, node)
    assert way[-1] == rendezvous(bench)
    assert said(bench, InterestRequest) == list(pairwise(way))
    assert bench.completed[-1] == (node, "subscribe", id)


def test_an_event_goes_up_to_the_rendezvous_and_down_to_who_wants_it() -> None:
    bench = a_bench(shortcut=False)
    node = far_from_root(bench)
    bench.subscribe(node, NARROW)
    bench.run()
    publisher = next(
        id for id in ALL if len(way_up(bench, id)) == 3 and not set(way_up(bench, id)[:-1]) & set(way_up(bench, node))
    )
    bench.publish(publisher, x=15)
    bench.run()
    up, down = way_up(bench, publisher), way_up(bench, node)[::-1]
    assert (said(bench, ToRendezvous), said(bench, ToSubscribers)) == (list(pairwise(up)), list(pairwise(down)))
    assert [id for id, _ in bench.delivered] == [node]


def test_an_event_nobody_wants_ends_at_the_rendezvous() -> None:
    bench = a_bench()
    bench.subscribe(far_from_root(bench), NARROW)
    bench.run()
    bench.publish("000", x=99)
    bench.run()
    assert said(bench, ToSubscribers) == []


def test_with_the_shortcut_an_event_does_not_come_back_the_way_it_went() -> None:
    hops = {}
    for shortcut in (True, False):
        bench = a_bench(shortcut=shortcut)
        node = far_from_root(bench)
        bench.subscribe(node, WIDE)
        bench.run()
        neighbour = way_up(bench, node)[1]
        bench.publish(neighbour, x=1)
        bench.run()
        assert [id for id, _ in bench.delivered] == [node]
        hops[shortcut] = len(said(bench, ToRendezvous, ToSubscribers))
    assert hops == {True: 3, False: 5}  # Two up and one down, or two up and three down.


def test_a_publisher_that_remembers_the_rendezvous_skips_the_way() -> None:
    bench = a_bench(remember_root=True)
    publisher = far_from_root(bench)
    for _ in range(2):
        bench.publish(publisher, x=1)
        bench.run()
    assert said(bench, ToRendezvous)[-1] == (publisher, rendezvous(bench))
    assert len(said(bench, ToRendezvous)) == 3 + 1


def test_without_content_an_event_goes_down_every_branch_of_its_type() -> None:
    bench = a_bench(content=False)
    node = far_from_root(bench)
    bench.subscribe(node, NARROW)
    bench.run()
    bench.publish(rendezvous(bench), x=99)
    bench.run()
    assert said(bench, ToSubscribers)[-1][1] == node


# ── Covers ───────────────────────────────────────────────────────────────────


def test_a_covered_interest_stops_where_its_cover_is_known() -> None:
    bench = a_bench()
    node = far_from_root(bench)
    bench.subscribe(node, WIDE)
    bench.run()
    before = len(said(bench, InterestRequest))
    covered = bench.subscribe(node, NARROW)
    assert bench.completed[-1] == (node, "subscribe", covered)
    assert len(said(bench, InterestRequest)) == before


def test_what_was_covered_rises_before_its_cover_is_withdrawn() -> None:
    bench = a_bench()
    node = far_from_root(bench)
    cover = bench.subscribe(node, WIDE)
    bench.run()
    bench.subscribe(node, NARROW)
    bench.unsubscribe(cover)
    for _ in bench.steps():
        children = bench.routers[rendezvous(bench)].trees.get_or_create(TYPE).children
        assert any(
            each.interest.wanted.covers(NARROW) for interests in children.values() for each in interests.values()
        )
    bench.publish("000", x=15)
    bench.publish("000", x=50)
    bench.run()
    assert len(bench.delivered) == 1


def test_a_tree_that_nobody_needs_is_gone() -> None:
    bench = a_bench()
    id = bench.subscribe(far_from_root(bench), WIDE)
    bench.run()
    bench.unsubscribe(id)
    bench.run()
    assert all(router.holdings()["trees"][0] == 0 for router in bench.routers.values())


def test_a_replaced_interest_is_the_only_one_left() -> None:
    bench = a_bench(shortcut=False)
    node = far_from_root(bench)
    id = bench.subscribe(node, Ranges.of(x=(0, 5)))
    bench.run()
    bench.do(node, bench.routers[node].subscribe(Interest(id, TYPE, Ranges.of(x=(50, 60))), bench.now))
    bench.run()
    for x in (3, 55):
        bench.publish("000", x=x)
    bench.run()
    assert len(bench.delivered) == 1
    assert len(said(bench, ToSubscribers)) == 3


# ── Repair ───────────────────────────────────────────────────────────────────


def test_a_parent_that_dies_is_replaced() -> None:
    bench = a_bench(leaf_count=8, heartbeat_s=1.0, refresh_s=5.0)
    node = next(id for id in ALL if len(way_up(bench, id)) >= 3)
    bench.subscribe(node, WIDE)
    bench.run(until=1.0)
    del bench.routers[way_up(bench, node)[1]]
    bench.run(until=60.0)
    bench.publish(next(iter(bench.routers)), x=1)
    bench.run(until=70.0)
    assert [id for id, _ in bench.delivered] == [node]


def test_a_rendezvous_that_dies_is_replaced_by_the_next_nearest() -> None:
    bench = a_bench(leaf_count=8, heartbeat_s=1.0, refresh_s=5.0)
    node = far_from_root(a_bench())
    bench.subscribe(node, WIDE)
    bench.run(until=1.0)
    del bench.routers[rendezvous(bench)]
    bench.run(until=60.0)
    bench.publish(next(iter(bench.routers)), x=1)
    bench.run(until=70.0)
    assert [id for id, _ in bench.delivered] == [node]


def test_without_repair_a_dead_rendezvous_loses_everything() -> None:
    bench = a_bench(leaf_count=8, repair=False, shortcut=False)
    node = far_from_root(a_bench())
    bench.subscribe(node, WIDE)
    bench.run()
    root = rendezvous(bench)
    del bench.routers[root]
    bench.publish(next(id for id in bench.routers if id != node), x=1)
    bench.run()
    assert bench.delivered == []


def test_a_parent_that_forgot_is_told_again() -> None:
    bench = a_bench(refresh_s=5.0)
    node = far_from_root(bench)
    bench.subscribe(node, WIDE)
    bench.run(until=1.0)
    trees = bench.routers[rendezvous(bench)].trees
    for tree in trees.all():
        trees.remove(tree)
    bench.run(until=20.0)
    bench.publish(rendezvous(bench), x=1)
    bench.run(until=21.0)
    assert [id for id, _ in bench.delivered] == [node]


def test_an_unanswered_event_is_sent_again_and_delivered_once() -> None:
    bench = a_bench()
    node = far_from_root(bench)
    bench.subscribe(node, WIDE)
    bench.run()
    event = bench.publish("000", x=1)
    bench.run()
    last = next(m for _, b, m in bench.sent if b == node and isinstance(m, ToSubscribers))
    effects = bench.routers[node].receive("333", last, bench.now)
    assert [type(effect.message) for effect in effects] == [EventAck]
    assert bench.delivered == [(node, event)]


# ── Edges ────────────────────────────────────────────────────────────────────


def test_a_node_alone_is_every_rendezvous() -> None:
    bench = Bench(protocol("hermes"), ["213"], base=4, **STILL)
    id = bench.subscribe("213", WIDE)
    event = bench.publish("213", x=1)
    assert ("213", "subscribe", id) in bench.completed
    assert bench.delivered == [("213", event)]


@pytest.mark.parametrize("options", [{"speed": 3}, {"base": 99}, {"refresh_s": -1}])
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        PROTOCOL.build(Place(Peer("213"), (), Random(0)), **options)


def test_before_a_node_is_in_it_keeps_events_and_passes_them_on_after() -> None:
    router = Hermes(Peer("213"), Random(0), HermesOptions(base=4, **STILL))
    router.subscribe(Interest(SubscriptionId("213", 0, 1), TYPE, Everything()), 0.0)
    packet = Packet(Header(EventId("201", 0, 1), TYPE), View({}))
    assert router.receive("201", ToRendezvous(packet, 1, Peer("201")), 0.0) == []
    effects = router.start(1.0)
    assert Deliver(packet) in effects
    assert Completed("subscribe", SubscriptionId("213", 0, 1)) in effects


SOME_ID = SubscriptionId("201", 0, 1)
SOME = Interest(SOME_ID, TYPE, WIDE).version


def test_every_message_survives_its_journey_as_bytes() -> None:
    packet = Packet(Header(EventId("213", 0, 1), TYPE), View({"x": 1}))
    messages = [
        InterestRequest(Interest(SOME_ID, TYPE, WIDE), 3),
        InterestWithdrawal(TYPE, SOME, 4),
        InterestAck(TYPE, SOME, 3),
        ToRendezvous(packet, 1, Peer("213")),
        ToSubscribers(packet, 2),
        EventAck(packet.header.id, "up"),
        RendezvousHint(Peer("213"), TYPE),
        ChildRefresh(((TYPE, 17),)),
        ParentRefresh((TYPE,)),
        Prune(TYPE),
        ParentLeaving(TYPE),
    ]
    codec = Codec[Any](PROTOCOL.messages)
    assert [codec.decode(codec.encode(message)) for message in messages] == messages


@pytest.mark.parametrize(
    "message",
    [
        InterestWithdrawal("nothing", SOME, 4),
        InterestAck(TYPE, SOME, 3),
        EventAck(EventId("x", 0, 0), "down"),
        RendezvousHint(Peer("not an id"), TYPE),
        ChildRefresh((("nothing", 1),)),
        ParentRefresh(("nothing",)),
        Prune("nothing"),
        ParentLeaving("nothing"),
        ToRendezvous(Packet(Header(EventId("x", 0, 0), "nothing"), View({})), 10_000, Peer("")),
    ],
)
def test_nonsense_from_a_peer_neither_raises_nor_stays(message: Any) -> None:
    bench = a_bench()
    router = bench.routers["213"]
    bench.do("213", router.receive("201", message, bench.now))
    bench.run()
    assert router.holdings()["trees"][0] == 0
    assert router.holdings()["roots"][0] == 0
