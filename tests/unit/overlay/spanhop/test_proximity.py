"""Proximity: coordinates by GNP and Vivaldi, the index in the space, and which broker is chosen."""

from __future__ import annotations

import math
from collections import deque
from random import Random
from typing import Any

import pytest

from tests.unit.overlay.harness import Bench
from tidings.errors import InputError
from tidings.overlay import NodeId, Peer, RouteHeader, next_hop
from tidings.overlay.spanhop.messages import IndexChanged, IndexPut, Landmarks, NearAnswer, NearQuery, Routed
from tidings.overlay.spanhop.network_coordinates import Coordinates, VivaldiEstimate, bounds, embed, place, scale
from tidings.overlay.spanhop.precomputed import settle, settle_near
from tidings.overlay.spanhop.proximity import ASKED_MAX, level_zone, nearest_of
from tidings.overlay.spanhop.router import PROTOCOL, Spanhop, SpanhopOptions
from tidings.space import Zone, within

STILL: dict[str, Any] = {"heartbeat_s": 0, "refresh_s": 0, "upkeep_s": 0}


def plane(count: int, seed: int = 1, axes: int = 2) -> list[Coordinates]:
    rng = Random(seed)
    return [tuple(rng.random() for _ in range(axes)) for _ in range(count)]


# ── Coordinates ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_landmarks_are_placed_as_far_apart_as_they_measured(axes: int) -> None:
    truth = plane(6, axes=axes)
    rtts = [[math.dist(a, b) for b in truth] for a in truth]
    found = embed(rtts, axes)
    wrong = max(abs(math.dist(a, b) - rtts[i][j]) for i, a in enumerate(found) for j, b in enumerate(found))
    assert wrong < 1e-3


def test_a_host_is_placed_where_its_delays_say() -> None:
    truth = plane(5)
    host = (0.4, 0.7)
    found = place(truth, [math.dist(host, at) for at in truth])
    assert math.dist(found, host) < 1e-3


def test_the_same_delays_give_the_same_place() -> None:
    rng = Random(3)
    rtts = [[0.0 if a == b else 0.1 + 0.01 * (a + b) for b in range(5)] for a in range(5)]
    assert embed(rtts, 2) == embed(rtts, 2)
    noisy = [rng.random() + 0.1 for _ in range(5)]
    assert place(embed(rtts, 2), noisy) == place(embed(rtts, 2), noisy)


def test_too_few_landmarks_are_refused() -> None:
    with pytest.raises(InputError, match="at least 3"):
        embed([[0.0, 1.0], [1.0, 0.0]], 2)
    with pytest.raises(InputError, match="at least 3"):
        place([(0.0, 0.0), (1.0, 1.0)], [1.0, 1.0])


def test_any_landmarks_but_one_more_than_axes_will_do() -> None:
    """A host that cannot reach some of them uses the others."""
    truth = plane(6)
    host = (0.2, 0.9)
    assert math.dist(place(truth[:3], [math.dist(host, at) for at in truth[:3]]), host) < 1e-2


def test_vivaldi_converges_where_delays_are_distances() -> None:
    truth, rng = plane(12), Random(2)
    hosts = [VivaldiEstimate((0.0, 0.0)) for _ in truth]
    for _ in range(6000):
        one, other = rng.sample(range(12), 2)
        direction = (rng.gauss(0, 1), rng.gauss(0, 1))
        hosts[one] = hosts[one].updated(hosts[other], math.dist(truth[one], truth[other]), direction)
    off = [
        abs(math.dist(hosts[a].at, hosts[b].at) - math.dist(truth[a], truth[b])) for a in range(12) for b in range(a)
    ]
    assert sum(off) / len(off) < 0.05
    assert all(host.error < 0.3 for host in hosts)


def test_coordinates_outside_the_bounds_are_scaled_to_the_edge() -> None:
    zone = Zone((10, 10), (20, 20))
    assert scale((-9.0, 9.0), zone, (0.0, 0.0), (1.0, 1.0)) == (10, 19)
    assert scale((float("nan"), 0.5), zone, (0.0, 0.0), (1.0, 1.0)) == (10, 15)
    low, high = bounds([(0.0, 0.0), (1.0, 2.0)])
    assert (low, high) == ((-0.5, -1.0), (1.5, 3.0))


# ── The index ────────────────────────────────────────────────────────────────


def a_network(count: int = 16, **options: Any) -> tuple[Bench, dict[NodeId, Coordinates]]:
    ids = [f"b{number:02}" for number in range(count)]
    bench = Bench(PROTOCOL, ids, delay_s=0.0, **{"layout": "balanced", "proximity": "vivaldi", **STILL, **options})
    return bench, dict(zip(ids, plane(count)))


def placed(count: int = 16, **options: Any) -> tuple[Bench, dict[NodeId, Coordinates]]:
    """All brokers have just computed their coordinates."""
    bench, places = a_network(count, **options)
    for id, at in places.items():
        near = bench.routers[id].proximity
        near.low, near.high = (0.0, 0.0), (1.0, 1.0)
        near.at = at
    for id in places:
        bench.do(id, bench.routers[id].proximity.publish(0.0))
    quietly(bench)
    return bench, places


def quietly(bench: Bench) -> None:
    """Deliver what is in flight, without the pings that never end."""
    bench.run(until=bench.now)


def records(bench: Bench) -> list[tuple[NodeId, IndexPut]]:
    return [
        (id, put)
        for id, router in bench.routers.items()
        for owned in router.zones.owned.values()
        for put in owned.index.values()
    ]


@pytest.mark.parametrize("most", [1, 2])
def test_no_broker_stores_more_records_than_its_zone_has_levels(most: int) -> None:
    """The paper's log_m N, also where all brokers are near each other by network."""
    bench, places = a_network(64, index_records=most)
    for number, id in enumerate(places):
        near = bench.routers[id].proximity
        near.low, near.high, near.at = (0.0, 0.0), (1.0, 1.0), (0.3 + number * 1e-4, 0.3)
        bench.do(id, near.publish(0.0))
    quietly(bench)
    stored = [len(owned.index) for router in bench.routers.values() for owned in router.zones.owned.values()]
    assert max(stored) <= most * 3 < 64
    assert sum(stored) > 0


def test_the_record_that_came_last_stays_and_may_be_replaced_in_turn() -> None:
    bench, places = placed(16)
    for id in places:
        bench.do(id, bench.routers[id].proximity.publish(0.0, again=True))
        quietly(bench)
        mine = [put for _, put in records(bench) if put.peer.id == id]
        assert len(mine) == len(bench.routers[id].proximity.levels())


def test_a_broker_has_a_record_at_its_point_in_each_of_its_ancestors_zones() -> None:
    bench, places = placed(index_records=0)
    found = records(bench)
    assert len(found) == sum(len(r.proximity.levels()) for r in bench.routers.values())
    for holder, put in found:
        router = bench.routers[holder]
        point = scale(places[put.peer.id], router.zones.space.zone(put.path), (0.0, 0.0), (1.0, 1.0))
        assert any(point in owned.zone for owned in router.zones.owned.values())
        assert any(path[: len(put.path)] == put.path for path in bench.routers[put.peer.id].zones.owned)


def test_a_query_finds_a_record_wherever_it_lies() -> None:
    """SPANHOP-P12: every zone that has a record anywhere is answered with one."""
    bench, _ = placed()
    for id in bench.routers:
        bench.do(id, bench.routers[id].proximity.select(bench.now))
    quietly(bench)
    answers = [message for _, _, message in bench.sent if isinstance(message, NearAnswer)]
    assert answers
    assert all(answer.found for answer in answers)


def test_the_chosen_broker_is_the_nearest_of_those_returned() -> None:
    """SPANHOP-P12."""
    bench, places = placed()
    asker = bench.routers["b00"]
    bench.do("b00", asker.proximity.select(bench.now))
    quietly(bench)
    told = {
        message.path: message.found for _, to, message in bench.sent if to == "b00" and isinstance(message, NearAnswer)
    }
    chosen = 0
    for entry, asked in asker.proximity.entries():
        if asked in told:
            best = min(told[asked], key=lambda put: (math.dist(put.at, places["b00"]), put.peer.id))
            assert asker.zones.preferred[entry] == best.peer.id
            chosen += 1
    assert chosen


@pytest.mark.parametrize("seed", range(3))
def test_a_preferred_broker_is_inside_the_recorded_zone_also_where_that_is_no_level_of_its_own(seed: int) -> None:
    """SPANHOP-P3: of a network that has grown by joins, most recorded zones are part of the level's zone asked about."""
    bench, _ = placed(40, layout="grown", join_policy="point", seed=seed)
    for id in bench.routers:
        bench.do(id, bench.routers[id].proximity.select(bench.now))
    quietly(bench)
    parts = 0
    for router in bench.routers.values():
        asked = dict(router.proximity.entries())
        for entry, id in router.zones.preferred.items():
            assert any(within(path, entry) for path in bench.routers[id].zones.owned)
            parts += asked[entry] != entry
    assert parts > 0


# ── Ring by ring ─────────────────────────────────────────────────────────────


def asked_from(bench: Bench, asker: NodeId, point: tuple[int, ...]) -> tuple[list[tuple[int, NodeId]], NearAnswer]:
    """Who is asked, with the ring it is in, when somebody looks in the whole space around a point; and the answer."""
    query, before = NearQuery((), Peer(asker), (0.5, 0.5), point), len(bench.sent)
    bench.do(asker, bench.routers[asker].forwarder.send_to(query, point, bench.now))
    quietly(bench)
    since = [message for _, _, message in bench.sent[before:]]
    onward = {m.payload.asked: m.payload for m in since if isinstance(m, Routed) and isinstance(m.payload, NearQuery)}
    (answer,) = [message for message in since if isinstance(message, NearAnswer)]
    rows = [(query.ring, query.asked[-1]) for query in onward.values() if query.asked]
    return rows, answer


def steps_between(bench: Bench, start: NodeId) -> dict[NodeId, int]:
    """How many zones further each broker is."""
    far, front = {start: 0}, [start]
    while front:
        front = [
            n for id in front for n in bench.routers[id].zones.neighbours if far.setdefault(n, far[id] + 1) > far[id]
        ]
        front = list(dict.fromkeys(id for id in front if far[id] == max(far.values())))
    return far


def test_a_query_goes_round_ring_by_ring_and_no_further_than_the_third() -> None:
    bench, _ = a_network(256)
    point = (0, 0)
    first = next(id for id, r in bench.routers.items() if any(point in owned.zone for owned in r.zones.owned.values()))
    asker = next(id for id in bench.routers if id != first)
    rows, answer = asked_from(bench, asker, point)
    rings = [ring for ring, _ in rows]
    assert answer.found == ()
    assert rings == sorted(rings)
    assert set(rings) == {1, 2, 3}
    far = steps_between(bench, first)
    asked = [id for _, id in rows]
    assert asked[0] == first
    assert [far[id] for id in asked] == sorted(far[id] for id in asked)
    assert len(set(asked)) == len(asked) < ASKED_MAX


def test_the_first_ring_that_has_a_record_answers() -> None:
    bench, places = a_network(64)
    holder = bench.routers["b09"]
    record = IndexPut((), Peer("b20"), places["b20"], 1)
    (owned,) = holder.zones.owned.values()
    owned.index[(), "b20"] = record
    point = next(iter(bench.routers["b08"].zones.owned.values())).zone.low
    assert "b09" in bench.routers["b08"].zones.neighbours
    rows, answer = asked_from(bench, "b00", point)
    assert [put.peer for put in answer.found] == [Peer("b20")]
    assert {ring for ring, _ in rows} == {1}


# ── Neighbours ───────────────────────────────────────────────────────────────


def test_of_neighbours_equally_near_the_aim_the_one_nearer_by_network_is_taken() -> None:
    """From one corner of a square to the opposite one two neighbours are as good; either may be the nearer."""
    ids = [f"b{number:02}" for number in range(4)]
    for near, far in (("b01", "b02"), ("b02", "b01")):
        routers = {id: Spanhop(Peer(id), Random(id), SpanhopOptions(layout="balanced", m=16, wrap=False)) for id in ids}
        settle(dict(routers), 0.0)
        settle_near(routers, {"b00": (0.0, 0.0), near: (0.1, 0.0), far: (0.9, 0.0), "b03": (1.0, 1.0)})
        zones = routers["b00"].zones
        destination = next(iter(routers["b03"].zones.owned.values())).zone.low
        assert (
            next_hop(
                zones.routing_state(zones.nearest(destination)), RouteHeader(destination), routers["b00"].zones.k
            ).to
            == near
        )


def test_neighbours_learn_coordinates_with_the_next_heartbeat() -> None:
    bench, places = a_network(4, heartbeat_s=1.0)
    for id, at in places.items():
        bench.do(id, bench.routers[id].proximity.move_to(at, bench.now))
    bench.run(until=5.0)
    for router in bench.routers.values():
        assert {advert.peer.id: advert.at for advert in router.zones.neighbours.values()} == {
            id: bench.routers[id].zones.at for id in router.zones.neighbours
        }
        assert all(len(advert.at) == 2 for advert in router.zones.neighbours.values())


def test_nobody_is_nearest_of_nobody() -> None:
    assert nearest_of((0.0, 0.0), []) is None
    assert nearest_of((0.0, 0.0), [(Peer("me"), (0.0, 0.0))], but="me") is None


def test_a_broker_is_informed_when_its_answer_is_out_of_date_and_asks_again() -> None:
    bench, _ = placed()
    asker = bench.routers["b00"]
    bench.do("b00", asker.proximity.select(bench.now))
    quietly(bench)
    chosen = next(iter(asker.zones.preferred.values()))
    before = len(bench.sent)
    bench.do(chosen, bench.routers[chosen].proximity.move_to((0.99, 0.01), bench.now))
    quietly(bench)
    since = bench.sent[before:]
    assert ("b00", IndexChanged) in [(to, type(message)) for _, to, message in since]
    assert any(f == "b00" and isinstance(m, Routed) and isinstance(m.payload, NearQuery) for f, _, m in since)


def test_a_small_drift_is_not_published() -> None:
    bench, places = placed()
    x, y = places["b03"]
    bench.routers["b03"].proximity.at = (x + 1e-4, y)
    assert bench.routers["b03"].proximity.publish(bench.now) == []


def test_a_leaving_broker_withdraws_its_records() -> None:
    bench, _ = placed()
    bench.do("b05", bench.routers["b05"].proximity.withdraw(bench.now))
    quietly(bench)
    assert "b05" not in {put.peer.id for _, put in records(bench)}


def test_records_move_with_their_point_when_a_zone_changes_hands() -> None:
    bench, places = placed(4)
    before = sorted((put.path, put.peer.id) for _, put in records(bench))
    bench.enter(PROTOCOL, "new", "b00", **STILL, layout="balanced", proximity="none")
    quietly(bench)
    after = records(bench)
    assert sorted((put.path, put.peer.id) for _, put in after) == before
    for holder, put in after:
        router = bench.routers[holder]
        point = scale(places[put.peer.id], router.zones.space.zone(put.path), (0.0, 0.0), (1.0, 1.0))
        assert any(point in owned.zone for owned in router.zones.owned.values())


def test_brokers_find_their_places_by_landmarks() -> None:
    """Eight brokers ask four landmarks; delays are those of a plane."""
    ids = [f"b{number:02}" for number in range(8)]
    truth = dict(zip(ids, plane(8)))
    bench = Bench(PROTOCOL, ids, delay_s=0.0, layout="balanced", proximity="gnp", landmarks=ids[:4], **STILL)
    push = bench.push

    def delayed(when: float, to: NodeId, sender: NodeId, what: Any) -> None:
        push(when + (math.dist(truth[sender], truth[to]) if sender else 0.0), to, sender, what)

    bench.push = delayed  # type: ignore[method-assign]
    bench.run(until=30.0)
    found = {id: bench.routers[id].proximity.at for id in ids}
    assert all(at is not None for at in found.values())
    off = [abs(math.dist(found[a], found[b]) - 2 * math.dist(truth[a], truth[b])) for a in ids for b in ids]
    assert max(off) < 0.05


def landmark_bench(count: int = 8, up: int = 8) -> tuple[Bench, list[NodeId], dict[NodeId, Coordinates]]:
    """Brokers that ask four landmarks, with the delays of a plane; those beyond the first `up` are not there yet."""
    ids = [f"b{number:02}" for number in range(count)]
    truth = dict(zip(ids, plane(count)))
    bench = Bench(PROTOCOL, ids, delay_s=0.0, layout="balanced", proximity="gnp", landmarks=ids[:4], **STILL)
    push = bench.push

    def delayed(when: float, to: NodeId, sender: NodeId, what: Any) -> None:
        push(when + (math.dist(truth[sender], truth[to]) if sender else 0.0), to, sender, what)

    bench.push = delayed  # type: ignore[method-assign]
    return bench, ids, truth


def test_a_landmark_that_comes_late_is_waited_for_and_counts_as_far_as_it_is() -> None:
    bench, ids, truth = landmark_bench()
    late = bench.routers.pop(ids[3])
    bench.run(until=30.0)
    assert all(router.proximity.at is None for router in bench.routers.values())
    waiting = bench.routers[ids[5]].status()["proximity"]["waits_for"]
    assert waiting == "the landmarks' coordinates" or ids[3] in waiting
    bench.routers[ids[3]] = late
    bench.do(ids[3], late.proximity.start(bench.now))
    bench.run(until=90.0)
    found = {id: bench.routers[id].proximity.at for id in ids}
    off = [abs(math.dist(found[a], found[b]) - 2 * math.dist(truth[a], truth[b])) for a in ids for b in ids]
    assert max(off) < 0.05


def test_the_first_landmark_learns_after_a_restart_what_the_others_know() -> None:
    bench, ids, _ = landmark_bench()
    bench.run(until=30.0)
    before = bench.routers[ids[1]].proximity.at
    fresh = Spanhop(Peer(ids[0]), Random(0), SpanhopOptions(proximity="gnp", landmarks=ids[:4], **STILL)).proximity
    bench.routers[ids[0]].proximity = fresh
    bench.do(ids[0], fresh.start(bench.now))
    bench.run(until=60.0)
    assert fresh.at is not None
    assert bench.routers[ids[1]].proximity.at == before
    assert fresh.status()["error"] < 0.1


def test_only_landmarks_say_where_landmarks_are() -> None:
    bench, ids, _ = landmark_bench()
    near = bench.routers[ids[5]].proximity
    there = tuple((float(number), 0.0) for number in range(4))
    true, others = tuple(map(Peer, ids[:4])), tuple(map(Peer, ids[4:8]))
    low, high = (0.0, 0.0), (4.0, 1.0)
    unsound = ((math.nan, 0.0), *there[1:])
    for sender, message in (
        (ids[6], Landmarks(true, there, low, high)),
        (ids[0], Landmarks(others, there, low, high)),
        (ids[0], Landmarks(true, unsound, low, high)),
        (ids[0], Landmarks(true, there[:3], low, high)),
    ):
        assert near.receive(sender, message, 0.0) == []
        assert near.low == ()
    near.receive(ids[0], Landmarks(true, there, low, high), 0.0)
    assert near.low == low


def test_the_status_says_what_nearer_brokers_gain() -> None:
    bench, _ = placed()
    for id in bench.routers:
        bench.do(id, bench.routers[id].proximity.select(bench.now))
    quietly(bench)
    nearer = [router for router in bench.routers.values() if router.proximity.found_nearer()]
    assert nearer
    for router in nearer:
        recorded, near = router.proximity.found_nearer()[0]
        router.proximity.rtts.update({recorded: deque([0.08, 0.07]), near: deque([0.02])})
        found = router.status()["proximity"]
        assert found["compared"] >= 1
        assert found["nearer_ms"] < found["recorded_ms"]
        assert (found["waits_for"], found["published"]) == ("", len(router.proximity.levels()))
    assert Spanhop(Peer("a"), Random(0)).status() == {}


def test_the_zone_asked_about_is_the_levels_zone_around_an_entry() -> None:
    path = ((8, 0), (8, 1), (4, 0))
    assert level_zone(path, 2) == path[:2]
    assert level_zone(path[:1], 2) == ()


def test_routes_are_shorter_by_network_with_as_many_hops() -> None:
    ids = [f"b{number:03}" for number in range(256)]
    routers = {id: Spanhop(Peer(id), Random(id), SpanhopOptions(layout="balanced", proximity="vivaldi")) for id in ids}
    settle(dict(routers), 0.0)
    places = dict(zip(ids, plane(256)))
    hops, length = mean_way(routers, places)
    settle_near(routers, places)
    near_hops, near_length = mean_way(routers, places)
    assert near_hops < 1.05 * hops
    assert near_length < 0.75 * length


def mean_way(routers: dict[NodeId, Spanhop], places: dict[NodeId, Coordinates]) -> tuple[float, float]:
    rng, hops, length = Random(5), 0, 0.0
    for _ in range(200):
        at, route = rng.choice(list(routers)), RouteHeader((rng.randrange(2**32), rng.randrange(2**32)))
        while True:
            router = routers[at]
            hop = next_hop(router.zones.routing_state(router.zones.nearest(route.destination)), route, router.zones.k)
            if hop.to is None:
                break
            hops, length = hops + 1, length + math.dist(places[at], places[hop.to])
            at, route = hop.to, hop.route
    return hops / 200, length / 200


def test_a_precomputed_index_is_the_one_that_messages_lead_to() -> None:
    bench, places = placed(index_records=0)
    made = {(holder, put.path, put.peer.id) for holder, put in records(bench)}
    low, high = bounds(list(places.values()), margin=0.0)
    other, _ = a_network(index_records=0)
    settle_near(other.routers, places)
    assert {(put.path, put.peer.id) for _, put in records(other)} == {(path, id) for _, path, id in made}
    assert all(router.proximity.low == low and router.proximity.high == high for router in other.routers.values())
