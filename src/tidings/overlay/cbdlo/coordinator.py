"""The coordinator of a topology: one node that decides how the tree is cut, balanced and assigned to owners.

As a rule the coordinator routes no events. Members register and unregister interests with it. It holds the whole tree
and pushes changes to the nodes concerned in *rounds*: it applies all pending requests at once, waits until all nodes
concerned have acknowledged, and only then confirms the requests. So when a registration is confirmed, every node that
must know of it does.

    round      AssignPartition   to the owners of changed partitions, with the interests registered there
               Replicate         to two replicas, which hold all registrations and can take over
               RevokePartition   to former owners, once all other changes are acknowledged
               OperationDone     to the members that made the requests (Registered for a registration)

An owner that does not answer is *suspected*: its partitions go to other members, and its registrations stay until their
lease expires. Of two topologies for one attribute, the later one hands its registrations to the other and sends its
members there.

`Coordinator` is one topology. `Coordinators` are all those at one node: it finds the coordinator that a message is for,
points to the successor of one that has ended, and merges duplicate topologies.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Protocol, TypeAlias

from tidings.overlay.cbdlo.attribute_tree import AttributeTree, PartitionNode, Registration
from tidings.overlay.cbdlo.messages import (
    AbsorbTopology,
    AssignPartition,
    DuplicateTopology,
    LeaseRenewed,
    NotCoordinator,
    OperationDone,
    PartitionRef,
    PartitionState,
    PartitionSummary,
    PeerSuspected,
    Probe,
    Register,
    Registered,
    RenewLease,
    Replicate,
    RevokePartition,
    TopologyMoved,
    Unregister,
)
from tidings.overlay.cbdlo.replicas import RetiredTopologies
from tidings.overlay.crowding import CrowdedTable
from tidings.overlay.messages import Message, NodeId, Peer, SubscriptionId, in_messages
from tidings.overlay.random_graph.access_points import TreeId
from tidings.overlay.random_graph.partition import AttributeAxis, Cut, intervals_of
from tidings.overlay.retransmit import Requests
from tidings.overlay.router import Count, Effect, Send

LEASE_S = 60.0  # How long a registration stays without renewal.
REPLICAS = 2  # Registrations are lost only if the coordinator and both replicas fail at once.
REGISTRATIONS_MAX = 65_536  # Of one attribute.
BATCH_MAX = 64  # Registrations in one message, if they are small.
GONE_MAX = 4096  # Ids of withdrawn ones in one message.
PENDING_MAX = 65_536  # Requests for the next round.
REGISTER_TRIES = 8  # Some 24 seconds; then the coordinator, or a member, counts as failed.

Requester: TypeAlias = tuple[NodeId, int, SubscriptionId | None]  # A node, its request number, what it registers.
SendRequest: TypeAlias = Callable[[NodeId, Callable[[int], Message], Hashable], list[Effect]]


@dataclass(slots=True)
class _Pushed:
    """The last state of a partition that was pushed to its owner."""

    owner: Peer
    state: PartitionState
    registered: dict[SubscriptionId, Registration]


@dataclass(slots=True)
class _Round:
    """Changes in progress: unacknowledged messages, partitions to revoke after them, requests to confirm at the end."""

    pending: int = 0
    revoked: list[tuple[Peer, Cut, int]] = field(default_factory=list)
    requesters: list[Requester] = field(default_factory=list)


# ── One topology ───────────────────────────────────────────────────────────────


class Coordinator:
    """The coordinator of one topology. It sends by the function `send`, and learns of answers by `acknowledged`."""

    def __init__(
        self, me: Peer, axis: AttributeAxis, tree: TreeId, *, trusted_from: float, fingers: bool = True
    ) -> None:
        self.me, self.axis, self.tree, self.fingers = me, axis, tree, fingers
        self.trusted_from = trusted_from  # Until then there may be an older topology that this node has not heard of.
        self.plan = AttributeTree(me)
        self.replicas: dict[NodeId, tuple[Peer, int]] = {}  # Each with the round in which it became one.
        self.absorbed_by: TreeId | None = None
        self.mergers = 0  # Mergers begun so far; answers to an earlier one are ignored.
        self._absorbing = 0
        self._leases: dict[NodeId, tuple[int, float]] = {}  # Incarnation, and when the member last renewed.
        self._suspected: dict[NodeId, None] = {}
        # In order, each once: an interest to register, one to remove, or None, with the node to answer.
        self._pending: dict[tuple[Registration | SubscriptionId | None, Requester | None], None] = {}
        self._round: _Round | None = None
        self._serial = 0
        self._pushed: dict[Cut, _Pushed] = {}
        self._replicated: dict[SubscriptionId, Registration] = {}
        self._resync: dict[Cut, None] = {}
        self._unnamed: dict[SubscriptionId, None] = {}
        self._finished: list[Requester] = []
        self._crowded = CrowdedTable[SubscriptionId](lambda key: key.origin)

    # ── Requests ─────────────────────────────────────────────────────────────

    def register(self, registration: Registration, requester: Requester | None, now: float) -> None:
        """Register an interest in the next round; remove those that the peer registered in an earlier incarnation."""
        peer = registration.peer
        if self.incarnation_of(peer.id) < peer.incarnation:
            for old in self.plan.registrations():
                if old.peer.id == peer.id and old.peer.incarnation < peer.incarnation:
                    self._enqueue(old.interest.id, None)
        self.renew_lease(peer, now)
        self._enqueue(registration, requester)

    def unregister(self, id: SubscriptionId, requester: Requester | None) -> None:
        """Remove an interest in the next round."""
        self._enqueue(id, requester)

    def confirm(self, requester: Requester) -> None:
        """Answer this node when all requests so far are done."""
        self._pending[None, requester] = None

    def incarnation_of(self, peer: NodeId) -> int:
        """The incarnation in which a member registered."""
        return self._leases.get(peer, (0, 0.0))[0]

    def renew_lease(self, peer: Peer, now: float) -> None:
        """A member is alive."""
        incarnation, _ = self._leases.get(peer.id, (0, 0.0))
        self._leases[peer.id] = (max(incarnation, peer.incarnation), now)
        self._suspected.pop(peer.id, None)

    def suspect(self, peer: NodeId) -> None:
        """A member does not answer: the next round takes its partitions from it."""
        if peer != self.me.id:
            self._suspected[peer] = None

    def unknown(self, ids: Iterable[SubscriptionId]) -> tuple[SubscriptionId, ...]:
        """Those of these interests that are neither registered nor pending."""
        pending = {what.interest.id for what, _ in self._pending if isinstance(what, Registration)}
        return tuple(id for id in ids if self.plan.registration(id) is None and id not in pending)

    def compare(self, owner: Peer, owned: Sequence[PartitionSummary]) -> list[tuple[Cut, int]]:
        """Push again the partitions that an owner has wrong; returns those that it does not own, to be revoked."""
        if self._round is not None or self.is_busy:
            return []
        known = {each.low: each for each in owned}
        for low, pushed in self._pushed.items():
            theirs = known.get(low)
            if pushed.owner.id == owner.id and not _agree(pushed, theirs):
                self._resync[low] = None
        return [(each.low, each.epoch) for each in owned if not self._owns(owner.id, each.low)]

    def drop_unnamed(self, peer: Peer, ids: Iterable[SubscriptionId]) -> None:
        """Remove the interests that a member has not named in two renewals in a row.

        The member has withdrawn them, and a merger of topologies has brought them back.
        """
        named = set(ids)
        for id in [each.interest.id for each in self.plan.registrations() if each.interest.id.origin == peer.id]:
            if id in named:
                self._unnamed.pop(id, None)
            elif id in self._unnamed:
                del self._unnamed[id]
                self._enqueue(id, None)
            else:
                self._unnamed[id] = None

    def resync(self, low: Cut | None) -> None:
        """An owner lacks the version that a change builds on: push the whole partition in the next round."""
        if low is not None:
            self._resync[low] = None

    def registrations(self) -> list[Registration]:
        return self.plan.registrations()

    def members(self) -> list[Peer]:
        """All nodes with a registration, each once."""
        return list({each.peer.id: each.peer for each in self.plan.registrations()}.values())

    def owner_of(self, position: Cut) -> PartitionRef:
        """The partition that contains this position, with its owner as last pushed."""
        node = self.plan.locate(position)
        pushed = self._pushed.get(node.low)
        return PartitionRef(node.low, pushed.owner if pushed else node.owner)

    def anchor(self, id: SubscriptionId) -> PartitionRef | None:
        """A partition that an interest covers."""
        registration = self.plan.registration(id)
        intervals = intervals_of(registration.interest, self.axis) if registration else []
        return self.owner_of(intervals[0].low) if intervals else None

    @property
    def is_busy(self) -> bool:
        """Whether there is work for another round."""
        return bool(self._pending or self._resync or self._suspects_own())

    @property
    def is_empty(self) -> bool:
        return not self._pending and self._round is None and not self.plan.registered

    def holdings(self) -> dict[str, tuple[int, int]]:
        return {
            "registrations": (self.plan.registered, REGISTRATIONS_MAX),
            "requests": (len(self._pending), PENDING_MAX),
            "sub-spaces planned": (len(self.plan), 2 * 64 * REGISTRATIONS_MAX + 1),
        }

    # ── Rounds ───────────────────────────────────────────────────────────────

    def begin_round(self, send: SendRequest, now: float) -> list[Effect]:
        """Begin a round if there is work for one and none is in progress."""
        if self._round is not None or not self.is_busy:
            return []
        self._round = _Round()
        self._serial += 1
        self._apply_pending()
        self._reassign()
        effects = self._push_changes(send)
        effects += self._replicate(send)
        return [*effects, *self._advance(send)]

    def acknowledged(self, send: SendRequest) -> list[Effect]:
        """A node has answered a message of the round, or is given up."""
        if self._round is None:
            return []
        self._round.pending -= 1
        return self._advance(send)

    def take_finished(self, now: float) -> list[Requester]:
        """The nodes whose requests are done, to be answered; none as long as the topology is not trusted."""
        if now < self.trusted_from:
            return []
        finished, self._finished = self._finished, []
        return finished

    def expire_leases(self, now: float) -> None:
        """Remove the registrations of members whose lease has expired."""
        for peer, (_, renewed_at) in list(self._leases.items()):
            if renewed_at + LEASE_S < now and peer != self.me.id:
                del self._leases[peer]
                for each in self.plan.registrations():
                    if each.peer.id == peer:
                        self._enqueue(each.interest.id, None)

    # ── Merging into another topology ────────────────────────────────────────

    def absorb_into(self, winner: TreeId, send: SendRequest) -> list[Effect]:
        """Hand all registrations to another topology of the attribute."""
        self.absorbed_by = winner
        self.mergers += 1
        effects: list[Effect] = []
        about = ("absorb", self.axis, self.tree, self.mergers)
        for batch in _batches(self.plan.registrations()) or [()]:
            self._absorbing += 1
            make = lambda n, batch=batch: AbsorbTopology(n, self.axis, self.tree, batch)  # noqa: E731
            effects += send(winner.coordinator.id, make, about)
        return effects

    def batch_absorbed(self) -> bool:
        """The other topology has taken one batch; returns whether it was the last."""
        self._absorbing -= 1
        return self._absorbing == 0

    def cancel_merger(self) -> None:
        """The other topology does not answer: continue as before."""
        self.absorbed_by, self._absorbing = None, 0

    def redirect_members(self, new: TreeId, send: SendRequest) -> list[Effect]:
        """Send all members to another topology."""
        return [
            effect
            for peer in self.members()
            if peer.id != self.me.id
            for effect in send(peer.id, lambda n: TopologyMoved(n, self.axis, self.tree, new), ("moved",))
        ]

    # ── Private steps of a round ─────────────────────────────────────────────

    def _enqueue(self, what: Registration | SubscriptionId, requester: Requester | None) -> None:
        if len(self._pending) < PENDING_MAX:
            self._pending[what, requester] = None

    def _apply_pending(self) -> None:
        """Apply all pending requests to the planned tree."""
        assert self._round is not None
        pending, self._pending = self._pending, {}
        for what, requester in pending:
            if isinstance(what, Registration):
                known = self.plan.registration(what.interest.id)  # The same: a request that was retransmitted.
                if known != what and (known is not None or self._has_room(what.interest.id)):
                    self.plan.register(what, intervals_of(what.interest, self.axis))
            elif what is not None:
                self.plan.unregister(what)
                self._unnamed.pop(what, None)
            if requester is not None:
                self._round.requesters.append(requester)

    def _has_room(self, id: SubscriptionId) -> bool:
        """Whether there is a place for one more; a full topology drops one of the member that has most in it."""
        if self.plan.registered < REGISTRATIONS_MAX:
            return True
        crowding = self._crowded.one_less_for(id, [each.interest.id for each in self.plan.registrations()])
        if crowding is not None:
            self.plan.unregister(crowding)
        return crowding is not None

    def _suspects_own(self) -> bool:
        """Whether a suspected member still owns partitions."""
        return any(each.owner.id in self._suspected for each in self._pushed.values()) if self._suspected else False

    def _reassign(self) -> None:
        """Give each partition of a suspected or former member to another member."""
        members = {peer.id: peer for peer in self.members() if peer.id not in self._suspected}
        for node in list(self.plan):
            if node.owner.id not in members or members[node.owner.id] != node.owner:
                self.plan.set_owner(node.low, self._new_owner(node, members))

    def _new_owner(self, node: PartitionNode, members: dict[NodeId, Peer]) -> Peer:
        """A member with a bound at the partition's lower cut, else the owner of the one before, else any member."""
        for id in node.users:
            if id.origin in members:
                return members[id.origin]
        before = node.before.owner.id if node.before else ""
        if before in members:
            return members[before]
        return next(iter(members.values()), self.me)

    def _push_changes(self, send: SendRequest) -> list[Effect]:
        """Push all changed partitions to their owners."""
        assert self._round is not None
        effects: list[Effect] = []
        for low in dict.fromkeys([*self.plan.changed(), *self._resync]):  # In a fixed order, each once.
            node, pushed = self.plan.get(low), self._pushed.get(low)
            if node is None:
                if pushed is not None:
                    self._round.revoked.append((pushed.owner, low, pushed.state.epoch))
                    del self._pushed[low]
                continue
            effects += self._push(node, pushed, low in self._resync, send)
        self._resync = {}
        return effects

    def _push(self, node: PartitionNode, pushed: _Pushed | None, whole: bool, send: SendRequest) -> list[Effect]:
        assert self._round is not None
        same = pushed is not None and pushed.owner == node.owner and not whole
        if pushed is not None and pushed.owner.id != node.owner.id:
            self._round.revoked.append((pushed.owner, node.low, pushed.state.epoch))
        epoch = pushed.state.epoch if pushed is not None and same else self._serial
        state = self._state_of(node, epoch)
        before = pushed.registered if pushed is not None and same else {}
        added = [each for id, each in node.registered.items() if before.get(id) != each]
        gone = tuple(id for id in before if id not in node.registered)
        self._pushed[node.low] = _Pushed(node.owner, state, dict(node.registered))
        effects: list[Effect] = []
        for batch, left in zip_longest(_batches(added), _parts(gone), fillvalue=()):
            effects += self._send_in_round(
                node.owner.id,
                lambda n, batch=batch, left=left: AssignPartition(  # type: ignore[misc]
                    n, self.axis, self.tree, state, not same, batch, left
                ),
                send,
                node.low,
            )
        return effects

    def _state_of(self, node: PartitionNode, epoch: int) -> PartitionState:
        return PartitionState(
            node.low,
            node.high,
            node.first,
            node.last,
            epoch,
            self._serial,
            _ref(node.parent),
            _ref(node.left),
            _ref(node.right),
            _ref(node.before),
            _ref(node.after),
            tuple(PartitionRef(each.low, each.owner) for each in self.plan.fingers(node)) if self.fingers else (),
        )

    def _replicate(self, send: SendRequest) -> list[Effect]:
        """Send the replicas what has changed, and new replicas everything."""
        self._choose_replicas()
        all_now = {each.interest.id: each for each in self.plan.registrations()}
        added = [each for id, each in all_now.items() if self._replicated.get(id) != each]
        gone = tuple(id for id in self._replicated if id not in all_now)
        self._replicated = all_now
        effects: list[Effect] = []
        for rank, (id, (_, since)) in enumerate(self.replicas.items()):
            whole = since == self._serial
            batches = _batches(list(all_now.values()) if whole else added)
            for batch, left in zip_longest(batches, _parts(() if whole else gone), fillvalue=()):
                effects += self._send_in_round(
                    id,
                    lambda n, batch=batch, left=left, rank=rank, since=since: Replicate(  # type: ignore[misc]
                        n, self.axis, self.tree, rank, since, self._serial, batch, left
                    ),
                    send,
                )
        return effects

    def _choose_replicas(self) -> None:
        members = {peer.id: peer for peer in self.members() if peer.id not in self._suspected and peer.id != self.me.id}
        self.replicas = {id: kept for id, kept in self.replicas.items() if members.get(id) == kept[0]}
        for id, peer in members.items():
            if len(self.replicas) >= REPLICAS:
                break
            self.replicas.setdefault(id, (peer, self._serial))

    def _send_in_round(
        self, to: NodeId, make: Callable[[int], Message], send: SendRequest, low: Cut | None = None
    ) -> list[Effect]:
        assert self._round is not None
        self._round.pending += 1
        return send(to, make, ("round", self.axis, self.tree, low))

    def _advance(self, send: SendRequest) -> list[Effect]:
        """Once all messages are acknowledged, revoke partitions; once that is acknowledged too, end the round."""
        current = self._round
        if current is None or current.pending > 0:
            return []
        if current.revoked:
            revoked, current.revoked = current.revoked, []
            return [
                effect
                for owner, low, epoch in revoked
                for effect in self._send_in_round(
                    owner.id,
                    lambda n, low=low, epoch=epoch: RevokePartition(  # type: ignore[misc]
                        n, self.axis, self.tree, low, epoch
                    ),
                    send,
                )
            ]
        self._finished += current.requesters
        self._round = None
        return []

    def _owns(self, peer: NodeId, low: Cut) -> bool:
        pushed = self._pushed.get(low)
        return pushed is not None and pushed.owner.id == peer


# ── All topologies that a node coordinates ─────────────────────────────────────


class LocalMember(Protocol):
    """What coordinators ask of their own node as a member of topologies."""

    def has_interest(self, id: SubscriptionId) -> bool:
        """Whether this interest belongs to the node and has not been withdrawn."""

    def topology_of(self, axis: AttributeAxis) -> TreeId | None:
        """The topology of an attribute that the node is a member of."""


class Coordinators:
    """The coordinators at one node, by attribute."""

    def __init__(
        self, me: Peer, requests: Requests, retired: RetiredTopologies, member: LocalMember, *, fingers: bool
    ) -> None:
        self.me, self._requests, self._retired, self._member, self._fingers = me, requests, retired, member, fingers
        self.by_axis: dict[AttributeAxis, Coordinator] = {}
        self._founded = 0

    def __contains__(self, axis: AttributeAxis) -> bool:
        return axis in self.by_axis

    def found(self, axis: AttributeAxis, trusted_from: float) -> Coordinator:
        """Become the coordinator of a new topology, which confirms nothing before `trusted_from`."""
        self._founded += 1
        tree = TreeId(self.me, self._founded)
        self.by_axis[axis] = coordinator = Coordinator(
            self.me, axis, tree, trusted_from=trusted_from, fingers=self._fingers
        )
        return coordinator

    def run(self, coordinator: Coordinator | None, now: float) -> list[Effect]:
        """Begin a round if there is work for one, and answer the requests that are done."""
        if coordinator is None:
            return []
        effects = coordinator.begin_round(self._sender(now), now)
        for to, request, id in coordinator.take_finished(now):
            answer = OperationDone(request) if id is None else Registered(request, coordinator.anchor(id))
            effects.append(Send(to, answer))
        return effects

    def of(self, axis: AttributeAxis, tree: TreeId) -> Coordinator | None:
        """The coordinator of this very topology, if it is at this node."""
        coordinator = self.by_axis.get(axis)
        return coordinator if coordinator is not None and coordinator.tree == tree else None

    # ── Members ──────────────────────────────────────────────────────────────

    def on_request(self, sender: NodeId, message: Register | Unregister | AbsorbTopology, now: float) -> list[Effect]:
        """A member registers or unregisters an interest, or another coordinator hands over its registrations."""
        axis, tree = message.axis, message.tree
        coordinator = self.by_axis.get(axis)
        mine = coordinator is not None and (isinstance(message, AbsorbTopology) or coordinator.tree == tree)
        if coordinator is None or not mine or coordinator.absorbed_by is not None:
            return [Send(sender, NotCoordinator(message.request, axis, tree, self._successor(axis, tree)))]
        match message:
            case Register(request, _, _, registration):
                if registration.peer.id == sender:
                    coordinator.register(registration, (sender, request, registration.interest.id), now)
            case Unregister(request, _, _, id):
                if id.origin == sender:
                    coordinator.unregister(id, (sender, request, None))
            case AbsorbTopology(request, _, _, registrations):
                self.register_all(coordinator, registrations, now)
                coordinator.confirm((sender, request, None))
        return self.run(coordinator, now)

    def register_all(self, coordinator: Coordinator, registrations: Iterable[Registration], now: float) -> None:
        """Register what another coordinator had; of this node's own interests only those it has not withdrawn.

        What a member has registered here itself stays as it is: the other may have an earlier version.
        """
        records = list(registrations)
        unknown = set(coordinator.unknown(each.interest.id for each in records))
        for each in records:
            is_withdrawn = each.peer.id == self.me.id and not self._member.has_interest(each.interest.id)
            if each.interest.id in unknown and not is_withdrawn:
                coordinator.register(each, None, now)

    def on_renew_lease(self, sender: NodeId, message: RenewLease, now: float) -> list[Effect]:
        """A member reports what it has: renew its lease, and correct what differs."""
        axis, tree = message.axis, message.tree
        coordinator = self.of(axis, tree)
        if coordinator is None:
            successor = self._successor(axis, tree)
            return [] if successor is None else [Send(sender, DuplicateTopology(axis, successor))]
        coordinator.renew_lease(message.me, now)
        if message.complete:
            coordinator.drop_unnamed(message.me, message.ids)
        wrong = coordinator.compare(message.me, message.owned) if message.complete else []
        anchor = coordinator.anchor(message.ids[0]) if message.ids else None
        answer = LeaseRenewed(axis, tree, coordinator.unknown(message.ids), anchor)
        revoked = [Send(sender, RevokePartition(0, axis, tree, low, epoch)) for low, epoch in wrong]
        return [Send(sender, answer), *revoked, *self.run(coordinator, now)]

    def on_peer_suspected(self, message: PeerSuspected, now: float) -> list[Effect]:
        """A member says that another does not answer: probe it."""
        coordinator = self.of(message.axis, message.tree)
        about = ("probe", message.axis, message.tree, message.peer)
        if coordinator is None or about in self._requests.about() or message.peer == self.me.id:
            return []
        incarnation = coordinator.incarnation_of(message.peer)
        return self._requests.send(message.peer, lambda n: Probe(n, incarnation), about, now, REGISTER_TRIES)

    def acknowledged(self, axis: AttributeAxis, tree: TreeId, refused: Cut | None, now: float) -> list[Effect]:
        """An answer to a round; `refused` is a partition whose owner lacks the version that the change builds on."""
        coordinator = self.of(axis, tree)
        if coordinator is None:
            return []
        coordinator.resync(refused)
        return [*coordinator.acknowledged(self._sender(now)), *self.run(coordinator, now)]

    def suspect(self, axis: AttributeAxis, tree: TreeId, peer: NodeId, now: float) -> list[Effect]:
        """An owner of partitions does not answer."""
        coordinator = self.of(axis, tree)
        if coordinator is None:
            return []
        coordinator.suspect(peer)
        return self.run(coordinator, now)

    # ── Duplicate topologies ─────────────────────────────────────────────────

    def on_duplicate(self, coordinator: Coordinator, other: TreeId, sender: NodeId, now: float) -> list[Effect]:
        """There is another topology for the attribute: the later one merges into the earlier.

        Into one that exists, by its own coordinator's word; if somebody else says so, that one is asked.
        """
        axis = coordinator.axis
        is_own = other == coordinator.tree or other.coordinator.id == self.me.id
        if other.coordinator.id == sender:  # After a split it was given up here, and has gone on over there.
            self._retired.alive(axis, other)
        if is_own or self._retired.is_retired(axis, other, now):
            return []
        if other.order > coordinator.tree.order or other.coordinator.id != sender:
            return [Send(other.coordinator.id, DuplicateTopology(axis, coordinator.tree))]
        if coordinator.absorbed_by is not None:
            return []
        return [Count("topologies merged"), *coordinator.absorb_into(other, self._sender(now))]

    def batch_absorbed(
        self, axis: AttributeAxis, tree: TreeId, merger: int, now: float
    ) -> tuple[list[Effect], TreeId | None]:
        """The other topology has taken one batch. With the last one, this topology ends; returns its successor."""
        coordinator = self._merging(axis, tree, merger)
        if coordinator is None or not coordinator.batch_absorbed():
            return [], None
        winner = coordinator.absorbed_by
        assert winner is not None
        del self.by_axis[axis]
        return coordinator.redirect_members(winner, self._sender(now)), winner

    def merger_failed(self, axis: AttributeAxis, tree: TreeId, merger: int, now: float) -> list[Effect]:
        """The other topology does not answer: this one continues."""
        coordinator = self._merging(axis, tree, merger)
        if coordinator is None or coordinator.absorbed_by is None:
            return []
        self._retired.unreachable(axis, coordinator.absorbed_by, now)
        coordinator.cancel_merger()
        return self.run(coordinator, now)

    # ── Private steps ────────────────────────────────────────────────────────

    def _merging(self, axis: AttributeAxis, tree: TreeId, merger: int) -> Coordinator | None:
        """The coordinator of this topology, if it is in this very merger."""
        coordinator = self.of(axis, tree)
        if coordinator is None or coordinator.absorbed_by is None or coordinator.mergers != merger:
            return None
        return coordinator

    def _successor(self, axis: AttributeAxis, tree: TreeId) -> TreeId | None:
        """The topology that has replaced this one, as far as this node knows."""
        coordinator = self.by_axis.get(axis)
        if coordinator is not None:
            return coordinator.absorbed_by or coordinator.tree
        known = self._retired.successor(axis, tree) or self._member.topology_of(axis)
        return known if known != tree else None

    def _sender(self, now: float) -> SendRequest:
        return lambda to, make, about: self._requests.send(to, make, about, now)


def _agree(pushed: _Pushed, theirs: PartitionSummary | None) -> bool:
    return theirs is not None and (theirs.epoch, theirs.version, theirs.registered) == (
        pushed.state.epoch,
        pushed.state.version,
        len(pushed.registered),
    )


def _ref(node: PartitionNode | None) -> PartitionRef | None:
    return PartitionRef(node.low, node.owner) if node is not None else None


def _batches(registrations: Sequence[Registration]) -> list[tuple[Registration, ...]]:
    return in_messages(registrations, BATCH_MAX)


def _parts(gone: Sequence[SubscriptionId]) -> list[tuple[SubscriptionId, ...]]:
    """At least one: a message without any says what else there is to say."""
    return [tuple(gone[start : start + GONE_MAX]) for start in range(0, max(1, len(gone)), GONE_MAX)]
