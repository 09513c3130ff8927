"""Drives the outbox: persists pending events, announces them on links, and retransmits them from the journal.

Events for durable subscribers of this very broker take the same stream, to itself, when they cannot be delivered at
once: their keys are missing, or events before them wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tidings.delivery import (
    WINDOW,
    Deliveries,
    InterestDirectory,
    LogRead,
    Nack,
    Outbox,
    PendingEvent,
    Retransmit,
    Rewind,
)
from tidings.net.broker.journal import Journal, JournaledEvent, parts
from tidings.net.broker.periodic import BackgroundTasks
from tidings.net.transport.connection import Link
from tidings.net.transport.peer_links import PeerLinks
from tidings.node import decode_stored, stored_values
from tidings.overlay import EventId, NodeId

READ_AT_ONCE = 64  # Events read from the journal together: each read waits for the group being written.
CHECK_EVERY_S = 0.25
WITHHELD = b""  # Instead of an event that its receiver may not have any more: what comes after it is not held up.

log = logging.getLogger("tidings.delivery")


class LocalReceiver(Protocol):
    """How events that this broker owes itself reach its durable subscribers."""

    def open_in_order(
        self, origin: NodeId, packets: Sequence[tuple[int, bytes | None]]
    ) -> tuple[int, list[tuple[EventId, Deliveries]]]:
        """Opens numbered events up to the first whose key may still come; the number after the last one opened."""

    async def store(self, released: Sequence[tuple[EventId, Deliveries]]) -> None:
        """Puts events into the durable queues; returns once they are on disk, with everything noted before."""


class ReliableSender:
    """One broker's streams to all brokers with durable subscribers."""

    def __init__(
        self,
        me: NodeId,
        journal: Journal,
        links: PeerLinks,
        directory: InterestDirectory,
        local: LocalReceiver,
        tasks: BackgroundTasks,
        may_have: Callable[[NodeId, str], bool],
    ) -> None:
        """`may_have`: whether a broker is a member of the network now and may read events of a type."""
        self._me, self._journal, self._links, self._directory = me, journal, links, directory
        self._local, self._tasks, self.may_have = local, tasks, may_have
        self._outbox = Outbox(journal.id, journal.streams(), ancestors=journal.ancestors())
        self._announcing: dict[NodeId, asyncio.Task[None]] = {}
        self._acked = asyncio.Event()

    def start(self) -> None:
        """Dials every broker that has not acknowledged everything, and begins to check for lost announcements."""
        for broker in self._outbox.pending():
            if broker != self._me:
                self._links.keep(broker)
        self._tasks.start(self._check_regularly())

    # ── Publishing ──

    def add(self, event: JournaledEvent) -> list[tuple[NodeId, PendingEvent]]:
        """Notes which brokers need a published event; the result goes to `committed` once it is on disk."""
        if not self._directory.has_interest_in(event.type):
            return []
        brokers = self._directory.brokers_for(event.type, stored_values(event.raw))
        return [
            (broker, self.add_for(broker, event.position, event.event))
            for broker in brokers
            if self.may_have(broker, event.type)
        ]

    def has_interest_in(self, type: str) -> bool:
        """Whether another broker has subscriptions to events of this type that get them beside the overlay."""
        return self._directory.has_interest_in(type) or bool(self._directory.live_brokers(type))

    def add_for(self, broker: NodeId, position: int, event: EventId, only_for: str = "") -> PendingEvent:
        """Notes that one broker needs an event."""
        pending = self._outbox.add(broker, position, event, only_for)
        stream = self._outbox.stream(broker)
        self._journal.note_pending(broker, pending)
        self._journal.note_stream(broker, stream.next_number, stream.acked)
        return pending

    def committed(self, added: Sequence[tuple[NodeId, PendingEvent]]) -> None:
        """These are on disk: announce them to the brokers that are linked."""
        for broker, pending in added:
            self._outbox.committed(broker, pending)
            self._announce(broker)

    # ── Announcing ──

    def link_ready(self, peer: NodeId) -> None:
        """A link is up: announce everything that the other end has not acknowledged."""
        self._announce_again(peer)

    def _announce(self, broker: NodeId) -> None:
        if broker == self._me:
            return  # See `deliver_own`.
        link = self._links.ready(broker)
        if link is None:
            self._links.keep(broker)
        elif broker not in self._announcing and self._outbox.has_unannounced(broker):
            self._announcing[broker] = self._tasks.start(self._announce_on(link, broker))

    async def _announce_on(self, link: Link, broker: NodeId) -> None:
        try:
            while link.is_open and (step := self._outbox.next_step(broker)) is not None:
                if isinstance(step, LogRead):
                    rows = await self._journal.pending(broker, step.after + 1, step.at_most)
                    step = self._outbox.supply(broker, step, rows)
                if step is not None and not link.send(step):
                    self._outbox.not_sent(broker, step)
                await link.drained()
        finally:
            if self._announcing.get(broker) is asyncio.current_task():
                del self._announcing[broker]

    def _announce_again(self, broker: NodeId) -> None:
        if (announcing := self._announcing.pop(broker, None)) is not None:
            announcing.cancel()
        if self._outbox.announce_again(broker, asyncio.get_running_loop().time()):
            self._announce(broker)

    async def _check_regularly(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            await self.deliver_own()
            for broker in self._outbox.unanswered(asyncio.get_running_loop().time()):
                self._announce_again(broker)

    # ── Answers ──

    def receive_ack(self, broker: NodeId, below: int) -> None:
        """A broker has everything below a number on disk."""
        if not self._outbox.ack(broker, below, asyncio.get_running_loop().time()):
            return
        if broker == self._me:
            self._journal.note_acked(broker, below)
        self._acked.set()
        self._journal.note_stream(broker, self._outbox.stream(broker).next_number, below)
        self._announce(broker)

    def receive_nack(self, link: Link, nack: Nack) -> None:
        """A broker lacks announced events: retransmit them."""
        self.receive_ack(link.proven.id, nack.acked)
        self._tasks.start(self._retransmit(link, nack.numbers[:WINDOW]))

    def receive_rewind(self, broker: NodeId, rewind: Rewind) -> None:
        """A broker that was restored from a backup has acknowledged more than it has: announce that again."""
        if self._outbox.acked_from(broker, rewind.journal, rewind.number):
            self._tasks.start(self._rewind(broker, rewind.number))

    async def _rewind(self, broker: NodeId, number: int) -> None:
        kept = await self._journal.kept_from(broker, number, self._outbox.stream(broker).acked)
        if not self._outbox.acked_from(broker, self._journal.id, number):
            return  # Another request has been answered meanwhile.
        if (announcing := self._announcing.pop(broker, None)) is not None:
            announcing.cancel()
        self._outbox.rewind(broker, number, kept, asyncio.get_running_loop().time())
        stream = self._outbox.stream(broker)
        self._journal.note_stream(broker, stream.next_number, stream.acked)
        log.warning(
            "a broker was restored from a backup; it is sent again what it had acknowledged since",
            extra={"broker": broker, "from_number": stream.acked, "lost": stream.acked - number},
        )
        self._announce(broker)

    async def _retransmit(self, link: Link, numbers: Sequence[int]) -> None:
        for some in parts(numbers, READ_AT_ONCE):
            for number, raw in await self._journal.pending_packets(link.proven.id, some):
                if not link.is_open:
                    return
                link.send(Retransmit(number, raw if self._still_may(link.proven.id, raw) else WITHHELD))
                await link.drained()

    def _still_may(self, broker: NodeId, raw: bytes) -> bool:
        """Whether a broker may have an event now: its right may have ended since the event was published."""
        return self.may_have(broker, decode_stored(raw).header.type)

    async def give_up(self, before_us: int) -> None:
        """Drops pending events that are older than retention: their broker has not come back."""
        for broker, last in await self._journal.pending_too_long(before_us):
            log.error("dropped events that a broker never acknowledged", extra={"broker": broker, "up_to": last})
            self.receive_ack(broker, last + 1)

    # ── This broker's own durable subscribers ──

    def add_own(self, event: JournaledEvent) -> None:
        """Notes that an event published here waits for this broker's own durable subscriptions."""
        self.add_for(self._me, event.position, event.event)

    def has_own_pending(self) -> bool:
        """Whether events published here wait for durable subscriptions of this very broker."""
        return bool(self._outbox.unacked(self._me, 1))

    async def deliver_own(self) -> None:
        """Delivers what waits for this broker's own durable subscriptions, up to the first event whose key is missing.

        Many at a time: one by one, events could be published faster than they are delivered.
        """
        while numbers := self._outbox.unacked(self._me, READ_AT_ONCE):
            packets = dict(await self._journal.pending_packets(self._me, numbers))
            below, released = self._local.open_in_order(self._me, [(n, packets.get(n)) for n in numbers])
            self.receive_ack(self._me, below)  # In one transaction with the deliveries.
            await self._local.store(released)
            if below < numbers.stop:
                return

    # ── Inspection ──

    def pending(self) -> Mapping[NodeId, int]:
        """For each broker, how many events it has not acknowledged."""
        return self._outbox.pending()

    def pending_count(self) -> int:
        """How many events are not acknowledged, over all brokers."""
        return self._outbox.pending_count()

    async def all_acked(self) -> None:
        """Waits until every broker has acknowledged everything."""
        while self.pending_count():
            self._acked.clear()
            await self._acked.wait()
