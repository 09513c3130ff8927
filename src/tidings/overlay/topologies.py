"""The upper layer of CBDLO at one node: its own interests, and the attributes it is steward or deputy of.

    own interest   is there a topology?  → register with its steward              → confirmed
                   nobody knows of one   → found one, announce it to everybody    → confirmed after a while

A node may play all parts at once: it registers what its own subscribers want, looks after
sub-spaces at whose cuts it has interests, keeps copies for a steward as its deputy, and is
steward itself of what it has founded or taken over.

Two topologies of one attribute come about when two nodes found one at once, when a
network is split, or when a steward is taken for dead. Whoever hears of both tells the
steward of the later one, which hands everything to the other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from tidings.overlay.access import AccessPoint, AccessTable, Tree
from tidings.overlay.attribute_tree import Registration
from tidings.overlay.cbdlo_messages import (
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
from tidings.overlay.courier import TRIES_MAX, Call, Courier
from tidings.overlay.cuts import BOTTOM, Axis, Cut, filed_under
from tidings.overlay.deputies import SILENT_BEATS, Copies, Fates
from tidings.overlay.estate import SPACES_MAX, Estate, Holding, owners_of
from tidings.overlay.interest import Interest
from tidings.overlay.office import REGISTER_TRIES, Office
from tidings.overlay.router import Completed, Count, Effect, Failed, Send, WakeAt
from tidings.overlay.stewardship import Steward
from tidings.overlay.wire import Message, NodeId, Parcel, Peer, SubscriptionId

OWN_MAX = 65_536  # Interests of one node.
NAMED_MAX = 4096  # Interests, or sub-spaces, in one message.
TRUST_S = 4.0  # How long a founder waits for word of an older topology before it confirms anything.
FOUND_S = 2.0  # Those who find no topology wait up to so long, each at random, before they found one.
SEEK_S = 1.0  # How long a search takes at most, as a rule.
ORPHAN_S = 10.0  # How long a member waits for a deputy to take a lost steward's place.
RENEW_BEATS = 5  # A member says so often that it is still there.
RENEWALS_MISSED_MAX = 3
ASK_STEWARD_TRIES = 3  # How often an event is tried by the links of the tree before its way is left to the steward.


class LowerLayer(Protocol):
    """What the upper layer asks of the lower."""

    def announce(self, point: AccessPoint) -> list[Effect]:
        """Tell everybody of a new topology."""

    def search(self, axis: Axis) -> list[Effect]:
        """Send out walks for an attribute's topology; `hear` is called if they find one."""

    def is_ready(self) -> bool:
        """Whether the node has come into the network."""


@dataclass(slots=True)
class Own:
    """An interest of this node, and where it is still to be confirmed, or to be taken back."""

    interest: Interest
    axes: list[Axis]
    open: dict[Axis, None]
    asked: bool = True


@dataclass(slots=True)
class Member:
    """This node as a member, or a future member, of an attribute's topology."""

    tree: Tree | None = None
    anchor: Ref | None = None
    missed: int = 0  # Renewals without an answer.
    attempt: int = 0  # Counts what is waited for, so that old wakes are recognised.


class Topologies:
    """All that one node has to do with the topologies of attributes."""

    def __init__(
        self,
        me: Peer,
        lower: LowerLayer,
        table: AccessTable,
        courier: Courier,
        chance: Random,
        *,
        indexed_max: int | None,
        fingers: bool,
    ) -> None:
        self.me, self.indexed_max, self.fingers = me, indexed_max, fingers
        self._lower, self._table, self._courier, self._chance = lower, table, courier, chance
        self.own: dict[SubscriptionId, Own] = {}
        self._ending: dict[SubscriptionId, Own] = {}
        self.members: dict[Axis, Member] = {}
        self.estate = Estate(fingers=fingers)
        self.copies = Copies()
        self._fates = Fates()
        self.office = Office(
            me, courier, self.own, self.members, self.estate, self._fates, self._move, fingers=fingers
        )  # fmt: skip
        self.stewards = self.office.by_axis
        self._silent: dict[NodeId, int] = {}
        self._beats = chance.randrange(RENEW_BEATS)

    # ── Subscribing ──────────────────────────────────────────────────────────

    def subscribe(self, interest: Interest, now: float) -> list[Effect]:
        old = self.own.get(interest.id)
        if old is None and len(self.own) >= OWN_MAX:
            return [Failed("subscribe", f"a node has at most {OWN_MAX} interests", interest.id)]
        axes = filed_under(interest, self.indexed_max)
        self.own[interest.id] = own = Own(interest, axes, dict.fromkeys(axes))
        dropped = [axis for axis in old.axes if axis not in axes] if old else []
        effects = [effect for axis in dropped for effect in self._unregister(interest.id, axis, now)]
        return [*effects, *(effect for axis in axes for effect in self._register(own, axis, now))]

    def unsubscribe(self, id: SubscriptionId, now: float) -> list[Effect]:
        own = self.own.pop(id, None)
        if own is None:
            return [Completed("unsubscribe", id)] if id not in self._ending else []
        own.open = dict.fromkeys(own.axes)
        self._ending[id] = own
        return [effect for axis in own.axes for effect in self._unregister(id, axis, now)]

    def wants(self, parcel: Parcel) -> bool:
        """Whether any of this node's interests matches."""
        return any(own.interest.matches(parcel) for own in self.own.values())

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
        return not self._ending and not len(self.estate) and all(s.is_empty for s in self.stewards.values())

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
                return [Send(sender, Done(call)), *self._move(axis, old, new, now)]
            case Renew() | Missing():
                return self.office.kept_up(sender, message, now)
            case Renewed():
                return self._renewed(sender, message, now)
            case Rival(axis, tree):
                return self._rival(axis, tree, now)
            case Pong(incarnation):
                return self._alive(sender, incarnation, now)
        return None

    def answered(self, call: Call, answer: Message, now: float) -> list[Effect]:
        """One of this room's calls has been answered."""
        match call.about, answer:
            case ("register", SubscriptionId() as id, axis, tree), Registered(_, anchor):
                return self._confirmed(id, axis, tree, anchor)
            case ("register" | "unregister" as what, SubscriptionId() as id, axis, tree), Elsewhere(_, _, _, new):
                return self._elsewhere(what, id, axis, tree, new, now)
            case ("unregister", SubscriptionId() as id, axis, _), _:
                return self._ended(id, axis)
            case ("round", axis, tree, low), _:
                return self.office.acknowledged(axis, tree, low if isinstance(answer, Refused) else None, now)
            case ("absorb", axis, tree, int(merger)), Done():
                return self.office.absorbed(axis, tree, merger, now)
            case ("absorb", axis, tree, int(merger)), _:
                return self.office.not_absorbed(axis, tree, merger, now)
            case ("probe", axis, tree, peer), Refused():
                return self.office.doubt(axis, tree, peer, now)
        return []

    def lost(self, call: Call, now: float) -> list[Effect]:
        """One of this room's calls will not be answered."""
        match call.about:
            case ("register", SubscriptionId(), axis, tree):
                return self._orphaned(axis, tree, now)
            case ("unregister", SubscriptionId() as id, axis, _):
                return self._ended(id, axis)
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
                return self._found(axis, now) if member and member.attempt == attempt and not member.tree else []
            case ("orphan", axis, tree, int(attempt)):
                member = self.members.get(axis)
                is_lost = member is not None and member.attempt == attempt and member.tree == tree
                return self._seek_anew(axis, now) if is_lost else []
        return []

    def hear(self, point: AccessPoint, now: float) -> list[Effect]:
        """Word of a topology: welcome to those who look for one, a rival to those who have another."""
        axis, tree = point.axis, point.tree
        if self._fates.is_gone(axis, tree, now) or tree.steward.id == self.me.id:
            return []
        member = self.members.get(axis)
        if member is not None and member.tree is None:
            return self._adopt(axis, tree, now)
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
            effects += self._renew_all(now)
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
                effects += self._call(heir, make, ("inherit", steward.axis, steward.tree), now)
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

    # ── A member ─────────────────────────────────────────────────────────────

    def _call(
        self, to: NodeId, make: Callable[[int], Message], about: Hashable, now: float, tries: int = TRIES_MAX
    ) -> list[Effect]:
        return self._courier.call(to, make, about, now, tries)

    def _register(self, own: Own, axis: Axis, now: float) -> list[Effect]:
        member = self.members.setdefault(axis, Member())
        if member.tree is None:
            return self._seek(axis, member, now)
        tree, registration = member.tree, Registration(self.me, own.interest)
        return self._call(
            tree.steward.id,
            lambda n: Register(n, axis, tree, registration),
            ("register", own.interest.id, axis, tree),
            now,
            REGISTER_TRIES,
        )

    def _unregister(self, id: SubscriptionId, axis: Axis, now: float) -> list[Effect]:
        # A registration that is not confirmed yet would be sent again, after this, and stand for ever.
        self._courier.take_back(lambda about: about[:3] == ("register", id, axis))
        member = self.members.get(axis)
        if member is None or member.tree is None:
            return self._ended(id, axis)
        tree = member.tree
        about = ("unregister", id, axis, tree)
        return self._call(tree.steward.id, lambda n: Unregister(n, axis, tree, id), about, now, REGISTER_TRIES)

    def _seek(self, axis: Axis, member: Member, now: float) -> list[Effect]:
        """Look for a topology: in the table, then by walks; if there is none, found one after a while."""
        for point in self._table.at(axis):
            if not self._fates.is_gone(axis, point.tree, now):
                return self._adopt(axis, point.tree, now)
        if member.attempt:
            return []  # It is being looked for.
        member.attempt += 1
        wait_s = SEEK_S + self._chance.uniform(0, FOUND_S)
        return [*self._lower.search(axis), WakeAt(now + wait_s, ("found", axis, member.attempt))]

    def _seek_anew(self, axis: Axis, now: float) -> list[Effect]:
        member = self.members[axis]
        if member.tree is not None:
            self._table.drop_tree(axis, member.tree)
            self.estate.leave(axis, member.tree)
        member.tree, member.anchor, member.attempt = None, None, 0
        if not any(axis in own.axes for own in self.own.values()):
            del self.members[axis]
            return []
        return self._seek(axis, member, now)

    def _adopt(self, axis: Axis, tree: Tree, now: float) -> list[Effect]:
        """Become a member of a topology, with all interests."""
        member = self.members.setdefault(axis, Member())
        member.tree, member.missed = tree, 0
        member.attempt += 1
        mine = [own for own in self.own.values() if axis in own.axes]
        return [effect for own in mine for effect in self._register(own, axis, now)]

    def _found(self, axis: Axis, now: float) -> list[Effect]:
        member = self.members[axis]
        if not any(axis in own.axes for own in self.own.values()):
            del self.members[axis]
            return []
        if not self._lower.is_ready():
            return [WakeAt(now + SEEK_S, ("found", axis, member.attempt))]
        steward = self.office.found(axis, now + TRUST_S)
        point = AccessPoint(axis, self.me, steward.tree)
        trusted = WakeAt(steward.trusted_from, ("trusted", axis))
        return [
            Count("topologies founded"),
            trusted,
            *self._lower.announce(point),
            *self._adopt(axis, steward.tree, now),
        ]

    def _confirmed(self, id: SubscriptionId, axis: Axis, tree: Tree, anchor: Ref | None) -> list[Effect]:
        own, member = self.own.get(id), self.members.get(axis)
        if own is None or member is None or member.tree != tree:
            return []
        member.anchor = anchor or member.anchor
        own.open.pop(axis, None)
        if own.open or not own.asked:
            return []
        own.asked = False
        return [Completed("subscribe", id)]

    def _ended(self, id: SubscriptionId, axis: Axis) -> list[Effect]:
        own = self._ending.get(id)
        if not any(axis in each.axes for each in self.own.values()):
            self._leave_topology(axis)
        if own is None:
            return []
        own.open.pop(axis, None)
        if own.open:
            return []
        del self._ending[id]
        return [Completed("unsubscribe", id)]

    def _leave_topology(self, axis: Axis) -> None:
        """Nothing of this node's is filed there any more; what it looks after is taken from it by the steward."""
        member = self.members.get(axis)
        if member is not None and axis not in self.stewards and not self.estate.trees(axis):
            del self.members[axis]

    def _elsewhere(
        self, what: str, id: SubscriptionId, axis: Axis, tree: Tree, new: Tree | None, now: float
    ) -> list[Effect]:
        if what == "unregister":
            member = self.members.get(axis)
            if member is not None and new is not None and not self._fates.is_gone(axis, new, now):
                member.tree = new
                return self._unregister(id, axis, now)
            return self._ended(id, axis)
        if new is None:
            return self._orphaned(axis, tree, now)
        return self._move(axis, tree, new, now)

    def _move(self, axis: Axis, old: Tree, new: Tree, now: float) -> list[Effect]:
        """A topology has become part of another."""
        steward = self.office.mine(axis, old)
        if steward is not None:
            return self.office.superseded(steward, new, now)
        self._table.drop_tree(axis, old)
        self._fates.moved(axis, old, new)
        self.copies.release(axis, old)
        self.estate.leave(axis, old)
        member = self.members.get(axis)
        if member is None or member.tree not in (old, None):
            return []
        return self._adopt(axis, new, now)

    def _orphaned(self, axis: Axis, tree: Tree, now: float) -> list[Effect]:
        """The steward does not answer: wait for a deputy to take its place, then look for another topology."""
        member = self.members.get(axis)
        if member is None or member.tree != tree or self._fates.is_gone(axis, tree, now):
            return []
        self._fates.dead(axis, tree, now)
        member.attempt += 1
        return [Count("stewards lost"), WakeAt(now + ORPHAN_S, ("orphan", axis, tree, member.attempt))]

    def _renew_all(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for axis, member in list(self.members.items()):
            if member.tree is None:
                continue
            ids = [id for id, own in self.own.items() if axis in own.axes]
            if not ids and not self.estate.trees(axis) and axis not in self.stewards:
                del self.members[axis]
                continue
            member.missed += 1
            if member.missed > RENEWALS_MISSED_MAX:
                effects += self._orphaned(axis, member.tree, now)
            held = self.estate.held(axis, member.tree)
            whole = max(len(ids), len(held)) <= NAMED_MAX
            said = Renew(axis, member.tree, self.me, tuple(ids[:NAMED_MAX]), tuple(held[:NAMED_MAX]), whole)
            effects.append(Send(member.tree.steward.id, said))
        return effects

    def _renewed(self, sender: NodeId, said: Renewed, now: float) -> list[Effect]:
        member = self.members.get(said.axis)
        if member is None or member.tree != said.tree:
            return []
        member.missed, member.anchor = 0, said.anchor or member.anchor
        self._fates.alive(said.axis, said.tree)
        member.attempt += 1  # Whoever was waiting for another steward need not.
        unknown = [self.own[id] for id in said.unknown if id in self.own]
        return [effect for own in unknown for effect in self._register(own, said.axis, now)]

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
            effects += self._call(peer, make, ("moved",), now)
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
                return self._adopt(axis, other, now) if member.missed else []
            return []
        return self.office.rival(steward, other, now)
