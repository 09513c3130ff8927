"""Trees: what a node knows of one event type's tree: who below it wants what, and what its parent was told.

The part of `hermes` that only knows and never sends. A tree's methods take what happened
and return what is to be said, in order: Want and Unwant to the parent, Risen to a child
(or to this node itself, which is its own child).

The parent is told as little as will do: an interest that another one covers stops here.
So when one goes, those that only it covered are announced first, and it is withdrawn when
the parent has them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tidings.overlay.interest import Interest
from tidings.overlay.messages import Message, NodeId, Packet, SubscriptionId


class Want(Message, frozen=True):
    """Send me what this interest matches. `clock` orders what one child says."""

    interest: Interest
    clock: int


class Unwant(Message, frozen=True):
    """No longer."""

    event_type: str
    id: SubscriptionId
    clock: int


class Risen(Message, frozen=True):
    """Your interest is known as far up as it has to be."""

    event_type: str
    id: SubscriptionId
    clock: int


class ToChild(NamedTuple):
    """Something to tell a child."""

    child: NodeId
    message: Risen


Saying: TypeAlias = Want | Unwant | ToChild


@dataclass(slots=True)
class Held:
    """An interest from below, or one that the parent was told of, with the clock of whoever said it."""

    interest: Interest
    clock: int
    is_known: bool = False  # Whether the parent has said that it has risen.


@dataclass(slots=True)
class Tree:
    """This node's place in the tree of one type. `parent` is None at the rendezvous."""

    type: str
    key: str
    covers: Callable[[Interest, Interest], bool]
    tick: Callable[[], int]
    parent: NodeId | None = None
    own: dict[SubscriptionId, Interest] = field(default_factory=dict)
    below: dict[NodeId, dict[SubscriptionId, Held]] = field(default_factory=dict)
    refreshed: dict[NodeId, float] = field(default_factory=dict)  # When each child was last heard of.
    announced: dict[SubscriptionId, Held] = field(default_factory=dict)
    _waiting: dict[SubscriptionId, dict[NodeId, int]] = field(default_factory=dict)  # Children to tell, with clocks.
    _retiring: dict[SubscriptionId, dict[SubscriptionId, None]] = field(default_factory=dict)

    @property
    def is_bare(self) -> bool:
        return not self.own and not self.below and not self._retiring

    def __len__(self) -> int:
        return len(self.own) + sum(map(len, self.below.values()))

    def wants(self, packet: Packet, matches: Callable[[Interest, Packet], bool]) -> list[NodeId]:
        """The children below whom somebody may want it."""
        return [
            child for child, held in self.below.items() if any(matches(each.interest, packet) for each in held.values())
        ]

    def raise_(self, interest: Interest, child: NodeId, clock: int) -> list[Saying]:
        """See to it that whoever is above knows of an interest, or of one that covers it; then tell the child."""
        if self.parent is None or self._is_covered(interest, by_known=True):
            return [*self._withdraw(interest.id), self._risen(interest.id, child, clock)]
        self._waiting.setdefault(interest.id, {})[child] = clock
        known = self.announced.get(interest.id)
        if known is not None and known.interest == interest:
            return self._told(interest.id) if known.is_known else []
        want = self._announce(interest)
        return [*self._cover_again(), want]

    def raise_all(self, me: NodeId) -> list[Saying]:
        """The same for everything that is known here."""
        all_of_it = [(me, interest, 0) for interest in self.own.values()]
        all_of_it += [
            (child, each.interest, each.clock) for child, held in self.below.items() for each in held.values()
        ]
        return [saying for child, interest, clock in all_of_it for saying in self.raise_(interest, child, clock)]

    def hear_want(self, child: NodeId, want: Want, now: float) -> bool:
        """Take note of a child's interest; False if a newer word has come already."""
        held = self.below.setdefault(child, {})
        known = held.get(want.interest.id)
        if known is not None and known.clock > want.clock:
            return False
        held[want.interest.id] = Held(want.interest, want.clock)
        self.refreshed[child] = now
        return True

    def hear_unwant(self, child: NodeId, unwant: Unwant) -> list[Saying]:
        held = self.below.get(child, {})
        known = held.get(unwant.id)
        if known is None or known.clock > unwant.clock:
            return []
        del held[unwant.id]
        if not held:
            del self.below[child]
        return self.let_go(unwant.id)

    def hear_risen(self, risen: Risen) -> list[Saying]:
        known = self.announced.get(risen.id)
        if known is None or known.clock != risen.clock:
            return []
        known.is_known = True
        return self._told(risen.id)

    def lose_child(self, child: NodeId) -> list[Saying]:
        """A child is gone, with all that came from it."""
        self.refreshed.pop(child, None)
        return [saying for id in self.below.pop(child, {}) for saying in self.let_go(id)]

    def let_go(self, id: SubscriptionId) -> list[Saying]:
        """An interest is gone, unless it has come from another side as well."""
        if id in self.own or any(id in held for held in self.below.values()):
            return []
        self._waiting.pop(id, None)
        return self._withdraw(id)

    def move(self, parent: NodeId | None) -> list[Saying]:
        """There is another parent, who knows nothing yet, or none is needed any more."""
        self.parent = parent
        self.announced, self._retiring = {}, {}
        if parent is not None:
            return self.missing()
        return [saying for id in list(self._waiting) for saying in self._told(id)]

    def missing(self) -> list[Saying]:
        """What the parent should have been told of and was not."""
        return self._cover_again()

    def say_all_again(self) -> list[Saying]:
        """The parent has lost something: everything that it was told, with new clocks."""
        return [self._announce(held.interest) for held in list(self.announced.values())]

    def unanswered(self) -> list[Want]:
        """What the parent was told of and has not answered."""
        return [Want(held.interest, held.clock) for held in self.announced.values() if not held.is_known]

    def _announce(self, interest: Interest) -> Want:
        clock = self.tick()
        self.announced[interest.id] = Held(interest, clock)
        return Want(interest, clock)

    def _withdraw(self, id: SubscriptionId) -> list[Saying]:
        if self.announced.pop(id, None) is None:
            return []
        before = frozenset(self.announced)
        sayings = self._cover_again()
        missing = dict.fromkeys(other for other in self.announced if other not in before)
        if not missing:
            return [*sayings, *self._unwant(id)]
        self._retiring[id] = missing
        return sayings

    def _unwant(self, id: SubscriptionId) -> list[Saying]:
        if self.parent is None or id in self.announced:
            return []
        return [Unwant(self.type, id, self.tick())]

    def _told(self, id: SubscriptionId) -> list[Saying]:
        """The parent knows of it: tell the children who wait, and withdraw what it stands in for."""
        sayings: list[Saying] = [self._risen(id, child, clock) for child, clock in self._waiting.pop(id, {}).items()]
        for gone, missing in list(self._retiring.items()):
            missing.pop(id, None)
            if not missing:
                del self._retiring[gone]
                sayings += self._unwant(gone)
        return sayings

    def _risen(self, id: SubscriptionId, child: NodeId, clock: int) -> ToChild:
        return ToChild(child, Risen(self.type, id, clock))

    def _cover_again(self) -> list[Saying]:
        """Announce every interest that is neither announced nor covered by one that is."""
        if self.parent is None:
            return []
        return [
            self._announce(interest)
            for interest in list(self._interests())
            if interest.id not in self.announced and not self._is_covered(interest, by_known=False)
        ]

    def _is_covered(self, interest: Interest, *, by_known: bool) -> bool:
        return any(
            self.covers(other.interest, interest)
            for id, other in self.announced.items()
            if id != interest.id and (other.is_known or not by_known)
        )

    def _interests(self) -> Iterator[Interest]:
        yield from self.own.values()
        for held in self.below.values():
            yield from (each.interest for each in held.values())


def digest(held: Mapping[SubscriptionId, Held]) -> int:
    """A number for what a parent should have from a child: equal for equal ids and clocks."""
    words = (f"{id.origin}/{id.incarnation}/{id.seq}/{each.clock}" for id, each in held.items())
    parts = (hashlib.blake2b(word.encode(), digest_size=7).digest() for word in words)
    return sum(int.from_bytes(part, "big") for part in parts) & 0x7FFF_FFFF_FFFF_FFFF
