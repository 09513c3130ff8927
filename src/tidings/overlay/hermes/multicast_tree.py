"""Multicast trees: what one node knows of each event type's tree, and what it has to send because of it.

A tree knows and never sends. Its methods take what happened and return the messages that
follow, in order: InterestRequest and InterestWithdrawal for the parent, InterestAck for a
child (or for this node itself, which is its own child).

A node announces to its parent as little as possible: an interest that another one covers
stops here. So when one is withdrawn, the interests that only it covered are announced
first, and the withdrawal follows once the parent has acknowledged them.

Nodes below pass on what others below them have said, so two children may say different things under one id, and one of
them lies. So interests are told apart by what they say, too: nobody takes the place of another's.

`MulticastTree` is one type's tree, `MulticastTrees` all trees of a node. Both numbers of
trees and of interests are bounded: a peer that announces without end is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tidings.overlay.crowding import CrowdedTable
from tidings.overlay.hermes.messages import InterestAck, InterestRequest, InterestWithdrawal
from tidings.overlay.interest import WEIGHT_MAX, Interest, InterestVersion
from tidings.overlay.messages import NodeId, Packet, SubscriptionId

TREES_MAX = 65_536
# Interests of one child in a type that an event is compared with; beyond it the child gets all of the type. A live broker
# has 65 at most, and sixty brokers may be below a child.
COMPARED_BELOW_MAX = 4096
INTERESTS_MAX = 1 << 20  # On one node, its own and its children's. One too many is refused and counted.


class ToChild(NamedTuple):
    """An acknowledgement for a child."""

    child: NodeId
    message: InterestAck


TreeMessage: TypeAlias = InterestRequest | InterestWithdrawal | ToChild


@dataclass(slots=True)
class TreeInterest:
    """An interest that a child announced, or that was announced to the parent, with the clock of whoever announced it."""

    interest: Interest
    clock: int
    is_acknowledged: bool = False  # By the parent.


@dataclass(slots=True)
class MulticastTree:
    """This node's part of the tree of one type. `parent` is None at the rendezvous."""

    type: str
    key: str
    covers: Callable[[Interest, Interest], bool]
    tick: Callable[[], int]
    parent: NodeId | None = None
    own: dict[SubscriptionId, Interest] = field(default_factory=dict)
    children: dict[NodeId, dict[InterestVersion, TreeInterest]] = field(default_factory=dict)
    refreshed: dict[NodeId, float] = field(default_factory=dict)  # When each child last sent a refresh.
    announced: dict[InterestVersion, TreeInterest] = field(default_factory=dict)
    _waiting: dict[InterestVersion, dict[NodeId, int]] = field(default_factory=dict)  # Children to answer, with clocks.
    _withdrawing: dict[InterestVersion, dict[InterestVersion, None]] = field(default_factory=dict)
    """For an interest to be withdrawn, the interests that the parent must acknowledge before."""

    @property
    def is_empty(self) -> bool:
        return not self.own and not self.children and not self._withdrawing

    def __len__(self) -> int:
        return len(self.own) + sum(map(len, self.children.values()))

    def interested_children(self, packet: Packet, matches: Callable[[Interest, Packet], bool]) -> list[NodeId]:
        """The children below which an interest may match."""
        return [
            child
            for child, interests in self.children.items()
            if _weigh_too_much(interests) or any(matches(each.interest, packet) for each in interests.values())
        ]

    def announce(self, interest: Interest, child: NodeId, clock: int) -> list[TreeMessage]:
        """Make sure that the nodes above know an interest, or one that covers it; then answer the child."""
        version = interest.version
        if self.parent is None or self._is_covered(interest, by_acknowledged=True):
            return [*self._withdraw(version), self._ack(version, child, clock)]
        self._waiting.setdefault(version, {})[child] = clock
        known = self.announced.get(version)
        if known is not None:
            return self._acknowledged(version) if known.is_acknowledged else []
        request = self._request(interest)
        return [*self.missing(), request]

    def announce_all(self, me: NodeId) -> list[TreeMessage]:
        """Do so for every interest that is known here."""
        everything = [(me, interest, 0) for interest in self.own.values()]
        everything += [
            (child, each.interest, each.clock)
            for child, interests in self.children.items()
            for each in interests.values()
        ]
        return [message for child, interest, clock in everything for message in self.announce(interest, child, clock)]

    def on_request(self, child: NodeId, request: InterestRequest, now: float) -> bool:
        """Store a child's interest; False if a newer message about it has come already."""
        interests, version = self.children.setdefault(child, {}), request.interest.version
        known = interests.get(version)
        if known is not None and known.clock > request.clock:
            return False
        interests[version] = TreeInterest(request.interest, request.clock)
        self.refreshed[child] = now
        return True

    def drop(self, child: NodeId, version: InterestVersion) -> list[TreeMessage]:
        """One of a child's interests has to give way."""
        return self.on_withdrawal(child, InterestWithdrawal(self.type, version, self.children[child][version].clock))

    def on_withdrawal(self, child: NodeId, withdrawal: InterestWithdrawal) -> list[TreeMessage]:
        interests = self.children.get(child, {})
        known = interests.get(withdrawal.interest)
        if known is None or known.clock > withdrawal.clock:
            return []
        del interests[withdrawal.interest]
        if not interests:
            del self.children[child]
        return self.withdraw_unused(withdrawal.interest)

    def on_ack(self, ack: InterestAck) -> list[TreeMessage]:
        known = self.announced.get(ack.interest)
        if known is None or known.clock != ack.clock:
            return []
        known.is_acknowledged = True
        return self._acknowledged(ack.interest)

    def remove_child(self, child: NodeId) -> list[TreeMessage]:
        """A child is gone, and all its interests with it."""
        self.refreshed.pop(child, None)
        return [message for gone in self.children.pop(child, {}) for message in self.withdraw_unused(gone)]

    def withdraw_unused(self, version: InterestVersion) -> list[TreeMessage]:
        """Withdraw an interest from the parent, unless this node or another child still has it."""
        own = self.own.get(version.id)
        if own is not None and own.version == version:
            return []
        if any(version in interests for interests in self.children.values()):
            return []
        self._waiting.pop(version, None)
        return self._withdraw(version)

    def move(self, parent: NodeId | None) -> list[TreeMessage]:
        """Change the parent to one that knows nothing yet, or to none, if this node is the rendezvous now."""
        self.parent = parent
        self.announced, self._withdrawing = {}, {}
        if parent is not None:
            return self.missing()
        return [message for version in list(self._waiting) for message in self._acknowledged(version)]

    def missing(self) -> list[TreeMessage]:
        """Announce every interest that is neither announced nor covered by one that is."""
        if self.parent is None:
            return []
        return [
            self._request(interest)
            for interest in list(self._interests())
            if interest.version not in self.announced and not self._is_covered(interest, by_acknowledged=False)
        ]

    def announce_again(self) -> list[TreeMessage]:
        """The parent has lost something: announce everything that was announced, with new clocks."""
        return [self._request(each.interest) for each in list(self.announced.values())]

    def unacknowledged(self) -> list[InterestRequest]:
        """What was announced to the parent and not acknowledged."""
        return [
            InterestRequest(each.interest, each.clock) for each in self.announced.values() if not each.is_acknowledged
        ]

    def _request(self, interest: Interest) -> InterestRequest:
        clock = self.tick()
        self.announced[interest.version] = TreeInterest(interest, clock)
        return InterestRequest(interest, clock)

    def _withdraw(self, version: InterestVersion) -> list[TreeMessage]:
        if self.announced.pop(version, None) is None:
            return []
        before = frozenset(self.announced)
        messages = self.missing()
        uncovered = dict.fromkeys(other for other in self.announced if other not in before)
        if not uncovered:
            return [*messages, *self._withdrawal(version)]
        self._withdrawing[version] = uncovered
        return messages

    def _withdrawal(self, version: InterestVersion) -> list[TreeMessage]:
        if self.parent is None or version in self.announced:
            return []
        return [InterestWithdrawal(self.type, version, self.tick())]

    def _acknowledged(self, version: InterestVersion) -> list[TreeMessage]:
        """The parent knows this interest: answer the waiting children, and withdraw what it replaces."""
        messages: list[TreeMessage] = [
            self._ack(version, child, clock) for child, clock in self._waiting.pop(version, {}).items()
        ]
        for replaced, missing in list(self._withdrawing.items()):
            missing.pop(version, None)
            if not missing:
                del self._withdrawing[replaced]
                messages += self._withdrawal(replaced)
        return messages

    def _ack(self, version: InterestVersion, child: NodeId, clock: int) -> ToChild:
        return ToChild(child, InterestAck(self.type, version, clock))

    def _is_covered(self, interest: Interest, *, by_acknowledged: bool) -> bool:
        if _weigh_too_much(self.announced):
            return False  # Comparing with all of them costs too much, and to announce what is covered costs messages.
        version = interest.version
        return any(
            self.covers(other.interest, interest)
            for known, other in self.announced.items()
            if known != version and (other.is_acknowledged or not by_acknowledged)
        )

    def _interests(self) -> Iterator[Interest]:
        yield from self.own.values()
        for interests in self.children.values():
            yield from (each.interest for each in interests.values())


def _weigh_too_much(interests: Mapping[InterestVersion, TreeInterest]) -> bool:
    if len(interests) * WEIGHT_MAX <= COMPARED_BELOW_MAX:
        return False
    return sum(each.interest.weight for each in interests.values()) > COMPARED_BELOW_MAX


def digest(interests: Mapping[InterestVersion, TreeInterest]) -> int:
    """A digest of what a parent should have from a child: equal for equal interests and clocks."""
    words = (f"{id.origin}/{id.incarnation}/{id.seq}/{mark}/{each.clock}" for (id, mark), each in interests.items())
    parts = (hashlib.blake2b(word.encode(), digest_size=7).digest() for word in words)
    return sum(int.from_bytes(part, "big") for part in parts) & 0x7FFF_FFFF_FFFF_FFFF


class ChildInterest(NamedTuple):
    """An interest that a child has announced."""

    child: NodeId
    type: str
    interest: InterestVersion


class _ChildInterests(Collection[ChildInterest]):
    """Those of all trees; `alone`: those that are all that a tree is there for."""

    def __init__(self, trees: Mapping[str, MulticastTree], *, alone: bool) -> None:
        self._trees, self._alone = trees, alone

    def __iter__(self) -> Iterator[ChildInterest]:
        for type, tree in self._trees.items():
            if not self._alone or len(tree) == 1:
                for child, interests in tree.children.items():
                    yield from (ChildInterest(child, type, version) for version in interests)

    def __contains__(self, each: object) -> bool:
        tree = self._trees.get(each.type) if isinstance(each, ChildInterest) else None
        if tree is None or not isinstance(each, ChildInterest) or (self._alone and len(tree) > 1):
            return False
        return each.interest in tree.children.get(each.child, {})

    def __len__(self) -> int:
        return sum(map(len, self._trees.values()))


class MulticastTrees:
    """One node's trees. All share one clock, so that of two messages about an interest the later is known."""

    def __init__(self, key_of_hash: Callable[[bytes], str], covers: Callable[[Interest, Interest], bool]) -> None:
        """`key_of_hash` places a hash on the ring; `covers` says whether one interest makes another unnecessary."""
        self._key_of_hash, self._covers = key_of_hash, covers
        self._by_type: dict[str, MulticastTree] = {}
        self._crowded = CrowdedTable[ChildInterest](lambda each: each.child)
        self._crowded_alone = CrowdedTable[ChildInterest](lambda each: each.child)
        self._free = 0  # At least so many more interests fit before they must be counted again.
        self._clock = 0

    def all(self) -> list[MulticastTree]:
        """The trees there are now, as a copy: callers create and remove trees while they walk through it."""
        return list(self._by_type.values())

    def get(self, type: str) -> MulticastTree | None:
        return self._by_type.get(type)

    def get_or_create(self, type: str) -> MulticastTree | None:
        """The tree of a type; None if it would be one too many."""
        tree = self._by_type.get(type)
        if tree is None and len(self._by_type) < TREES_MAX:
            tree = self._by_type[type] = MulticastTree(type, self.key_of(type), self._covers, self._tick)
        return tree

    def crowding(self, child: NodeId, interest: Interest, *, is_tree_missing: bool) -> ChildInterest | None:
        """Which child's interest gives way to a new one; None if the asking child has most. With `is_tree_missing`,
        it is one without which a tree ends."""
        new = ChildInterest(child, interest.type, interest.version)
        if is_tree_missing:
            return self._crowded_alone.one_less_for(new, _ChildInterests(self._by_type, alone=True))
        return self._crowded.one_less_for(new, _ChildInterests(self._by_type, alone=False))

    def remove(self, tree: MulticastTree) -> None:
        """This node is no longer part of a tree."""
        self._by_type.pop(tree.type, None)

    def key_of(self, type: str) -> str:
        """The ring identifier of a type; the node nearest to it is the rendezvous."""
        return self._key_of_hash(hashlib.sha256(type.encode()).digest())

    def is_full(self) -> bool:
        """Asked before each new interest; counts them only when the free places of the last count are used up."""
        if self._free <= 0:
            self._free = INTERESTS_MAX - self._interest_count()
        self._free -= 1
        return self._free < 0

    def edges(self) -> tuple[NodeId, ...]:
        """Parents and children, each once."""
        ends: dict[NodeId, None] = {}
        for tree in self._by_type.values():
            ends.update(dict.fromkeys([*([tree.parent] if tree.parent else []), *tree.children]))
        return tuple(ends)

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            "trees": (len(self._by_type), TREES_MAX),
            "interests": (self._interest_count(), INTERESTS_MAX + 1),
        }

    def _interest_count(self) -> int:
        return sum(map(len, self._by_type.values()))

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
