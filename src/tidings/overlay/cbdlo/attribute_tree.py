"""The tree of one attribute: a balanced binary tree of partitions (virtual nodes, in the paper).

Every bound of an interest is a cut, and the range between two neighbouring cuts is one partition, owned by one node.
The partitions are the nodes of an AVL tree, in the order of their values. A new cut splits the partition it falls into,
and the part above the cut belongs to the node that registered the interest. When the last interest with a bound at a
cut is withdrawn, the two partitions beside the cut merge.

    a wants [3, 7), b wants [5, 9)       | −∞ 3 | 3 5 | 5 7 | 7 9 | 9 ∞ |
                                              -     a    a,b    b     -

The coordinator of a topology holds this tree. `changed` lists the partitions whose owners must learn of a change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tidings.overlay.interest import Interest
from tidings.overlay.messages import NodeId, OriginRecord, Peer, SubscriptionId
from tidings.overlay.random_graph.partition import BOTTOM, TOP, Cut, Interval

FINGERS_MAX = 20  # On each side: enough for a million partitions.


class Registration(OriginRecord, frozen=True, array_like=True):
    """An interest and its subscriber, as stored in the partitions that the interest covers."""

    peer: Peer
    interest: Interest
    seal: bytes = b""

    def speaker(self) -> NodeId:
        return self.peer.id if self.peer.id == self.interest.id.origin else ""

    def statement(self) -> tuple[Any, ...]:
        return self.peer.id, self.interest.statement()


@dataclass(slots=True, eq=False)
class PartitionNode:
    """One partition, from `low` to the next cut, as a node of the tree."""

    low: Cut
    owner: Peer
    high: Cut = TOP
    registered: dict[SubscriptionId, Registration] = field(default_factory=dict)
    users: dict[SubscriptionId, None] = field(default_factory=dict)
    """The interests that have a bound at `low`."""
    parent: PartitionNode | None = field(init=False, default=None)
    left: PartitionNode | None = field(init=False, default=None)
    right: PartitionNode | None = field(init=False, default=None)
    before: PartitionNode | None = field(init=False, default=None)
    after: PartitionNode | None = field(init=False, default=None)
    height: int = field(init=False, default=1)
    first: Cut = field(init=False, default=BOTTOM)
    """With `last`, the range of the subtree."""
    last: Cut = field(init=False, default=TOP)


class AttributeTree:
    """All partitions of one attribute, with their owners and the interests registered in them."""

    def __init__(self, founder: Peer) -> None:
        self.root = PartitionNode(BOTTOM, founder)
        self._at: dict[Cut, PartitionNode] = {BOTTOM: self.root}
        self._intervals: dict[SubscriptionId, tuple[Registration, tuple[Interval, ...]]] = {}
        self._changed: dict[Cut, None] = {BOTTOM: None}

    def __len__(self) -> int:
        """The number of partitions."""
        return len(self._at)

    def __iter__(self) -> Iterator[PartitionNode]:
        """All partitions in order."""
        each: PartitionNode | None = self._at[BOTTOM]
        while each is not None:
            yield each
            each = each.after

    def get(self, low: Cut) -> PartitionNode | None:
        """The partition that begins at this cut."""
        return self._at.get(low)

    @property
    def registered(self) -> int:
        """The number of interests."""
        return len(self._intervals)

    def registrations(self) -> list[Registration]:
        return [registration for registration, _ in self._intervals.values()]

    def registration(self, id: SubscriptionId) -> Registration | None:
        found = self._intervals.get(id)
        return found[0] if found else None

    def locate(self, position: Cut) -> PartitionNode:
        """The partition that contains this position."""
        here = self.root
        while not here.low <= position < here.high:
            below = here.left if position < here.low else here.right
            assert below is not None, "partitions cover the whole range"
            here = below
        return here

    def register(self, registration: Registration, intervals: Iterable[Interval]) -> None:
        """Store an interest in every partition that it covers; it replaces one of the same id."""
        id = registration.interest.id
        self.unregister(id)
        kept = tuple(intervals)
        self._intervals[id] = (registration, kept)
        for low, high in kept:
            for cut in (low, high):
                self._split(cut, registration.peer).users[id] = None
            for each in self._between(low, high):
                each.registered[id] = registration
                self._changed[each.low] = None

    def unregister(self, id: SubscriptionId) -> None:
        """Remove an interest, and the cuts that only it used."""
        _, intervals = self._intervals.pop(id, (None, ()))
        for low, high in intervals:
            for each in self._between(low, high):
                each.registered.pop(id, None)
                self._changed[each.low] = None
            for cut in (low, high):
                self._release(cut, id)

    def set_owner(self, low: Cut, owner: Peer) -> None:
        """Give a partition to another owner."""
        each = self._at[low]
        each.owner = owner
        for near in (each, each.parent, each.left, each.right, each.before, each.after):
            self._touch(near)

    def changed(self) -> list[Cut]:
        """The lower cuts of all partitions that have changed since the last call; some may no longer exist."""
        changed, self._changed = self._changed, {}
        return list(changed)

    def fingers(self, of: PartitionNode) -> list[PartitionNode]:
        """Partitions at distances of about 2, 4, 8 … on both sides: the ancestors of a partition and their children.

        They lie at about these distances, and finding them takes no more steps than the tree is high.
        """
        found: dict[Cut, PartitionNode] = {}
        above = of.parent
        while above is not None and len(found) < 2 * FINGERS_MAX:
            for each in (above, above.left, above.right):
                if each is not None and each is not of:
                    found[each.low] = each
            above = above.parent
        return list(found.values())

    # ── Splitting and merging ────────────────────────────────────────────────

    def _split(self, cut: Cut, owner: Peer) -> PartitionNode:
        """The partition that begins at this cut; if there is none, split the one that contains the cut."""
        if cut in (BOTTOM, TOP):
            return PartitionNode(cut, owner)  # Not part of the tree: the ends of the range need no users.
        if cut in self._at:
            return self._at[cut]
        old = self.locate(cut)
        new = PartitionNode(cut, owner, old.high, registered=dict(old.registered))
        self._at[cut], old.high = new, cut
        self._link_after(old, new)
        self._rebalance(new)
        return new

    def _link_after(self, old: PartitionNode, new: PartitionNode) -> None:
        following = old.after
        new.before, new.after, old.after = old, following, new
        if following is not None:
            following.before = new
        if old.right is None:
            old.right, new.parent = new, old
        else:
            assert following is not None
            assert following.left is None, "the next in order is the leftmost of the right subtree"
            following.left, new.parent = new, following
        for each in (old, new, following):
            self._touch(each)

    def _release(self, cut: Cut, id: SubscriptionId) -> None:
        each = self._at.get(cut)
        if each is None or cut == BOTTOM:
            return
        each.users.pop(id, None)
        if not each.users:
            self._merge(each)

    def _merge(self, gone: PartitionNode) -> None:
        """Merge a partition, whose lower cut has no users, into the one before it."""
        before, after = gone.before, gone.after
        assert before is not None
        before.high, before.after = gone.high, after
        if after is not None:
            after.before = before
        if gone.left is not None and gone.right is not None:
            assert after is not None
            self._exchange(gone, after)
        below, above = gone.left or gone.right, gone.parent
        self._replace(gone, below)
        del self._at[gone.low]
        for each in (before, after, below, above):
            self._touch(each)
        self._changed[gone.low] = None
        self._rebalance(above or below)
        self._rebalance(before)  # Its range has grown, and it need not be an ancestor of the removed node.

    def _exchange(self, one: PartitionNode, other: PartitionNode) -> None:
        """Exchange the positions of two nodes; `other` is the next in order, in the right subtree of `one`."""
        near = [one.parent, one.left, one.right, other.parent, other.right]
        parent, left, right = one.parent, one.left, one.right
        far_parent, far_right = other.parent, other.right
        self._replace(one, other)
        other.parent, other.left, one.left = parent, left, None
        if far_parent is one:
            other.right, one.parent = one, other
        else:
            assert far_parent is not None
            other.right, far_parent.left, one.parent = right, one, far_parent
        one.right, other.height = far_right, one.height
        for child, above in ((other.left, other), (other.right, other), (one.right, one)):
            if child is not None:
                child.parent = above
        for each in (*near, one, other):
            self._touch(each)

    def _replace(self, old: PartitionNode, new: PartitionNode | None) -> None:
        """Put `new` in the position of `old`."""
        above = old.parent
        if new is not None:
            new.parent = above
        if above is None:
            assert new is not None, "a tree has a root"
            self.root = new
        elif above.left is old:
            above.left = new
        else:
            above.right = new

    # ── Balance ──────────────────────────────────────────────────────────────

    def _rebalance(self, start: PartitionNode | None) -> None:
        """From here up to the root: update heights and ranges, and rotate where one side has become too high."""
        each = start
        while each is not None:
            self._measure(each)
            lean = _height(each.left) - _height(each.right)
            if lean > 1:
                assert each.left is not None
                if _height(each.left.left) < _height(each.left.right):
                    self._rotate_left(each.left)
                each = self._rotate_right(each)
            elif lean < -1:
                assert each.right is not None
                if _height(each.right.right) < _height(each.right.left):
                    self._rotate_right(each.right)
                each = self._rotate_left(each)
            each = each.parent

    def _measure(self, each: PartitionNode) -> None:
        each.height = 1 + max(_height(each.left), _height(each.right))
        first = each.left.first if each.left else each.low
        last = each.right.last if each.right else each.high
        if (first, last) != (each.first, each.last):
            each.first, each.last = first, last
            self._touch(each)

    def _rotate_left(self, top: PartitionNode) -> PartitionNode:
        new = top.right
        assert new is not None
        top.right, moved = new.left, new.left
        self._replace(top, new)
        new.left, top.parent = top, new
        return self._rotated(top, new, moved)

    def _rotate_right(self, top: PartitionNode) -> PartitionNode:
        new = top.left
        assert new is not None
        top.left, moved = new.right, new.right
        self._replace(top, new)
        new.right, top.parent = top, new
        return self._rotated(top, new, moved)

    def _rotated(self, top: PartitionNode, new: PartitionNode, moved: PartitionNode | None) -> PartitionNode:
        if moved is not None:
            moved.parent = top
        self._measure(top)
        self._measure(new)
        for each in (top, new, moved, new.parent):
            self._touch(each)
        return new

    def _touch(self, each: PartitionNode | None) -> None:
        if each is not None:
            self._changed[each.low] = None

    def _between(self, low: Cut, high: Cut) -> Iterator[PartitionNode]:
        each: PartitionNode | None = self.locate(low)
        while each is not None and each.low < high:
            yield each
            each = each.after


def _height(each: PartitionNode | None) -> int:
    return each.height if each is not None else 0
