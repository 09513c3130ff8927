"""Routing state of Tapestry: of each cell the nearest nodes by network, and who stands in for whom."""

from __future__ import annotations

from collections import OrderedDict

from tidings.overlay.messages import NodeId, Peer
from tidings.overlay.prefix.routing_state import PrefixState, shared
from tidings.overlay.prefix.search import NodeSearch

MEASURED_MAX = 4096  # Round trips remembered, also of nodes that have no place.
WITNESSES = 4  # Nearest nodes that must all have answered before a range counts as empty.


class TapestryState(PrefixState):
    """One node's table ("neighbour map" in the paper), each cell in order of measured round trips."""

    rtts: OrderedDict[NodeId, float]

    def _measured(self, id: NodeId, rtt_s: float) -> None:
        """Note a round trip; the nearest of a cell come first."""
        self.rtts[id] = min(rtt_s, self.rtts.pop(id, rtt_s))
        if len(self.rtts) > MEASURED_MAX:
            self.rtts.popitem(last=False)
        entries = self.table.get(self.cell(id))
        if entries is not None:
            entries.sort(key=self._distance)  # Stable: what was not measured stays behind, in its order.

    def _distance(self, peer: Peer) -> float:
        return self.rtts.get(peer.id, float("inf"))

    # ── Cells ────────────────────────────────────────────────────────────────

    def depth(self) -> int:
        return max(map(len, self.table), default=0)

    def in_range(self, prefix: str) -> list[Peer]:
        doubted = self.doubted
        if self.cell(prefix) == prefix:
            return [peer for peer in self.table.get(prefix, ()) if peer.id not in doubted]
        return [peer for peer in self.known() if peer.id.startswith(prefix) and peer.id not in doubted]

    def is_empty(self, cell: str, now: float) -> bool:
        return cell not in self.table and self._empty.get(cell, now) > now

    # ── Neighbours ───────────────────────────────────────────────────────────

    def nearest(self) -> Peer | None:
        deepest = max(self.table, key=len, default=None)
        return self.table[deepest][0] if deepest is not None else None

    def known(self) -> list[Peer]:
        return self.entries()  # A node is in one cell only.

    def is_next_after(self, id: NodeId) -> bool:
        return self.next_hop(id) is None

    # ── Next hops ────────────────────────────────────────────────────────────

    def next_hop(self, key: str) -> NodeId | None:
        """The next hop to the surrogate of a key: at a hole, the next digit stands in for the one that is missing."""
        mine, base = self.me.id, self.base
        for row in range(self.length):
            wanted = self.digits.index(key[row])
            for step in range(base):
                digit = self.digits[(wanted + step) % base]
                if digit == mine[row]:
                    break
                usable = self.in_range(mine[:row] + digit)
                if usable:
                    return usable[0].id
        return None

    def surrogate_distance(self, id: NodeId, key: str) -> int:
        """How late surrogate routing to `key` would try this node: 0 for the key itself, least for its surrogate."""
        distance = 0
        for own, wanted in zip(id, key):
            distance = distance * self.base + (self.digits.index(own) - self.digits.index(wanted)) % self.base
        return distance

    def nearer(self, key: str, *, rows: bool) -> tuple[Peer, ...]:
        row = shared(self.me.id, key)
        told: dict[NodeId, Peer] = {}
        for cell, peers in self.table.items():
            if len(cell) <= row + 1 and (rows or key.startswith(cell)):
                told.update((peer.id, peer) for peer in peers)
        nearest = sorted(self.known(), key=lambda peer: self.surrogate_distance(peer.id, key))[:WITNESSES]
        told.update((peer.id, peer) for peer in nearest)
        return tuple(peer for peer in told.values() if peer.id not in self.doubted)

    # ── Change ───────────────────────────────────────────────────────────────

    def insert(self, peer: Peer) -> bool:
        known = self.knows(peer.id)
        if known is not None and known.incarnation >= peer.incarnation:
            return False
        if known is not None:
            self.drop(peer.id)
        cell = self.cell(peer.id)
        self._empty.pop(cell, None)
        entries = self.table.setdefault(cell, [])
        entries.append(peer)
        entries.sort(key=self._distance)
        has_place = peer in entries[: self.alternates]
        del entries[self.alternates :]
        return has_place

    def would_fit(self, peer: Peer) -> bool:
        entries = self.table.get(self.cell(peer.id), ())
        return len(entries) < self.alternates and all(entry.id != peer.id for entry in entries)


class SurrogateSearch(NodeSearch):
    """The search for the nodes that share most digits with a key, or for any node in the range that begins there.

    It asks the nearest in the order of surrogates. All of a range's parent have an entry for a
    range that is not empty (Property 1), so when the nearest have all answered without naming
    a node in it, nobody is.
    """

    def __init__(self, name: str, key: str, table: TapestryState, *, is_join: bool) -> None:
        super().__init__(name, is_join=is_join)
        self._key, self._table = key, table
        self._distances: dict[NodeId, int] = {}

    def _place(self, id: NodeId) -> None:
        self._distances[id] = self._table.surrogate_distance(id, self._key)

    def _needed(self) -> list[NodeId]:
        return sorted(self._alive(), key=self._distances.__getitem__)[:WITNESSES]
