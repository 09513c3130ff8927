"""Bootstrap: how a broker joins the overlay, through a member or as its first one.

Brokers of one network start, crash and restart in any order. Each tells its linked peers whether it
has joined (`JoinStatus`); a broker that has not joins through one that has. Of brokers that start together
one has to begin: the one with the lowest id among those that see each other, once each has told it that it has not
joined. It waits a while for configured peers that it does not see. The others join one after the other, lower ids first:
brokers that join at the same moment could miss each other's first messages.

Two brokers that have both joined, and see each other only then, may have begun two networks: each tells its router of the
other, and those that run on a ring become one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from tidings.net.transport.frames import JoinStatus
from tidings.net.transport.peer_links import PeerLinks
from tidings.node import NodeEffect
from tidings.overlay import NodeId, Peer, Router

SEEN_AFTER_S = 3.0  # How long brokers that start together may take to see each other.
TURN_S_MAX = 10.0  # How long a broker lets those with lower ids go first.
REJOIN_S = 2.0  # After a join that failed.

log = logging.getLogger("tidings.broker")


class JoiningNode(Protocol):
    """The node, as far as joining uses it."""

    router: Router[Any]

    def start(self, now: float, memory: bytes = b"") -> list[NodeEffect]: ...
    def join(self, via: Sequence[Peer], now: float) -> list[NodeEffect]: ...
    def peer_up(self, peer: Peer, now: float) -> list[NodeEffect]: ...


class Bootstrap:
    """How one broker joins."""

    def __init__(
        self,
        node: JoiningNode,
        links: PeerLinks,
        configured: Sequence[NodeId],
        carry_out: Callable[[Iterable[NodeEffect]], None],
        *,
        on_graph: bool,
        router_memory: bytes,
        alone_after_s: float,
    ) -> None:
        """`on_graph`: the links are the overlay, and there is nothing to join.

        `alone_after_s` is how long a broker waits for configured peers that it does not see before it begins without them.
        """
        self._node, self._links, self._configured, self._carry_out = node, links, configured, carry_out
        self._on_graph, self._router_memory, self._alone_after_s = on_graph, router_memory, alone_after_s
        self.is_joined = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()
        self._has_begun = self._was_first = False
        self._members: set[NodeId] = set()  # Linked brokers that have joined; asked, never walked.
        self._heard: set[NodeId] = set()  # Linked brokers that have told whether they have joined; likewise.

    def try_join(self) -> None:
        """Joins, if that is possible now and not under way; called whenever something has changed."""
        if self._has_begun:
            return
        now = self._loop.time()
        members = [
            link.proven.peer for id, link in self._links.open.items() if id in self._members and link.proven.peer
        ]
        if self._on_graph or self._is_first(now):
            self._has_begun = self._was_first = True
            self._carry_out(self._node.start(now, self._router_memory if self._on_graph else b""))
        elif members and self._is_its_turn(now):
            self._has_begun = True
            self._carry_out(self._node.join(members, now))

    def completed(self, failed: str) -> None:
        """The node has joined, or reports why not."""
        if failed:
            log.warning("could not join yet", extra={"why": failed})
            self._loop.call_later(REJOIN_S, self._try_again)
            return
        self.is_joined.set()
        for link in self._links.ready_links():
            link.send(JoinStatus(True))
            self._introduce(link.proven.id)

    def _try_again(self) -> None:
        self._has_begun = False
        self.try_join()

    def receive_status(self, peer: NodeId, is_joined: bool) -> None:
        """A linked broker reports whether it has joined."""
        self._heard.add(peer)
        if is_joined:
            self._members.add(peer)
        else:
            self._members.discard(peer)
        self.try_join()
        self._join_if_alone(peer)
        self._introduce(peer)

    def link_down(self, peer: NodeId) -> None:
        """A broker is no longer linked."""
        self._members.discard(peer)
        self._heard.discard(peer)

    def _is_first(self, now: float) -> bool:
        me, seen = self._links.me.id, self._links.ready_peers()
        if any(id in self._members for id in seen) or any(id < me for id in seen):
            return False
        told = self._heard.issuperset(seen) and all(id in seen for id in self._configured)
        return told or now > self._started_at + self._alone_after_s

    def _is_its_turn(self, now: float) -> bool:
        """Whether all brokers that go first have joined, or have had their time."""
        me, age_s = self._links.me.id, now - self._started_at
        first = [id for id in self._links.ready_peers() if id < me]
        if age_s < SEEN_AFTER_S:
            first += [id for id in self._configured if id < me]
        return age_s > TURN_S_MAX or all(id in self._members for id in first)

    def _join_if_alone(self, peer: NodeId) -> None:
        """A broker that began alone because it saw nobody joins the network that it sees now."""
        link = self._links.open.get(peer)
        is_alone = self._was_first and self.is_joined.is_set() and not self._node.router.links()
        if not is_alone or self._on_graph or peer not in self._members:
            return
        if link is not None and link.proven.peer and peer < self._links.me.id:
            self._carry_out(self._node.join([link.proven.peer], self._loop.time()))

    def _introduce(self, peer: NodeId) -> None:
        """Tell the router of a linked broker once both have joined; links of a graph are told when they are ready."""
        link = self._links.ready(peer)
        if self._on_graph or not self.is_joined.is_set() or peer not in self._members:
            return
        if link is not None and link.proven.peer:
            self._carry_out(self._node.peer_up(link.proven.peer, self._loop.time()))
