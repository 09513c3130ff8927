"""Subscribing: what a broker's clients want, while they are connected and, durably, while they are not.

A subscription is in place when the overlay says that it is known wherever it must be; after a while its
client is told so in any case. Durable ones are taken up again when the broker starts: those whose keys have not come
rest until they do, and those whose rights have ended are tried again now and then, for a clock may have been wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from tidings.errors import ErrorCode, PeerError, TidingsError
from tidings.net.broker.journal import Durable
from tidings.net.broker.promises import Past
from tidings.net.ids import now_us
from tidings.node import NodeEffect, RegisteredType
from tidings.overlay import SubscriptionId

if TYPE_CHECKING:
    from tidings.net.broker.broker import Broker

LAPSED_AGAIN_S = 10.0  # How often durable subscriptions without a right are tried again: a clock may have been wrong.
KEYS_S_MAX = 30.0  # How long a subscription waits for the keys of its type: some askings long.
STABLE_S_MAX = (
    10.0  # How long a subscription waits to be known everywhere before its client is told that it is in place.
)
_DURABLE = "durable:"

log = logging.getLogger("tidings.broker")


class Subscribing:
    """The subscriptions of one broker's clients."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self.durable_of: dict[SubscriptionId, str] = {}
        self._subscription_of: dict[str, SubscriptionId] = {}
        self._waiting: dict[SubscriptionId, asyncio.Future[None]] = {}
        self._keys_settled: set[str] = set()  # Types whose keys have come or been refused; asked, never walked.
        self._keys_came = asyncio.Event()
        self.resting: dict[str, Durable] = {}
        self._lapsed: dict[str, Durable] = {}
        self._shown: dict[str, Sequence[bytes]] = {}  # Newer rights of those that rest.

    # ── While connected ──

    async def subscribe(self, client: str, type: str, condition: str) -> SubscriptionId:
        """Subscribe; returns when the subscription is known wherever it must be, or the time is over."""
        await self._keys_of(type)
        id, effects = self._broker.node.subscribe(client, type, condition, self._loop.time())
        return await self._stable(id, effects, STABLE_S_MAX)

    def unsubscribe(self, id: SubscriptionId) -> None:
        """Take a subscription back."""
        self._broker.carry_out(self._broker.node.unsubscribe(id, self._loop.time()))

    async def _keys_of(self, type: str) -> None:
        """Waits a while for a sealed type's keys that are neither here nor refused: a broker that has just started."""
        known = self._broker.types.find(type)
        if known.is_plain or known.name in self._keys_settled:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KEYS_S_MAX):
                while known.name not in self._keys_settled:
                    await self._keys_came.wait()

    def rests(self, type: str) -> bool:
        """Whether a durable subscription to a type is not taken up yet: its events cannot be matched."""
        return any(durable.type == type for durable in self.resting.values())

    def awaits_keys(self, type: str) -> bool:
        """Whether it rests because nobody has answered yet for the keys."""
        return type not in self._keys_settled and self.rests(type)

    def settle_keys(self, type: str) -> None:
        """The keys of a type have come, or will not."""
        self._keys_settled.add(type)
        self._keys_came.set()
        self._keys_came.clear()

    def _stable(
        self, id: SubscriptionId, effects: list[NodeEffect], within_s: float
    ) -> Coroutine[Any, Any, SubscriptionId]:
        waiting = self._waiting[id] = self._loop.create_future()
        self._broker.carry_out(effects)
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
        """The overlay has a subscription in place, or says why not."""
        waiting = self._waiting.pop(id, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(PeerError(failed)) if failed else waiting.set_result(None)

    # ── Durably ──

    async def subscribe_durable(
        self, owner: bytes, name: str, known: RegisteredType, condition: str, since_us: int, tokens: Sequence[bytes]
    ) -> Durable:
        """Make or take up a durable subscription; returns when it is on disk and the brokers linked now are told."""
        queues, past = self._broker.queues, Past()
        begins = since_us if since_us >= 0 else now_us()
        if queues.find(owner, name) is None:
            await self._keys_of(known.name)
            if since_us >= 0:
                past = await self._broker.promises.past_of(known.name, condition, since_us)
        is_new = queues.find(owner, name) is None  # Its client may have asked on another connection meanwhile.
        durable = queues.make(owner, name, known.name, condition, begins, tokens)
        await (self._begin(durable, past) if is_new else self._renew(durable, tokens))
        await self._broker.journal.committed()
        return durable

    async def _begin(self, durable: Durable, past: Past) -> None:
        """Nothing is waited for before all is done: a client that leaves now finds it complete when it comes back."""
        broker = self._broker
        try:
            stable = self._take_up(durable)
        except TidingsError:
            broker.queues.forget(durable)
            raise
        self._queue_past(durable, past)  # Before anything can be published: the past comes first.
        broker.promises.tell(list(broker.queues.all.values()))
        await stable

    async def _renew(self, durable: Durable, tokens: Sequence[bytes]) -> None:
        """Go on under other rights than before; those that do not cover the subscription change nothing."""
        if durable.id in self.resting:
            self._shown[durable.id] = tokens  # Nothing can be said of what they cover before the keys are here.
            return
        before, after = durable.tokens, msgspec.msgpack.encode(tuple(tokens))
        if after == before or self._broker.queues.all.get(durable.id) is not durable:
            return
        old, durable.tokens = self._subscription_of.get(durable.id), after
        try:
            stable = self._take_up(durable)
        except TidingsError as wrong:
            log.info("a durable subscription keeps its rights", extra={"durable": durable.name, "why": str(wrong)})
            durable.tokens = before
            self._attach(durable)
            return
        if old is not None:  # Without a pause since the other began: no event can come for both.
            self.durable_of.pop(old, None)
            self.unsubscribe(old)
        self._lapsed.pop(durable.id, None)
        self._broker.journal.note_durable(durable)
        await stable

    async def forget_durable(self, durable: Durable) -> None:
        """Give up a durable subscription for good."""
        broker = self._broker
        broker.queues.forget(durable)
        for waiting in (self.resting, self._lapsed, self._shown):
            waiting.pop(durable.id, None)
        id = self._subscription_of.pop(durable.id, None)
        if id is not None:
            self.durable_of.pop(id, None)
            self.unsubscribe(id)
        broker.promises.tell(list(broker.queues.all.values()))
        await broker.journal.committed()

    def take_up_resting(self) -> None:
        """Take up durable subscriptions of earlier lives; those whose keys have not come are tried again later."""
        for durable in list(self.resting.values()):
            try:
                self._broker.task(self._take_up(durable))
            except TidingsError as wrong:
                if wrong.code is ErrorCode.KEY:
                    continue
                log.warning("a durable subscription rests", extra={"durable": durable.name, "why": str(wrong)})
                self._lapsed[durable.id] = durable  # Its right has ended; what waits for it stays.
            del self.resting[durable.id]
            if durable.id in self._shown:
                self._broker.task(self._renew(durable, self._shown.pop(durable.id)))

    async def take_up_lapsed(self) -> None:
        """What has lost its right gets it back if the right holds again; nobody waits for it."""
        while True:
            await asyncio.sleep(LAPSED_AGAIN_S)
            for durable in list(self._lapsed.values()):
                with contextlib.suppress(TidingsError):
                    self._broker.task(self._take_up(durable))
                    del self._lapsed[durable.id]

    def ended(self, subscription: SubscriptionId, why: str) -> None:
        """A subscription is over because its right is; a durable one keeps what waits for it."""
        durable = self._broker.queues.all.get(self.durable_of.pop(subscription, ""))
        if durable is not None:
            log.warning("a durable subscription has lost its right", extra={"durable": durable.name, "why": why})
            self._lapsed[durable.id] = durable

    def _take_up(self, durable: Durable) -> Coroutine[Any, Any, SubscriptionId]:
        """Subscribe at the node for a durable subscription, under its owner's rights."""
        broker = self._broker
        if not broker.types.is_plain(durable.type):
            broker.queues.sealed.add(durable.id)
        client = self._attach(durable)
        id, effects = broker.node.subscribe(client, durable.type, durable.condition, self._loop.time())
        self.durable_of[id], self._subscription_of[durable.id] = durable.id, id
        return self._stable(id, effects, STABLE_S_MAX)

    def _attach(self, durable: Durable) -> str:
        """The node knows a durable subscription as a client of its own, with its owner's rights."""
        client = _DURABLE + durable.id
        tokens = msgspec.msgpack.decode(durable.tokens, type=tuple[bytes, ...])
        self._broker.connections.attach(client, durable.owner, tokens)
        return client

    def _queue_past(self, durable: Durable, past: Past) -> None:
        broker = self._broker
        for raw in broker.promises.all_of(past):
            for id, told in broker.deliver(raw) or []:
                if id == durable.id:
                    broker.queues.add(id, told)
        broker.publishing.when_on_disk()
