"""Forwarding: messages go hop by hop to the zone they are for, and each hop is acknowledged.

    RoutedEvent      an event; matched in every zone it touches, and split along the K-D tree where it touches several
    Routed           a control payload for the owner of a point, or for the zones of a box
    RoutedDatagram   the same, sent once: the sender repeats it periodically

`HopRetransmitter` hands a message to the next hop and retransmits it until the hop
acknowledges it; after a few tries it gives the message back. `Forwarder` chooses the hop
(see `next_hop`), and then the next best one if the first fails. Where there is no hop at
all, because a zone has lost its owner, the message is held for a while: a neighbour takes
the zone over. A broker that is about to receive a zone queues what arrives for it.

What happens to a message in the zone it is for is up to a `ZoneHandler`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from tidings.overlay.dedup import SEEN_MAX, SeenIds
from tidings.overlay.messages import NodeId, Packet
from tidings.overlay.retransmit import Backoff, Pending, RetransmitQueue
from tidings.overlay.router import Count, Effect, Failed, Send, WakeAt
from tidings.overlay.spanhop.messages import (
    DomainQuery,
    HopAck,
    IndexPut,
    Join,
    LocatedHopAck,
    NearQuery,
    OwnershipProbe,
    Payload,
    PlaceSubscription,
    Routed,
    RoutedDatagram,
    RoutedEvent,
    WrongDomain,
)
from tidings.overlay.spanhop.next_hop import Alive, Hop, Point, RouteHeader, RoutingState, hops_max, next_hop
from tidings.overlay.spanhop.quantisation import Quantiser
from tidings.overlay.spanhop.zone_ownership import OwnedZone, ZoneTable
from tidings.space import Path, Space, Zone, siblings, within

TRIES_MAX = 4  # For one hop, with waits of 1, 2, 4 and 8 times `answer_s`.
ROUNDS_MAX = 4  # Hops given up, or waits for a takeover, before a message is given up.
UNACKNOWLEDGED_MAX = 65_536  # The oldest are given up.
WAITING_MAX = 16_384  # Events and messages queued by a broker that has no zone yet.
DEPTH_MAX = 20  # For the limit of hops: a million zones.

Mode: TypeAlias = Literal["spanhop", "together", "greedy"]


class HopRetransmitter:
    """A broker's numbered messages that the next hop has not acknowledged.

    Each is pending under its number; `Pending.about` counts the rounds, that is, how often
    another hop was sought for it. A message that is held has no receiver (`Pending.to` is
    empty) and comes back once its wait is over. Not `reliable`: sends once and keeps nothing.
    """

    def __init__(self, *, answer_s: float, first: int, reliable: bool = True) -> None:
        self.answer_s, self.reliable = answer_s, reliable
        self._queue = RetransmitQueue[int](Backoff(answer_s, TRIES_MAX), at_most=UNACKNOWLEDGED_MAX)
        self._number = first

    def __len__(self) -> int:
        return len(self._queue)

    def next_number(self) -> int:
        """A number that no other message of this broker has."""
        self._number += 1
        return self._number

    def send(self, to: NodeId, message: Any, now: float, rounds: int = 0) -> list[Effect]:
        """Send a numbered message, and again until it is acknowledged."""
        if not self.reliable:
            return [Send(to, message)]
        due = self._queue.add(message.number, to, message, now, about=rounds)
        return [Send(to, message), WakeAt(due, ("leg", message.number, 1))]

    def hold(self, message: Any, now: float, rounds: int) -> list[Effect]:
        """Keep a message for which there is no next hop now; after too many rounds, give it up."""
        if rounds >= ROUNDS_MAX or not self.reliable:
            return [Count("given up")]
        self._queue.add(message.number, "", message, now, about=rounds, tries_max=1)
        pending = self._queue.get(message.number)
        assert pending is not None
        pending.due = now + 2 * self.answer_s * 2**rounds
        return [Count("held"), WakeAt(pending.due, ("leg", message.number, 1))]

    def acknowledge(self, number: int, sender: NodeId) -> None:
        """The next hop has the message."""
        self._queue.acknowledge(number, sender)

    def overdue(self, number: int, tries: int, now: float) -> tuple[list[Effect], Pending[int] | None]:
        """Retransmit what was not acknowledged in time; or give it back, after the last try."""
        pending = self._queue.get(number)
        if pending is None or pending.tries != tries:
            return [], None
        due = self._queue.retry(number, now)
        if due is None:
            return [], pending
        return [Send(pending.to, pending.message), WakeAt(due, ("leg", number, pending.tries))], None

    def take_back(self, peer: NodeId) -> list[Pending[int]]:
        """Everything that was sent to a broker that is gone; it is no longer pending."""
        return self._queue.take_back(peer)

    def bounced(self, to: NodeId, message: Any) -> Pending[int] | None:
        """Take back one message that the driver could not deliver; one that was not kept is in its first round."""
        if not self.reliable:
            return Pending(message.number, to, message, due=0.0, tries_max=1, about=0)
        return self._queue.acknowledge(message.number, to)


class ZoneHandler(Protocol):
    """What becomes of messages that have arrived in an owned zone."""

    def match_event(self, owned: OwnedZone, packet: Packet, piece: Zone, now: float) -> list[Effect]:
        """An event touches an owned zone."""

    def place_subscription(self, request: PlaceSubscription, now: float, *, reliable: bool) -> list[Effect]:
        """A subscription touches an owned zone; it may touch others, too."""

    def receive_payload(self, payload: Payload, route: RouteHeader, now: float) -> list[Effect]:
        """Any other payload has reached the owner of its destination."""

    def is_receiving_zone(self) -> bool:
        """Whether a zone is on its way to this broker."""


class Forwarder:
    """One broker's part in bringing messages to their zones."""

    def __init__(
        self,
        zones: ZoneTable,
        hops: HopRetransmitter,
        quantiser: Quantiser,
        handler: ZoneHandler,
        *,
        mode: Mode,
        alive: Alive,
    ) -> None:
        self._zones, self._hops, self._quantiser, self._handler = zones, hops, quantiser, handler
        self._mode, self._alive = mode, alive
        self.numbers = SeenIds[tuple[NodeId, int]](SEEN_MAX)
        self.waiting: list[Packet | RoutedEvent | Routed] = []

    # ── Sending ──────────────────────────────────────────────────────────────

    def publish(self, packet: Packet, now: float) -> list[Effect]:
        """Bring an event to every zone it touches, or queue it until this broker has a zone of its own."""
        if not self._zones.owned:
            if len(self.waiting) >= WAITING_MAX:
                return [Failed("publish", "too many events wait for this broker to have a zone", packet.header.id)]
            self.waiting.append(packet)
            return []
        return self._spread(packet, self._quantiser.event(packet.view), now)

    def send_to(self, payload: Payload, point: Point, now: float, *, reliable: bool = True) -> list[Effect]:
        """Route a payload to the owner of a point, which may be this broker."""
        if not self._zones.owned:
            return []
        route = RouteHeader(point)
        return self._process(Routed(0, route, payload) if reliable else RoutedDatagram(route, payload), now)

    def send_on(self, payload: Payload, route: RouteHeader, now: float, *, reliable: bool = True) -> list[Effect]:
        """Send a payload one hop further."""
        return self._forward(Routed(0, route, payload) if reliable else RoutedDatagram(route, payload), now)

    def send_queued(self, now: float) -> list[Effect]:
        """This broker has a zone now: send what was queued until then."""
        waiting, self.waiting = self.waiting, []
        effects: list[Effect] = []
        for message in waiting:
            effects += self.publish(message, now) if isinstance(message, Packet) else self._process(message, now)
        return effects

    def route_to(self, piece: Zone, owned: OwnedZone | None) -> RouteHeader:
        """The header of a message to the point of a piece that is nearest to an owned zone."""
        here = owned or self._zones.nearest(piece.low)
        return RouteHeader(piece.facing(here.zone, self._zones.around))

    def next_hop(self, route: RouteHeader) -> NodeId | None:
        """The next broker on the way to a point; None if the point is here or cannot be reached."""
        zones = self._zones
        if not zones.owned or not is_point(zones.space, route.destination) or route.hops > self._hops_max():
            return None
        return self._choose(zones.routing_state(zones.nearest(route.destination)), route).to

    # ── Receiving ────────────────────────────────────────────────────────────

    def receive(self, sender: NodeId, message: RoutedEvent | Routed, now: float) -> list[Effect]:
        """Acknowledge a message and process it; a repeated one is only acknowledged again."""
        content = message.piece if isinstance(message, RoutedEvent) else message.payload
        if not is_valid(self._zones, message.route, content):
            return []
        if not self._zones.owned:
            return self._receive_without_zone(sender, message)
        effects = self.acknowledgement(sender, message.number, by_table=message.span is not None)
        if not self.is_new(sender, message.number):
            return effects
        span = message.span
        if span is not None and not any(within(path, span) or within(span, path) for path in self._zones.owned):
            effects.append(Send(sender, WrongDomain(span)))
        return [*effects, *self._process(message, now)]

    def receive_datagram(self, message: RoutedDatagram, now: float) -> list[Effect]:
        """Process a message that nobody wants acknowledged."""
        is_usable = self._zones.owned and is_valid(self._zones, message.route, message.payload)
        return self._process(message, now) if is_usable else []

    def acknowledgement(self, sender: NodeId, number: int, *, by_table: bool = False) -> list[Effect]:
        """The acknowledgement of a numbered message, if hops are acknowledged.

        Where all tables are used together, a sender that found this broker in one of them learns where it is now.
        """
        if not self._hops.reliable:
            return []
        if by_table and self._mode == "together":
            return [Send(sender, LocatedHopAck(number, self._zones.own_paths()))]
        return [Send(sender, HopAck(number))]

    def is_new(self, sender: NodeId, number: int) -> bool:
        """Whether a numbered message has come for the first time."""
        return self.numbers.add((sender, number))

    def reroute(self, message: RoutedEvent | Routed, now: float, rounds: int) -> list[Effect]:
        """Choose another hop for a message, as if it had just arrived here."""
        if not self._zones.owned:
            return self._hold(message, now, rounds)
        route = message.route
        if route.trace and route.trace[-1] == self._zones.me.id:
            route = RouteHeader(route.destination, route.trace[:-1], route.greedy, route.detour)
        return self._process(msgspec.structs.replace(message, route=route, span=None), now, rounds)

    # ── Private steps ────────────────────────────────────────────────────────

    def _spread(self, packet: Packet, piece: Zone, now: float, route: RouteHeader | None = None) -> list[Effect]:
        """Match an event in an owned zone that its piece touches, and forward the rest, split along the tree."""
        owned = self._zones.touching(piece)
        if owned is None:
            route = route or self.route_to(piece, None)
            return self._forward(RoutedEvent(0, route, packet, piece), now)
        effects = self._handler.match_event(owned, packet, piece, now)
        for path in siblings(owned.path) if piece.meet(owned.zone) != piece else ():
            part = piece.meet(self._zones.space.zone(path))
            if part is not None:
                effects += self._spread(packet, part, now, self.route_to(part, owned))
        return effects

    def _process(self, message: RoutedEvent | Routed | RoutedDatagram, now: float, rounds: int = 0) -> list[Effect]:
        """Handle a message that is at its destination, or send it one hop nearer."""
        if not self._zones.owned:
            return [Count("lost their way")]
        if isinstance(message, RoutedEvent):
            if self._zones.touching(message.piece) is not None:
                return self._spread(message.packet, message.piece, now)
            return self._forward(message, now, rounds)
        payload, reliable = message.payload, isinstance(message, Routed)
        if isinstance(payload, PlaceSubscription):
            if self._zones.touching(payload.piece) is not None:
                return self._handler.place_subscription(payload, now, reliable=reliable)
        elif self._has_arrived(payload, message.route):
            return self._handler.receive_payload(payload, message.route, now)
        return self._forward(message, now, rounds)

    def _has_arrived(self, payload: Payload, route: RouteHeader) -> bool:
        is_redirected = isinstance(payload, Join) and payload.redirected
        return is_redirected or any(route.destination in owned.zone for owned in self._zones.owned.values())

    def _forward(self, message: RoutedEvent | Routed | RoutedDatagram, now: float, rounds: int = 0) -> list[Effect]:
        """Send a message one hop nearer to its destination."""
        route = message.route
        if route.hops > self._hops_max():
            return [Count("lost their way")]
        owned = self._zones.nearest(route.destination)
        hop = self._choose(self._zones.routing_state(owned), route)
        if hop.to is None:
            return self._hold(message, now, rounds)
        if isinstance(message, RoutedDatagram):
            return [Send(hop.to, RoutedDatagram(hop.route, message.payload))]
        span = _span(owned, hop.to) if hop.how == "ancestor" else None
        number = self._hops.next_number()
        onward = msgspec.structs.replace(message, number=number, route=hop.route, span=span)
        return [Count(hop.how), *self._hops.send(hop.to, onward, now, rounds)]

    def _choose(self, state: RoutingState, route: RouteHeader) -> Hop:
        if self._mode == "greedy" and not route.greedy:
            route = RouteHeader(route.destination, route.trace, True, route.detour)
        return next_hop(state, route, self._zones.k, self._alive, together=self._mode == "together")

    def _hold(self, message: RoutedEvent | Routed | RoutedDatagram, now: float, rounds: int) -> list[Effect]:
        """Try again later from the beginning; drop a datagram, which its sender repeats anyway."""
        if isinstance(message, RoutedDatagram):
            return []
        fresh = RouteHeader(message.route.destination)
        held = msgspec.structs.replace(message, number=self._hops.next_number(), route=fresh)
        return self._hops.hold(held, now, rounds)

    def _receive_without_zone(self, sender: NodeId, message: RoutedEvent | Routed) -> list[Effect]:
        """Queue a message for a zone that is on its way here; if there is none, have the sender go elsewhere."""
        if not self._handler.is_receiving_zone() or len(self.waiting) >= WAITING_MAX:
            return [Send(sender, WrongDomain(message.span or ()))]
        if self.is_new(sender, message.number):
            self.waiting.append(message)
        return self.acknowledgement(sender, message.number)

    def _hops_max(self) -> int:
        depth = max((len(path) for path in self._zones.owned), default=0) + 2
        return hops_max(1 << min(depth, DEPTH_MAX), self._zones.space.axes)


def _span(owned: OwnedZone, to: NodeId) -> Path | None:
    """The recorded zone for which a broker was chosen from the tables of ancestors."""
    entries = (entry for table in owned.ancestors for entry in table)
    return next((entry.path for entry in entries if entry.peer.id == to), None)


# ── Validation ───────────────────────────────────────────────────────────────


def is_valid(zones: ZoneTable, route: RouteHeader, content: Zone | Payload) -> bool:
    """Whether all that a message from a peer names lies in this space."""
    space = zones.space
    if not is_point(space, route.destination):
        return False
    match content:
        case Zone():
            return is_box(space, content)
        case PlaceSubscription(piece=piece):
            return is_box(space, piece)
        case DomainQuery(path=path):
            return space.has(path)
        case OwnershipProbe(advert=advert):
            return zones.is_valid(advert)
        case IndexPut(path=path, at=at):
            return space.has(path) and len(at) == space.axes
        case NearQuery(path=path, at=at, point=point, pending=pending):
            has_coordinates = space.has(path) and len(at) == space.axes
            return has_coordinates and is_point(space, point) and all(is_point(space, zone.point) for zone in pending)
    return True


def is_point(space: Space, point: Sequence[int]) -> bool:
    """Whether a point lies in a space."""
    return len(point) == space.axes and all(0 <= at < space.side for at in point)


def is_box(space: Space, zone: Zone) -> bool:
    """Whether a box is one, and lies in a space."""
    return len(zone.low) == len(zone.high) == space.axes and all(
        0 <= low < high <= space.side for low, high in zip(zone.low, zone.high)
    )
