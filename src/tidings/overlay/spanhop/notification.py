"""From the zone of an event to those who want it.

    unicast     a message to each home, straight
    multicast   along the space: one copy to each next hop for all homes that lie that way

A home that does not answer is sought round about, at the point where it was when it
subscribed; whoever holds that point sends straight on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.messages import EventId, NodeId, Packet, SubscriptionId
from tidings.overlay.router import Count, Deliver, Effect
from tidings.overlay.spanhop.legs import Legs
from tidings.overlay.spanhop.messages import MulticastNotification, Notification, Target
from tidings.overlay.spanhop.next_hop import RouteHeader
from tidings.overlay.spanhop.zone_ownership import OwnedZone
from tidings.space import Path, Zone

if TYPE_CHECKING:
    from tidings.overlay.spanhop.router import Spanhop


class Notifier:
    """One broker's part in telling homes of events."""

    def __init__(self, router: Spanhop, legs: Legs, *, multicast: bool) -> None:
        self._router, self._legs, self._is_multicast = router, legs, multicast
        self.delivered = SeenIds[EventId](SEEN_MAX)
        self.matched = SeenIds[tuple[EventId, Path]](SEEN_MAX)

    def match(self, owned: OwnedZone, packet: Packet, piece: Zone, now: float) -> list[Effect]:
        """Tell every home that has a subscription in this zone for the event, each once."""
        if not self.matched.add((packet.header.id, owned.path)):
            return []
        owned.note(piece.low)
        targets: dict[NodeId, Target] = {}
        for id, kept in owned.records.items():
            if kept.record.interest.matches(packet):
                record = kept.record
                known = targets.get(record.home.id)
                wanted = (*known.wanted, id) if known else (id,)
                targets[record.home.id] = Target(record.home, record.home_point, wanted)
        if self._is_multicast:
            return self.tell(packet, tuple(targets.values()), (), now)
        return [effect for target in targets.values() for effect in self._notify(packet, target, now)]

    def tell(
        self, packet: Packet, targets: tuple[Target, ...], trace: tuple[NodeId, ...], now: float, rounds: int = 0
    ) -> list[Effect]:
        """One copy to each next hop for all homes that lie that way; straight on from where a home should be."""
        effects: list[Effect] = []
        ways: dict[NodeId, list[Target]] = {}
        for target in targets:
            to = None if target.home.id == self._router.me.id else self._way_to(target, trace)
            if to is None:
                effects += self._notify(packet, target, now, rounds=1)
            else:
                ways.setdefault(to, []).append(target)
        for to, those in ways.items():
            message = MulticastNotification(self._legs.number(), packet, tuple(those), (*trace, self._router.me.id))
            effects += self._legs.send(to, message, now, rounds)
        return effects

    def round_about(self, packet: Packet, home: NodeId, wanted: tuple[SubscriptionId, ...], now: float) -> list[Effect]:
        """A home does not answer: perhaps others can reach it."""
        kept = (owned.records.get(id) for owned in self._router.zones.owned.values() for id in wanted)
        record = next((each.record for each in kept if each is not None and each.record.home.id == home), None)
        if record is None:
            return [Count("given up")]
        return self.tell(packet, (Target(record.home, record.home_point, wanted),), (), now, rounds=1)

    def deliver(self, packet: Packet) -> list[Effect]:
        """To this broker's own subscribers, if any of them may want it, once."""
        wanted = any(not own.gone and own.interest.matches(packet) for own in self._router.planter.own.values())
        return [Deliver(packet)] if wanted and self.delivered.add(packet.header.id) else []

    def _notify(self, packet: Packet, target: Target, now: float, rounds: int = 0) -> list[Effect]:
        if target.home.id == self._router.me.id:
            return self.deliver(packet)
        message = Notification(self._legs.number(), packet, target.wanted)
        return self._legs.send(target.home.id, message, now, rounds)

    def _way_to(self, target: Target, trace: tuple[NodeId, ...]) -> NodeId | None:
        return self._router.way.next(RouteHeader(target.point, trace))
