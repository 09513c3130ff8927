"""Spreads revocations: those of the broker's own registry to all others, and those of others into it.

    read from the registry, or received and genuine   → in force here, kept in the registry, sent to all other links
    a link is ready, and every SYNC_EVERY_S            → a summary; the other end sends what this broker may lack
    received                                           → confirmed to the sender, whether it was news or not

A revocation is in force before anything else is sent. Whoever sends one that is not genuine is cut off: honest brokers
check before they pass it on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from tidings.errors import PeerError, SetupError
from tidings.net.broker.key_managers import KeyManagers
from tidings.net.broker.periodic import BackgroundTasks
from tidings.net.clock import now_ms
from tidings.net.transport.connection import Link
from tidings.net.transport.frames import RevocationsHeard, RevocationSummary, SignedRevocations
from tidings.net.transport.peer_links import PeerLinks
from tidings.overlay import NodeId
from tidings.security import RevocationTable, VerifiedRevocation, read_revocation, revocations_in_batches

SYNC_EVERY_S = 15.0  # A record, or its confirmation, may have been lost.
BATCH_BYTES = 256 * 1024

log = logging.getLogger("tidings.broker")


class RevocationSync:
    """One broker's part in spreading revocations."""

    def __init__(
        self,
        links: PeerLinks,
        managers: KeyManagers,
        tasks: BackgroundTasks,
        *,
        owners: Callable[[], Collection[bytes]],
        revoke: Callable[[Sequence[str]], None],
    ) -> None:
        """`owners` are the keys whose rights this broker uses; `revoke` puts revocations in force."""
        self._links, self._managers, self._tasks = links, managers, tasks
        self._owners, self._revoke = owners, revoke
        self.table = RevocationTable()
        self._heard: dict[NodeId, set[str]] = {}

    def start(self) -> None:
        self._tasks.start(self._sync_regularly())

    def take_own(self, records: Iterable[bytes]) -> None:
        """Revocations in this broker's registry, in force already: they are sent to all others."""
        owners, now, news = self._owners(), now_ms(), list[VerifiedRevocation]()
        for raw in records:
            try:
                found = self.table.take(raw, owners, now)
            except PeerError as wrong:
                log.error("a revocation in the registry is not genuine", extra={"why": str(wrong)})
                continue
            news += [found] if found is not None else []
        self._spread(news, "")

    def link_ready(self, link: Link) -> None:
        self._heard.pop(link.proven.id, None)
        link.send(RevocationSummary(self.table.summary()))

    def receive(self, link: Link, frame: SignedRevocations | RevocationSummary | RevocationsHeard) -> None:
        """A frame of another broker; raises PeerError for what is not genuine."""
        match frame:
            case RevocationSummary(parts):
                self._send(link, self.table.lacking(parts))
            case RevocationsHeard(ids):
                self._has_heard(link.proven.id, ids)
            case SignedRevocations(records):
                self._learn(link, records)

    def heard_by(self, id: str) -> list[dict[str, Any]]:
        """Which of the brokers that this one is or should be connected to have confirmed a revocation."""
        known = self.table.get(id) is not None
        rows = [
            {"broker": str(link.proven).removeprefix("broker "), "heard": known and id in self._heard.get(peer, ())}
            for peer, link in self._links.open.items()
        ]
        return rows + [
            {"broker": str(away.get("name") or away.get("id") or away.get("address")), "heard": False}
            for away in self._links.unlinked()
        ]

    # ── Steps ──

    def _learn(self, link: Link, records: tuple[bytes, ...]) -> None:
        owners, now = self._owners(), now_ms()
        news = [found for raw in records if (found := self.table.take(raw, owners, now)) is not None]
        self._revoke([one.id for one in news])
        told = [id for raw in records if self.table.get(id := read_revocation(raw).id) is not None]
        link.send(RevocationsHeard(tuple(told)))
        self._has_heard(link.proven.id, told)
        self._spread(news, link.proven.id)
        if news:
            log.warning(
                "rights were revoked", extra={"told_by": str(link.proven), "links": [one.id[:16] for one in news]}
            )
            self._tasks.start(self._keep(news))

    async def _keep(self, news: Sequence[VerifiedRevocation]) -> None:
        try:
            await asyncio.to_thread(self._managers.keep_revocations, [one.record for one in news])
        except SetupError as wrong:  # It is in force; after a restart a neighbour tells us again.
            log.error("revocations cannot be kept in the registry", extra={"why": str(wrong)})

    def _has_heard(self, peer: NodeId, ids: Iterable[str]) -> None:
        self._heard.setdefault(peer, set()).update(id for id in ids if self.table.get(id) is not None)

    def _spread(self, news: Sequence[VerifiedRevocation], came_from: NodeId) -> None:
        for link in self._links.ready_links() if news else ():
            if link.proven.id != came_from:
                self._send(link, news)

    def _send(self, link: Link, records: Iterable[VerifiedRevocation]) -> None:
        for batch in revocations_in_batches(records, BATCH_BYTES):
            link.send(SignedRevocations(batch))

    async def _sync_regularly(self) -> None:
        while True:
            await asyncio.sleep(SYNC_EVERY_S)
            self.table.drop_ended(now_ms())
            for link in self._links.ready_links():
                link.send(RevocationSummary(self.table.summary()))
