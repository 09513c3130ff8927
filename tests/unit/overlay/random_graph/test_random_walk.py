"""The random walk: no short circles, a restart only where it is blocked, and an end (CBDLO-INV-04 to CBDLO-INV-06)."""

from __future__ import annotations

from random import Random

from tidings.overlay import Peer
from tidings.overlay.random_graph.random_walk import HOPS_MAX, WalkPath, next_step

Graph = dict[str, list[Peer]]


def graph(**links: str) -> Graph:
    """`graph(A="B", B="AC")`: who sees whom."""
    return {node: [Peer(other) for other in others] for node, others in links.items()}


CHAIN = graph(A="B", B="AC", C="BD", D="CE", E="DF", F="E")  # The paper's figure 3: F is at the edge.


def walked(
    views: Graph, start: str, seed: int, *, hops_max: int = HOPS_MAX, trace_max: int = HOPS_MAX
) -> list[WalkPath]:
    """All steps of a walk that never finds its target."""
    rng, here, path, steps = Random(seed), start, WalkPath(hops_max), []
    while path.is_jump or not path.is_over:
        step = next_step(path, Peer(here), views[here], rng, trace_max)
        if step is None:
            break
        here, path = step.to.id, step.path
        steps.append(path)
    return steps


def a_random_graph(seed: int) -> Graph:
    rng = Random(seed)
    nodes = [f"n{k}" for k in range(rng.randrange(1, 30))]
    kind = rng.choice(["star", "chain", "random", "alone"])
    if kind == "star":
        return {n: [Peer(o) for o in nodes if o != n] if n == nodes[0] else [Peer(nodes[0])] for n in nodes}
    if kind == "chain":
        return {n: [Peer(nodes[j]) for j in (k - 1, k + 1) if 0 <= j < len(nodes)] for k, n in enumerate(nodes)}
    degree = 0 if kind == "alone" else 4
    return {n: [Peer(o) for o in rng.sample(nodes, min(degree, len(nodes))) if o != n] for n in nodes}


def test_a_walk_at_the_end_of_a_chain_restarts_with_half_the_hops() -> None:
    steps = walked(CHAIN, "A", seed=1)
    jump = next(index for index, path in enumerate(steps) if path.is_jump)
    assert [path.hop for path in steps[:jump]] == [1, 2, 3, 4, 5]
    assert (steps[jump].hops_max, steps[jump].round) == (HOPS_MAX // 2, 1)
    assert [peer.id for peer in steps[jump].trace] == list("ABCDEF")


def test_a_walk_restarts_exactly_where_all_neighbours_are_in_its_trace() -> None:
    """CBDLO-INV-06."""
    seen = 0
    for seed in range(300):
        rng, trace = Random(seed), tuple(Peer(n) for n in Random(seed).sample("BCDEFG", 3))
        view = [Peer(n) for n in rng.sample("BCDEFG", rng.randrange(1, 5))]
        step = next_step(WalkPath(10, 3, 0, trace), Peer("A"), view, rng)
        blocked = {peer.id for peer in view} <= {peer.id for peer in trace}
        assert step is not None
        assert step.path.is_jump == blocked
        assert step.path.hops_max == (5 if blocked else 10)
        seen += blocked
    assert 0 < seen < 300


def test_every_walk_ends_within_twice_its_hops() -> None:
    """CBDLO-INV-04: stars, chains, random graphs and nodes without neighbours."""
    for seed in range(3000):
        views, hops_max = a_random_graph(seed), Random(seed).randrange(1, 20)
        steps = walked(views, "n0", seed, hops_max=hops_max)
        assert sum(not path.is_jump for path in steps) < 2 * hops_max
        assert sum(path.is_jump for path in steps) <= hops_max.bit_length()
        assert all(path.hops_max > 0 for path in steps)


def test_no_node_occurs_twice_within_a_trace() -> None:
    """CBDLO-INV-05."""
    for seed in range(200):
        for path in walked(a_random_graph(seed), "n0", seed):
            if path.round == 0:
                ids = [peer.id for peer in path.trace]
                assert len(ids) == len(set(ids))


def test_without_a_trace_a_walk_may_turn_back() -> None:
    assert any(
        a.trace == () and b.hop == 2 for a, b in [walked(CHAIN, "A", seed, trace_max=0)[:2] for seed in range(5)]
    )


def test_a_walk_ends_at_a_node_without_neighbours() -> None:
    assert next_step(WalkPath(10), Peer("A"), [], Random(0)) is None


def test_a_guided_walk_goes_to_the_neighbour_that_is_preferred_and_has_not_been_visited() -> None:
    order = {"B": 2.0, "C": 0.0, "D": 1.0}
    view = [Peer(name) for name in "BCD"]
    first = next_step(WalkPath(), Peer("A"), view, Random(0), guide=lambda peer: order[peer.id])
    assert first is not None
    assert first.to.id == "C"
    second = next_step(WalkPath(trace=(Peer("C"),)), Peer("A"), view, Random(0), guide=lambda peer: order[peer.id])
    assert second is not None
    assert second.to.id == "D"
