"""The blocking client: the calls of `Client` for programs without an event loop.

    with BlockingClient("camera.toml") as client:
        client.publish("Numberplate", {"plate": "AB12CDE", "speed": 31.0})
        for event in client.subscribe("Numberplate", "speed > 20", durable="fines"):
            ...

It runs a `Client` on an event loop in a thread of its own. Its methods may be called from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from tidings.events import Event, Timestamp
from tidings.net.client.client import Client, Received, Subscription
from tidings.net.config import ClientConfig

_T = TypeVar("_T")


class BlockingSubscription:
    """The events of one subscription, as an iterator that waits for them."""

    def __init__(self, client: BlockingClient, subscription: Subscription) -> None:
        self._client, self._subscription = client, subscription

    def __iter__(self) -> Iterator[Received]:
        return self

    def __next__(self) -> Received:
        event = self._client._wait(self._next(None))
        if event is None:
            raise StopIteration
        return event

    def next(self, within_s: float) -> Received | None:
        """The next event, or None if none comes in that time or the subscription has ended."""
        return self._client._wait(self._next(within_s))

    def reject(self, event: Received, why: str) -> None:
        """The subscriber cannot use this event; the broker makes it a dead letter, with the reason."""
        self._client._wait(self._subscription.reject(event, why))

    def close(self, *, forget: bool = False) -> None:
        """Ends the subscription; what has been handed out counts as processed."""
        self._client._wait(self._subscription.close(forget=forget))

    async def _next(self, within_s: float | None) -> Received | None:
        try:
            async with asyncio.timeout(within_s):
                return await anext(self._subscription)
        except (StopAsyncIteration, TimeoutError):
            return None


class BlockingClient:
    """A connection to one broker that reconnects by itself."""

    def __init__(self, config: ClientConfig | Path | str) -> None:
        """Connects; raises if the broker cannot be reached or refuses."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tidings-client", daemon=True)
        self._thread.start()
        try:
            self._client = self._wait(Client.connect(config))
        except BaseException:
            self._stop()
            raise

    def publish(self, what: Event | str, values: Mapping[str, Any] | None = None, *, name: str = "") -> str:
        """As `Client.publish`."""
        return self._wait(self._client.publish(what, values, name=name))

    def publish_many(
        self, type: str, events: Sequence[Mapping[str, Any]], *, names: Sequence[str] | None = None
    ) -> list[str]:
        """As `Client.publish_many`."""
        return self._wait(self._client.publish_many(type, events, names=names))

    def subscribe(
        self,
        type: str,
        condition: str = "TRUE",
        *,
        durable: str = "",
        since: Timestamp | None = None,
        after: int = -1,
        hold: bool = False,
    ) -> BlockingSubscription:
        """As `Client.subscribe`; the subscription is in place when this returns."""

        async def subscribed() -> Subscription:
            asked = self._client.subscribe(type, condition, durable=durable, since=since, after=after, hold=hold)
            return await asked.ready()

        return BlockingSubscription(self, self._wait(subscribed()))

    def ask(self, what: str, **options: Any) -> list[dict[str, Any]]:
        """As `Client.ask`."""
        return self._wait(self._client.ask(what, **options))

    def close(self) -> None:
        """Closes the connection."""
        if self._thread.is_alive():
            self._wait(self._client.close())
            self._stop()

    def __enter__(self) -> BlockingClient:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _wait(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
