"""The filter table of IRBR: everybody's interests, by the cell of the node that has them.

Interests are stored under the cell (see `tidings.overlay.pastry.routing_table`) of their
origin, not under a neighbour: neighbours change all the time, a node's cells never do. For
each subscription the entry with the highest clock wins, in whatever order entries arrive.
So nodes that have received the same entries have the same table.

    entry            a subscription as its origin last described it: live, retiring or gone
    failure notice   voids everything that an origin announced before a certain clock, for it has failed

An entry is *announced* from a row on: every node in that row of its origin, and in deeper
ones, has it. Nodes in outer rows do without, because they know another entry that covers it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any

import msgspec

from tidings.overlay.crowding import CrowdedTable, Graves, with_too_many
from tidings.overlay.interest import Interest
from tidings.overlay.messages import NodeId, OriginRecord, Packet, Peer, SubscriptionId
from tidings.overlay.prefix.routing_state import shared

ENTRIES_MAX = 1 << 20  # A million subscriptions, some 500 MB. One too many is refused and counted.
NOTICES_MAX = 65_536
BURIED_MAX = 65_536  # Withdrawn subscriptions, a tenth of a kilobyte each, that are remembered after their tombstone.
GONE_S = 600.0  # Ten times as long as any message travels: nothing that arrives later can bring an entry back.


class EntryState(IntEnum):
    """The state of a subscription."""

    LIVE = 0
    RETIRING = 1  # Events are still forwarded for it, but nobody may rely on it as a cover.
    GONE = 2  # Only a tombstone, so that a late message cannot bring it back.


class FilterEntry(OriginRecord, frozen=True, array_like=True, tag="Entry"):
    """A subscription as its origin described it at `clock`, a count of what this origin has said."""

    id: SubscriptionId
    origin: Peer
    clock: int
    scope_row: int
    state: EntryState
    interest: Interest | None = None  # None once it is gone.
    seal: bytes = b""

    def speaker(self) -> NodeId:
        return self.origin.id if self.id.origin == self.origin.id else ""

    def statement(self) -> tuple[Any, ...]:
        interest = self.interest.statement() if self.interest is not None else None
        return self.id, self.clock, self.scope_row, int(self.state), interest

    def retired(self, clock: int) -> FilterEntry:
        """The same entry, on which nobody may rely any more."""
        return FilterEntry(self.id, self.origin, clock, self.scope_row, EntryState.RETIRING, self.interest)

    def gone(self, clock: int) -> FilterEntry:
        """The same entry, withdrawn."""
        return FilterEntry(self.id, self.origin, clock, self.scope_row, EntryState.GONE)


class FailureNotice(msgspec.Struct, frozen=True, array_like=True, tag="Obituary"):
    """A node has failed in this incarnation or an earlier one. First its entries retire; the `final` notice ends them.

    `clock` is the last that the accuser had heard of the node: what it has said since shows that it is alive. Anybody
    can say this of anybody, so nobody acts on it without having asked the node itself.
    """

    id: NodeId
    incarnation: int
    clock: int
    final: bool

    def voids(self, entry: FilterEntry) -> bool:
        """Whether the entry is the failed node's. A newer one shows that the node is alive.

        Each incarnation counts from one: clocks of different incarnations say nothing about each other.
        """
        return (
            entry.origin.id == self.id
            and (entry.id.incarnation, entry.clock) <= (self.incarnation, self.clock)
            and entry.state is not EntryState.GONE
        )

    def applied_to(self, entry: FilterEntry) -> FilterEntry:
        """The entry as this notice leaves it: at the same clock, so that all who apply a notice agree."""
        return entry.gone(entry.clock) if self.final else entry.retired(entry.clock)


CLOCK_MAX = (1 << 62) - 1  # "Whatever it has said": whoever hears it takes the last that it has heard.


class OriginClock:
    """Counts what one node has said, so that of two entries the later one wins. What others say never moves it.

    >>> clock = OriginClock()
    >>> clock.tick(), clock.tick()
    (1, 2)
    """

    def __init__(self) -> None:
        self.time = 0

    def tick(self) -> int:
        """The time of something about to be sent."""
        self.time += 1
        return self.time


class FilterTable:
    """Everybody's interests, as far as this node needs to know them, except its own."""

    def __init__(self, me: NodeId, *, entries_max: int = ENTRIES_MAX, gone_s: float = GONE_S) -> None:
        self.me, self.entries_max, self.gone_s = me, entries_max, gone_s
        self._rows: list[dict[str, dict[SubscriptionId, FilterEntry]]] = [{} for _ in me]
        self._notices: OrderedDict[NodeId, tuple[FailureNotice, float]] = OrderedDict()
        self._gone: dict[SubscriptionId, tuple[str, float]] = {}  # The cell of a tombstone, and when it expires.
        self._buried = Graves(BURIED_MAX)  # What its origin has withdrawn, and at which clock.
        self._count = 0
        self._crowded = CrowdedTable[SubscriptionId](lambda key: key.origin)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[SubscriptionId]:
        return (id for row in self._rows for entries in row.values() for id in entries)

    def __contains__(self, id: object) -> bool:
        return isinstance(id, SubscriptionId) and self.get(id) is not None

    def merge(self, entry: FilterEntry, now: float) -> FilterEntry | None:
        """Keep the newer of the stored entry and this one; returns a stored entry that was a cover and no longer is.

        Leaves out an entry that is announced only further in, which this node need not know.
        """
        row = shared(self.me, entry.origin.id)
        if row >= len(self.me) or entry.scope_row > row:
            return None
        known = self._notices.get(entry.origin.id)
        if known is not None and known[0].voids(entry):
            entry = known[0].applied_to(entry)
        return self._replace(entry.origin.id[: row + 1], entry, now)

    def apply_notice(self, notice: FailureNotice, now: float) -> list[FilterEntry]:
        """Store a failure notice; returns the entries that were covers and no longer are."""
        known = self._notices.get(notice.id)
        notice = self._within_what_was_said(notice)
        if known is not None and _order(known[0]) >= _order(notice):
            return []
        self._notices[notice.id] = (notice, now + self.gone_s)
        if len(self._notices) > NOTICES_MAX:
            self._notices.popitem(last=False)
        cell = notice.id[: shared(self.me, notice.id) + 1]
        voided = [entry for entry in self.under(cell) if notice.voids(entry)]
        lost = [self._replace(cell, notice.applied_to(entry), now) for entry in voided]
        return [entry for entry in lost if entry is not None]

    def last_heard(self, id: NodeId, incarnation: int) -> tuple[int, int]:
        """The last that this node has heard of another up to this incarnation: in which one, and at which clock."""
        row = shared(self.me, id)
        entries = self._rows[row].get(id[: row + 1], {}).values() if row < len(self.me) else ()
        heard = ((each.id.incarnation, each.clock) for each in entries if each.origin.id == id)
        return max((each for each in heard if each[0] <= incarnation), default=(0, 0))

    def _within_what_was_said(self, notice: FailureNotice) -> FailureNotice:
        """The notice, no later than anything that its node has said: what it says next must count."""
        said = (notice.incarnation, max(0, notice.clock))
        incarnation, clock = min(said, self.last_heard(notice.id, notice.incarnation))
        return FailureNotice(notice.id, incarnation, clock, notice.final)

    def notice(self, id: NodeId) -> FailureNotice | None:
        """The newest failure notice about this node."""
        known = self._notices.get(id)
        return known[0] if known else None

    def notices(self) -> list[FailureNotice]:
        return [notice for notice, _ in self._notices.values()]

    def matching(self, packet: Packet, from_row: int) -> dict[str, list[FilterEntry]]:
        """For each cell in this row and deeper ones, the entries that match the packet, if any do."""
        found: dict[str, list[FilterEntry]] = {}
        for row in self._rows[from_row:]:
            for cell, entries in row.items():
                if matching := _matching(entries, packet):
                    found[cell] = matching
        return found

    def under(self, cell: str) -> list[FilterEntry]:
        """The entries of one cell."""
        return list(self._rows[len(cell) - 1].get(cell, {}).values())

    def cells(self) -> list[str]:
        return [cell for row in self._rows for cell in row]

    def get(self, id: SubscriptionId) -> FilterEntry | None:
        """The entry of this subscription, if there is one."""
        row = shared(self.me, id.origin)
        return self._rows[row].get(id.origin[: row + 1], {}).get(id) if row < len(self.me) else None

    def covered_rows(self, interest: Interest) -> list[tuple[int, int]]:
        """Rows in which every node knows an entry of this table that covers `interest`: first row, and end (exclusive).

        The origin of an entry in row r has announced it to the same rows of nodes as this node would, as far as row r.
        """
        live = [
            (row, entry.scope_row, entry.id.origin, entry.interest)
            for row in range(1, len(self._rows))
            for entries in self._rows[row].values()
            for entry in entries.values()
            if entry.state is EntryState.LIVE and entry.interest is not None and entry.interest.type == interest.type
        ]
        # Comparing with all of an origin that has very many costs too much, and to rely on none of them costs messages.
        many = with_too_many([(origin, known) for _, _, origin, known in live])
        few = (each for each in live if each[2] not in many)
        return [(scope_row, row) for row, scope_row, _, known in few if known.covers(interest)]

    def known_to(self, asker: Peer, prefix: str) -> Iterator[FilterEntry]:
        """What `asker` should know of origins in a range, and of its own former incarnations."""
        for row in self._rows:
            for cell, entries in row.items():
                if cell.startswith(prefix) or prefix.startswith(cell):
                    for entry in entries.values():
                        if entry.origin.id.startswith(prefix) and _should_know(asker, entry):
                            yield entry

    def expire(self, now: float) -> None:
        """Forget tombstones and failure notices that have expired."""
        for id in [id for id, (_, until) in self._gone.items() if until <= now]:
            self._bury(id)
            self._drop(id, self._gone.pop(id)[0])
        for node in [node for node, (_, until) in self._notices.items() if until <= now]:
            del self._notices[node]

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            "entries": (self._count, self.entries_max),
            "obituaries": (len(self._notices), NOTICES_MAX),
            "buried": (len(self._buried), BURIED_MAX),
        }

    def _bury(self, id: SubscriptionId) -> None:
        """Remembers what its origin has withdrawn: whoever has kept an earlier entry cannot bring it back later.

        Not what others concluded about a node that they could not reach: it may come back with the same entries.
        """
        entry = self.get(id)
        if entry is not None and entry.seal:
            self._buried.add(id, entry.clock)

    def _replace(self, cell: str, entry: FilterEntry, now: float) -> FilterEntry | None:
        entries = self._rows[len(cell) - 1].setdefault(cell, {})
        old = entries.get(entry.id)
        if old is not None and (old.clock, old.state) >= (entry.clock, entry.state):
            return None
        if old is None and entry.clock <= self._buried.get(entry.id, -1):
            return None
        pushed_out = None
        if old is None and self._count >= self.entries_max:
            crowding = self._crowded.one_less_for(entry.id, self)
            if crowding is None:
                return None
            pushed_out = self.get(crowding)
            self._gone.pop(crowding, None)
            self._drop(crowding, crowding.origin[: shared(self.me, crowding.origin) + 1])
            entries = self._rows[len(cell) - 1].setdefault(cell, entries)
        entries[entry.id] = entry
        self._count += old is None
        if entry.state is EntryState.GONE:
            self._gone[entry.id] = (cell, now + self.gone_s)
        else:
            self._gone.pop(entry.id, None)
        if pushed_out is not None:
            return pushed_out if pushed_out.state is EntryState.LIVE else None
        return old if old is not None and not _still_covers(old, entry) else None

    def _drop(self, id: SubscriptionId, cell: str) -> None:
        row = self._rows[len(cell) - 1]
        if row.get(cell, {}).pop(id, None) is not None:
            self._count -= 1
        if not row.get(cell):
            row.pop(cell, None)


def _matching(entries: Mapping[SubscriptionId, FilterEntry], packet: Packet) -> list[FilterEntry]:
    """The entries that match. An origin with very many of the type gets all events of it: comparing costs too much."""
    type = packet.header.type
    wanted = [(e, e.interest) for e in entries.values() if e.interest is not None and e.interest.type == type]
    many = with_too_many([(e.id.origin, interest) for e, interest in wanted])
    if not many:
        return [e for e, interest in wanted if interest.matches(packet)]
    first = {e.id.origin: e for e, _ in reversed(wanted) if e.id.origin in many}
    return [*first.values(), *(e for e, interest in wanted if e.id.origin not in many and interest.matches(packet))]


def digest(entries: Iterator[FilterEntry]) -> int:
    """A digest that does not depend on the order of the entries."""
    total = 0
    for entry in entries:
        word = f"{entry.id.origin}/{entry.id.incarnation}/{entry.id.seq}/{entry.clock}/{entry.state:d}"
        total += int.from_bytes(hashlib.blake2b(word.encode(), digest_size=7).digest(), "big")
    return total & 0x7FFF_FFFF_FFFF_FFFF


def _order(notice: FailureNotice) -> tuple[int, int, bool]:
    return notice.incarnation, notice.clock, notice.final


def _should_know(asker: Peer, entry: FilterEntry) -> bool:
    if entry.origin.id == asker.id:
        return entry.id.incarnation < asker.incarnation and entry.state is not EntryState.GONE
    return entry.scope_row <= shared(asker.id, entry.origin.id)


def _still_covers(old: FilterEntry, new: FilterEntry) -> bool:
    """Whether whoever relied on the old entry can rely on the new one."""
    if old.state is not EntryState.LIVE:
        return True  # Nobody relied on it.
    return new.state is EntryState.LIVE and new.scope_row <= old.scope_row and new.interest == old.interest
