"""CRAWL: a random walk with a trace, which ends at the first node that knows where the message has to go.

A walk carries a *trace*, the nodes it visited last, and continues to a neighbour that is not among them, so it does
not run in short circles. Where every neighbour is in the trace the walk is *blocked*. It then restarts at a random node
of the trace with half as many hops. Halving bounds the total: a walk of H hops takes fewer than 2 H.

    A ─ B ─ C ─ D ─ E ─ F       at F, with the trace A…E, the walk is blocked: it restarts at C, say, with 10 // 2 hops

A *guided* walk goes to the neighbour that a rank prefers instead of a random one. All else is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple, TypeAlias

import msgspec

from tidings.overlay.messages import Peer

HOPS_MAX = 10  # As in the paper.
Guide: TypeAlias = Callable[[Peer], float]  # The lowest goes first.


class WalkPath(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a walk: the hop limit, the hops since the last restart, the number of restarts, the trace."""

    hops_max: int = HOPS_MAX
    hop: int = 0
    round: int = 0
    trace: tuple[Peer, ...] = ()

    @property
    def is_jump(self) -> bool:
        """Whether the walk has just restarted at a node that it visited before, whose table need not be read again."""
        return self.round > 0 and self.hop == 0

    @property
    def is_over(self) -> bool:
        """Whether the walk has used up its hops."""
        return self.hop >= self.hops_max

    def halved(self) -> WalkPath:
        """The path of the walk after a restart with half the hops."""
        return WalkPath(self.hops_max // 2, 0, self.round + 1, self.trace)


class WalkStep(NamedTuple):
    """The next node of a walk, and its path there."""

    to: Peer
    path: WalkPath


def next_step(
    path: WalkPath, me: Peer, view: Sequence[Peer], rng: Random, trace_max: int = HOPS_MAX, guide: Guide | None = None
) -> WalkStep | None:
    """The next step of a walk that is at `me`; None if the walk ends here."""
    trace = (*path.trace, me)[-trace_max:] if trace_max else ()
    visited = {peer.id for peer in trace}
    fresh = [peer for peer in view if peer.id not in visited]
    if fresh:
        to = rng.choice(fresh) if guide is None else min(fresh, key=guide)
        return WalkStep(to, WalkPath(path.hops_max, path.hop + 1, path.round, trace))
    return restarted(WalkPath(path.hops_max, path.hop, path.round, trace), me, rng)


def restarted(path: WalkPath, me: Peer, rng: Random) -> WalkStep | None:
    """Restart a blocked walk at a node of its trace; None if no hops are left or the trace has no other node."""
    elsewhere = [peer for peer in path.trace if peer.id != me.id]
    half = path.halved()
    return WalkStep(rng.choice(elsewhere), half) if half.hops_max > 0 and elsewhere else None
