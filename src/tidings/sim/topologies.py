"""Topologies: which nodes have links, and how far apart they are.

Each is a function of its parameters and a seeded random generator, and gives a connected
graph unless it says otherwise. A protocol that makes its own links uses only the delays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random

from tidings.errors import InputError, did_you_mean
from tidings.sim.network import DelaySpace, Flat, Plane, TransitStub

Link = tuple[int, int]  # Smaller number first.

NODES_MAX = 1_000_000  # A world of more does not fit the memory of one machine.


@dataclass(frozen=True, slots=True)
class Topology:
    """Nodes 0 to node_count - 1, their links in a fixed order, and the space they are in."""

    node_count: int
    links: tuple[Link, ...]
    space: DelaySpace

    def neighbours(self) -> list[list[int]]:
        """For each node the others it has a link to, in the order of the links."""
        ends: list[list[int]] = [[] for _ in range(self.node_count)]
        for a, b in self.links:
            ends[a].append(b)
            ends[b].append(a)
        return ends

    def is_connected(self) -> bool:
        """Whether every node can reach every other over links."""
        ends, reached, waiting = self.neighbours(), {0}, [0]
        while waiting:
            for near in ends[waiting.pop()]:
                if near not in reached:
                    reached.add(near)
                    waiting.append(near)
        return len(reached) == self.node_count


def ring(node_count: int, rng: Random) -> Topology:
    """Each node has a link to the next; the widest connected graph for its links."""
    _check_count(node_count)
    links = _distinct((i, (i + 1) % node_count) for i in range(node_count))
    return Topology(node_count, links, Flat())


def random_graph(node_count: int, rng: Random, *, degree: float = 6.0) -> Topology:
    """A random tree, and random links on top until nodes have `degree` of them on average."""
    _check_count(node_count)
    most = node_count * (node_count - 1) // 2
    wanted = min(most, max(node_count - 1, round(node_count * degree / 2)))
    links = dict.fromkeys(_random_tree(node_count, rng))
    while len(links) < wanted:
        a, b = rng.randrange(node_count), rng.randrange(node_count)
        if a != b:
            links[min(a, b), max(a, b)] = None
    return Topology(node_count, tuple(links), Flat())


def barabasi_albert(
    node_count: int, rng: Random, *, m0: int = 20, m: int = 3, seed_graph: str = "connected"
) -> Topology:
    """A scale-free graph: each new node links to `m` earlier ones, likelier to those with many links.

    The first `m0` nodes are the seed graph: `connected` is a random tree plus each other
    pair with chance 0.1; `ring`, `path` and `complete` are what they say. A network
    smaller than m0 is all seed graph.
    """
    _check_count(node_count)
    if m < 1 or m0 < 1:
        raise InputError(f"expected m and m0 of at least 1, got m={m} and m0={m0}")
    if m > min(m0, node_count):
        raise InputError(f"a new node cannot link to m={m} of the first {min(m0, node_count)}; expected m ≤ m0 ≤ N")
    links = list(_seed_graph(seed_graph, min(m0, node_count), rng))
    ends = [end for link in links for end in link]
    for new in range(min(m0, node_count), node_count):
        for old in _drawn_by_degree(ends, m, rng):
            links.append((old, new))
            ends += (old, new)
    return Topology(node_count, tuple(links), Flat())


def transit_stub(node_count: int, rng: Random, *, transits: int = 4, stubs: int = 16) -> Topology:
    """Stub networks on a backbone: dense inside a stub, one or two links from each stub to the backbone."""
    _check_count(node_count)
    stubs = min(stubs, node_count)
    space = TransitStub(transits=min(transits, stubs), stubs=stubs)
    links = dict.fromkeys(_random_tree(stubs, rng))  # Nodes 0 to stubs - 1 are the gateways.
    for node in range(stubs, node_count):
        peers = range(node % stubs, node, stubs)
        for near in rng.sample(peers, min(2, len(peers))):
            links[near, node] = None
    for gateway in range(stubs):
        other = rng.randrange(stubs)
        if other != gateway:
            links[min(gateway, other), max(gateway, other)] = None
    return Topology(node_count, tuple(links), space)


def planar(node_count: int, rng: Random, *, nearest: int = 4, clusters: int = 0) -> Topology:
    """Points of a plane, each linked to its nearest ones, and a tree of short links that holds all together."""
    _check_count(node_count)
    space = Plane(rng.getrandbits(32), clusters=clusters)
    links: dict[Link, None] = {}
    for node in range(1, node_count):
        links[min(range(node), key=lambda other, node=node: space.delay_s(node, other)), node] = None  # type: ignore[misc]
    for node in range(node_count):
        near = sorted(range(node_count), key=lambda other, node=node: space.delay_s(node, other))  # type: ignore[misc]
        for other in near[1 : nearest + 1]:
            links[min(node, other), max(node, other)] = None
    return Topology(node_count, tuple(links), space)


def within_reach(node_count: int, space: Plane, reach: float) -> tuple[Link, ...]:
    """The links of nodes that hear whoever is near: all pairs at most `reach` apart. They may leave some nodes alone."""
    points = [space.point(node) for node in range(node_count)]
    return tuple((a, b) for b in range(node_count) for a in range(b) if math.dist(points[a], points[b]) <= reach)


def communities(node_count: int, rng: Random, *, count: int = 5, inside: float = 6.0, between: int = 3) -> Topology:
    """Groups of nodes, each a random graph of `inside` links a node; each group has `between` links to the next one."""
    _check_count(node_count)
    count = max(1, min(count, node_count))
    members = [list(range(first, node_count, count)) for first in range(count)]
    links: dict[Link, None] = {}
    for group in members:
        graph = random_graph(len(group), rng, degree=inside)
        links.update(dict.fromkeys((group[a], group[b]) for a, b in graph.links))
    for here, there in zip(members, members[1:] + members[:1]):
        for _ in range(between if here is not there else 0):
            a, b = rng.choice(here), rng.choice(there)
            links[min(a, b), max(a, b)] = None
    return Topology(node_count, tuple(links), Flat())


TOPOLOGIES: dict[str, Callable[..., Topology]] = {
    "ring": ring,
    "random": random_graph,
    "barabasi-albert": barabasi_albert,
    "transit-stub": transit_stub,
    "planar": planar,
    "communities": communities,
}


def topology(name: str, node_count: int, rng: Random, **options: object) -> Topology:
    """A graph by name; raises InputError for a name or an option there is not."""
    if name not in TOPOLOGIES:
        raise InputError(f"there is no topology {name!r}; {did_you_mean(name, TOPOLOGIES) or ', '.join(TOPOLOGIES)}")
    try:
        return TOPOLOGIES[name](node_count, rng, **options)
    except TypeError as wrong:
        raise InputError(f"topology {name}: {wrong}") from None


def _check_count(node_count: int) -> None:
    if not 1 <= node_count <= NODES_MAX:
        raise InputError(f"expected 1 to {NODES_MAX} nodes, got {node_count}")


def _random_tree(node_count: int, rng: Random) -> list[Link]:
    return [(rng.randrange(node), node) for node in range(1, node_count)]


def _seed_graph(kind: str, size: int, rng: Random) -> tuple[Link, ...]:
    pairs = [(a, b) for b in range(size) for a in range(b)]
    match kind:
        case "connected":
            tree = dict.fromkeys(_random_tree(size, rng))
            return (*tree, *(pair for pair in pairs if pair not in tree and rng.random() < 0.1))
        case "ring":
            return _distinct((i, (i + 1) % size) for i in range(size))
        case "path":
            return tuple((i, i + 1) for i in range(size - 1))
        case "complete":
            return tuple(pairs)
    raise InputError(f"there is no seed graph {kind!r}; there are connected, ring, path and complete")


def _drawn_by_degree(ends: list[int], wanted: int, rng: Random) -> list[int]:
    """Different nodes, each drawn with a chance that goes with how often it is an end of a link."""
    if not ends:
        return [0]  # A seed graph of one node has no links yet.
    drawn: dict[int, None] = {}
    while len(drawn) < wanted:
        drawn[rng.choice(ends)] = None
    return list(drawn)


def _distinct(links: Iterable[Link]) -> tuple[Link, ...]:
    return tuple(dict.fromkeys((min(a, b), max(a, b)) for a, b in links if a != b))
