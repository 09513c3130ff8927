"""A network of Immune as it is when everybody has greeted everybody: roles, the tree of the core, and who knows what of whom.

The same as talk would have made it, made at once, for worlds that begin with it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

from tidings.overlay.immune import global_construction
from tidings.overlay.messages import NodeId
from tidings.overlay.router import Router

if TYPE_CHECKING:
    from tidings.overlay.immune.router import Immune


def settle(routers: dict[NodeId, Router[Any]], now: float) -> None:
    """Give a whole network the roles that the construction, seen from above, gives it."""
    nodes = {id: cast("Immune", router) for id, router in routers.items()}
    graph = {id: list(node.wires) for id, node in nodes.items()}
    options = next(iter(nodes.values())).options
    if options.demotion == "literal":
        roles = global_construction.literal(graph, options.delta)
    else:
        roles = global_construction.guarded(graph, options.delta, check=options.check)
    parents = global_construction.spanning_tree(graph, roles.core)
    lowers = roles.lowers()
    for id, node in nodes.items():
        node.decided, node.core, node.kept = True, id in lowers, id in roles.kept
        node.upper = roles.upper.get(id) or ""
        node.lowers = dict.fromkeys(lowers.get(id, ()), now)
        node.parent = parents.get(id) or ""
        node.root = _root(parents, id if node.core else node.upper)
        node.root_degree = len(graph[node.root]) if node.root else 0
    _introduce(nodes)


def _root(parents: dict[NodeId, NodeId | None], node: NodeId) -> NodeId:
    while parent := parents.get(node):
        node = parent
    return node


def _introduce(nodes: dict[NodeId, Immune]) -> None:
    """Let everyone know how its neighbours stand, and how those see theirs."""
    for _ in range(2):  # The second time round a status names the core neighbours that the first has made known.
        statuses = {id: node._status() for id, node in nodes.items()}
        for node in nodes.values():
            node.near = {peer: statuses[peer] for peer in node.wires}
    for id, node in nodes.items():
        node._children = {peer: math.inf for peer in node.wires if nodes[peer].parent == id}
