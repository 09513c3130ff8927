"""How far each neighbour is, as this node has measured it: the weight of its links, where roles are to follow delays.

A probe carries a number that only this node knows, so a neighbour can seem farther than it is, never nearer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from random import Random

from tidings.overlay.immune.messages import DelayProbe
from tidings.overlay.messages import NodeId
from tidings.overlay.router import Effect, Send

NEW_PROBES_MAX = 4  # In one heartbeat.
NEW_SHARE = 0.25  # Of an estimate that one more measurement makes up.
NEARER_BY_S, NEARER_SHARE = 0.005, 0.8  # What two delays must differ by before anything is changed for it.
COMPARED_MAX = 32  # Core neighbours between which ways are compared; who has more is too well placed to leave the core.

Ways = Mapping[NodeId, Mapping[NodeId, float]]  # For each node and each of its links how long the link takes.


class LinkDelays:
    """Delays of one node's links, half of smoothed round trips."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._delays: dict[NodeId, float] = {}
        self._asked: dict[NodeId, tuple[int, float]] = {}  # The probe on its way to a neighbour, and since when.

    def probe(self, neighbours: Iterable[NodeId], now: float) -> list[Effect]:
        """Measure some neighbours that have not been measured, or one whose turn it is."""
        waiting = sorted(neighbours, key=lambda peer: self._asked.get(peer, (0, -math.inf))[1])
        unknown = [peer for peer in waiting if peer not in self._delays]
        effects: list[Effect] = []
        for peer in unknown[:NEW_PROBES_MAX] or waiting[:1]:
            self._asked[peer] = (self._rng.getrandbits(63), now)
            effects.append(Send(peer, DelayProbe(self._asked[peer][0])))
        return effects

    def answered(self, sender: NodeId, number: int, now: float) -> None:
        """A neighbour has answered; only the last probe counts, and once."""
        asked, since = self._asked.get(sender, (None, 0.0))
        if asked != number:
            return
        self._asked[sender] = (-1, since)
        delay_s = max(0.0, now - since) / 2
        before = self._delays.get(sender, delay_s)
        self._delays[sender] = before + NEW_SHARE * (delay_s - before)

    def forget(self, peer: NodeId) -> None:
        """This neighbour is gone; it may come back elsewhere."""
        self._delays.pop(peer, None)
        self._asked.pop(peer, None)

    def of(self, peer: NodeId) -> float | None:
        """One way, in seconds; None if it has not been measured."""
        return self._delays.get(peer)

    def known(self, peers: Sequence[NodeId]) -> dict[NodeId, float]:
        """Of these neighbours those that have been measured."""
        return {peer: self._delays[peer] for peer in peers if peer in self._delays}

    def is_nearer(self, peer: NodeId, than: NodeId) -> bool:
        """Whether one neighbour is so much nearer than another that a change is worth it."""
        here, there = self._delays.get(peer, math.inf), self._delays.get(than, math.inf)
        return here < NEARER_SHARE * there and here < there - NEARER_BY_S

    def count(self) -> int:
        """How many neighbours it keeps something of."""
        return len(self._asked)


def ways_stay_short(through: Mapping[NodeId, float], ways: Ways, stretch: float) -> bool:
    """Whether between any two neighbours the others' ways take at most `stretch` times as long as the way through here.

    `through` has the delay from here to each of them.

    >>> ways_stay_short({"a": 1.0, "b": 1.0}, {"a": {"c": 1.5}, "c": {"a": 1.5, "b": 1.0}}, stretch=1.5)
    True
    >>> ways_stay_short({"a": 1.0, "b": 1.0}, {"a": {"c": 1.5}, "c": {"a": 1.5, "b": 2.0}}, stretch=1.5)
    False
    """
    near = list(through)
    if len(near) > COMPARED_MAX:
        return False
    for index, start in enumerate(near):
        allowed = {end: stretch * (through[start] + through[end]) for end in near[index + 1 :]}
        if not _all_within(start, allowed, ways, max(allowed.values(), default=0.0)):
            return False
    return True


def _all_within(start: NodeId, allowed: dict[NodeId, float], ways: Ways, limit: float) -> bool:
    """Whether each end is reached within what is allowed, by Dijkstra's method as far as the limit."""
    sought, shortest, waiting = dict(allowed), {start: 0.0}, [(0.0, start)]
    while sought and waiting:
        far, node = heappop(waiting)
        if far > shortest[node]:
            continue
        if node in sought and far > sought.pop(node):
            return False
        for other, more in ways.get(node, {}).items():
            if (total := far + more) <= limit and total < shortest.get(other, math.inf):
                shortest[other] = total
                heappush(waiting, (total, other))
    return not sought
