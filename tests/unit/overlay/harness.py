"""A few routers, a bag of messages, one step at a time: for tests that look in after every message."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from random import Random
from typing import Any

from tidings.overlay import (
    AnyWanted,
    Completed,
    Deliver,
    Effect,
    EventId,
    Failed,
    Header,
    Interest,
    NodeId,
    Packet,
    Peer,
    Place,
    Protocol,
    Router,
    Send,
    SubscriptionId,
    View,
    WakeAt,
)

TYPE = "Event"


class Bench:
    """Routers of one protocol that all know each other, with delays drawn at random (or none)."""

    def __init__(self, protocol: Protocol, ids: list[NodeId], *, seed: int = 0, delay_s: float = 0.1, **options: Any):
        self.rng, self.delay_s, self.now = Random(seed), delay_s, 0.0
        self.routers: dict[NodeId, Any] = {
            id: protocol.build(Place(Peer(id), (), Random(f"{seed}/{id}")), **options) for id in ids
        }
        if protocol.settle:
            protocol.settle(dict(self.routers), 0.0)
        self._steps: list[tuple[float, int, NodeId, NodeId, Any]] = []
        self._order = self._made = 0
        self.sent: list[tuple[NodeId, NodeId, Any]] = []
        self.delivered: list[tuple[NodeId, EventId]] = []
        self.completed: list[tuple[NodeId, str, Any]] = []
        self.failed: list[tuple[NodeId, str]] = []
        for id, router in self.routers.items():
            self.do(id, router.start(0.0))

    def enter(self, protocol: Protocol, id: NodeId, via: NodeId | None, **options: Any) -> None:
        """Bring in a node through one that is there, or the first one."""
        self.routers[id] = router = protocol.build(Place(Peer(id), (), Random(id)), **options)
        self.do(id, router.join([Peer(via)], self.now) if via else router.start(self.now))

    def subscribe(self, id: NodeId, wanted: AnyWanted) -> SubscriptionId:
        self._made += 1
        interest = Interest(SubscriptionId(id, 0, self._made), TYPE, wanted)
        self.do(id, self.routers[id].subscribe(interest, self.now))
        return interest.id

    def unsubscribe(self, sub: SubscriptionId) -> None:
        self.do(sub.origin, self.routers[sub.origin].unsubscribe(sub, self.now))

    def publish(self, id: NodeId, **values: int) -> EventId:
        self._made += 1
        event = EventId(id, 0, self._made)
        self.do(id, self.routers[id].publish(Packet(Header(event, TYPE), View(dict(values))), self.now))
        return event

    def do(self, id: NodeId, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(to, message):
                    self.sent.append((id, to, message))
                    self.push(self.now + self.delay_s * self.rng.random(), to, id, message)
                case WakeAt(when, token):
                    self.push(when, id, "", token)
                case Deliver(packet):
                    self.delivered.append((id, packet.header.id))
                case Completed(asked, about):
                    self.completed.append((id, asked, about))
                case Failed(asked):
                    self.failed.append((id, asked))

    def steps(self, until: float = 1000.0) -> Iterator[NodeId]:
        """Carry out what is to come, one message or wake at a time; tells to whom it came."""
        while self._steps and self._steps[0][0] <= until:
            self.now, _, to, sender, what = heappop(self._steps)
            router: Router[Any] | None = self.routers.get(to)
            if router is not None:
                effects = router.receive(sender, what, self.now) if sender else router.wake(what, self.now)
                self.do(to, effects)
                yield to

    def run(self, until: float = 1000.0) -> None:
        for _ in self.steps(until):
            pass

    def push(self, when: float, to: NodeId, sender: NodeId, what: Any) -> None:
        self._order += 1
        heappush(self._steps, (when, self._order, to, sender, what))


QUIET: dict[str, Any] = {"heartbeat_s": 0, "sync_s": 0}  # Without routine talk a bench runs until nothing is left.
