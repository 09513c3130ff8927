"""From a sub-space of CBDLO to all who are registered in it, and word back to the publisher when they have the event.

    paper    Match to each, and that is all
    robust   each is called until it answers or is given up; then the publisher hears `SubscribersNotified`

An event that was told once is not told again, however often it comes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tidings.overlay.cbdlo.attribute_tree import Registration
from tidings.overlay.cbdlo.messages import Match, SubscribersNotified, TreeStep
from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.messages import EventId, NodeId, Packet, SubscriptionId
from tidings.overlay.random_graph.partition import AttributeAxis
from tidings.overlay.retransmit import Requests
from tidings.overlay.router import Effect, Send

JOBS_MAX = 65_536  # Events that others are being told of.

Key: TypeAlias = tuple[EventId, AttributeAxis]


@dataclass(slots=True)
class _Job:
    """An event that those registered in a sub-space here are being told of."""

    origin: NodeId
    open: int = 0


class MatchNotifier:
    """What one node tells those who are registered in its sub-spaces."""

    def __init__(self, requests: Requests, *, robust: bool, whole: bool) -> None:
        """`whole`: whole interests are matched here, and a publisher has told itself; else subscribers count attributes."""
        self._requests, self._robust, self._whole = requests, robust, whole
        self._jobs: dict[Key, _Job] = {}
        self._told = SeenIds[Key](SEEN_MAX)

    def __len__(self) -> int:
        return len(self._jobs)

    def tell(self, said: TreeStep, registered: Mapping[SubscriptionId, Registration], now: float) -> list[Effect]:
        """Tell everybody registered in a sub-space, and then the publisher that it is done."""
        key = (said.packet.header.id, said.axis)
        if key in self._jobs:
            return []
        if key in self._told:
            return [Send(said.origin.id, SubscribersNotified(*key))] if self._robust else []
        told = self._meant(said.packet, registered)
        if not self._robust:
            self._told.add(key)
            return [Send(peer, Match(0, said.packet, said.axis, tuple(ids))) for peer, ids in told.items()]
        if self._whole:
            told.pop(said.origin.id, None)  # It has told itself.
        return self._tell_all(key, said, told, now)

    def one_told(self, key: Key) -> list[Effect]:
        """One of those who were called has answered, or will not."""
        job = self._jobs.get(key)
        if job is None:
            return []
        job.open -= 1
        if job.open:
            return []
        del self._jobs[key]
        self._told.add(key)
        return [Send(job.origin, SubscribersNotified(*key))]

    def _meant(
        self, packet: Packet, registered: Mapping[SubscriptionId, Registration]
    ) -> dict[NodeId, list[SubscriptionId]]:
        told: dict[NodeId, list[SubscriptionId]] = {}
        for id, each in registered.items():
            if not self._whole or each.interest.matches(packet):
                told.setdefault(each.peer.id, []).append(id)
        return told

    def _tell_all(self, key: Key, said: TreeStep, told: dict[NodeId, list[SubscriptionId]], now: float) -> list[Effect]:
        effects: list[Effect] = []
        self._jobs[key] = job = _Job(said.origin.id, 1)
        for peer, ids in told.items():
            job.open += 1
            make = lambda n, ids=ids: Match(n, said.packet, said.axis, tuple(ids))  # noqa: E731
            effects += self._requests.send(peer, make, ("match", *key), now)
        return [*effects, *self.one_told(key)]
