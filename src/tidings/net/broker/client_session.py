"""Sessions: what a connected client asks for, and what it is told.

Each request is answered under its ticket, with what was asked or with a refusal. A publish is
answered when its events are on disk. A client that sends faster than the disk takes is read more
slowly; one that reads more slowly than its events come loses some and is told how many, unless its
subscription is durable: then they wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from tidings.errors import Denied, ErrorCode, InputError, TidingsError
from tidings.net.broker.journal import Durable
from tidings.net.ids import repeat_key
from tidings.net.transport.connection import Link
from tidings.net.transport.frames import (
    Acknowledge,
    Answer,
    Done,
    Frame,
    Notice,
    Publish,
    Published,
    Query,
    Reject,
    Subscribe,
    Subscribed,
    Unsubscribe,
    refusal,
)
from tidings.node import RegisteredType
from tidings.overlay import EventId, SubscriptionId
from tidings.security import NotYet

if TYPE_CHECKING:
    from tidings.net.broker.broker import Broker

UNANSWERED_MAX = 4096  # Events of one client that are not on disk yet; reading stops until they are.
STREAMS_MAX = 65_536
EVENTS_AT_ONCE_MAX = 16_384
NOT_YET_S_MAX = 15.0  # How long a publish waits for a key before it is refused.
NOT_YET_PAUSE_S = 0.05
KEYS_MAY_COME = (ErrorCode.KEY, ErrorCode.BEACON)  # Refusals that end when the key manager is heard of again.

log = logging.getLogger("tidings.sessions")


@dataclass(slots=True)
class Stream:
    """One subscription of a connected client."""

    number: int
    subscription: SubscriptionId | None
    durable: Durable | None = None
    missed: int = 0


class Session:
    """One connected client."""

    def __init__(self, broker: Broker, link: Link, name: str) -> None:
        self.broker, self.link, self.name = broker, link, name
        self.key = link.proven.key
        self.published = self.told = self.lost = 0
        self._streams: dict[int, Stream] = {}
        self._by_subscription: dict[SubscriptionId, Stream] = {}
        self._next_stream = 1
        self._unanswered = 0
        self._room = asyncio.Event()
        self._room.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Answer this client until it goes."""
        try:
            async for frame in self.link.frames("client"):
                if not self._room.is_set():
                    await self._room.wait()
                await self.broker.connections.has_room()
                self._take(frame)
        finally:
            self._leave()

    def _take(self, frame: Frame) -> None:
        match frame:
            case Publish():
                self._publish(frame)
            case Subscribe():
                self._start(frame.ticket, self._subscribe(frame))
            case Unsubscribe(ticket, stream, forget):
                self._start(ticket, self._unsubscribe(ticket, stream, forget))
            case Acknowledge(stream, position):
                if (durable := self._durable(stream)) is not None:
                    self.broker.queues.acknowledge(durable, position)
            case Reject():
                self._start(frame.ticket, self._reject(frame))
            case Query(ticket, what, options):
                self._start(ticket, self._query(ticket, what, options))

    def _start(self, ticket: int, work: Awaitable[None]) -> None:
        task = asyncio.get_running_loop().create_task(self._answered(ticket, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answered(self, ticket: int, work: Awaitable[None]) -> None:
        try:
            await work
        except TidingsError as error:
            self.link.send(refusal(ticket, error))
        except Exception as fault:
            log.error("a request failed", exc_info=fault)
            self.link.send(refusal(ticket, TidingsError("the broker made a mistake; its log says which")))

    # ── Publishing ──

    def _publish(self, asked: Publish) -> None:
        """Publish at once, without a task of its own: thousands of these come in a second."""
        try:
            self._publish_now(asked)
        except TidingsError as refused:
            if isinstance(refused, NotYet) or refused.code in KEYS_MAY_COME:
                self._start(asked.ticket, self._publish_later(asked))
            else:
                self.link.send(refusal(asked.ticket, refused))

    def _publish_now(self, asked: Publish) -> None:
        if len(asked.events) > EVENTS_AT_ONCE_MAX:
            raise InputError(f"expected at most {EVENTS_AT_ONCE_MAX} events at once, got {len(asked.events)}")
        named = [(repeat_key(self.key, name), values) for name, values in asked.events]
        known = self.broker.types.find(asked.type)
        self.broker.publishing.publish_now(self.name, known, named, lambda ids: self._published(asked.ticket, ids))
        self._unanswered += len(named)
        if self._unanswered >= UNANSWERED_MAX:
            self._room.clear()

    def _published(self, ticket: int, ids: list[EventId]) -> None:
        self.published += len(ids)
        self.link.send(Published(ticket, tuple(ids)))
        self._unanswered -= len(ids)
        if self._unanswered < UNANSWERED_MAX:
            self._room.set()

    async def _publish_later(self, asked: Publish) -> None:
        """The keys of its type may come any moment."""
        deadline = asyncio.get_running_loop().time() + NOT_YET_S_MAX
        while True:
            await asyncio.sleep(NOT_YET_PAUSE_S)
            try:
                self._publish_now(asked)
                return
            except (NotYet, Denied) as wait:
                is_waiting = isinstance(wait, NotYet) or wait.code in KEYS_MAY_COME
                if not is_waiting or asyncio.get_running_loop().time() > deadline:
                    raise

    # ── Subscribing ──

    async def _subscribe(self, asked: Subscribe) -> None:
        if len(self._streams) >= STREAMS_MAX:
            raise InputError(f"expected at most {STREAMS_MAX} subscriptions on one connection")
        known = self.broker.types.find(asked.type)
        stream = await (self._durable_stream(asked, known) if asked.durable else self._live_stream(asked))
        self._streams[stream.number] = stream
        if stream.subscription is not None:
            self._by_subscription[stream.subscription] = stream
        durable = stream.durable
        self.link.send(Subscribed(asked.ticket, stream.number, durable.acknowledged if durable else 0))
        if durable is not None:
            self.broker.queues.read(durable, self.link, stream.number, asked.after if asked.after >= 0 else None)

    async def _live_stream(self, asked: Subscribe) -> Stream:
        if asked.since_us >= 0:
            raise InputError("only a durable subscription can begin in the past: give it a name")
        id = await self.broker.subscribing.subscribe(self.name, asked.type, asked.condition)
        return Stream(self._new_number(), id)

    async def _durable_stream(self, asked: Subscribe, known: RegisteredType) -> Stream:
        durable = await self.broker.subscribing.subscribe_durable(
            self.key, asked.durable, known, asked.condition, asked.since_us, self.link.proven.tokens
        )
        return Stream(self._new_number(), None, durable)

    def _new_number(self) -> int:
        self._next_stream += 1
        return self._next_stream - 1

    async def _unsubscribe(self, ticket: int, number: int, forget: bool) -> None:
        stream = self._streams.pop(number, None)
        if stream is None:
            raise InputError(f"there is no stream {number} on this connection")
        if stream.subscription is not None:
            self._by_subscription.pop(stream.subscription, None)
            self.broker.subscribing.unsubscribe(stream.subscription)
        elif stream.durable is not None:
            self.broker.queues.stop_reading(stream.durable.id, self.link)
            if forget:
                await self.broker.subscribing.forget_durable(stream.durable)
            await self.broker.journal.committed()  # What it has acknowledged never comes again, whatever happens now.
        self.link.send(Done(ticket))

    async def _reject(self, rejected: Reject) -> None:
        durable = self._durable(rejected.stream)
        if durable is None:
            raise InputError("only an event of a durable subscription can be rejected")
        await self.broker.queues.reject(durable, rejected.position, rejected.why)
        await self.broker.journal.committed()
        self.link.send(Done(rejected.ticket))

    def _durable(self, number: int) -> Durable | None:
        stream = self._streams.get(number)
        return stream.durable if stream else None

    def tell(self, subscription: SubscriptionId, told: bytes) -> None:
        """Send an event to a subscription that is not durable; lost, and counted, where the client is too slow."""
        stream = self._by_subscription.get(subscription)
        if stream is None:
            return
        if self.link.send(Notice(stream.number, 0, msgspec.Raw(told), stream.missed)):
            stream.missed = 0
            self.told += 1
            if not self.link.is_slow and self.link.is_half_full:
                self.broker.connections.filling[self.name] = self.link
        else:
            stream.missed += 1
            self.lost += 1

    def ended(self, subscription: SubscriptionId, why: str) -> None:
        """A subscription is over because its right is."""
        stream = self._by_subscription.pop(subscription, None)
        if stream is not None:
            self._streams.pop(stream.number, None)
            self.link.send(refusal(-stream.number, Denied(why)))

    # ── The rest ──

    async def _query(self, ticket: int, what: str, options: dict[str, Any]) -> None:
        answer: Callable[..., Awaitable[list[dict[str, Any]]]] = self.broker.queries.named(what)
        self.link.send(Answer(ticket, tuple(await answer(self.key, options))))

    def _leave(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for stream in self._streams.values():
            if stream.subscription is not None:
                self.broker.subscribing.unsubscribe(stream.subscription)
            elif stream.durable is not None:
                self.broker.queues.stop_reading(stream.durable.id, self.link)
        self.broker.connections.left(self)
