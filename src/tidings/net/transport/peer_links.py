"""The links of one broker to others: dialled, accepted, re-established, and one for each pair.

Messages for a peer without a link wait, a bounded number of them, while it is dialled. If it
does not answer, they go back to the node as undeliverable. Configured peers, and brokers with
pending events, are dialled for ever, with growing pauses.

Two brokers that dial each other at once end up with two connections. Both keep the one that the broker
with the lower id has dialled; a later incarnation of a peer replaces the connections of an earlier one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from collections.abc import Collection, Iterable
from random import Random
from typing import Any, Protocol

from tidings.errors import Denied, InputError, PeerError
from tidings.net.config import Limits, host_and_port
from tidings.net.transport.capture import Capture
from tidings.net.transport.connection import Link
from tidings.net.transport.copies import ORIGINAL, CopyProof
from tidings.net.transport.frames import Superseded
from tidings.net.transport.handshake import Participant, Proven, shake
from tidings.net.transport.tls import why_unreached
from tidings.overlay import NodeId, Peer

DIAL_S_MAX = 5.0
PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 5.0  # Between two attempts; doubling, with jitter.
TRIES_ON_DEMAND = 2  # For a peer that is not configured: the overlay has timeouts of its own.
HELD_MAX = 4096  # Messages that wait for one link.
ADDRESSES_MAX = 65_536

log = logging.getLogger("tidings.links")


class LinkOwner(Protocol):
    """The broker that the links belong to."""

    def link_is_up(self, link: Link, peer: Peer, *, dialled: bool) -> None:
        """TLS and the first handshake are done; the node may send its own handshake."""

    def link_is_down(self, peer: NodeId) -> None:
        """The link to this peer is gone."""

    async def serve_link(self, link: Link) -> None:
        """Handles what arrives on a link, until it ends."""

    def did_not_get_through(self, to: NodeId, messages: Iterable[Any]) -> None:
        """A peer cannot be reached, and these messages were for it."""

    def as_sent_to(self, to: NodeId, message: Any) -> bytes | None:
        """The message as this peer may see it; None if it must wait for the node's own handshake."""


class PeerLinks:
    """All links of one broker."""

    def __init__(
        self,
        participant: Participant,
        context: ssl.SSLContext,
        limits: Limits,
        owner: LinkOwner,
        capture: Capture | None = None,
    ) -> None:
        assert participant.me is not None
        self._capture = capture
        self.me, self.participant, self.limits, self.owner = participant.me, participant, limits, owner
        self.open: dict[NodeId, Link] = {}
        self.lost_messages = 0
        self._context, self._rng = context, Random(participant.me.id)
        self._ready: set[NodeId] = set()
        self._dialled: dict[NodeId, bool] = {}
        self._addresses: dict[NodeId, Peer] = {}
        self._configured: dict[NodeId, list[Peer]] = {}
        self._persistent: dict[NodeId, None] = {}
        self._held: dict[NodeId, deque[Any]] = {}
        self._dialling: dict[NodeId, asyncio.Task[None]] = {}
        self._unreached: dict[NodeId, str] = {}
        self._serving: set[asyncio.Task[None]] = set()
        self._copies: dict[NodeId, CopyProof] = {}  # Of brokers that were restored: the last copy of each.
        self._is_closing = False

    # ── Sending ──

    def send(self, to: NodeId, message: Any) -> None:
        """Sends a message of the node now, or when there is a link; the oldest is dropped where too many wait."""
        if to in self._ready:
            self._write(to, message)
            return
        raw = self.owner.as_sent_to(to, message) if to in self.open else None
        if raw is not None:  # The node's own handshake.
            self.open[to].send_message(raw)
            return
        held = self._held.setdefault(to, deque())
        if len(held) >= HELD_MAX:
            held.popleft()
            self.lost_messages += 1
        held.append(message)
        self.reach(to)

    def _write(self, to: NodeId, message: Any) -> None:
        raw = self.owner.as_sent_to(to, message)
        if raw is None or not self.open[to].send_message(raw):
            self.lost_messages += 1

    def is_ready(self, peer: NodeId) -> bool:
        return peer in self._ready

    def ready(self, peer: NodeId) -> Link | None:
        """The link to a peer that the node has accepted, if there is one."""
        return self.open[peer] if peer in self._ready else None

    def make_ready(self, peer: NodeId) -> None:
        """The node accepts this peer: send what has waited."""
        if peer not in self.open:
            return
        self._ready.add(peer)
        for message in self._held.pop(peer, ()):
            self._write(peer, message)

    def ready_peers(self) -> list[NodeId]:
        return [peer for peer in self.open if peer in self._ready]

    def ready_links(self) -> list[Link]:
        return [link for peer, link in self.open.items() if peer in self._ready]

    def crowded(self) -> Link | None:
        """A link whose queue is more than half full, and that is not slow: publishers wait for it."""
        for link in self.open.values():
            if not link.is_slow and link.is_half_full:
                return link
        return None

    # ── Reaching ──

    def present(self, participant: Participant, context: ssl.SSLContext, trusted: Collection[str]) -> None:
        """From now on, show this certificate on new links; links to organisations that are not trusted now are cut."""
        self.participant, self._context = participant, context
        for id, link in list(self.open.items()):
            if link.proven.domain not in trusted:
                self._persistent.pop(id, None)
                self._drop(id, "this organisation is not trusted any more")

    def configure(self, peers: Iterable[Peer]) -> None:
        """The operator says where these peers are: that is tried first, whatever anybody else says."""
        peers = [peer for peer in peers if peer.id != self.me.id]  # One process of a broker may know of another.
        listed: dict[NodeId, list[Peer]] = {}
        for peer in peers:
            listed.setdefault(peer.id, []).append(peer)
        self._configured.update(listed)
        self.learn(peers)

    def learn(self, peers: Iterable[Peer]) -> None:
        """These peers are reached at these addresses; a later incarnation replaces an earlier one."""
        for peer in peers:
            known = self._addresses.get(peer.id)
            if peer.address and peer.id != self.me.id and (known is None or known.incarnation <= peer.incarnation):
                if known is None and len(self._addresses) >= ADDRESSES_MAX:
                    return
                self._addresses[peer.id] = peer

    def keep(self, peer: NodeId) -> None:
        """Keeps a link to this peer, dialling again whenever it is lost."""
        if peer == self.me.id:
            return
        self._persistent[peer] = None
        self.reach(peer)

    def reach(self, peer: NodeId) -> None:
        """Dials this peer unless there is a link."""
        if peer in self.open or peer in self._dialling or self._is_closing:
            return
        if peer not in self._addresses:
            self._give_up(peer)
            return
        task = asyncio.get_running_loop().create_task(self._dial(peer))
        self._dialling[peer] = task
        task.add_done_callback(lambda done: self._dialled_out(peer, done))

    async def _dial(self, id: NodeId) -> None:
        pause_s, tries = PAUSE_S_MIN, 0
        while id not in self.open and not self._is_closing:
            places = [*self._configured.get(id, ()), self._addresses[id]]  # Where it says that it is comes last.
            peer = places[tries % len(places)]
            try:
                await self._connect(peer)
            except (OSError, TimeoutError, PeerError, Denied, InputError) as wrong:
                self._note_unreached(peer, why_unreached(wrong))
                tries += 1
                if tries >= TRIES_ON_DEMAND:
                    self._give_up(id)
                    if id not in self._persistent:
                        return
                await asyncio.sleep(pause_s * self._rng.uniform(0.5, 1.5))
                pause_s = min(2 * pause_s, PAUSE_S_MAX)

    def _note_unreached(self, peer: Peer, why: str) -> None:
        """Logs a reason once: a peer that is away for a day would fill the log."""
        if self._unreached.get(peer.id) != why:
            self._unreached[peer.id] = why
            log.warning("cannot reach a peer", extra={"peer": peer.id, "address": peer.address, "why": why})

    def unlinked(self) -> list[dict[str, str]]:
        """The peers to which a link should be and is not, and why, as JSON would have it."""
        away = [self._addresses[id] for id in self._persistent if id not in self.open and id in self._addresses]
        return [{"id": peer.id, "address": peer.address, "why": self._unreached.get(peer.id, "")} for peer in away]

    def _dialled_out(self, peer: NodeId, done: asyncio.Task[None]) -> None:
        self._dialling.pop(peer, None)
        if not done.cancelled() and (error := done.exception()) is not None:
            log.error("dialling failed", exc_info=error)

    async def _connect(self, peer: Peer) -> None:
        host, port = host_and_port(peer.address)
        async with asyncio.timeout(DIAL_S_MAX):
            reader, writer = await asyncio.open_connection(host, port, ssl=self._context, server_hostname="")
        try:
            proven, frames = await shake(
                (reader, writer), self.participant, dialled=True, within_s=self.limits.handshake_s_max
            )
            if proven.id != peer.id or proven.role != "broker":
                raise PeerError(f"hello: expected broker {peer.id}, got {proven.role} {proven.id}")
        except BaseException:
            writer.transport.abort()
            raise
        self.add(self._link(proven, frames, writer), dialled=True)

    def _link(self, proven: Proven, frames: Any, writer: asyncio.StreamWriter) -> Link:
        limits = self.limits
        if self._capture is not None:
            writer = self._capture.tapped(writer, proven.id)
        return Link(
            proven,
            frames,
            writer,
            queue_bytes_max=limits.link_queue_bytes_max,
            silence_s_max=limits.silence_s_max,
            cover=limits.cover_bytes_s,
            padded=limits.padded_links,
        )

    def accept(self, proven: Proven, frames: Any, writer: asyncio.StreamWriter) -> asyncio.Task[None] | None:
        """A broker has dialled this one."""
        return self.add(self._link(proven, frames, writer), dialled=False)

    def add(self, link: Link, *, dialled: bool) -> asyncio.Task[None] | None:
        """Uses a new link, unless there is a better one to the same peer."""
        peer = link.proven.peer
        assert peer is not None
        if self._superseded(link):
            return None
        if self._is_closing or not self._is_better(link, dialled):
            link.close("there is another connection between us")
            return None
        self._drop(peer.id, "replaced by a later connection")
        self.open[peer.id], self._dialled[peer.id] = link, dialled
        if self._unreached.pop(peer.id, None) is not None:
            log.info("reached a peer", extra={"peer": str(link.proven), "address": peer.address})
        self.learn([peer])
        self.owner.link_is_up(link, peer, dialled=dialled)
        task = asyncio.get_running_loop().create_task(self._serve(link))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        return task

    def _superseded(self, link: Link) -> bool:
        """Whether a later copy of the same broker is known; an earlier one is told, be it the new link or the old."""
        id, copy = link.proven.id, link.proven.copy
        newest = self._copies.get(id, ORIGINAL)
        if copy.number < newest.number:
            log.warning("refused an earlier copy of a restored broker", extra={"peer": str(link.proven)})
            link.send(Superseded(newest))
            link.close("superseded: a restored copy of this broker runs")
            return True
        if copy.number > newest.number:
            self._copies[id] = copy
            if (old := self.open.get(id)) is not None:
                old.send(Superseded(copy))
        return False

    def _is_better(self, link: Link, dialled: bool) -> bool:
        peer = link.proven.peer
        assert peer is not None
        old = self.open.get(peer.id)
        if old is None or not old.is_open or old.proven.peer is None:
            return True
        if peer.incarnation != old.proven.peer.incarnation:
            return peer.incarnation > old.proven.peer.incarnation
        if dialled == self._dialled[peer.id]:
            return True  # The peer has lost the old link, or it would not have dialled again.
        return dialled == (self.me.id < peer.id)

    async def _serve(self, link: Link) -> None:
        try:
            await self.owner.serve_link(link)
        except PeerError as wrong:
            log.warning("a peer broke the rules", extra={"peer": str(link.proven), "why": str(wrong)})
            link.close(str(wrong)[:200])
        finally:
            if self.open.get(link.proven.id) is link:
                self._drop(link.proven.id, "")
            await link.closed()

    def _drop(self, peer: NodeId, why: str) -> None:
        link = self.open.pop(peer, None)
        if link is None:
            return
        self._ready.discard(peer)
        link.close(why)
        self.owner.link_is_down(peer)
        if peer in self._persistent:
            asyncio.get_running_loop().call_later(PAUSE_S_MIN, self.reach, peer)

    def cut(self, peer: NodeId, why: str) -> None:
        """Closes the link to a peer that has violated the protocol."""
        self._drop(peer, why)

    def _give_up(self, peer: NodeId) -> None:
        held = self._held.pop(peer, None)
        if held:
            self.owner.did_not_get_through(peer, held)

    async def close(self) -> None:
        """Closes all links."""
        self._is_closing = True
        for task in list(self._dialling.values()):
            task.cancel()
        for peer in list(self.open):
            self._drop(peer, "this broker is stopping")
        if self._serving:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    await asyncio.gather(*self._serving, return_exceptions=True)
