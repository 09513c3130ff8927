"""Drives the interest directory: advertises this broker's durable subscriptions and learns of those of others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from weakref import WeakValueDictionary

import msgspec

from tidings.delivery import (
    RENEW_S,
    BrokerInterests,
    DurableInterest,
    InterestAdvertisement,
    InterestDirectory,
    InterestVersions,
    PendingEvent,
    Shown,
    read_advertisement,
)
from tidings.errors import Denied, InputError, PeerError
from tidings.net.broker.journal import SKEW_US, Backlog, EventHistory, Journal
from tidings.net.broker.periodic import BackgroundTasks
from tidings.net.broker.reliable_sender import ReliableSender
from tidings.net.clock import now_us
from tidings.net.ids import broker_id
from tidings.net.transport.connection import Link
from tidings.net.transport.peer_links import PeerLinks
from tidings.overlay import NodeId

FIRST_SYNC_S = 0.25
# Events of the past that are noted for one broker at once, over all its new subscriptions: as many as are retained.
BACKLOG_EVENTS_MAX = 1_000_000
WAITING_MAX = 4  # Advertisements of one broker; further ones come again.
LONG_S, PAUSE_FOR_LONG = 0.1, 20.0  # Who keeps a broker busy for longer is listened to again after so many times that.
SYNC_EVERY_S = 5.0  # Between two comparisons of versions: an advertisement may have been lost.
VERSION_META = "wants version"
LAPSED_META = "lapsed"

log = logging.getLogger("tidings.delivery")


class InterestSync:
    """One broker's part in keeping all interest directories alike."""

    def __init__(
        self,
        directory: InterestDirectory,
        journal: Journal,
        links: PeerLinks,
        history: EventHistory,
        sender: ReliableSender,
        tasks: BackgroundTasks,
        rights: Callable[[], Shown],
    ) -> None:
        """`rights` are this broker's own, to show with its advertisement."""
        self._rights, self._advertised_at = rights, 0
        self._advertised_rights: Shown = ()
        self._interests: tuple[DurableInterest, ...] = ()
        self._live: tuple[str, ...] = ()
        self._directory, self._journal, self._links = directory, journal, links
        self._history, self._sender, self._tasks = history, sender, tasks
        self._learning: WeakValueDictionary[NodeId, asyncio.Lock] = WeakValueDictionary()
        self._waiting: Counter[NodeId] = Counter()
        self._again_at: dict[NodeId, float] = {}  # Bounded by the directory.
        self._lapsed: dict[NodeId, tuple[frozenset[str], int]] = {}  # Subscriptions that counted until this moment.
        self.live_types_added: Callable[[NodeId, Sequence[str]], None] = lambda broker, types: None
        """Called with the types that a broker has begun to have live subscriptions to."""

    def start(self) -> None:
        """Takes up the advertisements on disk, and begins to compare versions."""
        for _, _, body in self._journal.interests():
            advertisement = msgspec.msgpack.decode(body, type=InterestAdvertisement)
            try:
                self._directory.restore(advertisement, now_us())
            except (Denied, PeerError):  # What no longer holds, or was kept by an earlier version.
                self._note_lapsed(advertisement)
        self._links.learn(self._directory.peers())
        self._tasks.start(self._sync_regularly())

    def _note_lapsed(self, advertisement: InterestAdvertisement) -> None:
        """Remembers until when subscriptions got all events: if they are advertised again, they get those since then."""
        with contextlib.suppress(PeerError):
            body = read_advertisement(advertisement, broker_id)
            name = f"{LAPSED_META} {body.who.id}"
            since = self._journal.meta(name) or now_us().to_bytes(8, "big")
            self._journal.note_meta(name, since)
            ids = frozenset(interest.id for interest in body.interests)
            self._lapsed[body.who.id] = (ids, int.from_bytes(since, "big"))

    def advertise(self, interests: Iterable[DurableInterest]) -> None:
        """Sends this broker's durable subscriptions, as they are now, to all others."""
        self._interests, self._advertised_rights, self._advertised_at = tuple(interests), self._rights(), now_us()
        advertisement = self._directory.advertise(
            self._interests, self._advertised_at, self._advertised_rights, self._live
        )
        self._journal.note_meta(VERSION_META, self._directory.version.to_bytes(8, "big"))
        for link in self._links.ready_links():
            link.send(advertisement)

    def advertise_live(self, types: Sequence[str]) -> None:
        """Sends the types of this broker's live subscriptions to all others, if they have changed."""
        if tuple(types) != self._live:
            self._live = tuple(types)
            self.advertise(self._interests)

    async def _sync_regularly(self) -> None:
        await asyncio.sleep(FIRST_SYNC_S)
        while True:
            self._renew()
            for link in self._links.ready_links():
                self.send_versions(link)
            await asyncio.sleep(SYNC_EVERY_S)

    def _renew(self) -> None:
        """Advertises again if rights have changed or time has passed; drops who has not done so."""
        is_due = now_us() - self._advertised_at > RENEW_S * 1e6 or self._rights() != self._advertised_rights
        if self._advertised_at and is_due:
            self.advertise(self._interests)
        self._directory.expire(now_us())

    def send_versions(self, link: Link) -> None:
        """Has the other end send what this broker lacks."""
        link.send(self._directory.versions())

    def receive_versions(self, link: Link, versions: InterestVersions) -> None:
        """Sends what the other end lacks."""
        for advertisement in self._directory.newer_than(versions):
            link.send(advertisement)

    def receive_advertisement(self, link: Link, advertisement: InterestAdvertisement) -> None:
        """Learns an advertisement and forwards it; closes the link if it is forged."""
        self._tasks.start(self._learn_or_cut(link, advertisement))

    async def _learn_or_cut(self, link: Link, advertisement: InterestAdvertisement) -> None:
        try:
            await self._learn(link.proven.id, advertisement)
        except Denied as refused:  # Whoever passed it on may have known no better.
            log.info("refused durable interest", extra={"neighbour": link.proven.id, "why": str(refused)})
        except PeerError as wrong:
            self._links.cut(link.proven.id, str(wrong))

    async def _learn(self, sender: NodeId, advertisement: InterestAdvertisement) -> None:
        body = self._directory.verify(advertisement)
        if body is None:
            return
        broker = body.who.id
        if self._waiting[broker] >= WAITING_MAX or asyncio.get_running_loop().time() < self._again_at.get(broker, 0.0):
            return  # It comes again, when versions are compared.
        self._waiting[broker] += 1
        try:
            added = await self._learn_in_turn(broker, body, advertisement)
        finally:
            self._waiting[broker] -= 1
            self._waiting += Counter()  # Without those that are 0.
        if added is None:
            return
        for link in self._links.ready_links():
            if link.proven.id not in (broker, sender):
                link.send(advertisement)
        await self._journal.committed()
        self._sender.committed(added)

    async def _learn_in_turn(
        self, broker: NodeId, body: BrokerInterests, advertisement: InterestAdvertisement
    ) -> list[tuple[NodeId, PendingEvent]] | None:
        """What the broker is owed of the past; None if the advertisement was no news."""
        # Two versions of one broker's interest must not interleave; those of others do not wait for them.
        lock = self._learning.setdefault(broker, asyncio.Lock())
        async with lock:
            if not self._directory.is_news(body):
                return None
            self._directory.admit(body, advertisement, now_us())
            self._links.learn([body.who])
            new, backlogs = await self._read_backlogs(body)
            begun = time.perf_counter()  # From here on, nothing else is done: no event may be missed.
            added = [
                (broker, self._sender.add_for(broker, event.position, event.event, interest.id))
                for interest, backlog in zip(new, backlogs, strict=True)
                for event in self._history.complete(backlog)
            ]
            live = self._directory.live_added_by(body)
            self._directory.learn(body, advertisement)
            self.live_types_added(broker, live)
            if (took_s := time.perf_counter() - begun) > LONG_S:
                self._again_at[broker] = asyncio.get_running_loop().time() + PAUSE_FOR_LONG * took_s
            if self._lapsed.pop(broker, None) is not None:
                self._journal.note_meta(f"{LAPSED_META} {broker}", b"")
            self._journal.note_interest(broker, body.version, msgspec.msgpack.encode(advertisement))
        return added

    async def _read_backlogs(self, body: BrokerInterests) -> tuple[list[DurableInterest], list[Backlog]]:
        """The new subscriptions to types that their broker may read, and what they should have received."""
        broker = body.who.id
        new = [
            self._resumed(broker, interest)
            for interest in self._directory.added_by(body)
            if self._sender.may_have(broker, interest.type)
        ]
        try:
            return new, await self._history.read(new, at_most=BACKLOG_EVENTS_MAX)
        except InputError as wrong:
            log.error("a broker gets nothing of the past", extra={"broker": broker, "why": str(wrong)})
            return [], []

    def _resumed(self, broker: NodeId, interest: DurableInterest) -> DurableInterest:
        ids, until_us = self._lapsed.get(broker, (frozenset(), 0))
        if interest.id not in ids:
            return interest
        return msgspec.structs.replace(interest, since_us=max(interest.since_us, until_us + SKEW_US))  # Our own clock.
