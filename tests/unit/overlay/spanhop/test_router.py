"""Spanhop on a few brokers: placement, notification, joins, leaves, takeovers, conflicting claims."""

from __future__ import annotations

from dataclasses import fields
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
    Effect,
    EventId,
    Everything,
    Header,
    Interest,
    NodeId,
    Packet,
    Peer,
    Place,
    Ranges,
    RouteHeader,
    Send,
    SubscriptionId,
    View,
    WakeAt,
    next_hop,
    protocol,
)
from tidings.overlay.spanhop.messages import (
    Accept,
    AdvertisementUpdate,
    DomainAnswer,
    DomainQuery,
    Handoff,
    HandoffAck,
    Heartbeat,
    HopAck,
    Join,
    MulticastNotification,
    Notification,
    Offer,
    PlaceSubscription,
    Routed,
    RoutedDatagram,
    RoutedEvent,
    SpanhopMessage,
    Stored,
    SubscriptionRecord,
    TableEntry,
    WrongDomain,
    ZoneAdvertisement,
    ZoneClaim,
    ZoneDescriptor,
)
from tidings.overlay.spanhop.router import PROTOCOL, Spanhop, SpanhopOptions
from tidings.overlay.spanhop.zone_ownership import outranks, uncovered
from tidings.overlay.spanhop.zone_transfer import cut_of
from tidings.space import Path, Zone, halves, sibling

STILL: dict[str, Any] = {"heartbeat_s": 0, "refresh_s": 0, "upkeep_s": 0}


def ids(count: int) -> list[NodeId]:
    return [f"b{number:02}" for number in range(count)]


def a_bench(count: int = 16, *, delay_s: float = 0.0, **options: Any) -> Bench:
    layout = "balanced" if count & (count - 1) == 0 else "grown"
    return Bench(PROTOCOL, ids(count), delay_s=delay_s, **{**STILL, "layout": layout, **options})


def sent(bench: Bench, kind: type) -> list[tuple[NodeId, NodeId, Any]]:
    return [row for row in bench.sent if isinstance(row[2], kind)]


def partition_of(bench: Bench) -> list[Path]:
    """The zones of all brokers; together they are the whole space, each point once (SPANHOP-INV-1)."""
    space = next(iter(bench.routers.values())).zones.space
    paths = [path for router in bench.routers.values() for path in router.zones.owned]
    assert uncovered((), paths) == []
    assert sum(space.zone(path).size for path in paths) == space.whole.size
    return sorted(paths)


def check_books(bench: Bench) -> None:
    """SPANHOP-INV-2, SPANHOP-INV-3, SPANHOP-INV-4 of every broker."""
    everybody = {id: router for id, router in bench.routers.items() if router.zones.owned}
    for id, router in everybody.items():
        for path, owned in router.zones.owned.items():
            assert owned.zone == router.zones.space.zone(path)
            assert len(owned.ancestors) == len(path) // router.zones.k + 1
            beside = {
                other
                for other, each in everybody.items()
                if other != id
                and any(owned.zone.borders(z.zone, router.zones.around) is not None for z in each.zones.owned.values())
            }
            known = {each.id for each in router.zones.routing_state(owned).neighbours}
            assert known == beside, f"{id} knows {known}, beside it are {beside}"


def stored_at(bench: Bench, id: SubscriptionId) -> list[NodeId]:
    return [
        name
        for name, router in bench.routers.items()
        if any(id in owned.records for owned in router.zones.owned.values())
    ]


def zones_of(bench: Bench, **ranges: tuple[int, int]) -> list[NodeId]:
    """Whose zones a box of values touches."""
    some = next(iter(bench.routers.values()))
    boxes = some.quantiser.wanted(Ranges.of(**ranges))
    return [
        name
        for name, router in bench.routers.items()
        if any(box.touches(owned.zone) for owned in router.zones.owned.values() for box in boxes)
    ]


def owner(bench: Bench, **values: int) -> NodeId:
    some = next(iter(bench.routers.values()))
    event = some.quantiser.event(View(dict(values)))
    return next(id for id, router in bench.routers.items() if router.zones.touching(event) is not None)


# ── Placement and notification ───────────────────────────────────────────────


@pytest.mark.parametrize("mode", ["spanhop", "greedy"])
@pytest.mark.parametrize("count", [1, 2, 16, 21])
def test_each_zone_of_a_box_stores_it_once_and_nobody_else_does(count: int, mode: str) -> None:
    """SPANHOP-P7, SPANHOP-INV-7."""
    bench = a_bench(count, mode=mode)
    sub = bench.subscribe("b00", Ranges.of(x=(200, 600), y=(300, 900)))
    bench.run()
    assert bench.completed[-1] == ("b00", "subscribe", sub)
    assert stored_at(bench, sub) == zones_of(bench, x=(200, 600), y=(300, 900))
    elsewhere = [id for id in stored_at(bench, sub) if id != "b00"]
    assert sorted(name for name, _, _ in sent(bench, Stored)) == sorted(elsewhere)


def test_each_home_with_a_matching_subscription_is_notified_once() -> None:
    """SPANHOP-P6."""
    bench = a_bench()
    bench.subscribe("b03", Ranges.of(x=(0, 500)))
    bench.subscribe("b03", Ranges.of(y=(0, 500)))
    bench.subscribe("b09", Everything())
    bench.subscribe("b11", Ranges.of(x=(600, 999)))
    bench.run()
    event = bench.publish("b14", x=100, y=100)
    bench.run()
    assert sorted(bench.delivered) == [("b03", event), ("b09", event)]
    assert len(sent(bench, Notification)) <= 2


def test_a_deleted_subscription_is_forgotten_everywhere_and_not_notified() -> None:
    """SPANHOP-P6, and tombstones: an old record that arrives late changes nothing."""
    bench = a_bench()
    sub = bench.subscribe("b03", Ranges.of(x=(0, 500)))
    bench.run()
    late = [(to, message) for _, to, message in sent(bench, Routed) if isinstance(message.payload, PlaceSubscription)]
    bench.unsubscribe(sub)
    bench.run()
    assert bench.completed[-1] == ("b03", "unsubscribe", sub)
    for to, message in late:
        bench.do(to, bench.routers[to].receive("b03", RoutedDatagram(message.route, message.payload), bench.now))
    bench.run()
    assert stored_at(bench, sub) == []
    bench.publish("b14", x=100, y=100)
    bench.run()
    assert bench.delivered == []


def test_a_new_interest_under_an_old_id_replaces_it() -> None:
    bench = a_bench()
    sub = bench.subscribe("b03", Ranges.of(x=(0, 700)))
    bench.run()
    bench.do("b03", bench.routers["b03"].subscribe(Interest(sub, TYPE, Ranges.of(x=(600, 999))), bench.now))
    bench.run()
    assert stored_at(bench, sub) == zones_of(bench, x=(600, 999))
    bench.publish("b14", x=100, y=0)
    event = bench.publish("b14", x=900, y=0)
    bench.run()
    assert bench.delivered == [("b03", event)]


def test_an_interest_in_nothing_is_complete_at_once() -> None:
    bench = a_bench(4)
    sub = bench.subscribe("b01", Ranges.of(x=(5, 4)))
    assert bench.completed[-1] == ("b01", "subscribe", sub)
    assert bench.sent == []


@pytest.mark.parametrize("values", [{}, {"y": 3}, {"x": -5, "y": 10_000}])
def test_absent_attributes_and_values_beyond_the_bounds_have_their_zones(values: dict[str, int]) -> None:
    bench = a_bench()
    bench.subscribe("b05", Everything())
    bench.run()
    event = bench.publish("b10", **values)
    bench.run()
    assert bench.delivered == [("b05", event)]


def test_an_event_that_cannot_be_read_goes_to_all_zones_it_may_lie_in_and_is_delivered_once() -> None:
    """SPANHOP-GAP-15."""
    bench = a_bench()
    bench.subscribe("b05", Ranges.of(x=(100, 900), y=(0, 400)))
    bench.subscribe("b06", Ranges.of(x=(100, 200), y=(600, 900)))
    bench.run()
    event = EventId("b10", 0, 99)
    packet = Packet(Header(event, TYPE), View({"y": 300}, hidden=("x",)))
    bench.do("b10", bench.routers["b10"].publish(packet, bench.now))
    bench.run()
    assert bench.delivered == [("b05", event)]
    touched = zones_of(bench, y=(300, 300))
    matched = [id for id, r in bench.routers.items() if any(owned.recent_events for owned in r.zones.owned.values())]
    assert matched == touched


@pytest.mark.parametrize("count", [16, 30])
def test_multicast_notifies_the_same_homes_as_unicast(count: int) -> None:
    reached, messages = {}, {}
    for notify in ("unicast", "multicast"):
        bench = a_bench(count, notify=notify, profile="paper")
        for id in ids(count)[::2]:
            bench.subscribe(id, Ranges.of(x=(0, 800)))
        bench.run()
        for number, id in enumerate(ids(count)):
            bench.publish(id, x=50 * number, y=30 * number)
        bench.run()
        reached[notify] = sorted(bench.delivered)
        messages[notify] = len(sent(bench, MulticastNotification)) + len(sent(bench, Notification))
    assert reached["multicast"] == reached["unicast"] != []
    assert messages["multicast"] > 0


def hops(bench: Bench, start: NodeId, destination: tuple[int, ...]) -> int:
    """How many hops a message takes along the space."""
    route, at, count = RouteHeader(destination), start, 0
    while True:
        router = bench.routers[at]
        hop = next_hop(router.zones.routing_state(router.zones.nearest(destination)), route, router.zones.k)
        if hop.to is None:
            return count
        at, route, count = hop.to, hop.route, count + 1


def test_one_copy_serves_all_homes_that_share_the_next_hop() -> None:
    """A multicast takes no more messages than one routed message to each home, here much fewer."""
    bench = a_bench(32, notify="multicast", profile="paper")
    for id in ids(32):
        bench.subscribe(id, Everything())
    bench.run()
    before = len(bench.sent)
    bench.publish("b00", x=1, y=1)
    bench.run()
    told = [row for row in bench.sent[before:] if isinstance(row[2], MulticastNotification)]
    assert {id for id, _ in bench.delivered} == set(ids(32))
    each = sum(hops(bench, "b00", next(iter(bench.routers[id].zones.owned.values())).zone.low) for id in ids(32))
    assert len(told) < each / 2


def test_a_home_that_cannot_be_reached_directly_is_reached_along_the_space() -> None:
    bench = a_bench(16)
    bench.subscribe("b05", Everything())
    bench.run()
    place = owner(bench, x=900, y=900)
    event = EventId("b15", 0, 7)
    packet = Packet(Header(event, TYPE), View({"x": 900, "y": 900}))
    effects = bench.routers[place].publish(packet, bench.now)
    notify = next(e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Notification))
    again = bench.routers[place].unsent("b05", notify, bench.now)
    tell: list[Effect] = [e for e in again if isinstance(e, Send) and isinstance(e.message, MulticastNotification)]
    bench.do(place, tell)
    bench.run()
    assert ("b05", event) in bench.delivered


def test_a_message_that_bounces_takes_another_hop() -> None:
    bench = a_bench(16)
    bench.subscribe("b15", Everything())
    bench.run()
    b0 = bench.routers["b00"]
    packet = Packet(Header(EventId("b00", 0, 1), TYPE), View({"x": 990, "y": 990}))
    (first,) = [e for e in b0.publish(packet, 0.0) if isinstance(e, Send)]
    (second,) = [
        e for e in b0.unsent(first.to, first.message, 0.1) if isinstance(e, Send) and isinstance(e.message, RoutedEvent)
    ]
    assert first.to == "b08"
    assert second.to not in ("b08", "b00")


def test_a_message_without_acknowledgement_is_retransmitted_and_then_takes_another_hop() -> None:
    bench = a_bench(16)
    b0 = bench.routers["b00"]
    packet = Packet(Header(EventId("b00", 0, 1), TYPE), View({"x": 990, "y": 990}))
    to: list[NodeId] = []
    waits: list[float] = []
    effects: list[Effect] = b0.publish(packet, 0.0)
    while len(to) < 5:
        (send,) = [e for e in effects if isinstance(e, Send)]
        wake = next(e for e in effects if isinstance(e, WakeAt))
        to.append(send.to)
        waits.append(wake.when)
        effects = b0.wake(wake.token, wake.when)
    assert to[:4] == ["b08"] * 4
    assert to[4] != "b08"
    assert [b - a for a, b in pairwise(waits[:4])] == [2.0, 4.0, 8.0]


def test_a_repeated_message_is_acknowledged_and_goes_no_further() -> None:
    bench = a_bench(16)
    b0 = bench.routers["b00"]
    packet = Packet(Header(EventId("b03", 0, 1), TYPE), View({"x": 990, "y": 990}))
    carry = RoutedEvent(5, RouteHeader((2**32 - 1, 2**32 - 1)), packet, b0.quantiser.event(packet.view))
    first, second = (b0.receive("b03", carry, 0.0) for _ in range(2))
    assert [type(e.message) for e in first if isinstance(e, Send)] == [HopAck, RoutedEvent]
    assert [type(e.message) for e in second if isinstance(e, Send)] == [HopAck]


# ── Joining ──────────────────────────────────────────────────────────────────


def grown(count: int, *, seed: int = 0, **options: Any) -> Bench:
    bench = Bench(PROTOCOL, [], seed=seed, **STILL)
    for id in ids(count):
        bench.enter(
            PROTOCOL, id, bench.rng.choice(list(bench.routers)) if bench.routers else None, **{**STILL, **options}
        )
        bench.run()
    return bench


@pytest.mark.parametrize("join_policy", ["even", "point"])
@pytest.mark.parametrize("m", [2, 4, 8])
def test_brokers_that_join_one_after_the_other_tile_the_space(m: int, join_policy: str) -> None:
    """SPANHOP-P1."""
    bench = grown(20, m=m, join_policy=join_policy)
    assert [id for id, asked, _ in bench.completed if asked == "join"] == ids(20)
    partition_of(bench)
    check_books(bench)
    bench.subscribe("b04", Everything())
    bench.run()
    event = bench.publish("b19", x=123, y=456)
    bench.run()
    assert bench.delivered == [("b04", event)]


def test_brokers_that_all_join_at_once_tile_the_space() -> None:
    bench = Bench(PROTOCOL, ["b00"], **STILL)
    for id in ids(16)[1:]:
        bench.enter(PROTOCOL, id, "b00", **STILL)
    bench.run()
    assert len(partition_of(bench)) == 16


def test_a_newcomer_gets_the_subscriptions_of_its_half_and_the_giver_forgets_them() -> None:
    bench = a_bench(1, kept="lower")
    low, high = Ranges.of(x=(0, 100)), Ranges.of(x=(800, 900))
    subs = [bench.subscribe("b00", wanted) for wanted in (low, high, Everything())]
    bench.enter(PROTOCOL, "b01", "b00", **STILL)
    bench.run()
    assert [stored_at(bench, sub) for sub in subs] == [["b00"], ["b01"], ["b00", "b01"]]


def test_a_zone_is_cut_where_its_load_is_halved() -> None:
    """SPANHOP-GAP-14."""
    bench = a_bench(1)
    for x in range(100, 200, 5):
        bench.subscribe("b00", Ranges.of(x=(x, x + 1)))
    bench.enter(PROTOCOL, "b01", "b00", **STILL)
    bench.run()
    owned = [len(next(iter(bench.routers[id].zones.owned.values())).records) for id in ("b00", "b01")]
    assert sum(owned) in (20, 21)
    assert abs(owned[0] - owned[1]) <= 1


def test_a_cut_by_load_stays_away_from_the_edge() -> None:
    bench = a_bench(1)
    for _ in range(30):
        bench.publish("b00", x=0, y=0)
    owned = bench.routers["b00"].zones.owned[()]
    assert cut_of(owned, bench.routers["b00"].zones.space, by_load=True) == 2**32 // 16


def test_two_newcomers_at_one_broker_are_served_one_after_the_other() -> None:
    bench = a_bench(1)
    b0 = bench.routers["b00"]
    (offer,) = [e for e in ask(b0, "one") if isinstance(e, Send)]
    assert isinstance(offer.message, Offer)
    assert [type(e.message).__name__ for e in ask(b0, "two") if isinstance(e, Send)] == ["HopAck", "Busy"]


def ask(router: Spanhop, joiner: NodeId, number: int = 1) -> list[Effect]:
    return [
        e
        for e in router.receive(joiner, Routed(number, RouteHeader((0, 0)), Join(Peer(joiner), number)), 0.0)
        if not (joiner == "one" and isinstance(e, Send) and isinstance(e.message, HopAck))
    ]


@pytest.mark.parametrize("lost", range(8))
def test_a_join_that_breaks_off_at_any_message_leaves_the_space_tiled(lost: int) -> None:
    """SPANHOP-P9: from the n-th message on, nothing passes between the two."""
    bench = a_bench(4)
    bench.subscribe("b00", Everything())
    bench.run()
    quiet = len(bench.sent)
    bench.enter(PROTOCOL, "new", "b00", **STILL)
    for _ in bench.steps(until=200.0):
        exchanged = [row for row in bench.sent[quiet:] if "new" in row[:2]]
        if len(exchanged) > lost:
            break
    del bench.routers["new"]
    bench.run(until=bench.now + 300.0)
    holders = [path for router in bench.routers.values() for path in router.zones.owned]
    given = [message for _, _, message in bench.sent if isinstance(message, Accept)]
    if not given:
        assert uncovered((), holders) == []
    # Once the newcomer has accepted the zone may be its own, and then neighbours know whose it is.
    claims = [
        claim.path
        for router in bench.routers.values()
        for claim in getattr(router.zones.neighbours.get("new"), "claims", ())
    ]
    assert uncovered((), [*holders, *claims]) == []
    assert all(router.transfer.outgoing is None for router in bench.routers.values())


def test_an_offer_that_is_not_accepted_is_withdrawn() -> None:
    bench = a_bench(1)
    b0 = bench.routers["b00"]
    effects = ask(b0, "one")
    for _ in range(10):
        wakes = [e for e in effects if isinstance(e, WakeAt)]
        if not wakes:
            break
        effects = b0.wake(wakes[0].token, wakes[0].when)
    assert b0.transfer.outgoing is None
    assert list(b0.zones.owned) == [()]
    assert any(isinstance(e, Send) and e.to == "two" and isinstance(e.message, Offer) for e in ask(b0, "two", 2))


# ── Leaving ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("leaver", range(9))
def test_a_leaver_of_any_place_leaves_no_hole_and_takes_no_subscription_with_it(leaver: int) -> None:
    """SPANHOP-P1; a sibling that is a leaf merges, else a pair of siblings is found."""
    bench = grown(9)
    subs = [bench.subscribe(id, Everything()) for id in ids(9)]
    bench.run()
    gone = f"b{leaver:02}"
    for sub in subs:
        if sub.origin == gone:
            bench.unsubscribe(sub)
    bench.run()
    bench.do(gone, bench.routers[gone].leave(bench.now))
    bench.run(until=bench.now + 100.0)
    assert (gone, "leave", None) in bench.completed
    del bench.routers[gone]
    partition_of(bench)
    check_books(bench)
    assert all(len(router.zones.owned) == 1 for router in bench.routers.values())
    event = bench.publish("b00" if gone != "b00" else "b01", x=700, y=200)
    bench.run()
    assert sorted(id for id, each in bench.delivered if each == event) == [id for id in ids(9) if id != gone]


def test_everybody_can_leave_but_one() -> None:
    bench = grown(6)
    for id in ids(6)[1:]:
        bench.do(id, bench.routers[id].leave(bench.now))
        bench.run(until=bench.now + 100.0)
        del bench.routers[id]
    assert partition_of(bench) == [()]


def test_a_split_and_a_merge_restore_path_depth_ancestors_and_zone() -> None:
    """SPANHOP-P8."""
    for count in range(1, 9):
        bench = grown(count, join_policy="point", m=2)
        before = {
            id: [(h.path, h.zone, [len(t) for t in h.ancestors]) for h in r.zones.owned.values()]
            for id, r in bench.routers.items()
        }
        bench.enter(PROTOCOL, "new", "b00", **STILL, m=2, join_policy="point")
        bench.run()
        giver = next(
            id
            for id, r in bench.routers.items()
            if id != "new" and r.zones.owned.keys() != {p for p, _, _ in before[id]}
        )
        assert sibling(next(iter(bench.routers["new"].zones.owned))) in bench.routers[giver].zones.owned
        bench.do("new", bench.routers["new"].leave(bench.now))
        bench.run(until=bench.now + 100.0)
        del bench.routers["new"]
        after = {
            id: [(h.path, h.zone, [len(t) for t in h.ancestors]) for h in r.zones.owned.values()]
            for id, r in bench.routers.items()
        }
        assert after == before


def test_a_broker_that_gives_a_zone_refuses_another() -> None:
    bench = a_bench(4)
    b0 = bench.routers["b00"]
    path = next(iter(b0.zones.owned))
    ask(b0, "one")
    hand = Handoff(1, a_descriptor(bench.routers["b01"], sibling(path)), (), True, 0, True)
    (answer,) = [e for e in b0.receive("b01", hand, 0.0) if isinstance(e, Send)]
    assert type(answer.message).__name__ == "HandoffRefused"


def a_descriptor(router: Any, path: Path) -> ZoneDescriptor:
    return ZoneDescriptor(ZoneClaim(path, 1), ((),), (router.zones.advertisement(),))


# ── Failures ─────────────────────────────────────────────────────────────────


def fails(bench: Bench, id: NodeId) -> None:
    """A broker fails; all that send to it find out when their messages bounce."""
    del bench.routers[id]
    for other, router in list(bench.routers.items()):
        if id in router.links():
            bench.do(other, router.unsent(id, Heartbeat(0, 0, 0), bench.now))


@pytest.mark.parametrize("victim", range(0, 16, 3))
def test_the_zone_of_a_failed_broker_is_taken_over_with_its_subscriptions(victim: int) -> None:
    """SPANHOP-P1, and replicas: nothing is placed again in here."""
    bench = a_bench(16)
    home = "b05" if victim != 5 else "b06"
    bench.subscribe(home, Everything())
    bench.run()
    dead = f"b{victim:02}"
    zone = next(iter(bench.routers[dead].zones.owned.values())).zone
    fails(bench, dead)
    bench.run(until=bench.now + 60.0)
    partition_of(bench)
    check_books(bench)
    assert all(len(router.zones.owned) == 1 for router in bench.routers.values())
    publisher = next(id for id in bench.routers if id != home)
    x, y = (int(at / 2**32 * 1000) + 2 for at in zone.low)
    event = bench.publish(publisher, x=x, y=y)
    bench.run()
    assert bench.delivered == [(home, event)]


def test_two_neighbours_that_fail_together_are_both_replaced() -> None:
    bench = a_bench(16)
    first = "b06"
    second = next(iter(bench.routers[first].zones.neighbours))
    fails(bench, first)
    fails(bench, second)
    bench.run(until=bench.now + 60.0)
    partition_of(bench)


def test_of_two_claims_the_later_counts_and_of_equals_that_of_the_smaller_id() -> None:
    late, early = ZoneClaim((), 5), ZoneClaim((), 4)
    assert outranks(late, "z", early, "a")
    assert outranks(early, "a", early, "b")
    assert not outranks(early, "b", early, "a")


def test_a_broker_with_the_lower_claim_cedes_that_part_and_keeps_the_rest() -> None:
    bench = a_bench(2)
    b0 = bench.routers["b00"]
    path = next(iter(b0.zones.owned))
    low, high = halves(path, b0.zones.space.middle(path))
    advert = ZoneAdvertisement(Peer("zz"), 7, (ZoneClaim(high, 9),))
    b0.receive("zz", AdvertisementUpdate(advert, ()), 1.0)
    assert list(b0.zones.owned) == [low]
    b0.receive("zz", AdvertisementUpdate(ZoneAdvertisement(Peer("zz"), 8, (ZoneClaim((), 10),)), ()), 2.0)
    assert list(b0.zones.owned) == []
    assert b0.stage == "joining"


def test_the_higher_claim_is_advertised_to_the_broker_with_the_lower_one() -> None:
    bench = a_bench(2)
    b0 = bench.routers["b00"]
    path = next(iter(b0.zones.owned))
    b0.zones.owned[path].epoch = 3
    effects = b0.receive("zz", AdvertisementUpdate(ZoneAdvertisement(Peer("zz"), 7, (ZoneClaim(path, 2),)), ()), 1.0)
    assert [e.to for e in effects if isinstance(e, Send) and isinstance(e.message, AdvertisementUpdate)][-1] == "zz"
    assert list(b0.zones.owned) == [path]


# ── The tables of ancestors ──────────────────────────────────────────────────


def test_a_broker_that_is_not_where_a_table_says_answers_so_and_the_entry_is_looked_up_again() -> None:
    bench = a_bench(16)
    b0 = bench.routers["b00"]
    owned = next(iter(b0.zones.owned.values()))
    entry = owned.ancestors[1][-1]
    owned.ancestors[1] = (*owned.ancestors[1][:-1], TableEntry(Peer("b03"), entry.path))
    b0.zones.invalidate_routes()
    zone = b0.zones.space.zone(entry.path)
    x, y = (int((low + high) / 2 / 2**32 * 1000) for low, high in zip(zone.low, zone.high))
    bench.publish("b00", x=x, y=y)
    bench.run()
    assert len(sent(bench, WrongDomain)) == 1
    assert len(sent(bench, DomainAnswer)) == 1
    there = owned.ancestors[1][-1].peer.id
    assert bench.routers[there].zones.touching(zone) is not None


def test_entries_are_looked_up_now_and_then() -> None:
    bench = a_bench(64, upkeep_s=1.0)
    bench.run(until=3.0)
    asked = [m for _, _, m in sent(bench, RoutedDatagram) if isinstance(m.payload, DomainQuery)]
    assert asked
    for router in bench.routers.values():
        for owned in router.zones.owned.values():
            for table in owned.ancestors:
                for entry in table:
                    owner_zone = next(iter(bench.routers[entry.peer.id].zones.owned.values())).zone
                    assert owner_zone.touches(router.zones.space.zone(entry.path))


# ── Limits ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "options",
    [
        {"m": 3},
        {"m": 1},
        {"axes": {}},
        {"axes": {"x": (5, 5)}},
        {"axes": {"x": (0, "a")}},
        {"mode": "fast"},
        {"join_policy": "no"},
        {"profile": "none"},
        {"notify": "broadcast"},
        {"cut": "half"},
        {"layout": "round"},
        {"proximity": "gps"},
        {"proximity": "gnp", "landmarks": ["a", "b"]},
        {"unknown": 1},
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        protocol("spanhop").build(Place(Peer("a"), (), Random(0)), **options)


def as_given(options: SpanhopOptions) -> dict[str, Any]:
    """Options as a configuration file gives them."""
    return {each.name: getattr(options, each.name) for each in fields(options)}


def test_the_preset_robust_has_the_defaults_and_the_preset_paper_sends_everything_once() -> None:
    assert SpanhopOptions.robust() == SpanhopOptions()
    published = SpanhopOptions.paper(axes={"x": (0, 9)})
    assert (published.profile, published.m, published.join_policy) == ("paper", 8, "point")
    assert dict(published.axes) == {"x": (0, 9)}
    bench = Bench(PROTOCOL, ids(16), delay_s=0.0, **{**as_given(SpanhopOptions.paper()), **STILL, "layout": "balanced"})
    bench.subscribe("b05", Everything())
    bench.run()
    event = bench.publish("b10", x=5, y=990)
    bench.run()
    assert bench.delivered == [("b05", event)]
    assert sent(bench, HopAck) == []


NONSENSE: list[SpanhopMessage] = [
    RoutedEvent(1, RouteHeader((1,)), Packet(Header(EventId("z", 0, 1), TYPE), View({})), Zone((0, 0), (1, 1))),
    RoutedEvent(1, RouteHeader((1, 1)), Packet(Header(EventId("z", 0, 1), TYPE), View({})), Zone((5, 5), (1, 1))),
    RoutedEvent(1, RouteHeader((-1, 2**40)), Packet(Header(EventId("z", 0, 1), TYPE), View({})), Zone((0,), (1,))),
    Routed(1, RouteHeader((0, 0)), DomainQuery(Peer("z"), ((0, 7),))),
    Routed(
        2,
        RouteHeader((0, 0)),
        PlaceSubscription(
            SubscriptionRecord(Interest(SubscriptionId("z", 0, 1), TYPE, Everything()), Peer("z"), (), 1), Zone((), ())
        ),
    ),
    AdvertisementUpdate(ZoneAdvertisement(Peer("z"), 1, (ZoneClaim(((5, 3),), 1),)), ()),
    AdvertisementUpdate(ZoneAdvertisement(Peer("somebody else"), 1, ()), ()),
    Stored(SubscriptionId("b00", 0, 1), 1, Zone((1,), (0,))),
    MulticastNotification(1, Packet(Header(EventId("z", 0, 1), TYPE), View({})), ()),
    HandoffAck(1, 0),
    Accept(1, 5),
    HopAck(77),
    WrongDomain(()),
    DomainAnswer(((1, 1),), Peer("z")),
    Heartbeat(0, 5, 9),
]


@pytest.mark.parametrize("message", NONSENSE, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("stage", ["ready", "outside"])
def test_nonsense_from_a_peer_neither_raises_nor_changes_what_is_held(message: SpanhopMessage, stage: str) -> None:
    if stage == "ready":
        router = a_bench(4).routers["b00"]
    else:
        router = protocol("spanhop").build(Place(Peer("b00"), (), Random(0)))
    before = dict(router.zones.owned)
    for now in (1.0, 2.0):
        assert not any(isinstance(e, Deliver | Completed) for e in router.receive("z", message, now))
    assert router.zones.owned == before
    assert all(count <= most for count, most in router.holdings().values())


def test_events_published_before_there_is_a_zone_wait_for_it() -> None:
    bench = a_bench(2)
    bench.subscribe("b00", Everything())
    bench.run()
    bench.enter(PROTOCOL, "new", "b01", **STILL)
    event = bench.publish("new", x=1, y=1)
    assert not sent(bench, RoutedEvent)
    bench.run()
    assert bench.delivered == [("b00", event)]


def test_all_messages_fit_through_a_link() -> None:
    bench = grown(6)
    bench.subscribe("b00", Everything())
    bench.publish("b03", x=5)
    bench.run()
    codec: Codec[Any] = Codec(PROTOCOL.messages)
    for _, _, message in bench.sent:
        assert codec.decode(codec.encode(message)) == message
