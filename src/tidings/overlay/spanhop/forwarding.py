"""A broker's messages on their way: the next hop of each, held where there is none, and sense in what peers send.

Which way is `ancestors`' to say, who is where `claims`', and `legs` sees to it that a hop
is taken; here they meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from tidings.overlay.messages import NodeId
from tidings.overlay.router import Count, Effect, Send
from tidings.overlay.spanhop.legs import Legs
from tidings.overlay.spanhop.messages import (
    DomainQuery,
    IndexPut,
    NearQuery,
    OwnershipProbe,
    Payload,
    PlaceSubscription,
    Routed,
    RoutedDatagram,
    RoutedEvent,
)
from tidings.overlay.spanhop.next_hop import Alive, Hop, RouteHeader, RoutingState, hops_max, next_hop
from tidings.overlay.spanhop.zone_ownership import OwnedZone, ZoneTable
from tidings.space import Path, Space, Zone

DEPTH_MAX = 20  # For the limit of hops: a million zones.

Mode: TypeAlias = Literal["spanhop", "greedy"]


class Wayfinder:
    """Sends one broker's messages towards their aims."""

    def __init__(self, zones: ZoneTable, legs: Legs, *, mode: Mode, alive: Alive) -> None:
        self._zones, self._legs, self._mode, self._alive = zones, legs, mode, alive

    def route(self, piece: Zone, owned: OwnedZone | None) -> RouteHeader:
        """A way to the point of a piece that is nearest to a zone held here."""
        here = owned or self._zones.nearest(piece.low)
        return RouteHeader(piece.facing(here.zone, self._zones.around))

    def send_on(self, payload: Payload, route: RouteHeader, now: float, *, whispers: bool = False) -> list[Effect]:
        """Send anything but an event."""
        return self.go(RoutedDatagram(route, payload) if whispers else Routed(0, route, payload), now)

    def go(self, message: RoutedEvent | Routed | RoutedDatagram, now: float, rounds: int = 0) -> list[Effect]:
        """One step of a message towards its aim."""
        route = message.route
        if route.hops > self._hops_max():
            return [Count("lost their way")]
        owned = self._zones.nearest(route.destination)
        hop = self._next_hop(self._zones.routing_state(owned), route)
        if hop.to is None:
            return self.hold(message, now, rounds)
        if isinstance(message, RoutedDatagram):
            return [Send(hop.to, RoutedDatagram(hop.route, message.payload))]
        span = self._span(owned, hop.to) if hop.how == "ancestor" else None
        number = self._legs.number()
        onward = msgspec.structs.replace(message, number=number, route=hop.route, span=span)
        return [Count(hop.how), *self._legs.send(hop.to, onward, now, rounds)]

    def next(self, route: RouteHeader) -> NodeId | None:
        """Who is next on the way to a point; None where this is the place, or there is no way."""
        zones = self._zones
        if not zones.owned or not is_point(zones.space, route.destination) or route.hops > self._hops_max():
            return None
        return self._next_hop(zones.routing_state(zones.nearest(route.destination)), route).to

    def hold(self, message: RoutedEvent | Routed | RoutedDatagram, now: float, rounds: int) -> list[Effect]:
        """There is no way now: try again later; what is said on schedule will be said again anyway."""
        if isinstance(message, RoutedDatagram):
            return []
        fresh = RouteHeader(message.route.destination)
        owned = msgspec.structs.replace(message, number=self._legs.number(), route=fresh)
        return self._legs.hold(owned, now, rounds)

    def _next_hop(self, routing_state: RoutingState, route: RouteHeader) -> Hop:
        if self._mode == "greedy" and not route.greedy:
            route = RouteHeader(route.destination, route.trace, True, route.detour)
        return next_hop(routing_state, route, self._zones.k, self._alive)

    def _span(self, owned: OwnedZone, to: NodeId) -> Path | None:
        """In whose name somebody was chosen from the tables of ancestors."""
        plots = (entry for table in owned.ancestors for entry in table)
        return next((entry.path for entry in plots if entry.peer.id == to), None)

    def _hops_max(self) -> int:
        depth = max((len(path) for path in self._zones.owned), default=0) + 2
        return hops_max(1 << min(depth, DEPTH_MAX), self._zones.space.axes)


def makes_sense(zones: ZoneTable, route: RouteHeader, what: Zone | Payload) -> bool:
    """Whether what a peer sent lies in this space."""
    space = zones.space
    if not is_point(space, route.destination):
        return False
    match what:
        case Zone():
            return is_box(space, what)
        case PlaceSubscription(piece=piece):
            return is_box(space, piece)
        case DomainQuery(path=path):
            return space.has(path)
        case OwnershipProbe(card=card):
            return zones.fits(card)
        case IndexPut(path=path, at=at):
            return space.has(path) and len(at) == space.axes
        case NearQuery(path=path, at=at, point=point, waiting=waiting):
            is_place = space.has(path) and len(at) == space.axes
            return is_place and is_point(space, point) and all(is_point(space, zone.point) for zone in waiting)
    return True


def is_point(space: Space, point: Sequence[int]) -> bool:
    """Whether a point lies in a space."""
    return len(point) == space.axes and all(0 <= at < space.side for at in point)


def is_box(space: Space, zone: Zone) -> bool:
    """Whether a box lies in a space, and is one."""
    return len(zone.low) == len(zone.high) == space.axes and all(
        0 <= low < high <= space.side for low, high in zip(zone.low, zone.high)
    )
