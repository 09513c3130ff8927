"""A whole network of immune routing as it is once every node has greeted its neighbours: roles, beacon tree, statuses.

Computed at once, with the result that messages would have had, for simulations that begin with it. Where links are
weighed by delay nothing is computed.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, cast

from tidings.overlay.immune import global_construction
from tidings.overlay.immune.neighbour_state import NeighbourState
from tidings.overlay.messages import NodeId
from tidings.overlay.router import Router


class _HasState(Protocol):
    state: NeighbourState


def settle(routers: dict[NodeId, Router[Any]], now: float) -> None:
    """Give a whole network the roles that the construction gives it with the whole graph in view."""
    nodes = {id: cast("_HasState", router).state for id, router in routers.items()}
    graph = {id: list(node.links) for id, node in nodes.items()}
    options = next(iter(nodes.values())).options
    if options.weight != "none":
        return  # Delays are known by measuring only; so the nodes find their roles by messages.
    if options.demotion == "literal":
        roles = global_construction.literal(graph, options.delta)
    else:
        roles = global_construction.guarded(graph, options.delta, check=options.check)
    parents = global_construction.spanning_tree(graph, roles.core)
    lowers = roles.lowers()
    for id, node in nodes.items():
        node.decided, node.in_core, node.kept = True, id in lowers, id in roles.kept
        node.upper = roles.upper.get(id) or ""
        node.lowers = dict.fromkeys(lowers.get(id, ()), now)
        node.root.parent = parents.get(id) or ""
        node.root.id = _root(parents, id if node.in_core else node.upper)
        node.root.degree = len(graph[node.root.id]) if node.root.id else 0
    _introduce(nodes)


def _root(parents: dict[NodeId, NodeId | None], node: NodeId) -> NodeId:
    while parent := parents.get(node):
        node = parent
    return node


def _introduce(nodes: dict[NodeId, NeighbourState]) -> None:
    """Give every node the statuses of its neighbours."""
    for _ in range(2):  # In the second pass a status names the core neighbours that the first has made known.
        statuses = {id: node.status(adverts=0) for id, node in nodes.items()}
        for node in nodes.values():
            node.neighbours = {peer: statuses[peer] for peer in node.links}
    for id, node in nodes.items():
        node.children = {peer: math.inf for peer in node.links if nodes[peer].root.parent == id}
