"""Drives spot checks: events straight from their origin, where the overlay may not bring them.

    each second           some of what was published, to brokers with live subscriptions → held there for a while
    a check has waited    what the overlay has not brought is delivered; after two, the origin is asked for a detour
    a detour was asked    what was published in the last minute, from the log; then everything, as it is published
    messages about keys   always, beside the overlay: whoever drops them there silences nobody

See `tidings.delivery.spot_checks`. Live subscriptions are served as well as can be: what does not fit a link's queue is
not sent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Protocol

from tidings.delivery import (
    AGAIN_S,
    BACK_S,
    BACKLOG_MAX,
    BROKERS_CHECKED_MAX,
    CHECKED_MAX,
    DIRECT_EVENTS_MAX,
    Detours,
    DirectEvents,
    DirectRequest,
    DurableInterest,
    HeldCheck,
    HeldChecks,
    InterestDirectory,
    RecentChecks,
    SpotSample,
    published_at,
)
from tidings.errors import InputError, PeerError
from tidings.net.broker.journal import EventHistory, JournaledEvent
from tidings.net.broker.periodic import BackgroundTasks
from tidings.net.clock import now_us
from tidings.net.transport.connection import Link
from tidings.net.transport.frames import BATCH_BYTES
from tidings.net.transport.peer_links import PeerLinks
from tidings.node import Delivery, NodeEffect, TypeRegistry, decode_stored
from tidings.overlay import Count, NodeId, Peer

TICK_S = 0.5
CHECK_EVERY_S = 1.0
ADVERTISE_EVERY_S = 1.0
LINGER_S = 60.0  # A type stays advertised after its last subscription: clients come and go.
REACH_EVERY_S = 15.0  # Dials to one broker that cannot be reached.

log = logging.getLogger("tidings.delivery")


class DirectReceiver(Protocol):
    """The node, as far as direct delivery uses it."""

    types: TypeRegistry

    @property
    def me(self) -> Peer: ...
    def live_types(self) -> list[str]: ...
    def may_receive(self, broker: NodeId, type: str, now: float) -> bool: ...
    def receive_direct(self, sender: NodeId, raw: bytes, published_at: float, now: float) -> list[NodeEffect]: ...


class DirectDelivery:
    """One broker's part in spot checks, as an origin and as a receiver."""

    def __init__(
        self,
        node: DirectReceiver,
        links: PeerLinks,
        directory: InterestDirectory,
        history: EventHistory,
        tasks: BackgroundTasks,
        rng: Random,
        *,
        checks: bool = True,
    ) -> None:
        """Without `checks`, only messages about keys go straight, and what others ask for."""
        self._node, self._links, self._directory, self._history, self._tasks = node, links, directory, history, tasks
        self._rng, self._loop = rng, asyncio.get_running_loop()
        self._sample = SpotSample(rng, CHECKED_MAX if checks else 0)
        self._recent, self._held, self._detours = RecentChecks(), HeldChecks(), Detours()
        self._reached: dict[NodeId, float] = {}
        self._live_at: dict[str, float] = {}
        self._catching_up: dict[NodeId, dict[str, None]] = {}
        """Who is being sent what was published before, and of which types it is still to be sent that."""
        self.carry_out: Callable[[Iterable[NodeEffect]], None] = lambda effects: None
        self.advertise: Callable[[Sequence[str]], None] = lambda types: None
        """Called regularly with the types of this broker's live subscriptions."""
        self.is_live: Callable[[Delivery], bool] = lambda delivery: True
        """Whether a delivery is to a live subscription: durable ones have a way of their own."""

    def start(self) -> None:
        self._tasks.start(self._run())

    # ── As an origin ──

    def published(self, type: str, raws: Sequence[bytes]) -> None:
        """Events of this broker's clients are on disk: some are for the next check, and all for those on a detour."""
        now = self._loop.time()
        for raw in raws:
            self._sample.add(type, raw, now)
        for broker in self._detours.brokers(type, now):
            if broker == self._node.me.id:
                self._deliver_own(((0.0, raw) for raw in raws), now)
            elif self._node.may_receive(broker, type, now) and (link := self._links.ready(broker)) is not None:
                self._send(link, [(0.0, raw) for raw in raws])

    def publish_control(self, type: str, raw: bytes) -> None:
        """A message about keys goes straight to all that listen for it, too."""
        now = self._loop.time()
        for broker in self._directory.live_brokers(type):
            if (link := self._reach(broker, type, now)) is not None:
                link.send(DirectEvents(((0.0, raw),)))

    async def _run(self) -> None:
        check_at = advertise_at = self._loop.time()
        while True:
            await asyncio.sleep(TICK_S)
            now = self._loop.time()
            self._deliver_due(now)
            if now >= advertise_at:
                advertise_at = now + ADVERTISE_EVERY_S
                self.advertise(self._live_types(now))
            if now >= check_at:
                check_at = now + CHECK_EVERY_S
                self._check(now)
                self._held.forget(now)

    def _live_types(self, now: float) -> list[str]:
        self._live_at.update(dict.fromkeys(self._node.live_types(), now))
        self._live_at = {type: at for type, at in self._live_at.items() if at > now - LINGER_S}
        return list(self._live_at)

    def _check(self, now: float) -> None:
        types = self._node.live_types()
        for type, events in self._sample.take().items():
            brokers = self._directory.live_brokers(type)
            if len(brokers) > BROKERS_CHECKED_MAX:
                brokers = self._rng.sample(brokers, BROKERS_CHECKED_MAX)
            self._recent.add(type, events, now)
            checks = tuple((now - event.at, event.raw) for event in events)
            if type in types:  # Some overlays bring events back to their own broker by way of others.
                self._held.hold(self._node.me.id, checks, now)
            for broker in brokers:
                if (link := self._reach(broker, type, now)) is not None:
                    link.send(DirectEvents(checks, check=True))

    def link_ready(self, link: Link) -> None:
        """A link is up: checks of the last seconds may not have got through, as there was none, or another."""
        broker = link.proven.id
        self._check_again(link, lambda name: broker in self._directory.live_brokers(name))

    def live_types_added(self, broker: NodeId, types: Sequence[str]) -> None:
        """A broker says what it has live subscriptions to; it may have had them since before it could be heard here."""
        if types and (link := self._links.ready(broker)) is not None:
            self._check_again(link, types.__contains__)

    def _check_again(self, link: Link, is_wanted: Callable[[str], bool]) -> None:
        broker, now = link.proven.id, self._loop.time()
        for type, events in self._recent.since(now - AGAIN_S):
            if is_wanted(type) and self._node.may_receive(broker, type, now):
                link.send(DirectEvents(tuple((now - event.at, event.raw) for event in events), check=True))

    def _reach(self, broker: NodeId, type: str, now: float) -> Link | None:
        """The link to a broker that may have events of a type now; if there is none, it is dialled."""
        if not self._node.may_receive(broker, type, now):
            return None
        link = self._links.ready(broker)
        if link is None and now - self._reached.get(broker, -REACH_EVERY_S) >= REACH_EVERY_S:
            self._reached[broker] = now  # Bounded by the directory.
            self._links.reach(broker)
        return link

    def receive_request(self, link: Link, request: DirectRequest) -> None:
        """A broker does not get this broker's events of a type by the overlay. It must have said that it wants it."""
        broker, type, now = link.proven.id, request.type, self._loop.time()
        if self._node.types.get(type) is None or broker not in self._directory.live_brokers(type):
            return
        if self._node.may_receive(broker, type, now) and self._detours.begin(broker, type, now):
            log.info("sends a type straight", extra={"broker": broker, "type": type})
            if broker in self._catching_up:
                self._catching_up[broker][type] = None
            else:
                self._catching_up[broker] = {type: None}
                self._tasks.start(self._catch_up(link))

    async def _catch_up(self, link: Link) -> None:
        types = self._catching_up[link.proven.id]
        try:
            while types:
                type = next(iter(types))
                del types[type]
                await self._send_backlog(link, type)
        finally:
            del self._catching_up[link.proven.id]

    async def _send_backlog(self, link: Link | None, type: str) -> None:
        """Without a link, to this broker's own subscribers."""
        since_us = now_us() - int(BACK_S * 1e6)
        (backlog,) = await self._history.read([DurableInterest("", type, "", since_us)], skew_us=0)
        found: list[JournaledEvent] = self._history.complete(backlog)
        # Batches were delivered here without the overlay.
        events = [event for event in found if link is not None or not event.is_of_batch][-BACKLOG_MAX:]
        for start in range(0, len(events), DIRECT_EVENTS_MAX):
            part = events[start : start + DIRECT_EVENTS_MAX]
            aged = [((now_us() - event.at_us) / 1e6, event.raw) for event in part]
            if link is None:
                self._deliver_own(aged, self._loop.time())
                await asyncio.sleep(0)
            elif not link.is_open or not self._node.may_receive(link.proven.id, type, self._loop.time()):
                return
            else:
                self._send(link, aged)
                await link.drained()

    def _deliver_own(self, events: Iterable[tuple[float, bytes]], now: float) -> None:
        me = self._node.me.id
        for age_s, raw in events:
            self.carry_out(self._node.receive_direct(me, raw, now - age_s, now))

    def _send(self, link: Link, events: Sequence[tuple[float, bytes]]) -> None:
        some, size = list[tuple[float, bytes]](), 0
        for event in events:
            some.append(event)
            size += len(event[1])
            if size > BATCH_BYTES or len(some) == DIRECT_EVENTS_MAX:
                link.send(DirectEvents(tuple(some)))
                some, size = [], 0
        if some:
            link.send(DirectEvents(tuple(some)))

    # ── As a receiver ──

    def receive(self, link: Link, frame: DirectEvents) -> None:
        """Events straight from their origin; raises PeerError for more than fit, or that nobody has asked for."""
        origin, now = link.proven.id, self._loop.time()
        if len(frame.events) > DIRECT_EVENTS_MAX:
            raise PeerError(f"direct: {len(frame.events)} events; at most {DIRECT_EVENTS_MAX}")
        if frame.check:
            self._held.hold(origin, frame.events, now)
            return
        for age_s, raw in frame.events:
            if self._is_expected(origin, raw, now):
                self.carry_out(self._node.receive_direct(origin, raw, published_at(age_s, now), now))

    def _is_expected(self, origin: NodeId, raw: bytes, now: float) -> bool:
        type = _type_of(raw)
        return type.startswith("~") or self._held.has_asked(origin, type, now)

    def _deliver_due(self, now: float) -> None:
        for check in self._held.due(now):
            effects = self._node.receive_direct(check.origin, check.raw, check.published_at, now)
            self.carry_out(effects)
            if any(each.__class__ is Delivery and self.is_live(each) for each in effects):
                self._note_missed(check, now)

    def _note_missed(self, check: HeldCheck, now: float) -> None:
        """The overlay has not brought an event that somebody here wants."""
        self.carry_out([Count("missed by the overlay")])
        type, link = _type_of(check.raw), self._links.ready(check.origin)
        is_own = check.origin == self._node.me.id
        if (link is None and not is_own) or not self._held.missed(check.origin, type, now):
            return
        log.warning("the overlay does not bring a type", extra={"origin": check.origin, "type": type})
        if link is not None:
            link.send(DirectRequest(type))
        elif self._detours.begin(check.origin, type, now):
            self._tasks.start(self._send_backlog(None, type))

    def holdings(self) -> dict[str, tuple[int, int]]:
        return self._held.holdings()


def _type_of(raw: bytes) -> str:
    try:
        return decode_stored(raw).header.type
    except InputError:
        return ""
