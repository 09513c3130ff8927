"""Publishing: an event and all it is pending for are on disk before the event leaves the broker.

published   → the node checks and seals it; the journal notes it, with its pending deliveries and local durable queues
on disk     → sent into the overlay, announced to brokers, delivered to connected subscribers, acknowledged

Publishers go no faster than events can leave: `Backpressure` has them wait a while where a link or a client does not keep up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tidings.delivery import Deliveries, PendingEvent
from tidings.errors import Denied, SetupError
from tidings.events import values_of_rows
from tidings.net.broker.durable_queues import DurableQueues
from tidings.net.broker.journal import EventHistory, Journal, JournaledEvent
from tidings.net.broker.periodic import BackgroundTasks
from tidings.net.broker.reliable_sender import ReliableSender
from tidings.net.clock import now_us
from tidings.net.observability.latency import Meters
from tidings.net.observability.spans import SpanRecorder
from tidings.net.transport.connection import Link
from tidings.net.transport.peer_links import PeerLinks
from tidings.node import BatchDelivery, BatchIds, Keep, Node, NodeEffect, RegisteredType, encode_stored_batch
from tidings.overlay import EventId, NodeId

if TYPE_CHECKING:
    import pyarrow as pa


class _Matcher(Protocol):
    def match(self, raw: bytes) -> Deliveries | None: ...

    def is_suspended(self, type: str) -> bool: ...

    def queue_rows(self, delivery: BatchDelivery) -> bool: ...


class Publisher:
    """Publishes the events of one broker's clients."""

    def __init__(
        self,
        node: Node,
        journal: Journal,
        sender: ReliableSender,
        history: EventHistory,
        queues: DurableQueues,
        matcher: _Matcher,
        meters: Meters,
        carry_out: Callable[[Iterable[NodeEffect]], None],
    ) -> None:
        self._node, self._journal, self._sender, self._history = node, journal, sender, history
        self._queues, self._matcher, self._meters, self._carry_out = queues, matcher, meters, carry_out
        self._loop = asyncio.get_running_loop()
        self.spans: SpanRecorder | None = None
        self.deliver_rows: Callable[[BatchDelivery], None] = lambda delivery: None
        """Called with what live subscribers get of a batch."""
        self.published: Callable[[str, Sequence[bytes]], None] = lambda name, raws: None
        """Called with a type and its stored events once they are on disk and sent."""
        self.is_draining = False
        """Whether new events are refused."""

    async def publish(
        self, client: str, known: RegisteredType, events: Sequence[tuple[bytes, dict[str, Any]]]
    ) -> list[EventId]:
        """Publishes events; returns when they are on disk. As `publish_now`."""
        done: asyncio.Future[list[EventId]] = self._loop.create_future()

        def on_disk(ids: list[EventId]) -> None:
            if not done.done():  # The caller may have been cancelled.
                done.set_result(ids)

        self.publish_now(client, known, events, on_disk)
        return await done

    def publish_now(
        self,
        client: str,
        known: RegisteredType,
        events: Sequence[tuple[bytes, dict[str, Any]]],
        then: Callable[[list[EventId]], None],
    ) -> None:
        """Publishes events; calls `then` with their ids when they are on disk, with their pending deliveries.

        Each event comes with its idempotency key; one that was published before keeps its id. Raises as
        `Node.publish` does, and has done nothing then.
        """
        self._check_open()
        journal = self._journal
        repeats, begun = journal.repeats, self._loop.time()
        new = {key: values for key, values in events if key not in repeats}
        ids: list[EventId] = []
        if new:
            ids, effects = self._node.publish_many(client, known.name, list(new.values()), begun, keep=True)
            self._meters.counts["published"] += len(ids)
            self._note(known, list(new), effects)
        all_ids = [repeats[key] for key, _ in events]

        def on_disk() -> None:
            self._meters.publish.observe(self._loop.time() - begun, len(all_ids))
            if self.spans is not None:
                self.spans.published(ids, known.name, self._loop.time() - begun)
            then(all_ids)

        journal.then(on_disk)

    def publish_rows(
        self,
        client: str,
        known: RegisteredType,
        key: Callable[[str], bytes],
        rows: pa.RecordBatch,
        then: Callable[[BatchIds | Sequence[EventId]], None],
    ) -> None:
        """As `publish_now`, for events in columns under one idempotency key, `key("")`; that of one row is `key(".7")`.

        They stay together where no other broker is to have them now. Otherwise, and where this broker cannot tell yet who
        matches, they are published one by one.
        """
        journal = self._journal
        whole = key("")
        earlier = journal.repeated_batches.get(whole)
        if earlier is None and (not self._takes_batch(known) or key(".0") in journal.repeats):
            named = [(key(f".{row}"), values) for row, values in enumerate(values_of_rows(rows))]
            self.publish_now(client, known, named, then)
            return
        self._check_open()
        begun = self._loop.time()
        if earlier is None:
            self._publish_batch(client, known, whole, rows, begun)
        ids = earlier or journal.repeated_batches.get(whole)
        assert ids is not None

        def on_disk() -> None:
            self._meters.publish.observe(self._loop.time() - begun, len(ids))
            then(ids)

        journal.then(on_disk)

    def _takes_batch(self, known: RegisteredType) -> bool:
        return (
            self._node.takes_batch(known, self._loop.time())
            and not self._sender.has_interest_in(known.name)
            and not self._sender.has_own_pending()
            and not self._matcher.is_suspended(known.name)
        )

    def _publish_batch(
        self, client: str, known: RegisteredType, key: bytes, rows: pa.RecordBatch, begun: float
    ) -> None:
        """Notes the batch and what of it goes to durable queues, together; the rest is done when that is on disk."""
        batch, deliveries, effects = self._node.publish_batch(client, known, rows, begun)
        self._meters.counts["published"] += len(batch)
        noted = self._journal.note_batch(batch.ids, known.name, now_us(), key, encode_stored_batch(batch))
        self._history.add(noted)
        live = [delivery for delivery in deliveries if not self._matcher.queue_rows(delivery)]
        fresh = self._queues.take_fresh()

        def send() -> None:
            self._carry_out(effects)
            for delivery in live:
                self.deliver_rows(delivery)
            self._queues.committed(fresh)

        self._journal.then(send)

    def _check_open(self) -> None:
        if self.is_draining:
            raise Denied("draining: this broker takes no more events; publish at another")
        if self._journal.is_stuck:  # What came before waits in memory; more must not.
            raise SetupError(
                f"disk: this broker cannot write its journal ({self._journal.stuck_why}); publish again when it can"
            )

    def _note(self, known: RegisteredType, keys: Sequence[bytes], effects: list[NodeEffect]) -> None:
        """Notes what must be on disk, all at once so that events stay in order; the rest is done when it is there."""
        pending: list[tuple[NodeId, PendingEvent]] = []
        later: list[NodeEffect] = []
        raws: list[bytes] = []
        names, at_us = iter(keys), now_us()
        for effect in effects:
            match effect:
                case Keep(event, raw):
                    position = self._journal.note_event(event, known.name, at_us, next(names), raw)
                    kept = JournaledEvent(position, event, known.name, at_us, raw)
                    self._history.add(kept)
                    raws.append(raw)
                    pending += self._sender.add(kept)
                    self._queue_own(kept)
                case _:
                    later.append(effect)
        fresh = self._queues.take_fresh()

        def send() -> None:
            self._carry_out(later)
            self._sender.committed(pending)
            self._queues.committed(fresh)
            self.published(known.name, raws)

        self._journal.then(send)

    def _queue_own(self, event: JournaledEvent) -> None:
        """For durable subscribers of the event's own broker. Not by way of the overlay: it may be busy joining."""
        if not self._queues.count_of[event.type]:
            return
        deliveries = None if self._sender.has_own_pending() else self._matcher.match(event.raw)
        if deliveries is None:  # The subscriptions wait for keys, or events before this one do.
            self._sender.add_own(event)
            return
        for durable, encoded in deliveries:
            self._queues.add(durable, encoded)


class Backpressure:
    """Has publishers wait for links and clients whose queues fill up."""

    def __init__(
        self, links: PeerLinks, tasks: BackgroundTasks, *, link_wait_s_max: float, client_wait_s_max: float
    ) -> None:
        self._links, self._tasks = links, tasks
        self._link_wait_s_max, self._client_wait_s_max = link_wait_s_max, client_wait_s_max
        self._filling: dict[str, Link] = {}  # To clients with half-full queues that have not been waited for yet.

    def add_filling(self, client: str, link: Link) -> None:
        """The queue of a client is half full."""
        self._filling[client] = link

    @property
    def has_filling(self) -> bool:
        """Whether `wait_for_clients` would wait."""
        return bool(self._filling)

    async def wait(self) -> None:
        """Waits while the queue of a link or of a client is more than half full, for a while."""
        crowded = self._links.crowded()
        if crowded is not None:
            await self._drained(crowded, self._link_wait_s_max)
        if self._filling:
            await self.wait_for_clients()

    async def wait_for_clients(self) -> None:
        """Waits for each client whose queue is half full, for a while."""
        while self._filling:
            await self._drained(self._filling.pop(next(iter(self._filling))), self._client_wait_s_max)

    async def _drained(self, link: Link, seconds_max: float) -> None:
        """A link that does not drain in time is not waited for again until it has drained."""
        try:
            async with asyncio.timeout(seconds_max):
                await link.drained()
        except TimeoutError:
            link.is_slow = True
            self._tasks.start(self._no_longer_slow(link))

    async def _no_longer_slow(self, link: Link) -> None:
        await link.drained()
        link.is_slow = False
