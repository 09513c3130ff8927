"""The compiled routing takes the protocol's steps, hop for hop."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tidings.errors import InputError
from tidings.lab.spanhop.routing import HERE, STUCK, Routes, RoutingTables, routes, routes_together, tables
from tidings.lab.spanhop.split_tree import Array, SplitTree, balanced, joined
from tidings.overlay import Kept, RouteHeader, Tiling, hops_max, next_hop
from tidings.space import Space

M = {1: 2, 2: 4, 3: 8}


def walked(
    network: Tiling,
    source: int,
    aim: tuple[int, ...],
    dead: frozenset[str],
    greedy: bool,
    *,
    together: bool = False,
) -> list[int]:
    """The brokers that the protocol's own step passes through, the last one included."""
    ids = [f"{broker:07}" for broker in range(len(network))]
    route, here, passed = RouteHeader(aim, greedy=greedy), source, [source]
    for _ in range(hops_max(len(network), network.space.axes)):
        state = network.routing_state(here, ids, present=together)
        hop = next_hop(state, route, network.k, lambda broker: broker not in dead, together=together)
        if hop.to is None:
            return passed
        here, route = int(hop.to), hop.route
        passed.append(here)
    return passed


def both(
    axes: int, kind: str, zones: int, k: int, *, wrap: bool = True, seed: int = 1, kept: Kept = "lower"
) -> tuple[Tiling, RoutingTables]:
    """The same network, as the protocol makes it and as arrays."""
    bits, rng = 16, Random(seed)
    if kind == "balanced":
        network = Tiling.balanced(zones, Space(axes, bits), k=k, wrap=wrap, kept=kept)
        return network, tables(balanced(axes, zones.bit_length() - 1, bits=bits, kept=kept), M[k], wrap=wrap)
    points = [tuple(rng.randrange(2**bits) for _ in range(axes)) for _ in range(zones - 1)]
    network = Tiling(Space(axes, bits), k=k, wrap=wrap, kept=kept)
    for point in points:
        network.join(point, "even" if kind == "even" else "point")
    tree = joined(axes, np.array(points), even=kind == "even", bits=bits, wrap=wrap, kept=kept)
    return network, tables(tree, M[k], wrap=wrap)


def owners(tree: SplitTree) -> Array:
    """The protocol's number of each leaf's broker."""
    return tree.owner[tree.leaf]


def agree(
    network: Tiling, known: RoutingTables, *, pairs: int, dead_share: float = 0.0, greedy: bool = False
) -> Routes:
    tree, rng = known.tree, np.random.default_rng(3)
    alive = rng.random(len(tree)) >= dead_share
    sources = rng.choice(np.flatnonzero(alive), pairs)
    aims = rng.choice(np.flatnonzero(alive), pairs)
    points = tree.points_in(aims, rng)
    found = routes(known, sources, points, greedy=greedy, alive=alive, traced=True)
    number = owners(tree)
    dead = frozenset(f"{number[leaf]:07}" for leaf in np.flatnonzero(~alive))
    for row in range(pairs):
        passed = walked(network, int(number[sources[row]]), tuple(points[row].tolist()), dead, greedy)
        assert [int(number[leaf]) for leaf in found.traces[row] if leaf >= 0] == passed
        assert found.hops[row] == len(passed) - 1
    return found


@pytest.mark.parametrize("kind", ["balanced", "point", "even"])
@pytest.mark.parametrize(("axes", "k"), [(2, 1), (2, 2), (2, 3), (3, 3), (4, 2)])
def test_spanhop_goes_hop_for_hop_as_the_protocol_does(axes: int, k: int, kind: str) -> None:
    found = agree(*both(axes, kind, 128, k), pairs=40)
    assert set(found.ended) == {HERE}


@pytest.mark.parametrize("kind", ["balanced", "point", "even"])
def test_it_does_where_owners_keep_either_half(kind: str) -> None:
    found = agree(*both(2, kind, 256, 3, kept="either"), pairs=60)
    assert set(found.ended) == {HERE}


def test_who_keeps_either_half_ends_anywhere_in_a_recorded_zone() -> None:
    tree = balanced(2, 12, kept="either")
    quarter = slice(3, 7)  # The nodes of the second level.
    places = (tree.kept_leaf[quarter] - tree.first_leaf[quarter]) / 1024
    assert tree.kept_leaf[0] > 0
    assert len({round(place, 2) for place in places.tolist()}) > 1
    upper = np.mean([tree.kept_leaf[n] >= tree.first_leaf[tree.half[n] + 1] for n in np.flatnonzero(tree.half)])
    assert 0.45 < upper < 0.55


@pytest.mark.parametrize("kind", ["balanced", "point", "even"])
@pytest.mark.parametrize("kept", ["lower", "either"])
def test_with_all_tables_together_it_takes_as_many_hops_as_the_protocol_does(kind: str, kept: Kept) -> None:
    network, known = both(2, kind, 256, 2, kept=kept)
    tree, rng = known.tree, np.random.default_rng(4)
    sources, aims = rng.integers(0, len(tree), (2, 60))
    points, number = tree.points_in(aims, rng), owners(tree)
    hops = routes_together(known, sources, points)
    for row in range(60):
        aim = tuple(points[row].tolist())
        passed = walked(network, int(number[sources[row]]), aim, frozenset(), False, together=True)
        assert passed[-1] == number[aims[row]]
        assert abs(len(passed) - 1 - int(hops[row])) <= 1  # Of two brokers equally near either may be next.


@pytest.mark.parametrize("wrap", [True, False])
def test_greedy_goes_hop_for_hop_as_the_protocol_does(wrap: bool) -> None:
    found = agree(*both(2, "point", 128, 2, wrap=wrap), pairs=40, greedy=True)
    assert set(found.ended) == {HERE}


@pytest.mark.parametrize("kind", ["balanced", "point"])
def test_round_dead_brokers_it_goes_hop_for_hop_as_the_protocol_does(kind: str) -> None:
    found = agree(*both(2, kind, 256, 2), pairs=60, dead_share=0.2)
    assert found.hops[found.ended == HERE].size > 50
    assert set(found.ended) <= {HERE, STUCK}


def test_a_route_that_comes_to_a_broker_twice_goes_on_greedily_in_both() -> None:
    network, known = both(2, "point", 512, 3, seed=5)
    tree, rng = known.tree, np.random.default_rng(1)
    sources, aims = rng.integers(0, len(tree), (2, 50_000))
    points = tree.points_in(aims, rng)
    found = routes(known, sources, points, traced=True)
    assert set(found.ended) == {HERE}
    came_round = np.flatnonzero(found.guarded)
    assert came_round.size > 5
    number = owners(tree)
    for row in came_round[:20]:
        passed = walked(network, int(number[sources[row]]), tuple(points[row].tolist()), frozenset(), False)
        assert [int(number[leaf]) for leaf in found.traces[row] if leaf >= 0] == passed


def test_every_zone_and_table_is_the_protocols() -> None:
    network, known = both(2, "even", 100, 2)
    tree, number = known.tree, owners(known.tree)
    for leaf in range(len(tree)):
        here = network.routing_state(int(number[leaf]))
        node = tree.leaf[leaf]
        assert (here.zone.low, here.zone.high) == (
            tuple(tree.low[node].tolist()), tuple((tree.last[node].astype(np.int64) + 1).tolist()),
        )  # fmt: skip
        begin, end = known.present.begins[leaf : leaf + 2]
        assert {int(each.id) for each in here.neighbours} == set(number[known.present.broker[begin:end]].tolist())
        assert known.levels[leaf] == len(here.ancestors) == here.depth // 2 + 1


def test_the_papers_example_goes_over_the_ninth_and_thirteenth_broker() -> None:
    known = tables(balanced(2, 4), 4)
    aim = known.tree.points_in(np.array([15]), np.random.default_rng(1))
    found = routes(known, np.array([0]), aim, traced=True)
    assert found.traces[0, :3].tolist() == [0, 8, 12]
    without = np.arange(16) != 8
    assert routes(known, np.array([0]), aim, alive=without, traced=True).traces[0, :3].tolist() == [0, 4, 12]


def test_a_near_broker_is_preferred_to_the_recorded_one() -> None:
    known = tables(balanced(2, 4), 4)
    aim = known.tree.points_in(np.array([15]), np.random.default_rng(1))
    near = np.full((16, len(known.recorded.broker)), -1, np.int32)
    near[0, known.recorded.broker == 8] = 11
    assert routes(known, np.array([0]), aim, near=near, traced=True).traces[0, :2].tolist() == [0, 11]
    dead = np.arange(16) != 11
    assert routes(known, np.array([0]), aim, near=near, alive=dead, traced=True).traces[0, 1] == 8


@pytest.mark.parametrize("m", [0, 1, 3, 12])
def test_m_is_a_power_of_two(m: int) -> None:
    with pytest.raises(InputError, match="power of two"):
        tables(balanced(2, 3), m)


def test_distances_on_axes_with_ends_are_limited_to_31_bits() -> None:
    with pytest.raises(InputError, match="31 bits"):
        tables(balanced(2, 3), 4, wrap=False)
