"""Forwarding: the paper's figures, greedy progress, stale tables, failed brokers, and acknowledged hops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from tidings.errors import InputError
from tidings.overlay import (
    Count,
    Effect,
    Hop,
    NodeId,
    Peer,
    RouteHeader,
    RoutingState,
    Send,
    Tiling,
    WakeAt,
    hops_max,
    next_hop,
)
from tidings.overlay.spanhop.forwarding import HopRetransmitter
from tidings.overlay.spanhop.messages import DomainQuery, Routed
from tidings.overlay.spanhop.next_hop import Ancestor, RoutingEntry, anyone, level_of
from tidings.space import Space

SPACE = Space(2)


def names(count: int) -> list[str]:
    return [f"B{number}" for number in range(1, count + 1)]


def routing_states(tiling: Tiling, ids: list[str]) -> dict[NodeId, RoutingState]:
    return {id: tiling.routing_state(number, ids) for number, id in enumerate(ids)}


def walk(
    brokers: dict[NodeId, RoutingState],
    start: NodeId,
    destination: tuple[int, ...],
    k: int,
    alive: Callable[[NodeId], bool] = anyone,
    *,
    greedy: bool = False,
) -> tuple[list[NodeId], Hop]:
    way, route = [start], RouteHeader(destination, greedy=greedy)
    for _ in range(hops_max(len(brokers), 2)):
        hop = next_hop(brokers[way[-1]], route, k, alive)
        if hop.to is None:
            return way, hop
        way.append(hop.to)
        route = hop.route
    raise AssertionError(f"{way} does not end")


@pytest.fixture(scope="module")
def figure_3() -> tuple[dict[NodeId, RoutingState], tuple[int, ...]]:
    tiling = Tiling.balanced(16, SPACE, k=2)
    zone = SPACE.zone(tiling.tiles[15].path)
    return routing_states(tiling, names(16)), tuple((a + b) // 2 for a, b in zip(zone.low, zone.high))


Figure = tuple[dict[NodeId, RoutingState], tuple[int, ...]]


def test_a_message_of_figure_4_goes_from_b1_over_b9_and_b13_to_b16(figure_3: Figure) -> None:
    brokers, destination = figure_3
    way, hop = walk(brokers, "B1", destination, 2)
    assert way[:3] == ["B1", "B9", "B13"]
    assert (way[-1], hop.how) == ("B16", "here")


def test_a_message_of_figure_5_goes_over_b5_if_b9_is_dead(figure_3: Figure) -> None:
    brokers, destination = figure_3
    way, _ = walk(brokers, "B1", destination, 2, alive=lambda each: each != "B9")
    assert way[:3] == ["B1", "B5", "B13"]
    assert way[-1] == "B16"


def test_the_first_ancestor_that_does_not_contain_the_aim_is_taken(figure_3: Figure) -> None:
    """SPANHOP-P3."""
    brokers, destination = figure_3
    ancestors = brokers["B1"].ancestors
    level = level_of(ancestors, destination)
    assert level == 1
    assert destination in ancestors[0].zone
    assert destination not in ancestors[1].zone


def test_a_present_zone_among_the_ancestors_is_left_to_the_present_neighbours(figure_3: Figure) -> None:
    brokers, _ = figure_3
    near_b1 = brokers["B2"].zone.low
    hop = next_hop(brokers["B1"], RouteHeader(near_b1), 2)
    assert (hop.to, hop.how) == ("B2", "neighbour")


def test_the_broker_nearest_by_network_is_preferred_to_the_recorded_one(figure_3: Figure) -> None:
    brokers, destination = figure_3
    b1 = brokers["B1"]
    known = tuple(each._replace(near="B12") if each.id == "B9" else each for each in b1.ancestors[1].known)
    b1 = replace(b1, ancestors=[b1.ancestors[0], Ancestor(b1.ancestors[1].zone, known), *b1.ancestors[2:]])
    assert next_hop(b1, RouteHeader(destination), 2).to == "B12"
    assert next_hop(b1, RouteHeader(destination), 2, alive=lambda each: each != "B12").to == "B9"


def test_an_alternate_in_the_zone_replaces_a_dead_broker(figure_3: Figure) -> None:
    """The first of the paper's three cases."""
    brokers, destination = figure_3
    b1 = brokers["B1"]
    known = tuple(each._replace(others=("B10",)) if each.id == "B9" else each for each in b1.ancestors[1].known)
    b1 = replace(b1, ancestors=[b1.ancestors[0], Ancestor(b1.ancestors[1].zone, known), *b1.ancestors[2:]])
    assert next_hop(b1, RouteHeader(destination), 2, alive=lambda each: each != "B9").to == "B10"


def test_when_a_whole_domain_is_dead_a_smaller_span_is_taken() -> None:
    """The second case: at depth 6 level 1 has no live entry, level 2 has."""
    tiling = Tiling.balanced(64, SPACE, k=2)
    ids = names(64)
    brokers = routing_states(tiling, ids)
    destination = SPACE.zone(tiling.tiles[63].path).low
    first = brokers["B1"].ancestors
    dead = {known.id for known in first[1].known}
    hop = next_hop(brokers["B1"], RouteHeader(destination), 2, alive=lambda each: each not in dead)
    assert hop.how == "ancestor"
    assert hop.to in {known.id for known in first[2].known}


@pytest.mark.parametrize("layout", ["balanced", "even", "point"])
def test_with_all_brokers_in_the_tables_of_ancestors_dead_a_message_still_arrives(layout: str) -> None:
    """SPANHOP-P5, the third case: ancestors only make it quicker."""
    brokers = network(layout, 64, 2)
    rng = Random(4)
    for _ in range(60):
        start, destination = rng.choice(list(brokers)), point(rng)
        bare = {id: replace(broker, ancestors=[]) for id, broker in brokers.items()}
        gone = {id: replace(broker, ancestors=dead(broker)) for id, broker in brokers.items()}
        assert (
            walk(gone, start, destination, 2, alive=lambda each: each != "dead")[0]
            == walk(bare, start, destination, 2)[0]
        )


def dead(broker: RoutingState) -> list[Ancestor]:
    return [Ancestor(a.zone, tuple(RoutingEntry("dead", known.zone) for known in a.known)) for a in broker.ancestors]


def test_without_ancestors_the_route_is_the_greedy_one() -> None:
    """SPANHOP-P4."""
    brokers = network("even", 64, 2)
    bare = {id: replace(broker, ancestors=[]) for id, broker in brokers.items()}
    rng = Random(5)
    for _ in range(100):
        start, destination = rng.choice(list(brokers)), point(rng)
        assert walk(bare, start, destination, 2)[0] == walk(brokers, start, destination, 2, greedy=True)[0]


def network(layout: str, count: int, k: int, *, wrap: bool = True, seed: int = 1) -> dict[NodeId, RoutingState]:
    if layout == "balanced":
        tiling = Tiling.balanced(count, SPACE, k=k, wrap=wrap)
    else:
        tiling = Tiling.grown(count, SPACE, Random(seed), k=k, wrap=wrap, policy=layout)  # type: ignore[arg-type]
    return routing_states(tiling, names(count))


def point(rng: Random) -> tuple[int, ...]:
    return rng.randrange(SPACE.side), rng.randrange(SPACE.side)


def test_a_message_that_comes_to_a_broker_twice_goes_on_greedily() -> None:
    """A recorded neighbour far from where it was points back: without the guard this goes on for ever."""
    a, b = SPACE.zone(((1 << 31, 0),)), SPACE.zone(((1 << 31, 1), (1 << 31, 0)))
    c = SPACE.zone(((1 << 31, 1), (1 << 31, 1)))
    destination = c.low
    back = Ancestor(b, (RoutingEntry("a", c),))  # Believes that `a` is where `c` is now.
    brokers = {
        "a": RoutingState(
            "a",
            a,
            1,
            [RoutingEntry("b", b), RoutingEntry("c", c)],
            [Ancestor(a, (RoutingEntry("b", b),)), Ancestor(a, (RoutingEntry("b", c),))],
            None,
        ),
        "b": RoutingState(
            "b", b, 2, [RoutingEntry("a", a), RoutingEntry("c", c)], [Ancestor(SPACE.whole, ()), back], None
        ),
        "c": RoutingState("c", c, 2, [RoutingEntry("a", a), RoutingEntry("b", b)], [], None),
    }
    way, hop = walk(brokers, "a", destination, 3)
    assert way == ["a", "b", "a", "c"]
    assert hop.route.greedy


def test_a_message_takes_a_detour_around_a_hole() -> None:
    """Without wrap and with a hole in the middle, the nearest neighbour is a dead end: the message goes round."""
    brokers = network("balanced", 64, 8, wrap=False)
    bare = {id: replace(broker, ancestors=[]) for id, broker in brokers.items()}
    half = SPACE.side // 2
    hole = {id for id, b in bare.items() if b.zone.distance((half, half)) < (half // 3) ** 2}
    start = next(id for id, b in bare.items() if (0, half) in b.zone)
    way, hop = walk(bare, start, (SPACE.side - 1, half), 8, alive=lambda each: each not in hole)
    assert hop.how == "here"
    assert not hole & set(way)
    assert len(set(way)) == len(way)


def test_a_broker_whose_neighbours_are_all_dead_is_stuck() -> None:
    brokers = network("balanced", 4, 2)
    assert next_hop(brokers["B1"], RouteHeader(brokers["B4"].zone.low), 2, alive=lambda each: False).how == "stuck"


def test_a_balanced_network_has_a_power_of_two_of_brokers() -> None:
    with pytest.raises(InputError, match="power of two"):
        Tiling.balanced(12, SPACE, k=2)


@pytest.mark.parametrize(("m", "expected"), [(2, 11), (4, 6), (16, 3)])
def test_there_is_a_table_for_every_kth_cut_and_the_whole_space(m: int, expected: int) -> None:
    """SPANHOP-INV-4: the length of the Ancestor Queue is exact."""
    tiling = Tiling.balanced(1024, SPACE, k=m.bit_length() - 1)
    assert {len(tile.ancestors) for tile in tiling.tiles} == {expected}


def test_the_shallowest_neighbour_is_split_to_be_even() -> None:
    even = Tiling.grown(200, SPACE, Random(2), k=2, policy="even")
    free = Tiling.grown(200, SPACE, Random(2), k=2, policy="point")

    def spread(tiling: Tiling) -> int:
        depths = [len(tile.path) for tile in tiling.tiles]
        return max(depths) - min(depths)

    assert spread(even) < spread(free)


# ── Acknowledged hops ────────────────────────────────────────────────────────


def a_message(number: int) -> Routed:
    return Routed(number, RouteHeader((0, 0)), DomainQuery(Peer("a"), ()))


def test_a_message_is_pending_until_its_receiver_acknowledges_it() -> None:
    hops = HopRetransmitter(answer_s=1.0, first=0)
    hops.send("b", a_message(hops.next_number()), 0.0)
    hops.acknowledge(1, "c")
    assert len(hops) == 1
    hops.acknowledge(1, "b")
    assert len(hops) == 0
    assert hops.overdue(1, 1, 1.0) == ([], None)


def test_a_hop_that_stays_silent_gets_a_message_four_times_and_then_it_comes_back() -> None:
    hops = HopRetransmitter(answer_s=1.0, first=0)
    effects: list[Effect] = hops.send("b", a_message(1), 0.0, rounds=2)
    dues, failed = [], None
    while failed is None:
        (due,) = [effect.when for effect in effects if isinstance(effect, WakeAt)]
        dues.append(due)
        effects, failed = hops.overdue(1, len(dues), due)
    assert dues == [1.0, 3.0, 7.0, 15.0]
    assert (failed.to, failed.about, len(hops)) == ("b", 2, 0)


def test_a_held_message_comes_back_after_a_wait_that_doubles_with_each_round() -> None:
    hops = HopRetransmitter(answer_s=1.0, first=0)
    for rounds, wait_s in enumerate((2.0, 4.0, 8.0, 16.0)):
        assert WakeAt(wait_s, ("leg", rounds, 1)) in hops.hold(a_message(rounds), 0.0, rounds)
        effects, back = hops.overdue(rounds, 1, wait_s)
        assert effects == []
        assert back is not None
        assert back.to == ""
    assert hops.hold(a_message(9), 0.0, 4) == [Count("given up")]


def test_without_acknowledgements_nothing_is_kept_and_what_bounces_comes_back() -> None:
    hops = HopRetransmitter(answer_s=1.0, first=0, reliable=False)
    assert hops.send("b", a_message(1), 0.0) == [Send("b", a_message(1))]
    assert len(hops) == 0
    back = hops.bounced("b", a_message(1))
    assert back is not None
    assert (back.to, back.about) == ("b", 0)
