"""Upkeep: what a broker does now and then whether or not anybody asks.

each second     looks at the clock, at what has been revoked, and at who can be joined
each 5 s        writes down what the router remembers, if it has changed
each 30 s       lets go of events, debts and dead letters that are over the limits
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from tidings.errors import SetupError
from tidings.net.ids import now_ms, now_us, read_token

if TYPE_CHECKING:
    from tidings.net.broker.broker import Broker

ROUTINE_S = 1.0
BACK_MS = 2000  # A clock that goes back by more has been set: events sealed before it seem to lie in the future.
MEMORY_EVERY_S = 5.0  # How often what the router remembers is written down, if it has changed.
FORGET_EVERY_S = 30.0

log = logging.getLogger("tidings.broker")


class Upkeep:
    """One broker's routine."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._remembered = b""

    def begin(self) -> None:
        """From now on, until the broker stops."""
        for routine in (self._routine, self._keep_memory, self._forget_old, self._broker.subscribing.take_up_lapsed):
            self._broker.task(routine())

    def hold_tokens(self, now: float) -> None:
        """Ask for what this broker's rights open. Who asks again gets a sender id whose moments nobody has used."""
        for file in self._broker.config.tokens:
            self._broker.carry_out(self._broker.node.hold(read_token(file), now))

    async def _routine(self) -> None:
        broker = self._broker
        while True:
            self._look_at_the_clock()
            broker.entrance.enter()
            broker.subscribing.take_up_resting()
            try:
                revoked = await asyncio.to_thread(broker.managers.revocations)
            except SetupError as wrong:  # A registry that is busy, or on a full disk, is asked again.
                log.error("the registry cannot be read", extra={"why": str(wrong)})
            else:
                broker.carry_out(broker.node.revoke(revoked, self._loop.time()) if revoked else [])
            await asyncio.sleep(ROUTINE_S)

    def _look_at_the_clock(self) -> None:
        node, now, shown_ms = self._broker.node, self._loop.time(), now_ms()
        back_ms = node.now_ms(now) - shown_ms
        node.clock_is(shown_ms, now)
        if back_ms > BACK_MS:
            log.warning("the clock has gone back", extra={"by_ms": back_ms})
            self.hold_tokens(now)

    async def _keep_memory(self) -> None:
        journal = self._broker.journal
        while True:
            await asyncio.sleep(MEMORY_EVERY_S)
            memory = self._broker.node.memory()
            if memory != self._remembered:
                self._remembered = memory
                journal.note_meta("router memory", memory)
                await journal.committed()

    async def _forget_old(self) -> None:
        broker, limits = self._broker, self._broker.config.limits
        while True:
            await asyncio.sleep(FORGET_EVERY_S)
            before_us = now_us() - int(limits.retention_hours * 3_600_000_000)
            await broker.promises.give_up(before_us)
            await broker.journal.forget_old(limits.retention_events_max, before_us, limits.dead_letters_max)
