"""CRAWL over arrays: the random walk of `tidings.overlay.random_graph` compiled, a hundred thousand walks a second.

It follows the protocol's rule step by step. Random draws come in as numbers from 0 to 1, so that a test can give both
the same draws and check that they take the same steps.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# Numba infers types itself.

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

Array = NDArray[Any]

FOUND, OVER, BLOCKED = (
    0,
    1,
    2,
)  # How a walk ends: at an access point, without hops left, or without a node to restart at.


class Views(NamedTuple):
    """The views of all nodes: node k has peers[begins[k]:begins[k + 1]]."""

    begins: Array
    peers: Array


class Walks(NamedTuple):
    """For each walk: how it ended, its hops, its restarts, and all its steps.

    A step is the node, the hops since the last restart, the hop limit and the number of restarts; steps that were not
    taken are -1.
    """

    ended: Array
    hops: Array
    jumps: Array
    steps: Array


def draws_needed(hops_max: int) -> int:
    """More random draws than any walk needs: fewer than twice its hops, and one for each restart."""
    return 2 * hops_max + hops_max.bit_length() + 1


def random_views(nodes: int, size: int, rng: np.random.Generator) -> Views:
    """Each node has a view of `size` others, drawn at random."""
    size = min(size, nodes - 1)
    seen = rng.integers(0, nodes - 1, (nodes, size))
    while (doubled := (np.diff(np.sort(seen, axis=1), axis=1) == 0).any(axis=1)).any():
        seen[doubled] = rng.integers(0, nodes - 1, (int(doubled.sum()), size))
    seen += seen >= np.arange(nodes)[:, None]  # No node is in its own view.
    return Views(np.arange(nodes + 1) * size, seen.ravel())


def random_tables(nodes: int, size: int, attributes: int, rng: np.random.Generator) -> Array:
    """Whether each node has an access point for each attribute: every table has `size` of them, drawn at random."""
    if size >= attributes:
        return np.ones((nodes, attributes), np.bool_)
    knows = np.zeros((nodes, attributes), np.bool_)
    lowest = np.argpartition(rng.random((nodes, attributes)), size, axis=1)[:, :size]
    np.put_along_axis(knows, lowest, True, axis=1)
    return knows


def walk_all(
    views: Views, sources: Array, wanted: Array, knows: Array, hops_max: int, draws: Array, *, trace_max: int
) -> Walks:
    """A walk from each source to a node that `knows` the wanted attribute; `knows` has a row for each node."""
    count, length = len(sources), draws_needed(hops_max)
    ended, hops, jumps = np.zeros((3, count), np.int64)
    walks = Walks(ended, hops, jumps, np.full((count, length, 4), -1, np.int64))
    widest = int(np.diff(views.begins).max(initial=1))
    _walk_all(views.begins, views.peers, sources, wanted, knows, hops_max, trace_max, widest, draws, *walks)
    return walks


@njit(cache=True)
def _walk_all(begins, peers, sources, wanted, knows, hops_max, trace_max, widest, draws, ended, hops, jumps, steps):
    trace, choice = np.empty(trace_max + 1, np.int64), np.empty(max(widest, trace_max + 1), np.int64)
    for walk in range(len(sources)):
        here, hop, most, rounds, length, taken = sources[walk], 0, hops_max, 0, 0, 0
        while True:
            length = _remember(trace, length, here, trace_max)
            free = _fresh(begins, peers, here, trace, length, choice)
            jumps_on = free == 0
            if jumps_on:
                most, hop, rounds = most // 2, 0, rounds + 1
                free = _elsewhere(trace, length, here, choice)
                if most == 0 or free == 0:
                    ended[walk] = BLOCKED
                    break
                jumps[walk] += 1
            else:
                hop += 1
                hops[walk] += 1
            here = choice[int(draws[walk, taken] * free)]
            steps[walk, taken, 0], steps[walk, taken, 1] = here, hop
            steps[walk, taken, 2], steps[walk, taken, 3] = most, rounds
            taken += 1
            if not jumps_on and knows[here, wanted[walk]]:
                ended[walk] = FOUND
                break
            if not jumps_on and hop >= most:
                ended[walk] = OVER
                break


@njit(cache=True)
def _remember(trace, length, node, trace_max):
    """Add a node to a trace that keeps the last few; returns how many it has now."""
    trace[length] = node
    if length < trace_max:
        return length + 1
    for place in range(trace_max):
        trace[place] = trace[place + 1]
    return trace_max


@njit(cache=True)
def _fresh(begins, peers, here, trace, length, choice):
    """The neighbours that are not in the trace."""
    free = 0
    for place in range(begins[here], begins[here + 1]):
        is_fresh = True
        for passed in range(length):
            if trace[passed] == peers[place]:
                is_fresh = False
                break
        if is_fresh:
            choice[free] = peers[place]
            free += 1
    return free


@njit(cache=True)
def _elsewhere(trace, length, here, choice):
    """The nodes of the trace but this one."""
    free = 0
    for place in range(length):
        if trace[place] != here:
            choice[free] = trace[place]
            free += 1
    return free
