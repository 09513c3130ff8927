"""The session of a connected client: its requests, and what is delivered to it.

The broker answers each request under its ticket, with a reply or a refusal. It acknowledges a publish
when the events are on disk. It reads more slowly from a client that sends faster than the disk writes. A client that
reads more slowly than its events arrive loses some, and learns how many, unless its
subscription is durable: then they wait in its queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from struct import pack
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from tidings.delivery import PublishRates
from tidings.errors import Denied, ErrorCode, InputError, TidingsError
from tidings.events import columns_of_rows, rows_of_columns
from tidings.net.broker.durable_queues import DurableQueues
from tidings.net.broker.journal import DurableSubscription, parts
from tidings.net.broker.publish import Backpressure, Publisher
from tidings.net.broker.subscriptions import BrokerSubscriptions
from tidings.net.clock import now_us
from tidings.net.ids import repeat_key
from tidings.net.observability.spans import SpanRecorder
from tidings.net.transport.connection import Link
from tidings.net.transport.frames import (
    IN_COLUMNS,
    Acknowledge,
    Answer,
    AnyFrame,
    BatchPublished,
    EventBatchDelivery,
    EventDelivery,
    Publish,
    PublishBatch,
    Published,
    Query,
    Reject,
    RequestDone,
    Subscribe,
    Subscribed,
    Unsubscribe,
    refusal,
)
from tidings.node import BatchDelivery, BatchIds, RegisteredType, TypeRegistry
from tidings.overlay import EventId, SubscriptionId
from tidings.security import NotYet

REQUESTS_MAX = 4096  # Of one client at once; reading stops until some are answered.
WAITING_MAX = 128  # Of them, those that wait for keys with what they publish: up to four megabytes each.
UNANSWERED_MAX = 4096  # Events of one client that are not on disk yet; reading stops until they are.
STREAMS_MAX = 65_536
EVENTS_AT_ONCE_MAX = 16_384
BATCH_NAME_MAX = 256  # It becomes part of a key for each event, where they are published one by one.
DELIVERIES_PER_FRAME = 65_536
NOT_YET_S_MAX = 15.0  # How long a publish waits for a key before the broker refuses it.
NOT_YET_PAUSE_S = 0.05
KEYS_MAY_COME = (ErrorCode.KEY, ErrorCode.BEACON)  # Refusals that end when the key manager answers again.

log = logging.getLogger("tidings.sessions")


@dataclass(slots=True)
class ClientStream:
    """One subscription of a connected client."""

    number: int
    subscription: SubscriptionId | None
    durable: DurableSubscription | None = None
    missed: int = 0


AdminQuery: TypeAlias = Callable[[bytes, dict[str, Any]], Awaitable[list[dict[str, Any]]]]
"""Answers a query of the client with this key."""


@dataclass(frozen=True, slots=True)
class ClientServices:
    """The parts of a broker that serve its clients, on links and at the gateway."""

    types: TypeRegistry
    publisher: Publisher
    subscriptions: BrokerSubscriptions
    queues: DurableQueues
    backpressure: Backpressure
    rates: PublishRates
    spans: SpanRecorder | None = None
    """None where no spans are recorded."""


class ClientSession:
    """One connected client."""

    def __init__(
        self, link: Link, name: str, services: ClientServices, query_named: Callable[[str, bool], AdminQuery]
    ) -> None:
        """`query_named` finds the query that a client names, for an administrator or another; it raises InputError or Denied."""
        self.link, self.name, self._query_named = link, name, query_named
        self._types, self._publisher = services.types, services.publisher
        self._subscriptions, self._queues = services.subscriptions, services.queues
        self._backpressure, self._rates = services.backpressure, services.rates
        self.key = link.proven.key
        self.published = self.delivered = self.lost = 0
        self._streams: dict[int, ClientStream] = {}
        self._by_subscription: dict[SubscriptionId, ClientStream] = {}
        self._next_stream = 1
        self._unanswered = self._waiting = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Serves the client until it disconnects."""
        try:
            async for frame in self.link.frames("client"):
                if not self._has_room.is_set():
                    await self._has_room.wait()
                while len(self._tasks) >= REQUESTS_MAX or self._waiting >= WAITING_MAX:
                    await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                await self._backpressure.wait()
                self._receive(frame)
        finally:
            self._leave()

    def _receive(self, frame: AnyFrame) -> None:
        match frame:
            case Publish():
                self._publish(frame, len(frame.events))
            case PublishBatch():
                self._publish(frame, frame.columns.rows)
            case Subscribe():
                self._start(frame.ticket, self._subscribe(frame))
            case Unsubscribe(ticket, stream, forget):
                self._start(ticket, self._unsubscribe(ticket, stream, forget))
            case Acknowledge(stream, position):
                if (durable := self._durable(stream)) is not None:
                    self._queues.acknowledge(durable, position)
            case Reject():
                self._start(frame.ticket, self._reject(frame))
            case Query(ticket, what, options):
                self._start(ticket, self._query(ticket, what, options))

    def _start(self, ticket: int, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._answered(ticket, work))
        task.add_done_callback(lambda _: work.close())  # Who leaves at once has its task cancelled before it begins.
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answered(self, ticket: int, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except TidingsError as error:
            self.link.send(refusal(ticket, error))
        except Exception as fault:
            log.error("a request failed", exc_info=fault)
            self.link.send(refusal(ticket, TidingsError("internal error of the broker; see its log")))

    # ── Publishing ──

    def _publish(self, asked: Publish | PublishBatch, count: int) -> None:
        """Publishes at once, without a task of its own: thousands of these arrive in a second."""
        try:
            if not 0 <= count <= EVENTS_AT_ONCE_MAX:
                raise InputError(f"expected at most {EVENTS_AT_ONCE_MAX} events at once, got {count}")
            self._rates.admit(self.key, count, asyncio.get_running_loop().time())
            self._publish_now(asked)
        except TidingsError as refused:
            if isinstance(refused, NotYet) or refused.code in KEYS_MAY_COME:
                self._waiting += 1
                self._start(asked.ticket, self._publish_later(asked))
            else:
                self.link.send(refusal(asked.ticket, refused))

    def _publish_now(self, asked: Publish | PublishBatch) -> None:
        known = self._types.find(asked.type)
        if isinstance(asked, PublishBatch):
            if len(asked.name) > BATCH_NAME_MAX:
                raise InputError(f"expected a name of at most {BATCH_NAME_MAX} characters for a batch")
            rows = rows_of_columns(asked.columns, known.event_type)

            def key(part: str) -> bytes:
                return repeat_key(self.key, asked.name + part)

            self._publisher.publish_rows(self.name, known, key, rows, partial(self._batch_published, asked.ticket))
            self._unanswered += rows.num_rows
        else:
            named = [(repeat_key(self.key, name), values) for name, values in asked.events]
            self._publisher.publish_now(self.name, known, named, partial(self._published, asked.ticket))
            self._unanswered += len(named)
        if self._unanswered >= UNANSWERED_MAX:
            self._has_room.clear()

    def _published(self, ticket: int, ids: list[EventId]) -> None:
        self.link.send(Published(ticket, tuple(ids)))
        self._is_answered(len(ids))

    def _batch_published(self, ticket: int, ids: BatchIds | Sequence[EventId]) -> None:
        self.link.send(BatchPublished(ticket, *packed_ids(ids)))
        self._is_answered(len(ids))

    def _is_answered(self, count: int) -> None:
        self.published += count
        self._unanswered -= count
        if self._unanswered < UNANSWERED_MAX:
            self._has_room.set()

    async def _publish_later(self, asked: Publish | PublishBatch) -> None:
        """Retries for a while: the keys of the type may arrive at any moment."""
        deadline = asyncio.get_running_loop().time() + NOT_YET_S_MAX
        try:
            while True:
                await asyncio.sleep(NOT_YET_PAUSE_S)
                try:
                    self._publish_now(asked)
                    return
                except (NotYet, Denied) as wait:
                    is_waiting = isinstance(wait, NotYet) or wait.code in KEYS_MAY_COME
                    if not is_waiting or asyncio.get_running_loop().time() > deadline:
                        raise
        finally:
            self._waiting -= 1

    # ── Subscribing ──

    async def _subscribe(self, asked: Subscribe) -> None:
        if len(self._streams) >= STREAMS_MAX:
            raise InputError(f"expected at most {STREAMS_MAX} subscriptions on one connection")
        known = self._types.find(asked.type)
        stream = await (self._durable_stream(asked, known) if asked.durable else self._live_stream(asked))
        self._streams[stream.number] = stream
        if stream.subscription is not None:
            self._by_subscription[stream.subscription] = stream
        durable = stream.durable
        self.link.send(Subscribed(asked.ticket, stream.number, durable.acknowledged if durable else 0))
        if durable is not None:
            self._queues.read(durable, self.link, stream.number, asked.after if asked.after >= 0 else None)

    async def _live_stream(self, asked: Subscribe) -> ClientStream:
        if asked.since_us >= 0:
            raise InputError("only a durable subscription can begin in the past: give it a name")
        id = await self._subscriptions.subscribe(self.name, asked.type, asked.condition)
        return ClientStream(self._new_number(), id)

    async def _durable_stream(self, asked: Subscribe, known: RegisteredType) -> ClientStream:
        durable = await self._subscriptions.subscribe_durable(
            self.key, asked.durable, known, asked.condition, asked.since_us, self.link.proven.tokens
        )
        return ClientStream(self._new_number(), None, durable)

    def _new_number(self) -> int:
        self._next_stream += 1
        return self._next_stream - 1

    async def _unsubscribe(self, ticket: int, number: int, forget: bool) -> None:
        stream = self._streams.pop(number, None)
        if stream is None:
            raise InputError(f"there is no stream {number} on this connection")
        if stream.subscription is not None:
            self._by_subscription.pop(stream.subscription, None)
            self._subscriptions.unsubscribe(stream.subscription)
        elif stream.durable is not None:
            self._queues.stop_reading(stream.durable.id, self.link)
            if forget:
                await self._subscriptions.forget_durable(stream.durable)
            await self._queues.saved()  # What is acknowledged is not delivered again, even after a crash now.
        self.link.send(RequestDone(ticket))

    async def _reject(self, rejected: Reject) -> None:
        durable = self._durable(rejected.stream)
        if durable is None:
            raise InputError("only an event of a durable subscription can be rejected")
        await self._queues.reject(durable, rejected.position, rejected.why)
        await self._queues.saved()
        self.link.send(RequestDone(rejected.ticket))

    def _durable(self, number: int) -> DurableSubscription | None:
        stream = self._streams.get(number)
        return stream.durable if stream else None

    def deliver(self, subscription: SubscriptionId, encoded: bytes) -> None:
        """Sends an event of a live subscription; lost, and counted, where the client is too slow."""
        stream = self._by_subscription.get(subscription)
        if stream is None:
            return
        if self.link.send(EventDelivery(stream.number, 0, msgspec.Raw(encoded), stream.missed)):
            stream.missed = 0
            self.delivered += 1
            if not self.link.is_slow and self.link.is_half_full:
                self._backpressure.add_filling(self.name, self.link)
        else:
            stream.missed += 1
            self.lost += 1

    def deliver_rows(self, delivery: BatchDelivery) -> bool:
        """Sends events of a batch; lost, and counted, likewise. False for a client of an earlier version."""
        if self.link.proven.version < IN_COLUMNS:
            return False
        streams = [(row, self._by_subscription.get(id)) for row, id in zip(delivery.rows, delivery.subscriptions)]
        there = [(row, stream) for row, stream in streams if stream is not None]
        for some in parts(there, DELIVERIES_PER_FRAME):
            self._send_rows(delivery, some)
        return True

    def _send_rows(self, delivery: BatchDelivery, pairs: Sequence[tuple[int, ClientStream]]) -> None:
        missed = tuple({stream.number: stream.missed for _, stream in pairs if stream.missed}.items())
        if self.link.send(rows_frame(delivery, [(row, stream.number) for row, stream in pairs], missed)):
            for _, stream in pairs:
                stream.missed = 0
            self.delivered += len(pairs)
            if not self.link.is_slow and self.link.is_half_full:
                self._backpressure.add_filling(self.name, self.link)
        else:
            for _, stream in pairs:
                stream.missed += 1
            self.lost += len(pairs)

    def end(self, subscription: SubscriptionId, why: str) -> None:
        """A subscription has ended because its right has."""
        stream = self._by_subscription.pop(subscription, None)
        if stream is not None:
            self._streams.pop(stream.number, None)
            self.link.send(refusal(-stream.number, Denied(why)))

    # ── Queries, and the end ──

    async def _query(self, ticket: int, what: str, options: dict[str, Any]) -> None:
        query = self._query_named(what, self.link.proven.administers)
        self.link.send(Answer(ticket, tuple(await query(self.key, options))))

    def _leave(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for stream in self._streams.values():
            if stream.subscription is not None:
                self._subscriptions.unsubscribe(stream.subscription)
            elif stream.durable is not None:
                self._queues.stop_reading(stream.durable.id, self.link)


def packed_ids(ids: BatchIds | Sequence[EventId]) -> tuple[str, bytes, bytes]:
    """The origin that all these have, their incarnations and their numbers, as `BatchPublished` has them."""
    if isinstance(ids, BatchIds):
        return ids.origin, ids.incarnations, _longs(range(ids.first_seq, ids.first_seq + len(ids)))
    return ids[0].origin, _longs([id.incarnation for id in ids]), _longs([id.seq for id in ids])


def _longs(numbers: Sequence[int]) -> bytes:
    return pack(f"<{len(numbers)}q", *numbers)


def rows_frame(
    delivery: BatchDelivery, pairs: Sequence[tuple[int, int]], missed: tuple[tuple[int, int], ...]
) -> EventBatchDelivery:
    """The frame that has these rows, each once, and says which stream gets which."""
    batch = delivery.batch
    place = {row: at for at, row in enumerate(dict.fromkeys(row for row, _ in pairs))}
    rows = batch.rows if len(place) == len(batch) else batch.rows.take(pa.array(list(place), pa.int32()))
    count, ids = len(pairs), batch.ids
    return EventBatchDelivery(
        batch.name,
        now_us(),
        ids.origin,
        b"".join([ids.incarnations[8 * row : 8 * row + 8] for row in place]),
        _longs([ids.first_seq + row for row in place]),
        columns_of_rows(rows, delivery.names),
        pack(f"<{count}i", *(place[row] for row, _ in pairs)),
        pack(f"<{count}i", *(stream for _, stream in pairs)),
        missed,
    )
