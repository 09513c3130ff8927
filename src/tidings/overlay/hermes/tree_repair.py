"""Tree repair in Hermes: next hops that change, parents that forget, children that fail.

    each refresh     ChildRefresh to each parent: its trees, each with a digest of what it should have
    answer           ParentRefresh: the trees for which the child must announce its interests again
    a new next hop   a parent has failed, or a node nearer to the rendezvous has joined: announce everything there

The next refresh corrects whatever was lost on the way or dropped by mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tidings.overlay.hermes.messages import ChildRefresh, ParentRefresh, Prune
from tidings.overlay.hermes.multicast_tree import MulticastTree, MulticastTrees, TreeMessage, digest
from tidings.overlay.interest import InterestVersion
from tidings.overlay.messages import NodeId
from tidings.overlay.pastry.ring import Ring
from tidings.overlay.router import Effect, Send, WakeAt

REFRESH_S = 5.0  # A parent silent for two of these is suspected; a child silent for CHILD_MISSES of them is dropped.
CHILD_MISSES = 6
REFRESHED_AT_ONCE = 512  # Trees in one ChildRefresh.


class TreeHost(Protocol):
    """What tree repair needs of the node whose trees it repairs."""

    def is_in(self) -> bool:
        """Whether the node has joined, and so has a next hop for every tree."""

    def send_tree_messages(self, tree: MulticastTree, messages: Sequence[TreeMessage], now: float) -> list[Effect]:
        """Send what a tree has to send."""

    def leave_if_unneeded(self) -> list[Effect]:
        """Leave, if the node is leaving and no child needs it any more."""


class TreeRepair:
    """Keeps the trees of one node whole."""

    def __init__(
        self,
        host: TreeHost,
        ring: Ring,
        trees: MulticastTrees,
        *,
        is_pending: Callable[[str, InterestVersion], bool],
        refresh_s: float,
        enabled: bool,
    ) -> None:
        """`is_pending` says whether a request of a tree still waits for its acknowledgement. Not `enabled`: repair nothing."""
        self._host, self._ring, self._trees = host, ring, trees
        self._is_pending, self.refresh_s, self.enabled = is_pending, refresh_s, enabled
        self._parents: dict[NodeId, float] = {}  # When each last sent something.

    def on_parent_alive(self, parent: NodeId, now: float) -> None:
        """A parent has sent something."""
        self._parents[parent] = now

    def find_parents(self, now: float) -> list[Effect]:
        """A new node may be nearer to a rendezvous, or be one."""
        return [effect for tree in self._trees.all() for effect in self.find_parent(tree, now)]

    def on_node_failed(self, id: NodeId, now: float) -> list[Effect]:
        """A node has failed that may have been a child or a parent."""
        self._parents.pop(id, None)
        effects: list[Effect] = []
        for tree in self._trees.all() if self.enabled else []:
            if id in tree.children:
                effects += self.on_child_gone(id, tree.type, now)
            if tree.parent == id:
                effects += self.find_parent(tree, now)
        return effects

    def find_parent(self, tree: MulticastTree, now: float) -> list[Effect]:
        """If the next hop to the rendezvous has changed, make it the parent and announce everything to it."""
        new = self._ring.next_hop(tree.key)
        if new == tree.parent or not self._host.is_in() or not self.enabled:
            return self._host.send_tree_messages(tree, tree.missing(), now)
        old = tree.parent
        effects = self._host.send_tree_messages(tree, tree.move(new), now)
        if old is not None and self._ring.is_usable(old):
            effects.append(Send(old, Prune(tree.type)))
        return effects

    def on_child_gone(self, child: NodeId, type: str, now: float) -> list[Effect]:
        """A child has left a tree; a node that waits for its last child may leave."""
        tree = self._trees.get(type)
        effects = self._host.send_tree_messages(tree, tree.remove_child(child), now) if tree else []
        return [*effects, *self._host.leave_if_unneeded()]

    def on_parent_leaving(self, parent: NodeId, type: str, now: float) -> list[Effect]:
        """A parent leaves the ring: it is no next hop for anything any more."""
        if self._ring.knows(parent) is not None:
            self._ring.drop(parent)
        tree = self._trees.get(type)
        return self.find_parent(tree, now) if tree is not None and tree.parent == parent else []

    def next_refresh(self, now: float) -> list[Effect]:
        """The wake for the next refresh, if there is to be one."""
        return [WakeAt(now + self.refresh_s, ("refresh",), idle=True)] if self.refresh_s and self.enabled else []

    def refresh(self, now: float) -> list[Effect]:
        """Check every tree's next hop, send digests to the parents, and drop children that have long been silent."""
        if not self._host.is_in():
            return self.next_refresh(now)
        effects: list[Effect] = []
        by_parent: dict[NodeId, list[tuple[str, int]]] = {}
        for tree in self._trees.all():
            effects += [*self._drop_silent(tree, now), *self.find_parent(tree, now), *self._request_again(tree, now)]
            if tree.parent is not None and tree.announced:
                by_parent.setdefault(tree.parent, []).append((tree.type, digest(tree.announced)))
        self._parents = {id: self._parents.get(id, now) for id in by_parent}
        for parent, digests in by_parent.items():
            for start in range(0, len(digests), REFRESHED_AT_ONCE):
                effects.append(Send(parent, ChildRefresh(tuple(digests[start : start + REFRESHED_AT_ONCE]))))
            if self._parents[parent] < now - 2 * self.refresh_s:
                effects += self._ring.doubt(parent, now)
        return [*effects, *self.next_refresh(now)]

    def on_child_refresh(self, sender: NodeId, digests: Sequence[tuple[str, int]], now: float) -> list[Effect]:
        """Answer a child with the trees whose interests it must announce again."""
        again = []
        for type, expected in digests:
            tree = self._trees.get(type)
            interests = tree.children.get(sender, {}) if tree else {}
            if tree is not None and interests:
                tree.refreshed[sender] = now
            if digest(interests) != expected:
                again.append(type)
        return [Send(sender, ParentRefresh(tuple(again)))]

    def on_parent_refresh(self, sender: NodeId, again: Sequence[str], now: float) -> list[Effect]:
        """A parent is alive, and lacks interests of these trees."""
        self._parents[sender] = now
        effects: list[Effect] = []
        for tree in [self._trees.get(type) for type in again]:
            if tree is not None and tree.parent == sender:
                # Prune first, so that the parent keeps nothing that this node no longer has.
                effects.append(Send(sender, Prune(tree.type)))
                effects += self._host.send_tree_messages(tree, tree.announce_again(), now)
        return effects

    def _drop_silent(self, tree: MulticastTree, now: float) -> list[Effect]:
        deadline = now - CHILD_MISSES * self.refresh_s
        silent = [child for child, at in tree.refreshed.items() if at < deadline]
        return [effect for child in silent for effect in self.on_child_gone(child, tree.type, now)]

    def _request_again(self, tree: MulticastTree, now: float) -> list[Effect]:
        """Send again what was given up without an answer, for the parent is alive."""
        given_up = [
            request for request in tree.unacknowledged() if not self._is_pending(tree.type, request.interest.version)
        ]
        return self._host.send_tree_messages(tree, given_up, now)
