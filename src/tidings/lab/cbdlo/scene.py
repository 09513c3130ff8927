"""A model of CBDLO at rest, cheap enough for a hundred thousand nodes: graph, tables, trees and walks without a clock.

Nothing changes and nothing is lost, so an event is followed step by step. The walk follows the rules of
`tidings.overlay.random_graph.random_walk`: a trace, no node of it twice, half the hops after a block. The tree is a
perfectly balanced one over the cuts of all interests, owned by those whose cuts they are. The experiments
`cbdlo-agreement` and `cbdlo-agreement-trees` check that a scene agrees with the protocol in a simulated network.

The workload is the paper's: attribute i occurs in a subscription, or an event, with probability μ · i^-α.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

ALPHA = 0.5
EVENT_ATTRIBUTES, SUBSCRIPTION_ATTRIBUTES = 8.0, 2.0  # On average; of subscriptions before empty ones are drawn again.
INDEXED = 2  # Attributes that an interest is indexed under in mode `full`.

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SceneSize:
    """The size of a scene."""

    nodes: int = 3000
    view: int = 10
    table: int = 100
    hops: int = 10
    attributes: int = 100
    subscriptions: int = 3000
    width: float = 0.03
    naive: bool = False  # Whether tables follow the popularity of attributes.
    all_known: bool = False  # Whether attributes without subscribers have access points, too.


class Walked(NamedTuple):
    """The result of the random walk for one attribute of an event."""

    found: bool
    messages: int
    visited: int  # Tables that were read.


class Cost(NamedTuple):
    """The messages of one event, and the matches it should reach and did."""

    walk: int
    tree: int
    match: int
    wanted: int
    reached: int
    looked: int = 0  # Comparisons: a whole table at each node of a walk, one at each step in a tree.

    @property
    def messages(self) -> int:
        return self.walk + self.tree + self.match


def chances(attributes: int, mean: float) -> Floats:
    """How likely each attribute is to occur, so that `mean` do on average."""
    law = np.arange(1, attributes + 1) ** -ALPHA
    return np.asarray(np.minimum(1.0, law * mean / law.sum()), float)


class Scene:
    """One network at rest, with its subscriptions."""

    def __init__(self, size: SceneSize, seed: int) -> None:
        self.size, self.choice_rng = size, Random(f"scene/{seed}")
        self.rng = np.random.default_rng([seed, size.nodes, size.subscriptions])
        self._views: dict[int, list[int]] = {}
        self._tables: dict[int, frozenset[int]] = {}
        self._cuts: dict[tuple[int, bool], Floats] = {}
        self._owned: dict[tuple[int, bool], OwnedTree] = {}
        self._draw_subscriptions()

    # ── The network ──────────────────────────────────────────────────────────

    def _draw_subscriptions(self) -> None:
        size = self.size
        wanted = chances(size.attributes, SUBSCRIPTION_ATTRIBUTES)
        has = self.rng.random((size.subscriptions, size.attributes)) < wanted
        while (empty := ~has.any(axis=1)).any():
            has[empty] = self.rng.random((int(empty.sum()), size.attributes)) < wanted
        self.needed: Ints = has.sum(axis=1)
        self.owner: Ints = self.rng.permutation(size.subscriptions) % size.nodes
        self.of: list[Ints] = [np.flatnonzero(has[:, a]) for a in range(size.attributes)]
        self.low: list[Floats] = [self.rng.random(len(subs)) * (1 - size.width) for subs in self.of]
        rank = np.cumsum(has, axis=1)
        self.filed: list[NDArray[np.bool_]] = [rank[subs, a] <= INDEXED for a, subs in enumerate(self.of)]
        self.members: list[set[int]] = [set(self.owner[subs].tolist()) for subs in self.of]

    @cached_property
    def _event_chances(self) -> Floats:
        return chances(self.size.attributes, EVENT_ATTRIBUTES)

    @cached_property
    def popular(self) -> Floats:
        """The share of each attribute among all subscriptions."""
        counts = np.array([len(subs) for subs in self.of], float)
        return np.asarray(counts / counts.sum())

    def cuts(self, attribute: int, indexed_only: bool) -> Floats:
        """The boundaries of all interests in an attribute, in order."""
        found = self._cuts.get((attribute, indexed_only))
        if found is None:
            low = self.lows(attribute, indexed_only)
            found = self._cuts[attribute, indexed_only] = np.unique(np.concatenate([low, low + self.size.width]))
        return found

    def lows(self, attribute: int, indexed_only: bool) -> Floats:
        """Where the interests in an attribute begin; all of them, or those that are filed under it."""
        return self.low[attribute][self.filed[attribute]] if indexed_only else self.low[attribute]

    def view(self, node: int) -> list[int]:
        """A node's neighbours, drawn when they are first asked for."""
        found = self._views.get(node)
        if found is None:
            count = min(self.size.view, self.size.nodes - 1)
            drawn = self.choice_rng.sample(range(self.size.nodes - 1), count)
            found = self._views[node] = [other + (other >= node) for other in drawn]
        return found

    def table(self, node: int) -> frozenset[int]:
        """The attributes that a node knows an access point for."""
        found = self._tables.get(node)
        if found is None:
            found = self._tables[node] = frozenset(self._draw_table())
        return found

    def _draw_table(self) -> Iterator[int]:
        if self.size.naive:
            yield from self.choice_rng.choices(range(self.size.attributes), self.popular.tolist(), k=self.size.table)
        else:
            yield from self.choice_rng.sample(self._alive, min(self.size.table, len(self._alive)))

    @cached_property
    def _alive(self) -> list[int]:
        return [a for a, subs in enumerate(self.of) if len(subs) or self.size.all_known]

    # ── Events ───────────────────────────────────────────────────────────────

    def event(self) -> dict[int, float]:
        """The values of one event."""
        while True:
            has = np.flatnonzero(self.rng.random(self.size.attributes) < self._event_chances)
            if len(has):
                return dict(zip(has.tolist(), self.rng.random(len(has)).tolist(), strict=True))

    def expected_matches(self, width: float) -> float:
        """How many subscriptions an event would meet on average, were conditions so wide."""
        log_chances = np.zeros(self.size.subscriptions)
        for a, subs in enumerate(self.of):
            log_chances[subs] += np.log(self._event_chances[a] * width)
        return float(np.exp(log_chances).sum())

    def matching(self, event: dict[int, float], only: Sequence[int] | None = None) -> Ints:
        """The subscriptions that an event meets, or would if only these attributes had arrived."""
        met = np.zeros(self.size.subscriptions, np.int64)
        for a, value in event.items():
            if only is None or a in only:
                met[self.of[a][self._inside(a, value)]] += 1
        return np.flatnonzero(met == self.needed)

    def _inside(self, attribute: int, value: float) -> NDArray[np.bool_]:
        low = self.low[attribute]
        return (low <= value) & (value <= low + self.size.width)

    def walk(self, source: int, attribute: int, *, own_table: bool = False, hops: int | None = None) -> Walked:
        """CRAWL: one walk from a source to a member of the attribute's topology, or to a node with an access point."""
        hops_max, messages, visited = hops or self.size.hops, 0, 0
        if own_table and (source in self.members[attribute] or attribute in self.table(source)):
            return Walked(True, 0 if source in self.members[attribute] else 1, 1)
        here, hop, trace = source, 0, [source]
        while True:
            fresh = [peer for peer in self.view(here) if peer not in trace]
            if not fresh:
                hops_max, hop = hops_max // 2, 0
                if not hops_max:
                    return Walked(False, messages, visited)
                here, messages = self.choice_rng.choice(trace[:-1] or trace), messages + 1
                continue
            here, hop, messages, visited = self.choice_rng.choice(fresh), hop + 1, messages + 1, visited + 1
            if here in self.members[attribute]:
                return Walked(True, messages, visited)
            if attribute in self.table(here):
                return Walked(True, messages + 1, visited)
            if hop >= hops_max:
                return Walked(False, messages, visited)
            trace = [*trace, here][-self.size.hops :]

    def owned(self, attribute: int, indexed_only: bool) -> OwnedTree:
        """Who owns the partitions of an attribute's tree: of those that a bound begins, whose bound it is."""
        found = self._owned.get((attribute, indexed_only))
        if found is None:
            cuts, lows = self.cuts(attribute, indexed_only), self.lows(attribute, indexed_only)
            subs = self.of[attribute][self.filed[attribute]] if indexed_only else self.of[attribute]
            owner = np.empty(len(cuts) + 1, np.int64)
            for bounds in (lows + self.size.width, lows):
                owner[np.searchsorted(cuts, bounds, "right")] = self.owner[subs]
            owner[0] = self.owner[subs[0]]  # Who came first has founded it.
            found = self._owned[attribute, indexed_only] = OwnedTree(owner.tolist())
        return found

    def tree_steps(self, attribute: int, value: float, *, fingers: bool) -> int:
        """Messages from a member to the owner of the partition that contains the value."""
        tree, cuts, lows = self.owned(attribute, fingers), self.cuts(attribute, fingers), self.lows(attribute, fingers)
        subs = self.of[attribute][self.filed[attribute]] if fingers else self.of[attribute]
        member = self.choice_rng.randrange(len(subs))
        goal, anchor = np.searchsorted(cuts, [value, lows[member]], "right").tolist()
        here = int(self.owner[subs[member]])
        if here in tree.of:
            return tree.steps(here, goal, fingers=fingers)
        # Both of its bounds are others' too: it knows the owner of the partition in which its interest begins.
        return 1 + tree.steps(tree.owner[anchor], goal, fingers=fingers)

    # ── The protocols ────────────────────────────────────────────────────────

    def as_published(self, event: dict[int, float]) -> Cost:
        """One walker for each attribute, the tree's own links, counting at the subscriber."""
        source = self.choice_rng.randrange(self.size.nodes)
        walk = tree = match = looked = 0
        arrived = []
        for a, value in event.items():
            went = self.walk(source, a)
            walk, looked = walk + went.messages, looked + went.visited * self.size.table
            if went.found and len(self.of[a]):
                arrived.append(a)
                steps = self.tree_steps(a, value, fingers=False)
                tree, looked = tree + steps, looked + steps
                match += len(set(self.owner[self.of[a][self._inside(a, value)]].tolist()))
        wanted, reached = self.matching(event), self.matching(event, arrived)
        return Cost(walk, tree, match, len(wanted), len(reached), looked)

    def robust(self, event: dict[int, float], *, walkers: int = 2, rounds: int = 3) -> Cost:
        """The node's own table first, two walkers, three attempts; fingers; whole interests checked in the tree.

        An attribute without indexed interests is skipped: the publisher remembers that it has no topology.
        """
        source = self.choice_rng.randrange(self.size.nodes)
        walk = tree = match = looked = 0
        arrived = []
        met = self.matching(event)
        for a, value in event.items():
            if not self.filed[a].any():
                continue
            went = self._tries(source, a, walkers, rounds)
            walk += sum(each.messages for each in went)
            looked += sum(each.visited for each in went) * self.size.table
            if not any(each.found for each in went):
                continue
            arrived.append(a)
            steps = self.tree_steps(a, value, fingers=True)
            tree, looked = tree + steps, looked + steps
            told = np.intersect1d(self.of[a][self.filed[a]], met)
            match += len(set(self.owner[told].tolist()))
        filed = [self.of[a][self.filed[a]] for a in arrived]
        reached = np.intersect1d(np.unique(np.concatenate(filed)) if filed else np.array([], np.int64), met)
        return Cost(walk, tree, match, len(met), len(reached), looked)

    def _tries(self, source: int, a: int, walkers: int, rounds: int) -> list[Walked]:
        """The walks of some walkers, repeated until one of them succeeds."""
        went: list[Walked] = []
        for _ in range(rounds):
            first = self.walk(source, a, own_table=True)
            others = 0 if first.visited == 1 and first.found else walkers - 1
            went += [first, *(self.walk(source, a) for _ in range(others))]
            if any(each.found for each in went):
                break
        return went

    def simple(self, event: dict[int, float], fan_out: float | None) -> Cost:
        """Every copy goes to some peers of a view; without a fan-out, the first copy goes to all of them."""
        source = self.choice_rng.randrange(self.size.nodes)
        messages, seen, front = 0, {source}, [source]
        for _ in range(self.size.hops):
            told = [peer for node in front for peer in self._drawn(node, fan_out)]
            messages += len(told)
            fresh = dict.fromkeys(peer for peer in told if peer not in seen)
            seen.update(fresh)
            front = told if fan_out is not None else list(fresh)
        wanted = self.matching(event)
        reached = sum(int(self.owner[sub]) in seen for sub in wanted)
        looked = round(len(seen) * float(self.needed.mean()) * self.size.subscriptions / self.size.nodes)
        return Cost(messages, 0, 0, len(wanted), reached, looked)

    def tera(self, event: dict[int, float]) -> Cost:
        """A walk to each attribute's subscribers, and a flood among them."""
        source = self.choice_rng.randrange(self.size.nodes)
        walk = spread = 0
        arrived: set[int] = set()
        for a in event:
            went = self.walk(source, a, own_table=True)
            walk += went.messages
            if went.found and self.members[a]:
                members = len(self.members[a])
                spread += members * min(self.size.view, members - 1)
                arrived.update(self.of[a].tolist())
        met = self.matching(event)
        return Cost(walk, spread, 0, len(met), sum(int(sub) in arrived for sub in met))

    def _drawn(self, node: int, fan_out: float | None) -> list[int]:
        if fan_out is None:
            return self.view(node)
        count = int(fan_out) + (self.choice_rng.random() < fan_out % 1)
        return self.choice_rng.sample(self.view(node), min(count, len(self.view(node))))


def scene_with(matches: float, size: SceneSize, seed: int) -> Scene:
    """A scene whose conditions are so wide that an event matches `matches` subscriptions on average."""
    scene = Scene(size, seed)
    low, high = 0.0, 1.0
    for _ in range(30):
        width = (low + high) / 2
        low, high = (width, high) if scene.expected_matches(width) < matches else (low, width)
    return Scene(replace(size, width=high), seed)


# ── A perfectly balanced tree of partitions 0 … count - 1, and their owners ────


class OwnedTree:
    """Who owns which partitions of a tree, and how an event finds the owner of one.

    As in the protocol, an owner looks at all that it owns: between two partitions of its own there is no message.
    """

    def __init__(self, owner: Sequence[int]) -> None:
        self.owner = owner
        self.of: dict[int, list[int]] = {}
        for partition, each in enumerate(owner):
            self.of.setdefault(each, []).append(partition)

    def steps(self, here: int, goal: int, *, fingers: bool) -> int:
        """Messages from a member to the owner of a partition.

        >>> tree = OwnedTree([7, 7, 8, 9, 9, 8, 7])
        >>> tree.steps(7, 0, fingers=False), tree.steps(8, 4, fingers=False), tree.steps(8, 4, fingers=True)
        (0, 1, 1)
        """
        count, steps = len(self.owner), 0
        while here != self.owner[goal]:
            onward = finger_step(self.of[here], goal, count) if fingers else tree_step(self.of[here], goal, count)
            here, steps = self.owner[onward], steps + 1
        return steps


class _Place(NamedTuple):
    """Where a partition is in the tree; -1 where there is no such one."""

    first: int
    last: int
    """The partitions below it, itself included: from `first` to before `last`."""
    parent: int
    left: int
    right: int


@lru_cache(maxsize=1 << 16)
def place(node: int, count: int) -> _Place:
    """A partition's subtree, and the links of the tree.

    >>> place(1, 7), place(3, 7).parent
    (_Place(first=0, last=3, parent=3, left=0, right=2), -1)
    """
    low, high, parent = 0, count, -1
    while (middle := (low + high) // 2) != node:
        parent = middle
        low, high = (low, middle) if node < middle else (middle + 1, high)
    left, right = ((a + b) // 2 if a < b else -1 for a, b in ((low, middle), (middle + 1, high)))
    return _Place(low, high, parent, left, right)


def tree_step(own: Sequence[int], goal: int, count: int) -> int:
    """The next partition by the tree's own links: down from the smallest subtree of one's own with the goal, else up.

    Up from the largest. An owner of the protocol does not know sizes, and takes the subtree that begins first.

    >>> tree_step([0], 4, 7), tree_step([3], 4, 7), tree_step([1, 5], 4, 7)
    (1, 5, 4)
    """
    places = [(place(each, count), each) for each in own]
    containing = [(at.last - at.first, at, each) for at, each in places if at.first <= goal < at.last]
    if containing:
        _, at, each = min(containing)
        return at.left if goal < each else at.right
    return min(places, key=lambda one: one[0].first - one[0].last)[0].parent


def finger_step(own: Sequence[int], goal: int, count: int) -> int:
    """The next partition if one knows ancestors, their children and the neighbours: the nearest on one's own side."""
    below = [each for each in own if each < goal]
    here = max(below) if below else min(own)
    if here - 1 == goal:
        return goal
    if here < goal:
        return max(each for each in _known(here, count) if here < each <= goal)
    return min((each for each in _known(here, count) if goal < each < here), default=here - 1)


@lru_cache(maxsize=1 << 16)
def _known(node: int, count: int) -> frozenset[int]:
    low, high = 0, count
    known = {each for each in (node - 1, node + 1) if 0 <= each < count}
    while True:
        middle = (low + high) // 2
        known.add(middle)
        known.update((a + b) // 2 for a, b in ((low, middle), (middle + 1, high)) if a < b)
        if middle == node:
            return frozenset(known)
        low, high = (low, middle) if node < middle else (middle + 1, high)
