"""The topologies that one node is steward of: who asks, what is acknowledged, and merging with others.

A `Steward` keeps one tree. Here its node finds out which of its stewards a message is for,
says who has taken over from one that is no more, and has the later of two topologies of an
attribute become part of the earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from tidings.overlay.cbdlo.attribute_tree import Registration
from tidings.overlay.cbdlo.coordinator import Steward
from tidings.overlay.cbdlo.messages import (
    Absorb,
    Done,
    Elsewhere,
    Missing,
    Probe,
    Register,
    Registered,
    Renew,
    Renewed,
    Rival,
    Unregister,
    Vacate,
)
from tidings.overlay.cbdlo.owned_partitions import Estate
from tidings.overlay.cbdlo.replicas import Fates
from tidings.overlay.messages import Message, NodeId, Peer, SubscriptionId
from tidings.overlay.random_graph.access_points import Tree
from tidings.overlay.random_graph.partition import Axis, Cut
from tidings.overlay.retransmit import Requests
from tidings.overlay.router import Count, Effect, Send

if TYPE_CHECKING:
    from tidings.overlay.cbdlo.subscriber import Member, Own

REGISTER_TRIES = 8  # Some 24 seconds; then the steward, or a member, is given up.

Move: TypeAlias = Callable[[Axis, Tree, Tree, float], list[Effect]]


class Office:
    """All stewards of one node, by attribute.

    `own`, `members`, `estate` and `fates` are what the node has as a member, and `move`
    takes it from one topology to another.
    """

    def __init__(
        self,
        me: Peer,
        requests: Requests,
        own: dict[SubscriptionId, Own],
        members: dict[Axis, Member],
        estate: Estate,
        fates: Fates,
        move: Move,
        *,
        fingers: bool,
    ) -> None:
        self.me, self._requests, self._own, self._members = me, requests, own, members
        self._estate, self._fates, self._move, self._fingers = estate, fates, move, fingers
        self.by_axis: dict[Axis, Steward] = {}
        self._founded = 0

    def found(self, axis: Axis, trusted_from: float) -> Steward:
        """Be the steward of a new topology; nothing is confirmed before it is trusted."""
        self._founded += 1
        tree = Tree(self.me, self._founded)
        self.by_axis[axis] = steward = Steward(self.me, axis, tree, trusted_from=trusted_from, fingers=self._fingers)
        return steward

    def run(self, steward: Steward | None, now: float) -> list[Effect]:
        """Let a steward go on, and tell those whose requests are done."""
        if steward is None:
            return []
        effects = steward.go_on(self._caller(now), now)
        for to, call, id in steward.finished(now):
            answer = Done(call) if id is None else Registered(call, steward.anchor(id))
            effects.append(Send(to, answer))
        return effects

    def mine(self, axis: Axis, tree: Tree) -> Steward | None:
        """The steward of this very topology, if it is one of these."""
        steward = self.by_axis.get(axis)
        return steward if steward is not None and steward.tree == tree else None

    def asked(self, sender: NodeId, said: Register | Unregister | Absorb, now: float) -> list[Effect]:
        """Somebody wants to register or to go, or another steward to have its topology become part of this one."""
        steward = self.by_axis.get(said.axis)
        mine = steward is not None and (isinstance(said, Absorb) or steward.tree == said.tree)
        if steward is None or not mine or steward.absorbed_by is not None:
            return [Send(sender, Elsewhere(said.call, said.axis, said.tree, self._successor(said.axis, said.tree)))]
        match said:
            case Register(call, _, _, registration):
                if registration.peer.id == sender:
                    steward.register(registration, (sender, call, registration.interest.id), now)
            case Unregister(call, _, _, id):
                if id.origin == sender:
                    steward.unregister(id, (sender, call, None))
            case Absorb(call, _, _, registrations):
                self.take_in(steward, registrations, now)
                steward.confirm((sender, call, None))
        return self.run(steward, now)

    def take_in(self, steward: Steward, registrations: Iterable[Registration], now: float) -> None:
        """Register what another steward had, but of this node's own only what it still wants: nobody else would tell."""
        for each in registrations:
            if each.peer.id != self.me.id or each.interest.id in self._own:
                steward.register(each, None, now)

    def _successor(self, axis: Axis, tree: Tree) -> Tree | None:
        """What became of a topology, as far as is known here."""
        steward, member = self.by_axis.get(axis), self._members.get(axis)
        if steward is not None:
            return steward.absorbed_by or steward.tree
        known = self._fates.successor(axis, tree) or (member.tree if member else None)
        return known if known != tree else None

    def kept_up(self, sender: NodeId, said: Renew | Missing, now: float) -> list[Effect]:
        """A member renews what it has, or says that somebody does not answer."""
        steward = self.mine(said.axis, said.tree)
        if steward is None:
            successor = self._successor(said.axis, said.tree)
            if isinstance(said, Missing) or successor is None:
                return []
            return [Send(sender, Rival(said.axis, successor))]
        if isinstance(said, Missing):
            about = ("probe", said.axis, said.tree, said.peer)
            if about in self._requests.about() or said.peer == self.me.id:
                return []
            life = steward.life_of(said.peer)
            return self._requests.send(said.peer, lambda n: Probe(n, life), about, now, REGISTER_TRIES)
        steward.heard(said.me, now)
        if said.complete:
            steward.renewed(said.me, said.ids)
        wrong = steward.compare(said.me, said.held) if said.complete else []
        anchor = steward.anchor(said.ids[0]) if said.ids else None
        answer = Renewed(said.axis, said.tree, steward.unknown(said.ids), anchor)
        vacate = [Send(sender, Vacate(0, said.axis, said.tree, low, reign)) for low, reign in wrong]
        return [Send(sender, answer), *vacate, *self.run(steward, now)]

    def acknowledged(self, axis: Axis, tree: Tree, refused: Cut | None, now: float) -> list[Effect]:
        """One more answer to a round; `refused` is a sub-space whose owner lacks what the change builds on."""
        steward = self.mine(axis, tree)
        if steward is None:
            return []
        steward.resync(refused)
        return [*steward.acknowledged(self._caller(now)), *self.run(steward, now)]

    def doubt(self, axis: Axis, tree: Tree, peer: NodeId, now: float) -> list[Effect]:
        """Somebody who looks after sub-spaces does not answer."""
        steward = self.mine(axis, tree)
        if steward is None:
            return []
        steward.doubt(peer)
        return self.run(steward, now)

    def rival(self, steward: Steward, other: Tree, now: float) -> list[Effect]:
        """There is another topology for an attribute: the later one becomes part of the earlier."""
        axis = steward.axis
        if other == steward.tree or other.steward.id == self.me.id or self._fates.is_gone(axis, other, now):
            return []
        if other.order > steward.tree.order:
            return [Send(other.steward.id, Rival(axis, steward.tree))]
        if steward.absorbed_by is not None:
            return []
        return [Count("topologies merged"), *steward.absorb_into(other, self._caller(now))]

    def superseded(self, steward: Steward, new: Tree, now: float) -> list[Effect]:
        """A deputy has taken this steward for dead and its place: give it what has been registered here since."""
        if steward.absorbed_by is not None:
            return []
        self._fates.alive(steward.axis, new)
        return steward.absorb_into(new, self._caller(now))

    def absorbed(self, axis: Axis, tree: Tree, merger: int, now: float) -> list[Effect]:
        """One more part of a topology has become part of another; with the last its members are sent there."""
        steward = self.mine(axis, tree)
        if steward is None or steward.absorbed_by is None or steward.mergers != merger or not steward.absorbed():
            return []
        winner = steward.absorbed_by
        del self.by_axis[axis]
        return [*steward.moved(winner, self._caller(now)), *self._move(axis, tree, winner, now)]

    def not_absorbed(self, axis: Axis, tree: Tree, merger: int, now: float) -> list[Effect]:
        """The other topology does not answer: this one stays."""
        steward = self.mine(axis, tree)
        if steward is None or steward.absorbed_by is None or steward.mergers != merger:
            return []
        self._fates.dead(axis, steward.absorbed_by, now)
        steward.stay()
        return self.run(steward, now)

    def retire(self, steward: Steward) -> None:
        """A topology without members, and without anybody who may yet come, ends."""
        member = self._members.get(steward.axis)
        if steward.is_empty and not any(steward.axis in own.axes for own in self._own.values()):
            del self.by_axis[steward.axis]
            self._estate.leave(steward.axis, steward.tree)
            if member is not None and member.tree == steward.tree:
                del self._members[steward.axis]

    def _caller(self, now: float) -> Callable[[NodeId, Callable[[int], Message], Hashable], list[Effect]]:
        return lambda to, make, about: self._requests.send(to, make, about, now)
