"""Coming into the network: through somebody who is in it, or first, if nobody can be.

Brokers of one network start, crash and come back in any order. Each tells those it is linked with whether it
is part of the network (`Standing`); who is not joins through one who is. Of brokers that start together
one has to begin: the one with the lowest id among those that see each other. It waits a while for
those it does not see. The others come in one after the other, lower ids first: of those that come at the same moment each
may miss what the others say first.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidings.net.transport.frames import Standing
from tidings.overlay import NodeId

if TYPE_CHECKING:
    from tidings.net.broker.broker import Broker

SEEN_AFTER_S = 3.0  # How long those that start together may take to see each other.
TURN_S_MAX = 10.0  # How long a broker lets those with lower ids go first.
ALONE_AFTER_S = 10.0  # How long a broker waits for those it does not see before it begins without them.


class Entrance:
    """One broker's way in."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.get_running_loop()
        self._started_at = self._loop.time()
        self._has_entered = self._was_first = False
        self._inside: set[NodeId] = set()  # Linked brokers that are part of the network; asked, never walked.

    def enter(self) -> None:
        """Come in, if that is possible now and has not been done; to be tried whenever something has changed."""
        if self._has_entered:
            return
        b, now = self._broker, self._loop.time()
        inside = [link.proven.peer for id, link in b.links.open.items() if id in self._inside and link.proven.peer]
        if b.protocol.on_graph or self._is_first(now):
            self._has_entered = self._was_first = True
            b.carry_out(b.node.start(now, b.journal.meta("router memory") if b.protocol.on_graph else b""))
        elif inside and self._is_its_turn(now):
            self._has_entered = True
            b.carry_out(b.node.join(inside, now))

    def enter_again(self) -> None:
        """The last try has failed."""
        self._has_entered = False
        self.enter()

    def stands(self, peer: NodeId, is_joined: bool) -> None:
        """A linked broker says whether it is part of the network."""
        if is_joined:
            self._inside.add(peer)
            self.enter()
            self._leave_solitude(peer)
        else:
            self._inside.discard(peer)

    def forget(self, peer: NodeId) -> None:
        """A broker is linked no longer."""
        self._inside.discard(peer)

    def joined(self) -> None:
        """This broker is part of the network: others may come in through it."""
        links = self._broker.links
        for peer in links.ready_peers():
            links.open[peer].send(Standing(True))

    def _is_first(self, now: float) -> bool:
        b = self._broker
        known, seen = [peer.peer.id for peer in b.config.peers], b.links.ready_peers()
        if any(id in self._inside for id in seen) or any(id < b.me.id for id in seen):
            return False
        return all(id in seen for id in known) or now > self._started_at + ALONE_AFTER_S

    def _is_its_turn(self, now: float) -> bool:
        """Whether all that are to go first are inside, or have had their time."""
        b, age_s = self._broker, now - self._started_at
        first = [id for id in b.links.ready_peers() if id < b.me.id]
        if age_s < SEEN_AFTER_S:
            first += [peer.peer.id for peer in b.config.peers if peer.peer.id < b.me.id]
        return age_s > TURN_S_MAX or all(id in self._inside for id in first)

    def _leave_solitude(self, peer: NodeId) -> None:
        """Who began alone because it saw nobody, and now sees a network, joins it."""
        b = self._broker
        link = b.links.open.get(peer)
        is_alone = self._was_first and b.is_joined.is_set() and not b.node.router.links()
        if is_alone and not b.protocol.on_graph and link is not None and link.proven.peer and peer < b.me.id:
            b.carry_out(b.node.join([link.proven.peer], self._loop.time()))
