"""Which way through a partitioned space: greedy over adjacent zones, and Spanhop over the tables of ancestors.

A broker's zone was cut from larger ones. At every k-th cut (k = log2 m) it kept a copy of
its table of neighbours as it was then: the Ancestor Queue, largest zone first. A neighbour
recorded when zones were large is a long step, so a message takes the first ancestor that
does not contain its aim and goes to the recorded neighbour nearest to it; the last steps go
over the present neighbours.

    B1 ── aim in B16 ──▶ AQ[0] = everything, contains it
                         AQ[1] = {B1 … B4} does not: its neighbours are B5 and B9 ──▶ B9 ──▶ B13 ──▶ … B16

Recorded tables are old. A broker that was near once may have moved to a corner from where
its own table points back, and the published algorithm then goes round for ever. So a
message remembers where it was: whoever sees it again sends it on greedily, for good.
Greedy always ends, because some adjacent zone is nearer whenever the aim is not here.

All here are functions of plain data, the same for a broker, a simulation and a check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from tidings.overlay.messages import NodeId
from tidings.space import Zone

Point: TypeAlias = tuple[int, ...]
Alive: TypeAlias = Callable[[NodeId], bool]


class RoutingEntry(NamedTuple):
    """A broker, the zone it had when it was recorded, and others who may stand in for it, best first."""

    id: NodeId
    zone: Zone
    near: NodeId | None = None  # Of the brokers in that zone the one that is nearest by network.
    others: tuple[NodeId, ...] = ()
    cost: float = 0.0  # How far by network, to choose between equals; 0 if nobody knows.


class Ancestor(NamedTuple):
    """A zone that this broker's zone was cut from, and what was next to it then."""

    zone: Zone
    known: tuple[RoutingEntry, ...]


@dataclass(frozen=True, slots=True)
class RoutingState:
    """Where a broker stands, as far as choosing a way goes."""

    id: NodeId
    zone: Zone
    depth: int  # How many cuts made its zone.
    neighbours: Sequence[RoutingEntry]
    ancestors: Sequence[Ancestor]
    around: int | None = None  # Cells of an axis that is a circle; None if axes have ends.


class RouteHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message's way so far."""

    destination: Point
    trace: tuple[NodeId, ...] = ()
    greedy: bool = False  # It has come round once: greedily from here on.
    detour: bool = False  # No live neighbour was nearer: round the hole, nowhere twice.

    @property
    def hops(self) -> int:
        return len(self.trace)


HopKind: TypeAlias = Literal["here", "ancestor", "neighbour", "detour", "stuck"]


class Hop(NamedTuple):
    """Where to go next (None: it is here, or there is no way), why, and the way so far as the next one gets it."""

    to: NodeId | None
    how: HopKind
    route: RouteHeader


def anyone(id: NodeId) -> bool:
    """Nobody is known to be dead."""
    return True


def next_hop(here: RoutingState, route: RouteHeader, k: int, alive: Alive = anyone) -> Hop:
    """One step of Spanhop. With no ancestors, or a trip that is `greedy`, one step of greedy routing."""
    if route.destination in here.zone:
        return Hop(None, "here", route)
    greedy = route.greedy or here.id in route.trace
    onward = RouteHeader(route.destination, (*route.trace, here.id), greedy, route.detour)
    if not greedy:
        to = next(_by_ancestors(here, route.destination, k, alive), None)
        if to is not None:
            return Hop(to, "ancestor", onward)
    return _greedily(here, onward, alive)


def level_of(ancestors: Sequence[Ancestor], destination: Point) -> int | None:
    """The first ancestor, largest zone first, that does not contain the aim."""
    return next((level for level, each in enumerate(ancestors) if destination not in each.zone), None)


def ranked(
    known: Sequence[RoutingEntry], destination: Point, zone: Zone, around: int | None
) -> list[tuple[int, RoutingEntry]]:
    """Nearest to the aim first, with the distance; among equals by network, then the lower axis, then the smaller id."""
    order = [
        (each.zone.distance(destination, around), each.cost, _axis(zone, each, around), each.id, each) for each in known
    ]
    order.sort(key=lambda row: row[:4])
    return [(row[0], row[4]) for row in order]


def hops_max(zone_count: int, axes: int) -> int:
    """More hops than any way takes in a network of so many zones; a last defence."""
    return int(4 * zone_count.bit_length() + 4 * axes * zone_count ** (1 / axes)) + 8


def _by_ancestors(here: RoutingState, destination: Point, k: int, alive: Alive) -> Iterator[NodeId]:
    """Live brokers one may go to by ancestors: of the largest span that helps first, then smaller ones."""
    first = level_of(here.ancestors, destination)
    if first is None:
        return
    for level in range(first, len(here.ancestors)):
        if level * k == here.depth:
            return  # This entry is the present zone: the present neighbours know better.
        ancestor = here.ancestors[level]
        least = ancestor.zone.distance(destination, here.around)
        for distance, known in ranked(ancestor.known, destination, ancestor.zone, here.around):
            if distance >= least:
                break
            yield from _stand_ins(known, here.id, alive)


def _stand_ins(known: RoutingEntry, me: NodeId, alive: Alive) -> Iterator[NodeId]:
    for id in (known.near, known.id, *known.others):
        if id is not None and id != me and alive(id):
            yield id


def _greedily(here: RoutingState, route: RouteHeader, alive: Alive) -> Hop:
    destination, around = route.destination, here.around
    own = here.zone.distance(destination, around)
    rows = [
        row
        for row in ranked(here.neighbours, destination, here.zone, around)
        if row[1].id != here.id and alive(row[1].id)
    ]
    if route.detour:
        rows = [row for row in rows if row[1].id not in route.trace]
    if not rows:
        return Hop(None, "stuck", route)
    distance, best = rows[0]
    if distance < own or route.detour:
        return Hop(best.id, "detour" if route.detour else "neighbour", route)
    fresh = [known for _, known in rows if known.id not in route.trace]
    onward = RouteHeader(destination, route.trace, True, True)
    return Hop(fresh[0].id, "detour", onward) if fresh else Hop(None, "stuck", onward)


def _axis(zone: Zone, known: RoutingEntry, around: int | None) -> int:
    """The axis on which one leaves `zone` for a neighbour."""
    axis = zone.borders(known.zone, around)
    return len(zone.low) if axis is None else axis
