"""The mesh: one node of a Tapestry network, kept up to date by messages. The package says how."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidings.overlay.messages import Message, NodeId, Peer
from tidings.overlay.prefix.messages import Heartbeat, Pong
from tidings.overlay.prefix.network import NetworkApplication, PrefixNetwork, PrefixOptions
from tidings.overlay.prefix.routing_state import shared
from tidings.overlay.router import Effect, Send, Token
from tidings.overlay.tapestry.insertion import INSERTIONS_MAX, Insertions
from tidings.overlay.tapestry.messages import Insertion, InsertionAck, TapestryMessage
from tidings.overlay.tapestry.routing_table import MEASURED_MAX, SurrogateSearch, TapestryState

CANDIDATES = 8  # Nodes of each cell that a newcomer measures, to keep the nearest three.
NODES_MAX = 4096  # Nodes of which a time or an incarnation is kept.
BACKPOINTER_HEARTBEATS = 120  # Who has not probed this node for so long no longer has it in its table.
HINTS_MAX = 64  # Nodes that one node tells another of: four rows of sixteen cells.


@dataclass(frozen=True, slots=True, kw_only=True)
class TapestryOptions(PrefixOptions):
    """How a Tapestry network runs; the same for all its nodes."""


class Mesh(TapestryState, PrefixNetwork):
    """One node of a Tapestry network. It probes the nearest node of each cell, and is told what fits its table."""

    def __init__(
        self,
        me: Peer,
        application: NetworkApplication,
        rng: random.Random,
        options: PrefixOptions | None = None,
    ) -> None:
        """A network of this node alone."""
        options = options or TapestryOptions()
        super().__init__(me, base=options.base, alternates=options.alternates)
        self.rtts = OrderedDict()
        self._run(application, rng, options)
        self._pinged_at: dict[NodeId, float] = {}
        self._lives: OrderedDict[NodeId, float] = OrderedDict()  # Of those that got a place: their known incarnation.
        self._heard_at: OrderedDict[NodeId, float] = OrderedDict()
        self._backpointers: OrderedDict[NodeId, float] = OrderedDict()  # Who has probed this node, and when last.
        self._insertions = Insertions(self, options.answer_s, self._on_inserted)

    # ── Receiving ────────────────────────────────────────────────────────────

    def receive(self, sender: NodeId, message: Message, now: float) -> list[Effect]:
        if self._is_routine(sender, message):
            assert isinstance(message, Heartbeat)
            return self._on_routine(sender, message, now)
        if not isinstance(message, TapestryMessage) or message.me.id != sender or not self.is_node(message.me):
            return []
        match message:
            case Insertion():
                return self._on_insertion(sender, message, now)
            case InsertionAck():
                return self._insertions.acknowledged(sender, message, now)
            case Heartbeat(answer=True):
                _remember(self._backpointers, sender, now)
            case Pong() if sender in self._pinged_at:
                self._measured(sender, now - self._pinged_at.pop(sender))
        return super().receive(sender, message, now)

    def _is_routine(self, sender: NodeId, message: Message) -> bool:
        """A probe or an answer without news, as nearly all messages are: handled first."""
        if not isinstance(message, Heartbeat) or message.leaves or message.me.id != sender:
            return False
        return self._lives.get(sender) == message.me.incarnation and sender not in self.doubted

    def _on_routine(self, sender: NodeId, message: Heartbeat, now: float) -> list[Effect]:
        self._probed.pop(sender, None)
        _remember(self._heard_at, sender, now)
        if not message.answer:
            return []
        _remember(self._backpointers, sender, now)
        return self._answer_heartbeat(sender, message) if self.is_in else []

    def _on_insertion(self, sender: NodeId, message: Insertion, now: float) -> list[Effect]:
        newcomer, length = message.newcomer, message.range_len
        if not self.is_node(newcomer) or not 0 <= length <= self.length:
            return []
        return [*self.check(newcomer, now), *self._insertions.receive(sender, message, now)]

    def unsent(self, to: NodeId, message: Message | None, now: float) -> list[Effect]:
        return [*super().unsent(to, message, now), *self._insertions.gone(to, now)]

    def wake(self, token: Token, now: float) -> list[Effect]:
        match token:
            case ("ring", "insertion", (str(id), int(incarnation), int(length)), str(cell)):
                return self._insertions.wake((id, incarnation, length), cell, now)
        return super().wake(token, now)

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            **super().holdings(),
            "round trips": (len(self.rtts), MEASURED_MAX),
            "backpointers": (len(self._backpointers), NODES_MAX),
            "insertions": (len(self._insertions), INSERTIONS_MAX),
        }

    # ── Joining and leaving ──────────────────────────────────────────────────

    def _search(self, name: str, *, is_join: bool) -> SurrogateSearch:
        return SurrogateSearch(name, self._lowest(name), self, is_join=is_join)

    def _to_introduce_to(self, heard: Sequence[Peer]) -> Iterable[Peer]:
        """More of each cell than it keeps: the nearest by network will be among them."""
        by_cell: dict[str, int] = {}
        for peer in sorted(heard, key=lambda peer: self.surrogate_distance(peer.id, self.me.id)):
            cell = self.cell(peer.id)
            by_cell[cell] = by_cell.get(cell, 0) + 1
            if by_cell[cell] <= CANDIDATES:
                yield peer

    def _arrive(self, now: float) -> list[Effect]:
        """Have everybody told for whom this node may fill a hole."""
        surrogate = min(self.known(), key=lambda peer: self.surrogate_distance(peer.id, self.me.id))
        return self._insertions.begin(surrogate, now)

    def _on_inserted(self, now: float) -> list[Effect]:
        return [] if self.is_in else self._joined(now)

    def _to_tell_of_leaving(self) -> Iterable[NodeId]:
        return dict.fromkeys([*(peer.id for peer in self.known()), *self._backpointers])

    def _contacts_later(self) -> list[Peer]:
        return self.entries()

    # ── Liveness ─────────────────────────────────────────────────────────────

    def _keep_up(self, now: float) -> list[Effect]:
        """Probe the first of each cell, and all in the deepest row, unless they have just been heard; one gets hints."""
        depth = self.depth()
        watched = [p for cell, peers in self.table.items() for p in (peers if len(cell) == depth else peers[:1])]
        told = self._ticks % len(watched) if watched else 0
        effects: list[Effect] = []
        for index, peer in enumerate(watched):
            if index == told or self._heard_at.get(peer.id, -1.0) < now - self.heartbeat_s:
                self._probed.setdefault(peer.id, now)
                hints = self._hints(peer.id) if index == told else ()
                effects.append(Send(peer.id, Heartbeat(self.me, hints, answer=True)))
        expired = now - BACKPOINTER_HEARTBEATS * self.heartbeat_s
        while self._backpointers and next(iter(self._backpointers.values())) < expired:
            self._backpointers.popitem(last=False)
        return effects

    def _answer_heartbeat(self, sender: NodeId, heartbeat: Heartbeat) -> list[Effect]:
        """Hints for hints: most probes carry none."""
        return [Send(sender, Heartbeat(self.me, self._hints(sender) if heartbeat.leaves else ()))]

    def _dead_probe(self, to: NodeId) -> Heartbeat:
        return Heartbeat(self.me, self._hints(to), answer=True)

    def _hints(self, to: NodeId) -> tuple[Peer, ...]:
        """What fits the other's table: the first of each cell that both see alike, and all of the cell that it is in."""
        row = shared(self.me.id, to)
        fits = sorted((cell for cell in self.table if len(cell) <= row + 1), key=len, reverse=True)
        mine = self.cell(to)
        peers = [peer for cell in fits for peer in (self.table[cell] if cell == mine else self.table[cell][:1])]
        return tuple(peer for peer in peers if peer.id != to and peer.id not in self.doubted)[:HINTS_MAX]

    def _heard(self, peer: Peer, now: float) -> list[Effect]:
        _remember(self._heard_at, peer.id, now)
        return super()._heard(peer, now)

    def _hear_of(self, peers: Sequence[Peer], now: float) -> list[Effect]:
        """Ping those that fill a hole, and measure one more: it may be nearer than those that have its place."""
        effects = super()._hear_of(peers, now)
        unmeasured = (peer for peer in peers[:HINTS_MAX] if self._is_worth_measuring(peer))
        candidate = next(unmeasured, None)
        return [*effects, *self._ping(candidate, now)] if candidate is not None else effects

    def _is_worth_measuring(self, peer: Peer) -> bool:
        if peer.id in self.rtts or peer.id in self.doubted or self.is_dead(peer.id):
            return False
        return self.is_node(peer) and self.knows(peer.id) is None

    def _ping(self, peer: Peer, now: float) -> list[Effect]:
        effects = super()._ping(peer, now)
        if effects:
            self._pinged_at[peer.id] = now
        return effects

    def _ping_again(self, id: NodeId, now: float) -> list[Effect]:
        self._pinged_at.pop(id, None)  # An answer to one of several pings measures nothing.
        return super()._ping_again(id, now)

    def _on_placed(self, peer: Peer, now: float) -> None:
        _remember(self._lives, peer.id, peer.incarnation)
        _remember(self._heard_at, peer.id, now)

    def _on_displaced(self, peer: Peer, now: float) -> list[Effect]:
        self.drop(peer.id)
        self._pinged_at.pop(peer.id, None)
        self._lives.pop(peer.id, None)
        self._backpointers.pop(peer.id, None)
        return self._insertions.gone(peer.id, now)

    def _refill(self, cell: str, now: float) -> list[Effect]:
        return [] if cell in self.table else self.seek(cell, now)


def _remember(book: OrderedDict[NodeId, float], id: NodeId, number: float) -> None:
    """The latest last; one too many pushes out the oldest."""
    book[id] = number
    book.move_to_end(id)
    if len(book) > NODES_MAX:
        book.popitem(last=False)
