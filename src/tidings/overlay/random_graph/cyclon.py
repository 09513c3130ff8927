"""Peer sampling by Cyclon: a small, random, constantly refreshed view of a large network.

Each node keeps a few peers, each with an age. Once a period it picks the oldest one, and the two exchange some of
their entries. A peer that answers comes back with age zero, one that does not is dropped, and the overlay stays a
random graph while nodes join and leave.

Plain Cyclon never repairs a network split, because each half forgets the other. So a view also remembers some of the
peers it has dropped, and the graph tries one of them again from time to time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from random import Random

import msgspec

from tidings.errors import InputError
from tidings.overlay.messages import NodeId, Peer

VIEW_SIZE = 10  # As in the paper.
AGE_MAX = 65_535
LOST_MAX = 32  # Peers that stopped answering and are tried again later.


class ViewEntry(msgspec.Struct, frozen=True, array_like=True):
    """A peer, and the number of exchanges since it last spoke for itself."""

    peer: Peer
    age: int = 0


class PeerSampler:
    """The view of one node: at most `size` other nodes, each once."""

    def __init__(self, me: Peer, rng: Random, *, size: int = VIEW_SIZE) -> None:
        if size < 1:
            raise InputError(f"expected a view of at least 1 peer, got {size}")
        self.me, self.size, self._rng = me, size, rng
        self.shuffle_size = min(size, max(3, size // 2))
        self._entries: dict[NodeId, ViewEntry] = {}
        self._lost: OrderedDict[NodeId, Peer] = OrderedDict()
        # Which entries were offered to each partner that has not answered yet.
        self._offered: OrderedDict[NodeId, tuple[NodeId, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: NodeId) -> bool:
        return id in self._entries

    def view(self) -> list[Peer]:
        """All peers in the view."""
        return [entry.peer for entry in self._entries.values()]

    def sample(self, count: int) -> list[Peer]:
        """Up to `count` peers of the view, drawn at random."""
        view = self.view()
        return self._rng.sample(view, min(count, len(view)))

    def fill(self, peers: Iterable[Peer]) -> None:
        """Add these peers until the view is full."""
        for peer in peers:
            self._add(ViewEntry(peer))

    # ── The exchange ─────────────────────────────────────────────────────────

    def propose(self) -> tuple[Peer, tuple[ViewEntry, ...]] | None:
        """The partner of the next exchange and the entries for it. The partner leaves the view until it answers."""
        self._entries = {id: ViewEntry(entry.peer, min(entry.age + 1, AGE_MAX)) for id, entry in self._entries.items()}
        partner = self._oldest()
        if partner is None:
            return None
        del self._entries[partner.id]
        offered = self._draw(self.shuffle_size - 1)
        self._offered[partner.id] = tuple(entry.peer.id for entry in offered)
        self._lose(partner)
        return partner, (*offered, ViewEntry(self.me))

    def answer(self, received: Sequence[ViewEntry]) -> tuple[ViewEntry, ...]:
        """Merge the entries of a node that proposed an exchange; returns the entries to answer with."""
        offered = self._draw(self.shuffle_size)
        self._merge(received, [entry.peer.id for entry in offered])
        return tuple(offered)

    def answered(self, by: NodeId, received: Sequence[ViewEntry]) -> None:
        """Merge the answer of a partner, which is alive and may return to the view."""
        partner = self._lost.pop(by, None)
        self._merge(received, list(self._offered.pop(by, ())))
        if partner is not None and len(self._entries) < self.size:
            self._add(ViewEntry(partner))

    def swap(self, newcomer: Peer) -> ViewEntry | None:
        """Add a newcomer. If the view is full, the newcomer replaces a random entry, which is returned."""
        if newcomer.id in self._entries or newcomer.id == self.me.id:
            return None
        replaced = None
        if len(self._entries) >= self.size:
            replaced = self._entries.pop(self._rng.choice(list(self._entries)))
        self._add(ViewEntry(newcomer))
        return replaced

    def drop(self, id: NodeId) -> None:
        """Remove a peer that does not answer; it may be tried again later."""
        entry = self._entries.pop(id, None)
        if entry is not None:
            self._lose(entry.peer)

    def random_lost(self) -> Peer | None:
        """A random peer that was dropped. If it answers, a network split may have healed."""
        return self._rng.choice(list(self._lost.values())) if self._lost else None

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"view": (len(self._entries), self.size), "lost peers": (len(self._lost), LOST_MAX)}

    # ── Private steps ────────────────────────────────────────────────────────

    def _oldest(self) -> Peer | None:
        if not self._entries:
            return None
        return max(self._entries.values(), key=lambda entry: entry.age).peer

    def _draw(self, count: int) -> list[ViewEntry]:
        entries = list(self._entries.values())
        return self._rng.sample(entries, min(count, len(entries)))

    def _merge(self, received: Sequence[ViewEntry], replaceable: list[NodeId]) -> None:
        """Fill free slots first, then replace the entries that were sent away, never others."""
        for entry in received[: self.shuffle_size + 1]:
            if entry.peer.id == self.me.id or entry.peer.id in self._entries:
                self._refresh(entry)
                continue
            while len(self._entries) >= self.size and replaceable:
                self._entries.pop(replaceable.pop(), None)
            self._add(entry)

    def _refresh(self, entry: ViewEntry) -> None:
        mine = self._entries.get(entry.peer.id)
        if mine is not None and (entry.peer.incarnation, -entry.age) > (mine.peer.incarnation, -mine.age):
            self._entries[entry.peer.id] = entry

    def _add(self, entry: ViewEntry) -> None:
        if entry.peer.id != self.me.id and entry.peer.id not in self._entries and len(self._entries) < self.size:
            self._entries[entry.peer.id] = entry
            self._lost.pop(entry.peer.id, None)

    def _lose(self, peer: Peer) -> None:
        self._lost[peer.id] = peer
        if len(self._lost) > LOST_MAX:
            self._lost.popitem(last=False)
        if len(self._offered) > LOST_MAX:
            self._offered.popitem(last=False)
