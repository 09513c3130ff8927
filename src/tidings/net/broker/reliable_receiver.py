"""Drives the inbox: opens events, writes them to the durable queues in order, and acknowledges them once they are on disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from tidings.delivery import Announce, Deliveries, Inbox, KeyDeadlines, Retransmit
from tidings.errors import InputError, PeerError
from tidings.net.broker.durable_queues import DurableQueues
from tidings.net.broker.journal import Journal
from tidings.net.broker.periodic import BackgroundTasks
from tidings.net.transport.peer_links import PeerLinks
from tidings.node import decode_stored
from tidings.overlay import EventId, NodeId

CHECK_EVERY_S = 0.25

log = logging.getLogger("tidings.delivery")


class LocalMatcher(Protocol):
    """Matches events against this broker's own durable subscriptions."""

    def match(self, raw: bytes) -> Deliveries | None:
        """What an event is for each durable subscription that it matches; None if its key may still come."""

    def awaits_keys(self, raw: bytes) -> bool:
        """Whether no event of its type can be opened yet: this broker has just started and the key manager has not answered."""

    def bury(self, raw: bytes, only_for: str, why: str) -> None:
        """Makes an event that cannot be opened a dead letter of each subscription that it may match."""


class ReliableReceiver:
    """The streams from all other brokers to this one."""

    def __init__(
        self,
        journal: Journal,
        links: PeerLinks,
        queues: DurableQueues,
        matcher: LocalMatcher,
        tasks: BackgroundTasks,
        *,
        unreadable_s_max: float,
    ) -> None:
        self._journal, self._links, self._queues, self._matcher = journal, links, queues, matcher
        self._tasks = tasks
        self.inbox = Inbox(journal.received(), restored=journal.copy > 0)
        self._keys = KeyDeadlines(unreadable_s_max)
        self._releasing: dict[NodeId, asyncio.Task[None]] = {}
        self._to_release: dict[NodeId, bool] = {}  # Whether an acknowledgement is due even if nothing is released.

    def start(self) -> None:
        """Begins to request missing events."""
        self._tasks.start(self._check_regularly())

    # ── Arrivals ──

    def receive_from_overlay(self, event: EventId, durable: str, encoded: bytes) -> None:
        """The overlay has brought an event that matches a durable subscription of this broker."""
        self.inbox.receive_from_overlay(event, (durable, encoded))
        self._release_soon(event.origin)

    def receive_announce(self, origin: NodeId, announce: Announce) -> None:
        """Raises PeerError if an origin announces events of another."""
        rewind = self.inbox.receive_announce(origin, announce, asyncio.get_running_loop().time())
        if rewind is not None and (link := self._links.ready(origin)) is not None:
            link.send(rewind)
            return
        self._release_soon(origin, acknowledge=True)

    def link_ready(self, origin: NodeId) -> None:
        """A link is up: the origin learns how far this broker's record goes."""
        if (rewind := self.inbox.rewind(origin)) is not None and (link := self._links.ready(origin)) is not None:
            link.send(rewind)

    def receive_retransmit(self, origin: NodeId, sent: Retransmit) -> None:
        """An event that cannot be opened yet is requested again, for a while: its key may be on its way."""
        number, raw = sent.number, sent.packet
        if not self.inbox.expects(origin, number):
            return
        try:
            if decode_stored(raw).header.id != self.inbox.event_at(origin, number):
                raise PeerError("retransmit: another event than the one announced")
            deliveries = self._opened(origin, number, raw)
        except (PeerError, InputError) as wrong:
            log.warning("a retransmitted event cannot be used", extra={"origin": origin, "why": str(wrong)})
            deliveries = []
        if deliveries is not None:
            self.inbox.receive_retransmit(origin, number, deliveries)
            self._release_soon(origin)
            if self.inbox.can_nack(origin):
                self._nack(origin)

    def _opened(self, origin: NodeId, number: int, raw: bytes) -> Deliveries | None:
        """What an event is for each subscription; None if its key may still come. After that it is a dead letter."""
        deliveries = self._matcher.match(raw)
        if deliveries is not None:
            self._keys.opened(origin, number)
            return deliveries
        now, keys_are_requested = asyncio.get_running_loop().time(), self._matcher.awaits_keys(raw)
        if not self._keys.has_expired(origin, number, now, keys_are_requested=keys_are_requested):
            return None
        why = f"key: the event could not be decrypted within {self._keys.unreadable_s_max:.0f} s"
        log.error("an event becomes a dead letter: its key has not come", extra={"origin": origin, "number": number})
        self._matcher.bury(raw, self.inbox.only_for(origin, number), why)
        return []

    def open_in_order(
        self, origin: NodeId, packets: Sequence[tuple[int, bytes | None]]
    ) -> tuple[int, list[tuple[EventId, Deliveries]]]:
        """Opens numbered events up to the first whose key may still come; the number after the last one opened."""
        released: list[tuple[EventId, Deliveries]] = []
        below = packets[0][0]
        for number, raw in packets:
            deliveries = self._opened(origin, number, raw) if raw is not None else []
            if deliveries is None:
                break
            if raw is not None:
                released.append((decode_stored(raw).header.id, deliveries))
            below = number + 1
        return below, released

    # ── Release ──

    def _release_soon(self, origin: NodeId, *, acknowledge: bool = False) -> None:
        """Everything that arrives in this turn of the event loop is released at once."""
        self._to_release[origin] = self._to_release.get(origin, False) or acknowledge
        if origin not in self._releasing:
            self._releasing[origin] = self._tasks.start(self._release(origin))

    async def _release(self, origin: NodeId) -> None:
        try:
            while origin in self._to_release:
                acknowledge = self._to_release.pop(origin)
                if released := list(self.inbox.release(origin)):
                    position = self.inbox.position(origin)
                    self._journal.note_received(origin, *position)
                    await self.store(released)
                    self.inbox.persisted(origin, *position)
                if (released or acknowledge) and (link := self._links.ready(origin)) is not None:
                    link.send(self.inbox.ack(origin))
        finally:
            del self._releasing[origin]

    async def store(self, released: Sequence[tuple[EventId, Deliveries]]) -> None:
        """Puts events into the durable queues; returns once they are on disk, with everything noted before."""
        for _, deliveries in released:
            for durable, encoded in deliveries:
                self._queues.add(durable, encoded)
        self._queues.deliver_when_on_disk()
        await self._journal.committed()

    # ── Missing events ──

    async def _check_regularly(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            for origin in self.inbox.origins():
                self._nack(origin)

    def _nack(self, origin: NodeId) -> None:
        link, now = self._links.ready(origin), asyncio.get_running_loop().time()
        if link is not None and (nack := self.inbox.nack(origin, now)) is not None:
            link.send(nack)
