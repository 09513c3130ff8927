"""The ring: one node's place on the circle, kept up to date by messages. The package says how."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidings.overlay.failure_detector import FailureDetector
from tidings.overlay.messages import Message, NodeId, Peer
from tidings.overlay.pastry.lookup import Lookup
from tidings.overlay.pastry.routing_table import LEAF_COUNT, PastryState
from tidings.overlay.prefix.messages import Heartbeat
from tidings.overlay.prefix.network import HEARSAY_MAX, NetworkApplication, PrefixNetwork, PrefixOptions
from tidings.overlay.router import Effect, Send


@dataclass(frozen=True, slots=True, kw_only=True)
class PastryOptions(PrefixOptions):
    """How a Pastry ring runs; the same for all its nodes."""

    leaf_count: int = LEAF_COUNT
    """Size of the leaf set, half of it on each side."""


class Ring(PastryState, PrefixNetwork):
    """One node of a Pastry ring. Leaves watch each other by heartbeats, and tell each other their leaf sets."""

    def __init__(
        self,
        me: Peer,
        application: NetworkApplication,
        rng: random.Random,
        options: PastryOptions | None = None,
    ) -> None:
        """A ring of this node alone."""
        options = options or PastryOptions()
        super().__init__(me, base=options.base, leaf_count=options.leaf_count, alternates=options.alternates)
        self._run(application, rng, options)
        self._silence = FailureDetector(self.heartbeat_s)
        self._lives: dict[NodeId, int] = {}  # Of the leaves: their known incarnation.

    def receive(self, sender: NodeId, message: Message, now: float) -> list[Effect]:
        self._silence.heard(sender, now)
        return [] if self._is_routine(sender, message) else super().receive(sender, message, now)

    def _is_routine(self, sender: NodeId, message: Message) -> bool:
        """A heartbeat without news, as nearly all are: handled first, for heartbeats are most of the traffic."""
        if not isinstance(message, Heartbeat) or message.leaves or message.answer:
            return False
        return self._lives.get(sender) == message.me.incarnation and sender not in self.doubted

    def _search(self, name: str, *, is_join: bool) -> Lookup:
        target = self.at if is_join else int(self._lowest(name), self.base)
        return Lookup(name, target, self, is_join=is_join)

    def _hints(self, to: NodeId) -> tuple[Peer, ...]:
        return tuple(self.leaves())

    def _contacts_later(self) -> list[Peer]:
        return [*self.leaves(), *self.primaries()]

    def _to_introduce_to(self, heard: Sequence[Peer]) -> Iterable[Peer]:
        """The nearest on the circle, and a few of each cell."""
        by_cell: dict[str, int] = {}
        for index, peer in enumerate(sorted(heard, key=lambda peer: self.away(peer.id, self.at))):
            cell = self.cell(peer.id)
            by_cell[cell] = by_cell.get(cell, 0) + 1
            if index < 2 * self.half or by_cell[cell] <= self.alternates:
                yield peer

    def _arrive(self, now: float) -> list[Effect]:
        """Its leaves have answered its pings, so they know it."""
        return self._joined(now)

    def _keep_up(self, now: float) -> list[Effect]:
        leaves = self.leaves()
        told = self._ticks % len(leaves) if leaves else 0
        short, full = Heartbeat(self.me), Heartbeat(self.me, tuple(leaves))
        effects: list[Effect] = [Send(p.id, full if index == told else short) for index, p in enumerate(leaves)]
        for id in self._silence.silent(now):
            if self.is_leaf(id):
                effects += self.doubt(id, now)
            else:
                self._unwatch(id)  # Others have come in between.
        return effects

    def _on_placed(self, peer: Peer, now: float) -> None:
        if self.is_leaf(peer.id):
            self._silence.watch(peer.id, now)
            self._lives[peer.id] = peer.incarnation

    def _hear_of(self, peers: Sequence[Peer], now: float) -> list[Effect]:
        """Leaves are most of what other leaves tell of."""
        return super()._hear_of([peer for peer in peers[:HEARSAY_MAX] if peer.id not in self._lives], now)

    def _unwatch(self, id: NodeId) -> None:
        self._silence.forget(id)
        self._lives.pop(id, None)

    def _on_displaced(self, peer: Peer, now: float) -> list[Effect]:
        """The farthest left on a side knows who comes after it."""
        was_leaf = self.is_leaf(peer.id)
        self.drop(peer.id)
        self._unwatch(peer.id)
        if not was_leaf:
            return []
        question = Heartbeat(self.me, tuple(self.leaves()), answer=True)
        return [Send(end.id, question) for end in self.ends()]

    def _refill(self, cell: str, now: float) -> list[Effect]:
        if self.in_range(cell) or len(cell) > self.depth() or self.is_empty(cell, now):
            return []
        return self.seek(cell, now)
