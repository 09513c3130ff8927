"""State that survives the failure of other nodes: replicated registrations, and which topologies have ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidings.overlay.cbdlo.attribute_tree import Registration
from tidings.overlay.cbdlo.messages import Replicate
from tidings.overlay.messages import NodeId, SubscriptionId
from tidings.overlay.random_graph.access_points import TreeId
from tidings.overlay.random_graph.partition import AttributeAxis

REPLICAS_MAX = 1024  # Topologies that one node is a replica of.
COPIED_MAX = 2 * 65_536  # Registrations of one topology: as many as it may have, and those that are about to go.
RETIRED_MAX = 4096  # Topologies that have ended, or do not answer.
UNREACHABLE_S = 30.0  # How long a topology whose coordinator did not answer is not tried again.
SILENT_PERIODS = 4  # Periods without a sign of life until a node is suspected.


@dataclass(slots=True)
class _Replica:
    """The registrations of one topology."""

    rank: int
    since: int
    serial: int = 0
    silent: int = 0
    """Periods since the coordinator last answered."""
    registrations: dict[SubscriptionId, Registration] = field(default_factory=dict)


class ReplicaStore:
    """All registrations of the topologies that this node is a replica of."""

    def __init__(self) -> None:
        self._replicas: dict[tuple[AttributeAxis, TreeId], _Replica] = {}

    def __len__(self) -> int:
        return len(self._replicas)

    def apply(self, message: Replicate) -> bool:
        """Store a coordinator's changes; False if they build on changes that this node lacks. Late ones are ignored."""
        key = (message.axis, message.tree)
        replica = self._replicas.get(key)
        if replica is None or replica.since < message.since:
            if message.since != message.serial or len(self._replicas) >= REPLICAS_MAX:
                return False
            self._replicas[key] = replica = _Replica(message.rank, message.since)
        if len(replica.registrations) + len(message.added) > COPIED_MAX:
            return False
        if replica.since == message.since and replica.serial <= message.serial:
            replica.rank, replica.serial = message.rank, message.serial
            for id in message.gone:
                replica.registrations.pop(id, None)
            replica.registrations.update((each.interest.id, each) for each in message.added)
        return True

    def release(self, axis: AttributeAxis, tree: TreeId) -> list[Registration] | None:
        """Stop being a replica of a topology; returns its registrations, or None if this node was no replica of it."""
        replica = self._replicas.pop((axis, tree), None)
        return list(replica.registrations.values()) if replica else None

    def registrations(self, axis: AttributeAxis, tree: TreeId) -> dict[SubscriptionId, Registration]:
        replica = self._replicas.get((axis, tree))
        return replica.registrations if replica else {}

    def topologies(self) -> list[tuple[AttributeAxis, TreeId]]:
        return list(self._replicas)

    def coordinator_alive(self, coordinator: NodeId) -> None:
        """A coordinator has answered."""
        for (_, tree), replica in self._replicas.items():
            if tree.coordinator.id == coordinator:
                replica.silent = 0

    def count_period(self) -> Iterator[tuple[AttributeAxis, TreeId, bool]]:
        """Each topology, and whether to take over from its coordinator. The replica of rank 1 waits twice as long."""
        for (axis, tree), replica in list(self._replicas.items()):
            replica.silent += 1
            yield axis, tree, replica.silent > SILENT_PERIODS * (1 + replica.rank)

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"copies": (len(self._replicas), REPLICAS_MAX)}


class RetiredTopologies:
    """Topologies that have merged into others, and topologies whose coordinator does not answer."""

    def __init__(self) -> None:
        self._merged: OrderedDict[tuple[AttributeAxis, TreeId], TreeId] = OrderedDict()
        self._unreachable: OrderedDict[tuple[AttributeAxis, TreeId], float] = OrderedDict()

    def merged(self, axis: AttributeAxis, old: TreeId, new: TreeId) -> None:
        """One topology has merged into another, which therefore exists."""
        self.alive(axis, new)
        self._merged[axis, old] = new
        if len(self._merged) > RETIRED_MAX:
            self._merged.popitem(last=False)

    def unreachable(self, axis: AttributeAxis, tree: TreeId, now: float) -> None:
        """The coordinator of a topology does not answer."""
        self._unreachable[axis, tree] = now + UNREACHABLE_S
        if len(self._unreachable) > RETIRED_MAX:
            self._unreachable.popitem(last=False)

    def alive(self, axis: AttributeAxis, tree: TreeId) -> None:
        """A topology exists, whatever was recorded of it."""
        self._unreachable.pop((axis, tree), None)
        self._merged.pop((axis, tree), None)

    def successor(self, axis: AttributeAxis, tree: TreeId) -> TreeId | None:
        """The topology that this one has merged into."""
        return self._merged.get((axis, tree))

    def is_retired(self, axis: AttributeAxis, tree: TreeId, now: float) -> bool:
        """Whether it is useless to contact a topology."""
        return self._unreachable.get((axis, tree), 0.0) > now or (axis, tree) in self._merged

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            "topologies gone": (len(self._merged), RETIRED_MAX),
            "topologies silent": (len(self._unreachable), RETIRED_MAX),
        }
