"""Peer sampling: a small view of a large network that never stops changing (Cyclon).

Every node knows a few others, each with an age. From time to time it takes the oldest of
them and the two exchange part of what they know. Who answers is known afresh, who does
not is known no more, and the whole stays a random graph however nodes come and go.

A network that was split would stay so, as each half forgets the other. So a view keeps
some of those it has lost, and now and then asks one of them again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from random import Random

import msgspec

from tidings.errors import InputError
from tidings.overlay.messages import NodeId, Peer

VIEW_SIZE = 10  # The paper's.
AGE_MAX = 65_535
LOST_MAX = 32  # Peers that fell silent and are asked again some day.


class ViewEntry(msgspec.Struct, frozen=True, array_like=True):
    """A peer, and how many exchanges ago it was heard of first-hand."""

    peer: Peer
    age: int = 0


class PeerSampler:
    """The view of one node: at most `size` others, never itself, nobody twice."""

    def __init__(self, me: Peer, rng: Random, *, size: int = VIEW_SIZE) -> None:
        if size < 1:
            raise InputError(f"expected a view of at least 1 peer, got {size}")
        self.me, self.size, self._rng = me, size, rng
        self.shuffle_size = min(size, max(3, size // 2))
        self._known: dict[NodeId, ViewEntry] = {}
        self._lost: OrderedDict[NodeId, Peer] = OrderedDict()
        self._offered: OrderedDict[NodeId, tuple[NodeId, ...]] = (
            OrderedDict()
        )  # To whom an exchange was proposed, and with whom.

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, id: NodeId) -> bool:
        return id in self._known

    def view(self) -> list[Peer]:
        """Everybody in view."""
        return [known.peer for known in self._known.values()]

    def sample(self, count: int) -> list[Peer]:
        """Some of the view, drawn at random."""
        view = self.view()
        return self._rng.sample(view, min(count, len(view)))

    def fill(self, peers: Iterable[Peer]) -> None:
        """Take these into view as long as there is room."""
        for peer in peers:
            self._take(ViewEntry(peer))

    # ── Exchanging ───────────────────────────────────────────────────────────

    def propose(self) -> tuple[Peer, tuple[ViewEntry, ...]] | None:
        """Whom to exchange with next, and what to send: the oldest, who is out of view until it answers."""
        self._known = {id: ViewEntry(known.peer, min(known.age + 1, AGE_MAX)) for id, known in self._known.items()}
        partner = self._oldest()
        if partner is None:
            return None
        del self._known[partner.id]
        offered = self._draw(self.shuffle_size - 1)
        self._offered[partner.id] = tuple(known.peer.id for known in offered)
        self._lose(partner)
        return partner, (*offered, ViewEntry(self.me))

    def answer(self, received: Sequence[ViewEntry]) -> tuple[ViewEntry, ...]:
        """What to send back to somebody who proposed an exchange; what it sent is merged."""
        offered = self._draw(self.shuffle_size)
        self._merge(received, [known.peer.id for known in offered])
        return tuple(offered)

    def answered(self, by: NodeId, received: Sequence[ViewEntry]) -> None:
        """A partner has answered."""
        partner = self._lost.pop(by, None)
        self._merge(received, list(self._offered.pop(by, ())))
        if partner is not None and len(self._known) < self.size:
            self._take(ViewEntry(partner))

    def swap(self, newcomer: Peer) -> ViewEntry | None:
        """Take a newcomer into view, in exchange for somebody it gets in return if the view was full."""
        if newcomer.id in self._known or newcomer.id == self.me.id:
            return None
        given = None
        if len(self._known) >= self.size:
            given = self._known.pop(self._rng.choice(list(self._known)))
        self._take(ViewEntry(newcomer))
        return given

    def drop(self, id: NodeId) -> None:
        """A peer is not there; it may be again some day."""
        known = self._known.pop(id, None)
        if known is not None:
            self._lose(known.peer)

    def once_lost(self) -> Peer | None:
        """Somebody who fell silent, at random: if it is back the network may have been split and be whole again."""
        return self._rng.choice(list(self._lost.values())) if self._lost else None

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {"view": (len(self._known), self.size), "lost peers": (len(self._lost), LOST_MAX)}

    # ── Private steps ────────────────────────────────────────────────────────

    def _oldest(self) -> Peer | None:
        if not self._known:
            return None
        return max(self._known.values(), key=lambda known: known.age).peer

    def _draw(self, count: int) -> list[ViewEntry]:
        known = list(self._known.values())
        return self._rng.sample(known, min(count, len(known)))

    def _merge(self, received: Sequence[ViewEntry], replaceable: list[NodeId]) -> None:
        """First into empty slots, then in place of what was sent away, never of others."""
        for known in received[: self.shuffle_size + 1]:
            if known.peer.id == self.me.id or known.peer.id in self._known:
                self._freshen(known)
                continue
            while len(self._known) >= self.size and replaceable:
                self._known.pop(replaceable.pop(), None)
            self._take(known)

    def _freshen(self, known: ViewEntry) -> None:
        mine = self._known.get(known.peer.id)
        if mine is not None and (known.peer.incarnation, -known.age) > (mine.peer.incarnation, -mine.age):
            self._known[known.peer.id] = known

    def _take(self, known: ViewEntry) -> None:
        if known.peer.id != self.me.id and known.peer.id not in self._known and len(self._known) < self.size:
            self._known[known.peer.id] = known
            self._lost.pop(known.peer.id, None)

    def _lose(self, peer: Peer) -> None:
        self._lost[peer.id] = peer
        if len(self._lost) > LOST_MAX:
            self._lost.popitem(last=False)
        if len(self._offered) > LOST_MAX:
            self._offered.popitem(last=False)
