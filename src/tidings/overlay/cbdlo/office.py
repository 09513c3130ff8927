"""The topologies that one node is steward of: who asks, what is acknowledged, and merging with others.

A `Coordinator` keeps one tree. Here its node finds out which of its stewards a message is for,
says who has taken over from one that is no more, and has the later of two topologies of an
attribute become part of the earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from tidings.overlay.cbdlo.attribute_tree import Registration
from tidings.overlay.cbdlo.coordinator import Coordinator
from tidings.overlay.cbdlo.messages import (
    AbsorbTopology,
    DuplicateTopology,
    LeaseRenewed,
    NotCoordinator,
    PeerSuspected,
    Probe,
    Register,
    Registered,
    RenewLease,
    RequestDone,
    RevokePartition,
    Unregister,
)
from tidings.overlay.cbdlo.owned_partitions import OwnedPartitions
from tidings.overlay.cbdlo.replicas import RetiredTopologies
from tidings.overlay.messages import Message, NodeId, Peer, SubscriptionId
from tidings.overlay.random_graph.access_points import TreeId
from tidings.overlay.random_graph.partition import AttributeAxis, Cut
from tidings.overlay.retransmit import Requests
from tidings.overlay.router import Count, Effect, Send

if TYPE_CHECKING:
    from tidings.overlay.cbdlo.subscriber import FiledInterest, TopologyMembership

REGISTER_TRIES = 8  # Some 24 seconds; then the steward, or a member, is given up.

Move: TypeAlias = Callable[[AttributeAxis, TreeId, TreeId, float], list[Effect]]


class Coordinators:
    """All stewards of one node, by attribute.

    `own`, `members`, `estate` and `fates` are what the node has as a member, and `move`
    takes it from one topology to another.
    """

    def __init__(
        self,
        me: Peer,
        requests: Requests,
        own: dict[SubscriptionId, FiledInterest],
        members: dict[AttributeAxis, TopologyMembership],
        estate: OwnedPartitions,
        fates: RetiredTopologies,
        move: Move,
        *,
        fingers: bool,
    ) -> None:
        self.me, self._requests, self._own, self._members = me, requests, own, members
        self._estate, self._fates, self._move, self._fingers = estate, fates, move, fingers
        self.by_axis: dict[AttributeAxis, Coordinator] = {}
        self._founded = 0

    def found(self, axis: AttributeAxis, trusted_from: float) -> Coordinator:
        """Be the steward of a new topology; nothing is confirmed before it is trusted."""
        self._founded += 1
        tree = TreeId(self.me, self._founded)
        self.by_axis[axis] = coordinator = Coordinator(
            self.me, axis, tree, trusted_from=trusted_from, fingers=self._fingers
        )
        return coordinator

    def run(self, coordinator: Coordinator | None, now: float) -> list[Effect]:
        """Let a steward go on, and tell those whose requests are done."""
        if coordinator is None:
            return []
        effects = coordinator.go_on(self._caller(now), now)
        for to, request, id in coordinator.finished(now):
            answer = RequestDone(request) if id is None else Registered(request, coordinator.anchor(id))
            effects.append(Send(to, answer))
        return effects

    def mine(self, axis: AttributeAxis, tree: TreeId) -> Coordinator | None:
        """The steward of this very topology, if it is one of these."""
        coordinator = self.by_axis.get(axis)
        return coordinator if coordinator is not None and coordinator.tree == tree else None

    def asked(self, sender: NodeId, said: Register | Unregister | AbsorbTopology, now: float) -> list[Effect]:
        """Somebody wants to register or to go, or another steward to have its topology become part of this one."""
        coordinator = self.by_axis.get(said.axis)
        mine = coordinator is not None and (isinstance(said, AbsorbTopology) or coordinator.tree == said.tree)
        if coordinator is None or not mine or coordinator.absorbed_by is not None:
            return [
                Send(sender, NotCoordinator(said.request, said.axis, said.tree, self._successor(said.axis, said.tree)))
            ]
        match said:
            case Register(request, _, _, registration):
                if registration.peer.id == sender:
                    coordinator.register(registration, (sender, request, registration.interest.id), now)
            case Unregister(request, _, _, id):
                if id.origin == sender:
                    coordinator.unregister(id, (sender, request, None))
            case AbsorbTopology(request, _, _, registrations):
                self.take_in(coordinator, registrations, now)
                coordinator.confirm((sender, request, None))
        return self.run(coordinator, now)

    def take_in(self, coordinator: Coordinator, registrations: Iterable[Registration], now: float) -> None:
        """Register what another steward had, but of this node's own only what it still wants: nobody else would tell."""
        for each in registrations:
            if each.peer.id != self.me.id or each.interest.id in self._own:
                coordinator.register(each, None, now)

    def _successor(self, axis: AttributeAxis, tree: TreeId) -> TreeId | None:
        """What became of a topology, as far as is known here."""
        coordinator, member = self.by_axis.get(axis), self._members.get(axis)
        if coordinator is not None:
            return coordinator.absorbed_by or coordinator.tree
        known = self._fates.successor(axis, tree) or (member.tree if member else None)
        return known if known != tree else None

    def kept_up(self, sender: NodeId, said: RenewLease | PeerSuspected, now: float) -> list[Effect]:
        """A member renews what it has, or says that somebody does not answer."""
        coordinator = self.mine(said.axis, said.tree)
        if coordinator is None:
            successor = self._successor(said.axis, said.tree)
            if isinstance(said, PeerSuspected) or successor is None:
                return []
            return [Send(sender, DuplicateTopology(said.axis, successor))]
        if isinstance(said, PeerSuspected):
            about = ("probe", said.axis, said.tree, said.peer)
            if about in self._requests.about() or said.peer == self.me.id:
                return []
            life = coordinator.life_of(said.peer)
            return self._requests.send(said.peer, lambda n: Probe(n, life), about, now, REGISTER_TRIES)
        coordinator.heard(said.me, now)
        if said.complete:
            coordinator.renewed(said.me, said.ids)
        wrong = coordinator.compare(said.me, said.held) if said.complete else []
        anchor = coordinator.anchor(said.ids[0]) if said.ids else None
        answer = LeaseRenewed(said.axis, said.tree, coordinator.unknown(said.ids), anchor)
        vacate = [Send(sender, RevokePartition(0, said.axis, said.tree, low, epoch)) for low, epoch in wrong]
        return [Send(sender, answer), *vacate, *self.run(coordinator, now)]

    def acknowledged(self, axis: AttributeAxis, tree: TreeId, refused: Cut | None, now: float) -> list[Effect]:
        """One more answer to a round; `refused` is a sub-space whose owner lacks what the change builds on."""
        coordinator = self.mine(axis, tree)
        if coordinator is None:
            return []
        coordinator.resync(refused)
        return [*coordinator.acknowledged(self._caller(now)), *self.run(coordinator, now)]

    def doubt(self, axis: AttributeAxis, tree: TreeId, peer: NodeId, now: float) -> list[Effect]:
        """Somebody who looks after sub-spaces does not answer."""
        coordinator = self.mine(axis, tree)
        if coordinator is None:
            return []
        coordinator.doubt(peer)
        return self.run(coordinator, now)

    def rival(self, coordinator: Coordinator, other: TreeId, now: float) -> list[Effect]:
        """There is another topology for an attribute: the later one becomes part of the earlier."""
        axis = coordinator.axis
        if other == coordinator.tree or other.coordinator.id == self.me.id or self._fates.is_gone(axis, other, now):
            return []
        if other.order > coordinator.tree.order:
            return [Send(other.coordinator.id, DuplicateTopology(axis, coordinator.tree))]
        if coordinator.absorbed_by is not None:
            return []
        return [Count("topologies merged"), *coordinator.absorb_into(other, self._caller(now))]

    def superseded(self, coordinator: Coordinator, new: TreeId, now: float) -> list[Effect]:
        """A deputy has taken this steward for dead and its place: give it what has been registered here since."""
        if coordinator.absorbed_by is not None:
            return []
        self._fates.alive(coordinator.axis, new)
        return coordinator.absorb_into(new, self._caller(now))

    def absorbed(self, axis: AttributeAxis, tree: TreeId, merger: int, now: float) -> list[Effect]:
        """One more part of a topology has become part of another; with the last its members are sent there."""
        coordinator = self.mine(axis, tree)
        if (
            coordinator is None
            or coordinator.absorbed_by is None
            or coordinator.mergers != merger
            or not coordinator.absorbed()
        ):
            return []
        winner = coordinator.absorbed_by
        del self.by_axis[axis]
        return [*coordinator.moved(winner, self._caller(now)), *self._move(axis, tree, winner, now)]

    def not_absorbed(self, axis: AttributeAxis, tree: TreeId, merger: int, now: float) -> list[Effect]:
        """The other topology does not answer: this one stays."""
        coordinator = self.mine(axis, tree)
        if coordinator is None or coordinator.absorbed_by is None or coordinator.mergers != merger:
            return []
        self._fates.dead(axis, coordinator.absorbed_by, now)
        coordinator.stay()
        return self.run(coordinator, now)

    def retire(self, coordinator: Coordinator) -> None:
        """A topology without members, and without anybody who may yet come, ends."""
        member = self._members.get(coordinator.axis)
        if coordinator.is_empty and not any(coordinator.axis in own.axes for own in self._own.values()):
            del self.by_axis[coordinator.axis]
            self._estate.leave(coordinator.axis, coordinator.tree)
            if member is not None and member.tree == coordinator.tree:
                del self._members[coordinator.axis]

    def _caller(self, now: float) -> Callable[[NodeId, Callable[[int], Message], Hashable], list[Effect]]:
        return lambda to, make, about: self._requests.send(to, make, about, now)
