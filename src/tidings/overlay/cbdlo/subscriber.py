"""A member of CBDLO's topologies: what a node's own subscribers want, and where it is registered.

    a new interest   is there a topology?  → register with its steward              → confirmed
                     nobody knows of one   → found one, announce it to everybody    → confirmed after a while
    now and then     Renew, with all that is registered; what the steward lacks is registered again
    no answer        wait for a deputy to take the steward's place, then look for another topology

An interest is filed under several attributes, and confirmed, or ended, when it is so under all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Protocol

from tidings.overlay.cbdlo.attribute_tree import Registration
from tidings.overlay.cbdlo.messages import LeaseRenewed, PartitionRef, Register, RenewLease, Unregister
from tidings.overlay.cbdlo.office import REGISTER_TRIES, Coordinators
from tidings.overlay.cbdlo.owned_partitions import OwnedPartitions
from tidings.overlay.cbdlo.replicas import ReplicaStore, RetiredTopologies
from tidings.overlay.interest import Interest
from tidings.overlay.messages import Peer, SubscriptionId
from tidings.overlay.random_graph.access_points import AccessPoint, AccessTable, TreeId
from tidings.overlay.random_graph.partition import AttributeAxis, indexed_axes
from tidings.overlay.retransmit import Requests
from tidings.overlay.router import Completed, Count, Effect, Failed, Send, WakeAt

OWN_MAX = 65_536  # Interests of one node.
NAMED_MAX = 4096  # Interests, or sub-spaces, in one message.
TRUST_S = 4.0  # How long a founder waits for word of an older topology before it confirms anything.
FOUND_S = 2.0  # Those who find no topology wait up to so long, each at random, before they found one.
SEEK_S = 1.0  # How long a search takes at most, as a rule.
ORPHAN_S = 10.0  # How long a member waits for a deputy to take a lost steward's place.
RENEWALS_MISSED_MAX = 3


class LowerLayer(Protocol):
    """What the upper layer asks of the lower."""

    def announce(self, point: AccessPoint) -> list[Effect]:
        """Tell everybody of a new topology."""

    def search(self, axis: AttributeAxis) -> list[Effect]:
        """Send out walks for an attribute's topology; `hear` is called if they find one."""

    def is_ready(self) -> bool:
        """Whether the node has come into the network."""


@dataclass(slots=True)
class FiledInterest:
    """An interest of this node, and where it is still to be confirmed, or to be taken back."""

    interest: Interest
    axes: list[AttributeAxis]
    open: dict[AttributeAxis, None]
    asked: bool = True


@dataclass(slots=True)
class TopologyMembership:
    """This node as a member, or a future member, of an attribute's topology."""

    tree: TreeId | None = None
    anchor: PartitionRef | None = None
    missed: int = 0  # Renewals without an answer.
    attempt: int = 0  # Counts what is waited for, so that old wakes are recognised.


class SubscriberRole:
    """One node's own interests, and its place in the topology of each attribute they are filed under."""

    def __init__(
        self,
        me: Peer,
        lower: LowerLayer,
        table: AccessTable,
        requests: Requests,
        rng: Random,
        estate: OwnedPartitions,
        copies: ReplicaStore,
        fates: RetiredTopologies,
        *,
        indexed_max: int | None,
        fingers: bool,
    ) -> None:
        self.me, self.indexed_max = me, indexed_max
        self._lower, self._table, self._requests, self._rng = lower, table, requests, rng
        self._estate, self._copies, self._fates = estate, copies, fates
        self.own: dict[SubscriptionId, FiledInterest] = {}
        self._ending: dict[SubscriptionId, FiledInterest] = {}
        self.members: dict[AttributeAxis, TopologyMembership] = {}
        self.office = Coordinators(me, requests, self.own, self.members, estate, fates, self.move, fingers=fingers)

    @property
    def is_ending(self) -> bool:
        """Whether a steward has yet to hear that an interest was taken back."""
        return bool(self._ending)

    # ── Subscribing ──────────────────────────────────────────────────────────

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        """File an interest under its attributes; under those of an earlier one with its id that it no longer has, end it."""
        old = self.own.get(interest.id)
        if old is None and len(self.own) >= OWN_MAX:
            return [Failed("subscribe", f"a node has at most {OWN_MAX} interests", interest.id)]
        axes = indexed_axes(interest, self.indexed_max)
        self.own[interest.id] = own = FiledInterest(interest, axes, dict.fromkeys(axes))
        dropped = [axis for axis in old.axes if axis not in axes] if old else []
        effects = [effect for axis in dropped for effect in self._unregister(interest.id, axis, now)]
        return [*effects, *(effect for axis in axes for effect in self._register(own, axis, now))]

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        """Take an interest back everywhere."""
        own = self.own.pop(id, None)
        if own is None:
            return [Completed("unsubscribe", id)] if id not in self._ending else []
        own.open = dict.fromkeys(own.axes)
        self._ending[id] = own
        return [effect for axis in own.axes for effect in self._unregister(id, axis, now)]

    def _register(self, own: FiledInterest, axis: AttributeAxis, now: float) -> list[Effect]:
        member = self.members.setdefault(axis, TopologyMembership())
        if member.tree is None:
            return self._seek(axis, member, now)
        tree, registration = member.tree, Registration(self.me, own.interest)
        return self._requests.send(
            tree.coordinator.id,
            lambda n: Register(n, axis, tree, registration),
            ("register", own.interest.id, axis, tree),
            now,
            REGISTER_TRIES,
        )

    def _unregister(self, id: SubscriptionId, axis: AttributeAxis, now: float) -> list[Effect]:
        # A registration that is not confirmed yet would be sent again, after this, and stand for ever.
        self._requests.cancel(lambda about: about[:3] == ("register", id, axis))
        member = self.members.get(axis)
        if member is None or member.tree is None:
            return self.ended(id, axis)
        tree = member.tree
        about = ("unregister", id, axis, tree)
        return self._requests.send(
            tree.coordinator.id, lambda n: Unregister(n, axis, tree, id), about, now, REGISTER_TRIES
        )

    def _filed(self, axis: AttributeAxis) -> list[FiledInterest]:
        """This node's interests under an attribute."""
        return [own for own in self.own.values() if axis in own.axes]

    def _is_wanted(self, axis: AttributeAxis) -> bool:
        return any(axis in own.axes for own in self.own.values())  # As a rule the first is: no list for this.

    # ── Looking for a topology ───────────────────────────────────────────────

    def _seek(self, axis: AttributeAxis, member: TopologyMembership, now: float) -> list[Effect]:
        """Look for a topology: in the table, then by walks; if there is none, found one after a while."""
        for point in self._table.at(axis):
            if not self._fates.is_gone(axis, point.tree, now):
                return self.adopt(axis, point.tree, now)
        if member.attempt:
            return []  # It is being looked for.
        member.attempt += 1
        wait_s = SEEK_S + self._rng.uniform(0, FOUND_S)
        return [*self._lower.search(axis), WakeAt(now + wait_s, ("found", axis, member.attempt))]

    def seek_anew(self, axis: AttributeAxis, now: float) -> list[Effect]:
        """The topology is lost for good: look for another, if anything is to be filed in it."""
        member = self.members[axis]
        if member.tree is not None:
            self._table.drop_tree(axis, member.tree)
            self._estate.leave(axis, member.tree)
        member.tree, member.anchor, member.attempt = None, None, 0
        if not self._is_wanted(axis):
            del self.members[axis]
            return []
        return self._seek(axis, member, now)

    def found(self, axis: AttributeAxis, now: float) -> list[Effect]:
        """Nobody knows of a topology: be its steward, and tell everybody."""
        member = self.members[axis]
        if not self._is_wanted(axis):
            del self.members[axis]
            return []
        if not self._lower.is_ready():
            return [WakeAt(now + SEEK_S, ("found", axis, member.attempt))]
        coordinator = self.office.found(axis, now + TRUST_S)
        point = AccessPoint(axis, self.me, coordinator.tree)
        trusted = WakeAt(coordinator.trusted_from, ("trusted", axis))
        return [
            Count("topologies founded"),
            trusted,
            *self._lower.announce(point),
            *self.adopt(axis, coordinator.tree, now),
        ]

    def adopt(self, axis: AttributeAxis, tree: TreeId, now: float) -> list[Effect]:
        """Become a member of a topology, with all interests."""
        member = self.members.setdefault(axis, TopologyMembership())
        member.tree, member.missed = tree, 0
        member.attempt += 1
        mine = self._filed(axis)
        return [effect for own in mine for effect in self._register(own, axis, now)]

    # ── What stewards say ────────────────────────────────────────────────────

    def confirmed(
        self, id: SubscriptionId, axis: AttributeAxis, tree: TreeId, anchor: PartitionRef | None
    ) -> list[Effect]:
        """A steward has an interest; once all have it, so is it told."""
        own, member = self.own.get(id), self.members.get(axis)
        if own is None or member is None or member.tree != tree:
            return []
        member.anchor = anchor or member.anchor
        own.open.pop(axis, None)
        if own.open or not own.asked:
            return []
        own.asked = False
        return [Completed("subscribe", id)]

    def ended(self, id: SubscriptionId, axis: AttributeAxis) -> list[Effect]:
        """A steward has let go of an interest, or will not answer; once all have, so is it told."""
        own = self._ending.get(id)
        if not self._is_wanted(axis):
            self._leave_topology(axis)
        if own is None:
            return []
        own.open.pop(axis, None)
        if own.open:
            return []
        del self._ending[id]
        return [Completed("unsubscribe", id)]

    def _leave_topology(self, axis: AttributeAxis) -> None:
        """Nothing of this node's is filed there any more; what it looks after is taken from it by the steward."""
        member = self.members.get(axis)
        if member is not None and axis not in self.office.by_axis and not self._estate.trees(axis):
            del self.members[axis]

    def elsewhere(
        self, what: str, id: SubscriptionId, axis: AttributeAxis, tree: TreeId, new: TreeId | None, now: float
    ) -> list[Effect]:
        """Whoever was asked is not the steward, and perhaps knows who is."""
        if what == "unregister":
            member = self.members.get(axis)
            if member is not None and new is not None and not self._fates.is_gone(axis, new, now):
                member.tree = new
                return self._unregister(id, axis, now)
            return self.ended(id, axis)
        if new is None:
            return self.orphaned(axis, tree, now)
        return self.move(axis, tree, new, now)

    def move(self, axis: AttributeAxis, old: TreeId, new: TreeId, now: float) -> list[Effect]:
        """A topology has become part of another."""
        coordinator = self.office.mine(axis, old)
        if coordinator is not None:
            return self.office.superseded(coordinator, new, now)
        self._table.drop_tree(axis, old)
        self._fates.moved(axis, old, new)
        self._copies.release(axis, old)
        self._estate.leave(axis, old)
        member = self.members.get(axis)
        if member is None or member.tree not in (old, None):
            return []
        return self.adopt(axis, new, now)

    # ── Staying a member ─────────────────────────────────────────────────────

    def renew_all(self, now: float) -> list[Effect]:
        """Tell every steward what it should have of this node, and that this node is there."""
        effects: list[Effect] = []
        for axis, member in list(self.members.items()):
            if member.tree is None:
                continue
            ids = [own.interest.id for own in self._filed(axis)]
            if not ids and not self._estate.trees(axis) and axis not in self.office.by_axis:
                del self.members[axis]
                continue
            member.missed += 1
            if member.missed > RENEWALS_MISSED_MAX:
                effects += self.orphaned(axis, member.tree, now)
            held = self._estate.held(axis, member.tree)
            whole = max(len(ids), len(held)) <= NAMED_MAX
            said = RenewLease(axis, member.tree, self.me, tuple(ids[:NAMED_MAX]), tuple(held[:NAMED_MAX]), whole)
            effects.append(Send(member.tree.coordinator.id, said))
        return effects

    def renewed(self, said: LeaseRenewed, now: float) -> list[Effect]:
        """A steward is there, and says what it did not know of."""
        member = self.members.get(said.axis)
        if member is None or member.tree != said.tree:
            return []
        member.missed, member.anchor = 0, said.anchor or member.anchor
        self._fates.alive(said.axis, said.tree)
        member.attempt += 1  # Whoever was waiting for another steward need not.
        unknown = [self.own[id] for id in said.unknown if id in self.own]
        return [effect for own in unknown for effect in self._register(own, said.axis, now)]

    def orphaned(self, axis: AttributeAxis, tree: TreeId, now: float) -> list[Effect]:
        """The steward does not answer: wait for a deputy to take its place, then look for another topology."""
        member = self.members.get(axis)
        if member is None or member.tree != tree or self._fates.is_gone(axis, tree, now):
            return []
        self._fates.dead(axis, tree, now)
        member.attempt += 1
        return [Count("stewards lost"), WakeAt(now + ORPHAN_S, ("orphan", axis, tree, member.attempt))]
