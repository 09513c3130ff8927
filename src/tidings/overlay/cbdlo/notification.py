"""From a partition to the subscribers registered in it, and a confirmation to the publisher.

    paper    the owner sends Match to each subscriber, once
    robust   the owner retransmits Match until each subscriber has answered or is given up, and then sends
             SubscribersNotified to the publisher

An owner notifies its subscribers of an event once, however often the event arrives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tidings.overlay.cbdlo.attribute_tree import Registration
from tidings.overlay.cbdlo.messages import Match, SubscribersNotified, TreeStep
from tidings.overlay.crowding import with_too_many
from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.messages import EventId, NodeId, Packet, SubscriptionId
from tidings.overlay.random_graph.partition import AttributeAxis
from tidings.overlay.retransmit import Requests
from tidings.overlay.router import Effect, Send

NOTIFYING_MAX = 65_536  # Events whose subscribers have not all answered.

Key: TypeAlias = tuple[EventId, AttributeAxis]


@dataclass(slots=True)
class _Notification:
    """An event whose subscribers have not all answered."""

    origin: NodeId
    pending: int = 0


class MatchNotifier:
    """Notifies the subscribers that are registered in a node's partitions."""

    def __init__(self, requests: Requests, *, reliable: bool, whole: bool) -> None:
        """`whole`: whole interests are matched here, and a publisher delivers to its own subscribers itself."""
        self._requests, self._reliable, self._whole = requests, reliable, whole
        self._notifying: dict[Key, _Notification] = {}
        self._notified = SeenIds[Key](SEEN_MAX)

    def __len__(self) -> int:
        return len(self._notifying)

    def notify(self, step: TreeStep, registered: Mapping[SubscriptionId, Registration], now: float) -> list[Effect]:
        """Notify all subscribers of a partition; when all have answered, confirm it to the publisher."""
        key = (step.packet.header.id, step.axis)
        if key in self._notifying:
            return []
        if key in self._notified:
            return [Send(step.origin.id, SubscribersNotified(*key))] if self._reliable else []
        recipients = self._recipients(step.packet, registered)
        if not self._reliable:
            self._notified.add(key)
            return [Send(peer, Match(0, step.packet, step.axis, tuple(ids))) for peer, ids in recipients.items()]
        if self._whole:
            recipients.pop(
                step.packet.header.id.origin, None
            )  # It delivers to itself, whoever is named to be answered.
        return self._request_all(key, step, recipients, now)

    def answered(self, key: Key) -> list[Effect]:
        """One subscriber has answered, or is given up."""
        notification = self._notifying.get(key)
        if notification is None:
            return []
        notification.pending -= 1
        if notification.pending:
            return []
        del self._notifying[key]
        self._notified.add(key)
        return [Send(notification.origin, SubscribersNotified(*key))]

    def _recipients(
        self, packet: Packet, registered: Mapping[SubscriptionId, Registration]
    ) -> dict[NodeId, list[SubscriptionId]]:
        recipients: dict[NodeId, list[SubscriptionId]] = {}
        many = with_too_many([(each.peer.id, each.interest) for each in registered.values()])
        for id, each in registered.items():
            # Who has very many gets all: comparing costs too much.
            if not self._whole or each.peer.id in many or each.interest.matches(packet):
                recipients.setdefault(each.peer.id, []).append(id)
        return recipients

    def _request_all(
        self, key: Key, step: TreeStep, recipients: dict[NodeId, list[SubscriptionId]], now: float
    ) -> list[Effect]:
        effects: list[Effect] = []
        # One more than there are recipients, so that no answer completes it before all requests are made.
        self._notifying[key] = notification = _Notification(step.origin.id, 1)
        for peer, ids in recipients.items():
            notification.pending += 1
            make = lambda n, ids=ids: Match(n, step.packet, step.axis, tuple(ids))  # noqa: E731
            effects += self._requests.send(peer, make, ("match", *key), now)
        return [*effects, *self.answered(key)]
