"""The simulated network: delays between nodes, loss, duplication and reordering.

`Weather` applies to every message alike and can change while a world runs. A delay space
says how far two nodes are apart; it never changes.
"""

from __future__ import annotations

import math
from random import Random
from typing import Protocol

import msgspec

from tidings.errors import InputError


class Weather(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happens to messages. Fractions are chances for each message by itself.

    Without `reorder` the messages from one node to another arrive in the order they were
    sent, however much the delay varies, as they do over TCP.
    """

    loss: float = 0.0
    repeat: float = 0.0
    jitter_s: float = 0.0
    reorder: bool = False

    def check(self) -> None:
        """Raises InputError for what no network can do."""
        for name in ("loss", "repeat"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise InputError(f"expected a {name} between 0 and 1, got {getattr(self, name)}")
        if not 0.0 <= self.jitter_s < math.inf:
            raise InputError(f"expected a jitter of 0 s or more, got {self.jitter_s}")

    @property
    def calm(self) -> bool:
        """Whether every message arrives once, in order and on time."""
        return not (self.loss or self.repeat or self.jitter_s)


CALM = Weather()


class DelaySpace(Protocol):
    """How far apart nodes are. Any node number has its place, also one that joins later."""

    def delay_s(self, a: int, b: int) -> float:
        """How long a message takes from one node to another, in seconds; symmetric."""


class Flat:
    """All nodes equally far apart."""

    def __init__(self, delay_s: float = 0.01) -> None:
        self.same_s = delay_s

    def delay_s(self, a: int, b: int) -> float:
        return self.same_s


class Plane:
    """Nodes at random points of a unit square; the delay grows with the distance.

    With `clusters` the points gather around that many centres, as sites gather in cities.
    """

    def __init__(self, seed: int, *, floor_s: float = 0.002, across_s: float = 0.1, clusters: int = 0) -> None:
        self.seed, self.floor_s, self.across_s = seed, floor_s, across_s
        rng = Random(f"plane/{seed}/centres")
        self._centres = [(rng.random(), rng.random()) for _ in range(clusters)]
        self._points: dict[int, tuple[float, float]] = {}

    def point(self, node: int) -> tuple[float, float]:
        """Where a node is; depends on the seed and its number only."""
        if node not in self._points:
            self._points[node] = self._draw(Random(f"plane/{self.seed}/{node}"))
        return self._points[node]

    def delay_s(self, a: int, b: int) -> float:
        return self.floor_s + self.across_s * math.dist(self.point(a), self.point(b))

    def _draw(self, rng: Random) -> tuple[float, float]:
        if not self._centres:
            return rng.random(), rng.random()
        x, y = rng.choice(self._centres)
        return x + rng.gauss(0, 0.03), y + rng.gauss(0, 0.03)


class Roaming(Plane):
    """Nodes that move in a unit square: each to a random point in a straight line, and on to the next.

    Delays are those of where nodes are now. `pass_time` moves them.
    """

    def __init__(self, seed: int, *, speed: float, floor_s: float = 0.002, across_s: float = 0.1) -> None:
        super().__init__(seed, floor_s=floor_s, across_s=across_s)
        self.speed = speed
        """Widths of the square in a second."""
        self._goals: dict[int, tuple[float, float]] = {}
        self._luck: dict[int, Random] = {}

    def pass_time(self, seconds: float) -> None:
        """Move all nodes that have been asked for."""
        for node in list(self._points):
            self._move(node, self.speed * seconds)

    def _move(self, node: int, far: float) -> None:
        rng = self._luck.setdefault(node, Random(f"roaming/{self.seed}/{node}"))
        while far > 0.0:
            here, goal = self._points[node], self._goals.get(node) or (rng.random(), rng.random())
            left = math.dist(here, goal)
            if left > far:
                share = far / left
                self._points[node] = here[0] + share * (goal[0] - here[0]), here[1] + share * (goal[1] - here[1])
                self._goals[node] = goal
                return
            self._points[node] = goal
            self._goals.pop(node, None)
            far -= left


class TransitStub:
    """A few far-apart backbone sites, each with stub networks whose nodes are close together.

    Node n is in stub `n mod stubs`, and stub s hangs off backbone site `s mod transits`.
    """

    def __init__(self, *, transits: int = 4, stubs: int = 16) -> None:
        self.transits, self.stubs = transits, stubs

    def delay_s(self, a: int, b: int) -> float:
        stub_a, stub_b = a % self.stubs, b % self.stubs
        if stub_a == stub_b:
            return 0.002
        site_a, site_b = stub_a % self.transits, stub_b % self.transits
        return 0.012 if site_a == site_b else 0.022 + 0.02 * abs(site_a - site_b)
