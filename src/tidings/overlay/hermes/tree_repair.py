"""Keeping the trees of Hermes whole: ways up that change, parents that have forgotten, children that have gone.

    every so often   Refresh to each parent: its trees, each with a digest of what it should have
    Fresh            back from there: which of them have to be said again
    a new way up     where a parent has gone, or somebody nearer to the rendezvous has come: everything is said there

What is lost on the way, or dropped by mistake, is put right by the next Refresh.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidings.overlay.hermes.grove import Grove
from tidings.overlay.hermes.messages import Fresh, Prune, Refresh
from tidings.overlay.hermes.multicast_tree import Tree, digest
from tidings.overlay.messages import NodeId
from tidings.overlay.retransmit import RetransmitQueue
from tidings.overlay.router import Effect, Send, WakeAt

if TYPE_CHECKING:
    from tidings.overlay.hermes.router import Hermes

REFRESH_S = 5.0  # A parent silent for two of these is doubted; a child silent for CHILD_MISSES of them is dropped.
CHILD_MISSES = 6
REFRESHED_AT_ONCE = 512  # Trees in one Refresh.


class Gardener:
    """What one node does for its trees."""

    def __init__(self, router: Hermes, grove: Grove, calls: RetransmitQueue[tuple[Any, ...]], refresh_s: float) -> None:
        self._router, self._grove, self._calls, self.refresh_s = router, grove, calls, refresh_s
        self._parents: dict[NodeId, float] = {}  # When each was last heard.

    def heard(self, parent: NodeId, now: float) -> None:
        """A sign of life from a parent."""
        self._parents[parent] = now

    def look_up_again(self, now: float) -> list[Effect]:
        """Somebody new may be nearer to a rendezvous, or be one."""
        return [effect for tree in self._grove.trees() for effect in self.find_parent(tree, now)]

    def died(self, id: NodeId, now: float) -> list[Effect]:
        """A node is gone, and perhaps was a child or a parent."""
        self._parents.pop(id, None)
        effects: list[Effect] = []
        for tree in self._grove.trees() if self._router.repair else []:
            if id in tree.below:
                effects += self.lose_child(id, tree.type, now)
            if tree.parent == id:
                effects += self.find_parent(tree, now)
        return effects

    def find_parent(self, tree: Tree, now: float) -> list[Effect]:
        """The way to the rendezvous may have changed: move there and tell it everything."""
        new = self._router.ring.next_hop(tree.key)
        if new == tree.parent or not self._router.is_in() or not self._router.repair:
            return self._router.say(tree, tree.missing(), now)
        old = tree.parent
        effects = self._router.say(tree, tree.move(new), now)
        if old is not None and self._router.ring.is_usable(old):
            effects.append(Send(old, Prune(tree.type)))
        return effects

    def lose_child(self, child: NodeId, type: str, now: float) -> list[Effect]:
        """A child has gone from a tree; whoever waits for all of them to have gone may leave."""
        tree = self._grove.get(type)
        effects = self._router.say(tree, tree.lose_child(child), now) if tree else []
        return [*effects, *self._router.check_leaving()]

    def lose_parent(self, parent: NodeId, type: str, now: float) -> list[Effect]:
        """A parent leaves the ring: it is no way up for anything any more."""
        if self._router.ring.knows(parent) is not None:
            self._router.ring.drop(parent)
        tree = self._grove.get(type)
        return self.find_parent(tree, now) if tree is not None and tree.parent == parent else []

    def next_refresh(self, now: float) -> list[Effect]:
        """When to look at all trees again, if ever."""
        return [WakeAt(now + self.refresh_s, ("refresh",), idle=True)] if self.refresh_s and self._router.repair else []

    def refresh(self, now: float) -> list[Effect]:
        """Check every tree's way up, tell parents what they should have, and drop children long unheard."""
        if not self._router.is_in():
            return self.next_refresh(now)
        effects: list[Effect] = []
        by_parent: dict[NodeId, list[tuple[str, int]]] = {}
        for tree in self._grove.trees():
            effects += [*self._drop_silent(tree, now), *self.find_parent(tree, now), *self._want_again(tree, now)]
            if tree.parent is not None and tree.announced:
                by_parent.setdefault(tree.parent, []).append((tree.type, digest(tree.announced)))
        self._parents = {id: self._parents.get(id, now) for id in by_parent}
        for parent, trees in by_parent.items():
            for start in range(0, len(trees), REFRESHED_AT_ONCE):
                effects.append(Send(parent, Refresh(tuple(trees[start : start + REFRESHED_AT_ONCE]))))
            if self._parents[parent] < now - 2 * self.refresh_s:
                effects += self._router.ring.doubt(parent, now)
        return [*effects, *self.next_refresh(now)]

    def answer(self, sender: NodeId, trees: Sequence[tuple[str, int]], now: float) -> list[Effect]:
        """Tell a child which of its trees it has to say again, for not all of it is known here."""
        again = []
        for type, expected in trees:
            tree = self._grove.get(type)
            held = tree.below.get(sender, {}) if tree else {}
            if tree is not None and held:
                tree.refreshed[sender] = now
            if digest(held) != expected:
                again.append(type)
        return [Send(sender, Fresh(tuple(again)))]

    def say_again(self, sender: NodeId, again: Sequence[str], now: float) -> list[Effect]:
        """A parent is there, and lacks something of these trees."""
        self._parents[sender] = now
        effects: list[Effect] = []
        for tree in [self._grove.get(type) for type in again]:
            if tree is not None and tree.parent == sender:
                # Pruned first, so that nothing stays there that this node no longer has.
                effects += [Send(sender, Prune(tree.type)), *self._router.say(tree, tree.say_all_again(), now)]
        return effects

    def _drop_silent(self, tree: Tree, now: float) -> list[Effect]:
        deadline = now - CHILD_MISSES * self.refresh_s
        silent = [child for child, at in tree.refreshed.items() if at < deadline]
        return [effect for child in silent for effect in self.lose_child(child, tree.type, now)]

    def _want_again(self, tree: Tree, now: float) -> list[Effect]:
        """What was given up unanswered is asked again, for the parent is there."""
        given_up = [want for want in tree.unanswered() if ("want", tree.type, want.interest.id) not in self._calls]
        return self._router.say(tree, given_up, now)
