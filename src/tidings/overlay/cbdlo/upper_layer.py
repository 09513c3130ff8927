"""The upper layer of CBDLO at one node: its own interests, and the attributes it is steward or deputy of.

A node may play all parts at once:

    a member    registers what its own subscribers want (`membership`)
    an owner    looks after sub-spaces at whose cuts it has interests (`estate`)
    a deputy    keeps copies for a steward, and takes its place if it dies (`deputies`)
    a steward   of what it has founded or taken over (`office`, `stewardship`)

Two topologies of one attribute come about when two nodes found one at once, when a
network is split, or when a steward is taken for dead. Whoever hears of both tells the
steward of the later one, which hands everything to the other.
"""

from __future__ import annotations

from random import Random
from typing import Any

from tidings.overlay.cbdlo.coordinator import Steward
from tidings.overlay.cbdlo.messages import (
    Absorb,
    Copy,
    Done,
    Elsewhere,
    Inherit,
    Missing,
    Moved,
    Ping,
    Place,
    Pong,
    Ref,
    Refused,
    Register,
    Registered,
    Renew,
    Renewed,
    Rival,
    Unregister,
    Vacate,
)
from tidings.overlay.cbdlo.owned_partitions import SPACES_MAX, Estate, Holding, owners_of
from tidings.overlay.cbdlo.replicas import SILENT_BEATS, Copies, Fates
from tidings.overlay.cbdlo.subscriber import NAMED_MAX, OWN_MAX, LowerLayer, Membership
from tidings.overlay.interest import Interest
from tidings.overlay.messages import Message, NodeId, Packet, Peer, SubscriptionId
from tidings.overlay.random_graph.access_points import AccessPoint, AccessTable, Tree
from tidings.overlay.random_graph.partition import BOTTOM, Axis, Cut
from tidings.overlay.retransmit import Pending, Requests
from tidings.overlay.router import Count, Effect, Send

RENEW_BEATS = 5  # A member says so often that it is still there.
ASK_STEWARD_TRIES = 3  # How often an event is tried by the links of the tree before its way is left to the steward.


class Topologies:
    """All that one node has to do with the topologies of attributes."""

    def __init__(
        self,
        me: Peer,
        lower: LowerLayer,
        table: AccessTable,
        requests: Requests,
        rng: Random,
        *,
        indexed_max: int | None,
        fingers: bool,
    ) -> None:
        self.me, self._lower, self._requests = me, lower, requests
        self.estate = Estate(fingers=fingers)
        self.copies = Copies()
        self._fates = Fates()
        self.membership = Membership(
            me, lower, table, requests, rng, self.estate, self.copies, self._fates,
            indexed_max=indexed_max, fingers=fingers,
        )  # fmt: skip
        self.own, self.members = self.membership.own, self.membership.members
        self.office = self.membership.office
        self.stewards = self.office.by_axis
        self._silent: dict[NodeId, int] = {}
        self._beats = rng.randrange(RENEW_BEATS)

    # ── Wanting ──────────────────────────────────────────────────────────────

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        return self.membership.subscribe(interest, now)

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        return self.membership.unsubscribe(id, now)

    def wants(self, packet: Packet) -> bool:
        """Whether any of this node's interests matches."""
        return any(own.interest.matches(packet) for own in self.own.values())

    def is_member(self, axis: Axis) -> bool:
        """Whether this node knows the way in the attribute's topology: it has sub-spaces, a way to one, or the plan."""
        member = self.members.get(axis)
        return (
            bool(self.estate.trees(axis)) or axis in self.stewards or (member is not None and member.anchor is not None)
        )

    def adverts(self) -> list[AccessPoint]:
        """This node as an access point to all it is a member of."""
        return [
            AccessPoint(axis, self.me, member.tree)
            for axis, member in self.members.items()
            if member.tree is not None and self.is_member(axis)
        ]

    def is_idle(self) -> bool:
        """Whether nobody depends on this node."""
        return (
            not self.membership.is_ending and not len(self.estate) and all(s.is_empty for s in self.stewards.values())
        )

    # ── Which way an event goes ──────────────────────────────────────────────

    def towards(self, axis: Axis, place: Cut | None, *, tries: int = 0) -> Holding | Ref | Steward | None:
        """Where the sub-space is that holds a place: here, or which way; the steward knows all of an unknown place.

        What did not arrive goes only where the steward keeps the links up to date, and in the end by the steward itself.
        """
        steward, member = self.stewards.get(axis), self.members.get(axis)
        tree = member.tree if member is not None and self.is_member(axis) else None
        by_steward = None if tree is None or steward is not None else Ref(BOTTOM, tree.steward)
        if place is None:
            return steward or by_steward
        trees = self.estate.trees(axis)
        best = tree if tree in trees else (trees[0] if trees else None)
        found = self.estate.towards(axis, best, place, surely=tries > 0) if best is not None else None
        if isinstance(found, Holding) or (found is not None and tries < ASK_STEWARD_TRIES):
            return found
        if steward is not None:
            return steward.owner_of(place)
        anchor = member.anchor if member is not None and tries == 0 else None
        return anchor if anchor is not None and anchor.owner.id != self.me.id else by_steward

    # ── Messages ─────────────────────────────────────────────────────────────

    def receive(self, sender: NodeId, message: Message, now: float) -> list[Effect] | None:
        """Take a message that concerns topologies; None if it does not."""
        self._silent.pop(sender, None)
        match message:
            case Place():
                answer = Done(message.call) if self._may_place(message) else Refused(message.call)
                return [Send(sender, answer)]
            case Vacate(call):
                self.estate.vacate(message)
                return [Send(sender, Done(call))]
            case Register() | Unregister() | Absorb():
                return self.office.asked(sender, message, now)
            case Copy():
                return self._copy(sender, message)
            case Inherit(call, axis, tree):
                return [Send(sender, Done(call)), *self._take_over(axis, tree, now)]
            case Moved(call, axis, old, new):
                return [Send(sender, Done(call)), *self.membership.move(axis, old, new, now)]
            case Renew() | Missing():
                return self.office.kept_up(sender, message, now)
            case Renewed():
                return self.membership.renewed(message, now)
            case Rival(axis, tree):
                return self._rival(axis, tree, now)
            case Pong(incarnation):
                return self._alive(sender, incarnation, now)
        return None

    def answered(self, call: Pending[int], answer: Message, now: float) -> list[Effect]:
        """One of this room's calls has been answered."""
        match call.about, answer:
            case ("register", SubscriptionId() as id, axis, tree), Registered(_, anchor):
                return self.membership.confirmed(id, axis, tree, anchor)
            case ("register" | "unregister" as what, SubscriptionId() as id, axis, tree), Elsewhere(_, _, _, new):
                return self.membership.elsewhere(what, id, axis, tree, new, now)
            case ("unregister", SubscriptionId() as id, axis, _), _:
                return self.membership.ended(id, axis)
            case ("round", axis, tree, low), _:
                return self.office.acknowledged(axis, tree, low if isinstance(answer, Refused) else None, now)
            case ("absorb", axis, tree, int(merger)), Done():
                return self.office.absorbed(axis, tree, merger, now)
            case ("absorb", axis, tree, int(merger)), _:
                return self.office.not_absorbed(axis, tree, merger, now)
            case ("probe", axis, tree, peer), Refused():
                return self.office.doubt(axis, tree, peer, now)
        return []

    def lost(self, call: Pending[int], now: float) -> list[Effect]:
        """One of this room's calls will not be answered."""
        match call.about:
            case ("register", SubscriptionId(), axis, tree):
                return self.membership.orphaned(axis, tree, now)
            case ("unregister", SubscriptionId() as id, axis, _):
                return self.membership.ended(id, axis)
            case ("round", axis, tree, _):
                return [*self.office.doubt(axis, tree, call.to, now), *self.office.acknowledged(axis, tree, None, now)]
            case ("absorb", axis, tree, int(merger)):
                return self.office.not_absorbed(axis, tree, merger, now)
            case ("probe", axis, tree, peer):
                return self.office.doubt(axis, tree, peer, now)
        return []

    def wake(self, token: Any, now: float) -> list[Effect]:
        """A wake that this room asked for."""
        match token:
            case ("trusted", axis):
                return self.office.run(self.stewards.get(axis), now)
            case ("found", axis, int(attempt)):
                member = self.members.get(axis)
                return (
                    self.membership.found(axis, now) if member and member.attempt == attempt and not member.tree else []
                )
            case ("orphan", axis, tree, int(attempt)):
                member = self.members.get(axis)
                is_lost = member is not None and member.attempt == attempt and member.tree == tree
                return self.membership.seek_anew(axis, now) if is_lost else []
        return []

    def hear(self, point: AccessPoint, now: float) -> list[Effect]:
        """Word of a topology: welcome to those who look for one, a rival to those who have another."""
        axis, tree = point.axis, point.tree
        if self._fates.is_gone(axis, tree, now) or tree.steward.id == self.me.id:
            return []
        member = self.members.get(axis)
        if member is not None and member.tree is None:
            return self.membership.adopt(axis, tree, now)
        if axis in self.stewards:
            return self._rival(axis, tree, now)
        if member is not None and member.tree is not None and member.tree != tree:
            early, late = sorted((member.tree, tree), key=lambda each: each.order)
            return [Send(late.steward.id, Rival(axis, early))]
        return []

    def is_gone(self, axis: Axis, tree: Tree, now: float) -> bool:
        """Whether a topology is known to be no more, or not to answer."""
        return self._fates.is_gone(axis, tree, now)

    def missing(self, axis: Axis, peer: NodeId) -> list[Effect]:
        """Somebody registered with an attribute does not answer: let its steward look."""
        trees = self.estate.trees(axis)
        return [Send(tree.steward.id, Missing(axis, tree, peer)) for tree in trees]

    def beat(self, now: float) -> list[Effect]:
        """What is done on schedule: renew, look after those one depends on, let leases end."""
        self._beats += 1
        effects: list[Effect] = []
        if self._beats % RENEW_BEATS == 0:
            effects += self.membership.renew_all(now)
        effects += self._watch_neighbours()
        effects += self._watch_stewards(now)
        for steward in list(self.stewards.values()):
            steward.expire(now)
            effects += self.office.run(steward, now)
            self.office.retire(steward)
        return effects

    def leave(self, now: float) -> list[Effect]:
        """Have deputies take over what this node is steward of."""
        effects: list[Effect] = []
        for id in list(self.own):
            effects += self.unsubscribe(id, now)
        for steward in self.stewards.values():
            for heir in list(steward.deputies)[:1]:
                make = lambda n, s=steward: Inherit(n, s.axis, s.tree)  # noqa: E731
                effects += self._requests.send(heir, make, ("inherit", steward.axis, steward.tree), now)
        return effects

    def holdings(self) -> dict[str, tuple[int, int]]:
        held: dict[str, tuple[int, int]] = {
            "own interests": (len(self.own), OWN_MAX),
            "sub-spaces": (len(self.estate), SPACES_MAX),
            **self.copies.holdings(),
            **self._fates.holdings(),
        }
        for steward in self.stewards.values():
            held |= {f"{kind} of {steward.axis.name}": counts for kind, counts in steward.holdings().items()}
        return held

    # ── An owner ─────────────────────────────────────────────────────────────

    def _may_place(self, said: Place) -> bool:
        return len(self.estate) < SPACES_MAX and self.estate.place(said)

    def _watch_neighbours(self) -> list[Effect]:
        """Ask those who look after the sub-spaces around whether they are there; tell the steward of those who are not."""
        effects: list[Effect] = []
        near = owners_of(self.estate.neighbours(), self.me.id)
        self._silent = {id: self._silent.get(id, 0) + 1 for id in near}
        for id, (axis, tree, _) in near.items():
            effects.append(Send(id, Ping()))
            if self._silent[id] > SILENT_BEATS:
                effects.append(Send(tree.steward.id, Missing(axis, tree, id)))
        return effects

    def _alive(self, sender: NodeId, incarnation: int, now: float) -> list[Effect]:
        """A neighbour or a steward answers; in a later life it is not the one it was."""
        effects: list[Effect] = []
        for axis, tree, ref in list(self.estate.neighbours()) if incarnation else []:
            if ref.owner.id == sender and ref.owner.incarnation < incarnation:
                effects.append(Send(tree.steward.id, Missing(axis, tree, sender)))
        self.copies.heard(sender)
        for axis, tree in self.copies.topologies():
            if tree.steward.id == sender and tree.steward.incarnation < incarnation:
                effects += self._take_over(axis, tree, now)
        return list(dict.fromkeys(effects)) if len(effects) < NAMED_MAX else effects

    # ── A deputy ─────────────────────────────────────────────────────────────

    def _copy(self, sender: NodeId, said: Copy) -> list[Effect]:
        wanted = self._fates.successor(said.axis, said.tree) is None and self.copies.take(said)
        return [Send(sender, Done(said.call) if wanted else Refused(said.call))]

    def _watch_stewards(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for axis, tree, is_time in self.copies.beat():
            effects.append(Send(tree.steward.id, Ping()))
            if is_time:
                effects += self._take_over(axis, tree, now)
        return effects

    def _take_over(self, axis: Axis, old: Tree, now: float) -> list[Effect]:
        """Be the steward instead of one that is gone, with all that it had registered."""
        copied = self.copies.release(axis, old)
        if copied is None:
            return []
        steward = self.stewards.get(axis) or self.office.found(axis, now)
        self.office.take_in(steward, copied, now)
        steward.doubt(old.steward.id)
        self._fates.dead(axis, old, now)
        effects: list[Effect] = [Count("topologies taken over"), *self.office.run(steward, now)]
        effects += self._lower.announce(AccessPoint(axis, self.me, steward.tree))
        for peer in {each.peer.id: None for each in copied}:
            make = lambda n: Moved(n, axis, old, steward.tree)  # noqa: E731
            effects += self._requests.send(peer, make, ("moved",), now)
        return effects

    # ── Two topologies of one attribute ──────────────────────────────────────

    def _rival(self, axis: Axis, other: Tree, now: float) -> list[Effect]:
        """There is another topology for an attribute: the later one becomes part of the earlier."""
        steward = self.stewards.get(axis)
        if steward is None:
            member = self.members.get(axis)
            if (
                member is not None
                and member.tree is not None
                and member.tree != other
                and not self._fates.is_gone(axis, other, now)
            ):
                return self.membership.adopt(axis, other, now) if member.missed else []
            return []
        return self.office.rival(steward, other, now)
