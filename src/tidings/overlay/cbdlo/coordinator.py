"""The steward of an attribute: one node that decides how its topology is cut, balanced and shared out.

Routing never asks the steward. It is asked when somebody registers or goes, keeps the
whole tree on paper, and tells those concerned what has changed, in *rounds*: all that
waits is done at once, everybody concerned acknowledges, and only then are those who asked
told that it is done. So a registration that is confirmed is known wherever it must be.

    round      Place   to the owners of changed sub-spaces, with whom is registered there
               Copy    to two deputies, who have all registrations and can take the steward's place
               Vacate  to those who look after a sub-space no longer, once all the rest is in place
               Done    to those who asked

An owner that does not answer is *doubted*: its sub-spaces go to others, its registrations
stay until their lease ends. Of two topologies for one attribute the later gives its
registrations to the other and sends its members there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from tidings.overlay.cbdlo.attribute_tree import AttributeTree, PartitionNode, Registration
from tidings.overlay.cbdlo.messages import (
    AbsorbTopology,
    AssignPartition,
    PartitionRef,
    PartitionState,
    PartitionSummary,
    Replicate,
    RevokePartition,
    TopologyMoved,
)
from tidings.overlay.messages import Message, NodeId, Peer, SubscriptionId
from tidings.overlay.random_graph.access_points import TreeId
from tidings.overlay.random_graph.partition import AttributeAxis, Cut, intervals_of
from tidings.overlay.router import Effect

LEASE_S = 60.0  # How long registrations stay that nobody renews.
DEPUTIES = 2  # The steward and both of them would have to go at once for anything to be forgotten.
REGISTRATIONS_MAX = 65_536  # Of one attribute.
AT_ONCE = 64  # Registrations in one message: with four kilobytes of envelope each a quarter of the largest frame.
WAITING_MAX = 65_536  # Requests for the next round.

Asker: TypeAlias = tuple[
    NodeId, int, SubscriptionId | None
]  # Who is to be told, its call's number, what it registered.
Caller: TypeAlias = Callable[[NodeId, Callable[[int], Message], Hashable], list[Effect]]


@dataclass(slots=True)
class _Sent:
    """What the owner of a sub-space has been told."""

    owner: Peer
    space: PartitionState
    registered: dict[SubscriptionId, Registration]


@dataclass(slots=True)
class _Round:
    """Changes on their way: what is still to be acknowledged, what comes after that, and who waits for it."""

    open: int = 0
    vacating: list[tuple[Peer, Cut, int]] = field(default_factory=list)
    askers: list[Asker] = field(default_factory=list)


class Coordinator:
    """One attribute's steward. It sends by `request`, and is told with `acknowledged` what has been answered."""

    def __init__(
        self, me: Peer, axis: AttributeAxis, tree: TreeId, *, trusted_from: float, fingers: bool = True
    ) -> None:
        self.me, self.axis, self.tree, self.fingers = me, axis, tree, fingers
        self.trusted_from = trusted_from  # Until then there may be an older topology that nobody here has heard of.
        self.plan = AttributeTree(me)
        self.replicas: dict[NodeId, tuple[Peer, int]] = {}  # And since which round.
        self.absorbed_by: TreeId | None = None
        self.mergers = 0  # That were begun: answers to an earlier one count no more.
        self._absorbing = 0
        self._leases: dict[NodeId, tuple[int, float]] = {}
        self._doubted: dict[NodeId, None] = {}
        self._waiting: dict[
            tuple[Registration | SubscriptionId | None, Asker | None], None
        ] = {}  # In order, each once.
        self._round: _Round | None = None
        self._serial = 0
        self._sent: dict[Cut, _Sent] = {}
        self._copied: dict[SubscriptionId, Registration] = {}
        self._resync: dict[Cut, None] = {}
        self._unnamed: dict[SubscriptionId, None] = {}
        self._finished: list[Asker] = []

    # ── Being asked ──────────────────────────────────────────────────────────

    def register(self, registration: Registration, asker: Asker | None, now: float) -> None:
        """Note an interest in the next round; those of the peer's former lives end."""
        peer = registration.peer
        if self.life_of(peer.id) < peer.incarnation:
            for old in self.plan.registrations():
                if old.peer.id == peer.id and old.peer.incarnation < peer.incarnation:
                    self._ask(old.interest.id, None)
        self.heard(peer, now)
        self._ask(registration, asker)

    def unregister(self, id: SubscriptionId, asker: Asker | None) -> None:
        """Forget an interest in the next round."""
        self._ask(id, asker)

    def confirm(self, asker: Asker) -> None:
        """Tell somebody when all that has been asked so far is done."""
        self._waiting[None, asker] = None

    def life_of(self, peer: NodeId) -> int:
        """In which life a member registered."""
        return self._leases.get(peer, (0, 0.0))[0]

    def heard(self, peer: Peer, now: float) -> None:
        """A sign of life from a member."""
        incarnation, _ = self._leases.get(peer.id, (0, 0.0))
        self._leases[peer.id] = (max(incarnation, peer.incarnation), now)
        self._doubted.pop(peer.id, None)

    def doubt(self, peer: NodeId) -> None:
        """Somebody does not answer: no sub-space is left to it."""
        if peer != self.me.id:
            self._doubted[peer] = None

    def unknown(self, ids: Iterable[SubscriptionId]) -> tuple[SubscriptionId, ...]:
        """Which of these are neither registered nor about to be."""
        coming = {what.interest.id for what, _ in self._waiting if isinstance(what, Registration)}
        return tuple(id for id in ids if self.plan.registration(id) is None and id not in coming)

    def compare(self, owner: Peer, held: Sequence[PartitionSummary]) -> list[tuple[Cut, int]]:
        """Put right what an owner has wrong about its sub-spaces; returns those it does not own, to be vacated."""
        if self._round is not None or self.is_busy:
            return []
        known = {each.low: each for each in held}
        for low, sent in self._sent.items():
            theirs = known.get(low)
            if sent.owner.id == owner.id and not _agree(sent, theirs):
                self._resync[low] = None
        return [(each.low, each.epoch) for each in held if not self._owns(owner.id, each.low)]

    def renewed(self, peer: Peer, ids: Iterable[SubscriptionId]) -> None:
        """Forget what a member has not named twice in a row: it was taken back, and brought back by a merger."""
        named = set(ids)
        for id in [each.interest.id for each in self.plan.registrations() if each.interest.id.origin == peer.id]:
            if id in named:
                self._unnamed.pop(id, None)
            elif id in self._unnamed:
                del self._unnamed[id]
                self._ask(id, None)
            else:
                self._unnamed[id] = None

    def resync(self, low: Cut | None) -> None:
        """An owner lacks what a change builds on: tell it all in the next round."""
        if low is not None:
            self._resync[low] = None

    def interested(self) -> list[Registration]:
        return self.plan.registrations()

    def members(self) -> list[Peer]:
        """Everybody with a registration, once."""
        return list({each.peer.id: each.peer for each in self.plan.registrations()}.values())

    def owner_of(self, place: Cut) -> PartitionRef:
        """Who looks after the sub-space that holds this place, as far as anybody has been told."""
        space = self.plan.locate(place)
        sent = self._sent.get(space.low)
        return PartitionRef(space.low, sent.owner if sent else space.owner)

    def anchor(self, id: SubscriptionId) -> PartitionRef | None:
        """A sub-space that an interest covers."""
        registration = self.plan.registration(id)
        intervals = intervals_of(registration.interest, self.axis) if registration else []
        return self.owner_of(intervals[0].low) if intervals else None

    @property
    def is_busy(self) -> bool:
        """Whether anything is waiting for a round."""
        return bool(self._waiting or self._resync or self._to_move())

    @property
    def is_empty(self) -> bool:
        return not self._waiting and self._round is None and not self.plan.registered

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            "registrations": (self.plan.registered, REGISTRATIONS_MAX),
            "requests": (len(self._waiting), WAITING_MAX),
            "sub-spaces planned": (len(self.plan), 2 * 64 * REGISTRATIONS_MAX + 1),
        }

    # ── Rounds ───────────────────────────────────────────────────────────────

    def go_on(self, request: Caller, now: float) -> list[Effect]:
        """Begin the next round if there is something to do and none is on."""
        if self._round is not None or not self.is_busy:
            return []
        self._round = _Round()
        self._serial += 1
        self._apply()
        self._share_out()
        effects = self._push(request)
        effects += self._copy(request)
        return [*effects, *self._advance(request)]

    def acknowledged(self, request: Caller) -> list[Effect]:
        """One more answer, or one that will not come."""
        if self._round is None:
            return []
        self._round.open -= 1
        return self._advance(request)

    def finished(self, now: float) -> list[Asker]:
        """Those whose requests are done, to be told so; nobody while the topology is on probation."""
        if now < self.trusted_from:
            return []
        finished, self._finished = self._finished, []
        return finished

    def expire(self, now: float) -> None:
        """Forget members whose lease has ended."""
        for peer, (_, heard) in list(self._leases.items()):
            if heard + LEASE_S < now and peer != self.me.id:
                del self._leases[peer]
                for each in self.plan.registrations():
                    if each.peer.id == peer:
                        self._ask(each.interest.id, None)

    def absorb_into(self, winner: TreeId, request: Caller) -> list[Effect]:
        """Give all registrations to another topology of the attribute."""
        self.absorbed_by = winner
        self.mergers += 1
        effects: list[Effect] = []
        about = ("absorb", self.axis, self.tree, self.mergers)
        for some in _chunks(self.plan.registrations()) or [()]:
            self._absorbing += 1
            make = lambda n, some=some: AbsorbTopology(n, self.axis, self.tree, some)  # noqa: E731
            effects += request(winner.coordinator.id, make, about)
        return effects

    def absorbed(self) -> bool:
        """One more part has been taken over; whether that was all."""
        self._absorbing -= 1
        return self._absorbing == 0

    def stay(self) -> None:
        """The other topology does not answer: go on as before."""
        self.absorbed_by, self._absorbing = None, 0

    def moved(self, new: TreeId, request: Caller) -> list[Effect]:
        """Send all members to another topology."""
        return [
            effect
            for peer in self.members()
            if peer.id != self.me.id
            for effect in request(peer.id, lambda n: TopologyMoved(n, self.axis, self.tree, new), ("moved",))
        ]

    # ── Private steps ────────────────────────────────────────────────────────

    def _ask(self, what: Registration | SubscriptionId, asker: Asker | None) -> None:
        if len(self._waiting) < WAITING_MAX:
            self._waiting[what, asker] = None

    def _apply(self) -> None:
        """Change the tree on paper."""
        assert self._round is not None
        waiting, self._waiting = self._waiting, {}
        for what, asker in waiting:
            if isinstance(what, Registration):
                known = self.plan.registration(what.interest.id) == what  # A call that was made again.
                if not known and self.plan.registered < REGISTRATIONS_MAX:
                    self.plan.register(what, intervals_of(what.interest, self.axis))
            elif what is not None:
                self.plan.unregister(what)
                self._unnamed.pop(what, None)
            if asker is not None:
                self._round.askers.append(asker)

    def _to_move(self) -> bool:
        return any(sent.owner.id in self._doubted for sent in self._sent.values()) if self._doubted else False

    def _share_out(self) -> None:
        """Give every sub-space of a node that is not there, or has nothing registered, to one that is and has."""
        members = {peer.id: peer for peer in self.members() if peer.id not in self._doubted}
        for space in list(self.plan):
            if space.owner.id not in members or members[space.owner.id] != space.owner:
                self.plan.give(space.low, self._heir(space, members))

    def _heir(self, space: PartitionNode, members: dict[NodeId, Peer]) -> Peer:
        """Whoever has a boundary here, else whoever looks after what lies before, else the steward."""
        for id in space.users:
            if id.origin in members:
                return members[id.origin]
        before = space.before.owner.id if space.before else ""
        if before in members:
            return members[before]
        return next(iter(members.values()), self.me)

    def _push(self, request: Caller) -> list[Effect]:
        """Tell owners what has changed for them."""
        assert self._round is not None
        effects: list[Effect] = []
        for low in dict.fromkeys([*self.plan.changed(), *self._resync]):  # In a fixed order, each once.
            space, sent = self.plan.get(low), self._sent.get(low)
            if space is None:
                if sent is not None:
                    self._round.vacating.append((sent.owner, low, sent.space.epoch))
                    del self._sent[low]
                continue
            effects += self._push_one(space, sent, low in self._resync, request)
        self._resync = {}
        return effects

    def _push_one(self, space: PartitionNode, sent: _Sent | None, afresh: bool, request: Caller) -> list[Effect]:
        assert self._round is not None
        same = sent is not None and sent.owner == space.owner and not afresh
        if sent is not None and sent.owner.id != space.owner.id:
            self._round.vacating.append((sent.owner, space.low, sent.space.epoch))
        epoch = sent.space.epoch if sent is not None and same else self._serial
        placed = self._placed(space, epoch)
        before = sent.registered if sent is not None and same else {}
        added = [each for id, each in space.registered.items() if before.get(id) != each]
        gone = tuple(id for id in before if id not in space.registered)
        self._sent[space.low] = _Sent(space.owner, placed, dict(space.registered))
        effects: list[Effect] = []
        for some in _chunks(added) or [()]:
            effects += self._tell(
                space.owner.id,
                lambda n, some=some: AssignPartition(n, self.axis, self.tree, placed, not same, some, gone),  # type: ignore[misc]
                request,
                space.low,
            )
        return effects

    def _placed(self, space: PartitionNode, epoch: int) -> PartitionState:
        return PartitionState(
            space.low,
            space.high,
            space.first,
            space.last,
            epoch,
            self._serial,
            _ref(space.parent),
            _ref(space.left),
            _ref(space.right),
            _ref(space.before),
            _ref(space.after),
            tuple(PartitionRef(each.low, each.owner) for each in self.plan.fingers(space)) if self.fingers else (),
        )

    def _copy(self, request: Caller) -> list[Effect]:
        """Tell the deputies what is registered, new ones everything."""
        self._choose_deputies()
        all_now = {each.interest.id: each for each in self.plan.registrations()}
        news = [each for id, each in all_now.items() if self._copied.get(id) != each]
        gone = tuple(id for id in self._copied if id not in all_now)
        self._copied = all_now
        effects: list[Effect] = []
        for rank, (id, (_, since)) in enumerate(self.replicas.items()):
            whole = since == self._serial
            for some in _chunks(list(all_now.values()) if whole else news) or [()]:
                effects += self._tell(
                    id,
                    lambda n, some=some, rank=rank, since=since, whole=whole: Replicate(  # type: ignore[misc]
                        n, self.axis, self.tree, rank, since, self._serial, some, () if whole else gone
                    ),
                    request,
                )
        return effects

    def _choose_deputies(self) -> None:
        members = {peer.id: peer for peer in self.members() if peer.id not in self._doubted and peer.id != self.me.id}
        self.replicas = {id: kept for id, kept in self.replicas.items() if members.get(id) == kept[0]}
        for id, peer in members.items():
            if len(self.replicas) >= DEPUTIES:
                break
            self.replicas.setdefault(id, (peer, self._serial))

    def _tell(
        self, to: NodeId, make: Callable[[int], Message], request: Caller, low: Cut | None = None
    ) -> list[Effect]:
        assert self._round is not None
        self._round.open += 1
        return request(to, make, ("round", self.axis, self.tree, low))

    def _advance(self, request: Caller) -> list[Effect]:
        """If all is acknowledged: first have sub-spaces vacated, then the round is over."""
        now_on = self._round
        if now_on is None or now_on.open > 0:
            return []
        if now_on.vacating:
            vacating, now_on.vacating = now_on.vacating, []
            return [
                effect
                for owner, low, epoch in vacating
                for effect in self._tell(
                    owner.id,
                    lambda n, low=low, epoch=epoch: RevokePartition(n, self.axis, self.tree, low, epoch),  # type: ignore[misc]
                    request,
                )
            ]
        self._finished += now_on.askers
        self._round = None
        return []

    def _owns(self, peer: NodeId, low: Cut) -> bool:
        sent = self._sent.get(low)
        return sent is not None and sent.owner.id == peer


def _agree(sent: _Sent, theirs: PartitionSummary | None) -> bool:
    return theirs is not None and (theirs.epoch, theirs.version, theirs.registered) == (
        sent.space.epoch,
        sent.space.version,
        len(sent.registered),
    )


def _ref(space: PartitionNode | None) -> PartitionRef | None:
    return PartitionRef(space.low, space.owner) if space is not None else None


def _chunks(registrations: Sequence[Registration]) -> list[tuple[Registration, ...]]:
    rest: Iterator[Registration] = iter(registrations)
    return list(iter(lambda: tuple(islice(rest, AT_ONCE)), ()))
