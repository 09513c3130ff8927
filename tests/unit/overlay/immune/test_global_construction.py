"""The construction seen from above: on every connected graph a connected core next to everyone."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidings.errors import InputError
from tidings.overlay import Roles, guarded, literal, spanning_tree
from tidings.overlay.immune.global_construction import Graph, rank
from tidings.sim import TOPOLOGIES, topology

CHECKS = ["global", "local"]


def graph_of(kind: str, node_count: int, seed: int, **options: object) -> Graph:
    ends = topology(kind, node_count, Random(f"graph/{seed}"), **options).neighbours()
    return {f"n{i:04}": [f"n{k:04}" for k in near] for i, near in enumerate(ends)}


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    kind, seed = draw(st.sampled_from(sorted(TOPOLOGIES))), draw(st.integers(0, 10**6))
    node_count = draw(st.integers(1, 200 if kind != "planar" else 40))
    if kind != "barabasi-albert":
        return graph_of(kind, node_count, seed)
    m0 = draw(st.integers(1, node_count))
    return graph_of(kind, node_count, seed, m0=m0, m=draw(st.integers(1, min(m0, 6))))


def reachable(graph: Graph, start: str, within: set[str]) -> set[str]:
    reached, waiting = {start}, [start]
    while waiting:
        for near in graph[waiting.pop()]:
            if near in within and near not in reached:
                reached.add(near)
                waiting.append(near)
    return reached


def wrongs(graph: Graph, roles: Roles) -> Iterator[str]:
    """What is wrong with these roles, by IMMUNE-J1 to IMMUNE-J5."""
    core = set(roles.core)
    if core & set(roles.upper) or core | set(roles.upper) != set(graph):
        yield "IMMUNE-J1: not everyone has exactly one role"
    for node, upper in roles.upper.items():
        if upper not in core or upper not in graph[node]:
            yield f"IMMUNE-J2: {node} elected {upper}"
    lowers = roles.lowers()
    if sorted(lower for each in lowers.values() for lower in each) != sorted(roles.upper):
        yield "IMMUNE-J3: the lowers are not the immune nodes"
    if not core or reachable(graph, roles.core[0], core) != core:
        yield "IMMUNE-J4: the core is in pieces"
    idle = {node for node, each in lowers.items() if not each}
    if idle != set(roles.kept):
        yield f"IMMUNE-J5: {idle ^ set(roles.kept)} are not accounted for"


@pytest.mark.parametrize("check", CHECKS)
@settings(max_examples=60)
@given(graphs(), st.integers(0, 8))
def test_the_guarded_construction_is_right_on_every_connected_graph(check: str, graph: Graph, delta: int) -> None:
    assert list(wrongs(graph, guarded(graph, delta, check=check))) == []


@pytest.mark.slow
@given(graphs(), st.integers(0, 8), st.randoms(use_true_random=False))
@settings(max_examples=30)
def test_roles_do_not_depend_on_the_order_of_anything(graph: Graph, delta: int, rng: Random) -> None:
    """IMMUNE-Q8: the same graph and ids give the same roles."""
    mixed = {node: rng.sample(list(graph[node]), len(graph[node])) for node in rng.sample(list(graph), len(graph))}
    assert guarded(mixed, delta) == guarded(graph, delta)
    assert literal(mixed, delta) == literal(graph, delta)


@given(graphs(), st.integers(0, 8))
@settings(max_examples=30)
def test_the_literal_core_lies_above_the_threshold(graph: Graph, delta: int) -> None:
    """IMMUNE-Q6."""
    assert all(len(graph[node]) > delta for node in literal(graph, delta).core)


def test_in_a_graph_in_two_parts_each_part_gets_its_own_core() -> None:
    one, two = graph_of("random", 20, 1), graph_of("ring", 9, 2)
    both = {**one, **{f"m{node}": [f"m{near}" for near in ends] for node, ends in two.items()}}
    roles = guarded(both)
    for part in (set(one), set(both) - set(one)):
        core = [node for node in roles.core if node in part]
        assert reachable(both, core[0], set(core)) == set(core)
    assert all(upper is not None for upper in roles.upper.values())


def test_the_literal_steps_often_leave_nodes_out() -> None:
    """The defect of the published steps, kept as a measure: 93 to 98 of 100 graphs."""
    graphs = [graph_of("barabasi-albert", 100, seed, m0=20, m=3) for seed in range(100)]
    left_out = sum(None in literal(graph).upper.values() for graph in graphs)
    assert 85 <= left_out <= 100


@pytest.mark.parametrize(("check", "low", "high"), [("global", 18.5, 20.5), ("local", 19.5, 21.5)])
def test_the_core_is_a_fifth_of_a_hundred_nodes(check: str, low: float, high: float) -> None:
    sizes = [len(guarded(graph_of("barabasi-albert", 100, s, m0=20, m=3), check=check).core) for s in range(100)]
    assert low <= sum(sizes) / 100 <= high


@given(graphs())
@settings(max_examples=30)
def test_the_spanning_tree_joins_the_whole_core_at_its_best_node(graph: Graph) -> None:
    core = guarded(graph).core
    parents = spanning_tree(graph, core)
    assert set(parents) == set(core)
    assert [node for node in core if parents[node] is None] == [min(core, key=lambda node: rank(graph, node))]
    assert all(parent is None or parent in graph[node] for node, parent in parents.items())


def test_one_node_alone_is_its_own_core() -> None:
    assert guarded({"a": []}) == Roles(("a",), {}, ("a",))


def test_impossible_parameters_are_refused() -> None:
    with pytest.raises(InputError, match="at least one node"):
        guarded({})
    with pytest.raises(InputError, match="threshold"):
        guarded({"a": []}, -1)
    with pytest.raises(InputError, match="local or global"):
        guarded({"a": []}, check="none")
