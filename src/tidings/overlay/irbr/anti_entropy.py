"""Anti-entropy in IRBR: a node asks another what it should know of a range, and gets what it lacks.

The query carries a digest of what the asker knows. If the digests agree, a routine query
gets no answer, and one that somebody waits for gets an empty one.

Two nodes that have just met may each have missed what was announced near the other. So
the one that learns of the other compares everything that both should know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tidings.overlay.irbr import filter_table
from tidings.overlay.irbr.filter_table import FilterEntry, FilterTable
from tidings.overlay.irbr.messages import FirstContactQuery, RoutineQuery, TableQuery, TableReply
from tidings.overlay.messages import NodeId, Peer, in_messages
from tidings.overlay.prefix.routing_state import PrefixState, shared
from tidings.overlay.router import Effect, Send

ENTRIES_AT_ONCE = 256  # In one message, if they are small.


class AntiEntropy:
    """The queries that one node sends about others' tables, and its answers about its own."""

    def __init__(
        self, routing: PrefixState, table: FilterTable, own_entries: Callable[[Peer], list[FilterEntry]]
    ) -> None:
        """`own_entries` are the node's own subscriptions that a peer should know."""
        self.me, self._routing, self._table, self._own_entries = routing.me, routing, table, own_entries

    def digest(self, prefix: str) -> int:
        """The digest of all that this node knows of a range."""
        return filter_table.digest(entry for entry in self._entries() if entry.id.origin.startswith(prefix))

    def routine_query(self, peer: Peer, cell: str) -> Send:
        """Ask a node, on schedule, for what this node may have missed of a cell."""
        return Send(peer.id, RoutineQuery(self.me, cell, self.digest(cell)))

    def first_contact(self, peer: Peer) -> Send:
        """Compare everything with a node that is new here: either may have missed what was announced meanwhile."""
        cell, mine = (
            self._routing.cell(peer.id),
            filter_table.digest(iter(self._known_to(peer, self._cell_of_me(peer)))),
        )
        return Send(peer.id, FirstContactQuery(self.me, cell, self.digest(cell), None, mine, self._beyond(peer)))

    def answer(self, sender: NodeId, query: TableQuery, *, is_ready: bool) -> list[Effect]:
        """Send an asker what it should know and, by its digest, does not. A node that is not ready says so."""
        if query.me.id != sender or not self._routing.is_node(query.me) or not self._routing.is_prefix(query.prefix):
            return []
        if isinstance(query, FirstContactQuery):
            return self._answer_first_contact(query, is_ready)
        known = self._known_to(query.me, query.prefix)
        if query.after is None and filter_table.digest(iter(known)) == query.digest:
            known = []
        if not known and isinstance(query, RoutineQuery):
            return []
        known = [entry for entry in known if query.after is None or entry.id > query.after]
        notices = tuple(self._table.notices()) if query.after is None else ()
        first = (in_messages(known[:ENTRIES_AT_ONCE], ENTRIES_AT_ONCE) or [()])[0]  # Only these need to be measured.
        more = len(first) < len(known)
        return [Send(sender, TableReply(query.prefix, first, notices[:ENTRIES_AT_ONCE], more, is_ready))]

    def query_rest(self, sender: NodeId, reply: TableReply) -> list[Effect]:
        """Ask for what a reply to a routine query had to leave out."""
        if not reply.more or not reply.entries:
            return []
        return [Send(sender, RoutineQuery(self.me, reply.prefix, 0, reply.entries[-1].id))]

    def _answer_first_contact(self, query: FirstContactQuery, is_ready: bool) -> list[Effect]:
        """Answer and query back, by a routine query: two nodes that never agree would otherwise ask for ever."""
        peer, cell = query.me, self._routing.cell(query.me.id)
        if self._beyond(peer) != query.beyond:
            everything = self.answer(peer.id, RoutineQuery(peer, "", 0), is_ready=is_ready)
            return [*everything, Send(peer.id, RoutineQuery(self.me, "", 0))]
        answer = self.answer(peer.id, RoutineQuery(peer, query.prefix, query.digest), is_ready=is_ready)
        return [*answer, self.routine_query(peer, cell)] if self.digest(cell) != query.mine else answer

    def _entries(self) -> Iterator[FilterEntry]:
        return (entry for cell in self._table.cells() for entry in self._table.under(cell))

    def _beyond(self, peer: Peer) -> int:
        return filter_table.digest(entry for entry in self._entries() if self._is_beyond(entry, peer))

    def _is_beyond(self, entry: FilterEntry, peer: Peer) -> bool:
        """Whether its origin is outside the range that this node and the peer are in: both see it in the same row."""
        return shared(self.me.id, entry.origin.id) < shared(self.me.id, peer.id)

    def _cell_of_me(self, peer: Peer) -> str:
        """The cell in which a peer sees this node."""
        return self.me.id[: shared(self.me.id, peer.id) + 1]

    def _known_to(self, asker: Peer, prefix: str) -> list[FilterEntry]:
        mine = self._own_entries(asker) if self.me.id.startswith(prefix) else []
        return sorted([*mine, *self._table.known_to(asker, prefix)], key=lambda entry: entry.id)
