"""The clients that the console acts as: each with its own identity, rights and connection to its broker.

Nothing here has more rights than the client's own file gives. A client connects when it is first needed. One that
does not get an answer is disconnected and connects anew, so a broker that was restarted, or rights that were renewed,
need no restart of the console.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tidings.console.feeds import Feed
from tidings.errors import InputError, PeerError, TidingsError
from tidings.events import EventType, Timestamp
from tidings.net import Client, der, is_administrator, read_client, read_identity

ANSWER_S_MAX = 6.0  # A trace over thirty hops takes three.
QUESTIONS_MAX = 64  # At once, of all pages.
FEEDS_MAX = 32
REPLAYS_MAX = 4  # At once, of one client.
REPLAY = "console-replay-"
REPLAY_S_MAX = 12 * 3600  # A replay that is older is of a console that did not end well.
HISTORY_MAX = 450  # Fifteen minutes at two seconds.
TYPES_S = 5.0


@dataclass(slots=True)
class StatusHistory:
    """What a broker has reported, newest last; points are (seconds, counters)."""

    latest: Mapping[str, Any] | None = None
    problem: str = ""
    points: deque[tuple[float, dict[str, float]]] = field(default_factory=lambda: deque(maxlen=HISTORY_MAX))


class ConsoleClient:
    """One client that the console acts as."""

    def __init__(self, file: Path) -> None:
        """Raises InputError for a file that describes no client."""
        self.config = read_client(file)
        self.name = f"{self.config.domain}/{self.config.name}"
        self.key = read_identity(self.config.key).public_key
        self.administers = is_administrator(der(self.config.certificate.read_bytes()))
        self.history = StatusHistory()
        self._client: Client | None = None
        self._connecting, self._subscribing = asyncio.Lock(), asyncio.Lock()
        self._asking: dict[str, asyncio.Future[list[dict[str, Any]]]] = {}
        self._feeds: dict[tuple[str, str], Feed] = {}
        self._types: tuple[float, list[dict[str, Any]]] = (float("-inf"), [])

    async def client(self) -> Client:
        """The connection; raises PeerError or Denied if there can be none."""
        async with self._connecting:
            if self._client is None:
                self._client = await Client.connect(self.config)
            return self._client

    async def stop(self) -> None:
        """Ends for good: questions that are being asked, feeds, and the connection."""
        asking = list(self._asking.values())
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await self.close()

    async def close(self) -> None:
        """Ends all feeds and the connection; the next question connects anew."""
        for feed in list(self._feeds.values()):
            await feed.close()
        self._feeds.clear()
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(TidingsError, OSError):
                await client.close()

    # ── Questions ──

    async def ask(self, what: str, **options: Any) -> list[dict[str, Any]]:
        """The broker's answer; raises PeerError if there is none in time. The same question is asked once at a time."""
        key = f"{what} {sorted(options.items())}"
        if key not in self._asking:
            if len(self._asking) >= QUESTIONS_MAX:
                raise PeerError(f"{QUESTIONS_MAX} questions wait for {self.config.broker} already; try again")
            task = asyncio.get_running_loop().create_task(self._ask(what, options))
            self._asking[key] = task
            task.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(self._asking[key])

    async def _ask(self, what: str, options: Mapping[str, Any]) -> list[dict[str, Any]]:
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                return await (await self.client()).ask(what, **options)
        except TimeoutError:
            await self.close()
            why = f"the broker at {self.config.broker} does not answer; `tidings broker status` shows whether it runs"
            raise PeerError(why) from None

    def _answered(self, key: str, done: asyncio.Future[Any]) -> None:
        del self._asking[key]
        if not done.cancelled():
            done.exception()  # Looked at, also where no page waits for it any more.

    async def types(self) -> list[dict[str, Any]]:
        """The types that the broker knows; a few seconds old at most."""
        now = asyncio.get_running_loop().time()
        if now - self._types[0] > TYPES_S:
            self._types = now, await self.ask("types")
        return self._types[1]

    async def event_type(self, name: str) -> EventType:
        """One type; raises InputError if the broker does not know it."""
        if name not in {row["name"] for row in await self.types()}:
            raise InputError(f"the broker of {self.name} knows no type {name[:100]!r}")
        async with asyncio.timeout(ANSWER_S_MAX):
            return await (await self.client()).event_type(name)

    async def observe(self) -> None:
        """Asks for the broker's status, for the map and the charts."""
        try:
            (status,) = await self.ask("status")
        except TidingsError as wrong:
            self.history.problem = str(wrong)
            return
        self.history.latest, self.history.problem = status, ""
        self.history.points.append((asyncio.get_running_loop().time(), _counters(status)))

    # ── Events ──

    async def feed(self, type: str, condition: str) -> Feed:
        """The feed of a subscription, made if there is none; raises the broker's refusal."""
        async with self._subscribing:  # Two pages that ask at once share one.
            return await self._feed(type, condition)

    async def _feed(self, type: str, condition: str) -> Feed:
        key = (type, condition)
        if (found := self._feeds.get(key)) is not None and not found.is_over:
            found.used_at = asyncio.get_running_loop().time()
            return found
        await self.end_idle_feeds()
        if len(self._feeds) >= FEEDS_MAX:
            raise PeerError(f"{FEEDS_MAX} feeds are open as {self.name}; close a page, and try again in half a minute")
        feed = Feed((await self.client()).subscribe(type, condition))
        await self._when_ready(feed)
        self._feeds[key] = feed
        return feed

    async def _when_ready(self, feed: Feed) -> None:
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                await feed.ready()
        except (TidingsError, TimeoutError) as wrong:
            await feed.close()
            if isinstance(wrong, TimeoutError):
                raise PeerError(f"the broker at {self.config.broker} does not answer") from None
            raise

    async def replay(self, type: str, condition: str, back_s: int) -> str:
        """Begins a feed of the events of the last seconds and of new ones; returns its name, for `replayed`."""
        async with self._subscribing:
            await self.end_idle_feeds()
            if sum(type == REPLAY for type, _ in self._feeds) >= REPLAYS_MAX:
                raise PeerError(
                    f"{REPLAYS_MAX} replays run as {self.name}; close a page, and try again in half a minute"
                )
            client, now_s = await self.client(), int(time.time())
            await self._forget_old_replays(client, now_s)
            name = f"{REPLAY}{now_s}-{secrets.token_hex(4)}"
            since = Timestamp((now_s - back_s) * 1_000_000)
            feed = Feed(client.subscribe(type, condition, durable=name, since=since), is_replay=True)
            await self._when_ready(feed)
            self._feeds[REPLAY, name] = feed
            return name

    async def replayed(self, name: str) -> Feed:
        """The feed of a replay; raises InputError if it has ended."""
        feed = self._feeds.get((REPLAY, name))
        if feed is None:
            raise InputError("this replay has ended; choose again from when")
        feed.used_at = asyncio.get_running_loop().time()
        return feed

    async def _forget_old_replays(self, client: Client, now_s: int) -> None:
        for row in await self.ask("subscriptions"):
            begun = row["name"].removeprefix(REPLAY).partition("-")[0]
            if row["name"].startswith(REPLAY) and begun.isdecimal() and now_s - int(begun) > REPLAY_S_MAX:
                old = client.subscribe(row["type"], row["condition"], durable=row["name"])
                await (await old.ready()).close(forget=True)

    async def end_idle_feeds(self) -> None:
        now = asyncio.get_running_loop().time()
        for key, feed in list(self._feeds.items()):
            if feed.is_over or feed.is_idle(now):
                del self._feeds[key]
                await feed.close()


def _counters(status: Mapping[str, Any]) -> dict[str, float]:
    counts = status["counts"]
    return {
        "published": counts.get("published", 0),
        "delivered": counts.get("notified", 0),
        "refused": counts.get("refused", 0),
        "waiting": status["waiting"],
        "queued_bytes": sum(each["queued"] for each in status["linked"]),
    }
