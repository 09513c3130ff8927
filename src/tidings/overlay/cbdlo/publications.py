"""Events of this node that not all subscribers have yet: one open publication for each attribute of an event.

    begin                  enter the topology directly if a member or an access point is known, else start random walks
    TopologyFound          the topology exists
    WalkFailed             a walk has found no member; when all walks of an attempt have failed, the next attempt begins
    SubscribersNotified    all subscribers have the event; the publication is closed
    no answer in time      the next attempt, by another access point if there is one, with exponential backoff

An attribute without a topology is skipped for NEGATIVE_CACHE_S.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from tidings.overlay.cbdlo.messages import SubscribersNotified, TopologyFound, TreeStep, Walk, WalkFailed
from tidings.overlay.cbdlo.options import CbdloOptions
from tidings.overlay.messages import EventId, NodeId, Packet, Peer
from tidings.overlay.random_graph.access_points import AccessTable
from tidings.overlay.random_graph.partition import AttributeAxis
from tidings.overlay.random_graph.random_walk import WalkPath
from tidings.overlay.router import Completed, Count, Effect, Send, WakeAt

NEGATIVE_CACHE_S = 30.0  # How long an attribute that has no topology is skipped.
NEGATIVE_CACHE_MAX = 4096
OPEN_MAX = 65_536  # Open publications of one node; one more is sent once and not retried.
TRIES_MAX = 14  # For an event whose topology exists: with the backoff a minute and a half.
WAIT_S, WAIT_S_MAX = 1.0, 8.0

Key: TypeAlias = tuple[EventId, AttributeAxis]
Enter: TypeAlias = Callable[[TreeStep, float], list[Effect] | None]
FirstSteps: TypeAlias = Callable[[AttributeAxis, int, int], list[Peer]]


@dataclass(slots=True)
class OpenPublication:
    """An event of this node that is routed by one of its attributes."""

    packet: Packet
    axis: AttributeAxis
    attempt: int = 1
    found: bool = False  # Whether the topology is known to exist.
    failed_walks: int = 0  # Of this attempt.
    misses: int = 0  # Attempts whose walks failed; an attempt without an answer was lost instead.
    entries: list[NodeId] = field(default_factory=list)  # The access points that this attempt used.


class OpenPublications:
    """All open publications of one node.

    `enter` hands an event to the topology if this node is a member of it, and returns None if it is not. `first_steps`
    says where an attempt starts its walks, so many of them.
    """

    def __init__(
        self, me: Peer, table: AccessTable, first_steps: FirstSteps, enter: Enter, options: CbdloOptions
    ) -> None:
        self.me, self._table, self._first_steps, self._enter, self._options = me, table, first_steps, enter, options
        self._open: dict[Key, OpenPublication] = {}
        self._negative_cache: OrderedDict[AttributeAxis, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, packet: Packet, axis: AttributeAxis, now: float) -> list[Effect]:
        """Route an event by one attribute until all subscribers that are registered there have it."""
        if self._negative_cache.get(axis, 0.0) > now:
            return [Count("attributes skipped")]
        publication = OpenPublication(packet, axis)
        if len(self._open) < OPEN_MAX:
            self._open[packet.header.id, axis] = publication
        return self._send(publication, now)

    def overdue(self, key: Key, attempt: int, now: float) -> list[Effect]:
        """Begin the next attempt if this one has not been confirmed."""
        publication = self._open.get(key)
        if publication is None or publication.attempt != attempt:
            return []
        for entry in publication.entries:
            self._table.drop(publication.axis, entry)
        publication.misses += publication.failed_walks > 0 and not publication.found
        if publication.misses > self._options.retries or publication.attempt > TRIES_MAX:
            del self._open[key]
            if not publication.found:
                self._skip(publication.axis, now)
            return [Count("events given up" if publication.found else "attributes not found")]
        publication.attempt, publication.failed_walks, publication.entries = publication.attempt + 1, 0, []
        return [Count("retries"), *self._send(publication, now)]

    def receive(self, message: TopologyFound | WalkFailed | SubscribersNotified, now: float) -> list[Effect]:
        publication = self._open.get((message.event, message.axis))
        if publication is None:
            return []
        match message:
            case TopologyFound():
                publication.found = True
            case SubscribersNotified():
                del self._open[message.event, message.axis]
                return self._completed(message.event)
            case WalkFailed(_, _, attempt) if attempt == publication.attempt and not publication.found:
                publication.failed_walks += 1
                if publication.failed_walks >= self._options.walkers:
                    return self.overdue((message.event, message.axis), attempt, now)
        return []

    def topology_exists(self, axis: AttributeAxis) -> None:
        """The attribute has a topology after all: skip it no longer."""
        self._negative_cache.pop(axis, None)

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            "events on their way": (len(self._open), OPEN_MAX),
            "attributes not found": (len(self._negative_cache), NEGATIVE_CACHE_MAX),
        }

    # ── Private steps ────────────────────────────────────────────────────────

    def _send(self, publication: OpenPublication, now: float) -> list[Effect]:
        """Enter the topology if a way in is known, else start walks; wake when the attempt is overdue."""
        event, axis, attempt = publication.packet.header.id, publication.axis, publication.attempt
        wait_s = min(WAIT_S_MAX, WAIT_S * 2 ** (attempt - 1))
        wake = WakeAt(now + wait_s, ("event", event, axis, attempt))
        step = TreeStep(publication.packet, axis, self.me, attempt, WalkPath(self._options.graph.hops_max))
        entered = self._enter(step, now)
        if entered is not None:
            publication.found = True
            return [wake, *entered]
        entries = [point.peer.id for point in self._table.at(axis)]
        if entries:
            publication.entries = entries
            return [wake, *(Send(entry, step) for entry in dict.fromkeys(entries))]
        walks = self._walks(publication)
        return [wake, Count("walks", len(walks)), *walks]

    def _walks(self, publication: OpenPublication) -> list[Send]:
        path = WalkPath(self._options.graph.hops_max, 1, 0, (self.me,) if self._options.trace_max else ())
        walk = Walk(publication.packet, publication.axis, self.me, publication.attempt, path)
        starts = self._first_steps(publication.axis, self._options.walkers, publication.attempt)
        return [Send(peer.id, walk) for peer in starts]

    def _completed(self, event: EventId) -> list[Effect]:
        return [] if any(other == event for other, _ in self._open) else [Completed("publish", event)]

    def _skip(self, axis: AttributeAxis, now: float) -> None:
        self._negative_cache[axis] = now + NEGATIVE_CACHE_S
        if len(self._negative_cache) > NEGATIVE_CACHE_MAX:
            self._negative_cache.popitem(last=False)
