"""The next hop through a partitioned space: greedy over adjacent zones, and Spanhop over the tables of ancestors.

A broker's zone was cut from larger ones. At every k-th cut (k = log2 m) the broker kept a
snapshot of its neighbour table: the paper's Ancestor Queue, largest zone first. A neighbour
recorded when zones were large is a long step. So a message takes the first ancestor that
does not contain its destination and goes to the recorded neighbour nearest to it; the last
steps go over the present neighbours.

    B1 ── destination in B16 ──▶ AQ[0] = everything, contains it
                                 AQ[1] = {B1 … B4} does not: its neighbours are B5 and B9 ──▶ B9 ──▶ B13 ──▶ … B16

Snapshots grow old. A broker recorded as a neighbour may own a corner now from where its own
table points back, and the published algorithm then loops for ever. Therefore a message
carries its trace, and a broker that sees it a second time switches it to greedy routing for
good. Greedy routing ends, because some adjacent zone is always nearer to a destination that
is not here (SPANHOP-LAW-1).

Everything here is a function of plain data, so that brokers, simulations and checks share it.
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
    """A broker, the zone it owned when it was recorded, and alternates in the same zone, best first."""

    id: NodeId
    zone: Zone
    near: NodeId | None = None  # The broker in that zone that is nearest by network, preferred to `id`.
    others: tuple[NodeId, ...] = ()
    cost: float = 0.0  # Delay by network, to choose between equals; 0 if unknown.


class Ancestor(NamedTuple):
    """A zone that this broker's zone was cut from, and the neighbours recorded for it."""

    zone: Zone
    known: tuple[RoutingEntry, ...]


@dataclass(frozen=True, slots=True)
class RoutingState:
    """All that the choice of a next hop depends on: a broker's zone, its neighbours and the tables of its ancestors."""

    id: NodeId
    zone: Zone
    depth: int  # How many cuts made its zone.
    neighbours: Sequence[RoutingEntry]
    ancestors: Sequence[Ancestor]
    around: int | None = None  # Cells of an axis that is a circle; None if axes have ends.


class RouteHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message's destination, the brokers it has passed, and how it is routed from here on."""

    destination: Point
    trace: tuple[NodeId, ...] = ()
    greedy: bool = False  # It has come to a broker twice: greedy routing from here on.
    detour: bool = False  # No live neighbour was nearer: it goes round the hole and visits no broker twice.

    @property
    def hops(self) -> int:
        return len(self.trace)


HopKind: TypeAlias = Literal["here", "ancestor", "neighbour", "detour", "stuck"]


class Hop(NamedTuple):
    """The next broker (None: the message has arrived, or is stuck), why it was chosen, and the header to send on."""

    to: NodeId | None
    how: HopKind
    route: RouteHeader


def anyone(id: NodeId) -> bool:
    """Takes every broker for alive."""
    return True


def next_hop(here: RoutingState, route: RouteHeader, k: int, alive: Alive = anyone) -> Hop:
    """One step of Spanhop. Without ancestors, or with a header that is `greedy`, one step of greedy routing."""
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
    """The first ancestor, largest zone first, that does not contain the destination."""
    return next((level for level, each in enumerate(ancestors) if destination not in each.zone), None)


def ranked(
    known: Sequence[RoutingEntry], destination: Point, zone: Zone, around: int | None
) -> list[tuple[int, RoutingEntry]]:
    """Entries with their distance, nearest first; equals by delay, then the lower axis, then the smaller id."""
    order = [
        (each.zone.distance(destination, around), each.cost, _axis(zone, each, around), each.id, each) for each in known
    ]
    order.sort(key=lambda row: row[:4])
    return [(row[0], row[4]) for row in order]


def hops_max(zone_count: int, axes: int) -> int:
    """More hops than any route takes in a network of so many zones; the last defence against loops."""
    return int(4 * zone_count.bit_length() + 4 * axes * zone_count ** (1 / axes)) + 8


def _by_ancestors(here: RoutingState, destination: Point, k: int, alive: Alive) -> Iterator[NodeId]:
    """Live next hops from the tables of ancestors: of the largest span that helps first, then of smaller ones."""
    first = level_of(here.ancestors, destination)
    if first is None:
        return
    for level in range(first, len(here.ancestors)):
        if level * k == here.depth:
            return  # This entry is the present zone, and the present neighbours are more up to date.
        ancestor = here.ancestors[level]
        least = ancestor.zone.distance(destination, here.around)
        for distance, known in ranked(ancestor.known, destination, ancestor.zone, here.around):
            if distance >= least:
                break
            yield from _candidates(known, here.id, alive)


def _candidates(known: RoutingEntry, me: NodeId, alive: Alive) -> Iterator[NodeId]:
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
    """The axis on which `zone` and a neighbour touch."""
    axis = zone.borders(known.zone, around)
    return len(zone.low) if axis is None else axis
