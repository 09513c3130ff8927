"""What must be true of every run, whatever the protocol, the workload and the faults.

Each check reads a trace, or the world, and raises CheckFailed with what it found wrong.
None of them knows how the run came about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from tidings.overlay import EventId, NodeId, SubscriptionId
from tidings.sim.trace import CheckFailed, Publication, SimulationTrace, SubscriptionEntry
from tidings.sim.world import World

SHOWN_MAX = 5  # Examples in a message; the rest is counted.


def check_nothing_lost(
    trace: SimulationTrace,
    *,
    calm_s: float | None = None,
    flight_s: float = 5.0,
    parts: dict[NodeId, int] | None = None,
) -> None:
    """Every event reached every subscription that was known everywhere before the event was published.

    Only those of nodes that stayed up. With `calm_s`, events published during a
    disturbance, up to `flight_s` before one or `calm_s` after it are excused. With `parts`
    (see `World.parts`) no event has to cross from one part of a broken graph to another.
    """
    delivered = {(notice.event, notice.subscription) for notice in trace.notices}
    windows = [] if calm_s is None else [(begin - flight_s, end + calm_s) for begin, end in trace.disturbances]
    missing = [
        f"{_named(event)} did not reach subscription {_named(id)}"
        for event, publication in trace.publications.items()
        if not any(begin <= publication.at <= end for begin, end in windows)
        for id in _must_reach(trace, publication)
        if (event, id) not in delivered and (not parts or parts.get(publication.node) == parts.get(id.origin))
    ]
    _none_of(missing, trace)


def check_nothing_twice(trace: SimulationTrace) -> None:
    """No subscription got an event twice, and no router delivered one twice."""
    notices = Counter((notice.event, notice.subscription) for notice in trace.notices)
    _none_of([f"{_named(e)} reached {_named(s)} {n} times" for (e, s), n in notices.items() if n > 1], trace)
    restarted = {node for node, spans in trace.absences.items() if any(end != float("inf") for _, end in spans)}
    twice = [(e, at, n) for (e, at), n in trace.deliveries.items() if n > 1 and at not in restarted]
    _none_of([f"{_named(event)} was delivered {n} times at {node}" for event, node, n in twice], trace)


def check_nothing_unwanted(trace: SimulationTrace) -> None:
    """No subscription got an event that it does not match, or that was published after it was withdrawn."""
    wrong = []
    for notice in trace.notices:
        publication, wish = trace.publications[notice.event], trace.subscriptions[notice.subscription]
        if not wish.interest.matches(publication.packet):
            wrong.append(f"{_named(notice.event)} reached {_named(notice.subscription)}, which it does not match")
        elif wish.dropped_at is not None and wish.dropped_at < publication.at:
            wrong.append(f"{_named(notice.event)} reached {_named(notice.subscription)} after it was taken back")
    _none_of(wrong, trace)


def check_nothing_invented(trace: SimulationTrace) -> None:
    """What was delivered had been published."""
    unknown = [event for event, _ in trace.deliveries if event not in trace.publications]
    _none_of([f"{_named(event)} was delivered and never published" for event in unknown], trace)


def check_no_loops(trace: SimulationTrace, *, crossings_max: int = 1) -> None:
    """No event crossed the same link in the same direction more often than it may.

    More than once only where messages are sent again for want of an answer.
    """
    crossings = Counter((row.about, row.node, row.peer) for row in trace if row.kind == "send" and row.about)
    often = [(event, a, b, n) for (event, a, b), n in crossings.items() if n > crossings_max]
    _none_of([f"{event} crossed {a} → {b} {n} times" for event, a, b, n in often], trace)


def check_bounded(world: World) -> None:
    """No node holds more than it says it may."""
    over = [
        f"{member.id} holds {held} {kind}, more than {at_most}"
        for member in world.nodes
        for kind, (held, at_most) in member.router.holdings().items()
        if held > at_most
    ]
    _none_of(over, world.trace)


def check_quiet(world: World) -> None:
    """Nothing is on its way but what is sent on schedule."""
    if not world.is_quiet():
        raise CheckFailed("the world is not quiet", world.trace)


def check_safe(world: World, *, crossings_max: int = 1) -> None:
    """All that holds whatever the faults: nothing twice, unwanted, invented, in circles or without bound."""
    check_nothing_twice(world.trace)
    check_nothing_unwanted(world.trace)
    check_nothing_invented(world.trace)
    check_no_loops(world.trace, crossings_max=crossings_max)
    check_bounded(world)


def _must_reach(trace: SimulationTrace, publication: Publication) -> Iterator[SubscriptionId]:
    """The subscriptions that a publication must reach, if nothing but their own nodes is in the way."""
    for id, wish in trace.subscriptions.items():
        stayed = _stayed_up(trace, wish.node, wish.asked_at) and _stayed_up(trace, publication.node, publication.at)
        if stayed and _in_force(wish, publication.at) and wish.interest.matches(publication.packet):
            yield id


def _in_force(wish: SubscriptionEntry, at: float) -> bool:
    return wish.completed_at is not None and wish.completed_at < at and wish.dropped_at is None


def _stayed_up(trace: SimulationTrace, node: NodeId, since: float) -> bool:
    return all(end <= since for _, end in trace.absences.get(node, ()))


def _named(id: EventId | SubscriptionId) -> str:
    return ":".join(map(str, id))


def _none_of(wrongs: list[str], trace: SimulationTrace) -> None:
    if wrongs:
        more = f"\n… and {len(wrongs) - SHOWN_MAX} more" if len(wrongs) > SHOWN_MAX else ""
        raise CheckFailed("\n".join(islice(wrongs, SHOWN_MAX)) + more, trace)
