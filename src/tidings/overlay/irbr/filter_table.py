"""Ranges: what a node knows of everybody's interests, ordered by where they are.

IRBR's filter table. Interests are kept under the cell (see `places`) that their origin
falls into as seen from here, not under a neighbour: neighbours change all the time, a
node's cells never do. For each subscription the newest word counts, whatever order the
words come in, so tables of nodes that have heard the same are the same.

    entry       a subscription as its origin last described it: live, retiring or gone
    obituary    all that an origin said before a certain moment is void, for it has died

An entry is *announced* from a row on: everybody in that row of its origin and in deeper
ones has it. Nodes in outer rows do without, because they know of another that covers it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator
from enum import IntEnum

import msgspec

from tidings.overlay.interest import Interest
from tidings.overlay.messages import NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.pastry.routing_table import shared

ENTRIES_MAX = 1 << 20  # A million subscriptions, some 500 MB. One too many is refused and counted.
OBITUARIES_MAX = 65_536
GONE_S = 600.0  # Ten times as long as any message is on its way: nothing later can bring an entry back.


class Standing(IntEnum):
    """What became of a subscription."""

    LIVE = 0
    RETIRING = 1  # Still forwarded to, but nobody may rely on it any more.
    GONE = 2  # Only remembered, so that a late word cannot bring it back.


class Entry(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A subscription as its origin described it at its time `clock`."""

    id: SubscriptionId
    origin: Peer
    clock: int
    scope_row: int
    standing: Standing
    interest: Interest | None = None  # None once it is gone.

    def retired(self, clock: int) -> Entry:
        """The same, no longer to be relied on."""
        return Entry(self.id, self.origin, clock, self.scope_row, Standing.RETIRING, self.interest)

    def gone(self, clock: int) -> Entry:
        """The same, taken back."""
        return Entry(self.id, self.origin, clock, self.scope_row, Standing.GONE)


class Obituary(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A node has died in this life or an earlier one. First its entries retire; the `final` word ends them."""

    id: NodeId
    incarnation: int
    clock: int
    final: bool

    def concerns(self, entry: Entry) -> bool:
        """Whether the entry is the dead node's. One that is newer shows that the node lives."""
        return (
            entry.origin.id == self.id
            and entry.id.incarnation <= self.incarnation
            and entry.clock < self.clock
            and entry.standing is not Standing.GONE
        )


class FilterTable:
    """Everybody's interests, as far as this node needs to know them, but not its own."""

    def __init__(self, me: NodeId, *, entries_max: int = ENTRIES_MAX, gone_s: float = GONE_S) -> None:
        self.me, self.entries_max, self.gone_s = me, entries_max, gone_s
        self._rows: list[dict[str, dict[SubscriptionId, Entry]]] = [{} for _ in me]
        self._obituaries: OrderedDict[NodeId, tuple[Obituary, float]] = OrderedDict()
        self._gone: dict[SubscriptionId, tuple[str, float]] = {}  # Where a gone entry is, and until when.
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def merge(self, entry: Entry, now: float) -> Entry | None:
        """Take the newer of what is here and what comes; returns what was relied on here and no longer can be.

        An entry that this node need not know, being announced only further in, is left out.
        """
        row = shared(self.me, entry.origin.id)
        if row >= len(self.me) or entry.scope_row > row:
            return None
        known = self._obituaries.get(entry.origin.id)
        if known is not None and known[0].concerns(entry):
            entry = _ended(entry, known[0])
        return self._replace(entry.origin.id[: row + 1], entry, now)

    def bury(self, obituary: Obituary, now: float) -> list[Entry]:
        """Take note of a death; returns the entries that were relied on here and no longer can be."""
        known = self._obituaries.get(obituary.id)
        if known is not None and (known[0].incarnation, known[0].clock) >= (obituary.incarnation, obituary.clock):
            return []
        self._obituaries[obituary.id] = (obituary, now + self.gone_s)
        if len(self._obituaries) > OBITUARIES_MAX:
            self._obituaries.popitem(last=False)
        cell = obituary.id[: shared(self.me, obituary.id) + 1]
        concerned = [entry for entry in self.under(cell) if obituary.concerns(entry)]
        lost = [self._replace(cell, _ended(entry, obituary), now) for entry in concerned]
        return [entry for entry in lost if entry is not None]

    def obituary(self, id: NodeId) -> Obituary | None:
        """The last that was heard of this node's death."""
        known = self._obituaries.get(id)
        return known[0] if known else None

    def obituaries(self) -> list[Obituary]:
        return [obituary for obituary, _ in self._obituaries.values()]

    def matching(self, packet: Packet, from_row: int) -> dict[str, list[Entry]]:
        """For each cell in this row and deeper ones, the entries that want the packet, if any do."""
        found: dict[str, list[Entry]] = {}
        for row in self._rows[from_row:]:
            for cell, entries in row.items():
                wanting = [e for e in entries.values() if e.interest is not None and e.interest.matches(packet)]
                if wanting:
                    found[cell] = wanting
        return found

    def under(self, cell: str) -> list[Entry]:
        """The entries of one cell."""
        return list(self._rows[len(cell) - 1].get(cell, {}).values())

    def cells(self) -> list[str]:
        return [cell for row in self._rows for cell in row]

    def get(self, id: SubscriptionId) -> Entry | None:
        """The entry of this subscription, if there is one."""
        row = shared(self.me, id.origin)
        return self._rows[row].get(id.origin[: row + 1], {}).get(id) if row < len(self.me) else None

    def rows_covered(self, interest: Interest) -> list[tuple[int, int]]:
        """Rows in which everybody knows somebody in here that covers `interest`: from, and up to but without.

        Somebody in row r of this node has been announced to the same rows of nodes, as far as row r.
        """
        return [
            (entry.scope_row, row)
            for row in range(1, len(self._rows))
            for entries in self._rows[row].values()
            for entry in entries.values()
            if entry.standing is Standing.LIVE and entry.interest is not None and entry.interest.covers(interest)
        ]

    def told_to(self, asker: Peer, prefix: str) -> Iterator[Entry]:
        """What `asker` should know of origins in a range, and of its own former lives."""
        for row in self._rows:
            for cell, entries in row.items():
                if cell.startswith(prefix) or prefix.startswith(cell):
                    for entry in entries.values():
                        if entry.origin.id.startswith(prefix) and _concerns(entry, asker):
                            yield entry

    def expire(self, now: float) -> None:
        """Forget what has been gone for long."""
        for id in [id for id, (_, until) in self._gone.items() if until <= now]:
            self._drop(id, self._gone.pop(id)[0])
        for node in [node for node, (_, until) in self._obituaries.items() if until <= now]:
            del self._obituaries[node]

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            "entries": (self._count, self.entries_max),
            "obituaries": (len(self._obituaries), OBITUARIES_MAX),
        }

    def _replace(self, cell: str, entry: Entry, now: float) -> Entry | None:
        entries = self._rows[len(cell) - 1].setdefault(cell, {})
        old = entries.get(entry.id)
        if (old is not None and old.clock >= entry.clock) or (old is None and self._count >= self.entries_max):
            return None
        entries[entry.id] = entry
        self._count += old is None
        if entry.standing is Standing.GONE:
            self._gone[entry.id] = (cell, now + self.gone_s)
        else:
            self._gone.pop(entry.id, None)
        return old if old is not None and not _still_covers(old, entry) else None

    def _drop(self, id: SubscriptionId, cell: str) -> None:
        row = self._rows[len(cell) - 1]
        if row.get(cell, {}).pop(id, None) is not None:
            self._count -= 1
        if not row.get(cell):
            row.pop(cell, None)


def digest(entries: Iterator[Entry]) -> int:
    """A number that is the same for the same entries in any order, and hardly ever for others."""
    total = 0
    for entry in entries:
        word = f"{entry.id.origin}/{entry.id.incarnation}/{entry.id.seq}/{entry.clock}/{entry.standing:d}"
        total += int.from_bytes(hashlib.blake2b(word.encode(), digest_size=7).digest(), "big")
    return total & 0x7FFF_FFFF_FFFF_FFFF


def _ended(entry: Entry, obituary: Obituary) -> Entry:
    return entry.gone(obituary.clock) if obituary.final else entry.retired(obituary.clock)


def _concerns(entry: Entry, asker: Peer) -> bool:
    if entry.origin.id == asker.id:
        return entry.id.incarnation < asker.incarnation and entry.standing is not Standing.GONE
    return entry.scope_row <= shared(asker.id, entry.origin.id)


def _still_covers(old: Entry, new: Entry) -> bool:
    """Whether whoever relied on the old entry can rely on the new one."""
    if old.standing is not Standing.LIVE:
        return True  # Nobody relied on it.
    return new.standing is Standing.LIVE and new.scope_row <= old.scope_row and new.interest == old.interest
