"""Acknowledged multicast: a newcomer becomes known to every node for which it may fill a hole.

The newcomer gives it to its surrogate, which shares most digits with it. Whoever gets it hands it on
to one node of each cell inside its range and acknowledges when all of these have. A node that does not
answer is replaced by another of its cell; when none is left, the cell counts as told: soft state repairs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from tidings.overlay.messages import NodeId, Peer
from tidings.overlay.prefix.routing_state import shared
from tidings.overlay.retransmit import Backoff, RetransmitQueue
from tidings.overlay.router import Effect, Send, WakeAt
from tidings.overlay.tapestry.messages import Insertion, InsertionAck
from tidings.overlay.tapestry.routing_table import TapestryState

TRIES_MAX = 3  # For one node of a cell; then the next is tried.
INSERTIONS_MAX = 1024  # Multicasts that one node takes part in at a time; one more is acknowledged and not passed on.

InsertionKey: TypeAlias = tuple[NodeId, int, int]  # The newcomer, its incarnation, and the length of the range.


@dataclass(slots=True)
class _Multicast:
    newcomer: Peer
    parents: dict[NodeId, None] = field(default_factory=dict)
    waiting: dict[str, dict[NodeId, None]] = field(default_factory=dict)  # By cell: whom it has tried.


class Insertions:
    """The multicasts about newcomers that one node takes part in."""

    def __init__(self, table: TapestryState, answer_s: float, on_told: Callable[[float], list[Effect]]) -> None:
        """`on_told` is called on a newcomer when its own multicast is complete."""
        self._table, self._me, self._on_told = table, table.me, on_told
        self._open: dict[InsertionKey, _Multicast] = {}
        self._sent = RetransmitQueue[tuple[InsertionKey, str]](Backoff(answer_s, TRIES_MAX))

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, surrogate: Peer, now: float) -> list[Effect]:
        """This node is new: have all that share as many digits with it as its surrogate does told of it."""
        me = self._me
        length = shared(me.id, surrogate.id)
        key = (me.id, me.incarnation, length)
        self._open[key] = _Multicast(me, {}, {surrogate.id[: length + 1]: {}})
        return self._hand(key, surrogate.id[: length + 1], [surrogate.id], now)

    def receive(self, sender: NodeId, message: Insertion, now: float) -> list[Effect]:
        """Pass it on in the range, and acknowledge when everybody there has it."""
        newcomer, length = message.newcomer, message.range_len
        key = (newcomer.id, newcomer.incarnation, length)
        known = self._open.get(key)
        if known is not None:
            known.parents[sender] = None
            return []
        self._open[key] = multicast = _Multicast(newcomer, {sender: None})
        if len(self._open) <= INSERTIONS_MAX:
            for cell in [cell for cell in self._table.table if len(cell) > length]:
                multicast.waiting[cell] = {}
        effects: list[Effect] = []
        for cell in list(multicast.waiting):
            effects += self._hand(key, cell, [], now)
        return [*effects, *self._end_if_done(key, now)]

    def acknowledged(self, sender: NodeId, ack: InsertionAck, now: float) -> list[Effect]:
        """Everybody in a range has it."""
        effects: list[Effect] = []
        for key, multicast in list(self._open.items()):
            if key[:2] == (ack.newcomer, ack.incarnation):
                for cell, tried in list(multicast.waiting.items()):
                    if sender in tried and self._range_len(key, cell) == ack.range_len:
                        del multicast.waiting[cell]
                        self._sent.acknowledge((key, cell))
                effects += self._end_if_done(key, now)
        return effects

    def wake(self, key: InsertionKey, cell: str, now: float) -> list[Effect]:
        """An acknowledgement may be overdue."""
        pending = self._sent.overdue((key, cell), now)
        if pending is None:
            return []
        due = self._sent.retry((key, cell), now)
        if due is not None:
            return [Send(pending.to, pending.message), WakeAt(due, ("ring", "insertion", key, cell))]
        return self._hand(key, cell, [], now)

    def gone(self, id: NodeId, now: float) -> list[Effect]:
        """A node is gone: hand what it had to another of its cell."""
        return [effect for pending in self._sent.take_back(id) for effect in self._hand(*pending.key, [], now)]

    def _hand(self, key: InsertionKey, cell: str, first: list[NodeId], now: float) -> list[Effect]:
        """Send it to the next node of a cell; if all have been tried, the cell counts as told."""
        multicast = self._open.get(key)
        if multicast is None or cell not in multicast.waiting:
            return []
        tried = multicast.waiting[cell]
        candidates = [*first, *(peer.id for peer in self._table.in_range(cell))]
        to = next((id for id in candidates if id not in tried and id != multicast.newcomer.id), None)
        if to is None:
            del multicast.waiting[cell]
            return self._end_if_done(key, now)
        tried[to] = None
        message = Insertion(self._me, multicast.newcomer, self._range_len(key, cell))
        due = self._sent.add((key, cell), to, message, now)
        return [Send(to, message), WakeAt(due, ("ring", "insertion", key, cell))]

    def _range_len(self, key: InsertionKey, cell: str) -> int:
        """The newcomer's surrogate gets its whole range, every other node that of its cell."""
        return key[2] if key[0] == self._me.id else len(cell)

    def _end_if_done(self, key: InsertionKey, now: float) -> list[Effect]:
        multicast = self._open.get(key)
        if multicast is None or multicast.waiting:
            return []
        del self._open[key]
        id, incarnation, length = key
        if id == self._me.id:
            return self._on_told(now)
        return [Send(parent, InsertionAck(self._me, id, incarnation, length)) for parent in multicast.parents]
