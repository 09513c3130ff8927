"""Messages on their way through the space, each carried hop by hop to the zone it is for.

    Carry      an event: matched in every zone it touches, and cut along the tree where it touches several
    Routed     anything else that is meant for whoever holds a point, or for the zones of a box
    Whisper    the same, but said once: what is lost will be said again on schedule

The next hop is chosen by `wayfinding` and has to answer (see `legs`). If it does not, the
way is chosen again from here. A broker without a zone keeps what comes while one is on its
way to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.messages import NodeId, Packet
from tidings.overlay.router import Count, Effect, Failed, Send
from tidings.overlay.spanhop.forwarding import makes_sense
from tidings.overlay.spanhop.legs import Leg
from tidings.overlay.spanhop.messages import (
    DomainAnswer,
    DomainQuery,
    FindPair,
    HopAck,
    IndexPut,
    Join,
    MulticastNotification,
    NearQuery,
    Notification,
    OwnershipProbe,
    Payload,
    PlaceSubscription,
    Routed,
    RoutedDatagram,
    RoutedEvent,
    WrongDomain,
)
from tidings.overlay.spanhop.next_hop import Point, RouteHeader
from tidings.space import Zone, siblings, within

if TYPE_CHECKING:
    from tidings.overlay.spanhop.router import Spanhop

WAITING_MAX = 16_384  # Events and messages kept by a broker that has no zone yet.


class Carrier:
    """One broker's part in bringing messages where they belong."""

    def __init__(self, router: Spanhop) -> None:
        self._router, self._zones, self._way = router, router.zones, router.way
        self.numbers = SeenIds[tuple[NodeId, int]](SEEN_MAX)
        self.waiting: list[Packet | RoutedEvent | Routed] = []

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        """Bring an event to every zone it touches, or keep it until this broker has one of its own."""
        if not self._zones.owned:
            if len(self.waiting) >= WAITING_MAX:
                return [Failed("publish", "too many events wait for this broker to have a zone", packet.header.id)]
            self.waiting.append(packet)
            return []
        return self._spread(packet, self._router.axes.event(packet.view), now)

    def send_to(self, payload: Payload, point: Point, now: float, *, whispers: bool = False) -> list[Effect]:
        """Have something arrive at whoever holds a point, this broker included."""
        route = RouteHeader(point)
        if not self._zones.owned:
            return []
        return self._travel(RoutedDatagram(route, payload) if whispers else Routed(0, route, payload), now)

    def receive(self, sender: NodeId, message: RoutedEvent | Routed, now: float) -> list[Effect]:
        """Take what another broker has sent on its way, answer for it, and carry it on; a repeated one only once."""
        what = message.piece if isinstance(message, RoutedEvent) else message.payload
        if not makes_sense(self._zones, message.route, what):
            return []
        if not self._zones.owned:
            return self._receive_without_zone(sender, message)
        effects = self.answer(sender, message.number)
        if not self.is_new(sender, message.number):
            return effects
        span = message.span
        if span is not None and not any(within(path, span) or within(span, path) for path in self._zones.owned):
            effects.append(Send(sender, WrongDomain(span)))
        return [*effects, *self._travel(message, now)]

    def overhear(self, message: RoutedDatagram, now: float) -> list[Effect]:
        """Carry on what nobody waits for an answer to."""
        is_for_us = self._zones.owned and makes_sense(self._zones, message.route, message.payload)
        return self._travel(message, now) if is_for_us else []

    def answer(self, sender: NodeId, number: int) -> list[Effect]:
        """Say that a numbered message has come, where that is waited for."""
        return [Send(sender, HopAck(number))] if self._router.is_robust else []

    def is_new(self, sender: NodeId, number: int) -> bool:
        """Whether this is the first time that a numbered message has come."""
        return self.numbers.add((sender, number))

    def catch_up(self, now: float) -> list[Effect]:
        """This broker has a zone: send on what has waited for that."""
        waiting, self.waiting = self.waiting, []
        effects: list[Effect] = []
        for message in waiting:
            effects += self.publish(message, now) if isinstance(message, Packet) else self._travel(message, now)
        return effects

    def another_way(self, leg: Leg, now: float) -> list[Effect]:
        """A hop has not answered, or a message was held for a while."""
        message = leg.message
        match message:
            case RoutedEvent() | Routed():
                if not self._zones.owned:
                    return self._way.hold(message, now, leg.rounds + 1)
                return self._retrace(message, now, leg.rounds + 1)
            case Notification(packet=packet, wanted=wanted) if leg.rounds == 0:
                return self._router.notifier.round_about(packet, leg.to, wanted, now)
            case MulticastNotification(packet=packet, targets=targets, trace=trace) if leg.rounds < 2:
                return self._router.notifier.tell(packet, targets, trace[:-1], now, leg.rounds + 1)
        return [Count("given up")]

    # ── Private steps ────────────────────────────────────────────────────────

    def _spread(self, packet: Packet, piece: Zone, now: float, route: RouteHeader | None = None) -> list[Effect]:
        """Match an event where its piece touches a zone held here, and send on the rest, cut along the tree."""
        owned = self._zones.holder(piece)
        if owned is None:
            route = route or self._way.route(piece, None)
            return self._way.go(RoutedEvent(0, route, packet, piece), now)
        effects = self._router.notifier.match(owned, packet, piece, now)
        for path in siblings(owned.path) if piece.meet(owned.zone) != piece else ():
            part = piece.meet(self._zones.space.zone(path))
            if part is not None:
                effects += self._spread(packet, part, now, self._way.route(part, owned))
        return effects

    def _travel(self, message: RoutedEvent | Routed | RoutedDatagram, now: float, rounds: int = 0) -> list[Effect]:
        """A message that has come here: it is at its aim, or one hop nearer."""
        if not self._zones.owned:
            return [Count("lost their way")]
        if isinstance(message, RoutedEvent):
            if self._zones.holder(message.piece) is not None:
                return self._spread(message.packet, message.piece, now)
            return self._way.go(message, now, rounds)
        payload, whispers = message.payload, isinstance(message, RoutedDatagram)
        if isinstance(payload, PlaceSubscription):
            if self._zones.holder(payload.piece) is not None:
                return self._router.sower.sow(payload, now, whispers=whispers)
        elif self._is_here(payload, message.route):
            return self._arrived(payload, message.route, now)
        return self._way.go(message, now, rounds)

    def _is_here(self, payload: Payload, route: RouteHeader) -> bool:
        is_handed = isinstance(payload, Join) and payload.handed
        return is_handed or any(route.destination in owned.zone for owned in self._zones.owned.values())

    def _arrived(self, payload: Payload, route: RouteHeader, now: float) -> list[Effect]:
        match payload:
            case Join():
                return self._router.giver.asked(payload, route.destination, now)
            case FindPair():
                return self._router.mover.sought(payload, route, now)
            case DomainQuery(asker=asker, path=path):
                return [Send(asker.id, DomainAnswer(path, self._router.me))] if asker.id != self._router.me.id else []
            case OwnershipProbe(card=card):
                return self._router.neighbourhood.learn(card, now) if card.peer.id != self._router.me.id else []
            case IndexPut():
                return self._router.proximity.keep(self._zones.nearest(route.destination), payload, now)
            case NearQuery():
                return self._router.proximity.query(self._zones.nearest(route.destination), payload, now)
        return []

    def _receive_without_zone(self, sender: NodeId, message: RoutedEvent | Routed) -> list[Effect]:
        """A zone is on its way here, and this with it; or there is none, and others have to do it."""
        if self._router.taker.taking is None or len(self.waiting) >= WAITING_MAX:
            return [Send(sender, WrongDomain(message.span or ()))]
        if self.is_new(sender, message.number):
            self.waiting.append(message)
        return self.answer(sender, message.number)

    def _retrace(self, message: RoutedEvent | Routed, now: float, rounds: int) -> list[Effect]:
        """Choose again, as if the message had just come here."""
        route = message.route
        if route.trace and route.trace[-1] == self._router.me.id:
            route = RouteHeader(route.destination, route.trace[:-1], route.greedy, route.detour)
        return self._travel(msgspec.structs.replace(message, route=route, span=None), now, rounds)
