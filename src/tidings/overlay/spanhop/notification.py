"""Notification: from the zone of an event to the home brokers of the subscriptions that match it.

    unicast     one message straight to each home
    multicast   along the space: one copy to each next hop for all homes that lie that way

A home that does not acknowledge is sought along the space, at a point of the zone it owned
when it subscribed; the owner of that point sends straight on.
"""

from __future__ import annotations

from tidings.overlay.crowding import with_too_many
from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.messages import EventId, NodeId, Packet, SubscriptionId
from tidings.overlay.retransmit import Pending
from tidings.overlay.router import Count, Deliver, Effect
from tidings.overlay.spanhop.forwarding import Forwarder, HopRetransmitter
from tidings.overlay.spanhop.messages import MulticastNotification, Notification, Target
from tidings.overlay.spanhop.next_hop import RouteHeader
from tidings.overlay.spanhop.subscription_placement import HomeSubscriptions
from tidings.overlay.spanhop.zone_ownership import OwnedZone, ZoneTable
from tidings.space import Path, Zone

NAMED_MAX = 64  # Subscriptions of one home that a notification names; the home itself looks whom an event is for.
MULTICAST_ROUNDS_MAX = 2  # Next hops that may fail before a multicast copy is given up.


class Notifier:
    """One broker's part in notifying home brokers of events."""

    def __init__(
        self,
        zones: ZoneTable,
        hops: HopRetransmitter,
        forwarder: Forwarder,
        home: HomeSubscriptions,
        *,
        multicast: bool,
    ) -> None:
        self._zones, self._hops, self._forwarder, self._home = zones, hops, forwarder, home
        self._is_multicast = multicast
        self.delivered = SeenIds[EventId](SEEN_MAX)
        self.matched = SeenIds[tuple[EventId, Path]](SEEN_MAX)

    def match(self, owned: OwnedZone, packet: Packet, piece: Zone, now: float) -> list[Effect]:
        """Notify every home that has a matching subscription in this zone, each once."""
        if not self.matched.add((packet.header.id, owned.path)):
            return []
        owned.record_event(piece.low)
        targets: dict[NodeId, Target] = {}
        many = self._homes_with_many(owned, packet)
        for id, stored in owned.records.items():
            record = stored.record
            known = targets.get(record.home.id)
            if known is not None and len(known.subscriptions) >= NAMED_MAX:
                continue
            is_wanted = record.interest.type == packet.header.type if record.home.id in many else None
            if is_wanted or (is_wanted is None and record.interest.matches(packet)):
                subscriptions = (*known.subscriptions, id) if known else (id,)
                targets[record.home.id] = Target(record.home, record.home_point, subscriptions)
        if self._is_multicast:
            return self.multicast(packet, tuple(targets.values()), (), now)
        return [effect for target in targets.values() for effect in self._notify(packet, target, now)]

    def _homes_with_many(self, owned: OwnedZone, packet: Packet) -> frozenset[NodeId]:
        """Homes with so many subscriptions to the type that they get all events of it: comparing costs too much."""
        records = (each.record for each in owned.records.values())
        of_type = [(r.home.id, r.interest) for r in records if r.interest.type == packet.header.type]
        return with_too_many(of_type)

    def multicast(
        self, packet: Packet, targets: tuple[Target, ...], trace: tuple[NodeId, ...], now: float, rounds: int = 0
    ) -> list[Effect]:
        """Send one copy to each next hop for all homes that lie that way; straight on from where a home should be."""
        me = self._zones.me.id
        effects: list[Effect] = []
        by_hop: dict[NodeId, list[Target]] = {}
        for target in targets:
            to = None if target.home.id == me else self._forwarder.next_hop(RouteHeader(target.point, trace))
            if to is None:
                effects += self._notify(packet, target, now, rounds=1)
            else:
                by_hop.setdefault(to, []).append(target)
        for to, those in by_hop.items():
            message = MulticastNotification(self._hops.next_number(), packet, tuple(those), (*trace, me))
            effects += self._hops.send(to, message, now, rounds)
        return effects

    def reroute(self, failed: Pending[int], now: float) -> list[Effect]:
        """Find another way for a notification that its receiver did not acknowledge."""
        rounds: int = failed.about
        match failed.message:
            case Notification(packet=packet, subscriptions=subscriptions) if rounds == 0:
                return self._seek_home(packet, failed.to, subscriptions, now)
            case MulticastNotification(packet=packet, targets=targets, trace=trace) if rounds < MULTICAST_ROUNDS_MAX:
                return self.multicast(packet, targets, trace[:-1], now, rounds + 1)
        return [Count("given up")]

    def deliver(self, packet: Packet) -> list[Effect]:
        """Deliver an event to this broker's own subscribers, if one of them may want it, once."""
        wanted = any(not own.deleted and own.interest.matches(packet) for own in self._home.own.values())
        return [Deliver(packet)] if wanted and self.delivered.add(packet.header.id) else []

    def _seek_home(
        self, packet: Packet, home: NodeId, subscriptions: tuple[SubscriptionId, ...], now: float
    ) -> list[Effect]:
        """Reach a home along the space, which does not acknowledge what it is sent directly."""
        stored = (owned.records.get(id) for owned in self._zones.owned.values() for id in subscriptions)
        record = next((each.record for each in stored if each is not None and each.record.home.id == home), None)
        if record is None:
            return [Count("given up")]
        target = Target(record.home, record.home_point, subscriptions)
        return self.multicast(packet, (target,), (), now, rounds=1)

    def _notify(self, packet: Packet, target: Target, now: float, rounds: int = 0) -> list[Effect]:
        if target.home.id == self._zones.me.id:
            return self.deliver(packet)
        message = Notification(self._hops.next_number(), packet, target.subscriptions)
        return self._hops.send(target.home.id, message, now, rounds)
