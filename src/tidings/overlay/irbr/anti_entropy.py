"""Comparing tables, in IRBR: a node asks another what it should know of a range, and gets what it lacks.

The question carries a digest of what the asker knows. Where that is all there is to know,
a routine question gets no answer, and one that is waited for an empty one.

Two nodes that have not known each other may have missed what the other, or others near it, said
meanwhile. So the one that learns of it compares all that they should know of each other, and alike.
"""

from __future__ import annotations

from collections.abc import Iterator

from tidings.overlay.irbr import filter_table
from tidings.overlay.irbr.filter_table import Entry, FilterTable
from tidings.overlay.irbr.messages import Acquaint, Compare, Routine, Table
from tidings.overlay.irbr.subscription_propagation import Announcer
from tidings.overlay.messages import NodeId, Peer
from tidings.overlay.pastry.ring import Ring
from tidings.overlay.pastry.routing_table import shared
from tidings.overlay.router import Effect, Send

ENTRIES_AT_ONCE = 256  # In one message: even with a kilobyte of envelope each a quarter of the largest frame.


class Comparer:
    """What one node asks of others' tables, and tells them of its own."""

    def __init__(self, me: Peer, ring: Ring, table: FilterTable, announcer: Announcer) -> None:
        self.me, self._ring, self._table, self._announcer = me, ring, table, announcer

    def digest(self, prefix: str) -> int:
        """Of all that this node knows of a range; equal for equal knowledge."""
        return filter_table.digest(entry for entry in self._entries() if entry.id.origin.startswith(prefix))

    def question(self, peer: Peer, cell: str) -> Send:
        """Ask somebody, as a routine, for what this node may have missed of a cell."""
        return Send(peer.id, Routine(self.me, cell, self.digest(cell)))

    def acquaint(self, peer: Peer) -> Send:
        """Compare all with somebody that this node has not known: what was said meanwhile may have missed either."""
        cell, mine = self._ring.cell(peer.id), filter_table.digest(iter(self._told_to(peer, self._cell_of_me(peer))))
        return Send(peer.id, Acquaint(self.me, cell, self.digest(cell), None, mine, self._beyond(peer)))

    def answer(self, sender: NodeId, question: Compare, *, is_ready: bool) -> list[Effect]:
        """Tell an asker what it should know and, by its digest, does not; with half a table it must ask others, too."""
        if question.me.id != sender or not self._ring.is_node(question.me) or not self._ring.is_prefix(question.prefix):
            return []
        if isinstance(question, Acquaint):
            return self._meet(question, is_ready)
        told = self._told_to(question.me, question.prefix)
        if question.after is None and filter_table.digest(iter(told)) == question.digest:
            told = []
        if not told and isinstance(question, Routine):
            return []
        told = [entry for entry in told if question.after is None or entry.id > question.after]
        obituaries = tuple(self._table.obituaries()) if question.after is None else ()
        first, rest = tuple(told[:ENTRIES_AT_ONCE]), told[ENTRIES_AT_ONCE:]
        return [Send(sender, Table(question.prefix, first, obituaries[:ENTRIES_AT_ONCE], bool(rest), is_ready))]

    def go_on(self, sender: NodeId, table: Table) -> list[Effect]:
        """Ask for the rest of what was told as a routine."""
        if not table.more or not table.entries:
            return []
        return [Send(sender, Routine(self.me, table.prefix, 0, table.entries[-1].id))]

    def _meet(self, question: Acquaint, is_ready: bool) -> list[Effect]:
        """Answer, and ask back; as a routine, or two that never agree would ask each other for ever."""
        peer, cell = question.me, self._ring.cell(question.me.id)
        if self._beyond(peer) != question.beyond:
            everything = self.answer(peer.id, Routine(peer, "", 0), is_ready=is_ready)
            return [*everything, Send(peer.id, Routine(self.me, "", 0))]
        answer = self.answer(peer.id, Routine(peer, question.prefix, question.digest), is_ready=is_ready)
        return [*answer, self.question(peer, cell)] if self.digest(cell) != question.mine else answer

    def _entries(self) -> Iterator[Entry]:
        return (entry for cell in self._table.cells() for entry in self._table.under(cell))

    def _beyond(self, peer: Peer) -> int:
        return filter_table.digest(entry for entry in self._entries() if self._is_beyond(entry, peer))

    def _is_beyond(self, entry: Entry, peer: Peer) -> bool:
        """Whether it is of outside the range that this node and the other are in: both see it from the same row."""
        return shared(self.me.id, entry.origin.id) < shared(self.me.id, peer.id)

    def _cell_of_me(self, peer: Peer) -> str:
        """Under which cell another node sees this one."""
        return self.me.id[: shared(self.me.id, peer.id) + 1]

    def _told_to(self, asker: Peer, prefix: str) -> list[Entry]:
        mine = self._announcer.told_to(asker) if self.me.id.startswith(prefix) else []
        return sorted([*mine, *self._table.told_to(asker, prefix)], key=lambda entry: entry.id)
