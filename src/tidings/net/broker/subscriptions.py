"""The subscriptions of a broker's clients: live ones while a client is connected, durable ones also while it is not.

A subscription is in place when the overlay reports that it is known wherever it must be; the broker answers its
client after a while in any case. Durable subscriptions are restored when the broker starts. Those whose keys are missing are
suspended until the keys arrive. Those whose rights have ended have lapsed; the broker tries them again regularly, as a
clock may have been wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from tidings.delivery import Deliveries, DurableInterest
from tidings.errors import Denied, ErrorCode, PeerError, TidingsError
from tidings.filters import parse
from tidings.net.broker.durable_queues import DurableQueues
from tidings.net.broker.journal import Backlog, DurableSubscription, EventHistory
from tidings.net.broker.periodic import BackgroundTasks
from tidings.net.clock import now_us
from tidings.net.transport.frames import DeliveredEvent, encode_event
from tidings.node import BatchDelivery, Delivery, NodeEffect, RegisteredType, TypeRegistry, decode_stored
from tidings.overlay import EventId, SubscriptionId, check_size

KEYS_S_MAX = 30.0  # How long a subscription waits for the keys of its type: several requests long.
STABLE_S_MAX = 10.0  # How long a subscription waits to be known everywhere before its client gets an answer.
_DURABLE = "durable:"

log = logging.getLogger("tidings.broker")


class LiveSubscriber(Protocol):
    """A connected client that live subscriptions deliver to."""

    def deliver(self, subscription: SubscriptionId, encoded: bytes) -> None:
        """An event of a live subscription; lost, and counted, where the client is too slow."""

    def end(self, subscription: SubscriptionId, why: str) -> None:
        """A subscription has ended because its right has."""

    def deliver_rows(self, delivery: BatchDelivery) -> bool:
        """Events of a batch for live subscriptions, likewise; False where each must be delivered by itself."""


class ClientNode(Protocol):
    """The node, as far as the clients of a broker use it."""

    def attach(self, client: str, key: bytes, tokens: Iterable[bytes], now: float) -> list[NodeEffect]: ...
    def detach(self, client: str, now: float, *, drop: bool = False) -> list[NodeEffect]: ...


class SubscribableNode(Protocol):
    """The node, as far as subscriptions use it."""

    def subscribe(
        self, client: str, type: str, condition: str, now: float
    ) -> tuple[SubscriptionId, list[NodeEffect]]: ...
    def unsubscribe(self, id: SubscriptionId, now: float) -> list[NodeEffect]: ...
    def check_reader(self, client: str, type: str, names: tuple[str, ...], now: float) -> None: ...
    def deliver_stored(self, raw: bytes, now: float) -> list[NodeEffect] | None: ...


class AttachedClients:
    """The clients that the node knows, by name, with their rights; and where to deliver to."""

    def __init__(
        self,
        node: ClientNode,
        carry_out: Callable[[Iterable[NodeEffect]], None],
        is_removed: Callable[[bytes], bool] = lambda key: False,
    ) -> None:
        """`is_removed`: whether the organisation has removed the participant with this key."""
        self._node, self._carry_out, self._is_removed = node, carry_out, is_removed
        self._loop = asyncio.get_running_loop()
        self.recipients: dict[str, LiveSubscriber] = {}

    def attach(self, client: str, key: bytes, tokens: Sequence[bytes]) -> None:
        """Attaches a client with those of its tokens that are valid; the others are ignored.

        Raises Denied for one whose certificate counts no more.
        """
        self.check_enrolled(key)
        good = []
        for token in tokens:
            try:
                self._node.attach(client, key, [token], self._loop.time())
                good.append(token)
            except Denied as why:
                log.info("a client's token is not valid", extra={"client": client, "why": str(why)})
        self._carry_out(self._node.attach(client, key, good, self._loop.time()))

    def check_enrolled(self, key: bytes) -> None:
        """Raises Denied if the organisation has removed the client with this key."""
        if self._is_removed(key):
            raise Denied("certificate: its organisation has removed this client", code=ErrorCode.CERTIFICATE)

    def detach(self, client: str) -> None:
        """A client is gone; its subscriptions end."""
        self.recipients.pop(client, None)
        self._carry_out(self._node.detach(client, self._loop.time(), drop=True))


class EventEncoder:
    """Encodes events for subscribers; many subscribers in a row see the same values of the same event."""

    def __init__(self) -> None:
        self._last: tuple[Any, EventId | None, bytes] = (None, None, b"")

    def encode(self, notify: Delivery) -> bytes:
        """The event as a subscriber sees it."""
        if self._last[0] is not notify.values or self._last[1] != notify.event:
            event = DeliveredEvent(notify.event, notify.type, now_us(), notify.values)
            self._last = (notify.values, notify.event, encode_event(event))
        return self._last[2]


def notify_of(delivery: BatchDelivery, row: int, subscription: SubscriptionId) -> Delivery:
    """One event of a batch, delivered by itself."""
    batch = delivery.batch
    return Delivery(subscription, delivery.client, batch.ids[row], batch.name, dict(delivery.shown(row)))


class BrokerSubscriptions:
    """The subscriptions of one broker's clients. As the receiver's `LocalMatcher` it matches the durable ones."""

    def __init__(
        self,
        node: SubscribableNode,
        types: TypeRegistry,
        queues: DurableQueues,
        history: EventHistory,
        clients: AttachedClients,
        encoder: EventEncoder,
        carry_out: Callable[[Iterable[NodeEffect]], None],
        tasks: BackgroundTasks,
    ) -> None:
        self._node, self._types, self._queues, self._history = node, types, queues, history
        self._clients, self._encoder, self._carry_out, self._tasks = clients, encoder, carry_out, tasks
        self._loop = asyncio.get_running_loop()
        self.advertise: Callable[[Iterable[DurableInterest]], None] = lambda interests: None
        """Called with all durable subscriptions whenever they change."""
        self.durable_of: dict[SubscriptionId, str] = {}
        self._subscription_of: dict[str, SubscriptionId] = {}
        self._waiting: dict[SubscriptionId, asyncio.Future[None]] = {}
        self._keys_settled: set[str] = set()  # Types whose keys have come or been refused; asked, never walked.
        self._keys_came = asyncio.Event()
        self.suspended: dict[str, DurableSubscription] = {}
        """Durable subscriptions of earlier incarnations that wait for keys."""
        self._lapsed: dict[str, DurableSubscription] = {}
        self._new_tokens: dict[str, Sequence[bytes]] = {}  # Newer rights of suspended ones.

    # ── Live subscriptions ──

    async def subscribe(self, client: str, type: str, condition: str) -> SubscriptionId:
        """Subscribes; returns when the subscription is known wherever it must be, or after `STABLE_S_MAX`."""
        await self._keys_of(type)
        id, effects = self._node.subscribe(client, type, condition, self._loop.time())
        return await self._stable(id, effects, STABLE_S_MAX)

    def unsubscribe(self, id: SubscriptionId) -> None:
        """Withdraws a subscription."""
        self._carry_out(self._node.unsubscribe(id, self._loop.time()))

    def _stable(
        self, id: SubscriptionId, effects: list[NodeEffect], within_s: float
    ) -> Coroutine[Any, Any, SubscriptionId]:
        waiting = self._waiting[id] = self._loop.create_future()
        self._carry_out(effects)
        return self._wait_for(id, waiting, within_s)

    async def _wait_for(self, id: SubscriptionId, waiting: asyncio.Future[None], within_s: float) -> SubscriptionId:
        if waiting.done():
            waiting.result()  # Raises where it failed.
            return id
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await waiting
        self._waiting.pop(id, None)
        return id

    def placed(self, id: SubscriptionId, failed: str) -> None:
        """The overlay has a subscription in place, or reports why not."""
        waiting = self._waiting.pop(id, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(PeerError(failed)) if failed else waiting.set_result(None)

    # ── Keys ──

    async def _keys_of(self, type: str) -> None:
        """Waits a while for a sealed type's keys that have neither come nor been refused: the broker has just started."""
        known = self._types.find(type)
        if known.is_plain or known.name in self._keys_settled:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KEYS_S_MAX):
                while known.name not in self._keys_settled:
                    await self._keys_came.wait()

    def settle_keys(self, type: str) -> None:
        """The keys of a type have come, or have been refused."""
        self._keys_settled.add(type)
        self._keys_came.set()
        self._keys_came.clear()

    def is_suspended(self, type: str) -> bool:
        """Whether a durable subscription to a type is suspended: the type's events cannot be matched yet."""
        return any(durable.type == type for durable in self.suspended.values())

    def client_name(self, client: str) -> str:
        """Who a client of the node is, for people: a durable subscription, which is one by itself, has a name."""
        durable = self._queues.all.get(client.removeprefix(_DURABLE))
        return f"durable {durable.name}" if durable is not None and client.startswith(_DURABLE) else client

    # ── Matching durable subscriptions ──

    def match(self, raw: bytes) -> Deliveries | None:
        """What an event is for each durable subscription that it matches; None if its key may still come."""
        if self.suspended and self.is_suspended(decode_stored(raw).header.type):
            return None
        effects = self._node.deliver_stored(raw, self._loop.time())
        if effects is None:
            return None
        durable_of = self.durable_of
        matched = [effect for effect in effects if isinstance(effect, Delivery) and effect.subscription in durable_of]
        return [(durable_of[notify.subscription], self._encoder.encode(notify)) for notify in matched]

    def queue_rows(self, delivery: BatchDelivery) -> bool:
        """Queues events of a batch, where they are for durable subscriptions; False if they are for a connected client."""
        if self.durable_of.keys().isdisjoint(delivery.subscriptions):
            return False
        for row, subscription in zip(delivery.rows, delivery.subscriptions, strict=True):
            durable = self.durable_of.get(subscription)
            if durable is not None:
                self._queues.add(durable, self._encoder.encode(notify_of(delivery, row, subscription)))
        return True

    def awaits_keys(self, raw: bytes) -> bool:
        """Whether its type is suspended because the key manager has not answered yet."""
        type = decode_stored(raw).header.type
        return type not in self._keys_settled and self.is_suspended(type)

    def bury(self, raw: bytes, only_for: str, why: str) -> None:
        """Makes an event that cannot be opened a dead letter of each subscription that it may match."""
        header = decode_stored(raw).header
        known = self._types.event_type(header.type)
        self._queues.bury_unopened(header, known.name if known else header.type, raw, only_for, why)

    # ── Durable subscriptions ──

    def check(self, client: str, known: RegisteredType, condition: str) -> None:
        """Raises what subscribing would raise: for a condition that is wrong or too large, or without a right."""
        check_size(condition)
        names = tuple(parse(condition, known.event_type).attributes)
        self._node.check_reader(client, known.name, names, self._loop.time())

    async def subscribe_durable(
        self, owner: bytes, name: str, known: RegisteredType, condition: str, since_us: int, tokens: Sequence[bytes]
    ) -> DurableSubscription:
        """Creates or resumes a durable subscription; returns when it is on disk and advertised to the linked brokers."""
        check_size(condition)
        queues, backlog = self._queues, Backlog()
        begins = since_us if since_us >= 0 else now_us()
        if queues.find(owner, name) is None:
            await self._keys_of(known.name)
            if since_us >= 0:
                interest = DurableInterest("", known.name, condition, since_us)
                (backlog,) = await self._history.read([interest], skew_us=0)  # The same clock.
        is_new = queues.find(owner, name) is None  # The client may have subscribed on another connection meanwhile.
        durable = queues.make(owner, name, known.name, condition, begins, tokens)
        await (self._begin(durable, backlog) if is_new else self._renew(durable, tokens))
        await queues.saved()
        self.check_holds(durable)
        return durable

    def check_holds(self, durable: DurableSubscription) -> None:
        """Raises Denied for a subscription whose right was revoked: its queue stays, and is not handed over."""
        if durable.id in self._lapsed:
            names = tuple(parse(durable.condition, self._types[durable.type].event_type).attributes)
            try:
                self._node.check_reader(_DURABLE + durable.id, durable.type, names, self._loop.time())
            except Denied as refused:
                if refused.code is ErrorCode.REVOKED:
                    raise

    async def _begin(self, durable: DurableSubscription, backlog: Backlog) -> None:
        """Awaits nothing before all is done: a client that disconnects now finds it complete when it reconnects."""
        try:
            stable = self._activate(durable)
        except TidingsError:
            self._queues.forget(durable)
            raise
        self._queue_backlog(durable, backlog)  # Before anything can be published: older events come first.
        self.advertise_all()
        await stable

    async def _renew(self, durable: DurableSubscription, tokens: Sequence[bytes]) -> None:
        """Continues under other rights than before; rights that do not cover the subscription change nothing."""
        if durable.id in self.suspended:
            self._new_tokens[durable.id] = tokens  # What they cover cannot be decided before the keys are here.
            return
        before, after = durable.tokens, msgspec.msgpack.encode(tuple(tokens))
        if after == before or self._queues.all.get(durable.id) is not durable:
            return
        old, durable.tokens = self._subscription_of.get(durable.id), after
        try:
            stable = self._activate(durable)
        except TidingsError as wrong:
            log.info("a durable subscription keeps its old rights", extra={"durable": durable.name, "why": str(wrong)})
            durable.tokens = before
            self._attach(durable)
            return
        if old is not None:  # Nothing was awaited since the new one began: no event can match both.
            self.durable_of.pop(old, None)
            self.unsubscribe(old)
        self._lapsed.pop(durable.id, None)
        self._queues.journal.note_durable(durable)
        await stable

    async def forget_durable(self, durable: DurableSubscription) -> None:
        """Deletes a durable subscription."""
        self._queues.forget(durable)
        for waiting in (self.suspended, self._lapsed, self._new_tokens):
            waiting.pop(durable.id, None)
        id = self._subscription_of.pop(durable.id, None)
        if id is not None:
            self.durable_of.pop(id, None)
            self.unsubscribe(id)
        self.advertise_all()
        await self._queues.saved()

    def advertise_all(self) -> None:
        """Advertises all durable subscriptions; without conditions where these are confidential."""
        self.advertise(
            [
                DurableInterest(d.id, d.type, d.condition if self._types.is_plain(d.type) else "", d.since_us)
                for d in self._queues.all.values()
            ]
        )

    # ── Suspended and lapsed ones ──

    def restore(self) -> None:
        """Takes up all durable subscriptions when the broker starts."""
        self.suspended = dict(self._queues.all)
        self.resume_suspended()
        if self._queues.all:
            self.advertise_all()

    def resume_suspended(self) -> None:
        """Resumes the durable subscriptions whose keys are here now."""
        for durable in list(self.suspended.values()):
            try:
                self._tasks.start(self._activate(durable))
            except TidingsError as wrong:
                if wrong.code is ErrorCode.KEY:
                    continue
                log.warning("a durable subscription is suspended", extra={"durable": durable.name, "why": str(wrong)})
                self._lapsed[durable.id] = durable  # Its right has ended; its queue stays.
            del self.suspended[durable.id]
            if durable.id in self._new_tokens:
                self._tasks.start(self._renew(durable, self._new_tokens.pop(durable.id)))

    async def retry_lapsed(self, every_s: float) -> None:
        """Resumes lapsed durable subscriptions whose right is valid again."""
        while True:
            await asyncio.sleep(every_s)
            for durable in list(self._lapsed.values()):
                with contextlib.suppress(TidingsError):
                    self._tasks.start(self._activate(durable))
                    del self._lapsed[durable.id]

    def ended(self, subscription: SubscriptionId, why: str) -> None:
        """A subscription has ended because its right has; a durable one keeps its queue."""
        durable = self._queues.all.get(self.durable_of.pop(subscription, ""))
        if durable is not None:
            log.warning("a durable subscription has lost its right", extra={"durable": durable.name, "why": why})
            self._lapsed[durable.id] = durable
            if Denied(why).code is ErrorCode.REVOKED:  # An expired one may be renewed, or the clock be wrong.
                self._queues.refuse(durable.id, why)

    def _activate(self, durable: DurableSubscription) -> Coroutine[Any, Any, SubscriptionId]:
        """Subscribes at the node for a durable subscription, under its owner's rights."""
        if not self._types.is_plain(durable.type):
            self._queues.sealed.add(durable.id)
        client = self._attach(durable)
        id, effects = self._node.subscribe(client, durable.type, durable.condition, self._loop.time())
        self.durable_of[id], self._subscription_of[durable.id] = durable.id, id
        return self._stable(id, effects, STABLE_S_MAX)

    def _attach(self, durable: DurableSubscription) -> str:
        """To the node, a durable subscription is a client of its own, with its owner's rights."""
        client = _DURABLE + durable.id
        tokens = msgspec.msgpack.decode(durable.tokens, type=tuple[bytes, ...])
        self._clients.attach(client, durable.owner, tokens)
        return client

    def _queue_backlog(self, durable: DurableSubscription, backlog: Backlog) -> None:
        for event in self._history.complete(backlog):
            for id, encoded in self.match(event.raw) or []:
                if id == durable.id:
                    self._queues.add(id, encoded)
        self._queues.deliver_when_on_disk()
