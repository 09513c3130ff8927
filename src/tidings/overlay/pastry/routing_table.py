"""Routing state of Pastry: leaf set and routing table, and the next hop to a key.

Beside the table of cells (`tidings.overlay.prefix.routing_state`) a node keeps all of its
nearest on the circle (the *leaves*), and that is enough to reach any key in about log_k N
hops, and to know for certain that a cell between leaves is empty.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from tidings.errors import InputError
from tidings.overlay.messages import NodeId, Peer
from tidings.overlay.prefix.routing_state import ALTERNATES, EMPTY_S, CellSlices, Pick, PrefixState, shared

LEAF_COUNT = 24  # Twelve on each side, as FreePastry: a gap takes twelve neighbours crashing at once.
NEAREST_TOLD = 2  # Nodes in a lookup reply on each side of the key, beside the leaves and the key's own cell.


class PastryState(PrefixState):
    """One node's leaf set and routing table (the "node state" of the Pastry paper)."""

    def __init__(self, me: Peer, *, base: int = 16, leaf_count: int = LEAF_COUNT, alternates: int = ALTERNATES) -> None:
        super().__init__(me, base=base, alternates=alternates)
        if leaf_count < 2 or leaf_count % 2:
            raise InputError(f"leaf_count: expected an even number from 2, got {leaf_count}")
        self.half = leaf_count // 2
        self._cw: list[tuple[int, Peer]] = []  # By distance clockwise, nearest first.
        self._ccw: list[tuple[int, Peer]] = []
        self._leaf_ids: frozenset[NodeId] = frozenset()  # Of both sides: asked for with every message.

    # ── Cells ────────────────────────────────────────────────────────────────

    def depth(self) -> int:
        """How many rows have nodes in them: no node shares more digits than the two neighbours do."""
        nearest = self.nearest()
        return shared(self.me.id, nearest.id) + 1 if nearest else 0

    def in_range(self, prefix: str) -> list[Peer]:
        """Known nodes of this range that are not suspected, best first."""
        doubted = self.doubted
        found = {peer.id: peer for peer in self.table.get(prefix, ()) if peer.id not in doubted}
        for side in (self._cw, self._ccw):
            for _, peer in side:
                if peer.id.startswith(prefix) and peer.id not in doubted:
                    found.setdefault(peer.id, peer)
        return list(found.values())

    def is_empty(self, cell: str, now: float) -> bool:
        """Whether this cell is certainly empty."""
        if cell in self.table:
            return False
        if self._empty.get(cell, now) > now:
            return True
        if not self._leaves_tell(cell) or any(peer.id.startswith(cell) for _, peer in (*self._cw, *self._ccw)):
            return False
        self._empty[cell] = now + EMPTY_S
        return True

    # ── Neighbours ───────────────────────────────────────────────────────────

    def nearest(self) -> Peer | None:
        """A node that shares most digits with this one."""
        sides = [side[0][1] for side in (self._cw, self._ccw) if side]
        return max(sides, key=lambda peer: shared(self.me.id, peer.id), default=None)

    def leaves(self) -> list[Peer]:
        """The nearest on both sides, clockwise first, each once."""
        return list({peer.id: peer for _, peer in (*self._cw, *self._ccw)}.values())

    def known(self) -> list[Peer]:
        """Leaves and table, each once."""
        rest = (peer for peers in self.table.values() for peer in peers)
        return list({peer.id: peer for peer in (*self.leaves(), *rest)}.values())

    def knows(self, id: NodeId) -> Peer | None:
        """The peer of this id, if it has a place here."""
        for peer in self.table.get(self.cell(id), ()):
            if peer.id == id:
                return peer
        return next((peer for _, peer in (*self._cw, *self._ccw) if peer.id == id), None)

    def is_leaf(self, id: NodeId) -> bool:
        return id in self._leaf_ids

    def is_next_after(self, id: NodeId) -> bool:
        """Whether this node is the first clockwise of `id` among those it knows."""
        behind = (self.at - int(id, self.base)) % self.size
        return not self._ccw or behind < self._ccw[0][0]

    def ends(self) -> list[Peer]:
        """The farthest leaf of each side that has lost one."""
        return [side[-1][1] for side in (self._cw, self._ccw) if side and len(side) < self.half]

    # ── Next hops ────────────────────────────────────────────────────────────

    def next_hop(self, key: str) -> NodeId | None:
        """The next hop to the node nearest to `key`; None if that is this node."""
        target = int(key, self.base)
        if self._spans(target):
            usable = (peer.id for peer in self.leaves() if peer.id not in self.doubted)
            nearest = min((self.me.id, *usable), key=lambda node: self.away(node, target))
            return nearest if nearest != self.me.id else None
        row = shared(self.me.id, key)
        for peer in self.table.get(key[: row + 1], ()):
            if peer.id not in self.doubted:
                return peer.id
        return self._detour(target, key, row)

    def nearer(self, key: str, *, rows: bool) -> tuple[Peer, ...]:
        """The answer to a lookup of `key`: the leaves, the key's cell, and the nearest nodes on both sides.

        With `rows`, also all of the table that a node at `key` could use.
        """
        target, row = int(key, self.base), shared(self.me.id, key)
        told = {peer.id: peer for peer in self.leaves()}
        for cell, peers in self.table.items():
            if len(cell) <= row + 1 and (rows or key.startswith(cell)):
                told.update((peer.id, peer) for peer in peers)
        by_place = sorted(self.known(), key=lambda peer: (int(peer.id, self.base) - target) % self.size)
        told.update((peer.id, peer) for peer in (*by_place[:NEAREST_TOLD], *by_place[-NEAREST_TOLD:]))
        return tuple(peer for peer in told.values() if peer.id not in self.doubted)

    def away(self, id: NodeId, target: int) -> tuple[int, NodeId]:
        """How far `id` is from a place, the shorter way round; of two equally far the smaller id is nearer."""
        cw = (int(id, self.base) - target) % self.size
        return min(cw, self.size - cw), id

    # ── Change ───────────────────────────────────────────────────────────────

    def insert(self, peer: Peer) -> bool:
        """Give the peer a place; whether it, or this incarnation of it, did not have one."""
        known = self.knows(peer.id)
        if known is not None and known.incarnation >= peer.incarnation:
            return known.incarnation == peer.incarnation and not self.is_leaf(peer.id) and self._insert_leaf(peer)
        if known is not None:
            self.drop(peer.id)
        cell = self.cell(peer.id)
        self._empty.pop(cell, None)
        entries = self.table.setdefault(cell, [])
        is_entry = len(entries) < self.alternates
        if is_entry:
            entries.append(peer)
        return self._insert_leaf(peer) or is_entry

    def would_fit(self, peer: Peer) -> bool:
        """Whether a node would become a leaf or the first of its cell."""
        if self.is_leaf(peer.id):
            return False
        cw = (int(peer.id, self.base) - self.at) % self.size
        if len(self._cw) < self.half or cw < self._cw[-1][0]:
            return True
        if len(self._ccw) < self.half or self.size - cw < self._ccw[-1][0]:
            return True
        return not self.table.get(self.cell(peer.id))

    def drop(self, id: NodeId) -> None:
        """Forget a node."""
        self._cw = [leaf for leaf in self._cw if leaf[1].id != id]
        self._ccw = [leaf for leaf in self._ccw if leaf[1].id != id]
        self._leaf_ids -= {id}
        super().drop(id)

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"leaves": (len(self._cw) + len(self._ccw), 2 * self.half), **super().holdings()}

    # ── Private steps ────────────────────────────────────────────────────────

    def _insert_leaf(self, peer: Peer) -> bool:
        cw = (int(peer.id, self.base) - self.at) % self.size
        placed = False
        for side, distance in ((self._cw, cw), (self._ccw, self.size - cw)):
            if len(side) < self.half or distance < side[-1][0]:
                insort(side, (distance, peer), key=lambda leaf: leaf[0])
                del side[self.half :]
                placed = True
        if placed:
            self._note_leaves()
        return placed

    def _note_leaves(self) -> None:
        self._leaf_ids = frozenset(peer.id for _, peer in (*self._cw, *self._ccw))

    def _all_round(self) -> bool:
        """Whether the leaf sets of both sides meet, so that they are all nodes there are."""
        if not self._cw or not self._ccw:
            return True
        return self._cw[-1][0] + self._ccw[-1][0] >= self.size

    def _spans(self, target: int) -> bool:
        cw = (target - self.at) % self.size
        return self._all_round() or cw <= self._cw[-1][0] or self.size - cw <= self._ccw[-1][0]

    def _leaves_tell(self, cell: str) -> bool:
        """Whether a cell lies wholly between leaves, so that every node in it is one of them."""
        if self._all_round():
            return True
        width: int = self.base ** (self.length - len(cell))
        lowest = int(cell, self.base) * width
        highest = lowest + width - 1
        if lowest > self.at:
            return highest - self.at <= self._cw[-1][0]
        return self.at - lowest <= self._ccw[-1][0]

    def _detour(self, target: int, key: str, row: int) -> NodeId | None:
        """For a hole in the table: any node that shares as many digits and is nearer."""
        mine = self.away(self.me.id, target)
        known = (peer.id for peer in self.known() if peer.id not in self.doubted)
        nearer = [away for id in known if shared(id, key) >= row and (away := self.away(id, target)) < mine]
        return min(nearer)[1] if nearer else None

    def _fill_from(self, index: int, peers: Sequence[Peer], ranges: CellSlices, pick: Pick) -> None:
        count = len(peers)
        reach = range(1, min(self.half, count - 1) + 1)
        values = ranges.values
        self._cw = [((values[(index + i) % count] - self.at) % self.size, peers[(index + i) % count]) for i in reach]
        self._ccw = [((self.at - values[index - i]) % self.size, peers[index - i]) for i in reach]
        self._note_leaves()
        super()._fill_from(index, peers, ranges, pick)
