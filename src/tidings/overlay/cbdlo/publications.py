"""An event of one's own, in CBDLO, until everybody has it: one errand for each attribute it is looked for by.

    begin     straight into the topology if the way is known, else by random walks
    Found     there is a topology          Astray    a walk has found nobody
    Reached   everybody has the event; the errand is done
    no word   again, by another way if there is one, with longer and longer pauses

An attribute for which nobody was found is not looked for again for a while.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from tidings.overlay.cbdlo.messages import SubscribersNotified, TopologyFound, TreeStep, Walk, WalkFailed
from tidings.overlay.messages import EventId, NodeId, Packet
from tidings.overlay.random_graph.partition import AttributeAxis
from tidings.overlay.random_graph.random_walk import WalkPath
from tidings.overlay.router import Completed, Count, Effect, Send, WakeAt

if TYPE_CHECKING:
    from tidings.overlay.cbdlo.router import Cbdlo

NOBODY_S = 30.0  # How long an attribute that was not found is not looked for again.
NOBODY_MAX = 4096
ERRANDS_MAX = 65_536  # Events of this node on their way; one too many is sent once.
TRIES_MAX = 14  # Of an event whose topology exists; with the pauses between them a minute and a half.
WAIT_S, WAIT_S_MAX = 1.0, 8.0

Key: TypeAlias = tuple[EventId, AttributeAxis]


@dataclass(slots=True)
class OpenPublication:
    """One attribute of an event of this node's, on its way."""

    packet: Packet
    axis: AttributeAxis
    attempt: int = 1
    found: bool = False  # Whether there is a topology at all.
    astray: int = 0  # Walks of this attempt that found nobody.
    misses: int = 0  # Attempts of which that was said; one without a word was lost on the way.
    entries: list[NodeId] = field(default_factory=list)  # The access points that were tried.


class OpenPublications:
    """All errands of one node."""

    def __init__(self, router: Cbdlo, *, walkers: int, retries: int) -> None:
        self._router, self.walkers, self.retries = router, walkers, retries
        self._open: dict[Key, OpenPublication] = {}
        self._nobody: OrderedDict[AttributeAxis, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, packet: Packet, axis: AttributeAxis, now: float) -> list[Effect]:
        """Bring an event to all who want it for this attribute."""
        if self._nobody.get(axis, 0.0) > now:
            return [Count("attributes skipped")]
        errand = OpenPublication(packet, axis)
        if len(self._open) < ERRANDS_MAX:
            self._open[packet.header.id, axis] = errand
        return self._send_out(errand, now)

    def overdue(self, key: Key, attempt: int, now: float) -> list[Effect]:
        """Not everybody has the event yet: again, by another way if there is one."""
        errand = self._open.get(key)
        if errand is None or errand.attempt != attempt:
            return []
        for entry in errand.entries:
            self._router.table.drop(errand.axis, entry)
        errand.misses += errand.astray > 0 and not errand.found
        if errand.misses > self.retries or errand.attempt > TRIES_MAX:
            del self._open[key]
            if not errand.found:
                self._note_nobody(errand.axis, now)
            return [Count("events given up" if errand.found else "attributes not found")]
        errand.attempt, errand.astray, errand.entries = errand.attempt + 1, 0, []
        return [Count("retries"), *self._send_out(errand, now)]

    def hear(self, said: TopologyFound | WalkFailed | SubscribersNotified, now: float) -> list[Effect]:
        """Word of an event of this node's."""
        errand = self._open.get((said.event, said.axis))
        if errand is None:
            return []
        match said:
            case TopologyFound():
                errand.found = True
            case SubscribersNotified():
                del self._open[said.event, said.axis]
                return self._check_published(said.event)
            case WalkFailed(_, _, attempt) if attempt == errand.attempt and not errand.found:
                errand.astray += 1
                if errand.astray >= self.walkers:
                    return self.overdue((said.event, said.axis), attempt, now)
        return []

    def expect(self, axis: AttributeAxis) -> None:
        """There is word of a topology: an attribute is worth looking for again."""
        self._nobody.pop(axis, None)

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            "events on their way": (len(self._open), ERRANDS_MAX),
            "attributes not found": (len(self._nobody), NOBODY_MAX),
        }

    def _send_out(self, errand: OpenPublication, now: float) -> list[Effect]:
        """Into the topology if the way is known, else by walks; look again after a while."""
        event, axis = errand.packet.header.id, errand.axis
        wait_s = min(WAIT_S_MAX, WAIT_S * 2 ** (errand.attempt - 1))
        wake = WakeAt(now + wait_s, ("event", event, axis, errand.attempt))
        into = TreeStep(errand.packet, axis, self._router.me, errand.attempt, WalkPath(self._router.hops_max))
        if self._router.topologies.is_member(axis):
            errand.found = True
            return [wake, *self._router.enter(self._router.me.id, into, now)]
        entries = [point.peer.id for point in self._router.table.at(axis)]
        if entries:
            errand.entries = entries
            return [wake, *(Send(entry, into) for entry in dict.fromkeys(entries))]
        walks = self._walks(errand)
        return [wake, Count("walks", len(walks)), *walks]

    def _walks(self, errand: OpenPublication) -> list[Send]:
        me, hops_max = self._router.me, self._router.hops_max
        path = WalkPath(hops_max, 1, 0, (me,) if self._router.trace_max else ())
        walk = Walk(errand.packet, errand.axis, me, errand.attempt, path)
        return [Send(peer.id, walk) for peer in self._router.sampler.sample(self.walkers)]

    def _check_published(self, event: EventId) -> list[Effect]:
        return [] if any(other == event for other, _ in self._open) else [Completed("publish", event)]

    def _note_nobody(self, axis: AttributeAxis, now: float) -> None:
        self._nobody[axis] = now + NOBODY_S
        if len(self._nobody) > NOBODY_MAX:
            self._nobody.popitem(last=False)
