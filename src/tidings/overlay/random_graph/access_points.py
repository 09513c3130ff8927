"""The access point table: for some attributes, a member of the topology of that attribute.

A node fills its table, of at most `size` entries, from what other nodes advertise. What a full table keeps depends on
its policy:

    naive      it takes every advertisement and evicts a random entry, so that popular attributes displace rare ones
    balanced   one entry for each attribute (two while it has two topologies), rare attributes as likely as popular ones
    hashed     as balanced, and other nodes can tell which attributes a table is likely to have

A balanced table draws a random rank for each attribute when it first hears of it, and keeps the attributes of the
lowest ranks. An attribute that is advertised often does not get a second draw. So however uneven the gossip is, a full
table is a uniform sample of all attributes, and the tables of neighbours are independent of each other.

A hashed table takes the rank from the hash of its node's id and the attribute (rendezvous hashing). The tables are as
independent, but whoever looks for an attribute can ask the neighbour with the lowest rank first. Among `n` neighbours
that rank is about 1 / n, so one hop is enough while there are fewer attributes than n times the size of a table, and
every attribute has rendezvous of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Literal, TypeAlias

import msgspec

from tidings.errors import InputError
from tidings.overlay.messages import NodeId, OriginRecord, Peer
from tidings.overlay.random_graph.partition import AttributeAxis

TABLE_SIZE = 100  # As in the paper.
AGE_MAX = 30  # Exchanges until an entry that no node has confirmed is dropped.
RANKS_MAX = 4096  # Attributes whose rank is remembered; when full, all ranks are drawn, or computed, again.
TOPOLOGIES_MAX = 2  # Of one attribute, in a balanced table: two that are about to merge.

Policy: TypeAlias = Literal["naive", "balanced", "hashed"]
POLICIES: tuple[Policy, ...] = ("naive", "balanced", "hashed")


def hashed_rank(node: NodeId, axis: AttributeAxis) -> float:
    """The rank of an attribute at a node, from 0 to 1: the same wherever it is computed.

    >>> axis = AttributeAxis("Quake", "x")
    >>> min(("n1", "n2", "n3"), key=lambda node: hashed_rank(node, axis))
    'n2'
    """
    text = "\0".join((node, axis.type, axis.name, str(axis.number)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) / 2**64


class TreeId(msgspec.Struct, frozen=True, array_like=True):
    """The permanent id of one topology of an attribute: its coordinator, and a number that the coordinator gave it."""

    coordinator: Peer
    number: int

    @property
    def order(self) -> tuple[NodeId, int, int]:
        """When two topologies of one attribute merge, the smaller one remains."""
        return self.coordinator.id, self.coordinator.incarnation, self.number


class AccessPoint(OriginRecord, frozen=True, array_like=True):
    """A member of an attribute's topology, and the number of exchanges since it advertised itself."""

    axis: AttributeAxis
    peer: Peer
    tree: TreeId
    age: int = 0
    seal: bytes = b""

    def speaker(self) -> NodeId:
        return self.peer.id

    def statement(self) -> tuple[Any, ...]:
        """All but its age, which each exchange raises."""
        return self.axis, self.peer.id, self.tree.order


class AccessTable:
    """The access points that one node knows."""

    def __init__(self, me: Peer, rng: Random, *, size: int = TABLE_SIZE, policy: Policy = "balanced") -> None:
        if size < 0 or policy not in POLICIES:
            raise InputError(f"expected a size of 0 or more and policy {' or '.join(POLICIES)}, got {size}, {policy}")
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

    def add(self, point: AccessPoint) -> None:
        """Add an access point if the policy admits it."""
        if not self.size or point.peer.id == self.me.id or point.age > AGE_MAX:
            return
        if self.policy == "naive":
            self._insert(point, evicted=self._rng.randrange)
        elif not self._refresh(point) and self._is_admitted(point.axis):
            self._insert(point, evicted=self._highest)

    def increase_ages(self) -> None:
        """Once for each exchange: drop the entries that no node has confirmed for long."""
        self._keep([AccessPoint(p.axis, p.peer, p.tree, p.age + 1, p.seal) for p in self._points if p.age < AGE_MAX])

    def drop(self, axis: AttributeAxis, peer: NodeId) -> None:
        """Remove a peer that has left the attribute's topology."""
        self._keep([p for p in self._points if p.axis != axis or p.peer.id != peer])

    def drop_tree(self, axis: AttributeAxis, tree: TreeId) -> None:
        """Remove a topology that no longer exists."""
        self._keep([p for p in self._points if p.axis != axis or p.tree != tree])

    def drop_peer(self, peer: NodeId) -> None:
        """Remove a node that does not answer."""
        self._keep([p for p in self._points if p.peer.id != peer])

    def sample(self, count: int) -> list[AccessPoint]:
        """Up to `count` entries, drawn at random, to advertise further."""
        return self._rng.sample(self._points, min(count, len(self._points)))

    def fill(self, points: Sequence[AccessPoint]) -> None:
        """Replace the table by these entries, for networks that begin with full tables."""
        self._keep(list(points[: self.size]))

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"access points": (len(self._points), self.size), "ranks": (len(self._ranks), RANKS_MAX)}

    # ── Private steps ────────────────────────────────────────────────────────

    def _refresh(self, point: AccessPoint) -> bool:
        """Whether the attribute already has its entries; of two for one topology the younger is kept."""
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
            rank = hashed_rank(self.me.id, axis) if self.policy == "hashed" else self._rng.random()
            self._ranks[axis] = rank
        return rank

    def _is_admitted(self, axis: AttributeAxis) -> bool:
        """Whether the table has a free slot, or an entry of a higher rank to evict."""
        count = len(self._points)
        return count < self.size or self._rank(axis) < self._rank(self._points[self._highest(count)].axis)

    def _highest(self, count: int) -> int:
        return max(range(count), key=lambda index: self._rank(self._points[index].axis))

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
