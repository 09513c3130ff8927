"""Access points: for some attributes, a node that knows the way into the attribute's topology.

What a node has heard of from others, at most `size` entries. How a full table decides
what to keep is its policy:

    naive      keep everything heard, throw out anything: attributes spoken of often crowd out the rare ones
    balanced   one entry for an attribute (two while it has two topologies), and a rare one as likely as a popular one

A balanced table draws a rank for each attribute, once, when it first hears of it, and keeps
the attributes of the lowest ranks. To be spoken of often brings no second draw, so however
lopsided the gossip, a full table is a uniform choice among all attributes, and no table
follows its neighbours'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Literal, TypeAlias

import msgspec

from tidings.errors import InputError
from tidings.overlay.messages import NodeId, Peer
from tidings.overlay.random_graph.partition import AttributeAxis

TABLE_SIZE = 100  # The paper's.
AGE_MAX = 30  # Exchanges until an entry that nobody has confirmed is dropped.
RANKS_MAX = 4096  # Attributes whose rank is remembered; beyond that all are drawn anew.
TOPOLOGIES_MAX = 2  # For one attribute, in a balanced table: two that are about to be merged.

Policy: TypeAlias = Literal["naive", "balanced"]


class TreeId(msgspec.Struct, frozen=True, array_like=True):
    """Names one topology of an attribute for good: its steward, and a number that the steward gave it."""

    coordinator: Peer
    number: int

    @property
    def order(self) -> tuple[NodeId, int, int]:
        """Of two topologies of one attribute the smaller stays when they merge."""
        return self.coordinator.id, self.coordinator.incarnation, self.number


class AccessPoint(msgspec.Struct, frozen=True, array_like=True):
    """A member of an attribute's topology, and how long ago it said so."""

    axis: AttributeAxis
    peer: Peer
    tree: TreeId
    age: int = 0


class AccessTable:
    """The access points that one node knows."""

    def __init__(self, me: Peer, rng: Random, *, size: int = TABLE_SIZE, policy: Policy = "balanced") -> None:
        if size < 0 or policy not in ("naive", "balanced"):
            raise InputError(f"expected a size of 0 or more and policy naive or balanced, got {size}, {policy}")
        self.me, self.size, self.policy, self._rng = me, size, policy, rng
        self._points: list[AccessPoint] = []
        self._by_axis: dict[AttributeAxis, list[AccessPoint]] = {}
        self._ranks: dict[AttributeAxis, float] = {}

    def __len__(self) -> int:
        return len(self._points)

    def at(self, axis: AttributeAxis) -> list[AccessPoint]:
        """The access points of one attribute."""
        return list(self._by_axis.get(axis, ()))

    def axes(self) -> list[AttributeAxis]:
        return list(self._by_axis)

    def hear(self, point: AccessPoint) -> None:
        """Take note of an access point, or not, as the policy has it."""
        if not self.size or point.peer.id == self.me.id or point.age > AGE_MAX:
            return
        if self.policy == "naive":
            self._insert(point, evicted=self._rng.randrange)
        elif not self._renew(point) and self._is_chosen(point.axis):
            self._insert(point, evicted=self._highest)

    def grow_older(self) -> None:
        """Once for each exchange: entries that nobody has confirmed for long are dropped."""
        self._keep([AccessPoint(p.axis, p.peer, p.tree, p.age + 1) for p in self._points if p.age < AGE_MAX])

    def drop(self, axis: AttributeAxis, peer: NodeId) -> None:
        """This one turned out not to know the way."""
        self._keep([p for p in self._points if p.axis != axis or p.peer.id != peer])

    def drop_tree(self, axis: AttributeAxis, tree: TreeId) -> None:
        """A topology is no more."""
        self._keep([p for p in self._points if p.axis != axis or p.tree != tree])

    def drop_peer(self, peer: NodeId) -> None:
        """A node is not there."""
        self._keep([p for p in self._points if p.peer.id != peer])

    def sample(self, count: int) -> list[AccessPoint]:
        """Some entries, drawn at random, to pass on."""
        return self._rng.sample(self._points, min(count, len(self._points)))

    def fill(self, points: Sequence[AccessPoint]) -> None:
        """Take these as they are, for networks that begin with full tables."""
        self._keep(list(points[: self.size]))

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"access points": (len(self._points), self.size), "ranks": (len(self._ranks), RANKS_MAX)}

    # ── Private steps ────────────────────────────────────────────────────────

    def _renew(self, point: AccessPoint) -> bool:
        """Whether the attribute has its entries already; the fresher word is kept."""
        mine = self._by_axis.get(point.axis, [])
        for old in mine:
            if old.tree == point.tree:
                if point.age < old.age:
                    self._keep([point if p is old else p for p in self._points])
                return True
        if len(mine) < TOPOLOGIES_MAX:
            return False
        oldest = max(mine, key=lambda p: p.age)
        if point.age < oldest.age:
            self._keep([point if p is oldest else p for p in self._points])
        return True

    def _rank(self, axis: AttributeAxis) -> float:
        rank = self._ranks.get(axis)
        if rank is None:
            if len(self._ranks) >= RANKS_MAX:
                self._ranks.clear()
            rank = self._ranks[axis] = self._rng.random()
        return rank

    def _is_chosen(self, axis: AttributeAxis) -> bool:
        """Whether there is room, or somebody of a higher rank to make it."""
        count = len(self._points)
        return count < self.size or self._rank(axis) < self._rank(self._points[self._highest(count)].axis)

    def _highest(self, count: int) -> int:
        return max(range(count), key=lambda place: self._rank(self._points[place].axis))

    def _insert(self, point: AccessPoint, *, evicted: Callable[[int], int]) -> None:
        if len(self._points) >= self.size:
            gone = evicted(len(self._points))
            self._keep(self._points[:gone] + self._points[gone + 1 :])
        self._points.append(point)
        self._by_axis.setdefault(point.axis, []).append(point)

    def _keep(self, points: list[AccessPoint]) -> None:
        self._points, self._by_axis = points, {}
        for point in points:
            self._by_axis.setdefault(point.axis, []).append(point)
