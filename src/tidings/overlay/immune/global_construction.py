"""The immune construction as a function of the whole graph: which nodes forward for all.

Nodes with few links are made *immune*: they receive and never forward. Each elects one
*upper* among its neighbours in the *core*, which forwards to it. The result must be a core
that is connected and next to every node. `literal` follows the published three steps, which
often fail that; `guarded` never does. Both are functions of the graph alone.

Rank decides everywhere: more links first, then the smaller id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tidings.errors import InputError
from tidings.overlay.messages import NodeId

Graph: TypeAlias = Mapping[NodeId, Sequence[NodeId]]


@dataclass(frozen=True, slots=True)
class Roles:
    """Who is in the core, and whom each immune node elected (nobody, where literal leaves it alone)."""

    core: tuple[NodeId, ...]  # Best rank first.
    upper: dict[NodeId, NodeId | None]
    kept: tuple[NodeId, ...] = ()
    """Those that forward to no immune node and are there only to hold the core together."""

    def lowers(self) -> dict[NodeId, list[NodeId]]:
        """For each node of the core the immune nodes that elected it."""
        below: dict[NodeId, list[NodeId]] = {node: [] for node in self.core}
        for node, upper in self.upper.items():
            if upper is not None:
                below[upper].append(node)
        return below


def rank(graph: Graph, node: NodeId) -> tuple[int, NodeId]:
    """Smaller is better: more links, then the smaller id."""
    return (-len(graph[node]), node)


def literal(graph: Graph, delta: int = 3) -> Roles:
    """The three steps as published, all at once in each step. May leave nodes out and the core in pieces."""
    graph = _in_order(graph, delta)
    core = {node: None for node in ranked(graph) if len(graph[node]) > delta}
    upper = {node: _best(graph, node, core) for node in ranked(graph) if node not in core}
    elected = {chosen for chosen in upper.values() if chosen is not None}
    remaining = {node: None for node in core if node in elected}
    for node in core:
        if node not in remaining:
            upper[node] = _best(graph, node, remaining)
    return Roles(tuple(remaining), upper)


def guarded(graph: Graph, delta: int = 3, *, check: str = "global") -> Roles:
    """A connected core next to every node, in each connected part of the graph.

    First the core is completed (by promoting nodes), then every immune node elects, then
    members that nobody elected are demoted one by one, worst rank first, unless their core
    neighbours would lose each other. `check` says how far to look for another path between
    them: `local` within two hops, `global` anywhere.
    """
    graph = _in_order(graph, delta)
    if check not in ("local", "global"):
        raise InputError(f"expected the check to be local or global, got {check!r}")
    core = _connected(graph, _dominating(graph, delta))
    upper: dict[NodeId, NodeId | None] = {node: _best(graph, node, core) for node in ranked(graph) if node not in core}
    return _without_idle(graph, core, upper, far=check == "global")


def spanning_tree(graph: Graph, core: Iterable[NodeId]) -> dict[NodeId, NodeId | None]:
    """Each core node's parent in a breadth-first tree from the best-ranked one of its part (None for that one)."""
    members = set(core)
    parent: dict[NodeId, NodeId | None] = {}
    for root in sorted(members, key=lambda node: rank(graph, node)):
        if root not in parent:
            parent[root] = None
            waiting = deque([root])
            while waiting:
                node = waiting.popleft()
                for near in graph[node]:
                    if near in members and near not in parent:
                        parent[near] = node
                        waiting.append(near)
    return parent


def stay_connected(nodes: Sequence[NodeId], edges: Mapping[NodeId, Iterable[NodeId]]) -> bool:
    """Whether all of `nodes` can reach each other over the edges."""
    if not nodes:
        return True
    sought, waiting, reached = set(nodes[1:]), [nodes[0]], {nodes[0]}
    while waiting and sought:
        for near in edges.get(waiting.pop(), ()):
            if near not in reached:
                reached.add(near)
                sought.discard(near)
                waiting.append(near)
    return not sought


def ranked(graph: Graph) -> list[NodeId]:
    """All nodes, best rank first."""
    return sorted(graph, key=lambda node: rank(graph, node))


def _in_order(graph: Graph, delta: int) -> Graph:
    """The graph, checked, in a fixed order: roles must not depend on the order of messages."""
    if not graph:
        raise InputError("expected a graph of at least one node")
    if delta < 0:
        raise InputError(f"expected a threshold of 0 or more, got {delta}")
    return {node: sorted(graph[node]) for node in sorted(graph)}


def _best(graph: Graph, node: NodeId, among: Mapping[NodeId, None] | set[NodeId]) -> NodeId | None:
    return min((near for near in graph[node] if near in among), key=lambda near: rank(graph, near), default=None)


def _dominating(graph: Graph, delta: int) -> dict[NodeId, None]:
    """Those above the threshold, and for every node that has none of them near, its best neighbour."""
    order = ranked(graph)
    core = {node: None for node in order if len(graph[node]) > delta} or {order[0]: None}
    for node in reversed(order):
        if node not in core and not any(near in core for near in graph[node]):
            core[min(graph[node], key=lambda near: rank(graph, near), default=node)] = None
    return core


def _connected(graph: Graph, core: dict[NodeId, None]) -> dict[NodeId, None]:
    """The core with what it takes to join its pieces, wherever the graph itself is connected."""
    pieces = list(_pieces(graph, core))
    while len(pieces) > 1:
        largest = max(pieces, key=len)
        path = _way_out(graph, largest, core)
        if path is None:  # No way out: the graph itself ends here.
            pieces.remove(largest)
            continue
        core.update(dict.fromkeys(path))
        joined = _reach(graph, path[0], core)
        pieces = [piece for piece in pieces if piece[0] not in joined] + [list(joined)]
    return core


def _pieces(graph: Graph, core: Mapping[NodeId, None]) -> Iterator[list[NodeId]]:
    done: set[NodeId] = set()
    for node in core:
        if node not in done:
            piece = _reach(graph, node, core)
            done.update(piece)
            yield list(piece)


def _reach(graph: Graph, start: NodeId, within: Mapping[NodeId, None]) -> dict[NodeId, None]:
    reached, waiting = {start: None}, deque([start])
    while waiting:
        for near in graph[waiting.popleft()]:
            if near in within and near not in reached:
                reached[near] = None
                waiting.append(near)
    return reached


def _way_out(graph: Graph, piece: list[NodeId], core: Mapping[NodeId, None]) -> list[NodeId] | None:
    """The nodes on a shortest way from a piece of the core to another."""
    came_from: dict[NodeId, NodeId | None] = dict.fromkeys(piece)
    waiting = deque(piece)
    while waiting:
        node = waiting.popleft()
        for near in graph[node]:
            if near in came_from:
                continue
            came_from[near] = node
            if near in core:
                return _path(came_from, near)
            waiting.append(near)
    return None


def _path(came_from: Mapping[NodeId, NodeId | None], end: NodeId) -> list[NodeId]:
    path, node = [end], came_from[end]
    while node is not None and came_from[node] is not None:
        path.append(node)
        node = came_from[node]
    return path


def _without_idle(graph: Graph, core: dict[NodeId, None], upper: dict[NodeId, NodeId | None], *, far: bool) -> Roles:
    """Take out members that nobody elected, worst rank first, as long as the others stay together."""
    elected = {chosen for chosen in upper.values() if chosen is not None}
    kept = []
    for node in sorted(core, key=lambda node: rank(graph, node), reverse=True):
        if node in elected:
            continue
        near = [other for other in graph[node] if other in core]
        if near and _replaceable(graph, node, near, core, far):
            del core[node]
            upper[node] = min(near, key=lambda other: (other not in elected, rank(graph, other)))
            elected.add(upper[node])  # type: ignore[arg-type]
        else:
            kept.append(node)
    in_order = tuple(sorted(core, key=lambda node: rank(graph, node)))
    return Roles(in_order, upper, tuple(node for node in kept if node not in elected))


def _replaceable(graph: Graph, node: NodeId, near: list[NodeId], core: Mapping[NodeId, None], far: bool) -> bool:
    """Whether the core neighbours of `node` reach each other without it: within two hops or, if `far`, at all."""
    around = dict.fromkeys(near)
    for other in near:
        around.update(dict.fromkeys(third for third in graph[other] if third in core))
    around.pop(node, None)
    if stay_connected(near, {each: [n for n in graph[each] if n in around] for each in around}):
        return True
    return far and stay_connected(near, _Without(graph, node, core))


class _Without(Mapping[NodeId, list[NodeId]]):
    """The core's own links, less one node; worked out as they are asked for."""

    def __init__(self, graph: Graph, node: NodeId, core: Mapping[NodeId, None]) -> None:
        self._graph, self._node, self._core = graph, node, core

    def __getitem__(self, key: NodeId) -> list[NodeId]:
        return [near for near in self._graph[key] if near in self._core and near != self._node]

    def __iter__(self) -> Iterator[NodeId]:
        return iter(self._core)

    def __len__(self) -> int:
        return len(self._core)
