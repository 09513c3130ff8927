"""Graphs are what they say, connected, and the same for the same seed."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidings.errors import InputError
from tidings.sim import TOPOLOGIES, Flat, Plane, Topology, TransitStub, topology


@given(st.sampled_from(sorted(TOPOLOGIES)), st.integers(3, 60), st.integers(0, 99))
def test_every_graph_is_connected_without_loops_or_double_links(kind: str, node_count: int, seed: int) -> None:
    graph = topology(kind, node_count, Random(seed))
    assert graph.is_connected()
    assert all(0 <= a < b < node_count for a, b in graph.links)
    assert max(Counter(graph.links).values()) == 1
    assert graph.links == topology(kind, node_count, Random(seed)).links


def test_a_new_node_of_a_scale_free_graph_has_m_links() -> None:
    graph = topology("barabasi-albert", 100, Random(1), m0=20, m=3)
    assert Counter(b for _, b in graph.links if b >= 20) == dict.fromkeys(range(20, 100), 3)


def test_a_scale_free_graph_has_hubs_and_many_small_nodes() -> None:
    """With m = 3 the share of nodes that never attracted a link tends to 2/5."""
    degrees = [len(ends) for ends in topology("barabasi-albert", 2000, Random(1), m0=20, m=3).neighbours()]
    assert max(degrees) > 60
    assert sum(degree <= 3 for degree in degrees) / 2000 == pytest.approx(0.4, abs=0.04)


def test_the_seed_graph_decides_the_number_of_links() -> None:
    """The published load of 4.5 for flooding needs about 272 links: some 32 of them in the seed graph."""
    links = [len(topology("barabasi-albert", 100, Random(seed), m0=20, m=3).links) for seed in range(50)]
    assert sum(links) / 50 == pytest.approx(277, abs=4)
    kinds = {
        kind: len(topology("barabasi-albert", 100, Random(1), seed_graph=kind).links)
        for kind in ("ring", "path", "complete")
    }
    assert kinds == {"ring": 260, "path": 259, "complete": 430}


@pytest.mark.parametrize(
    ("kind", "node_count", "options"),
    [
        ("ring", 0, {}),
        ("random", -1, {}),
        ("barabasi-albert", 10, {"m0": 2, "m": 3}),
        ("barabasi-albert", 2, {"m": 3}),
        ("barabasi-albert", 10, {"m": 0}),
        ("barabasi-albert", 10, {"m0": 5, "seed_graph": "star"}),
        ("barabasi-albert", 10, {"colour": "red"}),
        ("tree", 10, {}),
        ("ring", 10**9, {}),
    ],
)
def test_impossible_graphs_are_refused(kind: str, node_count: int, options: dict[str, object]) -> None:
    with pytest.raises(InputError):
        topology(kind, node_count, Random(1), **options)


def test_a_graph_in_pieces_is_not_connected() -> None:
    assert not Topology(3, ((0, 1),), Flat()).is_connected()


def test_places_depend_on_the_seed_and_the_number_alone() -> None:
    one, other = Plane(7), Plane(7)
    other.point(99)
    assert one.point(3) == other.point(3) != Plane(8).point(3)
    assert one.delay_s(3, 5) == one.delay_s(5, 3) > one.floor_s


def test_near_nodes_of_a_transit_stub_network_are_near() -> None:
    space = TransitStub(transits=4, stubs=16)
    assert space.delay_s(1, 17) < space.delay_s(1, 5) < space.delay_s(1, 2)


def test_clusters_gather_points() -> None:
    spread, gathered = Plane(1), Plane(1, clusters=2)
    pairs = [(a, b) for a in range(40) for b in range(a)]

    def near(plane: Plane) -> int:
        return sum(plane.delay_s(a, b) < 0.01 for a, b in pairs)

    assert near(gathered) > 3 * near(spread)
