"""Events as they arrive at one client, shared by all pages that ask for the same, with the last of them kept.

A feed is one subscription, or a replay: a durable one that begins in the past, and is forgotten with the feed. It begins when a page asks for it and ends some seconds after the last page is gone, so a
console that nobody looks at costs its broker nothing. However fast events arrive, a page gets a few of them at fixed
intervals and the number of the others: the limit is here, not in the browser.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from tidings.errors import TidingsError
from tidings.events import EventType, Value, to_record, typed
from tidings.net import Received, Subscription

RECENT_MAX = 1000
TICK_S = 0.25
SHOWN_PER_TICK = 25  # A hundred rows a second; nobody reads more.
TEXT_CHARACTERS_MAX = 2000  # Of one value, in a page; a publisher may send megabytes.
EXACT_MAX = (1 << 53) - 1  # Beyond it a browser's numbers are not exact.
LINGER_S = 20.0
_WHOLE = re.compile(r"-?[0-9]{1,20}")
QUIET_TICKS = 40  # Ten seconds without an event: an empty message, so that both ends notice a dead connection.


class Feed:
    """The events of one subscription."""

    def __init__(self, subscription: Subscription, *, is_replay: bool = False) -> None:
        """`is_replay`: of a durable subscription that begins in the past, and that the broker forgets at the end."""
        self._subscription, self._is_replay = subscription, is_replay
        self.recent: deque[Received] = deque(maxlen=RECENT_MAX)
        self.total = 0
        self.watchers = 0
        self.used_at = asyncio.get_running_loop().time()
        self.error: TidingsError | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def ready(self) -> None:
        """Returns when the broker has the subscription; raises its refusal."""
        await self._subscription.ready()

    async def _run(self) -> None:
        try:
            async for event in self._subscription:
                self.recent.append(event)
                self.total += 1
        except TidingsError as wrong:
            self.error = wrong

    @property
    def is_over(self) -> bool:
        return self._task.done()

    def is_idle(self, now: float) -> bool:
        return not self.watchers and now - self.used_at > LINGER_S

    async def close(self) -> None:
        self._task.cancel()
        with contextlib.suppress(TidingsError, TimeoutError):
            async with asyncio.timeout(1.0):
                await self._subscription.close(forget=self._is_replay)

    async def messages(self) -> AsyncGenerator[dict[str, Any], None]:
        """What a page is sent: first the recent events, then new ones at intervals; ends with the feed."""
        self.watchers += 1
        try:
            cursor, quiet = max(0, self.total - SHOWN_PER_TICK), 0
            yield self._message(cursor)
            cursor = self.total
            while not self.is_over:
                await asyncio.sleep(TICK_S)
                quiet += 1
                if self.total > cursor or quiet >= QUIET_TICKS:
                    yield self._message(cursor)
                    cursor, quiet = self.total, 0
            if self.error is not None:
                raise self.error
        finally:
            self.watchers -= 1
            self.used_at = asyncio.get_running_loop().time()

    def _message(self, since: int) -> dict[str, Any]:
        new = self.total - since
        shown = list(self.recent)[-min(new, SHOWN_PER_TICK) :] if new else []
        return {
            "events": [show(event) for event in shown],
            "skipped": new - len(shown),
            "total": self.total,
            "missed": self._subscription.missed,
        }


def show(event: Received) -> dict[str, Any]:
    """An event as pages get it; texts that are too long are cut, and say so."""
    cut: list[str] = []
    values = {name: _short(name, value, cut) for name, value in to_record(event.values).items()}
    return {"id": event.id, "type": event.type, "at": event.at.iso(), "values": values, "cut": cut}


def from_page(record: Mapping[str, Any], event_type: EventType) -> dict[str, Value]:
    """The values that a page sends: as JSON has them, and whole numbers as text where the browser's are not exact."""
    whole = {each.name for each in event_type if str(each.type) == "int"}
    exact = {
        name: int(value) if name in whole and isinstance(value, str) and _WHOLE.fullmatch(value) else value
        for name, value in record.items()
    }
    return event_type.check(typed(exact, event_type))


def _short(name: str, value: Any, cut: list[str]) -> Any:
    if isinstance(value, str) and len(value) > TEXT_CHARACTERS_MAX:
        cut.append(name)
        return value[:TEXT_CHARACTERS_MAX] + "…"
    if isinstance(value, int) and abs(value) > EXACT_MAX:
        return str(value)
    if isinstance(value, Mapping):
        return {inner: _short(f"{name}.{inner}", each, cut) for inner, each in value.items()}
    if isinstance(value, list) and len(value) > TEXT_CHARACTERS_MAX // 10:
        cut.append(name)
        return value[: TEXT_CHARACTERS_MAX // 10]
    return value
