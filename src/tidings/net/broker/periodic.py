"""Background work of a broker: supervised tasks, and what is done regularly whether or not a client asks.

each second     checks the clock, reads revocations, and tries to join and to restore durable subscriptions
each 5 s        saves the router's memory, if it has changed
each 30 s       deletes events, pending deliveries and dead letters that are over the limits
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from tidings.errors import Denied, TidingsError
from tidings.net.broker.journal import Journal
from tidings.net.broker.key_managers import KeyManagers
from tidings.net.clock import now_ms, now_us
from tidings.net.config import Limits, files_in
from tidings.net.ids import read_token
from tidings.net.type_files import TypeDefinition
from tidings.node import NodeEffect
from tidings.store import Revocation

CHECK_EVERY_S = 1.0
BACK_MS = 2000  # A clock that goes back by more has been set: events sealed before then seem to lie in the future.
MEMORY_EVERY_S = 5.0
RETENTION_EVERY_S = 30.0

log = logging.getLogger("tidings.broker")


class BackgroundTasks:
    """The tasks of one broker. A failure is logged, and `cancel` ends all of them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Runs a coroutine in the background, at most until the broker stops."""
        task: asyncio.Task[Any] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def cancel(self) -> None:
        """Cancels all tasks, and waits until they have ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, TidingsError | OSError):
            log.error("a task of this broker failed", extra={"why": str(error)})
        else:
            log.error("a task of this broker failed", exc_info=error)


class MaintainedNode(Protocol):
    """The node, as far as the check of each second uses it."""

    def clock_is(self, wall_ms: int, now: float) -> None: ...
    def now_ms(self, now: float) -> int: ...
    def hold(self, token: bytes, now: float) -> list[NodeEffect]: ...
    def revoke(self, ids: Iterable[str], now: float) -> list[NodeEffect]: ...


class Maintenance:
    """The check of each second."""

    def __init__(
        self,
        node: MaintainedNode,
        carry_out: Callable[[Iterable[NodeEffect]], None],
        managers: KeyManagers,
        token_files: Sequence[Path],
        declare: Callable[[Sequence[TypeDefinition]], None],
        also: Sequence[Callable[[], None]],
        spread: Callable[[Sequence[bytes]], None],
    ) -> None:
        """`declare` gets the registry's types whenever it has changed; `also` is called each second, too.

        `spread` has the registry's revocations told to other brokers.
        """
        self._node, self._carry_out, self._managers = node, carry_out, managers
        self._token_files, self._declare, self._also = token_files, declare, also
        self._spread = spread
        self._presented: set[bytes] = set()
        self._loop = asyncio.get_running_loop()

    def present_tokens(self, now: float) -> None:
        """Requests the keys that this broker's tokens give it a right to.

        Each request gets a new sender id, under which no nonce has been used.
        """
        self._presented.clear()
        self.present_new_tokens(now)

    def present_new_tokens(self, now: float) -> None:
        """The same, for those that were not presented yet. A right that cannot be used is reported and left out."""
        for file in files_in(self._token_files, ".token"):
            token = read_token(file)
            if token in self._presented:
                continue
            try:
                self._carry_out(self._node.hold(token, now))
            except Denied as refused:
                if file in self._token_files:
                    raise Denied(f"{refused} (in {file})", code=refused.code) from None
                log.warning("a right cannot be used", extra={"file": str(file), "why": str(refused)})
            else:
                self._presented.add(token)

    async def run(self) -> None:
        """Until it is cancelled. What a check could not do, as with a busy registry or a missing file, the next one does."""
        failed = ""
        while True:
            try:
                await self._check()
                failed = ""
            except (TidingsError, OSError) as wrong:
                self._managers.look_again()
                if failed != (failed := str(wrong)):
                    log.error("a check of this broker failed; it is repeated", extra={"why": failed})
            await asyncio.sleep(CHECK_EVERY_S)

    async def _check(self) -> None:
        try:
            self._check_clock()
            for each in self._also:
                each()
        finally:  # An unreadable file of tokens, say, must not keep a revocation from counting.
            self.revoke(await asyncio.to_thread(self._managers.revocations))
            types = await asyncio.to_thread(self._managers.new_types)
            if types:
                self._declare(types)

    def revoke(self, found: Sequence[Revocation]) -> None:
        """Puts revocations of the registry in force, and has them told to other brokers."""
        if found:
            self._carry_out(self._node.revoke([each.revocation_id for each in found], self._loop.time()))
            self._spread([each.record for each in found if each.record is not None])

    def _check_clock(self) -> None:
        node, now, shown_ms = self._node, self._loop.time(), now_ms()
        back_ms = node.now_ms(now) - shown_ms
        node.clock_is(shown_ms, now)
        if back_ms > BACK_MS:
            log.warning("the clock has gone back", extra={"by_ms": back_ms})
            self.present_tokens(now)


class _Remembering(Protocol):
    def memory(self) -> bytes: ...


async def save_router_memory(node: _Remembering, journal: Journal) -> None:
    """Saves what the router remembers across restarts, whenever it has changed."""
    saved = b""
    while True:
        await asyncio.sleep(MEMORY_EVERY_S)
        memory = node.memory()
        if memory != saved:
            saved = memory
            journal.note_meta("router memory", memory)
            await journal.committed()


class _Sender(Protocol):
    async def give_up(self, before_us: int) -> None: ...


async def apply_retention(sender: _Sender, journal: Journal, limits: Limits) -> None:
    """Deletes what is over the limits."""
    while True:
        await asyncio.sleep(RETENTION_EVERY_S)
        before_us = now_us() - int(limits.retention_hours * 3_600_000_000)
        await sender.give_up(before_us)
        await journal.forget_old(limits.retention_events_max, before_us, limits.dead_letters_max)
