"""The compiled walk takes the protocol's steps, and all of 100,000 walks end in time (CBDLO-INV-04, CBDLO-INV-05)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

from tidings.lab.cbdlo.walks import BLOCKED, FOUND, OVER, Views, Walks, draws_needed, random_views, walk_all
from tidings.overlay import Peer
from tidings.overlay.random_graph.random_walk import WalkPath, next_step

KINDS = ("star", "chain", "random", "alone")


class Given(Random):
    """A random number generator whose choices are given."""

    def __init__(self, numbers: Sequence[float]) -> None:
        super().__init__(0)
        self._numbers = iter(numbers)

    def choice(self, seq: Any) -> Any:
        return seq[int(next(self._numbers) * len(seq))]


def a_graph(kind: str, rng: Random) -> list[list[int]]:
    nodes = range(rng.randrange(1, 30))
    if kind == "star":
        return [[other for other in nodes if other != node] if node == 0 else [0] for node in nodes]
    if kind == "chain":
        return [[near for near in (node - 1, node + 1) if near in nodes] for node in nodes]
    degree = 0 if kind == "alone" else min(4, len(nodes) - 1)
    return [rng.sample([other for other in nodes if other != node], degree) for node in nodes]


def views_of(graph: list[list[int]]) -> Views:
    begins = np.cumsum([0, *map(len, graph)])
    return Views(begins, np.array([peer for peers in graph for peer in peers], np.int64))


def walked(graph: list[list[int]], count: int, hops_max: int, seed: int, trace_max: int) -> tuple[Walks, Any, Any]:
    """Walks from random nodes that never find their target, with their sources and their random draws."""
    rng = np.random.default_rng(seed)
    sources, draws = rng.integers(0, len(graph), count), rng.random((count, draws_needed(hops_max)))
    nobody = np.zeros((len(graph), 1), np.bool_)
    wanted = np.zeros(count, np.int64)
    views = views_of(graph)
    return walk_all(views, sources, wanted, nobody, hops_max, draws, trace_max=trace_max), sources, draws


def protocols_steps(
    graph: list[list[int]], source: int, hops_max: int, draws: Sequence[float], trace_max: int
) -> Iterator[list[int]]:
    """The same walk by the protocol's own rule."""
    rng, here, path = Given(draws), source, WalkPath(hops_max)
    peers = [[Peer(str(node)) for node in view] for view in graph]
    while path.is_jump or not path.is_over:
        step = next_step(path, Peer(str(here)), peers[here], rng, trace_max)
        if step is None:
            return
        here, path = int(step.to.id), step.path
        yield [here, path.hop, path.hops_max, path.round]


@pytest.mark.parametrize("kind", KINDS)
def test_the_compiled_walk_takes_every_step_as_the_protocol_does(kind: str) -> None:
    for seed in range(40):
        rng = Random(f"{kind}/{seed}")
        graph, hops_max = a_graph(kind, rng), rng.randrange(1, 20)
        trace_max = rng.choice([0, 1, 3, hops_max])
        made, sources, draws = walked(graph, 5, hops_max, seed, trace_max)
        for walk in range(5):
            steps = made.steps[walk]
            expected = list(protocols_steps(graph, int(sources[walk]), hops_max, draws[walk].tolist(), trace_max))
            assert steps[steps[:, 0] >= 0].tolist() == expected


def test_every_one_of_a_hundred_thousand_walks_ends_within_twice_its_hops() -> None:
    """CBDLO-INV-04: stars, chains, random graphs and nodes without neighbours."""
    count = 0
    for seed in range(200):
        rng = Random(seed)
        hops_max = rng.randrange(1, 20)
        made, _, _ = walked(a_graph(KINDS[seed % 4], rng), 500, hops_max, seed, hops_max)
        taken = made.steps[:, :, 0] >= 0
        assert (made.hops < 2 * hops_max).all()
        assert (made.jumps <= hops_max.bit_length()).all()
        assert (made.steps[:, :, 2][taken] > 0).all()
        assert (taken.sum(axis=1) == made.hops + made.jumps).all()
        assert np.isin(made.ended, (OVER, BLOCKED)).all()
        count += len(made.hops)
    assert count == 100_000


def test_no_node_occurs_twice_within_a_trace() -> None:
    """CBDLO-INV-05, in the first round of 20,000 walks."""
    graph = a_graph("random", Random(2))
    made, sources, _ = walked(graph, 20_000, 10, 1, trace_max=10)
    first = np.concatenate([sources[:, None], np.where(made.steps[:, :10, 3] == 0, made.steps[:, :10, 0], -1)], axis=1)
    # Steps that were not taken get different numbers, so that only nodes can be equal.
    first = np.where(first < 0, -1 - np.arange(11), first)
    assert (np.diff(np.sort(first, axis=1), axis=1) > 0).all()


def test_a_walk_ends_at_the_first_node_with_an_access_point() -> None:
    chain = views_of([[1], [0, 2], [1, 3], [2]])
    knows = np.array([[True], [False], [False], [True]])
    made = walk_all(chain, np.array([0]), np.array([0]), knows, 10, np.zeros((1, draws_needed(10))), trace_max=10)
    assert (made.ended[0], made.hops[0]) == (FOUND, 3), "the table of its source is not read"


def test_random_views_have_each_peer_once_and_never_their_own_node() -> None:
    views = random_views(50, 10, np.random.default_rng(3))
    rows = views.peers.reshape(50, 10)
    assert all(len(set(row)) == 10 and node not in row for node, row in enumerate(rows.tolist()))
