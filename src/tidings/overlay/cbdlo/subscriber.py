"""The subscriber role of a node: its own interests, and its memberships in the topologies they are indexed in.

    a new interest   a topology is known      → register with its coordinator       → confirmed
                     no topology is found     → found one, announce it to all nodes → confirmed once it is trusted
    periodically     RenewLease names all registered interests; the member registers again what the coordinator lacks
    no answer        wait for a replica to take over, then search for another topology

An interest is indexed under several attributes. It is confirmed, or withdrawn, when it is so under all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol

from tidings.overlay.cbdlo.attribute_tree import Registration
from tidings.overlay.cbdlo.coordinator import REGISTER_TRIES
from tidings.overlay.cbdlo.messages import LeaseRenewed, PartitionRef, Register, RenewLease, Unregister
from tidings.overlay.cbdlo.options import CbdloOptions
from tidings.overlay.cbdlo.owned_partitions import OwnedPartitions
from tidings.overlay.cbdlo.replicas import RetiredTopologies
from tidings.overlay.interest import Interest
from tidings.overlay.messages import NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.random_graph.access_points import AccessTable, TreeId
from tidings.overlay.random_graph.partition import AttributeAxis, indexed_axes
from tidings.overlay.retransmit import Requests
from tidings.overlay.router import Completed, Count, Effect, Failed, Send, WakeAt

INTERESTS_MAX = 65_536  # Of one node.
NAMED_MAX = 4096  # Interests, or partitions, in one message.
FOUND_S = 2.0  # A node that finds no topology waits a random time of at most this before it founds one.
SEARCH_S = 1.0  # How long a search takes at most, as a rule.
TAKE_OVER_S = 10.0  # How long a member waits for a replica to take over from a failed coordinator.
RENEWALS_MISSED_MAX = 3


def topology_number(node: NodeId, coordinators: int) -> int:
    """Which of an attribute's topologies a node registers in: about as many nodes in each, whatever they want.

    By node and not by interest, so that no two topologies tell one node of the same event.

    >>> [topology_number(f"n{number}", 4) for number in range(8)]
    [2, 1, 2, 1, 0, 0, 2, 1]
    """
    return int.from_bytes(hashlib.blake2b(node.encode(), digest_size=8).digest()) % coordinators


class TopologySearch(Protocol):
    """What a subscriber asks of the lower layer."""

    @property
    def table(self) -> AccessTable:
        """The access points that this node knows."""

    def search(self, axis: AttributeAxis) -> list[Effect]:
        """Start random walks for an attribute's topology; the node learns of an access point if they find one."""


@dataclass(slots=True)
class IndexedInterest:
    """An interest of this node, with the attributes it is indexed under and those that are not confirmed yet."""

    interest: Interest
    axes: list[AttributeAxis]
    unconfirmed: dict[AttributeAxis, None]
    is_new: bool = True
    """Whether `Completed` has yet to be reported."""


@dataclass(slots=True)
class TopologyMembership:
    """The membership, or future membership, of this node in the topology of an attribute."""

    tree: TreeId | None = None
    anchor: PartitionRef | None = None
    missed: int = 0  # Renewals without an answer.
    attempt: int = 0  # Numbers what the node waits for, so that it recognises old wakes.


class SubscriberRole:
    """The interests of one node, and its membership in the topology of each attribute they are indexed under.

    `coordinates` tells whether this node is the coordinator of an attribute's topology.
    """

    def __init__(
        self,
        me: Peer,
        lower: TopologySearch,
        requests: Requests,
        rng: Random,
        owned: OwnedPartitions,
        retired: RetiredTopologies,
        *,
        coordinates: Callable[[AttributeAxis], bool],
        options: CbdloOptions,
    ) -> None:
        self.me, self.indexed_max, self._number = me, options.indexed, topology_number(me.id, options.coordinators)
        self._lower, self._requests, self._rng = lower, requests, rng
        self._owned, self._retired, self._coordinates = owned, retired, coordinates
        self.interests: dict[SubscriptionId, IndexedInterest] = {}
        self.memberships: dict[AttributeAxis, TopologyMembership] = {}
        self._withdrawing: dict[SubscriptionId, IndexedInterest] = {}

    @property
    def is_withdrawing(self) -> bool:
        """Whether a coordinator has yet to confirm that it removed an interest."""
        return bool(self._withdrawing)

    def matches(self, packet: Packet) -> bool:
        """Whether any interest of this node matches."""
        return any(each.interest.matches(packet) for each in self.interests.values())

    def has_interest(self, id: SubscriptionId) -> bool:
        return id in self.interests

    def is_indexed(self, axis: AttributeAxis) -> bool:
        """Whether any interest of this node is indexed under an attribute."""
        return any(axis in each.axes for each in self.interests.values())  # As a rule the first is: no list for this.

    def topology_of(self, axis: AttributeAxis) -> TreeId | None:
        membership = self.memberships.get(axis)
        return membership.tree if membership else None

    # ── Subscribing ──────────────────────────────────────────────────────────

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        """Register an interest under its attributes, and remove an earlier one of the same id from all others."""
        old = self.interests.get(interest.id)
        if old is None and len(self.interests) >= INTERESTS_MAX:
            return [Failed("subscribe", f"a node has at most {INTERESTS_MAX} interests", interest.id)]
        axes = self._axes_of(interest)
        self.interests[interest.id] = indexed = IndexedInterest(interest, axes, dict.fromkeys(axes))
        dropped = [axis for axis in old.axes if axis not in axes] if old else []
        effects = [effect for axis in dropped for effect in self._unregister(interest.id, axis, now)]
        return [*effects, *(effect for axis in axes for effect in self._register(indexed, axis, now))]

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        """Withdraw an interest from all topologies."""
        indexed = self.interests.pop(id, None)
        if indexed is None:
            return [Completed("unsubscribe", id)] if id not in self._withdrawing else []
        indexed.unconfirmed = dict.fromkeys(indexed.axes)
        self._withdrawing[id] = indexed
        return [effect for axis in indexed.axes for effect in self._unregister(id, axis, now)]

    def _axes_of(self, interest: Interest) -> list[AttributeAxis]:
        """The attributes that an interest is indexed under, in the topology of each that is this node's."""
        return [axis._replace(number=self._number) for axis in indexed_axes(interest, self.indexed_max)]

    def _register(self, indexed: IndexedInterest, axis: AttributeAxis, now: float) -> list[Effect]:
        membership = self.memberships.setdefault(axis, TopologyMembership())
        if membership.tree is None:
            return self._search(axis, membership, now)
        tree, registration = membership.tree, Registration(self.me, indexed.interest)
        return self._requests.send(
            tree.coordinator.id,
            lambda n: Register(n, axis, tree, registration),
            ("register", indexed.interest.id, axis, tree),
            now,
            REGISTER_TRIES,
        )

    def _unregister(self, id: SubscriptionId, axis: AttributeAxis, now: float) -> list[Effect]:
        # An unconfirmed registration would be retransmitted after this, and then never be removed.
        self._requests.cancel(lambda about: about[:3] == ("register", id, axis))
        tree = self.topology_of(axis)
        if tree is None:
            return self.unregistered(id, axis)
        about = ("unregister", id, axis, tree)
        return self._requests.send(
            tree.coordinator.id, lambda n: Unregister(n, axis, tree, id), about, now, REGISTER_TRIES
        )

    def _indexed_under(self, axis: AttributeAxis) -> list[IndexedInterest]:
        return [each for each in self.interests.values() if axis in each.axes]

    # ── Searching for a topology ─────────────────────────────────────────────

    def _search(self, axis: AttributeAxis, membership: TopologyMembership, now: float) -> list[Effect]:
        """Look into the table, then start random walks; a wake follows, to found a topology if they find none."""
        for point in self._lower.table.at(axis):
            if not self._retired.is_retired(axis, point.tree, now):
                return self.adopt(axis, point.tree, now)
        if membership.attempt:
            return []  # A search is under way.
        membership.attempt += 1
        wait_s = SEARCH_S + self._rng.uniform(0, FOUND_S)
        return [*self._lower.search(axis), WakeAt(now + wait_s, ("found", axis, membership.attempt))]

    def search_again(self, axis: AttributeAxis, tree: TreeId, attempt: int, now: float) -> list[Effect]:
        """No replica has taken over from the coordinator of this topology: search for another topology."""
        membership = self.memberships.get(axis)
        if membership is None or membership.attempt != attempt or membership.tree != tree:
            return []
        self._lower.table.drop_tree(axis, tree)
        self._owned.leave(axis, tree)
        membership.tree, membership.anchor, membership.attempt = None, None, 0
        if not self.is_indexed(axis):
            del self.memberships[axis]
            return []
        return self._search(axis, membership, now)

    def should_found(self, axis: AttributeAxis, attempt: int) -> bool:
        """Whether this search has found no topology, and one is still needed."""
        membership = self.memberships.get(axis)
        if membership is None or membership.attempt != attempt or membership.tree:
            return False
        if not self.is_indexed(axis):
            del self.memberships[axis]
            return False
        return True

    def adopt(self, axis: AttributeAxis, tree: TreeId, now: float) -> list[Effect]:
        """Become a member of a topology: register all interests that are indexed under the attribute."""
        membership = self.memberships.setdefault(axis, TopologyMembership())
        membership.tree, membership.missed = tree, 0
        membership.attempt += 1
        return [effect for each in self._indexed_under(axis) for effect in self._register(each, axis, now)]

    def moved(self, axis: AttributeAxis, old: TreeId, new: TreeId, now: float) -> list[Effect]:
        """Another topology has replaced one: move there if this node is a member."""
        membership = self.memberships.get(axis)
        if membership is None or membership.tree not in (old, None):
            return []
        return self.adopt(axis, new, now)

    # ── Answers of coordinators ──────────────────────────────────────────────

    def registered(
        self, id: SubscriptionId, axis: AttributeAxis, tree: TreeId, anchor: PartitionRef | None
    ) -> list[Effect]:
        """A coordinator has registered an interest; report it once all have."""
        indexed, membership = self.interests.get(id), self.memberships.get(axis)
        if indexed is None or membership is None or membership.tree != tree:
            return []
        membership.anchor = anchor or membership.anchor
        indexed.unconfirmed.pop(axis, None)
        if indexed.unconfirmed or not indexed.is_new:
            return []
        indexed.is_new = False
        return [Completed("subscribe", id)]

    def unregistered(self, id: SubscriptionId, axis: AttributeAxis) -> list[Effect]:
        """A coordinator has removed an interest, or does not answer; report it once this is so of all."""
        indexed = self._withdrawing.get(id)
        if not self.is_indexed(axis):
            self._leave_topology(axis)
        if indexed is None:
            return []
        indexed.unconfirmed.pop(axis, None)
        if indexed.unconfirmed:
            return []
        del self._withdrawing[id]
        return [Completed("unsubscribe", id)]

    def unregister_elsewhere(
        self, id: SubscriptionId, axis: AttributeAxis, new: TreeId | None, now: float
    ) -> list[Effect]:
        """The node that was asked to remove an interest is not the coordinator; it may know the present topology."""
        membership = self.memberships.get(axis)
        if membership is not None and new is not None and not self._retired.is_retired(axis, new, now):
            membership.tree = new
            return self._unregister(id, axis, now)
        return self.unregistered(id, axis)

    def _leave_topology(self, axis: AttributeAxis) -> None:
        """End a membership, unless other members depend on this node: the coordinator revokes its partitions first."""
        if axis in self.memberships and not self._has_duties(axis):
            del self.memberships[axis]

    def _has_duties(self, axis: AttributeAxis) -> bool:
        return self._coordinates(axis) or bool(self._owned.trees(axis))

    # ── Leases ───────────────────────────────────────────────────────────────

    def renew_leases(self, now: float) -> list[Effect]:
        """Report to every coordinator that this node is alive, and what the coordinator should have of it."""
        effects: list[Effect] = []
        for axis, membership in list(self.memberships.items()):
            if membership.tree is None:
                continue
            ids = [each.interest.id for each in self._indexed_under(axis)]
            if not ids and not self._has_duties(axis):
                del self.memberships[axis]
                continue
            membership.missed += 1
            if membership.missed > RENEWALS_MISSED_MAX:
                effects += self.coordinator_lost(axis, membership.tree, now)
            effects.append(Send(membership.tree.coordinator.id, self._renewal(axis, membership.tree, ids)))
        return effects

    def _renewal(self, axis: AttributeAxis, tree: TreeId, ids: list[SubscriptionId]) -> RenewLease:
        owned = self._owned.summary(axis, tree)
        complete = max(len(ids), len(owned)) <= NAMED_MAX
        return RenewLease(axis, tree, self.me, tuple(ids[:NAMED_MAX]), tuple(owned[:NAMED_MAX]), complete)

    def lease_renewed(self, message: LeaseRenewed, now: float) -> list[Effect]:
        """A coordinator is alive: register the interests that it does not know."""
        membership = self.memberships.get(message.axis)
        if membership is None or membership.tree != message.tree:
            return []
        membership.missed, membership.anchor = 0, message.anchor or membership.anchor
        self._retired.alive(message.axis, message.tree)
        membership.attempt += 1  # Cancels the wait for a replica to take over.
        unknown = [self.interests[id] for id in message.unknown if id in self.interests]
        return [effect for each in unknown for effect in self._register(each, message.axis, now)]

    def coordinator_lost(self, axis: AttributeAxis, tree: TreeId, now: float) -> list[Effect]:
        """The coordinator does not answer: wait for a replica to take over, then search for another topology."""
        membership = self.memberships.get(axis)
        if membership is None or membership.tree != tree or self._retired.is_retired(axis, tree, now):
            return []
        self._retired.unreachable(axis, tree, now)
        membership.attempt += 1
        return [Count("coordinators lost"), WakeAt(now + TAKE_OVER_S, ("orphan", axis, tree, membership.attempt))]
