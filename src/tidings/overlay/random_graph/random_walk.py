"""CRAWL: a random walk that remembers where it has been, until it meets somebody who knows the way.

A walk carries a *trace*, the nodes it came through last, and goes on to a neighbour that
is not among them, so it runs in no short circles. Where every neighbour is in the trace
the walk is *blocked*: it begins again at a node of the trace, drawn at random, with half as
many hops. Halving bounds it all: from H hops a walk takes fewer than 2 H.

    A ─ B ─ C ─ D ─ E ─ F       at F, trace A…E, the walk is blocked: on from C, say, with 10 // 2 hops
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import msgspec

from tidings.overlay.messages import Peer

HOPS_MAX = 10  # The paper's.


class WalkPath(msgspec.Struct, frozen=True, array_like=True):
    """How far a walk has come: its trace, its hops since it last began, how many it may take, and how often it began."""

    hops_max: int = HOPS_MAX
    hop: int = 0
    round: int = 0
    trace: tuple[Peer, ...] = ()

    @property
    def is_jump(self) -> bool:
        """Whether it has just come back to a node it was at before, where nothing new can be known."""
        return self.round > 0 and self.hop == 0

    @property
    def is_over(self) -> bool:
        return self.hop >= self.hops_max

    def halved(self) -> WalkPath:
        """A new beginning with half the hops."""
        return WalkPath(self.hops_max // 2, 0, self.round + 1, self.trace)


class WalkStep(NamedTuple):
    """Where a walk goes next."""

    to: Peer
    path: WalkPath


def next_step(
    path: WalkPath, me: Peer, view: Sequence[Peer], rng: Random, trace_max: int = HOPS_MAX
) -> WalkStep | None:
    """The next step of a walk that is at `me`; None where it ends here."""
    trace = (*path.trace, me)[-trace_max:] if trace_max else ()
    been = {peer.id for peer in trace}
    fresh = [peer for peer in view if peer.id not in been]
    if fresh:
        return WalkStep(rng.choice(fresh), WalkPath(path.hops_max, path.hop + 1, path.round, trace))
    return restarted(WalkPath(path.hops_max, path.hop, path.round, trace), me, rng)


def restarted(path: WalkPath, me: Peer, rng: Random) -> WalkStep | None:
    """A blocked walk begins again at a node of its trace; None if it has no hops left or has been nowhere else."""
    elsewhere = [peer for peer in path.trace if peer.id != me.id]
    half = path.halved()
    return WalkStep(rng.choice(elsewhere), half) if half.hops_max > 0 and elsewhere else None
