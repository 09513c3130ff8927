"""Routing state of a prefix network: the nodes that one node knows, by the cells in which it sees them.

It knows and never sends. Ids are strings of digits, all of one length. A node sees every
other node in exactly one *cell*, the first digits that the two share and one more:

    node 213, k = 4        row 0: 0.. 1.. 3..      row 1: 20. 22. 23.      row 2: 210 211 212

It keeps a few nodes of each cell (the *table*). What it keeps beside that, and how it
knows that a cell is empty, differs from network to network.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby

from tidings.errors import InputError
from tidings.overlay.messages import NodeId, Peer

ALTERNATES = 3  # Nodes kept for each cell: a dead one is replaced without asking anybody.
EMPTY_S = 600.0  # How long a cell found empty counts as empty; a node that joins it announces that.
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_FORMATS = {2: "b", 8: "o", 10: "d", 16: "x"}  # Bases in which Python writes numbers itself.
ID_LENGTH_MAX = 128  # As many digits as 512 bits have in base 16.


def shared(one: str, other: str) -> int:
    """How many leading digits two ids share.

    >>> shared("213", "201")
    1
    """
    count = 0
    for a, b in zip(one, other):
        if a != b:
            return count
        count += 1
    return count


class PrefixState(ABC):
    """One node's routing table, whatever network it is of.

    A node in `doubted` keeps its place but is never a next hop.
    """

    def __init__(self, me: Peer, *, base: int = 16, alternates: int = ALTERNATES) -> None:
        _check_options(me.id, base, alternates)
        self.me, self.base, self.length = me, base, len(me.id)
        self.digits = DIGITS[:base]
        self.size: int = base ** len(me.id)
        self.at = int(me.id, base)
        self.alternates = alternates
        self.doubted: dict[NodeId, Peer] = {}
        self._allowed = frozenset(self.digits)
        self.table: dict[str, list[Peer]] = {}  # By cell, best first.
        self._empty: dict[str, float] = {}  # Cells known to be empty, and until when.

    # ── Cells ────────────────────────────────────────────────────────────────

    def cell(self, id: NodeId) -> str:
        """The cell under which this node sees `id`."""
        return id[: shared(self.me.id, id) + 1]

    def cells(self, row: int) -> list[str]:
        """The cells of one row, in the order of their digits."""
        mine = self.me.id
        return [mine[:row] + digit for digit in self.digits if digit != mine[row]]

    @abstractmethod
    def depth(self) -> int:
        """How many rows have nodes in them."""

    @abstractmethod
    def in_range(self, prefix: str) -> list[Peer]:
        """Known nodes of this range that are not suspected, best first."""

    @abstractmethod
    def is_empty(self, cell: str, now: float) -> bool:
        """Whether this cell is certainly empty."""

    def note_empty(self, cell: str, now: float) -> None:
        """A search has found nobody in the cell, and nobody who might be."""
        if len(cell) <= self.length and self.cell(cell) == cell:
            self._empty[cell] = now + EMPTY_S

    # ── Neighbours ───────────────────────────────────────────────────────────

    @abstractmethod
    def nearest(self) -> Peer | None:
        """A node that shares most digits with this one."""

    def by_nearness(self) -> list[Peer]:
        """All known, those that share most digits with this one first."""
        return sorted(self.known(), key=lambda peer: -shared(self.me.id, peer.id))

    @abstractmethod
    def known(self) -> list[Peer]:
        """All that have a place here, each once."""

    def knows(self, id: NodeId) -> Peer | None:
        """The peer of this id, if it has a place here."""
        return next((peer for peer in self.table.get(self.cell(id), ()) if peer.id == id), None)

    @abstractmethod
    def is_next_after(self, id: NodeId) -> bool:
        """Whether, of the nodes that this one knows, it is itself the one that stands in for `id`."""

    def entries(self) -> list[Peer]:
        return [peer for peers in self.table.values() for peer in peers]

    def primaries(self) -> list[Peer]:
        """The first node of each cell."""
        return [peers[0] for peers in self.table.values()]

    # ── Next hops ────────────────────────────────────────────────────────────

    @abstractmethod
    def next_hop(self, key: str) -> NodeId | None:
        """The next hop to the node that stands for `key`; None if that is this node."""

    @abstractmethod
    def nearer(self, key: str, *, rows: bool) -> tuple[Peer, ...]:
        """The answer to a lookup of `key`; with `rows`, also what a node at `key` could use of the table."""

    def key_of(self, digest: bytes) -> str:
        """The key of a hash on the circle."""
        place = int.from_bytes(digest, "big") % self.size
        if self.base in _FORMATS:
            return f"{place:0{self.length}{_FORMATS[self.base]}}"
        key = ""
        for _ in range(self.length):
            place, digit = divmod(place, self.base)
            key = self.digits[digit] + key
        return key

    # ── Change ───────────────────────────────────────────────────────────────

    @abstractmethod
    def insert(self, peer: Peer) -> bool:
        """Give the peer a place; whether it, or this incarnation of it, did not have one."""

    @abstractmethod
    def would_fit(self, peer: Peer) -> bool:
        """Whether a node that answers would get a place worth a message."""

    def drop(self, id: NodeId) -> None:
        """Forget a node."""
        cell = self.cell(id)
        left = [peer for peer in self.table.get(cell, ()) if peer.id != id]
        if left:
            self.table[cell] = left
        else:
            self.table.pop(cell, None)

    def is_node(self, peer: Peer) -> bool:
        """Whether this is a valid other node; what peers send may be anything."""
        return peer.id != self.me.id and self.is_id(peer.id)

    def is_id(self, text: str) -> bool:
        return len(text) == self.length and self._allowed.issuperset(text)

    def is_prefix(self, text: str) -> bool:
        return len(text) <= self.length and self._allowed.issuperset(text)

    def holdings(self) -> dict[str, tuple[int, int]]:
        """How many entries there are and how many there may be."""
        cells = (self.base - 1) * self.length
        return {
            "table": (sum(map(len, self.table.values())), cells * self.alternates),
            "empty cells": (len(self._empty), cells),
        }

    # ── A network that begins settled ────────────────────────────────────────

    def _fill_from(self, index: int, peers: Sequence[Peer], ranges: CellSlices, pick: Pick) -> None:
        for row in range(self.length):
            low, high = ranges.of.get(self.me.id[:row], (0, 0))
            if high - low < 2:
                return
            for cell in self.cells(row):
                self._fill(cell, ranges.of.get(cell), peers, pick)

    def _fill(self, cell: str, where: tuple[int, int] | None, peers: Sequence[Peer], pick: Pick) -> None:
        if where is None:
            self._empty[cell] = float("inf")
        else:
            self.table[cell] = [peers[place] for place in pick(*where)]


Pick = Callable[[int, int], Collection[int]]


class CellSlices:
    """Ids in order, and for every prefix that two or more may ask about, which of them begin with it."""

    def __init__(self, ids: Sequence[NodeId], values: Sequence[int]) -> None:
        self.values = values
        self.of: dict[str, tuple[int, int]] = {"": (0, len(ids))}
        waiting = [("", 0, len(ids))] if len(ids) > 1 else []
        while waiting:
            prefix, low, high = waiting.pop()
            for longer, group in groupby(range(low, high), key=lambda i: ids[i][: len(prefix) + 1]):
                places = list(group)
                self.of[longer] = (places[0], places[-1] + 1)
                if len(places) > 1:
                    waiting.append((longer, places[0], places[-1] + 1))


def settle_states(states: Iterable[PrefixState], rng: random.Random) -> None:
    """Give these nodes, the whole network, perfect tables, as if all had joined long ago."""
    order = sorted(states, key=lambda state: state.at)
    peers = [state.me for state in order]
    slices = CellSlices([peer.id for peer in peers], [state.at for state in order])

    def pick(low: int, high: int) -> Collection[int]:
        wanted = order[0].alternates
        if high - low <= wanted:
            return range(low, high)
        chosen: dict[int, None] = {}
        while len(chosen) < wanted:
            chosen[low + int(rng.random() * (high - low))] = None
        return chosen

    for index, state in enumerate(order):
        state._fill_from(index, peers, slices, pick)


def _check_options(id: NodeId, base: int, alternates: int) -> None:
    if not 2 <= base <= len(DIGITS):
        raise InputError(f"base: expected 2 to {len(DIGITS)}, got {base}")
    if not 0 < len(id) <= ID_LENGTH_MAX or not set(id) <= set(DIGITS[:base]):
        raise InputError(f"expected a node id of 1 to {ID_LENGTH_MAX} digits in base {base}, got {id[:80]!r}")
    if alternates < 1:
        raise InputError(f"alternates: expected 1 or more, got {alternates}")
