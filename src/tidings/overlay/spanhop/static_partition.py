"""A static partition, computed without messages: every broker's path, neighbours and ancestors.

    balanced      level by level, as the paper draws it: all zones of one size, tables recorded when a level is full
    grown         one join after the other, each at a random point, tables recorded as they were at that moment

Brokers are numbered from 0. In a balanced network they are numbered along the tree: number 0
of 16 owns the lowest corner, and its first split gave the other half to number 8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeAlias

from tidings.errors import InputError
from tidings.overlay.spanhop.next_hop import Ancestor, Point, RoutingEntry, RoutingState
from tidings.space import Path, Space, halves

JoinPolicy: TypeAlias = Literal["point", "even"]
Kept: TypeAlias = Literal["either", "lower"]

_BITS = (1 << 64) - 1


def keeps_upper(path: Path, kept: Kept) -> bool:
    """Whether the owner of a zone keeps the upper half when the zone is split.

    Who keeps the lower half at every split ends in the low corner of a zone that others have recorded, which is
    where they enter it: further from most destinations than the middle is. With `either`, the path decides as a coin
    would, so that everybody can tell, and owners end anywhere.

    >>> keeps_upper((), "either"), keeps_upper(((8, 0),), "either"), keeps_upper((), "lower")
    (True, False, False)
    """
    return kept == "either" and bool(mixed(path_code(path)) & 1)


def path_code(path: Path) -> int:
    """A number for the shape of a path: 1 for the root, then a bit for each half. Paths of 64 cuts and more share some."""
    code = 1
    for _, side in path:
        code = (code << 1 | side) & _BITS
    return code


def mixed(code: int) -> int:
    """The finaliser of SplitMix64: every bit of the result depends on every bit of the number."""
    code = (code ^ code >> 30) * 0xBF58476D1CE4E5B9 & _BITS
    code = (code ^ code >> 27) * 0x94D049BB133111EB & _BITS
    return code ^ code >> 31


class _Leaf:
    """A node of the K-D tree, to find the owner of a point: a broker, or a cut with two nodes below it."""

    __slots__ = ("below", "broker", "cut")

    def __init__(self, broker: int) -> None:
        self.broker, self.cut = broker, 0
        self.below: tuple[_Leaf, _Leaf] | None = None


@dataclass(slots=True)
class Tile:
    """One broker's zone: its path, its neighbours, and for each k-th ancestor the neighbours recorded then."""

    path: Path
    neighbours: dict[int, None] = field(default_factory=dict)
    ancestors: list[tuple[tuple[int, Path], ...]] = field(default_factory=lambda: [()])


class Tiling:
    """A partition of a space among brokers. At first broker 0 owns everything; `join` adds the next broker."""

    def __init__(self, space: Space, *, k: int, wrap: bool = True, kept: Kept = "lower") -> None:
        self.space, self.k, self.kept = space, k, kept
        self.around = space.side if wrap else None
        self.tiles = [Tile(())]
        self._root = _Leaf(0)
        self._leaves = [self._root]

    @classmethod
    def balanced(cls, count: int, space: Space, *, k: int, wrap: bool = True, kept: Kept = "lower") -> Tiling:
        """`count` (a power of two) zones of one size. The tables of a level are recorded when it is complete."""
        if count < 1 or count & (count - 1):
            raise InputError(f"expected a power of two of brokers for a balanced network, got {count}")
        made = cls(space, k=k, wrap=wrap, kept=kept)
        order = [0]  # Brokers along the tree.
        while len(order) < count:
            order = [each for broker in order for each in made.halved(broker)]
            made.record_level()
        made._renumber(order)
        return made

    @classmethod
    def grown(
        cls,
        count: int,
        space: Space,
        rng: Random,
        *,
        k: int,
        wrap: bool = True,
        policy: JoinPolicy = "even",
        kept: Kept = "lower",
    ) -> Tiling:
        """`count` brokers that joined one after the other, each at a random point."""
        made = cls(space, k=k, wrap=wrap, kept=kept)
        while len(made.tiles) < count:
            made.join(tuple(rng.randrange(space.side) for _ in range(space.axes)), policy)
        return made

    def __len__(self) -> int:
        return len(self.tiles)

    def owner(self, point: Point) -> int:
        """The broker whose zone contains the point."""
        leaf, depth = self._root, 0
        while leaf.below is not None:
            leaf = leaf.below[point[depth % self.space.axes] >= leaf.cut]
            depth += 1
        return leaf.broker

    def join(self, point: Point, policy: JoinPolicy = "even") -> int:
        """Split the zone of the point's owner (or, to be even, of its shallowest neighbour); returns the newcomer."""
        owner = self.owner(point)
        if policy == "even":
            owner = min(
                [owner, *self.tiles[owner].neighbours], key=lambda each: (self._depth(each), each != owner, each)
            )
        return self.split(owner)

    def split(self, broker: int, *, record: bool = True) -> int:
        """Cut a zone in half: the owner keeps one part (see `keeps_upper`), the next broker gets the other."""
        tile, fresh = self.tiles[broker], len(self.tiles)
        cut, upper = self.space.middle(tile.path), keeps_upper(tile.path, self.kept)
        parts = halves(tile.path, cut)
        around = [*tile.neighbours, broker, fresh]
        tile.path = parts[upper]
        self.tiles.append(Tile(parts[not upper], ancestors=list(tile.ancestors)))
        self._split_leaf(broker, fresh, cut, upper)
        for each in around[:-2]:
            del self.tiles[each].neighbours[broker]
        tile.neighbours.clear()
        self._meet(broker, around)
        self._meet(fresh, around)
        if record and len(tile.path) % self.k == 0:
            self._record(broker)
            self._record(fresh)
        return fresh

    def halved(self, broker: int) -> tuple[int, int]:
        """Split a zone without recording tables; returns the brokers of the lower and of the upper half."""
        upper = keeps_upper(self.tiles[broker].path, self.kept)
        fresh = self.split(broker, record=False)
        return (fresh, broker) if upper else (broker, fresh)

    def record_level(self) -> None:
        """Record the tables of all zones whose depth is a multiple of k."""
        for broker, tile in enumerate(self.tiles):
            if len(tile.path) % self.k == 0 and len(tile.ancestors) == len(tile.path) // self.k:
                self._record(broker)

    def routing_state(self, broker: int, ids: Sequence[str] | None = None, *, present: bool = False) -> RoutingState:
        """A broker's routing state, for `next_hop`; with the present zones of recorded brokers if asked for.

        A broker's id is its number unless `ids` names it.
        """
        tile, zone = self.tiles[broker], self.space.zone
        name = (lambda each: ids[each]) if ids is not None else str

        def entry(each: int, path: Path) -> RoutingEntry:
            now = (zone(self.tiles[each].path),) if present else ()
            return RoutingEntry(name(each), zone(path), present=now)

        ancestors = [
            Ancestor(zone(tile.path[: level * self.k]), tuple(entry(each, path) for each, path in known))
            for level, known in enumerate(tile.ancestors)
        ]
        neighbours = [RoutingEntry(name(each), zone(self.tiles[each].path)) for each in tile.neighbours]
        return RoutingState(name(broker), zone(tile.path), len(tile.path), neighbours, ancestors, self.around)

    def _depth(self, broker: int) -> int:
        return len(self.tiles[broker].path)

    def _meet(self, broker: int, others: Sequence[int]) -> None:
        zone = self.space.zone(self.tiles[broker].path)
        for each in others:
            if each != broker and zone.borders(self.space.zone(self.tiles[each].path), self.around) is not None:
                self.tiles[broker].neighbours[each] = None
                self.tiles[each].neighbours[broker] = None

    def _record(self, broker: int) -> None:
        tile = self.tiles[broker]
        tile.ancestors.append(tuple((each, self.tiles[each].path) for each in sorted(tile.neighbours)))

    def _split_leaf(self, broker: int, fresh: int, cut: int, upper: bool) -> None:
        leaf = self._leaves[broker]
        leaf.cut, leaf.below = cut, (_Leaf(fresh), _Leaf(broker)) if upper else (_Leaf(broker), _Leaf(fresh))
        self._leaves[broker] = leaf.below[upper]
        self._leaves.append(leaf.below[not upper])

    def _renumber(self, order: list[int]) -> None:
        """Number the brokers as in `order`."""
        number = {old: new for new, old in enumerate(order)}
        for leaf in self._leaves:
            leaf.broker = number[leaf.broker]
        self._leaves = [self._leaves[old] for old in order]
        self.tiles = [self.tiles[old] for old in order]
        for tile in self.tiles:
            tile.neighbours = {number[each]: None for each in tile.neighbours}
            tile.ancestors = [tuple((number[each], path) for each, path in known) for known in tile.ancestors]
