"""CBDLO on a few nodes: walks, access points, counting, coordinators, and messages of faulty peers."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.unit.overlay.harness import TYPE, Bench
from tidings.errors import InputError
from tidings.overlay import (
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
    Send,
    SubscriptionId,
    View,
    protocol,
)
from tidings.overlay.cbdlo.messages import (
    Match,
    RenewLease,
    RevokePartition,
    StaleAccessPoint,
    SubscribersNotified,
    TopologyFound,
    TreeStep,
    Unregister,
    Walk,
    WalkFailed,
)
from tidings.overlay.cbdlo.options import CbdloOptions
from tidings.overlay.cbdlo.router import PROTOCOL, Cbdlo
from tidings.overlay.random_graph.access_points import AccessPoint, TreeId
from tidings.overlay.random_graph.partition import BOTTOM, AttributeAxis
from tidings.overlay.random_graph.random_walk import WalkPath

IDS = [f"n{k}" for k in range(8)]
X, NAMELESS = AttributeAxis(TYPE, "x"), AttributeAxis(TYPE, "")
STILL: dict[str, Any] = {"period_s": 0}


def a_bench(ids: list[NodeId] = IDS, **options: Any) -> Bench:
    return Bench(PROTOCOL, ids, delay_s=0.01, **{**STILL, **options})


def a_node(id: NodeId = "me", **options: Any) -> Cbdlo:
    return Cbdlo(Peer(id), Random(0), CbdloOptions.of(**{**STILL, **options}))


def a_packet(seq: int = 1, origin: NodeId = "far", **values: Any) -> Packet:
    return Packet(Header(EventId(origin, 0, seq), TYPE), View(values))


def sent(effects: list[Any], kind: type) -> list[tuple[NodeId, Any]]:
    return [(each.to, each.message) for each in effects if isinstance(each, Send) and isinstance(each.message, kind)]


def fill_tables(bench: Bench) -> None:
    """Give every node all access points, as gossip would in the end."""
    points = [point for router in bench.routers.values() for point in router.upper.adverts()]
    for router in bench.routers.values():
        for point in points:
            router.graph.table.add(point)


def a_network_of_three_wishes(**options: Any) -> Bench:
    bench = a_bench(**options)
    bench.subscribe("n1", Ranges.of(x=(0, 50)))
    bench.run(20.0)
    fill_tables(bench)
    bench.subscribe("n2", Ranges.of(x=(40, 90), y=(0, 9)))
    bench.subscribe("n3", Ranges.of(x=(45, 60)))
    bench.run(60.0)
    fill_tables(bench)
    return bench


# ── Subscribing and delivering ───────────────────────────────────────────────


@pytest.mark.parametrize("profile", ["robust", "paper"])
def test_an_event_reaches_exactly_those_whose_whole_condition_it_meets(profile: str) -> None:
    """CBDLO-INV-01, CBDLO-INV-02, CBDLO-INV-03, in both profiles."""
    bench = a_network_of_three_wishes(profile=profile)
    for values, wanted in (
        ({"x": 47, "y": 3}, ["n1", "n2", "n3"]),
        ({"x": 47, "y": 30}, ["n1", "n3"]),
        ({"x": 99}, []),
    ):
        event = bench.publish("n5", **values)
        bench.run(200.0)
        assert sorted(node for node, id in bench.delivered if id == event) == wanted


def test_a_subscription_is_completed_once_its_partitions_and_two_replicas_have_it() -> None:
    bench = a_network_of_three_wishes()
    assert [(node, asked) for node, asked, _ in bench.completed if asked == "subscribe"] == [
        ("n1", "subscribe"),
        ("n3", "subscribe"),
        ("n2", "subscribe"),
    ]
    coordinator = bench.routers["n1"].upper.coordinators.by_axis[X]
    assert sorted(coordinator.replicas) == ["n2", "n3"]
    replicated = bench.routers["n2"].upper.replicas.registrations(X, coordinator.tree)
    assert sorted(id.origin for id in replicated) == ["n1", "n2", "n3"]


def test_a_publication_is_completed_when_all_subscribers_have_the_event() -> None:
    bench = a_network_of_three_wishes()
    event = bench.publish("n5", x=47, y=3)
    bench.run(200.0)
    assert ("n5", "publish", event) in bench.completed


@pytest.mark.parametrize("profile", ["robust", "paper"])
def test_nothing_is_delivered_twice_however_often_a_message_arrives(profile: str) -> None:
    """CBDLO-INV-02: every message of a delivery arrives three times."""
    bench = a_network_of_three_wishes(profile=profile)
    event = bench.publish("n5", x=47, y=3)
    bench.run(200.0)
    for sender, to, message in list(bench.sent):
        if isinstance(message, Match | TreeStep | Walk) and message.packet.header.id == event:
            for _ in range(2):
                bench.do(to, bench.routers[to].receive(sender, message, bench.now))
    bench.run(400.0)
    assert sorted(node for node, id in bench.delivered if id == event) == ["n1", "n2", "n3"]


def test_a_withdrawn_interest_is_removed_everywhere_and_so_are_its_cuts() -> None:
    bench = a_network_of_three_wishes()
    coordinator = bench.routers["n1"].upper.coordinators.by_axis[X]
    before = len(coordinator.plan)
    taken = next(id for id in bench.routers["n3"].upper.subscriber.interests)
    bench.unsubscribe(taken)
    bench.run(300.0)
    assert ("n3", "unsubscribe", taken) in bench.completed
    assert len(coordinator.plan) < before
    assert len(bench.routers["n3"].upper.owned) == 0
    event = bench.publish("n5", x=50)
    bench.run(600.0)
    assert [node for node, id in bench.delivered if id == event] == ["n1"]


def test_an_interest_of_the_same_id_replaces_the_other() -> None:
    bench = a_network_of_three_wishes()
    id = next(id for id in bench.routers["n3"].upper.subscriber.interests)
    again = Interest(id, TYPE, Ranges.of(x=(95, 99)))
    bench.do("n3", bench.routers["n3"].subscribe(again, bench.now))
    bench.run(300.0)
    events = [bench.publish("n5", x=50), bench.publish("n5", x=97)]
    bench.run(600.0)
    assert [event for node, event in bench.delivered if node == "n3"] == events[1:]


def test_a_subscriber_of_all_events_of_a_type_is_found_by_the_type_alone() -> None:
    bench = a_bench()
    bench.subscribe("n4", Everything())
    bench.run(60.0)
    event = bench.publish("n5", x=3)
    bench.run(300.0)
    assert bench.delivered == [("n4", event)]


def test_an_event_that_the_tree_cannot_read_goes_to_all_whose_interest_may_match() -> None:
    bench = a_network_of_three_wishes()
    sealed = Packet(Header(EventId("n5", 0, 77), TYPE), View({}, hidden=("x",)))
    bench.do("n5", bench.routers["n5"].publish(sealed, bench.now))
    bench.run(300.0)
    assert {"n1", "n3"} <= {node for node, event in bench.delivered if event == sealed.header.id}


def test_an_attribute_without_subscribers_is_searched_for_and_then_skipped() -> None:
    """CBDLO-GAP-21."""
    bench = a_bench()
    bench.publish("n5", z=1)
    bench.run(50.0)
    walked = sum(isinstance(message, Walk) for _, _, message in bench.sent)
    assert walked > 0
    bench.publish("n5", z=2)
    bench.run(60.0)
    assert sum(isinstance(message, Walk) for _, _, message in bench.sent) == walked


# ── Walks ────────────────────────────────────────────────────────────────────


def a_walk(path: WalkPath | None = None, **values: Any) -> Walk:
    return Walk(a_packet(**values or {"x": 3}), X, Peer("far"), 1, path or WalkPath(10, 1, 0, (Peer("far"),)))


def test_a_walk_continues_to_a_neighbour_that_it_has_not_visited() -> None:
    node = a_node()
    node.graph.sampler.fill([Peer("far"), Peer("next")])
    ((to, message),) = sent(node.receive("far", a_walk(), 0.0), Walk)
    assert to == "next"
    assert [peer.id for peer in message.path.trace] == ["far", "me"]


def test_a_walk_that_finds_an_access_point_enters_the_tree() -> None:
    node = a_node()
    node.graph.table.add(AccessPoint(X, Peer("entry"), TreeId(Peer("s"), 1)))
    ((to, message),) = sent(node.receive("far", a_walk(), 0.0), TreeStep)
    assert (to, message.axis) == ("entry", X)


def test_a_walk_without_hops_left_ends_and_the_publisher_learns_of_it_only_if_robust() -> None:
    for profile, answers in (("robust", 1), ("paper", 0)):
        node = a_node(profile=profile)
        node.graph.sampler.fill([Peer("next")])
        over = node.receive("far", a_walk(WalkPath(10, 10, 0, (Peer("far"),))), 0.0)
        assert len(sent(over, WalkFailed)) == answers
        assert not sent(over, Walk)


def test_only_the_robust_publisher_looks_into_its_own_table() -> None:
    """CBDLO-GAP-13."""
    for profile, kind in (("robust", TreeStep), ("paper", Walk)):
        node = a_node(profile=profile)
        node.graph.sampler.fill([Peer("next")])
        node.graph.table.add(AccessPoint(X, Peer("entry"), TreeId(Peer("s"), 1)))
        assert len(sent(node.publish(a_packet(origin="me", x=3), 0.0), kind)) == 1


def test_an_access_point_that_has_left_reports_it_and_restarts_the_walk_with_half_the_hops() -> None:
    """CBDLO-INV-11."""
    node = a_node()
    node.graph.sampler.fill([Peer("next")])
    walk = a_walk()
    effects = node.receive("knows", TreeStep(walk.packet, X, walk.origin, 1, walk.path), 0.0)
    assert sent(effects, StaleAccessPoint) == [("knows", StaleAccessPoint(X))]
    ((_, next_step),) = sent(effects, Walk)
    assert (next_step.path.hops_max, next_step.path.round) == (5, 1)
    other = a_node("knows")
    other.graph.table.add(AccessPoint(X, Peer("me"), TreeId(Peer("s"), 1)))
    other.receive("me", StaleAccessPoint(X), 0.0)
    assert other.graph.table.at(X) == []


def test_a_stale_access_point_ends_a_walk_that_has_no_hops_left() -> None:
    node = a_node()
    node.graph.sampler.fill([Peer("next")])
    walk = a_walk(WalkPath(1, 1, 3, (Peer("far"),)))
    effects = node.receive("knows", TreeStep(walk.packet, X, walk.origin, 1, walk.path), 0.0)
    assert not sent(effects, Walk)
    assert len(sent(effects, WalkFailed)) == 1


def test_a_walk_to_a_failed_node_takes_another_way_without_losing_a_hop() -> None:
    node = a_node()
    node.graph.sampler.fill([Peer("gone"), Peer("next")])
    bounced = Walk(a_packet(x=3), X, Peer("far"), 1, WalkPath(10, 2, 0, (Peer("far"), Peer("me"))))
    ((to, message),) = sent(node.unsent("gone", bounced, 0.0), Walk)
    assert (to, message.path.hop) == ("next", 2)
    assert "gone" not in node.graph.sampler


# ── Messages of faulty peers ─────────────────────────────────────────────────


def test_nonsense_neither_raises_nor_is_believed() -> None:
    node = a_node()
    node.graph.sampler.fill([Peer("next")])
    tree, id = TreeId(Peer("s"), 1), SubscriptionId("liar", 0, 1)
    nonsense: list[Any] = [
        TopologyFound(EventId("me", 0, 1), X),
        SubscribersNotified(EventId("me", 0, 1), X),
        WalkFailed(EventId("me", 0, 1), X, 1),
        Match(5, a_packet(x=1), X, (id,)),
        RenewLease(X, tree, Peer("liar"), (id,), ()),
        RevokePartition(3, X, tree, BOTTOM, 9),
        a_walk(WalkPath(10**6, 0, 0, ())),
        TreeStep(a_packet(x=1), X, Peer("far"), 1, WalkPath(10, 1), 10**6),
    ]
    for message in nonsense:
        effects = node.receive("liar", message, 0.0)
        assert not any(isinstance(each, Deliver) for each in effects)
    assert not sent(node.receive("liar", nonsense[6], 0.0), Walk), "a walk that would never end is not forwarded"


def test_a_node_cannot_unregister_the_interest_of_another() -> None:
    bench = a_network_of_three_wishes()
    coordinator = bench.routers["n1"].upper.coordinators.by_axis[X]
    id = next(each.interest.id for each in coordinator.registrations() if each.peer.id == "n3")
    bench.do("n1", bench.routers["n1"].receive("n2", Unregister(9, X, coordinator.tree, id), bench.now))
    bench.run(300.0)
    assert coordinator.plan.registration(id) is not None


@pytest.mark.parametrize(
    "options",
    [
        {"profile": "best"},
        {"mode": "some"},
        {"hops_max": 0},
        {"trace_max": -1},
        {"wings": 2},
        {"policy": "x"},
        {"view_size": 0},
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        protocol("cbdlo").build(Place(Peer("a"), (), Random(0)), **options)


def test_a_restarted_node_joins_through_the_peers_it_remembers() -> None:
    node = a_node()
    node.graph.sampler.fill([Peer("a"), Peer("b")])
    effects = a_node().start(0.0, node.memory())
    assert [each.to for each in effects if isinstance(each, Send)] == ["a"]
    assert a_node().start(0.0, b"rubbish") == a_node().start(0.0)
