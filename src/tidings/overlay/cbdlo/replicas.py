"""What a node keeps in case others are gone: copies for a steward, and what became of topologies."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidings.overlay.cbdlo.attribute_tree import Registration
from tidings.overlay.cbdlo.messages import Replicate
from tidings.overlay.messages import NodeId, SubscriptionId
from tidings.overlay.random_graph.access_points import TreeId
from tidings.overlay.random_graph.partition import AttributeAxis

COPIES_MAX = 1024  # Topologies that one node is deputy of.
FATES_MAX = 4096  # Topologies that are no more, or do not answer.
DEAD_S = 30.0  # How long a topology whose steward did not answer is not tried again.
SILENT_BEATS = 4  # Beats without a sign of life until somebody is thought missing.


@dataclass(slots=True)
class _Copied:
    rank: int
    since: int
    serial: int = 0
    silent: int = 0
    registrations: dict[SubscriptionId, Registration] = field(default_factory=dict)


class ReplicaStore:
    """All registrations of the topologies that this node is deputy of, and how long their stewards have been silent."""

    def __init__(self) -> None:
        self._copied: dict[tuple[AttributeAxis, TreeId], _Copied] = {}

    def __len__(self) -> int:
        return len(self._copied)

    def take(self, said: Replicate) -> bool:
        """Note what a steward says; False where it builds on what is not known here. An old word changes nothing."""
        key = (said.axis, said.tree)
        copied = self._copied.get(key)
        if copied is None or copied.since < said.since:
            if said.since != said.serial or len(self._copied) >= COPIES_MAX:
                return False
            self._copied[key] = copied = _Copied(said.rank, said.since)
        if copied.since == said.since and copied.serial <= said.serial:
            copied.rank, copied.serial = said.rank, said.serial
            for id in said.gone:
                copied.registrations.pop(id, None)
            copied.registrations.update((each.interest.id, each) for each in said.added)
        return True

    def release(self, axis: AttributeAxis, tree: TreeId) -> list[Registration] | None:
        """Keep copies of a topology no longer; returns what there was, or None if there were none."""
        copied = self._copied.pop((axis, tree), None)
        return list(copied.registrations.values()) if copied else None

    def registrations(self, axis: AttributeAxis, tree: TreeId) -> dict[SubscriptionId, Registration]:
        copied = self._copied.get((axis, tree))
        return copied.registrations if copied else {}

    def topologies(self) -> list[tuple[AttributeAxis, TreeId]]:
        return list(self._copied)

    def heard(self, coordinator: NodeId) -> None:
        """A sign of life from a steward."""
        for (_, tree), copied in self._copied.items():
            if tree.coordinator.id == coordinator:
                copied.silent = 0

    def beat(self) -> Iterator[tuple[AttributeAxis, TreeId, bool]]:
        """All of them, and whether it is time to take the steward's place: the second deputy gives the first a chance."""
        for (axis, tree), copied in list(self._copied.items()):
            copied.silent += 1
            yield axis, tree, copied.silent > SILENT_BEATS * (1 + copied.rank)

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"copies": (len(self._copied), COPIES_MAX)}


class RetiredTopologies:
    """What became of topologies: those that are part of others now, and those that do not answer."""

    def __init__(self) -> None:
        self._moved: OrderedDict[tuple[AttributeAxis, TreeId], TreeId] = OrderedDict()
        self._dead: OrderedDict[tuple[AttributeAxis, TreeId], float] = OrderedDict()

    def moved(self, axis: AttributeAxis, old: TreeId, new: TreeId) -> None:
        """One has become part of another, which so is alive."""
        self.alive(axis, new)
        self._moved[axis, old] = new
        if len(self._moved) > FATES_MAX:
            self._moved.popitem(last=False)

    def dead(self, axis: AttributeAxis, tree: TreeId, now: float) -> None:
        """The steward of one does not answer."""
        self._dead[axis, tree] = now + DEAD_S
        if len(self._dead) > FATES_MAX:
            self._dead.popitem(last=False)

    def alive(self, axis: AttributeAxis, tree: TreeId) -> None:
        """One is there, whatever was thought of it."""
        self._dead.pop((axis, tree), None)
        self._moved.pop((axis, tree), None)

    def successor(self, axis: AttributeAxis, tree: TreeId) -> TreeId | None:
        return self._moved.get((axis, tree))

    def is_gone(self, axis: AttributeAxis, tree: TreeId, now: float) -> bool:
        """Whether it is of no use to ask for it."""
        return self._dead.get((axis, tree), 0.0) > now or (axis, tree) in self._moved

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"topologies gone": (len(self._moved), FATES_MAX), "topologies silent": (len(self._dead), FATES_MAX)}
