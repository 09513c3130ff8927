"""Comparing tables, in IRBR: a node asks another what it should know of a range, and gets what it lacks.

The question carries a digest of what the asker knows. Where that is all there is to know,
a routine question gets no answer, and one that is waited for an empty one.
"""

from __future__ import annotations

from tidings.overlay import ranges
from tidings.overlay.announcing import Announcer
from tidings.overlay.irbr_messages import Compare, Routine, Table
from tidings.overlay.ranges import Entry, FilterTable
from tidings.overlay.ring import Ring
from tidings.overlay.router import Effect, Send
from tidings.overlay.wire import NodeId, Peer

ENTRIES_AT_ONCE = 256  # In one message: even with a kilobyte of envelope each a quarter of the largest frame.


class Comparer:
    """What one node asks of others' tables, and tells them of its own."""

    def __init__(self, me: Peer, ring: Ring, table: FilterTable, announcer: Announcer) -> None:
        self.me, self._ring, self._table, self._announcer = me, ring, table, announcer

    def digest(self, prefix: str) -> int:
        """Of all that this node knows of a range; equal for equal knowledge."""
        entries = (entry for cell in self._table.cells() for entry in self._table.under(cell))
        return ranges.digest(entry for entry in entries if entry.id.origin.startswith(prefix))

    def question(self, peer: Peer, cell: str) -> Send:
        """Ask somebody, as a routine, for what this node may have missed of a cell."""
        return Send(peer.id, Routine(self.me, cell, self.digest(cell)))

    def answer(self, sender: NodeId, question: Compare) -> list[Effect]:
        """Tell an asker what it should know and, by its digest, does not."""
        if question.me.id != sender or not self._ring.is_node(question.me) or not self._ring.is_prefix(question.prefix):
            return []
        told = self._told_to(question.me, question.prefix)
        if question.after is None and ranges.digest(iter(told)) == question.digest:
            told = []
        if not told and isinstance(question, Routine):
            return []
        told = [entry for entry in told if question.after is None or entry.id > question.after]
        obituaries = tuple(self._table.obituaries()) if question.after is None else ()
        first, rest = tuple(told[:ENTRIES_AT_ONCE]), told[ENTRIES_AT_ONCE:]
        return [Send(sender, Table(question.prefix, first, obituaries[:ENTRIES_AT_ONCE], bool(rest)))]

    def _told_to(self, asker: Peer, prefix: str) -> list[Entry]:
        mine = self._announcer.told_to(asker) if self.me.id.startswith(prefix) else []
        return sorted([*mine, *self._table.told_to(asker, prefix)], key=lambda entry: entry.id)
