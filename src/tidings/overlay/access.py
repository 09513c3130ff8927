"""Access points: for some attributes, a node that knows the way into the attribute's topology.

What a node has heard of from others, at most `size` entries. How a full table decides
what to keep is its policy:

    naive      keep everything heard, throw out anything: attributes spoken of often crowd out the rare ones
    balanced   one entry for an attribute (two while it has two topologies), and a rare one as likely as a popular one
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal, TypeAlias

import msgspec

from tidings.errors import InputError
from tidings.overlay.cuts import Axis
from tidings.overlay.wire import NodeId, Peer

TABLE_SIZE = 100  # The paper's.
AGE_MAX = 30  # Exchanges until an entry that nobody has confirmed is dropped.
HEARD_MAX = 4096  # Attributes whose popularity is estimated.
TOPOLOGIES_MAX = 2  # For one attribute, in a balanced table: two that are about to be merged.

Policy: TypeAlias = Literal["naive", "balanced"]


class Tree(msgspec.Struct, frozen=True, array_like=True):
    """Names one topology of an attribute for good: its steward, and a number that the steward gave it."""

    steward: Peer
    number: int

    @property
    def order(self) -> tuple[NodeId, int, int]:
        """Of two topologies of one attribute the smaller stays when they merge."""
        return self.steward.id, self.steward.incarnation, self.number


class AccessPoint(msgspec.Struct, frozen=True, array_like=True):
    """A member of an attribute's topology, and how long ago it said so."""

    axis: Axis
    peer: Peer
    tree: Tree
    age: int = 0


class AccessTable:
    """The access points that one node knows."""

    def __init__(self, me: Peer, chance: Random, *, size: int = TABLE_SIZE, policy: Policy = "balanced") -> None:
        if size < 0 or policy not in ("naive", "balanced"):
            raise InputError(f"expected a size of 0 or more and policy naive or balanced, got {size}, {policy}")
        self.me, self.size, self.policy, self._chance = me, size, policy, chance
        self._points: list[AccessPoint] = []
        self._by_axis: dict[Axis, list[AccessPoint]] = {}
        self._heard: dict[Axis, int] = {}

    def __len__(self) -> int:
        return len(self._points)

    def at(self, axis: Axis) -> list[AccessPoint]:
        """The access points of one attribute."""
        return list(self._by_axis.get(axis, ()))

    def axes(self) -> list[Axis]:
        return list(self._by_axis)

    def hear(self, point: AccessPoint) -> None:
        """Take note of an access point, or not, as the policy has it."""
        if not self.size or point.peer.id == self.me.id or point.age > AGE_MAX:
            return
        self._count(point.axis)
        if self.policy == "naive" or (not self._renew(point) and self._chance.random() < self._share(point.axis)):
            self._insert(point)

    def grow_older(self) -> None:
        """Once for each exchange: entries that nobody has confirmed for long are dropped."""
        self._keep([AccessPoint(p.axis, p.peer, p.tree, p.age + 1) for p in self._points if p.age < AGE_MAX])

    def drop(self, axis: Axis, peer: NodeId) -> None:
        """This one turned out not to know the way."""
        self._keep([p for p in self._points if p.axis != axis or p.peer.id != peer])

    def drop_tree(self, axis: Axis, tree: Tree) -> None:
        """A topology is no more."""
        self._keep([p for p in self._points if p.axis != axis or p.tree != tree])

    def drop_peer(self, peer: NodeId) -> None:
        """A node is not there."""
        self._keep([p for p in self._points if p.peer.id != peer])

    def sample(self, count: int) -> list[AccessPoint]:
        """Some entries, drawn at random, to pass on."""
        return self._chance.sample(self._points, min(count, len(self._points)))

    def fill(self, points: Sequence[AccessPoint]) -> None:
        """Take these as they are, for networks that begin with full tables."""
        self._keep(list(points[: self.size]))

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"access points": (len(self._points), self.size), "popularity": (len(self._heard), HEARD_MAX)}

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

    def _count(self, axis: Axis) -> None:
        if len(self._heard) >= HEARD_MAX and axis not in self._heard:
            self._heard.clear()
        self._heard[axis] = self._heard.get(axis, 0) + 1

    def _share(self, axis: Axis) -> float:
        """The chance that an attribute gets an entry: as much less as it is spoken of more often than the rarest.

        Than the mean, as one might think, would leave popular attributes several times as likely.
        """
        if len(self._points) < self.size:
            return 1.0
        return min(self._heard.values()) / self._heard[axis]

    def _insert(self, point: AccessPoint) -> None:
        if len(self._points) >= self.size:
            self._keep(self._without_one())
        self._points.append(point)
        self._by_axis.setdefault(point.axis, []).append(point)

    def _without_one(self) -> list[AccessPoint]:
        gone = self._chance.randrange(len(self._points))
        return self._points[:gone] + self._points[gone + 1 :]

    def _keep(self, points: list[AccessPoint]) -> None:
        self._points, self._by_axis = points, {}
        for point in points:
            self._by_axis.setdefault(point.axis, []).append(point)
