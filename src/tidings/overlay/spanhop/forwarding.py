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
    Cargo,
    Carry,
    DomainQuery,
    IndexPut,
    NearQuery,
    Patrol,
    Plant,
    Routed,
    Whisper,
)
from tidings.overlay.spanhop.next_hop import Alive, Hop, Standing, Trip, hops_max, next_hop
from tidings.overlay.spanhop.zone_ownership import Atlas, Held
from tidings.space import Path, Space, Zone

DEPTH_MAX = 20  # For the limit of hops: a million zones.

Mode: TypeAlias = Literal["spanhop", "greedy"]


class Wayfinder:
    """Sends one broker's messages towards their aims."""

    def __init__(self, atlas: Atlas, legs: Legs, *, mode: Mode, alive: Alive) -> None:
        self._atlas, self._legs, self._mode, self._alive = atlas, legs, mode, alive

    def trip(self, piece: Zone, held: Held | None) -> Trip:
        """A way to the point of a piece that is nearest to a zone held here."""
        here = held or self._atlas.nearest(piece.low)
        return Trip(piece.facing(here.zone, self._atlas.around))

    def send_on(self, cargo: Cargo, trip: Trip, now: float, *, whispers: bool = False) -> list[Effect]:
        """Send anything but an event."""
        return self.go(Whisper(trip, cargo) if whispers else Routed(0, trip, cargo), now)

    def go(self, message: Carry | Routed | Whisper, now: float, rounds: int = 0) -> list[Effect]:
        """One step of a message towards its aim."""
        trip = message.trip
        if trip.hops > self._hops_max():
            return [Count("lost their way")]
        held = self._atlas.nearest(trip.aim)
        hop = self._next_hop(self._atlas.standing(held), trip)
        if hop.to is None:
            return self.hold(message, now, rounds)
        if isinstance(message, Whisper):
            return [Send(hop.to, Whisper(hop.trip, message.cargo))]
        span = self._span(held, hop.to) if hop.how == "ancestor" else None
        number = self._legs.number()
        onward = msgspec.structs.replace(message, number=number, trip=hop.trip, span=span)
        return [Count(hop.how), *self._legs.send(hop.to, onward, now, rounds)]

    def next(self, trip: Trip) -> NodeId | None:
        """Who is next on the way to a point; None where this is the place, or there is no way."""
        atlas = self._atlas
        if not atlas.held or not is_point(atlas.space, trip.aim) or trip.hops > self._hops_max():
            return None
        return self._next_hop(atlas.standing(atlas.nearest(trip.aim)), trip).to

    def hold(self, message: Carry | Routed | Whisper, now: float, rounds: int) -> list[Effect]:
        """There is no way now: try again later; what is said on schedule will be said again anyway."""
        if isinstance(message, Whisper):
            return []
        fresh = Trip(message.trip.aim)
        held = msgspec.structs.replace(message, number=self._legs.number(), trip=fresh)
        return self._legs.hold(held, now, rounds)

    def _next_hop(self, standing: Standing, trip: Trip) -> Hop:
        if self._mode == "greedy" and not trip.greedy:
            trip = Trip(trip.aim, trip.trace, True, trip.detour)
        return next_hop(standing, trip, self._atlas.k, self._alive)

    def _span(self, held: Held, to: NodeId) -> Path | None:
        """In whose name somebody was chosen from the tables of ancestors."""
        plots = (plot for table in held.ancestors for plot in table)
        return next((plot.path for plot in plots if plot.peer.id == to), None)

    def _hops_max(self) -> int:
        depth = max((len(path) for path in self._atlas.held), default=0) + 2
        return hops_max(1 << min(depth, DEPTH_MAX), self._atlas.space.axes)


def makes_sense(atlas: Atlas, trip: Trip, what: Zone | Cargo) -> bool:
    """Whether what a peer sent lies in this space."""
    space = atlas.space
    if not is_point(space, trip.aim):
        return False
    match what:
        case Zone():
            return is_box(space, what)
        case Plant(piece=piece):
            return is_box(space, piece)
        case DomainQuery(path=path):
            return space.has(path)
        case Patrol(card=card):
            return atlas.fits(card)
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
